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

from l2i.data.paraphrases import read_paraphrases
from l2i.data.split import DataSet, Samples, Splits
from l2i.data.texts import TextSet, checked
from l2i.data.words import Tokens, tokens_of
from l2i.errors import InputError
from l2i.models.pretrained import load_config, load_tokenizer

CACHE = "L2I_CACHE"  # the environment variable with the folder of the cache
CHUNK = 2000  # texts at a time
MARKS = (("##", False), ("Ġ", True), ("▁", True))  # of pieces that go on with a word, or of those that begin one
Told = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Text:
    """How texts become token ids."""

    length: int = 128
    """Tokens of a text that the network sees, those that mark its start and end included; more are cut off."""
    keep: Literal["end", "start"] = "end"
    """What is kept of a longer text. Reviews come to their verdict at the end, and UDA keeps that."""
    paraphrases: str | None = None
    """Folder with back-translations of the texts, in the layout of UDA's code: train.csv and para_0.txt."""


class Tokenizer:
    """A fast tokenizer for texts of one length."""

    def __init__(self, weights: str | None, text: Text) -> None:
        found = load_tokenizer(weights)
        self.fast, self.text = found.backend_tokenizer, text
        self.fast.encode_special_tokens = True  # "[PAD]" in a text is five characters
        if found.pad_token_id is None:
            raise InputError(f"the tokenizer of {weights} has no padding token; give an encoder such as a BERT")
        size = max(found.get_vocab().values()) + 1  # the ids may have gaps
        check_pair(weights, load_config(weights), found.pad_token_id, size)
        self.pad = int(found.pad_token_id)
        self.mask = int(next(i for i in (found.mask_token_id, found.unk_token_id, self.pad) if i is not None))
        least = self.fast.num_special_tokens_to_add(False) + 1
        if text.length < least:
            raise InputError(f"data.text.length={text.length} leaves no room for words; use at least {least}")
        self.fast.enable_truncation(text.length, direction="left" if text.keep == "end" else "right")
        self.fast.enable_padding(length=text.length, pad_id=self.pad, pad_token=found.pad_token, direction="right")
        self.special = torch.zeros(size, dtype=torch.bool)
        self.special[[int(i) for i in found.all_special_ids]] = True

    def __call__(self, texts: Sequence[str], told: Told = lambda line: None) -> Tensor:  # int32 [N, L]
        found = np.empty((len(texts), self.text.length), dtype=np.int32)
        for start in range(0, len(texts), CHUNK):
            part = self.fast.encode_batch_fast(list(texts[start : start + CHUNK]))
            found[start : start + len(part)] = [each.ids for each in part]
            told(f"tokenised {start + len(part):,} of {len(texts):,} texts")
        return torch.from_numpy(found)

    @property
    def continues(self) -> Tensor:
        """Which tokens go on with the word before them, by the marks that the vocabulary uses; [V]."""
        words = [self.fast.id_to_token(i) or "" for i in range(len(self.special))]
        mark, begins = max(MARKS, key=lambda m: sum(w.startswith(m[0]) for w in words))  # others' marks may be words
        marked = torch.tensor([word.startswith(mark) for word in words])
        return (~marked if begins else marked) & ~self.special

    def tokens(self, ids: Tensor) -> Tokens:
        """The vocabulary, with statistics of the texts `ids` [N, L]."""
        return tokens_of(ids, pad=self.pad, mask=self.mask, special=self.special, continues=self.continues)

    def key(self) -> bytes:
        """What its answers depend on."""
        return f"{self.fast.to_str()}{self.text.length}{self.text.keep}".encode()


def check_pair(weights: str | None, config: Any, pad: int, size: int) -> None:
    """That a tokenizer and the network beside it are of one vocabulary."""
    if getattr(config, "pad_token_id", None) != pad:
        raise InputError(
            f"the tokenizer of {weights} pads with {pad}, and its config.json has pad_token_id="
            f"{getattr(config, 'pad_token_id', None)}; write {pad} there, or give the network its own tokenizer"
        )
    if size > getattr(config, "vocab_size", size):
        raise InputError(
            f"the tokenizer of {weights} has {size:,} tokens, and its network {config.vocab_size:,}; "
            "give the network its own tokenizer"
        )


def tokenized(found: TextSet, weights: str | None, text: Text, told: Told = lambda line: None) -> DataSet:
    """A set of texts, ready to be split: samples of [1 + P, L] token ids, the original and P back-translations."""
    tokenizer = Tokenizer(weights, text)
    seen = [*checked(found.train, "the training set"), *checked(found.unlabeled, "the unlabelled set")]
    own = cached(tokenizer, seen, told)
    others = paraphrase_ids(tokenizer, seen, found.names, text, told)
    versions = torch.stack([own, *others], dim=1)
    test = cached(tokenizer, checked(found.test, "the test set"), told).unsqueeze(1)
    train, more = versions[: len(found.train)], versions[len(found.train) :]
    return DataSet(
        train=Samples(train, torch.tensor(found.y)),
        test=Samples(test, torch.tensor(found.test_y)),
        unlabeled=Samples(more, torch.full((len(more),), -1)) if len(more) else None,
        classes=found.classes,
        tokens=tokenizer.tokens(own),
    )


def paraphrase_ids(tokenizer: Tokenizer, seen: list[str], names: list[str], text: Text, told: Told) -> list[Tensor]:
    """Back-translations, as many of each text as the one with most has; where one is missing, the text itself."""
    if text.paraphrases is None:
        return []
    known = read_paraphrases(text.paraphrases)
    there = [known.get(name, []) for name in names]
    if not any(there):
        theirs = next(iter(known), "none")
        raise InputError(
            f"{text.paraphrases} has no back-translation of any of these texts: an id here is '{names[0]}', and there "
            f"'{theirs}'; write such ids"
        )
    most = max(map(len, there))
    return [
        cached(tokenizer, [of[k % len(of)] if of else s for of, s in zip(there, seen, strict=True)], told)
        for k in range(most)
    ]


def cut_of(splits: Splits, text: Text) -> str:
    """How many texts fill what is kept of them, and have back-translations, in words; nothing of other samples."""
    if splits.tokens is None:
        return ""
    raw = splits.unlabeled.x if len(splits.unlabeled.x) else splits.labeled.x
    assert isinstance(raw, Tensor)
    ids = splits.inputs(raw)
    share = float((ids[:, -1] != splits.tokens.pad).double().mean())
    full = (
        f"; {100 * share:.0f} % of the texts fill all {ids.shape[1]} tokens, and of longer ones the {text.keep} is kept"
    )
    versions = raw if raw.ndim == 3 else raw.unsqueeze(1)
    count = int((versions[:, 1:] != versions[:, :1]).flatten(1).any(dim=1).sum())
    return full + (f"; {count:,} unlabelled ones have a back-translation" if count else "")


def cached(tokenizer: Tokenizer, texts: list[str], told: Told) -> Tensor:
    """The ids of texts, from the cache where they are in it; one that cannot be written to is done without."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    from l2i.training.checkpoint import write_whole

    path = cache_folder() / f"tokens-{digest(tokenizer, texts)}.safetensors"
    try:
        kept = load_file(path)["ids"]
        if kept.shape == (len(texts), tokenizer.text.length):
            return kept
    except (OSError, SafetensorError, KeyError):
        pass
    ids = tokenizer(texts, told)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, save({"ids": ids}))
    except OSError:
        pass
    return ids


def cache_folder() -> Path:
    """L2I_CACHE, or l2i in the user's cache folder."""
    own = os.environ.get(CACHE)
    return Path(own).expanduser() if own else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "l2i"


def digest(tokenizer: Tokenizer, texts: list[str]) -> str:
    """A checksum of what ids depend on."""
    total = hashlib.blake2b(tokenizer.key(), digest_size=16)
    for text in texts:
        content = text.encode()
        total.update(len(content).to_bytes(8, "big") + content)
    return total.hexdigest()
