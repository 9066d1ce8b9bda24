"""The trainer: Algorithm 1 with any method, task and network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import Params, lookahead, trainable
from l2i.bilevel.outer import combine_normalized
from l2i.config import Run
from l2i.config.validate import validate
from l2i.data.batch import Batch
from l2i.data.samples import Samples, Splits
from l2i.data.tokenization import describe_truncation
from l2i.distributed import current_group
from l2i.errors import InputError
from l2i.training import ema, setup
from l2i.training.cuda_graph import StepGraph, choose_stream_plan
from l2i.training.evaluation import compute_outputs
from l2i.training.loader import Loader, derive_seed
from l2i.training.metrics import MetricAccumulator, compute_step_metrics
from l2i.training.optimizer import FlatParameters, Stepper
from l2i.training.precision import apply_precision, resolve_precision, use_precision
from l2i.training.step import SEQUENTIAL, Gradients, StreamSchedule

OnProgress = Callable[[int], None]


class Trainer:
    """Hold the state of a run and take its steps, without a run folder.

    Use it as in `for t in range(run.steps): trainer.step(t)`; `compute_metrics` then evaluates the
    averaged model. `l2i.train` adds a run folder, evaluation and checkpoints. Processes that share
    a run (`l2i.distributed.init_distributed`) hold the same state after every step.
    """

    def __init__(
        self,
        run: Run,
        *,
        splits: Splits | None = None,
        model: nn.Module | None = None,
        expected_state: Params | None = None,
    ) -> None:
        """Build the parts of a run and try its first step, so that wrong input fails here.

        Args:
            run: The configuration.
            splits: Your own data (see `Splits.from_arrays`); by default the run's dataset.
            model: Your own network, any nn.Module; by default the run's.
            expected_state: A checkpoint to be loaded later; the network must have its shapes.

        """
        self._build(run, splits, model, expected_state)
        self._sanity_check()
        replays_rng = self.uses_rng and self.gradients.looks_ahead
        self.gradients.reuses_forward = run.l2i.update == "normalized" and not replays_rng
        self.step_graph = self._make_graph()

    @classmethod
    def for_evaluation(
        cls, run: Run, splits: Splits | None, model: nn.Module | None, expected_state: Params
    ) -> Trainer:
        """Build a trainer whose averaged model is to be loaded and evaluated; try no step."""
        trainer = cls.__new__(cls)
        trainer._build(run, splits, model, expected_state)
        return trainer

    def _build(
        self, run: Run, splits: Splits | None, model: nn.Module | None, state: Params | None
    ) -> None:
        validate(run)
        self.run, self.custom_splits, self.group = run, splits is not None, current_group()
        setup.check_divisible(run, self.group)
        self.device, dtype = setup.pick_device(run.device), setup.get_param_dtype(run)
        self.precision = resolve_precision(run, self.device)
        self.splits = (setup.load_splits(run) if splits is None else splits).to(self.device, dtype)
        setup.check_validation(run, self.splits)
        self.task = setup.make_task(self.splits, run.method)
        if model is None:
            model = setup.build_model(run, self.splits, self.task, state)
        self.model = setup.prepare_model(model, self.device, dtype)
        self.group.broadcast_(self.model.state_dict().values())
        self.teacher = ema.Teacher(self.model)
        self.network = apply_precision(self.model, self.precision)
        self.teacher_network = apply_precision(self.teacher.model, self.precision)
        self.flat = FlatParameters(dict(self.network.named_parameters()))
        self.params = trainable(self.network)
        self.optimizer = Stepper(self.params, run.optim)
        self.gradients = Gradients(run, self.task, self.network, self.teacher_network, self.flat)
        self.outer_step, self.scalars = self.gradients.outer_step, self.gradients.scalars
        self.loader = Loader(run, self.splits, self.task)
        num_classes = self.task.num_outputs if run.method.tracks_mask(self.task) else 0
        self.meter = MetricAccumulator(self.device, classes=num_classes)
        self.uses_rng, self.held_bytes = False, 0
        self.step_graph = None

    def _sanity_check(self) -> None:
        """Compute the gradients of step 0, note how the network behaves, and restore its state."""
        saved_buffers = [buffer.clone() for buffer in self.model.buffers()]
        devices = [self.device] if self.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices), setup.translate_shape_errors():
                batch, net = self.loader.draw_batch(0), lookahead(self.network, self.params)
                x, num_outputs = batch.labeled.x, self.task.num_outputs
                self.gradients.batchnorm.inspect_forward(lambda: net(x))
                self.uses_rng, self.held_bytes = setup.probe_forward(net, x, num_outputs)
                self.compute_base_gradient(batch, 0)
                if self.outer_step is not None:
                    self.compute_outer_gradient(batch, 0)
        finally:
            self.loader.close()
            for buffer, before in zip(self.model.buffers(), saved_buffers, strict=True):
                buffer.copy_(before)

    def _make_graph(self) -> StepGraph | None:
        """Return what captures the steps as CUDA graphs, if the run can have that."""
        gradients, wants_graph = self.gradients, self.run.engine == "graph"
        replays_rng = self.uses_rng and gradients.looks_ahead
        obstacles = {
            "the device is not a CUDA GPU": self.device.type != "cuda",
            "the data is streamed": bool(self.loader.streams),
            "the network draws random numbers, which the outer step replays": replays_rng,
            "its processes communicate through main memory": not self.group.supports_cuda_graph,
        }
        reason = next((reason for reason, applies in obstacles.items() if applies), None)
        if wants_graph and reason is not None:
            problem = f"engine='graph' captures steps on a GPU, but {reason}"
            raise InputError(f"{problem}; use engine='auto'")
        if self.run.engine == "eager" or reason is not None:
            return None
        has_head, plan = gradients.head is not None, None
        # collectives must run in order, so steps that use them are sequential
        if gradients.batchnorm.concurrent and self.group.device_group is None:
            plan = choose_stream_plan(activation_bytes=self.held_bytes, last_layer=has_head)
        return StepGraph(self.train_step, self.loader, plan, required=wants_graph)

    @property
    def engine(self) -> str:
        return "eager" if self.step_graph is None or self.step_graph.capture_failed else "graph"

    def step(self, t: int, *, outer: bool | None = None) -> None:
        """Take step t of Algorithm 1; `outer` overrides whether it includes the outer step."""
        self.flat.check_storage(self.params)
        self.scalars.set_step(t)
        if self.uses_rng and self.group.size > 1:  # every process has its own dropout masks
            torch.manual_seed(derive_seed(f"{self.run.seed}/{t}/{self.group.rank}"))
        is_due = t % self.run.l2i.every == 0 if outer is None else outer
        with_outer = is_due and self.outer_step is not None
        with use_precision(self.device):
            if self.step_graph is None:
                batch = self.loader.draw_batch(t, holdout=with_outer)
                self.train_step(batch, with_outer, SEQUENTIAL)
            else:
                self.step_graph(t, with_outer)

    def train_step(self, batch: Batch, with_outer: bool, streams: StreamSchedule) -> None:
        """Take a step on its batch, all of it on the device; numbers are lines of Algorithm 1."""
        gradients, l2i = self.gradients, self.run.l2i
        gradients.batchnorm.pending_updates.clear()  # left by a step that could not be captured
        at_one_theta = with_outer and l2i.update == "normalized"
        nets = gradients.make_nets(self.params, reuse_forward=at_one_theta)
        batch = batch if with_outer else batch._replace(holdout=None)  # drawn ahead all the same
        base = gradients.compute_base(batch, nets, streams)  # 4, 5
        joint = base.costs.joint_batch if l2i.one_forward else None
        outer = None
        if at_one_theta:
            outer = gradients.compute_outer(batch, nets, streams, joint)  # 7 to 10
        streams.join()
        gradients.batchnorm.apply_updates()
        total = gradient = self.group.all_reduce_mean(base.gradient)
        if outer is not None:
            total = combine_normalized(
                gradient, outer.gradient, rho=self.scalars.rho, preserve_norm=l2i.preserve_step_norm
            )
        self.optimizer(self.flat.split(total), self.scalars.lr_factor)  # 6, and 11 at the same θ
        if with_outer and outer is None:
            nets = gradients.make_nets(self.params)
            outer = gradients.compute_outer(batch, nets, joint_batch=joint)  # 7 to 10, at θ̂
            self.optimizer(self.flat.split(outer.gradient), self.scalars.lr_factor)  # 11
        self.optimizer.apply_weight_decay()
        with streams("impute"):
            rho = self.scalars.rho if at_one_theta else None
            metrics, mask = compute_step_metrics(base.costs, gradient, outer, self.flat.values, rho)
            self.meter.add(metrics, self.scalars.step, mask)
        self.teacher.update(self.model, self.flat.values, self.scalars.ema_weight)
        streams.join()

    def compute_base_gradient(self, batch: Batch, t: int) -> Params:
        """Return the gradient of C^T + λ C^U at step t; this updates the running statistics."""
        self.scalars.set_step(t)
        with use_precision(self.device):
            base = self.gradients.compute_base(batch, self.gradients.make_nets(self.params))
            self.gradients.batchnorm.apply_updates()
        return self.flat.split(self.group.all_reduce_mean(base.gradient))

    def compute_outer_gradient(self, batch: Batch, t: int) -> Params:
        """Return ∂C^H/∂θ through the imputed labels, at step t."""
        self.scalars.set_step(t)
        with use_precision(self.device):
            nets = self.gradients.make_nets(self.params)
            joint_batch = self.gradients.join_batch(batch, nets)
            outer = self.gradients.compute_outer(batch, nets, joint_batch=joint_batch)
        return self.flat.split(outer.gradient)

    def describe_splits(self) -> str:
        """Describe the sets of the run in one line."""
        has_outer = self.outer_step is not None
        separate = has_outer and self.run.l2i.holdout == "separate"
        text = self.splits.describe(exclude=() if separate else ("holdout",))
        if has_outer and not separate:
            text += ", hold-out batches drawn from the labelled samples"
        return text + describe_truncation(self.splits, self.run.data.text)

    def close(self) -> None:
        """Release data workers, and captured steps: these may hold a process group."""
        self.loader.close()
        if self.step_graph is not None:
            self.step_graph.close()

    def compute_metrics(self) -> dict[str, dict[str, float]]:
        """Return the averaged model's metrics on the validation and test samples, if any."""
        metrics: dict[str, dict[str, float]] = {}
        for part, outputs in self.predict_splits().items():
            values = self.task.metrics(outputs, getattr(self.splits, part).y)
            metrics[part] = {name: float(value) for name, value in values.items()}
        return metrics

    def predict_splits(self, on_progress: OnProgress = lambda _: None) -> dict[str, Tensor]:
        """Return the averaged model's outputs on the validation and test samples, if any."""
        self.recompute_bn()
        sets = {"validation": self.splits.validation, "test": self.splits.test}
        return {name: self.predict(s, on_progress) for name, s in sets.items() if len(s.x)}

    def recompute_bn(self) -> None:
        """Recompute the averaged model's BatchNorm statistics, if the run asks for it."""
        if self.run.optim.ema_bn != "copy":
            ema.recompute_bn(self.teacher_network, self.run, self.task, self.loader)

    def predict(self, samples: Samples, on_progress: OnProgress = lambda _: None) -> Tensor:
        """Return the averaged model's outputs; every process computes a part and gets them all."""
        count, group = len(samples.x), self.group
        shard, is_sharded = slice(*group.shard_bounds(count)), count >= group.size
        samples = Samples(samples.x[shard], samples.y[shard]) if is_sharded else samples
        with use_precision(self.device):
            outputs = compute_outputs(
                self.teacher_network,
                samples,
                self.preprocess,
                workers=self.run.data.workers,
                on_progress=lambda num_done: on_progress(num_done * group.size),
            )
            return group.all_gather_rows(outputs, count) if is_sharded else outputs

    def preprocess(self, raw: Tensor) -> Tensor:
        """Turn raw samples into the network's inputs, without random augmentation."""
        return self.splits.to_inputs(self.run.data.weak.center_crop(raw))

    def state_dict(self) -> Params:
        """Return everything that the next step depends on, as named tensors."""
        parts = {
            "model": self.model.state_dict(),
            "teacher": self.teacher.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "meter": self.meter.state_dict(),
            "generator": setup.get_rng_states(self.device),
        }
        return {f"{part}.{n}": t for part, tensors in parts.items() for n, t in tensors.items()}

    def load_state_dict(self, tensors: Params) -> None:
        """Load a state that `state_dict` returned."""
        setup.load_module_state(self.model, setup.select_prefix(tensors, "model"))
        self.load_teacher(tensors)
        with setup.translate_state_errors():
            self.optimizer.load_state_dict(setup.select_prefix(tensors, "optimizer"))
            self.meter.load_state_dict(setup.select_prefix(tensors, "meter"))
            setup.set_rng_states(self.device, setup.select_prefix(tensors, "generator"))

    def load_teacher(self, tensors: Params) -> None:
        """Load the averaged model alone from such a state."""
        setup.load_module_state(self.teacher.model, setup.select_prefix(tensors, "teacher"))
