"""Pages run as written, links lead to pages and headings, and named flags and recipes exist."""

import ast
import contextlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import takewhile, zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from l2i import recipes
from l2i.cli import COMMANDS
from l2i.cli.commands import EvaluateOptions
from l2i.config import Run, replace
from l2i.config.validate import flatten_fields
from l2i.data import DATASETS
from l2i.errors import InputError
from l2i.experiments.options import BenchOptions, CompareOptions, PlotOptions, TuneOptions
from l2i.fit.options import FitOptions, ImputeOptions, PredictOptions, ReportOptions
from l2i.methods import METHODS
from shell_words import expand_braces

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOTHING_TO_RUN = ("multi-gpu",)  # a guide that needs torchrun, and several devices
NUM_FRAGMENTS = 2  # blocks that cannot be run: a line of a registry, and a setting of a GPU
ADDED_BY_CONTRIBUTING = {"blobs": "page_CONTRIBUTING:load_blobs"}  # datasets
TOP_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = [*TOP_PAGES, *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "benchmarks").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?P<fragment> *<!-- fragment -->\n)?(?P<indent> *)```(?P<kind>\w*)[^\n]*\n"
    r"(?P<content>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
INLINE_CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)[^)]*\)")
UNCHECKED_LINK = re.compile(
    r"^ *\[[^\]^][^\]]*\]:.*|\]\[[^\]]*\]|<img\b|<a\s[^>]*href", re.M | re.I
)
COMMAND = re.compile(rf"(?:^|-m |bin/|\$ )l2i ({'|'.join(COMMANDS)})\b(.*)")
COMMAND_BLOCKS = ("", "bash", "console", "text")
RUN_FLAG_COMMANDS = ("train", "fit", "tune")  # every field of a run is a flag, too
RECIPE_COMMANDS = ("train", "compare", "tune")
RECIPE_PAGES = [page for page in PAGES if page.stem != "CONTRIBUTING"]  # its method is made up
SHELL_OPERATOR = re.compile(r"\s(?:&&|\|\|?|;|>)(?:\s|$)")
PLACEHOLDER = re.compile(r"[A-Z…$<]")  # in TABLE/CELL, cifar10/…-short, $CELL
CELL_NAME = re.compile(rf"(?:{'|'.join(recipes.TABLES)})/[\w{{}},…-]+")
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


class Block(NamedTuple):
    kind: str
    content: str
    is_fragment: bool


def read_blocks(page: Path) -> list[Block]:
    return [
        Block(match["kind"], textwrap.dedent(match["content"]), bool(match["fragment"]))
        for match in BLOCK.finditer(page.read_text())
    ]


def read_prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


def find_steps(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield Python blocks but fragments, with the output shown below, and console commands."""
    blocks = read_blocks(page)
    for (kind, content, is_fragment), following in zip_longest(blocks, blocks[1:]):
        if kind == "python" and not is_fragment:
            yield kind, content, following[1] if following and following[0] == "text" else ""
        elif kind == "console":
            lines = content.splitlines()
            yield from ((kind, line[2:], "") for line in lines if line.startswith("$ "))


def is_shown(printed: str, shown: str) -> bool:
    """Return whether a page shows what was printed; machines may differ in the numbers a little."""
    actual, expected = (
        [float(number) for number in NUMBER.findall(text)] for text in (printed, shown)
    )
    same_words = [NUMBER.sub("#", text).split() for text in (printed, shown)]
    return same_words[0] == same_words[1] and actual == pytest.approx(expected, rel=0.1, abs=0.02)


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
@pytest.mark.parametrize("page", [page for page in PAGES if any(find_steps(page))], ids=name_page)
def test_a_page_runs_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    module = ModuleType(f"page_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    if page.stem == "CONTRIBUTING":
        for name, path in ADDED_BY_CONTRIBUTING.items():
            monkeypatch.setitem(DATASETS, name, path)
    for kind, content, shown in find_steps(page):
        if kind == "python":
            code = compile(content, f"{page.name}:{content.splitlines()[0]}", "exec")
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(code, vars(module))
            printed = output.getvalue()
            is_output = printed and shown
            assert not is_output or is_shown(printed, shown), f"{page.name}:\n{printed}\n{shown}"
        else:
            run_command(content, tmp_path)


def test_guides_have_something_to_run() -> None:
    guides = [*sorted((DOCS / "guides").glob("*.md")), DOCS / "install.md", DOCS / "quickstart.md"]
    empty = [page.stem for page in guides if not any(find_steps(page))]
    assert empty == list(NOTHING_TO_RUN)


def test_fragments_are_python() -> None:
    """Fragments are statements, or entries of a dictionary."""
    fragments = [block for page in PAGES for block in read_blocks(page) if block.is_fragment]
    assert [block.kind for block in fragments] == ["python"] * NUM_FRAGMENTS
    for block in fragments:
        is_entry = re.match(r"\"[^\"]+\": ", block.content)
        ast.parse(f"{{{block.content}}}" if is_entry else block.content)


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


def find_unchecked_links(page: Path) -> list[str]:
    """List links that `LINK` does not see: by reference, and in HTML."""
    return UNCHECKED_LINK.findall(INLINE_CODE.sub("code", read_prose(page)))


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_links_are_written_inline(page: Path) -> None:
    unchecked = find_unchecked_links(page)
    assert not unchecked, f"{name_page(page)}: write [text](address) for {unchecked}"


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("see [the page][page]\n\n[page]: nowhere.md", True),
        ("[page]: nowhere.md", True),
        ("see [page][]", True),
        ('<img src="nowhere.png">', True),
        ('<a class="x" href="nowhere.md">page</a>', True),
        ('<a id="anchor"></a> a [link](page.md), `x[0][1]` and a note[^1]', False),
        ("```python\nx[0][1]\n```", False),
    ],
)
def test_links_that_are_not_inline_are_found(text: str, is_found: bool, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert bool(find_unchecked_links(page)) == is_found


def test_the_site_changes_no_link_in_code() -> None:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    code = "    ```\n    [a](x.md)\n    ```\n\n```\n[a](x.md)\n```\n`[a](x.md)`\n"
    changed = hooks._apply_outside_code(f"{code}[a](x.md)", lambda part: part.replace("x.md", "y"))
    assert changed == f"{code}[a](y)"


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
        for block in read_blocks(page)
        if block.kind in COMMAND_BLOCKS
        for line in block.content.replace("\\\n", " ").splitlines()
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


def split_words(arguments: str) -> list[str]:
    """Split the arguments of one command, without what follows an operator of the shell."""
    words = SHELL_OPERATOR.split(arguments)[0].split()
    return [name for word in words for name in expand_braces(word.strip("[](),;:.'\""))]


def find_cells_option(words: list[str]) -> list[str]:
    start = words.index("--cells") + 1 if "--cells" in words else len(words)
    return list(takewhile(lambda word: not word.startswith("-"), words[start:]))


def check_recipe_names(command: str, words: list[str]) -> None:
    """Raise InputError if a command names a recipe, a table or a cell that does not exist."""
    name = next(iter(words), "--")
    if name.startswith("-") or PLACEHOLDER.search(name):
        return
    if command != "compare":
        recipes.get(name)
        return
    table = recipes.get_table(name)
    for cell in find_cells_option(words):
        if not PLACEHOLDER.search(cell) and cell not in table.cells:
            recipes.get(f"{name}/{cell}")


def find_unknown_recipes(page: Path) -> Iterator[str]:
    """Yield recipes, tables and cells that do not exist, in commands and as TABLE/CELL in prose."""
    commands = [(c, split_words(rest)) for c, rest in find_commands(page) if c in RECIPE_COMMANDS]
    for code in INLINE_CODE.findall(read_prose(page)):
        if CELL_NAME.fullmatch(code):
            commands += [("train", [name]) for name in expand_braces(code)]
    for command, words in commands:
        try:
            check_recipe_names(command, words)
        except InputError as error:
            yield f"{command} {' '.join(words)}: {error}"


@pytest.mark.parametrize("page", RECIPE_PAGES, ids=name_page)
def test_named_recipes_exist(page: Path) -> None:
    unknown = list(find_unknown_recipes(page))
    assert not unknown, f"{name_page(page)} names recipes that do not exist: {unknown}"


@pytest.mark.parametrize(
    ("text", "num_unknown"),
    [
        ("`digits/fixmatch-l2i-40` and `l2i train digits --steps 5`", 0),
        ("| [`digits/fixmatch`](page.md) | `digits/fixmatch-{40,41}` |", 2),
        ("```bash\nl2i train digits/fixmatch-41  # comment\n```", 1),
        ("```console\n$ l2i tune digit --trials 8\n```", 1),
        ("```bash\nl2i compare digits --cells {sl,fixmatch}-40 --seeds 2 && ls x\n```", 0),
        ("```bash\nl2i compare digits --seeds 2 \\\n    --cells {sl,fixmatch}-{40,41}\n```", 1),
        ("```text\nl2i compare digit\n```", 1),
        (
            "`l2i train RECIPE`, `l2i compare`, `digits/…-40`, `l2i compare digits --cells CELL …`",
            0,
        ),
        ("`digits/0.png` is a file", 0),
    ],
)
def test_unknown_recipes_are_found(text: str, num_unknown: int, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    assert len(list(find_unknown_recipes(page))) == num_unknown


@pytest.mark.slow
def test_the_method_in_contributing_passes_the_type_checker(tmp_path: Path) -> None:
    blocks = [block.content for block in read_blocks(ROOT / "CONTRIBUTING.md")]
    path = tmp_path / "entropy_weighted.py"
    path.write_text(next(content for content in blocks if "(Method):" in content))
    assert len(path.read_text().splitlines()) < 40
    config = str(ROOT / "pyproject.toml")
    options = ["--strict", "--cache-dir", str(tmp_path), "--config-file", config]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
