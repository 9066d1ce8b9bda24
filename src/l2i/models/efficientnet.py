"""EfficientNet-Lite 0, 1 and 2: networks for images that are quick without a GPU."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from l2i.errors import InputError
from l2i.models.base import PRETRAINED, Classifier, ModelConfig
from l2i.models.pretrained import load_encoder_weights

STEM_CHANNELS, NUM_FEATURES = 32, 1280  # of every variant: they do not scale
MIN_SIDE = 32  # pixels: the network halves them five times
BN_EPSILON, BN_MOMENTUM = 1e-3, 0.01  # as its weights were trained with


class Stage(NamedTuple):
    """Blocks of one resolution; the first one changes it."""

    blocks: int
    kernel: int
    stride: int
    expansion: int
    channels: int


class Variant(NamedTuple):
    """What sets one network apart from the smallest."""

    width: float
    depth: float
    side: int
    """Pixels of the images that its weights were trained on."""


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)
VARIANTS = {
    "efficientnet-lite0": Variant(1.0, 1.0, 224),
    "efficientnet-lite1": Variant(1.0, 1.1, 240),
    "efficientnet-lite2": Variant(1.1, 1.2, 260),
}


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow does: outputs are ⌈side / stride⌉ wide."""

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for side, kernel, stride in zip(x.shape[2:], self.kernel_size, self.stride, strict=True):
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads = [total // 2, total - total // 2, *pads]
        before, after = set(pads[0::2]), set(pads[1::2])
        if before == after and len(before) == 1:  # even: the convolution itself can pad
            return F.conv2d(
                x, self.weight, self.bias, self.stride, before.pop(), groups=self.groups
            )
        return super().forward(F.pad(x, pads))


def _make_layer(
    in_channels: int, channels: int, kernel: int = 1, stride: int = 1, *, is_depthwise: bool = False
) -> nn.Sequential:
    """Build a convolution and its BatchNorm."""
    groups = channels if is_depthwise else 1
    conv = SameConv2d(in_channels, channels, kernel, stride, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels, eps=BN_EPSILON, momentum=BN_MOMENTUM))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project; added to the input if the shapes agree."""

    def __init__(self, in_channels: int, stage: Stage, channels: int, stride: int) -> None:
        super().__init__()
        width = in_channels * stage.expansion
        layers: list[nn.Module] = []
        if stage.expansion > 1:
            layers += [_make_layer(in_channels, width), nn.ReLU6()]
        filters = _make_layer(width, width, stage.kernel, stride, is_depthwise=True)
        layers += [filters, nn.ReLU6(), _make_layer(width, channels)]
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return x + outputs if self.has_shortcut else outputs


def build_efficientnet(
    shape: tuple[int, ...], outputs: int, network: ModelConfig, *, name: str
) -> Classifier:
    """Build a variant for images of three colours, with pretrained weights on request."""
    if len(shape) != 3 or shape[0] != 3 or min(shape[1:]) < MIN_SIDE:
        problem = f"needs RGB images [3, H, W] of at least {MIN_SIDE} × {MIN_SIDE} pixels"
        fix = "use model.name='conv' for other images, or 'mlp' for other samples"
        raise InputError(f"model.name='{name}' {problem}, not {list(shape)}; {fix}")
    variant, channels = VARIANTS[name], STEM_CHANNELS
    layers: list[nn.Module] = [_make_layer(shape[0], channels, 3, stride=2), nn.ReLU6()]
    for stage in STAGES:
        out_channels = _scale_channels(stage.channels, variant.width)
        is_end = stage in (STAGES[0], STAGES[-1])
        num_blocks = stage.blocks if is_end else math.ceil(stage.blocks * variant.depth)
        for index in range(num_blocks):
            stride = stage.stride if index == 0 else 1
            layers.append(InvertedResidual(channels, stage, out_channels, stride))
            channels = out_channels
    layers += [_make_layer(channels, NUM_FEATURES), nn.ReLU6()]
    encoder = nn.Sequential()  # numbered layers, by which learning rates decay
    encoder.add_module("layers", nn.Sequential(*layers))
    encoder.add_module("pool", nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    encoder.add_module("dropout", nn.Dropout(network.dropout))
    model = Classifier(encoder, NUM_FEATURES, outputs)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    if network.weights == PRETRAINED and not model.head.weight.is_meta:
        load_encoder_weights(name, model.encoder)
    return model


def _scale_channels(channels: int, width: float) -> int:
    """Return channels times `width`, rounded to a multiple of 8, by a tenth down at most."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


build_lite0 = partial(build_efficientnet, name="efficientnet-lite0")
build_lite1 = partial(build_efficientnet, name="efficientnet-lite1")
build_lite2 = partial(build_efficientnet, name="efficientnet-lite2")
