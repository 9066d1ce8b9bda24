"""A run as data: frozen dataclasses, checked as a whole, to and from JSON."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

from l2i.config.serialization import check_field_names, from_dict
from l2i.data.tokenization import Text
from l2i.data.transforms.image import Augment
from l2i.methods import METHODS
from l2i.methods.base import Method
from l2i.methods.fixmatch import FixMatch
from l2i.models.base import ModelConfig
from l2i.registry import load_registered
from l2i.training.loader import BatchSizes

Precision = Literal["auto", "float32", "tf32", "bf16", "float64"]


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data set, how much of it is labelled, and its two perturbations."""

    name: str = "digits"
    """Name of the data set."""
    root: str | None = None
    """Folder that holds it, where it is not embedded; by default the one that the variable L2I_DATA names."""
    num_labeled: int | float = 40
    """Labelled samples, a multiple of the number of classes; or a share such as 0.05 of each class, 1.0 for all."""
    num_validation: int | float = 100
    """Validation samples, for choosing settings, never trained on; a number, or a share of the training samples."""
    num_test: int | float = 1.0
    """Test samples, drawn alike for every seed: a number, or a share; 1.0 for all. On a CPU, all may take long."""
    text: Text = field(default_factory=Text)
    """How texts are read."""
    weak: Augment = field(default_factory=Augment)
    """The weak view: labelled, hold-out and imputed samples."""
    strong: Augment = field(default_factory=Augment)
    """The strong view, where the method asks for one."""
    labeled_view: Literal["weak", "strong"] = "weak"
    """The view on which labelled samples are learned; few of them are learned by heart more slowly on the strong one.
    Hold-out samples are always seen weakly."""
    workers: int = 4
    """Processes that decode images ahead, for sets too large to be held on the device."""


@dataclass(frozen=True, kw_only=True)
class Optim:
    """The optimizer, its schedule, and the averaged model."""

    name: Literal["adam", "sgd"] = "adam"
    """Adam, or SGD with momentum."""
    lr: float = 0.002
    """Learning rate at the start."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov momentum for SGD."""
    weight_decay: float = 0.0
    """Weight decay; 'decay' says which kind."""
    weight_decay_mode: Literal["decoupled", "l2"] = "decoupled"
    """decoupled: θ ← (1 − weight_decay)·θ once a step, whatever the rate; l2: added to every gradient."""
    schedule: Literal["constant", "step", "cosine", "linear"] = "constant"
    """How the rate changes: not at all, by gamma at each milestone, as FixMatch's cosine, or linearly to 0."""
    warmup: int | float = 0
    """Steps over which the rate first grows linearly from 0, or a share of the run such as 0.1; then the schedule
    goes on as if there had been none."""
    milestones: tuple[int | float, ...] = ()
    """Steps at which the 'step' schedule lowers the rate, or shares of the run such as 0.5."""
    gamma: float = 0.1
    """Factor of the 'step' schedule."""
    max_grad_norm: float = 0.0
    """The largest norm of a gradient; a larger one is scaled down to it. 0 for no limit."""
    layer_decay: float = 1.0
    """encoder: the rate of each layer, compared with that of the layer above it; 1 for one rate."""
    ema_decay: float = 0.999
    """Decay of the teacher, the average of the model; it is what is evaluated."""
    ema_bn: Literal["copy", "recompute"] = "copy"
    """The running statistics of BatchNorm that the average is evaluated with: the model's, which are of other weights,
    or its own, on mini-batches of about 1,000 samples; in short runs at a high rate that is a difference of points."""


@dataclass(frozen=True, kw_only=True)
class L2I:
    """Learning to impute: the outer step."""

    update: Literal["off", "normalized", "paper"] = "normalized"
    """off: the base method alone; normalized: one step on g_base + ρ·‖g_base‖/‖g_outer‖·g_outer; paper: Algorithm 1."""
    rho: float = 0.3
    """ρ, the share of the outer gradient in a normalized update; 0.1 is safer for tables of classes, 0.03 for texts."""
    fade: float = 0.0
    """p, where ρ is to fade as the hold-out labels are learned: it is multiplied by (C^H / C^H of guessing)^p; 0 for a
    ρ that stays."""
    rho_least: float = 0.0
    """What ρ does not fade below, before its schedule."""
    rho_schedule: Literal["constant", "falling", "rate", "weight"] = "constant"
    """Whether ρ stays, falls linearly to 0, or follows the schedule of the learning rate or of λ."""
    preserve_step_norm: bool = False
    """Whether a normalized update keeps the length of g_base: the outer gradient turns a step, and does not lengthen
    it."""
    start: int | float = 0
    """The step from which the outer step is taken, or a share of the run such as 0.2."""
    through: Literal["labels", "parameters"] = "labels"
    """What the outer gradient is taken through: the imputed labels; or θ itself, as if the hold-out batch were more
    labelled samples: a control, which shows what of a gain is not owed to imputing."""
    labels: Literal["output", "learnable"] = "output"
    """Labels as the model's output (O) or as learnable parameters (L)."""
    hypergradient: Literal["last_layer", "exact", "finite_difference", "last_layer_paper", "unrolled"] = "last_layer"
    """How ∂C^H/∂z is taken."""
    moves: Literal["head", "all"] = "head"
    """What takes the look-ahead step under the last-layer rules: the head, or all parameters."""
    head: str | None = None
    """Name of the head within the model; its last nn.Linear by default."""
    outer_target: Literal["soft", "tanh", "cross_entropy", "sharpened", "masked", "logits", "method"] = "soft"
    """What the outer step imputes: soft labels with the squared distance; the same, both squashed by tanh (the released
    code for landmarks), with cross-entropy, with labels sharpened, with confident labels alone, or with outputs before
    the softmax; or the method's own labels and distance."""
    holdout: Literal["joint", "separate"] = "joint"
    """Hold-out samples drawn again from the labelled ones, or 40 % of the labels of each class set aside."""
    eta: float | None = None
    """η, the inner rate. None, for a normalized update: the limit of small η, in which no inner step is taken."""
    eta_schedule: Literal["constant", "rate"] = "constant"
    """Whether η stays, or follows the schedule of the learning rate."""
    label_lr: float = 1.0
    """η_z, the step of learnable labels."""
    inner_steps: int = 1
    """K, steps of the look-ahead where there is an eta; more than one with 'exact' or 'finite_difference'."""
    inner_supervised: bool = False
    """Whether C^T takes part in the inner step, as in the paper."""
    inner_weight: float = 1.0
    """Weight of C^U in the inner step; the paper leaves λ out there."""
    every: int = 1
    """The outer step is taken at steps 0, n, 2n, …, the others are the base method's alone. A row of metrics has the
    means over the outer steps since the last row, and null where there were none."""
    outer_batch_size: int = 0
    """Unlabelled samples of the outer step, the first ones of the mini-batch; 0 for all of them."""
    share: bool = True
    """Whether base and outer step share forwards, where both are at one θ; the gradient is the same, but that with
    outer_batch_size the shared features have the whole mini-batch's BatchNorm statistics."""
    outer_optimizer: Literal["shared", "own"] = "shared"
    """paper: the second step goes through the base optimizer, or one of its own."""
    outer_rate: float | None = None
    """Learning rate of an outer optimizer of its own; it follows the schedule."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, whole: the same fields and seed give the same result."""

    name: str = "digits"
    """Name of the run."""
    steps: int = 1500
    """Training steps."""
    seed: int = 0
    """Seed of the split, the initial weights and every draw."""
    out: str | None = None
    """Run folder; runs/NAME-seedSEED by default."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes the GPU where there is one."""
    threads: int = 0
    """CPU threads of torch; 0 leaves its choice. Small networks are fastest with 1. Other numbers give other bits."""
    precision: Precision = "auto"
    """Of the forwards: bf16 is autocast, with parameters and costs in float32; tf32 is float32 with the matrix units'
    rounding. auto: bf16 on a GPU, where nothing is lost in its rounding, and float32 elsewhere."""
    engine: Literal["auto", "eager", "graph"] = "auto"
    """How a step is taken: operation by operation, or recorded once as a CUDA graph and replayed; auto takes the graph
    on a GPU, where the data is held there."""
    eval_every: int = 100
    """Steps between evaluations; in runs of 1,000 steps or more, the last 2 % of the steps have 20 more."""
    save_every: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints that are kept, the newest; with two, one that is damaged has another before it."""
    report: Literal["median", "mean", "best"] = "median"
    """The figure of a run: the median or mean of the last 20 evaluations, or early stopping: the evaluation with the
    best validation figure."""
    probe_samples: int = 0
    """Test samples on which each evaluation also measures the cost before and after an outer update; and about as many
    unlabelled ones of a benchmark, in whole mini-batches, whose imputed labels it holds against the truth. 0 for none.
    Not at the 20 more evaluations at the end, but for the last one."""
    data: Data = field(default_factory=Data)
    """Data set."""
    batch: BatchSizes = field(default_factory=BatchSizes)
    """Mini-batches."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Network."""
    method: Method = field(default_factory=FixMatch)
    """Method."""
    l2i: L2I = field(default_factory=L2I)
    """Learning to impute."""
    optim: Optim = field(default_factory=Optim)
    """Optimizer."""


def replace(run: Run, **changes: Any) -> Run:
    """The run with other fields; a dict changes fields of a section, as in steps=100, data={"num_labeled": 20}.

    A method may be given by name, with its default settings.
    """
    if isinstance(changes.get("method"), str):
        changes["method"] = load_registered("method", METHODS, changes["method"])()
    check_field_names(run, changes, "")
    updates = dict(changes)
    for name, value in changes.items():
        if isinstance(value, dict):
            section = getattr(run, name)
            check_field_names(section, value, f"{name}.")
            updates[name] = dataclasses.replace(section, **value)
    return dataclasses.replace(run, **updates)


def to_json(run: Run) -> dict[str, Any]:
    """A JSON object; the method's name says which dataclass its fields are of."""
    data = dataclasses.asdict(run)
    data["method"] = {"name": run.method.name, **data["method"]}
    return data


def from_json(data: dict[str, Any]) -> Run:
    """The run that `to_json` wrote; a field or value that does not fit is an InputError."""
    fields = dict(data)
    method = dict(fields.pop("method", {}))
    cls = load_registered("method", METHODS, method.pop("name", "?"))
    return typing.cast(Run, from_dict(Run, {**fields, "method": from_dict(cls, method, "method.")}))
