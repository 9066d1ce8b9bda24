"""docs/results.md holds what the committed result files give."""

import json
import re
from itertools import product
from pathlib import Path
from statistics import mean

import pytest
from benchmarks.ablation.__main__ import run_command as run_ablation
from benchmarks.ablation.grid import ARMS, PROBLEMS

from l2i.cli import run_command
from l2i.experiments.formatting import format_mean_stderr
from l2i.training.evaluation import compute_final_metric, extract_curve
from l2i.training.metrics import parse_metrics

ROOT = Path(__file__).parent.parent
IMDB, AFLW = (ROOT / "results" / table for table in ("imdb", "aflw"))
STEPS = 10_000
OWN_LAYOUT = ("imdb", "study")  # folders whose tables have more, or other, columns
STUDY = ROOT / "results" / "study"
STUDY_BLOCK = re.compile(
    r"^<!-- python -m benchmarks\.ablation --from results/study --markdown: (\w+) -->\n"
    r"(.*?)^<!-- end -->$",
    re.M | re.S,
)
BLOCK = re.compile(
    r"^<!-- l2i compare (\S+) --from (\S+) --markdown -->\n(.*?)^<!-- end -->$", re.M | re.S
)
BLOCKS = BLOCK.findall((ROOT / "docs/results.md").read_text(encoding="utf-8"))


def metric_values(cell: str) -> list[float]:
    actual = []
    for path in sorted(IMDB.glob(f"{cell}-seed*.jsonl")):
        test = extract_curve(parse_metrics(path.read_bytes()), "test")
        actual.append(compute_final_metric(test, {}, STEPS, "median"))
    return actual


@pytest.mark.parametrize("cell", ["sl-20", "uda-20", "uda-l2i-20"])
def test_a_row_of_the_imdb_table_is_that_of_its_files(cell: str) -> None:
    row = next(
        line
        for line in (ROOT / "docs/results.md").read_text().splitlines()
        if line.startswith(f"| `{cell}`")
    )
    cells = [part.strip() for part in row.strip("|").split("|")]
    assert cells[1] == format_mean_stderr(metric_values(cell))
    assert cells[2] == ", ".join(f"{metric:.2f}" for metric in metric_values(cell))
    results = [json.loads(path.read_text()) for path in sorted(IMDB.glob(f"{cell}-seed*.json"))]
    assert cells[4] == f"{mean(r['steps_per_second'] for r in results):.0f}"
    assert cells[5] == f"{mean(r['seconds'] for r in results):.0f} s"


@pytest.mark.parametrize("path", sorted(IMDB.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_is_that_of_its_evaluations(path: Path) -> None:
    result = json.loads(path.read_text())
    test = extract_curve(parse_metrics(path.with_suffix(".jsonl").read_bytes()), "test")
    assert result["metric"] == pytest.approx(
        compute_final_metric(test, {}, result["steps"], "median")
    )
    assert result["steps"] == STEPS


def test_the_trials_are_those_of_their_file() -> None:
    trials = json.loads((ROOT / "results" / "imdb-trials.json").read_text(encoding="utf-8"))
    lines = (ROOT / "docs/results.md").read_text(encoding="utf-8").splitlines()
    for setting in dict.fromkeys(trial["setting"] for trial in trials):
        last = {
            t["seed"]: list(t["validation"].values())[-1] for t in trials if t["setting"] == setting
        }
        cells = [f"{last[seed]:.2f}" if seed in last else "" for seed in (10, 11)]
        assert f"| {setting} | {cells[0]} | {cells[1]} |" in lines


def test_the_trials_of_landmarks_are_those_of_their_file() -> None:
    trials = json.loads((ROOT / "results" / "aflw-trials.json").read_text(encoding="utf-8"))
    lines = (ROOT / "docs/results.md").read_text(encoding="utf-8").splitlines()
    for setting in dict.fromkeys(trial["setting"] for trial in trials):
        actual = {(t["method"], t["seed"]): t["metric"] for t in trials if t["setting"] == setting}
        cells = []
        for which in [
            (method, seed) for method in ("mean-teacher", "pseudo-label") for seed in (0, 1)
        ]:
            metric = actual.get(which)
            cells.append(
                "" if which not in actual else "diverged" if metric is None else f"{metric:.2f}"
            )
        assert f"| {setting} | {' | '.join(cells)} |" in lines


def test_the_exact_rule_stood_where_the_page_says() -> None:
    actual, gains = [], []
    for cut in json.loads((ROOT / "results" / "aflw-exact.json").read_text(encoding="utf-8")):
        best = min(cut["evaluations"], key=lambda row: (row["validation"], row["step"]))
        baseline = json.loads((AFLW / f"mean-teacher-91-seed{cut['seed']}.json").read_text())
        actual.append(best["test"])
        gains.append(best["test"] - baseline["metric"])
    gain = format_mean_stderr(gains).replace("-", "−")
    message = f"it stood at {format_mean_stderr(actual)} %, {gain} against mean teacher"
    assert message in " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())


def test_outer_updates_lower_costs_as_often_as_the_page_says() -> None:
    rows = [row for path in AFLW.glob("*-l2i-*.jsonl") for row in parse_metrics(path.read_bytes())]
    probed = [row for row in rows if row.get("c_h_before") is not None]
    shares = [
        mean(row[f"{cost}_after"] < row[f"{cost}_before"] for row in probed)
        for cost in ("c_h", "test_cost")
    ]
    message = (
        f"C^H at {100 * shares[0]:.0f} % and the test cost at {100 * shares[1]:.0f} % of "
        f"{len(probed):,} evaluations"
    )
    assert message in " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("path", sorted(AFLW.glob("*-seed*.json")), ids=lambda path: path.stem)
def test_a_landmark_result_is_that_of_its_evaluations(path: Path) -> None:
    result, rows = (
        json.loads(path.read_text()),
        parse_metrics(path.with_suffix(".jsonl").read_bytes()),
    )
    metric = compute_final_metric(
        extract_curve(rows, "test"), extract_curve(rows, "validation"), result["steps"], "best"
    )
    assert (result["metric"], result["steps"]) == (pytest.approx(metric), 22_500)


@pytest.mark.parametrize(
    ("table", "folder", "block"), BLOCKS, ids=[f"{table}, {place}" for table, place, _ in BLOCKS]
)
def test_a_table_is_what_the_command_prints(
    table: str,
    folder: str,
    block: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("L2I_DATA", raising=False)
    assert run_command(["compare", table, "--from", folder, "--markdown"]) == 0
    assert capsys.readouterr().out == block


@pytest.fixture
def study(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The blocks of docs/study.md by part, and those that the command prints."""
    monkeypatch.chdir(ROOT)
    assert run_ablation(["--from", "results/study", "--markdown"]) == 0
    page = (ROOT / "docs/study.md").read_text(encoding="utf-8")
    return dict(STUDY_BLOCK.findall(page)), dict(STUDY_BLOCK.findall(capsys.readouterr().out))


def test_the_tables_of_the_study_are_what_the_command_prints(
    study: tuple[dict[str, str], dict[str, str]],
) -> None:
    page, printed = study
    assert page == printed


def test_the_study_holds_nothing_that_its_page_does_not_show(
    study: tuple[dict[str, str], dict[str, str]],
) -> None:
    page, _ = study
    for path in sorted(STUDY.iterdir()):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for part in {line["part"] for line in lines} - {"pace"}:
            assert re.search(rf"^\|.*\b{path.stem}\b", page[part], re.M), (path.name, part)
        compared = [(line["arm"], line["seed"]) for line in lines if line["part"] == "arms"]
        assert sorted(compared) == sorted(
            product(ARMS, seeds_told(page.get("arms", ""), path.stem))
        )


def seeds_told(block: str, problem: str) -> list[int]:
    """The seeds that a problem's row in the table of arms ends with, as 0–3, 8–11."""
    cells = re.findall(rf"^\| `{problem}` .*\| ([\d–, ]+) \|$", block, re.M)
    spans = [span.split("–") for cell in cells for span in cell.split(", ")]
    return [seed for span in spans for seed in range(int(span[0]), int(span[-1]) + 1)]


@pytest.mark.parametrize("path", sorted(STUDY.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_study_has_the_strength_of_its_recipes(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if (
            line["part"] in ("tuning", "arms")
            and line["arm"] in ("control", "l2i")
            and line["metric"] is not None
        ):
            rho = PROBLEMS[path.stem].make_run(line["arm"]).l2i.rho
            assert line["grad_ratio"] == pytest.approx(rho, rel=1e-6), line


def test_every_folder_of_results_has_its_table() -> None:
    folders = {
        str(path.parent.relative_to(ROOT)) for path in (ROOT / "results").rglob("*-seed*.json")
    }
    shown = {f"{place}{table}" for table, place, _ in BLOCKS}
    assert folders - {f"results/{name}" for name in OWN_LAYOUT} == shown


def test_the_readme_has_the_metrics_of_the_study(
    study: tuple[dict[str, str], dict[str, str]],
) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in study[0]["arms"].splitlines()[4:]
    ]
    assert len(rows) == 7
    for row in rows:
        wanted = [row[1], row[2], row[5], *(cell.replace("-", "−") for cell in row[7:10])]
        assert any(line.endswith(f"| {' | '.join(wanted)} |") for line in readme), row[0]


def test_the_first_strength_for_tables_did_the_harm_that_the_page_says() -> None:
    lines = (
        (ROOT / "results" / "breast-cancer-trials.jsonl").read_text(encoding="utf-8").splitlines()
    )
    actual = {(line["arm"], line["seed"]): line["metric"] for line in map(json.loads, lines)}
    harm = format_mean_stderr(actual["l2i", seed] - actual["baseline", seed] for seed in range(8))
    assert f"problem was {harm} points *worse*" in " ".join(
        (ROOT / "docs/study.md").read_text(encoding="utf-8").split()
    )
