"""Processes that share a run, started by torchrun, do what one process does."""

import json
from pathlib import Path

import pytest
import torch
from cases import MIXING, cases
from launch import run
from safetensors.torch import load_file

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]  # one slow fixture

CASES = Path(__file__).parent / "cases.py"
EQUAL = 1e-10
ALIKE = [name for name in cases() if not name.startswith(MIXING)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case as 1, 2 and 4 processes take it."""
    made = tmp_path_factory.mktemp("processes")
    for processes in (1, 2, 4):
        run(processes, CASES, made)
    return made


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("name", ALIKE)
def test_processes_take_the_steps_of_one(name: str, processes: int, folder: Path) -> None:
    one, many = (load_file(folder / f"{name}-{size}.safetensors") for size in (1, processes))
    assert one.keys() == many.keys()
    for key in one:
        torch.testing.assert_close(
            many[key],
            one[key],
            rtol=EQUAL,
            atol=EQUAL,
            msg=lambda printed, key=key: f"{key}: {printed}",
        )


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize(
    "name", [name for name in ALIKE if name != "odd-norms"]
)  # evaluated by samples at hand
def test_what_is_measured_and_evaluated_is_that_of_one(
    name: str, processes: int, folder: Path
) -> None:
    one, many = (
        json.loads((folder / f"{name}-{size}.json").read_text()) for size in (1, processes)
    )
    assert {part: list(one[part]) for part in one} == {part: list(many[part]) for part in many}
    for part in one:
        assert many[part] == pytest.approx(one[part], rel=EQUAL, abs=EQUAL)
