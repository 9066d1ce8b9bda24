"""IMDb's film reviews as published, one per file, and UDA's files of their back-translations."""

from __future__ import annotations

import csv
import html
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from l2i.data.datasets import make_missing_error, translate_read_errors
from l2i.errors import InputError
from l2i.files.safety import check_regular_file, check_within, scan_folder

BREAK_TAG = re.compile(r"</?(?:br|p)(?:\s[^<>]*)?/?>", re.IGNORECASE)
LINK_TAG = re.compile(r"<a\s+\w+\s*=[^<>]*>|</a\s*>", re.IGNORECASE)

IMDB_URL = "https://ai.stanford.edu/~amaas/data/sentiment/"
UNPACK_AGAIN = f"unpack the archive from {IMDB_URL} again"
ARCHIVE_FOLDER = "aclImdb"  # that the archive unpacks to
CLASS_FOLDERS = ("neg", "pos")  # by class index
UNLABELED_FOLDER = "unsup"
MAX_REVIEW_BYTES = 2**24
REVIEW_NAME = re.compile(r"([0-9]+)_([0-9]+)\.txt")  # the review's number in its folder, its rating

TABLE_NAME, PARAPHRASE_GLOB = "train.csv", "para_*.txt"
TABLE_HEADER = ["content", "label", "id"]
ALLOWED_LABELS = ("pos", "neg", "unsup")
MIN_UNLABELED_CHARS = 500  # UDA leaves out shorter rows without a label
MIN_CHARS = 10  # of a text and of its paraphrase
MAX_LENGTH_CHANGE = 0.5  # of a paraphrase, as a fraction of the text's length
MAX_FIELD_CHARS = 2**31 - 1  # the most that every platform takes
LAYOUT_HINT = (
    f"give a folder with UDA's {TABLE_NAME} (tab-separated: {', '.join(TABLE_HEADER)}) and, in it "
    "or below it, files such as unsup_in/sample_0.9/para/para_0.txt with one paraphrase per line, "
    "in the order of its rows; https://github.com/google-research/uda says how to make them"
)


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """Texts as their publishers give them, before they are tokenised and anything is drawn."""

    train: list[str]
    y: list[int]  # classes of `train`
    unlabeled: list[str]  # further texts, without labels
    test: list[str]
    test_y: list[int]
    classes: int
    names: list[str]  # of `train` and then `unlabeled`, as back-translations name them


def check_texts(texts: Sequence[Any], set_name: str) -> list[str]:
    """Return texts if each is a string with something in it; `set_name` is for messages."""
    if isinstance(texts, str | bytes):
        kind = type(texts).__name__
        raise InputError(f"{set_name} is a single {kind}, not a list of texts; put it in a list")
    for number, text in enumerate(texts, start=1):
        place = f"text {number} of {set_name}"
        if not isinstance(text, str):
            kind = type(text).__name__
            article = "an" if kind[0] in "aeiou" else "a"
            fix = "convert it to a string, or drop it"
            raise InputError(f"{place} is {article} {kind}, not a string; {fix}")
        if not text.strip():
            raise InputError(f"{place} is empty; drop it")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"{place} contains a lone surrogate; fix its encoding") from None
    return list(texts)


def clean_web_text(text: str) -> str:
    """Remove line breaks, paragraphs and links from web text, and resolve entities."""
    plain = html.unescape(LINK_TAG.sub("", BREAK_TAG.sub(" ", text)))
    return " ".join(plain.split())


def load_imdb(root: str | None) -> TextSet:
    """Read the reviews: negative, then positive, each by number, then those without labels."""
    root_path, folder = _find_folder(root)
    train, test = (
        [_list_class_reviews(folder / split / kind, root_path) for kind in CLASS_FOLDERS]
        for split in ("train", "test")
    )
    unlabeled_folder = folder / "train" / UNLABELED_FOLDER
    unlabeled = _list_reviews(unlabeled_folder, root_path) if unlabeled_folder.is_dir() else []
    labeled = [path for paths in train for path in paths]
    return TextSet(
        train=[_read_review(path) for path in labeled],
        y=[index for index, paths in enumerate(train) for _ in paths],
        unlabeled=[_read_review(path) for path in unlabeled],
        test=[_read_review(path) for paths in test for path in paths],
        test_y=[index for index, paths in enumerate(test) for _ in paths],
        classes=len(CLASS_FOLDERS),
        names=[f"{path.parent.name}_{path.name}" for path in labeled + unlabeled],
    )


def _find_folder(root: str | None) -> tuple[Path, Path]:
    """Return the given folder, and its folder of train and test."""
    if root is not None:
        root_path = Path(root).expanduser()
        class_folders = [f"{split}/{kind}" for split in ("train", "test") for kind in CLASS_FOLDERS]
        for folder in (root_path / ARCHIVE_FOLDER, root_path):
            if any((folder / name).is_dir() for name in class_folders):
                return root_path, folder
    fix = f"Download the archive from {IMDB_URL} and unpack it in a folder"
    raise make_missing_error("IMDb", root, f"{ARCHIVE_FOLDER} is not", fix)


def _list_class_reviews(folder: Path, root: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"IMDb: the folder {folder} is missing; {UNPACK_AGAIN}")
    paths = _list_reviews(folder, root)
    if not paths:
        raise InputError(f"IMDb: the folder {folder} holds no reviews; {UNPACK_AGAIN}")
    return paths


def _list_reviews(folder: Path, root: Path) -> list[Path]:
    """List the .txt files of a folder by the numbers of the reviews."""
    check_within(folder, root)
    with translate_read_errors(folder):
        entries = scan_folder(str(folder), str(root))
        return sorted((Path(entry.path) for entry in entries if _is_review(entry)), key=_parse_name)


def _is_review(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a review by its name, if it would not block a reader."""
    if entry.name.endswith(".txt") and not entry.is_file() and not entry.is_dir():
        raise InputError(f"{entry.path} is not a regular file; remove it")
    return entry.name.endswith(".txt")


def _parse_name(path: Path) -> tuple[int, int, str]:
    match = REVIEW_NAME.fullmatch(path.name)
    if match is None:
        name = "NUMBER_RATING.txt, like IMDb's reviews"
        raise InputError(f"{path} is not named {name}; remove it")
    return int(match[1]), int(match[2]), path.name


def _read_review(path: Path) -> str:
    with translate_read_errors(path, rewrite=UNPACK_AGAIN):
        if path.stat().st_size > MAX_REVIEW_BYTES:
            limit = f"{MAX_REVIEW_BYTES >> 20} MiB, too large for a review"
            raise InputError(f"{path} has over {limit}; remove it")
        text = clean_web_text(path.read_text(encoding="utf-8"))
    if not text:
        raise InputError(f"{path} is empty; {UNPACK_AGAIN}, or remove the file")
    return text


class UdaRow(NamedTuple):
    """A row of UDA's table."""

    content: str
    label: str
    id: str


def read_paraphrases(folder: str) -> dict[str, list[str]]:
    """Read usable paraphrases by example id, at most one from each file."""
    root = Path(folder).expanduser()
    rows = _read_table(root)
    files = sorted(check_regular_file(path, root) for path in root.rglob(PARAPHRASE_GLOB))
    if not files:
        raise InputError(f"there is no {PARAPHRASE_GLOB} in {folder} or below it; {LAYOUT_HINT}")
    texts = {row.id: clean_web_text(row.content) for row in rows}
    paraphrases: dict[str, list[str]] = {}
    for path in files:
        # only a line feed ends a line: reviews have other characters that Python takes for one
        with translate_read_errors(path), path.open(encoding="utf-8", newline="\n") as file:
            lines = list(file)
        for row, line in zip(_align_rows(rows, path, len(lines)), lines, strict=True):
            paraphrase = clean_web_text(line)
            if _is_usable(texts[row.id], paraphrase):
                paraphrases.setdefault(row.id, []).append(paraphrase)
    return paraphrases


def _read_table(root: Path) -> list[UdaRow]:
    tables = sorted(root.rglob(TABLE_NAME), key=lambda path: (len(path.parts), path))  # top first
    if not tables:
        raise InputError(f"there is no {TABLE_NAME} in {root} or below it; {LAYOUT_HINT}")
    path = check_regular_file(tables[0], root)
    with (
        translate_read_errors(path, rewrite="write it again with UDA's imdb_format.py"),
        allow_long_fields(),
        path.open(encoding="utf-8", newline="") as file,
    ):
        rows = [row for row in csv.reader(file, delimiter="\t", quotechar='"') if row]
    if rows[:1] != [TABLE_HEADER]:
        header = " TAB ".join(TABLE_HEADER)
        raise InputError(f"{path} does not begin with the line {header}; add it")
    _check_rows(path, rows[1:])
    return [UdaRow(*row) for row in rows[1:]]


def _check_rows(path: Path, rows: list[list[str]]) -> None:
    ids: set[str] = set()
    for number, row in enumerate(rows, start=1):
        if len(row) != len(TABLE_HEADER):
            fix = "check that fields are separated by tabs, and texts quoted"
            problem = f"has {len(row)} fields, not {len(TABLE_HEADER)}; {fix}"
        elif row[1] not in ALLOWED_LABELS:
            labels = ", ".join(ALLOWED_LABELS)
            problem = f"has the label {row[1][:20]!r}; it must be one of {labels}"
        elif row[2] in ids:
            problem = f"has the id {row[2][:40]!r} of a row before it; give each row its own"
        else:
            ids.add(row[2])
            continue
        raise InputError(f"{path}: row {number} {problem}")


@contextmanager
def allow_long_fields() -> Iterator[None]:
    """Lift the csv module's limit on the length of fields, which is one for the process."""
    previous_limit = csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        yield
    finally:
        csv.field_size_limit(previous_limit)


def _align_rows(rows: list[UdaRow], path: Path, num_lines: int) -> list[UdaRow]:
    """Return the rows that the lines of a file belong to: all, or those that UDA keeps."""
    long_rows = [
        row for row in rows if row.label != "unsup" or len(row.content) >= MIN_UNLABELED_CHARS
    ]
    for candidates in (rows, long_rows):
        if num_lines == len(candidates):
            return candidates
    raise InputError(
        f"{path} has {num_lines} lines, but {TABLE_NAME} has {len(rows)} rows ({len(long_rows)} "
        f"without unsup texts of fewer than {MIN_UNLABELED_CHARS} characters); there must be one "
        f"line per row: use the {TABLE_NAME} that the paraphrases were made from"
    )


def _is_usable(text: str, paraphrase: str) -> bool:
    """Return whether a paraphrase may replace a text: by their lengths, as in UDA."""
    is_long_enough = min(len(text), len(paraphrase)) >= MIN_CHARS
    return is_long_enough and abs(len(paraphrase) - len(text)) <= MAX_LENGTH_CHANGE * len(text)
