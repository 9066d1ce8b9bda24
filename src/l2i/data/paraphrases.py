"""Back-translations of texts, in the files that Google's UDA code reads and writes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from l2i.data.limits import plain_file
from l2i.data.texts import cleaned
from l2i.errors import InputError

TABLE, PARAPHRASES = "train.csv", "para_*.txt"
HEADER = ["content", "label", "id"]
LABELS = ("pos", "neg", "unsup")
LEAST_UNLABELED = 500  # characters: UDA leaves out shorter rows without a label
LEAST = 10  # characters of a text and of its paraphrase
MOST_DIFFERENCE = 0.5  # of their lengths, as a share of the text's
LONGEST_FIELD = 2**31 - 1  # the most that every platform takes
LAYOUT = (
    f"give a folder with UDA's {TABLE} (tab-separated: {', '.join(HEADER)}) and, in it or below it, files such as "
    "unsup_in/sample_0.9/para/para_0.txt with a paraphrase a line, in the order of its rows; "
    "https://github.com/google-research/uda says how to make them"
)


class Row(NamedTuple):
    """A line of the table."""

    content: str
    label: str
    id: str


def read_paraphrases(folder: str) -> dict[str, list[str]]:
    """Paraphrases by example id, one from each file where it is usable; ids without any are not in it."""
    root = Path(folder).expanduser()
    rows = table(nearest_table(root))
    files = sorted(plain_file(path, root) for path in root.rglob(PARAPHRASES))
    if not files:
        raise InputError(f"there is no {PARAPHRASES} in {folder} or below it; {LAYOUT}")
    texts = {row.id: cleaned(row.content) for row in rows}
    found: dict[str, list[str]] = {}
    for path in files:
        lines = lines_of(path)
        for row, line in zip(told(rows, path, len(lines)), lines, strict=True):
            paraphrase = cleaned(line)
            if usable(texts[row.id], paraphrase):
                found.setdefault(row.id, []).append(paraphrase)
    return found


def nearest_table(root: Path) -> Path:
    """The table nearest to the top."""
    tables = list(root.rglob(TABLE))
    if not tables:
        raise InputError(f"there is no {TABLE} in {root} or below it; {LAYOUT}")
    return plain_file(min(tables, key=lambda path: (len(path.parts), path)), root)


def table(path: Path) -> list[Row]:
    """The table's rows, checked."""
    try:
        with long_fields(), path.open(encoding="utf-8", newline="") as file:
            header, *fields = [row for row in csv.reader(file, delimiter="\t", quotechar='"') if row] or [[]]
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; write it again with UDA's imdb_format.py") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is readable") from None
    if header != HEADER:
        raise InputError(f"{path} does not begin with a line {' TAB '.join(HEADER)}; put that line first")
    return checked_rows(path, fields)


def checked_rows(path: Path, fields: list[list[str]]) -> list[Row]:
    """Rows of three fields with a known label and an id of their own."""
    seen: set[str] = set()
    for place, row in enumerate(fields, start=1):
        if len(row) != len(HEADER):
            wrong = f"has {len(row)} fields, not {len(HEADER)}; see that they are separated by tabs, and texts quoted"
        elif row[1] not in LABELS:
            wrong = f"has the label {row[1][:20]!r}; it must be one of {', '.join(LABELS)}"
        elif row[2] in seen:
            wrong = f"has the id {row[2][:40]!r} of a row before it; give each row its own"
        else:
            seen.add(row[2])
            continue
        raise InputError(f"{path}: row {place} {wrong}")
    return [Row(*row) for row in fields]


@contextmanager
def long_fields() -> Iterator[None]:
    """Lets tables have fields of any length; the csv module's limit counts for the whole process."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def lines_of(path: Path) -> list[str]:
    """A file's lines, which only a line feed ends: reviews have other characters that Python takes for one."""
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            return list(file)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; write it again as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is readable") from None


def told(rows: list[Row], path: Path, lines: int) -> list[Row]:
    """The rows that a file's lines belong to: all of them, or those that UDA keeps."""
    if lines == len(rows):
        return rows
    kept = [row for row in rows if row.label != "unsup" or len(row.content) >= LEAST_UNLABELED]
    if lines == len(kept):
        return kept
    raise InputError(
        f"{path} has {lines} lines where {TABLE} has {len(rows)} rows, {len(kept)} without unsup texts of fewer than "
        f"{LEAST_UNLABELED} characters; one line must belong to each of the ones or the others: use the {TABLE} that "
        "the paraphrases were made from"
    )


def usable(text: str, paraphrase: str) -> bool:
    """Whether a paraphrase can stand for a text, as UDA decides it: by their lengths."""
    long_enough = min(len(text), len(paraphrase)) >= LEAST
    return long_enough and abs(len(paraphrase) - len(text)) <= MOST_DIFFERENCE * len(text)
