"""Whole files of every kind that is read: what fuzzing starts from."""

import dataclasses
import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from formats import idx, python2_pickle
from l2i import Run, train
from l2i.config import Data, Optim, replace, to_json
from l2i.fit.artifact import Candidate, Choice, FitArtifact, FitRows, RowPreview, write_fit
from l2i.methods import METHODS
from l2i.models.base import ModelConfig

TINY = Run(
    name="tiny",
    steps=2,
    device="cpu",
    threads=1,
    eval_every=1,
    save_every=1,
    model=ModelConfig(name="mlp", width=4, depth=1),
    data=Data(num_labeled=20, num_validation=10, num_test=10),
)
CSV = (
    "age;city;note;kind;size\n20,5;Rome;a word;cat;1\n"
    "21;Bonn;\"two; words\";dog;2.5\n;NA;'x';;-3e2\n22;Rome;é;cat;\n"
)
COLUMNS: dict[str, pa.Array] = {
    "kind": pa.array(["cat", "dog", None, "cat"]),
    "size": pa.array([1.5, 2.0, None, -3.0]),
    "whole": pa.array([1, 2, 3, None], pa.int64()),
    "day": pa.array([0, 1, None, 3], pa.timestamp("s", "UTC")),
    "flag": pa.array([True, None, False, True]),
    "group": pa.array(["a", "b", "a", None]).dictionary_encode(),
}


def configs() -> list[dict[str, Any]]:
    """A run of every method, and one with most of its fields set."""
    full = replace(
        TINY,
        out="runs/a",
        optim=Optim(schedule="step", milestones=(1, 0.5), warmup=0.1),
        l2i={"paper": {"eta": 0.1}, "head": "h"},
    )
    return [
        json.loads(json.dumps(to_json(run)))
        for run in (full, *(replace(TINY, method=name) for name in METHODS))
    ]


def trained(folder: Path) -> Path:
    """The folder of a run of two steps."""
    train(replace(TINY, out=str(folder)), quiet=True)
    return folder


def csvs() -> list[bytes]:
    table = CSV.encode()
    return [
        table,
        CSV.replace(",", ".").replace(";", ",").encode(),
        CSV.replace(";", "\t").encode("utf-16"),
    ]


def parquet(columns: dict[str, pa.Array]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def arrays() -> list[dict[str, Any]]:
    """x and y as tables and images, of classes and numbers."""
    draw = np.random.default_rng(0)
    return [
        {"x": draw.normal(size=(4, 3)), "y": np.array([0, 1, -1, 0])},
        {"x": draw.normal(size=(4, 3)).astype(np.float32), "y": np.array([0.5, 1.0, np.nan, 2.0])},
        {"x": draw.integers(0, 256, (3, 8, 8), dtype=np.uint8), "y": np.array(["a", "b", ""])},
        {"x": draw.normal(size=(2, 6, 5, 3)), "y": draw.uniform(0, 5, (2, 2, 2))},
        {"x": draw.integers(-5, 300, (2, 3, 5, 4)), "y": np.array([b"a", b"b"])},
    ]


def faces() -> dict[str, Any]:
    points = np.array([[20, 20], [40, 20], [30, 30], [22, 42], [38, 42]], float)
    x, y = np.zeros((2, 60, 60), np.uint8), np.stack([points, points + 0.5])
    return {"x_train": x, "y_train": y, "x_test": x[:1], "y_test": y[:1]}


def images() -> list[bytes]:
    """Small pictures of each format and mode that is read."""
    draw = np.random.default_rng(0)
    colours = Image.fromarray(draw.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    deep = Image.fromarray(draw.integers(0, 2**16, (9, 12)).astype(np.uint16))
    modes = [colours, *(colours.convert(mode) for mode in ("L", "P", "RGBA", "1")), deep]
    exif = Image.Exif()
    exif[0x0112] = 6
    made = [encoded(image, "PNG") for image in modes] + [
        encoded(modes[2], "PNG", transparency=b"\0\x80")
    ]
    made += [encoded(colours, "JPEG", exif=exif), encoded(colours.convert("CMYK"), "JPEG")]
    return made + [encoded(colours, kind) for kind in ("BMP", "GIF", "WEBP")]


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def cifar_fields() -> dict[bytes, Any]:
    rows = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
    return {
        b"data": rows,
        b"fine_labels": [3, 99],
        b"filenames": [b"a.png", b"b.png"],
        b"batch_label": b"train",
    }


def pickles() -> list[bytes]:
    """As Python 2 wrote them, and as Python 3 does."""
    return [
        python2_pickle(cifar_fields()),
        *(pickle.dumps(cifar_fields(), protocol) for protocol in (0, 2, 4)),
    ]


def idx_files() -> dict[str, bytes]:
    """Images and labels of a set like MNIST, by name."""
    draw = np.random.default_rng(0)
    return {
        f"{part}-{kind}-ubyte": idx(values)
        for part in ("train", "t10k")
        for kind, values in {
            "images-idx3": draw.integers(0, 256, (3, 5, 4)),
            "labels-idx1": np.arange(3),
        }.items()
    }


def packed_idx() -> list[bytes]:
    return [
        gzip.compress(idx_files()["train-images-idx3-ubyte"], level, mtime=0) for level in (0, 9)
    ]


CANDIDATE = Candidate(
    name="l2i",
    title="fixmatch + L2I",
    validation_metric=10.0,
    validation_cost=0.5,
    test_metric=None,
    steps=5,
    seconds=1.0,
)
TABLE: dict[str, Any] = {
    "kind": "table",
    "columns": [
        {"name": "size", "kind": "number", "mean": 0.5, "std": 2.0},
        {"name": "city", "kind": "category"},
    ],
}
CLASSES = FitArtifact(
    source={
        "kind": "table",
        "path": "data.csv",
        "layout": "table",
        "id": None,
        "encoding": "utf-8",
        "separator": "auto",
    },
    inputs=TABLE,
    shape=(1,),
    classes=("cat", "dog"),
    targets=("kind",),
    metric_name="error (%)",
    metric_description="share of rows given a wrong class",
    choices=(Choice(name="method", value="fixmatch", reason="a table"),),
    notes=("a table of 4 rows",),
    candidates=(CANDIDATE,),
    selected_name="l2i",
    num_snapshots=3,
    previews=(RowPreview(row=0, fields={"size": "1"}),),
)
NUMBERS = dataclasses.replace(
    CLASSES, classes=None, targets=("a", "b"), target_mean=(0.0, 1.0), target_std=(1.0, 2.0)
)


def fit_folder(folder: Path, *, numbers: bool = False) -> Path:
    """A fit of four rows, of classes or of two numbers."""
    folder.mkdir(parents=True)
    outputs = np.arange(8, dtype=np.float32).reshape(4, 2)
    rows = FitRows(
        ids=["1", "2", "3", "4"],
        split_names=np.array(["labeled", "validation", "test", "unlabeled"]),
        given_labels=np.where(np.arange(4)[:, None] == 3, np.nan, outputs + 0.5)
        if numbers
        else np.array([0, 1, 0, -1]),
        outputs={"l2i": outputs},
        change_counts=np.arange(4),
        predictive_std=outputs + 1 if numbers else None,
    )
    write_fit(folder, NUMBERS if numbers else CLASSES, rows)
    return folder
