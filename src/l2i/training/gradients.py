"""The gradients of a step: of C^T + λ C^U, and of C^H through the imputed labels (Algorithm 1, lines 4 to 10)."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor, nn

from l2i.batch import Batch, Imputed, Labeled, Net, Params, Student
from l2i.bilevel.head import Head
from l2i.bilevel.hypergradient import Cost
from l2i.bilevel.inner import leaves, lookahead
from l2i.bilevel.outer import OuterGradient, OuterStep
from l2i.config import Run
from l2i.lanes import IN_TURN, Lanes
from l2i.methods.base import Costs
from l2i.ranks import here
from l2i.tasks.base import Task
from l2i.training.clock import Clock
from l2i.training.flat import Flat
from l2i.training.passed import Passed
from l2i.training.precision import Autocast, matrices, rounded
from l2i.training.statistics import Moving, Statistics
from l2i.training.targets import outer_method


class BaseGradient(NamedTuple):
    """What the base step gives: its costs, and the gradient of C^T + λ C^U in parts that add up."""

    costs: Costs
    parts: list[Tensor]  # in one piece, see `Flat`

    @property
    def gradient(self) -> Tensor:
        return reduce(torch.add, self.parts)


class HeldGradient(NamedTuple):
    """What the outer step gives, in one piece and over all processes: see `OuterGradient`."""

    gradient: Tensor
    c_h: Tensor


class Nets(NamedTuple):
    """Φ at one θ, as the parts of a step see it."""

    moving: Moving  # labelled and student samples
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
        outer: OuterStep | None,
        clock: Clock,
        flat: Flat,
    ) -> None:
        self.run, self.task, self.clock, self.flat = run, task, clock, flat
        self.network, self.outer_step = network, outer
        self.imputer = {"model": network, "teacher": teacher}[run.method.imputer]
        self.statistics = Statistics(network)
        self.outer_method = run.method if outer is None else outer_method(run.l2i.outer_target, run.method, task)
        self.head = None
        if outer is not None and run.l2i.hypergradient.startswith("last_layer"):
            self.head = Head.of(network, outer.head)
        kept = [] if self.head is None else self.head.names  # the closed form is for a head of full precision
        self.rounds = [n for n in matrices(network) if n not in kept] if isinstance(network, Autocast) else []
        self.replays = outer is not None and (outer.eta is not None or run.l2i.hypergradient == "finite_difference")
        """Whether an outer step passes the same samples again and has to meet the same dropout masks."""
        self.shares = False
        """Whether an outer step at the same θ looks at what the base step has passed."""

    def nets(self, params: Params, *, shared: bool = False) -> Nets:
        """The nets at `params`; where they are shared, those that remember what they have passed."""
        l2i, values = self.run.l2i, rounded(params, self.rounds)
        theta = leaves(values if self.outer_step is None or self.outer_step.eta is None else params)  # θ* is no bf16
        moving, live = Moving(self.statistics, values), lookahead(self.network, theta)
        own = self.imputer is self.network
        imputer = live if own else lookahead(self.imputer, dict(self.imputer.named_parameters()))
        if not shared or not self.shares or self.outer_step is None:
            return Nets(moving, moving, imputer, live, theta)
        student = moving if self.head is None else Passed(moving, self.head)
        if own and not l2i.outer_unlabeled:
            imputer = live = Passed(live)  # the labels of both steps from one forward
        return Nets(moving, student, imputer, live, theta)

    def base(self, batch: Batch, nets: Nets, lanes: Lanes = IN_TURN) -> BaseGradient:
        """The gradient of C^T + λ C^U(Z), with labels imputed at θ (or by the teacher)."""
        costs = self.run.method.costs(self.task, nets.student, nets.imputer, batch, lanes)
        with lanes("student" if costs.one_forward else "labeled"):
            goal = costs.c_t + self.clock.weight * costs.c_u if costs.one_forward else costs.c_t
            parts = [self.flat.gathered(nets.moving.gradient(goal))]
        if costs.c_u.requires_grad and not costs.one_forward:
            with lanes("student"):
                parts.append(self.flat.gathered(nets.moving.gradient(self.clock.weight * costs.c_u)))
        lanes.keep(costs, parts)
        return BaseGradient(costs, parts)

    def outer(self, batch: Batch, nets: Nets, lanes: Lanes = IN_TURN) -> HeldGradient:
        """Impute with the live model, look ahead, and take ∂C^H/∂θ through the labels."""
        assert self.outer_step is not None and batch.holdout is not None
        method, task, held = self.outer_method, self.task, batch.holdout
        if self.run.l2i.through == "parameters":
            return self.direct(nets, held, lanes)
        if self.run.l2i.outer_unlabeled:
            batch = batch._replace(unlabeled=batch.unlabeled.first(self.run.l2i.outer_unlabeled // here().size))
        with lanes("outer"):
            imputed = method.impute(task, nets.live, batch)

        def c_h(net: Net) -> Tensor:
            cost = task.loss(net(held.x), held.y)
            lanes.wait("outer")  # the labels: they are needed from here on
            return cost

        first = [] if self.outer_step.eta is None else ["outer"]
        first += ["labeled"] if self.run.l2i.inner_supervised else []
        with lanes("holdout", *first):
            student = method.student(task, lookahead(self.network, nets.theta), batch)
            if isinstance(nets.student, Passed):
                student = student._replace(seen=nets.student.seen(student.inputs))
            lanes.keep(imputed, student)
            found = self.through_labels(batch, nets, student, imputed, c_h)
            return HeldGradient(here().mean(self.flat.gathered(found.gradient)), here().mean(found.c_h))

    def direct(self, nets: Nets, held: Labeled, lanes: Lanes) -> HeldGradient:
        """∇C^H at θ, no labels imputed: the gradient of more labelled samples."""
        with lanes("holdout"):
            cost = self.task.loss(lookahead(self.network, nets.theta)(held.x), held.y)
            grads = torch.autograd.grad(cost, list(nets.theta.values()), materialize_grads=True)
            found = self.flat.gathered(dict(zip(nets.theta, grads, strict=True)))
            return HeldGradient(here().mean(found), here().mean(cost.detach()))

    def through_labels(self, batch: Batch, nets: Nets, student: Student, imputed: Imputed, c_h: Cost) -> OuterGradient:
        """The outer step proper, with C^T in its inner step where the run says so."""
        method, task, step = self.outer_method, self.task, self.outer_step
        assert step is not None
        if step.eta is not None:
            step = replace(step, eta=self.clock.eta)
        if not self.run.l2i.inner_supervised:
            return step(self.network, nets.theta, student, imputed, c_h)
        supervised: Student = method.supervised(task, lookahead(self.network, nets.theta), batch)
        if method.mixes_labels:
            return step(self.network, nets.theta, student, imputed, c_h, mixed_c_t=supervised)
        fixed = imputed.detached()
        return step(self.network, nets.theta, student, imputed, c_h, c_t=lambda net: supervised.evaluate(net, fixed))
