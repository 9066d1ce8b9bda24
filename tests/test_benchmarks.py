"""The pages under benchmarks/ show what their files give, and every file is shown."""

import argparse
import difflib
import importlib
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from statistics import median

import pytest
import torch
from benchmarks.ablation_cpu.__main__ import AblationOptions, check_options
from benchmarks.ablation_cpu.grid import ARMS, PROBLEMS
from benchmarks.pages import ROOT, find_blocks, list_pages, run_block, run_command

from l2i.cli import run_command as run_l2i
from l2i.cli.parsing import parse_options
from l2i.errors import InputError
from l2i.experiments.benchmark.cases import select_cases
from l2i.experiments.options import BenchOptions, CompareOptions
from l2i.experiments.results import format_setting_overrides
from l2i.training.evaluation import compute_final_metric, extract_curve
from l2i.training.metrics import parse_metrics
from l2i.training.run_dir import Result
from shell_words import expand_braces

BENCHMARKS = ROOT / "benchmarks"

EXPERIMENTS = sorted(
    path for path in BENCHMARKS.iterdir() if path.is_dir() and path.name != "__pycache__"
)

INDEX = (BENCHMARKS / "README.md").read_text(encoding="utf-8")

HARDWARE = ("_h200", "_cpu")

RUN_KEYS = {"files", "command", "commit", "date"}

MANIFEST_KEYS = {"hardware", "versions", "notes", "runs"}

by_folder = pytest.mark.parametrize("folder", EXPERIMENTS, ids=lambda folder: folder.name)

by_page = pytest.mark.parametrize(
    "page", list_pages(), ids=lambda page: str(page.relative_to(ROOT))
)


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


@by_page
def test_generated_blocks_are_up_to_date(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("L2I_DATA", raising=False)
    for block in find_blocks(page):
        actual = run_block(block.command, plots=tmp_path)
        lines = difflib.unified_diff(
            block.text.splitlines(), actual.splitlines(), "page", "command", lineterm="", n=0
        )
        name, difference = page.relative_to(ROOT), "\n".join(lines)
        assert actual == block.text, (
            f"{name}: '{block.command}' differs; run python -m benchmarks.pages\n{difference}"
        )


def test_checking_pages_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = {path: path.stat().st_mtime_ns for path in BENCHMARKS.rglob("*.*")}
    monkeypatch.setattr(
        "benchmarks.pages.list_pages", lambda: [BENCHMARKS / "cifar-fast_h200" / "README.md"]
    )
    monkeypatch.setenv("L2I_DATA", "")
    assert run_command(["--check"]) == 0, capsys.readouterr().out
    assert written.items() <= {p: p.stat().st_mtime_ns for p in BENCHMARKS.rglob("*.*")}.items()


@by_folder
def test_every_plot_is_drawn_by_a_block(folder: Path) -> None:
    commands = " ".join(block.command for block in find_blocks(folder / "README.md"))
    for path in folder.glob("*.png"):
        flags = rf"--plots {path.parent.relative_to(ROOT)}(?: |$)|{path.relative_to(ROOT)}"
        assert re.search(flags, commands), f"no block draws {path}"


@by_page
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@by_folder
def test_experiments_are_named_by_their_hardware(folder: Path) -> None:
    assert folder.name.endswith(HARDWARE) and (folder / "README.md").exists()


def compute_expected_metric(curve: dict, validation: dict, result: dict, rule: str) -> float:
    """Return the metric as the result defines it: some are older than the present definition."""
    steps = result["steps"]
    if "(the last 2 % of the steps)" in result["metric_definition"]:
        return median(curve[steps - int(k * 0.02 * steps / 20)] for k in range(20))
    return compute_final_metric(curve, validation, steps, rule)


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
                expected = compute_expected_metric(curve, validation, result, rule)
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
        assert run["command"].strip(), "a file that no command produces needs 'none: REASON'"
    described = {folder / name for run in manifest["runs"] for name in run["files"]}
    assert all(path.exists() for path in described)
    for path in list_data(folder):
        assert {path, *path.parents} & described, f"{path} is not in the manifest"
        for conditions in iter_conditions(path):
            assert conditions["hardware"] in manifest["hardware"], path
            for name, versions in manifest["versions"].items():
                assert conditions["versions"].get(name, versions[0]) in versions, path


@by_folder
def test_commands_set_what_the_results_have_other_than_their_recipes(folder: Path) -> None:
    """By one command or another of the manifest; those of a variant have its folder."""
    commands = [run["command"] for run in read_manifest(folder)["runs"]]
    lines = [line.split() for text in commands for line in text.splitlines()]
    for path in list_data(folder):
        if not re.search(r"-seed\d+\.json$", path.name):
            continue
        result = Result(**json.loads(path.read_text(encoding="utf-8")))
        store = str(path.parents[1].relative_to(ROOT))
        settings = {word for words in lines if store in words for word in words}
        overrides = format_setting_overrides(result).replace('"', "")
        missing = set(filter(None, overrides.split(", "))) - settings
        assert not missing, f"{path} has {', '.join(missing)}"


@by_folder
def test_commands_are_valid(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Plan or parse, but do not run, what the manifest and the page tell the reader to run."""
    page = (folder / "README.md").read_text(encoding="utf-8")
    scripts = [run["command"] for run in read_manifest(folder)["runs"]]
    scripts = [script for script in scripts if not script.startswith("none: ")]
    scripts += re.findall(r"^```bash\n(.*?)^```", page, re.M | re.S)
    for line in "\n".join(scripts).replace("\\\n", " ").splitlines():
        words = [word for text in shlex.split(line, comments=True) for word in expand_braces(text)]
        words = [str(tmp_path) if word == "FOLDER" else word for word in words]
        words = [word.replace("MINILM", str(tmp_path)) for word in words]
        words = words[1:] if words and words[0].startswith("OMP_NUM_THREADS=") else words
        if not words:
            continue
        if words[:2] == ["l2i", "bench"]:
            options = parse_options(BenchOptions, words[2:], "l2i bench", BenchOptions())
            assert select_cases(options, torch.device(options.device.replace("auto", "cpu"))), line
        elif words[:2] == ["l2i", "compare"] and "--from" in words:
            parse_options(CompareOptions, words[3:], "l2i compare", CompareOptions())
        elif words[0] == "l2i":
            if "--save-results" in words:
                place = words.index("--save-results")
                del words[place : place + 2]
            monkeypatch.chdir(tmp_path)  # away from any runs of these cells with other settings
            assert run_l2i([*words[1:], "--dry-run"]) == 0, (line, capsys.readouterr().err)
        else:
            assert words[:2] == ["python", "-m"], line
            parse_benchmark_command(words[2], words[3:], monkeypatch)


class Parsed(Exception):
    """Raised when the arguments of a command have been accepted."""


def parse_benchmark_command(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parse the arguments of `python -m MODULE`; raise if they are wrong."""
    if module == "benchmarks.ablation_cpu":
        problems = list(takewhile(lambda word: not word.startswith("-"), arguments))
        assert set(problems) <= PROBLEMS.keys()
        flags = arguments[len(problems) :]
        check_options(parse_options(AblationOptions, flags, module, AblationOptions()))
        return
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, words: list[str]) -> None:
        parse_args(parser, words)
        raise Parsed

    with monkeypatch.context() as patch, pytest.raises(Parsed):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        importlib.import_module(module).run_command(arguments)


@pytest.mark.parametrize(
    "command",
    [
        "benchmarks.trials trials.jsonl --sumary",
        "benchmarks.speed_h200.randaugment_cost 64 --repeats 20",
        "benchmarks.ablation_cpu --seed 0:8",
    ],
)
def test_unknown_flags_of_commands_are_found(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, *arguments = command.split()
    with pytest.raises((SystemExit, InputError)):
        parse_benchmark_command(module, arguments, monkeypatch)


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


def test_trials_have_one_schema() -> None:
    for path in BENCHMARKS.rglob("trials.jsonl"):
        for trial in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            assert {"setting", "seed", "steps", "metric"} <= trial.keys(), path
            assert "cell" in trial or "method" in trial, path
            assert trial["metric"] is None or isinstance(trial["metric"], float), path
            last = trial.get("evaluations", [{}])[-1]
            assert last.get("step") in (None, trial["steps"], trial.get("reached")), path


def test_bn_statistics_are_compared_on_one_training_run() -> None:
    variants = (".", "ema-bn-copied")
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
    assert costs[0] == costs[1]


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
