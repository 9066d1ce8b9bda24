from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from l2i.data import tokenization as module
from l2i.data.datasets.imdb import TextSet
from l2i.data.tokenization import Text, Tokenizer, tokenize_dataset
from l2i.errors import InputError
from l2i.models.huggingface import load_tokenizer
from tiny_encoder import GOOD, reviews, tiny_encoder

LONG = "it was a great film and the plot is witty but the ending was dull"


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("L2I_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return tiny_encoder(tmp_path / "tiny", [LONG], width=16)


def texts() -> list[str]:
    return [text for text, _ in reviews(30)] + [
        "great",
        "Films, walked; unheard-of ünïcödé 🎬",
        " spaced  out\ttext\n",
    ]


def some(**changed: object) -> TextSet:
    train, test, more = ([text for text, _ in reviews(n, seed)] for seed, n in enumerate((6, 4, 5)))
    names = [f"pos_{i}_9.txt" for i in range(6)] + [f"unsup_{i}_0.txt" for i in range(5)]
    y, test_y = [0, 1] * 3, [0, 1] * 2
    made = TextSet(
        train=train, y=y, unlabeled=more, test=test, test_y=test_y, classes=2, names=names
    )
    return replace(made, **changed)


@pytest.mark.parametrize("keep", ["end", "start"])
@pytest.mark.parametrize("length", [3, 8, 16, 64])
def test_ids_are_those_of_transformers(tiny: str, keep: str, length: int) -> None:
    theirs = load_tokenizer(tiny)
    theirs.truncation_side = "left" if keep == "end" else "right"
    wanted = theirs(
        texts(), truncation=True, padding="max_length", max_length=length, return_tensors="pt"
    ).input_ids
    actual = Tokenizer(tiny, Text(length=length, keep_side=keep))(texts())
    assert actual.dtype == torch.int32
    assert torch.equal(actual.long(), wanted)


@pytest.mark.parametrize(
    ("keep", "saved"), [("end", "the ending was dull"), ("start", "it was a great")]
)
def test_of_longer_texts_the_asked_part_is_kept(tiny: str, keep: str, saved: str) -> None:
    ids = Tokenizer(tiny, Text(length=6, keep_side=keep))([LONG])[0]
    assert load_tokenizer(tiny).decode(ids) == f"[CLS] {saved} [SEP]"


def test_a_length_without_room_for_words_is_refused(tiny: str) -> None:
    assert Tokenizer(tiny, Text(length=3))(["great"]).shape == (1, 3)
    with pytest.raises(
        InputError, match=r"data\.text\.length=2 leaves no room for words; use at least 3"
    ):
        Tokenizer(tiny, Text(length=2))


def test_chunks_keep_the_order_and_are_told(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Tokenizer(tiny, Text(length=16))(texts())
    monkeypatch.setattr(module, "TOKENIZE_CHUNK", 7)
    printed: list[str] = []
    assert torch.equal(Tokenizer(tiny, Text(length=16))(texts(), printed.append), whole)
    assert printed == [f"tokenised {done} of 33 texts" for done in (7, 14, 21, 28, 33)]


def test_special_tokens_are_no_words(tiny: str) -> None:
    tokenizer, theirs = Tokenizer(tiny, Text(length=16)), load_tokenizer(tiny)
    assert {int(i) for i in tokenizer.is_special.nonzero()} == {*theirs.all_special_ids}
    assert tokenizer.pad_id == theirs.pad_token_id
    assert len(tokenizer.is_special) == len(theirs)


def trained(folder: Path, kind: str, **changed: object) -> str:
    """A BPE trained on the reviews, like RoBERTa's (byte-level) or SentencePiece's (metaspace)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import BertConfig, PreTrainedTokenizerFast

    fast = Tokenizer(models.BPE(unk_token="<unk>"))
    made = {
        "bytes": (pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()),
        "pieces": (pre_tokenizers.Metaspace(), decoders.Metaspace()),
    }
    fast.pre_tokenizer, fast.decoder = made[kind]
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=[*special, "##", "####"], show_progress=False
    )
    fast.train_from_iterator([text for text, _ in reviews(30)], trainer)
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"} | changed
    PreTrainedTokenizerFast(tokenizer_object=fast, **names).save_pretrained(folder)
    BertConfig(vocab_size=200, pad_token_id=1).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_pieces_that_go_on_with_a_word_are_known_by_the_marks_of_words(
    tmp_path: Path, kind: str
) -> None:
    tokenizer = Tokenizer(trained(tmp_path, kind), Text(length=32))
    text = "the unbelievable film endings"
    ids = tokenizer([text])[0]
    ids = ids[ids != tokenizer.pad_id]
    assert len(ids) > 4
    assert int((~tokenizer.is_continuation[ids]).sum()) == 4
    starts = torch.tensor([tokenizer.backend.id_to_token(int(i))[0] in "Ġ▁" for i in ids])
    assert torch.equal(starts, ~tokenizer.is_continuation[ids])
    assert not (tokenizer.is_continuation & tokenizer.is_special).any()


def test_pieces_that_go_on_with_a_word_are_known_by_their_own_marks(tiny: str) -> None:
    tokenizer = Tokenizer(tiny, Text(length=16))
    marked = {tokenizer.backend.id_to_token(int(i)) for i in tokenizer.is_continuation.nonzero()}
    assert marked == {"##s", "##ed", "##ing"}


def test_a_tokenizer_without_padding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no padding token; use an encoder such as BERT"):
        Tokenizer(trained(tmp_path, "bytes", pad_token=None), Text())


def test_a_tokenizer_of_another_network_is_refused(tiny: str, tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig(vocab_size=9).save_pretrained(tiny)
    with pytest.raises(
        InputError, match="tokens, but its network only 9; use the tokenizer of the network"
    ):
        Tokenizer(tiny, Text())
    BertConfig(pad_token_id=7).save_pretrained(tiny)
    with pytest.raises(
        InputError, match=r"pads with 0, but its config\.json has pad_token_id=7; set that to 0, or"
    ):
        Tokenizer(tiny, Text())


def test_spoilt_tokenizers_say_what_to_do(tiny: str) -> None:
    Path(tiny, "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"cannot be read \(.*\); check that it is complete"):
        Tokenizer(tiny, Text())
    for path in Path(tiny).glob("tokenizer*"):
        path.unlink()
    with pytest.raises(
        InputError, match=r"has no tokenizer \(tokenizer.json or vocab.txt\); use a complete folder"
    ):
        Tokenizer(tiny, Text())
    Path(tiny, "config.json").write_text('{"model_type": "canine"}')
    Path(tiny, "tokenizer_config.json").write_text('{"tokenizer_class": "CanineTokenizer"}')
    Path(tiny, "vocab.json").write_text("{}")
    with pytest.raises(InputError, match="has no fast tokenizer; save one there"):
        Tokenizer(tiny, Text())


def test_sets_are_made_of_the_texts_ids(tiny: str) -> None:
    text, actual = Text(length=12), some()
    made, tokenizer = tokenize_dataset(actual, tiny, text), Tokenizer(tiny, text)
    for samples, texts_of in (
        (made.train, actual.train),
        (made.unlabeled, actual.unlabeled),
        (made.test, actual.test),
    ):
        assert samples.x.shape == (len(texts_of), 1, 12)
        assert torch.equal(samples.x[:, 0], tokenizer(texts_of))
    assert (made.train.y.tolist(), made.test.y.tolist(), made.classes) == (
        actual.y,
        actual.test_y,
        2,
    )
    assert made.unlabeled.y.tolist() == [-1] * 5
    assert (
        tokenize_dataset(some(unlabeled=[], names=actual.names[:6]), tiny, text).unlabeled is None
    )
    own = tokenizer([*actual.train, *actual.unlabeled])
    for a, b in zip(made.vocabulary, tokenizer.make_vocabulary(own), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def write_paraphrases(folder: Path, actual: TextSet, rows: list[int], files: int) -> str:
    """UDA's layout: back-translations of some texts, each its text with other first words."""
    folder.mkdir()
    every = [*actual.train, *actual.unlabeled]
    lines = [f"{every[i]}\tpos\t{actual.names[i]}" for i in rows]
    (folder / "train.csv").write_text("\n".join(["content\tlabel\tid", *lines]) + "\n")
    for k in range(files):
        (folder / f"para_{k}.txt").write_text("".join(f"{GOOD[k]} {every[i]}\n" for i in rows))
    return str(folder)


def test_back_translations_are_further_versions_and_texts_without_fill_up(
    tiny: str, tmp_path: Path
) -> None:
    actual, rows = some(), [1, 4, 8]
    text = Text(length=40, paraphrases=write_paraphrases(tmp_path / "para", actual, rows, 2))
    made, tokenizer = tokenize_dataset(actual, tiny, text), Tokenizer(tiny, text)
    versions = torch.cat([made.train.x, made.unlabeled.x])
    assert versions.shape == (11, 3, 40)
    assert made.test.x.shape == (4, 1, 40)
    for i, one in enumerate([*actual.train, *actual.unlabeled]):
        wanted = [one, *(f"{GOOD[k]} {one}" if i in rows else one for k in range(2))]
        assert torch.equal(versions[i], tokenizer(wanted))
    with pytest.raises(InputError, match="an id is '0' here, but 'pos_1_9"):
        tokenize_dataset(some(names=[str(i) for i in range(11)]), tiny, text)


@pytest.mark.parametrize("part", ["train", "unlabeled", "test"])
@pytest.mark.parametrize("wrong", [3, None, b"film", "", "  "])
def test_texts_that_are_none_are_told_with_their_place(tiny: str, part: str, wrong: object) -> None:
    actual = some()
    texts_of = [*getattr(actual, part)[:2], wrong, *getattr(actual, part)[3:]]
    with pytest.raises(InputError, match=r"text 3 of .* is (an? \w+, not a string|empty)"):
        tokenize_dataset(replace(actual, **{part: texts_of}), tiny, Text(length=12))


def ids_of(tiny: str, **changed: object) -> Tensor:
    text = Text(**({"length": 12} | changed))
    return module.encode_with_cache(Tokenizer(tiny, text), texts(), lambda line: None)


def test_ids_are_read_from_the_cache_when_they_are_there(tiny: str, cache: Path) -> None:
    first = ids_of(tiny)
    (path,) = cache.iterdir()
    save_file({"ids": load_file(path)["ids"] + 1}, path)
    assert torch.equal(ids_of(tiny), first + 1)


def test_what_ids_depend_on_has_a_file_of_its_own(tiny: str, cache: Path, tmp_path: Path) -> None:
    ids_of(tiny), ids_of(tiny, length=13), ids_of(tiny, keep_side="start")
    ids_of(tiny_encoder(tmp_path / "other", ["words"], width=16))
    module.encode_with_cache(Tokenizer(tiny, Text(length=12)), texts()[::-1], lambda line: None)
    module.encode_with_cache(
        Tokenizer(tiny, Text(length=12)), ["".join(texts()[:2]), *texts()[2:]], lambda line: None
    )
    assert len(list(cache.iterdir())) == 6


DAMAGE: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(path.read_bytes()[:-5]),
    lambda path: path.write_bytes(b"x" * 100),
    lambda path: save_file({"other": torch.zeros(2)}, path),
    lambda path: save_file({"ids": torch.zeros(2, 12, dtype=torch.int32)}, path),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_made_anew(
    tiny: str, cache: Path, damage: Callable[[Path], object]
) -> None:
    first = ids_of(tiny)
    (path,) = cache.iterdir()
    damage(path)
    assert torch.equal(ids_of(tiny), first)
    assert torch.equal(load_file(path)["ids"], first)


def test_a_cache_that_cannot_be_written_is_done_without(tiny: str, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert torch.equal(ids_of(tiny), Tokenizer(tiny, Text(length=12))(texts()))
    assert cache.is_file()
