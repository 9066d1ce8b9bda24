"""FixMatch's RandAugment (Sohn et al., 2020) for batches, bit-identical to Pillow.

Magnitudes are from the ranges of FixMatch's paper (appendix) or from the levels of its code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import radians
from typing import Literal, NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.distributed import sample_integers, sample_uniform
from l2i.errors import InputError

Ranges = Literal["paper", "code"]


class MagnitudeRange(NamedTuple):
    """The range of an operation's magnitude, and the value that leaves an image unchanged."""

    low: float
    high: float
    neutral: float


ON_OFF = MagnitudeRange(1, 1, 0)  # nothing to draw: the operation is on or off
MAGNITUDE_RANGES: dict[str, MagnitudeRange] = {  # of FixMatch's paper
    "autocontrast": ON_OFF,
    "brightness": MagnitudeRange(0.05, 0.95, 1),
    "color": MagnitudeRange(0.05, 0.95, 1),
    "contrast": MagnitudeRange(0.05, 0.95, 1),
    "equalize": ON_OFF,
    "identity": ON_OFF,
    "posterize": MagnitudeRange(4, 9, 8),  # bits, rounded down: 4 to 8, equally often
    "rotate": MagnitudeRange(-30, 30, 0),  # degrees, counter-clockwise
    "sharpness": MagnitudeRange(0.05, 0.95, 1),
    "shear_x": MagnitudeRange(-0.3, 0.3, 0),
    "shear_y": MagnitudeRange(-0.3, 0.3, 0),
    "solarize": MagnitudeRange(0, 1, 1),  # threshold, of 256
    "translate_x": MagnitudeRange(-0.3, 0.3, 0),  # of the width, to the left
    "translate_y": MagnitudeRange(-0.3, 0.3, 0),
}
OPS: tuple[str, ...] = tuple(MAGNITUDE_RANGES)
Magnitudes = dict[str, Tensor]  # of each operation, [B]; neutral for samples of another one


def apply_randaugment(
    x: Tensor,
    layers: int,
    generator: Generator,
    *,
    probability: float = 0.5,
    fill: float = 127.0,
    ranges: Ranges = "paper",
) -> Tensor:
    """Apply `layers` random operations to each 8-bit image, each one with `probability`."""
    levels = make_levels(*x.shape[-2:], generator.device) if ranges == "code" else None
    op, magnitude = sample_ops((layers, len(x)), generator, probability, levels)
    if x.is_cuda and layers and not torch.cuda.is_current_stream_capturing():
        # a graph per stream owns its inputs
        stream = torch.cuda.current_stream(x.device).cuda_stream
        return _capture_graph(x.shape, layers, x.dtype, x.device, fill, stream)(x, op, magnitude)
    return apply_layers(x, op, magnitude, fill)


def sample_ops(
    shape: tuple[int, ...], generator: Generator, probability: float, levels: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sample operations uniformly, with the identity in place of skipped ones, and magnitudes.

    Those are from `levels` [ops, L], or else from the ranges of FixMatch's paper.
    """
    op = sample_integers(len(OPS), shape, generator, dim=len(shape) - 1)
    gate, position = sample_uniform((2, *shape), generator, dim=len(shape)).unbind()
    if levels is None:
        low, high, _ = _make_range_tensors(generator.device)
        magnitude = torch.lerp(low[op], high[op], position)
    else:
        magnitude = levels[op, (position * levels.shape[1]).long()]
    return op.masked_fill(gate >= probability, OPS.index("identity")), magnitude


@cache  # without bound: a captured step reads them
def make_levels(height: int, width: int, device: torch.device) -> Tensor:
    """Return the magnitudes [ops, 18] of levels 1 to 9 in FixMatch's code, then of the other sign.

    Only rotations, shears and translations have a sign.
    """
    level = torch.arange(1, 10, dtype=torch.float64)
    factor, shear = level * 1.8 / 10 + 0.1, level * 0.3 / 10
    magnitudes = {
        "brightness": factor,
        "color": factor,
        "contrast": factor,
        "posterize": 4 - (level * 4 / 10).floor(),
        "rotate": level * 3,
        "sharpness": factor,
        "shear_x": shear,
        "shear_y": shear,
        "solarize": 1 - (level * 256 / 10).floor() / 256,
        "translate_x": level / width,  # whole pixels
        "translate_y": level / height,
    }
    on = torch.ones_like(level)
    positive = torch.stack([magnitudes.get(op, on) for op in OPS])
    sign = torch.tensor([-1 if low < 0 else 1 for low, _, _ in MAGNITUDE_RANGES.values()])
    return torch.cat([positive, positive * sign.unsqueeze(1)], dim=1).to(device, torch.float32)


def apply_layers(x: Tensor, op: Tensor, magnitude: Tensor, fill: float) -> Tensor:
    """Apply the operations `op` [layers, B] at their magnitudes to each image."""
    for layer_op, layer_magnitude in zip(op, magnitude, strict=True):
        x = apply_op(x, layer_op, layer_magnitude, fill=fill)
    return x


@lru_cache(maxsize=8)
def _capture_graph(
    shape: tuple[int, ...],
    layers: int,
    dtype: torch.dtype,
    device: torch.device,
    fill: float,
    stream: int,
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Capture `apply_layers` for one shape: its small kernels take longer to launch than to run."""
    op = torch.zeros(layers, shape[0], device=device, dtype=torch.long)
    inputs = (torch.zeros(shape, device=device, dtype=dtype), op, op.float())
    apply_layers(*inputs, fill)  # makes the constants, which must outlive the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        output = apply_layers(*inputs, fill)

    def replay(*new_inputs: Tensor) -> Tensor:
        for buffer, value in zip(inputs, new_inputs, strict=True):
            buffer.copy_(value)
        graph.replay()
        return output.clone()

    return replay


def apply_op(x: Tensor, op: Tensor, magnitude: Tensor, *, fill: float = 127.0) -> Tensor:
    """Apply to each image its operation, an index into `OPS` [B], at its magnitude [B]."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        expected = f"images [B, 1 or 3, H, W], not {list(x.shape)}"
        raise InputError(f"RandAugment needs {expected}; use noise and cutout")
    is_chosen = op.unsqueeze(1) == torch.arange(len(OPS), device=x.device)  # [B, ops]
    neutral = _make_range_tensors(x.device)[2]
    magnitudes = torch.where(is_chosen, magnitude.float().unsqueeze(1), neutral)
    m = dict(zip(OPS, magnitudes.unbind(1), strict=True))
    pixels = x.to(torch.float32)
    grey = _compute_luminance(pixels)
    # a sample has one operation and passes the others unchanged, so their order does not matter
    return _warp(_apply_tone(_blend(pixels, grey, m), grey, m), m, fill).to(x.dtype)


@cache  # without bound: a captured graph reads them
def _make_range_tensors(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return low, high and neutral magnitudes [ops]; cached, as copying waits for the device."""
    low, high, neutral = torch.tensor(list(MAGNITUDE_RANGES.values()), device=device).unbind(1)
    return low, high, neutral


def _compute_luminance(pixels: Tensor) -> Tensor:
    """Convert to grey [B, 1, H, W] as Pillow; its fixed-point numbers are below 2²⁴, so exact."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.unbind(1)
    total = (red * 19595 + 32768).add(green, alpha=38470).add(blue, alpha=7471)
    return (total / 65536).floor().unsqueeze(1)


def _blend(pixels: Tensor, grey: Tensor, m: Magnitudes) -> Tensor:
    """Apply color and sharpness: blend an image with its grey or smooth version."""
    color, sharpness = m["color"].view(-1, 1, 1, 1), m["sharpness"].view(-1, 1, 1, 1)
    base = torch.where(color != 1, grey, _smooth(pixels))
    # factors above 1 extrapolate, which Pillow clips
    return (base + color * sharpness * (pixels - base)).clamp(0, 255).floor()


def _smooth(pixels: Tensor) -> Tensor:
    """Apply Pillow's SMOOTH: a 3x3 mean with five times the centre; the border stays."""
    inner = pixels[..., 1:-1, 1:-1]
    total = F.avg_pool2d(pixels, 3, stride=1, divisor_override=1).add(inner, alpha=4)
    result = pixels.clone()
    result[..., 1:-1, 1:-1] = (total / 13 + 0.5).floor()
    return result


def _apply_tone(pixels: Tensor, grey: Tensor, m: Magnitudes) -> Tensor:
    """Apply the operations on grey levels by one table of 256 entries per sample and channel."""
    flat = pixels.flatten(2)
    index = flat.long()
    low, high = flat.aminmax(dim=2, keepdim=True)
    tables = _make_shared_tables(grey, m).unsqueeze(1)
    tables = _stretch_contrast(tables, low, high, m["autocontrast"])
    tables = _equalize(tables, index, high, m["equalize"])
    return tables.gather(2, index).view_as(pixels)


def _make_shared_tables(grey: Tensor, m: Magnitudes) -> Tensor:
    """Make tables [B, 256] of posterize, solarize, brightness and contrast for all channels."""
    levels = torch.arange(256, device=grey.device, dtype=torch.int32)
    dropped_bits = (8 - m["posterize"].to(torch.int32).clamp(max=8)).unsqueeze(1)
    table = (levels >> dropped_bits) << dropped_bits
    table = torch.where(table < 256 * m["solarize"].unsqueeze(1), table, 255 - table)
    table = (table * m["brightness"].unsqueeze(1)).floor()  # may exceed 255 till the end
    count = grey[0].numel()
    total = grey.sum((1, 2, 3), dtype=torch.int32).unsqueeze(1)
    mean = (2 * total + count) // (2 * count)  # rounded half up
    return (mean + m["contrast"].unsqueeze(1) * (table - mean)).clamp(0, 255).floor()


def _stretch_contrast(tables: Tensor, low: Tensor, high: Tensor, enabled: Tensor) -> Tensor:
    """Autocontrast: spread the levels from darkest to lightest over all, [B, C, 256]."""
    # float64: Pillow's rounding shows in whole results
    levels = torch.arange(256, device=low.device, dtype=torch.float64)
    span = (high - low).double()
    scale = torch.full_like(span, 255) / span  # `255 / span` would be a product with the reciprocal
    stretched = (levels * scale - low * scale).clamp(0, 255).floor().float()
    return torch.where((enabled.view(-1, 1, 1) > 0) & (high > low), stretched, tables)


def _equalize(tables: Tensor, index: Tensor, high: Tensor, enabled: Tensor) -> Tensor:
    """Equalize: map each level by how many pixels are darker, [B, C, 256]."""
    counts = torch.zeros(*index.shape[:2], 256, device=index.device, dtype=torch.int32)
    counts.scatter_add_(2, index, counts.new_ones(()).expand_as(index))
    darker = counts.cumsum(2, dtype=torch.int32) - counts
    step = (index.shape[2] - counts.gather(2, high.long())) // 255
    equalized = ((darker + step // 2) // step.clamp(min=1)).clamp(max=255).float()
    return torch.where((enabled.view(-1, 1, 1) > 0) & (step > 0), equalized, tables)


def _warp(pixels: Tensor, m: Magnitudes, fill: float) -> Tensor:
    """Rotate, shear and translate: take each pixel from where its centre maps to, or `fill`."""
    height, width = pixels.shape[2:]
    terms, rows, columns, last = _make_affine_grid(height, width, pixels.device)
    angle = m["rotate"].double() * radians(-1)
    right = (m["translate_x"].double() * width + 0.5).floor()
    down = (m["translate_y"].double() * height + 0.5).floor()
    rotation = (torch.ones_like(angle), angle.cos(), angle.sin())
    factors = torch.stack((*rotation, m["shear_x"], m["shear_y"], right, down), dim=1)
    affine = (factors.unsqueeze(2) * terms).sum(1).floor().to(torch.int32)  # [B, 6], in 1/65536
    by_column, by_row, start = affine.view(-1, 2, 3, 1, 1).unbind(2)
    source = ((start + by_row * rows) + by_column * columns) >> 16  # [B, 2, H, W], x and y
    clamped = source.clamp(torch.zeros_like(last), last)
    is_outside = (clamped != source).any(dim=1, keepdim=True)
    x, y = clamped.unbind(1)
    index = x.add(y, alpha=width).long().flatten(1).unsqueeze(1)  # [B, 1, H W]
    moved = pixels.flatten(2).gather(2, index.expand(-1, pixels.shape[1], -1))
    return moved.view_as(pixels).masked_fill(is_outside, int(fill))


@cache
def _make_affine_grid(
    height: int, width: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the terms of Pillow's affine map in 1/65536, row and column grids, the last pixel."""
    x, y = width / 2, height / 2  # the centre of rotations; shears leave the corner where it is
    terms = [  # source x by column, by row and at the first centre; source y likewise
        [0, 0, x, 0, 0, y],  # always
        [1, 0, 0.5 - x, 0, 1, 0.5 - y],  # cosine
        [0, 1, 0.5 - y, -1, 0, x - 0.5],  # sine
        [0, 1, 0.5, 0, 0, 0],  # shear_x
        [0, 0, 0, 1, 0, 0.5],  # shear_y
        [0, 0, 1, 0, 0, 0],  # translate_x
        [0, 0, 0, 0, 0, 1],  # translate_y
    ]
    scaled = torch.tensor(terms, dtype=torch.float64) * 65536
    scaled[0] += 0.5  # what is then floored is rounded
    rows = torch.arange(height, dtype=torch.int32, device=device).view(-1, 1)
    columns = torch.arange(width, dtype=torch.int32, device=device)
    last = torch.tensor([width - 1, height - 1], dtype=torch.int32, device=device).view(2, 1, 1)
    return scaled.to(device), rows, columns, last
