from l2i.statistic import with_error


def test_a_mean_comes_with_its_standard_error() -> None:
    assert with_error([1.0, 2.0, 6.0]) == "3.00 ± 1.53"
    assert with_error([-1.0, 2.0], digits=1, sign="+") == "+0.5 ± 1.5"


def test_one_value_has_no_error() -> None:
    assert with_error([4.25], digits=1) == "4.2"
