import re
from pathlib import Path

import numpy as np
import pytest
from user_data import read, written

from l2i.errors import InputError
from l2i.fit.readers.source import Source
from l2i.fit.readers.targets import MAX_CLASSES, NO_UNLABELED_NOTE


def labelled(folder: Path, labels: list[str], **options: object) -> Source:
    rows = [f"{row}.5,{label}" for row, label in enumerate(labels)]
    return read(written(folder / "a.csv", "x,y\n" + "\n".join(rows) + "\n"), "y", **options)


def test_whole_numbers_are_classes_in_their_own_order(tmp_path: Path) -> None:
    source = labelled(tmp_path, ["10", "9.0", "", "2", "10"])
    assert source.classes == ("2", "9", "10") and source.given_labels.tolist() == [2, 1, -1, 0, 2]


@pytest.mark.parametrize("labels", [[str(i) for i in range(21)], ["1", "2.5", "1"]])
def test_fractions_or_many_different_numbers_are_regression(
    tmp_path: Path, labels: list[str]
) -> None:
    source = labelled(tmp_path, [*labels, ""])
    assert (
        source.classes is None
        and source.given_labels.shape == (len(labels) + 1, 1)
        and source.given_labels.dtype == np.float64
    )
    assert source.given_labels[:-1, 0].tolist() == [float(label) for label in labels] and np.isnan(
        source.given_labels[-1, 0]
    )
    assert any("is numeric (" in note and ": regression" in note for note in source.notes)


def test_twenty_different_whole_numbers_are_classes(tmp_path: Path) -> None:
    assert len(labelled(tmp_path, [str(i % 20) for i in range(40)]).classes or ()) == 20


def test_the_task_can_be_given(tmp_path: Path) -> None:
    assert labelled(tmp_path, ["1", "2", "1"], task="regression").given_labels.tolist() == [
        [1.0],
        [2.0],
        [1.0],
    ]
    assert labelled(tmp_path, ["1.5", "2.5", "1.5"], task="classification").classes == (
        "1.5",
        "2.5",
    )


def test_all_rows_labelled_is_noted(tmp_path: Path) -> None:
    assert NO_UNLABELED_NOTE in labelled(tmp_path, ["a", "b"] * 4).notes
    assert NO_UNLABELED_NOTE not in labelled(tmp_path, ["a", "b", ""] * 4).notes


def test_a_class_with_one_label_is_noted_by_name(tmp_path: Path) -> None:
    notes = labelled(tmp_path, ["a", "a", "b", "b", "rare", ""]).notes
    assert "classes with one label, too few to judge a model by: 'rare'" in notes


@pytest.mark.parametrize(
    ("labels", "options", "said"),
    [
        (["a", "a", ""], {}, "only one class, 'a'"),
        (["", "NA", ""], {}, "no row is labelled"),
        (["1", "bad", "2"], {"task": "regression"}, "contains 'bad' in row 2, not a number"),
        (["1.5", "2.5", "bad", "3.5"], {}, "mixes numbers and text (1 cell, first 'bad' in row 3)"),
        (["1.5", "inf", "2"], {}, "target 'y' contains infinity in row 2"),
        (["1.5", "1.5", ""], {}, "is constant over the labelled rows"),
        (["1.5", "", ""], {}, "only one row is labelled"),
        ([f"c{i}" for i in range(MAX_CLASSES + 1)], {}, "10,001 classes, more than 10,000"),
    ],
)
def test_targets_that_are_wrong_are_named(
    tmp_path: Path, labels: list[str], options: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as error:
        labelled(tmp_path, labels, **options)
    assert "\n" not in str(error.value) and ";" in str(error.value)


def test_several_targets_are_regression_and_blank_all_or_none(tmp_path: Path) -> None:
    source = read(written(tmp_path / "a.csv", "x,u,v\n1,1,2\n2,3,4\n3,,\n"), "v", "u")
    assert source.target_names == ("v", "u") and source.given_labels[:2].tolist() == [
        [2.0, 1.0],
        [4.0, 3.0],
    ]
    assert np.isnan(source.given_labels[2]).all()
    still = read(written(tmp_path / "c.csv", "x,u,v\n1,1,2\n2,1,4\n3,,\n"), "v", "u")
    assert "targets that are constant over the labelled rows: 'u'" in still.notes
    with pytest.raises(InputError, match="row 2 has some targets, but 'u' is blank"):
        read(written(tmp_path / "b.csv", "x,u,v\n1,1,2\n2,,4\n3,5,6\n"), "v", "u")
    with pytest.raises(InputError, match="one target, not 2"):
        read(tmp_path / "a.csv", "v", "u", task="classification")
