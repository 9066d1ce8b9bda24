"""Small float64 problems that tests share: a network with BatchNorm in train mode, and batches."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from l2i.bilevel import lookahead, trainable
from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import AffineMap, Batch, Labeled, MixupDraws, Unlabeled
from l2i.methods import METHODS
from l2i.methods.base import Method
from l2i.registry import load_registered
from l2i.tasks import Classification, Regression, Task

FLOAT64 = torch.float64
LABELED, UNLABELED, HELD, FEATURES, OUTPUTS = 5, 6, 7, 8, 4


def method_named(name: str) -> Method:
    """A method of the registry that lets some of its labels count and some not."""
    cls = load_registered("method", METHODS, name)
    return cls(threshold=0.3) if "threshold" in cls.__dataclass_fields__ else cls()


def imputing_methods() -> list[tuple[str, str]]:
    """Every (method, task) that L2I applies to."""
    classes = {name: load_registered("method", METHODS, name) for name in METHODS}
    return [
        (name, task)
        for name, cls in classes.items()
        if cls.uses_pseudo_labels
        for task in cls.tasks
    ]


def network(dropout: float = 0.0) -> nn.Module:
    layers = [
        nn.Linear(FEATURES, 16),
        nn.BatchNorm1d(16),
        nn.Tanh(),
        nn.Linear(16, 12),
        nn.BatchNorm1d(12),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(12, OUTPUTS)).to(FLOAT64).train()


def task_named(kind: str) -> Task:
    if kind == "classification":
        return Classification(num_outputs=OUTPUTS)
    return Regression.from_targets(5 * torch.randn(20, OUTPUTS, dtype=FLOAT64) + 30, points=True)


def labeled(task: Task, size: int) -> Labeled:
    x = torch.randn(size, FEATURES, dtype=FLOAT64)
    if task.kind == "classification":
        return Labeled(x, torch.randint(OUTPUTS, (size,)))
    return Labeled(x, torch.randn(size, OUTPUTS, dtype=FLOAT64))


def make_batch(task: Task) -> Batch:
    """Random draws of everything a method may ask for; landmarks come with a moved crop."""
    x = torch.randn(UNLABELED, FEATURES, dtype=FLOAT64)
    views = {name: x + 0.3 * torch.randn_like(x) for name in ("weak", "weak2", "strong")}
    frame = AffineMap(
        torch.full((UNLABELED, 2), 1.1, dtype=FLOAT64), torch.randn(UNLABELED, 2, dtype=FLOAT64)
    )
    rows = LABELED + 2 * UNLABELED
    mix = MixupDraws(torch.randperm(rows), torch.rand(rows, dtype=FLOAT64))
    held = labeled(task, HELD)
    unlabeled = Unlabeled(views, frame if task.kind == "regression" else None, torch.randn_like(x))
    return Batch(labeled(task, LABELED), unlabeled, mix, held, torch.tensor(0.3, dtype=FLOAT64))


class ToyProblem(NamedTuple):
    model: nn.Module
    task: Task
    method: Method
    batch: Batch

    @property
    def params(self) -> dict[str, Tensor]:
        return trainable(self.model)

    def impute(self, params: dict[str, Tensor] | None = None) -> Imputed:
        """Labels of the live model, with their gradient."""
        return self.method.impute(
            self.task, lookahead(self.model, params or self.params), self.batch
        )

    def student(self) -> Student:
        return self.method.student(self.task, lookahead(self.model, self.params), self.batch)

    def supervised(self) -> Student:
        return self.method.supervised(self.task, lookahead(self.model, self.params), self.batch)

    def c_h(self, net: Net) -> Tensor:
        held = self.batch.holdout
        assert held is not None
        return self.task.loss(net(held.x), held.y)

    def inner(self, *, with_c_t: bool, imputed: Imputed) -> dict[str, object]:
        """The student and C^T of the inner step.

        One student where the method mixes labels, two costs elsewhere.
        """
        student, supervised = self.student(), self.supervised()
        if not with_c_t:
            return {"student": student, "c_t": None}
        if self.method.mixes_targets:
            return {"student": supervised.concat(student), "c_t": None}
        return {"student": student, "c_t": lambda net: supervised.cost_of(net, imputed.detach())}


def problem(
    method: str = "pi-model", task: str = "classification", dropout: float = 0.0
) -> ToyProblem:
    chosen = task_named(task)
    return ToyProblem(network(dropout), chosen, method_named(method), make_batch(chosen))


def relative(got: Tensor, wanted: Tensor) -> float:
    assert got.shape == wanted.shape
    assert wanted.norm() > 0
    return float((got - wanted).norm() / wanted.norm())
