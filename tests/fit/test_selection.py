"""Which candidate is kept."""

import numpy as np
import pytest

from l2i.fit.candidates import select_by_errors


def wrong(count: int, of: int = 40, first: int = 0) -> np.ndarray:
    errors = np.zeros(of)
    errors[first : first + count] = 1
    return errors


def test_of_equal_errors_what_has_learned_from_more_is_kept() -> None:
    assert (
        select_by_errors({"supervised": wrong(4), "baseline": wrong(4), "l2i": wrong(4, first=20)})
        == "l2i"
    )
    assert select_by_errors({"supervised": wrong(4), "baseline": wrong(4)}) == "baseline"


def test_one_row_tells_nothing_apart() -> None:
    for of in (5, 18, 40, 333):
        assert select_by_errors({"supervised": wrong(2, of), "l2i": wrong(3, of)}) == "l2i"


def test_errors_that_differ_by_more_than_a_standard_error_decide() -> None:
    assert (
        select_by_errors({"supervised": wrong(2), "baseline": wrong(6), "l2i": wrong(8)})
        == "supervised"
    )
    assert (
        select_by_errors({"supervised": wrong(9), "baseline": wrong(2), "l2i": wrong(8)})
        == "baseline"
    )


@pytest.mark.parametrize("seed", range(5))
def test_squared_errors_are_judged_by_the_paired_standard_error(seed: int) -> None:
    draw = np.random.default_rng(seed)
    base = draw.exponential(size=200)
    gap = draw.normal(size=200)
    gap = (gap - gap.mean()) / gap.std(ddof=1) / 10
    error = 0.1 / np.sqrt(200)
    assert select_by_errors({"supervised": base, "l2i": base + gap + 0.99 * error}) == "l2i"
    assert select_by_errors({"supervised": base, "l2i": base + gap + 1.01 * error}) == "supervised"


def test_a_single_row_keeps_the_order() -> None:
    assert select_by_errors({"supervised": np.zeros(1), "l2i": np.ones(1)}) == "l2i"
