"""The form all networks here share, and what a network is built from."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network, and its size."""

    name: str = "conv"
    """mlp, conv, wide-resnet, resnet, tcdcn, or encoder for texts."""
    width: int = 32
    """Hidden units (mlp), first channels (conv), widening factor (wide-resnet, resnet); not used by tcdcn and
    encoder."""
    depth: int = 2
    """Hidden layers (mlp), stages (conv), total layers, 6n + 4 (wide-resnet), 6n + 2 (resnet); not used by tcdcn and
    encoder."""
    dropout: float = 0.0
    """Dropout before the head."""
    weights: str | None = None
    """encoder: a folder with weights and tokenizer in Hugging Face's form, or a name on its hub; 'random' for a BERT of
    this width and depth that is not trained."""
    pooling: Literal["auto", "mean", "first", "pooler"] = "auto"
    """encoder: how the tokens of a text become one vector: their mean, the first, or the network's own pooler; auto: as
    the weights were trained."""
    freeze: Literal["none", "embeddings", "encoder"] = "none"
    """encoder: what is not trained: nothing, the word embeddings, or all but the head."""
    encoder_dropout: float | None = None
    """encoder: dropout within it; by default as its weights say."""
    gradient_checkpointing: bool = False
    """encoder: keep each layer's inputs alone and pass it again in the backward: less memory, more time."""


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
