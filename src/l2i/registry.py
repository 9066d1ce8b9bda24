"""Registries: plain dicts from names to import paths, so that listing names stays cheap."""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from l2i.errors import InputError

MAX_CHOICES_SHOWN = 12  # in an error message


def make_unknown_error(
    kind: str, name: str, valid_names: list[str], help_command: str = "l2i list"
) -> InputError:
    """Return the error for an unknown name, with the closest valid one."""
    matches = get_close_matches(name, valid_names, n=1)
    suffix = ", …" if len(valid_names) > MAX_CHOICES_SHOWN else ""
    choices = ", ".join(valid_names[:MAX_CHOICES_SHOWN]) + suffix
    hint = f"perhaps you meant '{matches[0]}'" if matches else f"choose one of {choices}"
    return InputError(f"unknown {kind} '{name}'; {hint} ('{help_command}' shows all)")


def load_registered(kind: str, registry: dict[str, str], name: str) -> Any:
    """Import what `registry` holds under `name`, written there as 'module:attribute'."""
    if name not in registry:
        raise make_unknown_error(kind, name, list(registry))
    module, _, attribute = registry[name].partition(":")
    return getattr(import_module(module), attribute)
