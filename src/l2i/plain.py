"""From plain JSON to frozen dataclasses: every name known, every value of its field's type."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

from l2i.errors import InputError
from l2i.registry import unknown


def check_names(section: Any, names: Iterable[str], path: str) -> None:
    """That a dataclass has these fields; otherwise say which one may have been meant."""
    known = [path + f.name for f in dataclasses.fields(section)]
    for name in names:
        if path + name not in known:
            raise unknown("field", path + name, known, "l2i train RECIPE --help")


def built(cls: type, plain: dict[str, Any], path: str = "") -> Any:
    """A dataclass from JSON; `path` is what its fields' names are led by in messages."""
    hints = typing.get_type_hints(cls)
    check_names(cls, plain, path)
    return cls(**{name: value_of(hints[name], value, path + name) for name, value in plain.items()})


def value_of(hint: Any, value: Any, path: str) -> Any:
    """`value` as a field of type `hint` takes it from JSON."""
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return built(typing.cast(type, hint), value, path + ".")
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(value_of(options[0], item, path) for item in value)
    if origin is types.UnionType or origin is typing.Union:
        plain = [option for option in options if isinstance(option, type)]
        fitting = [option for option in plain if isinstance(value, option) and not isinstance(value, bool)]
        return value if fitting else value_of(next(o for o in options if o is not type(None)), value, path)
    if origin is dict and isinstance(value, dict):
        return {name: value_of(options[1], item, path) for name, item in value.items()}
    if hint is Any or (origin is Literal and value in options):
        return value
    if isinstance(hint, type) and isinstance(value, hint) and isinstance(value, bool) == (hint is bool):
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise InputError(
        f"{path}={value!r} does not fit; it takes {' | '.join(map(str, options)) or getattr(hint, '__name__', hint)}"
    )
