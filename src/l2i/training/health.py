"""Health checks: constant outputs, a collapsed confidence mask, a look-ahead that overshoots.

They only warn, and read only the rows of metrics.jsonl, so that a resumed run warns alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from l2i.data.samples import Splits
from l2i.training.evaluation import pick_monitored_split
from l2i.training.metrics import MetricRow, compute_step_weighted_mean

# nothing is checked before 20 % of the run and 100 steps: every run starts out constant
MIN_RUN_FRACTION, MIN_STEPS = 0.2, 100
WINDOW_FRACTION = 0.1  # of the run to average over: the last evaluations are few steps apart
MIN_OTHER_FRACTION = 0.001  # of predictions outside the top class; below it they are constant
MIN_OUTPUT_SPREAD = 0.01  # the same for regression: std of the outputs / std of the targets
MIN_OTHER_SAMPLES = 5  # samples outside the top class that the check needs
MIN_PASSING_FRACTION = 0.001  # of the imputed labels; below it the mask is empty
MIN_OPEN_FRACTION = 0.1  # of the imputed labels, from which a single class is suspicious
CONSTANT_OUTPUT_ADVICE = "lower optim.lr or method.weight, train longer, or check the labels"

MetricRows = Sequence[MetricRow]


def check_health(
    rows: MetricRows, splits: Splits, steps: int, chance_loss: float | None = None
) -> dict[str, str]:
    """Return the current warnings by kind; `chance_loss` is for runs that look ahead."""
    if not rows or int(rows[-1]["step"] or 0) < max(MIN_STEPS, MIN_RUN_FRACTION * steps):
        return {}
    sentences = {
        "constant": _check_constant_outputs(rows, splits),
        "mask": _check_mask_collapse(rows, splits, steps),
        "ahead": _check_overshooting(rows, steps, chance_loss),
    }
    return {kind: sentence for kind, sentence in sentences.items() if sentence is not None}


def _check_constant_outputs(rows: MetricRows, splits: Splits) -> str | None:
    """Check that the outputs are not the same for all samples while the truth varies."""
    name, diversity = pick_monitored_split(splits), rows[-1].get("prediction_diversity")
    if name is None or diversity is None:
        return None
    y: Tensor = getattr(splits, name).y
    if splits.classes is None:
        if len(y) < MIN_OTHER_SAMPLES or diversity > MIN_OUTPUT_SPREAD:
            return None
        ratio = f"{_format_percent(diversity)} of that of the targets"
        problem = f"the standard deviation of outputs on {len(y):,} {name} samples is {ratio}"
        return f"{problem}; {CONSTANT_OUTPUT_ADVICE}"
    others = len(y) - int(y.bincount().max())
    if others < MIN_OTHER_SAMPLES or diversity > MIN_OTHER_FRACTION:
        return None
    predicted = f"the model predicts one class for {_format_percent(1 - diversity)}"
    truth = f"at least {others:,} of which belong to others"
    return f"{predicted} of the {len(y):,} {name} samples, {truth}; {CONSTANT_OUTPUT_ADVICE}"


def _check_mask_collapse(rows: MetricRows, splits: Splits, steps: int) -> str | None:
    """Check that the confidence mask passes some labels, and not of a single class alone."""
    recent = _select_recent(rows, steps, "mask_rate")
    mask_rate = compute_step_weighted_mean(recent, "mask_rate")
    if mask_rate is None:
        return None
    passing = [(num_steps * (row["mask_rate"] or 0.0), row) for num_steps, row in recent]
    # each row has its own top class: one that changes counts as a single class
    top_fraction = compute_step_weighted_mean(passing, "mask_top_class") or 0.0
    if mask_rate < MIN_PASSING_FRACTION:
        problem = f"the confidence mask passes {_format_percent(mask_rate)} of the imputed labels"
        fix = "lower method.threshold, train longer, or label more samples"
        return f"{problem}, so the unlabelled samples have no effect; {fix}"
    is_single_class = mask_rate >= MIN_OPEN_FRACTION and top_fraction >= 1 - MIN_OTHER_FRACTION
    if not is_single_class or len(splits.labeled.y.unique()) < 2:
        return None
    problem = f"{_format_percent(top_fraction)} of the labels that pass the mask are of one class"
    label_more = "label more samples of the other classes"
    fix = f"lower optim.lr or method.weight, raise method.threshold, or {label_more}"
    return f"{problem}, although the labelled samples have others; {fix}"


def _check_overshooting(rows: MetricRows, steps: int, chance_loss: float | None) -> str | None:
    """Check that the look-ahead does not leave the hold-out samples worse than guessing."""
    cost = compute_step_weighted_mean(_select_recent(rows, steps, "c_h"), "c_h")
    if chance_loss is None or cost is None or cost <= chance_loss:
        return None
    costs = f"{cost:.3g}, worse than guessing ({chance_loss:.3g})"
    problem = "η is too large, and the outer step mostly undoes the look-ahead"
    fix = "lower l2i.paper.eta (or supervised_eta), or use l2i.update='normalized' without them"
    return f"hold-out cost after the look-ahead is {costs}: {problem}; {fix}"


def _select_recent(rows: MetricRows, steps: int, column: str) -> list[tuple[int, MetricRow]]:
    """Return the recent rows that have a column, each with the number of steps it covers."""
    ends = [0, *(int(row["step"] or 0) for row in rows)]
    return [
        (end - start, row)
        for start, end, row in zip(ends[:-1], ends[1:], rows, strict=True)
        if row.get(column) is not None and end > ends[-1] - WINDOW_FRACTION * steps
    ]


def _format_percent(value: float) -> str:
    """Format a fraction as a percentage that is not rounded to 0 or 100."""
    is_almost_all = 0.9995 <= value < 1
    return "more than 99.9 %" if is_almost_all else f"{100 * value:.3g} %"
