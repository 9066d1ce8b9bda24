"""Launches of the kernels in `stage_kernels`, with tiles by fixed rules: tuning would time, and break CUDA graphs."""

# mypy: allow-untyped-calls

import torch
import triton
from torch import Tensor

from l2i.models import stage_kernels as kernels

WARPS = 8
BLOCK_M = 128  # pooled values a channel that a tile of the first stage makes
BLOCK_K = 64  # what the places of a window see, at most, and a row of ones; wgmma takes no fewer rows
FIRST_C = 32  # channels of a tile of the first stage
FIRST_PROGRAMS = 264  # of the first stage, at most: as many as run at once; each loads all weights, or leaves partials
TILE_BYTES = 4096  # of a tile elsewhere: 16 a thread, so that Triton reads values and codes in one layout
BLOCK_C = 64  # channels of such a tile, at most
POOL_PROGRAMS = 512  # that leave partials of a bias, at most
BLOCK_E = 8  # sums of a program that adds partials up: 32 bytes, the least that memory hands out


def first(
    x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, width: int, *, keep: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Outputs of a stage with one input channel, with zeros for channels up to `width`, and their code where kept."""
    size = [(side - kernel + 1) // 2 for side, kernel in zip(x.shape[2:], weight.shape[2:], strict=True)]
    code = _empty((x.shape[0], weight.shape[0], *size), torch.uint8, x) if keep else None
    return _first(x, weight, bias, code, (x.shape[0], width, *size), dtype, follows=False), code


def first_tangent(
    x: Tensor, weight_dot: Tensor, bias_dot: Tensor | None, code: Tensor, dtype: torch.dtype, width: int
) -> Tensor:
    """The tangent of these outputs."""
    shape = (x.shape[0], width, *code.shape[2:])
    return _first(x, weight_dot, bias_dot, code, shape, dtype, follows=True)


def first_gradients(x: Tensor, weight: Tensor, bias: Tensor, code: Tensor, dy: Tensor) -> tuple[Tensor, Tensor]:
    """What reaches the weight and the bias of such a stage."""
    # like the weight where that is contiguous: of two layouts of one channel, fused optimizers want the parameter's
    dweight, dbias = (torch.empty_like(t.contiguous()) for t in (weight, bias))
    windows, (kernel_h, kernel_w) = code.numel() // code.shape[1], weight.shape[2:]
    span, blocks = _spans(windows, BLOCK_M, FIRST_PROGRAMS), triton.cdiv(code.shape[1], FIRST_C)
    groups, rows = triton.cdiv(windows, span), (kernel_h + 1) * (kernel_w + 1) + 1
    partials = torch.empty(groups, 4, rows, code.shape[1], device=x.device)
    kernels.first_gradients_kernel[groups, blocks](
        x.contiguous(), _rows(dy), code, partials, windows, span, **_shape(x, weight, dy.shape[1])
    )
    _total(partials, dweight, dbias)
    return dweight, dbias


def pool(c: Tensor, bias: Tensor, width: int, *, keep: bool = True) -> tuple[Tensor, Tensor | None]:
    """A convolution's outputs `c` with their bias, pooled and squashed, filled up to `width`; the code where kept."""
    size = [side // 2 for side in c.shape[2:]]
    y = _empty((c.shape[0], width, *size), c.dtype, c)
    code = _empty((*c.shape[:2], *size), torch.uint8, c) if keep else None
    _pool(c, bias, y, code, c.shape, follows=False)
    return y, code


def select(
    c_dot: Tensor | None, bias_dot: Tensor | None, code: Tensor, size: tuple[int, int], dtype: torch.dtype, width: int
) -> Tensor:
    """The tangent of pooled outputs; `size` is that of the convolution's."""
    y_dot = _empty((code.shape[0], width, *code.shape[2:]), dtype, code)
    _pool(c_dot, bias_dot, y_dot, code, (*code.shape[:2], *size), follows=True)
    return y_dot


def spread(dy: Tensor, bias: Tensor, code: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """What reaches a convolution's outputs of this size, and their bias."""
    dc = _empty((*code.shape[:2], *size), dy.dtype, dy)
    windows = code.shape[0] * triton.cdiv(size[0], 2) * triton.cdiv(size[1], 2)
    block_r, block_c = _tile(dc, code.shape[1])
    span = _spans(windows, block_r, POOL_PROGRAMS)
    groups, dbias = triton.cdiv(windows, span), torch.empty_like(bias.contiguous())
    partials = torch.empty(groups, code.shape[1], device=dy.device)
    kernels.spread_kernel[groups, triton.cdiv(code.shape[1], block_c)](
        _rows(dy),
        code,
        dc,
        partials,
        windows,
        span,
        *size,
        code.shape[1],
        dy.shape[1],
        block_r,
        block_c,
        num_warps=WARPS,
    )
    _total(partials, None, dbias)
    return dc, dbias


def _first(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    code: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    follows: bool,
) -> Tensor:
    y, windows = _empty(shape, dtype, x), shape[0] * shape[2] * shape[3]
    span = _spans(windows, BLOCK_M, FIRST_PROGRAMS)
    kernels.first_kernel[triton.cdiv(windows, span), triton.cdiv(shape[1], FIRST_C)](
        x.contiguous(), y, code, weight.contiguous(), None if bias is None else bias.contiguous(), windows, span,
        follows, **_shape(x, weight, shape[1]),
    )  # fmt: skip
    return y


def _pool(
    c: Tensor | None, bias: Tensor | None, y: Tensor, code: Tensor | None, shape: tuple[int, ...], *, follows: bool
) -> None:
    windows, (block_r, block_c) = y.numel() // y.shape[1], _tile(y, y.shape[1])
    kernels.pool_kernel[triton.cdiv(windows, block_r), triton.cdiv(y.shape[1], block_c)](
        None if c is None else _rows(c), y, code, None if bias is None else bias.contiguous(), windows, follows,
        *shape[2:], shape[1], y.shape[1], block_r, block_c, num_warps=WARPS,
    )  # fmt: skip


def _total(partials: Tensor, dweight: Tensor | None, dbias: Tensor) -> None:
    groups, channels = partials.shape[0], dbias.shape[0]
    sides = (0, 0) if dweight is None else dweight.shape[2:]
    grid = (triton.cdiv(channels * (sides[0] * sides[1] + 1), BLOCK_E),)
    block_g = triton.next_power_of_2(groups)
    kernels.total_kernel[grid](partials, dweight, dbias, groups, *sides, channels, block_g, BLOCK_E, num_warps=WARPS)


def _shape(x: Tensor, weight: Tensor, width: int) -> dict[str, int]:
    kernel_h, kernel_w = weight.shape[2:]
    return {
        "height": x.shape[2], "width": x.shape[3], "kernel_h": kernel_h, "kernel_w": kernel_w,
        "channels": weight.shape[0], "filled": width,
        "block_k": BLOCK_K, "block_m": BLOCK_M, "block_c": FIRST_C, "num_warps": WARPS,
    }  # fmt: skip


def _spans(windows: int, block: int, programs: int) -> int:
    """How many windows a program takes so that there are no more programs."""
    return int(triton.cdiv(triton.cdiv(windows, block), programs) * block)


def _tile(values: Tensor, channels: int) -> tuple[int, int]:
    block_c = min(BLOCK_C, triton.next_power_of_2(channels))
    return TILE_BYTES // values.element_size() // block_c, block_c


def _empty(shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _rows(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last)
