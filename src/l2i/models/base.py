"""The configuration of a network, and the form that all networks share."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Configure the network and its size."""

    name: str = "conv"
    """mlp, conv, wide-resnet, resnet, efficientnet-lite0 to 2, tcdcn, or encoder for texts."""
    width: int = 32
    """Hidden units (mlp), first channels (conv) or widening factor (wide-resnet, resnet); not used
    by efficientnet-lite, tcdcn and encoder."""
    depth: int = 2
    """Hidden layers (mlp), stages (conv) or total layers, 6n + 4 (wide-resnet) or 6n + 2 (resnet);
    not used by tcdcn and encoder."""
    dropout: float = 0.0
    """Dropout before the head."""
    weights: str | None = None
    """encoder: a folder with weights and tokenizer in Hugging Face format, or a name on the Hub;
    'random' for an untrained BERT of this width and depth. efficientnet-lite0 to 2: 'pretrained'
    for those of its package."""
    freeze: Literal["none", "embeddings", "encoder"] = "none"
    """encoder: parameters to freeze: none, the word embeddings, or all but the head."""
    encoder_dropout: float | None = None
    """encoder: dropout inside the encoder; by default that of its configuration."""


PRETRAINED = "pretrained"  # as weights: those of the network's package


class Classifier(nn.Module):
    """Φ: a feature encoder Φ^f and a linear head, with nothing after it."""

    def __init__(self, encoder: nn.Module, width: int, outputs: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, outputs)

    def features(self, x: Tensor) -> Tensor:
        """Return Φ^f(x), [B, F]."""
        return self.encoder(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]
