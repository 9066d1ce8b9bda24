"""Ten runs, each disturbed in its way, end as undisturbed ones do; `make soak` takes a hundred."""

import os
from pathlib import Path

import pytest
from disturbances import KINDS
from plans import FULL, LIMIT, Plan, soaked

AGAIN = 3  # runs, until what was planned has come before the run's end
TEN = (
    Plan(seed=1, kinds=("SIGKILL",)),
    Plan(seed=0, kinds=("SIGTERM",)),
    Plan(seed=2, kinds=("truncated checkpoint",)),
    Plan(seed=3, kinds=("unfinished files", "torn checkpoint")),
    Plan(seed=4, kinds=("file size limit",)),
    Plan(seed=5, kinds=("full disk",)),
    Plan(seed=8, kinds=("SIGKILL of a worker",), processes=2),
    Plan(seed=19, kinds=("SIGTERM of a worker",), processes=2),
    Plan(seed=14, kinds=("SIGTERM", "SIGKILL of torchrun alone"), processes=2),
    Plan(seed=9, kinds=("other number of processes",)),
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc"
    ),
]


def test_the_ten_have_every_kind() -> None:
    assert {kind for plan in TEN for kind in plan.kinds} == set(KINDS)


@pytest.mark.parametrize(
    "plan", TEN, ids=lambda plan: f"{', '.join(plan.kinds)} on {plan.processes}"
)
def test_a_disturbed_run_ends_as_an_undisturbed_one(
    plan: Plan, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    for again in range(AGAIN):
        met = soaked(plan, tmp_path / str(again), shared / "undisturbed")
        if len(met) == len(plan.kinds) and all(met.values()):
            break
    else:
        pytest.fail(f"in {AGAIN} runs, not all of {plan.kinds} came in time: {met}")
    if FULL in plan.kinds and LIMIT in met:
        pytest.skip("no disk can be mounted here; files were limited in size instead")
