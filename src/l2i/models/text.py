"""Pretrained encoders of text, by name or from a folder, with a head (section 5, «Text classification on IMDb»)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from l2i.bilevel.attention import has_dropout
from l2i.errors import InputError
from l2i.models.base import Network
from l2i.models.pooling import POOLS, pooling_of
from l2i.models.positions import check_length
from l2i.models.pretrained import RANDOM, blank_body, check_whole, load_body, load_config


def encoder(shape: tuple[int, ...], outputs: int, network: Network) -> Encoder:
    """The encoder of `network.weights` for texts of `shape` = [L] token ids."""
    if len(shape) != 1:
        raise InputError(
            f"model.name='encoder' reads texts as token ids [L], not samples of shape {list(shape)}; "
            "use model.name='mlp' or 'conv'"
        )
    body = load_body(network)
    check_length(body.config, shape[0], network.weights)
    return Encoder(body, outputs, network)


def blank_encoder(outputs: int, network: Network) -> Encoder:
    """The encoder of the configuration in the folder `network.weights`, its weights yet to be filled in."""
    return Encoder(blank_body(network.weights or ""), outputs, network)


def check_weights(network: Network, length: int) -> None:
    """What can be found out of weights before texts are read, which takes a while."""
    if network.weights != RANDOM:
        check_length(load_config(network.weights), length, network.weights)
        check_whole(network.weights)


class Encoder(nn.Module):
    """Φ: token ids [B, L] to outputs [B, C]; what is padding is told from the ids."""

    def __init__(self, body: Any, outputs: int, network: Network) -> None:
        super().__init__()
        pooling = pooling_of(body, network)
        if pooling != "pooler" and getattr(body, "pooler", None) is not None:
            body.pooler = None  # its weights would be trained for nothing
        body.train()  # what is loaded is in evaluation mode, without its dropout
        self.body, self.pool, self.pad = body, POOLS[pooling], pad_of(body.config, network.weights)
        width, self.whole = tried(body, self.pad, network.weights)
        self.dropout = nn.Dropout(network.dropout)
        self.head = nn.Linear(width, outputs)
        nn.init.normal_(self.head.weight, std=getattr(body.config, "initializer_range", 0.02))
        nn.init.zeros_(self.head.bias)
        freeze(body, network.frozen)
        if network.checkpointing:
            recompute(body, network.weights)

    def features(self, x: Tensor) -> Tensor:
        """Φ^f(x), [B, F]."""
        there = x != self.pad  # [B, L]
        mask = whole_mask(there) if self.whole else there.long()
        return self.dropout(self.pool(self.body(input_ids=x, attention_mask=mask), there))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))  # type: ignore[no-any-return]


def whole_mask(there: Tensor) -> Tensor:
    """Who sees whom, [B, 1, L, L]; of a mask [B, L] most networks make this, but wait for the device to look at it."""
    return there[:, None, None, :].expand(-1, 1, there.shape[1], -1)


def pad_of(config: Any, weights: str | None) -> int:
    """The id that padding has."""
    if config.pad_token_id is None:
        raise InputError(f"config.json of {weights} has no pad_token_id; write the tokenizer's there")
    return int(config.pad_token_id)


@torch.no_grad()
def tried(body: Any, pad: int, weights: str | None) -> tuple[int, bool]:
    """The width of what an encoder makes of a few ids, and whether it takes whole masks for what they are."""
    ids = torch.tensor([i for i in range(5) if i != pad][:4]).repeat(2, 1)
    ids[1, 2:] = pad
    there, training = ids != pad, body.training
    body.eval()
    try:
        plain = body(input_ids=ids, attention_mask=there.long()).last_hidden_state
        decodes = body.config.is_encoder_decoder or torch.allclose(plain[0, 0], plain[1, 0], atol=1e-6)
    except Exception as error:
        what = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise InputError(f"{weights} is no encoder of token ids alone ({what}); give one such as a BERT") from None
    try:
        whole = body(input_ids=ids, attention_mask=whole_mask(there)).last_hidden_state
    except Exception:
        whole = torch.full_like(plain, torch.nan)
    body.train(training)
    if decodes:
        raise InputError(f"{weights} is a decoder, whose tokens see none after them; give an encoder such as a BERT")
    return plain.shape[-1], torch.allclose(plain[there], whole[there], atol=1e-6)


def freeze(body: Any, frozen: str) -> None:
    """Take no gradients of the embeddings, or of the whole encoder."""
    if frozen != "none":
        (body if frozen == "encoder" else body.get_input_embeddings()).requires_grad_(False)


def recompute(body: Any, weights: str | None) -> None:
    """Keep the inputs of each layer alone, and pass it again in the backward, with the parameters that it had then.

    With dropout, its masks are drawn again from the generator's state, which no recorded step can look at.
    """
    if not body.supports_gradient_checkpointing:
        raise InputError(f"{weights} cannot pass its layers again; use model.checkpointing=False")
    body.config.use_cache = False  # of what a decoder has said; asked for, it would be advised against
    how = {"use_reentrant": False, "context_fn": partial(again, body), "preserve_rng_state": has_dropout(body)}
    body.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)


def again(body: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For a first pass nothing, and for others the parameters that stand in the body's places now."""
    return nullcontext(), Standing(body)


class Standing(AbstractContextManager[None]):
    """The parameters that are in a body's places when this is made; to be entered as often as layers are passed."""

    def __init__(self, body: nn.Module) -> None:
        self.places = [(m._parameters, key, p) for m in body.modules() for key, p in m._parameters.items()]
        self.kept: list[nn.Parameter | None] = []

    def __enter__(self) -> None:
        self.kept = [place[key] for place, key, _ in self.places]
        for place, key, p in self.places:
            place[key] = p

    def __exit__(self, *_: object) -> None:
        for (place, key, _p), p in zip(self.places, self.kept, strict=True):
            place[key] = p
