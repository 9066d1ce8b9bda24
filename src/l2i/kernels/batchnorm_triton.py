"""BatchNorm in train mode and leaky ReLU, by two Triton kernels each way, on rows [N·H·W, C].

Rows are channels_last. The first kernel of a pair reduces spans of rows to partials [G, C], the
second sums these and maps the elements: without atomics, so that results repeat bit by bit. Tile
sizes follow a fixed rule, since autotuning would time launches and break CUDA graphs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_C = 32  # channels per tile: enough for full memory sectors, and few partials per program
# reducing programs, about one per multiprocessor; a power of two, since Triton pads blocks to one
MAX_PROGRAMS = 128
NUM_STAGES = tl.constexpr(3)  # tiles in flight per program


class Tiles(NamedTuple):
    """How rows and channels are divided among the programs of a kernel."""

    grid: tuple[int, int]  # spans of rows, blocks of channels
    span: int
    shape: dict[str, int]

    @classmethod
    def for_tensor(cls, x: Tensor, *, tile_bytes: int, programs: int, num_warps: int) -> "Tiles":
        channels = x.shape[1]
        block_c = min(BLOCK_C, triton.next_power_of_2(channels))
        block_r, blocks = tile_bytes // x.element_size() // block_c, triton.cdiv(channels, block_c)
        rows = x.numel() // channels
        span = triton.cdiv(triton.cdiv(rows, block_r), max(programs // blocks, 1)) * block_r
        shape = {"channels": channels, "block_r": block_r, "block_c": block_c}
        grid = (triton.cdiv(rows, span), blocks)
        return cls(grid, span, {**shape, "num_warps": num_warps})

    @classmethod
    def for_reduction(cls, x: Tensor) -> "Tiles":
        """Use few large programs: every program of the second kernel reads all partials."""
        return cls.for_tensor(x, tile_bytes=16384, programs=MAX_PROGRAMS, num_warps=16)

    @classmethod
    def for_mapping(cls, x: Tensor) -> "Tiles":
        """Read partials in blocks no lower than a tile: Triton then needs no layout conversion."""
        tiles = cls.for_tensor(x, tile_bytes=8192, programs=2 * MAX_PROGRAMS, num_warps=8)
        block_g = max(MAX_PROGRAMS, tiles.shape["block_r"])
        return tiles._replace(shape={**tiles.shape, "block_g": block_g})


@triton.jit
def write_one_kernel(x):
    """Write a one."""
    tl.store(x, 1.0)


def probe() -> None:
    """Launch the smallest kernel; raise if Triton does not work on this machine."""
    x = torch.zeros((), device="cuda")
    write_one_kernel[(1,)](x)


@triton.jit
def _compute_offsets(start, rows, cols, channels: tl.constexpr, block_r: tl.constexpr):
    """Return the offsets of a tile's elements, and which of them exist."""
    row = start + tl.arange(0, block_r)
    return row[:, None] * channels + cols[None, :], (row < rows)[:, None] & (cols < channels)[
        None, :
    ]


@triton.jit
def statistics_kernel(
    x, means, squares, rows, span,
    channels: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Compute the mean and the sum of squared deviations of a span of rows."""
    first = tl.program_id(0) * span
    last = tl.minimum(first + span, rows)
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    # sums about a sample of the span: about zero they would cancel if the mean is far larger than
    # the deviation
    shift = tl.load(x + first * channels + cols, mask=cols < channels, other=0.0).to(tl.float32)
    total = tl.zeros([block_r, block_c], tl.float32)
    square = tl.zeros([block_r, block_c], tl.float32)
    for start in tl.range(first, last, block_r, num_stages=NUM_STAGES):
        offsets, mask = _compute_offsets(start, rows, cols, channels, block_r)
        centred = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - shift[None, :]
        centred = tl.where(mask, centred, 0.0)
        total += centred
        square += centred * centred
    mean_shift = tl.sum(total, 0) / (last - first)
    out_offsets = tl.program_id(0) * channels + cols
    tl.store(means + out_offsets, shift + mean_shift, mask=cols < channels)
    tl.store(
        squares + out_offsets,
        tl.sum(square, 0) - mean_shift * mean_shift * (last - first),
        mask=cols < channels,
    )


@triton.jit
def normalise_kernel(
    x, y, weight, bias, mean, invstd, means, squares, running_mean, running_var, num_batches,
    rows, span, groups, group_span, eps, slope, momentum,
    channels: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr, block_g: tl.constexpr,
):  # fmt: skip
    """Compute a span of outputs; the first program of a block of channels stores the statistics."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    partial_offsets, partial_mask = _compute_offsets(0, groups, cols, channels, block_g)
    partial_mean = tl.load(means + partial_offsets, mask=partial_mask, other=0.0)
    square = tl.load(squares + partial_offsets, mask=partial_mask, other=0.0)
    rows_left = rows - tl.arange(0, block_g) * group_span
    count = tl.maximum(tl.minimum(rows_left, group_span), 0).to(tl.float32)[:, None]
    m = tl.sum(partial_mean * count, 0) / rows
    deviation = partial_mean - m[None, :]
    var = tl.sum(square + deviation * deviation * count, 0) / rows
    s = tl.rsqrt(var + eps)
    if tl.program_id(0) == 0:
        tl.store(mean + cols, m, mask=cols < channels)
        tl.store(invstd + cols, s, mask=cols < channels)
        if running_mean is not None:
            old_mean = tl.load(running_mean + cols, mask=cols < channels)
            old_var = tl.load(running_var + cols, mask=cols < channels)
            unbiased = var * (rows / (rows - 1))
            tl.store(
                running_mean + cols, old_mean + momentum * (m - old_mean), mask=cols < channels
            )
            tl.store(
                running_var + cols, old_var + momentum * (unbiased - old_var), mask=cols < channels
            )
            if num_batches is not None:  # noqa: SIM102 (known at compile time, the other is not)
                if tl.program_id(1) == 0:
                    tl.store(num_batches, tl.load(num_batches) + 1)
    w = tl.load(weight + cols, mask=cols < channels, other=0.0)
    b = tl.load(bias + cols, mask=cols < channels, other=0.0)
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, rows), block_r, num_stages=NUM_STAGES):
        offsets, mask = _compute_offsets(start, rows, cols, channels, block_r)
        x_hat = (tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - m[None, :]) * s[
            None, :
        ]
        value = x_hat * w[None, :] + b[None, :]
        tl.store(
            y + offsets, tl.where(value > 0, value, slope * value).to(y.dtype.element_ty), mask=mask
        )


@triton.jit
def products_kernel(
    x, d, weight, bias, mean, invstd, sums, dots, rows, span, slope, forward_mode: tl.constexpr,
    channels: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Sum d and d·x̂ over a span of rows; backward, d first passes the leaky ReLU."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    m = tl.load(mean + cols, mask=cols < channels, other=0.0)
    s = tl.load(invstd + cols, mask=cols < channels, other=0.0)
    w = tl.load(weight + cols, mask=cols < channels, other=0.0)
    b = tl.load(bias + cols, mask=cols < channels, other=0.0)
    total = tl.zeros([block_r, block_c], tl.float32)
    dot = tl.zeros([block_r, block_c], tl.float32)
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, rows), block_r, num_stages=NUM_STAGES):
        offsets, mask = _compute_offsets(start, rows, cols, channels, block_r)
        x_hat = (tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - m[None, :]) * s[
            None, :
        ]
        delta = tl.load(d + offsets, mask=mask, other=0.0).to(tl.float32)
        if not forward_mode:
            delta = tl.where(x_hat * w[None, :] + b[None, :] > 0, delta, slope * delta)
        total += delta
        dot += delta * x_hat
    out_offsets = tl.program_id(0) * channels + cols
    tl.store(sums + out_offsets, tl.sum(total, 0), mask=cols < channels)
    tl.store(dots + out_offsets, tl.sum(dot, 0), mask=cols < channels)


@triton.jit
def project_kernel(
    x, d, out, weight, bias, mean, invstd, sums, dots, dweight, dbias, weight_dot, bias_dot,
    rows, span, groups, slope, forward_mode: tl.constexpr,
    channels: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr, block_g: tl.constexpr,
):  # fmt: skip
    """Apply the symmetric Jacobian w/σ·d + on_hat·x̂ + constant, and parameter tangents."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    m = tl.load(mean + cols, mask=cols < channels, other=0.0)
    s = tl.load(invstd + cols, mask=cols < channels, other=0.0)
    w = tl.load(weight + cols, mask=cols < channels, other=0.0)
    b = tl.load(bias + cols, mask=cols < channels, other=0.0)
    constant = tl.zeros([block_c], tl.float32)
    on_hat = tl.zeros([block_c], tl.float32)
    if d is not None:
        partial_offsets, partial_mask = _compute_offsets(0, groups, cols, channels, block_g)
        total = tl.sum(tl.load(sums + partial_offsets, mask=partial_mask, other=0.0), 0)
        dot = tl.sum(tl.load(dots + partial_offsets, mask=partial_mask, other=0.0), 0)
        constant -= w * s * total / rows
        on_hat -= w * s * dot / rows
        if not forward_mode:
            store_mask = (cols < channels) & (tl.program_id(0) == 0)
            tl.store(dbias + cols, total, mask=store_mask)
            tl.store(dweight + cols, dot, mask=store_mask)
    if weight_dot is not None:
        on_hat += tl.load(weight_dot + cols, mask=cols < channels, other=0.0)
    if bias_dot is not None:
        constant += tl.load(bias_dot + cols, mask=cols < channels, other=0.0)
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, rows), block_r, num_stages=NUM_STAGES):
        offsets, mask = _compute_offsets(start, rows, cols, channels, block_r)
        x_hat = (tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32) - m[None, :]) * s[
            None, :
        ]
        active = x_hat * w[None, :] + b[None, :] > 0
        value = x_hat * on_hat[None, :] + constant[None, :]
        if d is not None:
            delta = tl.load(d + offsets, mask=mask, other=0.0).to(tl.float32)
            if not forward_mode:
                delta = tl.where(active, delta, slope * delta)
            value += (w * s)[None, :] * delta
        if forward_mode:
            value = tl.where(active, value, slope * value)
        tl.store(out + offsets, value.to(out.dtype.element_ty), mask=mask)


def forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_stats: tuple[Tensor, Tensor, Tensor] | None,
    *,
    momentum: float,
    eps: float,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, mean and 1/σ; running mean, variance and number of batches change in place."""
    y, mean, invstd = torch.empty_like(x), *_allocate_partials(1, x)
    rows, reducing, mapping = x.numel() // x.shape[1], Tiles.for_reduction(x), Tiles.for_mapping(x)
    groups = reducing.grid[0]
    partials = _allocate_partials(groups, x)
    statistics_kernel[reducing.grid](x, *partials, rows, reducing.span, **reducing.shape)
    normalise_kernel[mapping.grid](
        x, y, weight.contiguous(), bias.contiguous(), mean, invstd, *partials,
        *(running_stats or (None, None, None)),
        rows, mapping.span, groups, reducing.span, eps, slope, momentum, **mapping.shape,
    )  # fmt: skip
    return y, mean[0], invstd[0]


def backward(saved: Sequence[Tensor], dy: Tensor, *, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias; `saved` holds these, the mean and 1/σ."""
    dweight, dbias = (
        torch.empty_like(saved[1], memory_format=torch.contiguous_format) for _ in range(2)
    )
    dx = _launch_jacobian(saved, dy, (dweight, dbias, None, None), slope, forward_mode=False)
    return dx, dweight, dbias


def jvp(
    saved: Sequence[Tensor],
    x_dot: Tensor | None,
    weight_dot: Tensor | None,
    bias_dot: Tensor | None,
    *,
    slope: float,
) -> Tensor:
    """Return the tangent of the outputs; `saved` is as in `backward`."""
    tangents = (None if t is None else t.contiguous() for t in (weight_dot, bias_dot))
    return _launch_jacobian(saved, x_dot, (None, None, *tangents), slope, forward_mode=True)


def _launch_jacobian(
    saved: Sequence[Tensor],
    d: Tensor | None,
    param_derivatives: tuple[Tensor | None, ...],
    slope: float,
    *,
    forward_mode: bool,
) -> Tensor:
    x, *params_and_stats = saved[0], *(t.contiguous() for t in saved[1:])
    rows, reducing, mapping = x.numel() // x.shape[1], Tiles.for_reduction(x), Tiles.for_mapping(x)
    groups, out = reducing.grid[0], torch.empty_like(x)
    partials: tuple[Tensor | None, ...] = (None, None)
    if d is not None:
        d, partials = d.contiguous(memory_format=torch.channels_last), _allocate_partials(groups, x)
        products_kernel[reducing.grid](
            x, d, *params_and_stats, *partials, rows, reducing.span, slope, forward_mode,
            **reducing.shape,
        )  # fmt: skip
    project_kernel[mapping.grid](
        x, d, out, *params_and_stats, *partials, *param_derivatives,
        rows, mapping.span, groups, slope, forward_mode, **mapping.shape,
    )  # fmt: skip
    return out


def _allocate_partials(groups: int, x: Tensor) -> tuple[Tensor, ...]:
    return torch.empty(2, groups, x.shape[1], device=x.device).unbind()
