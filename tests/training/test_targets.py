"""What the outer step imputes: each target against its formula, and exact against unrolled."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from l2i import InputError, Trainer, recipes, replace
from l2i.bilevel import exact, lookahead, unrolled
from l2i.bilevel.problem import Imputed
from l2i.methods.outer_targets import OUTER_TARGETS, make_outer_method
from problems import problem


def cost_of(name: str, f: Tensor, z: Tensor) -> Tensor:
    """The student's cost, written out."""
    if name == "cross_entropy":
        return -(z * f.log_softmax(1)).sum(1).mean()
    if name == "logits":
        return (f - z).square().mean()
    squash = torch.tanh if name == "tanh" else lambda value: value
    return (squash(f.softmax(1)) - squash(z)).square().mean()


@pytest.mark.parametrize("name", OUTER_TARGETS)
def test_a_targets_cost_is_its_formula(name: str) -> None:
    p = problem("pi-model")
    student = OUTER_TARGETS[name](student_view="strong").student(p.task, lookahead(p.model, p.params), p.batch)
    assert torch.equal(student.inputs, p.batch.unlabeled.strong)
    f, z = torch.randn(6, 4).double(), torch.rand(6, 4).double()
    assert torch.allclose(student.cost(f, Imputed.unmasked(z)), cost_of(name, f, z))


def test_labels_are_sharpened_masked_or_left_as_outputs() -> None:
    p = problem("pi-model")
    net = lookahead(p.model, p.params)
    outputs = net(p.batch.unlabeled.weak)
    z = outputs.softmax(1)
    found = {name: OUTER_TARGETS[name]().impute(p.task, net, p.batch) for name in OUTER_TARGETS}
    assert torch.allclose(found["sharpened"].z, F.normalize(z.square(), p=1, dim=1))
    assert torch.equal(found["masked"].weight, (z.max(1).values >= 0.95).double())
    assert torch.allclose(found["logits"].z, outputs)
    for name in ("soft", "tanh", "cross_entropy", "masked"):
        assert torch.allclose(found[name].z, z)


@pytest.mark.parametrize("name", OUTER_TARGETS)
def test_exact_is_unrolled_for_every_target(name: str) -> None:
    p = problem("pi-model")
    net, method = lookahead(p.model, p.params), OUTER_TARGETS[name]()
    imputed, student = method.impute(p.task, net, p.batch), method.student(p.task, net, p.batch)
    imputed = imputed._replace(weight=torch.ones_like(imputed.weight))  # none of these labels is confident

    def c_h(at: object) -> Tensor:
        return p.task.loss(at(p.batch.holdout.x), p.batch.holdout.y)  # type: ignore[operator,no-any-return]

    found = [rule(p.model, p.params, student, imputed, c_h, eta=0.3) for rule in (exact, unrolled)]
    assert torch.allclose(found[0], found[1], rtol=1e-9, atol=1e-14)
    assert found[0].abs().max() > 0


@pytest.mark.parametrize("name", ["cross_entropy", "sharpened", "masked", "logits"])
def test_targets_of_classes_are_refused_by_a_regression(name: str) -> None:
    run = replace(recipes.get("friedman/mean-teacher-l2i-60"), l2i={"outer_target": name})
    with pytest.raises(InputError, match="is for classes"):
        Trainer(run)


def test_the_methods_own_target_is_the_method() -> None:
    p = problem("uda")
    assert make_outer_method("method", p.method, p.task) is p.method
