"""How long a sequence a pretrained network takes."""

from __future__ import annotations

from typing import Any

from l2i.errors import InputError


def most_tokens(config: Any) -> int | None:
    """The longest sequence that a network takes; None where nothing limits it."""
    places = getattr(config, "max_position_embeddings", None)
    if places is None or places < 0:
        return None
    shifted = config.model_type in SHIFTED
    return int(places) - (int(config.pad_token_id or 0) + 1 if shifted else 0)


SHIFTED = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta-prelayernorm",
    "xmod",
)
"""Architectures whose positions begin after that of padding."""


def check_length(config: Any, length: int, weights: str | None) -> None:
    """That the network takes sequences of this length."""
    most = most_tokens(config)
    if most is not None and length > most:
        raise InputError(
            f"data.text.length={length} is more than the {most} tokens that {weights} takes; use at most {most}"
        )
