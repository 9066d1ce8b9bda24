"""Recipes: every cell of every table by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from l2i.errors import InputError
from l2i.registry import load_registered, make_unknown_error

if TYPE_CHECKING:
    from l2i.config import Run
    from l2i.recipes.table import Table

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


def get_table(name: str) -> Table:
    """Return a table by name."""
    table_name, _, cell = name.partition("/")
    if cell and table_name in TABLES:
        raise InputError(f"'{name}' is a cell; use 'l2i compare {table_name} --cells {cell}'")
    loaded: Table = load_registered("table", TABLES, name)
    return loaded


def list_recipes() -> list[str]:
    """List the names of all recipes."""
    return [cell for name in TABLES for cell in get_table(name).cells]


def get(name: str) -> Run:
    """Return the run of a recipe, to train as it is or to change with `l2i.replace`."""
    return find_cell_table(name).get_run(name)


def find_cell_table(name: str) -> Table:
    """Return the table of a cell."""
    for candidate in map(get_table, TABLES):
        if name in candidate.cells:
            return candidate
    if name in TABLES:
        example = get_table(name).default_cells[-1]
        raise InputError(
            f"'{name}' is a table; train one of its cells, such as {example}, "
            f"or use 'l2i compare {name}'"
        )
    raise make_unknown_error("recipe", name, list_recipes())
