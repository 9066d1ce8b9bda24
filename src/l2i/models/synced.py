"""BatchNorm over the whole batch, where processes share it: the statistics are those that one process would find."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from l2i.bilevel.inner import TRACKING
from l2i.models.norm import NormAct
from l2i.ranks import Ranks, here


class Summed(Function):
    """The sum over the processes. It is linear and symmetric: its derivatives, in both modes, are itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.summed(x.clone())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return Summed.apply(dy, ctx.ranks), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, x_dot: Tensor, _: None) -> Tensor:
        return Summed.apply(x_dot, ctx.ranks)  # type: ignore[no-untyped-call, no-any-return]


class SyncedNorm(_BatchNorm):
    """A BatchNorm layer's parameters and statistics, used over all processes, and the leaky ReLU that followed it.

    Unlike torch's SyncBatchNorm it can be differentiated in forward mode and runs on CPUs too. Where no processes share
    what is done, it is an ordinary BatchNorm.
    """

    moves_where_tracked: ClassVar[bool] = True

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        self._parameters, self._buffers = layer._parameters, layer._buffers
        self.slope = layer.slope if isinstance(layer, NormAct) else None
        self.train(layer.training)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"BatchNorm takes a batch of samples, not a tensor of shape {list(x.shape)}")

    def forward(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        if self.training:
            y = self.normalized(x, here())
        else:
            alone = self.running_mean is None  # as torch has it: the statistics of the samples at hand
            y = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, alone, 0.0, self.eps)
        return y if self.slope is None else F.leaky_relu(y, self.slope)

    def normalized(self, x: Tensor, ranks: Ranks) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        var, mean = torch.var_mean(wide, [0, *range(2, x.dim())], correction=0)
        mine = torch.zeros(ranks.size, 1, 1, device=x.device, dtype=wide.dtype)
        mine[ranks.index] = 1
        means, variances = Summed.apply(mine * torch.stack([mean, var]), ranks).unbind(1)  # type: ignore[no-untyped-call]
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)
        self.move(mean.detach(), var.detach(), count=ranks.size * x.numel() // x.shape[1])
        scale = (var + self.eps).rsqrt() * (1 if self.weight is None else self.weight)
        shift = (0 if self.bias is None else self.bias) - mean * scale
        shape = (1, -1, *[1] * (x.dim() - 2))
        return torch.addcmul(shift.view(shape), wide, scale.view(shape)).to(x.dtype)

    @torch.no_grad()
    def move(self, mean: Tensor, var: Tensor, *, count: int) -> None:
        """The running statistics, as torch moves them."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        share = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if share is None else share
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share or 0.0)
        self.running_var.lerp_((var * count / max(1, count - 1)).to(self.running_var.dtype), share or 0.0)


def synced(model: nn.Module, ranks: Ranks) -> nn.Module:
    """The model with its BatchNorm layers over all processes; its parameters and their names stay."""
    made: dict[int, SyncedNorm] = {}
    for module in list(model.modules()) if ranks.group is not None else ():
        for name, child in module._modules.items():
            if isinstance(child, _BatchNorm) and (isinstance(child, NormAct) or type(child).forward in TRACKING):
                made.setdefault(id(child), SyncedNorm(child))  # one that is used twice stays one
                module._modules[name] = made[id(child)]
    return model
