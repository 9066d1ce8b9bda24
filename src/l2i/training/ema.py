"""The teacher: an exponential moving average of the model (section 3, «Mean-teacher»)."""

import copy

import torch
from torch import Tensor, nn

from l2i.training.flat import Flat


class Teacher:
    """θ' ← α θ' + (1 − α) θ, with α growing from 0; it imputes for mean teacher, and it is what is evaluated."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.flat = Flat(dict(self.model.named_parameters()))

    @torch.no_grad()
    def update(self, model: nn.Module, values: Tensor, fresh: Tensor) -> None:
        """Take the share `fresh` = 1 − α of the model, whose parameters are `values`, and its buffers as they are."""
        self.flat.values.lerp_(values, fresh)
        pairs = list(zip(self.model.buffers(), model.buffers(), strict=True))
        for dtype in dict.fromkeys(buffer.dtype for buffer, _ in pairs):  # of one kind, they are copied in one go
            same = [pair for pair in pairs if pair[0].dtype == dtype]
            torch._foreach_copy_([own for own, _ in same], [theirs for _, theirs in same])
