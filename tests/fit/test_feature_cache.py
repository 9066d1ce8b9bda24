"""Features of images are computed once for each content, and cached as they were computed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from l2i.errors import DamagedFile
from l2i.fit.readers import features
from l2i.fit.readers.features import Encoded, FeatureCache, Loaded, encode_images
from l2i.models.frozen_encoder import FrozenEncoder

SIDE = 4


class Counting(nn.Module):
    """Mean colours and their squares; it counts the images that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.num_seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_seen += len(x)
        means = x.mean(dim=(2, 3))
        return torch.cat([means, means.square()], dim=1)


def make_encoder(digest: str = "one", side: int = SIDE) -> FrozenEncoder:
    return FrozenEncoder(
        name="means", network=Counting(), side=side, mean=(0,) * 3, std=(1,) * 3, digest=digest
    )


def make_images(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, SIDE, SIDE), dtype=np.uint8)


def make_loader(images: NDArray[np.uint8], *, broken: tuple[int, ...] = ()):  # type: ignore[no-untyped-def]
    def load(row: int, is_known: Callable[[str], bool]) -> Loaded | str:
        digest = images[row].tobytes().hex()[:32]
        if row in broken:
            return "damaged"
        return Loaded(digest, None if is_known(digest) else images[row])

    return load


def encode(images: NDArray[np.uint8], encoder: FrozenEncoder, **options: object) -> Encoded:
    lines: list[str] = []
    loader = make_loader(images, **options)  # type: ignore[arg-type]
    return encode_images(len(images), loader, encoder, whole=False, progress=lines.append)


def seen(encoder: FrozenEncoder) -> int:
    assert isinstance(encoder.network, Counting)
    return encoder.network.num_seen


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("L2I_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(features, "CHUNK_IMAGES", 8)
    return tmp_path / "cache/features"


def test_features_are_the_encoders_in_the_order_of_the_images() -> None:
    images, encoder = make_images(30), make_encoder()
    encoded = encode(images, encoder)
    means = images.mean(axis=(2, 3))
    expected = np.concatenate([means, means**2], axis=1)
    np.testing.assert_allclose(encoded.features, expected, rtol=1e-5)
    assert seen(encoder) == 30 and not encoded.errors


def test_known_images_are_neither_decoded_nor_encoded_again() -> None:
    images = make_images(30)
    first, again = make_encoder(), make_encoder()
    before = encode(images, first).features
    order = np.random.default_rng(1).permutation(30)
    np.testing.assert_array_equal(encode(images[order], again).features, before[order])
    assert seen(again) == 0
    more = np.concatenate([images, make_images(5, seed=1)])
    encode(more, again)
    assert seen(again) == 5


def test_only_some_images_are_in_memory_at_a_time() -> None:
    images, alive, peak = make_images(80), set[int](), 0

    def load(row: int, is_known: Callable[[str], bool]) -> Loaded | str:
        nonlocal peak
        pixels = images[row].copy()
        alive.add(row)
        weakref.finalize(pixels, alive.discard, row)
        peak = max(peak, len(alive))
        return Loaded(str(row), pixels)

    encode_images(80, load, make_encoder(), whole=False, progress=lambda line: None)
    assert 1 <= peak <= 2 * features.CHUNK_IMAGES


def test_equal_images_are_encoded_once() -> None:
    images = make_images(6)[[0, 1, 0, 2, 0, 1]]
    encoder = make_encoder()
    encoded = encode(images, encoder)
    assert seen(encoder) == 3
    np.testing.assert_array_equal(encoded.features[0], encoded.features[4])


@pytest.mark.parametrize("other", [{"digest": "two"}, {"side": SIDE + 1}], ids=str)
def test_another_encoder_or_size_has_features_of_its_own(other: dict[str, object]) -> None:
    images, encoder = make_images(9), make_encoder(**other)  # type: ignore[arg-type]
    encode(images, make_encoder())
    encode(images, encoder)
    assert seen(encoder) == 9


def test_an_interrupted_run_resumes() -> None:
    images, encoder = make_images(40), make_encoder()

    def load(row: int, is_known: Callable[[str], bool]) -> Loaded | str:
        if row == 20:
            raise KeyboardInterrupt
        return make_loader(images)(row, is_known)  # type: ignore[no-any-return]

    with pytest.raises(KeyboardInterrupt):
        encode_images(40, load, encoder, whole=False, progress=lambda line: None)
    assert seen(encoder) == 16  # two chunks of 8
    encode(images, encoder)
    assert seen(encoder) == 40


def test_images_that_cannot_be_read_are_left_out_and_named() -> None:
    images = make_images(12)
    encoded = encode(images, make_encoder(), broken=(3, 11))
    assert encoded.errors == {3: "damaged", 11: "damaged"}
    readable = np.delete(images, [3, 11], axis=0)
    np.testing.assert_allclose(encoded.features[:, :3], readable.mean(axis=(2, 3)), rtol=1e-5)
    assert len(encoded.digests) == 10


def test_damaged_features_are_removed_and_computed_again(cache: Path) -> None:
    images = make_images(8)
    before = encode(images, make_encoder()).features
    (path,) = cache.rglob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match="has been removed; repeat the command"):
        encode(images, make_encoder())
    np.testing.assert_array_equal(encode(images, make_encoder()).features, before)
    path.write_bytes(b"")  # of which nothing can be known
    np.testing.assert_array_equal(encode(images, make_encoder()).features, before)


def test_features_are_kept_in_memory_if_no_file_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("L2I_CACHE", str(tmp_path / "file"))
    images = make_images(20)
    encoded = encode(images, make_encoder())
    np.testing.assert_allclose(encoded.features[:, :3], images.mean(axis=(2, 3)), rtol=1e-5)
    assert "a" not in FeatureCache(make_encoder(), whole=False)
