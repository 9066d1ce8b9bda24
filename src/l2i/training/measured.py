"""A step's figures, still on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from l2i.batch import Params
from l2i.methods.base import Costs
from l2i.training.gradients import HeldGradient

if TYPE_CHECKING:
    from l2i.training.trainer import Trainer


def measured(
    trainer: Trainer, costs: Costs, gradient: Tensor, outer: HeldGradient | None
) -> tuple[Params, Tensor | None]:
    """Costs over the whole batch, the base gradient's norm and, where there was an outer step, how the two compare.

    Beside them, where a mask leaves labels out, the share of those that count, by class.
    """
    sent = {"c_t": costs.c_t.detach(), "c_u": costs.c_u.detach()}
    sent |= {} if outer is None else {"c_h": outer.c_h}
    sent |= {} if costs.counted is None else {"counted": costs.counted}
    found = trainer.ranks.mean_of(sent)  # each process has those of its share
    counted = found.pop("counted", None)
    size, l2i = gradient.norm(), trainer.run.l2i
    found |= {"gradient": size, "parameters": trainer.flat.values.norm()}
    if outer is None:
        return found, counted
    own = outer.gradient.norm()
    ratio = torch.where(size > 0, own / size, 0 * own)
    applied = torch.where(own * size > 0, trainer.clock.faded(outer.c_h, trainer.task.guess), 0 * own)
    realised = applied if l2i.outer_update == "normalized" else ratio
    return {**found, "outer_ratio": realised, "outer_ratio_raw": ratio}, counted
