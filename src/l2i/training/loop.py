"""The time that a run takes: all of it, and that of its steps alone.

MERGED:
The loop around a trainer's steps: evaluations, checkpoints, and going on where a run was cut.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from l2i.config import from_json, to_json
from l2i.data.duplicates import describe_duplicates
from l2i.errors import InputError, NonFiniteCost, Stopped
from l2i.training import run_dir as folders
from l2i.training.checkpoint import deserialize, latest_valid, list_checkpoints, save_checkpoint, serialize
from l2i.training.diagnostics import measure_outer_update, pseudo_label_error
from l2i.training.ema import recompute_bn
from l2i.training.evaluation import compute_final_metric, describe_metric, extract_curve, is_eval_step
from l2i.training.health import check_health, measure_diversity, pick_monitored_split
from l2i.training.logger import NullLogger, RunLogger
from l2i.training.metrics import MetricRow
from l2i.training.optimizer import compute_lr_factor
from l2i.training.progress import ProgressBar, Stopwatch
from l2i.training.run_dir import Result
from l2i.training.signals import StopRequest
from l2i.training.trainer import Trainer

EvalCallback = Callable[[Trainer, int], None]
REQUIRED_METADATA = {"config", "seconds", "metrics_size"}  # what a checkpoint that a run can go on from says of it
STEP_COLUMNS = ("c_t", "c_u", "c_h", "gradient", "grad_ratio", "grad_ratio_raw", "mask_rate", "mask_top_class")  # in the steps


class TrainingLoop:
    """A run in its folder, from where it is to its result."""

    def __init__(
        self, trainer: Trainer, folder: Path, stop: StopRequest, *, quiet: bool, label: str | None = None
    ) -> None:
        self.trainer, self.run, self.folder, self.stop = trainer, trainer.run, folder, stop
        self.concurrent_runs, self.stopwatch = 1, Stopwatch()
        self.label = label
        self.on_evaluation: EvalCallback | None = None
        self.start, self.precision_note, self.earlier_concurrent = 0, "", 1
        self.checkpoint_dir, self.ranks, self.resume_notes = folder / "checkpoints", trainer.ranks, list[str]()
        self.fingerprint = trainer.splits.fingerprint()
        self.leak_warnings, self.active_warnings = describe_duplicates(trainer.splits) if self.ranks.is_main else [], dict[str, str]()
        size = self.resume()
        self.logger = RunLogger(folder, step=self.start, size=size, keep=self.run.keep_checkpoints) if self.ranks.is_main else NullLogger()
        self.bar = ProgressBar(
            label or f"{self.run.name} seed {self.run.seed}",
            start=self.start,
            steps=self.run.steps,
            quiet=quiet or not self.ranks.is_main,
        )

    def resume(self) -> int:
        """Go to the newest checkpoint, or write the first; returns the size of the metrics that belong to it.

        The process that writes is the one that reads: the others hear from it.
        """
        payload = b""
        for directory in (self.checkpoint_dir, self.folder / folders.BEST_DIR) if self.ranks.is_main else ():
            for leftover in directory.glob("*.partial"):  # by one that was killed while it wrote
                leftover.unlink(missing_ok=True)
        if self.ranks.is_main and (list_checkpoints(self.checkpoint_dir) or (self.folder / "metrics.jsonl").exists()):
            tensors, meta = latest_valid(self.checkpoint_dir, self.resume_notes.append)
            if REQUIRED_METADATA - meta.keys():
                raise InputError(f"the newest checkpoint in {self.checkpoint_dir} is of no run; train in another --out")
            folders.check_config(self.checkpoint_dir, to_json(from_json(meta["config"])), self.run)
            folders.check_fingerprint(self.folder, meta, self.trainer.splits, custom_splits=self.trainer.custom_splits)
            payload = serialize(tensors, meta)
        payload = self.ranks.broadcast_bytes(payload)
        if not payload:
            if self.ranks.is_main:
                metadata = {**self.checkpoint_metadata(0), "metrics_size": 0}
                save_checkpoint(self.checkpoint_dir, 0, self.trainer.state_dict(), metadata, keep=self.run.keep_checkpoints)
            return 0
        tensors, meta = deserialize(payload)
        self.trainer.load_state_dict(tensors)
        self.start, self.stopwatch.earlier_seconds = meta["step"], meta["seconds"]
        self.earlier_concurrent = meta.get("concurrent_runs", 1)
        earlier_precision = meta.get("precision", self.trainer.precision)
        self.precision_note = "" if earlier_precision == self.trainer.precision else f", in {self.trainer.precision} instead of {earlier_precision}"
        return int(meta["metrics_size"])

    def finish(self) -> Result:
        """Take the steps that are left, and write down what the run came to."""
        for _ in self.steps():
            pass
        return self.write_result()

    def steps(self) -> Iterator[None]:
        """The steps that are left, one each time that it is asked for the next."""
        self.stopwatch.start()
        with self.bar as bar:
            title = self.label or ("your data" if self.trainer.custom_splits else self.run.data.name)
            bar.print_line(f"{title}: {self.trainer.describe_splits()}")
            if self.trainer.device.type == "cuda":
                concurrency = f", {self.concurrent_runs} runs side by side" if self.concurrent_runs > 1 else ""
                bar.print_line(
                    f"{folders.describe_hardware(self.trainer.device)}: {self.trainer.precision}, {self.trainer.engine}{concurrency}"
                )
            if self.ranks.size > 1:
                bar.print_line(f"{self.ranks.size} processes, each with its part of every mini-batch")
            for note in self.resume_notes:
                bar.print_line(note)
            for sentence in self.leak_warnings:
                bar.print_line(f"warning: {sentence}")
            if self.start:
                bar.print_line(f"{self.folder}: resuming from step {self.start}{self.precision_note}")
            for t in range(self.start, self.run.steps):
                self.run_step(t)
                yield

    def run_step(self, t: int) -> None:
        """A step, and what is due after it; stops where any of the processes was asked to."""
        self.trainer.step(t)
        step, stop = t + 1, self.ranks.any_async(self.stop.received is not None)
        evaluated = is_eval_step(step, self.run.steps, self.run.eval_every)
        if evaluated:
            self.bar.show_costs(self.evaluate(step))
        if step % self.run.save_every == 0 or step == self.run.steps or stop:
            with self.stopwatch.track_overhead():
                if not evaluated:
                    recompute_bn(self.trainer)  # what is kept is what would be evaluated
                self.logger.save(step, self.trainer.state_dict(), self.checkpoint_metadata(step))
        if step == self.run.steps or stop:
            with self.stopwatch.track_overhead():
                self.logger.wait()
        self.logger.raise_pending()
        if stop:
            raise Stopped(
                self.stop.received or signal.SIGTERM, f"stopped at step {step}; the same command goes on from there"
            )
        self.bar.advance(step)

    def write_result(self) -> Result:
        """What the run came to, in its folder."""
        payload = b""
        if self.ranks.is_main:
            result = self.build_result()
            folders.write_result(self.folder, result)
            payload = json.dumps(asdict(result)).encode()
        return Result(**json.loads(self.ranks.broadcast_bytes(payload)))

    def close(self) -> None:
        self.logger.close()

    def evaluate(self, step: int) -> MetricRow:
        """A row of metrics: means since the last row, and the averaged model on validation and test samples."""
        trainer = self.trainer
        means = trainer.meter.read()
        row: MetricRow = {
            "step": step,
            **{name: means.get(name) for name in STEP_COLUMNS},
            "weight": self.run.method.compute_weight(step - 1, self.run.steps),
            "lr": self.run.optim.lr * compute_lr_factor(self.run.optim, step - 1, self.run.steps),
            **self.evaluate_splits(),
        }
        for name, value in row.items():
            if value is not None and not math.isfinite(value):
                raise NonFiniteCost(f"{name} is not finite at step {step}; the last good checkpoint is kept")
        if step % self.run.eval_every == 0 or step == self.run.steps:  # the others are for the final figure alone
            row |= self.probe(step)
        self.logger.log_row(row)
        self.warn(step)
        if self.run.report == "best":
            self.logger.save_best(step, trainer.teacher.model.state_dict)
        if self.on_evaluation is not None:
            with self.stopwatch.track_overhead():
                self.on_evaluation(trainer, step)
        return row

    def evaluate_splits(self) -> MetricRow:
        """The main figure on the validation and test samples; the other figures are for `l2i evaluate`."""
        splits = self.trainer.splits
        self.bar.begin_evaluation(len(splits.validation.x) + len(splits.test.x))
        with self.stopwatch.track_overhead():
            outputs, task = self.trainer.predict_splits(self.bar.advance_evaluation), self.trainer.task
            metrics = {part: float(task.metric(o, getattr(splits, part).y)) for part, o in outputs.items()}
            part = pick_monitored_split(splits)
            diversity = None if part is None else measure_diversity(task, outputs[part], getattr(splits, part).y)
        return {"validation": metrics.get("validation"), "test": metrics.get("test"), "prediction_diversity": diversity}

    def warn(self, step: int) -> None:
        """Say what has gone wrong since the last evaluation."""
        sentences = self.health_warnings()
        for kind, sentence in sentences.items():
            if kind not in self.active_warnings:
                self.bar.print_line(f"warning, at step {step}: {sentence}")
        self.active_warnings = sentences

    def health_warnings(self) -> dict[str, str]:
        """What has gone wrong, by kind."""
        l2i = self.run.l2i
        looks_ahead = self.trainer.outer_step is not None and l2i.eta is not None and l2i.through == "labels"
        chance_loss = self.trainer.task.chance_loss if looks_ahead else None
        return check_health(self.logger.rows, self.trainer.splits, self.run.steps, chance_loss)

    def probe(self, step: int) -> MetricRow:
        """How right the imputed labels are, and what the next outer update does to the costs.

        None where that is no number, which is not the run's failure.

        It is not the run's work either: its time does not count.
        """
        with self.stopwatch.exclude():
            values = pseudo_label_error(self.trainer) | measure_outer_update(self.trainer, step)
        return {name: value if math.isfinite(value) else None for name, value in values.items()}

    def checkpoint_metadata(self, step: int) -> dict[str, object]:
        """What a checkpoint says beside its tensors."""
        return {
            "step": step,
            "seconds": self.stopwatch.get_elapsed() if step else 0.0,
            "config": to_json(self.run),
            "data": self.fingerprint,
            "given": self.trainer.custom_splits,
            "precision": self.trainer.precision,
            "concurrent_runs": max(self.concurrent_runs, self.earlier_concurrent),
        }

    def build_result(self) -> Result:
        run, task, validation = self.run, self.trainer.task, extract_curve(self.logger.rows, "validation")
        test = extract_curve(self.logger.rows, "test")
        description = describe_metric(run.steps, run.report, "test" if test else "validation", averaged=run.optim.ema_decay > 0)
        final_metric = partial(compute_final_metric, validation=validation, steps=run.steps, final=run.report)
        return Result(
            name=run.name,
            metric=final_metric(test or validation),
            metric_name=task.metric_name,
            metric_definition=f"{task.metric_description}; {description}",
            validation=final_metric(validation) if validation else None,
            seed=run.seed,
            steps=run.steps,
            seconds=self.stopwatch.get_elapsed(),
            steps_per_second=self.stopwatch.compute_step_rate(run.steps - self.start) if run.steps > self.start else None,
            versions=folders.collect_versions(),
            hardware=folders.describe_hardware(self.trainer.device),
            precision=self.trainer.precision,
            engine=self.trainer.engine,
            concurrent_runs=max(self.concurrent_runs, self.earlier_concurrent),
            processes=self.ranks.size,
            warnings=[*self.leak_warnings, *self.health_warnings().values()],
            settings=folders.flat_settings(run),
        )
