"""Load the network of a fit, encode its inputs, and turn its outputs into predictions."""

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
from l2i.candidates.distance import LabeledDistance
from l2i.candidates.storage import build_model
from l2i.config import Run
from l2i.config.validate import validate
from l2i.data.samples import Samples
from l2i.errors import DamagedFile
from l2i.fit.artifact import (
    DAMAGE,
    MODEL_FILE,
    RESTORE_HINT,
    FitArtifact,
    check_files,
    read_checked,
)
from l2i.fit.preprocess import (
    ENCODER_DIR,
    MAX_MEAN_STD_RATIO,
    FeaturePreprocessor,
    ImageEncoder,
    ImagePreprocessor,
    TableEncoder,
    TablePreprocessor,
    TextPreprocessor,
    find_saved_encoder,
    load_preprocessor,
)
from l2i.fit.projection import Projection, load_projection
from l2i.models import MODELS
from l2i.models.base import ModelConfig
from l2i.registry import load_registered
from l2i.training.checkpoint import get_checkpoint_path, load_checkpoint
from l2i.training.evaluation import compute_outputs, extract_curve, find_best_step
from l2i.training.loading import read_metric_rows
from l2i.training.run_dir import BEST_DIR, read_run
from l2i.training.setup import check_shapes, load_module_state, select_prefix

if TYPE_CHECKING:
    import pandas as pd

ExportableInputs = TablePreprocessor | ImagePreprocessor | FeaturePreprocessor


def load_network(folder: Path, fitted: FitArtifact) -> nn.Module:
    """Load the chosen model, in evaluation mode on the CPU; of a network, the averaged one."""
    if fitted.model is not None:
        return load_table_model(folder, fitted)[0]
    name = fitted.selected_name
    encoder_files = [path for path in fitted.files if path.startswith(f"{ENCODER_DIR}/")]
    check_files(folder, fitted, [f"{name}/config.json", *encoder_files])
    run = read_run(folder / name)
    validate(run)  # the folder may be untrusted
    tensors = _load_teacher(folder, fitted, run)
    build = partial(_build_network, folder, fitted, run.model)
    if run.model.name != "encoder":
        check_shapes(build, tensors)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        network = build()
    load_module_state(network, tensors)
    return network.float().requires_grad_(False).eval()


def load_table_model(folder: Path, fitted: FitArtifact) -> tuple[nn.Module, LabeledDistance]:
    """Load the model of a table, and what measures how far rows are from the labelled ones."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    content = read_checked(folder, fitted, MODEL_FILE)
    num_inputs, num_outputs = fitted.shape[0], count_outputs(fitted)
    is_classifier = fitted.classes is not None
    try:
        tensors = load(content)
        model = build_model(
            fitted.model or {},
            select_prefix(tensors, "model"),
            num_inputs=num_inputs,
            num_outputs=num_outputs,
            is_classifier=is_classifier,
        )
        rows, usual = tensors["distance.rows"], tensors["distance.usual"]
        is_distance = rows.ndim == 2 and rows.shape[1] == num_inputs and not usual.ndim
        if not is_distance or not len(rows) or not 0 < float(usual) < float("inf"):
            raise ValueError("distances do not fit the model")
        return model.requires_grad_(False), LabeledDistance(rows, usual)
    except (*DAMAGE, SafetensorError, RuntimeError):
        raise DamagedFile(f"{folder / MODEL_FILE} is damaged; {RESTORE_HINT}") from None


def _build_network(folder: Path, fitted: FitArtifact, model: ModelConfig) -> nn.Module:
    """Build the network without its tensors; a pretrained one from the config in the folder."""
    if model.name == "encoder":
        from l2i.models.text_encoder import build_empty_encoder

        model = replace(model, weights=find_saved_encoder(folder))
        return build_empty_encoder(count_outputs(fitted), model)
    build = load_registered("model", MODELS, model.name)
    own = replace(model, weights=None)  # those of the checkpoint are loaded
    network: nn.Module = build(fitted.shape, count_outputs(fitted), own)
    return network


def count_outputs(fitted: FitArtifact) -> int:
    """Return the number of outputs; a landmark file has more of them than target names."""
    return len(fitted.target_mean) if fitted.classes is None else len(fitted.classes)


def _load_teacher(folder: Path, fitted: FitArtifact, run: Run) -> Params:
    """Load the averaged model's tensors: the newest, or those that early stopping chose."""
    name, prefix = fitted.selected_name, f"{fitted.selected_name}/checkpoints/"
    if run.report == "best":
        check_files(folder, fitted, [f"{name}/metrics.jsonl"])
        best_step = find_best_step(extract_curve(read_metric_rows(folder / name), "validation"))
        path = get_checkpoint_path(Path(name) / BEST_DIR, best_step).as_posix()
    else:
        path = max((p for p in fitted.files if p.startswith(prefix)), default=prefix)
    check_files(folder, fitted, [path])
    checkpoint = load_checkpoint(folder / path)
    if checkpoint is None:
        raise DamagedFile(f"{folder / path} is damaged; {RESTORE_HINT}")
    return select_prefix(checkpoint[0], "teacher")


def encode_inputs(
    fitted: FitArtifact, raw_inputs: pd.DataFrame | NDArray[Any], folder: Path | None = None
) -> Tensor:
    """Encode a raw table, raw images [N, C, S, S] of the network's size, or features of images.

    Texts are read with the tokenizer saved in `folder`, or else that of the pretrained weights.
    """
    inputs = load_preprocessor(fitted.inputs)
    if isinstance(inputs, FeaturePreprocessor):
        assert folder is not None
        return load_projection(folder, fitted).project(np.asarray(raw_inputs))
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
    shares: Tensor  # [C]

    def __init__(self, network: nn.Module, fitted: FitArtifact) -> None:
        super().__init__()
        self.network, self.temperature = network, fitted.temperature
        self.is_classifier = fitted.classes is not None
        self.has_shares = bool(fitted.class_shares)  # of the classes, where they counted the same
        self.register_buffer("shares", torch.tensor(fitted.class_shares))
        scales = zip(fitted.target_mean, fitted.target_std, strict=True)
        needs_float64 = any(abs(mean) > MAX_MEAN_STD_RATIO * std for mean, std in scales)
        dtype = torch.float64 if needs_float64 else torch.float32
        self.register_buffer("mean", torch.tensor(fitted.target_mean, dtype=dtype))
        self.register_buffer("std", torch.tensor(fitted.target_std, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        decoded = self.decode(self.network(x))
        if not self.is_classifier:
            return decoded
        logits = decoded / self.temperature
        return torch.softmax(logits + self.shares.log() if self.has_shares else logits, dim=1)

    def find_labels(self, probability: Tensor) -> Tensor:
        """Return the classes of the largest logits, [N]."""
        return (probability / self.shares if self.has_shares else probability).argmax(dim=1)

    def decode(self, outputs: Tensor) -> Tensor:
        """Return logits as they are, and standardised targets in their units."""
        return outputs if self.is_classifier else outputs.to(self.std.dtype) * self.std + self.mean


class FeatureEncoder(nn.Module):
    """From grey levels of images [N, 3, S, S] to projected features, for exported models."""

    mean: Tensor  # [3, 1, 1]
    std: Tensor  # [3, 1, 1]
    dtype = torch.uint8

    def __init__(self, inputs: FeaturePreprocessor, projection: Projection) -> None:
        super().__init__()
        encoder = inputs.load_encoder()
        self.network, self.projection = encoder.network, projection
        self.register_buffer("mean", torch.tensor(encoder.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(encoder.std).view(3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        projected: Tensor = self.projection(self.network((images.float() - self.mean) / self.std))
        return projected


class EndToEndModel(nn.Module):
    """From raw values to named predictions."""

    def __init__(
        self, predictor: Predictor, inputs: ExportableInputs, projection: Projection | None = None
    ) -> None:
        super().__init__()
        self.predictor = predictor
        self.encoder: TableEncoder | ImageEncoder | FeatureEncoder
        if isinstance(inputs, FeaturePreprocessor):
            assert projection is not None
            self.encoder = FeatureEncoder(inputs, projection)
        elif isinstance(inputs, TablePreprocessor):
            self.encoder = TableEncoder(inputs)
        else:
            self.encoder = ImageEncoder(inputs)

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
            return {"probabilities": predictions, "label": self.predictor.find_labels(predictions)}
        return {"values": predictions}
