"""How this process was started: alone, or by torchrun with others. Light: it is asked before torch is imported."""

from __future__ import annotations

import os

TORCHRUN_ENV = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun tells a process of its group


def world_size() -> int:
    """How many processes torchrun has started, this one among them."""
    is_torchrun = all(os.environ.get(name) for name in TORCHRUN_ENV) and os.environ["WORLD_SIZE"].isdecimal()
    return max(1, int(os.environ["WORLD_SIZE"])) if is_torchrun else 1


def rank() -> int:
    """Which of them this is."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0
