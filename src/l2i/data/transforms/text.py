"""Perturbations T_η of texts as token ids, batched, with every random choice from the generator.

Nothing waits for the device, and no shape depends on the content, so that steps can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.distributed import sample_integers, sample_uniform
from l2i.errors import InputError

COUNT_CHUNK = 4096  # texts counted at a time
SCORE_TOLERANCE = 1e-9  # relative difference of scores that is rounding


class Vocabulary(NamedTuple):
    """What perturbations need to know about a vocabulary of V tokens and the corpus."""

    pad_id: int
    is_special: Tensor  # [V] bool, not words: padding, start, end, mask, unknown
    is_continuation: Tensor  # [V] bool, pieces that continue the word before them
    idf: Tensor  # [V] float32, log(documents / max(1, documents with the token))
    replacement_cdf: Tensor  # [V] float64, of the distribution that replacements are drawn from

    def to(self, device: torch.device) -> Vocabulary:
        tensors = (self.is_special, self.is_continuation, self.idf, self.replacement_cdf)
        return Vocabulary(self.pad_id, *(tensor.to(device) for tensor in tensors))

    @property
    def size(self) -> int:
        return len(self.is_special)


@dataclass(frozen=True, kw_only=True)
class TokenAugment:
    """Configure the augmentations of a text, applied in this order.

    The defaults leave texts unchanged.
    """

    paraphrase: float = 0.0
    """Probability of replacing a text by one of its back-translations, if it has any."""
    replace: float = 0.0
    """Fraction of words to replace by uninformative ones (low TF-IDF, as in UDA), except in
    back-translations."""

    def __call__(self, versions: Tensor, generator: Generator, vocabulary: Vocabulary) -> Tensor:
        """Perturb ids [B, L] or, with the back-translations of each text, [B, versions, L]."""
        versions = versions if versions.ndim == 3 else versions.unsqueeze(1)
        ids = versions[:, 0].long()
        if self.paraphrase:
            ids = sample_paraphrases(versions, self.paraphrase, generator)
        if self.replace:
            translated = (ids != versions[:, 0]).any(dim=1, keepdim=True)
            replaced = replace_words(ids, self.replace, generator, vocabulary)
            ids = torch.where(translated, ids, replaced)
        return ids


def _find_words(ids: Tensor, is_special: Tensor, is_continuation: Tensor) -> tuple[Tensor, Tensor]:
    """Return which tokens [B, L] are words or pieces of words, and which are whole words."""
    is_word = ~is_special[ids]
    is_piece = is_word & is_continuation[ids]
    return is_word, is_word & ~is_piece & ~F.pad(is_piece[:, 1:], (0, 1))


def build_vocabulary(
    ids: Tensor, *, pad_id: int, is_special: Tensor, is_continuation: Tensor
) -> Vocabulary:
    """Compute the statistics of texts that word replacement needs (Xie et al., 2020, appendix).

    A replacement w is drawn with a probability proportional to max S − S(w), where S(w) is the sum
    of w's TF-IDF over all texts. Only words that occur as a single token are drawn.

    Args:
        ids: Token ids of the texts, [N, L].
        pad_id: Id of the padding token.
        is_special: Mask of tokens that are not words, [V].
        is_continuation: Mask of tokens that continue the word before them, [V].

    Returns:
        The vocabulary, for `Splits.from_arrays`.

    """
    documents, frequency, is_whole_word = _count_tokens(ids, is_special, is_continuation)
    if not is_whole_word.any():
        fix = "check the texts, and the tokenizer's special tokens"
        raise InputError(f"the texts contain no words; {fix}")
    idf = (len(ids) / documents.clamp(min=1).double()).log()
    score = idf * frequency
    max_score = score[is_whole_word].max()
    weight = (max_score - score).where(is_whole_word, 0)
    weight = weight if weight.max() > SCORE_TOLERANCE * max_score else is_whole_word.double()
    cumulative = weight.cumsum(0)
    return Vocabulary(pad_id, is_special, is_continuation, idf.float(), cumulative / cumulative[-1])


def _count_tokens(
    ids: Tensor, is_special: Tensor, is_continuation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Count each token's documents, sum its frequencies in them, and mark single-token words."""
    size = len(is_special)
    documents, whole_word_counts = torch.zeros(2, size, dtype=torch.long, device=ids.device)
    frequency = torch.zeros(size, dtype=torch.float64, device=ids.device)
    for rows in ids.split(COUNT_CHUNK):
        ordered = rows.sort(dim=1).values
        is_first = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
        documents += ordered[is_first].bincount(minlength=size)
        is_word, is_whole_word = _find_words(rows.long(), is_special, is_continuation)
        weight = 1 / is_word.sum(dim=1, keepdim=True).clamp(min=1).double()
        frequency += rows.flatten().bincount(weight.expand(rows.shape).flatten(), minlength=size)
        whole_word_counts += rows[is_whole_word].bincount(minlength=size)
    return documents, frequency, whole_word_counts > 0


def sample_paraphrases(versions: Tensor, probability: float, generator: Generator) -> Tensor:
    """Take the first of a text's versions [B, versions, L], or with `probability` another."""
    batch, count, length = versions.shape
    if count == 1:
        return versions[:, 0].long()
    is_swapped = sample_uniform((batch,), generator) < probability
    other = 1 + sample_integers(count - 1, (batch,), generator)
    index = (is_swapped * other).view(-1, 1, 1).expand(-1, 1, length)
    return versions.gather(1, index).squeeze(1).long()


def replace_words(
    ids: Tensor, fraction: float, generator: Generator, vocabulary: Vocabulary
) -> Tensor:
    """Replace about a fraction of each text's words, mostly uninformative, by uninformative ones.

    Words of several pieces stay: being rare, they would hardly ever be replaced.
    """
    ids = ids.long()
    probability = compute_replace_probs(ids, fraction, vocabulary)
    is_replaced = sample_uniform(ids.shape, generator) < probability
    quantile = sample_uniform(ids.shape, generator, dtype=torch.float64)
    replacement = torch.searchsorted(vocabulary.replacement_cdf, quantile, right=True)
    return torch.where(is_replaced, replacement, ids)


def compute_replace_probs(ids: Tensor, fraction: float, vocabulary: Vocabulary) -> Tensor:
    """Compute min(fraction (C − TFIDF) / Z, 1), with C the text's maximum and Z the mean gap."""
    is_word, is_whole_word = _find_words(ids, vocabulary.is_special, vocabulary.is_continuation)
    count = (ids.unsqueeze(2) == ids.unsqueeze(1)).sum(dim=2)
    # times the text's number of words, which cancels in gap / mean
    tfidf = (count * vocabulary.idf[ids]).masked_fill(~is_word, 0)
    gap = (tfidf.amax(dim=1, keepdim=True) - tfidf).masked_fill(~is_word, 0)
    mean = gap.sum(dim=1, keepdim=True) / is_word.sum(dim=1, keepdim=True).clamp(min=1)
    ratio = gap / mean.clamp(min=torch.finfo(gap.dtype).tiny)  # 0 if all are equal
    return (fraction * ratio).clamp(max=1).masked_fill(~is_whole_word, 0)
