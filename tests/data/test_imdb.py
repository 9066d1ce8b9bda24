import os
import shutil
from pathlib import Path

import pytest

from l2i.data.datasets.imdb import load_imdb
from l2i.errors import InputError

REAL = os.environ.get("L2I_DATA")
real = pytest.mark.skipif(REAL is None, reason="L2I_DATA names no folder of real data")

FILES = {
    "train/neg": ("10_2.txt", "2_1.txt", "0_4.txt"),
    "train/pos": ("2_10.txt", "11_7.txt"),
    "train/unsup": ("9_0.txt", "10_0.txt"),
    "test/neg": ("1_3.txt", "0_1.txt"),
    "test/pos": ("0_8.txt",),
}


def write_imdb(tmp_path: Path) -> Path:
    """A few reviews, each saying where it lies."""
    for place, names in FILES.items():
        folder = tmp_path / "aclImdb" / place
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text(
                f"{place}/{name}: naïve.<br /><br />It &amp; that", encoding="utf-8"
            )
    return tmp_path


def refusal(root: Path | None) -> str:
    with pytest.raises(InputError) as caught:
        load_imdb(None if root is None else str(root))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reviews_come_by_class_and_number_with_udas_names(tmp_path: Path) -> None:
    texts = load_imdb(str(write_imdb(tmp_path)))
    places = [
        "train/neg/0_4",
        "train/neg/2_1",
        "train/neg/10_2",
        "train/pos/2_10",
        "train/pos/11_7",
    ]
    assert texts.train == [f"{place}.txt: naïve. It & that" for place in places]
    assert texts.y == [0, 0, 0, 1, 1]
    assert [text.split(":")[0] for text in texts.unlabeled] == [
        "train/unsup/9_0.txt",
        "train/unsup/10_0.txt",
    ]
    assert [text.split(":")[0] for text in texts.test] == [
        "test/neg/0_1.txt",
        "test/neg/1_3.txt",
        "test/pos/0_8.txt",
    ]
    assert texts.test_y == [0, 0, 1]
    assert texts.classes == 2
    assert texts.names[:4] == ["neg_0_4.txt", "neg_2_1.txt", "neg_10_2.txt", "pos_2_10.txt"]
    assert texts.names[4:] == ["pos_11_7.txt", "unsup_9_0.txt", "unsup_10_0.txt"]


def test_the_root_may_be_the_archives_own_folder(tmp_path: Path) -> None:
    root = write_imdb(tmp_path)
    assert load_imdb(str(root / "aclImdb")) == load_imdb(str(root))


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_there_may_be_no_reviews_without_labels(tmp_path: Path, how: str) -> None:
    root = write_imdb(tmp_path)
    folder = root / "aclImdb" / "train" / "unsup"
    shutil.rmtree(folder)
    if how == "empty":
        folder.mkdir()
    texts = load_imdb(str(root))
    assert texts.unlabeled == []
    assert len(texts.names) == len(texts.train) == 5


def test_hidden_and_other_files_are_ignored(tmp_path: Path) -> None:
    root = write_imdb(tmp_path)
    before = load_imdb(str(root))
    for name in (".0_1.txt", "._0_4.txt", "labeledBow.feat", "urls.html", "0_1.txt~"):
        (root / "aclImdb" / "train" / "neg" / name).write_bytes(b"\xff")
    assert load_imdb(str(root)) == before


def test_a_missing_set_says_where_to_get_it_and_where_to_put_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "train" / "class000").mkdir(parents=True)
    for root in (None, tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        message = refusal(root)
        assert ("no folder was given" if root is None else str(root)) in message
        for part in ("https://ai.stanford.edu/~amaas/data/sentiment/", "--data.root", "L2I_DATA"):
            assert part in message


@pytest.mark.parametrize("place", ["train/neg", "train/pos", "test/neg", "test/pos"])
def test_a_class_folder_that_is_missing_or_empty_is_named(tmp_path: Path, place: str) -> None:
    root = write_imdb(tmp_path)
    folder = root / "aclImdb" / place
    for path in folder.iterdir():
        path.unlink()
    (folder / "notes.md").write_text("no review")
    assert f"{folder} holds no reviews; unpack" in refusal(root)
    shutil.rmtree(folder)
    assert f"{folder} is missing; unpack" in refusal(root)


@pytest.mark.parametrize("place", FILES)
@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"caf\xe9", "not UTF-8"), (b"", "is empty"), (b" \n", "is empty"), (b"<br />", "is empty")],
)
def test_a_file_that_holds_no_text_is_named(
    tmp_path: Path, place: str, raw: bytes, message: str
) -> None:
    root = write_imdb(tmp_path)
    path = root / "aclImdb" / place / "77_3.txt"
    path.write_bytes(raw)
    assert f"{path} " in refusal(root)
    assert message in refusal(root)


@pytest.mark.parametrize("place", ["train/pos", "train/unsup"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, place: str) -> None:
    root = write_imdb(tmp_path)
    path = root / "aclImdb" / place / "77_3.txt"
    path.mkdir()
    assert f"{path} cannot be read (Is a directory); check that" in refusal(root)
    path.rmdir()
    path.symlink_to(tmp_path / "nowhere")
    assert (
        f"{path} is a broken link, or one that points outside {root}; replace it with a copy"
        in refusal(root)
    )


@pytest.mark.parametrize(
    "name", ["notes.txt", "5.txt", "5_.txt", "a5_3.txt", "5_3_2.txt", "-5_3.txt", "٥_3.txt"]
)
def test_a_file_not_named_as_reviews_are_is_named(tmp_path: Path, name: str) -> None:
    root = write_imdb(tmp_path)
    path = root / "aclImdb" / "train" / "unsup" / name
    path.write_text("text")
    assert f"{path} is not named NUMBER_RATING.txt, like IMDb's reviews; remove it" in refusal(root)


@real
def test_the_real_set_has_its_known_counts_and_no_empty_text() -> None:
    texts = load_imdb(REAL)
    for actual, classes in ((texts.train, texts.y), (texts.test, texts.test_y)):
        assert len(actual) == len(classes) == 25_000
        assert classes == [0] * 12_500 + [1] * 12_500
    assert all(text.strip() for text in (*texts.train, *texts.unlabeled, *texts.test))
    assert len(set(texts.names)) == len(texts.names) == 25_000 + len(texts.unlabeled)
    assert (texts.names[0], texts.names[12_500]) == ("neg_0_3.txt", "pos_0_9.txt")
    assert not any("<br" in text for text in texts.train)
