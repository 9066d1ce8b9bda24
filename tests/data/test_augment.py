import dataclasses

import pytest
import torch

from l2i.data.transforms.image import (
    Augment,
    ColumnLayout,
    add_noise,
    apply_cutout,
    corrupt,
    flip,
    shift,
)
from l2i.data.transforms.randaugment import apply_randaugment
from l2i.errors import InputError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dots(count: int = 64, size: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with one bright pixel, and where it is, as (x, y)."""
    place = torch.randint(2, size - 2, (count, 2))
    images = torch.zeros(count, 1, size, size)
    images[torch.arange(count), 0, place[:, 1], place[:, 0]] = 1.0
    return images, place.float()


def brightest(images: torch.Tensor) -> torch.Tensor:
    at = images.flatten(1).argmax(dim=1)
    return torch.stack([at % images.shape[3], at // images.shape[3]], dim=1).float()


@pytest.mark.parametrize(
    "augment", [Augment(shift=2), Augment(flip=True), Augment(shift=2, flip=True)]
)
def test_the_frame_says_where_each_point_went(augment: Augment) -> None:
    images, place = dots()
    view, frame = augment(images, generator())
    assert frame is not None
    assert torch.equal(frame.apply(place), brightest(view))
    assert not torch.equal(view, images)


def test_shift_is_a_crop_of_the_padded_image() -> None:
    images = torch.randn(8, 3, 5, 5)
    for padding in ("constant", "reflect"):
        view, corner = shift(images, 2, generator(), padding)
        padded = torch.nn.functional.pad(images, (2, 2, 2, 2), mode=padding)
        for i in range(8):
            left, top = corner[i].tolist()
            assert torch.equal(view[i], padded[i, :, top : top + 5, left : left + 5])


def test_shift_reaches_every_offset() -> None:
    _, corner = shift(torch.zeros(500, 1, 4, 4), 1, generator(), "constant")
    assert {tuple(pair) for pair in corner.tolist()} == {
        (x, y) for x in (0, 1, 2) for y in (0, 1, 2)
    }


def test_flip_turns_about_half_of_the_images() -> None:
    images = torch.randn(1000, 1, 3, 3)
    view, _ = flip(images, generator())
    turned = (view == images.flip(3)).flatten(1).all(dim=1)
    assert 400 < int(turned.sum()) < 600
    assert torch.equal(view[~turned], images[~turned])


def test_noise_has_the_spread_asked_for() -> None:
    noisy = add_noise(torch.zeros(100, 1, 20, 20), 0.3, generator())
    assert float(noisy.std()) == pytest.approx(0.3, rel=0.02)
    assert abs(float(noisy.mean())) < 0.01


def test_cutout_blanks_one_square_within_the_image() -> None:
    blank = apply_cutout(torch.ones(200, 2, 8, 8), 3, generator()) == 0
    assert torch.equal(blank[:, 0], blank[:, 1])
    area = blank[:, 0].sum(dim=(1, 2))
    assert int(area.max()) == 9
    assert int(area.min()) >= 4  # cut by a corner


def test_defaults_leave_samples_as_they_are() -> None:
    for samples in (torch.randn(4, 1, 8, 8), torch.randn(4, 7)):
        assert torch.equal(Augment()(samples, generator())[0], samples)


def test_the_same_generator_gives_the_same_view() -> None:
    images, augment = torch.randn(16, 1, 8, 8), Augment(shift=1, flip=True, noise=0.1, cutout=2)
    first, again, other = (augment(images, generator(seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_images_only_for_geometry() -> None:
    with pytest.raises(InputError, match="use noise"):
        Augment(shift=1)(torch.randn(4, 7), generator())
    assert Augment(noise=0.1)(torch.randn(4, 7), generator())[1] is None


def test_a_window_takes_its_points_with_it() -> None:
    images = torch.arange(20.0 * 12).view(1, 1, 12, 20).repeat(60, 1, 1, 1)
    view, frame = Augment(crop=7)(images, generator())
    assert view.shape == (60, 1, 7, 7)
    corner = torch.stack(
        [view[:, 0, 0, 0] % 20, view[:, 0, 0, 0] // 20], dim=1
    )  # a pixel's value is its place
    assert torch.equal(
        frame.apply(torch.tensor([[13.0, 9.0]]).repeat(60, 1)), torch.tensor([[13.0, 9.0]]) - corner
    )
    assert set(corner[:, 0].tolist()) == set(range(14)) and set(corner[:, 1].tolist()) == set(
        range(6)
    )


def test_evaluation_sees_the_centre_of_a_larger_image() -> None:
    image = torch.arange(100.0).view(1, 1, 10, 10)
    assert torch.equal(Augment(crop=4).center_crop(image), image[:, :, 3:7, 3:7])
    assert torch.equal(Augment(shift=4).center_crop(image), image)


def test_a_window_larger_than_the_image_says_so() -> None:
    with pytest.raises(InputError, match="crop=9 is larger"):
        Augment(crop=9)(torch.zeros(2, 1, 8, 8), generator())


def test_cutout_and_randaugment_fill_with_what_is_asked_for() -> None:
    grey = apply_cutout(torch.zeros(50, 3, 8, 8), 4, generator(), 127)
    assert set(grey.unique().tolist()) == {0.0, 127.0}
    levels = torch.full((64, 3, 16, 16), 200.0)
    turned = Augment(randaugment=2, fill=3)(levels, generator())[0]
    assert float(turned.min()) <= 3 and turned.shape == levels.shape


def test_cutout_comes_after_randaugment() -> None:
    """A square of exactly the fill is left in every image, whatever was done to its levels."""
    levels = torch.randint(40, 256, (200, 3, 16, 16)).float()
    view = Augment(randaugment=2, cutout=8, fill=21)(levels, generator())[0]
    assert int((view == 21).all(dim=1).sum(dim=(1, 2)).min()) >= 16  # cut by a corner


def test_randaugment_draws_from_the_ranges_asked_for() -> None:
    levels = torch.randint(256, (40, 3, 16, 16)).float()
    default = Augment(randaugment=2)(levels, generator())[0]
    assert torch.equal(default, apply_randaugment(levels, 2, generator(), fill=0, ranges="paper"))
    view = Augment(randaugment=2, randaugment_ranges="code")(levels, generator())[0]
    assert torch.equal(view, apply_randaugment(levels, 2, generator(), fill=0, ranges="code"))
    assert not torch.equal(view, default)


TABLE = ColumnLayout(
    torch.tensor([0, 1, 1, 1, 2]), torch.tensor([True, False, False, False, True]), 3
)


def table(rows: int = 512) -> torch.Tensor:
    """A number, a category of three, and a number that tells whose row it is."""
    kind = torch.randint(3, (rows,), generator=generator(1))
    one_hot = torch.nn.functional.one_hot(kind, 3).float()
    return torch.cat(
        [torch.arange(rows).unsqueeze(1), one_hot, -torch.arange(rows).unsqueeze(1)], dim=1
    ).float()


def test_a_share_of_the_columns_comes_from_other_rows() -> None:
    x = table()
    view = corrupt(x, 0.3, generator(), TABLE)
    taken = view != x
    assert taken[:, 0].float().mean().sub(0.3).abs() < 0.06
    assert set(view[:, 0].tolist()) <= set(x[:, 0].tolist())
    both = (taken[:, 0] & taken[:, 4]).float().mean()
    assert both.sub(0.09).abs() < 0.04  # columns are drawn apart


def test_the_inputs_of_a_category_go_together() -> None:
    view = corrupt(table(), 0.5, generator(), TABLE)
    assert (view[:, 1:4].sum(dim=1) == 1).all()
    alone = corrupt(table(), 0.5, generator())  # without columns, each input is one
    assert not (alone[:, 1:4].sum(dim=1) == 1).all()


def test_categories_have_no_noise() -> None:
    x = table()
    view, frame = Augment(noise=0.1)(x, generator(), columns=TABLE)
    assert frame is None and torch.equal(view[:, 1:4], x[:, 1:4])
    assert (view[:, 0] - x[:, 0]).std().sub(0.1).abs() < 0.02


def test_corruption_is_refused_for_images() -> None:
    with pytest.raises(InputError, match="corrupt needs tabular data"):
        Augment(corrupt=0.1)(torch.zeros(2, 1, 4, 4), generator())


def test_an_image_is_flipped_if_its_draw_is_below_one_half() -> None:
    images = torch.randn(400, 1, 3, 3)
    view, flipped = flip(images, generator(7))
    assert torch.equal(flipped, torch.rand(400, generator=generator(7)) < 0.5)
    assert torch.equal(view[flipped], images[flipped].flip(3))
    assert torch.equal(view[~flipped], images[~flipped])


def test_every_row_may_lend_its_columns_to_every_row() -> None:
    x = torch.arange(4.0).unsqueeze(1).repeat(1, 300)  # a value tells whose it is
    view = corrupt(x, 1.0, generator())
    assert all(set(row.tolist()) == {0.0, 1.0, 2.0, 3.0} for row in view)
    counts = torch.stack([(view == row).sum() for row in range(4)])
    assert int(counts.min()) > 250  # about 300 of each


def test_a_column_lends_to_the_same_column_alone() -> None:
    x = torch.arange(5.0).unsqueeze(1) + torch.tensor([0.0, 100.0, 200.0])
    view = corrupt(x, 0.5, generator())
    assert torch.equal((view / 100).floor(), torch.tensor([[0.0, 1.0, 2.0]]).repeat(5, 1))


def test_the_share_of_columns_to_replace_is_kept_closely() -> None:
    x = torch.randn(100, 400)
    taken = (corrupt(x, 0.25, generator()) != x).float().mean()
    assert float(taken) == pytest.approx(0.25 * 99 / 100, abs=0.006)  # a donor may be the row


def test_cutout_is_centred_on_the_pixel_that_was_drawn() -> None:
    view = apply_cutout(torch.ones(300, 1, 9, 7), 3, generator(3))
    again = generator(3)
    row, column = (torch.randint(n, (300, 1), generator=again).flatten() for n in (9, 7))
    for image, y, x in zip(view[:, 0], row.tolist(), column.tolist(), strict=True):
        wanted = torch.ones(9, 7)
        wanted[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2] = 0
        assert torch.equal(image, wanted)


def test_images_that_are_not_square_are_shifted_and_flipped_with_their_points() -> None:
    images = torch.zeros(50, 1, 6, 10)
    images[:, 0, 3, 4] = 1.0
    view, frame = Augment(shift=2, flip=True)(images, generator())
    assert view.shape == images.shape
    assert torch.equal(frame.apply(torch.tensor([[4.0, 3.0]]).repeat(50, 1)), brightest(view))


def test_a_view_has_no_map_where_none_is_asked_for() -> None:
    assert Augment(shift=1)(torch.zeros(2, 1, 4, 4), generator(), with_map=False)[1] is None
    _, frame = Augment()(torch.zeros(2, 1, 4, 4), generator())
    assert torch.equal(frame.apply(torch.tensor([[1.0, 2.0]] * 2)), torch.tensor([[1.0, 2.0]] * 2))


@pytest.mark.parametrize("pixels", [3, 4])
def test_a_shift_by_a_whole_image_is_refused(pixels: int) -> None:
    images = torch.rand(2, 1, 8, 4)
    if pixels < 4:
        assert Augment(shift=pixels)(images, generator())[0].shape == images.shape
        return
    with pytest.raises(InputError, match=r"shift=4 is too large for images of \[8, 4\] pixels"):
        Augment(shift=pixels)(images, generator())


def test_a_window_may_be_the_whole_image() -> None:
    images = torch.rand(3, 1, 5, 5)
    assert torch.equal(Augment(crop=5)(images, generator())[0], images)


def test_the_centre_of_an_image_that_is_not_square_is_taken_on_both_sides() -> None:
    image = torch.arange(70.0).view(1, 1, 7, 10)
    assert torch.equal(Augment(crop=4).center_crop(image), image[:, :, 1:5, 3:7])


def test_a_view_is_unchanged_by_default() -> None:
    assert dataclasses.asdict(Augment()) == {
        "crop": 0,
        "shift": 0,
        "padding": "constant",
        "flip": False,
        "randaugment": 0,
        "randaugment_ranges": "paper",
        "corrupt": 0.0,
        "noise": 0.0,
        "cutout": 0,
        "fill": 0.0,
    }


def test_images_get_noise_and_cutout_erases_it() -> None:
    images = torch.zeros(200, 1, 8, 8)
    noisy, _ = Augment(noise=0.5)(images, generator())
    assert float(noisy.std()) == pytest.approx(0.5, rel=0.03)
    erased, _ = Augment(noise=0.5, cutout=4, fill=9.0)(images, generator())
    assert int((erased == 9.0).flatten(1).sum(1).min()) >= 4


@pytest.mark.parametrize(("height", "width"), [(4, 8), (8, 4)])
def test_the_shorter_side_limits_windows_and_shifts(height: int, width: int) -> None:
    images = torch.rand(2, 1, height, width)
    with pytest.raises(InputError, match="crop=5 is larger than the images"):
        Augment(crop=5)(images, generator())
    with pytest.raises(InputError, match="shift=4 is too large"):
        Augment(shift=4)(images, generator())
    assert Augment(crop=4)(images, generator())[0].shape == (2, 1, 4, 4)


def test_geometry_is_applied_in_its_order() -> None:
    """A window, then a shift of it, then its mirror image; points follow all three."""
    images = torch.zeros(80, 1, 12, 12)
    images[:, 0, 6, 5] = 1.0
    view, frame = Augment(crop=9, shift=1, flip=True)(images, generator())
    seen = view.flatten(1).amax(1) > 0  # others were moved out of sight
    points = frame.apply(torch.tensor([[5.0, 6.0]]).repeat(80, 1))
    assert int(seen.sum()) > 60 and torch.equal(points[seen], brightest(view[seen]))


def test_a_table_is_corrupted_before_it_gets_noise() -> None:
    x = torch.arange(6.0).unsqueeze(1).repeat(1, 40)
    view, _ = Augment(corrupt=0.5, noise=1e-3)(x, generator())
    assert bool((view != view.round()).all()) and float((view - view.round()).abs().max()) < 0.01
    assert not torch.equal(view.round(), x)
