"""Guides run as written, links lead to pages and headings, and named flags exist."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from l2i.cli import COMMANDS
from l2i.cli.commands import EvaluateOptions
from l2i.config import Run, replace
from l2i.config.validate import flatten_fields
from l2i.experiments.options import BenchOptions, CompareOptions, PlotOptions, TuneOptions
from l2i.fit.options import FitOptions, ImputeOptions, PredictOptions, ReportOptions
from l2i.methods import METHODS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
START_PAGES = [ROOT / "README.md", DOCS / "install.md", DOCS / "quickstart.md"]
TUTORIALS = [*START_PAGES, *sorted((DOCS / "guides").glob("*.md"))]
NOT_RUNNABLE = ("multi-gpu",)  # needs torchrun, and several devices
TOP_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*TOP_PAGES, *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "benchmarks").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")
COMMAND = re.compile(rf"(?:^|-m |bin/|\$ )l2i ({'|'.join(COMMANDS)})\b(.*)")
COMMAND_BLOCKS = ("", "bash", "console", "text")
RUN_FLAG_COMMANDS = ("train", "fit", "tune")  # every field of a run is a flag, too
OPTIONS: dict[str, Any] = {
    "fit": FitOptions(),
    "impute": ImputeOptions(),
    "predict": PredictOptions(),
    "report": ReportOptions(),
    "compare": CompareOptions(),
    "tune": TuneOptions(),
    "evaluate": EvaluateOptions(),
    "plot": PlotOptions(),
    "bench": BenchOptions(),
}
EXTRA_FLAGS = {"list": {"--tables"}, "train": {"--dry-run"}}  # not fields of a dataclass


def name_page(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def read_blocks(page: Path) -> list[tuple[str, str]]:
    return [(kind, content) for _, kind, content in BLOCK.findall(page.read_text())]


def read_prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


def find_steps(page: Path) -> Iterator[tuple[str, str]]:
    """Yield Python blocks, and the commands of console blocks, in order."""
    for kind, content in read_blocks(page):
        if kind == "python":
            yield kind, content
        elif kind == "console":
            lines = content.splitlines()
            yield from ((kind, line[2:]) for line in lines if line.startswith("$ "))


def run_command(command: str, folder: Path) -> None:
    program, *arguments = shlex.split(command)
    assert program == "l2i", f"only l2i is run in console blocks: {command}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "l2i", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in TUTORIALS if page.stem not in NOT_RUNNABLE], ids=name_page
)
def test_a_page_runs_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    steps = list(find_steps(page))
    assert steps, f"{page.name} has nothing to run; list it in NOT_RUNNABLE"
    names: dict[str, Any] = {"__name__": page.stem}
    for kind, content in steps:
        if kind == "python":
            exec(compile(content, f"{page.name}:{content.splitlines()[0]}", "exec"), names)
        else:
            run_command(content, tmp_path)


def test_pages_that_are_not_run_have_nothing_to_run() -> None:
    skipped = [page for page in TUTORIALS if page.stem in NOT_RUNNABLE]
    assert len(skipped) == len(NOT_RUNNABLE)
    assert not [page for page in skipped if list(find_steps(page))]


def slugify_github(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def slugify_mkdocs(heading: str) -> str:
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@cache
def find_anchors(page: Path) -> set[str]:
    """Return what a link to the page may name after '#'."""
    prose = read_prose(page)
    headings = [
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip()
        for heading in re.findall(r"^#+ (.+?)(?: *\{[^}]*\})?$", prose, re.MULTILINE)
    ]
    anchors = set(re.findall(r"\{ *#([\w.-]+)|<a (?:id|name)=\"([\w.-]+)\"", prose))
    found = {name for pair in anchors for name in pair if name}
    for slugify, separator in ((slugify_github, "-"), (slugify_mkdocs, "_")):
        repeats: Counter[str] = Counter()
        for slug in map(slugify, headings):
            found.add(f"{slug}{separator}{repeats[slug]}" if repeats[slug] else slug)
            repeats[slug] += 1
    return found


def names_documented_object(page: Path, anchor: str) -> bool:
    """Whether the page has a `::: NAME` that documents what the anchor names."""
    objects = re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
    return any(anchor == name or anchor.startswith(f"{name}.") for name in objects)


def find_broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(INLINE_CODE.sub("code", read_prose(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and not (
            anchor in find_anchors(target) or names_documented_object(target, anchor)
        ):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    broken = list(find_broken_links(page))
    assert not broken, f"{name_page(page)} has broken links: {broken}"


def make_flags(options: Any) -> set[str]:
    names = [name.rstrip("_").replace("_", "-") for name, _ in flatten_fields(options)]
    negated = [re.sub(r"([^.]+)$", r"no-\1", name) for name in names]
    return {f"--{name}" for name in [*names, *negated]}


@cache
def list_flags(command: str) -> set[str]:
    flags = {"--help"} | EXTRA_FLAGS.get(command, set())
    if command in OPTIONS:
        flags |= make_flags(OPTIONS[command])
    if command in RUN_FLAG_COMMANDS:
        for method in METHODS:
            flags |= make_flags(replace(Run(), method=method))
    return flags


def find_commands(page: Path) -> Iterator[tuple[str, str]]:
    """Yield the commands that a page names, in blocks or inline, with their arguments."""
    lines = [
        re.sub(r"\s#.*", "", line)
        for kind, content in read_blocks(page)
        if kind in COMMAND_BLOCKS
        for line in content.replace("\\\n", " ").splitlines()
    ]
    lines += [" ".join(code.split()) for code in INLINE_CODE.findall(read_prose(page))]
    for line in lines:
        if match := COMMAND.search(line):
            yield match[1], match[2]


def find_unknown_flags(page: Path) -> Iterator[str]:
    """Yield flags that a command does not have, and fields that `--set` could not set."""
    for command, arguments in find_commands(page):
        words = [word.strip("[](),;:.").partition("=") for word in arguments.split()]
        for name, equals, _ in words:
            if name.startswith("--") and "…" not in name and name not in list_flags(command):
                yield f"l2i {command} {name}"
            is_field = equals and re.fullmatch(r"[a-z_0-9.]+", name) and "--set" in arguments
            if is_field and f"--{name.replace('_', '-')}" not in list_flags("train"):
                yield f"l2i {command} --set {name}"


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_named_flags_exist(page: Path) -> None:
    unknown = list(find_unknown_flags(page))
    assert not unknown, f"{name_page(page)} names flags that do not exist: {unknown}"


@pytest.mark.slow
def test_the_method_in_contributing_passes_the_type_checker(tmp_path: Path) -> None:
    blocks = [content for _, content in read_blocks(ROOT / "CONTRIBUTING.md")]
    path = tmp_path / "entropy_weighted.py"
    path.write_text(next(content for content in blocks if "(Method):" in content))
    assert len(path.read_text().splitlines()) < 40
    config = str(ROOT / "pyproject.toml")
    options = ["--strict", "--cache-dir", str(tmp_path), "--config-file", config]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
