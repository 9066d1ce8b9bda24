"""Methods with all samples in one forward, against plain float64 versions."""

import copy
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from l2i import Trainer, recipes, replace
from l2i.bilevel import Net, lookahead
from l2i.data.batch import Batch
from l2i.errors import InputError
from l2i.methods import METHODS
from l2i.methods.fixmatch import FixMatch
from l2i.registry import load_registered
from l2i.tasks import Task
from l2i.training.forwards import JointBatch
from l2i.training.step import compute_costs
from problems import FLOAT64, ToyProblem, network, problem


def joined(name: str) -> ToyProblem:
    p = problem(name)
    return p._replace(method=dataclasses.replace(p.method, one_forward=True))


def gradients(p: ToyProblem) -> list[torch.Tensor]:
    net = lookahead(p.model, p.params)
    costs = compute_costs(p.method, p.task, net, net, p.batch)
    return list(torch.autograd.grad(costs.c_t + costs.c_u, list(p.params.values())))


def test_the_costs_are_those_of_one_pass_through_batchnorm() -> None:
    p = joined("fixmatch")
    x, u = p.batch.labeled, p.batch.unlabeled
    f = p.model(torch.cat([x.x, u.weak, u.strong]))
    labelled, weak, strong = f.split([len(x.x), len(u.weak), len(u.strong)])
    confidence, label = weak.detach().softmax(1).max(1)
    mask = confidence >= p.method.threshold
    assert 0 < int(mask.sum()) < len(mask)
    c_t = F.cross_entropy(labelled, x.y)
    c_u = (F.cross_entropy(strong, label, reduction="none") * mask).mean()
    net = lookahead(p.model, p.params)
    costs = compute_costs(p.method, p.task, net, net, p.batch)
    assert costs.joint_batch is not None and len(costs.joint_batch.x) == len(f)
    torch.testing.assert_close((costs.c_t, costs.c_u), (c_t, c_u), rtol=1e-12, atol=0)
    wanted = torch.autograd.grad(c_t + c_u, list(p.params.values()))
    torch.testing.assert_close(gradients(p), list(wanted), rtol=1e-9, atol=1e-12)
    assert costs.mask_by_class is not None
    torch.testing.assert_close(
        costs.mask_by_class, (F.one_hot(label, f.shape[1]) * mask.unsqueeze(1)).double().mean(0)
    )


@pytest.mark.parametrize("one_forward", [False, True])
def test_an_extra_cost_is_part_of_c_t_and_takes_rows_of_the_joint_forward(
    one_forward: bool,
) -> None:
    class WithExtraCost(FixMatch):
        def extra_cost(self, task: Task, net: Net, batch: Batch) -> torch.Tensor:
            return 100 * net(batch.unlabeled.weak).square().mean()

    p = problem("fixmatch")
    net = lookahead(p.model, p.params)
    plain, more = (
        compute_costs(cls(one_forward=one_forward), p.task, net, net, p.batch)
        for cls in (FixMatch, WithExtraCost)
    )
    u = p.batch.unlabeled
    weak = net(u.weak)
    if one_forward:
        first = len(p.batch.labeled.x)
        weak = net(torch.cat([p.batch.labeled.x, u.weak, u.strong]))[first:][: len(u.weak)]
    extra = 100 * weak.square().mean()
    torch.testing.assert_close(more.c_t, plain.c_t + extra, rtol=1e-12, atol=0)


def test_mixmatch_passes_its_mixed_rows_at_once_and_imputes_apart() -> None:
    p = joined("mixmatch")
    rows = torch.cat([p.supervised().inputs, p.student().inputs])
    imputed, first = p.impute().detach(), len(p.batch.labeled.x)
    f = p.model(rows)
    c_t, c_u = p.supervised().cost(f[:first], imputed), p.student().cost(f[first:], imputed)
    net = lookahead(p.model, p.params)
    costs = compute_costs(p.method, p.task, net, net, p.batch)
    torch.testing.assert_close((costs.c_t, costs.c_u), (c_t, c_u), rtol=1e-12, atol=0)
    wanted = torch.autograd.grad(c_t + c_u, list(p.params.values()))
    torch.testing.assert_close(gradients(p), list(wanted), rtol=1e-9, atol=1e-12)


JOINING = ["fixmatch", "uda", "mixmatch", "mean-teacher", "pi-model", "pseudo-label", "vat"]


@pytest.mark.parametrize("name", JOINING)
def test_it_matters_where_statistics_are_shared_and_nowhere_else(name: str) -> None:
    plain = nn.Sequential(*(m for m in network() if not isinstance(m, nn.BatchNorm1d)))
    for model, same in ((network(), False), (plain, True)):
        together = joined(name)._replace(model=model)
        apart = together._replace(method=dataclasses.replace(together.method, one_forward=False))
        pairs = list(zip(gradients(together), gradients(apart), strict=True))
        assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-14) for a, b in pairs) == same


@pytest.mark.parametrize("name", ["fixmatch", "uda"])
def test_the_trainer_takes_one_backward_and_moves_statistics_once(name: str) -> None:
    chosen = load_registered("method", METHODS, name)(threshold=0.2, weight=2.0, one_forward=True)
    run = replace(
        recipes.get("digits/fixmatch-40"), device="cpu", precision="float64", method=chosen
    )
    trainer = Trainer(run)
    model, method, task, batch = (
        copy.deepcopy(trainer.model),
        run.method,
        trainer.task,
        trainer.loader.draw_batch(0),
    )
    got = trainer.compute_base_gradient(batch, 0)
    u = batch.unlabeled
    f = model(torch.cat([batch.labeled.x, u.weak, u.strong]))
    labelled, weak, strong = f.split([len(batch.labeled.x), len(u.weak), len(u.strong)])
    imputed = method.impute(task, lambda _: weak.detach(), batch)
    assert 0 < float(imputed.weight.sum()) < len(imputed.weight)
    c_t = method.supervised(task, model, batch).cost(labelled, imputed)
    cost = c_t + 2.0 * method.student(task, model, batch).cost(strong, imputed)
    wanted = torch.autograd.grad(cost, list(model.parameters()))
    for a, b in zip(got.values(), wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)
    for a, b in zip(trainer.model.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=0)


def outer_trainer(*, one_forward: bool, unlabeled: int, share: bool) -> Trainer:
    sections = {"method": {"one_forward": one_forward}, "l2i": {"outer_batch_size": unlabeled}}
    trainer = Trainer(
        replace(
            recipes.get("digits/fixmatch-l2i-40"), device="cpu", precision="float64", **sections
        )
    )
    assert trainer.gradients.reuses_forward
    trainer.gradients.reuses_forward = share
    return trainer


@pytest.mark.parametrize("unlabeled", [0, 16])
def test_the_outer_step_is_the_same(unlabeled: int) -> None:
    """Its labels and its student are passed for themselves: the base step alone changes."""
    trainers = [
        outer_trainer(one_forward=each, unlabeled=unlabeled, share=False) for each in (False, True)
    ]
    actual = [
        trainer.compute_outer_gradient(trainer.loader.draw_batch(0), 0) for trainer in trainers
    ]
    torch.testing.assert_close(*actual, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("unlabeled", [0, 16])
def test_l2i_steps_with_it_whether_or_not_forwards_are_shared(unlabeled: int) -> None:
    """What the steps could share is nothing here, so that both ways end at the same θ."""
    trainers = [
        outer_trainer(one_forward=True, unlabeled=unlabeled, share=each) for each in (False, True)
    ]
    for trainer in trainers:
        for t in range(3):
            trainer.step(t)
    ends = [trainer.flat.values for trainer in trainers]
    assert ends[0].dtype == FLOAT64
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)


def test_a_batch_that_is_given_twice_is_passed_once() -> None:
    batch = JointBatch(a := torch.ones(2, 3), b := torch.zeros(4, 3), b, b[:3])
    assert len(batch.x) == 6
    net = batch.join(lambda x: 2 * x + len(x))
    assert torch.equal(net(a), 2 * a + 6) and torch.equal(net(b[:3]), 2 * b[:3] + 6)
    assert torch.equal(net(b.clone()), 2 * b + 4)  # a copy is not one of its rows


def test_samples_of_several_shapes_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"one_forward needs samples of one shape, not \[3\], \[4\]; leave it out"
    ):
        JointBatch(torch.zeros(2, 3), torch.zeros(2, 4))
