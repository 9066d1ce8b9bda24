"""Runs that go wrong though every number is finite, and honest ones, of which nothing is said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from l2i import Augment, Splits, recipes, replace, train
from l2i.bilevel import lookahead
from l2i.tasks import Classification, Regression
from l2i.training.evaluation import measure_diversity
from l2i.training.health import check_health
from l2i.training.metrics import parse_metrics
from l2i.training.run_dir import Result
from l2i.training.step import compute_costs
from problems import problem

pytestmark = pytest.mark.slow

SOFT = {"weak": Augment(noise=0.1), "strong": Augment(noise=0.3)}
RUNAWAY = {"method": {"threshold": 0.0, "weight": 1000.0}, "optim": {"lr": 0.05}}


def trained(
    folder: Path, cell: str, splits: Splits | None = None, *, quiet: bool = True, **changes: Any
) -> Result:
    short = {"device": "cpu", "steps": 200, "eval_every": 50, "save_every": 100, "out": str(folder)}
    return train(replace(recipes.get(cell), **{**short, **changes}), splits=splits, quiet=quiet)


def printed(result: Result, *words: str) -> bool:
    """Whether there is a warning for each of the words, and none besides."""
    return len(result.warnings) == len(words) and all(
        w in sentence for w, sentence in zip(words, result.warnings, strict=True)
    )


@pytest.mark.parametrize(
    "cell",
    [
        "sl",
        "fixmatch",
        "fixmatch-l2i",
        "pseudo-label",
        "uda-l2i",
        "mean-teacher-l2i",
        "mixmatch",
        "vat",
    ],
)
def test_recipes_raise_no_alarm(cell: str, tmp_path: Path) -> None:
    assert trained(tmp_path / "run", f"digits/{cell}-40").warnings == []


@pytest.mark.parametrize("cell", ["fixmatch", "fixmatch-l2i", "uda", "pseudo-label"])
def test_a_threshold_that_nothing_reaches_is_found(cell: str, tmp_path: Path) -> None:
    result = trained(tmp_path / "run", f"digits/{cell}-40", method={"threshold": 0.99999})
    assert printed(result, "the confidence mask passes 0 % of the imputed labels")


@pytest.mark.parametrize("cell", ["fixmatch-40", "pseudo-label-40"])
def test_labels_that_have_run_away_to_one_class_are_found(cell: str, tmp_path: Path) -> None:
    result = trained(tmp_path / "run", f"digits/{cell}", **RUNAWAY)
    assert printed(
        result,
        "the model predicts one class for 100 % of the 100 validation samples",
        "labels that pass the mask are of one class",
    )


@pytest.mark.parametrize(
    "optim",
    [{"lr": 10.0}, {"name": "sgd", "lr": 0.5, "weight_decay": 0.5, "weight_decay_mode": "l2"}],
)
def test_a_network_that_says_the_same_of_all_samples_is_found(
    optim: dict[str, object], tmp_path: Path
) -> None:
    assert printed(
        trained(tmp_path / "run", "digits/sl-40", optim=optim),
        "validation samples, at least 85 of which belong to others",
    )


def test_the_test_samples_are_looked_at_where_there_is_no_validation_set(tmp_path: Path) -> None:
    changes = {"optim": {"lr": 10.0, "ema_bn": "copy"}, "data": {"num_validation": 0}}
    assert printed(trained(tmp_path / "run", "digits/sl-40", **changes), "test samples, at least")


@pytest.mark.parametrize(
    ("paper", "far"), [({"inner_supervised": True, "supervised_eta": 60.0}, True), ({}, False)]
)
def test_a_look_ahead_that_goes_too_far_is_found(
    paper: dict[str, object], far: bool, tmp_path: Path
) -> None:
    """On C^T + C^U at about the released rate, which is for C^U alone."""
    result = trained(tmp_path / "run", "digits/mean-teacher-l2i-paper-40", l2i={"paper": paper})
    last = parse_metrics((tmp_path / "run" / "metrics.jsonl").read_bytes())[-1]["c_h"]
    assert last is not None and (last > np.log(10)) == far
    words = (
        "worse than guessing (2.3): η is too large, and the outer step mostly undoes the "
        "look-ahead; lower l2i.paper.eta"
    )
    assert any(words in warning for warning in result.warnings) == far


def test_short_runs_are_not_judged(tmp_path: Path) -> None:
    assert (
        trained(
            tmp_path / "run", "digits/fixmatch-40", steps=90, method={"threshold": 0.99999}
        ).warnings
        == []
    )


def test_an_alarm_is_said_once_and_kept_in_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = trained(tmp_path / "run", "digits/fixmatch-40", quiet=False, **RUNAWAY)
    said = capsys.readouterr().err
    assert said.count("warning at step") == len(result.warnings) == 2
    assert json.loads((tmp_path / "run" / "result.json").read_text())["warnings"] == result.warnings


def test_a_run_that_was_cut_keeps_its_alarms(tmp_path: Path) -> None:
    result = trained(tmp_path / "run", "digits/fixmatch-40", **RUNAWAY)
    (tmp_path / "run" / "result.json").unlink()
    assert trained(tmp_path / "run", "digits/fixmatch-40", **RUNAWAY).warnings == result.warnings


def test_rows_tell_what_the_mask_lets_through(tmp_path: Path) -> None:
    for cell, masked in (("fixmatch-40", True), ("mean-teacher-40", False), ("sl-40", False)):
        trained(tmp_path / cell, f"digits/{cell}")
        rows = parse_metrics((tmp_path / cell / "metrics.jsonl").read_bytes())
        assert all(
            (row["mask_rate"] is not None) == masked and 0 <= row["prediction_diversity"] <= 1
            for row in rows
        )
    rows = parse_metrics((tmp_path / "fixmatch-40" / "metrics.jsonl").read_bytes())
    assert rows[0]["mask_rate"] < rows[-1]["mask_rate"] < 1
    assert 0.1 < rows[-1]["mask_top_class"] < 0.9


@pytest.mark.parametrize("name", ["fixmatch", "uda", "pseudo-label"])
def test_a_step_measures_which_labels_count(name: str) -> None:
    p = problem(name)
    net = lookahead(p.model, p.params)
    imputed, counted = p.impute(), compute_costs(p.method, p.task, net, net, p.batch).mask_by_class
    assert counted is not None and 0 < float(imputed.weight.mean()) < 1
    assert float(counted.sum()) == pytest.approx(float(imputed.weight.mean()))
    classes = imputed.z.argmax(dim=1)[imputed.weight > 0]
    assert set(counted.topk(1).indices.tolist()) <= set(classes.tolist())
    if name != "uda":  # its labels are soft
        assert (
            counted.tolist()
            == (classes.bincount(minlength=len(counted)).double() / len(imputed.weight)).tolist()
        )


@pytest.mark.parametrize(
    ("name", "task"), [("mean-teacher", "classification"), ("pseudo-label", "regression")]
)
def test_where_all_labels_count_nothing_is_measured(name: str, task: str) -> None:
    p = problem(name, task)
    net = lookahead(p.model, p.params)
    assert (
        not p.method.tracks_mask(p.task)
        and compute_costs(p.method, p.task, net, net, p.batch).mask_by_class is None
    )


def table(*, rare: float, regression: bool = False, noise: float = 0.0) -> Splits:
    """Blobs of two classes, one of them rare; or a linear target under noise."""
    generator = np.random.default_rng(0)
    y = (generator.random(900) < rare).astype(int)
    x = (generator.normal(size=(900, 6)) + 2.5 * y[:, None]).astype("float32")
    if regression:
        y = (x[:, :1] + noise * generator.normal(size=(900, 1))).astype("float32")
    parts = {
        "labeled": (x[:100], y[:100]),
        "validation": (x[600:700], y[600:700]),
        "test": (x[700:], y[700:]),
    }
    return Splits.from_arrays(**parts, unlabeled=x[100:600], classes=None if regression else 2)


@pytest.mark.parametrize("rare", [0.1, 0.05])
@pytest.mark.parametrize("cell", ["sl-40", "pseudo-label-40", "fixmatch-l2i-40"])
def test_a_rare_class_raises_no_alarm_where_it_is_learned(
    cell: str, rare: float, tmp_path: Path
) -> None:
    result = trained(tmp_path / "run", f"digits/{cell}", table(rare=rare), data=SOFT)
    assert result.warnings == [] and result.metric < 100 * rare


def test_too_few_samples_of_other_classes_say_nothing(tmp_path: Path) -> None:
    """With one of 200 in another class, always the same answer is as good as can be told."""
    result = trained(tmp_path / "run", "digits/sl-40", table(rare=0.004), data=SOFT)
    assert result.warnings == []


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_a_regression_that_learns_raises_no_alarm(noise: float, tmp_path: Path) -> None:
    splits = table(rare=0.5, regression=True, noise=noise)
    assert trained(tmp_path / "run", "digits/mean-teacher-l2i-40", splits, data=SOFT).warnings == []


def test_a_regression_that_always_gives_the_mean_is_found(tmp_path: Path) -> None:
    optim = {"lr": 10.0}
    splits = table(rare=0.5, regression=True)
    assert printed(
        trained(tmp_path / "run", "digits/sl-40", splits, data=SOFT, optim=optim),
        "the standard deviation of outputs on 100 validation",
    )


def test_the_spread_of_outputs() -> None:
    classes, y = Classification(num_outputs=3), torch.tensor([0, 1, 2, 0])
    assert measure_diversity(classes, nn.functional.one_hot(y, 3).float(), y) == 0.5
    assert measure_diversity(classes, torch.ones(4, 3), y) == 0
    targets = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    task = Regression.from_targets(targets)
    assert measure_diversity(task, task.encode(targets) / 2, targets) == pytest.approx(0.5)
    assert measure_diversity(task, torch.zeros(2, 2), torch.full((2, 2), 5.0)) == 1


def test_a_mask_is_judged_over_many_steps() -> None:
    """At the end, evaluations lie few steps apart: no confident label at a step is no collapse."""
    splits, row = table(rare=0.5), {"test": 1.0, "validation": 1.0, "mask_top_class": 0.6}
    open_rows = [
        {**row, "step": 1000, "mask_rate": 0.3},
        *({**row, "step": 1000 + i, "mask_rate": 0.0} for i in range(1, 20)),
    ]
    assert check_health(open_rows, splits, 1020) == {}
    shut = [
        {**row, "step": 900, "mask_rate": 0.3},
        {**row, "step": 1020, "mask_rate": 0.0, "mask_top_class": None},
    ]
    assert list(check_health(shut, splits, 1020)) == ["mask"]


def test_hold_out_samples_may_be_costly_where_nothing_looks_ahead() -> None:
    """A look-ahead is judged over the last tenth of the run; without one, C^H raises no alarm."""
    splits, rows = (
        table(rare=0.5),
        [{"step": 800, "c_h": 90.0}, {"step": 990, "c_h": 1.0}, {"step": 1000, "c_h": 90.0}],
    )
    assert check_health(rows, splits, 1000) == {}
    assert list(check_health(rows, splits, 1000, 5.4)) == [
        "ahead"
    ]  # 190 steps at 1 and 10 at 90: 5.45
    assert check_health(rows, splits, 1000, 5.5) == {}
