"""The smallest kernel, to see whether Triton works on this machine."""

# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl


@triton.jit
def write_one_kernel(x):
    """Write a one."""
    tl.store(x, 1.0)


def run() -> None:
    """Launch it; an exception says what is missing."""
    x = torch.zeros((), device="cuda")
    write_one_kernel[(1,)](x)
