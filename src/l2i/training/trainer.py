"""The trainer: Algorithm 1, with any method, task and network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from l2i.batch import Batch, Params
from l2i.bilevel.inner import trainable
from l2i.bilevel.outer import scale_of
from l2i.config import Run
from l2i.data.loader import Loader, step_seed
from l2i.data.split import Samples, Splits
from l2i.data.tokenized import cut_of
from l2i.errors import InputError
from l2i.lanes import IN_TURN, Lanes, plan_for
from l2i.ranks import here
from l2i.training.build import build_model, dtype_of, load_splits, make_outer, make_task, pick_device, prepared, shared
from l2i.training.clock import Clock
from l2i.training.ema import Teacher
from l2i.training.evaluate import outputs_of
from l2i.training.flat import Flat
from l2i.training.gradients import Gradients, HeldGradient
from l2i.training.measured import measured
from l2i.training.meter import Meter
from l2i.training.optim import Stepper
from l2i.training.own_statistics import renew_statistics
from l2i.training.precision import Autocast, numerics, precision_of
from l2i.training.record import Recorder, recorder_for
from l2i.training.rehearse import rehearsed
from l2i.training.state import belonging, fill, generators, part, set_generators
from l2i.validate import validate


class Trainer:
    """The state of a run, and its steps: `for t in range(run.steps): trainer.step(t)`, then `trainer.figures()`.

    `splits` (see `Splits.given`) and `model`, any nn.Module, may be your own. `l2i.train` adds a run folder to it.
    Where processes share the run (`l2i.ranks.joined`), all of them hold the same state after every step.
    """

    def __init__(
        self,
        run: Run,
        *,
        splits: Splits | None = None,
        model: nn.Module | None = None,
        like: Params | None = None,
        rehearse: bool = True,
    ) -> None:
        """`like` is a state that is to be loaded; without rehearsal the model is there to be looked at."""
        validate(run)
        self.run, self.given, self.ranks = run, splits is not None, here()
        shared(run, self.ranks)
        self.device, dtype = pick_device(run.device), dtype_of(run)
        self.precision = precision_of(run, self.device)
        self.splits = (load_splits(run) if splits is None else splits).to(self.device, dtype)
        if run.final == "best" and not len(self.splits.validation.x):
            raise InputError("final='best' looks at validation samples and there are none; raise data.num_validation")
        self.task = make_task(self.splits, run.method)
        known = None if like is None else part(like, "model")
        model = build_model(run, self.splits, self.task, known) if model is None else model
        self.model = prepared(model, self.device, dtype)
        self.ranks.level(self.model.state_dict().values())
        self.teacher = Teacher(self.model)
        self.network = self.at_precision(self.model)
        self.flat, self.params = Flat(dict(self.network.named_parameters())), trainable(self.network)
        self.optimizer = self.outer_optimizer = Stepper(self.params, run.optim)
        if run.l2i.outer_optimizer == "own":
            self.outer_optimizer = Stepper(self.params, run.optim, lr=run.l2i.outer_rate)
        self.outer = make_outer(run, self.task, self.network)
        self.clock = Clock(run, self.device, dtype)
        self.gradients, self.loader = self.gradients_of(), self.loader_of()
        self.meter = Meter(self.device, classes=self.task.outputs if run.method.counts(self.task) else 0)
        self.draws, self.held = rehearsed(self) if rehearse else (False, 0)
        once = rehearse and not (self.draws and self.gradients.replays)
        self.gradients.shares = run.l2i.share and run.l2i.outer_update == "normalized" and once
        self.recorder = self.recording()

    def gradients_of(self) -> Gradients:
        return Gradients(
            self.run,
            self.task,
            network=self.network,
            teacher=self.at_precision(self.teacher.model),
            outer=self.outer,
            clock=self.clock,
            flat=self.flat,
        )

    def loader_of(self) -> Loader:
        run = self.run
        return Loader(
            self.splits,
            self.task,
            run.method,
            sizes=run.batch,
            weak=run.data.weak,
            strong=run.data.strong,
            seed=run.seed,
            steps=run.steps,
            holdout=self.outer is not None,
            workers=run.data.workers,
            labeled_view=run.data.labeled_view,
        )

    def at_precision(self, model: nn.Module) -> nn.Module:
        return Autocast(model) if self.precision == "bf16" else model

    def recording(self) -> Recorder | None:
        """What records the steps as CUDA graphs, where that can be done."""
        why_not = {
            "the run is not on one": self.device.type != "cuda",
            "the data is streamed": bool(self.loader.streams),
            "the network draws random numbers, which the outer step replays": self.draws and self.gradients.replays,
            "layers are passed again, with their dropout masks": self.draws and self.run.model.checkpointing,
            "processes that share it send through memory": not self.ranks.recordable,
        }
        plan = plan_for(held=self.held, last_layer=self.gradients.head is not None)
        apart = self.gradients.statistics.apart and self.ranks.group is None  # messages go in turn
        return recorder_for(self.run, self.take, self.loader, why_not, plan if apart else None)

    @property
    def engine(self) -> str:
        return "eager" if self.recorder is None or self.recorder.failed else "graph"

    def step(self, t: int, *, outer: bool | None = None) -> None:
        """One pass of Algorithm 1's loop; with its outer step where that is due, unless `outer` says otherwise."""
        self.flat.check(self.params)
        self.clock.set(t)
        if self.draws and self.ranks.size > 1:
            torch.manual_seed(step_seed(f"{self.run.seed}/{t}/{self.ranks.index}"))  # dropout, of each process its own
        outer = (self.clock.outer_due(t) if outer is None else outer) and self.outer is not None
        with numerics(self.precision, self.device):
            if self.recorder is None:
                self.take(self.loader.draw(t, holdout=outer), outer, IN_TURN)
            else:
                self.recorder(t, outer)

    def take(self, batch: Batch, with_outer: bool, lanes: Lanes) -> None:
        """The step itself on its batch (3), all of it on the device; the comments give the lines of Algorithm 1."""
        self.gradients.statistics.moves.clear()  # those of a step that could not be recorded
        at_one_theta = with_outer and self.run.l2i.outer_update == "normalized"
        nets = self.gradients.nets(self.params, shared=at_one_theta)
        base = self.gradients.base(batch, nets, lanes)  # 4, 5
        outer = self.gradients.outer(batch, nets, lanes) if at_one_theta else None  # 7 to 10, at the same θ
        lanes.join()
        self.gradients.statistics.settle(self.ranks)
        total = gradient = self.ranks.mean(base.gradient)
        if outer is not None:
            total = self.joined(gradient, outer)
        self.optimizer(self.flat.split(total), self.clock.rate)  # 6, and 11 where both are at one θ
        if with_outer and outer is None:
            outer = self.gradients.outer(batch, self.gradients.nets(self.params))  # 7 to 10, at θ̂
            self.outer_optimizer(self.flat.split(outer.gradient), self.clock.rate)  # 11
        self.optimizer.decay()
        with lanes("impute"):
            found, counted = measured(self, base.costs, gradient, outer)
            self.meter.add(found, self.clock.step, counted)
        self.teacher.update(self.model, self.flat.values, self.clock.fresh)
        lanes.join()

    def joined(self, gradient: Tensor, outer: HeldGradient) -> Tensor:
        """g_base + ρ·‖g_base‖/‖g_outer‖·g_outer, brought back to the length of g_base where the run says so."""
        size, rho = gradient.norm(), self.clock.faded(outer.c_h, self.task.guess)
        total = torch.addcmul(gradient, outer.gradient, scale_of(size, outer.gradient.norm(), ratio=rho))
        return total * scale_of(size, total.norm(), ratio=1.0) if self.run.l2i.turn else total

    def base_gradient(self, batch: Batch, t: int) -> Params:
        """The gradient of C^T + λ C^U at step t, which moves the running statistics."""
        self.clock.set(t)
        with numerics(self.precision, self.device):
            base = self.gradients.base(batch, self.gradients.nets(self.params))
            self.gradients.statistics.settle(self.ranks)
        return self.flat.split(self.ranks.mean(base.gradient))

    def outer_gradient(self, batch: Batch, t: int) -> Params:
        """∂C^H/∂θ through the imputed labels, at step t."""
        self.clock.set(t)
        with numerics(self.precision, self.device):
            found = self.gradients.outer(batch, self.gradients.nets(self.params))
        return self.flat.split(found.gradient)

    def described(self) -> str:
        """The sets of the run in a line."""
        joint = self.outer is None or self.run.l2i.holdout == "joint"
        drawn = "" if self.outer is None or not joint else ", hold-out drawn again from the labelled"
        cut = cut_of(self.splits, self.run.data.text)
        return self.splits.described(but=("holdout",) if joint else ()) + drawn + cut

    def close(self) -> None:
        """Let go of what draws the batches, and of recorded steps: those that send messages hold on to their group."""
        self.loader.close()
        if self.recorder is not None:
            self.recorder.close()

    def figures(self, told: Callable[[int], None] = lambda count: None) -> dict[str, dict[str, float]]:
        """The averaged model's figures on the validation and test samples, where there are any."""
        found = {name: self.task.figures(o, getattr(self.splits, name).y) for name, o in self.outputs(told).items()}
        return {name: {figure: float(value) for figure, value in values.items()} for name, values in found.items()}

    def outputs(self, told: Callable[[int], None] = lambda count: None) -> dict[str, Tensor]:
        """The averaged model's outputs on the validation and test samples, where there are any."""
        renew_statistics(self)
        sets = {"validation": self.splits.validation, "test": self.splits.test}
        return {name: self.predict(s, told) for name, s in sets.items() if len(s.x)}

    def predict(self, samples: Samples, told: Callable[[int], None] = lambda count: None) -> Tensor:
        """The averaged model's outputs; each process looks at a part of the samples, and all get all outputs."""
        model, count, ranks = self.at_precision(self.teacher.model), len(samples.x), self.ranks
        mine, split = slice(*ranks.part(count)), count >= ranks.size
        samples = Samples(samples.x[mine], samples.y[mine]) if split else samples
        with numerics(self.precision, self.device):
            found = outputs_of(
                model, samples, self.inputs, workers=self.run.data.workers, told=lambda done: told(done * ranks.size)
            )
            return ranks.gathered(found, count) if split else found

    def inputs(self, raw: Tensor) -> Tensor:
        """Raw samples as the network takes them when nothing is random."""
        return self.splits.inputs(self.run.data.weak.centre(raw))

    def state(self) -> Params:
        """Everything that the next step depends on, as named tensors."""
        parts = {
            "model": self.model.state_dict(),
            "teacher": self.teacher.model.state_dict(),
            "optimizer": self.optimizer.state(),
            "outer_optimizer": {} if self.outer_optimizer is self.optimizer else self.outer_optimizer.state(),
            "meter": self.meter.state(),
            "generator": generators(self.device),
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load(self, tensors: Params) -> None:
        """Go back to a state that `state` gave."""
        fill(self.model, part(tensors, "model"))
        self.load_teacher(tensors)
        with belonging():
            self.optimizer.load(part(tensors, "optimizer"))
            if self.outer_optimizer is not self.optimizer:
                self.outer_optimizer.load(part(tensors, "outer_optimizer"))
            self.meter.load(part(tensors, "meter"))
            set_generators(self.device, part(tensors, "generator"))

    def load_teacher(self, tensors: Params) -> None:
        """The averaged model alone, of such a state."""
        fill(self.teacher.model, part(tensors, "teacher"))
