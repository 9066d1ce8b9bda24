import copy
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2i.bilevel import exact, last_layer, lookahead, trainable, unrolled
from l2i.bilevel.head import Head
from l2i.bilevel.problem import Imputed, Net, Student
from l2i.errors import InputError
from l2i.models import text_encoder as module
from l2i.models.base import ModelConfig
from l2i.models.text_encoder import TextEncoder, encoder
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
DISTIL = {"vocab_size": 40, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 34}
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
    model = encoder((length,), 3, network).to(FLOAT64).train()
    with torch.no_grad():
        model.head.weight.mul_(20)  # else every output is much the same
    return model


def saved(folder: Path, name: str, **changed: object) -> str:
    """An architecture with random weights, as its publishers would save it."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    AutoModel.from_config(AutoConfig.for_model(name, **(OTHERS[name][0] | changed))).save_pretrained(folder)
    return str(folder)


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
        student = Student(self.x_u, lambda f, imputed: (torch.softmax(f, dim=1) - imputed.z).square().mean())
        imputed = Imputed(self.z, torch.ones(4, dtype=FLOAT64))
        torch.manual_seed(1)
        return way(
            model, trainable(model), student, imputed, self.cost(self.x_h), eta=0.1, c_t=self.cost(self.x_t), **changed
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
    features, outputs = Head.from_model(model).forward_with_features(lookahead(model, trainable(model)), x)
    assert torch.equal(features, model.features(x))
    assert torch.equal(outputs, model(x))


@torch.no_grad()
@pytest.mark.parametrize("pooling", ["mean", "first", "pooler"])
def test_pooling_is_what_transformers_gives(tiny: str, pooling: str) -> None:
    from transformers import BertModel

    model, x = build(tiny, pooling=pooling).eval(), texts(0)
    bert = BertModel.from_pretrained(tiny).to(FLOAT64).eval()
    for ids, features in zip(x, model.features(x), strict=True):
        found = bert(input_ids=ids[ids != 0].unsqueeze(0))  # one text, without its padding
        by_hand = {"mean": found[0][0].mean(dim=0), "first": found[0][0, 0], "pooler": found.pooler_output[0]}
        assert torch.allclose(features, by_hand[pooling], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_padding_does_not_matter(tmp_path: Path, name: str, pooling: str) -> None:
    model = build(saved(tmp_path, name), length=32, pooling=pooling).eval()
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
def test_sequences_of_the_most_tokens_pass_and_longer_ones_are_refused(tmp_path: Path, name: str) -> None:
    folder, most = saved(tmp_path, name), OTHERS[name][1]
    model = build(folder, length=most).eval()
    assert model(torch.randint(5, 30, (2, most))).isfinite().all()
    with pytest.raises(InputError, match=f"length={most + 1} is more than the {most} tokens .* use at most {most}"):
        build(folder, length=most + 1)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", OTHERS)
def test_forward_mode_equals_unrolling(tmp_path: Path, name: str, mode: str) -> None:
    model = build(saved(tmp_path, name), encoder_dropout=0.1, dropout=0.1)
    case = Case(model.pad_id)
    getattr(model, mode)()
    for inner_steps in (1, 2):
        found, wanted = (case.d_z(way, model, inner_steps=inner_steps) for way in (exact, unrolled))
        assert relative(found, wanted) < 1e-10


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in ("mpnet", "albert")])
def test_layers_passed_again_change_nothing(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path, name)
    plain, again = (build(folder, dropout=0.1, encoder_dropout=0.1, gradient_checkpointing=c) for c in (False, True))
    x = texts(plain.pad_id)
    found = []
    for model in (plain, again):
        torch.manual_seed(3)
        outputs = model(x)
        F.cross_entropy(outputs, torch.tensor([0, 1, 2, 0])).backward()
        found.append([outputs, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 20
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def elsewhere(model: nn.Module, x: Tensor, **changed: object) -> list[Tensor]:
    """Gradients at other parameters than the model's own."""
    torch.manual_seed(4)
    params = {k: (p + 0.1 * torch.randn_like(p)).detach().requires_grad_() for k, p in trainable(model).items()}
    cost = lookahead(model, params)(x).square().sum()
    return list(torch.autograd.grad(cost, list(params.values()), materialize_grads=True, **changed))


def test_layers_are_passed_again_with_the_parameters_that_stood_in(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, again = (build(tiny, dropout=0.1, gradient_checkpointing=c) for c in (False, True))
    x = texts(0)
    for a, b in zip(elsewhere(plain, x), elsewhere(again, x), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    assert all(isinstance(p, nn.Parameter) for p in again.parameters())
    monkeypatch.setattr(module, "make_recompute_contexts", lambda body: (nullcontext(), nullcontext()))
    wrong = zip(elsewhere(plain, x), elsewhere(build(tiny, dropout=0.1, gradient_checkpointing=True), x), strict=True)
    assert not all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in wrong)


def test_layers_may_be_passed_again_more_than_once(tiny: str) -> None:
    model = build(tiny, gradient_checkpointing=True)
    cost, weight = model(texts(0)).square().sum(), model.body.encoder.layer[0].output.dense.weight
    first, second = (torch.autograd.grad(cost, weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_a_copy_passes_its_own_layers_again(tiny: str) -> None:
    model, x = build(tiny, gradient_checkpointing=True), texts(0)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    for a, b in zip(elsewhere(twin, x), elsewhere(build(tiny), x), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("way", [exact, last_layer])
def test_hypergradients_are_the_same_with_layers_passed_again(tiny: str, way: object) -> None:
    plain, again = (build(tiny, dropout=0.1, encoder_dropout=0.1, gradient_checkpointing=c) for c in (False, True))
    case = Case(0)
    assert relative(case.d_z(way, again), case.d_z(way, plain)) < 1e-12
    if way is exact:
        found, wanted = (case.d_z(kind, again, inner_steps=2) for kind in (exact, unrolled))
        assert relative(found, wanted) < 1e-10


def test_layers_passed_again_hold_less_memory(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path, width=32, depth=6, places=32)
    plain, again = (held(build(folder, gradient_checkpointing=c), texts(0, count=16)) for c in (False, True))
    assert 0 < again < plain / 5


def held(model: nn.Module, x: Tensor) -> int:
    """Bytes of all tensors but parameters that a forward keeps for its backward."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in own:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        outputs = model(x)
    assert outputs.requires_grad
    return sum(kept.values())
