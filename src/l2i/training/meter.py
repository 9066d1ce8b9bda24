"""What a run measures between two evaluations, kept on the device and read when it is logged."""

from __future__ import annotations

import torch
from torch import Tensor

from l2i.batch import Params
from l2i.errors import NonFiniteCost

NAMES = ("c_t", "c_u", "gradient", "parameters", "c_h", "outer_ratio", "outer_ratio_raw")  # an outer step's come last


class Meter:
    """Means since the last reading, and for each value the first step at which it was not a number."""

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros(len(NAMES), dtype=torch.float64, device=device)
        self.count = torch.zeros(len(NAMES), dtype=torch.int64, device=device)
        self.first_bad = torch.full((len(NAMES),), -1, device=device)

    def add(self, values: dict[str, Tensor], step: Tensor) -> None:
        """Take in a step's values, those of the outer step where there was one; nothing leaves the device."""
        names = [name for name in NAMES if name in values]
        assert names == list(NAMES[: len(names)])
        row = torch.stack([values[name].detach() for name in names]).double()
        self.total[: len(row)] += row
        self.count[: len(row)] += 1
        first = self.first_bad[: len(row)]
        first.copy_(torch.where((first < 0) & ~row.isfinite(), step, first))

    def check(self) -> None:
        """Raise if any value has stopped being a number, naming the first step and value."""
        bad = [(step, name) for name, step in zip(NAMES, self.first_bad.tolist(), strict=True) if step >= 0]
        if bad:
            step, name = min(bad, key=lambda pair: (pair[0], NAMES.index(pair[1])))
            raise NonFiniteCost(
                f"{name} is not finite from step {step + 1} on; the last good checkpoint is kept; "
                "start again, in another --out, with a lower optim.lr or l2i.eta, or look for bad values in the data"
            )

    def read(self) -> dict[str, float]:
        """The means of what was measured, and a new start; raises where a value is not a number."""
        self.check()
        found = zip(NAMES, (self.total / self.count).tolist(), self.count.tolist(), strict=True)
        means = {name: mean for name, mean, count in found if count}
        self.total.zero_()
        self.count.zero_()
        return means

    def state(self) -> Params:
        return {"total": self.total, "count": self.count, "first_bad": self.first_bad}

    def load(self, tensors: Params) -> None:
        for name, mine in self.state().items():
            mine.copy_(tensors[name])
