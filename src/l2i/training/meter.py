"""What a run measures between two evaluations, kept on the device and read when it is logged."""

from __future__ import annotations

import torch
from torch import Tensor

from l2i.batch import Params
from l2i.errors import NonFiniteCost

NAMES = ("c_t", "c_u", "gradient", "parameters", "c_h", "outer_ratio", "outer_ratio_raw")  # an outer step's come last
CAUSES = ("c_t", "c_u", "c_h", "gradient", "outer_ratio", "outer_ratio_raw", "parameters")  # named before their effects
WORDS = {
    "parameters": "the norm of the parameters",
    "outer_ratio": "the outer gradient",
    "outer_ratio_raw": "the outer gradient",
}  # what they are not finite for


class Meter:
    """Means since the last reading, and for each value the first step at which it was not a number.

    `classes` is how many there are, where the run's method counts the imputed labels that pass its mask.
    """

    def __init__(self, device: torch.device, *, classes: int = 0) -> None:
        self.total = torch.zeros(len(NAMES), dtype=torch.float64, device=device)
        self.count = torch.zeros(len(NAMES), dtype=torch.int64, device=device)
        self.first_bad = torch.full((len(NAMES),), -1, device=device)
        self.counted = torch.zeros(classes, dtype=torch.float64, device=device)

    def add(self, values: dict[str, Tensor], step: Tensor, counted: Tensor | None = None) -> None:
        """Take in a step's values, those of the outer step where there was one; nothing leaves the device."""
        names = [name for name in NAMES if name in values]
        assert names == list(NAMES[: len(names)])
        row = torch.stack([values[name].detach() for name in names]).double()
        self.total[: len(row)] += row
        self.count[: len(row)] += 1
        first = self.first_bad[: len(row)]
        first.copy_(torch.where((first < 0) & ~row.isfinite(), step, first))
        if counted is not None and len(self.counted):
            self.counted += counted

    def check(self) -> None:
        """Raise if any value has stopped being a number."""
        check_finite(self.first_bad)

    def read(self) -> dict[str, float]:
        """The means of what was measured, and a new start; raises where a value is not a number."""
        self.check()
        found = zip(NAMES, (self.total / self.count).tolist(), self.count.tolist(), strict=True)
        means = {name: mean for name, mean, count in found if count} | self.mask()
        for tensor in (self.total, self.count, self.counted):
            tensor.zero_()
        return means

    def mask(self) -> dict[str, float]:
        """The share of imputed labels that counted, and among these the share of the most frequent class."""
        steps, counted = int(self.count[0]), float(self.counted.sum())
        if not steps or not len(self.counted):
            return {}
        top = {"top_class": float(self.counted.max()) / counted} if counted else {}
        return {"mask": counted / steps, **top}

    def state(self) -> Params:
        state = {"total": self.total, "count": self.count, "first_bad": self.first_bad}
        return {**state, "counted": self.counted} if len(self.counted) else state

    def load(self, tensors: Params) -> None:
        for name, mine in self.state().items():
            if name in tensors:  # a checkpoint may be older than the counts
                mine.copy_(tensors[name])


def check_finite(first_bad: Tensor) -> None:
    """Raise if any value has stopped being a number, naming the first step and value."""
    bad = [(step, name) for name, step in zip(NAMES, first_bad.tolist(), strict=True) if step >= 0]
    if bad:
        step, name = min(bad, key=lambda pair: (pair[0], CAUSES.index(pair[1])))
        raise NonFiniteCost(
            f"{WORDS.get(name, name)} is not finite from step {step + 1} on; the last good checkpoint is kept; "
            "start again, in another --out, with a lower optim.lr or l2i.eta, or look for bad values in the data"
        )
