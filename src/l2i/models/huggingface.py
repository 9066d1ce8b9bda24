"""Pretrained weights, configurations and tokenizers in Hugging Face's format."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2i.errors import InputError
from l2i.files.safety import is_file
from l2i.files.terminal import print_lines

if TYPE_CHECKING:
    from l2i.models.base import ModelConfig

RANDOM_WEIGHTS = "random"  # instead of a folder: an untrained BERT of the run's width and depth
HEAD_WIDTH = 32  # of a random BERT's attention heads
SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.bpe.model")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", *SENTENCEPIECE_FILES)
POOLING_CONFIG = "1_Pooling/config.json"  # of sentence transformers
WEIGHT_PATTERNS = ("*.safetensors", "pytorch_model*.bin")
MAX_LAYERS = 1000
FOLDER_HINT = "use a complete folder written by save_pretrained"
DROPOUT_FIELDS = (  # of configurations, except for those of heads
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
    """Load the encoder in float32."""
    if network.weights == RANDOM_WEIGHTS:
        return _build_random_body(network)
    import torch

    transformers, source = resolve_weights(network.weights)
    check_weight_files(source)
    config = load_config(source)
    _set_dropout(config, network)
    options = {"config": config, "dtype": torch.float32, "output_loading_info": True}
    body, loading_info = _load_pretrained(transformers.AutoModel, source, **options)
    _check_missing(source, loading_info)
    return body


def _check_missing(source: str, loading_info: dict[str, Any]) -> None:
    """Refuse incomplete weights, except for those of a pooler, which is trained as a head is."""
    missing = sorted(key for key in loading_info["missing_keys"] if not key.startswith("pooler."))
    if missing:
        tensors = f"{len(missing)} of its tensors, such as {missing[0]}"
        raise InputError(f"the weights of {source} lack {tensors}; {FOLDER_HINT}")


def build_empty_body(weights: str) -> Any:
    """Build the encoder of a configuration in float32, without its weights."""
    import torch

    transformers, source = resolve_weights(weights)
    config, dtype = load_config(source), torch.float32
    with _silence_transformers(), _translate_load_errors(source):
        return transformers.AutoModel.from_config(config, dtype=dtype, trust_remote_code=False)


def _build_random_body(network: ModelConfig) -> Any:
    transformers, _ = resolve_weights(RANDOM_WEIGHTS)
    config = transformers.BertConfig(
        hidden_size=network.width,
        num_hidden_layers=network.depth,
        num_attention_heads=max(1, network.width // HEAD_WIDTH),
        intermediate_size=4 * network.width,
    )
    _set_dropout(config, network)
    return transformers.BertModel(config)


def _set_dropout(config: Any, network: ModelConfig) -> None:
    if network.encoder_dropout is None:
        return
    names = [name for name in DROPOUT_FIELDS if hasattr(config, name)]
    if not names:
        problem = f"{network.weights} has no dropout to set"
        raise InputError(f"{problem}; leave out model.encoder_dropout")
    for name in names:
        setattr(config, name, network.encoder_dropout)


def save_text_config(weights: str, folder: Path) -> None:
    """Save what texts are read with except for the weights: configuration, tokenizer, pooling."""
    parts = (load_config(weights), load_tokenizer(weights))
    with _silence_transformers():
        for part in parts:
            part.save_pretrained(folder)
    pooling = load_sentence_pooling(weights)
    if pooling is not None:
        (folder / POOLING_CONFIG).parent.mkdir(exist_ok=True)
        (folder / POOLING_CONFIG).write_text(json.dumps(pooling), encoding="utf-8")


def load_config(weights: str | None) -> Any:
    """Load the configuration alone, if it asks for neither too many layers nor quantization."""
    transformers, source = resolve_weights(weights)
    _check_folder(source, ("config.json",), "config.json")
    announce_hub_lookup(source)
    config = _load_pretrained(transformers.AutoConfig, source)
    layers = getattr(config, "num_hidden_layers", 0)
    if not isinstance(layers, int) or not 0 <= layers <= MAX_LAYERS:
        problem = f"config.json has num_hidden_layers={layers}, more than {MAX_LAYERS}"
        raise InputError(f"{source}: {problem}; {FOLDER_HINT}")
    if getattr(config, "quantization_config", None) is not None:
        fix = "use weights in float32 or bfloat16"
        raise InputError(f"{source} is quantized, which cannot be trained; {fix}")
    return config


def load_tokenizer(weights: str | None) -> Any:
    """Load the fast tokenizer of the weights."""
    transformers, source = resolve_weights(weights)
    _check_folder(source, TOKENIZER_FILES, "tokenizer (tokenizer.json or vocab.txt)")
    tokenizer = _load_pretrained(transformers.AutoTokenizer, source)
    if not tokenizer.is_fast:
        fix = "save one there with AutoTokenizer…save_pretrained"
        raise InputError(f"{source} has no fast tokenizer; {fix}")
    return tokenizer


def load_vision_body(weights: str) -> Any:
    """Load an encoder of images in float32."""
    import torch

    transformers, source = resolve_weights(weights)
    check_weight_files(source)
    options = {"config": load_config(source), "dtype": torch.float32, "output_loading_info": True}
    body, loading_info = _load_pretrained(transformers.AutoModel, source, **options)
    _check_missing(source, loading_info)
    if any(key.startswith("pooler.") for key in loading_info["missing_keys"]):
        body.pooler = None  # its weights would be random
    return body


def load_sentence_pooling(weights: str) -> dict[str, Any] | None:
    """Load how a sentence transformer pools, from its folder or the hub; None for other weights."""
    if weights in ("", RANDOM_WEIGHTS):
        return None
    with _silence_transformers(), _translate_load_errors(weights):
        path = find_file(weights, POOLING_CONFIG)
        return None if path is None else dict(json.loads(path.read_text(encoding="utf-8")))


def find_file(weights: str, name: str) -> Path | None:
    """Return a file that comes with weights, from their folder or the hub, or None."""
    if _is_folder(weights):
        path = Path(weights).expanduser() / name
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    cached = try_to_load_from_cache(weights, name)
    if cached is not None and not isinstance(cached, str):
        return None  # it was looked up before, and does not exist
    try:
        return Path(hf_hub_download(weights, name))
    except LocalEntryNotFoundError:
        fix = "check the network, or download the weights to a folder"
        raise InputError(f"{weights}: cannot look up its {name}; {fix}") from None
    except EntryNotFoundError:
        return None


def resolve_weights(weights: str | None) -> tuple[Any, str]:
    """Return the transformers library, and the folder or name of the weights."""
    if not weights:
        fix = "set --model.weights to a folder, or a name such as bert-base-uncased"
        raise InputError(f"a text encoder needs weights; {fix}")
    try:
        import transformers
    except ImportError:
        problem = "this encoder needs transformers, which is not installed"
        raise InputError(f"{problem}: pip install 'l2i[text]'") from None
    return transformers, str(Path(weights).expanduser()) if _is_folder(weights) else weights


def _is_folder(weights: str) -> bool:
    try:
        return Path(weights).expanduser().is_dir()
    except (OSError, RuntimeError):  # longer than a path may be, or the home of nobody
        return False


def _load_pretrained(loader: Any, source: str, **options: Any) -> Any:
    """Look nowhere but in a folder, and run no code that comes with weights."""
    options |= {"local_files_only": _is_folder(source), "trust_remote_code": False}
    with _silence_transformers(), _translate_load_errors(source):
        return loader.from_pretrained(source, **options)


def _check_folder(weights: str, patterns: tuple[str, ...], content: str) -> None:
    """Check that a folder holds one of the files, and that a path is not taken for a name."""
    path = Path(weights).expanduser()
    if weights == RANDOM_WEIGHTS:
        raise InputError(
            f"a random BERT has no {content}; set --model.weights to a folder or a name"
        )
    if is_file(path):
        raise InputError(f"{weights} is a file; set --model.weights to its folder")
    if _is_folder(weights) and not any(next(path.glob(name), None) for name in patterns):
        raise InputError(f"{weights} has no {content}; {FOLDER_HINT}")
    is_path = path.is_absolute() or weights.startswith((".", "~")) or weights.count("/") > 1
    if is_path and not _is_folder(weights):
        raise InputError(f"folder {weights} does not exist; check --model.weights")


def check_weight_files(weights: str | None) -> None:
    """Check that a folder holds weights, and that its index refers to no file elsewhere."""
    source = resolve_weights(weights)[1]
    _check_folder(source, WEIGHT_PATTERNS, "weights (model.safetensors)")
    for path in Path(source).glob("*.index.json") if _is_folder(source) else ():
        with _translate_load_errors(source):
            for name in set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()):
                if Path(name).name != name:
                    raise InputError(f"{path}: '{name}' is outside the folder; {FOLDER_HINT}")


@cache
def announce_hub_lookup(weights: str) -> None:
    """Print, once, that the hub is asked: offline, that takes half a minute to fail."""
    if not _is_folder(weights):
        message = f"l2i: looking up {weights} on the Hugging Face Hub (--model.weights)"
        print_lines(message, stderr=True)


def shorten_error(error: Exception) -> str:
    """Return the first line of a library's error message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


@contextmanager
def _translate_load_errors(weights: str) -> Iterator[None]:
    """Report in one line what goes wrong in reading, for which there is no one kind of error."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:
        hub_fix = "check the name and the network, or use a folder"
        fix = "check that it is complete" if _is_folder(weights) else hub_fix
        raise InputError(f"{weights} cannot be read ({shorten_error(error)}); {fix}") from None


@contextmanager
def _silence_transformers() -> Iterator[None]:
    """Silence the library's progress bars, reports and advice, which do not concern a run."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    with ExitStack() as stack, warnings.catch_warnings(action="ignore"):
        for library in (logging, hub):
            stack.callback(library.set_verbosity, library.get_verbosity())
            library.set_verbosity(ERROR)
        if logging.is_progress_bar_enabled():
            stack.callback(logging.enable_progress_bar)
            logging.disable_progress_bar()
        yield


@contextmanager
def translate_weights_errors(weights: str) -> Iterator[None]:
    """Report errors of weights in terms of `l2i fit`."""
    try:
        if is_file(Path(weights).expanduser()):
            raise InputError(f"{weights} is a file; pass its folder to --encoder")
        yield
    except InputError as error:
        raise InputError(str(error).replace("--model.weights", "--encoder")) from None
