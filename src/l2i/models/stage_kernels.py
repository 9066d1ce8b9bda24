"""Stages of a convolution, 2×2 max pooling and hardtanh in Triton kernels, on channels_last rows [N·H·W, C].

A code a pooled value, 0 to 3 for its place in the window and 4 where it was clamped, is all that derivatives need.
Programs that reduce leave partials, which a last kernel adds up: no atomics, so that results repeat bit by bit.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

import triton
import triton.language as tl


@triton.jit
def _window(at, pooled_h: tl.constexpr, pooled_w: tl.constexpr):
    """Image, row and column, in the dense picture, of the first place of a window."""
    return at // (pooled_w * pooled_h), at // pooled_w % pooled_h * 2, at % pooled_w * 2


@triton.jit
def _patches(
    x, start, windows, height: tl.constexpr, width: tl.constexpr, kernel_h: tl.constexpr, kernel_w: tl.constexpr,
    block_k: tl.constexpr, block_m: tl.constexpr,
):  # fmt: skip
    """What the four places of each window see, [block_k, block_m], and a row of ones: its products add up biases."""
    at = start + tl.arange(0, block_m)
    image, row, col = _window(at, (height - kernel_h + 1) // 2, (width - kernel_w + 1) // 2)
    tap = tl.arange(0, block_k)
    taps: tl.constexpr = (kernel_h + 1) * (kernel_w + 1)
    near = tap // (kernel_w + 1) * width + tap % (kernel_w + 1)
    there = (tap < taps)[:, None] & (at < windows)[None, :]
    values = tl.load(x + near[:, None] + ((image * height + row) * width + col)[None, :], mask=there, other=0.0)
    return tl.where((tap == taps)[:, None], 1.0, values.to(tl.float32))


@triton.jit
def _filter(
    weight, cols, channels: tl.constexpr, row: tl.constexpr, col: tl.constexpr,
    kernel_h: tl.constexpr, kernel_w: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """The weights for one place of the windows, [block_k, C]: zero for what this place does not see."""
    tap = tl.arange(0, block_k)
    i = tap // (kernel_w + 1) - row
    j = tap % (kernel_w + 1) - col
    sees = (i >= 0) & (i < kernel_h) & (j >= 0) & (j < kernel_w)
    at = cols[None, :] * (kernel_h * kernel_w) + (i * kernel_w + j)[:, None]
    return tl.load(weight + at, mask=sees[:, None] & (cols < channels)[None, :], other=0.0)


@triton.jit
def _largest(v0, v1, v2, v3):
    """The first of the largest, or the last that is no number, as PyTorch pools; and its place."""
    best = v0
    place = tl.zeros(v0.shape, tl.int32)
    later = (v1 > best) | (v1 != v1)
    best, place = tl.where(later, v1, best), tl.where(later, 1, place)
    later = (v2 > best) | (v2 != v2)
    best, place = tl.where(later, v2, best), tl.where(later, 2, place)
    later = (v3 > best) | (v3 != v3)
    return tl.where(later, v3, best), tl.where(later, 3, place)


@triton.jit
def _chosen(v0, v1, v2, v3, b, place):
    """The value at a place, with the bias; none for a code of 4."""
    value = tl.where(place == 0, v0, 0.0) + tl.where(place == 1, v1, 0.0)
    value += tl.where(place == 2, v2, 0.0) + tl.where(place == 3, v3, 0.0)
    return tl.where(place < 4, value + b, 0.0)


@triton.jit
def _squash(y, code, v0, v1, v2, v3, b, at, cols, there, channels: tl.constexpr, filled: tl.constexpr):
    """Pool, squash and store, with the code where it is to be kept."""
    best, place = _largest(v0, v1, v2, v3)
    value = best + b[None, :]
    high, low = value >= 1.0, value <= -1.0
    squashed = tl.where(high, 1.0, tl.where(low, -1.0, value))
    tl.store(y + at[:, None] * filled + cols[None, :], squashed.to(y.dtype.element_ty), mask=there)
    if code is not None:
        kept = tl.where(high | low, 4, place).to(tl.uint8)
        tl.store(code + at[:, None] * channels + cols[None, :], kept, mask=there & (cols < channels)[None, :])


@triton.jit
def first_kernel(
    x, y, code, weight, bias, windows, span, follows: tl.constexpr,
    height: tl.constexpr, width: tl.constexpr, kernel_h: tl.constexpr, kernel_w: tl.constexpr,
    channels: tl.constexpr, filled: tl.constexpr,
    block_k: tl.constexpr, block_m: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """A stage on a span of windows; where it follows a code, the tangent: weight and bias are then tangents too."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    dtype = y.dtype.element_ty
    w0 = _filter(weight, cols, channels, 0, 0, kernel_h, kernel_w, block_k).to(dtype)
    w1 = _filter(weight, cols, channels, 0, 1, kernel_h, kernel_w, block_k).to(dtype)
    w2 = _filter(weight, cols, channels, 1, 0, kernel_h, kernel_w, block_k).to(dtype)
    w3 = _filter(weight, cols, channels, 1, 1, kernel_h, kernel_w, block_k).to(dtype)
    b = tl.zeros([block_c], tl.float32)
    if bias is not None:
        b += tl.load(bias + cols, mask=cols < channels, other=0.0).to(tl.float32)
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, windows), block_m, num_stages=1):
        seen = tl.trans(_patches(x, start, windows, height, width, kernel_h, kernel_w, block_k, block_m).to(dtype))
        v0, v1, v2, v3 = tl.dot(seen, w0), tl.dot(seen, w1), tl.dot(seen, w2), tl.dot(seen, w3)
        at = start + tl.arange(0, block_m)
        there = (at < windows)[:, None] & (cols < filled)[None, :]
        if follows:
            held = there & (cols < channels)[None, :]
            place = tl.load(code + at[:, None] * channels + cols[None, :], mask=held, other=4)
            value = _chosen(v0, v1, v2, v3, b[None, :], place)
            tl.store(y + at[:, None] * filled + cols[None, :], value.to(dtype), mask=there)
        else:
            _squash(y, code, v0, v1, v2, v3, b, at, cols, there, channels, filled)


@triton.jit
def first_gradients_kernel(
    x, dy, code, partials, windows, span,
    height: tl.constexpr, width: tl.constexpr, kernel_h: tl.constexpr, kernel_w: tl.constexpr,
    channels: tl.constexpr, filled: tl.constexpr,
    block_k: tl.constexpr, block_m: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """What the four places of a span of windows add to the gradients of what they see, [4, taps + 1, C]."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    dtype = dy.dtype.element_ty
    a0 = tl.zeros([block_k, block_c], tl.float32)
    a1 = tl.zeros([block_k, block_c], tl.float32)
    a2 = tl.zeros([block_k, block_c], tl.float32)
    a3 = tl.zeros([block_k, block_c], tl.float32)
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, windows), block_m, num_stages=1):
        seen = _patches(x, start, windows, height, width, kernel_h, kernel_w, block_k, block_m).to(dtype)
        at = start + tl.arange(0, block_m)
        there = (at < windows)[:, None] & (cols < channels)[None, :]
        d = tl.load(dy + at[:, None] * filled + cols[None, :], mask=there, other=0.0)
        place = tl.load(code + at[:, None] * channels + cols[None, :], mask=there, other=4)
        a0 = tl.dot(seen, tl.where(place == 0, d, 0.0).to(dtype), a0)
        a1 = tl.dot(seen, tl.where(place == 1, d, 0.0).to(dtype), a1)
        a2 = tl.dot(seen, tl.where(place == 2, d, 0.0).to(dtype), a2)
        a3 = tl.dot(seen, tl.where(place == 3, d, 0.0).to(dtype), a3)
    tap = tl.arange(0, block_k)
    rows: tl.constexpr = (kernel_h + 1) * (kernel_w + 1) + 1
    to = partials + tl.program_id(0) * (4 * rows * channels) + tap[:, None] * channels + cols[None, :]
    there = (tap < rows)[:, None] & (cols < channels)[None, :]
    tl.store(to, a0, mask=there)
    tl.store(to + rows * channels, a1, mask=there)
    tl.store(to + 2 * rows * channels, a2, mask=there)
    tl.store(to + 3 * rows * channels, a3, mask=there)


@triton.jit
def pool_kernel(
    c, y, code, bias, windows, follows: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
    channels: tl.constexpr, filled: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Bias, pooling and squashing; where it follows a code, the tangent: c and bias are then tangents too."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    at = tl.program_id(0) * block_r + tl.arange(0, block_r)
    there = (at < windows)[:, None] & (cols < filled)[None, :]
    held = there & (cols < channels)[None, :]
    b = tl.zeros([block_c], tl.float32)
    if bias is not None:
        b += tl.load(bias + cols, mask=cols < channels, other=0.0).to(tl.float32)
    v0 = tl.zeros([block_r, block_c], tl.float32)
    v1, v2, v3 = v0, v0, v0
    if c is not None:
        image, row, col = _window(at, height // 2, width // 2)
        near = c + ((image * height + row) * width + col)[:, None] * channels + cols[None, :]
        v0 = tl.load(near, mask=held, other=0.0).to(tl.float32)
        v1 = tl.load(near + channels, mask=held, other=0.0).to(tl.float32)
        v2 = tl.load(near + width * channels, mask=held, other=0.0).to(tl.float32)
        v3 = tl.load(near + (width + 1) * channels, mask=held, other=0.0).to(tl.float32)
    if follows:
        place = tl.load(code + at[:, None] * channels + cols[None, :], mask=held, other=4)
        value = _chosen(v0, v1, v2, v3, b[None, :], place)
        tl.store(y + at[:, None] * filled + cols[None, :], value.to(y.dtype.element_ty), mask=there)
    else:
        _squash(y, code, v0, v1, v2, v3, b, at, cols, there, channels, filled)


@triton.jit
def spread_kernel(
    dy, code, dc, partials, windows, span, height: tl.constexpr, width: tl.constexpr,
    channels: tl.constexpr, filled: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    """Gradients at their places and zeros elsewhere, also in windows that stand out over the border; and their sums."""
    cols = tl.program_id(1) * block_c + tl.arange(0, block_c)
    total = tl.zeros([block_r, block_c], tl.float32)
    pooled_h: tl.constexpr = height // 2
    pooled_w: tl.constexpr = width // 2
    first = tl.program_id(0) * span
    for start in tl.range(first, tl.minimum(first + span, windows), block_r, num_stages=1):
        at = start + tl.arange(0, block_r)
        image, row, col = _window(at, (height + 1) // 2, (width + 1) // 2)
        real = (at < windows)[:, None] & (cols < channels)[None, :]
        held = real & ((row + 1 < height) & (col + 1 < width))[:, None]
        pooled = (image * pooled_h + row // 2) * pooled_w + col // 2
        d = tl.load(dy + pooled[:, None] * filled + cols[None, :], mask=held, other=0.0)
        place = tl.load(code + pooled[:, None] * channels + cols[None, :], mask=held, other=4)
        total += tl.where(place < 4, d.to(tl.float32), 0.0)
        near = dc + ((image * height + row) * width + col)[:, None] * channels + cols[None, :]
        right, below = real & (col + 1 < width)[:, None], real & (row + 1 < height)[:, None]
        tl.store(near, tl.where(place == 0, d, 0.0).to(dc.dtype.element_ty), mask=real)
        tl.store(near + channels, tl.where(place == 1, d, 0.0).to(dc.dtype.element_ty), mask=right)
        tl.store(near + width * channels, tl.where(place == 2, d, 0.0).to(dc.dtype.element_ty), mask=below)
        tl.store(
            near + (width + 1) * channels, tl.where(place == 3, d, 0.0).to(dc.dtype.element_ty), mask=right & below
        )  # fmt: skip
    tl.store(partials + tl.program_id(0) * channels + cols, tl.sum(total, 0), mask=cols < channels)


@triton.jit
def total_kernel(
    partials, dweight, dbias, groups, kernel_h: tl.constexpr, kernel_w: tl.constexpr, channels: tl.constexpr,
    block_g: tl.constexpr, block_e: tl.constexpr,
):  # fmt: skip
    """Partials added up; those of `first_gradients_kernel` over the four places too, each seeing its own part."""
    e = tl.program_id(0) * block_e + tl.arange(0, block_e)
    group = tl.arange(0, block_g)
    col, tap = e % channels, e // channels
    total = tl.zeros([block_g, block_e], tl.float32)
    if dweight is not None:
        kernel: tl.constexpr = kernel_h * kernel_w
        rows: tl.constexpr = (kernel_h + 1) * (kernel_w + 1) + 1
        there = (group < groups)[:, None] & (tap <= kernel)[None, :]
        for place in tl.static_range(4):
            seen = (tap // kernel_w + place // 2) * (kernel_w + 1) + tap % kernel_w + place % 2
            at = (place * rows + tl.where(tap < kernel, seen, rows - 1)) * channels + col
            total += tl.load(partials + group[:, None] * (4 * rows * channels) + at[None, :], mask=there, other=0.0)
        whole = tl.sum(total, 0)
        tl.store(dweight + col * kernel + tap, whole.to(dweight.dtype.element_ty), mask=tap < kernel)
        tl.store(dbias + col, whole.to(dbias.dtype.element_ty), mask=tap == kernel)
    else:
        there = (group < groups)[:, None] & (tap < 1)[None, :]
        total += tl.load(partials + group[:, None] * channels + col[None, :], mask=there, other=0.0)
        tl.store(dbias + col, tl.sum(total, 0).to(dbias.dtype.element_ty), mask=tap < 1)
