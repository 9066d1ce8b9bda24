"""Targets of any unit: the same labels in that unit, or wrong input before anything is written."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fits import QUICK, files, refused, works

from l2i import L2IRegressor, Splits
from l2i.candidates.calibration import fit_std_scale
from l2i.data.samples import check_target_range
from l2i.errors import InputError
from l2i.tasks import Regression

FIT = ("fit", "t.csv", "--target", "y", *QUICK, "--steps", "20", "--no-baselines", "--out", "run")


def write_table(folder: Path, unit: float) -> pd.DataFrame:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": unit * (x[:, 0] + 0.1 * x[:, 1] + 3)})
    frame.loc[60:, "y"] = np.nan
    frame.to_csv(folder / "t.csv", index=False)
    return frame


@pytest.mark.parametrize("unit", ["1e-46", "1e-320", "1e-40", "1e39", "1e300", "1e307"])
def test_targets_that_float32_cannot_hold_are_wrong_input(unit: str, tmp_path: Path) -> None:
    write_table(tmp_path, float(unit))
    before = files(tmp_path)
    line = refused(*FIT, cwd=tmp_path)
    assert "target 'y' has a standard deviation of" in line
    assert "outside of what float32 can hold" in line and "rescale it, for example by 1e" in line
    assert files(tmp_path) == before


def test_imputed_targets_do_not_depend_on_the_unit(tmp_path: Path) -> None:
    tables = {}
    for unit in (1.0, 2.0**-90, 2.0**90):  # exact in binary: 1e-27 and 1e27
        folder = tmp_path / f"{unit:g}"
        folder.mkdir()
        write_table(folder, unit)
        said = works(*FIT, cwd=folder)
        assert "0.00" not in said.out  # a metric of 1e-27 is shown as such
        works("impute", "run", "--out", "labels.csv", cwd=folder)
        tables[unit] = pd.read_csv(folder / "labels.csv")
    for unit, table in tables.items():
        imputed = table["source"] == "imputed"
        for name in ("y", "y_spread"):
            wanted = tables[1.0][name][imputed] * unit
            np.testing.assert_allclose(table[name][imputed], wanted, rtol=1e-3)
        assert (table["y_spread"][imputed] > 0).all()
        assert (table["abstain"] == tables[1.0]["abstain"]).all()


def test_the_factor_brings_targets_into_range() -> None:
    values = np.array([[1.0], [2.0], [3.0]])
    for exponent in (-300, -46, -31, 31, 46, 300):
        with pytest.raises(InputError, match="rescale it, for example by ") as raised:
            check_target_range(values * 10.0**exponent, ["y"])
        factor = float(str(raised.value).rpartition("by ")[2])
        check_target_range(values * 10.0**exponent * factor, ["y"])


def test_the_range_of_targets_has_its_borders() -> None:
    unit = np.array([[-1.0], [1.0]])  # of standard deviation 1
    for std in (1.01e-30, 1.0, 0.99e30):
        check_target_range(std * unit, ["y"])
    for std in (1e-30, 1e30):
        with pytest.raises(InputError):
            check_target_range(std * unit, ["y"])
    check_target_range(np.full((3, 1), 1e-50), ["y"])  # constant: it is set aside elsewhere
    check_target_range(np.zeros((0, 1)), ["y"])
    with pytest.raises(InputError, match="target 'second'"):
        check_target_range(np.hstack([unit, 1e-40 * unit]), ["first", "second"])


def test_standardisation_squares_nothing_in_float32() -> None:
    values = torch.tensor([[1.0], [2.0], [4.0]])
    for unit in (1e-25, 1e25):
        task = Regression.from_targets(values * unit)
        np.testing.assert_allclose(task.std, np.std([1, 2, 4]) * unit, rtol=1e-6)
        np.testing.assert_allclose(
            task.encode(values * unit), Regression.from_targets(values).encode(values), rtol=1e-5
        )


def test_the_scale_of_spreads_does_not_depend_on_the_unit() -> None:
    draw = np.random.default_rng(0)
    errors, stds = draw.normal(size=(30, 2)), draw.uniform(0.5, 2, size=(30, 2))
    wanted = fit_std_scale(errors, stds)
    for unit in (1e-25, 1e25):
        assert fit_std_scale(errors * unit, stds * unit) == pytest.approx(wanted)
    assert fit_std_scale(np.zeros((3, 1)), np.zeros((3, 1))) == 1e-6
    assert np.isfinite(fit_std_scale(np.ones((3, 1)), np.zeros((3, 1))))


def test_estimators_and_own_splits_refuse_such_targets_too() -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20.0)
    with pytest.raises(InputError, match="target 'y' has a standard deviation"):
        L2IRegressor(steps=1).fit(x, np.where(y < 10, y * 1e-46, np.nan))
    targets = torch.as_tensor(y)[:, None]
    with pytest.raises(InputError, match="targets are too large for float32; subtract their mean"):
        Splits.from_arrays(labeled=(x, 1e39 + targets * 1e25), unlabeled=x, test=(x, targets))
    half = Splits.from_arrays(labeled=(x, targets.bfloat16()), unlabeled=x, test=(x, targets))
    assert half.labeled.y.dtype == torch.float32
    none = Splits.from_arrays(labeled=(x, targets), unlabeled=x, test=(x[:0], targets[:0]))
    assert len(none.test.y) == 0
    with pytest.raises(InputError, match="target 'y0' has a standard deviation"):
        Splits.from_arrays(labeled=(x, targets * 1e40), unlabeled=x, test=(x, targets))
