"""Mean teacher (Tarvainen and Valpola, 2017): z is the averaged model's prediction (section 3)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from l2i.methods.base import Method


@dataclass(frozen=True, kw_only=True)
class MeanTeacher(Method):
    """The Π-model with the teacher as the imputing net."""

    name: ClassVar[str] = "mean-teacher"
    imputer: ClassVar[Literal["model", "teacher"]] = "teacher"
