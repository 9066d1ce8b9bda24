"""What turns a fit's raw rows into the network's inputs, from the JSON that it is kept as."""

from __future__ import annotations

from typing import Any

from l2i.own.prepare import Column, ImageInputs, TableInputs
from l2i.own.prepare_text import TextInputs

AnyInputs = TableInputs | ImageInputs | TextInputs


def inputs_of(plain: dict[str, Any]) -> AnyInputs:
    """What `to_json` wrote."""
    if plain["kind"] == "table":
        return TableInputs(columns=tuple(Column(**_tuples(column)) for column in plain["columns"]))
    if plain["kind"] == "text":
        return TextInputs.from_json(plain)
    return ImageInputs(**_tuples({name: value for name, value in plain.items() if name != "kind"}))


def _tuples(plain: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
