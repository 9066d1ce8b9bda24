"""What the outer step imputes: soft labels by the squared distance, whatever the method."""

import pytest
import torch
from torch import Tensor

from l2i import Run, Trainer, recipes, replace
from l2i.bilevel import Problem, exact, lookahead, unrolled
from l2i.bilevel.problem import Imputed
from problems import imputing_methods, problem


def small(method: str) -> Run:
    return replace(
        recipes.get(f"digits/{method}-l2i-40"),
        device="cpu",
        precision="float64",
        model={"name": "conv", "width": 4},
        batch={"labeled": 8, "unlabeled": 8, "holdout": 8},
    )


@pytest.mark.parametrize("method", sorted({method for method, _ in imputing_methods()}))
def test_the_outer_step_imputes_soft_labels_on_the_methods_view(method: str) -> None:
    trainer = Trainer(small(method))
    batch, net = trainer.loader.draw_batch(0), lookahead(trainer.model, trainer.params)
    outer, task = trainer.gradients.outer_method, trainer.task
    imputed, student = outer.impute(task, net, batch), outer.student(task, net, batch)
    assert torch.allclose(imputed.z, net(batch.unlabeled.weak).softmax(1))
    assert torch.equal(imputed.weight, torch.ones(8).double())
    view = trainer.run.method.student_view
    assert torch.equal(student.inputs, batch.unlabeled.views[view])
    f, z = torch.randn(8, 10).double(), torch.rand(8, 10).double()
    wanted = (f.softmax(1) - z).square().mean()
    assert torch.allclose(student.cost(f, Imputed.unmasked(z)), wanted)


def test_the_outer_step_of_a_regression_imputes_predictions() -> None:
    run = replace(recipes.get("friedman/mean-teacher-l2i-60"), device="cpu", precision="float64")
    trainer = Trainer(run)
    batch, net = trainer.loader.draw_batch(0), lookahead(trainer.model, trainer.params)
    outer, task = trainer.gradients.outer_method, trainer.task
    imputed, student = outer.impute(task, net, batch), outer.student(task, net, batch)
    assert torch.allclose(imputed.z, net(batch.unlabeled.weak))
    f, z = torch.randn(2, *imputed.z.shape).double()
    assert torch.allclose(student.cost(f, Imputed.unmasked(z)), (f - z).square().mean())


def test_exact_is_unrolled_for_soft_labels() -> None:
    p = problem("pi-model")
    imputed, student = p.impute(), p.student()

    def c_h(at: object) -> Tensor:
        return p.task.loss(at(p.batch.holdout.x), p.batch.holdout.y)  # type: ignore[operator,no-any-return]

    actual = [
        rule(Problem(p.model, p.params, student, imputed, c_h, eta=0.3))
        for rule in (exact, unrolled)
    ]
    assert torch.allclose(actual[0], actual[1], rtol=1e-9, atol=1e-14)
    assert actual[0].abs().max() > 0
