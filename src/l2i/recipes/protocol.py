"""A run's protocol as it resolves: every field that decides what is computed, shares of the run written as steps."""

from __future__ import annotations

import re
from typing import Any

from l2i.config import Run
from l2i.recipes.cells import Table
from l2i.shares import resolved
from l2i.validate import fields_of

BESIDES = ("name", "out", "device", "threads", "save_every", "keep", "data.root", "data.workers")  # decide nothing
OUTER = "l2i."
TEXT = (
    r"data\.(text|weak\.words|strong\.words)\.|"
    r"model\.(weights|pooling|frozen|encoder_dropout|checkpointing)|optim\.layer_decay"
)
"""Fields that are for texts alone, and `BUT_TEXT` those that are for all else."""
BUT_TEXT = r"data\.(weak|strong)\.(?!words)|model\.(width|depth)"


def protocol(run: Run) -> dict[str, Any]:
    """Field -> value, without those that an absent outer step or optimizer has no use for."""
    found = {path: value for path, value in fields_of(run) if path not in BESIDES}
    found["method"] = run.method.name
    found["method.rampup"] = resolved(run.method.rampup, run.steps)
    if run.data.num_test == 1.0:
        found.pop("data.num_test")  # all, as everywhere
    found["optim.warmup"] = resolved(run.optim.warmup, run.steps)
    found["optim.milestones"] = tuple(resolved(milestone, run.steps) for milestone in run.optim.milestones)
    if run.l2i.outer_update == "off":
        found = {path: value for path, value in found.items() if not path.startswith(OUTER)}
        found |= {"l2i.outer_update": "off"}
        found.pop("batch.holdout")
    if not run.method.views:
        found.pop("batch.unlabeled")
    other = BUT_TEXT if run.model.name == "encoder" else TEXT
    found = {path: value for path, value in found.items() if not re.match(other, path)}
    if "strong" not in run.method.views:
        found = {path: value for path, value in found.items() if not path.startswith("data.strong.")}
    return found


def printed(run: Run, table: Table, name: str) -> str:
    """The protocol of a run of a cell, a field a line, with where a value comes from if the paper leaves it open."""
    found, (asked, recipe) = protocol(run), (dict(fields_of(each)) for each in (run, table.run(name)))
    wide, shown = max(map(len, found)), {path: spelled(value) for path, value in found.items()}
    long = max(map(len, shown.values()))
    lines = [f"{run.name}  (# where the paper leaves a value open: whose it is)"]
    for path in sorted(shown, key=lambda path: ("." in path or path == "method", path)):
        given = path in recipe and asked.get(path) != recipe[path]
        source = f"given; the recipe has {spelled(recipe[path])}" if given else table.source(name, path)
        lines.append(f"  {path:<{wide}}  {shown[path]:<{long}}{'  # ' + source if source else ''}".rstrip())
    figure, papers = table.figure(name), table.run(table.papers(name))
    if figure is not None:
        after = "" if run.steps == papers.steps else f"after {papers.steps:,} steps, here {run.steps:,}"
        ours = "on a schedule of our own" if table.cells[name].budget else ""
        rule = "by the paper's own rule, here the library's" if run.l2i.outer_update == "normalized" else ""
        about = "; ".join(filter(None, [figure.where, after, ours, rule, figure.note]))
        lines.append(f"  the paper's figure: {figure} ({about})")
    return "\n".join(lines)


def spelled(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(spelled, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
