"""The trainer: Algorithm 1, with any method, task and network."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from l2i.batch import Batch, Net, Params, Student
from l2i.bilevel.inner import lookahead, trainable
from l2i.bilevel.outer import OuterGradient, OuterStep, norm, scaled_to
from l2i.config import Run
from l2i.data.loader import Loader
from l2i.data.split import Samples, Splits
from l2i.errors import InputError
from l2i.methods.base import Costs, Method
from l2i.methods.pi_model import PiModel, SquashedPiModel
from l2i.training.build import build_model, dtype_of, load_splits, make_outer, make_task, pick_device
from l2i.training.ema import Teacher
from l2i.training.evaluate import outputs_of
from l2i.training.meter import Meter
from l2i.training.optim import Stepper, rate_factor
from l2i.training.precision import Autocast
from l2i.validate import validate

MISFIT = r"(?s)^(?!.*memory).*(shape|size|dimension)"  # in torch's words; what lacks is not memory


class BaseGradient(NamedTuple):
    """What the base step gives: its costs, and the gradient of C^T + λ C^U."""

    costs: Costs
    gradient: Params


class Trainer:
    """The state of a run, and its steps: `for t in range(run.steps): trainer.step(t)`, then `trainer.figures()`.

    `splits` (see `Splits.given`) and `model`, any nn.Module, may be your own. `l2i.train` adds a run folder to it.
    """

    def __init__(self, run: Run, *, splits: Splits | None = None, model: nn.Module | None = None) -> None:
        validate(run)
        self.run, self.given = run, splits is not None
        self.device, dtype = pick_device(run.device), dtype_of(run)
        self.splits = (load_splits(run) if splits is None else splits).to(self.device, dtype)
        if run.final == "best" and not len(self.splits.validation.x):
            raise InputError("final='best' looks at validation samples and there are none; raise data.num_validation")
        self.task = make_task(self.splits, run.method)
        self.model = (build_model(run, self.splits, self.task) if model is None else model).to(self.device, dtype)
        self.teacher = Teacher(self.model, run.optim.ema_decay)
        self.network, teacher = self.at_precision(self.model), self.at_precision(self.teacher.model)
        self.imputer = {"model": self.network, "teacher": teacher}[run.method.imputer]
        self.params = trainable(self.network)
        self.optimizer = self.outer_optimizer = Stepper(self.params, run.optim, steps=run.steps)
        if run.l2i.outer_optimizer == "own":
            self.outer_optimizer = Stepper(self.params, run.optim, steps=run.steps, lr=run.l2i.outer_rate)
        self.outer = make_outer(run, self.task, self.network)
        view = run.method.student_view
        targets = {"soft": PiModel(student_view=view), "tanh": SquashedPiModel(student_view=view), "method": run.method}
        self.outer_method: Method = targets[run.l2i.outer_target]
        self.loader = Loader(
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
        )
        self.meter = Meter(self.device)
        self.rehearse()

    def at_precision(self, model: nn.Module) -> nn.Module:
        return Autocast(model) if self.run.precision == "bf16" else model

    def step(self, t: int) -> None:
        """One pass of Algorithm 1's loop; the comments give its lines."""
        batch = self.loader.draw(t)  # 3
        base = self.base_gradient(batch, t)  # 4, 5
        if self.outer is None:
            outer, applied = None, {}
            self.optimizer(base.gradient, t)  # 6
        elif self.run.l2i.outer_update == "normalized":
            outer = self.outer_gradient(self.outer, batch, t)  # 7 to 10, at the same θ
            applied = scaled_to(base.gradient, outer.gradient, ratio=self.run.l2i.rho)
            self.optimizer({name: g + applied[name] for name, g in base.gradient.items()}, t)  # 6 and 11 in one
        else:
            self.optimizer(base.gradient, t)  # 6: θ becomes θ̂
            outer = self.outer_gradient(self.outer, batch, t)  # 7 to 10, at θ̂
            applied = outer.gradient
            self.outer_optimizer(applied, t)  # 11
        self.optimizer.decay()
        self.teacher.update(self.model, t)
        self.meter.add(self.measured(base, outer, applied), t)

    def base_gradient(self, batch: Batch, t: int) -> BaseGradient:
        """The gradient of C^T + λ C^U(Z), with labels imputed at θ (or by the teacher)."""
        method = self.run.method
        imputer = lookahead(self.imputer, dict(self.imputer.named_parameters()))
        costs = method.costs(self.task, self.network, imputer, batch)
        total = costs.c_t + method.weight_at(t, self.run.steps) * costs.c_u
        grads = torch.autograd.grad(total, list(self.params.values()), materialize_grads=True)
        return BaseGradient(costs, dict(zip(self.params, grads, strict=True)))

    def outer_gradient(self, outer: OuterStep, batch: Batch, t: int) -> OuterGradient:
        """Impute with the live model, look ahead, and take ∂C^H/∂θ through the labels."""
        method, task, held = self.outer_method, self.task, batch.holdout
        assert held is not None
        if outer.eta is not None and self.run.l2i.eta_schedule == "rate":
            outer = replace(outer, eta=outer.eta * rate_factor(self.run.optim, t, self.run.steps))
        net = lookahead(self.network, self.params)
        imputed = method.impute(task, net, batch)
        student = method.student(task, net, batch)

        def c_h(net: Net) -> Tensor:
            return task.loss(net(held.x), held.y)

        if not self.run.l2i.inner_supervised:
            return outer(self.network, self.params, student, imputed, c_h)
        supervised: Student = method.supervised(task, net, batch)
        if method.mixes_labels:
            return outer(self.network, self.params, student, imputed, c_h, mixed_c_t=supervised)
        fixed = imputed.detached()
        return outer(self.network, self.params, student, imputed, c_h, c_t=lambda net: supervised.evaluate(net, fixed))

    def measured(self, base: BaseGradient, outer: OuterGradient | None, applied: Params) -> dict[str, Tensor]:
        """The step's figures, still on the device."""
        size, none = norm(base.gradient), torch.zeros_like(base.costs.c_t)
        raw, realised = none, none
        if outer is not None:
            raw, realised = (torch.where(size > 0, n / size, 0 * n) for n in (norm(outer.gradient), norm(applied)))
        return {
            "c_t": base.costs.c_t,
            "c_u": base.costs.c_u,
            "c_h": none if outer is None else outer.c_h,
            "gradient": size,
            "outer_ratio": realised,
            "outer_ratio_raw": raw,
            "parameters": norm({name: p.detach() for name, p in self.params.items()}),
        }

    def rehearse(self) -> None:
        """Take the gradients of step 0 and no step, so that what cannot work is found before a run begins."""
        kept = [buffer.clone() for buffer in self.model.buffers()]
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices):
                batch = self.loader.draw(0)
                self.check_outputs(lookahead(self.network, self.params)(batch.labeled.x))
                self.base_gradient(batch, 0)
                if self.outer is not None:
                    self.outer_gradient(self.outer, batch, 0)
        except InputError:
            raise
        except (ValueError, RuntimeError) as error:  # what torch says of shapes and sizes that do not fit
            if isinstance(error, RuntimeError) and not re.search(MISFIT, str(error)):
                raise
            raise InputError(f"the first step cannot be taken with these settings: {error}") from error
        finally:
            self.loader.close()
            for buffer, before in zip(self.model.buffers(), kept, strict=True):
                buffer.copy_(before)

    def check_outputs(self, outputs: Tensor) -> None:
        wanted = (self.run.batch.labeled, self.task.outputs)
        if tuple(outputs.shape) != wanted:
            raise InputError(f"the model's output for a mini-batch is {list(outputs.shape)}; it must be {list(wanted)}")

    def described(self) -> str:
        """The sets of the run in a line."""
        joint = self.outer is None or self.run.l2i.holdout == "joint"
        drawn = "" if self.outer is None or not joint else ", hold-out drawn again from the labelled"
        return self.splits.described(but=("holdout",) if joint else ()) + drawn

    def close(self) -> None:
        """Let go of what draws the batches."""
        self.loader.close()

    def figures(self, told: Callable[[int], None] = lambda count: None) -> dict[str, dict[str, float]]:
        """The averaged model's figures on the validation and test samples, where there are any."""
        sets = {"validation": self.splits.validation, "test": self.splits.test}
        found = {name: self.task.figures(self.predict(s, told), s.y) for name, s in sets.items() if len(s.x)}
        return {name: {figure: float(value) for figure, value in values.items()} for name, values in found.items()}

    def predict(self, samples: Samples, told: Callable[[int], None] = lambda count: None) -> Tensor:
        """The averaged model's outputs."""
        model = self.at_precision(self.teacher.model)
        return outputs_of(model, samples, self.inputs, workers=self.run.data.workers, told=told)

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
            "generator": self.generators(),
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load(self, tensors: Params) -> None:
        """Go back to a state that `state` gave."""
        fill(self.model, part(tensors, "model"))
        self.load_teacher(tensors)
        self.optimizer.load(part(tensors, "optimizer"))
        if self.outer_optimizer is not self.optimizer:
            self.outer_optimizer.load(part(tensors, "outer_optimizer"))
        self.meter.load(part(tensors, "meter"))
        generators = part(tensors, "generator")
        torch.set_rng_state(generators["torch"])
        if self.device.type == "cuda" and "cuda" in generators:
            torch.cuda.set_rng_state(generators["cuda"], self.device)

    def load_teacher(self, tensors: Params) -> None:
        """The averaged model alone, of such a state."""
        fill(self.teacher.model, part(tensors, "teacher"))

    def generators(self) -> Params:
        """Those that dropout draws from; the loader's is seeded anew at each step."""
        states = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states


def part(tensors: Params, name: str) -> Params:
    """The tensors of one part of a state, by their names within it."""
    return {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}


def fill(model: nn.Module, tensors: Params) -> None:
    """Load a module's state, which must be of the same network."""
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise InputError("the checkpoint is of another network; give the model that it was trained with") from None
