"""The teacher: an exponential moving average of the model (section 3, «Mean-teacher»)."""

import copy

import torch
from torch import nn


class Teacher:
    """θ' ← α θ' + (1 − α) θ, with α growing from 0; it imputes for mean teacher, and it is what is evaluated."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        alpha = min(1 - 1 / (step + 1), self.decay)
        torch._foreach_lerp_(list(self.model.parameters()), [p.detach() for p in model.parameters()], 1 - alpha)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)
