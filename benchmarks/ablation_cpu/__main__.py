"""The command `python -m benchmarks.ablation`: train what is missing, or show what is stored."""

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
from l2i.files.output import print_utf8
from l2i.registry import make_unknown_error
from l2i.torchrun import world_size

if TYPE_CHECKING:
    from benchmarks.ablation.runner import AblationStudy
    from benchmarks.ablation.store import Record


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Train small problems without L2I, with it, with its control, and with single changes.

    PROBLEM is one or more names, as digits-fixmatch; all by default ('--dry-run' shows them).
    Stored runs are not trained again, so that an interrupted study resumes. Several processes may
    share a folder, each with its own
    problems, part or seeds: what two of them begin at the same time is trained twice.
    """

    part: Literal["pace", "tuning", "arms", "settings", "course", "all"] = "all"
    """pace: how much longer a step takes with L2I; tuning: a rate and a λ for each arm, by
    validation error; arms: the tuned arms, on fresh seeds; settings: one of L2I's changed at a
    time; course: runs probed during training."""
    seeds: str | None = None
    """FIRST:LAST, the seeds from FIRST up to LAST, exclusive; by default 0:8 for arms, 0:5 for
    settings and 0:3
    for course."""
    save_results: str = "results/study"
    """Folder for what is found, PROBLEM.jsonl, a line a run."""
    dry_run: bool = False
    """Say what would be trained, and train nothing."""
    from_: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """Train nothing: print the tables of what such a folder holds."""
    markdown: bool = False
    """Print the tables as Markdown, as docs/study.md has them."""
    plots: str | None = None
    """With --from, folder to write gains.png, settings.png and course.png to."""
    data: DataLocation = field(default_factory=DataLocation)
    """Where the data is."""


PROG = "python -m benchmarks.ablation"
DEFAULT_SEEDS: dict[str, Sequence[int]] = {
    "arms": range(8),
    "settings": range(5),
    "course": range(3),
}
READ_ONLY_OPTIONS = ("from_", "markdown", "plots")  # options that matter where nothing is trained


def run_command(arguments: Sequence[str]) -> int:
    """Run the study; what goes wrong is one line on stderr."""
    return report_errors(run_study, arguments)


def run_study(arguments: list[str]) -> int:
    """Small problems, trained and compared."""
    if world_size() > 1:
        raise InputError(f"'{PROG}' is for one process; start it without torchrun")
    handle_help_flag(arguments, StudyOptions, f"{PROG} [PROBLEM …]")
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    options = parse_options(StudyOptions, arguments[len(names) :], PROG, StudyOptions())
    check_options(options)
    from benchmarks.ablation.grid import PROBLEMS

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


def check_options(options: StudyOptions) -> None:
    """Raise where options do not go together."""
    for option in fields(options):
        is_set = getattr(options, option.name) != getattr(StudyOptions(), option.name)
        flag = (
            "--data.root"
            if option.name == "data"
            else f"--{option.name.strip('_').replace('_', '-')}"
        )
        if is_set and options.from_ is not None and option.name not in READ_ONLY_OPTIONS:
            raise InputError(
                f"{flag} does not go with --from, which trains nothing; leave one of them out"
            )
        if is_set and options.from_ is None and option.name in READ_ONLY_OPTIONS:
            raise InputError(f"{flag} shows what is kept; add --from {options.save_results}")


def parse_seeds(options: StudyOptions) -> range | None:
    """The seeds that are asked for."""
    from benchmarks.ablation.grid import TUNING_SEEDS

    if options.seeds is None:
        return None
    if options.part in ("pace", "tuning"):
        raise InputError(
            f"--seeds does not matter for --part {options.part}, whose seeds are fixed; leave it "
            "out"
        )
    match = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", options.seeds)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not first < last <= TUNING_SEEDS[0]:
        raise InputError(
            "--seeds takes FIRST:LAST, as 0:8 for the seeds 0 to 7, below the "
            f"{TUNING_SEEDS[0]:,} that settings are chosen "
            f"on; it was given '{options.seeds}'"
        )
    return range(first, last)


def plan_parts(
    names: list[str], options: StudyOptions
) -> Iterator[tuple[AblationStudy, str, Sequence[int]]]:
    """The parts of each problem, in the order in which they are trained, with their seeds."""
    from benchmarks.ablation.grid import PROBLEMS, TUNING_SEEDS
    from benchmarks.ablation.runner import DYNAMICS_PROBLEMS, AblationStudy
    from benchmarks.ablation.store import PARTS, RecordStore

    custom_seeds = parse_seeds(options)
    for name in names or PROBLEMS:
        store = RecordStore(Path(options.save_results) / f"{name}.jsonl")
        ablation = AblationStudy(
            PROBLEMS[name], store, options.data.root, lambda line: print_stderr(line, 0)
        )
        for part in PARTS if options.part == "all" else (options.part,):
            if (
                part != "course"
                or name in DYNAMICS_PROBLEMS
                or (names and options.part == "course")
            ):
                yield ablation, part, custom_seeds or DEFAULT_SEEDS.get(part, TUNING_SEEDS)


def train_missing(names: list[str], options: StudyOptions) -> None:
    """Train what is not kept yet, a line a run on stderr."""
    from benchmarks.ablation.runner import training_dynamics

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
    print(f"Saved to {options.save_results}; '{PROG} --from {options.save_results}' shows it.")


def describe_part(ablation: AblationStudy, part: str, seeds: Sequence[int]) -> str:
    """How much of a part is there, and how much is to be trained."""
    lines, run_keys = ablation.store.read_records(), list_run_keys(ablation, part, seeds)
    num_stored = sum(any(run_key.items() <= line.items() for line in lines) for run_key in run_keys)
    unit = "measurement" if part == "pace" else "run"
    count = f"{len(run_keys)} {unit}{'s' * (len(run_keys) > 1)}"
    return f"{ablation.problem.name}, {part}: {count}, {num_stored} kept already"


def list_run_keys(ablation: AblationStudy, part: str, seeds: Sequence[int]) -> list[Record]:
    """What tells the runs of a part from others."""
    from benchmarks.ablation.grid import ARMS, DYNAMICS_ARMS, TUNING_GRID, iter_settings

    if part == "pace":
        return [{"part": part}]
    if part == "tuning":
        pairs = {arm: list(TUNING_GRID) for arm in ARMS}
    elif part == "arms":
        try:
            pairs = {arm: [ablation.select_hyperparameters(arm)] for arm in ARMS}
        except InputError:  # not tuned yet, so that nothing can be kept
            pairs = {arm: [(0.0, 0.0)] for arm in ARMS}
    else:
        names = (
            DYNAMICS_ARMS
            if part == "course"
            else (name for name, _ in iter_settings(ablation.problem.make_run("l2i")))
        )
        return [{"part": part, "arm": name, "seed": seed} for name in names for seed in seeds]
    return [
        {"part": part, "arm": arm, "seed": seed, "lr": lr, "weight": weight}
        for arm in ARMS
        for lr, weight in pairs[arm]
        for seed in seeds
    ]


def show_results(names: list[str], folder: str, options: StudyOptions) -> None:
    """Show what is kept."""
    from benchmarks.ablation.results import load_results
    from benchmarks.ablation.tables import build_sheets, print_sheet, render_sheet_markdown

    results = load_results(folder, names)
    result_sheets = build_sheets(results)
    if not result_sheets:
        print_stderr(
            f"{folder} has no part yet that is complete; '{PROG} --save-results {folder}' goes on",
            0,
        )
    elif incomplete := [
        result.problem.name
        for result in results
        if result.select_records(part="arms") and not result.get_arm_metrics()
    ]:
        print_stderr(
            f"not complete yet, so not among the arms: {', '.join(incomplete)}; '{PROG} "
            f"--save-results {folder}' goes on",
            0,
        )
    if options.markdown:
        print_utf8(
            "\n".join(render_sheet_markdown(sheet, str(Path(folder))) for sheet in result_sheets)
        )
    else:
        for sheet in result_sheets:
            print_sheet(sheet)
    if options.plots is not None:
        from benchmarks.ablation.plots import save_plots

        print(
            *save_plots(results, options.plots),
            sep="\n",
            file=sys.stderr if options.markdown else sys.stdout,
        )


if __name__ == "__main__":
    run_and_exit(run_command)
