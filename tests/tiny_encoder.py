"""A tiny BERT with random weights and its own WordPiece tokenizer, saved as publishers would."""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from random import Random

import torch

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = ("##s", "##ed", "##ing")
GOOD = ["great", "wonderful", "charming", "touching", "superb", "witty"]
BAD = ["dull", "awful", "tedious", "clumsy", "boring", "wooden"]
OTHER = [
    "the",
    "a",
    "film",
    "plot",
    "actor",
    "scene",
    "music",
    "ending",
    "was",
    "is",
    "with",
    "and",
    "of",
    "it",
    "very",
]


def tiny_encoder(
    folder: Path, texts: Iterable[str] = (), *, width: int = 32, depth: int = 2, places: int = 64
) -> str:
    """Write an encoder and its tokenizer to `folder`; the words of `texts` are the vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = sorted(
        {word for text in texts for word in re.findall(r"\w+|[^\w\s]", text.lower())}
        | {*GOOD, *BAD, *OTHER}
    )
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *PIECES, *words))}
    fast = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    names = dict(
        zip(
            ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True
        )
    )
    PreTrainedTokenizerFast(tokenizer_object=fast, **names).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=places,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return str(folder)


@cache
def reviews(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Made-up reviews of 5 to 30 words, a few of them telling, and whether each is good."""
    draw = Random(seed)
    actual = []
    for i in range(count):
        telling = GOOD if i % 2 else BAD
        words = draw.choices(OTHER, k=draw.randint(3, 26)) + draw.choices(
            telling, k=draw.randint(2, 4)
        )
        draw.shuffle(words)
        actual.append((" ".join(words), i % 2))
    return actual


def write_imdb(root: Path, *, train: int = 40, test: int = 20, unsup: int = 30) -> str:
    """Made-up reviews in the layout of IMDb."""
    sets = {"train": (train, 0), "test": (test, 1), "train/unsup": (unsup, 2)}
    for name, (count, seed) in sets.items():
        for i, (text, good) in enumerate(reviews(count, seed)):
            folder = (
                root / "aclImdb" / name / ("" if "unsup" in name else ("pos" if good else "neg"))
            )
            folder.mkdir(parents=True, exist_ok=True)
            rating = 0 if "unsup" in name else (9 if good else 2)
            (folder / f"{i}_{rating}.txt").write_text(text, encoding="utf-8")
    return str(root)
