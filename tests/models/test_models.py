from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from l2i.bilevel import Problem, exact, unrolled
from l2i.bilevel.functional import Net, lookahead, trainable
from l2i.bilevel.head import Head
from l2i.bilevel.problem import Imputed, Student
from l2i.errors import InputError
from l2i.models import MODELS, text_encoder
from l2i.models.base import ModelConfig
from l2i.models.efficientnet import VARIANTS
from l2i.models.text_encoder import TextEncoder
from l2i.registry import load_registered
from problems import FLOAT64, relative

SIZES = {
    "mlp": ModelConfig(width=24),
    "conv": ModelConfig(width=8),
    "wide-resnet": ModelConfig(width=1, depth=10),
    "resnet": ModelConfig(width=1, depth=8),
    "tcdcn": ModelConfig(),
}
SIDES = dict.fromkeys(SIZES, (8, 32)) | {"tcdcn": (44, 60)}


def build(name: str, shape: tuple[int, ...], network: ModelConfig | None = None) -> nn.Module:
    return load_registered("model", MODELS, name)(shape, 10, network or SIZES[name])


def test_all_networks_are_tested_here_but_those_with_pretrained_weights() -> None:
    assert {*SIZES, *VARIANTS, "encoder"} == {*MODELS}


@pytest.mark.parametrize(("name", "side"), [(name, side) for name in SIZES for side in SIDES[name]])
def test_a_model_is_its_features_and_its_head(name: str, side: int) -> None:
    model = build(name, (3, side, side)).eval()
    x = torch.randn(4, 3, side, side)
    assert model(x).shape == (4, 10)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert Head.from_model(model).module is model.head


@pytest.mark.parametrize("name", SIZES)
def test_features_of_any_module_are_what_its_head_sees(name: str) -> None:
    side = SIDES[name][0]
    model, x = build(name, (1, side, side)).eval(), torch.randn(4, 1, side, side)
    features, outputs = Head.from_model(model).forward_with_features(
        lookahead(model, trainable(model)), x
    )
    assert torch.equal(features, model.features(x))
    assert torch.equal(outputs, model(x))


@pytest.mark.parametrize("name", SIZES)
def test_forward_mode_through_a_model_equals_unrolling(name: str) -> None:
    side = SIDES[name][0]
    model = build(name, (1, side, side)).to(FLOAT64).train()
    x_t, x_u, x_h = torch.randn(3, 4, 1, side, side, dtype=FLOAT64)
    y_t, y_h = torch.randint(10, (2, 4))
    z = torch.softmax(torch.randn(4, 10, dtype=FLOAT64), dim=1).requires_grad_()
    student = Student(x_u, lambda f, imputed: F.mse_loss(torch.softmax(f, dim=1), imputed.z))

    def c_t(net: Net) -> Tensor:
        return F.cross_entropy(net(x_t), y_t)

    def c_h(net: Net) -> Tensor:
        return F.cross_entropy(net(x_h), y_h)

    arguments = (model, trainable(model), student, Imputed(z, torch.ones(4, dtype=FLOAT64)), c_h)
    assert (
        relative(
            exact(Problem(*arguments, eta=0.1, c_t=c_t)),
            unrolled(Problem(*arguments, eta=0.1, c_t=c_t)),
        )
        < 1e-10
    )


def test_wide_resnet_28_2_has_the_published_number_of_parameters() -> None:
    model = build("wide-resnet", (3, 32, 32), ModelConfig(width=2, depth=28))
    assert parameters(model) == pytest.approx(1.47e6, rel=0.005)


def test_wide_resnet_layers_count_to_its_depth() -> None:
    model = build("wide-resnet", (3, 32, 32), ModelConfig(width=2, depth=28))
    convolutions = [
        m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)
    ]
    assert len(convolutions) == 25  # the first, and two in each of 12 blocks


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_resnet_26_has_the_parameters_of_its_layers() -> None:
    encoder = build("resnet", (3, 64, 64), ModelConfig(width=1, depth=26)).encoder
    stem = 3 * 9 * 32 + 2 * 32
    first = (
        32 + 7 * 64
    ) * 9 * 64 + 8 * 2 * 64  # 8 convolutions a stage, each with a scale and shift a channel
    second = (64 + 7 * 128) * 9 * 128 + 8 * 2 * 128
    third = (128 + 7 * 256) * 9 * 256 + 8 * 2 * 256
    end = 2 * 256
    assert parameters(encoder) == stem + first + second + third + end == 5_814_688
    convolutions = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) + 1 == 26  # with the head


def test_resnet_shortcuts_pool_and_add_channels_of_zeros() -> None:
    model = build(
        "resnet", (3, 9, 13), ModelConfig(width=1, depth=8)
    ).eval()  # sides that do not halve evenly
    block = model.encoder[2]
    nn.init.zeros_(block.norm2.weight)
    x = torch.rand(2, 32, 9, 13)
    y = block(x)
    assert y.shape == (2, 64, 5, 7)
    assert torch.allclose(y[:, :32, 1, 2], x[:, :, 2:4, 4:6].mean(dim=(2, 3)))
    assert torch.allclose(y[:, :32, 4, 6], x[:, :, 8, 12])
    assert not y[:, 32:].any()


def test_resnet_convolutions_keep_the_size_of_gradients() -> None:
    convolution = build("resnet", (3, 64, 64), ModelConfig(width=1, depth=26)).encoder[-6].conv2
    assert float(convolution.weight.detach().std()) == pytest.approx(
        (2 / (9 * 256)) ** 0.5, rel=0.01
    )


def test_tcdcn_has_the_parameters_of_the_released_code() -> None:
    model = build("tcdcn", (1, 60, 60))
    convolutions = (25 + 1) * 20 + (20 * 25 + 1) * 48 + (48 * 9 + 1) * 64 + (64 * 9 + 1) * 80
    assert parameters(model) == convolutions + (720 + 1) * 256 + (256 + 1) * 10 == 285_586
    assert model.encoder(torch.zeros(2, 1, 60, 60)).shape == (2, 256)


def test_head_is_found_in_a_users_module() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    assert Head.from_model(model) == Head(model[2], "2.weight", None)


@pytest.mark.parametrize(
    ("name", "shape", "network"),
    [
        ("conv", (10,), SIZES["conv"]),
        ("conv", (1, 2, 2), SIZES["conv"]),
        ("wide-resnet", (3, 32, 32), ModelConfig(width=2, depth=27)),
        ("resnet", (3, 64, 64), ModelConfig(width=1, depth=28)),
        ("resnet", (3, 7, 64), ModelConfig(width=1, depth=26)),
        ("resnet", (10,), ModelConfig(width=1, depth=26)),
    ],
)
def test_impossible_sizes_say_what_to_do(
    name: str, shape: tuple[int, ...], network: ModelConfig
) -> None:
    with pytest.raises(InputError, match="depth"):
        build(name, shape, network)


@pytest.mark.parametrize("shape", [(10,), (1, 60, 43)])
def test_tcdcn_says_how_large_images_must_be(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="at least 44 × 44 pixels"):
        build("tcdcn", shape)


def test_wrong_model_names_the_nearest() -> None:
    with pytest.raises(InputError, match="perhaps you meant 'conv'"):
        load_registered("model", MODELS, "convv")


def test_tcdcn_squashes_and_pools_as_the_released_code_does() -> None:
    model = build("tcdcn", (1, 60, 60)).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)  # so that hardtanh bites
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    h = x = 3 * torch.rand(2, 1, 60, 60)
    for convolution in convolutions[:3]:
        h = F.max_pool2d(F.hardtanh(F.conv2d(h, convolution.weight, convolution.bias)), 2)
    h = F.hardtanh(convolutions[3](h)).flatten(1)
    for linear in [m for m in model.modules() if isinstance(m, nn.Linear)]:
        h = linear(h)
    assert torch.allclose(model(x), h, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_resnet_has_its_relus_where_the_authors_have_them() -> None:
    model = build("resnet", (3, 16, 16), ModelConfig(width=1, depth=8)).eval()
    h = model.encoder[1](model.encoder[0](torch.randn(4, 3, 16, 16)))
    assert float(h.min()) < 0  # none after the stem
    for block in model.encoder[2:5]:
        h = block(h)
        assert float(h.min()) >= 0
    nn.init.normal_(model.encoder[5].bias, -1.0)
    assert float(model.features(torch.randn(4, 3, 16, 16)).min()) >= 0


RANDOM = ModelConfig(name="encoder", weights="random", width=32)


@pytest.mark.parametrize("frozen", ["none", "embeddings", "encoder"])
def test_frozen_parts_of_an_encoder_take_no_gradients(frozen: str) -> None:
    model = build("encoder", (8,), replace(RANDOM, freeze=frozen))
    every, head = {name for name, _ in model.named_parameters()}, {"head.weight", "head.bias"}
    taken = {
        "none": every,
        "embeddings": every - {"body.embeddings.word_embeddings.weight"},
        "encoder": head,
    }[frozen]
    assert trainable(model).keys() == taken
    model(torch.randint(5, 99, (2, 8))).sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == taken


@pytest.mark.parametrize("pooling", ["mean", "first", "pooler"])
def test_nothing_that_an_encoders_pooling_leaves_out_is_trained(
    pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_encoder, "resolve_pooling", lambda body, network: pooling)
    model = build("encoder", (8,), RANDOM)
    model(torch.randint(5, 99, (2, 8))).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_an_encoder_refuses_images() -> None:
    with pytest.raises(InputError, match=r"token ids \[L\], not samples of shape \[3, 8, 8\]; use"):
        build("encoder", (3, 8, 8), RANDOM)


def test_random_weights_are_a_bert_of_this_size() -> None:
    model = build(
        "encoder", (16,), replace(RANDOM, width=64, depth=3, dropout=0.25, encoder_dropout=0.0)
    )
    assert len(model.body.encoder.layer) == 3
    assert (model.head.in_features, model.body.config.num_attention_heads) == (64, 2)
    assert model(torch.randint(5, 99, (2, 16))).shape == (2, 10)
    assert (
        [m.p for m in model.modules() if isinstance(m, nn.Dropout) and m.p]
        == [model.dropout.p]
        == [0.25]
    )


@pytest.mark.parametrize(
    ("name", "sizes", "wanted"),
    [
        ("gpt2", {"pad_token_id": 0}, "is a decoder with causal attention; use an encoder"),
        ("bart", {"d_model": 16}, "is a decoder with causal attention; use an encoder"),
        ("gpt2", {}, "has no pad_token_id; add that of its tokenizer"),
        ("t5", {"d_kv": 8, "d_ff": 8}, "is not an encoder of token ids alone"),
    ],
)
def test_networks_that_are_no_encoders_are_refused(
    name: str, sizes: dict[str, int], wanted: str
) -> None:
    small = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    body = AutoModel.from_config(AutoConfig.for_model(name, **(small | sizes)))
    with pytest.raises(InputError, match=wanted):
        TextEncoder(body, 2, RANDOM)
