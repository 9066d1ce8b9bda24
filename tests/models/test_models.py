import pytest
import torch
from torch import nn

from l2i.bilevel.head import Head
from l2i.bilevel.inner import trainable
from l2i.errors import InputError
from l2i.models import MODELS
from l2i.models.base import Network
from l2i.registry import load

SIZES = {"mlp": Network(width=24), "conv": Network(width=8), "wide-resnet": Network(width=1, depth=10)}


def build(name: str, shape: tuple[int, ...], network: Network | None = None) -> nn.Module:
    return load("model", MODELS, name)(shape, 10, network or SIZES[name])


@pytest.mark.parametrize("side", [8, 32])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_its_features_and_its_head(name: str, side: int) -> None:
    model = build(name, (3, side, side)).eval()
    x = torch.randn(4, 3, side, side)
    assert model(x).shape == (4, 10)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert Head.of(model).module is model.head


@pytest.mark.parametrize("name", MODELS)
def test_features_of_any_module_are_what_its_head_sees(name: str) -> None:
    model, x = build(name, (1, 8, 8)).eval(), torch.randn(4, 1, 8, 8)
    features, outputs = Head.of(model).features_and_outputs(model, trainable(model), x)
    assert torch.equal(features, model.features(x))
    assert torch.equal(outputs, model(x))


def test_wide_resnet_28_2_has_the_published_number_of_parameters() -> None:
    model = build("wide-resnet", (3, 32, 32), Network(width=2, depth=28))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(1.47e6, rel=0.005)


def test_wide_resnet_layers_count_to_its_depth() -> None:
    model = build("wide-resnet", (3, 32, 32), Network(width=2, depth=28))
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) == 25  # the first, and two in each of 12 blocks


def test_head_is_found_in_a_users_module() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    assert Head.of(model) == Head(model[2], "2.weight", None)


@pytest.mark.parametrize(
    ("name", "shape", "network"),
    [
        ("conv", (10,), SIZES["conv"]),
        ("conv", (1, 2, 2), SIZES["conv"]),
        ("wide-resnet", (3, 32, 32), Network(width=2, depth=27)),
    ],
)
def test_impossible_sizes_say_what_to_do(name: str, shape: tuple[int, ...], network: Network) -> None:
    with pytest.raises(InputError, match="depth"):
        build(name, shape, network)


def test_wrong_model_names_the_nearest() -> None:
    with pytest.raises(InputError, match="perhaps you meant 'conv'"):
        load("model", MODELS, "convv")
