"""What steps are measured by: ratios and norms, means, masks, and the state that is saved."""

import json
import math
from pathlib import Path

import pytest
import torch

from l2i.errors import NonFiniteCost
from l2i.training.checkpoint import (
    AsyncCheckpointer,
    deserialize,
    list_checkpoints,
    load_latest_checkpoint,
    serialize,
)
from l2i.training.metrics import (
    METRIC_NAMES,
    MetricAccumulator,
    check_finite,
    compute_step_metrics,
    parse_metrics,
)
from l2i.training.step import Costs, FlatOuterGradient

CPU = torch.device("cpu")
BASE = ("c_t", "c_u", "gradient", "parameters")


def measure(
    *,
    base: list[float],
    outer: list[float] | None = None,
    rho: float | None = None,
    mask: torch.Tensor | None = None,
) -> tuple[dict[str, float], torch.Tensor | None]:
    costs = Costs(torch.tensor(1.5, requires_grad=True), torch.tensor(2.5), mask)
    held = None if outer is None else FlatOuterGradient(torch.tensor(outer), torch.tensor(3.5))
    ratio = None if rho is None else torch.tensor(rho)
    theta = torch.tensor([6.0, 8.0])
    metrics, mask_by_class = compute_step_metrics(costs, torch.tensor(base), held, theta, ratio)
    return {name: float(value) for name, value in metrics.items()}, mask_by_class


def test_a_step_without_an_outer_step_has_its_costs_and_norms() -> None:
    metrics, mask = measure(base=[3.0, 4.0])
    assert metrics == {"c_t": 1.5, "c_u": 2.5, "gradient": 5.0, "parameters": 10.0}
    assert mask is None


def test_the_outer_gradient_is_measured_in_lengths_of_the_base_gradient() -> None:
    metrics, _ = measure(base=[3.0, 4.0], outer=[0.0, 10.0])
    assert (metrics["c_h"], metrics["grad_ratio"], metrics["grad_ratio_raw"]) == (3.5, 2.0, 2.0)
    assert tuple(metrics) != METRIC_NAMES and sorted(metrics) == sorted(METRIC_NAMES)
    normalized, _ = measure(base=[3.0, 4.0], outer=[0.0, 10.0], rho=0.25)
    assert (normalized["grad_ratio"], normalized["grad_ratio_raw"]) == (0.25, 2.0)


@pytest.mark.parametrize(
    ("base", "outer"),
    [([0.0, 0.0], [1.0, 0.0]), ([1.0, 0.0], [0.0, 0.0]), ([0.0, 0.0], [0.0, 0.0])],
)
@pytest.mark.parametrize("rho", [0.25, None])
def test_a_gradient_that_vanished_has_a_ratio_of_nothing(
    base: list[float], outer: list[float], rho: float | None
) -> None:
    metrics, _ = measure(base=base, outer=outer, rho=rho)
    assert (metrics["grad_ratio"], metrics["grad_ratio_raw"]) == (0.0, 0.0)


def test_a_gradient_that_is_no_number_is_not_hidden_by_its_ratio() -> None:
    metrics, _ = measure(base=[1.0, 0.0], outer=[math.nan, 0.0])
    assert math.isnan(metrics["grad_ratio_raw"])


def test_what_passes_the_mask_is_handed_on_apart() -> None:
    metrics, mask = measure(base=[3.0, 4.0], mask=torch.tensor([0.25, 0.5]))
    assert mask is not None and mask.tolist() == [0.25, 0.5]
    assert sorted(metrics) == sorted(BASE)


def step_values(names: tuple[str, ...] = BASE, **values: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values.get(name, 0.0)) for name in names}


def test_rates_of_the_mask_are_means_over_steps_and_its_top_class_a_share_of_them() -> None:
    meter = MetricAccumulator(CPU, classes=3)
    for step, mask in enumerate(([0.1, 0.2, 0.0], [0.3, 0.0, 0.2])):
        meter.add(step_values(), torch.tensor(step), torch.tensor(mask))
    row = meter.read()
    assert row["mask_rate"] == pytest.approx(0.4)
    assert row["mask_top_class"] == pytest.approx(0.5)  # 0.4 of 0.8
    meter.add(step_values(), torch.tensor(2), torch.tensor([0.0, 0.0, 0.0]))
    row = meter.read()  # nothing of the steps before
    assert row["mask_rate"] == 0.0 and "mask_top_class" not in row
    assert "mask_rate" not in meter.read()


def test_a_run_without_a_mask_has_no_rates_of_it() -> None:
    meter = MetricAccumulator(CPU)
    meter.add(step_values(), torch.tensor(0), torch.tensor([0.5]))
    assert sorted(meter.read()) == sorted(BASE)
    assert sorted(meter.state_dict()) == ["count", "first_bad", "total"]


def test_means_are_taken_in_float64() -> None:
    meter = MetricAccumulator(CPU)
    for step in range(1000):
        meter.add(step_values(c_t=0.1), torch.tensor(step))
    assert meter.read()["c_t"] == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


def test_a_meter_goes_on_from_its_state() -> None:
    first, second = (MetricAccumulator(CPU, classes=2) for _ in range(2))
    first.add(step_values(c_t=1.0), torch.tensor(0), torch.tensor([0.5, 0.0]))
    second.load_state_dict({name: t.clone() for name, t in first.state_dict().items()})
    for meter in (first, second):
        meter.add(step_values(c_t=2.0), torch.tensor(1), torch.tensor([0.0, 0.25]))
    assert first.read() == second.read()
    old = {name: t for name, t in first.state_dict().items() if name != "counted"}
    second.load_state_dict(old)  # of a version that counted no labels


def test_the_earliest_step_is_named_and_of_one_step_the_cause_before_its_effects() -> None:
    check_finite(torch.full((len(METRIC_NAMES),), -1))

    def first_bad(**steps: int) -> torch.Tensor:
        return torch.tensor([steps.get(name, -1) for name in METRIC_NAMES])

    cases = [
        ({"c_t": 7, "parameters": 3}, "the norm of the parameters is NaN or infinite from step 4"),
        ({"gradient": 5, "c_u": 5, "parameters": 5}, "c_u is NaN or infinite from step 6 on"),
        (
            {"grad_ratio_raw": 0, "parameters": 0},
            "the outer gradient is NaN or infinite from step 1",
        ),
        ({"gradient": 2, "c_h": 2}, "c_h is NaN or infinite from step 3 on"),
    ]
    for steps, message in cases:
        with pytest.raises(NonFiniteCost, match=f"^{message}"):
            check_finite(first_bad(**steps))


def test_rows_of_metrics_are_parsed_or_refused() -> None:
    row = {"step": 10, "test": None, "validation": 2.5}
    content = f"{json.dumps(row)}\n{json.dumps({**row, 'step': 20})}\n".encode()
    assert parse_metrics(content) == [row, {**row, "step": 20}]
    assert parse_metrics(b"") == []
    for bad in ({**row, "step": 0}, {"step": 1, "test": 1.0}, {"step": 1, "validation": 1.0}):
        with pytest.raises((ValueError, KeyError)):
            parse_metrics(json.dumps(bad).encode())


def test_a_state_survives_the_way_to_other_processes() -> None:
    tensors = {"w": torch.randn(2, 3), "n": torch.tensor(5), "b": torch.tensor([True, False])}
    received, meta = deserialize(serialize(tensors, {"step": 3, "config": {"é": 1.5}}))
    assert meta == {"step": 3, "config": {"é": 1.5}} and received.keys() == tensors.keys()
    assert all(torch.equal(received[name], t) for name, t in tensors.items())


@pytest.fixture
def checkpointer() -> AsyncCheckpointer:
    return AsyncCheckpointer()


def test_a_checkpoint_is_of_the_moment_it_was_asked_for(
    checkpointer: AsyncCheckpointer, tmp_path: Path
) -> None:
    w = torch.zeros(3)
    for step in range(1, 6):
        w += 1
        checkpointer.save(tmp_path, step, {"w": w}, {"step": step}, keep=3)
    checkpointer.wait()
    checkpointer.close()
    assert [path.stem for path in list_checkpoints(tmp_path)] == [f"{s:010d}" for s in (3, 4, 5)]
    tensors, meta = load_latest_checkpoint(tmp_path)
    assert (tensors["w"].tolist(), meta) == ([5.0] * 3, {"step": 5})


def test_copies_are_written_and_not_what_became_of_the_tensors(
    checkpointer: AsyncCheckpointer, tmp_path: Path
) -> None:
    w = torch.zeros(3)
    checkpointer.save(tmp_path, 1, {"w": w}, {"step": 1}, before_write=lambda: w.fill_(9.0))
    checkpointer.wait()
    checkpointer.close()
    assert load_latest_checkpoint(tmp_path)[0]["w"].tolist() == [0.0] * 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_state_with_one_bad_value_is_not_written(
    checkpointer: AsyncCheckpointer, tmp_path: Path, value: float
) -> None:
    state = {"n": torch.tensor([1, 2]), "w": torch.tensor([1.0, value, 3.0])}
    ran: list[int] = []
    checkpointer.save(tmp_path, 4, state, {"step": 4}, before_write=lambda: ran.append(1))
    with pytest.raises(NonFiniteCost, match="w is NaN or infinite at step 4"):
        checkpointer.wait()
    checkpointer.close()
    assert list_checkpoints(tmp_path) == [] and ran == []


def test_the_first_bad_step_of_a_state_is_named(
    checkpointer: AsyncCheckpointer, tmp_path: Path
) -> None:
    first_bad = torch.full((len(METRIC_NAMES),), -1)
    first_bad[METRIC_NAMES.index("c_u")] = 8
    state = {"meter.first_bad": first_bad, "w": torch.tensor([math.nan])}
    checkpointer.save(tmp_path, 10, state, {"step": 10})
    with pytest.raises(NonFiniteCost, match="c_u is NaN or infinite from step 9 on"):
        checkpointer.wait()
    checkpointer.close()


def test_a_first_step_that_was_bad_stays_the_first() -> None:
    meter = MetricAccumulator(CPU)
    for step in range(3):
        meter.add(step_values(c_t=math.nan), torch.tensor(step))
    with pytest.raises(NonFiniteCost, match="c_t is NaN or infinite from step 1 on"):
        meter.read()


def test_metrics_hold_no_graph() -> None:
    c_t, c_u = (torch.tensor(1.0, requires_grad=True) * 2 for _ in range(2))
    outer = FlatOuterGradient(torch.ones(2), torch.tensor(1.0))
    metrics, _ = compute_step_metrics(
        Costs(c_t, c_u), torch.ones(2), outer, torch.ones(2), torch.tensor(0.3)
    )
    assert not any(value.requires_grad for value in metrics.values())
