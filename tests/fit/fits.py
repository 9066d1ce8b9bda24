"""Fits as a person makes them, through the command line, and small data for them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from l2i.cli import run_command
from l2i.fit.artifact import Candidate, FitArtifact, FitRows

QUICK = ("--device", "cpu", "--threads", "1", "--steps", "40", "--model.width", "16")
READ = ("--target", "label", "--id", "name", "--ignore", "kind")
FIT = ("fit", "flowers.csv", *READ, *QUICK, "--steps", "60", "--optim.lr", "0.005", "--seed", "1")
SMALL = ("fit", "flowers.csv", *READ, *QUICK, "--steps", "10")
MODES = ("L", "RGB", "RGBA", "P")


class Said(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


def l2i(*arguments: str, cwd: Path) -> Said:
    """A command as it is typed in a folder."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run_command(arguments)
    return Said(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))  # type: ignore[attr-defined]


def works(*arguments: str, cwd: Path) -> Said:
    said = l2i(*arguments, cwd=cwd)
    assert said.code == 0, said.err
    assert "Traceback" not in said.err
    return said


def refused(*arguments: str, cwd: Path, code: int = 2) -> str:
    """The one line that wrong input comes to; it leaves all files as they were."""
    before = files(cwd)
    said = l2i(*arguments, cwd=cwd)
    assert said.code == code, said
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("l2i: ")
    assert files(cwd) == before
    return lines[0]


def files(folder: Path) -> dict[str, bytes | None]:
    return {
        str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None
        for p in sorted(folder.rglob("*"))
    }


def flowers(rows: int = 600, labels: int = 30, *, seed: int = 0) -> pd.DataFrame:
    """Three overlapping kinds: numbers with blanks, a category, few labels; `kind` is the truth."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, 3, size=rows)
    frame = pd.DataFrame(
        {f"size{i}": draw.normal(size=rows) + np.array([0, 1.5, 3])[(y + i) % 3] for i in range(3)}
    )
    frame["colour"] = np.where(
        draw.random(rows) < 0.6, np.array(["red", "white", "blue"])[y], "red"
    )
    frame.loc[draw.choice(rows, rows // 10, replace=False), "size1"] = np.nan
    frame.insert(0, "name", [f"plant {i}" for i in range(rows)])
    kinds = np.array(["aster", "lily", "rose"], dtype=object)[y]
    frame["kind"] = kinds
    frame["label"] = np.where(
        np.isin(np.arange(rows), draw.choice(rows, labels, replace=False)), kinds, ""
    )
    return frame


def fitted_flowers(folder: Path) -> Path:
    """A folder with flowers.csv, 5 % labelled, fitted in runs/flowers, and what that printed."""
    flowers().to_csv(folder / "flowers.csv", index=False)
    said = works(*FIT, cwd=folder)
    (folder / "said.txt").write_text(said.err)
    (folder / "printed.txt").write_text(said.out)
    return folder


def small_fit(folder: Path, **renamed: str) -> Path:
    """A folder with flowers.csv, some of its classes renamed, and a quick fit of it in `run`."""
    frame = flowers(150, 40)
    frame.assign(label=frame["label"].replace(renamed)).to_csv(folder / "flowers.csv", index=False)
    works(*SMALL, "--no-baselines", "--out", "run", cwd=folder)
    return folder


def photos(root: Path, *, each: int = 10, unlabeled: int = 24) -> Path:
    """Bright and dark images of mixed sizes, modes and formats."""
    draw = np.random.default_rng(0)
    counts = {"bright": each, "dark": each, "unlabeled": unlabeled}
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for i in range(count):
            width, height = draw.integers(12, 30, size=2)
            pixels = draw.integers(0, 60, size=(height, width, 3)).astype(np.uint8)
            if name == "bright" or (name == "unlabeled" and i % 2):
                pixels[height // 4 : -height // 4, width // 4 : -width // 4] = (220, 200, 40)
            mode = MODES[i // 2 % 4]
            suffix = "jpg" if mode in ("L", "RGB") else "png"
            Image.fromarray(pixels).convert(mode).save(root / name / f"{i}.{suffix}")
    return root


def squares(folder: Path, *, rows: int = 150, labels: int = 60) -> pd.DataFrame:
    """Images with a bright square, their paths and its corners.

    Only the corners of the first rows are written down; all are returned.
    """
    draw = np.random.default_rng(0)
    (folder / "images").mkdir()
    lines: list[dict[str, Any]] = []
    for i in range(rows):
        width, height, side = *draw.integers(48, 81, size=2), int(draw.integers(14, 24))
        x, y = int(draw.integers(0, width - side)), int(draw.integers(0, height - side))
        pixels = np.full((height, width), 30, dtype=np.uint8)
        pixels[y : y + side, x : x + side] = 230
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
        corners = {"left": x, "top": y, "right": x + side, "bottom": y + side}
        lines.append({"path": f"images/{i}.png", **corners, "width": width, "height": height})
    frame = pd.DataFrame(lines)
    targets = ["left", "top", "right", "bottom"]
    given = frame[targets].where(frame.index.to_series() < labels, axis=0)
    frame[["path"]].join(given).to_csv(folder / "squares.csv", index=False)
    return frame


def houses(rows: int = 240, labels: int = 80) -> pd.DataFrame:
    """Two targets of very different units."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(rows, 3)), columns=["area", "rooms", "age"])
    frame["price"] = 300_000 + 90_000 * frame["area"] - 20_000 * frame["age"]
    frame["heat"] = 0.02 + 0.003 * frame["rooms"]
    frame.loc[labels:, ["price", "heat"]] = np.nan
    return frame


def reviews(rows: int = 160, labels: int = 40) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    words = {"bad": ["awful", "poor", "dull"], "good": ["lovely", "great", "fine"]}
    moods = ["good" if i % 2 else "bad" for i in range(rows)]
    texts = [" ".join(draw.choice([*words[mood], "the", "film", "was"], size=7)) for mood in moods]
    return pd.DataFrame(
        {"review": texts, "mood": [m if i < labels else "" for i, m in enumerate(moods)]}
    )


def fitted_like(**changes: Any) -> FitArtifact:
    """A fit of which only some fields matter."""
    best = Candidate(
        name="l2i",
        title="L2I",
        validation_metric=1.0,
        validation_cost=1.0,
        test_metric=None,
        steps=5,
        seconds=1.0,
    )
    plain: dict[str, Any] = {
        "source": {"kind": "table"},
        "inputs": {},
        "shape": (3,),
        "classes": ("a", "b", "c"),
        "targets": ("kind",),
        "metric_name": "error (%)",
        "metric_description": "",
        "choices": (),
        "notes": (),
        "candidates": (best,),
        "selected_name": "l2i",
        "num_snapshots": 1,
    }
    return FitArtifact(**{**plain, **changes})


def onnx_answers(path: Path, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def probabilities(frame: pd.DataFrame) -> NDArray[np.float64]:
    return frame[[name for name in frame.columns if name.startswith("p(")]].to_numpy()


def rows_of(
    given: NDArray[np.int64] | NDArray[np.float64],
    outputs: NDArray[np.float32],
    spread: NDArray[np.float32] | None = None,
    sizes: NDArray[np.int64] | None = None,
) -> FitRows:
    """Rows of which those with a label are all trained on."""
    count = len(given)
    known = given >= 0 if given.ndim == 1 else ~np.isnan(given[:, 0])
    return FitRows(
        ids=[str(i) for i in range(count)],
        split_names=np.where(known, "labeled", "unlabeled"),
        given_labels=given,
        outputs={"l2i": outputs},
        change_counts=np.arange(count) % 4,
        predictive_std=spread,
        sizes=sizes,
    )
