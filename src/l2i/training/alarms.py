"""What a run's evaluations say has gone wrong though every number is finite: outputs that do not depend on the input,
a confidence mask that lets nothing through, or one class alone, and a look-ahead that goes too far.

Nothing here stops a run. All is read off the rows of metrics.jsonl, so a run that was cut raises the same alarms.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from l2i.data.split import Splits
from l2i.tasks import Task
from l2i.training.log import Row, mean_over

SETTLED, STEPS = 0.2, 100  # of the run, and at least so many steps, before which nothing is said: all begins constant
WINDOW = 0.1  # of the run, over which steps are judged: at the end evaluations lie few steps apart
SAME = 0.001  # share of samples given another class than the most frequent, under which outputs are constant
FLAT = 0.01  # the same for regression: spread of the outputs / spread of the targets
ROUNDING = 1e-6  # of a target, under which it does not vary
OTHERS = 5  # samples of other classes than the most frequent that it takes to say so
CLOSED = 0.001  # share of imputed labels that count, under which the mask lets nothing through
OPEN = 0.1  # the same, from which one class alone is no beginning
FAR = 3.0  # times the cost of guessing, above which C^H(θ*) tells of the look-ahead alone
ADVICE = "lower optim.lr or method.weight, train longer, or look at the labels"


def spread_of(task: Task, outputs: Tensor, y: Tensor) -> float:
    """How much the outputs for a set depend on the sample; 0 for a constant.

    For classes, the share of samples that are given another than the most frequent one. For targets, the spread of the
    outputs over that of the targets, of the coordinate where this is the largest; 1 where no target varies.
    """
    if task.kind == "classification":
        return 1 - float(outputs.argmax(dim=1).bincount(minlength=task.outputs).max()) / len(outputs)
    truth = task.encode(y).double()
    wanted, found = truth.std(dim=0, correction=0), outputs.double().std(dim=0, correction=0)
    vary = wanted > ROUNDING * truth.abs().amax(dim=0)
    return float((found / wanted)[vary].max()) if bool(vary.any()) else 1.0


def watched(splits: Splits) -> str | None:
    """The set whose outputs `spread_of` is taken of."""
    return next((name for name in ("validation", "test") if len(getattr(splits, name).x)), None)


def alarms(rows: Sequence[Row], splits: Splits, steps: int, guess: float | None = None) -> dict[str, str]:
    """What holds at the last evaluation of a run of so many `steps`: a sentence by kind of alarm.

    `guess` is what guessing costs, where the run looks ahead.
    """
    if not rows or int(rows[-1]["step"] or 0) < max(STEPS, SETTLED * steps):
        return {}
    found = {"constant": constant(rows, splits), "mask": collapsed(rows, splits, steps)}
    found |= {} if guess is None else {"ahead": overshooting(rows, steps, guess)}
    return {kind: sentence for kind, sentence in found.items() if sentence is not None}


def constant(rows: Sequence[Row], splits: Splits) -> str | None:
    """That the outputs are the same for all samples, where the truth is not."""
    name, spread = watched(splits), rows[-1].get("spread")
    if name is None or spread is None:
        return None
    y: Tensor = getattr(splits, name).y
    if splits.classes is None:
        if len(y) < OTHERS or spread > FLAT:
            return None
        return f"outputs for {len(y):,} {name} samples spread {shares(spread)} as far as the targets; {ADVICE}"
    others = len(y) - int(y.bincount().max())
    if others < OTHERS or spread > SAME:
        return None
    given = f"{shares(1 - spread)} of the {len(y):,} {name} samples are given one class"
    return f"{given}, and at least {others:,} are of others; {ADVICE}"


def collapsed(rows: Sequence[Row], splits: Splits, steps: int) -> str | None:
    """That the confidence mask lets (almost) no label through, or only labels of one class."""
    mask, top = judged(rows, steps)
    if mask is None:
        return None
    if mask < CLOSED:
        return (
            f"the mask lets {shares(mask)} of the imputed labels through, so the unlabelled samples do nothing; lower "
            "method.threshold, train longer, or label more samples"
        )
    if mask < OPEN or top < 1 - SAME or len(splits.labeled.y.unique()) < 2:
        return None
    return (
        f"{shares(top)} of the imputed labels that count are of one class, and the labelled samples have others; lower "
        "optim.lr or method.weight, raise method.threshold, or label more samples of the other classes"
    )


def judged(rows: Sequence[Row], steps: int) -> tuple[float | None, float]:
    """The share of imputed labels that counted in the last part of the run, and among these that of the top class.

    Each row has a top class of its own, so one that changes is taken for one class.
    """
    taken, through, of_top = 0, 0.0, 0.0
    for length, row in recent(rows, steps, "mask"):
        mask = row["mask"] or 0.0
        taken += length
        through += length * mask
        of_top += length * mask * (row.get("top_class") or 0.0)
    return (through / taken if taken else None), (of_top / through if through else 0.0)


def overshooting(rows: Sequence[Row], steps: int, guess: float) -> str | None:
    """That the look-ahead leaves the hold-out samples far worse off than guessing."""
    cost = mean_over(recent(rows, steps, "c_h"), "c_h")
    if cost is None or cost <= FAR * guess:
        return None
    return (
        f"after the look-ahead hold-out samples cost {cost:.3g}, where guessing costs {guess:.3g}, so the outer step "
        "mends its own damage; lower l2i.eta, or take the default rule, which does not look ahead"
    )


def recent(rows: Sequence[Row], steps: int, column: str) -> list[tuple[int, Row]]:
    """Rows of the last part of the run that have a column, and how many steps each tells of, since the row before."""
    ends = [0, *(int(row["step"] or 0) for row in rows)]
    return [
        (ended - begun, row)
        for begun, ended, row in zip(ends[:-1], ends[1:], rows, strict=True)
        if row.get(column) is not None and ended > ends[-1] - WINDOW * steps
    ]


def shares(value: float) -> str:
    """A share as per cent, never rounded to all or none."""
    return f"{100 * value:.0f} %" if value in (0, 1) else f"{100 * value:.3g} %"
