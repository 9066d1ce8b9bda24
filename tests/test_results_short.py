"""What docs/results.md and the README say of the table at 8,192 steps is what the committed files give."""

import json
import re
from pathlib import Path
from statistics import mean

import pytest

from l2i.cli import run
from l2i.mechanism import change as change_of
from l2i.mechanism import looks
from l2i.statistic import with_error
from l2i.training.evaluate import curve, final_figure
from l2i.training.log import Row, rows_of

ROOT = Path(__file__).parent.parent
PLACES = ("cifar10", "cifar100", "copied/cifar10", "copied/cifar100", "falling/cifar10", "ahead/cifar10")
TEN, HUNDRED, OLD_TEN, OLD_HUNDRED, FALLING, AHEAD = (ROOT / "results" / place for place in PLACES)
SMALL, COPIED = (ROOT / "results" / place / "cifar10" for place in ("small", "small-copied"))
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


def figures(place: Path, cell: str) -> dict[int, float]:
    """By seed."""
    found = [json.loads(path.read_text()) for path in place.glob(f"{cell}-short-seed*.json")]
    return {result["seed"]: result["figure"] for result in sorted(found, key=lambda result: int(result["seed"]))}


def gain(place: Path, cell: str, baseline: str, *, beside: Path | None = None, seeds: int = 3) -> str:
    ours, theirs = figures(place, cell), figures(beside or place, baseline)
    paired = [ours[seed] - theirs[seed] for seed in ours if seed in theirs and seed < seeds]
    assert len(paired) > 1 or place in (SMALL, COPIED)
    return with_error(paired, sign="+").replace("-", "−")


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
    result, rows = json.loads(path.read_text()), rows_of(path.with_suffix(".jsonl").read_bytes())
    assert result["figure"] == pytest.approx(final_figure(curve(rows, "test"), {}, result["steps"], "median"))


def test_the_gains_are_those_of_the_files() -> None:
    page = told()
    teacher, mixmatch, fixmatch, hundred = (gain(place, f"{m}-l2i-{n}", f"{m}-{n}") for place, m, n in PAIRS.values())
    assert (
        f"{teacher} to mean teacher, where 3 points less were the goal, {mixmatch} to MixMatch, {fixmatch} to" in page
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
    assert f"learnable labels, at {learned}, and mean teacher with the exact rule, at {exact} for" in page
    assert f"{of_paper} with mean teacher, {fixmatch_of_paper} with FixMatch" in page
    times = [
        mean(json.loads((TEN / f"{name}-short-seed{seed}.json").read_text())["seconds"] for seed in (0, 1))
        for name in ("mean-teacher-l2i-250", "mean-teacher-l2i-250-exact")
    ]
    assert f"for {times[1] / times[0]:.1f} times the approximate one's time" in page


@pytest.mark.parametrize("name", PAIRS)
def test_the_readme_has_the_pairs(name: str) -> None:
    place, method, labels = PAIRS[name]
    base, ours = (with_error(figures(place, f"{method}{mark}-{labels}").values()) for mark in ("", "-l2i"))
    difference = gain(place, f"{method}-l2i-{labels}", f"{method}-{labels}")
    assert f"| {name}, 8,192 steps | {labels} | {base} | {ours} | {difference} | | |" in README.splitlines()


def test_what_was_tried_is_that_of_its_files() -> None:
    page = told()
    assert f"L2I gains {gain(FALLING, 'mean-teacher-l2i-250', 'mean-teacher-250')[1:]}" in page
    ahead = gain(AHEAD, "mean-teacher-l2i-250", "mean-teacher-250", beside=TEN)
    assert f"{with_error(figures(AHEAD, 'mean-teacher-l2i-250').values())} on seeds 0 and 1, {ahead} against" in page
    trials = [json.loads(line) for line in (ROOT / "results" / "short-trials.jsonl").read_text().splitlines()]
    base, ours = (figures(FALLING, f"mean-teacher{mark}-250")[0] for mark in ("", "-l2i"))
    strong, strong_view, ridge = trials
    first = f"ends at {strong['test']:.2f} %, where ρ = 0.3 has {ours:.2f} and mean teacher {base:.2f}"
    assert first in page and f"({strong_view['test']:.2f}), so that C^H does not vanish" in page
    assert f"(it stays at {strong_view['c_h']:.2f})" in page and f"in place of one step ({ridge['test']:.2f})" in page


def test_statistics_of_its_own_are_what_the_page_says_of_them() -> None:
    page, name = told(), "mean-teacher-250-short-seed0.jsonl"
    old, new = ({row["step"]: row["test"] for row in rows_of((place / name).read_bytes())} for place in (OLD_TEN, TEN))
    assert f"first seed stands at {old[4096]:.2f} % after half of the steps in place of {new[4096]:.2f}." in page
    mixed = [mean(figures(place, "mixmatch-250").values()) for place in (OLD_TEN, TEN)]
    assert f"MixMatch has {mixed[0]:.2f} % there and {mixed[1]:.2f} above" in page
    pairs = {
        OLD_TEN: "mean-teacher{}-250",
        OLD_HUNDRED: "fixmatch{}-500",
        TEN: "mean-teacher{}-250",
        HUNDRED: "fixmatch{}-500",
    }
    gains = [gain(place, name.format("-l2i"), name.format(""), seeds=2) for place, name in pairs.items()]
    assert f"(mean teacher {gains[0]}, FixMatch on CIFAR-100 {gains[1]})" in page
    assert f"the same two seeds have {gains[2]} and {gains[3]}." in page
    both = [rows_of((place / "mean-teacher-250-short-seed0.jsonl").read_bytes()) for place in (COPIED, SMALL)]
    costs = [[(row["step"], row["c_t"], row["c_u"]) for row in rows] for rows in both]
    assert costs[0] == costs[1]  # the same training
    for name, rows in zip(("statistics copied", "its own"), both, strict=True):
        errors = [f"{row['test']:.1f}" for row in rows if row["step"] % 150 == 0]
        assert f"| {name} | {' | '.join(errors)} |" in PAGE.splitlines()


def looked(cell: str) -> list[list[Row]]:
    return [looks(rows_of(path.read_bytes())) for path in sorted(TEN.glob(f"{cell}-short-seed*.jsonl"))]


def mean_at(cell: str, look: int, column: str) -> float:
    return mean(float(run[look][column] or 0) for run in looked(cell))


def change(cell: str, column: str) -> str:
    return f"{abs(mean(float(row[column] or 0) for run in looked(cell) for row in run)):.2g}"


def test_what_an_update_does_is_what_the_page_says() -> None:
    teacher, mixmatch, fixmatch, exact = (
        [change(cell, f"{cost}_change") for cost in ("c_h", "test_cost")]
        for cell in ("mean-teacher-l2i-250", "mixmatch-l2i-250", "fixmatch-l2i-250", "mean-teacher-l2i-250-exact")
    )
    page = told()
    assert f"by {teacher[0]} % on average, and the cost of test samples by {teacher[1]} %; with MixMatch" in page
    assert f"by {mixmatch[0]} % and {mixmatch[1]} %, with FixMatch by {fixmatch[0]} % and {fixmatch[1]} %;" in page
    assert f"through all parameters by {exact[0]} %, while the test cost rises by {exact[1]} %." in page
    rows = [
        row for path in sorted((ROOT / "results" / "aflw").glob("*-l2i-*.jsonl")) for row in rows_of(path.read_bytes())
    ]
    probed = [row for row in rows if row.get("c_h_before") is not None]
    faces = [f"{-mean(change_of(row, cost) or 0 for row in probed):.2g}" for cost in ("c_h", "test_cost")]
    assert f"On landmarks, where L2I gains, the looks above have {faces[0]} and {faces[1]} %." in page
    higher = [change(f"{method}-l2i-paper-250", "c_h_change") for method in ("mean-teacher", "fixmatch")]
    assert f"an update leaves C^H {higher[0]} and {higher[1]} % higher than none" in page


def test_what_is_said_of_the_course_is_that_of_the_files() -> None:
    both, page = ("mean-teacher-l2i-250", "fixmatch-l2i-250"), told()
    held = [[f"{mean_at(cell, look, 'c_h'):.2g}" for cell in both] for look in (0, 1, -1)]
    assert f"C^H is {held[0][0]} with mean teacher and {held[0][1]} with FixMatch, over the second" in page
    assert f"{held[1][0]} and {held[1][1]}, over the last {held[2][0]} and {held[2][1]}," in page
    assert all(f"still costs {mean_at(cell, -1, 'test_cost_before'):.1f}." in page for cell in both)
    ratios = [[mean_at(cell, look, "outer_ratio_raw") for cell in both] for look in (0, -1)]
    shares = [" and ".join(f"{100 * ratio:.2g}" for ratio in pair) for pair in ratios]
    longer = " and ".join(f"{0.3 / ratio:.0f}" for ratio in ratios[1])
    assert f"from {shares[0]} % of g_base to {shares[1]} %, and the rule then makes it {longer} times as long" in page
    assert f"keeps a C^H of {mean_at('mixmatch-l2i-250', -1, 'c_h'):.2g}," in page
    ahead = [mean_at(f"{m}-l2i-paper-250", look, "c_h") for look in (0, -1) for m in ("mean-teacher", "fixmatch")]
    assert f"its C^H is {ahead[0]:.0f} with mean teacher and {ahead[1]:.0f} with FixMatch" in page
    assert f"and {ahead[2]:.0f} and {ahead[3]:.0f} over the last" in page
    assert f"up to {mean_at('fixmatch-l2i-paper-250', -1, 'outer_ratio_raw'):.1f} times that" in page
    exact = [f"{mean_at('mean-teacher-l2i-250-exact', look, 'outer_ratio_raw'):.2g}" for look in (0, -1)]
    assert f"g_outer is {exact[0]} times g_base at first, and {exact[1]} at the end" in page


def test_what_is_said_of_the_labels_is_that_of_the_files() -> None:
    def ends(cell: str, column: str) -> str:
        return f"{(100 if column == 'above' else 1) * mean_at(cell, -1, column):.1f}"

    wrong = [
        [ends(f"{m}{mark}-250", "imputed") for mark in ("-l2i", "")] for m in ("mean-teacher", "mixmatch", "fixmatch")
    ]
    page = told()
    assert f"{wrong[0][0]} and {wrong[0][1]} % of mean teacher's at the end, {wrong[1][0]} and {wrong[1][1]} of" in page
    assert f"MixMatch's, {wrong[2][0]} and {wrong[2][1]} of FixMatch's." in page
    above, of_those = (
        [ends(cell, column) for cell in ("fixmatch-l2i-250-learnable", "fixmatch-250")]
        for column in ("above", "imputed_above")
    )
    assert f"({above[0]} %, and {above[1]} without L2I), and fewer of those are wrong ({of_those[0]} % and" in page
    assert f"% and {of_those[1]}):" in page


@pytest.mark.parametrize(("asked", "table"), [(asked, table) for asked, _, table in MECHANISM.findall(PAGE)])
def test_the_course_of_the_page_is_that_of_the_files(
    asked: str, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert run([*asked.split(), "--mechanism", str(tmp_path / "a.png")]) == 0
    assert capsys.readouterr().out.endswith(table)


def test_pictures_of_the_course_are_there() -> None:
    assert MECHANISM.findall(PAGE) and all((ROOT / picture).is_file() for _, picture, _ in MECHANISM.findall(PAGE))
