"""How long a sequence a pretrained network takes.

MERGED:
How the tokens of a text become one vector.
Pretrained encoders of text, by name or from a folder, with a head (section 5, «Text classification on IMDb»).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from l2i.bilevel.forward_mode import has_dropout
from l2i.errors import InputError
from l2i.models.base import ModelConfig
from l2i.models.huggingface import (
    RANDOM_WEIGHTS,
    build_empty_body,
    check_weight_files,
    load_body,
    load_config,
    load_sentence_pooling,
)


def get_max_tokens(config: Any) -> int | None:
    """The longest sequence that a network takes; None where nothing limits it."""
    max_positions = getattr(config, "max_position_embeddings", None)
    if max_positions is None or max_positions < 0:
        return None
    has_offset = config.model_type in OFFSET_POSITION_MODELS
    return int(max_positions) - (int(config.pad_token_id or 0) + 1 if has_offset else 0)


OFFSET_POSITION_MODELS = (
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
    limit = get_max_tokens(config)
    if limit is not None and length > limit:
        raise InputError(
            f"data.text.length={length} is more than the {limit} tokens that {weights} takes; use at most {limit}"
        )


PoolFunction = Callable[[Any, Tensor], Tensor]


def pool_mean(output: Any, token_mask: Tensor) -> Tensor:
    """The mean over a text's tokens."""
    token_weights = token_mask.unsqueeze(2).to(output.last_hidden_state.dtype)
    mean: Tensor = (output.last_hidden_state * token_weights).sum(dim=1) / token_weights.sum(dim=1).clamp_min(1)
    return mean


def pool_first_token(output: Any, token_mask: Tensor) -> Tensor:
    """The first token."""
    first: Tensor = output.last_hidden_state[:, 0]
    return first


def pool_with_pooler(output: Any, token_mask: Tensor) -> Tensor:
    """What the network itself makes of the first token."""
    pooled: Tensor = output.pooler_output
    return pooled


POOLS: dict[str, PoolFunction] = {"mean": pool_mean, "first": pool_first_token, "pooler": pool_with_pooler}


def resolve_pooling(body: Any, network: ModelConfig) -> str:
    """How the tokens of a text become one vector: as asked, as the weights were trained, or by the body's own way."""
    if network.pooling != "auto":
        if network.pooling == "pooler" and getattr(body, "pooler", None) is None:
            raise InputError("this encoder has no pooler; use model.pooling='mean' or 'first'")
        return network.pooling
    pooling_config = load_sentence_pooling(network.weights or "")
    if pooling_config is not None:
        return parse_sentence_pooling(pooling_config, network.weights)
    return "first" if getattr(body, "pooler", None) is None else "pooler"


def parse_sentence_pooling(pooling_config: dict[str, Any], weights: str | None) -> str:
    """Of a sentence transformer's ways to pool, those that there are here."""
    pooling_by_flag = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean"}
    declared = {"cls": "first", "mean": "mean"}.get(str(pooling_config.get("pooling_mode")))
    poolings = [pooling for flag, pooling in pooling_by_flag.items() if pooling_config.get(flag)] if declared is None else [declared]
    if len(poolings) != 1:
        raise InputError(f"{weights} pools in a way that is not known here; choose one by --model.pooling")
    return poolings[0]


def encoder(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> TextEncoder:
    """The encoder of `network.weights` for texts of `shape` = [L] token ids."""
    if len(shape) != 1:
        raise InputError(
            f"model.name='encoder' reads texts as token ids [L], not samples of shape {list(shape)}; "
            "use model.name='mlp' or 'conv'"
        )
    body = load_body(network)
    check_length(body.config, shape[0], network.weights)
    return TextEncoder(body, outputs, network)


def build_empty_encoder(outputs: int, network: ModelConfig) -> TextEncoder:
    """The encoder of the configuration in the folder `network.weights`, its weights yet to be filled in."""
    return TextEncoder(build_empty_body(network.weights or ""), outputs, network)


def check_weights(network: ModelConfig, length: int) -> None:
    """What can be found out of weights before texts are read, which takes a while."""
    if network.weights != RANDOM_WEIGHTS:
        check_length(load_config(network.weights), length, network.weights)
        check_weight_files(network.weights)


class TextEncoder(nn.Module):
    """Φ: token ids [B, L] to outputs [B, C]; what is padding is told from the ids."""

    def __init__(self, body: Any, outputs: int, network: ModelConfig) -> None:
        super().__init__()
        pooling = resolve_pooling(body, network)
        if pooling != "pooler" and getattr(body, "pooler", None) is not None:
            body.pooler = None  # its weights would be trained for nothing
        body.train()  # what is loaded is in evaluation mode, without its dropout
        self.body, self.pool, self.pad_id = body, POOLS[pooling], get_pad_id(body.config, network.weights)
        width, self.takes_full_mask = probe_body(body, self.pad_id, network.weights)
        self.dropout = nn.Dropout(network.dropout)
        self.head = nn.Linear(width, outputs)
        nn.init.normal_(self.head.weight, std=getattr(body.config, "initializer_range", 0.02))
        nn.init.zeros_(self.head.bias)
        freeze(body, network.freeze)
        if network.gradient_checkpointing:
            enable_grad_checkpointing(body, network.weights)

    def features(self, x: Tensor) -> Tensor:
        """Φ^f(x), [B, F]."""
        token_mask = x != self.pad_id  # [B, L]
        mask = make_full_mask(token_mask) if self.takes_full_mask else token_mask.long()
        return self.dropout(self.pool(self.body(input_ids=x, attention_mask=mask), token_mask))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def make_full_mask(token_mask: Tensor) -> Tensor:
    """Who sees whom, [B, 1, L, L]; of a mask [B, L] most networks make this, but wait for the device to look at it."""
    return token_mask[:, None, None, :].expand(-1, 1, token_mask.shape[1], -1)


def get_pad_id(config: Any, weights: str | None) -> int:
    """The id that padding has."""
    if config.pad_token_id is None:
        raise InputError(f"config.json of {weights} has no pad_token_id; write the tokenizer's there")
    return int(config.pad_token_id)


@torch.no_grad()
def probe_body(body: Any, pad_id: int, weights: str | None) -> tuple[int, bool]:
    """The width of what an encoder makes of a few ids, and whether it takes whole masks for what they are."""
    ids = torch.tensor([i for i in range(5) if i != pad_id][:4]).repeat(2, 1)
    ids[1, 2:] = pad_id
    token_mask, training = ids != pad_id, body.training
    body.eval()
    try:
        hidden = body(input_ids=ids, attention_mask=token_mask.long()).last_hidden_state
        is_decoder = body.config.is_encoder_decoder or torch.allclose(hidden[0, 0], hidden[1, 0], atol=1e-6)
    except Exception as error:
        message = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise InputError(f"{weights} is no encoder of token ids alone ({message}); give one such as a BERT") from None
    try:
        full_mask_hidden = body(input_ids=ids, attention_mask=make_full_mask(token_mask)).last_hidden_state
    except Exception:
        full_mask_hidden = torch.full_like(hidden, torch.nan)
    body.train(training)
    if is_decoder:
        raise InputError(f"{weights} is a decoder, whose tokens see none after them; give an encoder such as a BERT")
    return hidden.shape[-1], torch.allclose(hidden[token_mask], full_mask_hidden[token_mask], atol=1e-6)


def freeze(body: Any, frozen: str) -> None:
    """Take no gradients of the embeddings, or of the whole encoder."""
    if frozen != "none":
        (body if frozen == "encoder" else body.get_input_embeddings()).requires_grad_(False)


def enable_grad_checkpointing(body: Any, weights: str | None) -> None:
    """Keep the inputs of each layer alone, and pass it again in the backward, with the parameters that it had then.

    With dropout, its masks are drawn again from the generator's state, which no recorded step can look at.
    """
    if not body.supports_gradient_checkpointing:
        raise InputError(f"{weights} cannot pass its layers again; use model.gradient_checkpointing=False")
    body.config.use_cache = False  # of what a decoder has said; asked for, it would be advised against
    options = {"use_reentrant": False, "context_fn": partial(make_recompute_contexts, body), "preserve_rng_state": has_dropout(body)}
    body.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def make_recompute_contexts(body: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For a first pass nothing, and for others the parameters that stand in the body's places now."""
    return nullcontext(), ParameterSnapshot(body)


class ParameterSnapshot(AbstractContextManager[None]):
    """The parameters that are in a body's places when this is made; to be entered as often as layers are passed."""

    def __init__(self, body: nn.Module) -> None:
        self.slots = [(m._parameters, key, p) for m in body.modules() for key, p in m._parameters.items()]
        self.saved: list[nn.Parameter | None] = []

    def __enter__(self) -> None:
        self.saved = [owner[key] for owner, key, _ in self.slots]
        for owner, key, p in self.slots:
            owner[key] = p

    def __exit__(self, *_: object) -> None:
        for (owner, key, _p), p in zip(self.slots, self.saved, strict=True):
            owner[key] = p
