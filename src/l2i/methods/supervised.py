"""Supervised learning on the labelled samples alone (SL in the tables)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from l2i.batch import Batch, Net
from l2i.lanes import IN_TURN, Lanes
from l2i.methods.base import Costs, Method, View
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Supervised(Method):
    """C^T alone: no unlabelled sample is looked at."""

    name: ClassVar[str] = "supervised"
    imputes: ClassVar[bool] = False

    @property
    def views(self) -> tuple[View, ...]:
        return ()

    def costs(self, task: Task, net: Net, imputer: Net, batch: Batch, lanes: Lanes = IN_TURN) -> Costs:
        with lanes("labeled"):
            c_t = task.loss(net(batch.labeled.x), batch.labeled.y)
        return Costs(c_t, torch.zeros_like(c_t))
