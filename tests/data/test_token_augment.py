from collections import Counter
from collections.abc import Callable
from math import log

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from l2i.data.transforms.text import (
    TokenAugment,
    Vocabulary,
    build_vocabulary,
    compute_replace_probs,
    replace_words,
    sample_paraphrases,
)
from l2i.errors import InputError

PAD, START, END, MASK, UNKNOWN = range(5)
SIZE = 24  # specials to 4, words to 17, pieces from 18
SPECIAL = torch.arange(SIZE) < 5
CONTINUES = torch.arange(SIZE) >= 18
EVERYTHING = TokenAugment(paraphrase=0.5, replace=0.3)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def texts(count: int = 300, length: int = 20) -> Tensor:
    """Texts of all lengths, of common, rare and unknown words; a piece always follows 17."""
    g = generator(1)
    rare = torch.rand(count, length, generator=g) ** 2
    ids = (4 + rare * (SIZE - 4)).long()
    size = torch.randint(3, length + 1, (count, 1), generator=g)
    at = torch.arange(length)
    ids = ids.masked_fill(at == size - 1, END).masked_fill(at >= size, PAD)
    ids[:, 0] = START
    return ids.masked_fill((ids == 17) & (ids.roll(-1, 1) < 18), 6)


def known(ids: Tensor) -> Vocabulary:
    return build_vocabulary(ids, pad_id=PAD, is_special=SPECIAL, is_continuation=CONTINUES)


TEXTS = texts()
TOKENS = known(TEXTS)


def whole(text: list[int], i: int) -> bool:
    return 5 <= text[i] < 18 and (i + 1 == len(text) or text[i + 1] < 18)


def statistics(corpus: list[list[int]]) -> tuple[list[float], list[float]]:
    """IDF of all tokens and the probabilities of replacements, by the formulas."""
    documents = Counter(token for text in corpus for token in set(text))
    idf = [log(len(corpus) / max(documents[token], 1)) for token in range(SIZE)]
    score = [0.0] * SIZE
    for text in corpus:
        content = [token for token in text if token >= 5]
        for token, count in Counter(content).items():
            score[token] += count / len(content) * idf[token]
    single = {text[i] for text in corpus for i in range(len(text)) if whole(text, i)}
    top = max(score[token] for token in single)
    weight = [top - score[token] if token in single else 0.0 for token in range(SIZE)]
    return idf, [w / sum(weight) for w in weight]


def chances(text: list[int], share: float, idf: list[float]) -> list[float]:
    """The probability that each token of a text is replaced, by UDA's formula."""
    content = [token for token in text if token >= 5]
    tfidf = {token: count / len(content) * idf[token] for token, count in Counter(content).items()}
    top = max(tfidf.values(), default=0.0)
    mean = sum(top - tfidf[token] for token in content) / max(len(content), 1)
    if mean == 0:
        return [0.0] * len(text)
    return [
        min(share * (top - tfidf[token]) / mean, 1) if whole(text, i) else 0.0
        for i, token in enumerate(text)
    ]


def test_statistics_of_a_corpus_are_those_of_the_formulas() -> None:
    idf, probability = statistics(TEXTS.tolist())
    assert (
        TOKENS.size == SIZE
        and TOKENS.idf.dtype == torch.float32
        and TOKENS.replacement_cdf.dtype == torch.float64
    )
    torch.testing.assert_close(
        TOKENS.idf.double(), torch.tensor(idf, dtype=torch.float64), rtol=1e-6, atol=1e-6
    )
    likely = TOKENS.replacement_cdf.diff(prepend=torch.zeros(1))
    torch.testing.assert_close(
        likely, torch.tensor(probability, dtype=torch.float64), rtol=1e-9, atol=1e-12
    )
    assert (
        TOKENS.replacement_cdf[-1] == 1
        and MASK not in TEXTS
        and TOKENS.idf[MASK] == pytest.approx(log(len(TEXTS)))
    )
    assert (17 in TEXTS) and (TEXTS >= 18).any()
    assert likely[17] == 0 and not likely[SPECIAL | CONTINUES].any()


def test_statistics_do_not_depend_on_how_many_texts_are_counted_at_once() -> None:
    many = known(TEXTS.repeat(20, 1).int())
    recorded = torch.arange(SIZE) != MASK
    torch.testing.assert_close(many.idf[recorded], TOKENS.idf[recorded])
    torch.testing.assert_close(many.replacement_cdf, TOKENS.replacement_cdf)


def test_words_that_tell_nothing_apart_are_as_likely() -> None:
    for corpus in (
        [[START, 5, 6, 7, END]],
        [[START, 5, END, PAD, PAD]],
        [[5, 6, 7], [6, 7, 5], [7, 5, 6]],
    ):
        likely = known(torch.tensor(corpus)).replacement_cdf.diff(prepend=torch.zeros(1))
        held = torch.tensor([t for t in set(corpus[0]) if t >= 5])
        torch.testing.assert_close(
            likely[held], torch.full((len(held),), 1 / len(held), dtype=torch.float64)
        )


@pytest.mark.parametrize(
    "corpus", [torch.tensor([[START, UNKNOWN, END, PAD]]), torch.zeros(0, 4, dtype=torch.int32)]
)
def test_a_corpus_without_words_says_so(corpus: Tensor) -> None:
    with pytest.raises(InputError, match="the texts contain no words"):
        known(corpus)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_words_are_replaced_with_the_probability_of_the_formula(share: float) -> None:
    idf, _ = statistics(TEXTS.tolist())
    expected = torch.tensor([chances(text, share, idf) for text in TEXTS.tolist()])
    torch.testing.assert_close(
        compute_replace_probs(TEXTS, share, TOKENS), expected, rtol=1e-4, atol=1e-5
    )


def test_observed_replacements_are_as_frequent_as_the_formula_says() -> None:
    idf, probability = statistics(TEXTS.tolist())
    text = [START, 5, 6, 5, 10, 18, 12, UNKNOWN, 8, 17, 20, 9, END, PAD]
    draws = 50_000
    recorded = replace_words(torch.tensor([text]).repeat(draws, 1), 0.4, generator(), TOKENS)
    observed = torch.nn.functional.one_hot(recorded, SIZE).double().mean(dim=0)  # [L, V]
    chance = torch.tensor(chances(text, 0.4, idf), dtype=torch.float64).unsqueeze(1)
    saved = torch.nn.functional.one_hot(torch.tensor(text), SIZE)
    expected = chance * torch.tensor(probability, dtype=torch.float64) + (1 - chance) * saved
    error = (expected * (1 - expected) / draws).sqrt()
    assert ((observed - expected).abs() <= 5 * error + 1e-6).all()
    assert chance.max() > 0 and (recorded[:, 5] == 18).all() and (recorded[:, 4] == 10).all()


def test_replacing_changes_whole_words_only_and_brings_in_only_such() -> None:
    view = replace_words(TEXTS, 0.9, generator(), TOKENS)
    changed = view != TEXTS
    rows = TEXTS.tolist()
    single = torch.tensor([[whole(text, i) for i in range(len(text))] for text in rows])
    assert changed.any() and not (changed & ~single).any()
    assert not (SPECIAL | CONTINUES)[view[changed]].any() and not (view[changed] == 17).any()


def test_texts_whose_words_are_alike_have_none_replaced() -> None:
    alike = torch.tensor([[START, 7, END, PAD], [START, END, PAD, PAD], [PAD] * 4, [7, 7, 7, 7]])
    assert torch.equal(replace_words(alike, 1.0, generator(), TOKENS), alike)


def test_a_share_of_the_texts_is_replaced_by_any_of_their_versions() -> None:
    versions = torch.arange(4).view(1, 4, 1).expand(20_000, 4, 3).int()
    view = sample_paraphrases(versions, 0.6, generator())
    assert view.shape == (20_000, 3) and (view == view[:, :1]).all()
    observed = view[:, 0].bincount(minlength=4).double() / 20_000
    assert (observed - torch.tensor([0.4, 0.2, 0.2, 0.2])).abs().max() < 5 * (0.25 / 20_000) ** 0.5
    assert (
        not sample_paraphrases(versions, 0.0, generator()).any()
        and sample_paraphrases(versions, 1.0, generator()).all()
    )


def test_defaults_take_the_original_as_it_is_and_so_does_a_text_without_others() -> None:
    assert torch.equal(
        TokenAugment()(torch.stack([TEXTS, TEXTS.flip(0)], dim=1), generator(), TOKENS), TEXTS
    )
    assert torch.equal(TokenAugment()(TEXTS, generator(), TOKENS), TEXTS)
    assert torch.equal(TokenAugment(paraphrase=1.0)(TEXTS, generator(), TOKENS), TEXTS)


Perturbation = Callable[[Tensor, float, torch.Generator], Tensor]
EACH: dict[str, Perturbation] = {
    "replaced": lambda ids, share, g: replace_words(ids, share, g, TOKENS)
}


@pytest.mark.parametrize("name", EACH)
def test_a_share_of_0_leaves_texts_as_they_are_and_draws_as_much(name: str) -> None:
    none, some = generator(), generator()
    assert torch.equal(EACH[name](TEXTS, 0.0, none), TEXTS)
    assert not torch.equal(EACH[name](TEXTS, 0.5, some), TEXTS)
    assert torch.equal(none.get_state(), some.get_state())


@pytest.mark.parametrize("name", EACH)
def test_texts_of_one_word_of_specials_alone_and_without_padding_survive(name: str) -> None:
    odd = torch.tensor(
        [[START, 7, END, PAD], [START, END, PAD, PAD], [PAD] * 4, [5, 6, 7, 8], [18, 18, 5, 19]]
    )
    for share in (0.3, 1.0):
        view = EACH[name](odd.int(), share, generator())
        assert view.shape == odd.shape and view.dtype == torch.int64
        assert torch.equal(view[1:3], odd[1:3]) and (view[0, [0, 2, 3]] == odd[0, [0, 2, 3]]).all()
        assert int(view.min()) >= 0 and int(view.max()) < SIZE
    one = EACH[name](odd[:, :1], 0.5, generator())
    assert one.shape == (5, 1)


def test_the_same_generator_gives_the_same_texts() -> None:
    versions = torch.stack([TEXTS, TEXTS.flip(0)], dim=1)
    first, again, other = (EVERYTHING(versions, generator(seed), TOKENS) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.dtype == torch.int64 and torch.equal(
        first, EVERYTHING(versions.int(), generator(), TOKENS)
    )


def test_the_parts_of_a_perturbation_come_in_their_order() -> None:
    versions, g = torch.stack([TEXTS, TEXTS.flip(0)], dim=1), generator()
    ids = sample_paraphrases(versions, 0.5, g)
    own = (ids == versions[:, 0]).all(
        dim=1, keepdim=True
    )  # words of a back-translation are not replaced
    ids = torch.where(own, replace_words(ids, 0.3, g, TOKENS), ids)
    assert torch.equal(EVERYTHING(versions, generator(), TOKENS), ids)


def test_neither_shapes_nor_steps_depend_on_what_the_texts_say() -> None:
    """Tensors without values are enough: whatever waits for a value or a count is refused."""
    mode = FakeTensorMode()
    versions = mode.from_tensor(torch.stack([TEXTS, TEXTS.flip(0)], dim=1))
    tokens = Vocabulary(PAD, *(mode.from_tensor(part) for part in TOKENS[1:]))
    with mode:
        view = EVERYTHING(versions, generator(), tokens)
    assert view.shape == TEXTS.shape and view.dtype == torch.int64


def test_what_is_known_of_tokens_moves_to_a_device() -> None:
    moved = TOKENS.to(torch.device("meta"))
    assert moved[0] == PAD and all(part.is_meta for part in moved[1:])
