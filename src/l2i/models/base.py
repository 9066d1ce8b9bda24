"""The form all networks here share, and what a network is built from."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Network:
    """Which network, and its size."""

    name: str = "conv"
    """mlp, conv, wide-resnet, resnet or tcdcn."""
    width: int = 32
    """Hidden units (mlp), first channels (conv), widening factor (wide-resnet, resnet); not used by tcdcn."""
    depth: int = 2
    """Hidden layers (mlp), stages (conv), total layers, 6n + 4 (wide-resnet), 6n + 2 (resnet); not used by tcdcn."""
    dropout: float = 0.0
    """Dropout before the head."""


class Classifier(nn.Module):
    """Φ: a feature encoder Φ^f and a linear head, nothing after it."""

    def __init__(self, encoder: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, outputs)

    def features(self, x: Tensor) -> Tensor:
        """Φ^f(x), [B, F]."""
        return self.encoder(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]
