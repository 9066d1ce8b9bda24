"""`l2i compare --analyze-updates`: what imputing did on the way, from the files of probed runs."""

import json
import shutil
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from l2i.cli import run_command
from l2i.experiments.formatting import format_values
from l2i.experiments.plots import (
    choose_decimals,
    compute_cost_change,
    format_mean_change,
    select_probes,
)
from l2i.training.diagnostics import ERROR_COLUMNS as LABELS
from l2i.training.metrics import MetricRow

PAIRS = ("fixmatch", "mean-teacher")
CELLS = [f"{method}{mark}-40" for method in PAIRS for mark in ("", "-l2i")]
TRAINING = [
    "compare",
    "digits",
    "--seeds",
    "2",
    "--steps",
    "6",
    "--device",
    "cpu",
    "--no-time-matched",
    "--cells",
]
SMALL = ["threads=1", "eval-every=2", "batch.labeled=8", "batch.unlabeled=8", "batch.holdout=8"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    keep = ["--save-results", str(folder / "results"), "--out", str(folder / "runs")]
    assert (
        run_command(
            [*TRAINING, *CELLS, *keep, "--set", *SMALL, "probe_samples=300", "method.weight=0.5"]
        )
        == 0
    )
    return folder / "results"


def rows_of(results: Path, cell: str) -> list[list[dict[str, Any]]]:
    files = [results / "digits" / f"{cell}-40-seed{seed}.jsonl" for seed in (0, 1)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def printed(
    results: Path, capsys: pytest.CaptureFixture[str], picture: Path
) -> dict[str, dict[str, str]]:
    """The second table, by cell and heading."""
    assert (
        run_command(
            [
                "compare",
                "digits",
                "--from",
                str(results),
                "--markdown",
                "--analyze-updates",
                str(picture),
            ]
        )
        == 0
    )
    lines = [line.strip("| ") for line in capsys.readouterr().out.splitlines()]
    first = next(number for number, line in enumerate(lines) if "change in C^H" in line)
    headings = lines[first].split(" | ")
    rows = [dict(zip(headings, line.split(" | "), strict=False)) for line in lines[first + 2 :]]
    return {row["cell"].strip("`"): row for row in rows}


@pytest.mark.parametrize("method", PAIRS)
def test_a_row_holds_what_the_runs_measured(
    method: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = printed(results, capsys, tmp_path / "a.png")[f"{method}-l2i-40"]
    ours, theirs = rows_of(results, f"{method}-l2i"), rows_of(results, method)
    assert [len(run) for run in ours] == [3, 3]
    first, last = (mean(run[look]["grad_ratio_raw"] for run in ours) for look in (0, -1))
    assert row["‖g_outer‖/‖g_base‖"] == f"{first:.2g} → {last:.2g}"
    assert row["C^H"] == " → ".join(
        f"{mean(run[look]['c_h'] for run in ours):.2g}" for look in (0, -1)
    )
    for heading, cost in (("C^H", "c_h"), ("test cost", "test_cost")):
        changes = [look[f"{cost}_after"] - look[f"{cost}_before"] for run in ours for look in run]
        lower = 100 * sum(change < 0 for change in changes) / 6
        told_change = format_values(changes, decimals=choose_decimals(changes), sign="+")
        assert row[f"change in {heading}"] == f"{told_change}, {lower:.0f} %"
    assert row["wrong labels (%)"] == f"{mean(run[-1]['pseudo_label_error'] for run in ours):.1f}"
    assert (
        row["wrong labels (%), without L2I"]
        == f"{mean(run[-1]['pseudo_label_error'] for run in theirs):.1f}"
    )
    if method == "fixmatch":
        assert (
            row["wrong below (%), without L2I"]
            == f"{mean(run[-1]['pseudo_label_error_below_threshold'] for run in theirs):.1f}"
        )


def test_a_seed_that_only_one_of_them_has_is_left_out(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = shutil.copytree(results, tmp_path / "results")
    for path in (
        *changed.glob("digits/fixmatch-l2i-40-seed1.*"),
        *changed.glob("digits/mean-teacher-40-seed*"),
    ):
        path.unlink()
    rows = printed(changed, capsys, tmp_path / "a.svg")
    (of_both, _) = rows_of(results, "fixmatch")
    assert rows.keys() == {"fixmatch-l2i-40"}
    assert (
        rows["fixmatch-l2i-40"]["wrong labels (%), without L2I"]
        == f"{of_both[-1]['pseudo_label_error']:.1f}"
    )


def test_a_cost_that_rises_has_a_change_above_0_and_one_that_was_not_measured_has_none() -> None:
    row: MetricRow = {
        "step": 1,
        "c_h_before": 0.0,
        "c_h_after": 0.5,
        "test_cost_before": None,
        "test_cost_after": 1.0,
    }
    assert compute_cost_change(row, "c_h") == 0.5 and compute_cost_change(row, "test_cost") is None


def test_no_digit_of_a_small_change_is_lost() -> None:
    rows: list[MetricRow] = [
        {"step": 1, "c_h_before": 1.0, "c_h_after": 1.0 - part}
        for part in (0.00014, 0.00016, 0.00018)
    ]
    assert format_mean_change([rows], "c_h") == "-0.00016 ± 0.00001, 100 %"
    assert (
        format_mean_change([[{**row, "c_h_after": 1.0} for row in rows]], "c_h")
        == "+0.0000 ± 0.0000, 0 %"
    )


def test_means_are_over_all_steps_since_the_look_before() -> None:
    """Rows in between are of few steps, as those of the evaluations at the end."""
    rows: list[MetricRow] = [
        {"step": 10, "c_h": 4.0, "pseudo_label_error": 1.0},
        {"step": 18, "c_h": 2.0, "grad_ratio_raw": None},
        {"step": 20, "c_h": 1.0, "grad_ratio_raw": 0.5, "pseudo_label_error": 1.0},
    ]
    first, second = select_probes(rows)
    assert (first["c_h"], first["grad_ratio_raw"]) == (4.0, None)
    assert (second["c_h"], second["grad_ratio_raw"]) == (pytest.approx((8 * 2 + 2 * 1) / 10), 0.5)


def test_the_picture_has_every_pair_and_both_kinds_of_labels(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(results, capsys, picture := tmp_path / "new" / "mechanism.svg")
    written = picture.read_text()
    words = (
        *(f"{method}-l2i-40" for method in PAIRS),
        "before",
        "after",
        "test cost",
        "with L2I",
        "below, without",
    )
    assert all(f"<!-- {word} -->" in written for word in words)


def test_runs_without_looks_at_their_labels_tell_of_their_costs(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = shutil.copytree(results, tmp_path / "results")
    for path in changed.glob("digits/*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        saved = [{name: value for name, value in row.items() if name not in LABELS} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in saved))
    row = printed(changed, capsys, tmp_path / "a.svg")["fixmatch-l2i-40"]
    assert row["change in C^H"].endswith("%") and not [name for name in row if "wrong" in name]
    written = (tmp_path / "a.svg").read_text()
    assert "<!-- C^H before and after -->" in written and "imputed labels" not in written


def test_runs_that_were_not_probed_have_nothing_to_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = ["--save-results", str(tmp_path / "results"), "--out", str(tmp_path / "runs")]
    assert run_command([*TRAINING, *CELLS[:2], *keep, "--set", *SMALL]) == 0
    new = [
        "--out",
        str(tmp_path / "new"),
        "--save-results",
        str(tmp_path / "new"),
        "--analyze-updates",
        str(tmp_path / "a.png"),
    ]
    assert run_command([*TRAINING, *CELLS[:2], *new]) == 2
    assert "both probed" in capsys.readouterr().err and not (tmp_path / "new").exists()
    asked = ["compare", "digits", "--from", str(tmp_path / "results"), "--analyze-updates"]
    for picture, message in (
        ("a.gif", "must end in .png"),
        (str(tmp_path / "a.png"), "train both with --set probe"),
    ):
        assert run_command([*asked, picture]) == 2
        assert message in capsys.readouterr().err
