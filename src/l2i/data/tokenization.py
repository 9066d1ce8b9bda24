"""Texts as token ids, by the fast tokenizer of a pretrained network, with a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from l2i.data.datasets.imdb import TextSet, check_texts, read_paraphrases
from l2i.data.samples import DataSet, Samples, Splits
from l2i.data.transforms.text import Vocabulary, build_vocabulary
from l2i.errors import InputError
from l2i.files.output import ProgressCallback, get_cache_dir, ignore_progress, write_atomic
from l2i.models.huggingface import load_config, load_tokenizer

TOKENIZE_CHUNK = 2000  # texts at a time
# the prefix of tokens that continue a word, or (True) of those that begin one
SUBWORD_MARKS = (("##", False), ("Ġ", True), ("▁", True))


@dataclass(frozen=True, kw_only=True)
class Text:
    """Configure how texts become token ids."""

    length: int = 128
    """Maximum number of tokens per text, including start and end; longer texts are truncated."""
    keep_side: Literal["end", "start"] = "end"
    """Which end of a longer text to keep. UDA keeps the end, where reviews state their verdict."""
    paraphrases: str | None = None
    """Folder of back-translations in the layout of UDA's code: train.csv and para_0.txt."""


class Tokenizer:
    """Turn texts into token ids of one length, with a pretrained network's fast tokenizer."""

    def __init__(self, weights: str | None, text: Text) -> None:
        tokenizer = load_tokenizer(weights)
        self.backend, self.text = tokenizer.backend_tokenizer, text
        self.backend.encode_special_tokens = True  # "[PAD]" in a text is five characters
        if tokenizer.pad_token_id is None:
            fix = "use an encoder such as BERT"
            raise InputError(f"the tokenizer of {weights} has no padding token; {fix}")
        size = max(tokenizer.get_vocab().values()) + 1  # the ids may have gaps
        self.pad_id = int(tokenizer.pad_token_id)
        _check_vocab_match(weights, load_config(weights), self.pad_id, size)
        min_length = self.backend.num_special_tokens_to_add(False) + 1
        if text.length < min_length:
            fix = f"use at least {min_length}"
            raise InputError(f"data.text.length={text.length} leaves no room for words; {fix}")
        side = "left" if text.keep_side == "end" else "right"
        self.backend.enable_truncation(text.length, direction=side)
        self.backend.enable_padding(
            length=text.length, pad_id=self.pad_id, pad_token=tokenizer.pad_token, direction="right"
        )
        self.is_special = torch.zeros(size, dtype=torch.bool)
        self.is_special[[int(i) for i in tokenizer.all_special_ids]] = True

    def __call__(
        self, texts: Sequence[str], progress: ProgressCallback = ignore_progress
    ) -> Tensor:
        """Return token ids, int32 [N, L]."""
        ids = np.empty((len(texts), self.text.length), dtype=np.int32)
        for start in range(0, len(texts), TOKENIZE_CHUNK):
            encodings = self.backend.encode_batch_fast(list(texts[start : start + TOKENIZE_CHUNK]))
            ids[start : start + len(encodings)] = [encoding.ids for encoding in encodings]
            progress(f"tokenised {start + len(encodings):,} of {len(texts):,} texts")
        return torch.from_numpy(ids)

    @property
    def is_continuation(self) -> Tensor:
        """Mark the tokens that continue the word before them, [V]."""
        tokens = [self.backend.id_to_token(i) or "" for i in range(len(self.is_special))]
        # the mark that most tokens have: those of other tokenizers may be words
        mark, marks_word_start = max(
            SUBWORD_MARKS, key=lambda m: sum(token.startswith(m[0]) for token in tokens)
        )
        is_marked = torch.tensor([token.startswith(mark) for token in tokens])
        return (~is_marked if marks_word_start else is_marked) & ~self.is_special

    def make_vocabulary(self, ids: Tensor) -> Vocabulary:
        """Build the vocabulary, with statistics of the texts `ids` [N, L]."""
        return build_vocabulary(
            ids,
            pad_id=self.pad_id,
            is_special=self.is_special,
            is_continuation=self.is_continuation,
        )


def _check_vocab_match(weights: str | None, config: Any, pad_id: int, vocab_size: int) -> None:
    """Check that a tokenizer and the network beside it share a vocabulary."""
    tokenizer, fix = f"the tokenizer of {weights}", "use the tokenizer of the network"
    config_pad_id = getattr(config, "pad_token_id", None)
    if config_pad_id != pad_id:
        problem = f"pads with {pad_id}, but its config.json has pad_token_id={config_pad_id}"
        raise InputError(f"{tokenizer} {problem}; set that to {pad_id}, or {fix}")
    if vocab_size > getattr(config, "vocab_size", vocab_size):
        problem = f"has {vocab_size:,} tokens, but its network only {config.vocab_size:,}"
        raise InputError(f"{tokenizer} {problem}; {fix}")


def tokenize_dataset(
    text_set: TextSet, weights: str | None, text: Text, progress: ProgressCallback = ignore_progress
) -> DataSet:
    """Tokenize texts: a sample is [1 + P, L] ids, the original and P back-translations."""
    tokenizer = Tokenizer(weights, text)
    train_texts = check_texts(text_set.train, "the training set")
    train_texts += check_texts(text_set.unlabeled, "the unlabelled set")
    paraphrases = _align_paraphrases(train_texts, text_set.names, text.paraphrases)
    ids = [encode_with_cache(tokenizer, texts, progress) for texts in (train_texts, *paraphrases)]
    versions = torch.stack(ids, dim=1)
    test_texts = check_texts(text_set.test, "the test set")
    test = encode_with_cache(tokenizer, test_texts, progress).unsqueeze(1)
    train, extra = versions[: len(text_set.train)], versions[len(text_set.train) :]
    return DataSet(
        train=Samples(train, torch.tensor(text_set.y)),
        test=Samples(test, torch.tensor(text_set.test_y)),
        unlabeled=Samples(extra, torch.full((len(extra),), -1)) if len(extra) else None,
        classes=text_set.classes,
        vocabulary=tokenizer.make_vocabulary(ids[0]),
    )


def _align_paraphrases(texts: list[str], names: list[str], folder: str | None) -> list[list[str]]:
    """Return lists of back-translations, one per text; a text without any stands for itself."""
    if folder is None:
        return []
    paraphrases = read_paraphrases(folder)
    per_text = [paraphrases.get(name, []) for name in names]
    if not any(per_text):
        ids = f"an id is '{names[0]}' here, but '{next(iter(paraphrases), 'none')}' there"
        problem = f"{folder} has no back-translation of any of these texts ({ids})"
        raise InputError(f"{problem}; use the same ids")
    return [
        [
            options[k % len(options)] if options else text
            for options, text in zip(per_text, texts, strict=True)
        ]
        for k in range(max(map(len, per_text)))
    ]


def describe_truncation(splits: Splits, text: Text) -> str:
    """Describe how many texts fill all tokens or have back-translations; "" without texts."""
    if splits.vocabulary is None:
        return ""
    raw = splits.unlabeled.x if len(splits.unlabeled.x) else splits.labeled.x
    assert isinstance(raw, Tensor)
    ids = splits.to_inputs(raw)
    full_fraction = float((ids[:, -1] != splits.vocabulary.pad_id).double().mean())
    sentence = (
        f"; {100 * full_fraction:.0f} % of the texts fill all {ids.shape[1]} tokens; "
        f"longer ones keep their {text.keep_side}"
    )
    versions = raw if raw.ndim == 3 else raw.unsqueeze(1)
    count = int((versions[:, 1:] != versions[:, :1]).flatten(1).any(dim=1).sum())
    return sentence + (f"; {count:,} unlabelled texts have a back-translation" if count else "")


def encode_with_cache(tokenizer: Tokenizer, texts: list[str], progress: ProgressCallback) -> Tensor:
    """Return the ids of texts from the cache, or add them to it if it can be written to."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    folder = get_cache_dir()
    path = folder / f"tokens-{_hash_texts(tokenizer, texts)}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        cached_ids = load_file(path)["ids"]
        if cached_ids.shape == (len(texts), tokenizer.text.length):
            return cached_ids
    ids = tokenizer(texts, progress)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, save({"ids": ids}))
    return ids


def _hash_texts(tokenizer: Tokenizer, texts: list[str]) -> str:
    """Return a checksum of everything that the ids depend on."""
    text = tokenizer.text
    key = f"{tokenizer.backend.to_str()}{text.length}{text.keep_side}".encode()
    hasher = hashlib.blake2b(key, digest_size=16)
    for content in map(str.encode, texts):
        hasher.update(len(content).to_bytes(8, "big") + content)
    return hasher.hexdigest()
