"""Train the ablation's runs: pace, tuning, arms, settings and dynamics, in this order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from statistics import mean

from benchmarks.ablation_cpu.grid import (
    ARMS,
    DYNAMICS_ARMS,
    TUNING_GRID,
    TUNING_SEEDS,
    Arm,
    Problem,
    iter_settings,
)
from benchmarks.ablation_cpu.store import Record, RecordStore

from l2i.config import Run, replace
from l2i.errors import InputError, NonFiniteCost
from l2i.training.diagnostics import measure_outer_update, predict_unlabeled
from l2i.training.evaluation import MetricCurve, compute_final_metric, is_eval_step
from l2i.training.loop import iter_steps
from l2i.training.setup import use_threads
from l2i.training.trainer import Trainer

LOGGED_METRICS = ("c_t", "c_h", "gradient", "grad_ratio", "grad_ratio_raw")
EvaluationCallback = Callable[[Trainer, int, dict[str, float]], None]


def run_trial(run: Run, on_evaluation: EvaluationCallback | None = None) -> Record:
    """Train a run and return its record; the metric is None if it diverged."""
    with use_threads(run.threads):
        try:
            return train_to_end(run, on_evaluation)
        except NonFiniteCost:
            return {"steps": run.steps, "metric": None, "validation": None, "seconds": None}


def train_to_end(run: Run, on_evaluation: EvaluationCallback | None) -> Record:
    """Train to the last step; the time of evaluations counts, that of the callback does not."""
    trainer, curves, means = (
        Trainer(run),
        {"validation": MetricCurve(), "test": MetricCurve()},
        dict[str, float](),
    )
    start_time, callback_seconds = time.perf_counter(), 0.0
    try:
        for step in iter_steps(trainer):
            if is_eval_step(step, run.steps, run.eval_every):
                means = trainer.meter.read()
                for part, metrics in trainer.compute_metrics().items():
                    curves[part][step] = next(iter(metrics.values()))
                callback_start = time.perf_counter()
                if on_evaluation is not None:
                    on_evaluation(trainer, step, means)
                callback_seconds += time.perf_counter() - callback_start
    finally:
        trainer.close()
    compute_final = partial(
        compute_final_metric, validation=curves["validation"], steps=run.steps, final=run.report
    )
    return {
        "steps": run.steps,
        "metric": compute_final(curves["test"]),
        "validation": compute_final(curves["validation"]),
        "seconds": round(time.perf_counter() - start_time - callback_seconds, 3),
        **{name: means[name] for name in LOGGED_METRICS if name in means},
    }


def measure_slowdown(baseline_run: Run, l2i_run: Run, *, blocks: int = 7, steps: int = 40) -> float:
    """Return the step time with L2I relative to without, a median over alternating blocks."""
    trainers = [Trainer(baseline_run), Trainer(l2i_run)]
    ratios = []
    with use_threads(baseline_run.threads):
        for block in range(blocks + 1):
            durations = []
            for trainer in trainers:
                start_time = time.perf_counter()
                for t in range(block * steps, (block + 1) * steps):
                    trainer.step(t % trainer.run.steps)
                durations.append(time.perf_counter() - start_time)
            ratios.append(durations[1] / durations[0])
    for trainer in trainers:
        trainer.close()
    return sorted(ratios[1:])[blocks // 2]  # the first block warms up


DYNAMICS_PROBLEMS = ("digits-fixmatch", "friedman-mean-teacher", "small-faces-mean-teacher")
PROBE_FRACTIONS = (
    0.03,
    0.06,
    *(tenth / 10 for tenth in range(1, 11)),
)  # fractions of the steps at which runs are probed
NUM_PROBE_SAMPLES = (
    1000  # unlabelled samples whose imputed labels are checked, and test samples of the costs
)


def training_dynamics(study: AblationStudy, seeds: Iterable[int]) -> None:
    """Train the recipe's arms, probed during training."""
    for seed in seeds:
        for arm in DYNAMICS_ARMS:
            key: Record = {"part": "dynamics", "arm": arm, "seed": seed}
            if not study.store.find_records(**key):
                run = study.prepare_run(
                    replace(study.problem.make_run(arm), probe_samples=NUM_PROBE_SAMPLES), seed
                )
                recorder = DynamicsRecorder(run)
                line = {**key, **run_trial(run, recorder), "dynamics": recorder.records}
                study.store.append(line)
                study.on_progress(
                    f"{study.problem.name}, dynamics: {arm} {seed}: {line['metric']} in "
                    f"{line['seconds']} s"
                )


class DynamicsRecorder:
    """Probe a run at some evaluations; costs and gradients are means since the previous probe."""

    def __init__(self, run: Run) -> None:
        self.records: list[Record] = []
        self.probe_steps = select_probe_steps(run)
        self.pending_readings: list[
            tuple[int, dict[str, float]]
        ] = []  # number of steps of each reading, and its means
        self.last_read_step = 0  # the step of the last reading

    def __call__(self, trainer: Trainer, step: int, means: dict[str, float]) -> None:
        self.pending_readings.append((step - self.last_read_step, means))
        self.last_read_step = step
        if step in self.probe_steps:
            values = {
                **average_readings(self.pending_readings),
                "pseudo_label_error": compute_imputed_metric(trainer),
                **measure_outer_update(trainer, step),
            }
            self.records.append(
                {"step": step, **{name: float(f"{value:.6g}") for name, value in values.items()}}
            )
            self.pending_readings.clear()


def select_probe_steps(run: Run) -> set[int]:
    """Return the evaluations nearest to the probe fractions; of two as near, the later."""
    eval_steps = [
        step for step in range(1, run.steps + 1) if is_eval_step(step, run.steps, run.eval_every)
    ]
    return {find_nearest_step(eval_steps, run.steps * fraction) for fraction in PROBE_FRACTIONS}


def find_nearest_step(steps: Iterable[int], target: float) -> int:
    """Return the step nearest to the target, the later of two as near."""
    return min(steps, key=lambda step: (abs(step - target), -step))


def average_readings(readings: list[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Return means over all steps of the readings."""
    steps = sum(count for count, _ in readings)
    names = [name for name in LOGGED_METRICS if all(name in means for _, means in readings)]
    return {name: sum(count * means[name] for count, means in readings) / steps for name in names}


def compute_imputed_metric(trainer: Trainer) -> float:
    """Return the error of the labels that the model imputes, against the hidden truth."""
    return float(
        trainer.task.metric(*predict_unlabeled(trainer, trainer.network, NUM_PROBE_SAMPLES))
    )


ProgressCallback = Callable[[str], object]


class AblationStudy:
    """Trains the runs of one problem and stores their records."""

    def __init__(
        self, problem: Problem, store: RecordStore, root: str | None, on_progress: ProgressCallback
    ) -> None:
        self.problem, self.store, self.root, self.on_progress = problem, store, root, on_progress

    def prepare_run(self, run: Run, seed: int) -> Run:
        root = run.data.root if self.root is None else self.root
        return replace(run, seed=seed, device="cpu", data={"root": root})

    def get_slowdown(self) -> float:
        """Return the slowdown of a step by L2I; measured once."""
        records = self.store.find_records(part="pace")
        if not records:
            ratio = measure_slowdown(
                *(
                    self.prepare_run(self.problem.make_run(arm), TUNING_SEEDS[0])
                    for arm in ("baseline", "l2i")
                )
            )
            self.store.append({"part": "pace", "ratio": round(ratio, 2)})
            self.on_progress(
                f"{self.problem.name}: a step takes {ratio:.2f} times as long with L2I"
            )
            records = self.store.find_records(part="pace")
        return float(records[0]["ratio"])

    def run_arm(self, part: str, arm: Arm, seed: int, lr: float, weight: float) -> Record:
        """Return the record of an arm's run, trained if it is not stored."""
        key: Record = {"part": part, "arm": arm, "seed": seed, "lr": lr, "weight": weight}
        records = self.store.find_records(**key)
        if records:
            return records[0]
        run = self.problem.make_run(
            arm,
            lr_factor=lr,
            weight_factor=weight,
            step_factor=self.get_slowdown() if arm == "longer" else 1.0,
        )
        return self.run_and_store(key, run)

    def run_and_store(self, key: Record, run: Run) -> Record:
        """Train a run, store its record and report it."""
        line = {**key, **run_trial(self.prepare_run(run, key["seed"]))}
        self.store.append(line)
        key_text = " ".join(str(value) for name, value in key.items() if name != "part")
        self.on_progress(
            f"{self.problem.name}, {key['part']}: {key_text}: {line['metric']} in "
            f"{line['seconds']} s"
        )
        return line

    def tune_arms(self) -> None:
        """Run each arm with each pair of learning rate and λ, on the tuning seeds."""
        for lr, weight in TUNING_GRID:
            for seed in TUNING_SEEDS:
                for arm in ARMS:
                    self.run_arm("tuning", arm, seed, lr, weight)

    def select_hyperparameters(self, arm: Arm) -> tuple[float, float]:
        """Return the learning rate and λ with the best mean validation error; lowest if tied.

        Of two records of one run the first counts.
        """
        metrics_by_pair = {trial: dict[int, float]() for trial in TUNING_GRID}
        for line in self.store.find_records(part="tuning", arm=arm):
            metric = float("inf") if line["validation"] is None else line["validation"]
            metrics_by_pair.get((line["lr"], line["weight"]), {}).setdefault(line["seed"], metric)
        if not all(metrics.keys() >= set(TUNING_SEEDS) for metrics in metrics_by_pair.values()):
            raise InputError(
                f"{self.problem.name}: the arm '{arm}' is not tuned yet; run --part tuning first"
            )
        return min(
            metrics_by_pair,
            key=lambda pair: (mean(metrics_by_pair[pair][seed] for seed in TUNING_SEEDS), pair),
        )

    def compare_arms(self, seeds: Iterable[int]) -> None:
        """Run each tuned arm on fresh seeds."""
        hyperparameters = {arm: self.select_hyperparameters(arm) for arm in ARMS}
        for seed in seeds:
            for arm in ARMS:
                self.run_arm("arms", arm, seed, *hyperparameters[arm])

    def run_settings(self, seeds: Iterable[int]) -> None:
        """Run the recipe without L2I, with L2I, and with each setting changed."""
        base = self.problem.make_run("l2i")
        for seed in seeds:
            for name, changed_run in iter_settings(base):
                key: Record = {"part": "settings", "arm": name, "seed": seed}
                if not self.store.find_records(**key):
                    self.run_and_store(key, changed_run)
