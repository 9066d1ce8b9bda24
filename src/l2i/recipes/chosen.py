"""The recipe that a command is given, and its run with the fields that the other words change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from l2i import recipes
from l2i.arguments import parsed, positional
from l2i.errors import InputError

if TYPE_CHECKING:
    from l2i.config import Run


def named(arguments: list[str], command: str) -> tuple[str, list[str]]:
    """A recipe's name, and the rest of the arguments."""
    known = [cell for name in recipes.TABLES for cell in recipes.table(name).compared]
    return positional(arguments, command, "RECIPE", "a recipe", ["digits", *known])


def changed(name: str, words: list[str], command: str) -> Run:
    """The run of a recipe with the fields that words override."""
    default = recipes.get(name)
    if any(word.partition("=")[0] in ("--method", "--method.name") for word in words):
        raise InputError(
            "a method comes with its recipe, as in 'l2i train digits/mixmatch-l2i-40' ('l2i list' shows all)"
        )
    return parsed(type(default), words, f"l2i {command} {name}", default)
