"""Whether kernels of our own may stand in for PyTorch's: Triton must be there, and work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from torch import Tensor
from torch.autograd import forward_ad

_fused_enabled = ContextVar("fused kernels are wanted", default=True)


def can_use_fused(x: Tensor) -> bool:
    """Whether what is made of `x` may take them."""
    return x.is_cuda and _fused_enabled.get() and _triton_works()


@contextmanager
def disable_fused_kernels() -> Iterator[None]:
    """PyTorch's own operations alone, for counting and comparing."""
    token = _fused_enabled.set(False)
    try:
        yield
    finally:
        _fused_enabled.reset(token)


@cache
def _triton_works() -> bool:
    """Try a kernel once: Triton compiles on the machine, and not every machine with a GPU has a C compiler."""
    if find_spec("triton") is None:
        return False
    try:
        import_module("l2i.kernels.probe").run()
    except Exception as error:  # whatever it is, PyTorch's own kernels do the same
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        print(f"l2i: going on with PyTorch's own kernels, since Triton does not work here ({reason})", file=sys.stderr)
        return False
    return True


def is_dual(value: Tensor) -> bool:
    """Whether a tensor carries a tangent."""
    return forward_ad.unpack_dual(value).tangent is not None
