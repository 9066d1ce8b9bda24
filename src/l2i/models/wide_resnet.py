"""WideResNet (Zagoruyko and Komodakis, 2016), the paper's network for CIFAR, as MixMatch and FixMatch set it up."""

from torch import Tensor, nn

from l2i.errors import InputError
from l2i.kernels.batchnorm import NormAct
from l2i.models.base import Classifier, ModelConfig

LEAKY_RELU_SLOPE = 0.1  # leaky ReLU, from the MixMatch code


def make_norm(channels: int) -> NormAct:
    """BatchNorm as the MixMatch code has it (decay 0.999, written PyTorch's way round), and the leaky ReLU after it."""
    return NormAct(channels, momentum=0.001, slope=LEAKY_RELU_SLOPE)


class WideResNetBlock(nn.Module):
    """Pre-activation residual block of two convolutions."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, activate_first: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = make_norm(in_channels), make_norm(out_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.shortcut = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
        self.activate_first = activate_first  # the very first block feeds its shortcut with activations too

    def forward(self, x: Tensor) -> Tensor:
        activation = self.norm1(x)
        residual = self.conv2(self.norm2(self.conv1(activation)))
        return residual + self.shortcut(activation if self.activate_first else x)  # type: ignore[no-any-return]


def wide_resnet(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """WRN-depth-width: three groups of (depth − 4) / 6 blocks, 16·width, 32·width and 64·width channels."""
    if len(shape) != 3 or network.depth < 10 or (network.depth - 4) % 6:
        raise InputError(
            f"model.name='wide-resnet' needs images and a depth of 6n + 4 (10, 16, 22, 28, …), "
            f"not samples of shape {list(shape)} and depth {network.depth}; "
            "use model.depth=28, or model.name='mlp' for other samples"
        )
    widths = [16, 16 * network.width, 32 * network.width, 64 * network.width]
    layers: list[nn.Module] = [nn.Conv2d(shape[0], widths[0], 3, padding=1, bias=False)]
    for group in range(3):
        for index in range((network.depth - 4) // 6):
            in_channels = widths[group] if index == 0 else widths[group + 1]
            stride = 2 if group > 0 and index == 0 else 1
            layers.append(WideResNetBlock(in_channels, widths[group + 1], stride, activate_first=group == 0 and index == 0))
    tail = [make_norm(widths[3]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(network.dropout)]
    model = Classifier(nn.Sequential(*layers, *tail), widths[3], outputs)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, a=LEAKY_RELU_SLOPE, mode="fan_out")
    nn.init.xavier_normal_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model
