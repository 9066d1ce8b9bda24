"""The CIFAR-10 results and the step times of the docs are what the committed files give."""

import json
from pathlib import Path

import pytest

from l2i import recipes
from l2i.training.evaluation import compute_final_metric, extract_curve
from l2i.training.metrics import parse_metrics

ROOT = Path(__file__).parent.parent
CELLS = ("fixmatch", "fixmatch-l2i")
WITH_L2I = ("fixmatch", "mean-teacher", "landmarks")
TIMES = json.loads((ROOT / "results" / "steps.json").read_text())
CIFAR, APART, STRONG = (
    ROOT / "results" / place / "cifar10" for place in (".", "apart", "strong-labels")
)


def told_of_cifar() -> str:
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    return " ".join(page.partition("## CIFAR-10 from 250 labels")[2].partition("\n## ")[0].split())


@pytest.mark.parametrize(
    "path", [p for place in (CIFAR, APART, STRONG) for p in place.glob("*-seed*.json")], ids=str
)
def test_a_cifar_result_is_that_of_its_evaluations(path: Path) -> None:
    result, rows = (
        json.loads(path.read_text()),
        parse_metrics(path.with_suffix(".jsonl").read_bytes()),
    )
    metric_values = {
        part: compute_final_metric(extract_curve(rows, part), {}, result["steps"], "median")
        for part in ("test", "validation")
    }
    assert (result["metric"], result["validation"]) == pytest.approx(
        (metric_values["test"], metric_values["validation"])
    )


def saved(place: Path, cell: str) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    """A run's result, and its evaluations by step."""
    result = json.loads((place / f"{cell}-250-fast-seed0.json").read_text())
    return result, {
        row["step"]: row
        for row in parse_metrics((place / f"{cell}-250-fast-seed0.jsonl").read_bytes())
    }


def test_the_fast_run_is_that_of_its_recipe_and_of_the_page() -> None:
    (base, rows), (ours, with_l2i), page = *(saved(CIFAR, cell) for cell in CELLS), told_of_cifar()
    assert base["steps"] == ours["steps"] == recipes.get("cifar10/fixmatch-250-fast").steps
    assert (
        f"ends at {base['metric']:.2f} % after {base['steps']:,} steps, "
        f"{base['seconds'] / 60:.1f} minutes" in page
    )
    assert base["metric"] <= 8 and max(base["seconds"], ours["seconds"]) <= 12 * 60
    passed = next(step for step, row in rows.items() if row["test"] <= 8)
    assert f"passed after {passed / base['steps'] * base['seconds'] / 60:.1f} minutes" in page
    paces, ms = (base["steps_per_second"], ours["steps_per_second"]), TIMES["bench"]
    assert (
        f"took {paces[0]:.1f} steps a second without its evaluations, with L2I {paces[1]:.1f}."
        in page
    )
    benched = [1e3 / ms[case] for case in ("base", "last-layer")]
    assert (
        f"has {ms['base']:.2f} ms a step and {ms['last-layer']:.2f} with L2I, "
        f"{benched[0]:.1f} and {benched[1]:.1f} " in page
    )
    assert all(abs(pace / bench - 1) < 0.01 for pace, bench in zip(paces, benched, strict=True))
    assert f"makes a run {100 * (ours['seconds'] / base['seconds'] - 1):.0f} % longer" in page
    assert f"ends {ours['metric'] - base['metric']:.2f} points higher" in page
    shared = [step for step in rows.keys() & with_l2i.keys() if step % 2048 == 0]
    above = [
        sum(with_l2i[step][part] > rows[step][part] for step in shared)
        for part in ("test", "validation")
    ]
    printed = (
        f"Of {len(shared)} evaluations, 2,048 steps apart, "
        f"its test error is the higher one at {above[0]}, its"
    )
    assert f"{printed} validation error at {above[1]}." in page
    half = with_l2i[32_768]
    assert (
        f"halfway C^H is {half['c_h']:.3f} and g_outer {100 * half['grad_ratio_raw']:.1f} % as long"
        in page
    )
    assert f"at {0.3 / half['grad_ratio_raw']:.0f} times its length" in page


def test_the_readme_and_the_noise_are_of_the_runs() -> None:
    (base, _), (ours, _) = (saved(CIFAR, cell) for cell in CELLS)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert (
        f"{base['metric']:.1f} % test error after {base['steps']:,} steps, "
        f"{base['seconds'] / 60:.1f} minut" in readme
    )
    assert (
        f"it is {ours['metric']:.1f} % after as many steps and {ours['seconds'] / 60:.1f} minutes"
        in readme
    )
    bench = TIMES["bench"]
    assert f"| {bench['base']:.1f} | {bench['last-layer']:.1f} (every eighth step) |" in readme
    assert f"| 1 | {bench['MiB reserved last-layer'] / bench['MiB reserved base']:.2f} |" in readme
    shares = [result["metric"] / 100 for result in (base, ours)]
    noise = 100 * sum(share * (1 - share) / 10_000 for share in shares) ** 0.5
    assert f"is {noise:.2f} points for a difference" in told_of_cifar()


def test_the_trials_of_fast_schedules_are_those_of_their_file() -> None:
    lines = (ROOT / "docs/results.md").read_text(encoding="utf-8").splitlines()
    trials = [
        json.loads(line)
        for line in (ROOT / "results" / "cifar10-trials.jsonl").read_text().splitlines()
    ]
    for t in trials[:-2]:
        assert not t["one_forward"]
        steps = (
            f"{t['steps']:,}"
            if t["reached"] == t["steps"]
            else f"{t['reached']:,} of {t['steps']:,}"
        )
        row = (
            f"| {t['rate']:g} | {t['unlabeled']} | {t['threshold']:g} | {t['weight_decay']:g} | "
            f"{steps} |"
        )
        assert f"{row} {t['validation']:.2f} |" in lines
    for t, name in zip(trials[-2:], ("a forward for each part", "one forward"), strict=True):
        assert t["one_forward"] == (name == "one forward")
        for what, label, form in (
            ("validation", name, ".1f"),
            ("mask_rate", f"{name}: share", ".2f"),
        ):
            by_step = {e["step"]: format(e[what], form) for e in t["evaluations"]}
            cells = [by_step.get(step, "") for step in (2000, 4000, 6000, 8000, 9000, 10_000)]
            assert f"| {label} | {' | '.join(cells)} |" in lines


def test_what_a_forward_for_each_part_came_to_is_that_of_its_files() -> None:
    _, rows = saved(APART, "fixmatch")
    printed = [f"{rows[step]['validation']:.2f} % at step {step:,}" for step in (16_384, 57_344)]
    assert f"crept from {printed[0]} to {printed[1]}:" in told_of_cifar()


def test_the_times_of_steps_are_those_of_their_file() -> None:
    page = " ".join((ROOT / "docs/explanation/performance.md").read_text(encoding="utf-8").split())
    actual, recorded = TIMES, TIMES["profile recorded"]
    ms = {name: f"{value:.2f}" for name, value in actual["ahead"].items()}
    printed = [
        f"{ms[f'{group} base']}, with the last layer {ms[f'{group} last-layer']}"
        for group in WITH_L2I
    ]
    assert (
        f"FixMatch {printed[0].replace(',', ' ms,')}; mean teacher {printed[1]}; "
        f"MixMatch {ms['mixmatch base']};" in page
    )
    assert f"landmarks {printed[2]}." in page
    whole = sum(ms for ms, _ in actual["profile"].values())
    for kind, (ms, kernels) in actual["profile"].items():
        assert f"| {1e3 * ms:.0f} | {100 * ms / whole:.0f} % | {kernels} | {kind} |" in page
    busy = (
        f"takes {1e3 * recorded['ms']:.0f} µs, in which a kernel runs "
        f"{100 * recorded['busy']:.0f} % of the time"
    )
    assert (
        f"take {1e3 * whole:.0f} µs a step" in page
        and f"{busy} and {recorded['at once']} on average" in page
    )
    named = {
        part: sum(ms for kind, (ms, _) in actual["profile"].items() if part in kind)
        for part in ("conv", "Batch")
    }
    assert (
        f"({100 * named['conv'] / whole:.0f} % of the time of kernels, "
        "and more than three times the floor" in page
    )
    assert f"once more each way ({100 * named['Batch'] / whole:.0f} %)" in page
    assert 3 < named["conv"] / actual["bench"]["floor base"] < 4
    result, rows = saved(CIFAR, "fixmatch")
    printed = (
        f"{result['steps']:,} steps of 64 + 448 in {result['seconds']:.1f} s "
        f"with {len(rows)} evaluations"
    )
    assert f"{printed} of 15,000 images, {result['steps_per_second']:.1f} steps a second" in page
    steps = result["steps"] / result["steps_per_second"]
    assert (
        f"took {1e3 * steps / result['steps']:.2f} ms a step; of its {result['seconds']:.1f} s"
        in page
    )
    assert f"the like took {result['seconds'] - steps:.1f}." in page
    bench = actual["bench"]
    assert (
        f"{bench['base']:.2f} ms, with the last layer at every eighth step "
        f"{bench['last-layer']:.2f}" in page
    )
    share = 100 * bench["floor base"] / bench["base"]
    assert f"floor of {bench['floor base']:.2f} ms, {share:.0f} % of the step;" in page
    grown = bench["MiB reserved last-layer"] / bench["MiB reserved base"]
    assert f"{bench['MiB reserved base']:,} MiB reserved, with L2I {grown:.2f} times that" in page


def test_labels_of_one_class_took_over_as_the_page_says() -> None:
    (result, rows), (ours, _) = (saved(STRONG, cell) for cell in CELLS)
    first, last = (rows[step]["mask_top_class"] for step in (22_528, int(result["steps"])))
    assert f"from {100 * first:.0f} % of them to {100 * last:.0f} %, column" in told_of_cifar()
    assert f"A difference of {result['metric'] - ours['metric']:.0f} points" in told_of_cifar()
