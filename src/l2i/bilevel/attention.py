"""Attention in forward mode and in second derivatives, which fused kernels have not."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.dropout import _DropoutNd


def plain_attention() -> AbstractContextManager[None]:
    """Within it, attention is made of matrix products and a softmax, which can be differentiated in every way."""
    context: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return context


def alike_attention(model: nn.Module) -> AbstractContextManager[None]:
    """The same for a model with dropout: of attention, each kernel draws a mask of its own from the same generator."""
    return plain_attention() if has_dropout(model) else nullcontext()


def has_dropout(model: nn.Module) -> bool:
    """Whether a module in training drops out, or holds a share to drop as nn.MultiheadAttention does."""
    shares = (m.p if isinstance(m, _DropoutNd) else getattr(m, "dropout", 0) for m in model.modules() if m.training)
    return any(isinstance(share, float) and share > 0 for share in shares)
