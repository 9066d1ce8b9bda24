"""Cells of the paper's rule take the released code's steps, and a joint forward is what it says."""

import copy

import pytest
import torch
from released import train_released
from torch import Tensor, nn
from torch.nn import functional as F

from formats import write_cifar10
from l2i import Run, Trainer, recipes, replace

LR, DECAY, EMA, STEPS = 0.002, 0.0004, 0.999, 3


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("cifar10")
    write_cifar10(folder)
    return str(folder)


def small(cell: str, root: str, **l2i: object) -> Run:
    """The cell in float64 with fewer samples and a small network, late enough for a λ to count."""
    run = replace(
        recipes.get(cell),
        device="cpu",
        precision="float64",
        threads=1,
        steps=10,
        data={"root": root, "num_labeled": 20, "num_validation": 10},
        model={"depth": 10, "width": 1},
        l2i=l2i,
    )
    assert run.batch.labeled == run.batch.unlabeled == run.batch.holdout == 64  # as released
    return run


def distance(ours: Trainer, theirs: list[Tensor]) -> float:
    wanted = torch.cat([p.detach().flatten() for p in theirs])
    got = torch.cat([p.detach().flatten() for p in ours.model.parameters()])
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("labels", ["output", "learnable"])
def test_the_exact_paper_cell_is_the_released_code(labels: str, root: str) -> None:
    cell = "cifar10/mean-teacher-l2i-paper-250-exact"
    eta = {"output": 0.1, "learnable": 0.2}[labels] * 64 * 10  # of the sum, in our means
    run = small(cell, root, labels=labels, paper={"eta": eta})
    if labels == "output":
        assert run.l2i == recipes.get(cell).l2i  # nothing of the cell's rule is changed
    assert (run.optim.lr, run.optim.weight_decay, run.optim.ema_decay) == (LR, DECAY, EMA)
    trainer = Trainer(run)
    batches = [trainer.loader.draw_batch(t) for t in range(STEPS)]
    rows = [
        (*b.labeled, b.unlabeled.weak2, b.unlabeled.weak, *b.holdout) for b in batches if b.holdout
    ]
    history = train_released(
        copy.deepcopy(trainer.model),
        rows,
        learnable=labels == "learnable",
        lr=LR,
        weights=[50 * min(1.0, t / 4) for t in range(STEPS)],  # 40 % of 10 steps
        decay=DECAY,
        ema=EMA,
    )
    before = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    for t, theirs in enumerate(history):
        trainer.step(t)
        assert distance(trainer, theirs) <= 1e-10, t
    after = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    assert (after - before).norm() > 0.01 * before.norm()


def test_learnable_cells_have_the_released_rates() -> None:
    learnable = recipes.get("cifar10/fixmatch-l2i-paper-250-learnable").l2i
    assert (learnable.paper.eta, learnable.paper.label_lr) == (pytest.approx(128), 1.0)
    assert not learnable.paper.inner_supervised


def test_mean_teacher_with_one_forward_is_a_plain_loop(root: str) -> None:
    """Labelled and student rows pass once, and the teacher imputes by a forward of its own."""
    trainer = Trainer(small("cifar10/mean-teacher-250", root))
    model: nn.Module = copy.deepcopy(trainer.model)
    teacher = copy.deepcopy(model)
    adam = torch.optim.Adam(model.parameters(), lr=LR)
    for t in range(STEPS):
        batch = trainer.loader.draw_batch(t)
        x, y = batch.labeled
        with torch.no_grad():
            z = teacher(batch.unlabeled.weak).softmax(dim=1)
        outputs = model(torch.cat([x, batch.unlabeled.weak2]))
        cost = F.cross_entropy(outputs[:64], y)
        cost = cost + 50 * t / 4 * F.mse_loss(outputs[64:].softmax(dim=1), z)
        adam.zero_grad()
        cost.backward()
        adam.step()
        with torch.no_grad():
            for p, q in zip(model.parameters(), teacher.parameters(), strict=True):
                p *= 1 - DECAY
                q.lerp_(p, 1 / (t + 1))
        trainer.step(t)
        assert distance(trainer, list(model.parameters())) <= 1e-10
    for ours, theirs in zip(trainer.model.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
