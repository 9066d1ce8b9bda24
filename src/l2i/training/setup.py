"""Build the parts of a run: device, data, task, network, outer step; save and load their state."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from l2i.bilevel.functional import Net, Params
from l2i.config import Run, replace
from l2i.data import BUILTIN_DATASETS, DATASETS
from l2i.data.datasets.imdb import TextSet
from l2i.data.samples import DataSet, Splits
from l2i.data.splitting import draw_splits
from l2i.data.tokenization import tokenize_dataset
from l2i.distributed import ProcessGroup, current_group
from l2i.errors import InputError
from l2i.files.output import ProgressCallback
from l2i.kernels.sync_batchnorm import convert_sync_batchnorm
from l2i.methods import METHODS
from l2i.methods.base import Method
from l2i.models import MODELS
from l2i.registry import load_registered
from l2i.tasks import Classification, Regression, Task
from l2i.training.logger import make_throttled_printer

DATA_ROOT_ENV = "L2I_DATA"  # the environment variable with the folder of datasets
WRONG_NETWORK = (
    "the checkpoint is of a different network; pass the model that it was trained with, "
    "or restore config.json"
)
SHAPE_ERROR = r"(?s)^(?!.*memory).*(shape|size|dimension)"  # in torch's words


def pick_device(name: str) -> torch.device:
    """Return the named device, or for 'auto' the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device='{name}' is not a device; use cpu, cuda or auto") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise InputError(f"device='{name}' is not supported; use cpu, cuda or auto")
    if device.type == "cuda" and not torch.cuda.is_available():
        problem = "needs a GPU, but torch finds none on this machine"
        raise InputError(f"device='{name}' {problem}; use cpu or auto")
    group = current_group()
    shares_machine = device.type == "cuda" and device.index is None and group.size > 1
    return torch.device("cuda", group.local_rank) if shares_machine else device


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Set the number of CPU threads of torch; 0 leaves it as it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_divisible(run: Run, group: ProcessGroup) -> None:
    """Check that the processes of a run can share its batches evenly."""
    sizes = {f"batch.{name}": size for name, size in vars(run.batch).items()}
    sizes["l2i.outer_batch_size"] = run.l2i.outer_batch_size
    for name, size in sizes.items():
        if size % group.size:
            fix = f"use a multiple of {group.size}, or a different --nproc-per-node"
            problem = f"{name}={size} is not divisible by the {group.size} processes"
            raise InputError(f"{problem}; {fix}")


def check_validation(run: Run, splits: Splits) -> None:
    """Check that early stopping has validation samples."""
    if run.report == "best" and not len(splits.validation.x):
        problem = "report='best' needs validation samples, but there are none"
        raise InputError(f"{problem}; raise data.num_validation")


def get_param_dtype(run: Run) -> torch.dtype:
    """Return the type of parameters and data; bf16 is for forwards alone."""
    return torch.float64 if run.precision == "float64" else torch.float32


def with_data_root(run: Run) -> Run:
    """Write the data folder into the run, so that it is found again from another shell."""
    root = os.environ.get(DATA_ROOT_ENV)
    if run.data.root is not None or root is None or run.data.name in BUILTIN_DATASETS:
        return run
    return replace(run, data={"root": root})


def load_dataset(name: str, root: str | None) -> DataSet | TextSet:
    """Load a dataset by name, from `root` or the folder that the environment names."""
    read: Callable[[str | None], DataSet | TextSet] = load_registered("dataset", DATASETS, name)
    return read(os.environ.get(DATA_ROOT_ENV) if root is None else root)


def load_splits(run: Run, on_progress: ProgressCallback | None = None) -> Splits:
    """Load the dataset of the run and split it by its seed.

    `on_progress` is called while texts are tokenized; by default progress goes to stderr.
    """
    if run.model.name == "encoder":
        from l2i.models.text_encoder import check_weights

        check_weights(run.model, run.data.text.length)
    data = load_dataset(run.data.name, run.data.root)
    if isinstance(data, TextSet):
        on_progress = on_progress or make_throttled_printer()
        data = tokenize_dataset(data, run.model.weights, run.data.text, on_progress)
    return draw_splits(
        data,
        num_labeled=run.data.num_labeled,
        num_validation=run.data.num_validation,
        num_test=run.data.num_test,
        holdout=run.l2i.holdout if run.l2i.update != "off" else "joint",
        seed=run.seed,
    )


def make_task(splits: Splits, method: Method) -> Task:
    """Return classification or regression, depending on the labels."""
    task: Task
    if splits.classes is not None:
        task = Classification(num_outputs=splits.classes)
    else:
        points, eyes = splits.has_landmarks, splits.eye_indices
        labeled = splits.labeled
        task = Regression.from_targets(labeled.y, weight=labeled.weight, points=points, eyes=eyes)
    if task.kind not in method.tasks:
        methods = {name: load_registered("method", METHODS, name) for name in METHODS}
        supported = ", ".join(name for name, other in methods.items() if task.kind in other.tasks)
        raise InputError(f"{method.name} does not support {task.kind}; use one of {supported}")
    return task


def compute_input_shape(run: Run, splits: Splits) -> tuple[int, ...]:
    """Return the shape of a sample as the network sees it."""
    shape, side = tuple(splits.labeled.x.shape[1:]), run.data.weak.crop
    if splits.vocabulary is not None:
        return shape[-1:]
    if run.data.strong.crop != side and "strong" in run.method.views:
        strong = f"data.strong.crop={run.data.strong.crop}"
        raise InputError(f"data.weak.crop={side} and {strong} differ; set both to the same size")
    return (shape[0], side, side) if side and len(shape) == 3 else shape


def build_model(
    run: Run, splits: Splits, task: Task, expected_state: Params | None = None
) -> nn.Module:
    """Build the network of the run, with weights drawn by its seed.

    Its sizes must be those of `expected_state`, the state of a trainer.
    """
    network = load_registered("model", MODELS, run.model.name)
    shape = compute_input_shape(run, splits)
    config = run.model
    if expected_state is not None and config.name != "encoder":
        config = dataclasses.replace(config, weights=None)  # those of the state are loaded
    make: Callable[[], nn.Module] = partial(network, shape, task.num_outputs, config)
    if expected_state is not None and run.model.name != "encoder":
        check_shapes(make, select_prefix(expected_state, "model"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.seed)
        return make()


def prepare_model(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Move a model to its device for training; on a GPU, to the fastest memory format too.

    A model in evaluation mode is put in training mode; single layers keep their own mode.
    """
    if any(is_lazy(p) for p in model.parameters()):
        problem = "the model has lazy layers that are not initialised yet"
        raise InputError(f"{problem}; run a forward pass first")
    if not any(p.requires_grad for p in model.parameters()):
        fix = "call model.requires_grad_() first"
        raise InputError(f"no parameter of the model requires a gradient; {fix}")
    model = model if model.training else model.train()
    model = convert_sync_batchnorm(model, current_group()).to(device, dtype)
    if device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@contextmanager
def translate_shape_errors() -> Iterator[None]:
    """Turn torch's errors about shapes in a first step into input errors: the user can fix them."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(SHAPE_ERROR, str(error)):
            raise
        raise InputError(f"the first step fails with these settings: {error}") from error


def probe_forward(net: Net, x: Tensor, num_outputs: int) -> tuple[bool, int]:
    """Check the output's shape; return whether random numbers are drawn, and the bytes held.

    Dropout draws random numbers. Bytes are those that a GPU holds for the backward; 0 on a CPU.
    """
    rng_states, allocated = get_rng_states(x.device), _count_allocated(x.device)
    outputs = net(x)
    held_bytes = _count_allocated(x.device) - allocated
    shape, expected = list(outputs.shape), [len(x), num_outputs]
    if shape != expected:
        raise InputError(f"the model's output has shape {shape}; it must be {expected}")
    new_states = get_rng_states(x.device)
    uses_rng = any(not torch.equal(state, new_states[name]) for name, state in rng_states.items())
    return uses_rng, held_bytes


def _count_allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def get_rng_states(device: torch.device) -> Params:
    """Return the generators that dropout draws from; the loader seeds its own at every step."""
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_states(device: torch.device, states: Params) -> None:
    """Restore what `get_rng_states` returned, except for a device that is not in use."""
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def select_prefix(tensors: Params, prefix: str) -> Params:
    """Return one part of a state, by the names within it."""
    prefix += "."
    return {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}


def check_shapes(make: Callable[[], nn.Module], tensors: Params) -> None:
    """Check a network against a state before it is built: untrusted files may ask for any size."""
    with torch.device("meta"):
        expected_shapes = {name: t.shape for name, t in make().state_dict().items()}
    if expected_shapes != {name: t.shape for name, t in tensors.items()}:
        raise InputError(WRONG_NETWORK)


def load_module_state(model: nn.Module, tensors: Params) -> None:
    """Load a module's state, which must be of the same network."""
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise InputError(WRONG_NETWORK) from None


@contextmanager
def translate_state_errors() -> Iterator[None]:
    """Turn errors about tensors of another run, as in a tampered file, into an InputError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError):
        problem = "the checkpoint does not match this run"
        raise InputError(f"{problem}; restore it, or train with a different --out") from None
