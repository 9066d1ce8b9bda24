"""Project features of images onto the few directions in which they vary most."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from l2i.errors import DamagedFile
from l2i.files.output import write_atomic
from l2i.fit.artifact import DAMAGE, RESTORE_HINT, FitArtifact, read_checked

PROJECTION_FILE = "projection.safetensors"
MAX_DIRECTIONS = 256
MAX_FITTED_ROWS = 20_000  # that directions are found from
CHUNK_ROWS = 4096
MIN_RELATIVE_STD = 0.01  # of a feature, relative to the mean of all stds
TENSORS = ("mean", "std", "center", "directions")


class Projection(nn.Module):
    """Standardise features, divide each row by its length, rotate, and divide again.

    What is left of a row is its direction, with values around ±1.
    """

    mean: Tensor  # [F]
    std: Tensor  # [F]
    center: Tensor  # [F], of the rows of length 1
    directions: Tensor  # [F, K], orthonormal

    def __init__(self, mean: Tensor, std: Tensor, center: Tensor, directions: Tensor) -> None:
        super().__init__()
        for name, tensor in zip(TENSORS, (mean, std, center, directions), strict=True):
            self.register_buffer(name, tensor)

    @property
    def width(self) -> int:
        return self.directions.shape[1]

    def forward(self, features: Tensor) -> Tensor:
        unit = F.normalize((features - self.mean) / self.std, dim=1)
        projected = F.normalize((unit - self.center) @ self.directions, dim=1)
        scaled: Tensor = projected * self.width**0.5
        return scaled

    def project(self, features: NDArray[np.float32]) -> Tensor:
        """Return the rows [N, K] of features [N, F], a few at a time."""
        return torch.cat([self(chunk) for chunk in torch.from_numpy(features).split(CHUNK_ROWS)])


def fit_projection(features: NDArray[np.float32], rows: NDArray[np.intp]) -> Projection:
    """Find the directions in which some rows, divided by their lengths, vary most."""
    if len(rows) > MAX_FITTED_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MAX_FITTED_ROWS, replace=False))
    x = torch.from_numpy(features[rows]).double()
    std, mean = torch.std_mean(x, dim=0, correction=0)
    std = std.clamp_min(MIN_RELATIVE_STD * float(std.mean()) or 1.0)  # else noise would be blown up
    unit = F.normalize((x - mean) / std, dim=1)
    center = unit.mean(dim=0)
    unit -= center
    width = max(1, min(MAX_DIRECTIONS, len(x) - 1, x.shape[1]))
    if len(x) < x.shape[1]:
        directions = torch.linalg.svd(unit, full_matrices=False).Vh.T[:, :width]
    else:
        directions = torch.linalg.eigh(unit.T @ unit).eigenvectors.flip(1)[:, :width]
    tensors = (mean, std, center, directions * _fix_signs(directions))
    return Projection(*(tensor.float().contiguous() for tensor in tensors))


def _fix_signs(directions: Tensor) -> Tensor:
    """Return the signs [K] that make each direction's largest entry positive, on any machine."""
    largest = directions.abs().argmax(dim=0, keepdim=True)
    signs: Tensor = directions.gather(0, largest).sign()
    return signs


def save_projection(folder: Path, projection: Projection) -> None:
    """Save a projection in a fit folder."""
    from safetensors.torch import save

    write_atomic(folder / PROJECTION_FILE, save(dict(projection.state_dict())))


def load_projection(folder: Path, fitted: FitArtifact) -> Projection:
    """Load what `save_projection` wrote."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = read_checked(folder, fitted, PROJECTION_FILE)
    try:
        tensors = load(content)
        projection = Projection(*(tensors[name].float() for name in TENSORS))
        num_features, width = projection.directions.shape
        vectors = (projection.mean, projection.std, projection.center)
        if any(v.shape != (num_features,) for v in vectors) or (width,) != fitted.shape:
            raise ValueError("tensors do not fit together")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise ValueError("tensors are not finite")
        return projection
    except (*DAMAGE, SafetensorError, RuntimeError):
        raise DamagedFile(f"{folder / PROJECTION_FILE} is damaged; {RESTORE_HINT}") from None
