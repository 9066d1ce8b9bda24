"""What a run tells: metrics.jsonl, TensorBoard events, and a progress bar with rate, costs and time left.

MERGED:
What a run writes down while it goes: metrics, events, checkpoints. One process writes; the others have a Blank.

MERGED:
What a run measures between two evaluations, kept on the device and read when it is logged.

MERGED:
A step's figures, still on the device.

"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from l2i.bilevel.problem import Params
from l2i.errors import NonFiniteCost
from l2i.methods.base import Costs
from l2i.training.step import HoldoutGradient

if TYPE_CHECKING:
    from l2i.training.trainer import Trainer

MetricRow = dict[str, float | int | None]


def parse_metrics(content: bytes) -> list[MetricRow]:
    """The evaluations that metrics.jsonl holds; one of several errors where it does not hold any such."""
    rows: list[MetricRow] = [json.loads(line) for line in content.splitlines()]
    if not all(row["step"] and "test" in row and "validation" in row for row in rows):
        raise ValueError("not rows of metrics")
    return rows


def step_weighted_mean(rows: Iterable[tuple[float, MetricRow]], column: str) -> float | None:
    """The mean of a column of rows, each of which is one over so many steps; of those that have it."""
    present = [(steps, value) for steps, row in rows if (value := row.get(column)) is not None]
    total = sum(steps for steps, _ in present)
    return sum(steps * value for steps, value in present) / total if total else None


METRIC_NAMES = ("c_t", "c_u", "gradient", "parameters", "c_h", "grad_ratio", "grad_ratio_raw")  # an outer step's come last
BLAME_ORDER = ("c_t", "c_u", "c_h", "gradient", "grad_ratio", "grad_ratio_raw", "parameters")  # named before their effects
METRIC_LABELS = {
    "parameters": "the norm of the parameters",
    "grad_ratio": "the outer gradient",
    "grad_ratio_raw": "the outer gradient",
}  # what they are not finite for


class MetricAccumulator:
    """Means since the last reading, and for each value the first step at which it was not a number.

    `classes` is how many there are, where the run's method counts the imputed labels that pass its mask.
    """

    def __init__(self, device: torch.device, *, classes: int = 0) -> None:
        self.total = torch.zeros(len(METRIC_NAMES), dtype=torch.float64, device=device)
        self.count = torch.zeros(len(METRIC_NAMES), dtype=torch.int64, device=device)
        self.first_bad = torch.full((len(METRIC_NAMES),), -1, device=device)
        self.mask_by_class = torch.zeros(classes, dtype=torch.float64, device=device)

    def add(self, values: dict[str, Tensor], step: Tensor, mask_by_class: Tensor | None = None) -> None:
        """Take in a step's values, those of the outer step where there was one; nothing leaves the device."""
        names = [name for name in METRIC_NAMES if name in values]
        assert names == list(METRIC_NAMES[: len(names)])
        row = torch.stack([values[name].detach() for name in names]).double()
        self.total[: len(row)] += row
        self.count[: len(row)] += 1
        first = self.first_bad[: len(row)]
        first.copy_(torch.where((first < 0) & ~row.isfinite(), step, first))
        if mask_by_class is not None and len(self.mask_by_class):
            self.mask_by_class += mask_by_class

    def raise_if_nonfinite(self) -> None:
        """Raise if any value has stopped being a number."""
        check_finite(self.first_bad)

    def read(self) -> dict[str, float]:
        """The means of what was measured, and a new start; raises where a value is not a number."""
        self.raise_if_nonfinite()
        columns = zip(METRIC_NAMES, (self.total / self.count).tolist(), self.count.tolist(), strict=True)
        means = {name: mean for name, mean, count in columns if count} | self.compute_mask_rates()
        for tensor in (self.total, self.count, self.mask_by_class):
            tensor.zero_()
        return means

    def compute_mask_rates(self) -> dict[str, float]:
        """The share of imputed labels that counted, and among these the share of the most frequent class."""
        steps, total_rate = int(self.count[0]), float(self.mask_by_class.sum())
        if not steps or not len(self.mask_by_class):
            return {}
        top_class = {"mask_top_class": float(self.mask_by_class.max()) / total_rate} if total_rate else {}
        return {"mask_rate": total_rate / steps, **top_class}

    def state_dict(self) -> Params:
        state = {"total": self.total, "count": self.count, "first_bad": self.first_bad}
        return {**state, "counted": self.mask_by_class} if len(self.mask_by_class) else state

    def load_state_dict(self, tensors: Params) -> None:
        for name, current in self.state_dict().items():
            if name in tensors:  # a checkpoint may be older than the counts
                current.copy_(tensors[name])


def check_finite(first_bad: Tensor) -> None:
    """Raise if any value has stopped being a number, naming the first step and value."""
    bad = [(step, name) for name, step in zip(METRIC_NAMES, first_bad.tolist(), strict=True) if step >= 0]
    if bad:
        step, name = min(bad, key=lambda pair: (pair[0], BLAME_ORDER.index(pair[1])))
        raise NonFiniteCost(
            f"{METRIC_LABELS.get(name, name)} is not finite from step {step + 1} on; the last good checkpoint is kept; "
            "start again, in another --out, with a lower optim.lr or l2i.eta, or look for bad values in the data"
        )


def step_metrics(
    trainer: Trainer, costs: Costs, gradient: Tensor, outer: HoldoutGradient | None
) -> tuple[Params, Tensor | None]:
    """Costs over the whole batch, the base gradient's norm and, where there was an outer step, how the two compare.

    Beside them, where a mask leaves labels out, the share of those that count, by class.
    """
    local_metrics = {"c_t": costs.c_t.detach(), "c_u": costs.c_u.detach()}
    local_metrics |= {} if outer is None else {"c_h": outer.c_h}
    local_metrics |= {} if costs.mask_by_class is None else {"counted": costs.mask_by_class}
    metrics = trainer.ranks.average_tensors(local_metrics)  # each process has those of its share
    mask_by_class = metrics.pop("counted", None)
    base_norm, l2i = gradient.norm(), trainer.run.l2i
    metrics |= {"gradient": base_norm, "parameters": trainer.flat.values.norm()}
    if outer is None:
        return metrics, mask_by_class
    outer_norm = outer.gradient.norm()
    ratio = torch.where(base_norm > 0, outer_norm / base_norm, 0 * outer_norm)
    applied_rho = torch.where(outer_norm * base_norm > 0, trainer.scalars.compute_rho(outer.c_h, trainer.task.chance_loss), 0 * outer_norm)
    applied_ratio = applied_rho if l2i.update == "normalized" else ratio
    return {**metrics, "grad_ratio": applied_ratio, "grad_ratio_raw": ratio}, mask_by_class
