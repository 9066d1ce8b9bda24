"""Perturbations T_η of texts given as token ids: batched, on the data's device, every random choice from the generator.

Nothing here waits for the device or has a shape that depends on what a text says, so that a step can be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.data.sampling import sample_integers, sample_uniform
from l2i.errors import InputError

COUNT_CHUNK = 4096  # texts that are counted at once
SCORE_TOLERANCE = 1e-9  # scores that differ by a smaller part than this differ by rounding


class Vocabulary(NamedTuple):
    """What perturbations have to know of a vocabulary of V tokens, and of the corpus."""

    pad_id: int
    mask_id: int  # the token that stands for a hidden word
    is_special: Tensor  # [V] bool, tokens that are no words: padding, start, end, mask, unknown
    is_continuation: Tensor  # [V] bool, pieces that go on with the word before them
    idf: Tensor  # [V] float32, log(documents / documents with the token); log(documents) for a token of none
    replacement_cdf: Tensor  # [V] float64, cumulative and ending at 1: how likely a token is as a replacement

    def to(self, device: torch.device) -> Vocabulary:
        tensors = (self.is_special, self.is_continuation, self.idf, self.replacement_cdf)
        return Vocabulary(self.pad_id, self.mask_id, *(tensor.to(device) for tensor in tensors))

    @property
    def size(self) -> int:
        return len(self.is_special)


@dataclass(frozen=True, kw_only=True)
class TokenAugment:
    """Perturbations of a text, in this order; all at their defaults leave it as it is."""

    paraphrase: float = 0.0
    """Probability that a text is replaced by one of its back-translations, where it has any."""
    replace: float = 0.0
    """Share of a text's words that are replaced by uninformative ones: those of low TF-IDF, as UDA has it. Where a
    back-translation stands for a text, none are."""
    drop: float = 0.0
    """Share of a text's words that are left out."""
    mask: float = 0.0
    """Share of a text's words that are hidden, in spans."""
    span: int = 3
    """Words of a hidden span."""

    def __call__(self, versions: Tensor, generator: Generator, vocabulary: Vocabulary) -> Tensor:
        """The perturbed texts [B, L], of token ids [B, L] or, with the back-translations of each, [B, versions, L]."""
        versions = versions if versions.ndim == 3 else versions.unsqueeze(1)
        ids = sample_paraphrases(versions, self.paraphrase, generator) if self.paraphrase else versions[:, 0].long()
        if self.replace:
            translated = (ids != versions[:, 0]).any(dim=1, keepdim=True)
            ids = torch.where(translated, ids, replace_words(ids, self.replace, generator, vocabulary))
        ids = drop_words(ids, self.drop, generator, vocabulary) if self.drop else ids
        return mask_spans(ids, self.mask, generator, vocabulary, self.span) if self.mask else ids


class WordParts(NamedTuple):
    """What the tokens of texts are parts of, each [B, L]."""

    is_word: Tensor  # whether a token is a word or a piece of one
    is_whole_word: Tensor  # whether it is a word by itself
    word_index: Tensor  # which of its text's words it is of, from 0; of no meaning where it is of none


def find_words(ids: Tensor, is_special: Tensor, is_continuation: Tensor) -> WordParts:
    """Where words start and end; a piece that has no word before it starts one."""
    is_word = ~is_special[ids]
    is_piece = is_word & is_continuation[ids]
    is_start = is_word & ~(is_piece & F.pad(is_word[:, :-1], (1, 0)))
    is_whole_word = is_word & ~is_piece & ~F.pad(is_piece[:, 1:], (0, 1))
    return WordParts(is_word, is_whole_word, (is_start.cumsum(1) - 1).clamp(min=0))


def build_vocabulary(ids: Tensor, *, pad_id: int, mask_id: int, is_special: Tensor, is_continuation: Tensor) -> Vocabulary:
    """The statistics of a corpus of texts [N, L] (Xie et al., 2020, appendix), taking each token for a word.

    A replacement w is drawn in proportion to max S − S(w), S(w) the sum of w's TF-IDF over all texts, among the words
    that are somewhere one token.
    """
    documents, frequency, is_whole_word = _count_tokens(ids, is_special, is_continuation)
    if not is_whole_word.any():
        raise InputError("the texts hold no words; check the tokenizer's special tokens, or give other texts")
    idf = (len(ids) / documents.clamp(min=1).double()).log()
    score = idf * frequency
    max_score = score[is_whole_word].max()
    weight = (max_score - score).where(is_whole_word, 0)
    weight = weight if weight.max() > SCORE_TOLERANCE * max_score else is_whole_word.double()
    cumulative = weight.cumsum(0)
    return Vocabulary(pad_id, mask_id, is_special, is_continuation, idf.float(), cumulative / cumulative[-1])


def _count_tokens(ids: Tensor, is_special: Tensor, is_continuation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each token its documents, its shares of their words, summed, and whether it is somewhere a whole word."""
    size = len(is_special)
    documents, whole_word_counts = torch.zeros(2, size, dtype=torch.long, device=ids.device)
    frequency = torch.zeros(size, dtype=torch.float64, device=ids.device)
    for rows in ids.split(COUNT_CHUNK):
        ordered = rows.sort(dim=1).values
        is_first = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
        documents += ordered[is_first].bincount(minlength=size)
        is_word, is_whole_word, _ = find_words(rows.long(), is_special, is_continuation)
        weight = 1 / is_word.sum(dim=1, keepdim=True).clamp(min=1).double()
        frequency += rows.flatten().bincount(weight.expand(rows.shape).flatten(), minlength=size)
        whole_word_counts += rows[is_whole_word].bincount(minlength=size)
    return documents, frequency, whole_word_counts > 0


def sample_paraphrases(versions: Tensor, probability: float, generator: Generator) -> Tensor:
    """Each text, the first of its versions [B, versions, L], or with probability `share` one of the others."""
    batch, count, length = versions.shape
    if count == 1:
        return versions[:, 0].long()
    is_swapped = sample_uniform((batch,), generator) < probability
    other = 1 + sample_integers(count - 1, (batch,), generator)
    index = (is_swapped * other).view(-1, 1, 1).expand(-1, 1, length)
    return versions.gather(1, index).squeeze(1).long()


def replace_words(ids: Tensor, fraction: float, generator: Generator, vocabulary: Vocabulary) -> Tensor:
    """Each text with about a share of its words replaced by ones that say little, mostly those that say little.

    A word of several pieces stays: it is rare, so that its TF-IDF is high, and it would hardly ever be replaced.
    """
    ids = ids.long()
    probability = compute_replace_probs(ids, fraction, vocabulary)
    is_replaced = sample_uniform(ids.shape, generator) < probability
    quantile = sample_uniform(ids.shape, generator, dtype=torch.float64)
    return torch.where(is_replaced, torch.searchsorted(vocabulary.replacement_cdf, quantile, right=True), ids)


def compute_replace_probs(ids: Tensor, fraction: float, vocabulary: Vocabulary) -> Tensor:
    """The probability min(share (C − TFIDF) / Z, 1) that a token is replaced, C the text's maximum, Z the mean gap."""
    is_word, is_whole_word, _ = find_words(ids, vocabulary.is_special, vocabulary.is_continuation)
    count = (ids.unsqueeze(2) == ids.unsqueeze(1)).sum(dim=2)
    tfidf = (count * vocabulary.idf[ids]).masked_fill(~is_word, 0)  # times the text's words, which gap / mean leaves out
    gap = (tfidf.amax(dim=1, keepdim=True) - tfidf).masked_fill(~is_word, 0)
    mean = gap.sum(dim=1, keepdim=True) / is_word.sum(dim=1, keepdim=True).clamp(min=1)
    ratio = gap / mean.clamp(min=torch.finfo(gap.dtype).tiny)  # 0 where all are alike
    return (fraction * ratio).clamp(max=1).masked_fill(~is_whole_word, 0)


def drop_words(ids: Tensor, fraction: float, generator: Generator, vocabulary: Vocabulary) -> Tensor:
    """Each text without a share of its words, closed up; one that would lose all of them keeps them."""
    ids = ids.long()
    is_word, _, word_index = find_words(ids, vocabulary.is_special, vocabulary.is_continuation)
    is_kept = sample_uniform(ids.shape, generator) >= fraction  # by word
    is_kept = is_kept.gather(1, word_index) & is_word
    is_kept = is_kept | ~is_kept.any(dim=1, keepdim=True) | ~is_word
    dropped_position = is_kept.sum(dim=1, keepdim=True) + (~is_kept).cumsum(1)
    position = torch.where(is_kept, is_kept.cumsum(1), dropped_position) - 1  # each token its own, so that the order of writes is free
    return torch.empty_like(ids).scatter(1, position, ids.masked_fill(~is_kept, vocabulary.pad_id))


def mask_spans(ids: Tensor, fraction: float, generator: Generator, vocabulary: Vocabulary, span: int) -> Tensor:
    """Each text with a share of its words hidden in spans, which may overlap and be cut by either end.

    A word is hidden if it or one of the span − 1 before it starts a span: 1 − (1 − p)^span = share. Spans also start
    before the text, so that this holds for its first words.
    """
    if span < 1:
        raise InputError(f"a hidden span has at least one word, not {span}; use span=1 to hide words one by one")
    ids = ids.long()
    is_word, _, word_index = find_words(ids, vocabulary.is_special, vocabulary.is_continuation)
    size = (len(ids), ids.shape[1] + span - 1)
    is_start = sample_uniform(size, generator) < 1 - (1 - fraction) ** (1 / span)
    start_counts = F.pad(is_start.cumsum(1), (1, 0))
    is_hidden = start_counts[:, span:] > start_counts[:, :-span]  # by word
    return ids.masked_fill(is_hidden.gather(1, word_index) & is_word, vocabulary.mask_id)
