"""Evaluation: which steps, how many samples at once, which metric, and how it is described."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from l2i.data.samples import Samples
from l2i.tasks import Regression
from l2i.training.evaluation import (
    compute_final_metric,
    compute_final_steps,
    compute_outputs,
    describe_metric,
    extract_curve,
    is_eval_step,
    iter_chunks,
    measure_diversity,
    pick_batch_size,
)


def test_the_last_evaluations_are_spread_over_the_end_of_a_run() -> None:
    assert compute_final_steps(2**20)[:2] == [1_028_654, 1_029_703]  # the last 2 %
    assert compute_final_steps(32_768) == list(range(31_818, 32_769, 50))  # the last 1,000 steps
    assert compute_final_steps(1500)[:4] == [1358, 1365, 1373, 1380]  # the last tenth
    assert compute_final_steps(1000) == list(range(905, 1001, 5))
    assert compute_final_steps(7) == [7]
    for steps in (1000, 8192, 22_500, 66_560, 2**20):
        gaps = [b - a for a, b in pairwise(compute_final_steps(steps))]
        assert max(gaps) - min(gaps) <= 1 and 19 * min(gaps) <= steps / 10


def test_evaluations_are_every_so_many_steps_and_at_the_end() -> None:
    assert [step for step in range(1, 13) if is_eval_step(step, 11, 4)] == [4, 8, 11, 12]
    steps = [step for step in range(1, 1001) if is_eval_step(step, 1000, 400)]
    assert steps == [400, 800, *range(905, 1001, 5)]


def test_the_final_metric_is_of_the_last_evaluations_or_the_best_validation() -> None:
    curve = {100: 9.0, 200: 5.0, 300: 7.0}
    assert compute_final_metric(curve, {}, 300, "median") == 7.0
    validation = {100: 3.0, 200: 4.0, 300: 3.5}
    assert compute_final_metric(curve, validation, 300, "best") == 9.0


def test_curves_leave_out_evaluations_without_a_value() -> None:
    rows = [{"step": 10, "test": 2.0, "validation": None}, {"step": 20, "test": 0.0}]
    rows[1]["validation"] = 5.0
    assert extract_curve(rows, "test") == {10: 2.0, 20: 0.0}
    assert extract_curve(rows, "validation") == {20: 5.0}


@pytest.mark.parametrize(
    ("steps", "final", "averaged", "words"),
    [
        (999, "median", True, "the averaged model on the test set, at the last step"),
        (
            1000,
            "median",
            False,
            "median of the model on the test set over the last 20 evaluations (the last 100 steps)",
        ),
        (
            2**20,
            "median",
            True,
            "median of the averaged model on the test set over the last 20 evaluations (the last "
            "20,971 steps)",
        ),
        (
            1000,
            "best",
            True,
            "the averaged model on the test set, at the evaluation with the best validation metric "
            "(early stopping)",
        ),
    ],
    ids=["short", "long", "the paper's", "best"],
)
def test_a_metric_is_described_as_it_is_computed(
    steps: int, final: str, averaged: bool, words: str
) -> None:
    described = describe_metric(steps, final, "test", averaged=averaged)  # type: ignore[arg-type]
    assert described.startswith(words)


def samples(count: int, *shape: int, dtype: torch.dtype = torch.float32) -> Samples:
    return Samples(torch.zeros(count, *shape, dtype=dtype), torch.zeros(count))


@pytest.mark.parametrize(
    ("length", "size"), [(1, 64), (128, 64), (129, 63), (256, 32), (8192, 1), (10**5, 1)]
)
def test_long_texts_are_evaluated_fewer_at_a_time(length: int, size: int) -> None:
    assert pick_batch_size(samples(2, length, dtype=torch.int32)) == size
    assert pick_batch_size(samples(2, length)) == 64


def test_all_samples_are_passed_once_in_order_and_counted() -> None:
    x, sizes, counts = torch.arange(10.0).unsqueeze(1), list[int](), list[int]()

    class Recording(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append(len(x))
            assert not self.training and not torch.is_grad_enabled()
            return x

    model = Recording()
    given = Samples(x, torch.zeros(10))
    outputs = compute_outputs(
        model, given, lambda raw: raw + 1, batch_size=4, on_progress=counts.append
    )
    assert torch.equal(outputs, x + 1) and sizes == counts == [4, 4, 2]
    assert model.training
    assert [len(chunk) for chunk in iter_chunks(given, 5, 0)] == [5, 5]


def test_a_forward_that_fails_leaves_the_model_in_its_mode() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    model[0].eval()
    with pytest.raises(RuntimeError):
        compute_outputs(model, samples(3, 5), lambda raw: raw)
    assert (model.training, model[0].training, model[1].training) == (True, False, True)


@pytest.mark.parametrize(("spread", "diversity"), [(1e-2, 0.5), (1e-4, 1.0)])
def test_a_target_varies_if_it_does_by_a_millionth_of_its_size(
    spread: float, diversity: float
) -> None:
    """Of 1,000 that is 0.001; below, the target is constant, and so may the outputs be."""
    plain = {"mean": torch.zeros(1), "std": torch.ones(1)}
    y = torch.tensor([[1000.0 - spread], [1000.0 + spread]], dtype=torch.float64)
    outputs = torch.tensor([[-spread / 2], [spread / 2]], dtype=torch.float64)
    task = Regression(num_outputs=1, **plain)
    assert measure_diversity(task, outputs, y) == pytest.approx(diversity, rel=1e-3)
