"""The networks, by name; each is `features` followed by a linear `head`."""

MODELS: dict[str, str] = {
    "mlp": "l2i.models.basic:mlp",
    "conv": "l2i.models.basic:conv",
    "wide-resnet": "l2i.models.resnet:wide_resnet",
    "resnet": "l2i.models.resnet:resnet",
    "tcdcn": "l2i.models.tcdcn:tcdcn",
    "encoder": "l2i.models.text_encoder:encoder",
}
