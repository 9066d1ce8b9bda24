"""A step's batch (Algorithm 1, line 3), drawn beside the step before it: a CUDA graph on a stream of its own.

MERGED:
A step as a CUDA graph: launching its many kernels one by one takes longer than running them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from l2i.config import Run
from l2i.data.batch import Batch, collect_tensors
from l2i.errors import InputError
from l2i.streams import SEQUENTIAL, CudaStreams, StreamPlan, StreamSchedule
from l2i.training.loader import Loader


class BatchPrefetcher:
    """The batches of a loader, each in the same memory, which a recorded step reads.

    Drawing and augmenting is a chain of hundreds of small kernels that leaves most of the device idle; beside a step
    most of its time is saved. A batch depends on (seed, step) alone, so it is the same whenever it is drawn.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader, self.graph = loader.clone(), torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream(loader.device, priority=-1)  # from another 32 than lanes
        self.graph.register_generator_state(self.loader.generator)
        self.loader.seek(0)
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self.next_batch = self.loader.sample()
        self.batch: Batch = tree_map_only(Tensor, torch.empty_like, self.next_batch)
        self.step: int | None = None

    def __call__(self, t: int) -> Batch:
        """The batch of a step, until the next is asked for; that of the step after it is on its way then."""
        if self.step != t:  # at first, and where a run goes on elsewhere
            self.start_drawing(t)
        torch.cuda.current_stream(self.loader.device).wait_stream(self.stream)
        torch._foreach_copy_(collect_tensors(self.batch), collect_tensors(self.next_batch))
        self.start_drawing(t + 1)
        return self.batch

    def start_drawing(self, t: int) -> None:
        """Draw the batch of a step, once what was drawn before has been taken over."""
        self.step = None  # until it is on its way: whoever interrupts this must not take it for the one before
        self.stream.wait_stream(torch.cuda.current_stream(self.loader.device))
        with torch.cuda.stream(self.stream):
            self.loader.seek(t)
            self.graph.replay()
        self.step = t

    def close(self) -> None:
        """Wait for the batch that is on its way: what it writes to is about to be given back."""
        self.stream.synchronize()


GRAPH_WARMUP_STEPS = 3  # steps taken one by one first: libraries choose their algorithms, and the optimizer makes its moments

StepFunction = Callable[[Batch, bool, StreamSchedule], None]  # takes a step, with an outer one or without, in lanes


class StepGraph:
    """Steps taken one by one at first, then recorded, one graph a kind of step, and replayed.

    All that a step reads and writes stays where it is: the state in place, the step's numbers on the device, and the
    batch, which is drawn while the step before it is replayed.
    """

    def __init__(self, step: StepFunction, loader: Loader, plan: StreamPlan | None, *, required: bool) -> None:
        self.step, self.loader, self.required = step, loader, required
        self.streams: StreamSchedule = SEQUENTIAL if plan is None else CudaStreams(loader.device, plan)
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.prefetcher: BatchPrefetcher | None = None
        self.eager_counts: Counter[bool] = Counter()
        self.stream = torch.cuda.Stream(loader.device)
        self.capture_failed = False

    def __call__(self, t: int, outer: bool) -> None:
        if outer in self.graphs and self.prefetcher is not None:
            self.prefetcher(t)
            self.graphs[outer].replay()
            return
        self.eager_counts[outer] += 1
        if self.capture_failed or self.eager_counts[outer] <= GRAPH_WARMUP_STEPS or not self.capture(t, outer):
            self.step(self.loader.draw_batch(t, holdout=outer), outer, SEQUENTIAL)

    def capture(self, t: int, outer: bool) -> bool:
        """Record the step and replay it; False where that cannot be done."""
        graph = torch.cuda.CUDAGraph()
        pool = next((captured.pool() for captured in self.graphs.values()), None)
        try:
            self.prefetcher = self.prefetcher or BatchPrefetcher(self.loader)
            batch = self.prefetcher(t)
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
                self.step(batch, outer, self.streams)
        except RuntimeError as error:
            return self.fall_back_to_eager(error)
        self.graphs[outer] = graph
        graph.replay()
        return True

    def fall_back_to_eager(self, error: RuntimeError) -> bool:
        """Say that steps are taken one by one from here on, or raise where the run asks for a graph."""
        cause = error.__context__ or error  # ending the recording fails as well, and says less
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        torch.cuda.synchronize(self.loader.device)
        generator = torch.cuda.default_generators[self.stream.device_index]
        generator.graphsafe_set_state(generator.clone_state())  # else it goes on as if the recording had not ended
        self.close()
        if self.required:
            raise InputError(f"engine='graph': this step cannot be recorded ({reason}); use engine='eager'") from error
        print(f"l2i: going on without a CUDA graph, which this step does not allow ({reason})", file=sys.stderr)
        self.capture_failed = True
        return False

    def close(self) -> None:
        """Let go of what was recorded."""
        if self.prefetcher is not None:
            self.prefetcher.close()
        self.graphs.clear()
        self.prefetcher = None


def make_step_graph(run: Run, step: StepFunction, loader: Loader, obstacles: dict[str, bool], plan: StreamPlan | None) -> StepGraph | None:
    """What records the steps of a run, where it wants that and there is no reason against it; in lanes, with a plan."""
    reasons = [reason for reason, applies in obstacles.items() if applies]
    if run.engine == "graph" and reasons:
        raise InputError(f"engine='graph' records steps on a GPU, but {reasons[0]}; use engine='auto'")
    if run.engine == "eager" or reasons:
        return None
    return StepGraph(step, loader, plan, required=run.engine == "graph")
