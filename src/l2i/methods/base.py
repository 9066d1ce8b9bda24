"""What a semi-supervised method says: how it imputes (ψ), what it trains towards z (ℓ^u), and λ (section 3).

MERGED:
Labelled samples and views in one forward, with one set of BatchNorm statistics: left open in section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from l2i.bilevel.problem import Imputed, Net, Student
from l2i.data.batch import Batch
from l2i.errors import InputError
from l2i.quantity import resolve_count
from l2i.streams import SEQUENTIAL, StreamSchedule
from l2i.tasks.base import Task

View = Literal["weak", "weak2", "strong"]


class Costs(NamedTuple):
    """C^T and C^U of a base step."""

    c_t: Tensor
    c_u: Tensor
    mask_by_class: Tensor | None = None  # [C], the share of imputed labels that count, by class; where a mask leaves some out
    one_forward: bool = False  # whether both hang on one forward, so that one backward is for both


@dataclass(frozen=True, kw_only=True)
class Method:
    """Plain consistency between two views, the paper's general form; a method overrides what it does differently.

    The dataclass is its configuration. Nothing is drawn here: all randomness is in the batch.
    """

    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    imputer: ClassVar[Literal["model", "teacher"]] = "model"
    mixes_targets: ClassVar[bool] = False
    """Whether C^T's targets hold z as well: then both costs are one student in the inner step."""
    uses_pseudo_labels: ClassVar[bool] = True
    uses_confidence_mask: ClassVar[bool] = False
    """Whether only confident classes count."""
    needs_input_noise: ClassVar[bool] = False
    """Whether the student's inputs are looked for from a random direction."""

    weight: float = 1.0
    """λ, the weight of the unsupervised cost once ramped up."""
    rampup: int | float = 0
    """Steps over which λ grows linearly from 0, or a share of the run such as 0.4; 0 for none."""
    student_view: View = "weak2"
    """The view that the student sees; labels are imputed on the weak one."""

    @property
    def views(self) -> tuple[View, ...]:
        """The views of an unlabelled sample that a step needs."""
        return ("weak", self.student_view)

    @property
    def mix_alpha(self) -> float | None:
        """The parameter of MixUp's Beta draws, where the method mixes samples."""
        return None

    def compute_weight(self, step: int, steps: int) -> float:
        """λ(t) in a run of `steps`."""
        ramp_steps = resolve_count(self.rampup, steps)
        return self.weight if ramp_steps == 0 else self.weight * min(1.0, step / ramp_steps)

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        """ψ: the label of the weak view, carried to the student's."""
        return Imputed.unmasked(self.transport(task, task.to_label(net(batch.unlabeled.weak)), batch))

    def tracks_mask(self, task: Task) -> bool:
        """Whether a step measures which of its imputed labels count."""
        return self.uses_confidence_mask and task.kind == "classification"

    def transport(self, task: Task, z: Tensor, batch: Batch) -> Tensor:
        """A label of the weak view as a label of the student's."""
        return z if self.student_view == "weak" else task.transport_label(z, batch.unlabeled.affine_map)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        """ℓ^u on the student's view; `net`, whose statistics stay, is there to look for inputs with."""
        return Student(batch.unlabeled.views[self.student_view], make_weighted_cost(task.distance))

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        """C^T, a student too: its targets are known, but a method may mix z into them."""
        return Student(batch.labeled.x, lambda outputs, _: task.loss(outputs, batch.labeled.y))

    def compute_costs(self, task: Task, net: Net, imputer: Net, batch: Batch, streams: StreamSchedule = SEQUENTIAL) -> Costs:
        """C^T and C^U of the base step: no gradient reaches the imputed labels."""
        with streams("impute"), torch.no_grad():
            imputed = self.impute(task, imputer, batch)
        with streams("labeled"):
            supervised = self.supervised(task, net, batch)
            outputs = net(supervised.inputs)
            if self.mixes_targets:
                streams.wait("impute")
            c_t = supervised.cost(outputs, imputed)
        with streams("student"):
            student = self.student(task, imputer, batch)
            outputs = net(student.inputs)
            streams.wait("impute")  # the student is passed while labels are imputed: its inputs are free of them
            c_u = student.cost(outputs, imputed)
        streams.hold(imputed)
        with streams("impute"):  # beside the student
            return Costs(c_t, c_u, self.mask_by_class(task, imputed))

    def mask_by_class(self, task: Task, imputed: Imputed) -> Tensor | None:
        """The labels that count, by class; nothing where all count."""
        return (imputed.weight.unsqueeze(1) * imputed.z).mean(dim=0) if self.tracks_mask(task) else None


def make_weighted_cost(distance: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Imputed], Tensor]:
    """The cost made of a distance a sample: its mean, each sample counted by its weight."""
    return lambda outputs, imputed: (imputed.weight * distance(outputs, imputed.z)).mean()


class ConcatForward:
    """Φ of several batches by one forward; asked for one of them, it gives that batch's part of the outputs."""

    def __init__(self, net: Net, *batches: Tensor) -> None:
        if len({x.shape[1:] for x in batches}) > 1:
            shapes = ", ".join(str(list(x.shape[1:])) for x in batches)
            raise InputError(f"method.one_forward is for samples of one shape, not {shapes}; leave it out")
        unique_batches = list({id(x): x for x in batches}.values())  # a view may be both the one imputed on and the student's
        output_parts: Iterable[Tensor] = net(torch.cat(unique_batches)).split([len(x) for x in unique_batches])
        self.batch_outputs = list(zip(unique_batches, output_parts, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        return next(outputs for batch, outputs in self.batch_outputs if batch is x)


@dataclass(frozen=True, kw_only=True)
class OneForward(Method):
    """A method whose samples are all known before the first of them is passed."""

    one_forward: bool = False
    """Whether labelled samples and views are passed in one forward and share BatchNorm's statistics, as in FixMatch's
    code, or each have their own (docs/results.md); of methods that mix rows, the mixed ones. Outer steps pass theirs
    apart."""

    def compute_costs(self, task: Task, net: Net, imputer: Net, batch: Batch, streams: StreamSchedule = SEQUENTIAL) -> Costs:
        if not self.one_forward:
            return super().compute_costs(task, net, imputer, batch, streams)
        with streams("student"):
            supervised, student = self.supervised(task, net, batch), self.student(task, imputer, batch)
            weak_views = [] if self.mixes_targets else [batch.unlabeled.weak]  # what is mixed is none of the views
            joint_net = ConcatForward(net, supervised.inputs, *weak_views, student.inputs)
            with torch.no_grad():
                imputed = self.impute(task, imputer if self.mixes_targets else joint_net, batch)
            c_t = supervised.cost(joint_net(supervised.inputs), imputed)
            c_u = student.cost(joint_net(student.inputs), imputed)
            return Costs(c_t, c_u, self.mask_by_class(task, imputed), one_forward=True)
