"""Parameters in one piece of memory, so that what is done to all of them takes one kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from l2i.batch import Params
from l2i.errors import InputError

APART = 64  # values: where each parameter begins, so that kernels may read several at once


class Flat:
    """The parameters keep their names, shapes and order of memory, but lie one behind the other in `values`."""

    def __init__(self, params: Params) -> None:
        starts, self.size = {}, 0
        for name, p in params.items():
            starts[name] = self.size
            self.size += -(-p.numel() // APART) * APART
        self.layout = {name: (starts[name], p.shape, dense(p).stride()) for name, p in params.items()}
        first = next(iter(params.values()))
        self.values = torch.zeros(self.size, dtype=first.dtype, device=first.device)
        for name, place in self.split(self.values).items():
            place.copy_(params[name].detach())
            params[name].data = place

    def check(self, params: Params) -> None:
        """That the parameters still lie here; a model that was moved or given to two trainers has left."""
        name = next(iter(params))
        if params[name].data_ptr() != self.values.data_ptr() + self.layout[name][0] * self.values.element_size():
            raise InputError("the model was moved or given to another trainer; make a new trainer with it")

    def split(self, flat: Tensor) -> Params:
        """Such a piece as named tensors, which share its memory."""
        return {name: flat.as_strided(shape, stride, start) for name, (start, shape, stride) in self.layout.items()}

    def gathered(self, named: Params) -> Tensor:
        """Named tensors as such a piece, all of one kind copied in one go; nothing where there is none."""
        flat = torch.zeros_like(self.values)
        places = self.split(flat)
        for dtype in dict.fromkeys(value.dtype for value in named.values()):
            names = [name for name, value in named.items() if value.dtype == dtype]
            torch._foreach_copy_([places[name] for name in names], [named[name] for name in names])
        return flat


def dense(p: Tensor) -> Tensor:
    """Room for a parameter in its own order of memory, without the gaps that an expanded one has."""
    return torch.empty_like(p.detach())
