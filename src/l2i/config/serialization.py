"""From plain JSON to frozen dataclasses: every name known, every value of its field's type."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

from l2i.errors import InputError
from l2i.registry import make_unknown_error


def check_field_names(section: Any, names: Iterable[str], path: str) -> None:
    """That a dataclass has these fields; otherwise say which one may have been meant."""
    valid_paths = [path + f.name for f in dataclasses.fields(section)]
    for name in names:
        if path + name not in valid_paths:
            raise make_unknown_error("field", path + name, valid_paths, "l2i train RECIPE --help")


def from_dict(cls: type, data: dict[str, Any], path: str = "") -> Any:
    """A dataclass from JSON; `path` is what its fields' names are led by in messages."""
    hints = typing.get_type_hints(cls)
    check_field_names(cls, data, path)
    return cls(**{name: convert_value(hints[name], value, path + name) for name, value in data.items()})


def convert_value(hint: Any, value: Any, path: str) -> Any:
    """`value` as a field of type `hint` takes it from JSON."""
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(typing.cast(type, hint), value, path + ".")
    origin, type_args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(convert_value(type_args[0], item, path) for item in value)
    if origin is types.UnionType or origin is typing.Union:
        plain_types = [type_arg for type_arg in type_args if isinstance(type_arg, type)]
        matching = [plain_type for plain_type in plain_types if isinstance(value, plain_type) and not isinstance(value, bool)]
        return value if matching else convert_value(next(type_arg for type_arg in type_args if type_arg is not type(None)), value, path)
    if origin is dict and isinstance(value, dict):
        return {name: convert_value(type_args[1], item, path) for name, item in value.items()}
    if hint is Any or (origin is Literal and value in type_args):
        return value
    if isinstance(hint, type) and isinstance(value, hint) and isinstance(value, bool) == (hint is bool):
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise InputError(
        f"{path}={value!r} does not fit; it takes {' | '.join(map(str, type_args)) or getattr(hint, '__name__', hint)}"
    )
