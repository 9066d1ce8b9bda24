"""A fit folder: what `l2i fit` found out, as `impute`, `predict`, `export` and `report` read it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from l2i.config.serialization import from_dict
from l2i.errors import InputError
from l2i.files.atomic import write_atomic
from l2i.files.safety import check_regular_file, check_tree
from l2i.fit.readers.parquet import read_parquet
from l2i.training.run_dir import FIT_FILE

META_FILE, ROWS_FILE, OUTPUTS_FILE = FIT_FILE, "rows.parquet", "outputs.safetensors"
FORMAT_VERSION = 1
MAX_SAMPLE_VALUES = 100_000_000  # of a sample
PREFERENCE_ORDER = ("l2i", "baseline", "supervised")  # what has learned from more first
SplitName = Literal["labeled", "unlabeled", "validation", "test"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One of the networks that were trained on the same split."""

    name: str
    """supervised, baseline (without L2I) or l2i; the run folder of that name lies in the fit folder."""
    title: str
    """In words, such as 'fixmatch + L2I'."""
    validation_metric: float
    """The figure on the validation rows, lower is better."""
    validation_cost: float
    """The mean loss there."""
    test_metric: float | None
    """The figure on the test rows, where there are any; nothing is chosen by it."""
    steps: int
    seconds: float

    @property
    def sort_key(self) -> tuple[float, int]:
        """By the validation figure; of equal ones, what has learned from more comes first."""
        return self.validation_metric, PREFERENCE_ORDER.index(self.name)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Something that was chosen from the data, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RowPreview:
    """A row as a person can look at it."""

    row: int
    """Its place in the input, from 0."""
    png_base64: str | None = None
    """A PNG, base64."""
    fields: dict[str, str] | None = None
    """A table's columns; a text column is one of them."""


@dataclass(frozen=True, kw_only=True)
class FitRows:
    """A value or row of values for each row of the input, in its order."""

    ids: list[str]
    split_names: NDArray[np.str_]  # [N], of Part
    given_labels: NDArray[Any]  # [N] class numbers, −1 where blank; or [N, D] targets, NaN where blank
    outputs: dict[str, NDArray[Any]]  # candidate -> [N, C] logits, or [N, D] targets in their units
    change_counts: NDArray[np.int64]  # [N], how often the chosen model's label changed over the snapshots
    predictive_std: NDArray[np.float32] | None = None  # [N, D], regression: over augmentations and snapshots, uncalibrated
    sizes: NDArray[np.int64] | None = None  # [N, 2], width and height of images before they were brought to one size


@dataclass(frozen=True, kw_only=True)
class FitArtifact:
    """Everything but the networks, which lie in the run folders of the candidates."""

    source: dict[str, Any]
    """kind (table, images, arrays or landmarks), path, and the options that it was read with."""
    inputs: dict[str, Any]
    """How raw inputs become the network's (see own.prepare)."""
    shape: tuple[int, ...]
    """Of a sample as the network sees it."""
    classes: tuple[str, ...] | None
    """Names of the classes; None for regression."""
    targets: tuple[str, ...]
    """Names of the target columns; 'class' where a folder's name is the label."""
    has_landmarks: bool = False
    """Whether targets are points x, y, … in pixels of the images as the network sees them."""
    metric_name: str
    metric_description: str
    """What the figure says, in words."""
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    """What was done about the data's oddities, a line each."""
    candidates: tuple[Candidate, ...]
    selected_name: str
    """The candidate that the validation rows speak for (see own.select)."""
    num_snapshots: int
    """Evaluations over which changes were counted."""
    temperature: float = 1.0
    """Classification: what logits are divided by, found on the validation rows."""
    std_scale: float = 1.0
    """Regression: what spreads are multiplied by, found on the validation rows."""
    target_mean: tuple[float, ...] = ()
    """Regression: the mean of each labelled target, in its units; the network sees (target − mean) / std."""
    target_std: tuple[float, ...] = ()
    """Regression: the spread of each labelled target, in its units."""
    covariate_shift_auc: float | None = None
    """How well labelled and unlabelled rows can be told apart by their inputs: the area under the ROC curve, 0.5 for
    not at all; None where that could not be measured."""
    mask_rate: float | None = None
    """FixMatch and UDA: the share of unlabelled rows that were confident enough to count, at the end."""
    previews: tuple[RowPreview, ...] = ()
    """The rows whose imputed labels are the most and the least sure, to be shown."""
    version: int = FORMAT_VERSION

    def get_candidate(self, name: str) -> Candidate | None:
        return next((c for c in self.candidates if c.name == name), None)

    @property
    def selected(self) -> Candidate:
        candidate = self.get_candidate(self.selected_name)
        assert candidate is not None
        return candidate


def write_fit(folder: Path, fitted: FitArtifact, rows: FitRows) -> None:
    """Write a fit down; fit.json comes last and marks it as whole."""
    import pandas as pd
    from safetensors.numpy import save

    frame = pd.DataFrame({"id": rows.ids, "part": rows.split_names.astype(object), "changes": rows.change_counts})
    tensors = {"given": rows.given_labels, **{f"outputs.{name}": values for name, values in rows.outputs.items()}}
    tensors |= {name: t for name, t in (("spread", rows.predictive_std), ("sizes", rows.sizes)) if t is not None}
    write_atomic(folder / ROWS_FILE, frame.to_parquet(index=False))
    write_atomic(folder / OUTPUTS_FILE, save({name: np.ascontiguousarray(values) for name, values in tensors.items()}))
    write_atomic(folder / META_FILE, (json.dumps(asdict(fitted), indent=1, ensure_ascii=False) + "\n").encode())


def read_fit(folder: str | Path) -> tuple[FitArtifact, FitRows]:
    """What `write_fit` wrote; an InputError where the folder holds no whole fit."""
    path = Path(folder)
    if not (path / META_FILE).is_file():
        is_unfinished = (path / "l2i").is_dir() or (path / "supervised").is_dir()
        raise InputError(
            f"{folder} is an unfinished fit; the command that began it goes on with it"
            if is_unfinished
            else f"{folder} is not the folder of a fit (it has no {META_FILE}); give the one that 'l2i fit' printed"
        )
    from safetensors import SafetensorError

    check_tree(path)
    try:
        fitted, rows = _read_artifact(path), _read_rows(path)
        _check_consistent(fitted, rows)
        return fitted, rows
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, SafetensorError):
        raise InputError(f"{folder} is damaged; restore it, or fit again in another --out") from None


def _check_consistent(fitted: FitArtifact, rows: FitRows) -> None:
    """That the files are of one fit, with values that can be reckoned with; one of several errors otherwise."""
    count = len(rows.ids)
    width = len(fitted.target_std) if fitted.classes is None else len(fitted.classes)
    labels_shape = (count, width) if fitted.classes is None else (count,)
    label_kinds = "f" if fitted.classes is None else "iu"
    output_arrays = [*rows.outputs.values(), *([rows.predictive_std] if fitted.classes is None else [])]
    scales = (fitted.temperature, fitted.std_scale, *fitted.target_std)
    if not (
        all(candidate.name in PREFERENCE_ORDER for candidate in fitted.candidates)
        and fitted.get_candidate(fitted.selected_name) is not None
        and fitted.selected_name in rows.outputs
        and all(values is not None and _is_finite_array(values, (count, width)) for values in output_arrays)
        and rows.given_labels.shape == labels_shape
        and rows.given_labels.dtype.kind in label_kinds
        and all(isinstance(row_id, str) for row_id in rows.ids)
        and min(fitted.shape, default=0) > 0
        and math.prod(fitted.shape) <= MAX_SAMPLE_VALUES
        and all(math.isfinite(scale) and scale > 0 for scale in scales)
    ):
        raise ValueError("rows and fit do not match")


def _is_finite_array(values: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return values.shape == shape and values.dtype.kind == "f" and bool(np.isfinite(values).all())


def _read_artifact(path: Path) -> FitArtifact:
    json_fields = json.loads(check_regular_file(path / META_FILE).read_text(encoding="utf-8"))
    field_names = {field.name for field in fields(FitArtifact)}
    json_fields = {name: value for name, value in json_fields.items() if name in field_names}
    return cast(FitArtifact, from_dict(FitArtifact, json_fields))


def _read_rows(path: Path) -> FitRows:
    from safetensors.numpy import load

    table, tensors = read_parquet(path / ROWS_FILE).table, load(check_regular_file(path / OUTPUTS_FILE).read_bytes())
    split_names = table["part"].to_pylist()
    if not set(split_names) <= set(get_args(SplitName)):  # asked here: an array is as wide as its longest word
        raise ValueError("not parts of a split")
    outputs = {name.partition(".")[2]: t for name, t in tensors.items() if name.startswith("outputs.")}
    return FitRows(
        ids=table["id"].to_pylist(),
        split_names=np.array(split_names, dtype=np.str_),
        given_labels=tensors["given"],
        outputs=outputs,
        change_counts=table["changes"].to_numpy(),
        predictive_std=tensors.get("spread"),
        sizes=tensors.get("sizes"),
    )
