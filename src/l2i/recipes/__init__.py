"""Recipes: every cell of every table by name. A recipe module has CELLS, name -> Cell, and `run(name)`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from l2i.registry import unknown

if TYPE_CHECKING:
    from l2i.config import Run

TABLES: dict[str, str] = {
    "digits": "l2i.recipes.digits",
}


def table(name: str) -> Any:
    """The recipe module of a table."""
    if name not in TABLES:
        raise unknown("table", name, list(TABLES))
    return import_module(TABLES[name])


def names() -> list[str]:
    """Every cell there is."""
    return [cell for module in TABLES.values() for cell in import_module(module).CELLS]


def get(name: str) -> Run:
    """The run of a cell, to train as it is or to change with `l2i.replace`."""
    for module in map(import_module, TABLES.values()):
        if name in module.CELLS:
            run: Run = module.run(name)
            return run
    raise unknown("recipe", name, names())
