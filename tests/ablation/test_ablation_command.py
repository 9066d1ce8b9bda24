"""`python -m benchmarks.ablation_cpu` as a user runs it: what it trains, stores and refuses."""

import json
import shutil
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
from ablation_stores import STEPS, Call, lines_of, saved, shrink, tuned, write
from benchmarks.ablation_cpu.grid import ARMS, PROBLEMS, TUNING_GRID, TUNING_SEEDS, iter_settings
from benchmarks.ablation_cpu.runner import run_trial

from l2i import replace

DIGITS = "digits-fixmatch"


def test_every_run_is_a_line(trained: Path) -> None:
    counts = Counter(line["part"] for line in lines_of(trained))
    settings = len(list(iter_settings(PROBLEMS[DIGITS].make_run("l2i"))))
    tuning = len(TUNING_GRID) * len(TUNING_SEEDS) * len(ARMS)
    assert counts == {
        "pace": 1,
        "tuning": tuning,
        "arms": 3 * len(ARMS),
        "settings": settings,
        "dynamics": 3,
    }
    assert [path.name for path in trained.iterdir()] == [f"{DIGITS}.jsonl"]


def test_a_line_holds_what_the_run_comes_to(tiny: None, trained: Path) -> None:
    (line,) = lines_of(trained, part="tuning", arm="l2i", seed=TUNING_SEEDS[1], lr=2.0, weight=1.0)
    run = PROBLEMS[DIGITS].make_run("l2i", lr_factor=2.0)
    again = run_trial(replace(run, seed=TUNING_SEEDS[1], device="cpu"))
    assert {name: line[name] for name in again if name != "seconds"} == {
        k: v for k, v in again.items() if k != "seconds"
    }
    assert run.optim.lr == 2 * PROBLEMS[DIGITS].make_run("l2i").optim.lr


def test_the_longer_baseline_has_as_many_steps_as_the_pace_allows(trained: Path) -> None:
    (pace,) = lines_of(trained, part="pace")
    steps = {arm: {line["steps"] for line in lines_of(trained, arm=arm)} for arm in ARMS}
    assert steps == {
        arm: {round(STEPS * pace["ratio"]) if arm == "longer" else STEPS} for arm in ARMS
    }


def test_each_arm_is_compared_with_the_best_of_its_trials(trained: Path) -> None:
    for arm in ARMS:
        actual = {
            pair: mean(
                line["validation"]
                for line in lines_of(trained, part="tuning", arm=arm, lr=pair[0], weight=pair[1])
            )
            for pair in TUNING_GRID
        }
        best = min(actual, key=lambda pair: (actual[pair], pair))
        assert {
            (line["lr"], line["weight"]) for line in lines_of(trained, part="arms", arm=arm)
        } == {best}


def test_a_trial_that_diverged_is_not_chosen(tiny: None, tmp_path: Path, ablation: Call) -> None:
    worth = {(1.0, 1.0): 3.0, (0.5, 1.0): None, (2.0, 1.0): 2.0, (1.0, 0.3): 2.5, (1.0, 3.0): 9.0}
    write(
        tmp_path,
        DIGITS,
        [{"part": "pace", "ratio": 1.5}, *tuned(lambda arm, lr, weight: worth[lr, weight])],
    )
    assert (
        ablation(DIGITS, "--part", "arms", "--seeds", "4:5", "--save-results", tmp_path).code == 0
    )
    assert [
        (x["arm"], x["seed"], x["lr"], x["weight"]) for x in lines_of(tmp_path, part="arms")
    ] == [(arm, 4, 2.0, 1.0) for arm in ARMS]


def test_nothing_is_trained_twice(
    tiny: None, trained: Path, tmp_path: Path, ablation: Call
) -> None:
    folder = shutil.copytree(trained, tmp_path / "kept")
    for part in ("pace", "tuning", "arms", "settings", "dynamics"):
        seeds = {
            "arms": ("--seeds", "0:3"),
            "settings": ("--seeds", "0:1"),
            "dynamics": ("--seeds", "0:1"),
        }.get(part, ())
        said = ablation(DIGITS, "--part", part, "--save-results", folder, *seeds)
        assert (said.code, said.err) == (0, "")
    assert lines_of(folder) == lines_of(trained)


def test_an_interrupted_ablation_resumes_to_the_same_metrics(
    tiny: None, trained: Path, tmp_path: Path, ablation: Call
) -> None:
    whole = lines_of(trained)
    arms = [line for line in whole if line["part"] == "arms"]
    write(tmp_path, DIGITS, [line for line in whole if line not in arms[-5:]])
    said = ablation(DIGITS, "--part", "arms", "--seeds", "0:3", "--save-results", tmp_path)
    assert [line.count(f"{DIGITS}, arms:") for line in said.err.splitlines()] == [1] * 5
    again = lines_of(tmp_path)[-5:]
    assert [(x["arm"], x["seed"], x["metric"], x["c_t"]) for x in again] == [
        (x["arm"], x["seed"], x["metric"], x["c_t"]) for x in arms[-5:]
    ]


def test_a_dry_run_counts_and_trains_nothing(
    tiny: None, trained: Path, tmp_path: Path, ablation: Call
) -> None:
    settings = len(list(iter_settings(PROBLEMS[DIGITS].make_run("l2i"))))
    said = ablation(DIGITS, "--dry-run", "--save-results", tmp_path / "new")
    assert said.out.splitlines() == [
        f"{DIGITS}, pace: 1 measurement, 0 stored",
        f"{DIGITS}, tuning: 40 runs, 0 stored",
        f"{DIGITS}, arms: 32 runs, 0 stored",
        f"{DIGITS}, settings: {5 * settings} runs, 0 stored",
        f"{DIGITS}, dynamics: 9 runs, 0 stored",
    ]
    assert not (tmp_path / "new").exists()
    counts = [
        line.rpartition(": ")[2]
        for line in ablation(DIGITS, "--dry-run", "--save-results", trained).out.splitlines()
    ]
    left = [
        "1 measurement, 1",
        "40 runs, 40",
        "32 runs, 12",
        f"{5 * settings} runs, {settings}",
        "9 runs, 3",
    ]
    assert counts == [f"{count} stored" for count in left]


def test_dynamics_are_probed_for_some_problems_or_those_named(
    tmp_path: Path, ablation: Call
) -> None:
    def shown(*arguments: str) -> list[str]:
        said = ablation(*arguments, "--dry-run", "--save-results", tmp_path)
        return [line.partition(",")[0] for line in said.out.splitlines()]

    assert shown("--part", "dynamics") == [
        DIGITS,
        "friedman-mean-teacher",
        "small-faces-mean-teacher",
    ]
    assert shown("diabetes-mean-teacher", "--part", "dynamics") == ["diabetes-mean-teacher"]
    assert shown("--part", "pace") == list(PROBLEMS)


def test_a_run_that_diverges_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ablation: Call
) -> None:
    shrink(monkeypatch, "digits", optim={"lr": 1e20})
    said = ablation(DIGITS, "--part", "dynamics", "--seeds", "0:1", "--save-results", tmp_path)
    assert said.code == 0 and f"{DIGITS}, dynamics: l2i 0: None" in said.err
    assert [line["metric"] for line in lines_of(tmp_path)] == [None] * 3
    rows = ablation("--from", tmp_path, "--markdown").table("dynamics")
    assert [row[1:] for row in rows[1:]] == [
        [arm, "–", "–", "–", "–", "–", "1, 1 of 1 diverged"]
        for arm in ("baseline", "control", "L2I")
    ]


def changed(position: int, **changes: object) -> str:
    """Whole lines but for one."""
    lines = [{"part": "pace", "ratio": 1.5}, *tuned(), saved("settings", "constant ρ: ρ 1", 0, 5.0)]
    lines[position].update(changes)
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(0)[:-5], "is damaged; restore it, or choose a different folder"),
        ("\xff", "is damaged"),
        ("[]\n", "does not hold records of the ablation"),
        ('{"arm": "l2i"}\n', "does not hold records of the ablation"),
        (changed(0, ratio="fast"), "line 1, is not a valid record; restore it, or remove it"),
        (changed(0, part="peace"), "line 1, is not a valid record"),
        (changed(1, metric="low"), "line 2, is not a valid record"),
        (changed(1, validation=[1]), "line 2, is not a valid record"),
        (changed(1, seed=None), "line 2, is not a valid record"),
        (changed(1, arm="mine"), "line 2, is not a valid record"),
        (changed(1, part=["tuning"]), "line 2, is not a valid record"),
        (changed(1).replace('"validation"', '"validated"', 1), "line 2, is not a valid record"),
        (changed(2, metric=10**400), "line 3, is not a valid record"),
        (changed(2, metric=float("nan")), "line 3, is not a valid record"),
        (changed(-1, arm="constant ρ: ρ 7"), "line 42, is not a valid record"),
        (changed(-1, part="dynamics", arm="l2i"), "line 42, is not a valid record"),
        (
            changed(-1, part="dynamics", arm="l2i", dynamics=[{"step": 3}]),
            "line 42, is not a valid record",
        ),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ("--from",),
        (DIGITS, "--part", "arms", "--save-results"),
        (DIGITS, "--dry-run", "--save-results"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(
    tiny: None, tmp_path: Path, ablation: Call, words: tuple[str, ...], content: str, message: str
) -> None:
    (tmp_path / f"{DIGITS}.jsonl").write_text(
        content, encoding="latin-1" if content == "\xff" else "utf-8"
    )
    said = ablation(*words, tmp_path)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert f"{DIGITS}.jsonl" in said.err and message in said.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("digits-fixmach",),
            "unknown problem 'digits-fixmach'; perhaps you meant 'digits-fixmatch'",
        ),
        (
            (DIGITS, "--part", "arms", "--save-results", "empty"),
            "the arm 'baseline' is not tuned yet; run --part tuning first",
        ),
        (
            (DIGITS, "--save-results", "file"),
            "file cannot be a folder (File exists); choose a different --save-results",
        ),
        ((DIGITS, "--seeds", "3"), "--seeds takes FIRST:LAST, such as 0:8 for the seeds 0 to 7"),
        ((DIGITS, "--seeds", "3:3"), "--seeds takes FIRST:LAST"),
        ((DIGITS, "--seeds", "999:1001"), "seeds from 1,000 on are for tuning"),
        ((DIGITS, "--seeds", "0:1", "--part", "tuning"), "--seeds has no effect on --part tuning"),
        ((DIGITS, "--part", "arm"), "--part"),
        (
            ("--markdown",),
            "--markdown shows stored records; add --from benchmarks/ablation_cpu/results",
        ),
        (("--plots", "here"), "--plots shows stored records"),
        (
            ("--from", "empty", "--seeds", "0:1"),
            "--seeds cannot be combined with --from, which trains nothing",
        ),
        (("--from", "empty", "--dry-run"), "--dry-run cannot be combined with --from"),
        (("--from", "empty", "--data.root", "."), "--data.root cannot be combined with --from"),
        (("--from", "nowhere"), "nowhere is not a folder; choose one with PROBLEM.jsonl files"),
        (
            ("--from", "empty"),
            "empty holds no records; "
            "'python -m benchmarks.ablation_cpu --save-results empty' trains and stores them",
        ),
        (("--from", "strange"), "strange/mine.jsonl is not named after a problem"),
        (
            (
                "fashion-fixmatch",
                "--part",
                "pace",
                "--save-results",
                "empty",
                "--data.root",
                "empty",
            ),
            "empty",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ablation: Call,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("empty").mkdir()
    Path("strange").mkdir()
    Path("strange/mine.jsonl").touch()
    said = ablation(*arguments)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert message in said.err


def test_what_is_not_complete_is_said(tmp_path: Path, ablation: Call) -> None:
    write(tmp_path, DIGITS, tuned()[: len(ARMS)])
    said = ablation("--from", tmp_path, "--markdown")
    assert (said.code, said.out) == (0, "")
    assert "has no complete part to show" in said.err
