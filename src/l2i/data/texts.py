"""Texts for classification: what a set of them holds, and how single texts are checked and cleaned."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from l2i.errors import InputError

BREAK = re.compile(r"</?(?:br|p)(?:\s[^<>]*)?/?>", re.IGNORECASE)
LINK = re.compile(r"<a\s+\w+\s*=[^<>]*>|</a\s*>", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """Texts as their publishers give them, before they are tokenised and anything is drawn."""

    train: list[str]
    y: list[int]  # classes of `train`
    unlabeled: list[str]  # more texts, without labels
    test: list[str]
    test_y: list[int]
    classes: int
    names: list[str]  # of `train` and then `unlabeled`, as back-translations name them


def checked(texts: Sequence[Any], what: str) -> list[str]:
    """The texts of `what`, such as "the training set", if each is a string with something in it."""
    if isinstance(texts, str | bytes):
        raise InputError(f"{what} is one {type(texts).__name__}, not a list of texts; put it into a list")
    for place, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            kind = type(text).__name__
            article = "an" if kind[0] in "aeiou" else "a"
            raise InputError(
                f"text {place} of {what} is {article} {kind}, not a string; write it as a string, or leave it out"
            )
        if not text.strip():
            raise InputError(f"text {place} of {what} is empty; leave it out")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InputError(f"text {place} of {what} holds half a character (a lone surrogate); mend it") from None
    return list(texts)


def cleaned(text: str) -> str:
    """Web text as plain text: no line breaks, paragraphs or links but their words, entities as their characters."""
    plain = html.unescape(LINK.sub("", BREAK.sub(" ", text)))
    return " ".join(plain.split())
