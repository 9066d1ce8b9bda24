"""The tables of the study, made of what a folder holds: arms, tuning, settings and the course of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import NamedTuple

from rich.console import Console

from l2i.mechanism import CHANGE, mean_change
from l2i.statistic import with_error
from l2i.study.course import nearest
from l2i.study.found import WITHOUT, Figures, Found, by_seed, differences, in_percent, over, told
from l2i.study.problems import ARMS, TRIALS, TUNING, WATCHED, Arm
from l2i.study.settings import GROUPS, SETTINGS
from l2i.study.trial import Line
from l2i.tabular import markdown, print_whole, rendered

NAMES: dict[Arm, str] = {
    "baseline": "baseline",
    "longer": "baseline, equal time",
    "control": "control",
    "l2i": "L2I",
}
AGAINST: dict[str, Arm] = {"Δ same steps": "baseline", "Δ same time": "longer", "Δ control": "control"}
NONE = "–"
EARLY = 0.1  # share of the steps at which the course is shown, beside its end

Row = Sequence[str]


class Sheet(NamedTuple):
    """What there is to show of a part: a sentence, and tables whose first rows are headings."""

    part: str
    title: str
    tables: list[list[Row]]


def sheets(found: list[Found]) -> list[Sheet]:
    """Those that there are lines for."""
    made = [make(found) for make in (arms, tuning, settings, course)]
    return [sheet for sheet in made if any(len(rows) > 1 for rows in sheet.tables)]


def arms(found: list[Found]) -> Sheet:
    """The comparison on fresh seeds."""
    rows: list[Row] = [("problem", "labels", *NAMES.values(), "time of a step", *AGAINST, "seeds")]
    for each, figures in over(found, Found.arms):
        gains = [gain(figures["l2i"], figures[arm], each.digits) for arm in AGAINST.values()]
        shown = [cell_of(figures[arm], each.digits) for arm in ARMS]
        about = (each.problem.name, str(each.run.data.num_labeled))
        rows.append((*about, *shown, time_of_step(each.pace()), *gains, ranges(list(figures["l2i"]))))
    title = (
        "Test error in %, of diabetes and friedman RMSE, mean ± standard error over seeds; time of a step: with L2I, "
        "times that without; Δ: L2I minus the other, paired by seed; below 0, L2I is better."
    )
    return Sheet("arms", title, [rows])


def time_of_step(pace: float | None) -> str:
    """How many times as long as without L2I, where it was measured."""
    return NONE if pace is None else f"× {pace:.2f}"


def cell_of(figures: Figures, digits: int) -> str:
    """A mean, and how many runs diverged."""
    return with_diverged(figures, with_error(told(figures), digits) if told(figures) else "")


def gain(ours: Figures, theirs: Figures, digits: int) -> str:
    """A paired difference, where there are pairs, and how many where some runs diverged."""
    found = differences(ours, theirs)
    fewer = f" ({len(found)} pair{'s' * (len(found) > 1)})" if len(found) < len(ours) else ""
    return with_error(found, digits, sign="+") + fewer if found else NONE


def ranges(numbers: list[int]) -> str:
    """Numbers in ascending order as 0–3, 8–11."""
    firsts = [each for each in numbers if each - 1 not in numbers]
    lasts = [each for each in numbers if each + 1 not in numbers]
    return ", ".join(f"{a}–{b}" if a < b else f"{a}" for a, b in zip(firsts, lasts, strict=True))


def with_diverged(figures: Figures, cell: str) -> str:
    """A cell, with how many of its runs diverged where some did."""
    count = sum(figure is None for figure in figures.values())
    return ", ".join(filter(None, (cell, f"{count} of {len(figures)} diverged" if count else "")))


def tuning(found: list[Found]) -> Sheet:
    """What each arm was given for the comparison."""
    headings = ("chosen rate", "chosen λ", "validation figure of the choice", "trials × seeds")
    rows: list[Row] = [("problem", "arm", *headings)]
    for each in found:
        rows += [tuned(each, arm) for arm in ARMS if each.those(part="tuning") and each.tuned()]
    title = (
        f"Each arm had the same {len(TRIALS)} trials; the rate and λ are times the recipe's, chosen by the validation "
        "figure, of equal ones the lowest rate, then the lowest λ, on seeds that the comparison does not have."
    )
    return Sheet("tuning", title, [rows])


def tuned(each: Found, arm: Arm) -> Row:
    """An arm's choice."""
    lr, weight = each.chosen(arm)
    lines = each.those(part="tuning", arm=arm, lr=lr, weight=weight)
    validation: Figures = {line["seed"]: line["validation"] for line in lines if line["seed"] in TUNING}
    trials = f"{len(TRIALS)} × {len(validation)}"
    return (each.problem.name, NAMES[arm], f"× {lr:g}", f"× {weight:g}", cell_of(validation, each.digits), trials)


def settings(found: list[Found]) -> Sheet:
    """What a change of one setting comes to: a table a group, a column a problem."""
    columns = over(found, Found.settings)
    tables: list[list[Row]] = []
    for group in GROUPS:
        names = [name for name, of in SETTINGS.items() if of == group and any(name in each for _, each in columns)]
        rows = [(name.removeprefix(f"{group}: "), *(changed(*column, name) for column in columns)) for name in names]
        tables += [[(group, *(each.problem.name for each, _ in columns)), *rows]] if rows else []
    title = (
        "Change of the error, in % of the baseline's: the run minus that without L2I, paired by seed, mean ± standard "
        "error; the first row has the baseline's own figure."
    )
    return Sheet("settings", title, tables)


def changed(each: Found, figures: dict[str, Figures], name: str) -> str:
    """A setting's cell: its change, and the number of seeds where it is not the baseline's."""
    if name not in figures:
        return NONE
    ours, base = figures[name], figures[WITHOUT]
    if name == WITHOUT:
        return f"{cell_of(base, each.digits)} ({seeds(len(base))})"
    found = in_percent(ours, base, base)
    cell = with_error(found, 1, sign="+") if found else ""
    fewer = f" ({seeds(len(ours))})" if len(ours) != len(base) else ""
    return (with_diverged(ours, cell) or NONE) + fewer


def seeds(count: int) -> str:
    """In words."""
    return f"{count} seed{'s' * (count > 1)}"


def course(found: list[Found]) -> Sheet:
    """What happens on the way."""
    headings = (
        "C^H",
        "‖g_outer‖/‖g_base‖",
        "error of the model's labels",
        "change of C^H",
        "change of the test cost",
        "seeds",
    )
    rows: list[Row] = [("problem", "arm", *headings)]
    for each in found:
        for arm in WATCHED:
            if lines := each.those(part="course", arm=arm):
                count = with_diverged(by_seed(lines), str(len(lines)))
                rows.append((each.problem.name, NAMES[arm], *watched(each, lines), count))
    title = (
        "With the recipe's settings, means over seeds. a → b: after a tenth of the steps → at the end. The ratio of "
        f"the gradients is as it came, before ρ. Change: {CHANGE}. There are some ten a run."
    )
    return Sheet("course", title, [rows])


def watched(each: Found, lines: list[Line]) -> Iterator[str]:
    """The cells of an arm's runs, of those that did not diverge."""
    lines = [line for line in lines if line["figure"] is not None and line["course"]]
    digits = each.digits - 1 if each.digits == 2 else each.digits
    yield both(lines, "c_h", lambda value: f"{value:.2g}")
    yield both(lines, "outer_ratio_raw", lambda value: f"{value:.2g}")
    yield both(lines, "imputed", lambda value: f"{value:.{digits}f}")
    for cost in ("c_h", "test_cost"):
        yield mean_change([line["course"] for line in lines], cost)


def both(lines: list[Line], name: str, written: Callable[[float], str]) -> str:
    """A value early and at the end."""
    ends = [(early(line)[name], line["course"][-1][name]) for line in lines if all(name in r for r in line["course"])]
    return " → ".join(written(mean(values)) for values in zip(*ends, strict=True)) or NONE


def early(line: Line) -> Line:
    """The record of a run nearest to a tenth of its steps."""
    records: dict[int, Line] = {record["step"]: record for record in line["course"]}
    return records[nearest(records, EARLY * line["steps"])]


def as_markdown(sheet: Sheet, folder: str) -> str:
    """The block of docs/study.md, with the comments that it stands between."""
    tables = [markdown(rows, code=rows[0][0] == "problem") for rows in sheet.tables]
    start = f"<!-- l2i study --from {folder} --markdown: {sheet.part} -->"
    return "\n".join([f"{start}\n{sheet.title}\n", *tables]) + "<!-- end -->\n"


def show(sheet: Sheet) -> None:
    """Print the tables as a person reads them."""
    Console(highlight=False, markup=False, soft_wrap=True).print(f"{sheet.part}: {sheet.title}")
    for rows in sheet.tables:
        print_whole(rendered(rows, left=("arm",)))
