"""A run for data that nobody has seen before: method, network, views, batches and budget, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from l2i.config import L2I, Data, Optim, Run, replace
from l2i.data.augment import Augment
from l2i.data.loader import Batches
from l2i.methods import METHODS
from l2i.models.base import Network
from l2i.own.choose_text import TEXT_SETTINGS, for_texts, text_method
from l2i.own.fitted import Choice
from l2i.recipes.cells import TABLE_RHO
from l2i.registry import load
from l2i.validate import fields_of

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
SMALLEST = 4  # pixels of a side, for convolutions and shifts
EVALUATIONS, FEW_EVALUATIONS, SAVES = 20, 5, 4  # of a run


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the data before anything is trained."""

    shape: tuple[int, ...]
    """Of a sample as the network sees it: [E] for a table, [C, H, W] for images, [L] for texts."""
    classes: int | None
    labeled: int
    unlabeled: int
    points: bool = False
    gpu: bool = False
    text: bool = False
    """Whether samples are texts that a pretrained encoder reads, whose weights are named by `weights`."""
    weights: str | None = None

    @property
    def images(self) -> bool:
        return len(self.shape) == 3

    @property
    def side(self) -> int:
        return min(self.shape[1:]) if self.images else 0


def chosen(facts: Facts, *, method: str = "auto", impute: bool = True) -> tuple[Run, dict[str, str]]:
    """A run for the data, and why it is so; with a method by name, or the one that suits it."""
    name, why_method = method_for(facts) if method == "auto" else (method, "as asked")
    made, why = for_texts(facts) if facts.text else for_samples(facts)
    run = replace(made, method=load("method", METHODS, name)(**settings_for(name, facts)))
    update = "normalized" if run.method.imputes and impute else "off"
    run = paced(replace(run, l2i={"outer_update": update}), run.steps, evaluations_for(facts))
    if facts.classes is not None and not facts.images and not facts.text:
        run, why["L2I"] = replace(run, l2i={"rho": TABLE_RHO}), "weaker than usual, which did harm to such tables"
    return run, {"method": why_method, **why}


def for_samples(facts: Facts) -> tuple[Run, dict[str, str]]:
    """All but the method, for a table or images."""
    network, why_network = network_for(facts)
    steps, why_steps = budget_for(facts)
    labeled = min(max(facts.labeled, FEW), MANY)
    weak, strong = views_for(facts)
    run = Run(
        name="own",
        steps=steps,
        threads=0 if facts.images else 1,
        data=Data(weak=weak, strong=strong),
        batch=Batches(labeled=labeled, unlabeled=MANY, holdout=labeled),
        model=network,
        optim=optim_for(facts),
    )
    why = {
        "network": why_network,
        "weak view": "what leaves the label of a row as it is",
        "strong view": "more of it, for methods that learn on such a view",
        "steps": why_steps,
        "batch": f"{facts.labeled:,} labelled rows to draw from",
        "optimizer": "good figures in few steps, in our trials",
        "L2I": "the outer step on the last layer, normalised: the library's default",
    }
    return run, why


def paced(run: Run, steps: int, evaluations: int = EVALUATIONS) -> Run:
    """The run with so many steps, evaluated and saved at an even pace."""
    return replace(run, steps=steps, eval_every=max(1, steps // evaluations), save_every=max(1, steps // SAVES))


def evaluations_for(facts: Facts) -> int:
    """How often to evaluate: an encoder on a CPU takes as long for some hundred rows as for a step."""
    return FEW_EVALUATIONS if facts.text and not facts.gpu else EVALUATIONS


def explained(run: Run, before: Run, why: dict[str, str]) -> tuple[Choice, ...]:
    """What was chosen and why; a user's own changes of the run `before` are called so."""
    old = values_of(before)
    return tuple(
        Choice(name=name, value=value, why=why[name] if value == old[name] else "as asked")
        for name, value in values_of(run).items()
    )


def values_of(run: Run) -> dict[str, str]:
    """The parts of a run that are chosen, in words."""
    optim, method = run.optim, dict(fields_of(run.method))
    texts = run.model.name == "encoder"
    told = ("weight", "threshold", "temperature") if texts else ("weight", "threshold")
    settings = "".join(f", {name} {method[name]:.3g}" for name in told if name in method)
    return {
        "method": run.method.name + (settings if run.method.imputes else ""),
        "network": network_of(run.model),
        **({"texts": f"{run.data.text.length} tokens, of longer ones the {run.data.text.keep}"} if texts else {}),
        "weak view": view_of(run.data.weak),
        "strong view": view_of(run.data.strong),
        "steps": f"{run.steps:,}",
        "batch": f"{run.batch.labeled} labelled + {run.batch.unlabeled} unlabelled",
        "optimizer": f"{optim.name}, rate {optim.lr:g}, {optim.schedule}" + (", warmed up" if optim.warmup else ""),
        "L2I": "off" if run.l2i.outer_update == "off" else outer_of(run.l2i),
    }


def outer_of(l2i: L2I) -> str:
    """The outer step in words, with its strength where that is not the usual one."""
    return f"{l2i.outer_update}, {l2i.hypergradient}" + (f", ρ {l2i.rho:g}" if l2i.rho != L2I().rho else "")


def network_of(network: Network) -> str:
    """A network in words."""
    if network.name != "encoder":
        return f"{network.name}, width {network.width}, depth {network.depth}"
    frozen = {
        "none": "",
        "embeddings": ", word embeddings not trained",
        "encoder": ", of which the head is trained alone",
    }
    return f"encoder {network.weights}, dropout {network.dropout:g} before the head{frozen[network.frozen]}"


def view_of(view: Augment) -> str:
    """A perturbation in words."""
    fields = sorted(set(fields_of(view)) - set(fields_of(Augment())), key=fields_of(view).index)
    changed = [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in fields]
    return ", ".join(changed) or "none"


def method_for(facts: Facts) -> tuple[str, str]:
    """The method that does best on such data in our trials (docs/own-data.md)."""
    if not facts.unlabeled:
        return "supervised", "there are no unlabelled rows"
    if facts.text:
        return text_method(facts)
    if facts.classes is not None and facts.images and facts.side >= SMALLEST:
        return "fixmatch", "images of classes: confident labels of a weak view, learned on a strong one"
    if facts.classes is not None:
        return (
            "pseudo-label",
            "classes of a table: confident labels of a perturbed row, learned on another perturbation",
        )
    return "mean-teacher", "regression: agreement with an averaged model on perturbed rows"


def settings_for(name: str, facts: Facts) -> dict[str, Any]:
    """A method's settings for the data."""
    settings = SETTINGS.get(name, {}) | (TEXT_SETTINGS.get(name, {}) if facts.text else {})
    if facts.classes is None and "weight" in settings:
        settings["weight"] = TARGET_WEIGHT
    elif name == "mean-teacher" and not facts.images and not facts.text:
        settings["weight"] = TABLE_WEIGHT
    return settings


def network_for(facts: Facts) -> tuple[Network, str]:
    """A network that suits the samples and the machine."""
    if facts.side < SMALLEST:
        return Network(name="mlp", width=128, depth=2), "rows of a table, or images too small for convolutions"
    if facts.points and facts.side >= 44:
        return Network(name="tcdcn"), "landmarks on images of 44 pixels or more: the paper's network"
    if facts.points:
        return Network(name="mlp", width=256, depth=2), "landmarks need to know places, and the images are small"
    if facts.gpu and facts.side >= 24:
        return Network(name="wide-resnet", width=2, depth=28), "images and a GPU"
    depth = 1 if facts.side < 8 else 2 if facts.side < 24 else 3
    return Network(name="conv", width=16, depth=depth), f"images of {facts.side} pixels, on this machine"


def views_for(facts: Facts) -> tuple[Augment, Augment]:
    """The weak and the strong view."""
    if not facts.images:
        share = 0.1 if facts.classes is not None else 0.3
        return Augment(noise=0.1, corrupt=share), Augment(noise=0.2, corrupt=share + 0.2)
    pixels = max(1, facts.side // 12) if facts.side >= SMALLEST else 0
    if facts.classes is None:
        weak = Augment(shift=pixels, padding="reflect")
        return weak, weak
    return Augment(shift=pixels), Augment(shift=pixels, randaugment=2)


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
