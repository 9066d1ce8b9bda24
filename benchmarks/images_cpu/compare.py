"""Compare `l2i fit` on folders of images with scikit-learn's models on the same features.

    python -m benchmarks.images_cpu.compare --write-folders cifar10 ROOT FOLDER
    python -m benchmarks.images_cpu.compare --out FILE --set NAME=FOLDER --labels 40 250
        [--unlabeled 5000] [--test 2000] [--seeds 0 1 2 3 4]
    python -m benchmarks.images_cpu.compare --from FILE [--set NAME] [--part chosen]

The first form writes CIFAR-10 or Fashion-MNIST as class folders. The second draws labelled,
unlabelled and test images from a FOLDER of class folders, runs the commands of a user and the
rivals, and appends a line per draw. The third prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from benchmarks.arguments import make_parser
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression, RidgeClassifierCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from l2i.experiments.formatting import render_markdown
from l2i.fit.options import FitOptions
from l2i.fit.readers.images import EncoderChoice
from l2i.fit.readers.new_rows import read_new
from l2i.fit.readers.source import read_source
from l2i.models.frozen_encoder import DEFAULT_ENCODER

OURS = "`l2i fit`"
PENALTIES = np.logspace(-1, 5, 13)
SEEN = {"cifar10": (26_250, 2_000), "fashion-mnist": (9_600, 2_000)}
"""Images that settings were chosen with, which are left out: the first of training and test."""
Line = dict[str, Any]
RIVALS: dict[str, Callable[[], Any]] = {
    "ridge": lambda: RidgeClassifierCV(PENALTIES),
    "logistic regression": lambda: LogisticRegression(max_iter=1000),
    "nearest neighbours": lambda: KNeighborsClassifier(),
    "self-training": lambda: SelfTrainingClassifier(LogisticRegression(max_iter=1000)),
    "label spreading": lambda: LabelSpreading(kernel="knn", n_neighbors=7, max_iter=200),
}


def write_folders(dataset: str, root: str, folder: Path) -> None:
    """Write the images of a dataset as PNG files, in one folder per class."""
    from l2i.data import DATASETS
    from l2i.registry import load_registered

    data = load_registered("dataset", DATASETS, dataset)(root)
    parts = (("train", data.train), ("test", data.test))
    for (name, samples), first in zip(parts, SEEN[dataset], strict=True):
        for row in range(first, len(samples.x)):
            image, label = samples.x[row].numpy(), int(samples.y[row])
            target = folder / str(label) / f"{name}{row:05}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            planes = image.transpose(1, 2, 0) if len(image) == 3 else image[0]
            Image.fromarray(planes).save(target)


def draw_images(source: Path, work: Path, labels: int, num: tuple[int, int], seed: int) -> None:
    """Copy a draw: `data` with class folders and `unlabeled`, and `test` with class folders.

    Draws of a seed have the same unlabelled and test images, whatever the number of labels.
    """
    rng, (num_unlabeled, num_test) = np.random.default_rng(seed), num
    classes = sorted(path.name for path in source.iterdir() if path.is_dir())
    files = {name: rng.permutation(sorted((source / name).iterdir())) for name in classes}
    pool = rng.permutation([p for name in classes for p in files[name][len(files[name]) // 4 :]])
    test, unlabeled = pool[:num_test], pool[num_test : num_test + num_unlabeled]
    for name in classes:
        for path in files[name][: labels // len(classes)]:
            _copy(path, work / "data" / name)
    for path in unlabeled:
        _copy(path, work / "data" / "unlabeled", f"{path.parent.name}-{path.name}")
    for path in test:
        _copy(path, work / "test" / path.parent.name)


def _copy(path: Path, folder: Path, name: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder / (name or path.name))


def measure_ours(work: Path, *, is_cached: bool) -> Line:
    """Run the commands of a user; return errors, times and what was chosen."""
    start = time.monotonic()
    _run_l2i("fit", "data", "--out", "fit", cwd=work)
    seconds = time.monotonic() - start
    _run_l2i("predict", "fit", "test", "--out", "new.csv", cwd=work)
    _run_l2i("impute", "fit", "--out", "labels.csv", cwd=work)
    new = pd.read_csv(work / "new.csv", dtype={"class": str})
    labels = pd.read_csv(work / "labels.csv", dtype={"class": str}).query("source == 'imputed'")
    truth = labels["id"].str.removeprefix("unlabeled/").str.split("-").str[0]
    is_wrong, usable = labels["class"] != truth, ~labels["abstain"]
    fitted = json.loads((work / "fit/fit.json").read_text(encoding="utf-8"))
    return {
        "error": 100 * float((new["class"] != new["id"].str.split("/").str[0]).mean()),
        "imputed_error": 100 * float(is_wrong.mean()),
        "usable": 100 * float(usable.mean()),
        "usable_error": 100 * float(is_wrong[usable].mean()),
        "mean_confidence": 100 * float(labels["confidence"].mean()),
        "chosen": fitted["selected_name"],
        "cached" if is_cached else "computed": seconds,
    }


def _run_l2i(*arguments: str, cwd: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "l2i", *arguments], cwd=cwd, check=True, capture_output=True
    )


def measure_rivals(work: Path) -> dict[str, float]:
    """Return the error of each rival on the test images, by the features of the same encoder."""
    encoder = EncoderChoice(DEFAULT_ENCODER, is_default=True)
    source = read_source(str(work / "data"), FitOptions(), encoder=encoder)
    new = read_new(str(work / "test"), source.options, source.features)
    assert source.classes is not None and isinstance(source.inputs, np.ndarray)
    truth = np.array([source.classes.index(row.split("/")[0]) for row in new.ids])
    scaler = StandardScaler().fit(source.inputs)
    x, x_test, y = (
        scaler.transform(source.inputs),
        scaler.transform(new.inputs),
        source.given_labels,
    )
    errors = {}
    for name, make in RIVALS.items():
        is_semi_supervised = name in ("self-training", "label spreading")
        rows = slice(None) if is_semi_supervised else y >= 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = make_pipeline(make()).fit(x[rows], y[rows]).predict(x_test)
        errors[name] = 100 * float((predicted != truth).mean())
    return errors


def measure(options: argparse.Namespace) -> None:
    """Append a line for each draw and number of labels."""
    name, _, folder = options.set.partition("=")
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["L2I_CACHE"] = cache
            for labels in options.labels:
                with tempfile.TemporaryDirectory() as work_name:
                    work = Path(work_name)
                    draw_images(Path(folder), work, labels, (options.unlabeled, options.test), seed)
                    line = {"set": name, "labels": labels, "seed": seed}
                    line |= measure_ours(work, is_cached=labels != options.labels[0])
                    line["rivals"] = measure_rivals(work)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)


def render(lines: list[Line]) -> str:
    """Return one table: a row per method, a column per set and number of labels."""
    keys = list(dict.fromkeys((line["set"], line["labels"]) for line in lines))
    groups = [[line for line in lines if (line["set"], line["labels"]) == key] for key in keys]
    table = [["error (%)", *(f"{name}, {labels} labels" for name, labels in keys)]]
    table.append([OURS, *(_format([line["error"] for line in group]) for group in groups)])
    for rival in RIVALS:
        values = ([line["rivals"][rival] for line in group] for group in groups)
        table.append([rival, *map(_format, values)])
    shown = {
        "imputed labels": "imputed_error",
        "usable labels (% of the imputed)": "usable",
        "errors among those": "usable_error",
    }
    for title, key in shown.items():
        table.append([title, *(f"{np.mean([x[key] for x in group]):.1f}" for group in groups)])
    for title, key in (
        ("seconds with features", "computed"),
        ("seconds, features cached", "cached"),
    ):
        times = [[line[key] for line in group if key in line] for group in groups]
        table.append([title, *(f"{np.mean(t):.0f}" if t else "" for t in times)])
    return render_markdown(table, code=False)


def render_choices(lines: list[Line]) -> str:
    """Return how often each candidate was chosen, a row per set and number of labels."""
    counts: dict[tuple[str, int], Counter[str]] = {}
    for line in lines:
        counts.setdefault((line["set"], line["labels"]), Counter())[line["chosen"]] += 1
    table = [["set", "labels", "chosen"]]
    for (name, labels), chosen in counts.items():
        named = [f"{c} × {n}" if n > 1 else c for c, n in sorted(chosen.items())]
        table.append([name, str(labels), ", ".join(named)])
    return render_markdown(table, code=False)


def _format(values: Sequence[float] | NDArray[Any]) -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.1f} ± {error:.1f}"


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("images_cpu.compare", __doc__)
    parser.add_argument("--write-folders", nargs=3, metavar=("DATASET", "ROOT", "FOLDER"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", dest="source", type=Path)
    parser.add_argument("--part", choices=("errors", "chosen"), default="errors")
    parser.add_argument("--set", default="")
    parser.add_argument("--labels", type=int, nargs="+", default=[40, 250])
    parser.add_argument("--unlabeled", type=int, default=5000)
    parser.add_argument("--test", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    options = parser.parse_args(arguments)
    if options.write_folders:
        dataset, root, folder = options.write_folders
        write_folders(dataset, root, Path(folder))
    elif options.source:
        lines = [json.loads(line) for line in options.source.read_text("utf-8").splitlines()]
        chosen = [line for line in lines if options.set in ("", line["set"])]
        print((render_choices if options.part == "chosen" else render)(chosen), end="")
    else:
        measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
