"""The pages under benchmarks/ show what their files give, and every file is shown."""

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from benchmarks.ablation_cpu.grid import ARMS, PROBLEMS
from benchmarks.pages import BLOCK, ROOT, find_blocks, list_pages, run_block

from l2i.cli import run_command
from l2i.training.evaluation import compute_final_metric, extract_curve
from l2i.training.metrics import parse_metrics

BENCHMARKS = ROOT / "benchmarks"
EXPERIMENTS = sorted(path for path in BENCHMARKS.iterdir() if path.is_dir() and "_" in path.name)
EXPERIMENTS = [path for path in EXPERIMENTS if path.name != "__pycache__"]
INDEX = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
VALUE = re.compile(r"[+-]?\d+(?:\.\d+)? ± \d+(?:\.\d+)?")
RUN_KEYS = {"files", "command", "commit", "date"}
MANIFEST_KEYS = {"hardware", "versions", "notes", "runs"}

by_folder = pytest.mark.parametrize("folder", EXPERIMENTS, ids=lambda folder: folder.name)


def find_values(text: str) -> set[str]:
    """Return all `x ± y` of a text, without the sign of a positive number."""
    return {value.lstrip("+") for value in VALUE.findall(text.replace("−", "-"))}


def read_generated(page: Path) -> str:
    return "\n".join(block.text for block in find_blocks(page))


def list_data(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.json*") if path.is_file())


def read_manifest(folder: Path) -> dict:
    return tomllib.loads((folder / "manifest.toml").read_text(encoding="utf-8"))


@cache
def list_shown_paths() -> frozenset[Path]:
    """Return the files and folders that the commands of all blocks read."""
    shown = set()
    for page in list_pages():
        for block in find_blocks(page):
            words = shlex.split(block.command)
            paths = [ROOT / word.rpartition("=")[2] for word in words if "benchmarks/" in word]
            if words[:2] == ["l2i", "compare"]:
                paths = [ROOT / words[words.index("--from") + 1] / words[2]]
            shown.update(paths)
    return frozenset(shown)


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_generated_blocks_are_up_to_date(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("L2I_DATA", raising=False)
    for block in find_blocks(page):
        stale = run_block(block.command, plots=tmp_path) != block.text
        name = page.relative_to(ROOT)
        assert not stale, f"{name}: '{block.command}' differs; run python -m benchmarks.pages"


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_values_in_prose_are_from_generated_blocks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    comments = re.findall(r"^<!--.*-->$", text, re.M)
    assert len(comments) == 2 * len(find_blocks(page)), "a block without COMMAND or end"
    assert find_values(BLOCK.sub("", text)) <= find_values(read_generated(page))


@pytest.mark.parametrize("page", list_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@by_folder
def test_results_are_those_of_their_evaluations(folder: Path) -> None:
    for path in folder.rglob("*-seed*.json"):
        result = json.loads(path.read_text(encoding="utf-8"))
        rows = parse_metrics(path.with_suffix(".jsonl").read_bytes())
        rule = "best" if "early stopping" in result["metric_definition"] else "median"
        validation = extract_curve(rows, "validation")
        for key, part in (("metric", "test"), ("validation", "validation")):
            if result[key] is not None:
                curve = extract_curve(rows, part)
                expected = compute_final_metric(curve, validation, result["steps"], rule)
                assert result[key] == pytest.approx(expected), path
        assert path.name == f"{result['name'].partition('/')[2]}-seed{result['seed']}.json"


@by_folder
def test_every_data_file_is_shown(folder: Path) -> None:
    shown = list_shown_paths()
    for path in list_data(folder):
        assert {path, *path.parents} & shown, f"{path} is in no table"


@by_folder
def test_every_plot_is_shown(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.glob("*.png"):
        assert f"]({path.name})" in text, path


@by_folder
def test_manifest_describes_the_results(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest.keys() == MANIFEST_KEYS and {"torch", "python"} <= manifest["versions"].keys()
    for run in manifest["runs"]:
        assert run.keys() == RUN_KEYS and re.fullmatch(r"[0-9a-f]{7}", run["commit"])
    described = {folder / name for run in manifest["runs"] for name in run["files"]}
    assert all(path.exists() for path in described)
    for path in list_data(folder):
        assert {path, *path.parents} & described, f"{path} is not in the manifest"
        for conditions in iter_conditions(path):
            assert conditions["hardware"] in manifest["hardware"], path
            for name, versions in manifest["versions"].items():
                assert conditions["versions"].get(name, versions[0]) in versions, path


@by_folder
def test_commands_are_valid(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plan, but do not train, what the manifest and the page tell the reader to run."""
    page = (folder / "README.md").read_text(encoding="utf-8")
    scripts = [run["command"] for run in read_manifest(folder)["runs"]]
    scripts += re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S)
    for line in "\n".join(scripts).replace("\\\n", " ").splitlines():
        words = [word for text in shlex.split(line, comments=True) for word in expand_braces(text)]
        words = [str(tmp_path) if word == "FOLDER" else word for word in words]
        words = [word.replace("MINILM", str(tmp_path)) for word in words]
        if words[:2] in (["l2i", "compare"], ["l2i", "train"]) and "--from" not in words:
            if "--save-results" in words:
                place = words.index("--save-results")
                del words[place : place + 2]
            assert run_command([*words[1:], "--dry-run"]) == 0, (line, capsys.readouterr().err)
        elif "-m" in words:
            assert importlib.util.find_spec(words[words.index("-m") + 1]), line


def expand_braces(word: str) -> list[str]:
    """Expand {a,b} as a shell does."""
    match = re.search(r"\{([^{}]+)\}", word)
    if not match:
        return [word]
    starts = [word[: match.start()] + option for option in match[1].split(",")]
    return [each for start in starts for each in expand_braces(start + word[match.end() :])]


def iter_conditions(path: Path) -> Iterator[dict]:
    """Yield the records of a file that state the conditions of their runs."""
    text = path.read_text(encoding="utf-8")
    records = [text] if path.suffix == ".json" else text.splitlines()
    yield from (record for record in map(json.loads, records) if "hardware" in record)


def test_index_lists_every_experiment_with_its_date_and_commit() -> None:
    rows = re.findall(
        r"^\| \[(.+?)\]\((.+?)/README\.md\) \|.*?\| (\S+) \| \w+ \| (\w+) \|", INDEX, re.M
    )
    assert sorted(name for name, *_ in rows) == [folder.name for folder in EXPERIMENTS]
    for name, target, date, commit in rows:
        runs = read_manifest(BENCHMARKS / name)["runs"]
        assert name == target and (date, commit) in {(str(r["date"]), r["commit"]) for r in runs}


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_results_elsewhere_are_those_of_the_linked_page(name: str) -> None:
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        targets = re.findall(r"\]\((?:\.\./)*(benchmarks/[^)#\s]+/README\.md)[^)]*\)", line)
        if line.startswith("|") and targets:
            generated = "\n".join(read_generated(ROOT / target) for target in targets)
            assert find_values(line) <= find_values(generated), line


def test_trials_have_one_schema() -> None:
    for path in BENCHMARKS.rglob("trials.jsonl"):
        for trial in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            assert {"setting", "seed", "steps", "metric"} <= trial.keys(), path
            assert "cell" in trial or "method" in trial, path
            assert trial["metric"] is None or isinstance(trial["metric"], float), path
            last = trial.get("evaluations", [{}])[-1]
            assert last.get("step") in (None, trial["steps"], trial.get("reached")), path


def test_bn_statistics_are_compared_on_one_training_run() -> None:
    variants = (".", "ema-bn-copied", "ema-bn-clean-samples")
    costs = []
    for variant in variants:
        path = (
            BENCHMARKS
            / "cifar-wrn10-1_cpu"
            / variant
            / "cifar10/mean-teacher-250-short-seed0.jsonl"
        )
        rows = parse_metrics(path.read_bytes())
        costs.append([(row["step"], row["c_t"], row["c_u"]) for row in rows])
    assert costs[0] == costs[1] == costs[2]


def test_ablation_stores_whole_comparisons_at_the_recipes_strength() -> None:
    for path in (BENCHMARKS / "ablation_cpu" / "results").glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        compared = [(line["arm"], line["seed"]) for line in lines if line["part"] == "arms"]
        seeds = {seed for _, seed in compared}
        assert sorted(compared) == sorted((arm, seed) for arm in ARMS for seed in seeds)
        for line in lines:
            tuned = line["part"] in ("tuning", "arms") and line["arm"] in ("control", "l2i")
            if tuned and line["metric"] is not None:
                rho = PROBLEMS[path.stem].make_run(line["arm"]).l2i.rho
                assert line["grad_ratio"] == pytest.approx(rho, rel=1e-6), line
