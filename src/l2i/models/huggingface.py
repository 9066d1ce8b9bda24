"""Pretrained weights, configurations and tokenizers in Hugging Face's form: a folder, or a name on its hub."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2i.errors import InputError

if TYPE_CHECKING:
    from l2i.models.base import ModelConfig

RANDOM_WEIGHTS = "random"  # in place of a folder: a BERT of the run's width and depth, not trained
HEAD_WIDTH = 32  # of a random BERT's attention heads
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
POOLING_CONFIG_PATH = Path("1_Pooling", "config.json")  # of sentence transformers
WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
MAX_LAYERS = 1000
FOLDER_HINT = "give the folder that save_pretrained wrote, whole"
DROPOUT_FIELDS = (  # as configurations name them; those of heads are not among them
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "hidden_dropout",
    "embedding_dropout",
    "mlp_dropout",
)


def load_body(network: ModelConfig) -> Any:
    """The encoder itself, in float32."""
    if network.weights == RANDOM_WEIGHTS:
        return build_random_body(network)
    import torch

    transformers, source = resolve_weights(network.weights)
    check_weight_files(source)
    config = load_config(source)
    set_dropout(config, network)
    with silence_transformers(), translate_load_errors(source):
        body, loading_info = transformers.AutoModel.from_pretrained(
            source, config=config, dtype=torch.float32, output_loading_info=True, **make_load_options(source)
        )
    missing = sorted(name for name in loading_info["missing_keys"] if not name.startswith("pooler."))  # new, as the head is
    if missing:
        raise InputError(f"the weights of {source} lack {len(missing)} of its tensors, such as {missing[0]}; {FOLDER_HINT}")
    return body


def build_empty_body(weights: str) -> Any:
    """The encoder of a configuration, in float32, its weights yet to be filled in."""
    import torch

    transformers, source = resolve_weights(weights)
    config = load_config(source)
    with silence_transformers(), translate_load_errors(source):
        return transformers.AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=False)


def save_text_config(weights: str, folder: Path) -> None:
    """Write to a folder what texts are read with, all but the weights: configuration, tokenizer and pooling."""
    parts = (load_config(weights), load_tokenizer(weights))
    with silence_transformers():
        for part in parts:
            part.save_pretrained(folder)
    pooling = load_sentence_pooling(weights)
    if pooling is not None:
        (folder / POOLING_CONFIG_PATH).parent.mkdir(exist_ok=True)
        (folder / POOLING_CONFIG_PATH).write_text(json.dumps(pooling), encoding="utf-8")


def load_config(weights: str | None) -> Any:
    """The configuration alone."""
    transformers, source = resolve_weights(weights)
    check_folder(source, ("config.json",), "config.json")
    announce_hub_lookup(source)
    with silence_transformers(), translate_load_errors(source):
        config = transformers.AutoConfig.from_pretrained(source, **make_load_options(source))
    check_config(config, source)
    return config


def check_config(config: Any, weights: str) -> None:
    """That a configuration asks for no more layers than networks have, and for no code from elsewhere."""
    layers = getattr(config, "num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 <= layers <= MAX_LAYERS:
        raise InputError(f"{weights}: config.json has num_hidden_layers={layers}, more than {MAX_LAYERS}; {FOLDER_HINT}")
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(f"{weights} is quantized, which cannot be trained; give the weights in float32 or bfloat16")


def load_tokenizer(weights: str | None) -> Any:
    """The fast tokenizer that belongs to the weights."""
    transformers, source = resolve_weights(weights)
    check_folder(source, TOKENIZER_FILES, f"tokenizer ({TOKENIZER_FILES[0]} or {TOKENIZER_FILES[1]})")
    with silence_transformers(), translate_load_errors(source):
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **make_load_options(source))
    if not tokenizer.is_fast:
        raise InputError(f"{source} has no fast tokenizer; save one there with AutoTokenizer…save_pretrained")
    return tokenizer


def make_load_options(source: str) -> dict[str, bool]:
    """A folder is all there is, and no code is run that comes with weights."""
    return {"local_files_only": is_folder(source), "trust_remote_code": False}


def set_dropout(config: Any, network: ModelConfig) -> None:
    """The dropout within an encoder, where the run says it."""
    if network.encoder_dropout is None:
        return
    names = [name for name in DROPOUT_FIELDS if hasattr(config, name)]
    if not names:
        raise InputError(f"{network.weights} has no dropout that could be set; leave model.encoder_dropout out")
    for name in names:
        setattr(config, name, network.encoder_dropout)


def build_random_body(network: ModelConfig) -> Any:
    """A BERT with random weights, for tests and timing."""
    transformers, _ = resolve_weights(RANDOM_WEIGHTS)
    config = transformers.BertConfig(
        hidden_size=network.width,
        num_hidden_layers=network.depth,
        num_attention_heads=max(1, network.width // HEAD_WIDTH),
        intermediate_size=4 * network.width,
    )
    set_dropout(config, network)
    return transformers.BertModel(config)


def resolve_weights(weights: str | None) -> tuple[Any, str]:
    """The library that reads weights, and where they are."""
    if not weights:
        raise InputError(
            "an encoder of texts needs its weights: give --model.weights a folder, or a name such as bert-base-uncased"
        )
    try:
        import transformers
    except ImportError:
        raise InputError("texts are read with transformers, which is not installed: pip install 'l2i[text]'") from None
    return transformers, str(Path(weights).expanduser()) if is_folder(weights) else weights


def is_folder(weights: str) -> bool:
    """Whether weights are a folder; then nothing is looked for elsewhere."""
    return Path(weights).expanduser().is_dir()


def check_folder(weights: str, patterns: tuple[str, ...], content: str) -> None:
    """That a folder holds one of the files; a path that is no folder is none, rather than a name."""
    path = Path(weights).expanduser()
    if weights == RANDOM_WEIGHTS:
        raise InputError(f"a random BERT has no {content}; give --model.weights a folder or a name")
    if path.is_file():
        raise InputError(f"{weights} is a file; give --model.weights the folder that it is in")
    if path.is_dir() and not any(next(path.glob(name), None) for name in patterns):
        raise InputError(f"{weights} has no {content}; {FOLDER_HINT}")
    if not path.is_dir() and (path.is_absolute() or weights.startswith((".", "~")) or weights.count("/") > 1):
        raise InputError(f"there is no folder {weights}; check the path of --model.weights")


def check_weight_files(weights: str | None) -> None:
    """That a folder holds weights."""
    source = resolve_weights(weights)[1]
    check_folder(source, WEIGHT_PATTERNS, "weights (model.safetensors)")
    for path in Path(source).glob("*.index.json") if is_folder(source) else ():
        with translate_load_errors(source):
            for name in set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()):
                if Path(name).name != name:
                    raise InputError(f"{path}: '{name}' is not in the folder itself; {FOLDER_HINT}")


@cache
def announce_hub_lookup(weights: str) -> None:
    """Say, once, that the network is asked: without one, that takes half a minute to fail."""
    if not is_folder(weights):
        print(f"l2i: looking for {weights} on Hugging Face's hub (--model.weights)", file=sys.stderr, flush=True)


@contextmanager
def translate_load_errors(weights: str) -> Iterator[None]:
    """What goes wrong in reading, in a line; the libraries that read have no errors of one kind."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        message = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        hint = "see that it is whole" if is_folder(weights) else "check the name and the network, or give a folder"
        raise InputError(f"{weights} cannot be read ({message}); {hint}") from None


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Without the library's own bars, reports and advice, which are not about a user's run."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    level, hub_level, bars_enabled = logging.get_verbosity(), hub.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    hub.set_verbosity(ERROR)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        hub.set_verbosity(hub_level)
        if bars_enabled:
            logging.enable_progress_bar()


def load_sentence_pooling(weights: str) -> dict[str, Any] | None:
    """How a sentence transformer pools, from its folder or the hub; None for weights of other kinds."""
    if weights in ("", RANDOM_WEIGHTS):
        return None
    path = Path(weights).expanduser() / POOLING_CONFIG_PATH
    with silence_transformers(), translate_load_errors(weights):
        if not is_folder(weights):
            from huggingface_hub import hf_hub_download, try_to_load_from_cache
            from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

            cached = try_to_load_from_cache(weights, POOLING_CONFIG_PATH.as_posix())
            if cached is not None and not isinstance(cached, str):
                return None  # it was looked for before, and is not there
            try:
                path = Path(hf_hub_download(weights, POOLING_CONFIG_PATH.as_posix()))
            except LocalEntryNotFoundError:
                raise InputError(f"{weights}: how it pools cannot be looked up; choose by --model.pooling") from None
            except EntryNotFoundError:
                return None
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
