"""Π-model (Laine and Aila, 2017): squared distance between the predictions on two views."""

from dataclasses import dataclass
from typing import ClassVar

from l2i.methods.base import OneForward


@dataclass(frozen=True, kw_only=True)
class PiModel(OneForward):
    """The general form unchanged: z is the model's own prediction on another view."""

    name: ClassVar[str] = "pi-model"
