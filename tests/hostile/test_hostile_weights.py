"""A stranger's pretrained weights: code and pickles are not run, and words allocate little."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers  # noqa: F401 (what commands import must not count as theirs)
from confined import said
from safetensors.torch import load_file, save_file
from transformers.models.bert import modeling_bert  # noqa: F401

from tiny_encoder import tiny_encoder

FIT = (
    "fit",
    "data.csv",
    "--target",
    "y",
    "--text",
    "text",
    "--encoder",
    "weights",
    "--steps",
    "1",
    "--device",
    "cpu",
)
CODE = "import pathlib\npathlib.Path('touched').touch()\nclass Own: pass\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    tiny_encoder(folder / "weights", width=16, depth=1)
    rows = [
        f"the film was {word},{y}"
        for word, y in (("great", "a"), ("dull", "b"), ("witty", ""))
        for _ in range(8)
    ]
    (folder / "data.csv").write_text("text,y\n" + "\n".join(rows) + "\n")
    return folder


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "place"))


class Touch:
    """What a pickle runs when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch touched",)


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"embeddings.word_embeddings.weight": Touch()}, folder / "pytorch_model.bin")


def pickle_by_another_name(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(pickle.dumps(Touch()))


def own_code(folder: Path) -> None:
    edit(
        folder / "config.json",
        model_type="own",
        auto_map={"AutoConfig": "own.Own", "AutoModel": "own.Own"},
    )
    (folder / "own.py").write_text(CODE)


def own_model(folder: Path) -> None:
    edit(folder / "config.json", auto_map={"AutoModel": "own.Own"}, architectures=["Own"])
    (folder / "own.py").write_text(CODE)


def own_tokenizer(folder: Path) -> None:
    edit(
        folder / "tokenizer_config.json",
        tokenizer_class="Own",
        auto_map={"AutoTokenizer": ["own.Own", "own.Own"]},
    )
    (folder / "own.py").write_text(CODE)


def own_attention(folder: Path) -> None:
    edit(
        folder / "config.json",
        _attn_implementation="stranger/kernel",
        attn_implementation="stranger/kernel",
    )


def templated(folder: Path) -> None:
    harm = "cycler.__init__.__globals__.os.system('touch touched')"
    edit(folder / "tokenizer_config.json", chat_template="{{ " + harm + " }}")


def quantized(folder: Path) -> None:
    edit(folder / "config.json", quantization_config={"quant_method": "own", "load_in_8bit": True})


def wide(folder: Path) -> None:
    edit(folder / "config.json", hidden_size=2**20, intermediate_size=2**20)


def many_words(folder: Path) -> None:
    edit(folder / "config.json", vocab_size=2**33)


def deep(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=10**6)


def shards_elsewhere(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    shutil.move(folder / "model.safetensors", folder.parent / "secret.safetensors")
    save_file({"a": torch.zeros(1)}, folder / "other.safetensors", {"format": "pt"})
    named = dict.fromkeys(tensors, "../secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": named})
    )


def long_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")


def nested(folder: Path) -> None:
    (folder / "config.json").write_text(
        '{"model_type": "bert", "a": ' + "[" * 100_000 + "]" * 100_000 + "}"
    )


def nested_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("[" * 100_000 + "]" * 100_000)


def nested_pooling(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"a": ' * 100_000)


SPOILT: dict[str, Callable[[Path], object]] = {
    make.__name__: make
    for make in (
        pickled,
        pickle_by_another_name,
        own_code,
        own_model,
        own_tokenizer,
        own_attention,
        templated,
        quantized,
        wide,
        many_words,
        deep,
        shards_elsewhere,
        long_header,
        nested,
        nested_tokenizer,
        nested_pooling,
    )
}


UNUSED = (
    "own_model",
    "own_tokenizer",
    "templated",
)  # a BERT needs no code of its own, and texts no template


@pytest.mark.parametrize("name", SPOILT)
def test_a_folder_of_weights_runs_nothing_and_ends_in_a_message(name: str, place: Path) -> None:
    SPOILT[name](place / "weights")
    done = said(*FIT, cwd=place)
    assert not (place / "touched").exists()
    assert "Traceback" not in done.err
    assert done.code == (0 if name in UNUSED else 2), done
    assert name in UNUSED or re.search(
        "weights cannot be read|is quantized|num_hidden_layers|is outside the folder", done.err
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_among_weights_is_not_waited_for(name: str, place: Path) -> None:
    (place / "weights" / name).unlink()
    os.mkfifo(place / "weights" / name)
    assert said(*FIT, cwd=place).code == 2
