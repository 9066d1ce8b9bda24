"""Processes started as a user starts them."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from waiting import PATIENCE

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(processes: int, *words: str | Path, options: Sequence[str] = ()) -> list[str]:
    """`python WORDS`, or as many of it under torchrun; the port is any that is free."""
    if processes == 1:
        return [sys.executable, *map(str, words)]
    launcher = [
        "-m",
        "torch.distributed.run",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
    ]
    return [
        sys.executable,
        *launcher,
        "--nproc-per-node",
        str(processes),
        *options,
        *map(str, words),
    ]


def run(
    processes: int,
    *words: str | Path,
    code: int = 0,
    options: Sequence[str] = (),
    timeout: float = PATIENCE,
) -> str:
    """What the command says on stderr and stdout, once it has ended as expected."""
    line = command(processes, *words, options=options)
    done = subprocess.run(
        line, capture_output=True, text=True, timeout=timeout, env=ENVIRONMENT, check=False
    )
    if done.returncode != code:
        pytest.fail(f"{' '.join(line)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stderr + done.stdout
