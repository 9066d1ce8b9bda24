"""The numbers that change from step to step, held on the device: a recorded step reads them there."""

from __future__ import annotations

import torch

from l2i.config import Run
from l2i.training.optim import rate_factor


class Clock:
    """λ(t), the share of the learning rate that is left, η and the teacher's share at a step."""

    def __init__(self, run: Run, device: torch.device, dtype: torch.dtype) -> None:
        self.run = run
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.weight, self.rate, self.eta, self.fresh = torch.zeros(4, dtype=dtype, device=device).unbind()
        self.told: dict[str, float] = {}

    def set(self, t: int) -> None:
        """Go to a step; what has changed travels as an argument of a kernel, so nothing waits."""
        run = self.run
        factor = rate_factor(run.optim, t, run.steps)
        self.tell("step", t)
        self.tell("weight", run.method.weight_at(t, run.steps))
        self.tell("rate", factor)
        if run.l2i.eta is not None:
            self.tell("eta", run.l2i.eta * (factor if run.l2i.eta_schedule == "rate" else 1.0))
        self.tell("fresh", max(1 / (t + 1), 1 - run.optim.ema_decay))  # what the teacher takes of the model

    def tell(self, name: str, value: float) -> None:
        """Write a number to the device, where it is another than before."""
        if self.told.get(name) != value:
            getattr(self, name).fill_(value)
            self.told[name] = value
