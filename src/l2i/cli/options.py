"""What the commands take, apart from a run's own fields; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field

from l2i.experiments.options import DataLocation


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The averaged model of a run folder, on its validation and test samples, as JSON."""

    device: str | None = None
    """cpu, cuda, …; the run's own by default."""
    data: DataLocation = field(default_factory=DataLocation)
    """Where the data is."""
