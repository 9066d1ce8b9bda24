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

from l2i.bilevel.problem import Params
from l2i.config import Run
from l2i.config.validate import validate
from l2i.data.samples import Samples
from l2i.data.transforms.image import Normalize
from l2i.errors import InputError
from l2i.fit.artifact import FitArtifact
from l2i.fit.preprocess import (
    Column,
    ColumnKind,
    ImagePreprocessor,
    TablePreprocessor,
    TextPreprocessor,
    find_saved_encoder,
    load_preprocessor,
)
from l2i.models import MODELS
from l2i.models.base import ModelConfig
from l2i.registry import load_registered
from l2i.training.checkpoint import get_checkpoint_path, latest_valid, load_checkpoint
from l2i.training.evaluation import compute_outputs, extract_curve, find_best_step
from l2i.training.loading import read_metric_rows
from l2i.training.run_dir import BEST_DIR, read_run
from l2i.training.setup import check_shapes, load_module_state, select_prefix

if TYPE_CHECKING:
    import pandas as pd

ExportableInputs = TablePreprocessor | ImagePreprocessor  # those that a model file can read
MAX_MEAN_STD_RATIO = 1e3  # spreads from zero, beyond which float32 has too few digits left for what varies
MIN_FLOAT32_STD = 1e-30  # spread that float32 holds with room to spare, as it does its inverse


def load_network(folder: Path, fitted: FitArtifact) -> nn.Module:
    """The averaged model of the chosen candidate, in evaluation mode, float32 and on the CPU."""
    path = folder / fitted.selected_name
    run = read_run(path)
    validate(run)  # a stranger's may ask for anything
    build, tensors = partial(_build_network, folder, fitted, run.model), _load_teacher(path, run)
    if run.model.name != "encoder":
        check_shapes(build, tensors)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        network = build()
    load_module_state(network, tensors)
    return network.float().requires_grad_(False).eval()


def _build_network(folder: Path, fitted: FitArtifact, model: ModelConfig) -> nn.Module:
    """The network before its tensors are filled in; a pretrained one from what the fit holds of it."""
    if model.name == "encoder":
        from l2i.models.text_encoder import build_empty_encoder

        return build_empty_encoder(count_outputs(fitted), replace(model, weights=find_saved_encoder(folder)))
    build = load_registered("model", MODELS, model.name)
    network: nn.Module = build(fitted.shape, count_outputs(fitted), model)
    return network


def count_outputs(fitted: FitArtifact) -> int:
    """How many outputs the network has; the points of a landmark file are more than its targets' names."""
    return len(fitted.target_mean) if fitted.classes is None else len(fitted.classes)


def _load_teacher(folder: Path, run: Run) -> Params:
    """The averaged model's tensors: the newest, or those that early stopping chose."""
    if run.report != "best":
        return select_prefix(latest_valid(folder / "checkpoints")[0], "teacher")
    path = get_checkpoint_path(folder / BEST_DIR, find_best_step(extract_curve(read_metric_rows(folder), "validation")))
    checkpoint = load_checkpoint(path)
    if checkpoint is None:
        raise InputError(f"{path} is missing or damaged; restore it, or fit again in another --out")
    return select_prefix(checkpoint[0], "teacher")


class Predictor(nn.Module):
    """From inputs as the network takes them to calibrated probabilities [N, C], or targets [N, D] in their units."""

    mean: Tensor  # [D]
    std: Tensor  # [D]

    def __init__(self, network: nn.Module, fitted: FitArtifact) -> None:
        super().__init__()
        self.network, self.temperature = network, fitted.temperature
        self.is_classifier = fitted.classes is not None
        needs_float64 = any(abs(mean) > MAX_MEAN_STD_RATIO * std for mean, std in zip(fitted.target_mean, fitted.target_std, strict=True))
        dtype = torch.float64 if needs_float64 else torch.float32
        self.register_buffer("mean", torch.tensor(fitted.target_mean, dtype=dtype))
        self.register_buffer("std", torch.tensor(fitted.target_std, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        decoded = self.decode(self.network(x))
        return torch.softmax(decoded / self.temperature, dim=1) if self.is_classifier else decoded

    def decode(self, outputs: Tensor) -> Tensor:
        """Logits as they are; standardised targets in their own units."""
        return outputs if self.is_classifier else outputs.to(self.std.dtype) * self.std + self.mean


def predict_outputs(network: nn.Module, fitted: FitArtifact, x: Tensor | NDArray[Any], *, batch_size: int = 64) -> NDArray[Any]:
    """What `Rows.outputs` holds, for inputs `x` as the network takes them: logits, or targets in their units."""
    inputs = torch.as_tensor(x)
    samples = Samples(inputs, torch.empty(len(inputs)))
    cast = torch.Tensor.float if inputs.is_floating_point() else torch.Tensor.long  # the tokens of texts
    raw_outputs = compute_outputs(network, samples, cast, batch_size=batch_size)
    if fitted.classes is not None:
        return np.asarray(raw_outputs.numpy())
    return np.asarray(raw_outputs.double().numpy() * np.asarray(fitted.target_std) + np.asarray(fitted.target_mean))


def encode_inputs(fitted: FitArtifact, raw_inputs: pd.DataFrame | NDArray[Any], folder: Path | None = None) -> Tensor:
    """A raw table, or raw images [N, C, S, S] of the network's size, as the network takes them.

    Texts are read with what the fit in `folder` holds, or with the weights that it was given.
    """
    inputs = load_preprocessor(fitted.inputs)
    if isinstance(inputs, TextPreprocessor):
        return torch.from_numpy((inputs if folder is None else inputs.with_saved_encoder(folder))(raw_inputs))
    if isinstance(inputs, TablePreprocessor):
        return torch.from_numpy(inputs(raw_inputs))
    pixels = inputs.normalization.to(torch.device("cpu"), torch.float32)
    return pixels.apply(torch.from_numpy(inputs.to_grey_levels(raw_inputs)))


class TableEncoder(nn.Module):
    """`TableInputs` in torch, without texts: of raw numbers, NaN where blank, and of places among categories."""

    mean: Tensor  # [Fn]
    rest: Tensor  # [Fn], what rounding takes from the mean
    std: Tensor  # [Fn]
    flagged: Tensor  # [B], the numbers with an input that says where they are blank
    owner: Tensor  # [K], the column that each category is of
    place: Tensor  # [K], and its place there
    order: Tensor  # [E], where each input lies among numbers, flags and categories

    def __init__(self, inputs: TablePreprocessor) -> None:
        super().__init__()
        numbers, categories = select_columns(inputs, "number"), select_columns(inputs, "category")
        mean = torch.tensor([c.mean for c in numbers], dtype=torch.float64)
        needs_float64 = any(_needs_float64(c.mean, c.std) for c in numbers)
        self.dtype = torch.float64 if needs_float64 else torch.float32
        category_slots = [(i, k) for i, c in enumerate(categories) for k in range(c.width)]
        self.register_buffer("mean", mean.to(self.dtype))
        self.register_buffer("rest", (mean - self.mean.double()).to(self.dtype))
        self.register_buffer("std", torch.tensor([c.std for c in numbers], dtype=self.dtype))
        self.register_buffer("flagged", torch.tensor([i for i, c in enumerate(numbers) if c.blanks], dtype=torch.long))
        self.register_buffer("owner", torch.tensor([i for i, _ in category_slots], dtype=torch.long))
        self.register_buffer("place", torch.tensor([k for _, k in category_slots], dtype=torch.long))
        self.register_buffer("order", torch.tensor(_compute_input_order(inputs.columns)))

    def forward(self, numbers: Tensor | None = None, categories: Tensor | None = None) -> Tensor:
        parts: list[Tensor] = []
        if numbers is not None:
            is_blank = numbers.isnan()
            standardized = (numbers - self.mean - self.rest) / self.std
            parts.append(torch.where(is_blank, 0.0, standardized).float())
            parts += [is_blank.index_select(1, self.flagged).float()] if len(self.flagged) else []
        if categories is not None:
            parts.append((categories.index_select(1, self.owner) == self.place).float())
        return torch.cat(parts, dim=1).index_select(1, self.order)


class ImageEncoder(nn.Module):
    """`ImageInputs` in torch: of 8-bit grey levels, or of raw values where those are others."""

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]

    def __init__(self, inputs: ImagePreprocessor) -> None:
        super().__init__()
        self.low, self.scale = inputs.low, 255.0 / (inputs.high - inputs.low)
        needs_float64 = _needs_float64(max(abs(inputs.low), abs(inputs.high)), inputs.high - inputs.low)
        is_uint8 = (inputs.low, inputs.high) == (0.0, 255.0)
        self.dtype = torch.uint8 if is_uint8 else torch.float64 if needs_float64 else torch.float32
        pixels = inputs.normalization.to(torch.device("cpu"), torch.float32)
        self.register_buffer("mean", pixels.mean)
        self.register_buffer("std", pixels.std)

    def forward(self, images: Tensor) -> Tensor:
        if self.dtype != torch.uint8:
            images = ((images.double() - self.low) * self.scale).round().clamp(0, 255)
        return Normalize(self.mean, self.std).apply(images)


class EndToEndModel(nn.Module):
    """From raw values to named answers."""

    def __init__(self, predictor: Predictor, inputs: ExportableInputs) -> None:
        super().__init__()
        self.predictor = predictor
        self.encoder = TableEncoder(inputs) if isinstance(inputs, TablePreprocessor) else ImageEncoder(inputs)

    @property
    def dtype(self) -> str:
        """Of numbers, or of images."""
        return str(self.encoder.dtype).removeprefix("torch.")

    def forward(
        self, numbers: Tensor | None = None, categories: Tensor | None = None, images: Tensor | None = None
    ) -> dict[str, Tensor]:
        predictions = self.predictor(self.encoder(numbers, categories) if images is None else self.encoder(images))
        return {"probabilities": predictions, "label": predictions.argmax(dim=1)} if self.predictor.is_classifier else {"values": predictions}


def select_columns(inputs: TablePreprocessor, kind: ColumnKind) -> list[Column]:
    """The columns of one kind, in their order."""
    return [column for column in inputs.columns if column.kind == kind]


def _compute_input_order(columns: tuple[Column, ...]) -> list[int]:
    """Where the inputs of each column lie: all numbers come first, then all flags, then all categories."""
    numbers = [column for column in columns if column.kind == "number"]
    number, flag = 0, len(numbers)
    category = flag + sum(column.blanks for column in numbers)
    order: list[int] = []
    for column in columns:
        if column.kind == "number":
            order += [number, flag] if column.blanks else [number]
            number, flag = number + 1, flag + column.blanks
        else:
            order += range(category, category + column.width)
            category += column.width
    return order


def _needs_float64(mean: float, std: float) -> bool:
    """Whether float32 is too coarse, or too small, for values of this mean and spread."""
    return abs(mean) > MAX_MEAN_STD_RATIO * std or not MIN_FLOAT32_STD < std < 1 / MIN_FLOAT32_STD
