"""Run folders: what a result says of itself, and which configurations are the same run."""

from __future__ import annotations

import errno
import json
from dataclasses import replace as with_fields
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from l2i.config import Data, Run, replace, to_json
from l2i.errors import DamagedFile, InputError
from l2i.training import run_dir
from l2i.training.run_dir import (
    FIT_FILE,
    Result,
    check_available,
    check_config,
    check_data_available,
    check_fingerprint,
    claim_run_dir,
    describe_hardware,
    find_differences,
    flatten_settings,
    lock_run_dir,
    read_result,
    read_run,
    resolve_run_dir,
    write_result,
)

RESULT = Result(
    name="blobs/x",
    metric=12.345,
    metric_name="error",
    metric_definition="percent of errors",
    validation=None,
    seed=3,
    steps=1500,
    seconds=61.26,
    versions={},
    hardware="cpu",
)


def test_a_result_says_what_is_known_in_one_line() -> None:
    start = "blobs/x, seed 3: error 12.35, 1500 steps in 61.3 s"
    assert RESULT.summarize() == start
    assert with_fields(RESULT, processes=2).summarize() == f"{start} on 2 processes"
    quick = with_fields(RESULT, steps_per_second=24.567)
    assert quick.summarize() == f"{start} (24.6 steps/s without evaluation)"
    doubtful = with_fields(RESULT, warnings=["a", "b"])
    assert str(doubtful) == f"{start}\n(percent of errors)\nwarning: a\nwarning: b"


def test_a_result_is_read_as_it_was_written_and_must_be_finite(tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    write_result(tmp_path, RESULT)
    assert read_result(tmp_path) == RESULT
    for name in ("metric", "seconds"):
        write_result(tmp_path, with_fields(RESULT, **{name: float("nan")}))
        with pytest.raises(DamagedFile, match=r"result\.json is damaged"):
            read_result(tmp_path)


def test_a_run_lies_in_a_folder_of_its_name_and_seed_unless_told_otherwise() -> None:
    assert resolve_run_dir(Run(name="a/b", seed=7)) == Path("runs/a-b-seed7")
    assert resolve_run_dir(Run(name="a/b", out="elsewhere/x")) == Path("elsewhere/x")


def test_settings_hold_what_a_result_depends_on_and_no_places() -> None:
    run = Run(name="a", seed=7, steps=5, out="here", data=Data(name="mnist", root="/my/data"))
    settings = flatten_settings(run)
    assert settings["data.name"] == "mnist" and settings["optim.lr"] == run.optim.lr
    assert not {"name", "seed", "steps", "out", "device", "data.root"} & settings.keys()
    assert json.loads(json.dumps(settings)) == settings
    in_folder = replace(run, model={"weights": "/my/encoders/bert"})
    assert flatten_settings(in_folder)["model.weights"] == "bert"


def test_configurations_differ_in_what_affects_results_alone() -> None:
    run = Run(name="a", seed=1)
    for same in (replace(run, out="x", device="cpu"), replace(run, data={"root": "y"})):
        assert find_differences(to_json(run), to_json(same)) == []
    other = replace(run, seed=2, data={"num_labeled": run.data.num_labeled + 1})
    labeled, more = run.data.num_labeled, run.data.num_labeled + 1
    assert find_differences(to_json(run), to_json(other)) == [
        f"data.num_labeled is {labeled} there and {more} here",
        "seed is 1 there and 2 here",
    ]


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ((1, 2), [1, 2], True),
        ([1, 2], [2, 1], False),
        ([], None, True),
        ([1], None, False),
        ([1], 1, False),
        (["a"], "a", False),
        (None, 0, False),
        ({"x": 1}, {"x": 1}, True),
        ({"x": 1}, {"x": 2}, False),
        ({"x": 1}, None, False),
    ],
)
def test_lists_and_tuples_are_the_same_settings(old: object, new: object, is_same: bool) -> None:
    assert (find_differences({"field": old}, {"field": new}) == []) == is_same


def test_a_field_that_only_one_configuration_has_is_a_difference() -> None:
    assert find_differences({"a": 1}, {}) == ["a is 1 there and None here"]
    assert find_differences({}, {"a": 1}) == ["a is None there and 1 here"]


def test_four_differences_are_enough_to_name(tmp_path: Path) -> None:
    run = Run(name="a")
    stored = to_json(run) | dict.fromkeys(("v", "w", "x", "y", "z"), 1)
    with pytest.raises(InputError, match="y is 1 there and None here\\); choose"):
        check_config(tmp_path, stored, run)


def test_a_folder_is_claimed_once_and_for_one_run(tmp_path: Path) -> None:
    folder, run = tmp_path / "run", Run(name="a", seed=1)
    check_available(folder, run)
    folder.mkdir()
    for name in (".lock", "config.json.1-ab.partial"):  # of a process that was killed early
        (folder / name).touch()
    check_available(folder, run)
    claim_run_dir(folder, run)
    assert read_run(folder) == run
    claim_run_dir(folder, replace(run, device="cpu"))
    assert read_run(folder) == run  # written once
    with pytest.raises(InputError, match="contains a run with other settings"):
        claim_run_dir(folder, replace(run, seed=2))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file; choose a different --out"):
        check_available(tmp_path / "file", run)


def test_a_folder_that_cannot_be_is_wrong_input_unless_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"cannot use .* as a run folder \(File name too long\)"):
        check_available(tmp_path / ("x" * 300), Run(name="a"))
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match="as a run folder"),
        lock_run_dir(tmp_path / "file" / "run"),
    ):
        pass

    def fill_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", fill_disk)
    with pytest.raises(OSError, match="No space left"), lock_run_dir(tmp_path / "run"):
        pass


def test_a_fit_is_told_from_a_run_and_from_any_other_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        read_run(tmp_path)
    (tmp_path / FIT_FILE).touch()
    with pytest.raises(InputError, match="is a fit, not a run"):
        read_run(tmp_path)


def test_a_checkpoint_on_splits_from_python_needs_them_again(tmp_path: Path) -> None:
    run = tmp_path / "l2i"
    for given, custom_splits in ((False, False), (False, True), (True, True)):
        check_data_available(run, {"given": given}, custom_splits=custom_splits)
    with pytest.raises(InputError, match="was trained on splits passed from Python"):
        check_data_available(run, {"given": True}, custom_splits=False)
    (tmp_path / FIT_FILE).touch()
    with pytest.raises(InputError, match="is part of the fit"):
        check_data_available(run, {"given": True}, custom_splits=False)


def test_a_checkpoint_belongs_to_samples_with_its_fingerprint(tmp_path: Path) -> None:
    data = {"labeled.inputs": "a", "unlabeled.labels": "b"}
    check_fingerprint(tmp_path, {"data": data}, dict(data), custom_splits=False)
    with pytest.raises(InputError, match="changed: the labels of the unlabelled samples"):
        check_fingerprint(
            tmp_path, {"data": data}, data | {"unlabeled.labels": "c"}, custom_splits=False
        )
    with pytest.raises(InputError, match="by an older version"):
        check_fingerprint(tmp_path, {}, data, custom_splits=False)
    with pytest.raises(InputError, match="passed from Python"):
        check_fingerprint(tmp_path, {"data": data, "given": True}, data, custom_splits=False)


def test_hardware_has_its_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        for count, words in ((1, ", 1 thread"), (2, ", 2 threads")):
            torch.set_num_threads(count)
            assert describe_hardware(torch.device("cpu")).endswith(words)
    finally:
        torch.set_num_threads(before)


def test_a_package_that_is_not_installed_has_an_unknown_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run from a folder on the path must not fail when it writes its result."""

    def find_nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(run_dir, "version", find_nothing)
    versions = run_dir.collect_versions()
    assert versions["l2i"] == "unknown" and versions["torch"] == torch.__version__
