"""Small networks: a multilayer perceptron, and convolutions for images of 8×8 to 32×32 pixels."""

from math import prod

from torch import nn

from l2i.errors import InputError
from l2i.models.base import Classifier, ModelConfig


def build_mlp(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """Build `depth` hidden layers of `width` units."""
    layers: list[nn.Module] = [nn.Flatten()]
    in_features = prod(shape)
    for _ in range(network.depth):
        layers += [nn.Linear(in_features, network.width), nn.BatchNorm1d(network.width), nn.ReLU()]
        in_features = network.width
    return Classifier(nn.Sequential(*layers, nn.Dropout(network.dropout)), in_features, outputs)


def build_conv(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """Build `depth` stages of two convolutions; each halves the image and doubles the channels."""
    if len(shape) != 3 or min(shape[1:]) < 2**network.depth:
        raise InputError(
            f"model.name='conv' with depth {network.depth} needs images [C, H, W] of at least "
            f"{2**network.depth} pixels, not samples of shape {list(shape)}; "
            "use model.name='mlp', or a lower model.depth for small images"
        )
    layers: list[nn.Module] = []
    channels = shape[0]
    for stage in range(network.depth):
        width = network.width * 2**stage
        for in_channels in (channels, width):
            convolution = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = width
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(network.dropout)]
    return Classifier(nn.Sequential(*layers, *tail), channels, outputs)
