"""What is chosen for texts that a pretrained encoder reads, each with its reason.

MERGED:
A run for data that nobody has seen before: method, network, views, batches and budget, each with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from l2i.config import L2I, Data, Optim, Run, replace
from l2i.config.validate import flatten_fields
from l2i.data.tokenization import Text
from l2i.data.transforms.image import Augment
from l2i.data.transforms.text import TokenAugment
from l2i.fit.artifact import Choice
from l2i.methods import METHODS
from l2i.models.base import ModelConfig
from l2i.recipes.table import TABULAR_RHO
from l2i.registry import load_registered
from l2i.training.loader import BatchSizes

STRONG_STUDENT_VIEW: dict[str, Any] = {"student_view": "strong"}  # the weak view leaves a text as it is
TEXT_METHOD_SETTINGS: dict[str, dict[str, Any]] = {  # of methods, where they differ from those for other samples
    "uda": {"weight": 1.0, "threshold": 0.0, "temperature": 1.0, "annealing": "linear"},
    "fixmatch": {"weight": 1.0, "threshold": 0.95},
    "pi-model": STRONG_STUDENT_VIEW,
    "mean-teacher": STRONG_STUDENT_VIEW,
    "pseudo-label": STRONG_STUDENT_VIEW,
}
GPU_STEPS, CPU_STEPS = 3000, 300  # steps
TEXT_RHO = 0.03  # with the library's 0.3, few labels were learned by heart and all else forgotten


def choose_text_method(facts: Facts) -> tuple[str, str]:
    """UDA for classes, mean teacher for numbers."""
    if facts.classes is None:
        return "mean-teacher", "regression: agreement with an averaged model on texts with words replaced"
    return (
        "uda",
        "classes of texts: as UDA has it there, with all labels and as they are; sharper ones did worse in trials",
    )


def choose_text_run(facts: Facts) -> tuple[Run, dict[str, str]]:
    """All but the method."""
    run = Run(
        name="own",
        steps=GPU_STEPS if facts.has_gpu else CPU_STEPS,
        data=Data(text=Text(length=facts.shape[0]), strong=Augment(words=TokenAugment(replace=0.3))),
        batch=BatchSizes(labeled=8, unlabeled=24, holdout=8),
        model=ModelConfig(name="encoder", weights=facts.weights, dropout=0.1, encoder_dropout=0.0),  # as it was measured
        optim=Optim(lr=2e-5, schedule="linear", warmup=0.1, max_grad_norm=1.0, ema_decay=0.99),
        l2i=L2I(rho=TEXT_RHO),
    )
    reasons = {
        "network": "the pretrained network that was named, all of it trained further",
        "texts": "as long as the longest one trained on, at most 128: time grows with it",
        "weak view": "the text as it is",
        "strong view": "words that say little replaced by others, as UDA has it where there are no back-translations",
        "steps": (
            f"on a GPU; {CPU_STEPS} without one" if facts.has_gpu else f"on a CPU, where steps are slow; {GPU_STEPS:,} on a GPU"
        ),
        "batch": "small, as usual for pretrained networks",
        "optimizer": "as BERT is trained further",
        "L2I": "the outer step on the last layer, normalised; a larger ρ did harm to texts (docs/results.md)",
    }
    return run, reasons


METHOD_SETTINGS: dict[str, dict[str, Any]] = {  # of methods, where their own defaults are made for long runs
    "fixmatch": {"threshold": 0.8},
    "pi-model": {"weight": 10.0, "rampup": 1 / 3},
    "mean-teacher": {"weight": 10.0, "rampup": 1 / 3},
    "mixmatch": {"weight": 10.0, "rampup": 1 / 3},
    "vat": {"epsilon": 1.0},
}
TABLE_CONSISTENCY_WEIGHT = 30.0  # of mean teacher's consistency, classes of a table
REGRESSION_WEIGHT = 1.0  # of consistency, regression
MIN_BATCH_SIZE, MAX_BATCH_SIZE = 32, 64  # labelled samples of a mini-batch, at least and at most
UNLABELED_EPOCHS = 20  # over the unlabelled samples, where there are many
MAX_STEPS_FACTOR = 10  # times the steps of a small set
MIN_CONV_SIDE = 4  # pixels of a side, for convolutions and shifts
NUM_EVALS, NUM_CPU_TEXT_EVALS, NUM_SAVES = 20, 5, 4  # of a run


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the data before anything is trained."""

    shape: tuple[int, ...]
    """Of a sample as the network sees it: [E] for a table, [C, H, W] for images, [L] for texts."""
    classes: int | None
    labeled: int
    unlabeled: int
    has_points: bool = False
    has_gpu: bool = False
    is_text: bool = False
    """Whether samples are texts that a pretrained encoder reads, whose weights are named by `weights`."""
    weights: str | None = None

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @property
    def side(self) -> int:
        return min(self.shape[1:]) if self.is_image else 0


def choose_run(facts: Facts, *, method: str = "auto", impute: bool = True) -> tuple[Run, dict[str, str]]:
    """A run for the data, and why it is so; with a method by name, or the one that suits it."""
    name, why_method = choose_method(facts) if method == "auto" else (method, "as asked")
    base_run, reasons = choose_text_run(facts) if facts.is_text else choose_sample_run(facts)
    run = replace(base_run, method=load_registered("method", METHODS, name)(**choose_method_settings(name, facts)))
    update = "normalized" if run.method.uses_pseudo_labels and impute else "off"
    run = with_steps(replace(run, l2i={"update": update}), run.steps, choose_num_evals(facts))
    if facts.classes is not None and not facts.is_image and not facts.is_text:
        run, reasons["L2I"] = replace(run, l2i={"rho": TABULAR_RHO}), "weaker than usual, which did harm to such tables"
    return run, {"method": why_method, **reasons}


def choose_sample_run(facts: Facts) -> tuple[Run, dict[str, str]]:
    """All but the method, for a table or images."""
    network, why_network = choose_network(facts)
    steps, why_steps = choose_num_steps(facts)
    labeled = min(max(facts.labeled, MIN_BATCH_SIZE), MAX_BATCH_SIZE)
    weak, strong = choose_views(facts)
    run = Run(
        name="own",
        steps=steps,
        threads=0 if facts.is_image else 1,
        data=Data(weak=weak, strong=strong),
        batch=BatchSizes(labeled=labeled, unlabeled=MAX_BATCH_SIZE, holdout=labeled),
        model=network,
        optim=choose_optimizer(facts),
    )
    reasons = {
        "network": why_network,
        "weak view": "what leaves the label of a row as it is",
        "strong view": "more of it, for methods that learn on such a view",
        "steps": why_steps,
        "batch": f"{facts.labeled:,} labelled rows to draw from",
        "optimizer": "good figures in few steps, in our trials",
        "L2I": "the outer step on the last layer, normalised: the library's default",
    }
    return run, reasons


def with_steps(run: Run, steps: int, num_evals: int = NUM_EVALS) -> Run:
    """The run with so many steps, evaluated and saved at an even pace."""
    return replace(run, steps=steps, eval_every=max(1, steps // num_evals), save_every=max(1, steps // NUM_SAVES))


def choose_num_evals(facts: Facts) -> int:
    """How often to evaluate: an encoder on a CPU takes as long for some hundred rows as for a step."""
    return NUM_CPU_TEXT_EVALS if facts.is_text and not facts.has_gpu else NUM_EVALS


def explain_choices(run: Run, base_run: Run, reasons: dict[str, str]) -> tuple[Choice, ...]:
    """What was chosen and why; a user's own changes of the run `before` are called so."""
    base_values = describe_run(base_run)
    return tuple(
        Choice(name=name, value=value, reason=reasons[name] if value == base_values[name] else "as asked")
        for name, value in describe_run(run).items()
    )


def describe_run(run: Run) -> dict[str, str]:
    """The parts of a run that are chosen, in words."""
    optim, method_fields = run.optim, dict(flatten_fields(run.method))
    is_text = run.model.name == "encoder"
    shown_fields = ("weight", "threshold", "temperature") if is_text else ("weight", "threshold")
    settings = "".join(f", {name} {method_fields[name]:.3g}" for name in shown_fields if name in method_fields)
    return {
        "method": run.method.name + (settings if run.method.uses_pseudo_labels else ""),
        "network": describe_network(run.model),
        **({"texts": f"{run.data.text.length} tokens, of longer ones the {run.data.text.keep_side}"} if is_text else {}),
        "weak view": describe_view(run.data.weak),
        "strong view": describe_view(run.data.strong),
        "steps": f"{run.steps:,}",
        "batch": f"{run.batch.labeled} labelled + {run.batch.unlabeled} unlabelled",
        "optimizer": f"{optim.name}, rate {optim.lr:g}, {optim.schedule}" + (", warmed up" if optim.warmup else ""),
        "L2I": "off" if run.l2i.update == "off" else describe_outer_step(run.l2i),
    }


def describe_outer_step(l2i: L2I) -> str:
    """The outer step in words, with its strength where that is not the usual one."""
    return f"{l2i.update}, {l2i.hypergradient}" + (f", ρ {l2i.rho:g}" if l2i.rho != L2I().rho else "")


def describe_network(network: ModelConfig) -> str:
    """A network in words."""
    if network.name != "encoder":
        return f"{network.name}, width {network.width}, depth {network.depth}"
    frozen = {
        "none": "",
        "embeddings": ", word embeddings not trained",
        "encoder": ", of which the head is trained alone",
    }
    return f"encoder {network.weights}, dropout {network.dropout:g} before the head{frozen[network.freeze]}"


def describe_view(view: Augment) -> str:
    """A perturbation in words."""
    fields = sorted(set(flatten_fields(view)) - set(flatten_fields(Augment())), key=flatten_fields(view).index)
    changed = [f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in fields]
    return ", ".join(changed) or "none"


def choose_method(facts: Facts) -> tuple[str, str]:
    """The method that does best on such data in our trials (docs/own-data.md)."""
    if not facts.unlabeled:
        return "supervised", "there are no unlabelled rows"
    if facts.is_text:
        return choose_text_method(facts)
    if facts.classes is not None and facts.is_image and facts.side >= MIN_CONV_SIDE:
        return "fixmatch", "images of classes: confident labels of a weak view, learned on a strong one"
    if facts.classes is not None:
        return (
            "pseudo-label",
            "classes of a table: confident labels of a perturbed row, learned on another perturbation",
        )
    return "mean-teacher", "regression: agreement with an averaged model on perturbed rows"


def choose_method_settings(name: str, facts: Facts) -> dict[str, Any]:
    """A method's settings for the data."""
    settings = METHOD_SETTINGS.get(name, {}) | (TEXT_METHOD_SETTINGS.get(name, {}) if facts.is_text else {})
    if facts.classes is None and "weight" in settings:
        settings["weight"] = REGRESSION_WEIGHT
    elif name == "mean-teacher" and not facts.is_image and not facts.is_text:
        settings["weight"] = TABLE_CONSISTENCY_WEIGHT
    return settings


def choose_network(facts: Facts) -> tuple[ModelConfig, str]:
    """A network that suits the samples and the machine."""
    if facts.side < MIN_CONV_SIDE:
        return ModelConfig(name="mlp", width=128, depth=2), "rows of a table, or images too small for convolutions"
    if facts.has_points and facts.side >= 44:
        return ModelConfig(name="tcdcn"), "landmarks on images of 44 pixels or more: the paper's network"
    if facts.has_points:
        return ModelConfig(name="mlp", width=256, depth=2), "landmarks need to know places, and the images are small"
    if facts.has_gpu and facts.side >= 24:
        return ModelConfig(name="wide-resnet", width=2, depth=28), "images and a GPU"
    depth = 1 if facts.side < 8 else 2 if facts.side < 24 else 3
    return ModelConfig(name="conv", width=16, depth=depth), f"images of {facts.side} pixels, on this machine"


def choose_views(facts: Facts) -> tuple[Augment, Augment]:
    """The weak and the strong view."""
    if not facts.is_image:
        corruption = 0.1 if facts.classes is not None else 0.3
        return Augment(noise=0.1, corrupt=corruption), Augment(noise=0.2, corrupt=corruption + 0.2)
    max_shift = max(1, facts.side // 12) if facts.side >= MIN_CONV_SIDE else 0
    if facts.classes is None:
        weak = Augment(shift=max_shift, padding="reflect")
        return weak, weak
    return Augment(shift=max_shift), Augment(shift=max_shift, randaugment=2)


def choose_num_steps(facts: Facts) -> tuple[int, str]:
    """Steps enough for a small set, and more where there is more to see."""
    min_steps = 10_000 if facts.has_gpu and facts.side >= 24 else 1000 if facts.is_image else 500
    epoch_steps = UNLABELED_EPOCHS * facts.unlabeled // MAX_BATCH_SIZE
    steps = min(max(epoch_steps, min_steps), MAX_STEPS_FACTOR * min_steps)
    return steps, f"about {steps * MAX_BATCH_SIZE / max(1, facts.unlabeled):.0f} passes over {facts.unlabeled:,} unlabelled rows"


def choose_optimizer(facts: Facts) -> Optim:
    """Rates that reach a good figure in few steps."""
    if facts.has_points and facts.side >= 44:
        return Optim(name="sgd", lr=0.03, weight_decay=0.0005, weight_decay_mode="l2", schedule="cosine", ema_decay=0.99)
    if facts.is_image and facts.classes is not None:
        return Optim(lr=0.005, weight_decay=0.00004, schedule="cosine", ema_decay=0.99)
    return Optim(lr=0.002, weight_decay=0.00004, ema_decay=0.99)
