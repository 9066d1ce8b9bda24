"""BatchNorm over a batch that processes share, with the statistics of the whole batch."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from l2i.bilevel.functional import KNOWN_BATCHNORM
from l2i.distributed import ProcessGroup, current_group
from l2i.kernels.batchnorm import NormAct


class AllReduceSum(Function):
    """The sum over processes: linear and symmetric, so it is its own derivative in both modes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return group.all_reduce(x.clone())

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return AllReduceSum.apply(dy, ctx.group), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, x_dot: Tensor, _: None) -> Tensor:
        return AllReduceSum.apply(x_dot, ctx.group)  # type: ignore[no-untyped-call, no-any-return]


class SyncBatchNormAct(_BatchNorm):
    """A BatchNorm layer over all processes, and the leaky ReLU that follows it.

    Unlike torch's SyncBatchNorm it supports forward mode and CPUs. In a single process it is an
    ordinary BatchNorm.
    """

    respects_track_running_stats: ClassVar[bool] = True

    def __init__(self, layer: _BatchNorm) -> None:
        super().__init__(
            layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats
        )
        self._parameters, self._buffers = layer._parameters, layer._buffers
        self.slope = layer.slope if isinstance(layer, NormAct) else None
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2:
            raise ValueError(
                f"BatchNorm needs a batch of samples, not a tensor of shape {list(x.shape)}"
            )
        if self.training:
            y = self._normalize_batch(x, current_group())
        else:
            stats, params = (self.running_mean, self.running_var), (self.weight, self.bias)
            use_batch_stats = self.running_mean is None  # as torch does
            y = F.batch_norm(x, *stats, *params, use_batch_stats, 0.0, self.eps)
        return y if self.slope is None else F.leaky_relu(y, self.slope)

    def _normalize_batch(self, x: Tensor, group: ProcessGroup) -> Tensor:
        promoted = x.to(torch.promote_types(x.dtype, torch.float32))
        var, mean = torch.var_mean(promoted, [0, *range(2, x.dim())], correction=0)
        rank_mask = torch.zeros(group.size, 1, 1, device=x.device, dtype=promoted.dtype)
        rank_mask[group.rank] = 1
        own_stats = rank_mask * torch.stack([mean, var])
        stats: Tensor = AllReduceSum.apply(own_stats, group)  # type: ignore[no-untyped-call]
        means, variances = stats.unbind(1)
        mean = means.mean(0)
        var = variances.mean(0) + (means - mean).square().mean(0)
        count = group.size * x.numel() // x.shape[1]
        self._update_running_stats(mean.detach(), var.detach(), count)
        scale = (var + self.eps).rsqrt() * (1 if self.weight is None else self.weight)
        shift = (0 if self.bias is None else self.bias) - mean * scale
        shape = (1, -1, *[1] * (x.dim() - 2))
        return torch.addcmul(shift.view(shape), promoted, scale.view(shape)).to(x.dtype)

    @torch.no_grad()
    def _update_running_stats(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Update the running statistics as torch does."""
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1 / float(self.num_batches_tracked) if momentum is None else momentum
        unbiased = var * count / max(1, count - 1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum or 0.0)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum or 0.0)


def convert_sync_batchnorm(model: nn.Module, group: ProcessGroup) -> nn.Module:
    """Replace the BatchNorm layers by synchronised ones; parameters keep their names."""
    converted: dict[int, SyncBatchNormAct] = {}
    for module in list(model.modules()) if group.device_group is not None else ():
        for name, child in module._modules.items():
            if isinstance(child, _BatchNorm) and (
                isinstance(child, NormAct) or type(child).forward in KNOWN_BATCHNORM
            ):
                # a layer that is used twice stays one
                converted.setdefault(id(child), SyncBatchNormAct(child))
                module._modules[name] = converted[id(child)]
    return model
