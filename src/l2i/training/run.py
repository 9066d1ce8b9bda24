"""A run from start to finish: its folder, its steps, evaluations and checkpoints, and going on where it was cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import nn

from l2i.config import Run, from_json, to_json
from l2i.data.split import Splits
from l2i.errors import NonFiniteCost, Stopped
from l2i.training import folder as folders
from l2i.training.build import dtype_of, placed
from l2i.training.checkpoint import checkpoints, newest_whole, save_checkpoint
from l2i.training.evaluate import best_step, curve, definition, final_figure, is_evaluated
from l2i.training.folder import BEST, Result
from l2i.training.log import Bar, Events, Metrics, Row
from l2i.training.optim import rate_factor
from l2i.training.pace import Pace
from l2i.training.probe import probe
from l2i.training.signals import StopRequest
from l2i.training.state import cpu_threads
from l2i.training.trainer import Trainer
from l2i.validate import validate

Watch = Callable[[Trainer, int], None]


def train(
    run: Run,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    label: str | None = None,
    watch: Watch | None = None,
) -> Result:
    """Train, or go on with, `run` in its folder, and return what it came to. A run that is done is not done again.

    `splits` and `model` may be your own; they are then not part of what config.json says. `label` is what the run is
    called while it is trained. `watch` is called with the trainer and the step at every evaluation; in a run that was
    cut and goes on, some steps come twice.
    """
    with StopRequest() as stop, begun(run, stop, splits=splits, model=model, quiet=quiet, label=label) as training:
        if isinstance(training, Result):
            return training
        training.watch = watch
        return training.finish()


@contextmanager
def begun(
    run: Run,
    stop: StopRequest,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    quiet: bool = False,
    label: str | None = None,
) -> Iterator[Training | Result]:
    """A run ready to take its steps, or its result where it is done."""
    validate(run)
    run, folder = placed(run), folders.folder_of(run)
    folders.check(folder, run)
    done = folders.read_result(folder)
    if done is not None:
        if splits is not None:
            here = splits.to(torch.device("cpu"), dtype_of(run))  # as a checkpoint knows them
            folders.same_data(folder, newest_whole(folder / "checkpoints")[1], here, given=True)
        yield done
        return
    with cpu_threads(run.threads):
        trainer = Trainer(run, splits=splits, model=model)  # wrong input is found here, before anything is written
        devices = [trainer.device] if trainer.device.type == "cuda" else []
        with closing(trainer), folders.held(folder), torch.random.fork_rng(devices):
            torch.manual_seed(run.seed)
            folders.claim(folder, run)
            with closing(Training(trainer, folder, stop, quiet=quiet, label=label)) as training:
                yield training


class Training:
    """The loop around a trainer's steps."""

    def __init__(
        self, trainer: Trainer, folder: Path, stop: StopRequest, *, quiet: bool, label: str | None = None
    ) -> None:
        self.trainer, self.run, self.folder, self.stop = trainer, trainer.run, folder, stop
        self.at_once, self.pace = 1, Pace()
        self.label = label
        self.watch: Watch | None = None
        self.start, self.changed, self.shared, size = 0, "", 1, 0
        self.saved = folder / "checkpoints"
        if checkpoints(self.saved) or (folder / "metrics.jsonl").exists():
            tensors, meta = newest_whole(self.saved)
            folders.match(self.saved, to_json(from_json(meta["config"])), self.run)
            folders.same_data(folder, meta, trainer.splits, given=trainer.given)
            trainer.load(tensors)
            self.start, self.pace.earlier, size = meta["step"], meta["seconds"], meta["metrics_size"]
            self.shared = meta.get("at_once", 1)
            before = meta.get("precision", trainer.precision)
            self.changed = "" if before == trainer.precision else f", in {trainer.precision} instead of {before}"
        else:
            self.write_checkpoint(0, seconds=0.0, metrics_size=0)
        self.metrics = Metrics(folder, size=size)
        self.events = Events(folder, step=self.start)
        self.bar = Bar(
            label or f"{self.run.name} seed {self.run.seed}", start=self.start, steps=self.run.steps, quiet=quiet
        )

    def finish(self) -> Result:
        """Take the steps that are left, and write down what the run came to."""
        for _ in self.going():
            pass
        return self.written()

    def going(self) -> Iterator[None]:
        """The steps that are left, one each time that it is asked for the next."""
        self.pace.begin()
        with self.bar as bar:
            what = self.label or ("your data" if self.trainer.given else self.run.data.name)
            bar.say(f"{what}: {self.trainer.described()}")
            if self.trainer.device.type == "cuda":
                beside = f", {self.at_once} runs side by side" if self.at_once > 1 else ""
                bar.say(
                    f"{folders.hardware(self.trainer.device)}: {self.trainer.precision}, {self.trainer.engine}{beside}"
                )
            if self.start:
                bar.say(f"{self.folder}: resuming from step {self.start}{self.changed}")
            for t in range(self.start, self.run.steps):
                self.trainer.step(t)
                if is_evaluated(t + 1, self.run.steps, self.run.eval_every):
                    bar.show(self.evaluate(t + 1))
                if (t + 1) % self.run.save_every == 0 or t + 1 == self.run.steps or self.stop.received:
                    self.save(t + 1)
                if self.stop.received:
                    raise Stopped(self.stop.received, f"stopped at step {t + 1}; the same command goes on from there")
                bar.advance(t + 1)
                yield

    def written(self) -> Result:
        """What the run came to, in its folder."""
        result = self.result()
        folders.write_result(self.folder, result)
        return result

    def close(self) -> None:
        self.metrics.close()
        self.events.close()

    def evaluate(self, step: int) -> Row:
        """A row of metrics: means since the last row, and the averaged model on validation and test samples."""
        trainer = self.trainer
        means = trainer.meter.read()
        row: Row = {
            "step": step,
            "c_t": means["c_t"],
            "c_u": means["c_u"],
            "c_h": means.get("c_h"),
            "weight": self.run.method.weight_at(step - 1, self.run.steps),
            "gradient": means["gradient"],
            "outer_ratio": means.get("outer_ratio"),
            "outer_ratio_raw": means.get("outer_ratio_raw"),
            "lr": self.run.optim.lr * rate_factor(self.run.optim, step - 1, self.run.steps),
            **self.figures(),
        }
        for name, value in row.items():
            if value is not None and not math.isfinite(value):
                raise NonFiniteCost(f"{name} is not finite at step {step}; the last good checkpoint is kept")
        row |= self.probed(step)
        self.metrics.add(row)
        self.keep_best(step)
        self.events.add(row)
        if self.watch is not None:
            with self.pace.beside_steps():
                self.watch(trainer, step)
        return row

    def figures(self) -> Row:
        """The main figure on the validation and test samples; the other figures are for `l2i evaluate`."""
        splits = self.trainer.splits
        self.bar.evaluating(len(splits.validation.x) + len(splits.test.x))
        with self.pace.beside_steps():
            found, name = self.trainer.figures(self.bar.evaluated), self.trainer.task.figure_name
        return {part: found[part][name] if part in found else None for part in ("validation", "test")}

    def probed(self, step: int) -> Row:
        """What the next outer update does to the costs; None where that is no number, which is not the run's failure.

        It is not the run's work either: its time does not count.
        """
        with self.pace.left_out():
            found = probe(self.trainer, step)
        return {name: value if math.isfinite(value) else None for name, value in found.items()}

    def keep_best(self, step: int) -> None:
        """Early stopping: the averaged model with the best validation figure so far is what stays of a run."""
        if self.run.final == "best" and best_step(curve(self.metrics.rows, "validation")) == step:
            teacher = {f"teacher.{name}": t for name, t in self.trainer.teacher.model.state_dict().items()}
            save_checkpoint(self.folder / BEST, step, teacher, {"step": step})

    def save(self, step: int) -> None:
        """A checkpoint of a state that is known to be good."""
        self.trainer.meter.check()
        self.events.flush()
        with self.pace.beside_steps():
            self.write_checkpoint(step, seconds=self.pace.seconds(), metrics_size=self.metrics.size())

    def write_checkpoint(self, step: int, *, seconds: float, metrics_size: int) -> None:
        meta = {"step": step, "seconds": seconds, "metrics_size": metrics_size, "config": to_json(self.run)}
        meta |= {"data": self.trainer.splits.fingerprint(), "given": self.trainer.given}
        meta |= {"precision": self.trainer.precision, "at_once": max(self.at_once, self.shared)}
        state = self.trainer.state()
        for name, tensor in state.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise NonFiniteCost(f"{name} is not finite at step {step}; the last good checkpoint is kept")
        save_checkpoint(self.saved, step, state, meta)

    def result(self) -> Result:
        run, task, validation = self.run, self.trainer.task, curve(self.metrics.rows, "validation")
        test = curve(self.metrics.rows, "test")
        told = definition(run.steps, run.final, "test" if test else "validation", averaged=run.optim.ema_decay > 0)
        final = partial(final_figure, validation=validation, steps=run.steps, final=run.final)
        return Result(
            name=run.name,
            figure=final(test or validation),
            figure_name=task.figure_name,
            definition=f"{task.meaning}; {told}",
            validation=final(validation) if validation else None,
            seed=run.seed,
            steps=run.steps,
            seconds=self.pace.seconds(),
            steps_per_second=self.pace.rate(run.steps - self.start) if run.steps > self.start else None,
            versions=folders.versions(),
            hardware=folders.hardware(self.trainer.device),
            precision=self.trainer.precision,
            engine=self.trainer.engine,
            at_once=max(self.at_once, self.shared),
        )
