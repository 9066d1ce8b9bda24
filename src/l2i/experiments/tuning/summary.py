"""The output of `l2i tune`: the search space, one line per trial, and the best trial."""

from __future__ import annotations

import shlex
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from l2i import recipes
from l2i.config import replace
from l2i.config.validate import flatten_fields
from l2i.experiments.tuning.space import SweepPlan, Value, apply_values
from l2i.experiments.tuning.study import METRIC_ATTR, REASON_ATTR, TEST_ATTR
from l2i.fit.formatting import align_columns
from l2i.recipes.protocol import format_protocol


def render_dry_run(plan: SweepPlan) -> str:
    """Return the search space, one line per field, and the recipe's protocol."""
    rows = [("  field", "from", "to", "scale", "recipe")]
    for path, search_range in plan.space.items():
        low, high, scale = search_range.describe()
        recipe_text = _format_recipe_value(search_range.recipe_value)
        if search_range.recipe_value is not None and not search_range.includes_recipe_value:
            recipe_text += " (not searched)"
        rows.append((f"  {path}", f"{low:g}", f"{high:g}", scale, recipe_text))
    pruning = "median pruning" if plan.prune else "no pruning"
    headline = (
        f"{plan.study_name}: {plan.num_trials} trials of {plan.run.steps:,} steps, {pruning}, "
        f"selected by validation error; in {plan.folder}"
    )
    protocol = format_protocol(plan.run, recipes.find_cell_table(plan.recipe), plan.recipe)
    return "\n".join([headline, *align_columns(rows, "<<<<<"), "", protocol])


def _format_recipe_value(value: Value | None) -> str:
    return "none" if value is None else f"{value:g}"


def find_best_trial(trials: list[FrozenTrial]) -> FrozenTrial | None:
    """Return the trained trial with the lowest validation metric, the first of equal ones."""
    completed = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return min(completed, key=lambda trial: (trial.value, trial.number), default=None)


def render_trial_line(plan: SweepPlan, trials: list[FrozenTrial], number: int) -> str:
    """Return the outcome of a trial and its values."""
    trial, best = trials[number], find_best_trial(trials)
    metric_label = f"validation {trial.user_attrs.get(METRIC_ATTR, 'metric')}"
    if trial.state == TrialState.FAIL:
        status = f"failed ({trial.user_attrs.get(REASON_ATTR, 'unknown reason')})"
    elif trial.state == TrialState.PRUNED:
        status = f"pruned at step {trial.last_step:,}, {metric_label} {trial.value:.2f}"
    else:
        status = f"{metric_label} {trial.value:.2f}"
    best_note = "" if best is None else f", best so far {best.value:.2f} (trial {best.number})"
    values = ", ".join(f"{path} {v:g}" for path, v in _get_trial_values(plan, trial).items())
    finished = sum(trial.state.is_finished() for trial in trials)
    total = max(plan.num_trials, finished)
    return f"trial {number}: {status}; {values} ({finished} of {total} finished{best_note})"


def _get_trial_values(plan: SweepPlan, trial: FrozenTrial) -> dict[str, Value]:
    """Return the values that a trial was trained with."""
    return {
        path: search_range.to_run_value(trial.params[path])
        for path, search_range in plan.space.items()
        if path in trial.params
    }


def render_summary(plan: SweepPlan, trials: list[FrozenTrial]) -> str:
    """Return the number of trials, the best of them, and the command that trains it again."""
    states = [trial.state for trial in trials]
    counts = {
        "trained": states.count(TrialState.COMPLETE),
        "pruned": states.count(TrialState.PRUNED),
        "failed": states.count(TrialState.FAIL),
    }
    finished, best = sum(counts.values()), find_best_trial(trials)
    progress = f"{finished} of {max(plan.num_trials, finished)} trials finished"
    counts_text = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines = [f"{plan.study_name}: {progress}: {counts_text}"]
    planned = enumerate(states[: plan.num_trials])
    unfinished = [str(number) for number, state in planned if not state.is_finished()]
    if unfinished:
        lines.append(
            f"other processes are still training trial {', '.join(unfinished)}; "
            "the last one to finish reports the best trial"
        )
    elif best is not None:
        lines += _render_best_trial(plan, trials[0], best, counts["trained"])
    return "\n".join(lines)


def _render_best_trial(
    plan: SweepPlan, first: FrozenTrial, best: FrozenTrial, num_trained: int
) -> list[str]:
    """Return the metrics and values of the best trial, and how to train it again."""
    metric_name, test_metric = best.user_attrs[METRIC_ATTR], best.user_attrs[TEST_ATTR]
    headline = f"best: trial {best.number}, validation {metric_name} {best.value:.2f}"
    is_recipe = all(bounds.includes_recipe_value for bounds in plan.space.values())
    if first.state == TrialState.COMPLETE and is_recipe:
        headline += f"; with the recipe's settings (trial 0): {first.value:.2f}"
    lines = [headline]
    if test_metric is not None:
        lines.append(f"its test {metric_name}: {test_metric:.2f} (not used for selection)")
    rows = [("  field", "best", "recipe")]
    for path, value in _get_trial_values(plan, best).items():
        recipe_text = _format_recipe_value(plan.space[path].recipe_value)
        rows.append((f"  {path}", f"{value:g}", recipe_text))
    return [
        *lines,
        *align_columns(rows, "<<<"),
        f"The lowest of {num_trained} validation metrics is optimistic: it selected the settings.",
        f"Run folder: {plan.get_trial_dir(best.number)}; "
        f"to train it again: {_build_train_command(plan, best)}",
    ]


def _build_train_command(plan: SweepPlan, best: FrozenTrial) -> str:
    """Return the command that trains a trial's run in its own folder."""
    run = replace(apply_values(plan.run, plan.space, best.params), out=str(plan.folder / "best"))
    recipe_fields, words = dict(flatten_fields(recipes.get(plan.recipe))), []
    for path, value in flatten_fields(run):
        if value != recipe_fields[path]:
            words += _format_flag(path, value)
    return shlex.join(["l2i", "train", plan.recipe, *words])


def _format_flag(path: str, value: Any) -> list[str]:
    section, dot, field = path.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return [f"--{section}{dot}{'' if value else 'no-'}{field}"]
    return [f"--{section}{dot}{field}", *map(str, value if isinstance(value, tuple) else [value])]
