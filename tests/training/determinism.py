"""Short runs of many kinds, to be trained twice.

As a script, it takes them all: FOLDER THREADS DEVICE, then steps to be cut at.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from image_folders import write_class_folders
from l2i import Run, Trainer, recipes, replace, train

STEPS, SAVED = 6, 2
CONV = {"name": "conv", "width": 16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "supervised": ("digits/sl-40", {}),
    "fixmatch-l2i exact": ("digits/fixmatch-l2i-40", {"l2i": {"hypergradient": "exact"}}),
    "mean-teacher-l2i last layer": (
        "digits/mean-teacher-l2i-40",
        {"l2i": {"hypergradient": "last_layer"}},
    ),
    "mixmatch": ("digits/mixmatch-40", {}),
    "vat": ("digits/vat-40", {}),
    "dropout": ("digits/uda-l2i-40", {"model": {**CONV, "dropout": 0.5}}),
    "dropout, replayed": (
        "digits/fixmatch-l2i-40",
        {"model": {**CONV, "dropout": 0.5}, "l2i": {"paper": {"eta": 0.1}}},
    ),
    "the paper's rule": (
        "digits/mean-teacher-l2i-paper-40",
        {"optim": {"name": "sgd"}, "l2i": {"every": 2}},
    ),
    "streamed images": ("imagenet/fixmatch-l2i", {}),
}


def run_of(case: str, folder: Path, *, threads: int, device: str = "cpu") -> Run:
    """A case's run; streamed images lie beside the folder."""
    cell, changes = CASES[case]
    short = {
        "device": device,
        "threads": threads,
        "steps": STEPS,
        "eval_every": 1,
        "save_every": SAVED,
        "model": CONV,
    }
    run = replace(recipes.get(cell), **{**short, "out": str(folder / case), **changes})
    if case != "streamed images":
        return run
    root = folder.parent / "images"
    if not root.exists():
        write_class_folders(root, classes=3, per_class=6, size=72)
    small = {
        "batch": {"labeled": 3, "unlabeled": 4, "holdout": 3},
        "model": {"name": "resnet", "depth": 8, "width": 1},
    }
    return replace(run, data={"root": str(root), "workers": 1}, **small)


class Cut(Exception):
    """A run's end before its time."""


def trained(run: Run, cuts: list[int]) -> None:
    """Train, cut at some steps, each time before they are saved."""
    for end in cuts:

        def stop(trainer: Trainer, step: int, end: int = end) -> None:
            if step == end:
                raise Cut

        with suppress(Cut):
            train(run, quiet=True, on_evaluation=stop)
            raise AssertionError(f"not cut at step {end}")
    train(run, quiet=True)


if __name__ == "__main__":
    place, threads, device, *cuts = sys.argv[1:]
    for name in CASES:
        trained(
            run_of(name, Path(place), threads=int(threads), device=device),
            [int(step) for step in cuts],
        )
