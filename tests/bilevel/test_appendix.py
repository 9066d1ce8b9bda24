"""The appendix: one-layer logistic and linear regression in closed form.

Sums there, means here: / (|H| |U|).
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2i.bilevel import LearnableLabels, OutputLabels, Problem, exact, last_layer, trainable
from l2i.bilevel.functional import Net
from l2i.bilevel.problem import Imputed, Student
from problems import FLOAT64, relative

ETA, H, U, T, D = 0.7, 9, 6, 5, 4


class OneLayer:
    """Φ(x) = θᵀx, with its three sets and the cost of an output to a label."""

    def __init__(self, loss) -> None:
        self.model = nn.Linear(D, 1, bias=False, dtype=FLOAT64)
        self.theta = self.model.weight.detach()[0]
        self.x_t, self.x_u, self.x_h = (torch.randn(n, D, dtype=FLOAT64) for n in (T, U, H))
        self.y_t, self.y_h = (torch.randint(2, (n,)).to(FLOAT64) for n in (T, H))
        self.noise = 0.3 * torch.randn(U, D, dtype=FLOAT64)
        self.loss = loss

    def student(self) -> Student:
        return Student(self.x_u, lambda f, i: self.loss(f[:, 0], i.z[:, 0]))

    def costs(self) -> tuple:
        def c_t(net: Net) -> Tensor:
            return self.loss(net(self.x_t)[:, 0], self.y_t)

        def c_h(net: Net) -> Tensor:
            return self.loss(net(self.x_h)[:, 0], self.y_h)

        return c_t, c_h

    def d_z(self, function, z: Tensor) -> Tensor:
        c_t, c_h = self.costs()
        imputed = Imputed(z, torch.ones(U, dtype=FLOAT64))
        return function(
            Problem(
                self.model, trainable(self.model), self.student(), imputed, c_h, eta=ETA, c_t=c_t
            )
        )[:, 0]


def logistic() -> OneLayer:
    return OneLayer(F.binary_cross_entropy_with_logits)


def linear() -> OneLayer:
    return OneLayer(F.mse_loss)


@pytest.mark.parametrize("function", [exact, last_layer])
def test_logistic_regression(function) -> None:
    """Eq. option1z: η Σ_h (σ(θ*ᵀx_h) − y_h) x_hᵀx_u."""
    p = logistic()
    z = torch.sigmoid((p.x_u + p.noise) @ p.theta)
    slope = (torch.sigmoid(p.x_t @ p.theta) - p.y_t) @ p.x_t / T + (
        torch.sigmoid(p.x_u @ p.theta) - z
    ) @ p.x_u / U
    star = p.theta - ETA * slope
    wanted = ETA * (torch.sigmoid(p.x_h @ star) - p.y_h) @ (p.x_h @ p.x_u.T) / (H * U)
    assert relative(p.d_z(function, z[:, None]), wanted) < 1e-12


@pytest.mark.parametrize("function", [exact, last_layer])
def test_linear_regression(function) -> None:
    """Eq. derivativemse, signed: Σ_h 4η (θ*ᵀx_h − y_h) x_hᵀx_u; raising z pulls θ* along x_u."""
    p = linear()
    z = (p.x_u + p.noise) @ p.theta
    slope = 2 * (p.x_t @ p.theta - p.y_t) @ p.x_t / T + 2 * (p.x_u @ p.theta - z) @ p.x_u / U
    star = p.theta - ETA * slope
    wanted = 4 * ETA * (p.x_h @ star - p.y_h) @ (p.x_h @ p.x_u.T) / (H * U)
    assert relative(p.d_z(function, z[:, None]), wanted) < 1e-12


@pytest.mark.parametrize("function", [exact, last_layer])
def test_labels_as_output_reach_theta_by_the_chain_rule(function) -> None:
    """Eq. option2zfinal: each sample's d_z times σ'(θᵀ(x_u + η)) (x_u + η)."""
    p = logistic()
    z = torch.sigmoid(p.model(p.x_u + p.noise))
    d_z = p.d_z(function, z)
    imputed = Imputed(z, torch.ones(U, dtype=FLOAT64))
    got = OutputLabels().gradient(p.model, trainable(p.model), p.student(), imputed, d_z[:, None])
    s = torch.sigmoid((p.x_u + p.noise) @ p.theta)
    wanted = (d_z * s * (1 - s)) @ (p.x_u + p.noise)
    assert relative(got["weight"][0], wanted) < 1e-12


def test_learnable_labels_take_one_gradient_step() -> None:
    """z* = z − η_z ∇_z C^H(θ*(z))."""
    p = linear()
    z = ((p.x_u + p.noise) @ p.theta)[:, None]
    d_z = p.d_z(exact, z)[:, None]
    labels = LearnableLabels(label_lr=0.5, to_logits=lambda z: z, to_label=lambda p: p)
    assert relative(labels.step_labels(z, d_z), z - 0.5 * d_z) < 1e-14
