"""A run within a process: what users of the library call."""

from pathlib import Path

import pytest
import torch

import l2i
from l2i import InputError, NonFiniteCost, recipes, replace, train


def short(folder: Path, **changes: object) -> l2i.Run:
    run = replace(
        recipes.get("digits"), device="cpu", steps=30, eval_every=10, save_every=20, model={"width": 8}, out=str(folder)
    )
    return replace(run, **changes)


def test_train_returns_its_result_and_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    rng, threads = torch.get_rng_state(), torch.get_num_threads()
    result = train(short(tmp_path / "run"), quiet=True)
    assert result.steps == 30
    assert 0 < result.figure < 100
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.get_num_threads() == threads
    assert train(short(tmp_path / "run"), quiet=True) == result


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a run folder"):
        train(short(tmp_path), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        train(short(tmp_path), quiet=True)


def test_a_metrics_file_cut_short_is_not_glossed_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(short(folder), quiet=True)
    (folder / "result.json").unlink()
    (folder / "metrics.jsonl").write_bytes(b"")
    with pytest.raises(InputError, match="shorter than the checkpoint says"):
        train(short(folder), quiet=True)


def test_a_run_cut_before_its_result_was_written_ends_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    figure = train(short(folder), quiet=True).figure
    (folder / "result.json").unlink()
    assert train(short(folder), quiet=True).figure == figure


def test_a_bad_state_is_not_saved(tmp_path: Path) -> None:
    run = short(tmp_path / "run", optim={"lr": 1e30}, eval_every=30)
    with pytest.raises(NonFiniteCost, match="not finite from step 1"):
        train(run, quiet=True)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["0000000000.safetensors"]


def test_wrong_input_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use 40"):
        train(short(tmp_path / "run", data={"num_labeled": 45}), quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", l2i.__all__)
def test_public_names_are_there(name: str) -> None:
    assert getattr(l2i, name) is not None


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainr'"):
        _ = l2i.Trainr  # type: ignore[attr-defined]
