"""What docs/results.md says of the runs' course at 8,192 steps is what the committed files give."""

import json
from pathlib import Path
from statistics import mean

import pytest

from l2i.cli import run_command
from l2i.experiments.formatting import format_mean_stderr
from l2i.experiments.plots import select_probes
from l2i.training.metrics import parse_metrics
from short_cells import (
    HUNDRED,
    MECHANISM,
    PAGE,
    ROOT,
    TEN,
    change,
    changes,
    looked,
    mean_at,
    printed,
)


def test_what_an_update_does_is_what_the_page_says() -> None:
    page, cost = printed(), "test_cost"
    teacher, fixmatch, mixmatch = (
        change(TEN, f"{method}-l2i-250", cost)
        for method in ("mean-teacher", "fixmatch", "mixmatch")
    )
    hundred = change(HUNDRED, "fixmatch-l2i-500", cost)
    assert (
        f"changes by {teacher} with mean teacher, {fixmatch} with FixMatch, "
        f"{hundred} on CIFAR-100 and" in page
    )
    whole = mean(mean_at("mixmatch-l2i-250", look, "test_cost_before") for look in range(8))
    part = -100 * mean(changes(TEN, "mixmatch-l2i-250", cost)) / whole
    assert (
        f"and {mixmatch} with MixMatch, the one that is beyond the noise: {part:.2f} % of it."
        in page
    )
    assert all(
        value < 0
        for m in ("mean-teacher", "mixmatch")
        for value in changes(TEN, f"{m}-l2i-250", "c_h")
    )
    added = [
        change(TEN, f"{method}-l2i-paper-250", "c_h") for method in ("mean-teacher", "fixmatch")
    ]
    assert f"its updates add {added[0]} and {added[1]} to C^H" in page
    assert (
        f"and the test cost changes by {change(TEN, 'mean-teacher-l2i-250-exact', cost)}." in page
    )


def test_landmarks_are_as_the_page_sets_them_beside() -> None:
    paths = sorted((ROOT / "results" / "aflw").glob("*-l2i-*.jsonl"))
    rows = [
        row
        for path in paths
        for row in parse_metrics(path.read_bytes())
        if row.get("c_h_before") is not None
    ]
    taken = [
        100 * (float(row["test_cost_after"] or 0) / float(row["test_cost_before"] or 1) - 1)
        for row in rows
    ]
    assert f"an update takes off {-mean(taken):.2f} % of the test cost." in printed()
    faces = [
        mean(float(row[f"{cost}_before"] or 0) for row in rows) for cost in ("c_h", "test_cost")
    ]
    here = [
        mean(mean_at("mean-teacher-l2i-250", look, f"{cost}_before") for look in range(8))
        for cost in ("c_h", "test_cost")
    ]
    shares = [f"{100 * held / test:.0f}" for held, test in (faces, here)]
    assert (
        shares[0] == shares[1]
        and f"C^H is {shares[0]} % of the test cost as it is here with mean teacher." in printed()
    )


def test_unseen_hold_out_samples_are_what_the_page_says_of_them() -> None:
    lines = [
        json.loads(line) for line in (ROOT / "results" / "unseen.jsonl").read_text().splitlines()
    ]
    names = {
        "labeled": "the labelled ones",
        "unseen": "unseen ones",
        "labels": "the imputed labels",
        "parameters": "θ",
    }
    for line in lines:
        cells = [
            format_mean_stderr(line[cost], decimals=3, sign="+").replace("-", "−")
            for cost in ("C^H", "test cost")
        ]
        assert (
            f"| {names[line['holdout']]} | {names[line['through']]} | {' | '.join(cells)} |"
            in PAGE.splitlines()
        )
    _, _, labels, theta = (mean(line["test cost"]) for line in lines)
    assert f"simply learned from, lower it {theta / labels:.0f} times as much" in printed()


def test_what_is_said_of_the_course_is_that_of_the_files() -> None:
    both, page = ("mean-teacher-l2i-250", "fixmatch-l2i-250"), printed()
    held = [[f"{mean_at(cell, look, 'c_h'):.2g}" for cell in both] for look in (0, 1, -1)]
    assert (
        f"it is {held[0][0]} with mean teacher and {held[0][1]} with FixMatch, over the second"
        in page
    )
    assert f"{held[1][0]} and {held[1][1]}, over the last {held[2][0]} and {held[2][1]}," in page
    assert all(f"still costs {mean_at(cell, -1, 'test_cost_before'):.1f}." in page for cell in both)
    ratios = [[mean_at(cell, look, "grad_ratio_raw") for cell in both] for look in (0, -1)]
    shares = [" and ".join(f"{100 * ratio:.2g}" for ratio in pair) for pair in ratios]
    longer = " and ".join(f"{0.3 / ratio:.0f}" for ratio in ratios[1])
    assert (
        f"from {shares[0]} % of g_base to {shares[1]} %, "
        f"and the rule then makes it {longer} times as long" in page
    )
    assert f"keeps a C^H of {mean_at('mixmatch-l2i-250', -1, 'c_h'):.2g} and" in page
    ahead = [
        mean_at(f"{m}-l2i-paper-250", look, "c_h")
        for look in (0, -1)
        for m in ("mean-teacher", "fixmatch")
    ]
    assert f"its C^H is {ahead[0]:.0f} with mean teacher and {ahead[1]:.0f} with FixMatch" in page
    assert f"and {ahead[2]:.0f} and {ahead[3]:.0f} over the last" in page
    assert f"up to {mean_at('fixmatch-l2i-paper-250', -1, 'grad_ratio_raw'):.1f} times that" in page
    exact = [
        f"{mean_at('mean-teacher-l2i-250-exact', look, 'grad_ratio_raw'):.2g}" for look in (0, -1)
    ]
    assert f"g_outer is {exact[0]} times g_base at first, and {exact[1]} at the end" in page


def test_what_is_said_of_the_labels_is_that_of_the_files() -> None:
    def ends(cell: str, column: str) -> str:
        return f"{(100 if column == 'mask_rate_probe' else 1) * mean_at(cell, -1, column):.1f}"

    wrong = [
        [ends(f"{m}{mark}-250", "pseudo_label_error") for mark in ("-l2i", "")]
        for m in ("mean-teacher", "mixmatch", "fixmatch")
    ]
    page = printed()
    assert (
        f"{wrong[0][0]} and {wrong[0][1]} % of mean teacher's at the end, "
        f"{wrong[1][0]} and {wrong[1][1]} of" in page
    )
    assert f"MixMatch's, {wrong[2][0]} and {wrong[2][1]} of FixMatch's, " in page
    hundred = [
        mean(
            float(select_probes(parse_metrics(path.read_bytes()))[-1]["pseudo_label_error"] or 0)
            for path in HUNDRED.glob(f"{name}-short*.jsonl")
        )
        for name in ("fixmatch-l2i-500", "fixmatch-500")
    ]
    assert f"{hundred[0]:.1f} and {hundred[1]:.1f} on CIFAR-100." in page
    above, of_those = (
        [ends(cell, column) for cell in ("fixmatch-l2i-250-learnable", "fixmatch-250")]
        for column in ("mask_rate_probe", "pseudo_label_error_above_threshold")
    )
    assert (
        f"({above[0]} %, and {above[1]} without L2I), "
        f"and fewer of those are wrong ({of_those[0]} % and" in page
    )
    assert f"% and {of_those[1]})." in page
    both = [
        mean(
            float(run[-1]["mask_rate_probe"] or 0)
            * (100 - float(run[-1]["pseudo_label_error_above_threshold"] or 0))
            for run in looked(cell)
        )
        for cell in ("fixmatch-l2i-250-learnable", "fixmatch-250")
    ]
    assert f"{both[0]:.1f} and {both[1]:.1f} % of all are right and pass" in page


@pytest.mark.parametrize(
    ("asked", "table"), [(asked, table) for asked, _, table in MECHANISM.findall(PAGE)]
)
def test_the_course_of_the_page_is_that_of_the_files(
    asked: str,
    table: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(ROOT)
    assert run_command([*asked.split(), "--analyze-updates", str(tmp_path / "a.png")]) == 0
    assert capsys.readouterr().out.endswith(table)


def test_pictures_of_the_course_are_there() -> None:
    assert MECHANISM.findall(PAGE) and all(
        (ROOT / picture).is_file() for _, picture, _ in MECHANISM.findall(PAGE)
    )
