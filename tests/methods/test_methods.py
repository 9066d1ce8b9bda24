import inspect
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import l2i.methods
from l2i.batch import Imputed
from l2i.bilevel import lookahead
from l2i.methods import METHODS
from l2i.methods.mixmatch import MixMatch
from l2i.registry import load
from problems import Problem, imputing_methods, problem


def outputs(p: Problem, view: str) -> torch.Tensor:
    return lookahead(p.model, p.params)(p.batch.unlabeled.views[view]).detach()


@pytest.mark.parametrize("name", METHODS)
def test_the_registry_names_the_class(name: str) -> None:
    assert load("method", METHODS, name).name == name


def test_every_method_fits_on_a_screen() -> None:
    for path in Path(inspect.getfile(l2i.methods)).parent.glob("*.py"):
        if path.stem not in ("base", "__init__"):
            assert len(path.read_text().splitlines()) < 80, path


@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_student_inputs_are_free_of_z_and_its_cost_depends_on_it(method: str, task: str) -> None:
    """The Student rule: the same inputs whatever the labels, and another cost for other labels."""
    p = problem(method, task)
    imputed = p.impute().detached()
    student = p.student()
    f = lookahead(p.model, p.params)(student.inputs).detach()
    other = Imputed(imputed.z.roll(1, dims=1), imputed.weight)
    assert torch.equal(student.inputs, p.student().inputs)
    assert not torch.equal(student.cost(f, imputed), student.cost(f, other))


@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_no_gradient_reaches_the_labels_in_the_base_step(method: str, task: str) -> None:
    p = problem(method, task)
    net = lookahead(p.model, p.params)
    imputer = lookahead(problem(method, task).model, p.params)
    costs = p.method.costs(p.task, net, imputer, p.batch)
    fixed = p.method.impute(p.task, imputer, p.batch).detached()
    wanted = p.method.student(p.task, net, p.batch).evaluate(net, fixed)
    got, want = (torch.autograd.grad(c, list(p.params.values()), retain_graph=True) for c in (costs.c_u, wanted))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_pi_model_compares_two_views_by_squared_distance() -> None:
    p = problem("pi-model")
    wanted = F.mse_loss(outputs(p, "weak2").softmax(1), outputs(p, "weak").softmax(1))
    got = p.student().cost(outputs(p, "weak2"), p.impute().detached())
    assert float(got) == pytest.approx(float(wanted))


def test_fixmatch_is_masked_cross_entropy_to_the_argmax() -> None:
    p = problem("fixmatch")
    confidence, label = outputs(p, "weak").softmax(1).max(1)
    losses = F.cross_entropy(outputs(p, "strong"), label, reduction="none")
    mask = confidence >= p.method.threshold
    assert 0 < int(mask.sum()) < len(mask)
    got = p.student().cost(outputs(p, "strong"), p.impute())
    assert float(got) == pytest.approx(float((losses * mask).mean()))


def test_pseudo_label_for_regression_is_the_prediction_carried_to_the_other_crop() -> None:
    p = problem("pseudo-label", "regression")
    wanted = p.task.move(outputs(p, "weak"), p.batch.unlabeled.frame)
    assert torch.allclose(p.impute().z.detach(), wanted)
    assert not torch.allclose(wanted, outputs(p, "weak"))


def test_pseudo_label_on_one_view_is_lees() -> None:
    p = problem("pseudo-label")
    p = p._replace(method=type(p.method)(student_view="weak", threshold=0.3))
    assert p.method.views == ("weak", "weak")
    assert torch.equal(p.student().inputs, p.batch.unlabeled.weak)


def test_mixmatch_sharpens_the_mean_of_two_predictions() -> None:
    p = problem("mixmatch")
    mean = (outputs(p, "weak").softmax(1) + outputs(p, "weak2").softmax(1)) / 2
    wanted = mean.square() / mean.square().sum(1, keepdim=True)
    assert torch.allclose(p.impute().z.detach(), wanted)
    flat = p._replace(method=MixMatch(temperature=1.0))
    assert torch.allclose(flat.impute().z.detach(), mean)


def test_mixmatch_keeps_the_larger_share_of_a_row_for_itself() -> None:
    p = problem("mixmatch")
    mix = p.batch.mix
    assert mix is not None
    rows = torch.cat([p.batch.labeled.x, p.batch.unlabeled.weak, p.batch.unlabeled.weak2])
    inputs = torch.cat([p.supervised().inputs, p.student().inputs])
    for i, row in enumerate(inputs):
        share = max(float(mix.share[i]), 1 - float(mix.share[i]))
        assert torch.allclose(row, share * rows[i] + (1 - share) * rows[mix.order[i]])


def test_supervised_looks_at_no_unlabelled_sample() -> None:
    p = problem("supervised")
    assert p.method.views == ()
    costs = p.method.costs(p.task, lookahead(p.model, p.params), lambda x: x, p.batch)
    assert float(costs.c_u) == 0.0
    assert float(costs.c_t.detach()) > 0.0


def test_weight_ramps_up_linearly() -> None:
    method = MixMatch(weight=8.0, rampup=4)
    assert [method.weight_at(step) for step in range(6)] == [0.0, 2.0, 4.0, 6.0, 8.0, 8.0]
    assert MixMatch(weight=8.0).weight_at(0) == 8.0
