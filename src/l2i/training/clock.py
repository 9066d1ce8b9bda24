"""The numbers that change from step to step, held on the device: a recorded step reads them there."""

from __future__ import annotations

import torch
from torch import Tensor

from l2i.config import Run
from l2i.shares import resolved
from l2i.training.optim import rate_factor


class Clock:
    """λ(t), the share of the learning rate that is left, η, ρ and the teacher's share at a step."""

    def __init__(self, run: Run, device: torch.device, dtype: torch.dtype) -> None:
        self.run = run
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.weight, self.rate, self.eta, self.rho, self.fresh = torch.zeros(5, dtype=dtype, device=device).unbind()
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
        self.tell("rho", run.l2i.rho * self.share_of_rho(t, factor))
        self.tell("fresh", max(1 / (t + 1), 1 - run.optim.ema_decay))  # what the teacher takes of the model

    def share_of_rho(self, t: int, rate: float) -> float:
        """What its schedule leaves of ρ."""
        run, whole = self.run, self.run.method.weight
        shares = {
            "constant": 1.0,
            "falling": 1 - t / run.steps,
            "rate": rate,
            "weight": run.method.weight_at(t, run.steps) / whole if whole else 1.0,
        }
        return shares[run.l2i.rho_schedule]

    def faded(self, c_h: Tensor, guess: float) -> Tensor:
        """ρ at this step, where the hold-out cost is `c_h` and that of guessing `guess`."""
        l2i = self.run.l2i
        least = min(1.0, l2i.rho_least / l2i.rho) if l2i.rho else 1.0
        return self.rho * ((c_h / guess).clamp_max(1.0) ** l2i.fade).clamp_min(least)

    def outer_due(self, t: int) -> bool:
        """Whether a step has an outer one."""
        l2i = self.run.l2i
        return t % l2i.outer_every == 0 and t >= resolved(l2i.start, self.run.steps)

    def tell(self, name: str, value: float) -> None:
        """Write a number to the device, where it is another than before."""
        if self.told.get(name) != value:
            getattr(self, name).fill_(value)
            self.told[name] = value
