"""What `l2i compare` prints and keeps: our figures beside the paper's, and how the budgets differ."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from l2i import recipes
from l2i.compare import Line, plan
from l2i.config import Run
from l2i.options import CompareOptions
from l2i.recipes.cells import figures
from l2i.statistic import with_error
from l2i.training.build import placed
from l2i.training.checkpoint import write_whole
from l2i.training.folder import check, folder_of, read_result

WIDEST = 300  # characters


def rendered(title: str, lines: list[Line], references: dict[str, float]) -> Table:
    """The table as a person reads it."""
    with_paper = any(line.paper for line in lines)
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("cell", no_wrap=True)
    ours = lines[0].results[0].figure_name
    for heading in (ours, *(["paper"] if with_paper else []), "Δ same steps", "Δ same time", "steps", "seconds"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, value in references.items():
        shown.add_row(short(name), f"{value:.2f}", *([str(figures().get(name, ""))] if with_paper else []))
    for line in lines:
        shown.add_row(
            short(line.name),
            with_error(line.figures),
            *([str(line.paper or "")] if with_paper else []),
            line.gain(line.same_steps),
            line.gain(line.same_time),
            f"{line.steps:.0f}",
            f"{line.time():.1f}",
        )
    return shown


def short(name: str) -> str:
    """A cell's name without its table's."""
    return name.partition("/")[2] or name


def report(table: str, lines: list[Line], options: CompareOptions) -> None:
    """Print the table, and keep it as JSON beside the runs."""
    first, console = lines[0].results[0], Console(highlight=False, soft_wrap=True)
    count = len(lines[0].results)
    reference = recipes.table(table).reference
    references = {} if reference is None else reference(options.data.root)
    title = f"{table}, test set, {count} seed{'s' * (count > 1)}: mean ± standard error"
    shown = rendered(title, lines, references)
    wide = Console(highlight=False, width=WIDEST)
    Console(highlight=False, width=wide.measure(shown).maximum).print(shown)  # a figure is never cut off
    for line in notes(lines, references):
        console.print(line)
    console.print(
        f"On {first.hardware}, {first.precision}; torch {first.versions['torch']}, l2i {first.versions['l2i']}."
    )
    path = Path(options.out) / f"{table}.json"
    write_whole(path, (json.dumps(kept(lines, references), indent=2) + "\n").encode())
    console.print(f"Kept in {path}.")


def notes(lines: list[Line], references: dict[str, float]) -> list[str]:
    """What one has to know to read the table."""
    first = lines[0].results[0]
    found = [f"{first.figure_name}: {first.definition}."]
    if any(line.same_steps for line in lines):
        found.append(
            "Δ: L2I minus its baseline, paired by seed, after as many steps or as long a time; below 0, L2I is better."
        )
    beside = max(result.at_once for line in lines for result in line.results)
    found.append(f"seconds: of a run, on average{f', {beside} side by side' if beside > 1 else ''}.")
    shorter = [line for line in lines if line.paper and line.paper_steps and line.steps != line.paper_steps]
    found += dict.fromkeys(budget(line) for line in shorter)  # each once
    marked = {line.name: line.paper for line in lines} | {name: figures().get(name) for name in references}
    found += [f"* {name}: {figure.note}." for name, figure in marked.items() if figure and figure.note]
    for line in lines:
        shared = {result.at_once for each in (line, line.same_steps) if each for result in each.results}
        if len(shared) > 1:
            found.append(f"Mind that {line.name} and its baseline shared the device with other runs to another extent.")
        if line.same_time and not 0.9 < line.time() / line.same_time.time() < 1.1:
            found.append(
                f"Mind that {line.name} and its 'longer' baseline differ in time: the machine was not at rest."
            )
        found += [f"warning: {line.name}, seed {r.seed}: {told}" for r in line.results for told in r.warnings]
    return found


def budget(line: Line) -> str:
    """How far a run of ours is from the paper's."""
    assert line.paper_steps is not None
    share = 100 * line.steps / line.paper_steps
    return (
        f"paper: as printed there, after {line.paper_steps:,} steps; ours took {line.steps:,.0f}, {share:.2g} % of it, "
        "with schedules scaled: such figures are not to be expected to agree."
    )


def kept(lines: list[Line], references: dict[str, float]) -> list[dict[str, Any]]:
    """The table as JSON."""
    return [{"cell": name, "figure": value} for name, value in references.items()] + [
        {
            "cell": line.name,
            "paper": None if line.paper is None else line.paper._asdict(),
            "paper_steps": line.paper_steps,
            "runs": [asdict(result) for result in line.results],
        }
        for line in lines
    ]


def planned(table: str, options: CompareOptions) -> list[str]:
    """What would be trained, a cell a line."""
    found = recipes.table(table)
    lines = []
    for cell, runs in plan(found, options).items():
        for run in runs:
            check(folder_of(run), placed(run))
        done = sum(is_done(run) for run in runs)
        steps = f"{runs[0].steps:,} of the recipe's {found.run(cell).steps:,} steps"
        paper = f", the paper's figure {found.figure(cell)}" if found.figure(cell) else ""
        count = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
        lines.append(f"{cell}: {count}, {done} done already, {steps}{paper}")
    return lines


def is_done(run: Run) -> bool:
    """Whether a run has its result already."""
    return run.out is not None and Path(run.out).exists() and read_result(Path(run.out)) is not None
