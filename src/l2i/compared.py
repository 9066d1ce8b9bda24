"""What `l2i compare` prints and keeps: our figures beside the paper's, and how the budgets differ."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from l2i import recipes
from l2i.arguments import print_exactly
from l2i.compare import plan
from l2i.config import Run
from l2i.curves import MINUTE, draw
from l2i.errors import InputError
from l2i.kept import kept_in, references
from l2i.kept_settings import departure
from l2i.lines import Line, short
from l2i.mechanism import READING, Pair, course, drawn, pairs_of
from l2i.options import CompareOptions
from l2i.recipes.cells import figures
from l2i.statistic import with_error
from l2i.tabular import Columns, markdown, print_whole, rendered, rows_of
from l2i.training.build import placed
from l2i.training.checkpoint import write_whole
from l2i.training.folder import Result, check, folder_of, read_result

UNITS = {"seconds": 1.0, "minutes": MINUTE}
OPTIONAL = ("paper", "Δ same time", "Δ control")  # columns that are left out where no line has any


def columns(lines: list[Line], given: dict[str, float]) -> Columns:
    """The table by its headings: a row a figure that is given, then a row a line."""
    blank = [""] * len(given)
    found = {
        "cell": [short(name) for name in (*given, *(line.name for line in lines))],
        lines[0].results[0].figure_name: [f"{v:.2f}" for v in given.values()]
        + [with_error(x.figures, x.digits) for x in lines],
        "paper": [str(figures().get(name, "")) for name in given] + [str(line.paper or "") for line in lines],
        "Δ same steps": blank + [line.gain(line.same_steps) for line in lines],
        "Δ same time": blank + [line.gain(line.same_time) for line in lines],
        "Δ control": blank + [line.gain(line.control) for line in lines],
        "seeds": blank + [str(len(line.results)) for line in lines],
        "steps": blank + [f"{line.steps:.0f}" for line in lines],
        unit(lines): blank + [f"{line.time() / UNITS[unit(lines)]:.1f}" for line in lines],
    }
    return {heading: cells for heading, cells in found.items() if heading not in OPTIONAL or any(cells)}


def unit(lines: list[Line]) -> str:
    """What the times of a table are told in."""
    return "seconds" if max(line.time() for line in lines) < MINUTE else "minutes"


def told(table: str, lines: list[Line], given: dict[str, float]) -> tuple[Columns, str]:
    """The table as a person reads it, and its title."""
    found, counts = columns(lines, given), {len(line.results) for line in lines}
    if len(counts) == 1:
        del found["seeds"]  # the title says it
    seeds = f", {min(counts)} seed{'s' * (min(counts) > 1)}" if len(counts) == 1 else ""
    return found, f"{table}, test set{seeds}: mean ± standard error"


def for_page(lines: list[Line], given: dict[str, float]) -> Columns:
    """The table as docs/results.md has it."""
    return {f"{heading} a run" if heading in UNITS else heading: c for heading, c in columns(lines, given).items()}


def report(table: str, lines: list[Line], options: CompareOptions) -> None:
    """Print the table, and keep that of runs as JSON beside them."""
    given = references(recipes.table(table), options)
    if options.markdown:
        print_exactly(markdown(rows_of(for_page(lines, given))))
    else:
        shown, title = told(table, lines, given)
        print_whole(rendered(rows_of(shown), title=title))
    console = Console(highlight=False, markup=False, soft_wrap=True, stderr=options.markdown)
    for line in notes(lines, given):
        console.print(line)
    if options.from_ is None:
        path = Path(options.out) / f"{table}.json"
        path.parent.mkdir(parents=True, exist_ok=True)  # where all was kept, nothing was trained
        write_whole(path, (json.dumps(as_json(lines, given), indent=2) + "\n").encode())
        console.print(f"Kept in {path}{'' if options.keep is None else f', the results in {options.keep}'}.")
    if options.plot is not None:
        console.print(f"Drawn in {draw(recipes.table(table), lines, options)}.")
    if options.mechanism is not None:
        report_mechanism(table, pairs_of(recipes.table(table), lines, options), options, console)


def report_mechanism(table: str, pairs: list[Pair], options: CompareOptions, console: Console) -> None:
    """Print what imputing did on the way, and draw it."""
    rows = rows_of(course(pairs))
    if options.markdown:
        print_exactly(markdown(rows))
    else:
        print_whole(rendered(rows, title=f"{table}: what imputing does on the way"))
    for line in READING:
        console.print(line)
    console.print(f"Drawn in {drawn(pairs, Path(options.mechanism or ''))}.")


def notes(lines: list[Line], given: dict[str, float]) -> list[str]:
    """What one has to know to read the table."""
    results = [result for line in lines for result in line.results]
    found = [f"{result.figure_name}: {result.definition}." for result in results]
    if any(line.same_steps for line in lines):
        found.append(
            "Δ: a cell minus its baseline, paired by seed, after as many steps or as long a time; below 0, the cell is "
            "better."
        )
    if any(line.control for line in lines):
        found.append(
            "Δ control: L2I minus its control, whose outer step takes the hold-out samples as more labelled ones, and "
            "imputes nothing; below 0, L2I is better."
        )
    beside = max(result.at_once for result in results)
    found.append(f"{unit(lines)}: of a run, on average{f', {beside} side by side' if beside > 1 else ''}.")
    found += departures(results)
    found += [budget(x) for x in lines if x.paper and x.paper_steps and (x.own_budget or x.steps != x.paper_steps)]
    marked = {line.name: line.paper for line in lines} | {name: figures().get(name) for name in given}
    found += [f"* {name}: {figure.note}." for name, figure in marked.items() if figure and figure.note]
    found += [told for line in lines for told in doubts(line)]
    versions = [f"torch {r.versions['torch']}, l2i {r.versions['l2i']}" for r in results]
    found += [f"On {r.hardware}, {r.precision}; {told}." for r, told in zip(results, versions, strict=True)]
    return list(dict.fromkeys(found))  # each once


def departures(results: list[Result]) -> list[str]:
    """What is not as the recipes have it, each once, with the cells that it is said of."""
    said: dict[str, dict[str, None]] = {}
    for result in results:
        if told := departure(result):
            said.setdefault(told, {})[result.name] = None
    return [f"{', '.join(names)}: with {told}, which is not the recipe's." for told, names in said.items()]


def doubts(line: Line) -> list[str]:
    """What makes a line, or its differences, doubtful."""
    found = []
    shared = {result.at_once for each in (line, line.same_steps) if each for result in each.results}
    if len(shared) > 1:
        whose = f"the runs of {line.name}" if line.same_steps is None else f"{line.name} and its baseline"
        found.append(f"Mind that {whose} shared the device with other runs to another extent.")
    if line.same_time and not 0.9 < line.time() / line.same_time.time() < 1.1:
        found.append(f"Mind that {line.name} and its 'longer' baseline differ in time: the machine was not at rest.")
    for other in line.against:
        both, counts = len(other.seeds & line.seeds), f"{len(line.seeds)} and {len(other.seeds)}"
        pair = f"Mind that {line.name} and {other.name}, of {counts} seeds, share"
        if other.seeds != line.seeds:
            found.append(
                f"{pair} {both}: Δ is over {'those' if both > 1 else 'that one'}." if both else f"{pair} none."
            )
    return found + [f"warning: {line.name}, seed {r.seed}: {told}" for r in line.results for told in r.warnings]


def budget(line: Line) -> str:
    """How far a run of ours is from the paper's."""
    assert line.paper_steps is not None
    share = 100 * line.steps / line.paper_steps
    how = "on a schedule of our own (--dry-run shows it)" if line.own_budget else "with schedules scaled"
    return (
        f"paper: as printed there, after {line.paper_steps:,} steps; ours took {line.steps:,.0f}, {share:.2g} % of it, "
        f"{how}: such figures are not to be expected to agree."
    )


def as_json(lines: list[Line], given: dict[str, float]) -> list[dict[str, Any]]:
    """The table as JSON."""
    return [{"cell": name, "figure": value} for name, value in given.items()] + [
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
    if options.markdown:
        raise InputError("--markdown does not go with --dry-run, which prints no table; leave one of them out")
    found = recipes.table(table)
    kept = None if options.keep is None else kept_in(options.keep, found)
    lines = []
    for cell, runs in plan(found, options).items():
        there = {} if kept is None else kept.those(runs)
        left = [run for run in runs if run.seed not in there]
        for run in left:
            check(folder_of(run), placed(run))
        done = len(there) + sum(is_done(run) for run in left)
        steps = f"{runs[0].steps:,} of the recipe's {found.run(cell).steps:,} steps"
        paper = f", the paper's figure {found.figure(cell)}" if found.figure(cell) else ""
        count = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
        lines.append(f"{cell}: {count}, {done} done already, {steps}{paper}")
    return lines


def is_done(run: Run) -> bool:
    """Whether a run has its result already."""
    return run.out is not None and Path(run.out).exists() and read_result(Path(run.out)) is not None
