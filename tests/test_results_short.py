"""What docs/results.md and the README say of the table at 8,192 steps is what the files give."""

import json
from itertools import product
from pathlib import Path
from statistics import mean

import pytest

from l2i.experiments.formatting import format_mean_stderr
from l2i.experiments.plots import select_probes
from l2i.training.evaluation import compute_final_metric, extract_curve
from l2i.training.metrics import parse_metrics
from short_cells import (
    AHEAD,
    COPIED,
    FALLING,
    HUNDRED,
    OLD_HUNDRED,
    OLD_TEN,
    PAGE,
    PAIRS,
    PLACES,
    PLAIN,
    README,
    ROOT,
    SMALL,
    TEN,
    gain,
    metric_values,
    printed,
)


@pytest.mark.parametrize(
    "path",
    [
        p
        for place in (*PLACES[1:], "small/cifar10", "small-copied/cifar10")
        for p in (ROOT / "results" / place).glob("*.json")
    ],
    ids=str,
)
def test_a_result_is_that_of_its_evaluations(path: Path) -> None:
    result, rows = (
        json.loads(path.read_text()),
        parse_metrics(path.with_suffix(".jsonl").read_bytes()),
    )
    assert result["metric"] == pytest.approx(
        compute_final_metric(extract_curve(rows, "test"), {}, result["steps"], "median")
    )


def test_the_gains_are_those_of_the_files() -> None:
    page = printed()
    teacher, mixmatch, fixmatch, hundred = (
        gain(place, f"{m}-l2i-{n}", f"{m}-{n}") for place, m, n in PAIRS.values()
    )
    assert (
        f"{teacher} to mean teacher, where the goal was 3 points less, {mixmatch} to MixMatch, "
        f"{fixmatch} to" in page
    )
    assert f"on CIFAR-100, {hundred}. The best" in page
    learned, exact, of_paper, fixmatch_of_paper = (
        gain(TEN, name, f"{name.partition('-l2i')[0]}-250")
        for name in (
            "fixmatch-l2i-250-learnable",
            "mean-teacher-l2i-250-exact",
            "mean-teacher-l2i-paper-250",
            "fixmatch-l2i-paper-250",
        )
    )
    assert (
        f"learnable labels, at {learned}, and mean teacher with the exact rule, at {exact} for"
        in page
    )
    assert f"{of_paper} with mean teacher, {fixmatch_of_paper} with FixMatch" in page
    times = [
        mean(
            json.loads((TEN / f"{name}-short-seed{seed}.json").read_text())["seconds"]
            for seed in (0, 1)
        )
        for name in ("mean-teacher-l2i-250", "mean-teacher-l2i-250-exact")
    ]
    assert f"for {times[1] / times[0]:.1f} times the approximate one's time" in page


@pytest.mark.parametrize("name", PAIRS)
def test_the_readme_has_the_pairs(name: str) -> None:
    place, method, labels = PAIRS[name]
    base, ours = (
        format_mean_stderr(metric_values(place, f"{method}{mark}-{labels}").values())
        for mark in ("", "-l2i")
    )
    difference = gain(place, f"{method}-l2i-{labels}", f"{method}-{labels}")
    assert (
        f"| {name}, 8,192 steps | {labels} | {base} | {ours} | {difference} | | |"
        in README.splitlines()
    )


def test_the_readme_has_the_harm_of_the_papers_update() -> None:
    methods = ("mean-teacher", "fixmatch")
    harm = [
        mean(
            metric_values(place, f"{m}-l2i-paper-250")[seed]
            - metric_values(place, f"{m}-250")[seed]
            for seed in (0, 1)
        )
        for place, m in product((OLD_TEN, TEN), methods)
    ]
    printed = f"by {min(harm):.0f} to {max(harm):.0f} points, depending on method and evaluation"
    assert printed in " ".join(README.split())


def test_what_was_tried_is_that_of_its_files() -> None:
    page = printed()
    assert f"L2I gains {gain(FALLING, 'mean-teacher-l2i-250', 'mean-teacher-250')[1:]}" in page
    ahead = gain(AHEAD, "mean-teacher-l2i-250", "mean-teacher-250", beside=TEN)
    at_first = [
        mean(
            float(select_probes(parse_metrics(path.read_bytes()))[0]["c_h"] or 0)
            for path in place.glob("mean-teacher-l2i-250-short*.jsonl")
        )
        for place in (AHEAD, TEN)
    ]
    assert (
        at_first[0] / at_first[1] == pytest.approx(2, abs=0.1)
        and "C^H is twice as high at first" in page
    )
    assert (
        f"{format_mean_stderr(metric_values(AHEAD, 'mean-teacher-l2i-250').values())} "
        "on seeds 0 and 1, "
        f"{ahead} against" in page
    )
    trials = [
        json.loads(line)
        for line in (ROOT / "results" / "short-trials.jsonl").read_text().splitlines()
    ]
    base, ours = (metric_values(FALLING, f"mean-teacher{mark}-250")[0] for mark in ("", "-l2i"))
    strong, strong_view, ridge = trials
    first = (
        f"ends at {strong['test']:.2f} %, where ρ = 0.3 has {ours:.2f} and mean teacher {base:.2f}"
    )
    assert first in page and f"({strong_view['test']:.2f}), so that C^H does not vanish" in page
    assert (
        f"(it stays at {strong_view['c_h']:.2f})" in page
        and f"in place of one step ({ridge['test']:.2f})" in page
    )


def test_statistics_of_its_own_are_what_the_page_says_of_them() -> None:
    page, name = printed(), "mean-teacher-250-short-seed0.jsonl"
    old, new = (
        {row["step"]: row["test"] for row in parse_metrics((place / name).read_bytes())}
        for place in (OLD_TEN, TEN)
    )
    assert (
        f"first seed stands at {old[4096]:.2f} % after half of the steps in place of "
        f"{new[4096]:.2f}." in page
    )
    mixed = [mean(metric_values(place, "mixmatch-250").values()) for place in (OLD_TEN, TEN)]
    assert f"MixMatch has {mixed[0]:.2f} % there and {mixed[1]:.2f} above" in page
    pairs = {
        OLD_TEN: "mean-teacher{}-250",
        OLD_HUNDRED: "fixmatch{}-500",
        TEN: "mean-teacher{}-250",
        HUNDRED: "fixmatch{}-500",
    }
    gains = [
        gain(place, name.format("-l2i"), name.format(""), seeds=2) for place, name in pairs.items()
    ]
    under = [
        format_mean_stderr(metric_values(place, "fixmatch-l2i-paper-250").values()).split()[0]
        for place in (OLD_TEN, TEN)
    ]
    assert (
        f"{under[0]} % with the statistics copied, those of the views that it learned from, "
        f"and {under[1]} %" in page
    )
    assert f"(mean teacher {gains[0]}, FixMatch on CIFAR-100 {gains[1]})" in page
    assert f"with statistics of its own, it is at {gains[2]} and {gains[3]}." in page
    both = [
        parse_metrics((place / "mean-teacher-250-short-seed0.jsonl").read_bytes())
        for place in (COPIED, SMALL, PLAIN)
    ]
    costs = [[(row["step"], row["c_t"], row["c_u"]) for row in rows] for rows in both]
    assert costs[0] == costs[1] == costs[2]  # the same training
    for name, rows in zip(
        ("statistics copied", "its own", "its own, of samples as they are"), both, strict=True
    ):
        errors = [f"{row['test']:.1f}" for row in rows if row["step"] % 150 == 0]
        assert f"| {name} | {' | '.join(errors)} |" in PAGE.splitlines()
