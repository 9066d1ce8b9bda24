"""The settings that a kept result is of, so that none is taken for a result of others (`l2i compare --keep`)."""

from __future__ import annotations

import json
from pathlib import Path

from l2i import recipes
from l2i.config import Run
from l2i.errors import InputError
from l2i.training.folder import Result, Settings, settings_of

LONGER = "-longer"  # what the name of a baseline that is trained for longer goes on with


def differing(ours: Settings, theirs: Settings) -> list[str]:
    """Fields that both have and that are not the same, in order; one of them may be older than a field."""
    return sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])


def check_alike(result: Result, run: Run, path: Path) -> None:
    """That a kept result is of the settings that are asked for; one that does not tell its own is taken as it is."""
    kept, asked = result.settings or {}, settings_of(run)
    for name in differing(kept, asked):
        value = json.dumps(kept[name])
        raise InputError(
            f"{path} is of a run with {name}={value}, and {json.dumps(asked[name])} is asked for; "
            f"give --change {name}={value}, or another --keep"
        )


def departure(result: Result) -> str:
    """What of a kept result is not as its recipe has it now; nothing where all is, or where it does not say."""
    table = recipes.table(result.name.partition("/")[0])
    name = result.name if result.name in table.cells else result.name.partition(LONGER)[0]
    kept = result.settings or {}
    return ", ".join(f"{field}={json.dumps(kept[field])}" for field in differing(kept, settings_of(table.run(name))))
