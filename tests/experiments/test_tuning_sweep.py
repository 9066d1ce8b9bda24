"""Sweeps by one process, through the command line."""

import json
import shlex
import sys
from pathlib import Path
from statistics import median
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import make_url

from l2i.cli import run_command
from l2i.experiments.tuning.study import SQLITE_TIMEOUT_SECONDS, _create_storage
from l2i.experiments.tuning.summary import find_best_trial

pytestmark = pytest.mark.slow

SMALL = ["--device", "cpu", "--steps", "60", "--eval-every", "10", "--model.width", "16"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trials(
    folder: str = "runs/tune/digits-seed0", study: str = "digits-seed0"
) -> list[FrozenTrial]:
    """What Optuna itself reads from the storage."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db")
    actual = optuna.load_study(study_name=study, storage=storage).trials
    storage.remove_session()
    storage.engine.dispose()
    return actual


def validations(folder: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["validation"] for row in rows}


def results(folder: str = "runs/tune/digits-seed0") -> list[dict[str, Any]]:
    return [
        json.loads(path.read_text()) for path in sorted(Path(folder).glob("trial-*/result.json"))
    ]


def test_the_best_is_chosen_on_validation_and_can_be_trained_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["tune", "digits", "--trials", "4", *SMALL]) == 0
    printed = capsys.readouterr()
    actual = trials()
    assert [trial.number for trial in actual] == [0, 1, 2, 3]
    assert [trial.value for trial in actual] == [result["validation"] for result in results()]
    assert actual[0].params == {
        "method.weight": 1,
        "method.threshold": 0.95,
        "l2i.rho": 0.3,
        "optim.lr": 0.002,
    }
    best = min(range(4), key=lambda number: results()[number]["validation"])
    assert (
        f"best: trial {best}, validation error (%) {results()[best]['validation']:.2f}"
        in printed.out
    )
    assert (
        f"its test error (%): {results()[best]['metric']:.2f} (not used for selection)"
        in printed.out
    )
    assert "test" not in printed.err and printed.err.count("validation error (%)") >= 4
    command = shlex.split(printed.out.split("to train it again: l2i ")[1])
    assert run_command(command) == 0
    again = json.loads(Path("runs/tune/digits-seed0/best/result.json").read_text())
    assert (
        again["metric"] == results()[best]["metric"]
        and again["validation"] == results()[best]["validation"]
    )


def test_trials_count_those_already_finished(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tune", "digits", "--trials", "2", *SMALL]) == 0
    before = trials()
    assert run_command(["tune", "digits", "--trials", "3", *SMALL]) == 0
    after = trials()
    assert len(after) == 3 and [trial.datetime_complete for trial in after[:2]] == [
        t.datetime_complete for t in before
    ]
    capsys.readouterr()
    assert run_command(["tune", "digits", "--trials", "2", *SMALL]) == 0
    printed = capsys.readouterr()
    assert (
        "3 of 3 trials finished: 3 trained, 0 pruned, 0 failed" in printed.out and printed.err == ""
    )
    assert all(
        len(list(folder.glob("events.*"))) == 1
        for folder in Path("runs/tune/digits-seed0").glob("trial-*")
    )


def test_the_same_seed_gives_the_same_trials() -> None:
    for name in ("one", "two"):
        assert (
            run_command(
                ["tune", "digits", "--trials", "7", "--study", name, *SMALL, "--steps", "20"]
            )
            == 0
        )
    one, two = trials("runs/tune/one", "one"), trials("runs/tune/two", "two")
    assert [(trial.params, trial.value) for trial in one] == [
        (trial.params, trial.value) for trial in two
    ]
    assert len({tuple(trial.params.values()) for trial in one}) == 7


def test_trials_worse_than_the_median_are_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "tune",
        "digits",
        "--trials",
        "12",
        "--fields",
        "optim.lr",
        "--range",
        "optim.lr=1e-6:1e-2",
        *SMALL,
    ]
    assert run_command(words) == 0
    actual, folder = trials(), Path("runs/tune/digits-seed0")
    pruned = [trial for trial in actual if trial.state == TrialState.PRUNED]
    assert (
        pruned
        and f"{12 - len(pruned)} trained, {len(pruned)} pruned, 0 failed" in capsys.readouterr().out
    )
    for trial in pruned:
        own = validations(folder / f"trial-{trial.number:04}")
        last = max(own)
        others = [
            validations(folder / f"trial-{t.number:04}")
            for t in actual[: trial.number]
            if t not in pruned
        ]
        assert len(others) >= 5 and last >= 15
        assert min(own.values()) > median(curve[last] for curve in others)
        assert (
            trial.value == own[last]
            and not (folder / f"trial-{trial.number:04}" / "result.json").exists()
        )
    assert run_command([*words, "--no-prune", "--study", "whole"]) == 0
    assert {trial.state for trial in trials("runs/tune/whole", "whole")} == {TrialState.COMPLETE}


def test_trials_that_diverge_are_finished_with_their_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "tune",
        "digits",
        "--trials",
        "2",
        "--fields",
        "optim.lr",
        "--range",
        "optim.lr=1e25:1e28",
        *SMALL,
    ]
    assert run_command(words) == 0
    printed = capsys.readouterr()
    assert "2 of 2 trials finished: 0 trained, 0 pruned, 2 failed" in printed.out
    assert printed.err.count(": failed (") == 2 and "NaN or infinite" in printed.err
    assert all("NaN or infinite" in trial.user_attrs["reason"] for trial in trials())
    assert run_command(words) == 0
    assert capsys.readouterr().err == ""


def test_of_equal_metrics_the_first_is_best_whatever_the_test_set_says() -> None:
    def trial(
        number: int, value: float, test: float, state: TrialState = TrialState.COMPLETE
    ) -> FrozenTrial:
        made = create_trial(value=value, user_attrs={"test": test}, state=state)
        made.number = number
        return made

    made = [
        trial(0, 9.0, 1.0),
        trial(1, 5.0, 8.0),
        trial(2, 5.0, 2.0),
        trial(3, 4.0, 0.0, TrialState.PRUNED),
    ]
    best = find_best_trial(made)
    assert best is not None and best.number == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digits", "--steps", "61"], "steps is 60 there and 61 here"),
        (["digits", "--optim.lr", "0.004"], "optim.lr is 0.002 there and 0.004 here"),
        (
            ["digits", "--fields", "optim.lr"],
            "range of l2i.rho is [0.01, 1.0, 'log'] there and None here",
        ),
        (
            ["digits/fixmatch-40", "--study", "digits-seed0"],
            "l2i.update is normalized there and off here",
        ),
    ],
)
def test_a_study_of_other_settings_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["tune", "digits", "--trials", "1", *SMALL]) == 0
    capsys.readouterr()
    assert run_command(["tune", words[0], *SMALL, *words[1:]]) == 2
    said = capsys.readouterr().err
    assert (
        "study digits-seed0 has different settings" in said
        and message in said
        and said.count("\n") == 1
    )
    assert len(trials()) == 1


def test_a_folder_holds_one_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tune", "digits", "--trials", "1", *SMALL, "--out", "here"]) == 0
    capsys.readouterr()
    assert (
        run_command(["tune", "digits/fixmatch-40", "--trials", "1", *SMALL, "--out", "here"]) == 2
    )
    assert (
        "here contains the study 'digits-seed0'; choose a different --out"
        in capsys.readouterr().err
    )
    assert optuna.get_all_study_names("sqlite:///here/study.db") == ["digits-seed0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.num-validation", "0"], "set --data.num-validation"),
        (["--trials", "0"], "trials=0 must be at least 1"),
        (["--study", "a/b"], "choose a different --study"),
        (["--storage", "study.db"], "not a database URL"),
        (["--storage", "sqlite://"], "an in-memory database can be neither shared nor resumed"),
        (["--storage", "oracle9://x/y"], "use a URL such as"),
        (["--storage", "postgresql+nodriver://x/y"], "use a URL such as"),
        (["--storage", "sqlite:///text/study.db"], "cannot create its folder"),
        (["--storage", "sqlite:///text"], "file is not a database"),
        (["--out", "text"], "cannot create folder text"),
        (
            ["--storage", "postgresql+pg8000://x/y"],
            "is not installed (No module named 'pg8000'); pip install it",
        ),
        (["--trails", "8"], "perhaps you meant --trials"),
        (["--method.name", "vat"], "the method is part of the recipe's name"),
        (["--range", "optim.lr=3"], "--range takes FIELD=LOW:HIGH"),
    ],
)
def test_wrong_input_is_a_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("text").write_text("no database " * 100)
    assert run_command(["tune", "digits", *SMALL, *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and "Traceback" not in said
    assert not list(Path().glob("runs/tune/*/trial-*"))


def test_a_study_of_another_program_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    storage = optuna.storages.RDBStorage("sqlite:///other.db")
    optuna.create_study(study_name="digits-seed0", storage=storage).optimize(
        lambda trial: trial.number, n_trials=1
    )
    storage.engine.dispose()
    assert run_command(["tune", "digits", *SMALL, "--storage", "sqlite:///other.db"]) == 2
    assert "study digits-seed0 was not created by l2i" in capsys.readouterr().err


def test_a_password_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tune", "digits", *SMALL, "--storage", "nosuch://me:secret@host/name"]) == 2
    assert "secret" not in capsys.readouterr().err


def test_a_dry_run_shows_the_space_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["tune", "digits", *SMALL, "--dry-run", "--range", "optim.lr=0.01:0.1"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert (
        "optim.lr 0.01 0.1 log 0.002 (not searched)" in lines and "l2i.rho 0.01 1 log 0.3" in lines
    )
    assert any(line.startswith("model.width 16 # set by you; the recipe has ") for line in lines)
    assert not Path("runs").exists()


def test_torchrun_is_no_way_to_start_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }.items():
        monkeypatch.setenv(name, value)
    assert run_command(["tune", "digits", *SMALL]) == 2
    assert "start the command several times" in capsys.readouterr().err


def test_without_optuna_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert run_command(["tune", "digits"]) == 2
    assert "pip install 'l2i[tune]'" in capsys.readouterr().err


def test_a_busy_database_is_waited_for() -> None:
    """SQLite itself waits for a lock, by default for 5 seconds."""
    storage = _create_storage(make_url("sqlite:///study.db"))
    with storage.engine.connect() as connection:
        timeout = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
    assert timeout == 1000 * SQLITE_TIMEOUT_SECONDS == 60_000
