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
    """Train for consistency between two views: the paper's general form, and the base class.

    A method overrides what differs. Its dataclass fields are its configuration. It draws no random
    numbers: everything random is in the batch.
    """

    name: ClassVar[str]
    """Name of the method in the registry and on the command line."""
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    """Tasks that the method supports."""
    imputer: ClassVar[Literal["model", "teacher"]] = "model"
    """Network that imputes labels: the model, or its average (the teacher)."""
    mixes_targets: ClassVar[bool] = False
    """The targets of C^T contain z, so both costs are one student in the inner step."""
    uses_pseudo_labels: ClassVar[bool] = True
    """The method imputes labels of unlabelled samples."""
    uses_confidence_mask: ClassVar[bool] = False
    """Only confident labels count, in classification."""
    needs_input_noise: ClassVar[bool] = False
    """The search for the student's inputs starts from a random direction."""

    weight: float = 1.0
    """Weight λ of the unsupervised cost C^U after its ramp-up."""
    rampup: int | float = 0
    """Steps over which λ grows linearly from 0, or a fraction of the run, such as 0.4."""
    student_view: View = "weak2"
    """View that the student sees; labels are imputed on the weak one."""

    @property
    def views(self) -> tuple[View, ...]:
        """Return the views of an unlabelled sample that a step needs."""
        return ("weak", self.student_view)

    @property
    def mix_alpha(self) -> float | None:
        """Return the parameter of MixUp's Beta distribution, or None without mixing."""
        return None

    def compute_weight(self, step: int, steps: int) -> float:
        """Return λ(t) at a step of a run of `steps`."""
        ramp_steps = resolve_count(self.rampup, steps)
        return self.weight if ramp_steps == 0 else self.weight * min(1.0, step / ramp_steps)

    def impute(self, task: Task, net: Net, batch: Batch) -> Imputed:
        """Impute the labels of the weak view, transported to the student's view (ψ)."""
        z = task.to_label(net(batch.unlabeled.weak))
        return Imputed.unmasked(self.transport(task, z, batch))

    def transport(self, task: Task, z: Tensor, batch: Batch) -> Tensor:
        """Transform labels of the weak view into labels of the student's view."""
        is_same_view = self.student_view == "weak"
        return z if is_same_view else task.transport_label(z, batch.unlabeled.affine_map)

    def student(self, task: Task, net: Net, batch: Batch) -> Student:
        """Return the student of ℓ^u: its inputs, and the cost that depends on the labels.

        `net` is for methods that search their inputs; it updates no BatchNorm statistics.
        """
        return Student(batch.unlabeled.views[self.student_view], make_weighted_cost(task.distance))

    def supervised(self, task: Task, net: Net, batch: Batch) -> Student:
        """Return C^T as a student; a method may mix z into its targets."""
        return Student(batch.labeled.x, lambda outputs, _: task.loss(outputs, batch.labeled.y))

    def extra_cost(self, task: Task, net: Net, batch: Batch) -> Tensor | None:
        """Return a cost to add to C^T, without ramp-up, or None."""
        return None

    def tracks_mask(self, task: Task) -> bool:
        """Return whether steps record how many imputed labels pass the mask."""
        return self.uses_confidence_mask and task.kind == "classification"

    def mask_by_class(self, task: Task, imputed: Imputed) -> Tensor | None:
        """Return the fraction of labels that pass the mask, by class; None without a mask."""
        if not self.tracks_mask(task):
            return None
        return (imputed.weight.unsqueeze(1) * imputed.z).mean(dim=0)


@dataclass(frozen=True, kw_only=True)
class OneForward(Method):
    """Add a joint forward of labelled samples and views."""

    one_forward: bool = False
    """Forward labelled samples and views (or their mixed rows) together, with shared BatchNorm
    statistics, as FixMatch's code does, instead of one forward each. Labels of a teacher or of
    mixed rows are imputed apart. Outer steps are not affected, see l2i.one_forward."""


def make_weighted_cost(
    sample_cost: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor, Imputed], Tensor]:
    """Turn a cost per sample into a mean weighted by how much each label counts."""
    return lambda outputs, imputed: (imputed.weight * sample_cost(outputs, imputed.z)).mean()
