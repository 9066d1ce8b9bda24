"""Labelled samples and views in one forward, with one set of BatchNorm statistics: left open in section 3."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from l2i.batch import Batch, Net
from l2i.errors import InputError
from l2i.lanes import IN_TURN, Lanes
from l2i.methods.base import Costs, Method
from l2i.tasks.base import Task


class OnePass:
    """Φ of several batches by one forward; asked for one of them, it gives that batch's part of the outputs."""

    def __init__(self, net: Net, *batches: Tensor) -> None:
        if len({x.shape[1:] for x in batches}) > 1:
            shapes = ", ".join(str(list(x.shape[1:])) for x in batches)
            raise InputError(f"method.one_forward is for samples of one shape, not {shapes}; leave it out")
        once = list({id(x): x for x in batches}.values())  # a view may be both the one imputed on and the student's
        parts: Iterable[Tensor] = net(torch.cat(once)).split([len(x) for x in once])
        self.passed = list(zip(once, parts, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        return next(outputs for batch, outputs in self.passed if batch is x)


@dataclass(frozen=True, kw_only=True)
class OneForward(Method):
    """A method whose samples are all known before the first of them is passed."""

    one_forward: bool = False
    """Whether labelled samples and views are passed in one forward and share BatchNorm's statistics, as in FixMatch's
    code, or each have their own (docs/results.md); of methods that mix rows, the mixed ones. Outer steps pass theirs
    apart."""

    def costs(self, task: Task, net: Net, imputer: Net, batch: Batch, lanes: Lanes = IN_TURN) -> Costs:
        if not self.one_forward:
            return super().costs(task, net, imputer, batch, lanes)
        with lanes("student"):
            supervised, student = self.supervised(task, net, batch), self.student(task, imputer, batch)
            weak = [] if self.mixes_labels else [batch.unlabeled.weak]  # what is mixed is none of the views
            passed = OnePass(net, supervised.inputs, *weak, student.inputs)
            with torch.no_grad():
                imputed = self.impute(task, imputer if self.mixes_labels else passed, batch)
            c_t = supervised.cost(passed(supervised.inputs), imputed)
            c_u = student.cost(passed(student.inputs), imputed)
            return Costs(c_t, c_u, self.counted(task, imputed), one_forward=True)
