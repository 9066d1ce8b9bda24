from pathlib import Path

import torch

from formats import write_cifar10
from l2i.data.datasets.cifar import load_cifar10
from l2i.data.datasets.imagenet import IMAGENET_NORMALIZE
from l2i.data.samples import DataSet, Samples
from l2i.data.splitting import draw_splits
from l2i.data.transforms.image import Normalize


def images(count: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (count, 3, 5, 4), generator=generator, dtype=torch.uint8)


def test_mean_and_spread_are_those_of_the_channels() -> None:
    x = images()
    pixels = Normalize.from_images(x)
    assert torch.allclose(pixels.mean.flatten(), x.double().mean(dim=(0, 2, 3)))
    assert torch.allclose(pixels.std.flatten(), x.double().std(dim=(0, 2, 3), correction=0))


def test_standardised_images_have_no_mean_and_a_spread_of_one() -> None:
    x = images()
    observed = Normalize.from_images(x).apply(x)
    assert torch.allclose(
        observed.mean(dim=(0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-12
    )
    assert torch.allclose(
        observed.std(dim=(0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64)
    )


def test_a_flat_channel_is_not_divided_by_zero() -> None:
    x = torch.full((4, 1, 3, 3), 9, dtype=torch.uint8)
    assert torch.equal(
        Normalize.from_images(x).apply(x), torch.zeros(4, 1, 3, 3, dtype=torch.float64)
    )


def test_known_shares_are_of_255() -> None:
    assert Normalize.from_unit_range((0.5,), (0.25,)).mean.item() == 127.5


def test_8_bit_images_stay_8_bit_on_the_device() -> None:
    x, y = images(), torch.arange(40) % 2
    data = DataSet(
        train=Samples(x, y), test=Samples(x, y), classes=2, normalization=Normalize.from_images(x)
    )
    splits = draw_splits(data, num_labeled=4, num_validation=4, holdout="joint", seed=0)
    there = splits.to(torch.device("cpu"), torch.float32)
    assert isinstance(there.unlabeled.x, torch.Tensor) and there.unlabeled.x.dtype == torch.uint8
    assert there.to_inputs(there.unlabeled.x).dtype == torch.float32


def test_grey_levels_become_spreads_from_the_mean() -> None:
    levels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    assert Normalize.from_unit_range((0.5,), (0.25,)).apply(levels).flatten().tolist() == [
        -2.0,
        2.0,
    ]


def test_imagenets_channels_are_red_green_blue() -> None:
    assert torch.allclose(
        IMAGENET_NORMALIZE.mean.flatten(), torch.tensor([123.675, 116.28, 103.53]).double()
    )
    assert torch.allclose(
        IMAGENET_NORMALIZE.std.flatten(), torch.tensor([58.395, 57.12, 57.375]).double()
    )


def test_a_set_is_standardised_by_its_training_images(tmp_path: Path) -> None:
    data = load_cifar10(str(write_cifar10(tmp_path)))
    assert isinstance(data.train.x, torch.Tensor) and data.normalization is not None
    assert torch.allclose(data.normalization.mean.flatten(), data.train.x.double().mean((0, 2, 3)))
