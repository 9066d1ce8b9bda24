"""Fits in a folder that holds something already, and fits without some of their parts."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import FIT, QUICK, fitted_flowers, l2i, refused, works

from l2i.config import Run
from l2i.config import replace as changed
from l2i.fit.artifact import read_fit
from l2i.fit.candidates import assemble_fit
from l2i.fit.impute import impute
from l2i.fit.options import FitOptions
from l2i.fit.pipeline import make_candidate_runs, plan_run, train_candidate
from l2i.fit.readers.source import read_source
from l2i.fit.split import assemble_data, prepare_data
from l2i.training.run_dir import LOCK_FILE
from waiting import wait_until


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fitted_flowers(tmp_path_factory.mktemp("table"))


def made(run: Path) -> dict[Path, tuple[int, bytes]]:
    """Files of a fit and their times, except the one that says who is at work."""
    every = [path for path in run.rglob("*") if path.is_file() and path != run / LOCK_FILE]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in every}


def test_a_fit_that_is_done_is_not_done_again(table: Path) -> None:
    before = made(table / "runs/flowers")
    said = works(*FIT, cwd=table)
    assert "runs/flowers is already fitted; choose a different --out to fit again" in said.err
    assert said.out == (table / "printed.txt").read_text()
    assert made(table / "runs/flowers") == before


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (("--seed", "2"), "seed is 1 there and 2 here"),
        (("--steps", "50"), "steps is 60 there and 50 here"),
        (("--validation", "0.3"), "validation is None there and 0.3 here"),
        (("--method", "vat"), "method is auto there and vat here"),
    ],
)
def test_other_options_in_the_same_folder_are_refused(
    table: Path, other: tuple[str, str], difference: str
) -> None:
    line = refused(*FIT, *other, cwd=table)
    assert line.startswith("l2i: runs/flowers contains a fit with other options (")
    assert difference in line
    assert line.endswith("; choose a different --out, or remove the folder")


def swap_unlabeled_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Reverse the unlabelled rows among the places of unlabelled rows."""
    blank = np.flatnonzero(frame["label"] == "")
    order = np.arange(len(frame))
    order[blank] = blank[::-1]
    return frame.iloc[order]


def move_labeled_rows_first(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.sort_values("label", key=lambda labels: labels == "", kind="stable")


def change_cell(
    column: str, value: object, *, labeled: bool
) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        is_candidate = ((frame["label"] != "") == labeled) & (frame[column] != value)
        frame[column] = frame[column].astype(object)
        frame.loc[int(is_candidate.to_numpy().argmax()), column] = value
        return frame

    return change


CHANGES = {
    "unlabelled rows in another order": (
        swap_unlabeled_rows,
        "the ids and inputs of the unlabelled rows",
    ),
    "all rows in another order": (move_labeled_rows_first, "the order of the rows"),
    "an input of an unlabelled row": (
        change_cell("size0", 0.123, labeled=False),
        "the inputs of the unlabelled rows",
    ),
    "a category of an unlabelled row": (
        change_cell("colour", "blue", labeled=False),
        "the inputs of the unlabelled rows",
    ),
    "an input of a labelled row": (
        change_cell("size0", 0.123, labeled=True),
        "the inputs of the labelled rows",
    ),
    "a label": (change_cell("label", "lily", labeled=True), "the labels of the labelled rows"),
    "an id": (change_cell("name", "oak", labeled=False), "the ids of the unlabelled rows"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_fit_of_other_data_is_refused_and_says_what_changed(
    name: str, table: Path, tmp_path: Path
) -> None:
    change, difference = CHANGES[name]
    shutil.copytree(table, tmp_path / "all")
    frame = pd.read_csv(table / "flowers.csv", keep_default_na=False)
    change(frame).to_csv(tmp_path / "all" / "flowers.csv", index=False)
    line = refused(*FIT, cwd=tmp_path / "all")
    assert line == (
        f"l2i: runs/flowers contains a fit of other data (changed: {difference}); "
        "choose a different --out, or remove the folder"
    )


def test_a_fit_that_was_moved_with_its_data_is_still_done(table: Path, tmp_path: Path) -> None:
    shutil.copytree(table, tmp_path / "all")
    assert "is already fitted" in works(*FIT, cwd=tmp_path / "all").err


def test_an_unfinished_fit_does_not_resume_on_other_data(table: Path, tmp_path: Path) -> None:
    shutil.copytree(table, tmp_path / "all")
    for name in ("fit.json", "l2i/result.json"):
        (tmp_path / "all/runs/flowers" / name).unlink()
    frame = pd.read_csv(table / "flowers.csv", keep_default_na=False)
    swap_unlabeled_rows(frame).to_csv(tmp_path / "all" / "flowers.csv", index=False)
    line = refused(*FIT, cwd=tmp_path / "all")
    assert "of other data (changed: the ids and inputs of the unlabelled rows)" in line


def test_other_pictures_make_another_fit(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, size=(60, 8, 8), dtype=np.uint8)
    y = np.where(np.arange(60) < 30, np.arange(60) % 2, -1)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    fit = ("fit", "data.npz", *QUICK, "--steps", "2", "--model.width", "2", "--no-baselines")
    works(*fit, cwd=tmp_path)
    x[30:] = 255 - x[30:][::-1]
    np.savez(tmp_path / "data.npz", x=x, y=y)
    line = refused(*fit, cwd=tmp_path)
    assert "of other data (changed: the inputs of the unlabelled rows)" in line


def test_a_folder_of_something_else_is_left_alone(table: Path) -> None:
    (table / "mine").mkdir(exist_ok=True)
    (table / "mine" / "thesis.txt").write_text("years of work")
    said = l2i(*FIT, "--out", "mine", cwd=table)
    assert said.code == 2
    assert said.err == "l2i: mine exists and is not a fit folder; choose a different --out\n"
    assert (table / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_fit_that_was_cut_goes_on_to_the_same_end(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(table / "runs/flowers", folder)
    (folder / "fit.json").unlink()
    (folder / "l2i" / "result.json").unlink()
    sorted((folder / "l2i" / "checkpoints").iterdir())[-1].unlink()  # as it was at step 45
    assert "is an unfinished fit; repeat the same 'l2i fit' command to resume it" in refused(
        "impute", str(folder), cwd=table
    )
    said = works(*FIT, "--out", str(folder), cwd=table)
    assert "resuming from step 45" in said.err
    (before, first), (after, second) = read_fit(table / "runs/flowers"), read_fit(folder)
    assert (after.selected_name, after.temperature, after.previews) == (
        before.selected_name,
        before.temperature,
        before.previews,
    )
    assert all((first.outputs[name] == second.outputs[name]).all() for name in first.outputs)
    assert (first.change_counts == second.change_counts).all()


def test_a_real_process_stopped_by_a_signal_says_so_and_goes_on(
    table: Path, tmp_path: Path
) -> None:
    command = [*FIT, "--out", str(tmp_path / "run"), "--steps", "300"]
    process = subprocess.Popen(
        [sys.executable, "-m", "l2i", *command],
        cwd=table,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    saved = tmp_path / "run" / "supervised" / "checkpoints" / "0000000075.safetensors"
    wait_until(saved.exists, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 143, err
    assert "the same command resumes from there" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "fit.json").exists()
    for command_on_it in (
        ("impute",),
        ("report",),
        ("predict", "flowers.csv"),
        ("export", "m.onnx"),
    ):
        name, *rest = command_on_it
        assert "is an unfinished fit" in refused(name, str(tmp_path / "run"), *rest, cwd=table)
    said = works(*command, cwd=table)
    assert "resuming from step" in said.err
    assert (tmp_path / "run" / "fit.json").exists()


def small(run: Run) -> Run:
    return changed(run, device="cpu", threads=1, steps=20, model={"width": 8}, seed=2)


def test_labels_of_test_rows_play_no_part_in_choice_or_imputation(
    table: Path, tmp_path: Path
) -> None:
    options = FitOptions(target=("label",), id="name", ignore=("kind",), test=0.4)
    source = read_source(str(table / "flowers.csv"), options)
    data = prepare_data(source, options, small(Run()))
    measured = data.split_names == "test"
    given = source.given_labels.copy()
    given[measured] = (given[measured] + 1) % 3
    lying = assemble_data(
        replace(source, given_labels=given),
        data.preprocessor,
        data.split_names,
        data.x,
        small(Run()),
    )
    actual = []
    for name, each in (("true", data), ("lying", lying)):
        run, choices = plan_run(each, options, small, small(Run()))
        runs = make_candidate_runs(run, options, tmp_path / name, has_unlabeled=True)
        actual.append(
            assemble_fit(each, [train_candidate(each, *item) for item in runs.items()], choices, {})
        )
    (fitted, rows), (other, others) = actual
    assert [c.test_metric for c in fitted.candidates] != [c.test_metric for c in other.candidates]
    assert (other.selected_name, other.temperature, other.covariate_shift_auc) == (
        fitted.selected_name,
        fitted.temperature,
        fitted.covariate_shift_auc,
    )
    assert [c.validation_cost for c in other.candidates] == [
        c.validation_cost for c in fitted.candidates
    ]
    blank = source.given_labels < 0
    mine, theirs = impute(fitted, rows), impute(other, others)
    assert (mine.labels[blank] == theirs.labels[blank]).all()
    assert (mine.confidence[blank] == theirs.confidence[blank]).all()


def test_without_baselines_one_network_is_trained(table: Path) -> None:
    out = ("--out", "runs/alone")
    said = works(
        *FIT, *out, "--no-baselines", "--method", "vat", "--method.epsilon", "2", cwd=table
    )
    assert "l2i: method: vat, weight 1 (set by you)" in said.err
    assert "Selected: vat + L2I (validation error " in said.out
    assert "the only candidate" in said.out
    assert "was not measured:\n  no model was trained on the labelled rows alone" in said.out
    assert [path.name for path in (table / "runs/alone").iterdir() if path.is_dir()] == ["l2i"]
    config = json.loads((table / "runs/alone/l2i/config.json").read_text())
    assert (config["method"]["name"], config["method"]["epsilon"]) == ("vat", 2.0)
    works("impute", "runs/alone", "--out", "alone.csv", cwd=table)
    works("report", "runs/alone", cwd=table)


def test_imputation_can_be_turned_off(table: Path) -> None:
    said = works(*FIT, "--out", "runs/off", "--l2i.update", "off", cwd=table)
    assert "l2i: L2I: off (set by you)" in said.err
    assert sorted(path.name for path in (table / "runs/off").iterdir() if path.is_dir()) == [
        "baseline",
        "supervised",
    ]
    works("report", "runs/off", cwd=table)


def test_without_test_rows_there_is_a_fit_and_no_test_metric(table: Path) -> None:
    works(*FIT, "--out", "runs/untested", "--test", "0", cwd=table)
    fitted, rows = read_fit(table / "runs/untested")
    assert not (rows.split_names == "test").any() and all(
        c.test_metric is None for c in fitted.candidates
    )
    works("report", "runs/untested", cwd=table)
