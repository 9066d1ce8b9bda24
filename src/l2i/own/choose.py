"""A run for data that nobody has seen before: method, network, views, batches and budget, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from l2i.config import Data, Optim, Run, replace
from l2i.data.augment import Augment
from l2i.data.loader import Batches
from l2i.methods import METHODS
from l2i.models.base import Network
from l2i.own.fitted import Choice
from l2i.registry import load

SETTINGS: dict[str, dict[str, Any]] = {  # of methods, where their own defaults are made for long runs
    "fixmatch": {"threshold": 0.8},
    "pi-model": {"weight": 10.0, "rampup": 1 / 3},
    "mean-teacher": {"weight": 10.0, "rampup": 1 / 3},
    "mixmatch": {"weight": 10.0, "rampup": 1 / 3},
    "vat": {"epsilon": 1.0},
}
TABLE_WEIGHT = 30.0  # of mean teacher's consistency, classes of a table
TARGET_WEIGHT = 1.0  # of consistency, regression
FEW, MANY = 32, 64  # labelled samples of a mini-batch, at least and at most
PASSES = 20  # over the unlabelled samples, where there are many
LONGEST = 10  # times the steps of a small set
EVALUATIONS = 20


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the data before anything is trained."""

    shape: tuple[int, ...]
    """Of a sample as the network sees it: [E] for a table, [C, H, W] for images."""
    classes: int | None
    labeled: int
    unlabeled: int
    points: bool = False
    gpu: bool = False

    @property
    def images(self) -> bool:
        return len(self.shape) == 3

    @property
    def side(self) -> int:
        return min(self.shape[1:]) if self.images else 0


def chosen(facts: Facts, *, method: str = "auto", impute: bool = True) -> tuple[Run, tuple[Choice, ...]]:
    """A run for the data, and what was chosen why; with a method by name, or the one that suits it."""
    choices: list[Choice] = []

    def choose(name: str, value: Any, why: str) -> None:
        choices.append(Choice(name=name, value=str(value), why=why))

    name, why = method_for(facts) if method == "auto" else (method, "as asked")
    choose("method", name, why)
    network, why = network_for(facts)
    choose("network", f"{network.name}, width {network.width}, depth {network.depth}", why)
    weak, strong, why = views_for(facts)
    choose("perturbation", why, "what leaves a sample's label as it is")
    steps, why = budget_for(facts)
    choose("steps", steps, why)
    labeled = min(max(facts.labeled, FEW), MANY)
    choose("batch", f"{labeled} labelled + {MANY} unlabelled", f"{facts.labeled:,} labelled rows to draw from")
    run = Run(
        name="own",
        steps=steps,
        eval_every=max(1, steps // EVALUATIONS),
        save_every=max(1, steps // 4),
        threads=0 if facts.images else 1,
        data=Data(weak=weak, strong=strong),
        batch=Batches(labeled=labeled, unlabeled=MANY, holdout=labeled),
        model=network,
        optim=optim_for(facts),
        method=load("method", METHODS, name)(**settings_for(name, facts)),
    )
    if run.method.imputes and impute:
        choose("L2I", "on, labels as the model's output", "the outer step on the last layer, normalised")
    return replace(run, l2i={"outer_update": "normalized" if run.method.imputes and impute else "off"}), tuple(choices)


def method_for(facts: Facts) -> tuple[str, str]:
    """The method that does best on such data in our trials (docs/own-data.md)."""
    if not facts.unlabeled:
        return "supervised", "there are no unlabelled rows"
    if facts.classes is not None and facts.images and facts.side >= 4:
        return "fixmatch", "images of classes: confident labels of a weak view, learned on a strong one"
    kind = "classes of a table" if facts.classes is not None else "regression"
    return "mean-teacher", f"{kind}: agreement with an averaged model on perturbed rows"


def settings_for(name: str, facts: Facts) -> dict[str, Any]:
    """A method's settings for the data."""
    settings = dict(SETTINGS.get(name, {}))
    if facts.classes is None and "weight" in settings:
        settings["weight"] = TARGET_WEIGHT
    elif name == "mean-teacher" and not facts.images:
        settings["weight"] = TABLE_WEIGHT
    return settings


def network_for(facts: Facts) -> tuple[Network, str]:
    """A network that suits the samples and the machine."""
    if facts.side < 4:
        return Network(name="mlp", width=128, depth=2), "rows of a table, or images too small for convolutions"
    if facts.points and facts.side >= 44:
        return Network(name="tcdcn"), "landmarks on images of 44 pixels or more: the paper's network"
    if facts.points:
        return Network(name="mlp", width=256, depth=2), "landmarks need to know places, and the images are small"
    if facts.gpu and facts.side >= 24:
        return Network(name="wide-resnet", width=2, depth=28), "images and a GPU"
    depth = 1 if facts.side < 8 else 2 if facts.side < 24 else 3
    return Network(name="conv", width=16, depth=depth), f"images of {facts.side} pixels, on this machine"


def views_for(facts: Facts) -> tuple[Augment, Augment, str]:
    """The weak and the strong view, and in words."""
    if not facts.images:
        share = 0.2 if facts.classes is not None else 0.3
        weak, strong = Augment(noise=0.1, corrupt=share), Augment(noise=0.2, corrupt=share + 0.2)
        return weak, strong, f"noise of 0.1 standard deviations, {share:.0%} of the columns from another row"
    pixels = max(1, facts.side // 12)
    if facts.classes is None:
        weak = Augment(shift=pixels, padding="reflect")
        return weak, weak, f"shifts of up to {pixels} pixels"
    weak, strong = Augment(shift=pixels), Augment(shift=pixels, randaugment=2)
    return weak, strong, f"shifts of up to {pixels} pixels; strongly: two operations of RandAugment as well"


def budget_for(facts: Facts) -> tuple[int, str]:
    """Steps enough for a small set, and more where there is more to see."""
    least = 10_000 if facts.gpu and facts.side >= 24 else 1000 if facts.images else 500
    wanted = PASSES * facts.unlabeled // MANY
    steps = min(max(wanted, least), LONGEST * least)
    return steps, f"about {steps * MANY / max(1, facts.unlabeled):.0f} passes over {facts.unlabeled:,} unlabelled rows"


def optim_for(facts: Facts) -> Optim:
    """Rates that reach a good figure in few steps."""
    if facts.points and facts.side >= 44:
        return Optim(name="sgd", lr=0.03, weight_decay=0.0005, decay="l2", schedule="cosine", ema_decay=0.99)
    if facts.images and facts.classes is not None:
        return Optim(lr=0.005, weight_decay=0.00004, schedule="cosine", ema_decay=0.99)
    return Optim(lr=0.002, weight_decay=0.00004, ema_decay=0.99)
