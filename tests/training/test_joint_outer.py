"""Outer steps whose samples share the forward of the base step, against create_graph in float64."""

import pytest
import torch
from second_steps import follow_second_step
from torch import Tensor
from torch.autograd import grad
from torch.func import functional_call
from torch.nn import functional as F

from l2i import Run, Trainer, recipes, replace
from l2i.data.batch import Batch
from l2i.errors import InputError
from l2i.training.step import SEQUENTIAL

JOINT = {"one_forward": True}
CELLS = ["mean-teacher", "pi-model", "fixmatch"]


def joint_run(method: str, **l2i: object) -> Run:
    run = replace(
        recipes.get(f"digits/{method}-l2i-40"),
        device="cpu",
        precision="float64",
        threads=1,
        method={**JOINT, "weight": 2.0, "rampup": 0},
        l2i={**JOINT, **l2i},
    )
    small = {"labeled": 8, "unlabeled": 12, "holdout": 6}
    return replace(run, model={"name": "conv", "width": 4}, batch=small)


def stack_rows(batch: Batch, student: str) -> Tensor:
    assert batch.holdout is not None
    views = batch.unlabeled.views
    return torch.cat([batch.labeled.x, views["weak"], views[student], batch.holdout.x])


def compute_outer(trainer: Trainer, batch: Batch, eta: float | None, *, head: bool) -> Tensor:
    """Return ∂C^H/∂θ where every forward passes labelled, weak, student and hold-out rows."""
    run, sizes = trainer.run, (8, 12, 12, 6)
    count = run.l2i.outer_batch_size or 12
    rows = stack_rows(batch, run.method.student_view)
    theta = {n: p.detach().requires_grad_() for n, p in trainer.model.named_parameters()}
    names = [n for n in theta if n.startswith("head") or not head]

    def net(w: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return functional_call(trainer.model, w, (rows,)).split(sizes)

    _, weak, student, _ = net(theta)
    z = weak[:count].softmax(dim=1)
    leaf = z.detach().requires_grad_()
    inner = F.mse_loss(student[:count].softmax(dim=1), leaf)
    slopes = grad(inner, [theta[n] for n in names], create_graph=True)
    rate = torch.tensor(eta or 0.0, dtype=torch.float64, requires_grad=True)
    ahead = {n: p.detach() for n, p in theta.items()}
    ahead |= {n: ahead[n] - rate * slope for n, slope in zip(names, slopes, strict=True)}
    assert batch.holdout is not None
    c_h = F.cross_entropy(net(ahead)[3], batch.holdout.y)
    (d_z,) = grad(c_h if eta else grad(c_h, rate, create_graph=True)[0], leaf)
    grads = grad(z, list(theta.values()), d_z)
    return torch.cat([g.flatten() for g in grads])


@pytest.mark.parametrize("count", [0, 5])
@pytest.mark.parametrize("eta", [None, 0.5])
@pytest.mark.parametrize("hypergradient", ["last_layer", "exact"])
@pytest.mark.parametrize("method", CELLS)
def test_the_outer_gradient_is_that_of_one_forward_of_all_rows(
    method: str, hypergradient: str, eta: float | None, count: int
) -> None:
    l2i = {"hypergradient": hypergradient, "paper": {"eta": eta}, "outer_batch_size": count}
    trainer = Trainer(joint_run(method, **l2i))
    batch = trainer.loader.draw_batch(0)
    got = torch.cat([g.flatten() for g in trainer.compute_outer_gradient(batch, 0).values()])
    wanted = compute_outer(trainer, batch, eta, head=hypergradient == "last_layer")
    assert float((got - wanted).norm() / wanted.norm()) < 1e-10
    apart = Trainer(replace(trainer.run, l2i={"one_forward": False}))
    other = torch.cat([g.flatten() for g in apart.compute_outer_gradient(batch, 0).values()])
    assert float((other - wanted).norm() / wanted.norm()) > 1e-3


@pytest.mark.parametrize("hypergradient", ["last_layer", "exact"])
@pytest.mark.parametrize("method", CELLS)
def test_a_step_shares_its_forward_and_follows_both_gradients(
    method: str, hypergradient: str
) -> None:
    trainer = Trainer(joint_run(method, hypergradient=hypergradient))
    assert trainer.gradients.reuses_forward
    batch, before = trainer.loader.draw_batch(0), trainer.flat.values.clone()
    base = trainer.flat.flatten(trainer.compute_base_gradient(batch, 0))
    outer = trainer.flat.flatten(trainer.compute_outer_gradient(batch, 0))
    adam_input = base + 0.3 * base.norm() / outer.norm() * outer
    trainer.step(0)
    moved = before - trainer.flat.values / (1 - trainer.run.optim.weight_decay)
    wanted = trainer.run.optim.lr * adam_input / (adam_input.abs() + 1e-8)  # Adam's first step
    torch.testing.assert_close(moved, wanted, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("hypergradient", ["last_layer", "exact"])
@pytest.mark.parametrize("method", ["mean-teacher", "pi-model"])
def test_the_papers_update_passes_all_rows_at_each_of_its_parameters(
    method: str, hypergradient: str
) -> None:
    run = joint_run(method, update="paper", hypergradient=hypergradient, paper={"eta": 0.5})

    def outer(ahead: Trainer, batch: Batch) -> list[Tensor]:
        flat = compute_outer(ahead, batch, 0.5, head=hypergradient == "last_layer")
        params = list(ahead.model.parameters())
        pieces = flat.split([p.numel() for p in params])
        return [piece.view_as(p) for piece, p in zip(pieces, params, strict=True)]

    ours, wanted = follow_second_step(run, outer)
    assert float((ours - wanted).norm() / wanted.norm()) < 1e-10


@pytest.mark.parametrize("control", ["zero_gradient", "direct_gradient"])
def test_controls_pass_all_rows_too(control: str) -> None:
    trainer = Trainer(joint_run("mean-teacher", ablation=control))
    batch = trainer.loader.draw_batch(0)
    assert batch.holdout is not None
    outputs = trainer.model(stack_rows(batch, "weak2"))[-6:]
    cost = F.cross_entropy(outputs, batch.holdout.y)
    wanted = torch.cat([g.flatten() for g in grad(cost, list(trainer.model.parameters()))])
    got = torch.cat([g.flatten() for g in trainer.compute_outer_gradient(batch, 0).values()])
    torch.testing.assert_close(got, wanted * (control == "direct_gradient"), rtol=1e-9, atol=1e-13)
    trainer.step(0)
    assert trainer.meter.read()["c_h"] == pytest.approx(float(cost.detach()))


def test_the_forward_of_the_base_step_has_the_rows_of_the_outer_step_only_where_it_is_taken() -> (
    None
):
    trainer = Trainer(joint_run("mean-teacher", every=2))
    sizes: list[int] = []
    hook = trainer.model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    trainer.step(0)
    assert sizes == [8 + 12 + 12 + 6] * 2  # of both gradients; and of C^H for the head
    sizes.clear()
    trainer.step(1)
    # a captured step draws its batch ahead, with hold-out samples whether or not they are used
    trainer.train_step(trainer.loader.draw_batch(3), False, SEQUENTIAL)
    hook.remove()
    assert sizes == [8 + 12] * 2


def test_without_one_forward_of_the_method_there_is_none_to_join() -> None:
    run = replace(joint_run("mean-teacher"), method={"one_forward": False})
    with pytest.raises(InputError, match=r"l2i\.one_forward needs method\.one_forward"):
        Trainer(run)
    with pytest.raises(InputError, match=r"l2i\.one_forward needs method\.one_forward"):
        Trainer(replace(recipes.get("digits/mixup-l2i-40"), l2i=JOINT))
    text = {"inner_supervised": True, "supervised_eta": 0.1}
    with pytest.raises(
        InputError, match=r"mixmatch passes no labelled samples that l2i\.one_forward"
    ):
        Trainer(joint_run("mixmatch", paper=text))
