"""A trainer's state as named tensors: its parts, its modules' values and the random generators.

MERGED:
From a run's fields to the things it is made of: device, data, task, network, outer step.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from l2i.bilevel.head import Head
from l2i.bilevel.hypergradient import HYPERGRADIENTS
from l2i.bilevel.labels import Labels, LearnableLabels, OutputLabels
from l2i.bilevel.outer import OuterStep
from l2i.bilevel.problem import Params
from l2i.config import Run, replace
from l2i.data import BUILTIN_DATASETS, DATASETS
from l2i.data.datasets.imdb import TextSet
from l2i.data.samples import DataSet, Splits
from l2i.data.splitting import draw_splits
from l2i.data.tokenization import ProgressCallback, tokenize_dataset
from l2i.distributed import ProcessGroup, current_group
from l2i.errors import InputError
from l2i.kernels.sync_batchnorm import convert_sync_batchnorm
from l2i.methods import METHODS
from l2i.methods.base import Method
from l2i.models import MODELS
from l2i.registry import load_registered
from l2i.tasks import Classification, Regression, Task
from l2i.training.precision import Autocast
from l2i.training.progress import make_throttled_printer

WRONG_NETWORK = "the checkpoint is of another network; give the model that it was trained with, or restore config.json"
SHAPE_ERROR = r"(?s)^(?!.*memory).*(shape|size|dimension)"  # in torch's words; what lacks is not memory


def get_rng_states(device: torch.device) -> Params:
    """Those that dropout draws from; the loader's is seeded anew at each step."""
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_rng_states(device: torch.device, states: Params) -> None:
    """Back to what `generators` gave; a state from another kind of device is left out."""
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def consumes_rng(device: torch.device, forward: Callable[[], None]) -> bool:
    """Whether a forward draws from these generators."""
    before = get_rng_states(device)
    forward()
    return any(not torch.equal(state, before[name]) for name, state in get_rng_states(device).items())


@contextmanager
def translate_shape_errors() -> Iterator[None]:
    """A first step, in which what torch says of shapes and sizes that do not fit is the user's to mend."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(SHAPE_ERROR, str(error)):
            raise
        raise InputError(f"the first step cannot be taken with these settings: {error}") from error


def measure_activations(device: torch.device, forward: Callable[[], Tensor]) -> int:
    """Bytes that a forward holds for its backward, where the device is a GPU."""
    if device.type != "cuda":
        return 0
    before = torch.cuda.memory_allocated(device)
    outputs = forward()
    held_bytes = torch.cuda.memory_allocated(device) - before
    del outputs
    return held_bytes


def select_prefix(tensors: Params, prefix: str) -> Params:
    """The tensors of one part of a state, by their names within it."""
    return {key.removeprefix(f"{prefix}."): t for key, t in tensors.items() if key.startswith(f"{prefix}.")}


def check_shapes(make: Callable[[], nn.Module], tensors: Params) -> None:
    """That a network has a state's tensors, before it is built: a stranger may ask for a gigantic one."""
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
    """The loading of tensors that belong to this run, unless a stranger has made the checkpoint."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError):
        raise InputError(
            "the checkpoint does not hold the state of such a run; restore it, or train in another --out"
        ) from None


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """As many threads as the run asks for, while it runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


DATA_ROOT_ENV = "L2I_DATA"  # the environment variable with the folder that data sets lie in, where data.root is not given


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
    picks_local_gpu = device.type == "cuda" and device.index is None and current_group().size > 1  # each process has one
    return torch.device("cuda", current_group().local_rank) if picks_local_gpu else device


def check_divisible(run: Run, ranks: ProcessGroup) -> None:
    """That the processes of a run can have like shares of it."""
    sizes = {f"batch.{name}": size for name, size in vars(run.batch).items()}
    sizes["l2i.outer_batch_size"] = run.l2i.outer_batch_size
    for name, size in sizes.items():
        if size % ranks.size:
            raise InputError(
                f"{name}={size} cannot be shared evenly by {ranks.size} processes; use a multiple of {ranks.size}, "
                "or another --nproc-per-node"
            )
    if ranks.size > 1 and run.l2i.hypergradient == "unrolled":
        raise InputError("hypergradient='unrolled' is for one process, to compare with; use 'exact'")


def param_dtype(run: Run) -> torch.dtype:
    """The type of parameters and data; bf16 is for forwards alone."""
    return torch.float64 if run.precision == "float64" else torch.float32


def with_data_root(run: Run) -> Run:
    """The run with the folder of its data written down, so that it is found again in another shell."""
    root = os.environ.get(DATA_ROOT_ENV)
    if run.data.root is not None or root is None or run.data.name in BUILTIN_DATASETS:
        return run
    return replace(run, data={"root": root})


def load_dataset(name: str, root: str | None) -> DataSet | TextSet:
    """A data set by name, from the folder given or the one that the environment names."""
    read = load_registered("data set", DATASETS, name)
    data: DataSet | TextSet = read(root if root is not None else os.environ.get(DATA_ROOT_ENV))
    return data


def load_splits(run: Run, on_progress: ProgressCallback | None = None) -> Splits:
    """The data set of the run, split by its seed; `told` hears of texts being read, by default stderr."""
    if run.model.name == "encoder":
        from l2i.models.text_encoder import check_weights

        check_weights(run.model, run.data.text.length)
    data = load_dataset(run.data.name, run.data.root)
    if isinstance(data, TextSet):
        data = tokenize_dataset(data, run.model.weights, run.data.text, on_progress or make_throttled_printer())
    return draw_splits(
        data,
        num_labeled=run.data.num_labeled,
        num_validation=run.data.num_validation,
        num_test=run.data.num_test,
        holdout=run.l2i.holdout if run.l2i.update != "off" else "joint",
        seed=run.seed,
    )


def make_task(splits: Splits, method: Method) -> Task:
    """Classification or regression, as the labels are."""
    task: Task
    if splits.classes is not None:
        task = Classification(num_outputs=splits.classes)
    else:
        task = Regression.from_targets(splits.labeled.y, points=splits.has_landmarks, eyes=splits.eye_indices)
    if task.kind not in method.tasks:
        supported = [name for name in METHODS if task.kind in load_registered("method", METHODS, name).tasks]
        raise InputError(f"{method.name} is not for {task.kind}; use one of {', '.join(supported)}")
    return task


def compute_input_shape(run: Run, splits: Splits) -> tuple[int, ...]:
    """The shape of a sample as the network sees it."""
    shape, side = tuple(splits.labeled.x.shape[1:]), run.data.weak.crop
    if splits.vocabulary is not None:
        return shape[-1:]
    if run.data.strong.crop != side and "strong" in run.method.views:
        raise InputError(f"data.weak.crop={side} and data.strong.crop={run.data.strong.crop} must be the same")
    return (shape[0], side, side) if side and len(shape) == 3 else shape


def build_model(run: Run, splits: Splits, task: Task, expected_state: Params | None = None) -> nn.Module:
    """The network of the run, its weights drawn by its seed; of the sizes of a state `like`, where one is given."""
    make = partial(load_registered("model", MODELS, run.model.name), compute_input_shape(run, splits), task.num_outputs, run.model)
    if expected_state is not None and run.model.name != "encoder":
        check_shapes(make, expected_state)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(run.seed)
        model: nn.Module = make()
    return model


def prepare_model(model: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The model on its device, to be trained; on a GPU, convolutions in the order of memory in which it is fastest.

    A model that as a whole is in evaluation mode is taken out of it; single layers stay as they are.
    """
    if any(is_lazy(p) for p in model.parameters()):
        raise InputError("the model has lazy layers, whose sizes are not known yet; pass a batch through it first")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("no parameter of the model takes a gradient; call model.requires_grad_() first")
    model = convert_sync_batchnorm(model if model.training else model.train(), current_group()).to(device, dtype)
    return model.to(memory_format=torch.channels_last) if device.type == "cuda" else model  # type: ignore[call-overload]


def make_outer_step(run: Run, task: Task, network: nn.Module) -> OuterStep | None:
    """The outer step that the run asks for."""
    l2i = run.l2i
    if l2i.update == "off":
        return None
    hypergradient = HYPERGRADIENTS[l2i.hypergradient]
    head = f"model.{l2i.head}" if l2i.head and isinstance(network, Autocast) else l2i.head
    if l2i.hypergradient.startswith("last_layer"):
        Head.from_model(network, head)  # a wrong name is found before the first step
        hypergradient = partial(hypergradient, moves=l2i.moves)  # type: ignore[call-arg]
    labels: Labels = OutputLabels()
    if l2i.labels == "learnable":
        labels = LearnableLabels(l2i.label_lr, l2i.update == "normalized", task.to_logits, task.to_label)
    return OuterStep(
        hypergradient=hypergradient,
        labels=labels,
        eta=l2i.eta,
        inner_steps=l2i.inner_steps,
        inner_weight=l2i.inner_weight,
        head=head,
    )
