import csv
import random
from pathlib import Path

import pytest

from l2i.data.datasets.imdb import MAX_FIELD_CHARS, read_paraphrases
from l2i.errors import InputError

LONG = "A long review of a film. " * 20  # 500 characters
ROWS = [
    ("A film that I liked", "pos", "pos_0_9.txt"),
    ("Without a label and short", "unsup", "unsup_1_0.txt"),
    ('He said "no",<br />and\tleft', "neg", "neg_12_1.txt"),
    (LONG, "unsup", "unsup_0_0.txt"),
]


def write_table(
    folder: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("content", "label", "id")
) -> Path:
    """As UDA's imdb_format.py writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "train.csv").open("w", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t", quotechar='"').writerows([header, *rows])
    return folder


def write_lines(folder: Path, *lines: str, number: int = 0, temperature: float = 0.9) -> Path:
    path = folder / "unsup_in" / f"sample_{temperature}" / "para" / f"para_{number}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_paraphrases(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_lines_belong_to_the_rows_that_uda_keeps(tmp_path: Path) -> None:
    write_lines(
        write_table(tmp_path, ROWS), "I liked that film", "&quot;No&quot;, he said,  and left", LONG
    )
    assert read_paraphrases(str(tmp_path)) == {
        "pos_0_9.txt": ["I liked that film"],
        "neg_12_1.txt": ['"No", he said, and left'],
        "unsup_0_0.txt": [LONG.strip()],
    }


def test_lines_may_belong_to_all_rows(tmp_path: Path) -> None:
    write_lines(
        write_table(tmp_path, ROWS),
        "I liked that film",
        "Short and unlabelled",
        "He left with a no",
        LONG,
    )
    actual = read_paraphrases(str(tmp_path))
    assert actual["unsup_1_0.txt"] == ["Short and unlabelled"]
    assert list(actual) == [row[2] for row in ROWS]


def test_each_file_gives_one_more_in_sorted_order(tmp_path: Path) -> None:
    write_table(tmp_path, ROWS[:1])
    write_lines(tmp_path, "the third one of them", number=1)
    write_lines(tmp_path, "the second one of them", number=0)
    write_lines(tmp_path, "the first one of them", number=1, temperature=0.8)
    firsts = ["the first one of them", "the second one of them", "the third one of them"]
    assert read_paraphrases(str(tmp_path)) == {"pos_0_9.txt": firsts}


@pytest.mark.parametrize("where", ["", "csv", "IMDB_raw/csv"])
def test_the_table_nearest_to_the_top_counts(tmp_path: Path, where: str) -> None:
    write_table(
        tmp_path / "a" / "deeper" / "place", [("Another table altogether", "neg", "neg_0_1.txt")]
    )
    write_lines(write_table(tmp_path / where, ROWS[:1]), "I liked that film")
    assert list(read_paraphrases(str(tmp_path))) == ["pos_0_9.txt"]


@pytest.mark.parametrize(
    ("text", "paraphrase", "used"),
    [
        ("x" * 20, "y" * 30, True),
        ("x" * 20, "y" * 31, False),
        ("x" * 20, "y" * 10, True),
        ("x" * 22, "y" * 10, False),
        ("x" * 10, "y" * 10, True),
        ("x" * 10, "y" * 9, False),
        ("x" * 9, "y" * 10, False),
        ("x" * 20, "", False),
        ("x" * 20, "  " + "y" * 30 + "<br />", True),
    ],
)
def test_a_paraphrase_of_a_very_different_length_is_left_out(
    tmp_path: Path, text: str, paraphrase: str, used: bool
) -> None:
    write_table(
        tmp_path, [(text, "pos", "pos_0_9.txt"), ("Another film of his", "neg", "neg_0_1.txt")]
    )
    write_lines(tmp_path, paraphrase, "Yet another film of his")
    actual = read_paraphrases(str(tmp_path))
    assert actual["neg_0_1.txt"] == ["Yet another film of his"]
    assert ("pos_0_9.txt" in actual) == used


def test_only_a_line_feed_ends_a_paraphrase(tmp_path: Path) -> None:
    write_lines(write_table(tmp_path, ROWS[:1]), "I\x85 liked\u2028that\x0cfilm\r")
    assert read_paraphrases(str(tmp_path)) == {"pos_0_9.txt": ["I liked that film"]}


def test_the_last_line_need_not_end(tmp_path: Path) -> None:
    path = write_lines(write_table(tmp_path, ROWS[:1]))
    path.write_text("I liked that film")
    assert read_paraphrases(str(tmp_path)) == {"pos_0_9.txt": ["I liked that film"]}


def test_a_very_long_review_is_read_and_the_csv_modules_limit_stays(tmp_path: Path) -> None:
    before, text = csv.field_size_limit(), "long " * 60_000
    assert before < len(text) < MAX_FIELD_CHARS
    write_lines(write_table(tmp_path, [(text, "pos", "pos_0_9.txt")]), text)
    assert read_paraphrases(str(tmp_path)) == {"pos_0_9.txt": [text.strip()]}
    assert csv.field_size_limit() == before


def test_any_text_survives_the_table(tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = ["".join(rng.choices('ab"\t\n, \\é', k=40)) for _ in range(200)]
    rows = [(text, "neg", f"neg_{place}_1.txt") for place, text in enumerate(texts)]
    write_lines(write_table(tmp_path, rows), *("y" * len(" ".join(text.split())) for text in texts))
    assert len(read_paraphrases(str(tmp_path))) == 200


def test_files_that_are_not_there_are_said_with_what_is_expected_where(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        message = refusal(folder)
        assert f"there is no train.csv in {folder} or below it; give a folder" in message
    write_table(tmp_path, ROWS)
    (tmp_path / "._para_0.txt").touch()
    message = refusal(tmp_path)
    for part in (
        "no para_*.txt",
        str(tmp_path),
        "unsup_in/sample_0.9/para/para_0.txt",
        "google-research/uda",
    ):
        assert part in message


@pytest.mark.parametrize("lines", [0, 1, 2, 5])
def test_a_file_with_a_wrong_number_of_lines_is_named_with_both_numbers(
    tmp_path: Path, lines: int
) -> None:
    path = write_lines(write_table(tmp_path, ROWS), *["a paraphrase"] * lines)
    message = refusal(tmp_path)
    for part in (
        f"{path} has {lines} lines",
        "4 rows",
        "3 without unsup texts of fewer than 500",
        "use the train.csv",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("text", "pos"), "row 2 has 2 fields, not 3"),
        (("text", "pos", "pos_1_9.txt", "more"), "row 2 has 4 fields, not 3"),
        (
            ("text", "good", "pos_1_9.txt"),
            "row 2 has the label 'good'; it must be one of pos, neg, unsup",
        ),
        (
            ("text", "pos", "pos_0_9.txt"),
            "row 2 has the id 'pos_0_9.txt' of a row before it; give each",
        ),
    ],
)
def test_a_wrong_row_is_told_with_its_place(
    tmp_path: Path, row: tuple[str, ...], message: str
) -> None:
    write_table(tmp_path, [ROWS[0], row])
    assert f"train.csv: {message}" in refusal(tmp_path)


def test_a_table_that_is_something_else_says_so(tmp_path: Path) -> None:
    write_lines(
        write_table(tmp_path, ROWS[:1], header=("text", "label", "id")), "I liked that film"
    )
    assert "does not begin with the line content TAB label TAB id; add it" in refusal(tmp_path)
    table = tmp_path / "train.csv"
    for raw, message in (
        (b"", "does not begin"),
        (b"caf\xe9", "not UTF-8"),
        (b"a,b\n", "does not begin"),
    ):
        table.write_bytes(raw)
        assert f"{table} " in refusal(tmp_path)
        assert message in refusal(tmp_path)


def test_a_quote_that_is_never_closed_is_told(tmp_path: Path) -> None:
    write_lines(tmp_path, "I liked that film")
    (tmp_path / "train.csv").write_text(
        'content\tlabel\tid\nA film\tpos\tpos_0_9.txt\n"Another\tneg\tneg_0_1.txt\n'
    )
    assert (
        "row 2 has 1 fields, not 3; check that fields are separated by tabs, and texts quoted"
        in refusal(tmp_path)
    )


def test_paraphrases_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = write_lines(write_table(tmp_path, ROWS[:1]))
    path.write_bytes(b"I liked that caf\xe9\n")
    assert f"{path} is not UTF-8 text; save it as UTF-8" in refusal(tmp_path)
