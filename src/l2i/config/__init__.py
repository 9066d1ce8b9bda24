"""The configuration of a run: frozen dataclasses, checked as a whole, to and from JSON."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from l2i.config.serialization import check_field_names, from_dict
from l2i.data.batch import BatchSizes
from l2i.data.tokenization import Text
from l2i.data.transforms.image import Augment
from l2i.data.transforms.text import TokenAugment
from l2i.methods import METHODS
from l2i.methods.base import Method
from l2i.methods.fixmatch import FixMatch
from l2i.models.base import ModelConfig
from l2i.registry import load_registered

Precision = Literal["auto", "float32", "bf16", "float64"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """Configure the dataset, how much of it is labelled, and its augmentations."""

    name: str = "digits"
    """Name of the dataset."""
    root: str | None = None
    """Folder of the dataset if it is not built in; by default the environment variable L2I_DATA."""
    num_labeled: int | float = 40
    """Number of labelled samples, a multiple of the classes; or a fraction of each class."""
    num_validation: int | float = 100
    """Number of validation samples, never trained on; or a fraction of the training samples."""
    num_test: int | float = 1.0
    """Number of test samples, the same for every seed; or a fraction, 1.0 for all."""
    text: Text = field(default_factory=Text)
    """Tokenization of texts."""
    words: TokenAugment = field(default_factory=TokenAugment)
    """Strong augmentation of texts."""
    weak: Augment = field(default_factory=Augment)
    """Weak augmentation, of labelled samples, hold-out samples and samples to impute."""
    strong: Augment = field(default_factory=Augment)
    """Strong augmentation, for methods that use one."""
    workers: int = 4
    """Worker processes that decode images, for datasets too large for the device's memory."""


@dataclass(frozen=True, kw_only=True)
class Optim:
    """Configure the optimizer, its schedule, and the averaged (EMA) model."""

    name: Literal["adam", "sgd"] = "adam"
    """Adam, or SGD with momentum."""
    lr: float = 0.002
    """Initial learning rate."""
    nesterov: bool = False
    """Use Nesterov momentum with SGD."""
    weight_decay: float = 0.0
    """Weight decay; weight_decay_mode selects how it is applied."""
    weight_decay_mode: Literal["decoupled", "l2"] = "decoupled"
    """decoupled: θ ← (1 − weight_decay)·θ once per step; l2: added to every gradient."""
    schedule: Literal["constant", "step", "cosine", "linear"] = "constant"
    """Schedule of the rate: constant, lowered at milestones, FixMatch's cosine, or linear to 0."""
    warmup: int | float = 0
    """Steps of linear warm-up, or a fraction of the run. Warm-up does not shift the schedule."""
    milestones: tuple[int | float, ...] = ()
    """Steps, or fractions of the run, at which the 'step' schedule lowers the rate."""
    max_grad_norm: float = 0.0
    """Clip gradients to this norm; 0 does not clip."""
    layer_decay: float = 1.0
    """encoder: learning rate of each layer relative to the one above it."""
    ema_decay: float = 0.999
    """Decay of the averaged model (the teacher), which is the model that is evaluated."""
    ema_bn: Literal["copy", "recompute"] = "copy"
    """BatchNorm statistics of the averaged model: copied from the model, or recomputed for the
    averaged weights on about 1,000 samples. Recomputing can lower the error of short runs with a
    high learning rate."""


@dataclass(frozen=True, kw_only=True)
class PaperUpdate:
    """Configure the look-ahead step of Algorithm 1.

    update='paper' needs it; for update='normalized' it is optional.
    """

    eta: float | None = None
    """Inner learning rate η of a step on C^U alone, which the released code takes; None (normalized
    updates only) is the limit η → 0, without a step."""
    eta_schedule: Literal["constant", "rate"] = "constant"
    """Keep η constant, or scale it with the learning rate's schedule."""
    label_lr: float = 1.0
    """Step size η_z of learnable labels."""
    inner_steps: int = 1
    """Number of look-ahead steps K; more than one needs hypergradient='exact' and an eta."""
    inner_supervised: bool = False
    """Take the inner step on C^T + C^U, as in the paper's text, with supervised_eta: a rate for
    C^U alone is far too large for C^T."""
    supervised_eta: float | None = None
    """Inner learning rate η of a step on C^T + C^U, in place of eta; the paper gives none."""

    @property
    def inner_rate(self) -> float | None:
        """Return the η of the cost that the inner step is on."""
        return self.supervised_eta if self.inner_supervised else self.eta


@dataclass(frozen=True, kw_only=True)
class L2I:
    """Configure learning to impute: the outer step."""

    update: Literal["off", "normalized", "paper"] = "normalized"
    """off: the base method alone; normalized: a single step along
    g_base + ρ·‖g_base‖/‖g_outer‖·g_outer; paper: Algorithm 1."""
    rho: float = 0.3
    """Weight ρ of the outer gradient in a normalized update. 0.1 is safer for tabular classes, 0.03
    for texts."""
    hypergradient: Literal["last_layer", "exact"] = "last_layer"
    """Differentiate C^H through the last layer in closed form, or through all parameters."""
    labels: Literal["output", "learnable"] = "output"
    """Labels as the model's output (O) or as learnable parameters (L)."""
    holdout: Literal["joint", "separate"] = "joint"
    """Draw hold-out samples from the labelled ones, or set aside 40 % of each class."""
    every: int = 1
    """Take the outer step every n steps; rows of metrics.jsonl without one have null for it."""
    outer_batch_size: int = 0
    """Number of unlabelled samples in the outer step, the first of the mini-batch; 0 for all."""
    head: str | None = None
    """Name of the head in the model; its last nn.Linear by default."""
    one_forward: bool = False
    """Pass the samples of the outer step together with those of the base step, so that all share
    BatchNorm statistics; needs method.one_forward."""
    preserve_step_norm: bool = False
    """Rescale the combined gradient to ‖g_base‖: the outer gradient changes only its direction."""
    ablation: Literal["none", "zero_gradient", "shuffled_labels", "direct_gradient"] = "none"
    """Controls that show how much of a gain does not come from imputing. zero_gradient: an outer
    gradient of zero (with update='paper' the optimizer still takes its second step);
    shuffled_labels: shuffle the hold-out labels within the mini-batch; direct_gradient: ∇C^H itself
    as the outer gradient, as if the hold-out samples were more labelled samples."""
    paper: PaperUpdate = field(default_factory=PaperUpdate)
    """The look-ahead step."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Configure one training run; the same fields and seed give the same result."""

    name: str = "digits"
    """Name of the run, used for its folder."""
    steps: int = 1500
    """Training steps."""
    seed: int = 0
    """Seed of the split, the initial weights and all random draws."""
    out: str | None = None
    """Run folder; runs/NAME-seedSEED by default."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto uses a GPU if there is one."""
    threads: int = 0
    """CPU threads of torch; 0 for its default. Small networks are fastest with 1. The number of
    threads changes results in the last bits."""
    precision: Precision = "auto"
    """Precision of forward passes: auto, float32, bf16 or float64. bf16 is autocast with float32
    parameters and costs; auto is bf16 on a GPU if the method tolerates its rounding, and float32
    otherwise."""
    engine: Literal["auto", "eager", "graph"] = "auto"
    """Run steps eagerly, or capture a step as a CUDA graph and replay it; auto uses a graph if the
    data is in GPU memory."""
    eval_every: int = 100
    """Steps between evaluations; runs of 1,000 steps or more add 20, spread over their last 2 %,
    or over their last 1,000 steps if that is more, but over no more than a tenth."""
    save_every: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Number of most recent checkpoints to keep. Two allow recovery from a corrupt file."""
    report: Literal["median", "best"] = "median"
    """Reported metric: the median of the last 20 evaluations, or the evaluation with the best
    validation metric (early stopping)."""
    probe_samples: int = 0
    """Number of test samples on which evaluations also measure the cost before and after an outer
    update, and about as many unlabelled samples whose imputed labels are compared with the truth;
    0 for none. The 20 additional evaluations at the end do not, except for the last."""
    data: Data = field(default_factory=Data)
    """Dataset and augmentations."""
    batch: BatchSizes = field(default_factory=BatchSizes)
    """Mini-batch sizes."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Network."""
    method: Method = field(default_factory=FixMatch)
    """Semi-supervised method."""
    l2i: L2I = field(default_factory=L2I)
    """Learning to impute."""
    optim: Optim = field(default_factory=Optim)
    """Optimizer and schedule."""


def replace(run: Run, **changes: Any) -> Run:
    """Return the run with some fields changed.

    Args:
        run: The run to start from; it stays as it is.
        **changes: New values by field. A dict changes fields of a section:
            `replace(run, steps=100, data={"num_labeled": 20})`. A method may be given by name, with
            its default settings.

    Returns:
        The changed run.

    Raises:
        InputError: If a field does not exist.

    """
    if isinstance(changes.get("method"), str):
        changes["method"] = load_registered("method", METHODS, changes["method"])()
    return typing.cast(Run, _replace_fields(run, changes, ""))


def _replace_fields(section: Any, changes: dict[str, Any], path: str) -> Any:
    check_field_names(section, changes, path)
    updates = {
        name: _replace_fields(getattr(section, name), value, f"{path}{name}.")
        if isinstance(value, dict)
        else value
        for name, value in changes.items()
    }
    return dataclasses.replace(section, **updates)


def to_json(run: Run) -> dict[str, Any]:
    """Return a run as a JSON object; the method's name selects the dataclass of its fields."""
    data = dataclasses.asdict(run)
    data["method"] = {"name": run.method.name, **data["method"]}
    return data


def from_json(data: dict[str, Any]) -> Run:
    """Return the run that `to_json` wrote; an unknown field or a wrong value is an InputError."""
    fields = dict(data)
    method = dict(fields.pop("method", {}))
    cls = load_registered("method", METHODS, method.pop("name", "?"))
    return from_dict(Run, {**fields, "method": from_dict(cls, method, "method.")})
