"""A fit folder: what `l2i fit` found out, as `impute`, `predict`, `export` and `report` read it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from l2i.data.limits import check_tree, plain_file
from l2i.errors import InputError
from l2i.own.read_parquet import read_parquet
from l2i.plain import built
from l2i.training.checkpoint import write_whole
from l2i.training.folder import FIT

META, ROWS, OUTPUTS = FIT, "rows.parquet", "outputs.safetensors"
VERSION = 1
MOST_VALUES = 100_000_000  # of a sample
PREFERRED = ("l2i", "baseline", "supervised")  # what has learned from more first
Part = Literal["labeled", "unlabeled", "validation", "test"]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One of the networks that were trained on the same split."""

    name: str
    """supervised, baseline (without L2I) or l2i; the run folder of that name lies in the fit folder."""
    title: str
    """In words, such as 'fixmatch + L2I'."""
    validation: float
    """The figure on the validation rows, lower is better."""
    validation_cost: float
    """The mean loss there."""
    test: float | None
    """The figure on the test rows, where there are any; nothing is chosen by it."""
    steps: int
    seconds: float

    @property
    def rank(self) -> tuple[float, int]:
        """By the validation figure; of equal ones, what has learned from more comes first."""
        return self.validation, PREFERRED.index(self.name)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Something that was chosen from the data, and why."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A row as a person can look at it."""

    row: int
    """Its place in the input, from 0."""
    picture: str | None = None
    """A PNG, base64."""
    fields: dict[str, str] | None = None
    """A table's columns; a text column is one of them."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A value or row of values for each row of the input, in its order."""

    ids: list[str]
    parts: NDArray[np.str_]  # [N], of Part
    given: NDArray[Any]  # [N] class numbers, −1 where blank; or [N, D] targets, NaN where blank
    outputs: dict[str, NDArray[Any]]  # candidate -> [N, C] logits, or [N, D] targets in their units
    changes: NDArray[np.int64]  # [N], how often the chosen model's label changed over the snapshots
    spread: NDArray[np.float32] | None = None  # [N, D], regression: over augmentations and snapshots, uncalibrated
    sizes: NDArray[np.int64] | None = None  # [N, 2], width and height of images before they were brought to one size


@dataclass(frozen=True, kw_only=True)
class Fitted:
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
    points: bool = False
    """Whether targets are points x, y, … in pixels of the images as the network sees them."""
    figure_name: str
    meaning: str
    """What the figure says, in words."""
    choices: tuple[Choice, ...]
    notes: tuple[str, ...]
    """What was done about the data's oddities, a line each."""
    candidates: tuple[Candidate, ...]
    chosen: str
    """The candidate that the validation rows speak for (see own.select)."""
    snapshots: int
    """Evaluations over which changes were counted."""
    temperature: float = 1.0
    """Classification: what logits are divided by, found on the validation rows."""
    spread_scale: float = 1.0
    """Regression: what spreads are multiplied by, found on the validation rows."""
    target_mean: tuple[float, ...] = ()
    """Regression: the mean of each labelled target, in its units; the network sees (target − mean) / std."""
    target_std: tuple[float, ...] = ()
    """Regression: the spread of each labelled target, in its units."""
    unlike: float | None = None
    """How well labelled and unlabelled rows can be told apart by their inputs: the area under the ROC curve, 0.5 for
    not at all; None where that could not be measured."""
    mask: float | None = None
    """FixMatch and UDA: the share of unlabelled rows that were confident enough to count, at the end."""
    samples: tuple[Sample, ...] = ()
    """The rows whose imputed labels are the most and the least sure, to be shown."""
    version: int = VERSION

    def candidate(self, name: str) -> Candidate | None:
        return next((c for c in self.candidates if c.name == name), None)

    @property
    def best(self) -> Candidate:
        found = self.candidate(self.chosen)
        assert found is not None
        return found


def write_fit(folder: Path, fitted: Fitted, rows: Rows) -> None:
    """Write a fit down; fit.json comes last and marks it as whole."""
    import pandas as pd
    from safetensors.numpy import save

    frame = pd.DataFrame({"id": rows.ids, "part": rows.parts.astype(object), "changes": rows.changes})
    tensors = {"given": rows.given, **{f"outputs.{name}": values for name, values in rows.outputs.items()}}
    tensors |= {name: t for name, t in (("spread", rows.spread), ("sizes", rows.sizes)) if t is not None}
    write_whole(folder / ROWS, frame.to_parquet(index=False))
    write_whole(folder / OUTPUTS, save({name: np.ascontiguousarray(values) for name, values in tensors.items()}))
    write_whole(folder / META, (json.dumps(asdict(fitted), indent=1, ensure_ascii=False) + "\n").encode())


def read_fit(folder: str | Path) -> tuple[Fitted, Rows]:
    """What `write_fit` wrote; an InputError where the folder holds no whole fit."""
    path = Path(folder)
    if not (path / META).is_file():
        unfinished = (path / "l2i").is_dir() or (path / "supervised").is_dir()
        raise InputError(
            f"{folder} is an unfinished fit; the command that began it goes on with it"
            if unfinished
            else f"{folder} is not the folder of a fit (it has no {META}); give the one that 'l2i fit' printed"
        )
    from safetensors import SafetensorError

    check_tree(path)
    try:
        fitted, rows = _fitted(path), _rows(path)
        _check(fitted, rows)
        return fitted, rows
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, SafetensorError):
        raise InputError(f"{folder} is damaged; restore it, or fit again in another --out") from None


def _check(fitted: Fitted, rows: Rows) -> None:
    """That the files are of one fit, with values that can be reckoned with; one of several errors otherwise."""
    count = len(rows.ids)
    width = len(fitted.target_std) if fitted.classes is None else len(fitted.classes)
    given = (count, width) if fitted.classes is None else (count,)
    kinds = "f" if fitted.classes is None else "iu"
    alike = [*rows.outputs.values(), *([rows.spread] if fitted.classes is None else [])]
    scales = (fitted.temperature, fitted.spread_scale, *fitted.target_std)
    if not (
        all(candidate.name in PREFERRED for candidate in fitted.candidates)
        and fitted.candidate(fitted.chosen) is not None
        and fitted.chosen in rows.outputs
        and all(values is not None and _finite(values, (count, width)) for values in alike)
        and rows.given.shape == given
        and rows.given.dtype.kind in kinds
        and all(isinstance(row, str) for row in rows.ids)
        and min(fitted.shape, default=0) > 0
        and math.prod(fitted.shape) <= MOST_VALUES
        and all(math.isfinite(scale) and scale > 0 for scale in scales)
    ):
        raise ValueError("rows and fit do not match")


def _finite(values: NDArray[Any], shape: tuple[int, ...]) -> bool:
    return values.shape == shape and values.dtype.kind == "f" and bool(np.isfinite(values).all())


def _fitted(path: Path) -> Fitted:
    plain = json.loads(plain_file(path / META).read_text(encoding="utf-8"))
    known = {field.name for field in fields(Fitted)}
    plain = {name: value for name, value in plain.items() if name in known}
    return cast(Fitted, built(Fitted, plain))


def _rows(path: Path) -> Rows:
    from safetensors.numpy import load

    table, tensors = read_parquet(path / ROWS).table, load(plain_file(path / OUTPUTS).read_bytes())
    parts = table["part"].to_pylist()
    if not set(parts) <= set(get_args(Part)):  # asked here: an array is as wide as its longest word
        raise ValueError("not parts of a split")
    outputs = {name.partition(".")[2]: t for name, t in tensors.items() if name.startswith("outputs.")}
    return Rows(
        ids=table["id"].to_pylist(),
        parts=np.array(parts, dtype=np.str_),
        given=tensors["given"],
        outputs=outputs,
        changes=table["changes"].to_numpy(),
        spread=tensors.get("spread"),
        sizes=tensors.get("sizes"),
    )
