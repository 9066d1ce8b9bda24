"""A kept result tells its settings, and is not taken for one of others."""

import json
from pathlib import Path

import pytest

from l2i import recipes, replace
from l2i.cli import run_command
from l2i.errors import InputError
from l2i.experiments.results import ResultStore, format_setting_overrides
from l2i.training.run_dir import Result, flatten_settings

SHORT = [
    "compare",
    "digits",
    "--cells",
    "sl-40",
    "--seeds",
    "1",
    "--steps",
    "3",
    "--device",
    "cpu",
    "--no-time-matched",
]
NAME = "digits/sl-40-seed0.json"


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one result, of a learning rate that is not the recipe's."""
    monkeypatch.chdir(tmp_path)
    assert (
        run_command(
            [
                *SHORT,
                "--out",
                "first",
                "--save-results",
                "kept",
                "--set",
                "optim.lr=0.01",
                "threads=1",
            ]
        )
        == 0
    )
    return tmp_path / "kept"


def test_a_result_of_other_settings_is_refused(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [*SHORT, "--out", "second", "--save-results", "kept"]
    capsys.readouterr()
    assert run_command(again) == 2
    lr = recipes.get("digits/sl-40").optim.lr
    printed = (
        f"kept/{NAME} holds a run with optim.lr=0.01, not {lr}; "
        "use --set optim.lr=0.01, or choose a different"
    )
    assert printed in capsys.readouterr().err
    assert not Path("second").exists()
    assert run_command([*again, "--set", "optim.lr=0.01"]) == 0
    progress = capsys.readouterr().err
    assert progress.startswith("digits/sl-40: ")
    assert ", 1 seed (1 from kept/digits), " in progress
    assert not (Path("second") / "digits-sl-40-seed0").exists()


def test_a_table_says_what_is_not_the_recipes(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run_command(["compare", "digits", "--from", "kept"]) == 0
    assert (
        "digits/sl-40: trained with optim.lr=0.01 instead of the recipe's value."
        in capsys.readouterr().out
    )


def test_a_result_that_does_not_tell_its_settings_is_taken_as_it_is(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved / NAME
    path.write_text(
        json.dumps(
            {name: v for name, v in json.loads(path.read_text()).items() if name != "settings"}
        )
    )
    assert run_command([*SHORT, "--out", "second", "--save-results", "kept"]) == 0
    assert run_command(["compare", "digits", "--from", "kept"]) == 0
    assert "instead of the recipe's" not in capsys.readouterr().out


def test_settings_that_are_none_are_damage(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved / NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {"settings": ["optim.lr"]}))
    assert run_command(["compare", "digits", "--from", "kept"]) == 1
    assert "is damaged, or not the result of a run" in capsys.readouterr().err


def test_settings_tell_nothing_of_the_machine() -> None:
    run = replace(
        recipes.get("imdb/uda-20"), model={"weights": "/home/me/minilm"}, data={"root": "/x"}
    )
    printed = flatten_settings(
        replace(run, data={"text": replace(run.data.text, paraphrases="/home/me/said.jsonl")})
    )
    assert (printed["model.weights"], printed["data.text.paraphrases"]) == ("minilm", "said.jsonl")
    assert not any("/" in str(value) for value in printed.values())


def test_a_field_that_is_younger_than_a_result_had_its_default() -> None:
    """Earlier runs of mean teacher on CIFAR passed their samples apart, and say nothing of it."""
    run = recipes.get("cifar10/mean-teacher-250-short")
    settings = flatten_settings(run)
    assert settings.pop("method.one_forward") is True
    fixed = {"metric_name": "error (%)", "metric_definition": "", "validation": None, "seed": 0}
    fixed |= {"steps": 8192, "seconds": 1.0, "versions": {}, "hardware": "", "precision": "bf16"}
    fixed |= {"engine": "graph", "concurrent_runs": 1, "processes": 1, "steps_per_second": None}
    result = Result(name=run.name, metric=55.3, warnings=[], settings=settings, **fixed)  # type: ignore[arg-type]
    assert format_setting_overrides(result) == "method.one_forward=false"
    store = ResultStore(recipes.get_table("cifar10"), Path("kept"), {run.name: {0: result}})
    with pytest.raises(InputError, match=r"holds a run with method\.one_forward=false, not true"):
        store.lookup([replace(run, steps=8192)])
    assert store.lookup([replace(run, method={"one_forward": False})]) == {0: result}
