"""The networks, by name; each is `features` followed by a linear `head`."""



MODELS: dict[str, str] = {
    "mlp": "l2i.models.mlp:mlp",
    "conv": "l2i.models.conv:conv",
    "wide-resnet": "l2i.models.wide_resnet:wide_resnet",
    "resnet": "l2i.models.resnet:resnet",
    "tcdcn": "l2i.models.tcdcn:tcdcn",
    "encoder": "l2i.models.text_encoder:encoder",
}
