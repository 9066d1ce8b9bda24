import dataclasses
import json
from pathlib import Path

import pytest
import torch

from formats import write_faces
from l2i import InputError, Trainer, recipes, replace
from l2i.experiments.compare import compare, plan_runs
from l2i.experiments.formatting import columns_to_rows, format_values, render_markdown
from l2i.experiments.options import CompareOptions, DataLocation
from l2i.experiments.results import ComparisonRow, build_rows
from l2i.experiments.table import (
    build_columns,
    build_docs_columns,
    describe_plan,
    report_comparison,
)
from l2i.training.run_dir import Result


def test_a_mean_comes_with_its_standard_error() -> None:
    assert format_values([1.0, 2.0, 6.0]) == "3.00 ± 1.53"
    assert format_values([-1.0, 2.0, 2.0], decimals=1, sign="+") == "+1.0 ± 1.0"


def test_one_value_has_no_error() -> None:
    assert format_values([4.25], decimals=1) == "4.2"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The landmark cells with batches and labels that suit two dozen faces; all else as it is."""
    table = recipes.get_table("aflw")

    def make(name: str, cell: object) -> object:
        run = original(name, cell)  # type: ignore[arg-type]
        return replace(
            run,
            threads=1,
            probe_samples=0,
            data={"num_labeled": 10},
            batch={"labeled": 8, "unlabeled": 8, "holdout": 8},
        )

    original = table.make_run
    monkeypatch.setitem(table.__dict__, "make_run", make)


def options(folder: Path, **changes: object) -> CompareOptions:
    settings: dict[str, object] = {
        "cells": ("sl-91", "aflw/mean-teacher-l2i-91", "mean-teacher-91"),
        "seeds": 2,
        "steps": 3,
        "out": str(folder / "runs"),
        "device": "cpu",
        "data": DataLocation(root=str(folder)),
    }
    return CompareOptions(**{**settings, **changes})  # type: ignore[arg-type]


def test_our_results_stand_beside_the_papers(
    small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_faces(tmp_path)
    chosen = options(tmp_path)
    lines = compare("aflw", chosen)
    names = [line.name.removeprefix("aflw/") for line in lines]
    assert names == ["sl-91", "mean-teacher-91", "mean-teacher-91-longer", "mean-teacher-l2i-91"]
    assert lines[3].baseline is lines[1] and lines[3].time_matched_baseline is lines[2]
    report_comparison("aflw", lines, chosen)
    reported = capsys.readouterr().out
    for printed in (
        "mean-face",
        "16.58*",
        "16.32 ± 0.14",
        "12.80 ± 0.00",
        "11.53 ± 0.02",
        "Δ same steps",
    ):
        assert printed in reported
    assert "after 22,500 steps. Ours took 3 (0.013 %), with scaled schedules" in reported
    assert "* aflw/mean-face: the mean of each landmark" in reported
    saved = json.loads((tmp_path / "runs" / "aflw.json").read_text())
    assert [row["cell"] for row in saved] == ["aflw/mean-face", *(line.name for line in lines)]
    assert saved[1]["paper"]["error"] == 16.32 and saved[1]["paper_steps"] == 22_500
    assert [run["seed"] for run in saved[-1]["runs"]] == [0, 1]


def test_the_mean_face_is_that_of_all_training_faces(tmp_path: Path) -> None:
    write_faces(tmp_path)
    reference = recipes.get_table("aflw").compute_references
    assert reference is not None
    first = reference(str(tmp_path))["aflw/mean-face"]
    run = replace(
        recipes.get("aflw/sl-all"), device="cpu", data={"root": str(tmp_path)}, batch={"labeled": 8}
    )
    sets = Trainer(run).splits
    test, train = sets.test.y.double(), torch.cat([sets.labeled.y, sets.validation.y]).double()
    mean = train.mean(dim=0)
    error = (mean - test).view(len(test), 5, 2).norm(dim=2).mean(1) / (
        test[:, :2] - test[:, 2:4]
    ).norm(dim=1)
    assert first == pytest.approx(100 * float(error.mean()), rel=1e-5)


def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    reported = describe_plan(
        "cifar10", options(tmp_path, cells=("fixmatch-l2i-paper-250",), steps=100)
    )
    assert reported == [
        "cifar10/fixmatch-l2i-paper-250: 2 seeds, 0 already trained, "
        "100 of the recipe's 1,048,576 steps, "
        "paper: 5.56 ± 0.03"
    ]
    assert not (tmp_path / "runs").exists()


def test_an_unknown_cell_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="perhaps you meant 'mean-teacher-l2i-91'"):
        plan_runs(recipes.get_table("aflw"), options(tmp_path, cells=("mean-techer-l2i-91",)))


@pytest.mark.parametrize(
    ("cell", "baseline"),
    [
        ("cifar100/fixmatch-l2i-500-holdout32", "cifar100/fixmatch-500"),
        ("aflw/mean-teacher-l2i-paper-182-exact", "aflw/mean-teacher-182"),
        ("imagenet/fixmatch-l2i", "imagenet/fixmatch"),
        ("digits", "digits/fixmatch-40"),
        ("aflw/sl-91", None),
    ],
)
def test_every_cell_knows_its_baseline(cell: str, baseline: str | None) -> None:
    assert recipes.find_cell_table(cell).find_baseline(cell) == baseline


def results(name: str, metrics: dict[int, float]) -> list[Result]:
    """Results by seed."""
    fixed = {
        "metric_name": "error (%)",
        "metric_definition": "",
        "validation": None,
        "versions": {},
        "hardware": "",
    }
    return [
        Result(name=name, metric=metric_value, seed=seed, steps=9, seconds=90.0, **fixed)  # type: ignore[arg-type]
        for seed, metric_value in metrics.items()
    ]


def test_a_gain_is_ours_less_the_baselines_seed_by_seed() -> None:
    base = ComparisonRow("base", results("base", {0: 10.0, 1: 20.0, 3: 99.0}))
    ours = ComparisonRow("ours", results("ours", {2: 50.0, 1: 16.0, 0: 8.0}))
    assert ours.format_gain(base) == "-2.00 / -4.00"  # two are printed as they are, by seed
    assert ours.format_gain(None) == ""
    assert ours.format_gain(ComparisonRow("other", results("other", {7: 1.0}))) == ""


def test_errors_in_units_are_told_to_three_digits() -> None:
    def line(*metrics: float) -> ComparisonRow:
        actual = results("friedman/sl-60", dict(enumerate(metrics)))
        return ComparisonRow(
            "friedman/sl-60", [dataclasses.replace(result, metric_name="RMSE") for result in actual]
        )

    ours, other = line(0.651, 0.663, 0.660), line(0.650, 0.660, 0.659)
    assert ours.format_gain(other) == "+0.002 ± 0.001"
    assert build_columns([ours], {})["RMSE"] == ["0.658 ± 0.004"]


def test_l2i_and_its_ablations_are_set_against_their_controls() -> None:
    metrics = {
        "mean-teacher-91": 10.0,
        "mean-teacher-l2i-91": 8.0,
        "mean-teacher-l2i-paper-91": 7.0,
        "mean-teacher-l2i-91-zero": 10.5,
        "mean-teacher-l2i-paper-91-zero": 9.5,
        "mean-teacher-l2i-91-shuffled": 8.5,
        "mean-teacher-l2i-91-direct": 9.0,
        "mean-teacher-l2i-91-exact": 6.0,
    }
    actual = {
        f"aflw/{cell}": results(f"aflw/{cell}", {0: metric_value})
        for cell, metric_value in metrics.items()
    }
    comparison = build_rows(recipes.get_table("aflw"), actual)
    columns = build_docs_columns(comparison, {})
    rows = [
        line.strip("| ").split(" | ")
        for line in render_markdown(columns_to_rows(columns)).splitlines()
    ]
    controls = ["Δ zero", "Δ shuffled", "Δ direct"]
    assert rows[0] == [
        *("cell", "error (%)", "paper", "Δ same steps", *controls),
        *("seeds", "steps", "minutes per run"),
    ]
    assert [row[3:7] for row in rows[2:]] == [
        ["", "", "", ""],
        ["-2.00", "-2.50", "-0.50", "-1.00"],
        ["-3.00", "-2.50", "", ""],  # the control of its own rule
        ["+0.50", "", "", ""],
        ["-0.50", "", "", ""],
        ["-1.50", "", "", ""],
        ["-1.00", "", "", ""],
        ["-4.00", "-4.50", "", "-3.00"],  # shuffled labels are imputed by the last layer
    ]
    assert rows[2][-3:] == ["1", "9", "1.5"]


def test_fields_of_every_run_can_be_changed() -> None:
    changes = (
        "optim.lr=0.01",
        "batch.labeled=16",
        "l2i.paper.inner_supervised=True",
        "l2i.paper.supervised_eta=0.1",
        "l2i.preserve_step_norm=False",
        "optim.milestones=0.5,0.75",
        "l2i.paper.eta=None",
        "l2i.paper.eta_schedule=constant",
        "data.weak.flip=true",
        "eval_every=7",
    )
    table, exact = recipes.get_table("aflw"), "mean-teacher-l2i-91-k1"
    assert recipes.get(f"aflw/{exact}").l2i.paper.eta is not None
    planned = plan_runs(table, CompareOptions(set=changes, seeds=1))
    planned |= plan_runs(table, CompareOptions(set=changes, seeds=1, cells=(exact,)))
    for (run,) in planned.values():
        assert (run.optim.lr, run.batch.labeled, run.eval_every) == (0.01, 16, 7)
        assert run.l2i.paper.inner_supervised and not run.l2i.preserve_step_norm
        assert run.data.weak.flip
        assert run.optim.milestones == (0.5, 0.75) and run.l2i.paper.eta is None
    assert f"aflw/{exact}" in planned and len(planned) > 2


def test_controls_of_cells_with_l2i_are_trained_on_request() -> None:
    table, cells = recipes.get_table("cifar10"), ("mean-teacher-250", "mean-teacher-l2i-paper-250")
    plain = plan_runs(table, CompareOptions(cells=cells, seeds=1))
    assert list(plain) == [f"cifar10/{cell}" for cell in cells]
    more = plan_runs(table, CompareOptions(cells=cells, seeds=1, controls=True))
    controls = [f"cifar10/{cells[1]}-{mark}" for mark in ("zero", "shuffled", "direct")]
    assert list(more) == [*plain, *controls]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("optim.lr", "--set takes FIELD=VALUE, as in --set optim.lr=0.001, not 'optim.lr'"),
        ("steps=3", "--set steps: use the option of 'l2i compare' instead"),
        ("optim.rl=3", "aflw/sl-91: unknown field 'optim.rl'; perhaps you meant 'optim.lr'"),
        ("method.threshold=0.5", "aflw/sl-91: unknown field 'method.threshold'"),
        ("optim.lr=fast", "aflw/sl-91: optim.lr='fast' is not valid; it must be float"),
        ("optim.nesterov=1", "aflw/sl-91: optim.nesterov='1' is not valid; it must be bool"),
        ("optim.schedule=fast", "aflw/sl-91: optim.schedule='fast' is not valid"),
        ("data=digits", "aflw/sl-91: data is a section; set one of its fields, such as data.name"),
        ("eval_every.n=3", "aflw/sl-91: eval_every is not a section; set eval_every itself"),
    ],
)
def test_what_cannot_be_changed_is_said(change: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        plan_runs(recipes.get_table("aflw"), CompareOptions(set=(change,), seeds=1))
    assert message in str(error.value)


def test_what_would_be_trained_is_not_told_of_other_runs(small: None, tmp_path: Path) -> None:
    write_faces(tmp_path)
    chosen = options(tmp_path, cells=("sl-91",), seeds=1)
    compare("aflw", chosen)
    assert "1 seed, 1 already trained" in describe_plan("aflw", chosen)[0]
    with pytest.raises(InputError, match="contains a run with other settings"):
        describe_plan("aflw", options(tmp_path, cells=("sl-91",), seeds=1, steps=4))
