"""Encode images as features by a frozen network, each content once: features are cached."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from l2i.errors import DamagedFile
from l2i.files.digest import hash_arrays, hash_strings
from l2i.files.images import ignore_image_warnings, map_in_threads
from l2i.files.output import REPORT_INTERVAL_S, ProgressCallback, get_cache_dir, write_atomic
from l2i.models.frozen_encoder import FrozenEncoder

CACHE_FORMAT = "1"
CHUNK_IMAGES = 256  # decoded at once, and kept in one file of the cache
BATCH_IMAGES = 8  # encoded at once: more are slower on a CPU
Features = NDArray[np.float32]


class Loaded(NamedTuple):
    """An image that was read."""

    digest: str
    """The checksum of its content."""
    pixels: NDArray[np.uint8] | None
    """[3, S, S]; None if its features are known."""


class Encoded(NamedTuple):
    """Features of the images that could be read."""

    features: Features
    """[M, F]."""
    digests: list[str]
    errors: dict[int, str]
    """What is wrong with the others, by their index."""


Loader = Callable[[int, Callable[[str], bool]], Loaded | str]
"""Reads an image by its index, and decodes it unless its digest is known; or says what is wrong."""


class FeatureCache:
    """Features of images by the checksum of their content, for one encoder and way of resizing."""

    def __init__(self, encoder: FrozenEncoder, *, whole: bool) -> None:
        settings = [CACHE_FORMAT, encoder.digest, str(encoder.side), str(whole)]
        settings += [str(encoder.mean), str(encoder.std)]
        self.folder = get_cache_dir() / "features" / hash_strings(settings)
        self._parts: list[Path | Features] = []
        self._places: dict[str, tuple[int, int]] = {}
        with suppress(OSError):
            for path in sorted(self.folder.glob("*.safetensors")):
                self._index(path, _read_digests(path))

    def __contains__(self, digest: str) -> bool:
        return digest in self._places

    def add(self, digests: Sequence[str], features: Features) -> None:
        """Keep features on disk, or in memory if nothing can be written there."""
        from safetensors.numpy import save

        facts = json.dumps({"digests": list(digests), "checksum": hash_arrays(features)})
        path = self.folder / f"{hash_strings(digests)}.safetensors"
        part: Path | Features = path
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, save({"features": features}, {"facts": facts}))
        except OSError:
            part = features
        self._index(part, digests)

    def _index(self, part: Path | Features, digests: Sequence[str]) -> None:
        self._parts.append(part)
        number = len(self._parts) - 1
        self._places |= {digest: (number, row) for row, digest in enumerate(digests)}

    def collect(self, digests: Sequence[str]) -> Features:
        """Return the features of known images, [N, F]."""
        places = np.array([self._places[digest] for digest in digests]).reshape(-1, 2)
        collected: Features | None = None
        for number in np.unique(places[:, 0]).tolist():
            part = self._parts[number]
            features = _read_features(part) if isinstance(part, Path) else part
            if collected is None:
                collected = np.empty((len(digests), features.shape[1]), dtype=np.float32)
            rows = np.flatnonzero(places[:, 0] == number)
            collected[rows] = features[places[rows, 1]]
        return np.zeros((0, 1), dtype=np.float32) if collected is None else collected


def _read_digests(path: Path) -> list[str]:
    """Return whose features a file holds; none if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return [str(digest) for digest in json.loads(file.metadata()["facts"])["digests"]]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return []


def _read_features(path: Path) -> Features:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            facts = json.loads(file.metadata()["facts"])
            features: Features = file.get_tensor("features")
        if hash_arrays(features) != facts["checksum"] or len(features) != len(facts["digests"]):
            raise ValueError("not what was written")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        with suppress(OSError):
            path.unlink()
        problem = f"{path}, a file of cached features, was damaged and has been removed"
        raise DamagedFile(f"{problem}; repeat the command") from None
    return features


def encode_images(
    count: int, load: Loader, encoder: FrozenEncoder, *, whole: bool, progress: ProgressCallback
) -> Encoded:
    """Return the features of `count` images; only some of them are in memory at a time."""
    cache = FeatureCache(encoder, whole=whole)
    digests: list[str] = []
    errors: dict[int, str] = {}
    is_known = cache.__contains__
    with ignore_image_warnings():
        for rows, num_new in _iter_chunks(count, progress):
            loaded = list(map_in_threads(lambda row: load(row, is_known), rows))
            pixels: dict[str, NDArray[np.uint8]] = {}
            for row, image in zip(rows, loaded, strict=True):
                if isinstance(image, str):
                    errors[row] = image
                    continue
                digests.append(image.digest)
                if image.pixels is not None:
                    pixels[image.digest] = image.pixels
            if pixels:
                cache.add(list(pixels), _encode_batches(list(pixels.values()), encoder))
            num_new.append(len(pixels))
    return Encoded(cache.collect(digests), digests, errors)


def _iter_chunks(count: int, progress: ProgressCallback) -> Iterator[tuple[range, list[int]]]:
    """Yield chunks of rows, and a list to append to how many of them were new; report progress."""
    num_new: list[int] = []
    start = last_report = time.monotonic()
    for first in range(0, count, CHUNK_IMAGES):
        rows = range(first, min(first + CHUNK_IMAGES, count))
        yield rows, num_new
        now = time.monotonic()
        if now - last_report >= REPORT_INTERVAL_S and rows.stop < count:
            left = (now - start) / rows.stop * (count - rows.stop)
            time_left = f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"
            progress(f"encoded {rows.stop:,} of {count:,} images, about {time_left} left")
            last_report = now
    if count - sum(num_new) >= CHUNK_IMAGES:
        progress(f"features of {count - sum(num_new):,} of {count:,} images were known already")


def _encode_batches(images: list[NDArray[np.uint8]], encoder: FrozenEncoder) -> Features:
    batches = torch.from_numpy(np.stack(images)).split(BATCH_IMAGES)
    return np.asarray(torch.cat([encoder.encode(batch) for batch in batches]).numpy())
