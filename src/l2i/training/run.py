"""A run from start to finish: its folder, its steps, evaluations and checkpoints, and going on where it was cut."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from l2i.config import Run
from l2i.errors import Stopped
from l2i.training import folder as folders
from l2i.training.checkpoint import checkpoints, newest_whole, save_checkpoint
from l2i.training.evaluate import DEFINITION, SHORT, SHORT_DEFINITION, evaluation_steps, final_figure
from l2i.training.folder import Result
from l2i.training.log import Bar, Events, Metrics, Row
from l2i.training.signals import StopRequest
from l2i.training.trainer import Trainer


def train(run: Run, *, quiet: bool = False) -> Result:
    """Train, or go on with, `run` in its folder, and return what it came to. A run that is done is not done again."""
    folder = folders.folder_of(run)
    done = folders.read_result(folder)
    if done is not None:
        folders.claim(folder, run)
        return done
    trainer = Trainer(run)  # wrong input is found here, before anything is written
    folders.claim(folder, run)
    devices = [trainer.device] if trainer.device.type == "cuda" else []
    with torch.random.fork_rng(devices), cpu_threads(run.threads):
        torch.manual_seed(run.seed)
        training = Training(trainer, folder, quiet=quiet)
        try:
            result = training.finish()
        finally:
            training.close()
    folders.write_result(folder, result)
    return result


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """As many threads as the run asks for, while it runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def evaluate_run(folder: Path) -> dict[str, float | int | str | None]:
    """The averaged model of the newest checkpoint in a run folder, on validation and test samples."""
    run = folders.read_run(folder)
    trainer = Trainer(run)
    tensors, meta = newest_whole(folder / "checkpoints")
    with torch.random.fork_rng():
        trainer.load(tensors)
    return {
        "name": run.name,
        "seed": run.seed,
        "step": meta["step"],
        "figure": trainer.task.figure_name,
        **trainer.figures(),
    }


class Training:
    """The loop around a trainer's steps."""

    def __init__(self, trainer: Trainer, folder: Path, *, quiet: bool) -> None:
        self.trainer, self.run, self.folder, self.quiet = trainer, trainer.run, folder, quiet
        self.start, self.earlier, size = 0, 0.0, 0
        self.saved = folder / "checkpoints"
        if checkpoints(self.saved) or (folder / "metrics.jsonl").exists():
            tensors, meta = newest_whole(self.saved)
            trainer.load(tensors)
            self.start, self.earlier, size = meta["step"], meta["seconds"], meta["metrics_size"]
        if self.start == 0:
            save_checkpoint(self.saved, 0, trainer.state(), {"step": 0, "seconds": 0.0, "metrics_size": 0})
        self.metrics = Metrics(folder, size=size)
        self.events = Events(folder, step=self.start)
        self.began = time.monotonic()

    def finish(self) -> Result:
        """Take the steps that are left."""
        label = f"{self.run.name} seed {self.run.seed}"
        evaluations = evaluation_steps(self.run.steps, self.run.eval_every)
        with StopRequest() as stop, Bar(label, start=self.start, steps=self.run.steps, quiet=self.quiet) as bar:
            if self.start:
                bar.console.print(f"{self.folder}: resuming from step {self.start}", highlight=False)
            for t in range(self.start, self.run.steps):
                self.trainer.step(t)
                if t + 1 in evaluations:
                    bar.show(self.evaluate(t + 1))
                if (t + 1) % self.run.save_every == 0 or t + 1 == self.run.steps or stop.received:
                    self.save(t + 1)
                if stop.received:
                    raise Stopped(stop.received, f"stopped at step {t + 1}; the same command goes on from there")
                bar.advance(t + 1)
        return self.result()

    def close(self) -> None:
        self.metrics.close()
        self.events.close()

    def seconds(self) -> float:
        return self.earlier + time.monotonic() - self.began

    def evaluate(self, step: int) -> Row:
        """A row of metrics: means since the last row, and the averaged model on validation and test samples."""
        trainer = self.trainer
        trainer.meter.check()
        means = trainer.meter.read()
        has_outer = trainer.outer is not None
        row: Row = {
            "step": step,
            "c_t": means["c_t"],
            "c_u": means["c_u"],
            "c_h": means["c_h"] if has_outer else None,
            "weight": self.run.method.weight_at(step - 1),
            "gradient": means["gradient"],
            "outer_ratio": means["outer_ratio"] if has_outer else None,
            "outer_ratio_raw": means["outer_ratio_raw"] if has_outer else None,
            "lr": trainer.optimizer.rate(step - 1),
            **trainer.figures(),
        }
        self.metrics.add(row)
        self.events.add(row)
        return row

    def save(self, step: int) -> None:
        """A checkpoint of a state that is known to be good."""
        self.trainer.meter.check()
        meta = {"step": step, "seconds": self.seconds(), "metrics_size": self.metrics.size()}
        save_checkpoint(self.saved, step, self.trainer.state(), meta)

    def result(self) -> Result:
        run, task = self.run, self.trainer.task
        curves = {
            name: {int(row["step"] or 0): float(row[name] or 0) for row in self.metrics.rows if row[name] is not None}
            for name in ("test", "validation")
        }
        return Result(
            name=run.name,
            figure=final_figure(curves["test"], run.steps),
            figure_name=task.figure_name,
            definition=SHORT_DEFINITION if run.steps < SHORT else DEFINITION,
            validation=final_figure(curves["validation"], run.steps) if curves["validation"] else None,
            seed=run.seed,
            steps=run.steps,
            seconds=self.seconds(),
            versions=folders.versions(),
            hardware=folders.hardware(self.trainer.device),
        )
