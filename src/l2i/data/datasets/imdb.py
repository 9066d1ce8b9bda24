"""Texts for classification: what a set of them holds, and how single texts are checked and cleaned.

MERGED:
Back-translations of texts, in the files that Google's UDA code reads and writes.
IMDb's film reviews from the files their authors publish, a review a file.
"""

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

from l2i.errors import InputError
from l2i.files.safety import check_regular_file, is_within, scan_folder

BREAK_TAG = re.compile(r"</?(?:br|p)(?:\s[^<>]*)?/?>", re.IGNORECASE)
LINK_TAG = re.compile(r"<a\s+\w+\s*=[^<>]*>|</a\s*>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """Texts as their publishers give them, before they are tokenised and anything is drawn."""

    train: list[str]
    y: list[int]  # classes of `train`
    unlabeled: list[str]  # more texts, without labels
    test: list[str]
    test_y: list[int]
    classes: int
    names: list[str]  # of `train` and then `unlabeled`, as back-translations name them


def check_texts(texts: Sequence[Any], set_name: str) -> list[str]:
    """The texts of `what`, such as "the training set", if each is a string with something in it."""
    if isinstance(texts, str | bytes):
        raise InputError(f"{set_name} is one {type(texts).__name__}, not a list of texts; put it into a list")
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            kind = type(text).__name__
            article = "an" if kind[0] in "aeiou" else "a"
            raise InputError(
                f"text {number} of {set_name} is {article} {kind}, not a string; write it as a string, or leave it out"
            )
        if not text.strip():
            raise InputError(f"text {number} of {set_name} is empty; leave it out")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"text {number} of {set_name} holds half a character (a lone surrogate); mend it") from None
    return list(texts)


def clean_web_text(text: str) -> str:
    """Web text as plain text: no line breaks, paragraphs or links but their words, entities as their characters."""
    plain = html.unescape(LINK_TAG.sub("", BREAK_TAG.sub(" ", text)))
    return " ".join(plain.split())


TABLE_NAME, PARAPHRASE_GLOB = "train.csv", "para_*.txt"
TABLE_HEADER = ["content", "label", "id"]
ALLOWED_LABELS = ("pos", "neg", "unsup")
MIN_UNLABELED_CHARS = 500  # characters: UDA leaves out shorter rows without a label
MIN_CHARS = 10  # characters of a text and of its paraphrase
MAX_LENGTH_CHANGE = 0.5  # of their lengths, as a share of the text's
MAX_FIELD_CHARS = 2**31 - 1  # the most that every platform takes
LAYOUT_HINT = (
    f"give a folder with UDA's {TABLE_NAME} (tab-separated: {', '.join(TABLE_HEADER)}) and, in it or below it, files such as "
    "unsup_in/sample_0.9/para/para_0.txt with a paraphrase a line, in the order of its rows; "
    "https://github.com/google-research/uda says how to make them"
)


class UdaRow(NamedTuple):
    """A line of the table."""

    content: str
    label: str
    id: str


def read_paraphrases(folder: str) -> dict[str, list[str]]:
    """Paraphrases by example id, one from each file where it is usable; ids without any are not in it."""
    root = Path(folder).expanduser()
    rows = read_uda_table(find_nearest_table(root))
    files = sorted(check_regular_file(path, root) for path in root.rglob(PARAPHRASE_GLOB))
    if not files:
        raise InputError(f"there is no {PARAPHRASE_GLOB} in {folder} or below it; {LAYOUT_HINT}")
    texts = {row.id: clean_web_text(row.content) for row in rows}
    paraphrases: dict[str, list[str]] = {}
    for path in files:
        lines = read_text_lines(path)
        for row, line in zip(align_rows(rows, path, len(lines)), lines, strict=True):
            paraphrase = clean_web_text(line)
            if is_usable(texts[row.id], paraphrase):
                paraphrases.setdefault(row.id, []).append(paraphrase)
    return paraphrases


def find_nearest_table(root: Path) -> Path:
    """The table nearest to the top."""
    tables = list(root.rglob(TABLE_NAME))
    if not tables:
        raise InputError(f"there is no {TABLE_NAME} in {root} or below it; {LAYOUT_HINT}")
    return check_regular_file(min(tables, key=lambda path: (len(path.parts), path)), root)


def read_uda_table(path: Path) -> list[UdaRow]:
    """The table's rows, checked."""
    try:
        with allow_long_fields(), path.open(encoding="utf-8", newline="") as file:
            header, *fields = [row for row in csv.reader(file, delimiter="\t", quotechar='"') if row] or [[]]
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; write it again with UDA's imdb_format.py") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is readable") from None
    if header != TABLE_HEADER:
        raise InputError(f"{path} does not begin with a line {' TAB '.join(TABLE_HEADER)}; put that line first")
    return check_uda_rows(path, fields)


def check_uda_rows(path: Path, fields: list[list[str]]) -> list[UdaRow]:
    """Rows of three fields with a known label and an id of their own."""
    seen_ids: set[str] = set()
    for row_number, row in enumerate(fields, start=1):
        if len(row) != len(TABLE_HEADER):
            problem = f"has {len(row)} fields, not {len(TABLE_HEADER)}; see that they are separated by tabs, and texts quoted"
        elif row[1] not in ALLOWED_LABELS:
            problem = f"has the label {row[1][:20]!r}; it must be one of {', '.join(ALLOWED_LABELS)}"
        elif row[2] in seen_ids:
            problem = f"has the id {row[2][:40]!r} of a row before it; give each row its own"
        else:
            seen_ids.add(row[2])
            continue
        raise InputError(f"{path}: row {row_number} {problem}")
    return [UdaRow(*row) for row in fields]


@contextmanager
def allow_long_fields() -> Iterator[None]:
    """Lets tables have fields of any length; the csv module's limit counts for the whole process."""
    previous_limit = csv.field_size_limit(MAX_FIELD_CHARS)
    try:
        yield
    finally:
        csv.field_size_limit(previous_limit)


def read_text_lines(path: Path) -> list[str]:
    """A file's lines, which only a line feed ends: reviews have other characters that Python takes for one."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            return list(file)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; write it again as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is readable") from None


def align_rows(rows: list[UdaRow], path: Path, num_lines: int) -> list[UdaRow]:
    """The rows that a file's lines belong to: all of them, or those that UDA keeps."""
    if num_lines == len(rows):
        return rows
    long_rows = [row for row in rows if row.label != "unsup" or len(row.content) >= MIN_UNLABELED_CHARS]
    if num_lines == len(long_rows):
        return long_rows
    raise InputError(
        f"{path} has {num_lines} lines where {TABLE_NAME} has {len(rows)} rows, {len(long_rows)} without unsup texts of fewer than "
        f"{MIN_UNLABELED_CHARS} characters; one line must belong to each of the ones or the others: use the {TABLE_NAME} that "
        "the paraphrases were made from"
    )


def is_usable(text: str, paraphrase: str) -> bool:
    """Whether a paraphrase can stand for a text, as UDA decides it: by their lengths."""
    is_long_enough = min(len(text), len(paraphrase)) >= MIN_CHARS
    return is_long_enough and abs(len(paraphrase) - len(text)) <= MAX_LENGTH_CHANGE * len(text)


IMDB_URL = "https://ai.stanford.edu/~amaas/data/sentiment/"
ARCHIVE_FOLDER = "aclImdb"  # the folder that it unpacks to
CLASS_FOLDERS = ("neg", "pos")  # by number
UNLABELED_FOLDER = "unsup"
MAX_REVIEW_BYTES = 2**24  # bytes of a review
REVIEW_NAME = re.compile(r"([0-9]+)_([0-9]+)\.txt")  # the review's number in its folder, and its rating


def load_imdb(root: str | None) -> TextSet:
    """The reviews as plain text: negative ones, then positive ones, each by number, then those without labels."""
    root_path, folder = find_imdb_folder(root)
    train, test = folder / "train", folder / "test"
    train_paths = [list_class_reviews(train / kind, root_path) for kind in CLASS_FOLDERS]
    test_paths = [list_class_reviews(test / kind, root_path) for kind in CLASS_FOLDERS]
    unlabeled_paths = list_reviews(train / UNLABELED_FOLDER, root_path) if (train / UNLABELED_FOLDER).is_dir() else []
    labeled_paths = [path for paths in train_paths for path in paths]
    return TextSet(
        train=[read_review(path) for path in labeled_paths],
        y=[number for number, paths in enumerate(train_paths) for _ in paths],
        unlabeled=[read_review(path) for path in unlabeled_paths],
        test=[read_review(path) for paths in test_paths for path in paths],
        test_y=[number for number, paths in enumerate(test_paths) for _ in paths],
        classes=len(CLASS_FOLDERS),
        names=[f"{path.parent.name}_{path.name}" for path in labeled_paths + unlabeled_paths],
    )


def find_imdb_folder(root: str | None) -> tuple[Path, Path]:
    """The folder that was given, and the one that holds train and test."""
    if root is not None:
        root_path = Path(root).expanduser()
        for folder in (root_path / ARCHIVE_FOLDER, root_path):
            if any((folder / split / kind).is_dir() for split in ("train", "test") for kind in CLASS_FOLDERS):
                return root_path, folder
    reason = "no folder is given" if root is None else f"{ARCHIVE_FOLDER} is not in {root}"
    raise InputError(
        f"IMDb is not there: {reason}. Get the archive from {IMDB_URL}, unpack it, and give the folder you unpacked it in "
        "as --data.root, or in L2I_DATA"
    )


def list_class_reviews(folder: Path, root: Path) -> list[Path]:
    """A class's files, of which there must be some."""
    if not folder.is_dir():
        raise InputError(f"IMDb: the folder {folder} is missing; unpack the archive from {IMDB_URL} again")
    paths = list_reviews(folder, root)
    if not paths:
        raise InputError(f"IMDb: the folder {folder} holds no reviews; unpack the archive from {IMDB_URL} again")
    return paths


def list_reviews(folder: Path, root: Path) -> list[Path]:
    """A folder's .txt files by the reviews' numbers, whatever order the file system gives them in."""
    if not is_within(folder, root):
        raise InputError(f"{folder} is a link that leads out of {root}; put a copy in its place")
    try:
        paths = [Path(entry.path) for entry in scan_folder(str(folder), str(root)) if is_review(entry)]
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror}); see that it is readable") from None
    return sorted(paths, key=parse_review_name)


def is_review(entry: os.DirEntry[str]) -> bool:
    """Whether a file is a review by its name; what only has such a name may block whoever reads it."""
    if entry.name.endswith(".txt") and not entry.is_file() and not entry.is_dir():
        raise InputError(f"{entry.path} is not a regular file; take it out of the folder")
    return entry.name.endswith(".txt")


def parse_review_name(path: Path) -> tuple[int, int, str]:
    """A review's number, rating and file name."""
    match = REVIEW_NAME.fullmatch(path.name)
    if match is None:
        raise InputError(f"{path} is not named NUMBER_RATING.txt as IMDb's reviews are; take it out of the folder")
    return int(match[1]), int(match[2]), path.name


def read_review(path: Path) -> str:
    """A file's text, cleaned."""
    try:
        if path.stat().st_size > MAX_REVIEW_BYTES:
            raise InputError(f"{path} has over {MAX_REVIEW_BYTES >> 20} MiB, which no review has; take it out of the folder")
        text = clean_web_text(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; unpack the archive from {IMDB_URL} again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is a readable file") from None
    if not text:
        raise InputError(f"{path} is empty; unpack the archive from {IMDB_URL} again, or take the file out of the folder")
    return text
