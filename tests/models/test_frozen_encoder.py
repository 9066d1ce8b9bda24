"""Frozen encoders in Hugging Face's format, of several kinds of networks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    ConvNextConfig,
    ConvNextModel,
    Dinov2Config,
    Dinov2Model,
    ResNetConfig,
    ResNetModel,
    ViTConfig,
    ViTModel,
)

from l2i.errors import InputError
from l2i.models.frozen_encoder import load_frozen_encoder
from tiny_encoder import tiny_encoder

SIDE = 32
VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": 8,
}
SHALLOW = {"depths": [1, 1], "num_stages": 2}
BODIES = {
    "vit": lambda: ViTModel(ViTConfig(intermediate_size=32, **VIT)),
    "vit without a pooler": lambda: ViTModel(
        ViTConfig(intermediate_size=32, **VIT), add_pooling_layer=False
    ),
    "dinov2": lambda: Dinov2Model(Dinov2Config(mlp_ratio=2, **VIT)),
    "resnet": lambda: ResNetModel(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ),
    "convnext": lambda: ConvNextModel(ConvNextConfig(hidden_sizes=[8, 16], **SHALLOW)),
}


def save(folder: Path, kind: str, **settings: object) -> torch.nn.Module:
    torch.manual_seed(0)
    body = BODIES[kind]().eval()
    body.save_pretrained(folder)
    if settings:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return body


@pytest.mark.parametrize("kind", BODIES)
def test_features_are_the_bodys_own(kind: str, tmp_path: Path) -> None:
    body = save(
        tmp_path / "body",
        kind,
        size={"height": SIDE, "width": SIDE},
        image_mean=[0.5, 0.4, 0.3],
        image_std=[0.1, 0.2, 0.3],
    )
    encoder = load_frozen_encoder(str(tmp_path / "body"))
    pixels = torch.randint(0, 256, (3, 3, SIDE, SIDE), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.5, 0.4, 0.3], [0.1, 0.2, 0.3]))
    with torch.no_grad():
        output = body((pixels / 255 - mean) / std)
    has_pooler = kind not in ("vit without a pooler",)
    expected = output.pooler_output.flatten(1) if has_pooler else output.last_hidden_state[:, 0]
    assert encoder.side == SIDE
    features = encoder.encode(pixels)
    assert features.shape == (3, expected.shape[1])
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "side"),
    [
        ({"size": {"shortest_edge": 40}, "crop_size": 32, "do_center_crop": True}, 32),
        ({"size": {"shortest_edge": 40}, "crop_size": 32, "do_center_crop": False}, 40),
        ({"size": 48}, 48),
        ({}, 224),
    ],
)
def test_images_have_the_size_that_the_weights_ask_for(
    settings: dict[str, object], side: int, tmp_path: Path
) -> None:
    save(tmp_path / "body", "resnet", **settings)
    assert load_frozen_encoder(str(tmp_path / "body")).side == side


@pytest.mark.parametrize(
    "settings",
    [
        {"rescale_factor": None},
        {"rescale_factor": 0},
        {"image_mean": None},
        {"image_std": [0, 0, 0]},
        {"image_std": ["a", 1, 1]},
    ],
    ids=str,
)
def test_damaged_settings_of_images_are_one_line(
    settings: dict[str, object], tmp_path: Path
) -> None:
    save(tmp_path / "body", "resnet", size=SIDE, **settings)
    with pytest.raises(InputError, match=r"preprocessor_config.json of .* is damaged"):
        load_frozen_encoder(str(tmp_path / "body"))


def test_images_are_standardised_as_the_settings_say(tmp_path: Path) -> None:
    save(tmp_path / "plain", "resnet", size=SIDE, do_normalize=False)
    encoder = load_frozen_encoder(str(tmp_path / "plain"))
    assert encoder.mean == (0.0,) * 3 and encoder.std == pytest.approx((255.0,) * 3)
    save(tmp_path / "raw", "resnet", size=SIDE, do_rescale=False, image_mean=[9] * 3)
    assert load_frozen_encoder(str(tmp_path / "raw")).mean == (9.0,) * 3
    assert encoder.digest != load_frozen_encoder(str(tmp_path / "raw")).digest
    save(tmp_path / "bgr", "resnet", size=SIDE, do_flip_channel_order=True)
    with pytest.raises(InputError, match="takes colours as blue, green, red"):
        load_frozen_encoder(str(tmp_path / "bgr"))


def test_weights_tell_encoders_apart(tmp_path: Path) -> None:
    body = save(tmp_path / "one", "resnet")
    with torch.no_grad():
        next(body.parameters()).add_(1e-3)
    body.save_pretrained(tmp_path / "two")
    one, two = (load_frozen_encoder(str(tmp_path / name)) for name in ("one", "two"))
    assert one.digest != two.digest


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (48, r"does not take images of 48 × 48 pixels .*; remove --size"),
        (8, "--size 8 does not suit .* from 32 to 1024 pixels; change it"),
    ],
)
def test_a_size_that_does_not_suit_is_one_line(size: int, message: str, tmp_path: Path) -> None:
    save(tmp_path / "body", "vit", size=SIDE)
    with pytest.raises(InputError, match=message):
        load_frozen_encoder(str(tmp_path / "body"), size)


def test_other_encoders_than_those_of_colour_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use an encoder of images"):
        load_frozen_encoder(tiny_encoder(tmp_path / "bert"))
    save(tmp_path / "grey", "resnet", image_mean=[0.5], image_std=[0.5])
    with pytest.raises(InputError, match="does not take images of three colours"):
        load_frozen_encoder(str(tmp_path / "grey"))
    (tmp_path / "grey/preprocessor_config.json").write_text("{")
    with pytest.raises(InputError, match=r"preprocessor_config.json is damaged"):
        load_frozen_encoder(str(tmp_path / "grey"))
