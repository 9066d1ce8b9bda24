"""The tables and plots of records written by hand, against values computed by hand."""

import re
from pathlib import Path

import numpy as np
import pytest
from ablation_stores import Call, Lines, lines_of, saved, tuned, write
from benchmarks.ablation_cpu.grid import (
    ARMS,
    PROBLEMS,
    SETTING_GROUPS,
    TUNING_GRID,
    TUNING_SEEDS,
    iter_settings,
)
from PIL import Image

from l2i.experiments.formatting import format_values

WITHOUT = "reference: without L2I"
ONE, THREE, ENTROPY = "constant ρ: ρ 1", "constant ρ: ρ 3", "labels and distance: cross-entropy"
METRICS = {
    "baseline": [10.0, 20.0, 30.0],
    "longer": [9.0, 19.0, 32.0],
    "control": [11.0, 18.0, 33.0],
    "l2i": [8.0, 17.0, 29.0],
}


def compared(metrics: dict[str, list[float | None]], first: int = 0) -> Lines:
    """Lines of the arms, with the pair that `tuned` makes the best."""
    return [
        saved("arms", arm, first + seed, metric, lr=1.0, weight=0.3)
        for arm, actual in metrics.items()
        for seed, metric in enumerate(actual)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two problems, one of them a regression."""
    settings = {WITHOUT: [10.0, 20.0], ONE: [9.0, 21.5], THREE: [12.0, None], ENTROPY: [None, None]}
    probes = [
        {
            "step": 4,
            "c_h": 2.0,
            "grad_ratio_raw": 0.5,
            "pseudo_label_error": 40.0,
            **costs(1.0, 0.5, 2.0, 2.5),
        },
        {
            "step": 10,
            "c_h": 1.0,
            "grad_ratio_raw": 0.25,
            "pseudo_label_error": 30.0,
            **costs(1.0, 0.9, 2.0, 1.5),
        },
        {
            "step": 100,
            "c_h": 0.5,
            "grad_ratio_raw": 0.1,
            "pseudo_label_error": 20.0,
            **costs(0.5, 0.6, 1.0, 1.5),
        },
    ]
    other = [{**record, "c_h": 3.0, "pseudo_label_error": 10.0} for record in probes]
    plain = [{"step": 10, "pseudo_label_error": 42.0}, {"step": 100, "pseudo_label_error": 21.0}]
    lines = [
        {"part": "pace", "ratio": 1.5},
        {"part": "pace", "ratio": 1.7},
        *tuned(),
        *compared(METRICS),
    ]
    lines += [
        saved("settings", name, seed, f)
        for name, actual in settings.items()
        for seed, f in enumerate(actual)
    ]
    lines += [
        saved("dynamics", "l2i", seed, 5.0, dynamics=each)
        for seed, each in enumerate((probes, other))
    ]
    lines += [saved("dynamics", "baseline", 0, 5.0, dynamics=plain)]
    write(tmp_path, "digits-fixmatch", lines)
    small = {arm: [metric / 100 for metric in actual] for arm, actual in METRICS.items()}
    first = [
        saved("settings", name, 0, metric) for name, metric in {WITHOUT: 0.5, ONE: 0.55}.items()
    ]
    write(tmp_path, "friedman-mean-teacher", [*tuned(), *compared(small), *first])
    return tmp_path


def costs(held: float, after: float, test: float, tested: float) -> dict[str, float]:
    return {
        "c_h_before": held,
        "c_h_after": after,
        "test_cost_before": test,
        "test_cost_after": tested,
    }


def test_arms_are_paired_by_seed(folder: Path, ablation: Call) -> None:
    rows = ablation("--from", folder, "--markdown").table("arms")
    names = ["baseline", "baseline, equal time", "control", "L2I"]
    assert rows[0] == [
        "problem",
        "labels",
        *names,
        "step time",
        "Δ same steps",
        "Δ same time",
        "Δ control",
        "seeds",
    ]
    assert rows[1] == [
        "`digits-fixmatch`",
        "40",
        *("20.00 ± 5.77", "20.00 ± 6.66", "20.67 ± 6.49", "18.00 ± 6.08"),
        "× 1.50",
        *("-2.00 ± 0.58", "-2.00 ± 0.58", "-2.67 ± 0.88"),
        "0–2",
    ]
    assert rows[2][:3] == ["`friedman-mean-teacher`", "60", "0.200 ± 0.058"]
    assert rows[2][6:8] == ["–", "-0.020 ± 0.006"]


def test_only_seeds_that_all_arms_have_count_and_each_once(
    folder: Path, tmp_path: Path, ablation: Call
) -> None:
    before = ablation("--from", folder, "--markdown").table("arms")
    more = compared({arm: [50.0] for arm in ARMS[:3]}, first=3) + compared({"l2i": [99.0]})
    write(
        tmp_path / "more",
        "digits-fixmatch",
        [*lines_of(folder, part="pace"), *tuned(), *compared(METRICS), *more],
    )
    assert ablation("--from", tmp_path / "more", "--markdown").table("arms") == before[:2]


@pytest.mark.parametrize(
    ("seeds", "shown"),
    [([5], "5"), ([8, 9, 10, 11], "8–11"), ([9, 8, 0, 1, 2, 3, 10, 12], "0–3, 8–10, 12")],
)
def test_seeds_are_told(tmp_path: Path, ablation: Call, seeds: list[int], shown: str) -> None:
    lines = [line for seed in seeds for line in compared({arm: [5.0] for arm in ARMS}, first=seed)]
    write(tmp_path, "digits-fixmatch", [*tuned(), *lines])
    assert ablation("--from", tmp_path, "--markdown").table("arms")[1][-1] == shown


def test_a_problem_whose_tuning_is_cut_is_not_among_the_arms(folder: Path, ablation: Call) -> None:
    write(folder, "friedman-mean-teacher", [*tuned()[:-1], *compared(METRICS)])
    said = ablation("--from", folder, "--markdown")
    assert [row[0] for row in said.table("arms")[1:]] == ["`digits-fixmatch`"]
    assert (said.code, said.err.count("\n")) == (0, 1)
    assert "left out of the arms as incomplete: friedman-mean-teacher;" in said.err


def test_runs_with_settings_that_were_not_chosen_do_not_count(
    tmp_path: Path, ablation: Call
) -> None:
    others = [{**line, "lr": 2.0, "metric": 1.0} for line in compared(METRICS)]
    write(tmp_path, "digits-fixmatch", [*tuned(), *others, *compared(METRICS)])
    assert ablation("--from", tmp_path, "--markdown").table("arms")[1][2] == "20.00 ± 5.77"


def test_diverged_runs_are_counted_and_left_out(tmp_path: Path, ablation: Call) -> None:
    metrics = {**METRICS, "control": [None, 18.0, 33.0], "longer": [None] * 3}
    write(tmp_path, "digits-fixmatch", [*tuned(), *compared(metrics)])
    row = ablation("--from", tmp_path, "--markdown").table("arms")[1]
    assert row[2:6] == [
        "20.00 ± 5.77",
        "3 of 3 diverged",
        "18.00 / 33.00, 1 of 3 diverged",
        "18.00 ± 6.08",
    ]
    assert row[6:] == ["–", "-2.00 ± 0.58", "–", "-1.00 / -4.00 (2 pairs)", "0–2"]


def test_the_choice_of_each_arm_is_shown(tmp_path: Path, ablation: Call) -> None:
    best = {"baseline": (1.0, 1.0), "longer": (0.5, 1.0), "control": (2.0, 1.0), "l2i": (1.0, 3.0)}
    write(
        tmp_path,
        "digits-fixmatch",
        tuned(lambda arm, lr, weight: 7.0 if best[arm] == (lr, weight) else 8.0),
    )
    rows = ablation("--from", tmp_path, "--markdown").table("tuning")
    assert [row[1:] for row in rows[1:]] == [
        ["baseline", "× 1", "× 1", "7.00 / 7.00", "5 × 2"],
        ["baseline, equal time", "× 0.5", "× 1", "7.00 / 7.00", "5 × 2"],
        ["control", "× 2", "× 1", "7.00 / 7.00", "5 × 2"],
        ["L2I", "× 1", "× 3", "7.00 / 7.00", "5 × 2"],
    ]


def test_of_equal_trials_the_lowest_rate_and_then_the_lowest_weight_is_chosen(
    tmp_path: Path, ablation: Call
) -> None:
    write(
        tmp_path,
        "digits-fixmatch",
        tuned(lambda arm, lr, weight: 7.0 if lr > 0.5 or arm == "l2i" else 8.0),
    )
    said = ablation("--from", tmp_path, "--markdown")
    assert [row[2:4] for row in said.table("tuning")[1:]] == [["× 1", "× 0.3"]] * 3 + [
        ["× 0.5", "× 1"]
    ]
    assert "ties: lowest learning rate, then lowest λ" in said.out


def test_a_trial_that_lacks_a_seed_is_none_however_often_it_has_another(
    tiny: None, tmp_path: Path, ablation: Call
) -> None:
    lr, weight = TUNING_GRID[1]
    cut = {"arm": "control", "seed": TUNING_SEEDS[1], "lr": lr, "weight": weight}
    lines = [
        {**line, "seed": TUNING_SEEDS[0]} if cut.items() <= line.items() else line
        for line in tuned()
    ]
    write(tmp_path, "digits-fixmatch", lines)
    said = ablation("digits-fixmatch", "--part", "arms", "--save-results", tmp_path)
    assert said.code == 2 and "the arm 'control' is not tuned yet" in said.err
    assert lines_of(tmp_path) == lines


def test_only_the_first_run_of_each_trial_counts(tmp_path: Path, ablation: Call) -> None:
    again = [
        {**line, "validation": 0.0}
        for line in tuned()
        if (line["lr"], line["weight"]) == TUNING_GRID[0]
    ]
    others = [{**line, "lr": 9.0, "validation": 0.0} for line in tuned()]
    later = [{**line, "seed": 7, "validation": 0.0} for line in tuned()]
    write(tmp_path, "digits-fixmatch", [*tuned(), *again, *others, *later])
    rows = ablation("--from", tmp_path, "--markdown").table("tuning")
    assert [row[2:] for row in rows[1:]] == [["× 1", "× 0.3", "1.30 / 1.30", "5 × 2"]] * len(ARMS)


def test_settings_are_set_against_the_run_without_l2i(folder: Path, ablation: Call) -> None:
    said = ablation("--from", folder, "--markdown")
    assert said.table("settings") == [
        ["reference", "digits-fixmatch", "friedman-mean-teacher"],
        ["without L2I", "10.00 / 20.00 (2 seeds)", "0.500 (1 seed)"],
    ]
    ours = format_values([100 * (9 - 10) / 15, 100 * (21.5 - 20) / 15], 1, "+")
    assert ours == "-6.7 / +10.0"
    assert said.table("settings", 1) == [
        ["constant ρ", "digits-fixmatch", "friedman-mean-teacher"],
        ["ρ 1", ours, "+10.0"],
        ["ρ 3", "+13.3, 1 of 2 diverged", "–"],
    ]
    assert said.table("settings", 2)[1:] == [["cross-entropy", "2 of 2 diverged", "–"]]
    assert "Change of the metric in % of the baseline's" in said.out


def test_settings_are_in_the_order_of_their_groups(tmp_path: Path, ablation: Call) -> None:
    names = [name for name, _ in iter_settings(PROBLEMS["digits-fixmatch"].make_run("l2i"))]
    write(tmp_path, "digits-fixmatch", [saved("settings", name, 0, 5.0) for name in sorted(names)])
    said = ablation("--from", tmp_path, "--markdown")
    tables = [said.table("settings", place) for place in range(len(SETTING_GROUPS))]
    shown = [f"{rows[0][0]}: {row[0]}" for rows in tables for row in rows[1:]]
    assert shown == names


def test_dynamics_are_shown_early_and_at_the_end(folder: Path, ablation: Call) -> None:
    rows = ablation("--from", folder, "--markdown").table("dynamics")
    assert rows[0][4] == "error of imputed labels"
    held, tested = (
        "-0.1667 ± 0.1116, 67 %",
        "+0.1667 ± 0.2108, 33 %",
    )  # twice −0.5, −0.1, 0.1 and 0.5, −0.5, 0.5
    assert rows[1:] == [
        ["`digits-fixmatch`", "baseline", "–", "–", "42.0 → 21.0", "–", "–", "1"],
        ["`digits-fixmatch`", "L2I", "2 → 1.8", "0.25 → 0.1", "20.0 → 15.0", held, tested, "2"],
    ]


def test_the_text_has_the_cells_of_the_markdown(folder: Path, ablation: Call) -> None:
    text, said = (ablation("--from", folder).out, ablation("--from", folder, "--markdown"))
    plain = [" ".join(line.split()) for line in text.splitlines()]
    parts = re.findall(r"^### (\w+)$", said.out, re.M)
    assert parts == ["arms", "tuning", "settings", "dynamics"]
    for part in parts:
        for row in said.table(part):
            assert " ".join(row).replace("`", "") in plain


def test_only_the_problems_asked_for_are_shown(folder: Path, ablation: Call) -> None:
    rows = ablation("friedman-mean-teacher", "--from", folder, "--markdown").table("arms")
    assert [row[0] for row in rows[1:]] == ["`friedman-mean-teacher`"]


def test_the_plots_are_written_and_named(folder: Path, tmp_path: Path, ablation: Call) -> None:
    said = ablation("--from", folder, "--markdown", "--plots", tmp_path / "seen")
    paths = [tmp_path / "seen" / f"{name}.png" for name in ("gains", "settings", "dynamics")]
    assert said.err.splitlines() == [str(path) for path in paths]
    for path in paths:
        with Image.open(path) as image:
            assert 400 <= image.width <= 1400 and 250 <= image.height <= 1200
            assert len(np.unique(np.asarray(image))) > 20


def test_a_plot_that_there_is_nothing_for_is_not_drawn(tmp_path: Path, ablation: Call) -> None:
    write(tmp_path, "digits-fixmatch", [*tuned(), *compared(METRICS)])
    said = ablation("--from", tmp_path, "--plots", tmp_path / "seen")
    assert said.out.splitlines()[-1] == str(tmp_path / "seen" / "gains.png")
    assert [path.name for path in (tmp_path / "seen").iterdir()] == ["gains.png"]
