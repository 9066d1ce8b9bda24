"""Measure what an outer update gains from hold-out samples that the model has not been trained on.

    python -m benchmarks.cifar-wrn10-1_cpu.unseen_holdout RUN [--probes 40] [--save-results FILE]
    python -m benchmarks.cifar-wrn10-1_cpu.unseen_holdout --from FILE

RUN is a folder written by `l2i train` or `l2i compare`, with validation samples. From its last
state, each probe takes one more step with an outer update and one without. The update goes through
the imputed labels, or through θ itself, as if the hold-out samples were labelled ones. C^H is on
the samples that the update is computed from. Unseen samples are validation samples, whose labels a
real run does not have. Choose a run whose learning rate has not decayed to 0. The second form
prints the table of a file as Markdown.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from pathlib import Path

import torch
from benchmarks.arguments import make_parser

from l2i import Trainer, replace
from l2i.config import Run
from l2i.data.samples import Splits
from l2i.experiments.formatting import format_values, render_markdown
from l2i.training.checkpoint import load_latest_checkpoint
from l2i.training.diagnostics import measure_outer_update
from l2i.training.run_dir import read_run
from l2i.training.setup import load_splits

COSTS = {"C^H": "c_h", "test cost": "test_cost"}
NUM_TEST_SAMPLES = 1000  # per probe
HOLDOUTS = {"labeled": "labelled samples", "unseen": "unseen samples"}
PATHS = {"labels": "imputed labels", "parameters": "θ"}


def hold_out_unseen(splits: Splits) -> Splits:
    """Hold out as many validation samples as there are labelled ones, instead of those."""
    count = len(splits.labeled.y)
    if len(splits.validation.y) < count:
        raise SystemExit(
            f"the run has fewer validation samples than its {count} labelled ones; train one "
            "with more"
        )
    order = torch.randperm(len(splits.validation.y), generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(splits, holdout=splits.validation.take(order[:count]))


def measure_changes(folder: Path, run: Run, splits: Splits, probes: int) -> dict[str, list[float]]:
    """Return the changes of both costs by outer updates, in %, at the last batches of a run."""
    tensors, meta = load_latest_checkpoint(folder / "checkpoints")
    with closing(Trainer(run, splits=splits, expected_state=tensors)) as trainer:
        trainer.load_state_dict(tensors)
        rows = [
            measure_outer_update(trainer, step)
            for step in range(max(0, meta["step"] - probes), meta["step"])
        ]
    return {
        cost: [100 * (row[f"{name}_after"] / row[f"{name}_before"] - 1) for row in rows]
        for cost, name in COSTS.items()
    }


def render_table(path: Path) -> str:
    """Return the table of a file as Markdown."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [["hold-out", "update through", *(f"change of {cost} (%)" for cost in COSTS)]]
    for line in lines:
        changes = [format_values(line[cost], decimals=3, sign="+") for cost in COSTS]
        rows.append([HOLDOUTS[line["holdout"]], PATHS[line["through"]], *changes])
    return render_markdown(rows, code=False)


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("cifar-wrn10-1_cpu.unseen_holdout", __doc__)
    parser.add_argument("folder", nargs="?", type=Path, metavar="RUN")
    parser.add_argument("--probes", type=int, default=40)
    parser.add_argument("--data", metavar="FOLDER", help="data folder, if not that of the run")
    parser.add_argument("--save-results", type=Path, metavar="FILE", help="append JSON lines")
    parser.add_argument("--from", dest="from_", type=Path, metavar="FILE", help="print its table")
    options = parser.parse_args(arguments)
    if options.from_ is not None:
        print(render_table(options.from_), end="")
        return 0
    if options.folder is None:
        parser.error("RUN is missing: name a run folder, or a file with --from")
    run = replace(read_run(options.folder), probe_samples=NUM_TEST_SAMPLES, engine="auto")
    run = run if options.data is None else replace(run, data={"root": options.data})
    splits = load_splits(run)
    for holdout, through in product(HOLDOUTS, PATHS):
        ablation = "direct_gradient" if through == "parameters" else "none"
        rule = {"update": "normalized", "paper": {"eta": None}, "ablation": ablation}
        held_out = splits if holdout == "labeled" else hold_out_unseen(splits)
        changes = measure_changes(options.folder, replace(run, l2i=rule), held_out, options.probes)
        text = ", ".join(
            f"{cost} {format_values(values, decimals=3)} %" for cost, values in changes.items()
        )
        print(f"{run.name}, hold-out {holdout}, through {through}: {text}", flush=True)
        if options.save_results is not None:
            conditions = {"name": run.name, "steps": run.steps, "seed": run.seed}
            line = {**conditions, "holdout": holdout, "through": through, **changes}
            with options.save_results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
