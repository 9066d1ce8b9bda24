"""RandAugment as FixMatch has it (Sohn et al., 2020, appendix), for whole batches, equal to Pillow's pixel by pixel."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import radians
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.data.sampling import sample_integers, sample_uniform
from l2i.errors import InputError


class MagnitudeRange(NamedTuple):
    """Where an operation's magnitude is drawn from, and the one at which it leaves an image as it is."""

    low: float
    high: float
    neutral: float


ON_OFF = MagnitudeRange(1, 1, 0)  # nothing to draw: the operation is on or off
MAGNITUDE_RANGES: dict[str, MagnitudeRange] = {
    "autocontrast": ON_OFF,
    "brightness": MagnitudeRange(0.05, 0.95, 1),
    "color": MagnitudeRange(0.05, 0.95, 1),
    "contrast": MagnitudeRange(0.05, 0.95, 1),
    "equalize": ON_OFF,
    "identity": ON_OFF,
    "posterize": MagnitudeRange(4, 9, 8),  # bits, of which the whole part counts: 4 to 8, each as often
    "rotate": MagnitudeRange(-30, 30, 0),  # degrees, counter-clockwise
    "sharpness": MagnitudeRange(0.05, 0.95, 1),
    "shear_x": MagnitudeRange(-0.3, 0.3, 0),
    "shear_y": MagnitudeRange(-0.3, 0.3, 0),
    "solarize": MagnitudeRange(0, 1, 1),  # threshold, of 256
    "translate_x": MagnitudeRange(-0.3, 0.3, 0),  # of the width; what is to the right moves left
    "translate_y": MagnitudeRange(-0.3, 0.3, 0),
}
OPS: tuple[str, ...] = tuple(MAGNITUDE_RANGES)
IDENTITY_OP = OPS.index("identity")

Magnitudes = dict[str, Tensor]  # of each operation, [B]; neutral for the samples that have another


def apply_randaugment(
    x: Tensor, layers: int, generator: Generator, *, probability: float = 0.5, fill: float = 127.0
) -> Tensor:
    """Each image of grey levels 0 to 255 after `layers` operations of its own, each done with `probability`."""
    op, magnitude = sample_ops((layers, len(x)), generator, probability)
    if x.is_cuda and layers and not torch.cuda.is_current_stream_capturing():
        stream = torch.cuda.current_stream(x.device).cuda_stream  # a graph's inputs are its own: one for each stream
        return _capture_graph(x.shape, layers, x.dtype, x.device, fill, stream)(x, op, magnitude)
    return apply_layers(x, op, magnitude, fill)


def sample_ops(shape: tuple[int, ...], generator: Generator, probability: float) -> tuple[Tensor, Tensor]:
    """Operations, all as likely but for the identity, which stands in for those not done, and their magnitudes."""
    device = generator.device
    op = sample_integers(len(OPS), shape, generator, dim=len(shape) - 1)
    gate, position = sample_uniform((2, *shape), generator, dim=len(shape)).unbind()
    low, high, _ = _make_range_tensors(device)
    magnitude = torch.lerp(low[op], high[op], position)
    return op.masked_fill(gate >= probability, IDENTITY_OP), magnitude


def apply_layers(x: Tensor, op: Tensor, magnitude: Tensor, fill: float) -> Tensor:
    """Each image after all of its operations, [layers, B]."""
    for layer in range(len(op)):
        x = apply_op(x, op[layer], magnitude[layer], fill=fill)
    return x


@lru_cache(maxsize=8)
def _capture_graph(
    shape: tuple[int, ...], layers: int, dtype: torch.dtype, device: torch.device, fill: float, stream: int
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """`in_turn` as a CUDA graph for batches of one shape: its many small kernels take longer to launch than to run."""
    op = torch.zeros(layers, shape[0], device=device, dtype=torch.long)
    inputs = (torch.zeros(shape, device=device, dtype=dtype), op, op.float())
    apply_layers(*inputs, fill)  # makes the constants, which must outlive the recording
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
    """Each image after its operation, an index into `OPS` [B], at its magnitude [B]; `fill` comes in at the edges."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        raise InputError(f"RandAugment is for images [B, 1 or 3, H, W], not {list(x.shape)}; use noise and cutout")
    is_chosen = op.unsqueeze(1) == torch.arange(len(OPS), device=x.device)  # [B, ops]
    magnitudes = torch.where(is_chosen, magnitude.float().unsqueeze(1), _make_range_tensors(x.device)[2])
    m = dict(zip(OPS, magnitudes.unbind(1), strict=True))
    pixels = x.to(torch.float32)
    grey = compute_luminance(pixels)
    # a sample has one operation and passes the others unchanged, so their order does not matter
    return warp(apply_tone(blend(pixels, grey, m), grey, m), m, fill).to(x.dtype)


@cache  # without bound: a recorded graph reads them
def _make_range_tensors(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Lows, highs and neutral magnitudes, [ops]; made once, as a copy to the device waits for it."""
    low, high, neutral = torch.tensor(list(MAGNITUDE_RANGES.values()), device=device).unbind(1)
    return low, high, neutral


def compute_luminance(pixels: Tensor) -> Tensor:
    """Pillow's conversion to grey, [B, 1, H, W]; all of its fixed-point numbers are whole and below 2²⁴, so exact."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.unbind(1)
    total = (red * 19595 + 32768).add(green, alpha=38470).add(blue, alpha=7471)
    return (total / 65536).floor().unsqueeze(1)


def blend(pixels: Tensor, grey: Tensor, m: Magnitudes) -> Tensor:
    """Color and sharpness: how much is left of an image between it and its grey or its smooth version."""
    color, sharpness = m["color"].view(-1, 1, 1, 1), m["sharpness"].view(-1, 1, 1, 1)
    base = torch.where(color < 1, grey, smooth(pixels))
    return (base + color * sharpness * (pixels - base)).floor()


def smooth(pixels: Tensor) -> Tensor:
    """Pillow's SMOOTH: a 3x3 mean in which the centre counts five times; the border stays."""
    inner = pixels[..., 1:-1, 1:-1]
    total = F.avg_pool2d(pixels, 3, stride=1, divisor_override=1).add(inner, alpha=4)
    result = pixels.clone()
    result[..., 1:-1, 1:-1] = (total / 13 + 0.5).floor()
    return result


def apply_tone(pixels: Tensor, grey: Tensor, m: Magnitudes) -> Tensor:
    """The operations on grey levels alone, by one table of 256 entries for each sample and channel."""
    flat = pixels.flatten(2)
    index = flat.long()
    low, high = flat.aminmax(dim=2, keepdim=True)
    tables = _stretch_contrast(_make_shared_tables(grey, m).unsqueeze(1), low, high, m["autocontrast"])
    tables = _equalize(tables, index, high, m["equalize"])
    return tables.gather(2, index).view_as(pixels)


def _make_shared_tables(grey: Tensor, m: Magnitudes) -> Tensor:
    """Posterize, solarize, brightness and contrast, the same for all channels, [B, 256]."""
    levels = torch.arange(256, device=grey.device, dtype=torch.int32)
    dropped_bits = (8 - m["posterize"].to(torch.int32).clamp(max=8)).unsqueeze(1)
    table = (levels >> dropped_bits) << dropped_bits
    table = torch.where(table < 256 * m["solarize"].unsqueeze(1), table, 255 - table)
    table = (table * m["brightness"].unsqueeze(1)).floor()
    count = grey[0].numel()
    total = grey.sum((1, 2, 3), dtype=torch.int32).unsqueeze(1)
    mean = (2 * total + count) // (2 * count)  # rounded half up
    return (mean + m["contrast"].unsqueeze(1) * (table - mean)).floor()


def _stretch_contrast(tables: Tensor, low: Tensor, high: Tensor, enabled: Tensor) -> Tensor:
    """Autocontrast: the levels between the darkest and the lightest spread over all, [B, C, 256]."""
    levels = torch.arange(256, device=low.device, dtype=torch.float64)  # Pillow's rounding shows in whole results
    span = (high - low).double()
    scale = torch.full_like(span, 255) / span  # `255 / span` would be a product with the reciprocal
    stretched = (levels * scale - low * scale).clamp(0, 255).floor().float()
    return torch.where((enabled.view(-1, 1, 1) > 0) & (high > low), stretched, tables)


def _equalize(tables: Tensor, index: Tensor, high: Tensor, enabled: Tensor) -> Tensor:
    """Equalize: each level by how many pixels are darker, [B, C, 256]."""
    counts = torch.zeros(*index.shape[:2], 256, device=index.device, dtype=torch.int32)
    counts.scatter_add_(2, index, counts.new_ones(()).expand_as(index))
    darker = counts.cumsum(2, dtype=torch.int32) - counts
    step = (index.shape[2] - counts.gather(2, high.long())) // 255
    equalized = ((darker + step // 2) // step.clamp(min=1)).clamp(max=255).float()
    return torch.where((enabled.view(-1, 1, 1) > 0) & (step > 0), equalized, tables)


def warp(pixels: Tensor, m: Magnitudes, fill: float) -> Tensor:
    """Rotations, shears and translations: each pixel from the one its centre is mapped into, or `fill` from outside."""
    height, width = pixels.shape[2:]
    terms, rows, columns, last = _make_affine_grid(height, width, pixels.device)
    angle = m["rotate"].double() * radians(-1)
    right = (m["translate_x"].double() * width + 0.5).floor()
    down = (m["translate_y"].double() * height + 0.5).floor()
    factors = (torch.ones_like(angle), angle.cos(), angle.sin(), m["shear_x"], m["shear_y"], right, down)
    affine = (torch.stack(factors, dim=1).unsqueeze(2) * terms).sum(1).floor().to(torch.int32)  # [B, 6], of 1/65536
    by_column, by_row, start = affine.view(-1, 2, 3, 1, 1).unbind(2)
    source = ((start + by_row * rows) + by_column * columns) >> 16  # [B, 2, H, W], of which x and y
    clamped = source.clamp(torch.zeros_like(last), last)
    is_outside = (clamped != source).any(dim=1, keepdim=True)
    x, y = clamped.unbind(1)
    index = x.add(y, alpha=width).long().flatten(1).unsqueeze(1)  # [B, 1, H W]
    moved = pixels.flatten(2).gather(2, index.expand(-1, pixels.shape[1], -1))
    return moved.view_as(pixels).masked_fill(is_outside, int(fill))


@cache
def _make_affine_grid(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The terms of Pillow's affine map, in 1/65536, rows and columns to put in it, and the last pixel."""
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
