"""Texts that a user reads use the field's words: metric, resume, memorised, hurts."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REPLACED = {
    r"figures?": "metric, result or number",
    r"by heart": "memorised",
    r"(do|does|did|doing|no|of|the) harm|harms": "hurts, is worse",
    r"go(es)? on|went on|going on": "resumes, continues",
    r"(is|are|was|were|be|been) (told|said)|cannot be told": "is reported, is unclear",
    r"strangers?|stranger's": "untrusted",
    r"(is|are) no numbers?|that is none": "is not a number, NaN",
    r"mind that": "Warning:",
    r"give another": "choose a different",
    r"mend|mends|mended": "fix",
    r"had better": "should",
    r"sureness": "confidence",
    r"as asked|asked for": "requested",
    r"(is|are) not there": "was not found",
    r"(ms|seconds|minutes) an? (step|run|seed)|(row|line|folder) an? \w+ (and|for|in)": "per",
}
MATPLOTLIB = ("figures.py", "plots.py", "contact_sheet.py")  # modules about its figures
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *sorted((ROOT / "src").rglob("*.html")),
]
CODE = re.compile(  # code, links, comments, tags, template expressions
    r"^( *)```.*?^\1```$|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|</?\w[^>]*>|{[{%].*?[}%]}", re.M | re.S
)
Texts = Callable[[], Iterator[tuple[str, str]]]


def texts_of_code() -> Iterator[tuple[str, str]]:
    """Yield string constants, docstrings included, with their place."""
    folders = (ROOT / name for name in ("src", "benchmarks", "examples"))
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if path.name in MATPLOTLIB:
                    text = re.sub(r"\bfigures?\b", "", text, flags=re.I)
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def texts_of_pages() -> Iterator[tuple[str, str]]:
    """Yield paragraphs without code, with their place."""
    for path in PAGES:
        prose = CODE.sub(lambda match: "\n" * match[0].count("\n"), path.read_text("utf-8"))
        for match in re.finditer(r"(?:.+\n?)+", prose):
            number = prose.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(ROOT)}:{number}", match[0]


@pytest.mark.parametrize("texts", [texts_of_code, texts_of_pages])
def test_texts_use_the_words_of_the_field(texts: Texts) -> None:
    patterns = {re.compile(rf"\b({old})\b", re.I): new for old, new in REPLACED.items()}
    places = [
        f"{place}: {match[0]!r}; say {new}"
        for place, text in texts()
        for pattern, new in patterns.items()
        if (match := pattern.search(" ".join(text.split())))
    ]
    assert not places, "\n".join(places)
