"""WideResNet for CIFAR (Zagoruyko et al., 2016), ResNet-26 for ImageNet (Rebuffi et al., 2017)."""

from torch import Tensor, nn
from torch.nn import functional as F

from l2i.errors import InputError
from l2i.kernels.batchnorm import NormAct
from l2i.models.base import Classifier, ModelConfig

STEM_CHANNELS, STAGE_CHANNELS = 32, (64, 128, 256)


class ResNetBlock(nn.Module):
    """Basic residual block; to halve the image, its shortcut average-pools and pads with zeros."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.stride, self.extra_channels = stride, out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.stride > 1:  # ceil_mode: an odd side is rounded up, as the convolution does
            x = F.avg_pool2d(x, self.stride, ceil_mode=True)
        return F.relu(residual + F.pad(x, (0, 0, 0, 0, 0, self.extra_channels)))


def build_resnet(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """Build three stages of (depth − 2) / 6 blocks of 64, 128 and 256·width channels."""
    if len(shape) != 3 or min(shape[1:]) < 8 or network.depth < 8 or (network.depth - 2) % 6:
        raise InputError(
            "model.name='resnet' needs images [C, H, W] of at least 8 × 8 pixels and a depth of "
            "6n + 2 (8, 14, 20, 26, …), "
            f"not samples of shape {list(shape)} and depth {network.depth}; "
            "use model.depth=26 with model.width=1, or model.name='mlp' for other samples"
        )
    channels = STEM_CHANNELS * network.width
    stem = nn.Conv2d(shape[0], channels, 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(channels)]
    for out_channels in (network.width * stage for stage in STAGE_CHANNELS):
        for index in range((network.depth - 2) // 6):
            layers.append(ResNetBlock(channels, out_channels, stride=2 if index == 0 else 1))
            channels = out_channels
    # from the authors' code, where the stem has no ReLU either
    final_norm = [nn.BatchNorm2d(channels), nn.ReLU()]
    tail = [*final_norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(network.dropout)]
    model = Classifier(nn.Sequential(*layers, *tail), channels, outputs)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


LEAKY_RELU_SLOPE = 0.1  # from the MixMatch code


def _make_norm(channels: int) -> NormAct:
    """Build the MixMatch code's BatchNorm (decay 0.999, so momentum 0.001) and leaky ReLU."""
    return NormAct(channels, momentum=0.001, slope=LEAKY_RELU_SLOPE)


class WideResNetBlock(nn.Module):
    """Pre-activation residual block of two convolutions."""

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, activate_first: bool
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = _make_norm(in_channels), _make_norm(out_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
        self.activate_first = activate_first  # of the first block: its shortcut takes activations

    def forward(self, x: Tensor) -> Tensor:
        activation = self.norm1(x)
        residual = self.conv2(self.norm2(self.conv1(activation)))
        outputs: Tensor = residual + self.shortcut(activation if self.activate_first else x)
        return outputs


def build_wide_resnet(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """Build WRN-depth-width: three groups of (depth − 4) / 6 blocks, 16 to 64·width channels."""
    if len(shape) != 3 or network.depth < 10 or (network.depth - 4) % 6:
        raise InputError(
            "model.name='wide-resnet' needs images and a depth of 6n + 4 (10, 16, 22, 28, …), "
            f"not samples of shape {list(shape)} and depth {network.depth}; "
            "use model.depth=28, or model.name='mlp' for other samples"
        )
    widths = [16, 16 * network.width, 32 * network.width, 64 * network.width]
    layers: list[nn.Module] = [nn.Conv2d(shape[0], widths[0], 3, padding=1, bias=False)]
    for group in range(3):
        for index in range((network.depth - 4) // 6):
            in_channels = widths[group] if index == 0 else widths[group + 1]
            stride = 2 if group > 0 and index == 0 else 1
            is_first = group == 0 and index == 0
            layers.append(WideResNetBlock(in_channels, widths[group + 1], stride, is_first))
    layers += [_make_norm(widths[3]), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers.append(nn.Dropout(network.dropout))
    model = Classifier(nn.Sequential(*layers), widths[3], outputs)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, a=LEAKY_RELU_SLOPE, mode="fan_out")
    nn.init.xavier_normal_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model
