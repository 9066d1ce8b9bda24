"""From a table to labels, predictions, a report and a model file, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import flowers, houses, works

PLAIN = ("logistic-regression", "extra-trees", "gaussian-process", "self-training", "imputing")


def visits(patients: int = 120, each: int = 4) -> pd.DataFrame:
    """Visits of patients, of whom a tenth is ill: dates, money, an account number, blanks."""
    draw = np.random.default_rng(0)
    rows = patients * each
    patient = np.repeat(np.arange(patients), each)
    is_ill = draw.random(patients)[patient] < 0.12
    day = pd.Timestamp("2023-01-01") + pd.to_timedelta(
        draw.integers(0, 300, rows) + 300 * is_ill, unit="D"
    )
    frame = pd.DataFrame({"account_no": draw.permutation(90_000)[:rows], "patient": patient})
    frame["visit"] = day.strftime("%d.%m.%Y")
    frame["cost"] = [f"${cost:,.2f}" for cost in 900 + 400 * draw.random(rows) + 250 * is_ill]
    frame["share"] = [f"{share:.0f}%" for share in 40 + 20 * draw.random(rows)]
    frame.loc[draw.random(rows) < 0.05, "share"] = "unknown"
    frame["smoker"] = np.where(draw.random(rows) < 0.3 + 0.4 * is_ill, "yes", "no")
    frame["outcome"] = np.where(is_ill, "ill", "well")
    return frame


def read_export(path: Path, frame: pd.DataFrame, fit: Path) -> list[np.ndarray]:
    """Run an exported model on the columns that it takes, dates as elapsed days and their parts."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    columns = json.loads((fit / "fit.json").read_text())["inputs"]["columns"]
    encoded = {kind: [c for c in columns if c["kind"] == kind] for kind in ("number", "category")}
    feeds = {}
    dtypes = {
        i.name: np.float64 if "double" in i.type else np.float32 for i in session.get_inputs()
    }
    if encoded["number"]:
        values = [read_numbers(frame[c["name"]], c["part"]) for c in encoded["number"]]
        feeds["numbers"] = np.column_stack(values).astype(dtypes["numbers"])
    if encoded["category"]:
        names = [c["name"] for c in encoded["category"]]
        feeds["categories"] = frame[names].fillna("").to_numpy(dtype=object)
    return session.run(None, feeds)


def read_numbers(cells: pd.Series, part: str) -> np.ndarray:
    if not part:
        text = cells.astype(str).str.replace(r"[$,%]", "", regex=True)
        return pd.to_numeric(text, errors="coerce").to_numpy()
    day = pd.to_datetime(cells, format="%d.%m.%Y").dt
    parts = {"month": day.month, "day": day.day, "weekday": day.day_of_week}
    elapsed = (pd.to_datetime(cells, format="%d.%m.%Y") - pd.Timestamp(0)).dt.days
    return parts.get(part, elapsed).to_numpy(np.float64)


def travel(folder: Path, frame: pd.DataFrame, target: str, *options: str) -> pd.DataFrame:
    """Fit, impute, predict, report and export; return the imputed labels."""
    frame.to_csv(folder / "data.csv", index=False)
    works("fit", "data.csv", "--target", target, "--threads", "1", *options, cwd=folder)
    works("report", "runs/data", cwd=folder)
    page = (folder / "runs/data/report.html").read_text(encoding="utf-8")
    assert "are usable" in page[: page.index('id="metrics"')]
    works("impute", "runs/data", "--out", "labels.csv", cwd=folder)
    frame.drop(columns=target).to_csv(folder / "new.csv", index=False)
    works("predict", "runs/data", "new.csv", "--out", "predicted.csv", cwd=folder)
    works("export", "runs/data", "model.onnx", cwd=folder)
    predicted = pd.read_csv(folder / "predicted.csv")
    outputs = read_export(folder / "model.onnx", frame, folder / "runs/data")
    columns = [name for name in predicted if name.startswith("p(")] or [target]
    scale = 1.0 if len(columns) > 1 else predicted[target].std()
    np.testing.assert_allclose(outputs[0], predicted[columns], atol=1e-4 * scale)
    return pd.read_csv(folder / "labels.csv")


def test_a_table_of_visits_with_dates_groups_and_a_rare_class(tmp_path: Path) -> None:
    frame = visits()
    truth = frame["outcome"].copy()
    is_labeled = np.isin(frame["patient"], np.random.default_rng(1).permutation(120)[:50])
    frame["outcome"] = frame["outcome"].astype(object).where(is_labeled, None)
    options = ("--group", "patient", "--balance", "--candidates", *PLAIN)
    labels = travel(tmp_path, frame, "outcome", *options)
    imputed = labels["source"] == "imputed"
    assert (imputed == ~is_labeled).all()
    found = labels["outcome"][imputed] == truth[imputed]
    assert found.mean() > 0.85
    assert found[truth[imputed] == "ill"].mean() > 0.7
    columns = {
        c["name"]: c
        for c in json.loads((tmp_path / "runs/data/fit.json").read_text())["inputs"]["columns"]
    }
    assert {"visit", "cost", "share", "smoker"} == set(columns)  # neither account nor patient


def test_a_table_of_flowers(tmp_path: Path) -> None:
    frame = flowers(300, 60).drop(columns="name")
    truth = frame.pop("kind")
    labels = travel(tmp_path, frame, "label", "--candidates", *PLAIN)
    imputed = labels["source"] == "imputed"
    usable = imputed & ~labels["abstain"]
    assert (labels["label"] == truth)[usable].mean() > 0.9 and usable.sum() > 60


def test_a_table_of_houses(tmp_path: Path) -> None:
    truth, frame = houses(300, 300)["price"], houses(300, 80).drop(columns="heat")
    names = ("ridge", "extra-trees", "gaussian-process", "gaussian-process-per-column", "imputing")
    labels = travel(tmp_path, frame, "price", "--candidates", *names)
    imputed = labels["source"] == "imputed"
    within = labels["price_low"].le(truth) & truth.le(labels["price_high"])
    assert 0.8 <= within[imputed].mean() <= 1
    assert np.sqrt(((labels["price"] - truth)[imputed] ** 2).mean()) < 0.7 * truth.std()


CLASS_MODELS = (
    *("logistic-regression", "logistic-regression-strong", "logistic-regression-weak"),
    *("nearest-neighbors", "extra-trees", "boosted-trees", "gaussian-process"),
    *("self-training", "label-spreading"),
    *("network", "network-swaps", "semi-supervised", "l2i"),
)
TARGET_MODELS = (
    *("ridge", "nearest-neighbors", "extra-trees", "boosted-trees"),
    *("gaussian-process", "gaussian-process-per-column", "network", "semi-supervised", "l2i"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASS_MODELS)
def test_an_exported_model_of_classes_predicts_the_same(name: str, tmp_path: Path) -> None:
    frame = flowers(200, 60).drop(columns=["name", "kind"])
    travel(tmp_path, frame, "label", "--candidates", name)
    assert json.loads((tmp_path / "runs/data/fit.json").read_text())["selected_name"] == name


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGET_MODELS)
def test_an_exported_model_of_targets_predicts_the_same(name: str, tmp_path: Path) -> None:
    frame = houses(200, 60).drop(columns="heat")
    travel(tmp_path, frame, "price", "--candidates", name)
    assert json.loads((tmp_path / "runs/data/fit.json").read_text())["selected_name"] == name


@pytest.mark.slow
def test_an_exported_average_predicts_the_same(tmp_path: Path) -> None:
    """Averages of unlike models, which are chosen where that is better."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.normal(size=(300, 4)), columns=list("abcd"))
    kink = frame["b"].abs()  # which ridge misses, as trees miss the slopes
    frame["price"] = frame["a"] + kink + 0.5 * frame["c"] + 0.3 * draw.normal(size=300)
    frame.loc[100:, "price"] = np.nan
    names = ("ridge", "extra-trees", "boosted-trees", "nearest-neighbors")
    travel(tmp_path, frame, "price", "--candidates", *names)
    assert json.loads((tmp_path / "runs/data/fit.json").read_text())["selected_name"] == "average"
