"""Running statistics of forwards side by side, and of forwards that leave them."""

import copy

import pytest
import torch
from torch import nn

from l2i.bilevel import lookahead, trainable
from l2i.bilevel.functional import swap_parameters
from l2i.errors import InputError
from l2i.training.batchnorm import DeferredBatchNorm, TrainingNet


def network(momentum: float | None = 0.1) -> nn.Sequential:
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=momentum), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(27, 4), nn.BatchNorm1d(4, momentum=momentum)).double()


def batches() -> list[torch.Tensor]:
    return [1 + torch.randn(n, 1, 5, 5, dtype=torch.float64) for n in (6, 9, 4)]


def watched(model: nn.Module) -> DeferredBatchNorm:
    statistics = DeferredBatchNorm(model)
    before = [b.clone() for b in model.buffers()]
    statistics.inspect_forward(lambda: lookahead(model, trainable(model))(batches()[0]).sum())
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before, strict=True))
    return statistics


class Counted(nn.Module):
    """A module with a buffer that it moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("observed", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.observed += 1
        return x


class Own(nn.BatchNorm2d):
    """BatchNorm with a forward of its own, which moves a statistic whether or not it is tracked."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.running_mean.add_(1)
        return super().forward(x)


class Several(nn.Module):
    """BatchNorm in evaluation mode, not used at all, used twice, or of a kind of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv, self.kind = nn.Conv2d(1, 3, 3), kind
        self.norm = Own(3) if kind == "own" else nn.BatchNorm2d(3)
        self.other = nn.BatchNorm2d(3)
        self.other.train(kind != "evaluating")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.conv(x))
        if self.kind == "twice":
            x = self.norm(x + 1)
        return x if self.kind == "unused" else self.other(x)


@pytest.mark.parametrize("kind", ["evaluating", "unused", "twice", "own"])
def test_every_use_of_batch_norm_moves_what_it_moves_in_turn(kind: str) -> None:
    model = Several(kind).double()
    plain = copy.deepcopy(model)
    statistics = DeferredBatchNorm(model)
    statistics.inspect_forward(lambda: lookahead(model, trainable(model))(batches()[0]).sum())
    for x in batches():
        assert torch.allclose(TrainingNet(statistics, trainable(model))(x), plain(x))
    statistics.apply_updates()
    assert statistics.concurrent == (kind == "evaluating")
    for (name, mine), theirs in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.allclose(mine, theirs), name


@pytest.mark.parametrize("momentum", [0.1, 0.001, 1.0, None])
def test_settled_statistics_are_those_of_forwards_in_turn(momentum: float | None) -> None:
    model = network(momentum)
    plain = copy.deepcopy(model)
    statistics = watched(model)
    assert statistics.concurrent == (momentum is not None)
    for _ in range(2):
        net = TrainingNet(statistics, trainable(model))
        for x in batches():
            assert torch.allclose(net(x), plain(x))
        statistics.apply_updates()
    for (name, mine), theirs in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert torch.allclose(mine, theirs), name


def test_statistics_wait_to_be_settled() -> None:
    model = network()
    before = [b.clone() for b in model.buffers()]
    statistics = watched(model)
    TrainingNet(statistics, trainable(model))(batches()[0])
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before, strict=True))
    statistics.apply_updates()
    assert not torch.equal(model[1].running_mean, before[0])


def test_other_buffers_are_not_moved_side_by_side() -> None:
    assert not watched(nn.Sequential(network(), nn.Unflatten(1, (4, 1)), Counted())).concurrent
    assert (
        watched(network()).concurrent
        and watched(nn.Sequential(nn.Flatten(), nn.Linear(25, 2)).double()).concurrent
    )


def test_the_gradient_of_a_cost_is_of_the_forwards_that_led_to_it() -> None:
    model, xs = network(), batches()
    net = TrainingNet(watched(model), trainable(model))
    first, second, third = (net(x).square().mean() for x in xs)
    plain = [model(x).square().mean() for x in xs]
    for cost, wanted in ((second, plain[1]), (first + 2 * third, plain[0] + 2 * plain[2])):
        grads = torch.autograd.grad(wanted, list(model.parameters()), retain_graph=True)
        assert all(
            torch.allclose(a, b) for a, b in zip(net.gradient(cost).values(), grads, strict=True)
        )


class Tied(nn.Module):
    """A network whose two layers are one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.steps = nn.Linear(4, 4), nn.Linear(4, 4), 0
        self.second = self.first
        self.frozen.requires_grad_(False)
        self.register_buffer("observed", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.observed += 1
        return self.second(self.frozen(self.first(x)))


def test_a_lookahead_reaches_shared_weights_and_moves_no_buffer() -> None:
    model = Tied()
    params = {name: p.detach() + 1 for name, p in trainable(model).items()}
    x = torch.randn(3, 4)
    got = lookahead(model, params)(x)
    assert (float(model.observed), model.second.weight is model.first.weight) == (0.0, True)
    wanted = torch.func.functional_call(model, params, (x,))
    assert torch.equal(got, wanted)


def test_a_lookahead_at_unknown_parameters_is_refused() -> None:
    with pytest.raises(InputError, match=r"Tied has no parameter 'model\.first\.weight'"):
        lookahead(Tied(), {"model.first.weight": torch.zeros(4, 4)})(torch.zeros(1, 4))


def test_the_models_own_parameters_come_back_after_an_error() -> None:
    model = Tied()
    own = dict(model.named_parameters())
    with (
        pytest.raises(ZeroDivisionError),
        swap_parameters(model, {name: p + 1 for name, p in own.items()}),
    ):
        raise ZeroDivisionError
    assert all(p is own[name] for name, p in model.named_parameters())


class Reassigned(nn.Module):
    """A module that puts another buffer in a place, some times over."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.linear = times, nn.Linear(25, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("still", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            self.count = self.count + 1
        return self.linear(x.flatten(1))


@pytest.mark.parametrize("times", [0, 1, 2, 3])
def test_other_buffers_may_be_there_but_not_move(times: int) -> None:
    model = Reassigned(times).double()
    statistics = DeferredBatchNorm(model)
    statistics.inspect_forward(lambda: lookahead(model, trainable(model))(batches()[0]).sum())
    assert statistics.concurrent == (times == 0)


def test_parameters_that_a_forward_does_not_use_have_a_gradient_of_zero() -> None:
    model = network()
    model.register_parameter("unused", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    net = TrainingNet(watched(model), trainable(model))
    gradient = net.gradient(net(batches()[0]).square().mean())
    assert gradient["unused"].tolist() == [0.0, 0.0]
    assert set(gradient) == set(trainable(model))


def test_looking_at_a_forward_leaves_nothing_in_the_model() -> None:
    model = network()
    assert DeferredBatchNorm(model).concurrent is False  # until a forward was looked at
    assert watched(model).concurrent is True
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_updates_are_applied_once() -> None:
    model, xs = network(), batches()
    statistics = watched(model)
    net = TrainingNet(statistics, trainable(model))
    for x in xs[:2]:
        net(x)
    assert len(statistics.pending_updates) == 2
    statistics.apply_updates()
    counts = [int(layer.num_batches_tracked) for layer in statistics.layers]
    moved = [b.clone() for b in model.buffers()]
    statistics.apply_updates()
    assert counts == [2, 2] and statistics.pending_updates == []
    assert all(torch.equal(a, b) for a, b in zip(moved, model.buffers(), strict=True))
