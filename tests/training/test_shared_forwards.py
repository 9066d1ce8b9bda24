"""Shared forwards, outer steps on fewer samples or at fewer steps: what they change, and do not."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from l2i import Run, Trainer, recipes, replace, train
from l2i.bilevel.functional import Net
from l2i.errors import InputError
from l2i.training.metrics import parse_metrics

FLOAT64 = {"device": "cpu", "precision": "float64"}
METHODS = (
    "mean-teacher",
    "fixmatch",
    "uda",
    "pi-model",
    "pseudo-label",
    "mixmatch",
    "vat",
    "mixup",
)


def run_of(method: str, **l2i: object) -> Run:
    run = replace(recipes.get(f"digits/{method}-l2i-40"), **FLOAT64, l2i=l2i)
    return replace(
        run, model={"name": "conv", "width": 4}, batch={"labeled": 8, "unlabeled": 12, "holdout": 6}
    )


def sharing(run: Run, share: bool, model: nn.Module | None = None) -> Trainer:
    """A trainer whose base and outer steps share forwards, as they do by themselves, or do not."""
    trainer = Trainer(run, model=model)
    assert trainer.gradients.reuses_forward
    trainer.gradients.reuses_forward = share
    return trainer


def after(trainer: Trainer, steps: int) -> dict[str, Tensor]:
    """The parameters, once `steps` steps are taken."""
    for step in range(steps):
        trainer.step(step)
    return {name: p.detach() for name, p in trainer.model.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor], *, atol: float = 1e-10) -> bool:
    return all(torch.allclose(a[name], b[name], rtol=0, atol=atol) for name in a)


@pytest.mark.parametrize("hypergradient", ["last_layer", "exact"])
@pytest.mark.parametrize("method", METHODS)
def test_sharing_forwards_leaves_the_steps_as_they_are(method: str, hypergradient: str) -> None:
    shared, apart = (
        after(sharing(run_of(method, hypergradient=hypergradient), share), 3)
        for share in (True, False)
    )
    assert same(shared, apart)


class Counting(nn.Module):
    """A network with BatchNorm that counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head, self.passes = nn.Linear(8, 10), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.head(self.body(x))


@pytest.mark.parametrize(
    ("method", "saved"), [("mean-teacher", 1), ("fixmatch", 2), ("mixmatch", 1)]
)
def test_shared_forwards_are_not_passed_again(method: str, saved: int) -> None:
    """The student's for the last layer and, where the model itself imputes, that of the labels."""
    passes = []
    for share in (False, True):
        trainer = sharing(run_of(method), share, model=Counting())
        before = trainer.model.passes
        trainer.step(0)
        passes.append(trainer.model.passes - before)
    assert passes[0] - passes[1] == saved


@pytest.mark.parametrize("hypergradient", ["last_layer", "exact"])
def test_an_outer_step_on_the_first_samples_is_that_of_a_smaller_batch(hypergradient: str) -> None:
    few = Trainer(run_of("fixmatch", outer_batch_size=5, hypergradient=hypergradient))
    whole = Trainer(run_of("fixmatch", hypergradient=hypergradient))
    batch = whole.loader.draw_batch(3)
    smaller = batch._replace(unlabeled=batch.unlabeled.take_first(5))
    assert len(smaller.unlabeled.strong) == 5
    got, wanted = few.compute_outer_gradient(batch, 3), whole.compute_outer_gradient(smaller, 3)
    assert same(got, wanted)
    assert not same(got, whole.compute_outer_gradient(batch, 3), atol=1e-6)


def test_features_shared_with_a_larger_batch_have_its_statistics() -> None:
    """What sharing changes with outer_batch_size: the gradient is another, but points alike."""
    steps = []
    for share in (True, False):
        trainer = sharing(run_of("fixmatch", outer_batch_size=6), share)
        nets = trainer.gradients.make_nets(trainer.params, reuse_forward=True)
        batch = trainer.loader.draw_batch(0)
        trainer.gradients.compute_base(batch, nets)
        steps.append(trainer.gradients.compute_outer(batch, nets).gradient)
    assert 0.9 < float(torch.cosine_similarity(steps[0], steps[1], dim=0)) < 1 - 1e-9


def test_an_outer_step_is_taken_at_every_nth_step() -> None:
    trainer = Trainer(run_of("mean-teacher", every=3))
    counts = []
    for step in range(7):
        trainer.step(step)
        counts.append(trainer.meter.count.tolist()[-1])
    assert counts == [1, 1, 1, 2, 2, 2, 3]


def test_between_outer_steps_the_base_method_goes_on_alone() -> None:
    one = Trainer(run_of("mean-teacher", every=2))
    base = Trainer(run_of("mean-teacher", update="off"))
    one.step(0)
    base.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    for trainer in (one, base):
        trainer.step(1)
    assert same(dict(one.model.named_parameters()), dict(base.model.named_parameters()))


@pytest.mark.parametrize("update", [{}, {"update": "paper", "paper": {"eta": 0.1}}])
def test_a_step_that_is_both_first_and_nth_is_the_usual_one(update: dict[str, object]) -> None:
    assert same(
        after(Trainer(run_of("mean-teacher", every=5, **update)), 1),
        after(Trainer(run_of("mean-teacher", **update)), 1),
    )


def test_an_outer_step_on_more_samples_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match=r"outer_batch_size=13 exceeds batch\.unlabeled=12"):
        Trainer(run_of("fixmatch", outer_batch_size=13))


def test_rows_without_an_outer_step_say_nothing_of_it(tmp_path: Path) -> None:
    run = replace(
        run_of("mean-teacher", every=4),
        steps=6,
        eval_every=1,
        out=str(tmp_path / "run"),
        probe_samples=10,
    )
    train(run, quiet=True)
    rows = parse_metrics((tmp_path / "run" / "metrics.jsonl").read_bytes())
    assert [row["c_h"] is not None for row in rows] == [True, False, False, False, True, False]
    assert all(row["c_h_before"] != row["c_h_after"] for row in rows)


def test_a_step_that_failed_leaves_no_statistics_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a step cannot be recorded: it is then taken one by one."""
    usual, failed = (Trainer(run_of("mean-teacher")) for _ in range(2))
    usual.step(0)
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(failed.optimizer, "apply_weight_decay", lambda: 1 / 0)
        patch.setattr(failed.gradients.batchnorm, "apply_updates", lambda: 1 / 0)
        failed.step(0)
    failed.step(0)
    for (name, a), b in zip(usual.model.named_buffers(), failed.model.buffers(), strict=True):
        assert torch.allclose(a, b), name


def test_a_forward_with_dropout_is_shared_unless_the_outer_step_has_to_meet_its_masks_again() -> (
    None
):
    def shares(dropout: float, **l2i: object) -> bool:
        run = replace(
            run_of("mean-teacher", **l2i), model={"name": "conv", "width": 4, "dropout": dropout}
        )
        return Trainer(run).gradients.reuses_forward

    assert shares(0.0) and shares(0.5) and shares(0.5, hypergradient="exact")
    assert shares(0.0, paper={"eta": 0.1}) and not shares(0.5, paper={"eta": 0.1})
    assert not shares(0.0, update="paper", paper={"eta": 0.1})


def test_what_is_shared_with_dropout_is_the_outer_gradient_at_the_masks_of_the_base_step() -> None:
    run = replace(
        run_of("pi-model"), model={"name": "conv", "width": 4, "dropout": 0.5}, precision="float64"
    )
    trainer = Trainer(run)
    batch, gradients = trainer.loader.draw_batch(0), trainer.gradients
    nets = gradients.make_nets(trainer.params, reuse_forward=True)
    gradients.compute_base(batch, nets)
    z, observed = (
        nets.live(batch.unlabeled.weak),
        nets.student.get_activations(batch.unlabeled.weak2),
    )
    torch.manual_seed(5)
    held = trainer.network(batch.holdout.x)
    head = trainer.model.head
    v = torch.autograd.grad(trainer.task.loss(held, batch.holdout.y), [head.weight, head.bias])
    tangent = observed.features @ v[0].T + v[1]
    p = observed.outputs.softmax(dim=1)
    jacobian = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    d_z = (
        2 / p.numel() * torch.einsum("bij,bj->bi", jacobian, tangent)
    )  # of −mean((p − z)²), per unit of η
    grads = torch.autograd.grad(z.softmax(dim=1), list(nets.theta.values()), d_z, retain_graph=True)
    wanted = trainer.flat.flatten(dict(zip(nets.theta, grads, strict=True)))
    torch.manual_seed(5)
    assert torch.allclose(
        gradients.compute_outer(batch, nets).gradient, wanted, rtol=1e-8, atol=1e-12
    )


def test_notes_are_of_the_batch_itself_and_not_of_a_copy() -> None:
    from l2i.training.forwards import ForwardCache

    passes: list[int] = []

    def net(x: Tensor) -> Tensor:
        passes.append(len(x))
        return 2 * x

    remembering: Net = ForwardCache(net)
    x = torch.randn(6, 3, requires_grad=True)
    with torch.no_grad():
        assert not remembering(x).requires_grad
    assert remembering(x).requires_grad and torch.equal(remembering(x[:4]), 2 * x[:4])
    assert passes == [6]
    remembering(x.clone())
    remembering(x[2:])
    assert passes == [6, 6, 4]
