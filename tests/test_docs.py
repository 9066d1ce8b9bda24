"""The tutorials are run as written, block by block, and the links between pages lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def steps_of(page: Path) -> Iterator[tuple[str, str]]:
    """Python blocks, and the commands of console blocks, in order."""
    for kind, content in BLOCK.findall(page.read_text()):
        if kind == "python":
            yield kind, content
        elif kind == "console":
            yield from (
                (kind, line.removeprefix("$ "))
                for line in content.splitlines()
                if line.startswith("$ ")
            )


def run_command(command: str, folder: Path) -> None:
    program, *arguments = shlex.split(command)
    assert program == "l2i", f"a tutorial runs nothing but l2i: {command}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "l2i", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_tutorial_runs_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = list(steps_of(page))
    assert steps
    names: dict[str, Any] = {"__name__": page.stem}
    for kind, content in steps:
        if kind == "python":
            exec(compile(content, f"{page.name}:{content.splitlines()[0]}", "exec"), names)
        else:
            run_command(content, tmp_path)


def anchors_of(page: Path) -> set[str]:
    """What a link may name after '#': headings as GitHub writes them."""
    plain = BLOCK.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for link in LINK.findall(BLOCK.sub("", page.read_text())):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        assert not anchor or anchor in anchors_of(target), (
            f"{page.name} links to {link}, a heading that is not there"
        )


def test_every_tutorial_is_named_in_the_reference() -> None:
    linked = set(LINK.findall((ROOT / "docs" / "reference" / "fit.md").read_text()))
    assert {f"../guides/{page.name}" for page in GUIDES} <= linked


def test_the_method_in_contributing_passes_the_type_checker(tmp_path: Path) -> None:
    blocks = [content for kind, content in BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())]
    path = tmp_path / "entropy_weighted.py"
    path.write_text(next(content for content in blocks if "(Method):" in content))
    assert len(path.read_text().splitlines()) < 40
    options = [
        "--strict",
        "--cache-dir",
        str(tmp_path),
        "--config-file",
        str(ROOT / "pyproject.toml"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
