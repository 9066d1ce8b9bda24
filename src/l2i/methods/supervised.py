"""Supervised learning on the labelled samples alone (SL in the tables)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from l2i.bilevel.problem import Net
from l2i.data.batch import Batch
from l2i.methods.base import Costs, Method, View
from l2i.streams import SEQUENTIAL, StreamSchedule
from l2i.tasks.base import Task


@dataclass(frozen=True, kw_only=True)
class Supervised(Method):
    """C^T alone: no unlabelled sample is looked at."""

    name: ClassVar[str] = "supervised"
    uses_pseudo_labels: ClassVar[bool] = False

    @property
    def views(self) -> tuple[View, ...]:
        return ()

    def compute_costs(self, task: Task, net: Net, imputer: Net, batch: Batch, streams: StreamSchedule = SEQUENTIAL) -> Costs:
        with streams("labeled"):
            c_t = task.loss(net(batch.labeled.x), batch.labeled.y)
        return Costs(c_t, torch.zeros_like(c_t))
