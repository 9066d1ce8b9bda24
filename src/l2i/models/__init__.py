"""The networks, by name; each is `features` followed by a linear `head`."""

MODELS: dict[str, str] = {
    "mlp": "l2i.models.basic:build_mlp",
    "conv": "l2i.models.basic:build_conv",
    "wide-resnet": "l2i.models.resnet:build_wide_resnet",
    "resnet": "l2i.models.resnet:build_resnet",
    "efficientnet-lite0": "l2i.models.efficientnet:build_lite0",
    "efficientnet-lite1": "l2i.models.efficientnet:build_lite1",
    "efficientnet-lite2": "l2i.models.efficientnet:build_lite2",
    "tcdcn": "l2i.models.tcdcn:build_tcdcn",
    "encoder": "l2i.models.text_encoder:build_text_encoder",
}
