"""Looking at a run on its way: what is seen, and that the run does not notice."""

from typing import Any

import pytest
import torch
from benchmarks.ablation_cpu.grid import PROBLEMS, Arm
from benchmarks.ablation_cpu.runner import (
    NUM_PROBE_SAMPLES,
    DynamicsRecorder,
    average_readings,
    run_trial,
    select_probe_steps,
)
from torch import nn

from l2i import Run, Trainer, replace
from l2i.training.diagnostics import PROBE_COLUMNS, sample_unlabeled

SIZES = {"labeled": 8, "unlabeled": 8, "holdout": 8}


def small(arm: Arm, **changes: Any) -> Run:
    """With running statistics, dropout, and moments in the optimizer."""
    run = replace(
        PROBLEMS["digits-fixmatch"].make_run(arm),
        device="cpu",
        steps=20,
        eval_every=2,
        probe_samples=NUM_PROBE_SAMPLES,
        batch=SIZES,
    )
    return replace(run, model={"name": "conv", "width": 4, "dropout": 0.2}, **changes)


@pytest.mark.parametrize("arm", ["baseline", "control", "l2i"])
def test_a_watched_run_ends_as_an_unwatched_one_bit_by_bit(arm: Arm) -> None:
    ends = []
    for watch in (None, DynamicsRecorder(small(arm))):
        torch.manual_seed(0)
        ends.append(
            {
                name: value
                for name, value in run_trial(small(arm), watch).items()
                if name != "seconds"
            }
        )
    assert ends[0] == ends[1]
    assert watch is not None and [record["step"] for record in watch.records] == list(
        range(2, 21, 2)
    )
    for record in watch.records:
        assert {"c_t", "gradient", "pseudo_label_error"} <= record.keys()
        observed = {"c_h", "grad_ratio", "grad_ratio_raw", *PROBE_COLUMNS}
        assert observed & record.keys() == (set() if arm == "baseline" else observed)


def test_imputed_labels_are_measured_against_their_hidden_truth() -> None:
    watcher = DynamicsRecorder(run := small("l2i", steps=2))
    torch.manual_seed(0)
    run_trial(run, watcher)
    torch.manual_seed(0)
    trainer = Trainer(run)
    for t in range(2):
        trainer.step(t)
    some, model = sample_unlabeled(trainer, NUM_PROBE_SAMPLES), trainer.network.eval()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d | nn.BatchNorm1d)):
        norm.train()
    assert (
        isinstance(some.x, torch.Tensor)
        and NUM_PROBE_SAMPLES - run.batch.unlabeled < len(some.y) <= NUM_PROBE_SAMPLES
    )
    said = torch.cat([model(trainer.preprocess(x)) for x in some.x.split(run.batch.unlabeled)])
    assert watcher.records[-1]["pseudo_label_error"] == pytest.approx(
        100 * float((said.argmax(1) != some.y).double().mean())
    )


def test_an_update_is_measured_by_a_step_with_it_and_one_without() -> None:
    for arm in ("l2i", "control"):
        run, watcher = small(arm), DynamicsRecorder(small(arm))
        run_trial(run, watcher)
        assert any(record["c_h_after"] != record["c_h_before"] for record in watcher.records)


@pytest.mark.parametrize(
    ("problem", "steps"),
    [
        ("digits-fixmatch", [100, 200, 300, 500, 600, 800, 900, 1100, 1200, 1358, 1500]),
        ("friedman-mean-teacher", [50, 100, 150, 300, 450, 600, 750, 900, 1050, 1200, 1350, 1500]),
        ("small-faces-mean-teacher", list(range(50, 501, 50))),
    ],
)
def test_looks_are_evaluations_spread_over_the_run(problem: str, steps: list[int]) -> None:
    assert sorted(select_probe_steps(PROBLEMS[problem].make_run("l2i"))) == steps


def test_costs_are_means_over_the_steps_since_the_last_look() -> None:
    readings = [(1, {"c_t": 2.0, "c_h": 1.0}), (3, {"c_t": 4.0, "c_h": 5.0})]
    assert average_readings(readings) == {"c_t": 3.5, "c_h": 4.0}
