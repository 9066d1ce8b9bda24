"""How this process was started: alone, or by torchrun with others. Light: it is asked before torch is imported."""

from __future__ import annotations

import os

TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a process of its group


def started() -> int:
    """How many processes torchrun has started, this one among them."""
    told = all(os.environ.get(name) for name in TOLD) and os.environ["WORLD_SIZE"].isdecimal()
    return max(1, int(os.environ["WORLD_SIZE"])) if told else 1


def index() -> int:
    """Which of them this is."""
    return int(os.environ["RANK"]) if started() > 1 else 0
