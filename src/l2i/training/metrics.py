"""Metrics of training steps, accumulated on the device and read at evaluations."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch
from torch import Tensor

from l2i.bilevel.functional import Params
from l2i.distributed import current_group
from l2i.errors import NonFiniteCost
from l2i.training.step import Costs, FlatOuterGradient

MetricRow = dict[str, float | int | None]

METRIC_NAMES = ("c_t", "c_u", "gradient", "parameters", "c_h", "grad_ratio", "grad_ratio_raw")
# causes before their effects, to name the culprit of the first step that is not finite
BLAME_ORDER = ("c_t", "c_u", "c_h", "gradient", "grad_ratio", "grad_ratio_raw", "parameters")
OUTER_LABELS = dict.fromkeys(("grad_ratio", "grad_ratio_raw"), "the outer gradient")
NON_FINITE_ADVICE = (
    "the last good checkpoint is kept; train again with a different --out and a lower optim.lr "
    "or l2i.paper.eta, or check the data for bad values"
)
METRIC_LABELS = {"parameters": "the norm of the parameters", **OUTER_LABELS}


def parse_metrics(content: bytes) -> list[MetricRow]:
    """Parse metrics.jsonl; raise ValueError, TypeError or KeyError if it is damaged."""
    rows: list[MetricRow] = [json.loads(line) for line in content.splitlines()]
    if not all(row["step"] and "test" in row and "validation" in row for row in rows):
        raise ValueError("not rows of metrics")
    return rows


def compute_step_weighted_mean(
    rows: Iterable[tuple[float, MetricRow]], column: str
) -> float | None:
    """Average a column over the rows that have it, each weighted by the steps it covers."""
    present = [(steps, value) for steps, row in rows if (value := row.get(column)) is not None]
    total = sum(steps for steps, _ in present)
    return sum(steps * value for steps, value in present) / total if total else None


class MetricAccumulator:
    """Means since the last reading, and for each metric the first step at which it was not finite.

    `classes` is the number of classes if the run's method counts the labels that pass its mask.
    """

    def __init__(self, device: torch.device, *, classes: int = 0) -> None:
        self.total = torch.zeros(len(METRIC_NAMES), dtype=torch.float64, device=device)
        self.count = torch.zeros(len(METRIC_NAMES), dtype=torch.int64, device=device)
        self.first_bad = torch.full((len(METRIC_NAMES),), -1, device=device)
        self.mask_by_class = torch.zeros(classes, dtype=torch.float64, device=device)

    def add(self, values: Params, step: Tensor, mask_by_class: Tensor | None = None) -> None:
        """Add the metrics of a step and its outer step, if any; nothing leaves the device."""
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
        check_finite(self.first_bad)

    def read(self) -> dict[str, float]:
        """Return the means and start over; raise if a metric was not finite."""
        self.raise_if_nonfinite()
        means, counts = (self.total / self.count).tolist(), self.count.tolist()
        columns = zip(METRIC_NAMES, means, counts, strict=True)
        row = {name: mean for name, mean, count in columns if count} | self._compute_mask_rates()
        for tensor in (self.total, self.count, self.mask_by_class):
            tensor.zero_()
        return row

    def _compute_mask_rates(self) -> dict[str, float]:
        """Return the fraction of labels that pass the mask, and the top class's share of these."""
        steps, total_rate = int(self.count[0]), float(self.mask_by_class.sum())
        if not steps or not len(self.mask_by_class):
            return {}
        rates = {"mask_rate": total_rate / steps}
        if total_rate:
            rates["mask_top_class"] = float(self.mask_by_class.max()) / total_rate
        return rates

    def state_dict(self) -> Params:
        state = {"total": self.total, "count": self.count, "first_bad": self.first_bad}
        return {**state, "counted": self.mask_by_class} if len(self.mask_by_class) else state

    def load_state_dict(self, tensors: Params) -> None:
        for name, current in self.state_dict().items():
            if name in tensors:  # an old checkpoint may have no mask counts
                current.copy_(tensors[name])


def check_finite(first_bad: Tensor) -> None:
    """Raise if a metric was not finite, naming the first step and the metric to blame."""
    steps = zip(first_bad.tolist(), METRIC_NAMES, strict=True)
    bad = [(step, BLAME_ORDER.index(name)) for step, name in steps if step >= 0]
    if bad:
        step, index = min(bad)
        name = BLAME_ORDER[index]
        raise NonFiniteCost(
            f"{METRIC_LABELS.get(name, name)} is NaN or infinite from step {step + 1} on; "
            f"{NON_FINITE_ADVICE}"
        )


def compute_step_metrics(
    costs: Costs,
    gradient: Tensor,
    outer: FlatOuterGradient | None,
    theta: Tensor,
    rho: Tensor | None,
) -> tuple[Params, Tensor | None]:
    """Return a step's costs and gradient norms, and the shares of labels that pass the mask.

    `rho` is the ratio of a normalized update, if the step took one. The shares, by class, are None
    if the method has no mask.
    """
    local_metrics = {"c_t": costs.c_t.detach(), "c_u": costs.c_u.detach()}
    local_metrics |= {} if outer is None else {"c_h": outer.c_h}
    local_metrics |= {} if costs.mask_by_class is None else {"counted": costs.mask_by_class}
    metrics = current_group().average_tensors(local_metrics)  # each process has those of its share
    mask_by_class = metrics.pop("counted", None)
    base_norm = gradient.norm()
    metrics |= {"gradient": base_norm, "parameters": theta.norm()}
    if outer is None:
        return metrics, mask_by_class
    outer_norm = outer.gradient.norm()
    ratio = applied_ratio = torch.where(base_norm > 0, outer_norm / base_norm, 0 * outer_norm)
    if rho is not None:
        applied_ratio = torch.where(outer_norm * base_norm > 0, rho, 0 * outer_norm)
    return {**metrics, "grad_ratio": applied_ratio, "grad_ratio_raw": ratio}, mask_by_class
