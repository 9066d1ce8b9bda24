"""Processes that share a run on a GPU: messages within a recorded step, two on one device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from cases import MIXING, cases
from launch import run
from safetensors.torch import load_file

from l2i import Run, Trainer, recipes, replace
from l2i.distributed import ProcessGroup, use_group

pytestmark = pytest.mark.gpu
CASES = Path(__file__).parent.parent / "distributed" / "cases.py"


@pytest.fixture
def nccl() -> Iterator[ProcessGroup]:
    """A group of one process, in which messages are sent all the same."""
    dist.init_process_group("nccl", world_size=1, rank=0, store=dist.HashStore())
    yield ProcessGroup(device_group=dist.group.WORLD)
    dist.destroy_process_group()


def short(cell: str, engine: str) -> Run:
    run = replace(recipes.get(cell), device="cuda", precision="float32", engine=engine, steps=12)
    return replace(run, model={"name": "conv", "width": 8})


@pytest.mark.parametrize(
    "cell", ["digits/fixmatch-l2i-40", "digits/mean-teacher-l2i-40", "digits/fixmatch-l2i-paper-40"]
)
def test_messages_are_recorded_with_their_step(nccl: ProcessGroup, cell: str) -> None:
    states = []
    for engine in ("eager", "graph"):
        with use_group(nccl):
            trainer = Trainer(short(cell, engine))
            assert any(
                type(module).__name__ == "SyncBatchNormAct" for module in trainer.model.modules()
            )
            for step in range(12):
                trainer.step(step)
            assert trainer.engine == engine
            states.append(trainer.state_dict())
            trainer.close()
    alone = Trainer(short(cell, "graph"))
    for step in range(12):
        alone.step(step)
    for name, value in alone.state_dict().items():
        if name.startswith(("model", "teacher")):
            torch.testing.assert_close(states[1][name], states[0][name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(states[1][name], value, rtol=1e-3, atol=1e-4)


def test_two_processes_on_one_gpu_take_the_steps_of_one(tmp_path: Path) -> None:
    for processes in (1, 2):
        run(processes, CASES, tmp_path, "cuda:0")
    actual = [
        path
        for path in sorted(tmp_path.glob("*-1.safetensors"))
        if not path.name.startswith(MIXING)
    ]
    assert len(actual) == len([name for name in cases() if not name.startswith(MIXING)])
    for path in actual:
        one, two = load_file(path), load_file(path.with_name(path.name.replace("-1.", "-2.")))
        for name, tensor in one.items():
            torch.testing.assert_close(
                two[name],
                tensor,
                rtol=1e-9,
                atol=1e-9,
                msg=lambda s, n=name, p=path: f"{p} {n} {s}",
            )
