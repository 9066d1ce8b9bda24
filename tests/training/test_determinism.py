"""The same run gives the same bits: in another process, however often cut."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from determinism import CASES, SAVED, STEPS, run_of
from torch import Tensor

from l2i import replace, train
from l2i.training.checkpoint import load_latest_checkpoint

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CUTS = (
    1,
    4,
    5,
)  # before the first checkpoint, where one is due, and after one: some steps are taken twice
WAITING = {
    "OMP_WAIT_POLICY": "passive"
}  # threads that wait do not keep a core from the other tests
FIXED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def trained_elsewhere(
    folder: Path, *, threads: int = 1, device: str = "cpu", cuts: tuple[int, ...] = ()
) -> None:
    """All cases, in a process of their own; on a GPU with cuDNN's deterministic algorithms."""
    code = "import runpy, torch; torch.backends.cudnn.deterministic = True; "
    code += f"runpy.run_path({str(HERE / 'determinism.py')!r}, run_name='__main__')"
    paths = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    arguments = [str(folder), str(threads), device, *map(str, cuts)]
    environment = {**os.environ, "PYTHONPATH": paths, **WAITING, **FIXED}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def ended(folder: Path) -> tuple[dict[str, Tensor], bytes]:
    """The whole state at the end, and every figure on the way."""
    tensors, meta = load_latest_checkpoint(folder / "checkpoints")
    assert meta["step"] == STEPS
    return tensors, (folder / "metrics.jsonl").read_bytes()


def differing(one: Path, other: Path) -> list[str]:
    """What two runs do not have in common, bit by bit."""
    (mine, my_rows), (theirs, their_rows) = ended(one), ended(other)
    assert mine.keys() == theirs.keys()
    actual = [name for name, tensor in mine.items() if not torch.equal(tensor, theirs[name])]
    return actual + ["metrics.jsonl"] * (my_rows != their_rows)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_is_the_same_in_another_process_and_however_often_it_was_cut(
    threads: int, tmp_path: Path
) -> None:
    trained_elsewhere(tmp_path / "whole", threads=threads)
    trained_elsewhere(tmp_path / "cut", threads=threads, cuts=CUTS)
    actual = {case: differing(tmp_path / "whole" / case, tmp_path / "cut" / case) for case in CASES}
    assert actual == {case: [] for case in CASES}


def test_another_seed_is_another_run(tmp_path: Path) -> None:
    """What is compared above would show a difference."""
    for seed in (0, 1):
        train(replace(run_of("mixmatch", tmp_path / str(seed), threads=1), seed=seed), quiet=True)
    assert len(differing(tmp_path / "0" / "mixmatch", tmp_path / "1" / "mixmatch")) > 5


def test_the_cuts_are_apart_from_the_checkpoints() -> None:
    assert any(step % SAVED for step in CUTS) and any(step % SAVED == 0 for step in CUTS)
    assert min(CUTS) < SAVED and max(CUTS) < STEPS


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_the_same_with_deterministic_algorithms(tmp_path: Path) -> None:
    """cuDNN's fixed algorithms and cuBLAS's fixed workspaces.

    See docs/explanation/reliability.md for what these do not cover.
    """
    for name in ("one", "other"):
        trained_elsewhere(tmp_path / name, device="cuda")
    actual = {case: differing(tmp_path / "one" / case, tmp_path / "other" / case) for case in CASES}
    assert actual == {case: [] for case in CASES}
