"""The semi-supervised methods that L2I wraps, by name."""

METHODS: dict[str, str] = {
    "supervised": "l2i.methods.supervised:Supervised",
    "pseudo-label": "l2i.methods.pseudo_label:PseudoLabel",
    "pi-model": "l2i.methods.pi_model:PiModel",
    "mean-teacher": "l2i.methods.mean_teacher:MeanTeacher",
    "vat": "l2i.methods.vat:VAT",
    "mixup": "l2i.methods.mixup:MixUp",
    "mixmatch": "l2i.methods.mixmatch:MixMatch",
    "fixmatch": "l2i.methods.fixmatch:FixMatch",
    "uda": "l2i.methods.uda:UDA",
}
