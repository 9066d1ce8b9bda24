"""A multi-layer perceptron for tables and tiny images."""

from math import prod

from torch import nn

from l2i.models.base import Classifier, Network


def mlp(shape: tuple[int, ...], outputs: int, network: Network) -> Classifier:
    """`depth` hidden layers of `width` units."""
    layers: list[nn.Module] = [nn.Flatten()]
    size = prod(shape)
    for _ in range(network.depth):
        layers += [nn.Linear(size, network.width), nn.BatchNorm1d(network.width), nn.ReLU()]
        size = network.width
    return Classifier(nn.Sequential(*layers, nn.Dropout(network.dropout)), size, outputs)
