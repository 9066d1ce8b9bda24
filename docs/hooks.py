"""Fit the pages to the site: benchmark pages, links that leave docs/, and help of commands.

Links are written such that they work in the repository. On the site, those to files that are not
pages lead to the repository's web page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.M | re.S)
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(\))")
HELP = re.compile(r"^<!-- (l2i [^>]*--help) -->$", re.M)


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

    text = _apply_outside_code(markdown, lambda part: LINK.sub(adapt, part))
    return HELP.sub(lambda match: _format_help(match[1]), text)


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


def _apply_outside_code(text: str, change: Any) -> str:
    parts, last = [], 0
    for match in CODE.finditer(text):
        parts += [change(text[last : match.start()]), match[0]]
        last = match.end()
    return "".join([*parts, change(text[last:])])


def _format_help(command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return f"```text\n{done.stdout.strip()}\n```"
