"""The command `l2i fit`: flags of a run, and the summary that it prints."""

from __future__ import annotations

import pytest

from l2i.cli.fit import REPLACED_FIELDS, _format_value, _parse_overrides
from l2i.config import Run, replace
from l2i.errors import InputError


def override(run: Run, *flags: str) -> Run:
    return _parse_overrides(list(flags), "l2i fit x.csv", Run())(run)


def test_flags_set_the_fields_that_they_name_in_any_run_and_no_others() -> None:
    run = replace(Run(name="a", seed=5), data={"weak": {"flip": True}})
    changed = override(run, "--steps", "7", "--optim.lr=0.5", "--data.weak.noise", "0.25")
    assert changed == replace(run, steps=7, optim={"lr": 0.5}, data={"weak": {"noise": 0.25}})
    assert changed.seed == 5 and changed.data.weak.flip
    assert override(run) == run


def test_a_flag_may_turn_a_field_off() -> None:
    run = replace(Run(name="a"), data={"weak": {"flip": True}})
    assert not override(run, "--data.weak.no-flip").data.weak.flip


def test_a_flag_may_be_written_with_hyphens_or_underscores() -> None:
    for flag in ("--save-every", "--save_every"):
        assert override(Run(name="a"), flag, "3").save_every == 3


@pytest.mark.parametrize("name", REPLACED_FIELDS)
def test_fields_that_options_of_fit_replace_are_refused(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    with pytest.raises(InputError, match=f"{flag} does not apply to 'l2i fit'; use ") as raised:
        override(Run(name="a"), flag, "3")
    assert str(raised.value).endswith(f"; use {REPLACED_FIELDS[name]}")


def test_a_flag_that_is_almost_an_option_of_fit_is_suggested() -> None:
    with pytest.raises(InputError, match="perhaps you meant --target"):
        override(Run(name="a"), "--traget", "kind")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.0, "0.00"),
        (0.01, "0.01"),
        (0.00999, "0.00999"),
        (-0.5, "-0.50"),
        (9999.0, "9999.00"),
        (1e4, "1e+04"),
        (-123456.0, "-1.235e+05"),
    ],
)
def test_a_metric_keeps_digits_that_mean_something(value: float | None, text: str) -> None:
    assert _format_value(value) == text
