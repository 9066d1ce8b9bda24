"""A trainer's state as named tensors: its parts, its modules' values and the random generators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from l2i.batch import Params
from l2i.errors import InputError

ANOTHER = "the checkpoint is of another network; give the model that it was trained with, or restore config.json"
MISFIT = r"(?s)^(?!.*memory).*(shape|size|dimension)"  # in torch's words; what lacks is not memory


def generators(device: torch.device) -> Params:
    """Those that dropout draws from; the loader's is seeded anew at each step."""
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(device: torch.device, states: Params) -> None:
    """Back to what `generators` gave; a state from another kind of device is left out."""
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def draws_random(device: torch.device, forward: Callable[[], None]) -> bool:
    """Whether a forward draws from these generators."""
    before = generators(device)
    forward()
    return any(not torch.equal(state, before[name]) for name, state in generators(device).items())


@contextmanager
def fitting() -> Iterator[None]:
    """A first step, in which what torch says of shapes and sizes that do not fit is the user's to mend."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search(MISFIT, str(error)):
            raise
        raise InputError(f"the first step cannot be taken with these settings: {error}") from error


def held_by(device: torch.device, forward: Callable[[], Tensor]) -> int:
    """Bytes that a forward holds for its backward, where the device is a GPU."""
    if device.type != "cuda":
        return 0
    before = torch.cuda.memory_allocated(device)
    outputs = forward()
    held = torch.cuda.memory_allocated(device) - before
    del outputs
    return held


def part(tensors: Params, name: str) -> Params:
    """The tensors of one part of a state, by their names within it."""
    return {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}


def check_sizes(make: Callable[[], nn.Module], tensors: Params) -> None:
    """That a network has a state's tensors, before it is built: a stranger may ask for a gigantic one."""
    with torch.device("meta"):
        wanted = {name: t.shape for name, t in make().state_dict().items()}
    if wanted != {name: t.shape for name, t in tensors.items()}:
        raise InputError(ANOTHER)


def fill(model: nn.Module, tensors: Params) -> None:
    """Load a module's state, which must be of the same network."""
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise InputError(ANOTHER) from None


@contextmanager
def belonging() -> Iterator[None]:
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
def cpu_threads(count: int) -> Iterator[None]:
    """As many threads as the run asks for, while it runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
