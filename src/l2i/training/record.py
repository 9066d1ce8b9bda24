"""A step as a CUDA graph: launching its many kernels one by one takes longer than running them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import torch

from l2i.batch import Batch
from l2i.config import Run
from l2i.data.loader import Loader
from l2i.errors import InputError
from l2i.lanes import IN_TURN, Lanes, Plan, Streams
from l2i.training.ahead import Ahead

WARM = 3  # steps taken one by one first: libraries choose their algorithms, and the optimizer makes its moments

Step = Callable[[Batch, bool, Lanes], None]  # takes a step, with an outer one or without, in lanes


class Recorder:
    """Steps taken one by one at first, then recorded, one graph a kind of step, and replayed.

    All that a step reads and writes stays where it is: the state in place, the step's numbers on the device, and the
    batch, which is drawn while the step before it is replayed.
    """

    def __init__(self, step: Step, loader: Loader, plan: Plan | None, *, must: bool) -> None:
        self.step, self.loader, self.must = step, loader, must
        self.lanes: Lanes = IN_TURN if plan is None else Streams(loader.device, plan)
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.ahead: Ahead | None = None
        self.taken: Counter[bool] = Counter()
        self.stream = torch.cuda.Stream(loader.device)
        self.failed = False

    def __call__(self, t: int, outer: bool) -> None:
        if outer in self.graphs and self.ahead is not None:
            self.ahead(t)
            self.graphs[outer].replay()
            return
        self.taken[outer] += 1
        if self.failed or self.taken[outer] <= WARM or not self.recorded(t, outer):
            self.step(self.loader.draw(t, holdout=outer), outer, IN_TURN)

    def recorded(self, t: int, outer: bool) -> bool:
        """Record the step and replay it; False where that cannot be done."""
        graph = torch.cuda.CUDAGraph()
        pool = next((known.pool() for known in self.graphs.values()), None)
        try:
            self.ahead = self.ahead or Ahead(self.loader)
            batch = self.ahead(t)
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
                self.step(batch, outer, self.lanes)
        except RuntimeError as error:
            return self.give_up(error)
        self.graphs[outer] = graph
        graph.replay()
        return True

    def give_up(self, error: RuntimeError) -> bool:
        """Say that steps are taken one by one from here on, or raise where the run asks for a graph."""
        cause = error.__context__ or error  # ending the recording fails as well, and says less
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        torch.cuda.synchronize(self.loader.device)
        generator = torch.cuda.default_generators[self.stream.device_index]
        generator.graphsafe_set_state(generator.clone_state())  # else it goes on as if the recording had not ended
        self.close()
        if self.must:
            raise InputError(f"engine='graph': this step cannot be recorded ({reason}); use engine='eager'") from error
        print(f"l2i: going on without a CUDA graph, which this step does not allow ({reason})", file=sys.stderr)
        self.failed = True
        return False

    def close(self) -> None:
        """Let go of what was recorded."""
        if self.ahead is not None:
            self.ahead.close()
        self.graphs.clear()
        self.ahead = None


def recorder_for(run: Run, step: Step, loader: Loader, why_not: dict[str, bool], plan: Plan | None) -> Recorder | None:
    """What records the steps of a run, where it wants that and there is no reason against it; in lanes, with a plan."""
    reasons = [reason for reason, holds in why_not.items() if holds]
    if run.engine == "graph" and reasons:
        raise InputError(f"engine='graph' records steps on a GPU, but {reasons[0]}; use engine='auto'")
    if run.engine == "eager" or reasons:
        return None
    return Recorder(step, loader, plan, must=run.engine == "graph")
