"""Build frozen dataclasses from JSON: every name known, every value of its field's type."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from l2i.errors import InputError
from l2i.registry import make_unknown_error

T = TypeVar("T")


def check_field_names(section: Any, names: Iterable[str], path: str) -> None:
    """Check that a dataclass has these fields; otherwise suggest the closest one."""
    valid_paths = [path + f.name for f in dataclasses.fields(section)]
    for name in names:
        if path + name not in valid_paths:
            raise make_unknown_error("field", path + name, valid_paths, "l2i train RECIPE --help")


def from_dict(cls: type[T], data: dict[str, Any], path: str = "") -> T:
    """Build a dataclass from a JSON object; `path` prefixes the names of its fields in messages."""
    if not isinstance(data, dict):
        raise InputError(f"{path or cls.__name__} must be a JSON object")
    hints = typing.get_type_hints(cls)
    check_field_names(cls, data, path)
    values = {name: _convert(hints[name], value, path + name) for name, value in data.items()}
    return cls(**values)


def _convert(hint: Any, value: Any, path: str) -> Any:
    """Convert a JSON value to the type `hint` of a field, or raise an InputError."""
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_dict(typing.cast(type, hint), value, path + ".")
    origin, type_args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (tuple, list) and isinstance(value, list | tuple):
        return origin(_convert(type_args[0], item, path) for item in value)
    if origin is dict and isinstance(value, dict):
        return {name: _convert(type_args[1], item, path) for name, item in value.items()}
    if origin is types.UnionType or origin is typing.Union:
        if any(_is_instance(value, type_arg) for type_arg in type_args):
            return value
        return _convert(next(arg for arg in type_args if arg is not type(None)), value, path)
    if hint is Any or (origin is Literal and value in type_args) or _is_instance(value, hint):
        return value
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if hint is float and is_whole and abs(value) <= sys.float_info.max:
        return float(value)
    expected = " | ".join(map(str, type_args)) or getattr(hint, "__name__", hint)
    raise InputError(f"{path}={value!r} is not valid; it must be {expected}")


def _is_instance(value: Any, hint: Any) -> bool:
    """Return whether a value is of a plain type; bools do not count as ints."""
    is_plain = isinstance(hint, type) and isinstance(value, hint)
    return is_plain and isinstance(value, bool) == (hint is bool)


def set_path(section: T, path: str, value: Any, prefix: str = "") -> T:
    """Return a dataclass with the field at a dotted path replaced.

    Text is converted to the field's type; `prefix` is the path of the dataclass itself, for errors.
    """
    name, _, rest = path.partition(".")
    check_field_names(section, [name], prefix)
    field_path, current = prefix + name, getattr(section, name)
    if dataclasses.is_dataclass(current):
        if not rest:
            example = f"{field_path}.{dataclasses.fields(current)[0].name}"
            raise InputError(f"{field_path} is a section; set one of its fields, such as {example}")
        value = set_path(current, rest, value, f"{field_path}.")
    elif rest:
        raise InputError(f"{field_path} is not a section; set {field_path} itself")
    elif isinstance(value, str):
        value = _parse_text(typing.get_type_hints(type(section))[name], value, field_path)
    return dataclasses.replace(section, **{name: value})  # type: ignore[type-var]


def _parse_text(hint: Any, text: str, path: str) -> Any:
    """Convert text to a field's type; the items of a tuple are separated by commas or spaces."""
    type_args = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if types.NoneType in type_args and text.lower() in ("none", "null"):
            return None
        for type_arg in type_args:
            if type_arg is not types.NoneType:
                with contextlib.suppress(InputError):
                    return _parse_text(type_arg, text, path)
    elif typing.get_origin(hint) is tuple:
        items = text.strip("[]()").replace(",", " ").split()
        return tuple(_parse_text(type_args[0], item, path) for item in items)
    elif hint is bool:
        return _convert(bool, {"true": True, "false": False}.get(text.lower(), text), path)
    elif hint in (int, float):
        with contextlib.suppress(ValueError):
            return hint(text)
    return _convert(hint, text, path)
