"""How this process was started: alone, or by torchrun. Imports nothing heavy."""

from __future__ import annotations

import os

TORCHRUN_ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def world_size() -> int:
    """Return how many processes torchrun has started; 1 without it."""
    size = os.environ.get("WORLD_SIZE", "")
    is_torchrun = all(os.environ.get(name) for name in TORCHRUN_ENV) and size.isdecimal()
    return max(1, int(size)) if is_torchrun else 1


def rank() -> int:
    """Return the rank of this process."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0
