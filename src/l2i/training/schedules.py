"""The numbers that change from step to step, held on the device: a recorded step reads them there."""

from __future__ import annotations

import torch
from torch import Tensor

from l2i.config import Run
from l2i.quantity import resolve_count
from l2i.training.optimizer import compute_lr_factor


class StepScalars:
    """λ(t), the share of the learning rate that is left, η, ρ and the teacher's share at a step."""

    def __init__(self, run: Run, device: torch.device, dtype: torch.dtype) -> None:
        self.run = run
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.weight, self.lr_factor, self.eta, self.rho, self.ema_weight = torch.zeros(5, dtype=dtype, device=device).unbind()
        self.last_values: dict[str, float] = {}

    def set_step(self, t: int) -> None:
        """Go to a step; what has changed travels as an argument of a kernel, so nothing waits."""
        run = self.run
        lr_factor = compute_lr_factor(run.optim, t, run.steps)
        self.write_scalar("step", t)
        self.write_scalar("weight", run.method.compute_weight(t, run.steps))
        self.write_scalar("lr_factor", lr_factor)
        if run.l2i.eta is not None:
            self.write_scalar("eta", run.l2i.eta * (lr_factor if run.l2i.eta_schedule == "rate" else 1.0))
        self.write_scalar("rho", run.l2i.rho * self.compute_rho_factor(t, lr_factor))
        self.write_scalar("ema_weight", max(1 / (t + 1), 1 - run.optim.ema_decay))  # what the teacher takes of the model

    def compute_rho_factor(self, t: int, lr_factor: float) -> float:
        """What its schedule leaves of ρ."""
        run, full_weight = self.run, self.run.method.weight
        factors = {
            "constant": 1.0,
            "falling": 1 - t / run.steps,
            "rate": lr_factor,
            "weight": run.method.compute_weight(t, run.steps) / full_weight if full_weight else 1.0,
        }
        return factors[run.l2i.rho_schedule]

    def compute_rho(self, c_h: Tensor, chance_loss: float) -> Tensor:
        """ρ at this step, where the hold-out cost is `c_h` and that of guessing `guess`."""
        l2i = self.run.l2i
        min_factor = min(1.0, l2i.rho_least / l2i.rho) if l2i.rho else 1.0
        return self.rho * ((c_h / chance_loss).clamp_max(1.0) ** l2i.fade).clamp_min(min_factor)

    def is_outer_step(self, t: int) -> bool:
        """Whether a step has an outer one."""
        l2i = self.run.l2i
        return t % l2i.every == 0 and t >= resolve_count(l2i.start, self.run.steps)

    def write_scalar(self, name: str, value: float) -> None:
        """Write a number to the device, where it is another than before."""
        if self.last_values.get(name) != value:
            getattr(self, name).fill_(value)
            self.last_values[name] = value
