"""Fused Triton kernels that replace PyTorch's operations if Triton is installed and works."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad

_fused_enabled = ContextVar("fused kernels are enabled", default=True)


def can_use_fused(x: Tensor) -> bool:
    """Return whether fused kernels may be used on `x`."""
    return x.is_cuda and _fused_enabled.get() and _triton_works()


@contextmanager
def disable_fused_kernels() -> Iterator[None]:
    """Use PyTorch's own operations only, for counting and comparing."""
    token = _fused_enabled.set(False)
    try:
        yield
    finally:
        _fused_enabled.reset(token)


@cache
def _triton_works() -> bool:
    """Try a kernel once: Triton needs a C compiler, which not every machine with a GPU has."""
    if find_spec("triton") is None:
        return False
    try:
        import_module("l2i.kernels.batchnorm_triton").probe()
    except Exception as error:  # whatever it is, PyTorch's own kernels compute the same
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        notice = f"falling back to PyTorch's kernels: Triton does not work here ({reason})"
        print(f"l2i: {notice}", file=sys.stderr)
        return False
    return True


def is_dual(value: Tensor) -> bool:
    """Return whether a tensor carries a tangent."""
    return forward_ad.unpack_dual(value).tangent is not None


def any_requires_grad(*values: Tensor | None) -> bool:
    """Return whether autograd records operations on any of the values."""
    return is_grad_enabled() and any(value is not None and value.requires_grad for value in values)
