"""The command `python -m benchmarks.ablation_cpu`: train missing runs, or show stored ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from l2i.cli import report_errors, run_and_exit
from l2i.cli.parsing import handle_help_flag, parse_options, print_stderr
from l2i.errors import InputError
from l2i.experiments.options import DataLocation
from l2i.files.terminal import print_utf8
from l2i.registry import make_unknown_error
from l2i.torchrun import world_size

if TYPE_CHECKING:
    from benchmarks.ablation_cpu.runner import AblationStudy
    from benchmarks.ablation_cpu.store import Record


DEFAULT_FOLDER = "benchmarks/ablation_cpu/results"


@dataclass(frozen=True, kw_only=True)
class AblationOptions:
    """Train small problems without L2I, with L2I, with a control, and with single changes to L2I.

    PROBLEM is one or more names, such as digits-fixmatch; all by default ('--dry-run' lists them).
    Stored runs are not trained again, so an interrupted ablation resumes. Several processes may
    share a folder if each has its own problems, part or seeds.
    """

    part: Literal["pace", "tuning", "arms", "settings", "dynamics", "all"] = "all"
    """pace: the slowdown of a step by L2I; tuning: learning rate and λ of each arm, by validation
    error; arms: the tuned arms on fresh seeds; settings: one setting of L2I changed at a time;
    dynamics: runs probed during training. With --from, the part to show."""
    seeds: str | None = None
    """FIRST:LAST, the seeds from FIRST up to but not including LAST; by default 0:8 for arms, 0:5
    for settings and 0:3 for dynamics."""
    save_results: str = DEFAULT_FOLDER
    """Folder for the records: PROBLEM.jsonl, one line per run."""
    dry_run: bool = False
    """Print what would be trained, and train nothing."""
    from_: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """Train nothing: print the tables of the records in such a folder."""
    markdown: bool = False
    """With --from, print the tables as Markdown, as in benchmarks/ablation_cpu/README.md."""
    plots: str | None = None
    """With --from, folder to write gains.png, settings.png and dynamics.png to."""
    data: DataLocation = field(default_factory=DataLocation)
    """Location of the data."""


PROG = "python -m benchmarks.ablation_cpu"
DEFAULT_SEEDS: dict[str, Sequence[int]] = {
    "arms": range(8),
    "settings": range(5),
    "dynamics": range(3),
}
READ_ONLY_OPTIONS = ("from_", "markdown", "plots")  # only for stored records


def run_command(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; errors are one line on stderr."""
    return report_errors(run_ablation, arguments)


def run_ablation(arguments: list[str]) -> int:
    """Train, describe or show the parts that the arguments select."""
    if world_size() > 1:
        raise InputError(f"'{PROG}' runs in one process; start it without torchrun")
    handle_help_flag(arguments, AblationOptions, f"{PROG} [PROBLEM …]")
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    options = parse_options(AblationOptions, arguments[len(names) :], PROG, AblationOptions())
    check_options(options)
    from benchmarks.ablation_cpu.grid import PROBLEMS

    for name in names:
        if name not in PROBLEMS:
            raise make_unknown_error(
                "problem", name, list(PROBLEMS), help_command=f"{PROG} --dry-run"
            )
    if options.from_ is not None:
        show_results(names or list(PROBLEMS), options.from_, options)
    elif options.dry_run:
        for ablation, part, seeds in plan_parts(names, options):
            print(describe_part(ablation, part, seeds))
    else:
        train_missing(names, options)
    return 0


def check_options(options: AblationOptions) -> None:
    """Raise if options exclude each other."""
    for option in fields(options):
        is_set = getattr(options, option.name) != getattr(AblationOptions(), option.name)
        flag = (
            "--data.root"
            if option.name == "data"
            else f"--{option.name.strip('_').replace('_', '-')}"
        )
        if is_set and options.from_ is not None and option.name not in (*READ_ONLY_OPTIONS, "part"):
            raise InputError(
                f"{flag} cannot be combined with --from, which trains nothing; leave one of them "
                "out"
            )
        if is_set and options.from_ is None and option.name in READ_ONLY_OPTIONS:
            raise InputError(f"{flag} shows stored records; add --from {options.save_results}")


def parse_seeds(options: AblationOptions) -> range | None:
    """Return the seeds set by the options, if any."""
    from benchmarks.ablation_cpu.grid import TUNING_SEEDS

    if options.seeds is None:
        return None
    if options.part in ("pace", "tuning"):
        raise InputError(
            f"--seeds has no effect on --part {options.part}, whose seeds are fixed; leave it out"
        )
    match = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", options.seeds)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not first < last <= TUNING_SEEDS[0]:
        raise InputError(
            "--seeds takes FIRST:LAST, such as 0:8 for the seeds 0 to 7; seeds from "
            f"{TUNING_SEEDS[0]:,} on are for tuning; got '{options.seeds}'"
        )
    return range(first, last)


def plan_parts(
    names: list[str], options: AblationOptions
) -> Iterator[tuple[AblationStudy, str, Sequence[int]]]:
    """Yield the parts of each problem with their seeds, in training order."""
    from benchmarks.ablation_cpu.grid import PROBLEMS, TUNING_SEEDS
    from benchmarks.ablation_cpu.runner import DYNAMICS_PROBLEMS, AblationStudy
    from benchmarks.ablation_cpu.store import PARTS, RecordStore

    custom_seeds = parse_seeds(options)
    for name in names or PROBLEMS:
        store = RecordStore(Path(options.save_results) / f"{name}.jsonl")
        ablation = AblationStudy(
            PROBLEMS[name], store, options.data.root, lambda line: print_stderr(line, 0)
        )
        for part in PARTS if options.part == "all" else (options.part,):
            if (
                part != "dynamics"
                or name in DYNAMICS_PROBLEMS
                or (names and options.part == "dynamics")
            ):
                yield ablation, part, custom_seeds or DEFAULT_SEEDS.get(part, TUNING_SEEDS)


def train_missing(names: list[str], options: AblationOptions) -> None:
    """Train what is not stored yet; progress is one line per run on stderr."""
    from benchmarks.ablation_cpu.runner import training_dynamics

    parts = list(plan_parts(names, options))
    try:
        Path(options.save_results).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{options.save_results} cannot be a folder ({error.strerror}); choose a different "
            "--save-results"
        ) from None
    for ablation, part, seeds in parts:
        if part == "pace":
            ablation.get_slowdown()
        elif part == "tuning":
            ablation.tune_arms()
        elif part == "arms":
            ablation.compare_arms(seeds)
        elif part == "settings":
            ablation.run_settings(seeds)
        else:
            training_dynamics(ablation, seeds)
    print(
        f"Saved to {options.save_results}; '{PROG} --from {options.save_results}' shows the tables."
    )


def describe_part(ablation: AblationStudy, part: str, seeds: Sequence[int]) -> str:
    """Describe how many runs a part has, and how many of them are stored."""
    lines, run_keys = ablation.store.read_records(), list_run_keys(ablation, part, seeds)
    num_stored = sum(any(run_key.items() <= line.items() for line in lines) for run_key in run_keys)
    unit = "measurement" if part == "pace" else "run"
    count = f"{len(run_keys)} {unit}{'s' * (len(run_keys) > 1)}"
    return f"{ablation.problem.name}, {part}: {count}, {num_stored} stored"


def list_run_keys(ablation: AblationStudy, part: str, seeds: Sequence[int]) -> list[Record]:
    """Return the fields that identify each run of a part."""
    from benchmarks.ablation_cpu.grid import ARMS, DYNAMICS_ARMS, TUNING_GRID, iter_settings

    if part == "pace":
        return [{"part": part}]
    if part == "tuning":
        pairs = {arm: list(TUNING_GRID) for arm in ARMS}
    elif part == "arms":
        try:
            pairs = {arm: [ablation.select_hyperparameters(arm)] for arm in ARMS}
        except InputError:  # not tuned yet, so nothing can be stored
            pairs = {arm: [(0.0, 0.0)] for arm in ARMS}
    else:
        names = (
            DYNAMICS_ARMS
            if part == "dynamics"
            else (name for name, _ in iter_settings(ablation.problem.make_run("l2i")))
        )
        return [{"part": part, "arm": name, "seed": seed} for name in names for seed in seeds]
    return [
        {"part": part, "arm": arm, "seed": seed, "lr": lr, "weight": weight}
        for arm in ARMS
        for lr, weight in pairs[arm]
        for seed in seeds
    ]


def show_results(names: list[str], folder: str, options: AblationOptions) -> None:
    """Print the tables of stored records, and plot them if requested."""
    from benchmarks.ablation_cpu.results import load_results
    from benchmarks.ablation_cpu.tables import build_sheets, print_sheet, render_sheet_markdown

    results = load_results(folder, names)
    result_sheets = [
        sheet for sheet in build_sheets(results) if options.part in (sheet.part, "all")
    ]
    if not result_sheets:
        print_stderr(
            f"{folder} has no complete part to show; '{PROG} --save-results {folder}' resumes", 0
        )
    elif incomplete := [
        result.problem.name
        for result in results
        if result.select_records(part="arms") and not result.get_arm_metrics()
    ]:
        print_stderr(
            f"left out of the arms as incomplete: {', '.join(incomplete)}; '{PROG} "
            f"--save-results {folder}' resumes",
            0,
        )
    if options.markdown:
        with_heading = options.part == "all"
        print_utf8(
            "\n".join(
                render_sheet_markdown(sheet, with_heading=with_heading) for sheet in result_sheets
            )
        )
    else:
        for sheet in result_sheets:
            print_sheet(sheet)
    if options.plots is not None:
        from benchmarks.ablation_cpu.plots import save_plots

        print(
            *save_plots(results, options.plots),
            sep="\n",
            file=sys.stderr if options.markdown else sys.stdout,
        )


if __name__ == "__main__":
    run_and_exit(run_command)
