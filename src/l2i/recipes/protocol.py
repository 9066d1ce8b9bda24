"""A run's protocol as it resolves: every field that decides what is computed, shares of the run written as steps."""

from __future__ import annotations

import re
from typing import Any

from l2i.config import Run
from l2i.config.validate import flatten_fields
from l2i.quantity import resolve_count
from l2i.recipes.table import Table

NON_PROTOCOL_FIELDS = ("name", "out", "device", "threads", "save_every", "keep_checkpoints", "data.root", "data.workers")  # decide nothing
L2I_PREFIX = "l2i."
TEXT_FIELDS_PATTERN = (
    r"data\.(text|weak\.words|strong\.words)\.|"
    r"model\.(weights|pooling|freeze|encoder_dropout|gradient_checkpointing)|optim\.layer_decay"
)
"""Fields that are for texts alone, and `BUT_TEXT` those that are for all else."""
NON_TEXT_FIELDS_PATTERN = r"data\.(weak|strong)\.(?!words)|model\.(width|depth)"


def resolve_protocol(run: Run) -> dict[str, Any]:
    """Field -> value, without those that an absent outer step or optimizer has no use for."""
    settings = {path: value for path, value in flatten_fields(run) if path not in NON_PROTOCOL_FIELDS}
    settings["method"] = run.method.name
    settings["method.rampup"] = resolve_count(run.method.rampup, run.steps)
    if run.data.num_test == 1.0:
        settings.pop("data.num_test")  # all, as everywhere
    settings["optim.warmup"] = resolve_count(run.optim.warmup, run.steps)
    settings["optim.milestones"] = tuple(resolve_count(milestone, run.steps) for milestone in run.optim.milestones)
    if run.l2i.update == "off":
        settings = {path: value for path, value in settings.items() if not path.startswith(L2I_PREFIX)}
        settings |= {"l2i.update": "off"}
        settings.pop("batch.holdout")
    if not run.method.views:
        settings.pop("batch.unlabeled")
    excluded_pattern = NON_TEXT_FIELDS_PATTERN if run.model.name == "encoder" else TEXT_FIELDS_PATTERN
    settings = {path: value for path, value in settings.items() if not re.match(excluded_pattern, path)}
    if "strong" not in run.method.views:
        settings = {path: value for path, value in settings.items() if not path.startswith("data.strong.")}
    return settings


def format_protocol(run: Run, table: Table, name: str) -> str:
    """The protocol of a run of a cell, a field a line, with where a value comes from if the paper leaves it open."""
    settings, (run_fields, recipe_fields) = resolve_protocol(run), (dict(flatten_fields(source_run)) for source_run in (run, table.get_run(name)))
    path_width, value_texts = max(map(len, settings)), {path: format_value(value) for path, value in settings.items()}
    value_width = max(map(len, value_texts.values()))
    lines = [f"{run.name}  (# where the paper leaves a value open: whose it is)"]
    for path in sorted(value_texts, key=lambda path: ("." in path or path == "method", path)):
        is_overridden = path in recipe_fields and run_fields.get(path) != recipe_fields[path]
        source = f"given; the recipe has {format_value(recipe_fields[path])}" if is_overridden else table.get_setting_source(name, path)
        lines.append(f"  {path:<{path_width}}  {value_texts[path]:<{value_width}}{'  # ' + source if source else ''}".rstrip())
    paper_result, paper_run = table.get_paper_result(name), table.get_run(table.find_paper_cell(name))
    if paper_result is not None:
        steps_note = "" if run.steps == paper_run.steps else f"after {paper_run.steps:,} steps, here {run.steps:,}"
        schedule_note = "on a schedule of our own" if table.cells[name].budget else ""
        rule_note = "by the paper's own rule, here the library's" if run.l2i.update == "normalized" else ""
        details = "; ".join(filter(None, [paper_result.location, steps_note, schedule_note, rule_note, paper_result.note]))
        lines.append(f"  the paper's figure: {paper_result} ({details})")
    return "\n".join(lines)


def format_value(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(format_value, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
