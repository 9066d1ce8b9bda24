"""What docs/results.md and the README say of the table at 8,192 steps is what the committed files give."""

import json
import re
from pathlib import Path
from statistics import mean

import pytest

from l2i.cli import run
from l2i.mechanism import looks
from l2i.statistic import with_error
from l2i.training.evaluate import curve, final_figure
from l2i.training.log import rows_of

ROOT = Path(__file__).parent.parent
TEN, HUNDRED, FALLING, SMALL, COPIED = (
    ROOT / "results" / place
    for place in ("cifar10", "cifar100", "falling/cifar10", "small/cifar10", "small-copied/cifar10")
)
PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MECHANISM = re.compile(r"^<!-- l2i (compare \S+ [^\n]*) --mechanism (\S+) -->\n(.*?)^<!-- end -->$", re.M | re.S)
PAIRS = {
    "CIFAR-10, mean teacher": (TEN, "mean-teacher", 250),
    "CIFAR-10, MixMatch": (TEN, "mixmatch", 250),
    "CIFAR-10, FixMatch": (TEN, "fixmatch", 250),
    "CIFAR-100, FixMatch": (HUNDRED, "fixmatch", 500),
}


def told() -> str:
    return " ".join(PAGE.partition("## CIFAR at a 128th")[2].partition("\n## ")[0].split())


def figures(place: Path, cell: str) -> list[float]:
    return [json.loads(path.read_text())["figure"] for path in sorted(place.glob(f"{cell}-short-seed*.json"))]


def gain(place: Path, cell: str, baseline: str) -> str:
    pairs = zip(figures(place, cell), figures(place, baseline), strict=True)
    return with_error([ours - theirs for ours, theirs in pairs], sign="+")


@pytest.mark.parametrize(
    "path", [p for place in (HUNDRED, FALLING, SMALL, COPIED) for p in place.glob("*.json")], ids=str
)
def test_a_result_is_that_of_its_evaluations(path: Path) -> None:
    result, rows = json.loads(path.read_text()), rows_of(path.with_suffix(".jsonl").read_bytes())
    assert result["figure"] == pytest.approx(final_figure(curve(rows, "test"), {}, result["steps"], "median"))


def test_the_gains_are_those_of_the_files() -> None:
    cells = {name: gain(place, f"{m}-l2i-{n}", f"{m}-{n}") for name, (place, m, n) in PAIRS.items()}
    ablations = {
        name: gain(TEN, name, f"{name.partition('-l2i')[0]}-250")
        for name in ("mean-teacher-l2i-250-exact", "mean-teacher-l2i-paper-250", "fixmatch-l2i-paper-250")
    }
    learned = gain(TEN, "fixmatch-l2i-250-learnable", "fixmatch-250").replace("-", "−")
    page = told()
    assert f"of mean teacher on both seeds, by {cells['CIFAR-10, mean teacher'][1:]} points" in page
    assert f"FixMatch on CIFAR-100, by {cells['CIFAR-100, FixMatch'][1:]}," in page
    assert (
        f"MixMatch ({cells['CIFAR-10, MixMatch']}) and to FixMatch on CIFAR-10 ({cells['CIFAR-10, FixMatch']})" in page
    )
    assert f"is at {learned}." in page
    exact, teacher, fixmatch = ablations.values()
    assert f"({exact.replace('-', '−')} against mean teacher)" in page
    assert f"{teacher} with mean teacher, {fixmatch} with FixMatch" in page
    seconds = {
        name: mean(json.loads(path.read_text())["seconds"] for path in TEN.glob(f"{name}-short-seed*.json"))
        for name in ("mean-teacher-l2i-250", "mean-teacher-l2i-250-exact")
    }
    ratio = seconds["mean-teacher-l2i-250-exact"] / seconds["mean-teacher-l2i-250"]
    assert f"takes {ratio:.1f} times its time" in page


@pytest.mark.parametrize("name", PAIRS)
def test_the_readme_has_the_pairs(name: str) -> None:
    place, method, labels = PAIRS[name]
    base, ours = (with_error(figures(place, f"{method}{mark}-{labels}")) for mark in ("", "-l2i"))
    difference = gain(place, f"{method}-l2i-{labels}", f"{method}-{labels}").replace("-", "−")
    assert f"| {name}, 8,192 steps | {labels} | {base} | {ours} | {difference} | | |" in README.splitlines()


def test_what_was_tried_is_that_of_its_files() -> None:
    page = told()
    assert f"L2I gains {gain(FALLING, 'mean-teacher-l2i-250', 'mean-teacher-250')[1:]}" in page
    trials = [json.loads(line) for line in (ROOT / "results" / "short-trials.jsonl").read_text().splitlines()]
    (base, _), (ours, _) = (figures(FALLING, f"mean-teacher{mark}-250") for mark in ("", "-l2i"))
    strong, strong_view, ridge = trials
    first = f"ends at {strong['test']:.2f} %, where ρ = 0.3 has {ours:.2f} and mean teacher {base:.2f}"
    assert first in page and f"({strong_view['test']:.2f}), so that C^H does not vanish" in page
    assert f"(it stays at {strong_view['c_h']:.2f})" in page and f"in place of one step ({ridge['test']:.2f})" in page


def test_statistics_of_its_own_are_what_the_page_says_of_them() -> None:
    rows = {row["step"]: row for row in rows_of((TEN / "mean-teacher-250-short-seed0.jsonl").read_bytes())}
    end = json.loads((TEN / "mean-teacher-250-short-seed0.json").read_text())["figure"]
    assert f"stands at {rows[4096]['test']:.2f} % after half of the steps and ends at {end:.2f} (seed 0)" in told()
    both = [rows_of((place / "mean-teacher-250-short-seed0.jsonl").read_bytes()) for place in (COPIED, SMALL)]
    costs = [[(row["step"], row["c_t"], row["c_u"]) for row in rows] for rows in both]
    assert costs[0] == costs[1]  # the same training
    for name, rows in zip(("statistics copied", "its own"), both, strict=True):
        errors = [f"{row['test']:.1f}" for row in rows if row["step"] % 150 == 0]
        assert f"| {name} | {' | '.join(errors)} |" in PAGE.splitlines()


def mean_at(cell: str, look: int, column: str) -> float:
    runs = [looks(rows_of((TEN / f"{cell}-short-seed{seed}.jsonl").read_bytes())) for seed in (0, 1)]
    return mean(float(run[look][column] or 0) for run in runs)


def test_what_is_said_of_the_course_is_that_of_the_files() -> None:
    teacher, fixmatch, page = "mean-teacher-l2i-250", "fixmatch-l2i-250", told()
    held = [[f"{mean_at(cell, look, 'c_h'):.2g}" for cell in (teacher, fixmatch)] for look in (0, 1, -1)]
    assert (
        f"it is {held[0][0]} with mean teacher and {held[0][1]} with FixMatch, over the second {held[1][0]} and" in page
    )
    assert f"over the last {held[2][0]} and {held[2][1]};" in page
    ratios = [[mean_at(cell, look, "outer_ratio_raw") for cell in (teacher, fixmatch)] for look in (0, -1)]
    shares = [" and ".join(f"{100 * ratio:.2g}" for ratio in pair) for pair in ratios]
    longer = " and ".join(f"{0.3 / ratio:.0f}" for ratio in ratios[1])
    assert f"from {shares[0]} % of g_base to {shares[1]} %, and the rule then makes it {longer} times as long" in page
    ahead = [mean_at(f"{m}-l2i-paper-250", look, "c_h") for look in (0, -1) for m in ("mean-teacher", "fixmatch")]
    assert f"its C^H is {ahead[0]:.0f} with mean teacher and {ahead[1]:.0f} with FixMatch" in page
    assert f"and {ahead[2]:.0f} and {ahead[3]:.0f} over the last" in page
    exact = [f"{mean_at('mean-teacher-l2i-250-exact', look, 'outer_ratio_raw'):.2g}" for look in (0, -1)]
    assert f"g_outer is {exact[0]} times g_base at first, and {exact[1]} at the end" in page
    small = [gain(SMALL, "mean-teacher-l2i-250", "mean-teacher-250"), gain(COPIED, "fixmatch-l2i-250", "fixmatch-250")]
    assert f"there ({small[0]} and {small[1].replace('-', '−')}, one seed)" in page


@pytest.mark.parametrize(("asked", "table"), [(asked, table) for asked, _, table in MECHANISM.findall(PAGE)])
def test_the_course_of_the_page_is_that_of_the_files(
    asked: str, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert run([*asked.split(), "--mechanism", str(tmp_path / "a.png")]) == 0
    assert capsys.readouterr().out.endswith(table)


def test_pictures_of_the_course_are_there() -> None:
    assert MECHANISM.findall(PAGE) and all((ROOT / picture).is_file() for _, picture, _ in MECHANISM.findall(PAGE))
