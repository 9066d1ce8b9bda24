"""Learning to Impute: labels for unlabelled samples, learned such that a model trained on them does better."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l2i import recipes
    from l2i.config import L2I, Run, replace
    from l2i.errors import InputError, NonFiniteCost, Stopped
    from l2i.training.run import train
    from l2i.training.trainer import Trainer

__all__ = ["L2I", "InputError", "NonFiniteCost", "Run", "Stopped", "Trainer", "recipes", "replace", "train"]
__version__ = "0.1.0"

_HOMES = {
    "L2I": "l2i.config",
    "Run": "l2i.config",
    "replace": "l2i.config",
    "InputError": "l2i.errors",
    "NonFiniteCost": "l2i.errors",
    "Stopped": "l2i.errors",
    "Trainer": "l2i.training.trainer",
    "train": "l2i.training.run",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first asked for: importing torch takes a second that `l2i list` does not need."""
    if name == "recipes":
        return import_module("l2i.recipes")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'l2i' has no attribute '{name}'")
