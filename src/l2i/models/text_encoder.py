"""Pretrained encoders of text with a linear head (section 5, «Text classification on IMDb»)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from l2i.errors import InputError
from l2i.models.base import ModelConfig
from l2i.models.huggingface import (
    RANDOM_WEIGHTS,
    build_empty_body,
    check_weight_files,
    load_body,
    load_config,
    load_sentence_pooling,
    shorten_error,
)

OFFSET_POSITION_MODELS = (  # their positions begin after that of padding
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "camembert", "xmod"),
    *("data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet"),
)


def build_text_encoder(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> TextEncoder:
    """Load the encoder of `network.weights` for texts of `shape` = [L] token ids."""
    if len(shape) != 1:
        problem = f"needs token ids [L], not samples of shape {list(shape)}"
        raise InputError(f"model.name='encoder' {problem}; use model.name='mlp' or 'conv'")
    body = load_body(network)
    check_length(body.config, shape[0], network.weights)
    return TextEncoder(body, outputs, network)


def build_empty_encoder(outputs: int, network: ModelConfig) -> TextEncoder:
    """Build the encoder of the configuration in `network.weights`, without its weights."""
    return TextEncoder(build_empty_body(network.weights or ""), outputs, network)


def check_weights(network: ModelConfig, length: int) -> None:
    """Check what can be checked before texts are read, which takes a while."""
    if network.weights != RANDOM_WEIGHTS:
        check_length(load_config(network.weights), length, network.weights)
        check_weight_files(network.weights)


def check_length(config: Any, length: int, weights: str | None) -> None:
    """Check that the network takes sequences of this length."""
    limit = get_max_tokens(config)
    if limit is not None and length > limit:
        problem = f"exceeds the maximum of {weights}"
        raise InputError(f"data.text.length={length} {problem}; use at most {limit}")


def get_max_tokens(config: Any) -> int | None:
    """Return the longest sequence that a network takes; None if there is no limit."""
    max_positions = getattr(config, "max_position_embeddings", None)
    if max_positions is None or max_positions < 0:
        return None
    has_offset = config.model_type in OFFSET_POSITION_MODELS
    return int(max_positions) - (int(config.pad_token_id or 0) + 1 if has_offset else 0)


class TextEncoder(nn.Module):
    """Φ: token ids [B, L] to outputs [B, C]; padding is recognised by its id."""

    def __init__(self, body: Any, outputs: int, network: ModelConfig) -> None:
        super().__init__()
        self.pooling = resolve_pooling(body, network)
        if self.pooling != "pooler" and getattr(body, "pooler", None) is not None:
            body.pooler = None  # its weights would be trained for nothing
        body.train()  # a loaded network is in evaluation mode, without its dropout
        if body.config.pad_token_id is None:
            problem = f"config.json of {network.weights} has no pad_token_id"
            raise InputError(f"{problem}; add that of its tokenizer")
        self.body, self.pad_id = body, int(body.config.pad_token_id)
        width, self.takes_full_mask = _probe_body(body, self.pad_id, network.weights)
        self.dropout = nn.Dropout(network.dropout)
        self.head = nn.Linear(width, outputs)
        nn.init.normal_(self.head.weight, std=getattr(body.config, "initializer_range", 0.02))
        nn.init.zeros_(self.head.bias)
        if network.freeze != "none":
            frozen = body if network.freeze == "encoder" else body.get_input_embeddings()
            frozen.requires_grad_(False)

    def features(self, x: Tensor) -> Tensor:
        """Return Φ^f(x), [B, F]."""
        token_mask = x != self.pad_id  # [B, L]
        mask = _make_full_mask(token_mask) if self.takes_full_mask else token_mask.long()
        output = self.body(input_ids=x, attention_mask=mask)
        return self.dropout(self._pool(output, token_mask))  # type: ignore[no-any-return]

    def _pool(self, output: Any, token_mask: Tensor) -> Any:
        if self.pooling == "pooler":
            return output.pooler_output
        hidden = output.last_hidden_state
        if self.pooling == "first":
            return hidden[:, 0]
        token_weights = token_mask.unsqueeze(2).to(hidden.dtype)
        return (hidden * token_weights).sum(dim=1) / token_weights.sum(dim=1).clamp_min(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def resolve_pooling(body: Any, network: ModelConfig) -> str:
    """Return "first", "mean" or "pooler": as the weights were trained, or the body's own way."""
    config = load_sentence_pooling(network.weights or "")
    if config is None:
        return "first" if getattr(body, "pooler", None) is None else "pooler"
    pooling_by_flag = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean"}
    poolings = [pooling for flag, pooling in pooling_by_flag.items() if config.get(flag)]
    declared = {"cls": "first", "mean": "mean"}.get(str(config.get("pooling_mode")))
    if declared is None and len(poolings) != 1:
        fix = "use weights that pool by the mean or the first token"
        raise InputError(f"{network.weights} uses an unsupported pooling; {fix}")
    return declared or poolings[0]


def _make_full_mask(token_mask: Tensor) -> Tensor:
    """Expand to [B, 1, L, L]; networks do so themselves, but synchronise with the device first."""
    return token_mask[:, None, None, :].expand(-1, 1, token_mask.shape[1], -1)


@torch.no_grad()
def _probe_body(body: Any, pad_id: int, weights: str | None) -> tuple[int, bool]:
    """Return the width of an encoder's outputs, and whether it takes full masks."""
    ids = torch.tensor([i for i in range(5) if i != pad_id][:4]).repeat(2, 1)
    ids[1, 2:] = pad_id
    token_mask, training = ids != pad_id, body.training
    body.eval()
    try:
        hidden = body(input_ids=ids, attention_mask=token_mask.long()).last_hidden_state
        is_decoder = body.config.is_encoder_decoder or torch.allclose(
            hidden[0, 0], hidden[1, 0], atol=1e-6
        )
    except Exception as error:
        problem = f"is not an encoder of token ids alone ({shorten_error(error)})"
        raise InputError(f"{weights} {problem}; use one such as BERT") from None
    try:
        full_mask = _make_full_mask(token_mask)
        full_hidden = body(input_ids=ids, attention_mask=full_mask).last_hidden_state
    except Exception:
        full_hidden = torch.full_like(hidden, torch.nan)
    body.train(training)
    if is_decoder:
        problem = "is a decoder with causal attention"
        raise InputError(f"{weights} {problem}; use an encoder such as BERT")
    is_same = torch.allclose(hidden[token_mask], full_hidden[token_mask], atol=1e-6)
    return hidden.shape[-1], is_same
