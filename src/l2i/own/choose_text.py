"""What is chosen for texts that a pretrained encoder reads, each with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from l2i.config import L2I, Data, Optim, Run
from l2i.data.augment import Augment
from l2i.data.loader import Batches
from l2i.data.tokenized import Text
from l2i.data.words import Words
from l2i.models.base import Network

if TYPE_CHECKING:
    from l2i.own.choose import Facts

STRONG: dict[str, Any] = {"student_view": "strong"}  # the weak view leaves a text as it is
TEXT_SETTINGS: dict[str, dict[str, Any]] = {  # of methods, where they differ from those for other samples
    "uda": {"weight": 1.0, "threshold": 0.0, "temperature": 1.0, "annealing": "linear"},
    "fixmatch": {"weight": 1.0, "threshold": 0.95},
    "pi-model": STRONG,
    "mean-teacher": STRONG,
    "pseudo-label": STRONG,
}
ON_GPU, ON_CPU = 3000, 300  # steps
RHO = 0.03  # with the library's 0.3, few labels were learned by heart and all else forgotten


def text_method(facts: Facts) -> tuple[str, str]:
    """UDA for classes, mean teacher for numbers."""
    if facts.classes is None:
        return "mean-teacher", "regression: agreement with an averaged model on texts with words replaced"
    return (
        "uda",
        "classes of texts: as UDA has it there, with all labels and as they are; sharper ones did worse in trials",
    )


def for_texts(facts: Facts) -> tuple[Run, dict[str, str]]:
    """All but the method."""
    run = Run(
        name="own",
        steps=ON_GPU if facts.gpu else ON_CPU,
        data=Data(text=Text(length=facts.shape[0]), strong=Augment(words=Words(replace=0.3))),
        batch=Batches(labeled=8, unlabeled=24, holdout=8),
        model=Network(name="encoder", weights=facts.weights, dropout=0.1, encoder_dropout=0.0),  # as it was measured
        optim=Optim(lr=2e-5, schedule="linear", warmup=0.1, clip=1.0, ema_decay=0.99),
        l2i=L2I(rho=RHO),
    )
    why = {
        "network": "the pretrained network that was named, all of it trained further",
        "texts": "as long as the longest one trained on, at most 128: time grows with it",
        "weak view": "the text as it is",
        "strong view": "words that say little replaced by others, as UDA has it where there are no back-translations",
        "steps": (
            f"on a GPU; {ON_CPU} without one" if facts.gpu else f"on a CPU, where steps are slow; {ON_GPU:,} on a GPU"
        ),
        "batch": "small, as usual for pretrained networks",
        "optimizer": "as BERT is trained further",
        "L2I": "the outer step on the last layer, normalised; a larger ρ did harm to texts (docs/results.md)",
    }
    return run, why
