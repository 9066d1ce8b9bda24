import json

import pytest

from golden import CASES, STEPS, path_of, trace


@pytest.mark.parametrize(("method", "labels"), CASES)
def test_costs_follow_the_golden_trace(method: str, labels: str) -> None:
    assert path_of(method, labels).exists(), "write it: python tests/training/golden.py"
    golden = json.loads(path_of(method, labels).read_text())
    assert len(golden) == STEPS
    for step, (got, wanted) in enumerate(zip(trace(method, labels), golden, strict=True)):
        assert got == pytest.approx(wanted, rel=1e-8, abs=1e-12), step


def test_traces_tell_methods_and_labels_apart() -> None:
    ends = {case: json.loads(path_of(*case).read_text())[-1]["c_t"] for case in CASES}
    assert len(set(ends.values())) == len(CASES)
