"""The first 20 steps of every method × {off, O, L} in float64.

As a script, it writes those missing, or `--all`.
"""

import json
import sys
from pathlib import Path

from l2i import Run, Trainer, recipes, replace
from l2i.methods import METHODS

FOLDER = Path(__file__).parent.parent / "golden"
STEPS = 20
VALUES = ("c_t", "c_u", "c_h", "gradient", "grad_ratio_raw")
LABELS = {"off": {"update": "off"}, "O": {"labels": "output"}, "L": {"labels": "learnable"}}
CASES = [
    (method, labels)
    for method in METHODS
    for labels in LABELS
    if method != "supervised" or labels == "off"
]


def run_of(method: str, labels: str) -> Run:
    cell = "digits/sl-40" if method == "supervised" else f"digits/{method}-l2i-40"
    settings = {"weight": 2.0, "rampup": 10}
    run = recipes.get(cell)
    if hasattr(run.method, "threshold"):
        settings["threshold"] = 0.13  # some labels count from the first steps on
    run = replace(run, device="cpu", precision="float64", l2i=LABELS[labels], method=settings)
    return replace(
        run, model={"name": "conv", "width": 4}, batch={"labeled": 8, "unlabeled": 8, "holdout": 8}
    )


def trace(method: str, labels: str) -> list[dict[str, float]]:
    """The costs of each step."""
    trainer = Trainer(run_of(method, labels))
    rows = []
    for step in range(STEPS):
        trainer.step(step)
        means = trainer.meter.read()
        rows.append({name: means.get(name, 0.0) for name in VALUES})
    return rows


def path_of(method: str, labels: str) -> Path:
    return FOLDER / f"{method}-{labels}.json"


if __name__ == "__main__":
    for case in CASES:
        if "--all" in sys.argv or not path_of(*case).exists():
            path_of(*case).write_text(json.dumps(trace(*case), indent=1) + "\n")
            print(path_of(*case))
