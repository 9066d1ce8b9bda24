"""The cells of a table over several seeds: each baseline against L2I on the same splits, and given as much time."""

from __future__ import annotations

import sys
from pathlib import Path

from l2i import recipes
from l2i.arguments import parsed
from l2i.config import Run, replace
from l2i.errors import InputError
from l2i.kept import Kept, kept_in, read_kept
from l2i.lines import Line, lines_of, longer_of, short
from l2i.options import CompareOptions
from l2i.recipes.cells import Table
from l2i.registry import unknown
from l2i.training.folder import Result
from l2i.training.together import train_together
from l2i.validate import validate

OWN = ("name", "seed", "steps", "out", "device", "precision", "engine", "data.root")  # fields with options of their own


def compare(name: str, options: CompareOptions) -> list[Line]:
    """Train what the options ask for, or read what was kept, and return the table's lines."""
    table = recipes.table(name)
    if options.from_ is not None:
        return kept_lines(table, options)
    return lines_of(table, train_cells(table, options))


def kept_lines(table: Table, options: CompareOptions) -> list[Line]:
    """The lines of the cells that --cells names, or of all, from the results that --from holds."""
    wanted, kept = [full(cell, table) for cell in options.cells], read_kept(table, options)
    for cell in wanted:
        if cell not in kept.results:
            raise InputError(
                f"{kept.folder} has no results of {cell} ({kept.path(cell, 0).name}, …); leave it out of --cells, or "
                f"'l2i compare {table.name} --cells {short(cell)} --keep {options.from_}' trains it"
            )
    lines = lines_of(table, {name: list(results.values()) for name, results in kept.results.items()})
    kept.alike(lines)
    shown = {*wanted, *(longer_of(cell, table) for cell in wanted if table.baseline(cell) is not None)}
    return [line for line in lines if line.name in shown or not wanted]


def train_cells(table: Table, options: CompareOptions) -> dict[str, list[Result]]:
    """The results of each cell, and of each baseline given as much time; baselines come first."""
    planned = plan(table, options)
    if options.mechanism is not None:
        check_probed(table, planned)
    kept = keeping(table, options)
    if kept is not None:
        for runs in planned.values():
            kept.those(runs)  # what does not fit is found before anything is trained
    found: dict[str, list[Result]] = {}
    for cell, runs in planned.items():
        results = trained(runs, options, kept)
        base = found.get(table.baseline(cell) or "")
        if base is not None and options.equal_time:
            found[longer_of(cell, table)] = trained(as_long(table, cell, base, results, options), options, kept)
        found[cell] = results
    return found


def check_probed(table: Table, planned: dict[str, list[Run]]) -> None:
    """That there will be something to tell of imputing, before anything is trained."""
    pairs = [(runs[0], planned[base][0]) for cell, runs in planned.items() if (base := table.baseline(cell)) in planned]
    if not any(run.probe and base.probe for run, base in pairs):
        raise InputError(
            "--mechanism needs a cell with L2I beside its baseline, both probed; name both in --cells, and give "
            "--change probe=1000"
        )


def keeping(table: Table, options: CompareOptions) -> Kept | None:
    """The folder of --keep, ready to be written to."""
    if options.keep is None:
        return None
    kept = kept_in(options.keep, table)
    try:
        kept.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{kept.folder} cannot be a folder ({error.strerror}); give another --keep") from None
    return kept


def plan(table: Table, options: CompareOptions) -> dict[str, list[Run]]:
    """The runs of each cell, one a seed, checked; baselines come first."""
    seeds = table.seeds if options.seeds is None else options.seeds
    if seeds < 1:
        raise InputError(f"seeds={seeds} must be at least 1")
    if options.at_once < 0:
        raise InputError(f"at_once={options.at_once} must be at least 1, or 0 for as many as that makes faster")
    wanted = [full(cell, table) for cell in options.cells] or list(table.compared)
    cells = sorted(dict.fromkeys(wanted), key=lambda cell: table.cells[cell].update != "off")
    planned = {cell: [at(table.run(cell), options, seed=seed) for seed in range(seeds)] for cell in cells}
    for runs in planned.values():
        validate(runs[0])
    return planned


def full(cell: str, table: Table) -> str:
    """A cell's whole name."""
    name = cell if cell in table.cells else f"{table.name}/{cell}"
    if name not in table.cells and cell in recipes.names():
        raise InputError(f"{cell} is a cell of another table; compare the cells of one table at a time")
    if name not in table.cells:
        raise unknown("recipe", cell, [known.partition("/")[2] or known for known in table.cells])
    return name


def at(run: Run, options: CompareOptions, *, seed: int, steps: int | None = None) -> Run:
    """A cell's run at one seed, in a folder of its own."""
    out = str(Path(options.out) / f"{run.name.replace('/', '-')}-seed{seed}")
    wanted = next(s for s in (steps, options.steps, run.steps) if s is not None)
    placed = replace(changed(run, options.change), data={"root": options.data.root})
    how = {"device": options.device, "precision": options.precision, "engine": options.engine}
    return replace(placed, seed=seed, steps=wanted, out=out, **how)


def changed(run: Run, changes: tuple[str, ...]) -> Run:
    """The run with the fields that `changes` name, as FIELD=VALUE."""
    words = [word for change in changes for word in flags_of(change)]
    try:
        return parsed(Run, words, "l2i train RECIPE", run) if words else run
    except InputError as error:
        raise InputError(f"{run.name}: {error}") from None  # what one cell has another may lack


def flags_of(change: str) -> list[str]:
    """FIELD=VALUE as the command line of a run takes it: of true and false, a flag or its opposite."""
    name, equals, value = change.partition("=")
    if not equals or name.startswith("-"):
        raise InputError(f"--change takes FIELD=VALUE, as in --change optim.lr=0.001; it was given '{change}'")
    if name.replace("-", "_") in OWN:
        raise InputError(f"--change {name}: 'l2i compare' has an option of its own for that; see its --help")
    section, dot, field = name.replace("_", "-").rpartition(".")
    return {
        "true": [f"--{section}{dot}{field}"],
        "false": [f"--{section}{dot}no-{field}"],
    }.get(value.lower(), [f"--{section}{dot}{field}", value])


def trained(runs: list[Run], options: CompareOptions, kept: Kept | None) -> list[Result]:
    """Train those that are not kept, say so in a line a run, and keep them."""
    results = {} if kept is None else kept.those(runs)
    if kept is not None and results:
        print(f"{runs[0].name}: {len(results)} of {len(runs)} seeds are in {kept.folder}", file=sys.stderr, flush=True)
    left = [run for run in runs if run.seed not in results]
    for run, result in zip(left, train_together(left, at_once=options.at_once) if left else (), strict=True):
        print(result.short(), file=sys.stderr, flush=True)
        if kept is not None:
            kept.add(run)
        results[run.seed] = result
    return [results[run.seed] for run in runs]


def as_long(table: Table, cell: str, base: list[Result], imputed: list[Result], options: CompareOptions) -> list[Run]:
    """The baseline's runs with so many steps that each seed takes as long as it did with L2I."""
    run = replace(table.run(base[0].name), name=longer_of(cell, table))
    return [
        at(run, options, seed=b.seed, steps=max(1, round(b.steps * i.seconds / b.seconds)))
        for b, i in zip(base, imputed, strict=True)
    ]
