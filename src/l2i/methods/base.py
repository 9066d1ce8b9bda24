"""A semi-supervised method: how it imputes (ψ), what it trains towards z (ℓ^u), λ (section 3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import Batch
from l2i.quantity import resolve_count
from l2i.tasks import Task

View = Literal["weak", "weak2", "strong"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Consistency between two views, the paper's general form; methods override what differs.

    The dataclass is its configuration. Methods draw nothing: all randomness is in the batch.
    """

    name: ClassVar[str]
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    imputer: ClassVar[Literal["model", "teacher"]] = "model"
    mixes_targets: ClassVar[bool] = False
    """Whether targets of C^T contain z: both costs then are one student in the inner step."""
    uses_pseudo_labels: ClassVar[bool] = True
    uses_confidence_mask: ClassVar[bool] = False
    """Whether only confident labels count, in classification."""
    needs_input_noise: ClassVar[bool] = False
    """Whether the search for the student's inputs starts from a random direction."""

    weight: float = 1.0
    """λ, the weight of the unsupervised cost after its ramp-up."""
    rampup: int | float = 0
    """Steps over which λ grows linearly from 0, or a fraction of the run, such as 0.4."""
    student_view: View = "weak2"
    """View that the student sees; labels are imputed on the weak one."""

    @property
    def views(self) -> tuple[View, ...]:
        """The views of an unlabelled sample that a step needs."""
        return ("weak", self.student_view)

    @property
    def mix_alpha(self) -> float | None:
        """The parameter of MixUp's Beta distribution, if the method mixes samples."""
        return None

    def compute_weight(self, step: int, steps: int) -> float:
        """Return λ(t) in a run of `steps`."""
        ramp_steps = resolve_count(self.rampup, steps)
        return self.weight if ramp_steps == 0 else self.weight * min(1.0, step / ramp_steps)

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        """ψ: impute the label of the weak view, transported to the student's."""
        z = task.to_label(net(batch.unlabeled.weak))
        return Imputed.unmasked(self.transport(task, z, batch))

    def transport(self, task: Task, z: Tensor, batch: Batch) -> Tensor:
        """Turn a label of the weak view into one of the student's view."""
        is_same_view = self.student_view == "weak"
        return z if is_same_view else task.transport_label(z, batch.unlabeled.affine_map)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        """Return the student of ℓ^u; `net` is for searching inputs, and updates no statistics."""
        return Student(batch.unlabeled.views[self.student_view], make_weighted_cost(task.distance))

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        """Return C^T as a student, since a method may mix z into its targets."""
        return Student(batch.labeled.x, lambda outputs, _: task.loss(outputs, batch.labeled.y))

    def extra_cost(self, task: Task, net: Net, batch: Batch) -> Tensor | None:
        """Return a cost to add to C^T, without a ramp-up; None for none."""
        return None

    def tracks_mask(self, task: Task) -> bool:
        """Return whether a step measures which of its imputed labels count."""
        return self.uses_confidence_mask and task.kind == "classification"

    def mask_by_class(self, task: Task, imputed: Imputed) -> Tensor | None:
        """Return the share of labels that count, by class; None if all count."""
        if not self.tracks_mask(task):
            return None
        return (imputed.weight.unsqueeze(1) * imputed.z).mean(dim=0)


@dataclass(frozen=True, kw_only=True)
class OneForward(Method):
    """A method whose samples are all known before the first of them is passed."""

    one_forward: bool = False
    """Pass labelled samples and views (or their mixed rows) in one forward with shared BatchNorm
    statistics, as FixMatch's code does, instead of one forward each (benchmarks/). Outer steps
    are not affected."""


def make_weighted_cost(
    sample_cost: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Imputed], Tensor]:
    """Turn a cost per sample into a mean, weighted by how much each label counts."""
    return lambda outputs, imputed: (imputed.weight * sample_cost(outputs, imputed.z)).mean()
