"""A fit folder: what `l2i fit` saves, and `impute`, `predict`, `export` and `report` read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from l2i.config.serialization import from_dict
from l2i.errors import DamagedFile, InputError
from l2i.files.digest import hash_content, hash_file
from l2i.files.output import PARTIAL_SUFFIX, write_atomic
from l2i.files.safety import check_regular_file, check_tree, is_file
from l2i.fit.readers.parquet import read_parquet
from l2i.training.run_dir import FIT_FILE, LOCK_FILE

META_FILE, ROWS_FILE, OUTPUTS_FILE = FIT_FILE, "rows.parquet", "outputs.safetensors"
MODEL_FILE = "model.safetensors"  # of a table's model; networks of other data have run folders
FORMAT_VERSION = 2
FINAL = "final"  # the outputs to impute by, if they are not those of a candidate
IDENTITY_FILE = "identity.json"  # written first: data, options and configuration
REPORT_FILE = "report.html"
RESTORE_HINT = "restore it, or fit again with a different --out"
MAX_SLOPE = 10.0  # of a log std
MAX_SAMPLE_VALUES = 100_000_000  # values per sample
PREFERENCE_ORDER = ("l2i", "baseline", "supervised")  # ties go to the first
SplitName = Literal["labeled", "unlabeled", "validation", "test"]
Mask = NDArray[np.bool_]  # [N], of rows
Floats = NDArray[np.float64]
DAMAGE = (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One of the models that were compared on the same rows."""

    name: str
    """supervised, baseline (without L2I) or l2i, also the name of its run folder in the fit's; or
    of a table, the name of a candidate."""
    title: str
    """Its description, such as 'fixmatch + L2I'."""
    validation_metric: float
    """Metric on the validation rows, or of cross-validation; lower is better. NaN if unknown."""
    validation_cost: float
    """Mean loss on the validation rows, or of cross-validation; NaN if it was not computed."""
    test_metric: float | None
    """Metric on the test rows, if there are any; nothing is selected by it."""
    steps: int
    seconds: float
    level: int = 0
    """Of a table: 0 learns from the labels alone, 1 from unlabelled rows too, 2 imputes."""

    @property
    def sort_key(self) -> tuple[float, int]:
        """Sort by the validation metric, with ties in the order of preference."""
        is_network = self.name in PREFERENCE_ORDER
        order = PREFERENCE_ORDER.index(self.name) if is_network else self.level
        return self.validation_metric, order


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A setting that was chosen from the data, and the reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RowPreview:
    """An input row to show in a report."""

    row: int
    """Its index in the input, from 0."""
    png_base64: str | None = None
    fields: dict[str, str] | None = None
    """Columns of a table, including text columns."""


@dataclass(frozen=True, kw_only=True)
class FitRows:
    """Values per input row, in the order of the input."""

    ids: list[str]
    split_names: NDArray[np.str_]  # [N], of SplitName
    given_labels: NDArray[Any]  # [N] class numbers, −1 if blank; or [N, D] targets, NaN if blank
    outputs: dict[str, NDArray[Any]]  # candidate -> [N, C] logits, or [N, D] targets in their units
    change_counts: NDArray[np.int64]  # [N], label changes of the selected model over the snapshots
    predictive_std: NDArray[np.float32] | None = None  # [N, D], regression: uncalibrated
    sizes: NDArray[np.int64] | None = None  # [N, 2], original width and height of images
    is_foreign: NDArray[np.bool_] | None = None  # [N], of a table: like none of the labelled rows
    groups: NDArray[Any] | None = None  # [N], of a table: rows of one group are alike


@dataclass(frozen=True, kw_only=True)
class FitArtifact:
    """Everything but the networks, which lie in the run folders of the candidates."""

    source: dict[str, Any]
    """Path, layout (table, folder, paths or arrays), and the options it was read with."""
    inputs: dict[str, Any]
    """How raw inputs become network inputs (see fit.preprocess)."""
    shape: tuple[int, ...]
    """Shape of a network input."""
    classes: tuple[str, ...] | None
    """Names of the classes; None for regression."""
    targets: tuple[str, ...]
    """Names of the target columns; 'class' if a folder's name is the label."""
    has_landmarks: bool = False
    """Whether targets are points x, y, … in pixels of the images as the network sees them."""
    metric_name: str
    metric_description: str
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    """What was done about irregularities of the data, one line per entry."""
    candidates: tuple[Candidate, ...]
    selected_name: str
    """The candidate selected by the validation rows (see fit.candidates)."""
    num_snapshots: int
    """Number of evaluations over which changes were counted."""
    temperature: float = 1.0
    """Classification: divides the logits, fitted on the validation rows or out of fold."""
    std_scale: float = 1.0
    """Regression: multiplies the predictive stds, fitted on the validation rows."""
    num_folds: int = 0
    """Of a table: folds that the candidates were compared in; 0 if there are validation rows."""
    model: dict[str, Any] | None = None
    """Of a table: the kind of the model whose tensors are saved; None for networks of runs."""
    skipped: tuple[str, ...] = ()
    """Candidates that were not compared, and why."""
    interval_factors: tuple[float, ...] = ()
    """Regression on a table: multiples of the predictive stds that cover 90 % of new targets."""
    error_std: tuple[float, ...] = ()
    """Likewise: std of the errors out of fold, in the targets' units."""
    std_slopes: tuple[float, ...] = ()
    """Likewise: by how much the log std grows with the standardised prediction."""
    std_by_distance: bool = False
    """Likewise: whether stds grow with the distance to the labelled rows."""
    is_balanced: bool = False
    """Of a table: whether every class counts the same in its metrics."""
    class_shares: tuple[float, ...] = ()
    """Of a table whose classes count the same: their shares among the labelled rows, at which
    confidences hold."""
    foreign_limit: float | None = None
    """Of a table: distance beyond which a row is like none of the labelled ones."""
    target_mean: tuple[float, ...] = ()
    """Regression: mean of each labelled target; the network sees (target − mean) / std."""
    target_std: tuple[float, ...] = ()
    """Regression: std of each labelled target, in its units."""
    covariate_shift_auc: float | None = None
    """ROC AUC of telling labelled from unlabelled rows by their inputs; 0.5 means not at all."""
    mask_rate: float | None = None
    """FixMatch and UDA: final share of unlabelled rows that pass the confidence mask."""
    previews: tuple[RowPreview, ...] = ()
    """The rows with the most and the least confident imputed labels."""
    grid_previews: tuple[RowPreview, ...] = ()
    """Images by class, and those like none of the labelled ones."""
    files: dict[str, str] = field(default_factory=dict)
    """The checksum of every file of the fit, by its path in the folder."""
    version: int = FORMAT_VERSION

    def get_candidate(self, name: str) -> Candidate | None:
        return next((c for c in self.candidates if c.name == name), None)

    @property
    def selected(self) -> Candidate:
        candidate = self.get_candidate(self.selected_name)
        assert candidate is not None
        return candidate


def write_fit(folder: Path, fitted: FitArtifact, rows: FitRows) -> None:
    """Save a fit; fit.json, with the checksums of all files, comes last and marks it complete."""
    import pandas as pd
    from safetensors.numpy import save

    columns = {"id": rows.ids, "part": rows.split_names.astype(object)}
    if rows.groups is not None:
        columns["group"] = rows.groups.astype(object)
    frame = pd.DataFrame({**columns, "changes": rows.change_counts})
    outputs = {f"outputs.{name}": values for name, values in rows.outputs.items()}
    foreign = None if rows.is_foreign is None else rows.is_foreign.astype(np.uint8)
    optional = {"spread": rows.predictive_std, "sizes": rows.sizes, "foreign": foreign}
    tensors = {"given": rows.given_labels, **outputs, **optional}
    contiguous = {n: np.ascontiguousarray(v) for n, v in tensors.items() if v is not None}
    write_atomic(folder / ROWS_FILE, frame.to_parquet(index=False))
    write_atomic(folder / OUTPUTS_FILE, save(contiguous))
    write_meta(folder, asdict(fitted))


def write_meta(folder: Path, content: dict[str, Any]) -> None:
    """Write fit.json with the checksums of the fit's files, and of its own other fields."""
    content = {**content, "files": hash_fit_files(folder)}
    content["checksum"] = _hash_fields(content)
    write_atomic(folder / META_FILE, (json.dumps(content, indent=1) + "\n").encode())


def hash_fit_files(folder: Path) -> dict[str, str]:
    """Return the checksum of every file of a fit by its path; a report may be written later."""
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        path.as_posix(): hash_file(folder / path)
        for path in paths
        if path.name != LOCK_FILE
        and path.suffix != PARTIAL_SUFFIX
        and path not in (Path(META_FILE), Path(REPORT_FILE))
    }


def _hash_fields(content: dict[str, Any]) -> str:
    fields = {name: value for name, value in content.items() if name != "checksum"}
    return hash_content(json.dumps(fields, sort_keys=True).encode())


def read_fit(folder: str | Path) -> tuple[FitArtifact, FitRows]:
    """Read what `write_fit` saved; raise an InputError if the folder holds no complete fit."""
    path = Path(folder)
    if not (path / META_FILE).is_file():
        is_unfinished = (path / IDENTITY_FILE).is_file()
        raise InputError(
            f"{folder} is an unfinished fit; repeat the same 'l2i fit' command to resume it"
            if is_unfinished
            else f"{folder} is not a fit folder (it has no {META_FILE}); use the folder that "
            "'l2i fit' printed"
        )
    check_tree(path)
    with _translate_damage(path):
        content = dict(**json.loads(check_regular_file(path / META_FILE).read_text("utf-8")))
    if content.get("version", FORMAT_VERSION) != FORMAT_VERSION:
        problem = f"{folder} was written by another version of l2i"
        raise InputError(f"{problem}; fit again with a different --out")
    with _translate_damage(path):
        fitted = _parse_artifact(path, content)
        rows = _read_rows(path, fitted)
        if not _are_consistent(fitted, rows):
            raise ValueError("rows and fit do not match")
        return fitted, rows


@contextmanager
def _translate_damage(folder: Path) -> Iterator[None]:
    """Turn what reading damaged files raises into DamagedFile."""
    from safetensors import SafetensorError

    try:
        yield
    except DamagedFile:
        raise
    except (*DAMAGE, SafetensorError):
        raise DamagedFile(f"{folder} is damaged; {RESTORE_HINT}") from None


def list_data_paths(folder: Path, fitted: FitArtifact) -> list[Path]:
    """Return where the data of a fit lay, and a file of the name that was given for them."""
    paths = [path for path in [fitted.source.get("path")] if isinstance(path, str)]
    paths = [path for path in paths if is_file(Path(path).expanduser())]  # '.' is another now
    with suppress(*DAMAGE):
        paths.append(json.loads((folder / IDENTITY_FILE).read_text(encoding="utf-8"))["path"])
    return [Path(path).expanduser() for path in paths if isinstance(path, str)]


def read_checked(folder: Path, fitted: FitArtifact, name: str) -> bytes:
    """Return the content of a file of a fit, after checking that it is as it was saved."""
    path = folder / name
    try:
        content = check_regular_file(path).read_bytes()
    except (OSError, InputError):
        raise _make_missing_error(path) from None
    if hash_content(content) != fitted.files.get(name):
        raise _make_swapped_error(path)
    return content


def check_files(folder: Path, fitted: FitArtifact, names: Iterable[str]) -> None:
    """Check that files of a fit, too large to be held in memory twice, are as they were saved."""
    for name in names:
        path = folder / name
        try:
            digest = hash_file(check_regular_file(path))
        except (OSError, InputError):
            raise _make_missing_error(path) from None
        if digest != fitted.files.get(name):
            raise _make_swapped_error(path)


def _make_missing_error(path: Path) -> DamagedFile:
    return DamagedFile(f"{path} is missing or cannot be read; {RESTORE_HINT}")


def _make_swapped_error(path: Path) -> DamagedFile:
    problem = f"is damaged or another file: its checksum is not the one in {META_FILE}"
    return DamagedFile(f"{path} {problem}; {RESTORE_HINT}")


def _are_consistent(fitted: FitArtifact, rows: FitRows) -> bool:
    """Return whether the files belong to one fit and hold usable values."""
    is_regression = fitted.classes is None
    count = len(rows.ids)
    width = len(fitted.target_std if fitted.classes is None else fitted.classes)
    labels, spread = rows.given_labels, [rows.predictive_std] if is_regression else []
    scales = (fitted.temperature, fitted.std_scale, *fitted.target_std)
    return (
        _are_outputs_consistent(fitted, rows, (count, width))
        and fitted.get_candidate(fitted.selected_name) is not None
        and all(_is_finite(values, (count, width)) for values in spread)
        and (rows.is_foreign is None or rows.is_foreign.shape == (count,))
        and _are_errors_consistent(fitted, width)
        and labels.shape == ((count, width) if is_regression else (count,))
        and labels.dtype.kind in ("f" if is_regression else "iu")
        and (is_regression or bool((labels < width).all()))
        and len(fitted.class_shares) in (0, width)
        and all(0 < share <= 1 for share in fitted.class_shares)
        and all(isinstance(row_id, str) for row_id in rows.ids)
        and min(fitted.shape, default=0) > 0
        and math.prod(fitted.shape) <= MAX_SAMPLE_VALUES
        and all(math.isfinite(scale) and scale > 0 for scale in scales)
    )


def _are_errors_consistent(fitted: FitArtifact, width: int) -> bool:
    """Check the stds and intervals of a table's targets, and the limit of foreign rows."""
    has_stds = fitted.model is not None and fitted.classes is None
    values = [*fitted.error_std, *fitted.interval_factors]
    values += [] if fitted.foreign_limit is None else [fitted.foreign_limit]
    num_stds = {len(fitted.error_std), len(fitted.std_slopes)}
    return (
        num_stds == {width if has_stds else 0}
        and len(fitted.interval_factors) in (0, width)
        and all(math.isfinite(value) and value >= 0 for value in values)
        and all(abs(slope) <= MAX_SLOPE for slope in fitted.std_slopes)
    )


def _are_outputs_consistent(fitted: FitArtifact, rows: FitRows, shape: tuple[int, ...]) -> bool:
    """Check outputs; candidates of a table may have none (NaN) of rows that were not held out."""
    if fitted.model is None:
        names = [candidate.name for candidate in fitted.candidates]
        is_known = all(name in PREFERENCE_ORDER for name in names)
        is_usable = all(_is_finite(values, shape) for values in rows.outputs.values())
        return is_known and is_usable and fitted.selected_name in rows.outputs
    has_shape = all(
        values.shape == shape and values.dtype.kind == "f" for values in rows.outputs.values()
    )
    return has_shape and _is_finite(rows.outputs.get(FINAL), shape)


def _is_finite(values: NDArray[Any] | None, shape: tuple[int, ...]) -> bool:
    if values is None or values.shape != shape or values.dtype.kind != "f":
        return False
    return bool(np.isfinite(values).all())


def _parse_artifact(path: Path, content: dict[str, Any]) -> FitArtifact:
    if content.get("checksum") != _hash_fields(content):
        problem = f"{path / META_FILE} was changed after it was saved"
        raise DamagedFile(f"{problem}; {RESTORE_HINT}")
    names = {f.name for f in fields(FitArtifact)}
    return from_dict(FitArtifact, {k: v for k, v in content.items() if k in names})


def _read_rows(path: Path, fitted: FitArtifact) -> FitRows:
    from safetensors.numpy import load

    rows_content = read_checked(path, fitted, ROWS_FILE)
    table = read_parquet(path / ROWS_FILE, rows_content).table
    tensors = load(read_checked(path, fitted, OUTPUTS_FILE))
    foreign, has_groups = tensors.get("foreign"), "group" in table.column_names
    split_names = table["part"].to_pylist()
    # checked before numpy sees them: an array is as wide as its longest word
    if not set(split_names) <= set(get_args(SplitName)):
        raise ValueError("not parts of a split")
    groups = table["group"].to_pylist() if has_groups else []
    if not all(isinstance(group, str) for group in groups):
        raise ValueError("not names of groups")
    prefix = "outputs."
    outputs = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    return FitRows(
        ids=table["id"].to_pylist(),
        split_names=np.array(split_names, dtype=np.str_),
        given_labels=tensors["given"],
        outputs=outputs,
        change_counts=table["changes"].to_numpy(),
        predictive_std=tensors.get("spread"),
        sizes=tensors.get("sizes"),
        is_foreign=None if foreign is None else foreign.astype(bool),
        groups=np.array(groups, dtype=object) if has_groups else None,
    )


def get_outputs(fitted: FitArtifact, rows: FitRows) -> NDArray[Any]:
    """Return the outputs to impute and to measure by: those of the selected candidate."""
    return rows.outputs[FINAL if FINAL in rows.outputs else fitted.selected_name]
