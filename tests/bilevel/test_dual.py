"""BatchNorm's derivative in forward mode, by its backward kernel, against PyTorch's own formula."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from l2i.bilevel.forward_mode import DualBatchNorm, central_difference, forward_mode
from l2i.bilevel.functional import lookahead, trainable
from problems import relative

LAYERS = {
    "linear": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)),
        (9, 5),
    ),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 2)),
        (6, 2, 7, 5),
    ),
    "first": (lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3)), (6, 2, 7, 5)),
    "without weights": (
        lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, affine=False)),
        (9, 5),
    ),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_a_pass_with_tangents_is_pytorchs(name: str, training: bool) -> None:
    make, shape = LAYERS[name]
    model, x = make().double().train(training), torch.randn(shape, dtype=torch.float64)
    params = trainable(model)
    v = {key: torch.randn_like(p) for key, p in params.items()}
    with torch.no_grad(), forward_ad.dual_level():
        duals = {key: forward_ad.make_dual(p.detach(), v[key]) for key, p in params.items()}
        wanted = forward_ad.unpack_dual(lookahead(model, duals)(x))

    def outputs(theta: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return lookahead(model, theta)(x)

    value, tangent = forward_mode(outputs, params, v)
    assert relative(value, wanted.primal) < 1e-14
    assert relative(tangent, wanted.tangent) < 1e-12


def test_without_tangents_it_is_batch_norm() -> None:
    layer, x = nn.BatchNorm1d(4).double(), torch.randn(5, 4, dtype=torch.float64)
    with torch.no_grad(), forward_ad.dual_level(), DualBatchNorm():
        value, tangent = forward_ad.unpack_dual(layer(x))
    assert tangent is None and torch.allclose(
        value, nn.functional.batch_norm(x, None, None, training=True)
    )


class Scaled(nn.Module):
    """BatchNorm with a weight, or a bias, alone."""

    def __init__(self, *, has_weight: bool) -> None:
        super().__init__()
        self.p, self.has_weight = nn.Parameter(torch.rand(4) + 0.5), has_weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = (self.p, None) if self.has_weight else (None, self.p)
        return nn.functional.batch_norm(x, None, None, weight, bias, training=True)


@pytest.mark.parametrize("has_weight", [True, False])
def test_a_weight_or_a_bias_alone_has_its_tangent(has_weight: bool) -> None:
    layer = Scaled(has_weight=has_weight).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    params, v = trainable(layer), {"p": torch.randn(4, dtype=torch.float64)}
    normal = nn.functional.batch_norm(x, None, None, training=True)

    def outputs(theta: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return lookahead(layer, theta)(x)

    _, tangent = forward_mode(outputs, params, v)
    wanted = v["p"] * normal if has_weight else v["p"].expand(6, 4)
    torch.testing.assert_close(tangent, wanted)


def test_what_does_not_depend_on_the_parameters_has_no_derivative() -> None:
    params = {"w": torch.randn(3, dtype=torch.float64)}
    value, tangent = forward_mode(lambda _: torch.full((2,), 5.0), params, params)
    assert value.tolist() == [5.0, 5.0] and tangent.tolist() == [0.0, 0.0]


def test_a_derivative_is_along_v_and_of_gradients_too() -> None:
    theta, v = ({"w": torch.randn(3, dtype=torch.float64)} for _ in range(2))

    def slope(params: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.autograd.grad(params["w"].pow(4).sum(), params["w"], create_graph=True)[0]

    for function in (forward_mode, central_difference):
        value, tangent = function(lambda p: p["w"].exp(), theta, v)
        torch.testing.assert_close(value, theta["w"].exp(), rtol=1e-7, atol=0)
        torch.testing.assert_close(tangent, theta["w"].exp() * v["w"], rtol=1e-6, atol=0)
        assert not value.requires_grad and not tangent.requires_grad
    value, tangent = forward_mode(slope, theta, v)
    torch.testing.assert_close(tangent, 12 * theta["w"].square() * v["w"])
    assert not theta["w"].requires_grad


def test_parameters_within_a_larger_buffer_are_moved_alone() -> None:
    """As those of a trainer, which are views."""
    buffer = torch.randn(10, dtype=torch.float64)
    theta, v = {"w": buffer[2:5]}, {"w": torch.ones(3, dtype=torch.float64)}
    _, tangent = forward_mode(lambda p: p["w"].square(), theta, v)
    torch.testing.assert_close(tangent, 2 * buffer[2:5])
