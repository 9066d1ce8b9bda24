"""What `l2i tune` says: the space, a line a trial, and the best of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from l2i import recipes
from l2i.config import Run, replace
from l2i.config.validate import flatten_fields
from l2i.experiments.tuning.space import SweepPlan, Value, apply_values
from l2i.experiments.tuning.trial import METRIC_ATTR, REASON_ATTR, TEST_ATTR
from l2i.recipes.protocol import format_protocol as render_protocol


def render_dry_run(plan: SweepPlan) -> str:
    """The space, a field a line, and the recipe's protocol."""
    rows = [("field", "from", "to", "scale", "recipe")]
    for path, search_range in plan.space.items():
        low, high, scale = search_range.describe()
        recipe_text = "none" if search_range.recipe_value is None else f"{search_range.recipe_value:g}{'' if search_range.includes_recipe_value else ' (not searched)'}"
        rows.append((path, f"{low:g}", f"{high:g}", scale, recipe_text))
    pruning = "pruned by the median" if plan.prune else "none pruned"
    headline = (
        f"{plan.num_trials} trials of {plan.run.steps:,} steps, {pruning}, chosen on the validation set; in {plan.folder}"
    )
    protocol_text = render_protocol(plan.run, recipes.find_cell_table(plan.recipe), plan.recipe)
    return "\n".join([f"{plan.study_name}: {headline}", *align_columns(rows), "", protocol_text])


def align_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows with their columns under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def find_best_trial(trials: list[FrozenTrial]) -> FrozenTrial | None:
    """The trained trial with the lowest validation figure; of equal ones the first."""
    completed = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return min(completed, key=lambda trial: (trial.value, trial.number), default=None)


def render_trial_line(plan: SweepPlan, trials: list[FrozenTrial], number: int) -> str:
    """What a trial came to, and with which values."""
    trial, best = trials[number], find_best_trial(trials)
    metric_label = f"validation {trial.user_attrs.get(METRIC_ATTR, 'figure')}"
    if trial.state == TrialState.FAIL:
        status = f"failed ({trial.user_attrs.get(REASON_ATTR, 'for no reason that was put down')})"
    elif trial.state == TrialState.PRUNED:
        status = f"pruned at step {trial.last_step:,}, {metric_label} {trial.value:.2f}"
    else:
        status = f"{metric_label} {trial.value:.2f}"
    best_note = "" if best is None else f", best so far {best.value:.2f} (trial {best.number})"
    values = ", ".join(f"{path} {value:g}" for path, value in get_trial_values(plan, trial).items())
    finished = sum(trial.state.is_finished() for trial in trials)
    return f"trial {number}: {status}; {values} ({finished} of {max(plan.num_trials, finished)} finished{best_note})"


def get_trial_values(plan: SweepPlan, trial: FrozenTrial) -> dict[str, Value]:
    """The values that a trial was trained with."""
    return {path: search_range.to_run_value(trial.params[path]) for path, search_range in plan.space.items() if path in trial.params}


def render_summary(plan: SweepPlan, trials: list[FrozenTrial]) -> str:
    """How many trials there are, the best of them, and the command that trains it again."""
    states = [trial.state for trial in trials]
    counts = {
        "trained": states.count(TrialState.COMPLETE),
        "pruned": states.count(TrialState.PRUNED),
        "failed": states.count(TrialState.FAIL),
    }
    finished, best = sum(counts.values()), find_best_trial(trials)
    counts_text = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [f"{plan.study_name}: {finished} of {max(plan.num_trials, finished)} trials finished: {counts_text}"]
    unfinished = [str(number) for number, state in enumerate(states[: plan.num_trials]) if not state.is_finished()]
    if unfinished:
        lines.append(f"other processes are at work on trial {', '.join(unfinished)}; the last one tells the best of all")
    elif best is not None:
        lines += render_best_trial(plan, trials[0], best, counts["trained"])
    return "\n".join(lines)


def render_best_trial(plan: SweepPlan, first: FrozenTrial, best: FrozenTrial, num_trained: int) -> list[str]:
    """The best trial: its figures, its values, and how to train it again."""
    metric_name, test_metric = best.user_attrs[METRIC_ATTR], best.user_attrs[TEST_ATTR]
    has_recipe_trial = first.state == TrialState.COMPLETE and all(search_range.includes_recipe_value for search_range in plan.space.values())
    recipe_note = f"; the recipe's own settings, trial 0: {first.value:.2f}" if has_recipe_trial else ""
    rows = [("field", "best", "recipe")]
    for path, value in get_trial_values(plan, best).items():
        recipe_value = plan.space[path].recipe_value
        rows.append((path, f"{value:g}", "none" if recipe_value is None else f"{recipe_value:g}"))
    return [
        f"best: trial {best.number}, validation {metric_name} {best.value:.2f}{recipe_note}",
        *([] if test_metric is None else [f"its test {metric_name}: {test_metric:.2f}, which nothing was chosen by"]),
        *align_columns(rows),
        f"The lowest of {num_trained} validation figures looks better than it is: the settings were chosen by it.",
        f"It is in {plan.get_trial_dir(best.number)}; to train it again: {build_train_command(plan, best)}",
    ]


def build_train_command(plan: SweepPlan, best: FrozenTrial) -> str:
    """The command that trains the run of a trial, in a folder of its own."""
    run = replace(apply_values(plan.run, plan.space, best.params), out=str(plan.folder / "best"))
    return shlex.join(["l2i", "train", plan.recipe, *build_override_flags(recipes.get(plan.recipe), run)])


def build_override_flags(recipe: Run, run: Run) -> list[str]:
    """What turns a recipe into a run, on the command line."""
    recipe_fields = dict(flatten_fields(recipe))
    return [word for path, value in flatten_fields(run) if value != recipe_fields[path] for word in format_flag(path, value)]


def format_flag(path: str, value: Any) -> list[str]:
    """A field on the command line."""
    section, dot, field = path.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return [f"--{section}{dot}{'' if value else 'no-'}{field}"]
    return [f"--{section}{dot}{field}", *map(str, value if isinstance(value, tuple) else [value])]
