"""The gradients of a step: of C^T + λ C^U, and of C^H through the imputed labels (Algorithm 1).

Methods say what is computed; this module decides what runs concurrently, and which forwards the two
gradients share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from l2i.bilevel.functional import Net, Params, lookahead, make_leaf_params
from l2i.bilevel.head import Head
from l2i.bilevel.hypergradient import HYPERGRADIENTS
from l2i.bilevel.outer import Labels, LearnableLabels, OuterGradient, OuterStep, OutputLabels
from l2i.bilevel.problem import Cost, Imputed, Problem, Student
from l2i.config import Run
from l2i.data.batch import Batch, Labeled
from l2i.distributed import current_group
from l2i.methods.base import Method, OneForward
from l2i.methods.pi_model import PiModel
from l2i.tasks import Task
from l2i.training.batchnorm import DeferredBatchNorm, TrainingNet
from l2i.training.forwards import ForwardCache, JointBatch
from l2i.training.optimizer import FlatParameters, StepScalars
from l2i.training.precision import Autocast, list_matrix_params, round_params


class StreamSchedule:
    """Sequential fallback: entering a stream has no effect."""

    @contextmanager
    def __call__(self, name: str, *after: str) -> Iterator[None]:
        """Run the block on a stream, after the surrounding code so far and the streams `after`."""
        yield

    def wait(self, name: str) -> None:
        """Let the current stream wait for a stream."""

    def join(self) -> None:
        """Wait for all streams."""

    def hold(self, *objects: object) -> None:
        """Keep what crosses from one stream to another alive until they join."""


SEQUENTIAL = StreamSchedule()


class Costs(NamedTuple):
    """C^T and C^U of a base step."""

    c_t: Tensor
    c_u: Tensor
    mask_by_class: Tensor | None = None  # [C], shares of labels that pass the mask, if there is one
    joint_batch: JointBatch | None = None  # if one forward led to both: one backward serves both


def compute_costs(
    method: Method,
    task: Task,
    net: Net,
    imputer: Net,
    batch: Batch,
    streams: StreamSchedule = SEQUENTIAL,
    outer_inputs: Sequence[Tensor] = (),
) -> Costs:
    """Return C^T and C^U of the base step; no gradient reaches the imputed labels.

    A joint forward also passes `outer_inputs`, so that they are normalised alike.
    """
    if not method.uses_pseudo_labels:
        with streams("labeled"):
            c_t = task.loss(net(batch.labeled.x), batch.labeled.y)
        return Costs(c_t, torch.zeros_like(c_t))
    if isinstance(method, OneForward) and method.one_forward:
        return _compute_joint_costs(method, task, net, imputer, batch, streams, outer_inputs)
    with streams("impute"), torch.no_grad():
        imputed = method.impute(task, imputer, batch)
    with streams("labeled"):
        supervised = method.supervised(task, net, batch)
        outputs = net(supervised.inputs)
        if method.mixes_targets:
            streams.wait("impute")
        c_t = supervised.cost(outputs, imputed)
    with streams("student"):
        student = method.student(task, imputer, batch)
        outputs = net(student.inputs)
        streams.wait("impute")  # not before: the student's inputs are free of the labels
        c_u = student.cost(outputs, imputed)
    streams.hold(imputed)
    with streams("impute"):  # during the student's forward
        mask_by_class = method.mask_by_class(task, imputed)
    with streams("labeled"):
        extra = method.extra_cost(task, net, batch)
        return Costs(c_t if extra is None else c_t + extra, c_u, mask_by_class)


def _compute_joint_costs(
    method: Method,
    task: Task,
    net: Net,
    imputer: Net,
    batch: Batch,
    streams: StreamSchedule,
    outer_inputs: Sequence[Tensor],
) -> Costs:
    """Compute both costs from one forward, so that all samples share BatchNorm's statistics."""
    # a teacher passes its views itself, and labels of mixed rows are not those of a row
    imputes_apart = method.imputer == "teacher" or method.mixes_targets
    if imputes_apart:
        with streams("impute"), torch.no_grad():
            imputed = method.impute(task, imputer, batch)
    with streams("student"):
        supervised = method.supervised(task, net, batch)
        student = method.student(task, imputer, batch)
        weak_views = [] if imputes_apart else [batch.unlabeled.weak]
        joint_batch = JointBatch(supervised.inputs, *weak_views, student.inputs, *outer_inputs)
        outputs = net(joint_batch.x)
        joint_net = joint_batch.join(lambda x: outputs if x is joint_batch.x else net(x))
        streams.wait("impute")
        if not imputes_apart:
            with torch.no_grad():
                imputed = method.impute(task, joint_net, batch)
        c_t = supervised.cost(joint_net(supervised.inputs), imputed)
        c_u = student.cost(joint_net(student.inputs), imputed)
        extra = method.extra_cost(task, joint_net, batch)
        c_t = c_t if extra is None else c_t + extra
        streams.hold(imputed, joint_batch)
        return Costs(c_t, c_u, method.mask_by_class(task, imputed), joint_batch)


class BaseGradient(NamedTuple):
    """The costs of a base step, and the gradient of C^T + λ C^U as flat terms of a sum."""

    costs: Costs
    parts: list[Tensor]

    @property
    def gradient(self) -> Tensor:
        return reduce(torch.add, self.parts)


class FlatOuterGradient(NamedTuple):
    """The flat gradient of an outer step and its C^H, averaged over all processes."""

    gradient: Tensor
    c_h: Tensor


class Nets(NamedTuple):
    """Φ at one θ, for the parts of a step."""

    training_net: TrainingNet  # for labelled and student samples
    student: Net  # the same, with a cache if the outer step shares its forwards
    imputer: Net
    live: Net  # imputes for the outer step
    theta: Params  # what the outer gradient is taken with respect to


class Gradients:
    """Both gradients, for a run's method, task and network."""

    def __init__(
        self, run: Run, task: Task, network: nn.Module, teacher: nn.Module, flat: FlatParameters
    ) -> None:
        self.run, self.task, self.network, self.flat = run, task, network, flat
        self.scalars = StepScalars(run, flat.values.device, flat.values.dtype)
        self.outer_step = _make_outer_step(run, task)
        self.imputer = {"model": network, "teacher": teacher}[run.method.imputer]
        self.batchnorm = DeferredBatchNorm(network)
        # soft labels, whatever the method (appendix)
        self.outer_method = PiModel(student_view=run.method.student_view)
        self.head: Head | None = None
        is_bf16 = isinstance(network, Autocast)
        if self.outer_step is not None and run.l2i.hypergradient == "last_layer":
            name = run.l2i.head
            self.head = Head.from_model(network, f"model.{name}" if name and is_bf16 else name)
        # the closed form needs a head in full precision
        exact_names = [] if self.head is None else self.head.names
        matrix_names = list_matrix_params(network) if is_bf16 else []
        self.bf16_names = [name for name in matrix_names if name not in exact_names]
        self.looks_ahead = self.outer_step is not None and run.l2i.paper.inner_rate is not None
        """Whether outer steps take an inner step, pass samples again and replay dropout masks."""
        self.reuses_forward = False
        """Whether an outer step at the same θ reuses forwards of the base step."""

    def make_nets(self, params: Params, *, reuse_forward: bool = False) -> Nets:
        """Return the nets at `params`, with caches if forwards are reused."""
        values = round_params(params, self.bf16_names)
        theta = make_leaf_params(params if self.looks_ahead else values)  # θ* is not bf16
        training_net, live = TrainingNet(self.batchnorm, values), lookahead(self.network, theta)
        imputer, imputes_itself = live, self.imputer is self.network
        if not imputes_itself:
            imputer = lookahead(self.imputer, dict(self.imputer.named_parameters()))
        if not reuse_forward or not self.reuses_forward or self.outer_step is None:
            return Nets(training_net, training_net, imputer, live, theta)
        if self.run.l2i.one_forward:  # that of the base step serves the outer step as well
            training_net = TrainingNet(self.batchnorm, values, shared_leaves=theta)
            live = ForwardCache(training_net, self.head)
            return Nets(training_net, live, imputer, live, theta)
        student = training_net if self.head is None else ForwardCache(training_net, self.head)
        if imputes_itself and not self.run.l2i.outer_batch_size:
            imputer = live = ForwardCache(live)  # one forward for the labels of both steps
        return Nets(training_net, student, imputer, live, theta)

    def compute_base(
        self, batch: Batch, nets: Nets, streams: StreamSchedule = SEQUENTIAL
    ) -> BaseGradient:
        """Return the gradient of C^T + λ C^U(Z), with labels imputed at θ or by the teacher."""
        method, weight = self.run.method, self.scalars.weight
        outer_inputs = self._list_outer_inputs(batch)
        costs = compute_costs(
            method, self.task, nets.student, nets.imputer, batch, streams, outer_inputs
        )

        def flat_gradient(cost: Tensor) -> Tensor:
            return self.flat.flatten(nets.training_net.gradient(cost))

        if costs.joint_batch is not None:
            with streams("student"):
                parts = [flat_gradient(costs.c_t + weight * costs.c_u)]
        else:
            with streams("labeled"):
                parts = [flat_gradient(costs.c_t)]
            if costs.c_u.requires_grad:
                with streams("student"):
                    parts.append(flat_gradient(weight * costs.c_u))
        streams.hold(costs, parts)
        return BaseGradient(costs, parts)

    def _list_outer_inputs(self, batch: Batch) -> list[Tensor]:
        """Return what the outer step adds to the forward of the base step, if they share one."""
        if not self.run.l2i.one_forward or batch.holdout is None:
            return []
        views = batch.unlabeled.views
        return [views["weak"], views[self.outer_method.student_view], batch.holdout.x]

    def join_batch(self, batch: Batch, nets: Nets) -> JointBatch | None:
        """Return the rows that pass in one forward in a step with this batch, if it has one."""
        if not self.run.l2i.one_forward:
            return None
        inputs, run = self._list_outer_inputs(batch), self.run
        return compute_costs(
            run.method, self.task, nets.live, nets.imputer, batch, outer_inputs=inputs
        ).joint_batch

    def compute_outer(
        self,
        batch: Batch,
        nets: Nets,
        streams: StreamSchedule = SEQUENTIAL,
        joint_batch: JointBatch | None = None,
    ) -> FlatOuterGradient:
        """Impute with the live model, look ahead, and take ∂C^H/∂θ through the labels.

        With a `joint_batch`, every forward passes all its rows.
        """
        assert self.outer_step is not None and batch.holdout is not None
        method, task, holdout, l2i = self.outer_method, self.task, batch.holdout, self.run.l2i
        join = _keep_net if joint_batch is None else joint_batch.join
        # the rows are joined on this stream: wait for it to pass them again
        passes_again = self.looks_ahead or self.head is None
        rows_stream = ["student"] if joint_batch is not None and passes_again else []
        if l2i.ablation in ("zero_gradient", "direct_gradient"):
            with streams("holdout", *rows_stream):
                return self._compute_control(nets.theta, join(nets.live), holdout)
        if l2i.outer_batch_size:
            count = l2i.outer_batch_size // current_group().size
            batch = batch._replace(unlabeled=batch.unlabeled.take_first(count))
        with streams("outer", *rows_stream):
            imputed = method.impute(task, join(nets.live), batch)

        def c_h(net: Net) -> Tensor:
            cost = task.loss(join(net)(holdout.x), holdout.y)
            streams.wait("outer")  # the labels: they are needed from here on
            return cost

        dependencies = [*rows_stream, *(["outer"] if self.looks_ahead else [])]
        dependencies += ["labeled"] if l2i.paper.inner_supervised else []
        with streams("holdout", *dependencies):
            student = method.student(task, lookahead(self.network, nets.theta), batch)
            student = student if joint_batch is None else joint_batch.widen(student)
            streams.hold(imputed, student)
            problem = self._make_problem(batch, nets, student, imputed, c_h, join)
            if not (method.mixes_targets and l2i.paper.inner_supervised):
                return self._reduce(self.outer_step(problem))
            supervised = method.supervised(task, lookahead(self.network, nets.theta), batch)
            return self._reduce(self.outer_step(replace(problem, c_t=None), mixed_c_t=supervised))

    def _make_problem(
        self,
        batch: Batch,
        nets: Nets,
        student: Student,
        imputed: Imputed,
        c_h: Cost,
        join: Callable[[Net], Net],
    ) -> Problem:
        """State the bilevel problem, with C^T in its inner step if the run asks for it."""
        student_net, labeled, paper = nets.student, batch.labeled, self.run.l2i.paper

        def c_t(net: Net) -> Tensor:
            return self.task.loss(join(net)(labeled.x), labeled.y)

        activations = None
        if isinstance(student_net, ForwardCache):
            activations = student_net.get_activations(student.inputs)
        return Problem(
            self.network,
            nets.theta,
            student,
            imputed,
            c_h,
            c_t=c_t if paper.inner_supervised else None,
            eta=self.scalars.eta if self.looks_ahead else None,
            inner_steps=paper.inner_steps,
            head=None if self.head is None else self.head.module,
            activations=activations,
        )

    def _compute_control(self, theta: Params, net: Net, holdout: Labeled) -> FlatOuterGradient:
        """Return ∇C^H at θ, as of more labelled samples, or zero; no labels are imputed."""
        is_zero = self.run.l2i.ablation == "zero_gradient"
        with torch.set_grad_enabled(not is_zero):
            cost = self.task.loss(net(holdout.x), holdout.y)
        if is_zero:
            gradient = {name: torch.zeros_like(p) for name, p in theta.items()}
        else:
            grads = torch.autograd.grad(cost, list(theta.values()), materialize_grads=True)
            gradient = dict(zip(theta, grads, strict=True))
        return self._reduce(OuterGradient(gradient, cost.detach()))

    def _reduce(self, outer: OuterGradient) -> FlatOuterGradient:
        """Average over all processes."""
        group, flat = current_group(), self.flat.flatten(outer.gradient)
        return FlatOuterGradient(group.all_reduce_mean(flat), group.all_reduce_mean(outer.c_h))


def _keep_net(net: Net) -> Net:
    """Return the net itself, which passes every batch for itself."""
    return net


def _make_outer_step(run: Run, task: Task) -> OuterStep | None:
    l2i = run.l2i
    if l2i.update == "off":
        return None
    labels: Labels = OutputLabels()
    if l2i.labels == "learnable":
        is_normalized = l2i.update == "normalized"
        labels = LearnableLabels(l2i.paper.label_lr, is_normalized, task.to_logits, task.to_label)
    return OuterStep(hypergradient=HYPERGRADIENTS[l2i.hypergradient], labels=labels)
