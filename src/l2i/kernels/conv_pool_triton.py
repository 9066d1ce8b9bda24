"""Convolution, 2×2 max pooling and hardtanh in Triton kernels, on channels_last rows [N·H·W, C].

One code per pooled value, 0 to 3 for its position in the window and 4 if it was clamped, is all
that derivatives need. Reducing programs leave partials, which a last kernel sums: without atomics,
so that results repeat bit by bit. Tile sizes follow fixed rules, since autotuning would time
launches and break CUDA graphs.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import torch
import triton
import triton.language as tl
from torch import Tensor

NUM_WARPS = 8
BLOCK_M = 128  # pooled values per channel and tile, if the convolution is fused
# taps of the four positions of a window and a row of ones; wgmma takes no fewer rows
BLOCK_K = 64
CONV_BLOCK_C = 32  # channels per tile, if the convolution is fused
# as many as run at once: each loads all weights, or leaves partials
MAX_CONV_PROGRAMS = 264
TILE_BYTES = 4096  # per tile otherwise: 16 per thread, so that values and codes share a layout
BLOCK_C = 64  # channels of such a tile, at most
MAX_POOL_PROGRAMS = 512  # that leave partials of a bias
BLOCK_E = 8  # sums per program that adds up partials: 32 bytes, the smallest memory access


@triton.jit
def _locate_window(window, pooled_h: tl.constexpr, pooled_w: tl.constexpr):
    """Return the image, and the dense row and column, of the first position of a window."""
    return window // (pooled_w * pooled_h), window // pooled_w % pooled_h * 2, window % pooled_w * 2


@triton.jit
def _load_patches(
    x, start, windows, height: tl.constexpr, width: tl.constexpr,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, block_k: tl.constexpr, block_m: tl.constexpr,
):  # fmt: skip
    """Load the input of each window, [block_k, block_m], and a row of ones, which sums biases."""
    window = start + tl.arange(0, block_m)
    image, row, col = _locate_window(
        window, (height - kernel_h + 1) // 2, (width - kernel_w + 1) // 2
    )
    tap = tl.arange(0, block_k)
    taps: tl.constexpr = (kernel_h + 1) * (kernel_w + 1)
    tap_offset = tap // (kernel_w + 1) * width + tap % (kernel_w + 1)
    mask = (tap < taps)[:, None] & (window < windows)[None, :]
    values = tl.load(
        x + tap_offset[:, None] + ((image * height + row) * width + col)[None, :],
        mask=mask,
        other=0.0,
    )
    return tl.where((tap == taps)[:, None], 1.0, values.to(tl.float32))


@triton.jit
def _load_filter(
    weight, cols, channels: tl.constexpr, row: tl.constexpr, col: tl.constexpr,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """Load the weights for one position of the windows, [block_k, C], zero for unused taps."""
    tap = tl.arange(0, block_k)
    i = tap // (kernel_w + 1) - row
    j = tap % (kernel_w + 1) - col
    in_kernel = (i >= 0) & (i < kernel_h) & (j >= 0) & (j < kernel_w)
    offsets = cols[None, :] * (kernel_h * kernel_w) + (i * kernel_w + j)[:, None]
    return tl.load(
        weight + offsets, mask=in_kernel[:, None] & (cols < channels)[None, :], other=0.0
    )


@triton.jit
def _max_with_position(v0, v1, v2, v3):
    """Return the first maximum, or the last NaN, as PyTorch pools, and its position."""
    best = v0
    position = tl.zeros(v0.shape, tl.int32)
    replaces = (v1 > best) | (v1 != v1)
    best, position = tl.where(replaces, v1, best), tl.where(replaces, 1, position)
    replaces = (v2 > best) | (v2 != v2)
    best, position = tl.where(replaces, v2, best), tl.where(replaces, 2, position)
    replaces = (v3 > best) | (v3 != v3)
    return tl.where(replaces, v3, best), tl.where(replaces, 3, position)


@triton.jit
def _select_position(v0, v1, v2, v3, b, position):
    """Return the value at a position, with the bias; zero for a code of 4."""
    value = tl.where(position == 0, v0, 0.0) + tl.where(position == 1, v1, 0.0)
    value += tl.where(position == 2, v2, 0.0) + tl.where(position == 3, v3, 0.0)
    return tl.where(position < 4, value + b, 0.0)


@triton.jit
def _pool_and_store(
    y, code, v0, v1, v2, v3, b, window, cols, mask, channels: tl.constexpr, padded: tl.constexpr
):
    """Pool, clamp and store, with the code unless it is None."""
    best, position = _max_with_position(v0, v1, v2, v3)
    value = best + b[None, :]
    high, low = value >= 1.0, value <= -1.0
    clamped = tl.where(high, 1.0, tl.where(low, -1.0, value))
    tl.store(
        y + window[:, None] * padded + cols[None, :], clamped.to(y.dtype.element_ty), mask=mask
    )
    if code is not None:
        stored_code = tl.where(high | low, 4, position).to(tl.uint8)
        tl.store(
            code + window[:, None] * channels + cols[None, :],
            stored_code,
            mask=mask & (cols < channels)[None, :],
        )


@triton.jit
def conv_pool_kernel(
    x, y, code, weight, bias, windows, span, tangent_mode: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, kernel_h: tl.constexpr, kernel_w: tl.constexpr,
    channels: tl.constexpr, padded: tl.constexpr,
    block_k: tl.constexpr, block_m: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Compute a span of windows; in tangent mode by their code, with tangents as parameters."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    dtype = y.dtype.element_ty
    w0 = _load_filter(weight, cols, channels, 0, 0, kernel_h, kernel_w, block_k).to(dtype)
    w1 = _load_filter(weight, cols, channels, 0, 1, kernel_h, kernel_w, block_k).to(dtype)
    w2 = _load_filter(weight, cols, channels, 1, 0, kernel_h, kernel_w, block_k).to(dtype)
    w3 = _load_filter(weight, cols, channels, 1, 1, kernel_h, kernel_w, block_k).to(dtype)
    b = tl.zeros([block_c], tl.float32)
    if bias is not None:
        b += tl.load(bias + cols, mask=cols < channels, other=0.0).to(tl.float32)
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, windows), block_m, num_stages=1):
        patches = tl.trans(
            _load_patches(
                x, start, windows, height, width, kernel_h, kernel_w, block_k, block_m
            ).to(dtype)
        )
        v0, v1, v2, v3 = (
            tl.dot(patches, w0),
            tl.dot(patches, w1),
            tl.dot(patches, w2),
            tl.dot(patches, w3),
        )
        window = start + tl.arange(0, block_m)
        mask = (window < windows)[:, None] & (cols < padded)[None, :]
        if tangent_mode:
            code_mask = mask & (cols < channels)[None, :]
            position = tl.load(
                code + window[:, None] * channels + cols[None, :], mask=code_mask, other=4
            )
            value = _select_position(v0, v1, v2, v3, b[None, :], position)
            tl.store(y + window[:, None] * padded + cols[None, :], value.to(dtype), mask=mask)
        else:
            _pool_and_store(y, code, v0, v1, v2, v3, b, window, cols, mask, channels, padded)


@triton.jit
def conv_pool_grads_kernel(
    x, dy, code, partials, windows, span,
    height: tl.constexpr, width: tl.constexpr, kernel_h: tl.constexpr, kernel_w: tl.constexpr,
    channels: tl.constexpr, padded: tl.constexpr,
    block_k: tl.constexpr, block_m: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Sum the parameter gradients of a span of windows, by position, [4, taps + 1, C]."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    dtype = dy.dtype.element_ty
    a0 = tl.zeros([block_k, block_c], tl.float32)
    a1 = tl.zeros([block_k, block_c], tl.float32)
    a2 = tl.zeros([block_k, block_c], tl.float32)
    a3 = tl.zeros([block_k, block_c], tl.float32)
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, windows), block_m, num_stages=1):
        patches = _load_patches(
            x, start, windows, height, width, kernel_h, kernel_w, block_k, block_m
        ).to(dtype)
        window = start + tl.arange(0, block_m)
        mask = (window < windows)[:, None] & (cols < channels)[None, :]
        d = tl.load(dy + window[:, None] * padded + cols[None, :], mask=mask, other=0.0)
        position = tl.load(code + window[:, None] * channels + cols[None, :], mask=mask, other=4)
        a0 = tl.dot(patches, tl.where(position == 0, d, 0.0).to(dtype), a0)
        a1 = tl.dot(patches, tl.where(position == 1, d, 0.0).to(dtype), a1)
        a2 = tl.dot(patches, tl.where(position == 2, d, 0.0).to(dtype), a2)
        a3 = tl.dot(patches, tl.where(position == 3, d, 0.0).to(dtype), a3)
    tap = tl.arange(0, block_k)
    rows: tl.constexpr = (kernel_h + 1) * (kernel_w + 1) + 1
    pointers = (
        partials
        + tl.program_id(0) * (4 * rows * channels)
        + tap[:, None] * channels
        + cols[None, :]
    )
    mask = (tap < rows)[:, None] & (cols < channels)[None, :]
    tl.store(pointers, a0, mask=mask)
    tl.store(pointers + rows * channels, a1, mask=mask)
    tl.store(pointers + 2 * rows * channels, a2, mask=mask)
    tl.store(pointers + 3 * rows * channels, a3, mask=mask)


@triton.jit
def pool_kernel(
    c, y, code, bias, windows, tangent_mode: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr,
    channels: tl.constexpr, padded: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Add the bias, pool and clamp; in tangent mode by the code, with tangents as c and bias."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    window = tl.program_id(0) * block_r + tl.arange(0, block_r)
    mask = (window < windows)[:, None] & (cols < padded)[None, :]
    code_mask = mask & (cols < channels)[None, :]
    b = tl.zeros([block_c], tl.float32)
    if bias is not None:
        b += tl.load(bias + cols, mask=cols < channels, other=0.0).to(tl.float32)
    v0 = tl.zeros([block_r, block_c], tl.float32)
    v1, v2, v3 = v0, v0, v0
    if c is not None:
        image, row, col = _locate_window(window, height // 2, width // 2)
        pointers = c + ((image * height + row) * width + col)[:, None] * channels + cols[None, :]
        v0 = tl.load(pointers, mask=code_mask, other=0.0).to(tl.float32)
        v1 = tl.load(pointers + channels, mask=code_mask, other=0.0).to(tl.float32)
        v2 = tl.load(pointers + width * channels, mask=code_mask, other=0.0).to(tl.float32)
        v3 = tl.load(pointers + (width + 1) * channels, mask=code_mask, other=0.0).to(tl.float32)
    if tangent_mode:
        position = tl.load(
            code + window[:, None] * channels + cols[None, :], mask=code_mask, other=4
        )
        value = _select_position(v0, v1, v2, v3, b[None, :], position)
        tl.store(
            y + window[:, None] * padded + cols[None, :], value.to(y.dtype.element_ty), mask=mask
        )
    else:
        _pool_and_store(y, code, v0, v1, v2, v3, b, window, cols, mask, channels, padded)


@triton.jit
def unpool_kernel(
    dy, code, dc, partials, windows, span, height: tl.constexpr, width: tl.constexpr,
    channels: tl.constexpr, padded: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Write gradients at their positions and zeros elsewhere, also beyond the border; sum them."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    total = tl.zeros([block_r, block_c], tl.float32)
    pooled_h: tl.constexpr = height // 2
    pooled_w: tl.constexpr = width // 2
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, windows), block_r, num_stages=1):
        window = start + tl.arange(0, block_r)
        image, row, col = _locate_window(window, (height + 1) // 2, (width + 1) // 2)
        dense_mask = (window < windows)[:, None] & (cols < channels)[None, :]
        pooled_mask = dense_mask & ((row + 1 < height) & (col + 1 < width))[:, None]
        pooled = (image * pooled_h + row // 2) * pooled_w + col // 2
        d = tl.load(dy + pooled[:, None] * padded + cols[None, :], mask=pooled_mask, other=0.0)
        position = tl.load(
            code + pooled[:, None] * channels + cols[None, :], mask=pooled_mask, other=4
        )
        total += tl.where(position < 4, d.to(tl.float32), 0.0)
        pointers = dc + ((image * height + row) * width + col)[:, None] * channels + cols[None, :]
        right, below = (
            dense_mask & (col + 1 < width)[:, None],
            dense_mask & (row + 1 < height)[:, None],
        )
        tl.store(pointers, tl.where(position == 0, d, 0.0).to(dc.dtype.element_ty), mask=dense_mask)
        tl.store(
            pointers + channels, tl.where(position == 1, d, 0.0).to(dc.dtype.element_ty), mask=right
        )
        tl.store(
            pointers + width * channels,
            tl.where(position == 2, d, 0.0).to(dc.dtype.element_ty),
            mask=below,
        )
        tl.store(
            pointers + (width + 1) * channels,
            tl.where(position == 3, d, 0.0).to(dc.dtype.element_ty),
            mask=right & below,
        )
    tl.store(partials + tl.program_id(0) * channels + cols, tl.sum(total, 0), mask=cols < channels)


@triton.jit
def sum_partials_kernel(
    partials, dweight, dbias, groups, kernel_h: tl.constexpr, kernel_w: tl.constexpr,
    channels: tl.constexpr, block_g: tl.constexpr, block_e: tl.constexpr,
):  # fmt: skip
    """Sum partials; those of `conv_pool_grads_kernel` also over the four positions of a window."""
    element = tl.program_id(0) * block_e + tl.arange(0, block_e)
    group = tl.arange(0, block_g)
    col, tap = element % channels, element // channels
    total = tl.zeros([block_g, block_e], tl.float32)
    if dweight is not None:
        kernel: tl.constexpr = kernel_h * kernel_w
        rows: tl.constexpr = (kernel_h + 1) * (kernel_w + 1) + 1
        mask = (group < groups)[:, None] & (tap <= kernel)[None, :]
        for position in tl.static_range(4):
            patch_tap = (
                (tap // kernel_w + position // 2) * (kernel_w + 1) + tap % kernel_w + position % 2
            )
            offsets = (
                position * rows + tl.where(tap < kernel, patch_tap, rows - 1)
            ) * channels + col
            total += tl.load(
                partials + group[:, None] * (4 * rows * channels) + offsets[None, :],
                mask=mask,
                other=0.0,
            )
        grad = tl.sum(total, 0)
        tl.store(dweight + col * kernel + tap, grad.to(dweight.dtype.element_ty), mask=tap < kernel)
        tl.store(dbias + col, grad.to(dbias.dtype.element_ty), mask=tap == kernel)
    else:
        mask = (group < groups)[:, None] & (tap < 1)[None, :]
        total += tl.load(partials + group[:, None] * channels + col[None, :], mask=mask, other=0.0)
        tl.store(dbias + col, tl.sum(total, 0).to(dbias.dtype.element_ty), mask=tap < 1)


def conv_pool(
    x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, width: int, *, keep: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return outputs for one input channel, padded to `width` channels, and a code if kept."""
    sides = zip(x.shape[2:], weight.shape[2:], strict=True)
    size = [(side - kernel + 1) // 2 for side, kernel in sides]
    code = _allocate((x.shape[0], weight.shape[0], *size), torch.uint8, x) if keep else None
    shape = (x.shape[0], width, *size)
    y = _launch_conv_pool(x, weight, bias, code, shape, dtype, tangent_mode=False)
    return y, code


def conv_pool_tangent(
    x: Tensor,
    weight_dot: Tensor,
    bias_dot: Tensor | None,
    code: Tensor,
    dtype: torch.dtype,
    width: int,
) -> Tensor:
    """Return the tangent of these outputs."""
    shape = (x.shape[0], width, *code.shape[2:])
    return _launch_conv_pool(x, weight_dot, bias_dot, code, shape, dtype, tangent_mode=True)


def conv_pool_grads(
    x: Tensor, weight: Tensor, bias: Tensor, code: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias."""
    # laid out like the parameters, as fused optimizers want: with one channel two layouts fit
    dweight, dbias = (torch.empty_like(t.contiguous()) for t in (weight, bias))
    windows, (kernel_h, kernel_w) = code.numel() // code.shape[1], weight.shape[2:]
    span = _compute_span(windows, BLOCK_M, MAX_CONV_PROGRAMS)
    blocks = triton.cdiv(code.shape[1], CONV_BLOCK_C)
    groups, rows = triton.cdiv(windows, span), (kernel_h + 1) * (kernel_w + 1) + 1
    partials = torch.empty(groups, 4, rows, code.shape[1], device=x.device)
    conv_pool_grads_kernel[groups, blocks](
        x.contiguous(), _to_channels_last(dy), code, partials, windows, span,
        **_make_conv_pool_args(x, weight, dy.shape[1]),
    )  # fmt: skip
    _sum_partials(partials, dweight, dbias)
    return dweight, dbias


def bias_pool(
    c: Tensor, bias: Tensor, width: int, *, keep: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Return a convolution's outputs `c` with bias, pooled, clamped and padded; a code if kept."""
    size = [side // 2 for side in c.shape[2:]]
    y = _allocate((c.shape[0], width, *size), c.dtype, c)
    code = _allocate((*c.shape[:2], *size), torch.uint8, c) if keep else None
    _launch_pool(c, bias, y, code, c.shape, tangent_mode=False)
    return y, code


def bias_pool_tangent(
    c_dot: Tensor | None,
    bias_dot: Tensor | None,
    code: Tensor,
    size: tuple[int, int],
    dtype: torch.dtype,
    width: int,
) -> Tensor:
    """Return the tangent of pooled outputs; `size` is that of the convolution's outputs."""
    y_dot = _allocate((code.shape[0], width, *code.shape[2:]), dtype, code)
    _launch_pool(c_dot, bias_dot, y_dot, code, (*code.shape[:2], *size), tangent_mode=True)
    return y_dot


def bias_pool_grads(
    dy: Tensor, bias: Tensor, code: Tensor, size: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a convolution's outputs of this size, and of their bias."""
    dc = _allocate((*code.shape[:2], *size), dy.dtype, dy)
    windows = code.shape[0] * triton.cdiv(size[0], 2) * triton.cdiv(size[1], 2)
    block_r, block_c = _choose_tile(dc, code.shape[1])
    span = _compute_span(windows, block_r, MAX_POOL_PROGRAMS)
    groups, dbias = triton.cdiv(windows, span), torch.empty_like(bias.contiguous())
    partials = torch.empty(groups, code.shape[1], device=dy.device)
    unpool_kernel[groups, triton.cdiv(code.shape[1], block_c)](
        _to_channels_last(dy), code, dc, partials, windows, span, *size,
        code.shape[1], dy.shape[1], block_r, block_c, num_warps=NUM_WARPS,
    )  # fmt: skip
    _sum_partials(partials, None, dbias)
    return dc, dbias


def _launch_conv_pool(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    code: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    *,
    tangent_mode: bool,
) -> Tensor:
    y, windows = _allocate(shape, dtype, x), shape[0] * shape[2] * shape[3]
    span = _compute_span(windows, BLOCK_M, MAX_CONV_PROGRAMS)
    conv_pool_kernel[triton.cdiv(windows, span), triton.cdiv(shape[1], CONV_BLOCK_C)](
        x.contiguous(), y, code, weight.contiguous(), None if bias is None else bias.contiguous(),
        windows, span, tangent_mode, **_make_conv_pool_args(x, weight, shape[1]),
    )  # fmt: skip
    return y


def _launch_pool(
    c: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    code: Tensor | None,
    shape: tuple[int, ...],
    *,
    tangent_mode: bool,
) -> None:
    windows, (block_r, block_c) = y.numel() // y.shape[1], _choose_tile(y, y.shape[1])
    pool_kernel[triton.cdiv(windows, block_r), triton.cdiv(y.shape[1], block_c)](
        None if c is None else _to_channels_last(c), y, code,
        None if bias is None else bias.contiguous(), windows, tangent_mode,
        *shape[2:], shape[1], y.shape[1], block_r, block_c, num_warps=NUM_WARPS,
    )  # fmt: skip


def _sum_partials(partials: Tensor, dweight: Tensor | None, dbias: Tensor) -> None:
    groups, channels = partials.shape[0], dbias.shape[0]
    kernel_size = (0, 0) if dweight is None else dweight.shape[2:]
    grid = (triton.cdiv(channels * (kernel_size[0] * kernel_size[1] + 1), BLOCK_E),)
    block_g = triton.next_power_of_2(groups)
    sum_partials_kernel[grid](
        partials, dweight, dbias, groups, *kernel_size, channels, block_g, BLOCK_E,
        num_warps=NUM_WARPS,
    )  # fmt: skip


def _make_conv_pool_args(x: Tensor, weight: Tensor, width: int) -> dict[str, int]:
    kernel_h, kernel_w = weight.shape[2:]
    return {
        "height": x.shape[2], "width": x.shape[3], "kernel_h": kernel_h, "kernel_w": kernel_w,
        "channels": weight.shape[0], "padded": width,
        "block_k": BLOCK_K, "block_m": BLOCK_M, "block_c": CONV_BLOCK_C, "num_warps": NUM_WARPS,
    }  # fmt: skip


def _compute_span(windows: int, block: int, programs: int) -> int:
    """Return the number of windows per program, so that there are at most `programs`."""
    return int(triton.cdiv(triton.cdiv(windows, block), programs) * block)


def _choose_tile(values: Tensor, channels: int) -> tuple[int, int]:
    block_c = min(BLOCK_C, triton.next_power_of_2(channels))
    return TILE_BYTES // values.element_size() // block_c, block_c


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _to_channels_last(values: Tensor) -> Tensor:
    return values.contiguous(memory_format=torch.channels_last)
