"""Keep the scores of a table's candidates in the fit folder, so that a killed fit resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from l2i.candidates.base import Score, Skipped
from l2i.candidates.selection import Recorded
from l2i.errors import DamagedFile
from l2i.files.output import write_atomic
from l2i.files.safety import check_regular_file
from l2i.fit.artifact import DAMAGE

SCORES_DIR = "candidates"  # in a fit folder


def _check(recorded: Recorded) -> Recorded:
    """Raise ValueError for what no candidate can have had."""
    outputs, seconds = recorded
    if outputs.ndim != 3 or outputs.dtype != np.float64 or not np.isfinite(outputs).all():
        raise ValueError("not the outputs of a candidate")
    if not 0 <= seconds < float("inf"):
        raise ValueError("not the seconds of a candidate")
    return recorded


class FolderRecord:
    """One file per candidate: its outputs out of fold and its seconds, or why it was skipped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / SCORES_DIR

    def load(self, name: str) -> Recorded | Skipped | None:
        """Return what was saved of a candidate, if anything."""
        from safetensors import SafetensorError, safe_open

        path = self._get_path(name)
        if not path.is_file():
            return None
        try:
            with safe_open(check_regular_file(path), framework="numpy") as file:
                facts = json.loads(file.metadata()["facts"])
                if facts["reason"] is not None:
                    return Skipped(name, str(facts["reason"]), float(facts["seconds"]))
                return _check(Recorded(file.get_tensor("outputs"), float(facts["seconds"])))
        except (*DAMAGE, SafetensorError):
            fix = "remove it and repeat the command, or choose a different --out"
            raise DamagedFile(f"{path} is damaged; {fix}") from None

    def save(self, event: Score | Skipped) -> None:
        """Save a candidate's outputs and seconds, or why it was skipped."""
        from safetensors.numpy import save

        if isinstance(event, Score):
            name, outputs = event.candidate.name, event.outputs
            facts: dict[str, Any] = {"seconds": event.seconds, "reason": None}
        else:
            name, outputs = event.name, np.zeros((0, 0, 0))
            facts = {"seconds": event.seconds, "reason": event.reason}
        self.folder.mkdir(parents=True, exist_ok=True)
        content = save({"outputs": np.ascontiguousarray(outputs)}, {"facts": json.dumps(facts)})
        write_atomic(self._get_path(name), content)

    def count(self) -> int:
        """Return how many candidates were scored or skipped before."""
        return len(list(self.folder.glob("*.safetensors")))

    def _get_path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"
