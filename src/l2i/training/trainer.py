"""Step 0 without its step, so that what cannot work is found before a run begins.

MERGED:
The trainer: Algorithm 1, with any method, task and network.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import lookahead, trainable
from l2i.bilevel.outer import compute_scale
from l2i.bilevel.problem import Params
from l2i.config import Run
from l2i.config.validate import validate
from l2i.data.batch import Batch
from l2i.data.samples import Samples, Splits
from l2i.data.tokenization import describe_truncation
from l2i.distributed import current_group
from l2i.errors import InputError
from l2i.streams import SEQUENTIAL, StreamSchedule, choose_stream_plan
from l2i.training.cuda_graph import StepGraph, make_step_graph
from l2i.training.ema import Teacher, recompute_bn
from l2i.training.evaluation import compute_outputs
from l2i.training.loader import Loader, derive_seed
from l2i.training.metrics import MetricAccumulator, step_metrics
from l2i.training.optimizer import FlatParameters, Stepper
from l2i.training.precision import Autocast, resolve_precision, use_precision
from l2i.training.schedules import StepScalars
from l2i.training.setup import (
    build_model,
    check_divisible,
    consumes_rng,
    get_rng_states,
    load_module_state,
    load_splits,
    make_outer_step,
    make_task,
    measure_activations,
    param_dtype,
    pick_device,
    prepare_model,
    select_prefix,
    set_rng_states,
    translate_shape_errors,
    translate_state_errors,
)
from l2i.training.step import Gradients, HoldoutGradient


def sanity_check(trainer: Trainer) -> tuple[bool, int]:
    """Take the gradients of step 0, and leave the trainer as it was.

    Returns whether a forward of the network draws random numbers, as dropout does, and what it holds for its backward.
    """
    saved_buffers = [buffer.clone() for buffer in trainer.model.buffers()]
    devices = [trainer.device] if trainer.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), translate_shape_errors():
            batch = trainer.loader.draw_batch(0)
            x = batch.labeled.x
            uses_rng = consumes_rng(trainer.device, lambda: check_output_shape(trainer, x))
            trainer.gradients.batchnorm.inspect_forward(lambda: check_output_shape(trainer, x))
            activation_bytes = measure_activations(trainer.device, lambda: lookahead(trainer.network, trainer.params)(x))
            trainer.base_gradient(batch, 0)
            if trainer.outer_step is not None:
                trainer.outer_gradient(batch, 0)
    finally:
        trainer.loader.close()
        for buffer, before in zip(trainer.model.buffers(), saved_buffers, strict=True):
            buffer.copy_(before)
    return uses_rng, activation_bytes


def check_output_shape(trainer: Trainer, x: Tensor) -> None:
    """That the network makes one output a sample, as wide as the task has it."""
    with torch.no_grad():
        outputs = lookahead(trainer.network, trainer.params)(x)
    expected = (len(x), trainer.task.num_outputs)
    if tuple(outputs.shape) != expected:
        raise InputError(f"the model's output for a mini-batch is {list(outputs.shape)}; it must be {list(expected)}")


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
        expected_state: Params | None = None,
        run_sanity_check: bool = True,
    ) -> None:
        """`like` is a state that is to be loaded; without rehearsal the model is there to be looked at."""
        validate(run)
        self.run, self.custom_splits, self.ranks = run, splits is not None, current_group()
        check_divisible(run, self.ranks)
        self.device, dtype = pick_device(run.device), param_dtype(run)
        self.precision = resolve_precision(run, self.device)
        self.splits = (load_splits(run) if splits is None else splits).to(self.device, dtype)
        if run.report == "best" and not len(self.splits.validation.x):
            raise InputError("report='best' looks at validation samples and there are none; raise data.num_validation")
        self.task = make_task(self.splits, run.method)
        model_state = None if expected_state is None else select_prefix(expected_state, "model")
        model = build_model(run, self.splits, self.task, model_state) if model is None else model
        self.model = prepare_model(model, self.device, dtype)
        self.ranks.broadcast_(self.model.state_dict().values())
        self.teacher = Teacher(self.model)
        self.network = self.apply_precision(self.model)
        self.flat, self.params = FlatParameters(dict(self.network.named_parameters())), trainable(self.network)
        self.optimizer = self.outer_optimizer = Stepper(self.params, run.optim)
        if run.l2i.outer_optimizer == "own":
            self.outer_optimizer = Stepper(self.params, run.optim, lr=run.l2i.outer_rate)
        self.outer_step = make_outer_step(run, self.task, self.network)
        self.scalars = StepScalars(run, self.device, dtype)
        self.gradients, self.loader = self.make_gradients(), self.make_loader()
        self.meter = MetricAccumulator(self.device, classes=self.task.num_outputs if run.method.tracks_mask(self.task) else 0)
        self.uses_rng, self.activation_bytes = sanity_check(self) if run_sanity_check else (False, 0)
        reusable = run_sanity_check and not (self.uses_rng and self.gradients.replays_rng)
        self.gradients.reuses_forward = run.l2i.share and run.l2i.update == "normalized" and reusable
        self.step_graph = self.make_graph()

    def make_gradients(self) -> Gradients:
        return Gradients(
            self.run,
            self.task,
            network=self.network,
            teacher=self.apply_precision(self.teacher.model),
            outer_step=self.outer_step,
            scalars=self.scalars,
            flat=self.flat,
        )

    def make_loader(self) -> Loader:
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
            holdout=self.outer_step is not None,
            workers=run.data.workers,
            labeled_view=run.data.labeled_view,
        )

    def apply_precision(self, model: nn.Module) -> nn.Module:
        return Autocast(model) if self.precision == "bf16" else model

    def make_graph(self) -> StepGraph | None:
        """What records the steps as CUDA graphs, where that can be done."""
        obstacles = {
            "the run is not on one": self.device.type != "cuda",
            "the data is streamed": bool(self.loader.streams),
            "the network draws random numbers, which the outer step replays": self.uses_rng and self.gradients.replays_rng,
            "layers are passed again, with their dropout masks": self.uses_rng and self.run.model.gradient_checkpointing,
            "processes that share it send through memory": not self.ranks.supports_cuda_graph,
        }
        plan = choose_stream_plan(activation_bytes=self.activation_bytes, last_layer=self.gradients.head is not None)
        concurrent = self.gradients.batchnorm.concurrent and self.ranks.device_group is None  # messages go in turn
        return make_step_graph(self.run, self.train_step, self.loader, obstacles, plan if concurrent else None)

    @property
    def engine(self) -> str:
        return "eager" if self.step_graph is None or self.step_graph.capture_failed else "graph"

    def step(self, t: int, *, outer: bool | None = None) -> None:
        """One pass of Algorithm 1's loop; with its outer step where that is due, unless `outer` says otherwise."""
        self.flat.check_storage(self.params)
        self.scalars.set_step(t)
        if self.uses_rng and self.ranks.size > 1:
            torch.manual_seed(derive_seed(f"{self.run.seed}/{t}/{self.ranks.rank}"))  # dropout, of each process its own
        outer = (self.scalars.is_outer_step(t) if outer is None else outer) and self.outer_step is not None
        with use_precision(self.precision, self.device):
            if self.step_graph is None:
                self.train_step(self.loader.draw_batch(t, holdout=outer), outer, SEQUENTIAL)
            else:
                self.step_graph(t, outer)

    def train_step(self, batch: Batch, with_outer: bool, streams: StreamSchedule) -> None:
        """The step itself on its batch (3), all of it on the device; the comments give the lines of Algorithm 1."""
        self.gradients.batchnorm.pending_updates.clear()  # those of a step that could not be recorded
        at_one_theta = with_outer and self.run.l2i.update == "normalized"
        nets = self.gradients.make_nets(self.params, reuse_forward=at_one_theta)
        base = self.gradients.compute_base(batch, nets, streams)  # 4, 5
        outer = self.gradients.compute_outer(batch, nets, streams) if at_one_theta else None  # 7 to 10, at the same θ
        streams.join()
        self.gradients.batchnorm.apply_updates(self.ranks)
        total = gradient = self.ranks.all_reduce_mean(base.gradient)
        if outer is not None:
            total = self.combine_gradients(gradient, outer)
        self.optimizer(self.flat.split(total), self.scalars.lr_factor)  # 6, and 11 where both are at one θ
        if with_outer and outer is None:
            outer = self.gradients.compute_outer(batch, self.gradients.make_nets(self.params))  # 7 to 10, at θ̂
            self.outer_optimizer(self.flat.split(outer.gradient), self.scalars.lr_factor)  # 11
        self.optimizer.apply_weight_decay()
        with streams("impute"):
            metrics, mask_by_class = step_metrics(self, base.costs, gradient, outer)
            self.meter.add(metrics, self.scalars.step, mask_by_class)
        self.teacher.update(self.model, self.flat.values, self.scalars.ema_weight)
        streams.join()

    def combine_gradients(self, gradient: Tensor, outer: HoldoutGradient) -> Tensor:
        """g_base + ρ·‖g_base‖/‖g_outer‖·g_outer, brought back to the length of g_base where the run says so."""
        base_norm, rho = gradient.norm(), self.scalars.compute_rho(outer.c_h, self.task.chance_loss)
        total = torch.addcmul(gradient, outer.gradient, compute_scale(base_norm, outer.gradient.norm(), ratio=rho))
        return total * compute_scale(base_norm, total.norm(), ratio=1.0) if self.run.l2i.preserve_step_norm else total

    def base_gradient(self, batch: Batch, t: int) -> Params:
        """The gradient of C^T + λ C^U at step t, which moves the running statistics."""
        self.scalars.set_step(t)
        with use_precision(self.precision, self.device):
            base = self.gradients.compute_base(batch, self.gradients.make_nets(self.params))
            self.gradients.batchnorm.apply_updates(self.ranks)
        return self.flat.split(self.ranks.all_reduce_mean(base.gradient))

    def outer_gradient(self, batch: Batch, t: int) -> Params:
        """∂C^H/∂θ through the imputed labels, at step t."""
        self.scalars.set_step(t)
        with use_precision(self.precision, self.device):
            outer = self.gradients.compute_outer(batch, self.gradients.make_nets(self.params))
        return self.flat.split(outer.gradient)

    def describe_splits(self) -> str:
        """The sets of the run in a line."""
        joint = self.outer_step is None or self.run.l2i.holdout == "joint"
        holdout_note = "" if self.outer_step is None or not joint else ", hold-out drawn again from the labelled"
        truncation_note = describe_truncation(self.splits, self.run.data.text)
        return self.splits.describe(exclude=("holdout",) if joint else ()) + holdout_note + truncation_note

    def close(self) -> None:
        """Let go of what draws the batches, and of recorded steps: those that send messages hold on to their group."""
        self.loader.close()
        if self.step_graph is not None:
            self.step_graph.close()

    def compute_metrics(self, on_progress: Callable[[int], None] = lambda count: None) -> dict[str, dict[str, float]]:
        """The averaged model's figures on the validation and test samples, where there are any."""
        metrics = {name: self.task.metrics(o, getattr(self.splits, name).y) for name, o in self.predict_splits(on_progress).items()}
        return {name: {metric: float(value) for metric, value in values.items()} for name, values in metrics.items()}

    def predict_splits(self, on_progress: Callable[[int], None] = lambda count: None) -> dict[str, Tensor]:
        """The averaged model's outputs on the validation and test samples, where there are any."""
        recompute_bn(self)
        sets = {"validation": self.splits.validation, "test": self.splits.test}
        return {name: self.predict(s, on_progress) for name, s in sets.items() if len(s.x)}

    def predict(self, samples: Samples, on_progress: Callable[[int], None] = lambda count: None) -> Tensor:
        """The averaged model's outputs; each process looks at a part of the samples, and all get all outputs."""
        model, count, ranks = self.apply_precision(self.teacher.model), len(samples.x), self.ranks
        shard, is_sharded = slice(*ranks.shard_bounds(count)), count >= ranks.size
        samples = Samples(samples.x[shard], samples.y[shard]) if is_sharded else samples
        with use_precision(self.precision, self.device):
            outputs = compute_outputs(
                model, samples, self.preprocess, workers=self.run.data.workers, on_progress=lambda num_done: on_progress(num_done * ranks.size)
            )
            return ranks.all_gather_rows(outputs, count) if is_sharded else outputs

    def preprocess(self, raw: Tensor) -> Tensor:
        """Raw samples as the network takes them when nothing is random."""
        return self.splits.to_inputs(self.run.data.weak.center_crop(raw))

    def state_dict(self) -> Params:
        """Everything that the next step depends on, as named tensors."""
        parts = {
            "model": self.model.state_dict(),
            "teacher": self.teacher.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "outer_optimizer": {} if self.outer_optimizer is self.optimizer else self.outer_optimizer.state_dict(),
            "meter": self.meter.state_dict(),
            "generator": get_rng_states(self.device),
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def load_state_dict(self, tensors: Params) -> None:
        """Go back to a state that `state` gave."""
        load_module_state(self.model, select_prefix(tensors, "model"))
        self.load_teacher(tensors)
        with translate_state_errors():
            self.optimizer.load_state_dict(select_prefix(tensors, "optimizer"))
            if self.outer_optimizer is not self.optimizer:
                self.outer_optimizer.load_state_dict(select_prefix(tensors, "outer_optimizer"))
            self.meter.load_state_dict(select_prefix(tensors, "meter"))
            set_rng_states(self.device, select_prefix(tensors, "generator"))

    def load_teacher(self, tensors: Params) -> None:
        """The averaged model alone, of such a state."""
        load_module_state(self.teacher.model, select_prefix(tensors, "teacher"))
