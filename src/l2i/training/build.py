"""From a run's fields to the things it is made of: device, data, task, network, outer step."""

from __future__ import annotations

import os
from functools import partial

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from l2i.batch import Params
from l2i.bilevel.head import Head
from l2i.bilevel.hypergradient import HYPERGRADIENTS
from l2i.bilevel.labels import Labels, LearnableLabels, OutputLabels
from l2i.bilevel.outer import OuterStep
from l2i.config import Run, replace
from l2i.data import DATASETS, EMBEDDED
from l2i.data.draw import draw_splits
from l2i.data.split import DataSet, Splits
from l2i.data.texts import TextSet
from l2i.data.tokenized import Told, tokenized
from l2i.errors import InputError
from l2i.methods import METHODS
from l2i.methods.base import Method
from l2i.models import MODELS
from l2i.models.synced import synced
from l2i.ranks import Ranks, here
from l2i.registry import load
from l2i.tasks import Classification, Regression, Task
from l2i.training.log import seldom
from l2i.training.precision import Autocast
from l2i.training.state import check_sizes

FOLDER = "L2I_DATA"  # the environment variable with the folder that data sets lie in, where data.root is not given


def pick_device(name: str) -> torch.device:
    """The device named, or for 'auto' the GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device='{name}' is not a device; use cpu, cuda or auto") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise InputError(f"device='{name}' is not supported; use cpu, cuda or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device='{name}' asks for a GPU and this machine has none that torch can use; use cpu or auto"
        )
    own = device.type == "cuda" and device.index is None and here().size > 1  # each process has one
    return torch.device("cuda", here().local) if own else device


def shared(run: Run, ranks: Ranks) -> None:
    """That the processes of a run can have like shares of it."""
    sizes = {f"batch.{name}": size for name, size in vars(run.batch).items()}
    sizes["l2i.outer_unlabeled"] = run.l2i.outer_unlabeled
    for name, size in sizes.items():
        if size % ranks.size:
            raise InputError(
                f"{name}={size} cannot be shared evenly by {ranks.size} processes; use a multiple of {ranks.size}, "
                "or another --nproc-per-node"
            )
    if ranks.size > 1 and run.l2i.hypergradient == "unrolled":
        raise InputError("hypergradient='unrolled' is for one process, to compare with; use 'exact'")


def dtype_of(run: Run) -> torch.dtype:
    """The type of parameters and data; bf16 is for forwards alone."""
    return torch.float64 if run.precision == "float64" else torch.float32


def placed(run: Run) -> Run:
    """The run with the folder of its data written down, so that it is found again in another shell."""
    root = os.environ.get(FOLDER)
    if run.data.root is not None or root is None or run.data.name in EMBEDDED:
        return run
    return replace(run, data={"root": root})


def read_set(name: str, root: str | None) -> DataSet | TextSet:
    """A data set by name, from the folder given or the one that the environment names."""
    read = load("data set", DATASETS, name)
    data: DataSet | TextSet = read(root if root is not None else os.environ.get(FOLDER))
    return data


def load_splits(run: Run, told: Told | None = None) -> Splits:
    """The data set of the run, split by its seed; `told` hears of texts being read, by default stderr."""
    if run.model.name == "encoder":
        from l2i.models.text import check_weights

        check_weights(run.model, run.data.text.length)
    data = read_set(run.data.name, run.data.root)
    if isinstance(data, TextSet):
        data = tokenized(data, run.model.weights, run.data.text, told or seldom())
    return draw_splits(
        data,
        num_labeled=run.data.num_labeled,
        num_validation=run.data.num_validation,
        num_test=run.data.num_test,
        holdout=run.l2i.holdout if run.l2i.outer_update != "off" else "joint",
        seed=run.seed,
    )


def make_task(splits: Splits, method: Method) -> Task:
    """Classification or regression, as the labels are."""
    task: Task
    if splits.classes is not None:
        task = Classification(outputs=splits.classes)
    else:
        task = Regression.standardized(splits.labeled.y, points=splits.points, eyes=splits.eyes)
    if task.kind not in method.tasks:
        fitting = [name for name in METHODS if task.kind in load("method", METHODS, name).tasks]
        raise InputError(f"{method.name} is not for {task.kind}; use one of {', '.join(fitting)}")
    return task


def input_shape(run: Run, splits: Splits) -> tuple[int, ...]:
    """The shape of a sample as the network sees it."""
    shape, side = tuple(splits.labeled.x.shape[1:]), run.data.weak.crop
    if splits.tokens is not None:
        return shape[-1:]
    if run.data.strong.crop != side and "strong" in run.method.views:
        raise InputError(f"data.weak.crop={side} and data.strong.crop={run.data.strong.crop} must be the same")
    return (shape[0], side, side) if side and len(shape) == 3 else shape


def build_model(run: Run, splits: Splits, task: Task, like: Params | None = None) -> nn.Module:
    """The network of the run, its weights drawn by its seed; of the sizes of a state `like`, where one is given."""
    make = partial(load("model", MODELS, run.model.name), input_shape(run, splits), task.outputs, run.model)
    if like is not None and run.model.name != "encoder":
        check_sizes(make, like)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.seed)
        model: nn.Module = make()
    return model


def prepared(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The model on its device, to be trained; on a GPU, convolutions in the order of memory in which it is fastest.

    A model that as a whole is in evaluation mode is taken out of it; single layers stay as they are.
    """
    if any(is_lazy(p) for p in model.parameters()):
        raise InputError("the model has lazy layers, whose sizes are not known yet; pass a batch through it first")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("no parameter of the model takes a gradient; call model.requires_grad_() first")
    model = synced(model if model.training else model.train(), here()).to(device, dtype)
    return model.to(memory_format=torch.channels_last) if device.type == "cuda" else model  # type: ignore[call-overload]


def make_outer(run: Run, task: Task, network: nn.Module) -> OuterStep | None:
    """The outer step that the run asks for."""
    l2i = run.l2i
    if l2i.outer_update == "off":
        return None
    hypergradient = HYPERGRADIENTS[l2i.hypergradient]
    head = f"model.{l2i.head}" if l2i.head and isinstance(network, Autocast) else l2i.head
    if l2i.hypergradient.startswith("last_layer"):
        Head.of(network, head)  # a wrong name is found before the first step
        hypergradient = partial(hypergradient, moves=l2i.moves)  # type: ignore[call-arg]
    labels: Labels = OutputLabels()
    if l2i.labels == "learnable":
        labels = LearnableLabels(l2i.eta_z, l2i.outer_update == "normalized", task.logits, task.label)
    return OuterStep(
        hypergradient=hypergradient,
        labels=labels,
        eta=l2i.eta,
        inner_steps=l2i.inner_steps,
        inner_weight=l2i.inner_weight,
        head=head,
    )
