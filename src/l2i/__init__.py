"""Learning to Impute: labels for unlabelled samples, learned to make a model better."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l2i import recipes
    from l2i.config import L2I, Data, Optim, Run, replace
    from l2i.data.samples import DataSet, Samples, Splits
    from l2i.data.splitting import draw_splits
    from l2i.data.tokenization import Text, Tokenizer
    from l2i.data.transforms.image import Augment
    from l2i.data.transforms.text import TokenAugment, build_vocabulary
    from l2i.errors import InputError, NonFiniteCost, Stopped
    from l2i.estimators import L2IClassifier, L2IRegressor, LabeledKFold
    from l2i.training.loading import load_model
    from l2i.training.run import train
    from l2i.training.trainer import Trainer

__all__ = ["L2I", "Augment", "Data", "Optim", "Run", "Text", "TokenAugment", "recipes", "replace"]
__all__ += ["DataSet", "Samples", "Splits", "Tokenizer", "build_vocabulary", "draw_splits"]
__all__ += ["L2IClassifier", "L2IRegressor", "LabeledKFold", "Trainer", "load_model", "train"]
__all__ += ["InputError", "NonFiniteCost", "Stopped"]
__version__ = "0.1.0"

_LAZY_MODULES = {
    "l2i.config": ("L2I", "Data", "Optim", "Run", "replace"),
    "l2i.data.transforms.image": ("Augment",),
    "l2i.data.splitting": ("draw_splits",),
    "l2i.data.samples": ("DataSet", "Samples", "Splits"),
    "l2i.data.tokenization": ("Text", "Tokenizer"),
    "l2i.data.transforms.text": ("TokenAugment", "build_vocabulary"),
    "l2i.errors": ("InputError", "NonFiniteCost", "Stopped"),
    "l2i.estimators": ("L2IClassifier", "L2IRegressor", "LabeledKFold"),
    "l2i.training.loading": ("load_model",),
    "l2i.training.run": ("train",),
    "l2i.training.trainer": ("Trainer",),
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: torch takes a second that `l2i list` does not need."""
    if name == "recipes":
        return import_module("l2i.recipes")
    for module, names in _LAZY_MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'l2i' has no attribute '{name}'")
