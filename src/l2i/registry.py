"""Names to things: a registry is a plain dict of import paths, so that listing names imports nothing heavy."""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from l2i.errors import InputError

MAX_NAMES_SHOWN = 12  # names, which a message can hold


def make_unknown_error(kind: str, name: str, valid_names: list[str], help_command: str = "l2i list") -> InputError:
    """The error for a name that is not there, with the nearest one that is."""
    matches = get_close_matches(name, valid_names, n=1)
    suffix = ", …" if len(valid_names) > MAX_NAMES_SHOWN else ""
    hint = f"perhaps you meant '{matches[0]}'" if matches else f"choose one of {', '.join(valid_names[:MAX_NAMES_SHOWN])}{suffix}"
    return InputError(f"unknown {kind} '{name}'; {hint} ('{help_command}' shows all)")


def load_registered(kind: str, registry: dict[str, str], name: str) -> Any:
    """Import what `registry` holds under `name`, written there as 'module:attribute'."""
    if name not in registry:
        raise make_unknown_error(kind, name, list(registry))
    module, _, attribute = registry[name].partition(":")
    return getattr(import_module(module), attribute)
