"""What `l2i tune` says: the space, a line a trial, and the best of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from l2i import recipes
from l2i.config import Run, replace
from l2i.recipes.protocol import printed as protocol
from l2i.tune.plan import Plan
from l2i.tune.space import Value, with_values
from l2i.tune.trial import FIGURE, REASON, TEST
from l2i.validate import fields_of


def dry(plan: Plan) -> str:
    """The space, a field a line, and the recipe's protocol."""
    rows = [("field", "from", "to", "scale", "recipe")]
    for path, found in plan.space.items():
        low, high, scale = found.described()
        own = "none" if found.own is None else f"{found.own:g}{'' if found.starts else ' (not searched)'}"
        rows.append((path, f"{low:g}", f"{high:g}", scale, own))
    pruning = "pruned by the median" if plan.prune else "none pruned"
    about = (
        f"{plan.trials} trials of {plan.run.steps:,} steps, {pruning}, chosen on the validation set; in {plan.folder}"
    )
    told = protocol(plan.run, recipes.table_of(plan.recipe), plan.recipe)
    return "\n".join([f"{plan.study}: {about}", *aligned(rows), "", told])


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows with their columns under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def best_of(trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The trained trial with the lowest validation figure; of equal ones the first."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return min(done, key=lambda trial: (trial.value, trial.number), default=None)


def line(plan: Plan, trials: list[FrozenTrial], number: int) -> str:
    """What a trial came to, and with which values."""
    trial, best = trials[number], best_of(trials)
    name = f"validation {trial.user_attrs.get(FIGURE, 'figure')}"
    if trial.state == TrialState.FAIL:
        came = f"failed ({trial.user_attrs.get(REASON, 'for no reason that was put down')})"
    elif trial.state == TrialState.PRUNED:
        came = f"pruned at step {trial.last_step:,}, {name} {trial.value:.2f}"
    else:
        came = f"{name} {trial.value:.2f}"
    so_far = "" if best is None else f", best so far {best.value:.2f} (trial {best.number})"
    values = ", ".join(f"{path} {value:g}" for path, value in values_of(plan, trial).items())
    finished = sum(trial.state.is_finished() for trial in trials)
    return f"trial {number}: {came}; {values} ({finished} of {max(plan.trials, finished)} finished{so_far})"


def values_of(plan: Plan, trial: FrozenTrial) -> dict[str, Value]:
    """The values that a trial was trained with."""
    return {path: found.value(trial.params[path]) for path, found in plan.space.items() if path in trial.params}


def outcome(plan: Plan, trials: list[FrozenTrial]) -> str:
    """How many trials there are, the best of them, and the command that trains it again."""
    states = [trial.state for trial in trials]
    counts = {
        "trained": states.count(TrialState.COMPLETE),
        "pruned": states.count(TrialState.PRUNED),
        "failed": states.count(TrialState.FAIL),
    }
    finished, best = sum(counts.values()), best_of(trials)
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [f"{plan.study}: {finished} of {max(plan.trials, finished)} trials finished: {listed}"]
    left = [str(number) for number, state in enumerate(states[: plan.trials]) if not state.is_finished()]
    if left:
        lines.append(f"other processes are at work on trial {', '.join(left)}; the last one tells the best of all")
    elif best is not None:
        lines += described(plan, trials[0], best, counts["trained"])
    return "\n".join(lines)


def described(plan: Plan, first: FrozenTrial, best: FrozenTrial, count: int) -> list[str]:
    """The best trial: its figures, its values, and how to train it again."""
    name, test = best.user_attrs[FIGURE], best.user_attrs[TEST]
    whole = first.state == TrialState.COMPLETE and all(found.starts for found in plan.space.values())
    recipe = f"; the recipe's own settings, trial 0: {first.value:.2f}" if whole else ""
    rows = [("field", "best", "recipe")]
    for path, value in values_of(plan, best).items():
        own = plan.space[path].own
        rows.append((path, f"{value:g}", "none" if own is None else f"{own:g}"))
    return [
        f"best: trial {best.number}, validation {name} {best.value:.2f}{recipe}",
        *([] if test is None else [f"its test {name}: {test:.2f}, which nothing was chosen by"]),
        *aligned(rows),
        f"The lowest of {count} validation figures looks better than it is: the settings were chosen by it.",
        f"It is in {plan.folder_of(best.number)}; to train it again: {command(plan, best)}",
    ]


def command(plan: Plan, best: FrozenTrial) -> str:
    """The command that trains the run of a trial, in a folder of its own."""
    run = replace(with_values(plan.run, plan.space, best.params), out=str(plan.folder / "best"))
    return shlex.join(["l2i", "train", plan.recipe, *flags(recipes.get(plan.recipe), run)])


def flags(recipe: Run, run: Run) -> list[str]:
    """What turns a recipe into a run, on the command line."""
    own = dict(fields_of(recipe))
    return [word for path, value in fields_of(run) if value != own[path] for word in flag(path, value)]


def flag(path: str, value: Any) -> list[str]:
    """A field on the command line."""
    section, dot, field = path.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return [f"--{section}{dot}{'' if value else 'no-'}{field}"]
    return [f"--{section}{dot}{field}", *map(str, value if isinstance(value, tuple) else [value])]
