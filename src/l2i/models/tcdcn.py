"""TCDCN (Zhang et al., 2014), the paper's network for AFLW, in the sizes of its released code."""

from collections import OrderedDict

import torch
from torch import nn

from l2i.errors import InputError
from l2i.kernels.conv_pool import ConvPoolHardtanh
from l2i.models.base import Classifier, ModelConfig

NUM_FEATURES = 256
POOLED_CONVS = ((20, 5), (48, 5), (64, 3))  # channels and kernel sizes
LAST_CONV = (80, 3)


def build_tcdcn(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """Build four convolutions and a linear layer; their sizes are fixed, whatever the `width`."""
    if len(shape) != 3 or min(map(_compute_flat_side, shape[1:])) < 1:
        raise InputError(
            "model.name='tcdcn' needs images [C, H, W] of at least 44 × 44 pixels (the paper's "
            f"are 1 × 60 × 60), not samples of shape {list(shape)}; enlarge the images, "
            "use model.name='conv' for small images, or model.name='mlp' for other samples"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = shape[0]
    for width, kernel in POOLED_CONVS:
        # pooled before hardtanh: the same, since it is monotonic, on a quarter of the values
        layer = ConvPoolHardtanh(channels, width, kernel, pad_channels=True)
        layers[str(3 * len(layers))] = layer  # named as in checkpoints
        channels = width
    flat_size = LAST_CONV[0] * _compute_flat_side(shape[1]) * _compute_flat_side(shape[2])
    tail = [nn.Conv2d(channels, LAST_CONV[0], LAST_CONV[1]), nn.Hardtanh(), nn.Flatten()]
    tail += [nn.Linear(flat_size, NUM_FEATURES), nn.Dropout(network.dropout)]
    layers.update((str(3 * len(POOLED_CONVS) + i), layer) for i, layer in enumerate(tail))
    model = Classifier(nn.Sequential(layers), NUM_FEATURES, outputs)
    # in this layout pooling is several times faster on a CPU
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _compute_flat_side(side: int) -> int:
    """Return the side after the convolutions, which do not pad, and the pools: 3 for 60 pixels."""
    for _, kernel in POOLED_CONVS:
        side = (side - kernel + 1) // 2
    return side - LAST_CONV[1] + 1
