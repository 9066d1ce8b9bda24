"""What happens on the way: costs, gradients and imputed labels over a run, and what an outer update does to costs."""

from __future__ import annotations

from collections.abc import Iterable

from l2i.config import Run, replace
from l2i.study.plan import Study
from l2i.study.problems import WATCHED
from l2i.study.trial import MEASURED, Line, tried
from l2i.training.evaluate import is_evaluated
from l2i.training.probe import probe
from l2i.training.trainer import Trainer
from l2i.training.truth import of_unlabeled

COURSE = ("digits-fixmatch", "friedman-mean-teacher", "small-faces-mean-teacher")
POINTS = (0.03, 0.06, *(tenth / 10 for tenth in range(1, 11)))  # shares of the steps at which to look
SAMPLES = 1000  # unlabelled ones whose imputed labels are looked at, and test ones of the costs


def course(study: Study, seeds: Iterable[int]) -> None:
    """Runs with the recipe's settings, looked at on their way."""
    for seed in seeds:
        for arm in WATCHED:
            about: Line = {"part": "course", "arm": arm, "seed": seed}
            if not study.book.find(**about):
                run = study.placed(replace(study.problem.run(arm), probe=SAMPLES), seed)
                watcher = Watcher(run)
                line = {**about, **tried(run, watcher), "course": watcher.records}
                study.book.add(line)
                study.say(f"{study.problem.name}, course: {arm} {seed}: {line['figure']} in {line['seconds']} s")


class Watcher:
    """Looks at a run at some of its evaluations; costs and gradients are means since it last looked."""

    def __init__(self, run: Run) -> None:
        self.records: list[Line] = []
        self.looks = looks(run)
        self.since: list[tuple[int, dict[str, float]]] = []  # steps that a reading is of, and its means
        self.read = 0  # the step of the last reading

    def __call__(self, trainer: Trainer, step: int, means: dict[str, float]) -> None:
        self.since.append((step - self.read, means))
        self.read = step
        if step in self.looks:
            found = {**averaged(self.since), "imputed": imputed(trainer), **probe(trainer, step)}
            self.records.append({"step": step, **{name: float(f"{value:.6g}") for name, value in found.items()}})
            self.since.clear()


def looks(run: Run) -> set[int]:
    """The evaluations nearest to the points, of two as near the later one: what it has read is of the steps before."""
    evaluated = [step for step in range(1, run.steps + 1) if is_evaluated(step, run.steps, run.eval_every)]
    return {nearest(evaluated, run.steps * share) for share in POINTS}


def nearest(steps: Iterable[int], wanted: float) -> int:
    """The step nearest to a place, the later of two as near."""
    return min(steps, key=lambda step: (abs(step - wanted), -step))


def averaged(readings: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Means over all steps that the readings are of."""
    steps = sum(count for count, _ in readings)
    names = [name for name in MEASURED if all(name in means for _, means in readings)]
    return {name: sum(count * means[name] for count, means in readings) / steps for name in names}


def imputed(trainer: Trainer) -> float:
    """The figure of the labels that the model itself imputes for unlabelled samples, against their hidden truth."""
    return float(trainer.task.figure(*of_unlabeled(trainer, trainer.network, SAMPLES)))
