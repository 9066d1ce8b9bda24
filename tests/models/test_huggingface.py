import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from l2i.errors import InputError
from l2i.models.base import ModelConfig
from l2i.models.huggingface import (
    announce_hub_lookup,
    build_empty_body,
    load_body,
    load_config,
    load_tokenizer,
)
from l2i.models.huggingface import save_text_config as save
from l2i.models.text_encoder import (
    TextEncoder,
    build_empty_encoder,
    build_text_encoder,
    get_max_tokens,
    resolve_pooling,
)
from l2i.training.optimizer import compute_layerwise_lr_scales
from tiny_encoder import tiny_encoder

SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LAYERED = ("bert", "distilbert", "roberta", "mpnet", "electra", "deberta-v2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny_encoder(tmp_path_factory.mktemp("tiny"), width=16, places=32)


@pytest.fixture
def tiny(made: str, tmp_path: Path) -> Path:
    """A folder to be spoiled."""
    return Path(shutil.copytree(made, tmp_path / "tiny"))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("L2I_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(
        "huggingface_hub.constants.HF_HUB_OFFLINE", True
    )  # which reads the variable but once


def network(weights: object, **changed: object) -> ModelConfig:
    return ModelConfig(name="encoder", weights=None if weights is None else str(weights), **changed)


def saved(folder: Path, name: str, **changed: object) -> Path:
    """An architecture with random weights, as its publishers would save it."""
    from transformers import AutoConfig, AutoModel

    AutoModel.from_config(AutoConfig.for_model(name, **(SIZES | changed))).save_pretrained(folder)
    return folder


def edit(path: Path, **changed: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | changed))


def pooling(weights: object) -> str:
    asked = network(weights)
    return resolve_pooling(load_body(asked), asked)


def test_loading_prints_nothing_but_that_the_hub_is_asked(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import BertConfig, BertForMaskedLM
    from transformers.utils import logging

    BertForMaskedLM(BertConfig(**SIZES)).save_pretrained(
        tiny
    )  # a head that is not used, and no pooler
    before = logging.get_verbosity(), logging.is_progress_bar_enabled(), capfd.readouterr()
    announce_hub_lookup.cache_clear()
    load_tokenizer(str(tiny))
    load_config(str(tiny))
    build_text_encoder((8,), 2, network(tiny)).train()(
        torch.ones(2, 8, dtype=torch.long)
    ).sum().backward()
    save(str(tiny), tiny)
    for name in ("no-such-name", "nobody/no-such-name"):
        with pytest.raises(InputError):
            load_body(network(name))
    out, err = capfd.readouterr()
    assert not out and err.splitlines() == [
        f"l2i: looking up {name} on the Hugging Face Hub (--model.weights)"
        for name in ("no-such-name", "nobody/no-such-name")
    ]
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before[:2]


def test_pooling_is_as_the_weights_were_trained(tiny: Path, tmp_path: Path) -> None:
    assert pooling(tiny) == "pooler"
    assert pooling(saved(tmp_path / "distil", "distilbert")) == "first"
    asked = tiny / "1_Pooling" / "config.json"
    for known, wanted in (
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, "first"),
        ({"pooling_mode_cls_token": False, "pooling_mode": "cls"}, "first"),
    ):
        edit(asked, **known)
        assert pooling(tiny) == wanted
    asked.write_text("{")
    with pytest.raises(InputError, match="tiny cannot be read"):
        pooling(tiny)


def test_names_are_looked_up_in_the_cache_of_the_hub(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    edit(tiny / "1_Pooling" / "config.json", pooling_mode_mean_tokens=True)
    stored = tmp_path / "hub" / "models--some--bert"
    shutil.copytree(tiny, stored / "snapshots" / ("0" * 40))
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text("0" * 40)
    assert pooling("some/bert") == "mean"
    assert load_tokenizer("some/bert").get_vocab() == load_tokenizer(str(tiny)).get_vocab()


@pytest.mark.parametrize("name", LAYERED)
def test_dropout_within_an_encoder_is_as_asked(tmp_path: Path, name: str) -> None:
    folder = saved(tmp_path, name)
    for asked, wanted in ((0.0, {0.0}), (0.3, {0.3}), (None, {0.1})):
        body = load_body(network(folder, encoder_dropout=asked))
        actual = {m.p for m in body.modules() if isinstance(m, nn.Dropout)}
        actual |= {m.drop_prob for m in body.modules() if hasattr(m, "drop_prob")}
        assert actual == wanted


def test_the_same_seed_gives_the_same_head_and_the_body_is_that_of_the_file(made: str) -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(build_text_encoder((8,), 2, network(made)))
    first, same, other = (
        [p.detach() for p in (m.head.weight, m.body.pooler.dense.weight)] for m in models
    )
    assert torch.equal(first[0], same[0])
    assert not torch.equal(first[0], other[0])
    assert torch.equal(first[1], other[1])


def test_half_precision_on_disk_is_float32_here(tiny: Path) -> None:
    body = load_body(network(tiny))
    body.half().save_pretrained(tiny)
    assert json.loads((tiny / "config.json").read_text())["dtype"] == "float16"
    for actual in (load_body(network(tiny)), build_empty_body(str(tiny))):
        assert {p.dtype for p in actual.parameters()} == {torch.float32}
    assert torch.equal(
        load_body(network(tiny)).pooler.dense.weight, body.pooler.dense.weight.float()
    )


def test_what_a_fit_keeps_reads_texts_as_the_weights_did(tiny: Path, tmp_path: Path) -> None:
    edit(tiny / "1_Pooling" / "config.json", pooling_mode_cls_token=True)
    (tmp_path / "kept").mkdir()
    save(str(tiny), tmp_path / "kept")
    model, blank = (
        build_text_encoder((8,), 2, network(tiny)).eval(),
        build_empty_encoder(2, network(tmp_path / "kept")).eval(),
    )
    blank.load_state_dict(model.state_dict())
    x = torch.tensor([[2, 9, 8, 3, 0, 0], [2, 5, 6, 7, 8, 3]])
    assert torch.equal(model(x), blank(x))
    said = [
        load_tokenizer(str(folder))("great film").input_ids for folder in (tiny, tmp_path / "kept")
    ]
    assert said[0] == said[1]
    assert not list((tmp_path / "kept").glob("*.safetensors"))


@pytest.mark.parametrize("name", LAYERED)
def test_each_layer_has_its_share_of_the_learning_rate(tmp_path: Path, name: str) -> None:
    model = TextEncoder(load_body(network(saved(tmp_path, name))), 2, network(tmp_path))
    shares = compute_layerwise_lr_scales([key for key, _ in model.named_parameters()], 0.5)
    for layer, wanted in (
        (".layer.0.", 0.25),
        (".layer.1.", 0.5),
        ("word_embeddings", 0.125),
        ("head.", 1),
    ):
        assert {share for key, share in shares.items() if layer in key} == {wanted}


def test_what_limits_nothing_is_no_limit() -> None:
    from transformers import RobertaConfig, XLNetConfig

    assert get_max_tokens(XLNetConfig()) is None
    assert get_max_tokens(RobertaConfig(max_position_embeddings=514)) == 512


def without(*patterns: str) -> Callable[[Path], object]:
    return lambda folder: [path.unlink() for pattern in patterns for path in folder.glob(pattern)]


def damaged(name: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content)


def fewer_tensors(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    stored = {name: t for name, t in tensors.items() if "layer.1.attention" not in name}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})


def foreign(folder: Path) -> None:
    edit(
        folder / "config.json",
        model_type="own",
        auto_map={"AutoConfig": "own.Own", "AutoModel": "own.Net"},
    )
    (folder / "own.py").write_text("raise SystemExit")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (
        without("*.safetensors"),
        "has no weights (model.safetensors); use a complete folder written by save_pretrained",
    ),
    "no config": (
        without("config.json"),
        "has no config.json; use a complete folder written by save_pretrained",
    ),
    "damaged config": (damaged("config.json", '{"model_type": "be'), "cannot be read"),
    "a list for a config": (damaged("config.json", "[]"), "cannot be read"),
    "odd config": (
        lambda folder: edit(folder / "config.json", hidden_size="wide"),
        "cannot be read",
    ),
    "another config": (
        lambda folder: edit(folder / "config.json", hidden_size=32),
        "cannot be read",
    ),
    "unknown kind": (
        lambda folder: edit(folder / "config.json", model_type="none-such"),
        "cannot be read",
    ),
    "damaged weights": (damaged("model.safetensors", "not safe"), "cannot be read"),
    "half of the weights": (
        fewer_tensors,
        "lack 10 of its tensors, such as encoder.layer.1.attention.",
    ),
    "code of its own": (foreign, "cannot be read"),
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_spoilt_folder_says_what_to_do(
    tiny: Path, spoil: str, capfd: pytest.CaptureFixture[str]
) -> None:
    act, wanted = SPOILT[spoil]
    act(tiny)
    with pytest.raises(InputError) as caught:
        build_text_encoder((8,), 2, network(tiny))
    message = str(caught.value)
    assert message.startswith((str(tiny), f"the weights of {tiny}"))
    assert wanted in message
    assert "\n" not in message
    assert "; use a complete folder" in message or "; check that it is complete" in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "read", [load_tokenizer, load_config, lambda weights: load_body(network(weights))]
)
def test_what_is_no_folder_says_what_to_do(
    read: Callable[[str | None], object], tiny: Path
) -> None:
    for weights, wanted in (
        (None, "a text encoder needs weights; set --model.weights to a folder, or a name"),
        (str(tiny / "nowhere"), f"folder {tiny / 'nowhere'} does not exist; check --model.weights"),
        ("./nowhere", "folder ./nowhere does not exist; check"),
        (str(tiny / "config.json"), "config.json is a file; set --model.weights to its folder"),
        ("no-such-name", "no-such-name cannot be read"),
        ("no/such", "; check the name and the network, or use a folder"),
    ):
        with pytest.raises(InputError) as caught:
            read(weights)
        assert wanted in str(caught.value)
        assert "\n" not in str(caught.value)


def test_without_transformers_its_installation_is_told(
    made: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for read in (load_tokenizer, load_config, lambda weights: load_body(network(weights))):
        for weights in (made, "random"):
            with pytest.raises(InputError, match=r"not installed: pip install 'l2i\[text\]'"):
                read(weights)
