"""The semi-supervised methods that L2I wraps, by name."""

METHODS: dict[str, str] = {
    "supervised": "l2i.methods.supervised:Supervised",
    "pseudo-label": "l2i.methods.pseudo_label:PseudoLabel",
    "pi-model": "l2i.methods.pi_model:PiModel",
    "mean-teacher": "l2i.methods.mean_teacher:MeanTeacher",
    "mixmatch": "l2i.methods.mixmatch:MixMatch",
    "fixmatch": "l2i.methods.fixmatch:FixMatch",
}
