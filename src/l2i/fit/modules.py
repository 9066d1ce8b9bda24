"""Load the network of a fit, encode its inputs, and turn its outputs into answers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from l2i.bilevel.functional import Params
from l2i.config import Run
from l2i.config.validate import validate
from l2i.data.samples import Samples
from l2i.data.transforms.image import Normalize
from l2i.errors import InputError
from l2i.fit.artifact import FitArtifact
from l2i.fit.preprocess import (
    Column,
    ImagePreprocessor,
    TablePreprocessor,
    TextPreprocessor,
    find_saved_encoder,
    load_preprocessor,
)
from l2i.fit.readers.columns import ColumnKind
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

ExportableInputs = TablePreprocessor | ImagePreprocessor
MAX_MEAN_STD_RATIO = 1e3  # beyond which float32 has too few digits left for what varies
MIN_FLOAT32_STD = 1e-30  # float32 holds it, and its inverse, with room to spare


def load_network(folder: Path, fitted: FitArtifact) -> nn.Module:
    """Load the averaged model of the chosen candidate, in evaluation mode, float32, on the CPU."""
    path = folder / fitted.selected_name
    run = read_run(path)
    validate(run)  # the folder may be untrusted
    build, tensors = partial(_build_network, folder, fitted, run.model), _load_teacher(path, run)
    if run.model.name != "encoder":
        check_shapes(build, tensors)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        network = build()
    load_module_state(network, tensors)
    return network.float().requires_grad_(False).eval()


def _build_network(folder: Path, fitted: FitArtifact, model: ModelConfig) -> nn.Module:
    """Build the network without its tensors; a pretrained one from the config in the folder."""
    if model.name == "encoder":
        from l2i.models.text_encoder import build_empty_encoder

        model = replace(model, weights=find_saved_encoder(folder))
        return build_empty_encoder(count_outputs(fitted), model)
    build = load_registered("model", MODELS, model.name)
    network: nn.Module = build(fitted.shape, count_outputs(fitted), model)
    return network


def count_outputs(fitted: FitArtifact) -> int:
    """Return the number of outputs; a landmark file has more of them than target names."""
    return len(fitted.target_mean) if fitted.classes is None else len(fitted.classes)


def _load_teacher(folder: Path, run: Run) -> Params:
    """Load the averaged model's tensors: the newest, or those that early stopping chose."""
    if run.report != "best":
        return select_prefix(latest_valid(folder / "checkpoints")[0], "teacher")
    best_step = find_best_step(extract_curve(read_metric_rows(folder), "validation"))
    path = get_checkpoint_path(folder / BEST_DIR, best_step)
    checkpoint = load_checkpoint(path)
    if checkpoint is None:
        raise InputError(f"{path} is missing or damaged; restore it, or fit again in another --out")
    return select_prefix(checkpoint[0], "teacher")


def encode_inputs(
    fitted: FitArtifact, raw_inputs: pd.DataFrame | NDArray[Any], folder: Path | None = None
) -> Tensor:
    """Encode a raw table, or raw images [N, C, S, S] of the network's size, as it takes them.

    Texts are read with the tokenizer saved in `folder`, or else that of the pretrained weights.
    """
    inputs = load_preprocessor(fitted.inputs)
    if isinstance(inputs, ImagePreprocessor):
        pixels = inputs.normalization.to(torch.device("cpu"), torch.float32)
        return pixels.apply(torch.from_numpy(inputs.to_grey_levels(raw_inputs)))
    if isinstance(inputs, TextPreprocessor) and folder is not None:
        inputs = inputs.with_saved_encoder(folder)
    return torch.from_numpy(inputs(raw_inputs))


def predict_outputs(
    network: nn.Module, fitted: FitArtifact, x: Tensor | NDArray[Any], *, batch_size: int = 64
) -> NDArray[Any]:
    """Return FitRows.outputs for encoded inputs `x`: logits, or targets in their units."""
    inputs = torch.as_tensor(x)
    samples = Samples(inputs, torch.empty(len(inputs)))
    is_text = not inputs.is_floating_point()
    cast = torch.Tensor.long if is_text else torch.Tensor.float
    outputs = compute_outputs(network, samples, cast, batch_size=batch_size)
    if fitted.classes is not None:
        return np.asarray(outputs.numpy())
    mean, std = np.asarray(fitted.target_mean), np.asarray(fitted.target_std)
    return np.asarray(outputs.double().numpy() * std + mean)


class Predictor(nn.Module):
    """From encoded inputs to calibrated probabilities [N, C], or targets [N, D] in their units."""

    mean: Tensor  # [D]
    std: Tensor  # [D]

    def __init__(self, network: nn.Module, fitted: FitArtifact) -> None:
        super().__init__()
        self.network, self.temperature = network, fitted.temperature
        self.is_classifier = fitted.classes is not None
        scales = zip(fitted.target_mean, fitted.target_std, strict=True)
        needs_float64 = any(abs(mean) > MAX_MEAN_STD_RATIO * std for mean, std in scales)
        dtype = torch.float64 if needs_float64 else torch.float32
        self.register_buffer("mean", torch.tensor(fitted.target_mean, dtype=dtype))
        self.register_buffer("std", torch.tensor(fitted.target_std, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        decoded = self.decode(self.network(x))
        return torch.softmax(decoded / self.temperature, dim=1) if self.is_classifier else decoded

    def decode(self, outputs: Tensor) -> Tensor:
        """Return logits as they are, and standardised targets in their units."""
        return outputs if self.is_classifier else outputs.to(self.std.dtype) * self.std + self.mean


class TableEncoder(nn.Module):
    """TablePreprocessor for exported models, without texts.

    Takes raw numbers, NaN if blank, and categories as indices into their column's values. In
    float32 if that is precise enough, whereas TablePreprocessor computes in float64.
    """

    mean: Tensor  # [Fn]
    rest: Tensor  # [Fn], what rounding takes from the mean
    std: Tensor  # [Fn]
    flagged: Tensor  # [B], the numbers with an input that marks blanks
    owner: Tensor  # [K], the column of each category
    place: Tensor  # [K], and its index there
    order: Tensor  # [E], where each input lies among numbers, flags and categories

    def __init__(self, inputs: TablePreprocessor) -> None:
        super().__init__()
        numbers, categories = select_columns(inputs, "number"), select_columns(inputs, "category")
        needs_float64 = any(_needs_float64(c.mean, c.std) for c in numbers)
        self.dtype = torch.float64 if needs_float64 else torch.float32
        mean = torch.tensor([c.mean for c in numbers], dtype=torch.float64)
        self.register_buffer("mean", mean.to(self.dtype))
        self.register_buffer("rest", (mean - self.mean.double()).to(self.dtype))
        self.register_buffer("std", torch.tensor([c.std for c in numbers], dtype=self.dtype))
        index_buffers = {
            "flagged": [i for i, c in enumerate(numbers) if c.blanks],
            "owner": [i for i, c in enumerate(categories) for _ in c.values],
            "place": [k for c in categories for k in range(c.width)],
            "order": _compute_input_order(inputs.columns),
        }
        for name, indices in index_buffers.items():
            self.register_buffer(name, torch.tensor(indices, dtype=torch.long))

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


def select_columns(inputs: TablePreprocessor, kind: ColumnKind) -> list[Column]:
    """Return the columns of one kind, in order."""
    return [column for column in inputs.columns if column.kind == kind]


def _compute_input_order(columns: tuple[Column, ...]) -> list[int]:
    """Return where the inputs of the columns lie among all numbers, then flags, then categories."""
    has_flag = [column.blanks for column in columns if column.kind == "number"]
    number, flag, category = 0, len(has_flag), len(has_flag) + sum(has_flag)
    order: list[int] = []
    for column in columns:
        if column.kind == "number":
            order += [number, flag] if column.blanks else [number]
            number, flag = number + 1, flag + column.blanks
        else:
            order += range(category, category + column.width)
            category += column.width
    return order


class ImageEncoder(nn.Module):
    """ImagePreprocessor for exported models; takes 8-bit grey levels, or other raw values."""

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]

    def __init__(self, inputs: ImagePreprocessor) -> None:
        super().__init__()
        self.inputs = inputs
        max_abs = max(abs(inputs.low), abs(inputs.high))
        needs_float64 = _needs_float64(max_abs, inputs.high - inputs.low)
        self.dtype = torch.float64 if needs_float64 else torch.float32
        self.dtype = torch.uint8 if inputs.takes_uint8 else self.dtype
        pixels = inputs.normalization.to(torch.device("cpu"), torch.float32)
        self.register_buffer("mean", pixels.mean)
        self.register_buffer("std", pixels.std)

    def forward(self, images: Tensor) -> Tensor:
        levels = images if self.inputs.takes_uint8 else self.inputs.round_levels(images)
        return Normalize(self.mean, self.std).apply(levels)


def _needs_float64(mean: float, std: float) -> bool:
    """Return whether float32 is too coarse, or too small, for values of this mean and std."""
    return abs(mean) > MAX_MEAN_STD_RATIO * std or not MIN_FLOAT32_STD < std < 1 / MIN_FLOAT32_STD


class EndToEndModel(nn.Module):
    """From raw values to named answers."""

    def __init__(self, predictor: Predictor, inputs: ExportableInputs) -> None:
        super().__init__()
        self.predictor = predictor
        self.encoder = (
            TableEncoder(inputs) if isinstance(inputs, TablePreprocessor) else ImageEncoder(inputs)
        )

    @property
    def dtype(self) -> str:
        """Return the dtype of numbers, or of images."""
        return str(self.encoder.dtype).removeprefix("torch.")

    def forward(
        self,
        numbers: Tensor | None = None,
        categories: Tensor | None = None,
        images: Tensor | None = None,
    ) -> dict[str, Tensor]:
        encoded = self.encoder(numbers, categories) if images is None else self.encoder(images)
        predictions = self.predictor(encoded)
        if self.predictor.is_classifier:
            return {"probabilities": predictions, "label": predictions.argmax(dim=1)}
        return {"values": predictions}
