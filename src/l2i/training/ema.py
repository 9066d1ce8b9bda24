"""The teacher: an exponential moving average of the model (section 3, «Mean-teacher»)."""

import copy

import torch
from torch import Tensor, nn


class Teacher:
    """θ' ← α θ' + (1 − α) θ, with α growing from 0; it imputes for mean teacher, and it is what is evaluated."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, fresh: Tensor) -> None:
        """Take the share `fresh` = 1 − α of the model, and its buffers as they are."""
        mine: list[Tensor] = list(self.model.parameters())
        change = torch._foreach_sub([p.detach() for p in model.parameters()], mine)
        torch._foreach_mul_(change, fresh)
        torch._foreach_add_(mine, list(change))
        pairs = list(zip(self.model.buffers(), model.buffers(), strict=True))
        for dtype in dict.fromkeys(buffer.dtype for buffer, _ in pairs):  # of one kind, they are copied in one go
            same = [pair for pair in pairs if pair[0].dtype == dtype]
            torch._foreach_copy_([own for own, _ in same], [theirs for _, theirs in same])
