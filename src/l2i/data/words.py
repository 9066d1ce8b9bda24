"""Perturbations T_η of texts given as token ids: batched, on the data's device, every random choice from the generator.

Nothing here waits for the device or has a shape that depends on what a text says, so that a step can be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from l2i.data.chance import below, uniform
from l2i.errors import InputError

ROWS = 4096  # texts that are counted at once
EQUAL = 1e-9  # scores that differ by a smaller part than this differ by rounding


class Tokens(NamedTuple):
    """What perturbations have to know of a vocabulary of V tokens, and of the corpus."""

    pad: int
    mask: int  # the token that stands for a hidden word
    special: Tensor  # [V] bool, tokens that are no words: padding, start, end, mask, unknown
    continues: Tensor  # [V] bool, pieces that go on with the word before them
    idf: Tensor  # [V] float32, log(documents / documents with the token); log(documents) for a token of none
    common: Tensor  # [V] float64, cumulative and ending at 1: how likely a token is as a replacement

    def to(self, device: torch.device) -> Tokens:
        tensors = (self.special, self.continues, self.idf, self.common)
        return Tokens(self.pad, self.mask, *(tensor.to(device) for tensor in tensors))

    @property
    def size(self) -> int:
        return len(self.special)


@dataclass(frozen=True, kw_only=True)
class Words:
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

    def __call__(self, versions: Tensor, generator: Generator, tokens: Tokens) -> Tensor:
        """The perturbed texts [B, L], of token ids [B, L] or, with the back-translations of each, [B, versions, L]."""
        versions = versions if versions.ndim == 3 else versions.unsqueeze(1)
        ids = paraphrased(versions, self.paraphrase, generator) if self.paraphrase else versions[:, 0].long()
        if self.replace:
            translated = (ids != versions[:, 0]).any(dim=1, keepdim=True)
            ids = torch.where(translated, ids, replaced(ids, self.replace, generator, tokens))
        ids = dropped(ids, self.drop, generator, tokens) if self.drop else ids
        return masked(ids, self.mask, generator, tokens, self.span) if self.mask else ids


class Parts(NamedTuple):
    """What the tokens of texts are parts of, each [B, L]."""

    word: Tensor  # whether a token is a word or a piece of one
    whole: Tensor  # whether it is a word by itself
    number: Tensor  # which of its text's words it is of, from 0; of no meaning where it is of none


def parts(ids: Tensor, special: Tensor, continues: Tensor) -> Parts:
    """Where words start and end; a piece that has no word before it starts one."""
    word = ~special[ids]
    piece = word & continues[ids]
    starts = word & ~(piece & F.pad(word[:, :-1], (1, 0)))
    whole = word & ~piece & ~F.pad(piece[:, 1:], (0, 1))
    return Parts(word, whole, (starts.cumsum(1) - 1).clamp(min=0))


def tokens_of(ids: Tensor, *, pad: int, mask: int, special: Tensor, continues: Tensor) -> Tokens:
    """The statistics of a corpus of texts [N, L] (Xie et al., 2020, appendix), taking each token for a word.

    A replacement w is drawn in proportion to max S − S(w), S(w) the sum of w's TF-IDF over all texts, among the words
    that are somewhere one token.
    """
    documents, frequency, whole = _counts(ids, special, continues)
    if not whole.any():
        raise InputError("the texts hold no words; check the tokenizer's special tokens, or give other texts")
    idf = (len(ids) / documents.clamp(min=1).double()).log()
    score = idf * frequency
    top = score[whole].max()
    weight = (top - score).where(whole, 0)
    weight = weight if weight.max() > EQUAL * top else whole.double()
    common = weight.cumsum(0)
    return Tokens(pad, mask, special, continues, idf.float(), common / common[-1])


def _counts(ids: Tensor, special: Tensor, continues: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each token its documents, its shares of their words, summed, and whether it is somewhere a whole word."""
    size = len(special)
    documents, found = torch.zeros(2, size, dtype=torch.long, device=ids.device)
    frequency = torch.zeros(size, dtype=torch.float64, device=ids.device)
    for rows in ids.split(ROWS):
        ordered = rows.sort(dim=1).values
        first = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True)
        documents += ordered[first].bincount(minlength=size)
        word, whole, _ = parts(rows.long(), special, continues)
        share = 1 / word.sum(dim=1, keepdim=True).clamp(min=1).double()
        frequency += rows.flatten().bincount(share.expand(rows.shape).flatten(), minlength=size)
        found += rows[whole].bincount(minlength=size)
    return documents, frequency, found > 0


def paraphrased(versions: Tensor, share: float, generator: Generator) -> Tensor:
    """Each text, the first of its versions [B, versions, L], or with probability `share` one of the others."""
    batch, count, length = versions.shape
    if count == 1:
        return versions[:, 0].long()
    taken = uniform((batch,), generator) < share
    other = 1 + below(count - 1, (batch,), generator)
    index = (taken * other).view(-1, 1, 1).expand(-1, 1, length)
    return versions.gather(1, index).squeeze(1).long()


def replaced(ids: Tensor, share: float, generator: Generator, tokens: Tokens) -> Tensor:
    """Each text with about a share of its words replaced by ones that say little, mostly those that say little.

    A word of several pieces stays: it is rare, so that its TF-IDF is high, and it would hardly ever be replaced.
    """
    ids = ids.long()
    probability = replacement(ids, share, tokens)
    chosen = uniform(ids.shape, generator) < probability
    place = uniform(ids.shape, generator, dtype=torch.float64)
    return torch.where(chosen, torch.searchsorted(tokens.common, place, right=True), ids)


def replacement(ids: Tensor, share: float, tokens: Tokens) -> Tensor:
    """The probability min(share (C − TFIDF) / Z, 1) that a token is replaced, C the text's maximum, Z the mean gap."""
    word, whole, _ = parts(ids, tokens.special, tokens.continues)
    count = (ids.unsqueeze(2) == ids.unsqueeze(1)).sum(dim=2)
    tfidf = (count * tokens.idf[ids]).masked_fill(~word, 0)  # times the text's words, which gap / mean leaves out
    gap = (tfidf.amax(dim=1, keepdim=True) - tfidf).masked_fill(~word, 0)
    mean = gap.sum(dim=1, keepdim=True) / word.sum(dim=1, keepdim=True).clamp(min=1)
    ratio = gap / mean.clamp(min=torch.finfo(gap.dtype).tiny)  # 0 where all are alike
    return (share * ratio).clamp(max=1).masked_fill(~whole, 0)


def dropped(ids: Tensor, share: float, generator: Generator, tokens: Tokens) -> Tensor:
    """Each text without a share of its words, closed up; one that would lose all of them keeps them."""
    ids = ids.long()
    word, _, number = parts(ids, tokens.special, tokens.continues)
    stays = uniform(ids.shape, generator) >= share  # by word
    stays = stays.gather(1, number) & word
    stays = stays | ~stays.any(dim=1, keepdim=True) | ~word
    behind = stays.sum(dim=1, keepdim=True) + (~stays).cumsum(1)
    place = torch.where(stays, stays.cumsum(1), behind) - 1  # each token its own, so that the order of writes is free
    return torch.empty_like(ids).scatter(1, place, ids.masked_fill(~stays, tokens.pad))


def masked(ids: Tensor, share: float, generator: Generator, tokens: Tokens, span: int) -> Tensor:
    """Each text with a share of its words hidden in spans, which may overlap and be cut by either end.

    A word is hidden if it or one of the span − 1 before it starts a span: 1 − (1 − p)^span = share. Spans also start
    before the text, so that this holds for its first words.
    """
    if span < 1:
        raise InputError(f"a hidden span has at least one word, not {span}; use span=1 to hide words one by one")
    ids = ids.long()
    word, _, number = parts(ids, tokens.special, tokens.continues)
    size = (len(ids), ids.shape[1] + span - 1)
    starts = uniform(size, generator) < 1 - (1 - share) ** (1 / span)
    begun = F.pad(starts.cumsum(1), (1, 0))
    hidden = begun[:, span:] > begun[:, :-span]  # by word
    return ids.masked_fill(hidden.gather(1, number) & word, tokens.mask)
