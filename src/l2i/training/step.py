"""One forward for base and outer step, where both are at one θ and need the same outputs.

MERGED:
The gradients of a step: of C^T + λ C^U, and of C^H through the imputed labels (Algorithm 1, lines 4 to 10).
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import lookahead, make_leaf_params
from l2i.bilevel.head import Head
from l2i.bilevel.hypergradient import Cost
from l2i.bilevel.outer import OuterGradient, OuterStep
from l2i.bilevel.problem import Activations, Imputed, Net, Params, Student
from l2i.config import Run
from l2i.data.batch import Batch, Labeled
from l2i.distributed import current_group
from l2i.methods.base import Costs
from l2i.methods.outer_targets import make_outer_method
from l2i.streams import SEQUENTIAL, StreamSchedule
from l2i.tasks.base import Task
from l2i.training.batchnorm import DeferredBatchNorm, TrainingNet
from l2i.training.optimizer import FlatParameters
from l2i.training.precision import Autocast, list_matrix_params, round_params
from l2i.training.schedules import StepScalars


class CachedForward(NamedTuple):
    """A batch, what was made of it, and when that is ready in a step that is being recorded."""

    x: Tensor
    features: Tensor | None
    outputs: Tensor
    ready: torch.cuda.Event | None

    def matches(self, x: Tensor) -> bool:
        """Whether `x` is this batch or its first samples, not a copy of them."""
        layout = (x.data_ptr(), x.shape[1:], x.stride())
        return layout == (self.x.data_ptr(), self.x.shape[1:], self.x.stride()) and len(x) <= len(self.x)


class ForwardCache:
    """Φ at θ, noting what it makes of each batch, so that a batch is passed once; with a head, its features too.

    Notes carry their graph, whether or not the first to ask wanted one.
    """

    def __init__(self, net: Net, head: Head | None = None) -> None:
        self.net, self.head = net, head
        self.entries: list[CachedForward] = []

    def __call__(self, x: Tensor) -> Tensor:
        entry = self.find(x) or self.run_forward(x)
        outputs = entry.outputs[: len(x)]
        return outputs if torch.is_grad_enabled() else outputs.detach()

    def run_forward(self, x: Tensor) -> CachedForward:
        with torch.enable_grad():
            features, outputs = (None, self.net(x)) if self.head is None else self.head.forward_with_features(self.net, x)
        is_capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
        ready = torch.cuda.current_stream().record_event() if is_capturing else None
        self.entries.append(CachedForward(x, features, outputs, ready))
        return self.entries[-1]

    def find(self, x: Tensor) -> CachedForward | None:
        """What was made of `x`, waiting for it in another lane than its own."""
        entry = next((candidate for candidate in self.entries if candidate.matches(x)), None)
        if entry is not None and entry.ready is not None:
            torch.cuda.current_stream().wait_event(entry.ready)
        return entry

    def get_activations(self, x: Tensor) -> Activations | None:
        """Features and outputs of `x`, cut off from their graph, where it was passed."""
        entry = self.find(x)
        if entry is None or entry.features is None:
            return None
        return Activations(entry.features[: len(x)].detach(), entry.outputs[: len(x)].detach())


class BaseGradient(NamedTuple):
    """What the base step gives: its costs, and the gradient of C^T + λ C^U in parts that add up."""

    costs: Costs
    parts: list[Tensor]  # in one piece, see `Flat`

    @property
    def gradient(self) -> Tensor:
        return reduce(torch.add, self.parts)


class HoldoutGradient(NamedTuple):
    """What the outer step gives, in one piece and over all processes: see `OuterGradient`."""

    gradient: Tensor
    c_h: Tensor


class Nets(NamedTuple):
    """Φ at one θ, as the parts of a step see it."""

    training_net: TrainingNet  # labelled and student samples
    student: Net  # the same, remembering what it passed where the outer step needs it too
    imputer: Net
    live: Net  # what imputes for the outer step
    theta: Params  # what the outer gradient is taken with respect to


class Gradients:
    """Both gradients, for a run's method, task and network. `lanes` says what may go side by side."""

    def __init__(
        self,
        run: Run,
        task: Task,
        *,
        network: nn.Module,
        teacher: nn.Module,
        outer_step: OuterStep | None,
        scalars: StepScalars,
        flat: FlatParameters,
    ) -> None:
        self.run, self.task, self.scalars, self.flat = run, task, scalars, flat
        self.network, self.outer_step = network, outer_step
        self.imputer = {"model": network, "teacher": teacher}[run.method.imputer]
        self.batchnorm = DeferredBatchNorm(network)
        self.outer_method = run.method if outer_step is None else make_outer_method(run.l2i.outer_target, run.method, task)
        self.head = None
        if outer_step is not None and run.l2i.hypergradient.startswith("last_layer"):
            self.head = Head.from_model(network, outer_step.head)
        full_precision = [] if self.head is None else self.head.names  # the closed form is for a head of full precision
        self.bf16_names = [n for n in list_matrix_params(network) if n not in full_precision] if isinstance(network, Autocast) else []
        self.replays_rng = outer_step is not None and (outer_step.eta is not None or run.l2i.hypergradient == "finite_difference")
        """Whether an outer step passes the same samples again and has to meet the same dropout masks."""
        self.reuses_forward = False
        """Whether an outer step at the same θ looks at what the base step has passed."""

    def make_nets(self, params: Params, *, reuse_forward: bool = False) -> Nets:
        """The nets at `params`; where they are shared, those that remember what they have passed."""
        l2i, values = self.run.l2i, round_params(params, self.bf16_names)
        theta = make_leaf_params(values if self.outer_step is None or self.outer_step.eta is None else params)  # θ* is no bf16
        training_net, live = TrainingNet(self.batchnorm, values), lookahead(self.network, theta)
        imputes_itself = self.imputer is self.network
        imputer = live if imputes_itself else lookahead(self.imputer, dict(self.imputer.named_parameters()))
        if not reuse_forward or not self.reuses_forward or self.outer_step is None:
            return Nets(training_net, training_net, imputer, live, theta)
        student = training_net if self.head is None else ForwardCache(training_net, self.head)
        if imputes_itself and not l2i.outer_batch_size:
            imputer = live = ForwardCache(live)  # the labels of both steps from one forward
        return Nets(training_net, student, imputer, live, theta)

    def compute_base(self, batch: Batch, nets: Nets, streams: StreamSchedule = SEQUENTIAL) -> BaseGradient:
        """The gradient of C^T + λ C^U(Z), with labels imputed at θ (or by the teacher)."""
        costs = self.run.method.compute_costs(self.task, nets.student, nets.imputer, batch, streams)
        with streams("student" if costs.one_forward else "labeled"):
            objective = costs.c_t + self.scalars.weight * costs.c_u if costs.one_forward else costs.c_t
            parts = [self.flat.flatten(nets.training_net.gradient(objective))]
        if costs.c_u.requires_grad and not costs.one_forward:
            with streams("student"):
                parts.append(self.flat.flatten(nets.training_net.gradient(self.scalars.weight * costs.c_u)))
        streams.hold(costs, parts)
        return BaseGradient(costs, parts)

    def compute_outer(self, batch: Batch, nets: Nets, streams: StreamSchedule = SEQUENTIAL) -> HoldoutGradient:
        """Impute with the live model, look ahead, and take ∂C^H/∂θ through the labels."""
        assert self.outer_step is not None and batch.holdout is not None
        method, task, holdout = self.outer_method, self.task, batch.holdout
        if self.run.l2i.through == "parameters":
            return self.compute_direct(nets, holdout, streams)
        if self.run.l2i.outer_batch_size:
            batch = batch._replace(unlabeled=batch.unlabeled.take_first(self.run.l2i.outer_batch_size // current_group().size))
        with streams("outer"):
            imputed = method.impute(task, nets.live, batch)

        def c_h(net: Net) -> Tensor:
            cost = task.loss(net(holdout.x), holdout.y)
            streams.wait("outer")  # the labels: they are needed from here on
            return cost

        dependencies = [] if self.outer_step.eta is None else ["outer"]
        dependencies += ["labeled"] if self.run.l2i.inner_supervised else []
        with streams("holdout", *dependencies):
            student = method.student(task, lookahead(self.network, nets.theta), batch)
            if isinstance(nets.student, ForwardCache):
                student = student._replace(activations=nets.student.get_activations(student.inputs))
            streams.hold(imputed, student)
            outer_gradient = self.compute_through_labels(batch, nets, student, imputed, c_h)
            return HoldoutGradient(current_group().all_reduce_mean(self.flat.flatten(outer_gradient.gradient)), current_group().all_reduce_mean(outer_gradient.c_h))

    def compute_direct(self, nets: Nets, holdout: Labeled, streams: StreamSchedule) -> HoldoutGradient:
        """∇C^H at θ, no labels imputed: the gradient of more labelled samples."""
        with streams("holdout"):
            cost = self.task.loss(lookahead(self.network, nets.theta)(holdout.x), holdout.y)
            grads = torch.autograd.grad(cost, list(nets.theta.values()), materialize_grads=True)
            gradient = self.flat.flatten(dict(zip(nets.theta, grads, strict=True)))
            return HoldoutGradient(current_group().all_reduce_mean(gradient), current_group().all_reduce_mean(cost.detach()))

    def compute_through_labels(self, batch: Batch, nets: Nets, student: Student, imputed: Imputed, c_h: Cost) -> OuterGradient:
        """The outer step proper, with C^T in its inner step where the run says so."""
        method, task, step = self.outer_method, self.task, self.outer_step
        assert step is not None
        if step.eta is not None:
            step = replace(step, eta=self.scalars.eta)
        if not self.run.l2i.inner_supervised:
            return step(self.network, nets.theta, student, imputed, c_h)
        supervised: Student = method.supervised(task, lookahead(self.network, nets.theta), batch)
        if method.mixes_targets:
            return step(self.network, nets.theta, student, imputed, c_h, mixed_c_t=supervised)
        fixed = imputed.detach()
        return step(self.network, nets.theta, student, imputed, c_h, c_t=lambda net: supervised.cost_of(net, fixed))
