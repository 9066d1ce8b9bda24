"""Supervised learning on the labelled samples alone (SL in the tables)."""

from dataclasses import dataclass
from typing import ClassVar

from l2i.methods.base import Method, View


@dataclass(frozen=True, kw_only=True)
class Supervised(Method):
    """C^T alone: unlabelled samples are not used."""

    name: ClassVar[str] = "supervised"
    uses_pseudo_labels: ClassVar[bool] = False

    @property
    def views(self) -> tuple[View, ...]:
        return ()
