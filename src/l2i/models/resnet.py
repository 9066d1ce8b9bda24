"""ResNet-26 of Rebuffi et al. (2017), for 64-pixel crops of ImageNet at 72 pixels."""

from torch import Tensor, nn
from torch.nn import functional as F

from l2i.errors import InputError
from l2i.models.base import Classifier, ModelConfig

STEM_CHANNELS, STAGE_CHANNELS = 32, (64, 128, 256)


class ResNetBlock(nn.Module):
    """Basic residual block; where it halves the image, its shortcut is an average pool and channels of zeros."""

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


def resnet(shape: tuple[int, ...], outputs: int, network: ModelConfig) -> Classifier:
    """Three stages of (depth − 2) / 6 blocks with 64·width, 128·width and 256·width channels; each halves the image."""
    if len(shape) != 3 or min(shape[1:]) < 8 or network.depth < 8 or (network.depth - 2) % 6:
        raise InputError(
            f"model.name='resnet' needs images [C, H, W] of at least 8 pixels a side and a depth of 6n + 2 "
            f"(8, 14, 20, 26, …), not samples of shape {list(shape)} and depth {network.depth}; "
            "use model.depth=26 with model.width=1, or model.name='mlp' for other samples"
        )
    channels = STEM_CHANNELS * network.width
    stem = nn.Conv2d(shape[0], channels, 3, padding=1, bias=False)
    layers: list[nn.Module] = [stem, nn.BatchNorm2d(channels)]
    for stage_channels in STAGE_CHANNELS:
        for index in range((network.depth - 2) // 6):
            layers.append(ResNetBlock(channels, stage_channels * network.width, stride=2 if index == 0 else 1))
            channels = stage_channels * network.width
    final_norm = [nn.BatchNorm2d(channels), nn.ReLU()]  # from the authors' code, where the stem has no ReLU either
    tail = [*final_norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(network.dropout)]
    model = Classifier(nn.Sequential(*layers, *tail), channels, outputs)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
