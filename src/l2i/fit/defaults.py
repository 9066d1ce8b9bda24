"""Choose a run for unseen data: method, network, views, batches and budget, each with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from l2i.config import L2I, Data, Optim, Run, replace
from l2i.config.validate import flatten_fields
from l2i.data.batch import BatchSizes
from l2i.data.tokenization import Text
from l2i.data.transforms.image import Augment
from l2i.data.transforms.text import TokenAugment
from l2i.fit.artifact import Choice
from l2i.fit.formatting import pluralize
from l2i.methods import METHODS
from l2i.methods.base import Method
from l2i.models.base import PRETRAINED, ModelConfig
from l2i.recipes.table import TABULAR_RHO
from l2i.registry import load_registered

MIN_BATCH_SIZE, MAX_BATCH_SIZE = 32, 64  # bounds on the labelled samples per mini-batch
UNLABELED_EPOCHS = 20  # passes over the unlabelled samples, if there are many
MAX_STEPS_FACTOR = 10  # bound on the steps, in multiples of those for a small set
MIN_THREADED_SIDE = 16  # pixels: below, more threads gain nothing, and lose much on a busy machine
MIN_CONV_SIDE, MIN_TCDCN_SIDE = 4, 44  # pixels per side that convolutions and TCDCN need
NUM_EVALS, NUM_CPU_TEXT_EVALS, NUM_SAVES = 20, 5, 4  # per run
SET_BY_USER = "set by you"  # the reason for a setting that the user changed
GPU_TEXT_STEPS, CPU_TEXT_STEPS = 3000, 300
GPU_TUNING_STEPS, CPU_TUNING_STEPS = 3000, 200  # of a pretrained encoder of images
TEXT_RHO = 0.03  # with the default 0.3 the few labels were memorised and the rest forgotten
TABLE_CONSISTENCY_WEIGHT = 30.0  # of mean teacher's consistency, for classes of a table
REGRESSION_WEIGHT = 1.0  # of any consistency term, for regression
METHOD_SETTINGS: dict[str, dict[str, Any]] = {  # if a method's own defaults suit long runs only
    "fixmatch": {"threshold": 0.8},
    "pi-model": {"weight": 10.0, "rampup": 1 / 3},
    "mean-teacher": {"weight": 10.0, "rampup": 1 / 3},
    "mixmatch": {"weight": 10.0, "rampup": 1 / 3},
    "vat": {"epsilon": 1.0},
}
STRONG_STUDENT = {"student_view": "strong"}  # the weak view leaves a text unchanged
TEXT_METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "uda": {"weight": 1.0, "threshold": 0.0, "temperature": 1.0, "annealing": "linear"},
    "fixmatch": {"weight": 1.0, "threshold": 0.95},
    "pi-model": STRONG_STUDENT,
    "mean-teacher": STRONG_STUDENT,
    "pseudo-label": STRONG_STUDENT,
}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known about the data before anything is trained."""

    shape: tuple[int, ...]
    """Shape of a network input: [E] for a table, [C, H, W] for images, [L] for texts."""
    classes: int | None
    labeled: int
    unlabeled: int
    has_points: bool = False
    has_gpu: bool = False
    is_text: bool = False
    """Whether samples are texts for the pretrained encoder named by `weights`."""
    weights: str | None = None
    """The pretrained encoder of texts, or the one of images that is fine-tuned."""

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3

    @property
    def is_tuned(self) -> bool:
        """Return whether a pretrained encoder of images is fine-tuned."""
        return self.is_image and self.weights is not None

    @property
    def side(self) -> int:
        return min(self.shape[1:]) if self.is_image else 0

    @property
    def suits_tcdcn(self) -> bool:
        return self.has_points and self.side >= MIN_TCDCN_SIDE


def choose_run(
    facts: Facts, *, method: str = "auto", impute: bool = True
) -> tuple[Run, dict[str, str]]:
    """Return a run for the data and the reasons, with the named method or the one that suits."""
    method_config, why_method = choose_method(facts, method)
    run, reasons = _choose_text_run(facts) if facts.is_text else _choose_sample_run(facts)
    run = replace(run, method=method_config, l2i={"update": choose_update(method_config, impute)})
    run = with_steps(run, run.steps, choose_num_evals(facts))
    if facts.classes is not None and not facts.is_image and not facts.is_text:
        run = replace(run, l2i={"rho": TABULAR_RHO})
        reasons["L2I"] = f"the default ρ = {L2I().rho:g} hurt on tabular classification"
    if run.l2i.update == "off":
        reasons["L2I"] = "the method imputes no labels" if facts.unlabeled else why_method
    return run, {"method": why_method, **reasons}


def choose_method(facts: Facts, name: str = "auto") -> tuple[Method, str]:
    """Return the named method, or the one that did best on such data, and why.

    A wrong name is an error even if there are no unlabelled rows, which leave supervised learning.
    """
    reason = SET_BY_USER
    if name != "auto":
        load_registered("method", METHODS, name)
    if not facts.unlabeled:
        name, reason = "supervised", "there are no unlabelled rows"
    elif name == "auto":
        name, reason = _choose_method_name(facts)
    settings = METHOD_SETTINGS.get(name, {})
    settings = settings | (TEXT_METHOD_SETTINGS.get(name, {}) if facts.is_text else {})
    if facts.classes is None and "weight" in settings:
        settings["weight"] = REGRESSION_WEIGHT
    elif name == "mean-teacher" and not facts.is_image and not facts.is_text:
        settings["weight"] = TABLE_CONSISTENCY_WEIGHT
    return load_registered("method", METHODS, name)(**settings), reason


def _choose_method_name(facts: Facts) -> tuple[str, str]:
    if facts.classes is None:
        views = "texts with words replaced" if facts.is_text else "perturbed rows"
        return "mean-teacher", f"regression: consistency with the EMA teacher on {views}"
    if facts.is_text:
        return "uda", "text classification: UDA; masking and sharpening did worse"
    if facts.side >= MIN_CONV_SIDE:
        labels = "confident pseudo-labels from the weak view, trained on the strong view"
        return "fixmatch", f"image classification: {labels}"
    labels = "confident pseudo-labels from one perturbation, trained on another"
    return "pseudo-label", f"tabular classification: {labels}"


def choose_update(method: Method, impute: bool = True) -> str:
    """Return the outer update: L2I needs a method with pseudo-labels."""
    return "normalized" if method.uses_pseudo_labels and impute else "off"


def _choose_sample_run(facts: Facts) -> tuple[Run, dict[str, str]]:
    """Choose everything but the method, for a table or images."""
    network, why_network = _choose_network(facts)
    labeled = min(max(facts.labeled, MIN_BATCH_SIZE), MAX_BATCH_SIZE)
    weak, strong = _choose_views(facts)
    min_steps = 10_000 if facts.has_gpu and facts.side >= 24 else 1000 if facts.is_image else 500
    epoch_steps = UNLABELED_EPOCHS * facts.unlabeled // MAX_BATCH_SIZE
    steps = min(max(epoch_steps, min_steps), MAX_STEPS_FACTOR * min_steps)
    why_steps = "enough for a small dataset"
    if facts.is_tuned:
        steps = GPU_TUNING_STEPS if facts.has_gpu else CPU_TUNING_STEPS
        why_steps = f"{GPU_TUNING_STEPS:,} on a GPU, {CPU_TUNING_STEPS} on a CPU, which is slow"
    elif facts.unlabeled:
        num_epochs = steps * MAX_BATCH_SIZE / facts.unlabeled
        why_steps = f"about {num_epochs:.0f} epochs over {facts.unlabeled:,} unlabelled rows"
    run = Run(
        name="own",
        steps=steps,
        threads=1 if facts.side < MIN_THREADED_SIDE else 0,
        data=Data(weak=weak, strong=strong),
        batch=BatchSizes(labeled=labeled, unlabeled=MAX_BATCH_SIZE, holdout=labeled),
        model=network,
        optim=_choose_optimizer(facts),
    )
    why_strong = "stronger, for methods that train on a strong view"
    return run, {
        "network": why_network,
        "weak view": "landmarks move with the image" if facts.has_points else "preserves the label",
        "strong view": "the same as the weak view" if strong == weak else why_strong,
        "steps": why_steps,
        "batch": f"{pluralize(facts.labeled, 'labelled row')} to sample from",
        "optimizer": "did well in few steps in our experiments",
        "L2I": "the library's default",
    }


def _choose_text_run(facts: Facts) -> tuple[Run, dict[str, str]]:
    """Choose everything but the method, for texts that a pretrained encoder reads."""
    run = Run(
        name="own",
        steps=GPU_TEXT_STEPS if facts.has_gpu else CPU_TEXT_STEPS,
        data=Data(text=Text(length=facts.shape[0]), words=TokenAugment(replace=0.3)),
        batch=BatchSizes(labeled=8, unlabeled=24, holdout=8),
        model=ModelConfig(name="encoder", weights=facts.weights, dropout=0.1, encoder_dropout=0.0),
        optim=Optim(lr=2e-5, schedule="linear", warmup=0.1, max_grad_norm=1.0, ema_decay=0.99),
        l2i=L2I(rho=TEXT_RHO),
    )
    cpu_reason = f"on a CPU, where steps are slow; {GPU_TEXT_STEPS:,} on a GPU"
    return run, {
        "network": "the pretrained network you named, fine-tuned end to end",
        "texts": "the longest training text, at most 128: training time grows with the length",
        "weak view": "the unchanged text",
        "strong view": "UDA's replacement of uninformative words; no back-translation",
        "steps": f"on a GPU; {CPU_TEXT_STEPS} without one" if facts.has_gpu else cpu_reason,
        "batch": "small, as usual for fine-tuning",
        "optimizer": "usual for fine-tuning BERT",
        "L2I": f"the default ρ = {L2I().rho:g} hurt on text classification",
    }


def _choose_network(facts: Facts) -> tuple[ModelConfig, str]:
    """Choose a network that suits the samples and the machine."""
    if facts.is_tuned:
        network = ModelConfig(name=facts.weights or "", weights=PRETRAINED)
        return network, "the pretrained encoder, fine-tuned end to end"
    if facts.side < MIN_CONV_SIDE:
        network = ModelConfig(name="mlp", width=128, depth=2)
        return network, "images too small for convolutions" if facts.is_image else "tabular data"
    if facts.suits_tcdcn:
        reason = f"landmarks on images of {MIN_TCDCN_SIDE} pixels or more: the paper's network"
        return ModelConfig(name="tcdcn"), reason
    if facts.has_points:
        network = ModelConfig(name="mlp", width=256, depth=2)
        return network, "small images, and landmarks depend on position"
    if facts.has_gpu and facts.side >= 24:
        return ModelConfig(name="wide-resnet", width=2, depth=28), "images, and a GPU is available"
    depth = 1 if facts.side < 8 else 2 if facts.side < 24 else 3
    network = ModelConfig(name="conv", width=16, depth=depth)
    return network, f"images of {facts.side} pixels" + ("" if facts.has_gpu else ", no GPU")


def _choose_views(facts: Facts) -> tuple[Augment, Augment]:
    """Choose the weak and the strong view."""
    if not facts.is_image:
        return Augment(noise=0.1), Augment(noise=0.2)  # swapped columns hide one that decides
    max_shift = max(1, facts.side // 12) if facts.side >= MIN_CONV_SIDE else 0
    if facts.classes is None:
        weak = Augment(shift=max_shift, padding="reflect")
        return weak, weak
    return Augment(shift=max_shift), Augment(shift=max_shift, randaugment=2)


def _choose_optimizer(facts: Facts) -> Optim:
    """Choose rates that do well in few steps."""
    if facts.is_tuned:
        return Optim(lr=5e-4, schedule="cosine", warmup=0.1, layer_decay=0.9, ema_decay=0.99)
    if facts.suits_tcdcn:
        decay: dict[str, Any] = {"weight_decay": 0.0005, "weight_decay_mode": "l2"}
        return Optim(name="sgd", lr=0.03, schedule="cosine", ema_decay=0.99, **decay)
    if facts.is_image and facts.classes is not None:
        return Optim(lr=0.005, weight_decay=0.00004, schedule="cosine", ema_decay=0.99)
    return Optim(lr=0.002, weight_decay=0.00004, ema_decay=0.99)


def with_steps(run: Run, steps: int, num_evals: int = NUM_EVALS) -> Run:
    """Return the run with that many steps, evaluated and saved at regular intervals."""
    eval_every, save_every = max(1, steps // num_evals), max(1, steps // NUM_SAVES)
    return replace(run, steps=steps, eval_every=eval_every, save_every=save_every)


def choose_num_evals(facts: Facts) -> int:
    """Choose how often to evaluate, which takes an encoder on a CPU long."""
    return NUM_CPU_TEXT_EVALS if facts.is_text and not facts.has_gpu else NUM_EVALS


def explain_choices(run: Run, base_run: Run, reasons: dict[str, str]) -> tuple[Choice, ...]:
    """Return each choice and its reason: the base run's, or that the user set it."""
    base_values, values = describe_run(base_run), describe_run(run)
    changed = {name: SET_BY_USER for name in values if values[name] != base_values[name]}
    all_reasons = reasons | changed
    return tuple(Choice(name=n, value=v, reason=all_reasons[n]) for n, v in values.items())


def describe_run(run: Run) -> dict[str, str]:
    """Describe the chosen parts of a run in words."""
    optim, text, l2i = run.optim, run.data.text, run.l2i
    is_text, method_fields = run.model.name == "encoder", dict(flatten_fields(run.method))
    shown_fields = ("weight", "threshold", "temperature") if is_text else ("weight", "threshold")
    shown = [(name, method_fields[name]) for name in shown_fields if name in method_fields]
    settings = "".join(f", {name} {value:.3g}" for name, value in shown)
    texts = {"texts": f"{text.length} tokens, the {text.keep_side} of longer texts"}
    update = f"{l2i.update}, {l2i.hypergradient} gradient, ρ = {l2i.rho:g}"
    return {
        "method": run.method.name + (settings if run.method.uses_pseudo_labels else ""),
        "network": _describe_network(run.model),
        **(texts if is_text else {}),
        "weak view": _describe_view(run.data.weak),
        "strong view": _describe_view(run.data.words if is_text else run.data.strong),
        "steps": f"{run.steps:,}",
        "batch": f"{run.batch.labeled} labelled + {run.batch.unlabeled} unlabelled",
        "optimizer": f"{optim.name}, learning rate {optim.lr:g}, {optim.schedule}"
        + (" with warm-up" if optim.warmup else ""),
        "L2I": "off" if l2i.update == "off" else update,
    }


def _describe_network(network: ModelConfig) -> str:
    if network.weights == PRETRAINED:
        return f"{network.name}, pretrained"
    if network.name != "encoder":
        return f"{network.name}, width {network.width}, depth {network.depth}"
    frozen = {
        "none": "",
        "embeddings": ", word embeddings frozen",
        "encoder": ", frozen but for the head",
    }
    dropout = f"dropout {network.dropout:g} before the head"
    return f"encoder {network.weights}, {dropout}{frozen[network.freeze]}"


def _describe_view(view: Augment | TokenAugment) -> str:
    defaults = dict(flatten_fields(type(view)()))
    changed = [(name, value) for name, value in flatten_fields(view) if value != defaults[name]]
    parts = [f"{name} {v:g}" if isinstance(v, float) else f"{name} {v}" for name, v in changed]
    return ", ".join(parts) or "none"
