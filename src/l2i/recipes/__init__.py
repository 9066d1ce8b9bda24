"""Recipes: every cell of every table by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from l2i.errors import InputError
from l2i.registry import load, unknown

if TYPE_CHECKING:
    from l2i.config import Run
    from l2i.recipes.cells import Table

TABLES: dict[str, str] = {
    "digits": "l2i.recipes.digits:TABLE",
    "aflw": "l2i.recipes.aflw:TABLE",
    "cifar10": "l2i.recipes.cifar:CIFAR10",
    "cifar100": "l2i.recipes.cifar:CIFAR100",
    "imagenet": "l2i.recipes.imagenet:TABLE",
    "imdb": "l2i.recipes.imdb:TABLE",
    "fashion": "l2i.recipes.small:FASHION",
    "breast-cancer": "l2i.recipes.small:BREAST_CANCER",
    "diabetes": "l2i.recipes.small:DIABETES",
    "friedman": "l2i.recipes.small:FRIEDMAN",
    "small-faces": "l2i.recipes.small:SMALL_FACES",
}


def table(name: str) -> Table:
    """A table by name."""
    whole, _, cell = name.partition("/")
    if cell and whole in TABLES:
        raise InputError(f"'{name}' is a cell of a table: l2i compare {whole} --cells {cell}")
    found: Table = load("table", TABLES, name)
    return found


def names() -> list[str]:
    """Every cell there is."""
    return [cell for name in TABLES for cell in table(name).cells]


def get(name: str) -> Run:
    """The run of a cell, to train as it is or to change with `l2i.replace`."""
    return table_of(name).run(name)


def table_of(name: str) -> Table:
    """The table that a cell is in."""
    for found in map(table, TABLES):
        if name in found.cells:
            return found
    if name in TABLES:
        example = table(name).compared[-1]
        raise InputError(f"'{name}' is a table: train one of its cells, such as {example}, or 'l2i compare {name}'")
    raise unknown("recipe", name, names())
