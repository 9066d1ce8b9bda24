"""The loop around a trainer's steps: evaluations, checkpoints, and going on where a run was cut."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from l2i.config import from_json, to_json
from l2i.data.leaks import leaks
from l2i.errors import InputError, NonFiniteCost, Stopped
from l2i.training import folder as folders
from l2i.training.alarms import alarms, spread_of, watched
from l2i.training.book import Blank, Book
from l2i.training.checkpoint import checkpoints, newest_whole, packed, save_checkpoint, unpacked
from l2i.training.evaluate import curve, definition, final_figure, is_evaluated
from l2i.training.folder import Result
from l2i.training.log import Bar, Row
from l2i.training.optim import rate_factor
from l2i.training.own_statistics import renew_statistics
from l2i.training.pace import Pace
from l2i.training.probe import probe
from l2i.training.signals import StopRequest
from l2i.training.trainer import Trainer
from l2i.training.truth import agreement

Watch = Callable[[Trainer, int], None]
ABOUT = {"config", "seconds", "metrics_size"}  # what a checkpoint that a run can go on from says of it
MEASURED = ("c_t", "c_u", "c_h", "gradient", "outer_ratio", "outer_ratio_raw", "mask", "top_class")  # in the steps


class Training:
    """A run in its folder, from where it is to its result."""

    def __init__(
        self, trainer: Trainer, folder: Path, stop: StopRequest, *, quiet: bool, label: str | None = None
    ) -> None:
        self.trainer, self.run, self.folder, self.stop = trainer, trainer.run, folder, stop
        self.at_once, self.pace = 1, Pace()
        self.label = label
        self.watch: Watch | None = None
        self.start, self.changed, self.shared = 0, "", 1
        self.saved, self.ranks, self.notes = folder / "checkpoints", trainer.ranks, list[str]()
        self.data = trainer.splits.fingerprint()
        self.leaks, self.raised = leaks(trainer.splits) if self.ranks.writes else [], dict[str, str]()
        size = self.gone_on()
        self.book = Book(folder, step=self.start, size=size, keep=self.run.keep) if self.ranks.writes else Blank()
        self.bar = Bar(
            label or f"{self.run.name} seed {self.run.seed}",
            start=self.start,
            steps=self.run.steps,
            quiet=quiet or not self.ranks.writes,
        )

    def gone_on(self) -> int:
        """Go to the newest checkpoint, or write the first; returns the size of the metrics that belong to it.

        The process that writes is the one that reads: the others hear from it.
        """
        found = b""
        for place in (self.saved, self.folder / folders.BEST) if self.ranks.writes else ():
            for left in place.glob("*.partial"):  # by one that was killed while it wrote
                left.unlink(missing_ok=True)
        if self.ranks.writes and (checkpoints(self.saved) or (self.folder / "metrics.jsonl").exists()):
            tensors, meta = newest_whole(self.saved, self.notes.append)
            if ABOUT - meta.keys():
                raise InputError(f"the newest checkpoint in {self.saved} is of no run; train in another --out")
            folders.match(self.saved, to_json(from_json(meta["config"])), self.run)
            folders.same_data(self.folder, meta, self.trainer.splits, given=self.trainer.given)
            found = packed(tensors, meta)
        found = self.ranks.told(found)
        if not found:
            if self.ranks.writes:
                about = {**self.about(0), "metrics_size": 0}
                save_checkpoint(self.saved, 0, self.trainer.state(), about, keep=self.run.keep)
            return 0
        tensors, meta = unpacked(found)
        self.trainer.load(tensors)
        self.start, self.pace.earlier = meta["step"], meta["seconds"]
        self.shared = meta.get("at_once", 1)
        before = meta.get("precision", self.trainer.precision)
        self.changed = "" if before == self.trainer.precision else f", in {self.trainer.precision} instead of {before}"
        return int(meta["metrics_size"])

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
            if self.ranks.size > 1:
                bar.say(f"{self.ranks.size} processes, each with its part of every mini-batch")
            for note in self.notes:
                bar.say(note)
            for sentence in self.leaks:
                bar.say(f"warning: {sentence}")
            if self.start:
                bar.say(f"{self.folder}: resuming from step {self.start}{self.changed}")
            for t in range(self.start, self.run.steps):
                self.taken(t)
                yield

    def taken(self, t: int) -> None:
        """A step, and what is due after it; stops where any of the processes was asked to."""
        self.trainer.step(t)
        step, stop = t + 1, self.ranks.agreed(self.stop.received is not None)
        evaluated = is_evaluated(step, self.run.steps, self.run.eval_every)
        if evaluated:
            self.bar.show(self.evaluate(step))
        if step % self.run.save_every == 0 or step == self.run.steps or stop:
            with self.pace.beside_steps():
                if not evaluated:
                    renew_statistics(self.trainer)  # what is kept is what would be evaluated
                self.book.save(step, self.trainer.state(), self.about(step))
        if step == self.run.steps or stop:
            with self.pace.beside_steps():
                self.book.wait()
        self.book.check()
        if stop:
            raise Stopped(
                self.stop.received or signal.SIGTERM, f"stopped at step {step}; the same command goes on from there"
            )
        self.bar.advance(step)

    def written(self) -> Result:
        """What the run came to, in its folder."""
        said = b""
        if self.ranks.writes:
            result = self.result()
            folders.write_result(self.folder, result)
            said = json.dumps(asdict(result)).encode()
        return Result(**json.loads(self.ranks.told(said)))

    def close(self) -> None:
        self.book.close()

    def evaluate(self, step: int) -> Row:
        """A row of metrics: means since the last row, and the averaged model on validation and test samples."""
        trainer = self.trainer
        means = trainer.meter.read()
        row: Row = {
            "step": step,
            **{name: means.get(name) for name in MEASURED},
            "weight": self.run.method.weight_at(step - 1, self.run.steps),
            "lr": self.run.optim.lr * rate_factor(self.run.optim, step - 1, self.run.steps),
            **self.figures(),
        }
        for name, value in row.items():
            if value is not None and not math.isfinite(value):
                raise NonFiniteCost(f"{name} is not finite at step {step}; the last good checkpoint is kept")
        if step % self.run.eval_every == 0 or step == self.run.steps:  # the others are for the final figure alone
            row |= self.probed(step)
        self.book.add(row)
        self.warn(step)
        if self.run.final == "best":
            self.book.keep_best(step, trainer.teacher.model.state_dict)
        if self.watch is not None:
            with self.pace.beside_steps():
                self.watch(trainer, step)
        return row

    def figures(self) -> Row:
        """The main figure on the validation and test samples; the other figures are for `l2i evaluate`."""
        splits = self.trainer.splits
        self.bar.evaluating(len(splits.validation.x) + len(splits.test.x))
        with self.pace.beside_steps():
            outputs, task = self.trainer.outputs(self.bar.evaluated), self.trainer.task
            found = {part: float(task.figure(o, getattr(splits, part).y)) for part, o in outputs.items()}
            part = watched(splits)
            spread = None if part is None else spread_of(task, outputs[part], getattr(splits, part).y)
        return {"validation": found.get("validation"), "test": found.get("test"), "spread": spread}

    def warn(self, step: int) -> None:
        """Say what has gone wrong since the last evaluation."""
        found = self.wrong_now()
        for kind, sentence in found.items():
            if kind not in self.raised:
                self.bar.say(f"warning, at step {step}: {sentence}")
        self.raised = found

    def wrong_now(self) -> dict[str, str]:
        """What has gone wrong, by kind."""
        l2i = self.run.l2i
        ahead = self.trainer.outer is not None and l2i.eta is not None and l2i.through == "labels"
        guess = self.trainer.task.guess if ahead else None
        return alarms(self.book.rows, self.trainer.splits, self.run.steps, guess)

    def probed(self, step: int) -> Row:
        """How right the imputed labels are, and what the next outer update does to the costs.

        None where that is no number, which is not the run's failure.

        It is not the run's work either: its time does not count.
        """
        with self.pace.left_out():
            found = agreement(self.trainer) | probe(self.trainer, step)
        return {name: value if math.isfinite(value) else None for name, value in found.items()}

    def about(self, step: int) -> dict[str, object]:
        """What a checkpoint says beside its tensors."""
        return {
            "step": step,
            "seconds": self.pace.seconds() if step else 0.0,
            "config": to_json(self.run),
            "data": self.data,
            "given": self.trainer.given,
            "precision": self.trainer.precision,
            "at_once": max(self.at_once, self.shared),
        }

    def result(self) -> Result:
        run, task, validation = self.run, self.trainer.task, curve(self.book.rows, "validation")
        test = curve(self.book.rows, "test")
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
            processes=self.ranks.size,
            warnings=[*self.leaks, *self.wrong_now().values()],
            settings=folders.settings_of(run),
        )
