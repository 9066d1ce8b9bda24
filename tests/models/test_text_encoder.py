import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2i.bilevel import Problem, exact, lookahead, trainable, unrolled
from l2i.bilevel.functional import Net
from l2i.bilevel.head import Head
from l2i.bilevel.problem import Imputed, Student
from l2i.errors import InputError
from l2i.models.base import ModelConfig
from l2i.models.text_encoder import TextEncoder, build_text_encoder
from problems import FLOAT64, relative
from tiny_encoder import tiny_encoder

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 34,
}
DISTIL = {
    "vocab_size": 40,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 32,
    "max_position_embeddings": 34,
}
OTHERS = {  # the sizes of each, and the longest sequence that it takes
    "bert": (SIZES, 34),
    "distilbert": (DISTIL, 34),
    "roberta": (SIZES, 32),
    "xlm-roberta": (SIZES, 32),
    "data2vec-text": (SIZES, 32),
    "mpnet": (SIZES, 32),
    "electra": (SIZES | {"embedding_size": 8}, 34),
    "albert": (SIZES | {"embedding_size": 8}, 34),
    "deberta-v2": (SIZES, 34),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_encoder(tmp_path_factory.mktemp("tiny"), width=16, places=32)


def build(weights: str, length: int = 16, **changed: object) -> TextEncoder:
    torch.manual_seed(0)
    network = ModelConfig(name="encoder", weights=weights, **changed)
    model = build_text_encoder((length,), 3, network).to(FLOAT64).train()
    with torch.no_grad():
        model.head.weight.mul_(20)  # else every output is much the same
    return model


def saved(folder: Path, name: str, **changed: object) -> str:
    """An architecture with random weights, as its publishers would save it."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    AutoModel.from_config(
        AutoConfig.for_model(name, **(OTHERS[name][0] | changed))
    ).save_pretrained(folder)
    return str(folder)


def pooled(folder: str, pooling: str) -> str:
    """Weights that say how they were trained to pool; without a word, it is by the pooler."""
    if pooling != "pooler":
        asked = Path(folder) / "1_Pooling" / "config.json"
        asked.parent.mkdir()
        asked.write_text(json.dumps({"pooling_mode": {"first": "cls"}.get(pooling, pooling)}))
    return folder


def texts(pad: int, length: int = 16, count: int = 4) -> Tensor:
    """Texts of several lengths, padded."""
    there = torch.arange(length) < torch.linspace(3, length, count).long().unsqueeze(1)
    return torch.randint(5, 30, (count, length)).where(there, torch.tensor(pad))


def widened(x: Tensor, pad: int, length: int) -> Tensor:
    return F.pad(x, (0, length - x.shape[1]), value=pad)


class Case:
    """A bilevel problem on texts."""

    def __init__(self, pad: int) -> None:
        torch.manual_seed(2)
        self.x_t, self.x_u, self.x_h = (texts(pad) for _ in range(3))
        self.y = torch.tensor([0, 1, 2, 1])
        self.z = torch.softmax(torch.randn(4, 3, dtype=FLOAT64), dim=1)

    def d_z(self, way: object, model: nn.Module, **changed: object) -> Tensor:
        student = Student(
            self.x_u, lambda f, imputed: (torch.softmax(f, dim=1) - imputed.z).square().mean()
        )
        imputed = Imputed(self.z, torch.ones(4, dtype=FLOAT64))
        torch.manual_seed(1)
        return way(
            Problem(
                model,
                trainable(model),
                student,
                imputed,
                self.cost(self.x_h),
                eta=0.1,
                c_t=self.cost(self.x_t),
                **changed,
            )
        )

    def cost(self, x: Tensor) -> object:
        def c(net: Net) -> Tensor:
            return F.cross_entropy(net(x), self.y)

        return c


def test_an_encoder_is_its_features_and_its_head(tiny: str) -> None:
    model, x = build(tiny).eval(), texts(0)
    assert model(x).shape == (4, 3)
    assert torch.equal(model(x), model.head(model.features(x)))
    assert torch.equal(model(x.int()), model(x))
    assert Head.from_model(model) == Head(model.head, "head.weight", "head.bias")
    features, outputs = Head.from_model(model).forward_with_features(
        lookahead(model, trainable(model)), x
    )
    assert torch.equal(features, model.features(x))
    assert torch.equal(outputs, model(x))


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["mean", "first", "pooler"])
def test_pooling_is_what_transformers_gives(tiny: str, tmp_path: Path, pooling: str) -> None:
    from transformers import BertModel

    folder = pooled(shutil.copytree(tiny, tmp_path / "tiny"), pooling)
    model, x = build(str(folder)).eval(), texts(0)
    bert = BertModel.from_pretrained(tiny).to(FLOAT64).eval()
    for ids, features in zip(x, model.features(x), strict=True):
        actual = bert(input_ids=ids[ids != 0].unsqueeze(0))  # one text, without its padding
        by_hand = {
            "mean": actual[0][0].mean(dim=0),
            "first": actual[0][0, 0],
            "pooler": actual.pooler_output[0],
        }
        assert torch.allclose(features, by_hand[pooling], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_padding_does_not_matter(tmp_path: Path, name: str, pooling: str) -> None:
    model = build(pooled(saved(tmp_path, name), pooling), length=32).eval()
    x = texts(model.pad_id)
    assert torch.allclose(model(x), model(widened(x, model.pad_id, 32)), rtol=0, atol=1e-10)


@torch.no_grad()
def test_padding_does_not_matter_to_attention_that_adds_its_mask(tiny: str) -> None:
    body = build(tiny).body
    body.set_attn_implementation("eager")
    model, x = TextEncoder(body.float(), 3, ModelConfig(weights=tiny)).to(FLOAT64).eval(), texts(0)
    assert not model.takes_full_mask
    assert torch.allclose(model(x), model(widened(x, 0, 32)), rtol=0, atol=1e-10)


def test_masks_are_whole_where_the_network_takes_them(tmp_path: Path) -> None:
    whole = {name: build(saved(tmp_path / name, name)).takes_full_mask for name in OTHERS}
    assert {name for name in OTHERS if not whole[name]} == {"mpnet", "deberta-v2"}


@torch.no_grad()
@pytest.mark.parametrize("name", OTHERS)
def test_sequences_of_the_most_tokens_pass_and_longer_ones_are_refused(
    tmp_path: Path, name: str
) -> None:
    folder, most = saved(tmp_path, name), OTHERS[name][1]
    model = build(folder, length=most).eval()
    assert model(torch.randint(5, 30, (2, most))).isfinite().all()
    with pytest.raises(
        InputError, match=f"length={most + 1} exceeds the maximum of .* use at most {most}"
    ):
        build(folder, length=most + 1)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", OTHERS)
def test_forward_mode_equals_unrolling(tmp_path: Path, name: str, mode: str) -> None:
    model = build(saved(tmp_path, name), encoder_dropout=0.1, dropout=0.1)
    case = Case(model.pad_id)
    getattr(model, mode)()
    for inner_steps in (1, 2):
        actual, wanted = (
            case.d_z(way, model, inner_steps=inner_steps) for way in (exact, unrolled)
        )
        assert relative(actual, wanted) < 1e-10
