"""Mean teacher (Tarvainen and Valpola, 2017): z is the averaged model's prediction (section 3)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from l2i.methods.base import OneForward


@dataclass(frozen=True, kw_only=True)
class MeanTeacher(OneForward):
    """The Π-model with the teacher as the imputing net."""

    name: ClassVar[str] = "mean-teacher"
    imputer: ClassVar[Literal["model", "teacher"]] = "teacher"
