"""The network of a fit, loaded without its data, against the trainer that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from l2i import Augment, Data, Optim, Run, Splits, load_model, train
from l2i.data.batch import BatchSizes
from l2i.errors import DamagedFile
from l2i.fit.artifact import Candidate, FitArtifact, FitRows, read_fit, write_fit
from l2i.fit.modules import (
    ExportableInputs,
    Predictor,
    encode_inputs,
    load_network,
    predict_outputs,
)
from l2i.fit.preprocess import (
    Column,
    ImageEncoder,
    ImagePreprocessor,
    TableEncoder,
    TablePreprocessor,
    fit_column,
)
from l2i.fit.readers.columns import ColumnKind
from l2i.methods.pi_model import PiModel
from l2i.models.base import ModelConfig
from l2i.tasks import Regression
from l2i.training.checkpoint import list_checkpoints

COUNT, LABELED, CHECKED = (
    60,
    24,
    48,
)  # rows of the data, up to where they are labelled, from where they are validation
SMALL = ModelConfig(name="mlp", width=8)
KINDS: dict[str, ColumnKind] = {
    "colour": "category",
    "height": "number",
    "shop": "category",
    "price": "number",
}


def table(count: int = COUNT) -> pd.DataFrame:
    draw = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "colour": draw.choice(["red", "green", ""], size=count),
            "height": draw.normal(180, 10, size=count),
            "shop": draw.choice(["Köln", "Bern", "Łódź", "x y"], size=count),
            "price": draw.lognormal(4, 1, size=count),
        }
    )
    frame.loc[::5, "height"] = np.nan
    return frame


def new_rows() -> pd.DataFrame:
    """Of the same table: with a blank where there was none, and categories that nobody has seen."""
    frame = table(20)
    frame.loc[1, "price"] = np.nan
    frame.loc[2, "colour"], frame.loc[3, "shop"] = "blue", None
    return frame


def table_inputs(frame: pd.DataFrame) -> TablePreprocessor:
    return TablePreprocessor(
        columns=tuple(fit_column(frame[name], kind) for name, kind in KINDS.items())
    )


def given(
    x: NDArray[Any], y: NDArray[Any], classes: int | None, inputs: ExportableInputs
) -> Splits:
    pixels = inputs.normalization if isinstance(inputs, ImagePreprocessor) else None
    return Splits.from_arrays(
        labeled=(x[:LABELED], y[:LABELED]),
        unlabeled=x[LABELED:CHECKED],
        validation=(x[CHECKED:], y[CHECKED:]),
        test=(x[CHECKED:], y[CHECKED:]),
        classes=classes,
        normalization=pixels,
    )


def make_fit(
    folder: Path,
    inputs: ExportableInputs,
    raw: Any,
    y: NDArray[Any],
    network: ModelConfig,
    **changes: Any,
) -> Splits:
    """A fit in `folder`, with a run of a few steps; `y` of whole numbers are classes."""
    x = inputs(raw) if isinstance(inputs, TablePreprocessor) else inputs.to_grey_levels(raw)
    names = None if y.ndim == 2 else tuple(f"class {k}" for k in range(int(y.max()) + 1))
    splits = given(x, y, None if names is None else len(names), inputs)
    run = Run(
        name="own",
        out=str(folder / "l2i"),
        device="cpu",
        threads=1,
        data=Data(weak=Augment(noise=0.1)),
        batch=BatchSizes(labeled=8, unlabeled=8, holdout=8),
        method=PiModel(),
        model=network,
        **{"steps": 5, "optim": Optim(lr=0.01), **changes},
    )
    train(run, splits=splits, quiet=True)
    fitted = fitted_of(inputs, tuple(x.shape[1:]), names, y[:LABELED])
    write_fit(folder, fitted, no_rows(fitted))
    return splits


def fitted_of(
    inputs: ExportableInputs, shape: tuple[int, ...], names: tuple[str, ...] | None, y: NDArray[Any]
) -> FitArtifact:
    best = Candidate(
        name="l2i",
        title="L2I",
        validation_metric=1.0,
        validation_cost=1.0,
        test_metric=None,
        steps=5,
        seconds=1.0,
    )
    task = None if names else Regression.from_targets(torch.as_tensor(y).float())
    return FitArtifact(
        source={"kind": "table"},
        inputs=inputs.to_json(),
        shape=shape,
        classes=names,
        targets=("class",)
        if task is None
        else tuple(f"target {k}" for k in range(task.num_outputs)),
        metric_name="error (%)",
        metric_description="share of wrong labels",
        choices=(),
        notes=(),
        candidates=(best,),
        selected_name="l2i",
        num_snapshots=1,
        temperature=0.7 if names else 1.0,
        target_mean=() if task is None else tuple(task.mean.tolist()),
        target_std=() if task is None else tuple(task.std.tolist()),
    )


def no_rows(fitted: FitArtifact) -> FitRows:
    classes = fitted.classes is not None
    nothing = np.zeros((0, len(fitted.classes or fitted.target_mean)), dtype=np.float32)
    return FitRows(
        ids=[],
        split_names=np.zeros(0, dtype=str),
        given_labels=np.zeros(0, dtype=np.int64) if classes else nothing,
        outputs={fitted.selected_name: nothing},
        change_counts=np.zeros(0, dtype=np.int64),
        predictive_std=None if classes else nothing,
    )


def three_classes() -> NDArray[np.int64]:
    return np.arange(COUNT) % 3


def two_targets() -> NDArray[np.float32]:
    draw = np.random.default_rng(2)
    return (draw.normal(size=(COUNT, 2)) * [3.0, 4000.0] + [-5.0, 90000.0]).astype(np.float32)


def test_a_classifier_is_the_averaged_model_of_its_run(tmp_path: Path) -> None:
    frame = table()
    splits = make_fit(tmp_path, table_inputs(frame), frame, three_classes(), SMALL)
    fitted, _ = read_fit(tmp_path)
    before = torch.get_rng_state()
    network = load_network(tmp_path, fitted)
    assert torch.equal(torch.get_rng_state(), before)
    assert not network.training
    x = encode_inputs(fitted, frame)
    wanted = load_model(tmp_path / "l2i", splits=splits)(x)
    logits = predict_outputs(network, fitted, x, batch_size=7)
    np.testing.assert_allclose(logits, wanted.numpy(force=True), atol=1e-6)
    np.testing.assert_allclose(
        Predictor(network, fitted)(x), softmax(logits / 0.7, axis=1), atol=1e-6
    )


def test_a_regressor_answers_in_the_units_of_its_targets(tmp_path: Path) -> None:
    frame, y = table(), two_targets()
    splits = make_fit(tmp_path, table_inputs(frame), frame, y, SMALL)
    fitted, _ = read_fit(tmp_path)
    network, x = load_network(tmp_path, fitted), encode_inputs(fitted, frame)
    task = Regression.from_targets(splits.labeled.y)
    wanted = task.decode(load_model(tmp_path / "l2i", splits=splits)(x)).numpy(force=True)
    np.testing.assert_allclose(predict_outputs(network, fitted, x), wanted, rtol=1e-5)
    np.testing.assert_allclose(Predictor(network, fitted)(x), wanted, rtol=1e-5)


def test_early_stopping_says_which_model_it_is(tmp_path: Path) -> None:
    frame = table()
    changes = {"steps": 12, "eval_every": 1, "report": "best", "optim": Optim(lr=0.5)}
    splits = make_fit(tmp_path, table_inputs(frame), frame, three_classes(), SMALL, **changes)
    fitted, _ = read_fit(tmp_path)
    best = list_checkpoints(tmp_path / "l2i" / "best")[-1]
    assert int(best.stem) < 12
    network, x = load_network(tmp_path, fitted), encode_inputs(fitted, frame)
    wanted = load_model(tmp_path / "l2i", splits=splits)(x)
    np.testing.assert_allclose(network(x), wanted.numpy(force=True), atol=1e-6)
    best.write_bytes(best.read_bytes()[:-9])
    with pytest.raises(DamagedFile, match=f"{best.name} is damaged or another file"):
        load_network(tmp_path, fitted)


def test_a_table_is_encoded_in_torch_as_it_is_in_preparation() -> None:
    inputs, frame = table_inputs(table()), new_rows()
    names = {
        kind: [name for name, actual in KINDS.items() if actual == kind]
        for kind in ("number", "category")
    }
    numbers = torch.tensor(frame[names["number"]].to_numpy(dtype=np.float32))
    places = [
        {word: k for k, word in enumerate(c.values)} for c in inputs.columns if c.kind == "category"
    ]
    words = frame[names["category"]].fillna("").to_numpy(dtype=object)
    codes = [
        [place.get(word, -1) for place, word in zip(places, row, strict=True)] for row in words
    ]
    actual = TableEncoder(inputs)(numbers, torch.tensor(codes))
    assert actual.dtype == torch.float32
    np.testing.assert_allclose(actual, inputs(frame), atol=1e-5)
    assert inputs(frame).any(axis=0).all()  # no input is left out


def test_a_mean_far_from_zero_costs_no_digits() -> None:
    years = pd.DataFrame({"year": np.arange(1990.0, 2020.0)})
    inputs = TablePreprocessor(columns=(fit_column(years["year"], "number"),))
    actual = TableEncoder(inputs)(torch.tensor(years.to_numpy(dtype=np.float32)))
    np.testing.assert_allclose(actual, inputs(years), atol=3e-7)
    seconds = pd.DataFrame({"time": 1.7e9 + np.arange(30.0)})
    inputs = TablePreprocessor(columns=(fit_column(seconds["time"], "number"),))
    encoder = TableEncoder(inputs)
    assert encoder.dtype == torch.float64
    np.testing.assert_allclose(
        encoder(torch.tensor(seconds.to_numpy())), inputs(seconds), atol=1e-6
    )


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1e-35), (1e35, 1e34), (0.0, 1e39)])
def test_numbers_that_float32_cannot_hold_stay_in_float64(mean: float, std: float) -> None:
    inputs = TablePreprocessor(columns=(Column(name="x", kind="number", mean=mean, std=std),))
    encoder, raw = TableEncoder(inputs), np.array([[mean - std], [mean], [mean + 2 * std]])
    np.testing.assert_allclose(encoder(torch.tensor(raw)), [[-1.0], [0.0], [2.0]], atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("uint8", 0, 256), ("uint16", 500, 40000), ("float32", -1, 1)]
)
def test_images_are_encoded_in_torch_as_they_are_in_preparation(
    dtype: str, low: float, high: float
) -> None:
    raw = np.random.default_rng(0).uniform(low, high, size=(5, 3, 4, 4)).astype(dtype)
    inputs = ImagePreprocessor.fit(raw)
    fitted = fitted_of(inputs, (3, 4, 4), ("a", "b"), np.zeros(2))
    encoder = ImageEncoder(inputs)
    beyond = (
        raw if dtype == "uint8" else (raw.astype(np.float64) * 1.5).astype(np.float32)
    )  # clipped
    actual = encoder(torch.tensor(beyond).to(encoder.dtype))
    np.testing.assert_allclose(actual, encode_inputs(fitted, beyond), atol=1e-6)
