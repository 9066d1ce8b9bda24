"""BatchNorm's derivative in forward mode, by its backward kernel, against PyTorch's own formula."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from l2i.bilevel.forward_mode import DualBatchNorm, forward_mode
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
