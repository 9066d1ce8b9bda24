"""Save and load fitted models as tensors and a description in JSON; nothing is pickled."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from l2i.candidates.network import NetworkPredictor
from l2i.candidates.predictors import PREDICTORS, AveragePredictor, Predictor
from l2i.config import Run
from l2i.config.serialization import from_dict
from l2i.config.validate import validate
from l2i.models import MODELS
from l2i.models.base import ModelConfig
from l2i.registry import load_registered
from l2i.training.setup import check_shapes, load_module_state

MAX_MEMBERS = 10  # of an average
Description = dict[str, Any]
Tensors = dict[str, Tensor]


def describe_model(model: nn.Module) -> tuple[Description, Tensors]:
    """Return what `build_model` takes to make the same model again."""
    tensors = {name: t.detach().contiguous() for name, t in model.state_dict().items()}
    if isinstance(model, AveragePredictor):
        members = [describe_model(member)[0] for member in model.models]
        return {"kind": "average", "members": members}, tensors
    if isinstance(model, NetworkPredictor):
        return {"kind": "network", "model": asdict(model.config)}, tensors
    assert isinstance(model, Predictor)
    return {"kind": model.kind}, tensors


def build_model(
    description: Description,
    tensors: Tensors,
    *,
    num_inputs: int,
    num_outputs: int,
    is_classifier: bool,
) -> nn.Module:
    """Return a saved model; raise ValueError or KeyError if description and tensors do not fit."""
    build = partial(
        build_model, num_inputs=num_inputs, num_outputs=num_outputs, is_classifier=is_classifier
    )
    kind = description["kind"]
    if kind == "average":
        members = description["members"]
        if not 0 < len(members) <= MAX_MEMBERS or any(m["kind"] == "average" for m in members):
            raise ValueError("not the members of an average")
        models = [build(m, _select(tensors, f"models.{i}.")) for i, m in enumerate(members)]
        return AveragePredictor(models, is_classifier=is_classifier)
    if kind == "network":
        return _build_network(description, tensors, num_inputs, num_outputs)
    model = PREDICTORS[kind](**tensors)
    model.check(num_inputs, num_outputs)
    return model.eval()


def _build_network(
    description: Description, tensors: Tensors, num_inputs: int, num_outputs: int
) -> nn.Module:
    config = from_dict(ModelConfig, description["model"])
    validate(Run(model=config))
    if config.name == "encoder":
        raise ValueError("not a network of a table")
    make = partial(load_registered("model", MODELS, config.name), (num_inputs,), num_outputs)
    weights = _select(tensors, "network.")
    check_shapes(partial(make, config), weights)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        network: nn.Module = make(config)
    load_module_state(network, weights)
    mean, std = tensors["mean"], tensors["std"]
    if mean.shape != (num_outputs,) or std.shape != (num_outputs,):
        raise ValueError("tensors do not fit together")
    predictor = NetworkPredictor(network.float(), mean.float(), std.float(), config)
    return predictor.requires_grad_(False).eval()


def _select(tensors: Tensors, prefix: str) -> Tensors:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
