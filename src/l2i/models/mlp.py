"""A multi-layer perceptron for tables and tiny images."""

from math import prod

from torch import nn

from l2i.models.base import Classifier, ModelConfig


def mlp(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """`depth` hidden layers of `width` units."""
    layers: list[nn.Module] = [nn.Flatten()]
    in_features = prod(shape)
    for _ in range(network.depth):
        layers += [nn.Linear(in_features, network.width), nn.BatchNorm1d(network.width), nn.ReLU()]
        in_features = network.width
    return Classifier(nn.Sequential(*layers, nn.Dropout(network.dropout)), in_features, outputs)
