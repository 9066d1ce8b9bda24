from collections.abc import Callable
from functools import cache, partial
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from sklearn.datasets import load_sample_images

from l2i.data.transforms.randaugment import (
    MAGNITUDE_RANGES,
    OPS,
    Ranges,
    apply_layers,
    apply_op,
    apply_randaugment,
    make_levels,
    sample_ops,
)
from l2i.errors import InputError

SIZES = [(32, 32), (28, 36)]
FILL = 127
LEVELS = list(product((1, -1), range(1, 10)))  # signs and levels of FixMatch's code


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def to_tensor(images: list[Image.Image]) -> torch.Tensor:
    arrays = [np.array(image).reshape(image.height, image.width, -1) for image in images]
    return torch.tensor(np.stack(arrays)).permute(0, 3, 1, 2).float()


@cache
def photographs() -> list[np.ndarray]:
    return list(load_sample_images().images)


@cache
def patches(height: int = 32, width: int = 32, mode: str = "RGB") -> list[Image.Image]:
    """12 patches from all over each of two photographs."""
    return [
        Image.fromarray(photo[top : top + height, left : left + width].copy()).convert(mode)
        for photo in photographs()
        for top in (10, 180, 350)
        for left in (20, 190, 360, 530)
    ]


def extremes() -> list[Image.Image]:
    """Images without contrast, of the darkest and lightest levels, and of all."""
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    halves = np.where(ramp < 128, 0, 255).astype(np.uint8)
    images = [Image.fromarray(np.full((16, 16), level, np.uint8)) for level in (0, 127, 255)]
    return images + [Image.fromarray(grey) for grey in (ramp, halves, ramp // 2 + 40)]


def fill_of(image: Image.Image) -> int | tuple[int, ...]:
    return FILL if image.mode == "L" else (FILL,) * 3


def transform(image: Image.Image, *map_: float) -> Image.Image:
    nearest = Image.Resampling.NEAREST
    return image.transform(
        image.size, Image.Transform.AFFINE, map_, nearest, fillcolor=fill_of(image)
    )


def pillow(image: Image.Image, op: str, magnitude: float) -> Image.Image:
    """The operation as FixMatch's reference code calls it, except for the fill colour."""
    affine = partial(transform, image)
    calls = {
        "autocontrast": partial(ImageOps.autocontrast, image),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(magnitude),
        "color": lambda: ImageEnhance.Color(image).enhance(magnitude),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(magnitude),
        "equalize": partial(ImageOps.equalize, image),
        "identity": image.copy,
        "posterize": lambda: ImageOps.posterize(image, int(magnitude)),
        "rotate": lambda: image.rotate(magnitude, fillcolor=fill_of(image)),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(magnitude),
        "shear_x": lambda: affine(1, magnitude, 0, 0, 1, 0),
        "shear_y": lambda: affine(1, 0, 0, magnitude, 1, 0),
        "solarize": lambda: ImageOps.solarize(image, magnitude * 256),  # type: ignore[arg-type]
        "translate_x": lambda: affine(1, 0, magnitude * image.width, 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, magnitude * image.height),
    }
    return calls[op]()


def fixmatch(image: Image.Image, op: str, sign: int, level: int) -> Image.Image:
    """The operation at a level of FixMatch's code, except for the fill colour."""
    factor = float(level) * 1.8 / 10 + 0.1
    pixels, shear = sign * int(level * 10 / 10), sign * (float(level) * 0.3 / 10)
    calls = {
        "autocontrast": partial(ImageOps.autocontrast, image),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(factor),
        "color": lambda: ImageEnhance.Color(image).enhance(factor),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(factor),
        "equalize": partial(ImageOps.equalize, image),
        "identity": image.copy,
        "posterize": lambda: ImageOps.posterize(image, 4 - int(level * 4 / 10)),
        "rotate": lambda: image.rotate(sign * int(level * 30 / 10), fillcolor=fill_of(image)),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(factor),
        "shear_x": lambda: transform(image, 1, shear, 0, 0, 1, 0),
        "shear_y": lambda: transform(image, 1, 0, 0, shear, 1, 0),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(level * 256 / 10)),
        "translate_x": lambda: transform(image, 1, 0, pixels, 0, 1, 0),
        "translate_y": lambda: transform(image, 1, 0, 0, 0, 1, pixels),
    }
    return calls[op]()


def magnitudes(op: str) -> list[float]:
    """Over the range with both of its ends, as float32 has them."""
    low, high, _ = MAGNITUDE_RANGES[op]
    if op == "posterize":
        return [4.0, 5.0, 6.0, 7.0, 8.0]
    drawn = torch.rand(6, generator=generator()) * (high - low) + low
    return [*torch.linspace(low, high, 7).tolist(), *drawn.tolist()] if high > low else [low]


def apply_to_all(x: torch.Tensor, op: str, magnitude: float) -> torch.Tensor:
    return apply_op(
        x, torch.full((len(x),), OPS.index(op)), torch.full((len(x),), magnitude), fill=FILL
    )


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", OPS)
def test_every_operation_equals_pillows_pixel_by_pixel(
    op: str, size: tuple[int, int], mode: str
) -> None:
    images = patches(*size, mode)
    for magnitude in magnitudes(op):
        expected = to_tensor([pillow(image, op, magnitude) for image in images])
        assert torch.equal(apply_to_all(to_tensor(images), op, magnitude), expected), magnitude


@pytest.mark.parametrize("op", OPS)
def test_images_without_contrast_and_of_extremes_equal_pillows_too(op: str) -> None:
    images = extremes()
    for magnitude in magnitudes(op):
        expected = to_tensor([pillow(image, op, magnitude) for image in images])
        assert torch.equal(apply_to_all(to_tensor(images), op, magnitude), expected), magnitude


@pytest.mark.parametrize(
    "images",
    [partial(patches, *size, mode) for size in SIZES for mode in ("RGB", "L")] + [extremes],
)
@pytest.mark.parametrize("op", OPS)
def test_every_level_of_every_operation_equals_fixmatchs_codes(
    op: str, images: Callable[[], list[Image.Image]]
) -> None:
    x = to_tensor(images())
    drawn = make_levels(*x.shape[2:], x.device)[OPS.index(op)].tolist()
    for (sign, level), magnitude in zip(LEVELS, drawn, strict=True):
        expected = to_tensor([fixmatch(image, op, sign, level) for image in images()])
        assert torch.equal(apply_to_all(x, op, magnitude), expected), (sign, level)


def test_views_of_the_codes_ranges_are_all_that_fixmatchs_code_can_make() -> None:
    image = patches(28, 36)[5]
    x = to_tensor([image]).expand(5000, -1, -1, -1)
    view = apply_randaugment(x, 1, generator(), probability=1.0, fill=FILL, ranges="code")
    possible = [fixmatch(image, op, *level) for op, level in product(OPS, LEVELS)]
    assert torch.equal(view.unique(dim=0), to_tensor(possible).unique(dim=0))


@pytest.mark.parametrize(
    "op", [op for op in OPS if MAGNITUDE_RANGES[op].low < MAGNITUDE_RANGES[op].high]
)
def test_every_operation_does_something_at_the_low_end_and_nothing_at_its_neutral_magnitude(
    op: str,
) -> None:
    x = to_tensor(patches())
    assert not torch.equal(apply_to_all(x, op, MAGNITUDE_RANGES[op].low), x)
    assert torch.equal(apply_to_all(x, op, MAGNITUDE_RANGES[op].neutral), x)


def test_identity_leaves_the_batch_untouched() -> None:
    x = to_tensor(patches())
    assert torch.equal(apply_to_all(x, "identity", 1.0), x)


def test_color_is_the_identity_for_grey_images() -> None:
    x = to_tensor(patches(mode="L"))
    assert torch.equal(apply_to_all(x, "color", 0.05), x)


def test_a_sample_does_not_touch_its_neighbours() -> None:
    x = to_tensor(patches())[: len(OPS)]
    op = torch.arange(len(OPS))
    low = torch.tensor([MAGNITUDE_RANGES[name].low for name in OPS])
    together = apply_op(x, op, low)
    for i in range(len(OPS)):
        assert torch.equal(
            together[i : i + 1], apply_op(x[i : i + 1], op[i : i + 1], low[i : i + 1])
        )


def test_translations_by_a_quarter_move_the_image_left_and_up() -> None:
    x = to_tensor(patches())
    left, up = apply_to_all(x, "translate_x", 0.25), apply_to_all(x, "translate_y", 0.25)
    assert torch.equal(left[..., :24], x[..., 8:])
    assert torch.equal(up[..., :24, :], x[..., 8:, :])
    assert bool((left[..., 24:] == FILL).all()) and bool((up[..., 24:, :] == FILL).all())
    assert torch.equal(apply_to_all(x, "translate_x", -0.25)[..., 8:], x[..., :24])


def test_translations_round_to_whole_pixels_as_pillows() -> None:
    """At 35 pixels the range ends half a pixel off, a hair to one side or the other in float32."""
    images = patches(35, 35)
    for op in ("translate_x", "translate_y"):
        for magnitude in (*magnitudes(op), 0.5 / 35, -0.5 / 35, 1.49999 / 35):
            shift = torch.tensor(magnitude).item()
            expected = to_tensor([pillow(image, op, shift) for image in images])
            assert torch.equal(apply_to_all(to_tensor(images), op, shift), expected), magnitude


def test_the_edges_are_filled_with_the_level_asked_for() -> None:
    x = torch.zeros(1, 3, 8, 8)
    moved = apply_op(x, torch.tensor([OPS.index("translate_x")]), torch.tensor([0.25]), fill=200.0)
    assert bool((moved[..., 6:] == 200).all()) and bool((moved[..., :6] == 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_results_are_grey_levels_of_the_same_kind(mode: str, dtype: torch.dtype) -> None:
    x = to_tensor(patches(mode=mode)).to(dtype).repeat(4, 1, 1, 1)
    view = apply_randaugment(x, 3, generator(), probability=1.0)
    assert view.shape == x.shape and view.dtype == dtype
    assert torch.equal(view, view.round().clamp(0, 255))
    assert not torch.equal(view, x)


def test_the_batch_given_is_not_changed() -> None:
    x = to_tensor(patches())
    before = x.clone()
    apply_randaugment(x, 2, generator(), probability=1.0)
    assert torch.equal(x, before)


def test_the_same_generator_gives_the_same_view() -> None:
    x = to_tensor(patches())
    first, again, other = (apply_randaugment(x, 2, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_probability_zero_and_no_layers_are_the_identity() -> None:
    x = to_tensor(patches())
    assert torch.equal(apply_randaugment(x, 2, generator(), probability=0.0), x)
    assert torch.equal(apply_randaugment(x, 0, generator()), x)


def test_samples_stay_as_they_are_as_often_as_probability_says() -> None:
    x = to_tensor(patches()[:1]).expand(2000, -1, -1, -1)
    saved = (apply_randaugment(x, 1, generator(), probability=0.5) == x).flatten(1).all(dim=1)
    assert (
        0.52 < float(saved.float().mean()) < 0.62
    )  # half, and the operations that change nothing here


def test_operations_are_chosen_about_equally_often_in_every_layer() -> None:
    ops, _ = sample_ops((2, 14000), generator(), probability=1.0)
    for op in ops:
        counts = torch.bincount(op, minlength=len(OPS))
        assert int(counts.min()) > 880 and int(counts.max()) < 1120
    assert (
        0.04 < float((ops[0] == ops[1]).float().mean()) < 0.1
    )  # with replacement, one layer as if alone


def test_magnitudes_spread_evenly_over_the_range() -> None:
    ops, magnitude = sample_ops((28000,), generator(), probability=1.0)
    for i, (name, (low, high, _)) in enumerate(MAGNITUDE_RANGES.items()):
        drawn = magnitude[ops == i]
        assert low <= float(drawn.min()) and float(drawn.max()) <= high
        assert float(drawn.mean()) == pytest.approx((low + high) / 2, abs=0.03 * (high - low)), name
        assert float(drawn.std()) == pytest.approx((high - low) / 12**0.5, rel=0.05), name
    bits = torch.bincount(magnitude[ops == OPS.index("posterize")].int())
    assert bits.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]
    assert int(bits[4:].min()) > 320 and int(bits.max()) < 480


def test_every_operation_has_each_level_and_sign_equally_often() -> None:
    index = torch.arange(len(LEVELS)).expand(len(OPS), -1)
    op, drawn = sample_ops((400 * index.numel(),), generator(), 0.5, index)
    counts = torch.bincount(op * len(LEVELS) + drawn, minlength=index.numel()).view_as(index)
    counts = counts[torch.arange(len(OPS)) != OPS.index("identity")]
    assert int(counts.min()) > 140 and int(counts.max()) < 260


def test_the_ranges_change_magnitudes_alone() -> None:
    """Operations, and what is drawn next, are the same."""
    first, second = generator(), generator()
    op, _ = sample_ops((2, 100), first, 0.5)
    again, _ = sample_ops((2, 100), second, 0.5, make_levels(32, 32, torch.device("cpu")))
    assert torch.equal(op, again) and torch.equal(first.get_state(), second.get_state())


def test_others_than_grey_or_rgb_images_are_refused() -> None:
    for shape in ((4, 2, 8, 8), (4, 7)):
        with pytest.raises(InputError, match="1 or 3"):
            apply_randaugment(torch.zeros(shape), 1, generator())


@pytest.mark.gpu
@pytest.mark.parametrize("ranges", ["paper", "code"])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_a_gpu_gives_the_cpus_pixels_without_being_waited_for(ranges: Ranges) -> None:
    x, cuda = to_tensor(patches()), torch.device("cuda")
    given, random = x.to(cuda), torch.Generator(cuda).manual_seed(0)
    apply_randaugment(given, 2, random, ranges=ranges)  # records
    state = random.get_state()
    torch.cuda.set_sync_debug_mode("error")
    views = [apply_randaugment(given, 2, random, ranges=ranges) for _ in range(3)]
    torch.cuda.set_sync_debug_mode("default")
    random.set_state(state)
    levels = make_levels(*x.shape[2:], cuda) if ranges == "code" else None
    for view in views:
        op, magnitude = sample_ops((2, len(x)), random, 0.5, levels)
        assert torch.equal(view.cpu(), apply_layers(x, op.cpu(), magnitude.cpu(), FILL))
