"""Texts as token ids, by a pretrained network's own fast tokenizer: once, then kept in a cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from l2i.data.datasets.imdb import TextSet, check_texts, read_paraphrases
from l2i.data.samples import DataSet, Samples, Splits
from l2i.data.transforms.text import Vocabulary, build_vocabulary
from l2i.errors import InputError
from l2i.models.huggingface import load_config, load_tokenizer

CACHE_ENV = "L2I_CACHE"  # the environment variable with the folder of the cache
TOKENIZE_CHUNK = 2000  # texts at a time
SUBWORD_MARKS = (("##", False), ("Ġ", True), ("▁", True))  # of pieces that go on with a word, or of those that begin one
ProgressCallback = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Text:
    """How texts become token ids."""

    length: int = 128
    """Tokens of a text that the network sees, those that mark its start and end included; more are cut off."""
    keep_side: Literal["end", "start"] = "end"
    """What is kept of a longer text. Reviews come to their verdict at the end, and UDA keeps that."""
    paraphrases: str | None = None
    """Folder with back-translations of the texts, in the layout of UDA's code: train.csv and para_0.txt."""


class Tokenizer:
    """A fast tokenizer for texts of one length."""

    def __init__(self, weights: str | None, text: Text) -> None:
        hf_tokenizer = load_tokenizer(weights)
        self.backend, self.text = hf_tokenizer.backend_tokenizer, text
        self.backend.encode_special_tokens = True  # "[PAD]" in a text is five characters
        if hf_tokenizer.pad_token_id is None:
            raise InputError(f"the tokenizer of {weights} has no padding token; give an encoder such as a BERT")
        size = max(hf_tokenizer.get_vocab().values()) + 1  # the ids may have gaps
        check_vocab_match(weights, load_config(weights), hf_tokenizer.pad_token_id, size)
        self.pad_id = int(hf_tokenizer.pad_token_id)
        self.mask_id = int(next(i for i in (hf_tokenizer.mask_token_id, hf_tokenizer.unk_token_id, self.pad_id) if i is not None))
        min_length = self.backend.num_special_tokens_to_add(False) + 1
        if text.length < min_length:
            raise InputError(f"data.text.length={text.length} leaves no room for words; use at least {min_length}")
        self.backend.enable_truncation(text.length, direction="left" if text.keep_side == "end" else "right")
        self.backend.enable_padding(length=text.length, pad_id=self.pad_id, pad_token=hf_tokenizer.pad_token, direction="right")
        self.is_special = torch.zeros(size, dtype=torch.bool)
        self.is_special[[int(i) for i in hf_tokenizer.all_special_ids]] = True

    def __call__(self, texts: Sequence[str], progress: ProgressCallback = lambda line: None) -> Tensor:  # int32 [N, L]
        ids = np.empty((len(texts), self.text.length), dtype=np.int32)
        for start in range(0, len(texts), TOKENIZE_CHUNK):
            encodings = self.backend.encode_batch_fast(list(texts[start : start + TOKENIZE_CHUNK]))
            ids[start : start + len(encodings)] = [encoding.ids for encoding in encodings]
            progress(f"tokenised {start + len(encodings):,} of {len(texts):,} texts")
        return torch.from_numpy(ids)

    @property
    def is_continuation(self) -> Tensor:
        """Which tokens go on with the word before them, by the marks that the vocabulary uses; [V]."""
        tokens = [self.backend.id_to_token(i) or "" for i in range(len(self.is_special))]
        mark, marks_word_start = max(SUBWORD_MARKS, key=lambda m: sum(w.startswith(m[0]) for w in tokens))  # others' marks may be words
        is_marked = torch.tensor([word.startswith(mark) for word in tokens])
        return (~is_marked if marks_word_start else is_marked) & ~self.is_special

    def make_vocabulary(self, ids: Tensor) -> Vocabulary:
        """The vocabulary, with statistics of the texts `ids` [N, L]."""
        return build_vocabulary(ids, pad_id=self.pad_id, mask_id=self.mask_id, is_special=self.is_special, is_continuation=self.is_continuation)

    def make_cache_key(self) -> bytes:
        """What its answers depend on."""
        return f"{self.backend.to_str()}{self.text.length}{self.text.keep_side}".encode()


def check_vocab_match(weights: str | None, config: Any, pad_id: int, vocab_size: int) -> None:
    """That a tokenizer and the network beside it are of one vocabulary."""
    if getattr(config, "pad_token_id", None) != pad_id:
        raise InputError(
            f"the tokenizer of {weights} pads with {pad_id}, and its config.json has pad_token_id="
            f"{getattr(config, 'pad_token_id', None)}; write {pad_id} there, or give the network its own tokenizer"
        )
    if vocab_size > getattr(config, "vocab_size", vocab_size):
        raise InputError(
            f"the tokenizer of {weights} has {vocab_size:,} tokens, and its network {config.vocab_size:,}; "
            "give the network its own tokenizer"
        )


def tokenize_dataset(text_set: TextSet, weights: str | None, text: Text, progress: ProgressCallback = lambda line: None) -> DataSet:
    """A set of texts, ready to be split: samples of [1 + P, L] token ids, the original and P back-translations."""
    tokenizer = Tokenizer(weights, text)
    train_texts = [*check_texts(text_set.train, "the training set"), *check_texts(text_set.unlabeled, "the unlabelled set")]
    original_ids = encode_with_cache(tokenizer, train_texts, progress)
    translated_ids = encode_paraphrases(tokenizer, train_texts, text_set.names, text, progress)
    versions = torch.stack([original_ids, *translated_ids], dim=1)
    test = encode_with_cache(tokenizer, check_texts(text_set.test, "the test set"), progress).unsqueeze(1)
    train, extra = versions[: len(text_set.train)], versions[len(text_set.train) :]
    return DataSet(
        train=Samples(train, torch.tensor(text_set.y)),
        test=Samples(test, torch.tensor(text_set.test_y)),
        unlabeled=Samples(extra, torch.full((len(extra),), -1)) if len(extra) else None,
        classes=text_set.classes,
        vocabulary=tokenizer.make_vocabulary(original_ids),
    )


def encode_paraphrases(tokenizer: Tokenizer, originals: list[str], names: list[str], text: Text, progress: ProgressCallback) -> list[Tensor]:
    """Back-translations, as many of each text as the one with most has; where one is missing, the text itself."""
    if text.paraphrases is None:
        return []
    paraphrases = read_paraphrases(text.paraphrases)
    per_text = [paraphrases.get(name, []) for name in names]
    if not any(per_text):
        example_id = next(iter(paraphrases), "none")
        raise InputError(
            f"{text.paraphrases} has no back-translation of any of these texts: an id here is '{names[0]}', and there "
            f"'{example_id}'; write such ids"
        )
    max_count = max(map(len, per_text))
    return [
        encode_with_cache(tokenizer, [options[k % len(options)] if options else original for options, original in zip(per_text, originals, strict=True)], progress)
        for k in range(max_count)
    ]


def describe_truncation(splits: Splits, text: Text) -> str:
    """How many texts fill what is kept of them, and have back-translations, in words; nothing of other samples."""
    if splits.vocabulary is None:
        return ""
    raw = splits.unlabeled.x if len(splits.unlabeled.x) else splits.labeled.x
    assert isinstance(raw, Tensor)
    ids = splits.to_inputs(raw)
    full_fraction = float((ids[:, -1] != splits.vocabulary.pad_id).double().mean())
    sentence = (
        f"; {100 * full_fraction:.0f} % of the texts fill all {ids.shape[1]} tokens, and of longer ones the {text.keep_side} is kept"
    )
    versions = raw if raw.ndim == 3 else raw.unsqueeze(1)
    count = int((versions[:, 1:] != versions[:, :1]).flatten(1).any(dim=1).sum())
    return sentence + (f"; {count:,} unlabelled ones have a back-translation" if count else "")


def encode_with_cache(tokenizer: Tokenizer, texts: list[str], progress: ProgressCallback) -> Tensor:
    """The ids of texts, from the cache where they are in it; one that cannot be written to is done without."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    from l2i.files.atomic import write_atomic

    path = get_cache_folder() / f"tokens-{hash_texts(tokenizer, texts)}.safetensors"
    try:
        cached_ids = load_file(path)["ids"]
        if cached_ids.shape == (len(texts), tokenizer.text.length):
            return cached_ids
    except (OSError, SafetensorError, KeyError):
        pass
    ids = tokenizer(texts, progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, save({"ids": ids}))
    except OSError:
        pass
    return ids


def get_cache_folder() -> Path:
    """L2I_CACHE, or l2i in the user's cache folder."""
    configured = os.environ.get(CACHE_ENV)
    return Path(configured).expanduser() if configured else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "l2i"


def hash_texts(tokenizer: Tokenizer, texts: list[str]) -> str:
    """A checksum of what ids depend on."""
    hasher = hashlib.blake2b(tokenizer.make_cache_key(), digest_size=16)
    for text in texts:
        content = text.encode()
        hasher.update(len(content).to_bytes(8, "big") + content)
    return hasher.hexdigest()
