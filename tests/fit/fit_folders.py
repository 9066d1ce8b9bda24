"""Fit folders as `l2i fit` leaves them, made up: a table, pictures, and a regression."""

import base64
import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from l2i.config import Run, to_json
from l2i.fit.artifact import Candidate, Choice, FitArtifact, FitRows, RowPreview, write_fit
from l2i.training.run_dir import Result, write_result

TITLES = {"supervised": "supervised", "baseline": "fixmatch", "l2i": "fixmatch + L2I"}
COUNTS = {"labeled": 40, "unlabeled": 600, "validation": 100, "test": 180}
NOISE = {"supervised": 2.4, "baseline": 1.6, "l2i": 1.5}
WRONG = {"supervised": 0.18, "baseline": 0.09, "l2i": 0.05}
CHOICES = (
    Choice(name="method", value="fixmatch", reason="a table of mostly numbers, with few labels"),
    Choice(name="model", value="mlp, 2 layers of 128", reason="12 inputs and 920 rows"),
    Choice(name="steps", value="2,000", reason="as many as end within ten minutes on this machine"),
)

SECTIONS = [
    "verdict",
    "metrics",
    "curves",
    "calibration",
    "confusion",
    "confidence",
    "samples",
    "warnings",
    "settings",
    "configuration",
]


def parts(counts: dict[str, int] = COUNTS) -> np.ndarray:
    return np.array([part for part, n in counts.items() for _ in range(n)], dtype=np.str_)


def class_rows(
    classes: int = 3,
    counts: dict[str, int] = COUNTS,
    wrong: dict[str, float] = WRONG,
    seed: int = 0,
) -> FitRows:
    """Logits with so many errors a candidate; a better one's errors are among a worse one's."""
    draw = np.random.default_rng(seed)
    part = parts(counts)
    truth = draw.integers(classes, size=len(part))
    fate, other = (
        draw.random(len(part)),
        (truth + draw.integers(1, classes, size=len(part))) % classes,
    )
    outputs = {}
    for name, share in wrong.items():
        said = np.where(fate < share, other, truth)
        gap = np.where(
            fate < share, draw.uniform(0.3, 2.5, len(part)), draw.gamma(4.0, 1.4, len(part))
        )
        logits = draw.normal(0, 0.3, (len(part), classes))
        logits[np.arange(len(part)), said] = logits.max(axis=1) + gap
        outputs[name] = logits.astype(np.float32)
    given = np.where(part == "unlabeled", -1, truth)
    changes = np.minimum(draw.geometric(0.6, len(part)) - 1, 9).astype(np.int64)
    ids = [f"row-{i:04d}" for i in range(len(part))]
    return FitRows(
        ids=ids, split_names=part, given_labels=given, outputs=outputs, change_counts=changes
    )


def target_rows(
    targets: int = 1,
    counts: dict[str, int] = COUNTS,
    noise: dict[str, float] = NOISE,
    seed: int = 0,
) -> FitRows:
    draw = np.random.default_rng(seed)
    part = parts(counts)
    truth = draw.normal(50, 12, (len(part), targets))
    spread = draw.gamma(6.0, 0.4, truth.shape)
    outputs = {
        name: (truth + by * spread * draw.normal(size=truth.shape)).astype(np.float32)
        for name, by in noise.items()
    }
    given = np.where((part == "unlabeled")[:, None], np.nan, truth)
    return FitRows(
        ids=[str(i) for i in range(len(part))],
        split_names=part,
        given_labels=given,
        outputs=outputs,
        change_counts=np.zeros(len(part), dtype=np.int64),
        predictive_std=spread.astype(np.float32),
    )


def compute_metric(rows: FitRows, name: str, part: str) -> float | None:
    mask = rows.split_names == part
    if not mask.any():
        return None
    if rows.predictive_std is None:
        return float(
            100 * (rows.outputs[name][mask].argmax(axis=1) != rows.given_labels[mask]).mean()
        )
    return float(np.sqrt(np.square(rows.outputs[name][mask] - rows.given_labels[mask]).mean()))


def candidates(rows: FitRows) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(
            name=name,
            title=TITLES[name],
            validation_metric=compute_metric(rows, name, "validation") or 0.0,
            validation_cost=0.3 + 0.1 * i,
            test_metric=compute_metric(rows, name, "test"),
            steps=2000,
            seconds=41.5 + 20 * i,
        )
        for i, name in enumerate(rows.outputs)
    )


def fitted_for(rows: FitRows, **changes: Any) -> FitArtifact:
    """What goes with the rows, with other fields where asked for."""
    classes = None if rows.predictive_std is not None else ("adelie", "chinstrap", "gentoo")
    known = candidates(rows)
    plain: dict[str, Any] = {
        "source": {
            "kind": "table",
            "path": "data/penguins.csv",
            "target": ["species"],
            "delimiter": ",",
        },
        "inputs": {},
        "shape": (12,),
        "classes": classes,
        "targets": ("species",)
        if classes
        else ("body mass", "flipper length")[: rows.given_labels.shape[1]],
        "metric_name": "error (%)" if classes else "RMSE",
        "metric_description": "percentage of misclassified samples"
        if classes
        else "root mean squared error",
        "choices": CHOICES,
        "notes": (
            "3 rows repeat another and were kept.",
            "Column 'island' holds 2 blanks, which are a category.",
        ),
        "candidates": known,
        "selected_name": min(known, key=lambda c: c.validation_metric).name,
        "num_snapshots": 20,
        "temperature": 1.4,
        "std_scale": 1.5,
        "target_std": () if classes else (12.0,) * rows.given_labels.shape[1],
        "covariate_shift_auc": 0.55,
        "mask_rate": 0.83 if classes else None,
        "previews": table_samples(rows),
    }
    return FitArtifact(**{**plain, **changes})


def unlabelled(rows: FitRows, count: int) -> list[int]:
    return np.flatnonzero(rows.split_names == "unlabeled")[:count].tolist()


def table_samples(rows: FitRows, count: int = 8) -> tuple[RowPreview, ...]:
    cells = {
        "island": "Biscoe",
        "bill length (mm)": "46.1",
        "bill depth (mm)": "13.2",
        "flipper (mm)": "211",
    }
    note = {
        "remark": "Nest never observed with full clutch; the adult was not sampled, "
        "and the weight is an estimate."
    }
    return tuple(RowPreview(row=row, fields=cells | note) for row in unlabelled(rows, count))


def picture_samples(rows: FitRows, count: int = 12) -> tuple[RowPreview, ...]:
    return tuple(RowPreview(row=row, png_base64=png(row)) for row in unlabelled(rows, count))


def png(seed: int, size: int = 32) -> str:
    """A small picture, base64."""
    draw, at = np.random.default_rng(seed), np.linspace(0, 3, size)
    waves = np.sin(
        at[:, None, None] * draw.uniform(1, 3, 3) + at[None, :, None] * draw.uniform(1, 3, 3)
    )
    content = io.BytesIO()
    Image.fromarray((127 + 120 * waves).astype(np.uint8)).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode()


def metrics(best: float, *, probed: bool, steps: int = 2000) -> list[dict[str, Any]]:
    actual = []
    for step in range(100, steps + 1, 100):
        fall = float(np.exp(-step / 500))
        wave = 0.04 * float(np.sin(step / 130))
        row: dict[str, Any] = {
            "step": step,
            "c_t": fall + 0.003,
            "c_u": 0.1 + fall / 3 + wave / 3,
            "c_h": None,
        }
        row |= {"validation": best * (1 + 3 * fall + wave), "test": best * (1.1 + 3 * fall - wave)}
        if probed:
            row |= {"c_h": fall + 0.05, "c_h_before": fall + 0.06, "c_h_after": fall * 0.8 + 0.05}
            row |= {
                "test_cost_before": 0.5 + fall,
                "test_cost_after": 0.48 + 0.98 * fall if step > 100 else None,
            }
        actual.append(row)
    return actual


def write_run(folder: Path, name: str, best: float) -> None:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps(to_json(Run(name=name, steps=2000))))
    lines = [json.dumps(row) for row in metrics(best, probed=name == "l2i")]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    result = Result(
        name=name,
        metric=best,
        metric_name="error (%)",
        metric_definition="at the last step",
        validation=best,
        seed=0,
        steps=2000,
        seconds=41.5,
        versions={"l2i": "0.1.0", "torch": "2.11.0", "python": "3.11.2"},
        hardware="a processor, 1 thread",
    )
    write_result(run, result)


def write_folder(folder: Path, rows: FitRows, fitted: FitArtifact | None = None) -> Path:
    """A whole fit folder."""
    fitted = fitted_for(rows) if fitted is None else fitted
    folder.mkdir(parents=True, exist_ok=True)
    for candidate in fitted.candidates:
        write_run(folder, candidate.name, candidate.validation_metric or 1.0)
    write_fit(folder, fitted, rows)
    return folder


def without(rows: FitRows, *names: str) -> FitRows:
    """The rows with fewer candidates."""
    return dataclasses.replace(
        rows, outputs={k: v for k, v in rows.outputs.items() if k not in names}
    )
