"""The loop around a trainer's steps: evaluations, checkpoints, signals, and resuming."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

from l2i.config import from_json, to_json
from l2i.data.duplicates import describe_duplicates
from l2i.errors import InputError, NonFiniteCost, Stopped
from l2i.torchrun import world_size
from l2i.training import checkpoint, evaluation, run_dir
from l2i.training.diagnostics import measure_outer_update, measure_pseudo_label_error
from l2i.training.health import check_health
from l2i.training.logger import (
    COMPACT_LINE_INTERVAL,
    LINE_INTERVAL,
    NullLogger,
    ProgressBar,
    RunLogger,
    Stopwatch,
)
from l2i.training.metrics import NON_FINITE_ADVICE, MetricRow
from l2i.training.optimizer import compute_lr_factor
from l2i.training.run_dir import Result
from l2i.training.trainer import Trainer

REPEAT_WINDOW = 5.0  # seconds in which processes that share a run ignore a second signal


class StopRequest:
    """Record the first signal while a run is in its loop."""

    def __init__(self) -> None:
        self.received: int | None = None
        self.received_at = 0.0
        self.previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.previous_handlers[number] = signal.signal(number, self.handle_signal)
        return self

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and time.monotonic() - self.received_at < REPEAT_WINDOW:
            return
        if self.received is None and world_size() > 1:  # torchrun forwards the terminal's signal
            self.received, self.received_at = number, time.monotonic()
            return
        is_repeat, self.received = self.received is not None, number
        self.restore()
        if is_repeat:
            os.kill(os.getpid(), number)

    def restore(self) -> None:
        for number, handler in self.previous_handlers.items():
            signal.signal(number, handler)
        self.previous_handlers = {}

    def __exit__(self, *_: object) -> None:
        self.restore()


EvalCallback = Callable[[Trainer, int], None]
REQUIRED_METADATA = {"config", "seconds", "metrics_size"}  # to resume from a checkpoint
GRADIENT_COLUMNS = ("gradient", "grad_ratio", "grad_ratio_raw")
STEP_COLUMNS = ("c_t", "c_u", "c_h", *GRADIENT_COLUMNS, "mask_rate", "mask_top_class")


def iter_steps(trainer: Trainer, start: int = 0) -> Iterator[int]:
    """Take the steps of a run from `start` on, and yield the number of steps after each."""
    for t in range(start, trainer.run.steps):
        trainer.step(t)
        yield t + 1


class TrainingLoop:
    """A run in its folder, from where it is to its result."""

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        stop: StopRequest,
        *,
        quiet: bool,
        label: str = "",
        compact: bool = False,
    ) -> None:
        self.trainer, self.run, self.group = trainer, trainer.run, trainer.group
        self.folder, self.stop, self.label, self.compact = folder, stop, label, compact
        self.on_evaluation: EvalCallback | None = None
        self.concurrent_runs = self.earlier_concurrent = 1
        self.start, self.stopwatch = 0, Stopwatch()
        self.resume_notes: list[str] = []
        self.fingerprint = trainer.splits.fingerprint()
        self.leak_warnings = describe_duplicates(trainer.splits) if self.group.is_main else []
        self.active_warnings: dict[str, str] = {}
        size, keep, is_main = self._resume(), self.run.keep_checkpoints, self.group.is_main
        self.logger = RunLogger(folder, self.start, size, keep=keep) if is_main else NullLogger()
        is_quiet = quiet or not is_main
        title = label or f"{self.run.name} seed {self.run.seed}"
        self.bar = ProgressBar(
            title,
            start=self.start,
            steps=self.run.steps,
            quiet=is_quiet,
            line_interval=COMPACT_LINE_INTERVAL if compact else LINE_INTERVAL,
        )

    def _resume(self) -> int:
        """Load the newest checkpoint, or write the first; return the size of its metrics."""
        newest = self._read_checkpoint() if self.group.is_main else None
        payload = b"" if newest is None else checkpoint.serialize(*newest)
        payload = self.group.broadcast_bytes(payload)
        if not payload:
            if self.group.is_main:
                meta = {**self._make_metadata(0), "metrics_size": 0}
                state, keep = self.trainer.state_dict(), self.run.keep_checkpoints
                checkpoint.save_checkpoint(self.folder / "checkpoints", 0, state, meta, keep=keep)
            return 0
        tensors, meta = checkpoint.deserialize(payload)
        self.trainer.load_state_dict(tensors)
        self.start, self.stopwatch.earlier_seconds = meta["step"], meta["seconds"]
        self.earlier_concurrent = meta.get("concurrent_runs", 1)
        precision = self.trainer.precision
        earlier = meta.get("precision", precision)
        note = "" if earlier == precision else f", in {precision} instead of {earlier}"
        if self.start:
            self.resume_notes.append(f"{self.folder}: resuming from step {self.start}{note}")
        return int(meta["metrics_size"])

    def _read_checkpoint(self) -> checkpoint.Checkpoint | None:
        """Return the newest checkpoint of this run, or None if it has not begun."""
        checkpoints = self.folder / "checkpoints"
        for directory in (checkpoints, self.folder / run_dir.BEST_DIR):
            for leftover in directory.glob("*.partial"):  # of a process killed while writing
                leftover.unlink(missing_ok=True)
        has_metrics = (self.folder / "metrics.jsonl").exists()
        if not has_metrics and not checkpoint.list_checkpoints(checkpoints):
            return None
        tensors, meta = checkpoint.load_latest_checkpoint(checkpoints, self.resume_notes.append)
        if REQUIRED_METADATA - meta.keys():
            problem = f"the newest checkpoint in {checkpoints} is not one of a training run"
            raise InputError(f"{problem}; train with a different --out")
        run_dir.check_config(checkpoints, to_json(from_json(meta["config"])), self.run)
        custom_splits = self.trainer.custom_splits
        run_dir.check_fingerprint(self.folder, meta, self.fingerprint, custom_splits=custom_splits)
        return tensors, meta

    def finish(self) -> Result:
        """Take the remaining steps and write the result."""
        for _ in self.steps():
            pass
        return self.write_result()

    def steps(self) -> Iterator[None]:
        """Take one of the remaining steps for each item that is drawn from this iterator."""
        self.stopwatch.start()
        with self.bar as bar:
            for line in self._describe():
                bar.print_line(line)
            for step in iter_steps(self.trainer, self.start):
                self._handle_step(step)
                yield

    def _describe(self) -> Iterator[str]:
        """Yield the lines to print before the first step."""
        if not self.compact:
            yield from self._describe_setup()
        yield from self.resume_notes
        for sentence in self.leak_warnings:
            yield f"warning: {sentence}"

    def _describe_setup(self) -> Iterator[str]:
        """Describe the data, the device and the processes."""
        trainer = self.trainer
        title = self.label or ("your data" if trainer.custom_splits else self.run.data.name)
        yield f"{title}: {trainer.describe_splits()}"
        if trainer.device.type == "cuda":
            count = self.concurrent_runs
            concurrency = f", {count} runs in parallel" if count > 1 else ""
            hardware = run_dir.describe_hardware(trainer.device)
            yield f"{hardware}: {trainer.precision}, {trainer.engine}{concurrency}"
        if self.group.size > 1:
            yield f"{self.group.size} processes, each with a share of every mini-batch"

    def _handle_step(self, step: int) -> None:
        """Do what is due after a step; stop if any process was asked to."""
        stop = self.group.any_async(self.stop.received is not None)
        is_last = step == self.run.steps or stop
        evaluated = evaluation.is_eval_step(step, self.run.steps, self.run.eval_every)
        if evaluated:
            self.bar.show_costs(self.evaluate(step))
        if step % self.run.save_every == 0 or is_last:
            with self.stopwatch.track_overhead():
                if not evaluated:
                    self.trainer.recompute_bn()  # save what would be evaluated
                self.logger.save(step, self.trainer.state_dict(), self._make_metadata(step))
                if is_last:
                    self.logger.checkpointer.wait()
        self.logger.checkpointer.raise_pending()
        if stop:
            raise Stopped(
                self.stop.received or signal.SIGTERM,
                f"stopped at step {step}; the same command resumes from there",
            )
        self.bar.advance(step)

    def write_result(self) -> Result:
        """Write the result to the run's folder, and return it on all processes."""
        payload = b""
        if self.group.is_main:
            result = self._build_result()
            run_dir.write_result(self.folder, result)
            payload = json.dumps(asdict(result)).encode()
        return run_dir.parse_result(self.group.broadcast_bytes(payload))

    def close(self) -> None:
        self.logger.close()

    def evaluate(self, step: int) -> MetricRow:
        """Log a row of metrics: means since the last row, and the averaged model's metrics."""
        run, trainer = self.run, self.trainer
        means = trainer.meter.read()
        row: MetricRow = {
            "step": step,
            **{name: means.get(name) for name in STEP_COLUMNS},
            "weight": run.method.compute_weight(step - 1, run.steps),
            "lr": run.optim.lr * compute_lr_factor(run.optim, step - 1, run.steps),
            **self._evaluate_splits(),
        }
        for name, value in row.items():
            if value is not None and not math.isfinite(value):
                problem = f"{name} is NaN or infinite at step {step}"
                raise NonFiniteCost(f"{problem}; {NON_FINITE_ADVICE}")
        # not at evaluations that are for the final metric alone
        if run.probe_samples and (step % run.eval_every == 0 or step == run.steps):
            row |= self.probe(step)
        self.logger.log_row(row)
        self._print_warnings(step)
        if run.report == "best":
            self.logger.save_best(step, trainer.teacher.model.state_dict)
        if self.on_evaluation is not None:
            with self.stopwatch.track_overhead():
                self.on_evaluation(trainer, step)
        return row

    def _evaluate_splits(self) -> MetricRow:
        """Return the main metric on the validation and test samples; `l2i evaluate` has all."""
        splits, task = self.trainer.splits, self.trainer.task
        self.bar.begin_evaluation(len(splits.validation.x) + len(splits.test.x))
        row: MetricRow = {"validation": None, "test": None, "prediction_diversity": None}
        with self.stopwatch.track_overhead():
            monitored = evaluation.pick_monitored_split(splits)
            for part, outputs in self.trainer.predict_splits(self.bar.advance_evaluation).items():
                y = getattr(splits, part).y
                row[part] = float(task.metric(outputs, y))
                if part == monitored:
                    row["prediction_diversity"] = evaluation.measure_diversity(task, outputs, y)
        return row

    def _print_warnings(self, step: int) -> None:
        """Print the health warnings that are new since the last evaluation."""
        warnings = self._check_health()
        for kind, sentence in warnings.items():
            if kind not in self.active_warnings:
                self.bar.print_line(f"warning at step {step}: {sentence}")
        self.active_warnings = warnings

    def _check_health(self) -> dict[str, str]:
        looks_ahead = self.trainer.gradients.looks_ahead and self.run.l2i.ablation == "none"
        chance_loss = self.trainer.task.chance_loss if looks_ahead else None
        return check_health(self.logger.rows, self.trainer.splits, self.run.steps, chance_loss)

    def probe(self, step: int) -> MetricRow:
        """Return the diagnostics, None if not finite; their time does not count as the run's."""
        with self.stopwatch.exclude():
            values = measure_pseudo_label_error(self.trainer) | measure_outer_update(
                self.trainer, step
            )
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    def _make_metadata(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "seconds": self.stopwatch.get_elapsed() if step else 0.0,
            "config": to_json(self.run),
            "data": self.fingerprint,
            "given": self.trainer.custom_splits,
            "precision": self.trainer.precision,
            "concurrent_runs": max(self.concurrent_runs, self.earlier_concurrent),
        }

    def _build_result(self) -> Result:
        run, task, trainer = self.run, self.trainer.task, self.trainer
        validation = evaluation.extract_curve(self.logger.rows, "validation")
        test = evaluation.extract_curve(self.logger.rows, "test")
        part, averaged = "test" if test else "validation", run.optim.ema_decay > 0
        description = evaluation.describe_metric(run.steps, run.report, part, averaged=averaged)
        final_metric = partial(
            evaluation.compute_final_metric,
            validation=validation,
            steps=run.steps,
            final=run.report,
        )
        new_steps = run.steps - self.start
        return Result(
            name=run.name,
            metric=final_metric(test or validation),
            metric_name=task.metric_name,
            metric_definition=f"{task.metric_description}; {description}",
            validation=final_metric(validation) if validation else None,
            seed=run.seed,
            steps=run.steps,
            seconds=self.stopwatch.get_elapsed(),
            steps_per_second=self.stopwatch.compute_step_rate(new_steps) if new_steps else None,
            versions=run_dir.collect_versions(),
            hardware=run_dir.describe_hardware(trainer.device),
            precision=trainer.precision,
            engine=trainer.engine,
            concurrent_runs=max(self.concurrent_runs, self.earlier_concurrent),
            processes=self.group.size,
            warnings=[*self.leak_warnings, *self._check_health().values()],
            settings=run_dir.flatten_settings(run),
        )
