"""WideResNet (Zagoruyko and Komodakis, 2016), the paper's network for CIFAR, as MixMatch and FixMatch set it up."""

from torch import Tensor, nn

from l2i.errors import InputError
from l2i.models.base import Classifier, Network
from l2i.models.norm import NormAct

SLOPE = 0.1  # leaky ReLU, from the MixMatch code


def norm(channels: int) -> NormAct:
    """BatchNorm as the MixMatch code has it (decay 0.999, written PyTorch's way round), and the leaky ReLU after it."""
    return NormAct(channels, momentum=0.001, slope=SLOPE)


class Block(nn.Module):
    """Pre-activation residual block of two convolutions."""

    def __init__(self, before: int, after: int, stride: int, activate_first: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(before), norm(after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, stride, bias=False)
        self.activate_first = activate_first  # the very first block feeds its shortcut with activations too

    def forward(self, x: Tensor) -> Tensor:
        active = self.norm1(x)
        inner = self.conv2(self.norm2(self.conv1(active)))
        return inner + self.shortcut(active if self.activate_first else x)  # type: ignore[no-any-return]


def wide_resnet(shape: tuple[int, ...], outputs: int, network: Network) -> Classifier:
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
            before = widths[group] if index == 0 else widths[group + 1]
            stride = 2 if group > 0 and index == 0 else 1
            layers.append(Block(before, widths[group + 1], stride, activate_first=group == 0 and index == 0))
    tail = [norm(widths[3]), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(network.dropout)]
    model = Classifier(nn.Sequential(*layers, *tail), widths[3], outputs)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, a=SLOPE, mode="fan_out")
    nn.init.xavier_normal_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model
