"""Fit the pages to the site: benchmark pages, links that leave docs/, and help of commands.

Links are written such that they work in the repository. On the site, those to files that are not
pages lead to the repository's web page. A line `<!-- l2i COMMAND --help -->` becomes the help text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.M | re.S)
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(\))")
HELP = re.compile(r"^( *)<!-- (l2i .*--help) -->$", re.M)
MEMBERS = re.compile(r"^::: (\S+)\n +options: \{.*?members: \[([^\]]*)\]", re.M)
FACTORY = re.compile(
    r'<span class="n">field</span><span class="p">\(</span><span class="n">default_factory</span>'
    r'<span class="o">=</span>(<span[^>]*>\w+</span>)<span class="p">\)</span>'
)
HELP_WIDTH = 76  # characters


def on_config(config: Any) -> Any:
    """Add the pages of the experiments to the section Benchmarks."""
    for section in config.nav:
        if "Benchmarks" in section:
            pages = sorted((ROOT / "benchmarks").glob("*/**/*.md"))
            section["Benchmarks"] += [page.relative_to(ROOT).as_posix() for page in pages]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and plots of benchmarks/."""
    for path in sorted((ROOT / "benchmarks").rglob("*")):
        if path.suffix in (".md", ".png"):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File(uri, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Insert the help of commands, and let links lead to pages of the site or the repository."""
    uri = page.file.src_uri
    source = PurePosixPath(uri if uri.startswith("benchmarks/") else f"docs/{uri}")

    def adapt(match: re.Match[str]) -> str:
        start, link, anchor, end = match.groups()
        return f"{start}{_adapt_link(link, source, uri, config, files)}{anchor or ''}{end}"

    def insert_help(match: re.Match[str]) -> str:
        return textwrap.indent(f"```text\n{_get_help(match[2], source)}\n```", match[1])

    text = _apply_outside_code(markdown, lambda part: LINK.sub(adapt, part))
    return HELP.sub(insert_help, text)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Show defaults as values, and keep `x ± y` on one line.

    Check that listed members exist: mkdocstrings does not.
    """
    for identifier, names in MEMBERS.findall(page.markdown):
        for name in filter(None, names.split(", ")):
            if f'id="{identifier}.{name}"' not in html:
                raise PluginError(f"{page.file.src_uri}: {identifier} has no member '{name}'")
    return FACTORY.sub(r'\1<span class="p">()</span>', html).replace(" ± ", "&nbsp;±&nbsp;")


def _adapt_link(link: str, source: PurePosixPath, uri: str, config: Any, files: Files) -> str:
    """Return a link of a page for the site; one to nowhere stays, and the build reports it."""
    target = os.path.normpath(source.parent / link)
    page = target.removeprefix("docs/")
    if files.get_file_from_path(page):
        return os.path.relpath(page, PurePosixPath(uri).parent)
    if (ROOT / target).exists():
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{target}"
    return link


def _apply_outside_code(text: str, change: Callable[[str], str]) -> str:
    parts, last = [], 0
    for match in CODE.finditer(text):
        parts += [change(text[last : match.start()]), match[0]]
        last = match.end()
    return "".join([*parts, change(text[last:])])


@cache
def _get_help(command: str, source: PurePosixPath) -> str:
    """Return the help of a command; a command that fails ends the build."""
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PluginError(f"{source}: '{command}' exited with code {done.returncode}: {reason}")
    return "\n".join(_reflow_help(done.stdout.splitlines())).strip()


def _reflow_help(lines: list[str]) -> Iterator[str]:
    """Yield a help text without boxes: one paragraph per option, below its flags."""
    words: list[str] = []
    indent = ""

    def flush() -> Iterator[str]:
        paragraph = " ".join(words)
        words.clear()
        margins = {"initial_indent": indent, "subsequent_indent": indent}
        yield from textwrap.wrap(paragraph, HELP_WIDTH, break_on_hyphens=False, **margins)

    for line in lines:
        text = line.strip("│").rstrip()
        if line.startswith("╭─"):  # the top of a box holds its title
            yield from flush()
            indent = "  "
            yield f"{line.strip('╭─╮ ')}:"
        elif line.startswith("╰"):
            yield from (*flush(), "")
        elif not line.startswith("│"):
            if line and not line.startswith(" "):
                words += line.split()
            else:
                yield from (*flush(), line.rstrip())
        elif text.startswith(" -"):
            yield from flush()
            indent = " " * 6
            flags, _, description = text.strip().partition("  ")
            yield f"  {flags}"
            words += description.split()
        elif text.strip(" ─"):
            words += text.split()
        else:
            yield from flush()
    yield from flush()
