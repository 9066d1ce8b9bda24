"""The network that a fit chose, and what stands before and after it: encoding, probabilities, units."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from l2i.batch import Params
from l2i.config import Run
from l2i.data.pixels import Pixels
from l2i.data.split import Samples
from l2i.errors import InputError
from l2i.models import MODELS
from l2i.models.base import Network
from l2i.own.fitted import Fitted
from l2i.own.inputs import inputs_of
from l2i.own.prepare import Column, ImageInputs, Kind, TableInputs
from l2i.own.prepare_text import TextInputs, stored_encoder
from l2i.registry import load
from l2i.training.checkpoint import load_checkpoint, newest_whole, path_of
from l2i.training.evaluate import best_step, curve, outputs_of
from l2i.training.folder import BEST, read_run
from l2i.training.load import read_rows
from l2i.training.state import check_sizes, fill, part
from l2i.validate import validate

if TYPE_CHECKING:
    import pandas as pd

Inputs = TableInputs | ImageInputs  # those that a model file can read
FAR = 1e3  # spreads from zero, beyond which float32 has too few digits left for what varies
SMALLEST = 1e-30  # spread that float32 holds with room to spare, as it does its inverse


def load_network(folder: Path, fitted: Fitted) -> nn.Module:
    """The averaged model of the chosen candidate, in evaluation mode, float32 and on the CPU."""
    path = folder / fitted.chosen
    run = read_run(path)
    validate(run)  # a stranger's may ask for anything
    make, tensors = partial(_blank, folder, fitted, run.model), _teacher(path, run)
    if run.model.name != "encoder":
        check_sizes(make, tensors)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        network = make()
    fill(network, tensors)
    return network.float().requires_grad_(False).eval()


def _blank(folder: Path, fitted: Fitted, model: Network) -> nn.Module:
    """The network before its tensors are filled in; a pretrained one from what the fit holds of it."""
    if model.name == "encoder":
        from l2i.models.text import blank_encoder

        return blank_encoder(width_of(fitted), replace(model, weights=stored_encoder(folder)))
    make = load("model", MODELS, model.name)
    network: nn.Module = make(fitted.shape, width_of(fitted), model)
    return network


def width_of(fitted: Fitted) -> int:
    """How many outputs the network has; the points of a landmark file are more than its targets' names."""
    return len(fitted.target_mean) if fitted.classes is None else len(fitted.classes)


def _teacher(folder: Path, run: Run) -> Params:
    """The averaged model's tensors: the newest, or those that early stopping chose."""
    if run.final != "best":
        return part(newest_whole(folder / "checkpoints")[0], "teacher")
    path = path_of(folder / BEST, best_step(curve(read_rows(folder), "validation")))
    chosen = load_checkpoint(path)
    if chosen is None:
        raise InputError(f"{path} is missing or damaged; restore it, or fit again in another --out")
    return part(chosen[0], "teacher")


class Predictor(nn.Module):
    """From inputs as the network takes them to calibrated probabilities [N, C], or targets [N, D] in their units."""

    mean: Tensor  # [D]
    std: Tensor  # [D]

    def __init__(self, network: nn.Module, fitted: Fitted) -> None:
        super().__init__()
        self.network, self.temperature = network, fitted.temperature
        self.classes = fitted.classes is not None
        far = any(abs(mean) > FAR * std for mean, std in zip(fitted.target_mean, fitted.target_std, strict=True))
        dtype = torch.float64 if far else torch.float32
        self.register_buffer("mean", torch.tensor(fitted.target_mean, dtype=dtype))
        self.register_buffer("std", torch.tensor(fitted.target_std, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        found = self.decoded(self.network(x))
        return torch.softmax(found / self.temperature, dim=1) if self.classes else found

    def decoded(self, outputs: Tensor) -> Tensor:
        """Logits as they are; standardised targets in their own units."""
        return outputs if self.classes else outputs.to(self.std.dtype) * self.std + self.mean


def outputs(network: nn.Module, fitted: Fitted, x: Tensor | NDArray[Any], *, batch: int = 64) -> NDArray[Any]:
    """What `Rows.outputs` holds, for inputs `x` as the network takes them: logits, or targets in their units."""
    inputs = torch.as_tensor(x)
    samples = Samples(inputs, torch.empty(len(inputs)))
    cast = torch.Tensor.float if inputs.is_floating_point() else torch.Tensor.long  # the tokens of texts
    found = outputs_of(network, samples, cast, batch=batch)
    if fitted.classes is not None:
        return np.asarray(found.numpy())
    return np.asarray(found.double().numpy() * np.asarray(fitted.target_std) + np.asarray(fitted.target_mean))


def encoded(fitted: Fitted, raw: pd.DataFrame | NDArray[Any], folder: Path | None = None) -> Tensor:
    """A raw table, or raw images [N, C, S, S] of the network's size, as the network takes them.

    Texts are read with what the fit in `folder` holds, or with the weights that it was given.
    """
    inputs = inputs_of(fitted.inputs)
    if isinstance(inputs, TextInputs):
        return torch.from_numpy((inputs if folder is None else inputs.stored(folder))(raw))
    if isinstance(inputs, TableInputs):
        return torch.from_numpy(inputs(raw))
    pixels = inputs.pixels.to(torch.device("cpu"), torch.float32)
    return pixels.standardized(torch.from_numpy(inputs.grey(raw)))


class TableEncoder(nn.Module):
    """`TableInputs` in torch, without texts: of raw numbers, NaN where blank, and of places among categories."""

    mean: Tensor  # [Fn]
    rest: Tensor  # [Fn], what rounding takes from the mean
    std: Tensor  # [Fn]
    flagged: Tensor  # [B], the numbers with an input that says where they are blank
    owner: Tensor  # [K], the column that each category is of
    place: Tensor  # [K], and its place there
    order: Tensor  # [E], where each input lies among numbers, flags and categories

    def __init__(self, inputs: TableInputs) -> None:
        super().__init__()
        numbers, categories = of_kind(inputs, "number"), of_kind(inputs, "category")
        mean = torch.tensor([c.mean for c in numbers], dtype=torch.float64)
        far = any(_far(c.mean, c.std) for c in numbers)
        self.dtype = torch.float64 if far else torch.float32
        places = [(i, k) for i, c in enumerate(categories) for k in range(c.width)]
        self.register_buffer("mean", mean.to(self.dtype))
        self.register_buffer("rest", (mean - self.mean.double()).to(self.dtype))
        self.register_buffer("std", torch.tensor([c.std for c in numbers], dtype=self.dtype))
        self.register_buffer("flagged", torch.tensor([i for i, c in enumerate(numbers) if c.blanks], dtype=torch.long))
        self.register_buffer("owner", torch.tensor([i for i, _ in places], dtype=torch.long))
        self.register_buffer("place", torch.tensor([k for _, k in places], dtype=torch.long))
        self.register_buffer("order", torch.tensor(_order(inputs.columns)))

    def forward(self, numbers: Tensor | None = None, categories: Tensor | None = None) -> Tensor:
        parts: list[Tensor] = []
        if numbers is not None:
            blank = numbers.isnan()
            standardized = (numbers - self.mean - self.rest) / self.std
            parts.append(torch.where(blank, 0.0, standardized).float())
            parts += [blank.index_select(1, self.flagged).float()] if len(self.flagged) else []
        if categories is not None:
            parts.append((categories.index_select(1, self.owner) == self.place).float())
        return torch.cat(parts, dim=1).index_select(1, self.order)


class ImageEncoder(nn.Module):
    """`ImageInputs` in torch: of 8-bit grey levels, or of raw values where those are others."""

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]

    def __init__(self, inputs: ImageInputs) -> None:
        super().__init__()
        self.low, self.scale = inputs.low, 255.0 / (inputs.high - inputs.low)
        far = _far(max(abs(inputs.low), abs(inputs.high)), inputs.high - inputs.low)
        eight = (inputs.low, inputs.high) == (0.0, 255.0)
        self.dtype = torch.uint8 if eight else torch.float64 if far else torch.float32
        pixels = inputs.pixels.to(torch.device("cpu"), torch.float32)
        self.register_buffer("mean", pixels.mean)
        self.register_buffer("std", pixels.std)

    def forward(self, images: Tensor) -> Tensor:
        if self.dtype != torch.uint8:
            images = ((images.double() - self.low) * self.scale).round().clamp(0, 255)
        return Pixels(self.mean, self.std).standardized(images)


class Whole(nn.Module):
    """From raw values to named answers."""

    def __init__(self, predictor: Predictor, inputs: Inputs) -> None:
        super().__init__()
        self.predictor = predictor
        self.encoder = TableEncoder(inputs) if isinstance(inputs, TableInputs) else ImageEncoder(inputs)

    @property
    def dtype(self) -> str:
        """Of numbers, or of images."""
        return str(self.encoder.dtype).removeprefix("torch.")

    def forward(
        self, numbers: Tensor | None = None, categories: Tensor | None = None, images: Tensor | None = None
    ) -> dict[str, Tensor]:
        found = self.predictor(self.encoder(numbers, categories) if images is None else self.encoder(images))
        return {"probabilities": found, "label": found.argmax(dim=1)} if self.predictor.classes else {"values": found}


def of_kind(inputs: TableInputs, kind: Kind) -> list[Column]:
    """The columns of one kind, in their order."""
    return [column for column in inputs.columns if column.kind == kind]


def _order(columns: tuple[Column, ...]) -> list[int]:
    """Where the inputs of each column lie: all numbers come first, then all flags, then all categories."""
    numbers = [column for column in columns if column.kind == "number"]
    number, flag = 0, len(numbers)
    category = flag + sum(column.blanks for column in numbers)
    found: list[int] = []
    for column in columns:
        if column.kind == "number":
            found += [number, flag] if column.blanks else [number]
            number, flag = number + 1, flag + column.blanks
        else:
            found += range(category, category + column.width)
            category += column.width
    return found


def _far(mean: float, std: float) -> bool:
    """Whether float32 is too coarse, or too small, for values of this mean and spread."""
    return abs(mean) > FAR * std or not SMALLEST < std < 1 / SMALLEST
