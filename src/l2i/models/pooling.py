"""How the tokens of a text become one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from l2i.errors import InputError
from l2i.models.pretrained import sentence_pooling

if TYPE_CHECKING:
    from l2i.models.base import Network

Pool = Callable[[Any, Tensor], Tensor]


def mean_pool(found: Any, there: Tensor) -> Tensor:
    """The mean over a text's tokens."""
    share = there.unsqueeze(2).to(found.last_hidden_state.dtype)
    mean: Tensor = (found.last_hidden_state * share).sum(dim=1) / share.sum(dim=1).clamp_min(1)
    return mean


def first_pool(found: Any, there: Tensor) -> Tensor:
    """The first token."""
    first: Tensor = found.last_hidden_state[:, 0]
    return first


def pooler_pool(found: Any, there: Tensor) -> Tensor:
    """What the network itself makes of the first token."""
    pooled: Tensor = found.pooler_output
    return pooled


POOLS: dict[str, Pool] = {"mean": mean_pool, "first": first_pool, "pooler": pooler_pool}


def pooling_of(body: Any, network: Network) -> str:
    """How the tokens of a text become one vector: as asked, as the weights were trained, or by the body's own way."""
    if network.pooling != "auto":
        if network.pooling == "pooler" and getattr(body, "pooler", None) is None:
            raise InputError("this encoder has no pooler; use model.pooling='mean' or 'first'")
        return network.pooling
    known = sentence_pooling(network.weights or "")
    if known is not None:
        return sentence_ways(known, network.weights)
    return "first" if getattr(body, "pooler", None) is None else "pooler"


def sentence_ways(known: dict[str, Any], weights: str | None) -> str:
    """Of a sentence transformer's ways to pool, those that there are here."""
    names = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean"}
    asked = {"cls": "first", "mean": "mean"}.get(str(known.get("pooling_mode")))
    found = [way for name, way in names.items() if known.get(name)] if asked is None else [asked]
    if len(found) != 1:
        raise InputError(f"{weights} pools in a way that is not known here; choose one by --model.pooling")
    return found[0]
