"""The command `l2i study`: it trains what is not kept yet, or shows what is; heavy imports wait for its words."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from l2i.arguments import explained, parsed, print_exactly, tell
from l2i.errors import InputError
from l2i.options import StudyOptions
from l2i.registry import unknown

if TYPE_CHECKING:
    from l2i.study.plan import Study
    from l2i.study.trial import Line

SEEDS: dict[str, Sequence[int]] = {"arms": range(8), "settings": range(5), "course": range(3)}
READING = ("from_", "markdown", "plots")  # options that matter where nothing is trained


def study(arguments: list[str]) -> int:
    """Small problems, trained and compared."""
    explained(arguments, StudyOptions, "l2i study [PROBLEM …]")
    names = list(takewhile(lambda word: not word.startswith("-"), arguments))
    options = parsed(StudyOptions, arguments[len(names) :], "l2i study", StudyOptions())
    refused(options)
    from l2i.study.problems import PROBLEMS

    for name in names:
        if name not in PROBLEMS:
            raise unknown("problem", name, list(PROBLEMS), where="l2i study --dry-run")
    if options.from_ is not None:
        read(names or list(PROBLEMS), options.from_, options)
    elif options.dry_run:
        for each, part, seeds in planned(names, options):
            print(counted(each, part, seeds))
    else:
        train(names, options)
    return 0


def refused(options: StudyOptions) -> None:
    """Raise where options do not go together."""
    for field in fields(options):
        given = getattr(options, field.name) != getattr(StudyOptions(), field.name)
        flag = "--data.root" if field.name == "data" else f"--{field.name.strip('_').replace('_', '-')}"
        if given and options.from_ is not None and field.name not in READING:
            raise InputError(f"{flag} does not go with --from, which trains nothing; leave one of them out")
        if given and options.from_ is None and field.name in READING:
            raise InputError(f"{flag} shows what is kept; add --from {options.keep}")


def seeds_of(options: StudyOptions) -> range | None:
    """The seeds that are asked for."""
    from l2i.study.problems import TUNING

    if options.seeds is None:
        return None
    if options.part in ("pace", "tuning"):
        raise InputError(f"--seeds does not matter for --part {options.part}, whose seeds are fixed; leave it out")
    match = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", options.seeds)
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not first < last <= TUNING[0]:
        raise InputError(
            f"--seeds takes FIRST:LAST, as 0:8 for the seeds 0 to 7, below the {TUNING[0]:,} that settings are chosen "
            f"on; it was given '{options.seeds}'"
        )
    return range(first, last)


def planned(names: list[str], options: StudyOptions) -> Iterator[tuple[Study, str, Sequence[int]]]:
    """The parts of each problem, in the order in which they are trained, with their seeds."""
    from l2i.study.book import Book
    from l2i.study.course import COURSE
    from l2i.study.found import PARTS
    from l2i.study.plan import Study
    from l2i.study.problems import PROBLEMS, TUNING

    given = seeds_of(options)
    for name in names or PROBLEMS:
        book = Book(Path(options.keep) / f"{name}.jsonl")
        each = Study(PROBLEMS[name], book, options.data.root, lambda line: tell(line, 0))
        for part in PARTS if options.part == "all" else (options.part,):
            if part != "course" or name in COURSE or (names and options.part == "course"):
                yield each, part, given or SEEDS.get(part, TUNING)


def train(names: list[str], options: StudyOptions) -> None:
    """Train what is not kept yet, a line a run on stderr."""
    from l2i.study.course import course

    parts = list(planned(names, options))
    try:
        Path(options.keep).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{options.keep} cannot be a folder ({error.strerror}); give another --keep") from None
    for each, part, seeds in parts:
        if part == "pace":
            each.pace()
        elif part == "tuning":
            each.tuning()
        elif part == "arms":
            each.arms(seeds)
        elif part == "settings":
            each.settings(seeds)
        else:
            course(each, seeds)
    print(f"Kept in {options.keep}; 'l2i study --from {options.keep}' shows it.")


def counted(each: Study, part: str, seeds: Sequence[int]) -> str:
    """How much of a part is there, and how much is to be trained."""
    lines, wanted = each.book.lines(), runs(each, part, seeds)
    kept = sum(any(about.items() <= line.items() for line in lines) for about in wanted)
    what = "measurement" if part == "pace" else "run"
    return f"{each.problem.name}, {part}: {len(wanted)} {what}{'s' * (len(wanted) > 1)}, {kept} kept already"


def runs(each: Study, part: str, seeds: Sequence[int]) -> list[Line]:
    """What tells the runs of a part from others."""
    from l2i.study.problems import ARMS, TRIALS, WATCHED
    from l2i.study.settings import fitting

    if part == "pace":
        return [{"part": part}]
    if part == "tuning":
        pairs = {arm: list(TRIALS) for arm in ARMS}
    elif part == "arms":
        try:
            pairs = {arm: [each.chosen(arm)] for arm in ARMS}
        except InputError:  # not tuned yet, so that nothing can be kept
            pairs = {arm: [(0.0, 0.0)] for arm in ARMS}
    else:
        names = WATCHED if part == "course" else (name for name, _ in fitting(each.problem.run("l2i")))
        return [{"part": part, "arm": name, "seed": seed} for name in names for seed in seeds]
    return [
        {"part": part, "arm": arm, "seed": seed, "lr": lr, "weight": weight}
        for arm in ARMS
        for lr, weight in pairs[arm]
        for seed in seeds
    ]


def read(names: list[str], folder: str, options: StudyOptions) -> None:
    """Show what is kept."""
    from l2i.study.found import found_in
    from l2i.study.tables import as_markdown, sheets, show

    found = found_in(folder, names)
    made = sheets(found)
    if not made:
        tell(f"{folder} has no part yet that is complete; 'l2i study --keep {folder}' goes on", 0)
    elif begun := [each.problem.name for each in found if each.those(part="arms") and not each.arms()]:
        tell(f"not complete yet, so not among the arms: {', '.join(begun)}; 'l2i study --keep {folder}' goes on", 0)
    if options.markdown:
        print_exactly("\n".join(as_markdown(sheet, str(Path(folder))) for sheet in made))
    else:
        for sheet in made:
            show(sheet)
    if options.plots is not None:
        from l2i.study.plots import draw

        print(*draw(found, options.plots), sep="\n", file=sys.stderr if options.markdown else sys.stdout)
