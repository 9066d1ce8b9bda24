"""Fit folders: what is written is read again, and nothing that does not fit together is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fits import fitted_like

from l2i.errors import DamagedFile, InputError
from l2i.fit.artifact import (
    IDENTITY_FILE,
    META_FILE,
    REPORT_FILE,
    FitArtifact,
    FitRows,
    check_files,
    list_data_paths,
    read_checked,
    read_fit,
    write_fit,
    write_meta,
)

NAMES = np.array(["labeled", "unlabeled", "validation", "test"])
LOGITS = np.arange(12, dtype=np.float32).reshape(4, 3)
ROWS = FitRows(
    ids=["r1", "r2", "r3", "ä"],
    split_names=NAMES,
    given_labels=np.array([0, -1, 2, 1]),
    outputs={"l2i": LOGITS, "supervised": -LOGITS},
    change_counts=np.array([0, 3, 1, 0]),
    sizes=np.arange(8).reshape(4, 2),
)
TARGETS = np.array([[1.5, 2.0], [np.nan, np.nan], [0.5, 3.0], [4.0, 1.0]])
NUMBERS = FitRows(
    ids=ROWS.ids,
    split_names=NAMES,
    given_labels=TARGETS,
    outputs={"l2i": np.ones((4, 2), dtype=np.float32)},
    change_counts=ROWS.change_counts,
    predictive_std=np.full((4, 2), 0.5, dtype=np.float32),
)
REGRESSION = fitted_like(classes=None, targets=("a", "b"), target_mean=(0.0, 1.0))
REGRESSION = replace(REGRESSION, target_std=(1.0, 2.0), std_scale=1.5)


def assert_same_rows(actual: FitRows, expected: FitRows) -> None:
    assert actual.ids == expected.ids
    for name in ("split_names", "given_labels", "change_counts", "predictive_std", "sizes"):
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_array_equal(one, other)
    assert actual.outputs.keys() == expected.outputs.keys()
    for name, values in actual.outputs.items():
        np.testing.assert_array_equal(values, expected.outputs[name])


@pytest.mark.parametrize(
    ("fitted", "rows"), [(fitted_like(temperature=2.5), ROWS), (REGRESSION, NUMBERS)]
)
def test_a_fit_is_read_as_it_was_written(
    fitted: FitArtifact, rows: FitRows, tmp_path: Path
) -> None:
    write_fit(tmp_path, fitted, rows)
    again, same_rows = read_fit(tmp_path)
    assert again.files.keys() == {"rows.parquet", "outputs.safetensors"}
    assert replace(again, files={}) == fitted
    assert_same_rows(same_rows, rows)


@pytest.mark.parametrize(
    ("fitted", "rows"),
    [
        ({"candidates": (replace(fitted_like().selected, name="other"),)}, {}),
        ({"selected_name": "baseline"}, {}),
        ({}, {"outputs": {"supervised": LOGITS}}),
        ({}, {"outputs": {"l2i": LOGITS, "supervised": LOGITS[:3]}}),
        ({}, {"outputs": {"l2i": LOGITS[:, :2]}}),
        ({}, {"outputs": {"l2i": LOGITS.astype(np.int64)}}),
        ({}, {"outputs": {"l2i": np.where(LOGITS == 5, np.nan, LOGITS)}}),
        ({}, {"outputs": {"l2i": LOGITS, "supervised": np.where(LOGITS == 5, np.inf, LOGITS)}}),
        ({}, {"given_labels": np.array([0, -1, 2])}),
        ({}, {"given_labels": np.array([[0], [-1], [2], [1]])}),
        ({}, {"given_labels": np.array([0.0, -1.0, 2.0, 1.0])}),
        ({}, {"ids": [1, 2, 3, 4]}),
        ({}, {"split_names": np.array(["labeled", "unlabeled", "validation", "exam"])}),
        ({"shape": ()}, {}),
        ({"shape": (3, 0)}, {}),
        ({"shape": (10_001, 10_000)}, {}),
        ({"temperature": 0.0}, {}),
        ({"temperature": float("nan")}, {}),
        ({"std_scale": -1.0}, {}),
        ({"std_scale": float("inf")}, {}),
    ],
)
def test_parts_that_do_not_fit_together_are_no_fit(
    fitted: dict[str, Any], rows: dict[str, Any], tmp_path: Path
) -> None:
    write_fit(tmp_path, fitted_like(**fitted), replace(ROWS, **rows))
    with pytest.raises(DamagedFile, match="is damaged; restore it, or fit again"):
        read_fit(tmp_path)


@pytest.mark.parametrize(
    ("fitted", "rows"),
    [
        ({"target_std": (1.0, 0.0)}, {}),
        ({"target_std": (1.0, 1.0, 1.0)}, {}),
        ({}, {"predictive_std": None}),
        ({}, {"predictive_std": np.full((4, 2), np.nan, dtype=np.float32)}),
        ({}, {"given_labels": TARGETS[:, 0]}),
        ({}, {"given_labels": np.ones((4, 2), dtype=np.int64)}),
    ],
)
def test_targets_and_their_spreads_belong_to_one_fit(
    fitted: dict[str, Any], rows: dict[str, Any], tmp_path: Path
) -> None:
    write_fit(tmp_path, replace(REGRESSION, **fitted), replace(NUMBERS, **rows))
    with pytest.raises(DamagedFile, match="is damaged; restore it, or fit again"):
        read_fit(tmp_path)


def test_an_input_may_be_as_large_as_the_limit(tmp_path: Path) -> None:
    write_fit(tmp_path, fitted_like(shape=(10_000, 10_000)), ROWS)
    assert read_fit(tmp_path)[0].shape == (10_000, 10_000)


def test_a_fit_that_is_not_calibrated_leaves_its_outputs_as_they_are() -> None:
    assert (fitted_like().temperature, fitted_like().std_scale) == (1.0, 1.0)
    assert fitted_like().has_landmarks is False


def test_ties_go_to_l2i_and_then_to_the_baseline() -> None:
    candidates = [
        replace(fitted_like().selected, name=name, validation_metric=metric)
        for metric in (2.0, 1.0)
        for name in ("supervised", "baseline", "l2i")
    ]
    ordered = sorted(candidates, key=lambda candidate: candidate.sort_key)
    assert [c.name for c in ordered] == ["l2i", "baseline", "supervised"] * 2
    assert [c.validation_metric for c in ordered] == [1.0] * 3 + [2.0] * 3


def test_a_checksum_does_not_depend_on_the_order_of_fields(tmp_path: Path) -> None:
    write_fit(tmp_path, fitted_like(), ROWS)
    content = json.loads((tmp_path / META_FILE).read_text())
    (tmp_path / META_FILE).write_text(json.dumps(dict(reversed(content.items()))))
    read_fit(tmp_path)
    (tmp_path / META_FILE).write_text(json.dumps(content | {"num_snapshots": 2}))
    with pytest.raises(DamagedFile, match="was changed after it was saved"):
        read_fit(tmp_path)


def test_locks_unfinished_files_and_reports_are_no_part_of_a_fit(tmp_path: Path) -> None:
    (tmp_path / "l2i").mkdir()
    for name in (".lock", "l2i/.lock", "x.partial", REPORT_FILE, "l2i/weights", "l2i/report.html"):
        (tmp_path / name).touch()
    write_meta(tmp_path, {})
    content = json.loads((tmp_path / META_FILE).read_text())
    assert list(content["files"]) == ["l2i/report.html", "l2i/weights"]
    write_meta(tmp_path, content)  # fit.json itself does not count
    assert json.loads((tmp_path / META_FILE).read_text()) == content


def test_a_folder_without_a_fit_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a fit folder"):
        read_fit(tmp_path)
    (tmp_path / "identity.json").write_text("{}")
    with pytest.raises(InputError, match="is an unfinished fit; repeat the same"):
        read_fit(tmp_path)


def test_a_fit_of_another_version_is_not_read(tmp_path: Path) -> None:
    for version in (1, 3):
        write_fit(tmp_path, fitted_like(version=version), ROWS)
        with pytest.raises(InputError, match="was written by another version"):
            read_fit(tmp_path)


def test_files_are_checked_against_their_checksums(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    write_fit(tmp_path, fitted_like(), ROWS)
    fitted, _ = read_fit(tmp_path)
    assert read_checked(tmp_path, fitted, "a") == b"a"
    check_files(tmp_path, fitted, ["a", "b"])
    (tmp_path / "b").write_text("c")
    (tmp_path / "new").touch()
    for name, problem in (("b", "damaged or another file"), ("missing", "missing or cannot be")):
        with pytest.raises(DamagedFile, match=problem):
            read_checked(tmp_path, fitted, name)
        with pytest.raises(DamagedFile, match=problem):
            check_files(tmp_path, fitted, ["a", name])
    with pytest.raises(DamagedFile, match="damaged or another file"):
        read_checked(tmp_path, fitted, "new")


def test_data_are_known_by_the_path_that_was_given_and_the_one_it_was(tmp_path: Path) -> None:
    given = tmp_path / "data.csv"
    fitted = fitted_like(source={"path": str(given)})
    assert list_data_paths(tmp_path, fitted) == []  # nothing is there
    given.touch()
    assert list_data_paths(tmp_path, fitted) == [given]
    assert list_data_paths(tmp_path, fitted_like(source={"path": str(tmp_path)})) == []
    (tmp_path / IDENTITY_FILE).write_text('{"path": "/home/data.csv"}')
    assert list_data_paths(tmp_path, fitted) == [given, Path("/home/data.csv")]
    (tmp_path / IDENTITY_FILE).write_text('{"path": 5}')
    assert list_data_paths(tmp_path, fitted_like()) == []
