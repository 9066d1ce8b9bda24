"""A small convolutional network for images of 8×8 to 32×32 pixels."""

from torch import nn

from l2i.errors import InputError
from l2i.models.base import Classifier, ModelConfig


def conv(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """`depth` stages of two convolutions; each stage halves the image and the next doubles the channels."""
    if len(shape) != 3 or min(shape[1:]) < 2**network.depth:
        raise InputError(
            f"model.name='conv' with depth {network.depth} needs images [C, H, W] of at least {2**network.depth} "
            f"pixels, not samples of shape {list(shape)}; use model.name='mlp', or a lower model.depth for small images"
        )
    layers: list[nn.Module] = []
    channels = shape[0]
    for stage in range(network.depth):
        width = network.width * 2**stage
        for in_channels in (channels, width):
            layers += [nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = width
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(network.dropout)]
    return Classifier(nn.Sequential(*layers, *tail), channels, outputs)
