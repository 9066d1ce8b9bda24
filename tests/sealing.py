"""Fit folders that were changed on purpose, with checksums that match: as a stranger makes them."""

import json
from pathlib import Path

from l2i.fit.artifact import META_FILE, write_meta


def seal(folder: Path) -> Path:
    """Write the checksums of a fit's files anew."""
    write_meta(folder, json.loads((folder / META_FILE).read_text(encoding="utf-8")))
    return folder
