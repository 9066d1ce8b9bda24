"""A tiny image encoder with random weights, in the format of the packages that hold real ones."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from l2i.fit import image_encoder, pipeline
from l2i.models import MODELS, efficientnet, frozen_encoder, pretrained
from l2i.models.base import ModelConfig
from l2i.models.efficientnet import BN_MOMENTUM, Stage, Variant, build_efficientnet
from l2i.models.frozen_encoder import load_frozen_encoder
from l2i.models.pretrained import Package

build_tiny = partial(build_efficientnet, name="efficientnet-tiny")
NAME, MODULE, FILE = "efficientnet-tiny", "efficientnet_tiny_pytorch_model", "models/tiny.pth"
SIDE = 32


@contextmanager
def tiny_package(folder: Path) -> Iterator[Path]:
    """Install a package with a tiny encoder in `folder`, and make it the default encoder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efficientnet, "STAGES", (Stage(1, 3, 1, 1, 16), Stage(1, 3, 2, 6, 24)))
        patch.setitem(efficientnet.VARIANTS, NAME, Variant(1.0, 1.0, SIDE))
        torch.manual_seed(0)
        network = build_efficientnet((3, SIDE, SIDE), 7, ModelConfig(), name=NAME)
        _measure_statistics(network)
        path = folder / MODULE / FILE
        path.parent.mkdir(parents=True)
        (folder / MODULE / "__init__.py").write_text("raise RuntimeError('imported')\n")
        torch.save({f"_layer{i}": t for i, t in enumerate(network.state_dict().values())}, path)
        package = Package(MODULE, FILE, hashlib.sha256(path.read_bytes()).hexdigest())
        patch.setitem(pretrained.PACKAGES, NAME, package)
        for module in (frozen_encoder, image_encoder, pipeline):
            patch.setattr(module, "DEFAULT_ENCODER", NAME)
        patch.setitem(MODELS, NAME, "tiny_package:build_tiny")
        patch.syspath_prepend(str(folder))
        load_frozen_encoder.cache_clear()
        yield path
    load_frozen_encoder.cache_clear()


@torch.no_grad()
def _measure_statistics(network: torch.nn.Module) -> None:
    """Give BatchNorms the statistics of noisy images, as training would."""
    norms = [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    shades = torch.rand(64, 3, 1, 1) * 2 - 1
    for norm in norms:
        norm.momentum = 1.0
    network.train()(shades + 0.3 * torch.randn(64, 3, SIDE, SIDE))
    for norm in norms:
        norm.momentum = BN_MOMENTUM
