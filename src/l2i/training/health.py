"""What a run's evaluations say has gone wrong though every number is finite: outputs that do not depend on the input,
a confidence mask that lets nothing through, or one class alone, and a look-ahead that goes too far.

Nothing here stops a run. All is read off the rows of metrics.jsonl, so a run that was cut raises the same alarms.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from l2i.data.samples import Splits
from l2i.tasks import Task
from l2i.training.metrics import MetricRow, step_weighted_mean

MIN_RUN_FRACTION, MIN_STEPS = 0.2, 100  # of the run, and at least so many steps, before which nothing is said: all begins constant
WINDOW_FRACTION = 0.1  # of the run, over which steps are judged: at the end evaluations lie few steps apart
MIN_OTHER_FRACTION = 0.001  # share of samples given another class than the most frequent, under which outputs are constant
MIN_OUTPUT_SPREAD = 0.01  # the same for regression: spread of the outputs / spread of the targets
TARGET_TOLERANCE = 1e-6  # of a target, under which it does not vary
MIN_OTHER_SAMPLES = 5  # samples of other classes than the most frequent that it takes to say so
MIN_PASSING_FRACTION = 0.001  # share of imputed labels that count, under which the mask lets nothing through
MIN_OPEN_FRACTION = 0.1  # the same, from which one class alone is no beginning
MAX_COST_RATIO = 3.0  # times the cost of guessing, above which C^H(θ*) tells of the look-ahead alone
ADVICE = "lower optim.lr or method.weight, train longer, or look at the labels"


def measure_diversity(task: Task, outputs: Tensor, y: Tensor) -> float:
    """How much the outputs for a set depend on the sample; 0 for a constant.

    For classes, the share of samples that are given another than the most frequent one. For targets, the spread of the
    outputs over that of the targets, of the coordinate where this is the largest; 1 where no target varies.
    """
    if task.kind == "classification":
        return 1 - float(outputs.argmax(dim=1).bincount(minlength=task.num_outputs).max()) / len(outputs)
    targets = task.encode(y).double()
    target_std, output_std = targets.std(dim=0, correction=0), outputs.double().std(dim=0, correction=0)
    is_varying = target_std > TARGET_TOLERANCE * targets.abs().amax(dim=0)
    return float((output_std / target_std)[is_varying].max()) if bool(is_varying.any()) else 1.0


def pick_monitored_split(splits: Splits) -> str | None:
    """The set whose outputs `spread_of` is taken of."""
    return next((name for name in ("validation", "test") if len(getattr(splits, name).x)), None)


def check_health(rows: Sequence[MetricRow], splits: Splits, steps: int, chance_loss: float | None = None) -> dict[str, str]:
    """What holds at the last evaluation of a run of so many `steps`: a sentence by kind of alarm.

    `guess` is what guessing costs, where the run looks ahead.
    """
    if not rows or int(rows[-1]["step"] or 0) < max(MIN_STEPS, MIN_RUN_FRACTION * steps):
        return {}
    sentences = {"constant": check_constant_outputs(rows, splits), "mask": check_mask_collapse(rows, splits, steps)}
    sentences |= {} if chance_loss is None else {"ahead": check_overshooting(rows, steps, chance_loss)}
    return {kind: sentence for kind, sentence in sentences.items() if sentence is not None}


def check_constant_outputs(rows: Sequence[MetricRow], splits: Splits) -> str | None:
    """That the outputs are the same for all samples, where the truth is not."""
    name, diversity = pick_monitored_split(splits), rows[-1].get("prediction_diversity")
    if name is None or diversity is None:
        return None
    y: Tensor = getattr(splits, name).y
    if splits.classes is None:
        if len(y) < MIN_OTHER_SAMPLES or diversity > MIN_OUTPUT_SPREAD:
            return None
        return f"outputs for {len(y):,} {name} samples spread {format_fraction(diversity)} as far as the targets; {ADVICE}"
    others = len(y) - int(y.bincount().max())
    if others < MIN_OTHER_SAMPLES or diversity > MIN_OTHER_FRACTION:
        return None
    summary = f"{format_fraction(1 - diversity)} of the {len(y):,} {name} samples are given one class"
    return f"{summary}, and at least {others:,} are of others; {ADVICE}"


def check_mask_collapse(rows: Sequence[MetricRow], splits: Splits, steps: int) -> str | None:
    """That the confidence mask lets (almost) no label through, or only labels of one class."""
    mask_rate, top_fraction = average_mask_rates(rows, steps)
    if mask_rate is None:
        return None
    if mask_rate < MIN_PASSING_FRACTION:
        return (
            f"the mask lets {format_fraction(mask_rate)} of the imputed labels through, so the unlabelled samples do nothing; lower "
            "method.threshold, train longer, or label more samples"
        )
    if mask_rate < MIN_OPEN_FRACTION or top_fraction < 1 - MIN_OTHER_FRACTION or len(splits.labeled.y.unique()) < 2:
        return None
    return (
        f"{format_fraction(top_fraction)} of the imputed labels that count are of one class, and the labelled samples have others; lower "
        "optim.lr or method.weight, raise method.threshold, or label more samples of the other classes"
    )


def average_mask_rates(rows: Sequence[MetricRow], steps: int) -> tuple[float | None, float]:
    """The share of imputed labels that counted in the last part of the run, and among these that of the top class.

    Each row has a top class of its own, so one that changes is taken for one class.
    """
    total_steps, masked_steps, top_class_steps = 0, 0.0, 0.0
    for num_steps, row in select_recent(rows, steps, "mask_rate"):
        mask_rate = row["mask_rate"] or 0.0
        total_steps += num_steps
        masked_steps += num_steps * mask_rate
        top_class_steps += num_steps * mask_rate * (row.get("mask_top_class") or 0.0)
    return (masked_steps / total_steps if total_steps else None), (top_class_steps / masked_steps if masked_steps else 0.0)


def check_overshooting(rows: Sequence[MetricRow], steps: int, chance_loss: float) -> str | None:
    """That the look-ahead leaves the hold-out samples far worse off than guessing."""
    cost = step_weighted_mean(select_recent(rows, steps, "c_h"), "c_h")
    if cost is None or cost <= MAX_COST_RATIO * chance_loss:
        return None
    return (
        f"after the look-ahead hold-out samples cost {cost:.3g}, where guessing costs {chance_loss:.3g}, so the outer step "
        "mends its own damage; lower l2i.eta, or take the default rule, which does not look ahead"
    )


def select_recent(rows: Sequence[MetricRow], steps: int, column: str) -> list[tuple[int, MetricRow]]:
    """Rows of the last part of the run that have a column, and how many steps each tells of, since the row before."""
    ends = [0, *(int(row["step"] or 0) for row in rows)]
    return [
        (end - start, row)
        for start, end, row in zip(ends[:-1], ends[1:], rows, strict=True)
        if row.get(column) is not None and end > ends[-1] - WINDOW_FRACTION * steps
    ]


def format_fraction(value: float) -> str:
    """A share as per cent, never rounded to all or none."""
    return f"{100 * value:.0f} %" if value in (0, 1) else f"{100 * value:.3g} %"
