"""Names to things: a registry is a plain dict of import paths, so that listing names imports nothing heavy."""

from difflib import get_close_matches
from importlib import import_module
from typing import Any

from l2i.errors import InputError

FEW = 12  # names, which a message can hold


def unknown(kind: str, name: str, known: list[str], where: str = "l2i list") -> InputError:
    """The error for a name that is not there, with the nearest one that is."""
    near = get_close_matches(name, known, n=1)
    more = ", …" if len(known) > FEW else ""
    hint = f"perhaps you meant '{near[0]}'" if near else f"choose one of {', '.join(known[:FEW])}{more}"
    return InputError(f"unknown {kind} '{name}'; {hint} ('{where}' shows all)")


def load(kind: str, registry: dict[str, str], name: str) -> Any:
    """Import what `registry` holds under `name`, written there as 'module:attribute'."""
    if name not in registry:
        raise unknown(kind, name, list(registry))
    module, _, attribute = registry[name].partition(":")
    return getattr(import_module(module), attribute)
