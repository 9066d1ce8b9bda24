"""Results of the ablation's records: hyper-parameters, metrics by arm and setting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import TypeVar

from benchmarks.ablation_cpu.grid import ARMS, GROUP_BY_SETTING, PROBLEMS, Arm, Problem
from benchmarks.ablation_cpu.runner import AblationStudy
from benchmarks.ablation_cpu.store import Record, RecordStore

from l2i.config import Run
from l2i.errors import InputError

BASELINE_SETTING = next(iter(GROUP_BY_SETTING))  # the reference of all settings


RMSE_DATASETS = (
    "diabetes",
    "friedman",
)  # datasets whose metric is the RMSE; others have an error in %


T = TypeVar("T")


SeedMetrics = dict[int, float | None]  # by seed; None where the run diverged


@dataclass(frozen=True)
class ProblemResults:
    """The records of one problem."""

    problem: Problem
    store: RecordStore

    @cached_property
    def records(self) -> list[Record]:
        return self.store.read_records()

    @property
    def run(self) -> Run:
        return self.problem.make_run("l2i")

    @property
    def metric_label(self) -> str:
        return "RMSE" if self.run.data.name in RMSE_DATASETS else "error (%)"

    @property
    def digits(self) -> int:
        return 3 if self.metric_label == "RMSE" else 2

    def select_records(self, **criteria: object) -> list[Record]:
        """Return the records with these values; of runs that were trained twice, the first."""
        first_records: dict[object, Record] = {}
        for line in self.records:
            if all(line.get(name) == value for name, value in criteria.items()):
                first_records.setdefault(
                    tuple(line.get(name) for name in ("arm", "seed", "lr", "weight")), line
                )
        return list(first_records.values())

    def select_hyperparameters(self, arm: Arm) -> tuple[float, float]:
        """Return the factors of learning rate and λ selected for an arm."""
        return AblationStudy(self.problem, self.store, None, str).select_hyperparameters(arm)

    def is_tuned(self) -> bool:
        """Return whether every arm has all its trials."""
        try:
            return all(map(self.select_hyperparameters, ARMS))
        except InputError:
            return False

    def get_arm_metrics(self) -> dict[Arm, SeedMetrics]:
        """Return each tuned arm's metrics over the common seeds; empty if one arm has none."""
        metrics_by_arm: dict[Arm, SeedMetrics] = {}
        if not self.select_records(part="arms") or not self.is_tuned():
            return metrics_by_arm
        for arm in ARMS:
            lr, weight = self.select_hyperparameters(arm)
            metrics_by_arm[arm] = index_by_seed(
                self.select_records(part="arms", arm=arm, lr=lr, weight=weight)
            )
        seeds = sorted(set.intersection(*map(set, metrics_by_arm.values())))
        return (
            {
                arm: {seed: metrics[seed] for seed in seeds}
                for arm, metrics in metrics_by_arm.items()
            }
            if seeds
            else {}
        )

    def get_slowdown(self) -> float | None:
        """Return the slowdown of a step by L2I, if it was measured."""
        return next((line["ratio"] for line in self.select_records(part="pace")), None)

    def get_setting_metrics(self) -> dict[str, SeedMetrics]:
        """Return each setting's metrics; empty without those of the reference."""
        metrics_by_setting = {
            name: index_by_seed(self.select_records(part="settings", arm=name))
            for name in GROUP_BY_SETTING
        }
        nonempty = {name: metrics for name, metrics in metrics_by_setting.items() if metrics}
        return (
            nonempty
            if any(metric is not None for metric in metrics_by_setting[BASELINE_SETTING].values())
            else {}
        )


def load_results(folder: str, names: Iterable[str]) -> list[ProblemResults]:
    """Load the records of these problems from a folder, in the ablation's order."""
    directory = Path(folder)
    if not directory.is_dir():
        raise InputError(
            f"{folder} is not a folder; choose one with PROBLEM.jsonl files, as 'python -m "
            "benchmarks.ablation_cpu' writes them"
        )
    unknown_files = [
        path for path in sorted(directory.glob("*.jsonl")) if path.stem not in PROBLEMS
    ]
    if unknown_files:
        raise InputError(
            f"{unknown_files[0]} is not named after a problem ('python -m benchmarks.ablation_cpu "
            "--dry-run' lists them); choose a folder of this ablation, such as "
            "benchmarks/ablation_cpu/results"
        )
    results = [
        ProblemResults(PROBLEMS[name], RecordStore(directory / f"{name}.jsonl")) for name in names
    ]
    nonempty = [result for result in results if result.records]
    if not nonempty:
        raise InputError(
            f"{folder} holds no records; 'python -m benchmarks.ablation_cpu --save-results "
            f"{folder}' trains and stores them"
        )
    return nonempty


def index_by_seed(lines: Iterable[Record]) -> SeedMetrics:
    """Return metrics by seed."""
    return {
        line["seed"]: line["metric"] for line in sorted(lines, key=lambda line: int(line["seed"]))
    }


def drop_diverged(metrics: SeedMetrics) -> list[float]:
    """Return the metrics of the runs that did not diverge."""
    return [metric for metric in metrics.values() if metric is not None]


def compute_differences(ours: SeedMetrics, theirs: SeedMetrics) -> list[float]:
    """Return ours minus theirs, seed by seed, where neither diverged."""
    pairs = [(metric, theirs.get(seed)) for seed, metric in ours.items()]
    return [mine - other for mine, other in pairs if mine is not None and other is not None]


def compute_percent_changes(
    ours: SeedMetrics, theirs: SeedMetrics, base: SeedMetrics
) -> list[float]:
    """Return ours minus theirs in % of the baseline's mean; empty if that is 0."""
    base_mean = mean(drop_diverged(base) or [0.0])
    return (
        [100 * difference / base_mean for difference in compute_differences(ours, theirs)]
        if base_mean
        else []
    )


def select_with_metrics(
    results: list[ProblemResults], get_metrics: Callable[[ProblemResults], T]
) -> list[tuple[ProblemResults, T]]:
    """Return the problems that have metrics of a part, with these."""
    return [(result, metrics) for result in results if (metrics := get_metrics(result))]
