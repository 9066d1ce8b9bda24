import dataclasses
from typing import Any

import numpy as np
import pytest

from l2i.data.datasets.imdb import TextSet, check_texts, clean_web_text
from l2i.errors import InputError


def test_texts_with_something_in_them_come_back_as_they_are() -> None:
    texts = (" good ", "bad", "ça\n", ".")
    assert check_texts(texts, "the training set") == list(texts)
    assert check_texts(np.array(["good", "bad"]), "the training set") == ["good", "bad"]
    assert check_texts([], "the test set") == []


@pytest.mark.parametrize(
    ("item", "kind"),
    [(float("nan"), "a float"), (None, "a NoneType"), (7, "an int"), (b"good", "a bytes")],
)
def test_what_is_no_string_is_named_by_its_place_and_type(item: Any, kind: str) -> None:
    with pytest.raises(
        InputError, match=f"^text 3 of the training set is {kind}, not a string; .*drop it"
    ):
        check_texts(["good", "bad", item], "the training set")


@pytest.mark.parametrize("blank", ["", "  ", "\n\t", "\xa0"])
def test_a_blank_text_is_named_by_its_place(blank: str) -> None:
    with pytest.raises(InputError, match=r"^text 2 of the test set is empty; drop it$"):
        check_texts(["good", blank, "bad"], "the test set")


def test_one_string_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(
        InputError, match="the test set is a single str, not a list of texts; put it in a list"
    ):
        check_texts("good", "the test set")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("one.<br /><br />Two", "one. Two"),
        ("a<br>b<br/>c<BR />d</br>e", "a b c d e"),
        ("<p>one</p><p align='left'>two", "one two"),
        (
            'see (<a href="http://x.org/?a=1&b=2">this</a>), <A class="y" HREF=z>that</A >',
            "see (this), that",
        ),
        ("&quot;Tom &amp; Jerry&quot;&nbsp;isn&#39;t&#8230;", '"Tom & Jerry" isn\'t…'),
        ("  many\t\n kinds\xa0of \x85 space\u2028 ", "many kinds of space"),
        (
            "I <3 it, 1 < 2 > 0, <grin> <brr> <pah> <a joke>",
            "I <3 it, 1 < 2 > 0, <grin> <brr> <pah> <a joke>",
        ),
        ("escaped &lt;br /&gt; is meant to be read", "escaped <br /> is meant to be read"),
        ("never closed <br and <a href=", "never closed <br and <a href="),
        ("<br /> \n", ""),
    ],
)
def test_web_text_becomes_plain_text(text: str, plain: str) -> None:
    assert clean_web_text(text) == plain


@pytest.mark.parametrize("part", ["<br ", "<p <", "<a href=", "<a ", "&", "&#", " "])
def test_cleaning_takes_no_longer_than_the_text_is_long(part: str) -> None:
    assert len(clean_web_text(part * 100_000)) <= len(part) * 100_000


def test_a_set_of_texts_does_not_change() -> None:
    texts = TextSet(
        train=["a"], y=[0], unlabeled=[], test=["b"], test_y=[1], classes=2, names=["neg_0_1.txt"]
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        texts.classes = 3  # type: ignore[misc]


def test_half_a_character_is_refused() -> None:
    with pytest.raises(InputError, match="text 2 of the test set contains a lone surrogate"):
        check_texts(["fine", "not \ud800"], "the test set")
