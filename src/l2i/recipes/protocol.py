"""A run's protocol: every field that affects the result, with fractions resolved to steps."""

from __future__ import annotations

import re
from typing import Any

from l2i.config import Run
from l2i.config.validate import flatten_fields
from l2i.quantity import resolve_count
from l2i.recipes.table import Table

# fields that do not affect the result
NON_PROTOCOL_FIELDS = r"name|out|device|threads|save_every|keep_checkpoints|data\.(root|workers)"
TEXT_FIELDS = r"data\.(text|words)\..+|model\.(weights|freeze|encoder_dropout)|optim\.layer_decay"
NON_TEXT_FIELDS = r"data\.(weak|strong)\..+|model\.(width|depth)"


def resolve_protocol(run: Run) -> dict[str, Any]:
    """Return values by field, without fields that the run does not use."""
    settings = dict(flatten_fields(run))
    settings["method"] = run.method.name
    settings["method.rampup"] = resolve_count(run.method.rampup, run.steps)
    settings["optim.warmup"] = resolve_count(run.optim.warmup, run.steps)
    settings["optim.milestones"] = tuple(
        resolve_count(milestone, run.steps) for milestone in run.optim.milestones
    )
    other_fields = NON_TEXT_FIELDS if run.model.name == "encoder" else TEXT_FIELDS
    unused = [NON_PROTOCOL_FIELDS, other_fields]
    if run.data.num_test == 1.0:  # all, as everywhere
        unused.append(r"data\.num_test")
    supervised = run.l2i.paper.inner_supervised
    unused.append(r"l2i\.paper\.eta" if supervised else r"l2i\.paper\.supervised_eta")
    if run.l2i.update == "off":
        unused += [r"l2i\.(?!update$).+", r"batch\.holdout"]
    if not run.method.views:
        unused.append(r"batch\.unlabeled")
    if "strong" not in run.method.views:
        unused.append(r"data\.(strong|words)\..+")
    pattern = re.compile("|".join(unused))
    return {path: value for path, value in settings.items() if not pattern.fullmatch(path)}


def format_protocol(run: Run, table: Table, name: str) -> str:
    """Format the protocol of a cell's run, one field per line, with the sources of its values."""
    recipe_fields, run_fields = dict(flatten_fields(table.get_run(name))), dict(flatten_fields(run))
    texts = {path: format_value(value) for path, value in resolve_protocol(run).items()}
    path_width, value_width = max(map(len, texts)), max(map(len, texts.values()))
    lines = [f"{run.name}  (#: source of a value that the paper does not specify)"]
    for path in sorted(texts, key=lambda path: ("." in path or path == "method", path)):
        source = table.get_setting_source(name, path)
        if path in recipe_fields and run_fields.get(path) != recipe_fields[path]:
            source = f"set by you; the recipe has {format_value(recipe_fields[path])}"
        comment = f"  # {source}" if source else ""
        lines.append(f"  {path:<{path_width}}  {texts[path]:<{value_width}}{comment}".rstrip())
    paper_result = table.get_paper_result(name)
    if paper_result is not None:
        paper_steps, details = table.get_run(table.find_paper_cell(name)).steps, []
        if run.steps != paper_steps:
            details.append(f"after {paper_steps:,} steps, not {run.steps:,}")
        if table.cells[name].budget:
            details.append("on the paper's schedule, not ours")
        if run.l2i.update == "normalized":
            details.append("with the paper's update rule, not 'normalized'")
        notes = filter(None, [paper_result.location, *details, paper_result.note])
        lines.append(f"  the paper's result: {paper_result} ({'; '.join(notes)})")
    return "\n".join(lines)


def format_value(value: Any) -> str:
    """Format a value as on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(format_value, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
