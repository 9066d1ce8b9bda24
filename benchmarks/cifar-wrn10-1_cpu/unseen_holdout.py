"""What an update owes to hold-out samples: labelled ones drawn again, against as many unseen ones.

    python examples/unseen_holdout.py RUN [--looks 40] [--data FOLDER] [--json FILE]

RUN is a folder that `l2i train` or `l2i compare` left, and that has validation samples. From its
last state, one more step is taken at each look, with an update and without: through the imputed
labels, and through θ itself, as if the hold-out samples were labelled ones. C^H is that of the very
samples that an update is made from. The unseen samples are validation samples, whose labels a real
run does not have. A run whose rate has fallen to 0 shows nothing.
"""

import argparse
import dataclasses
import json
from contextlib import closing
from itertools import product
from pathlib import Path

import torch

from l2i import Trainer, replace
from l2i.config import Run
from l2i.data.samples import Splits
from l2i.experiments.formatting import format_mean_stderr
from l2i.training.checkpoint import load_latest_checkpoint
from l2i.training.diagnostics import measure_outer_update
from l2i.training.run_dir import read_run
from l2i.training.setup import load_splits

COSTS = {"C^H": "c_h", "test cost": "test_cost"}
TEST = 1000  # test samples of a look


def unseen(splits: Splits) -> Splits:
    """As many validation samples as there are labelled ones, in place of those."""
    if len(splits.validation.y) < len(splits.labeled.y):
        raise SystemExit(
            f"there are fewer validation samples than the {len(splits.labeled.y)} labelled ones; "
            "train a run with more"
        )
    order = torch.randperm(len(splits.validation.y), generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(
        splits, holdout=splits.validation.take(order[: len(splits.labeled.y)])
    )


def changes(folder: Path, run: Run, splits: Splits, looks: int) -> dict[str, list[float]]:
    """What updates do to both costs, in per cent, at the last `looks` batches of a run."""
    tensors, meta = load_latest_checkpoint(folder / "checkpoints")
    with closing(Trainer(run, splits=splits, expected_state=tensors)) as trainer:
        trainer.load_state_dict(tensors)
        rows = [
            measure_outer_update(trainer, step)
            for step in range(max(0, meta["step"] - looks), meta["step"])
        ]
    return {
        cost: [100 * (row[f"{n}_after"] / row[f"{n}_before"] - 1) for row in rows]
        for cost, n in COSTS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="RUN")
    parser.add_argument("--looks", type=int, default=40)
    parser.add_argument(
        "--data", metavar="FOLDER", help="folder of the data set, where it is not the run's own"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also add a line a kind of update to this file"
    )
    asked = parser.parse_args()
    run = replace(read_run(asked.folder), probe_samples=TEST, engine="auto")
    run = run if asked.data is None else replace(run, data={"root": asked.data})
    splits = load_splits(run)
    for held, through in product(("labeled", "unseen"), ("labels", "parameters")):
        ablation = "direct_gradient" if through == "parameters" else "none"
        rule = {"update": "normalized", "paper": {"eta": None}, "ablation": ablation}
        this = replace(run, l2i=rule)
        actual = changes(
            asked.folder, this, splits if held == "labeled" else unseen(splits), asked.looks
        )
        printed = ", ".join(
            f"{cost} {format_mean_stderr(values, decimals=3)} %" for cost, values in actual.items()
        )
        print(f"{run.name}, hold-out {held}, through {through}: {printed}", flush=True)
        if asked.json is not None:
            kind = {
                "name": run.name,
                "steps": run.steps,
                "seed": run.seed,
                "holdout": held,
                "through": through,
            }
            with asked.json.open("a", encoding="utf-8") as file:
                print(json.dumps({**kind, **actual}), file=file)


if __name__ == "__main__":
    main()
