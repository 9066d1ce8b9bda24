"""A step as a CUDA graph, whose independent parts run concurrently on CUDA streams.

Launching its many kernels one by one takes longer than running them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from l2i.data.batch import Batch, collect_tensors
from l2i.errors import InputError
from l2i.training.loader import Loader
from l2i.training.step import SEQUENTIAL, StreamSchedule

GRAPH_WARMUP_STEPS = 3  # eager steps first: libraries choose algorithms, Adam makes its moments

StepFunction = Callable[[Batch, bool, StreamSchedule], None]  # the flag: with an outer step
StreamPlan = dict[str, int]  # name -> number; names with one number share a CUDA stream

SEPARATE_STREAMS: StreamPlan = {"impute": 0, "labeled": 1, "student": 2, "outer": 3, "holdout": 4}
"""A stream per part: the fastest, for networks with small activations."""

LAST_LAYER_STREAMS: StreamPlan = SEPARATE_STREAMS | {"outer": 0, "holdout": 0}
"""Parts on one stream run in sequence and share its memory: the last-layer outer step takes little
more than the base step."""

FULL_NETWORK_STREAMS: StreamPlan = SEPARATE_STREAMS | {"outer": 1, "holdout": 2}
"""For outer steps with two backwards of their own, in the memory that the base step has freed."""

SMALL_ACTIVATION_BYTES = 64 * 2**20  # held for the backward of the labelled samples


def choose_stream_plan(*, activation_bytes: int, last_layer: bool) -> StreamPlan:
    """Choose a plan for a network that holds so many bytes for its backward."""
    if activation_bytes < SMALL_ACTIVATION_BYTES:
        return SEPARATE_STREAMS
    return LAST_LAYER_STREAMS if last_layer else FULL_NETWORK_STREAMS


class CudaStreams(StreamSchedule):
    """CUDA streams for a step that is being captured: the branches of its graph run concurrently.

    Memory freed on a stream can be reused there at once, while another stream still reads it: hence
    `hold`.
    """

    def __init__(self, device: torch.device, plan: StreamPlan) -> None:
        streams_by_number = {number: torch.cuda.Stream(device) for number in plan.values()}
        self.streams = {name: streams_by_number[number] for name, number in plan.items()}
        self.active: set[str] = set()
        self.retained: list[object] = []

    @contextmanager
    def __call__(self, name: str, *after: str) -> Iterator[None]:
        stream = self.streams[name]
        stream.wait_stream(torch.cuda.current_stream())
        self.active.add(name)
        with torch.cuda.stream(stream):
            for other in after:
                self.wait(other)
            yield

    def wait(self, name: str) -> None:
        if name in self.active:
            torch.cuda.current_stream().wait_stream(self.streams[name])

    def join(self) -> None:
        for name in sorted(self.active):
            self.wait(name)
        self.active.clear()
        self.retained.clear()

    def hold(self, *objects: object) -> None:
        self.retained += objects


class BatchPrefetcher:
    """Draws the next batch on its own stream, into memory that a captured step reads.

    Drawing and augmenting is a chain of hundreds of small kernels that leaves most of the device
    idle; beside a step most of its time is saved. A batch depends on (seed, step) alone, so it does
    not matter when it is drawn.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader, self.graph = loader.clone(), torch.cuda.CUDAGraph()
        # of high priority, since those streams come from another pool than the step's
        self.stream = torch.cuda.Stream(loader.device, priority=-1)
        self.graph.register_generator_state(self.loader.generator)
        self.loader.seek(0)
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self.next_batch = self.loader.sample()
        self.batch: Batch = tree_map_only(Tensor, torch.empty_like, self.next_batch)
        self.step: int | None = None

    def __call__(self, t: int) -> Batch:
        """Return the batch of step t, valid until the next call, and start drawing the next one."""
        if self.step != t:  # at first, and when a run resumes elsewhere
            self._start_drawing(t)
        torch.cuda.current_stream(self.loader.device).wait_stream(self.stream)
        torch._foreach_copy_(collect_tensors(self.batch), collect_tensors(self.next_batch))
        self._start_drawing(t + 1)
        return self.batch

    def _start_drawing(self, t: int) -> None:
        """Draw the batch of step t, once the one before it has been copied."""
        self.step = None  # until it is under way: an interrupt must not leave the previous number
        self.stream.wait_stream(torch.cuda.current_stream(self.loader.device))
        with torch.cuda.stream(self.stream):
            self.loader.seek(t)
            self.graph.replay()
        self.step = t


class StepGraph:
    """Steps that are eager at first, then captured, one graph per kind of step, and replayed.

    All that a step reads and writes stays in place: the state, the step's numbers on the device,
    and the batch, which is drawn while the step before it is replayed.
    """

    def __init__(
        self, step: StepFunction, loader: Loader, plan: StreamPlan | None, *, required: bool
    ) -> None:
        self.step, self.loader, self.required = step, loader, required
        self.streams = SEQUENTIAL if plan is None else CudaStreams(loader.device, plan)
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
        is_eager = self.capture_failed or self.eager_counts[outer] <= GRAPH_WARMUP_STEPS
        if is_eager or not self._capture(t, outer):
            self.step(self.loader.draw_batch(t, holdout=outer), outer, SEQUENTIAL)

    def _capture(self, t: int, outer: bool) -> bool:
        """Capture the step and replay it; return False if that is not possible."""
        graph = torch.cuda.CUDAGraph()
        pool = next((captured.pool() for captured in self.graphs.values()), None)
        try:
            self.prefetcher = self.prefetcher or BatchPrefetcher(self.loader)
            batch = self.prefetcher(t)
            with torch.cuda.graph(
                graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"
            ):
                self.step(batch, outer, self.streams)
        except RuntimeError as error:
            self._fall_back_to_eager(error)
            return False
        self.graphs[outer] = graph
        graph.replay()
        return True

    def _fall_back_to_eager(self, error: RuntimeError) -> None:
        """Report that steps are eager from here on, or raise if the run asks for a graph."""
        cause = error.__context__ or error  # ending the capture fails as well, and says less
        if isinstance(cause, torch.OutOfMemoryError):
            raise cause
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        torch.cuda.synchronize(self.loader.device)
        generator = torch.cuda.default_generators[self.stream.device_index]
        generator.graphsafe_set_state(generator.clone_state())  # else it stays in capture mode
        self.close()
        if self.required:
            problem = f"engine='graph': this step cannot be captured ({reason})"
            raise InputError(f"{problem}; use engine='eager'") from error
        note = "continuing without a CUDA graph, since this step cannot be captured"
        print(f"l2i: {note} ({reason})", file=sys.stderr)
        self.capture_failed = True

    def close(self) -> None:
        """Free the captured steps."""
        if self.prefetcher is not None:
            self.prefetcher.stream.synchronize()  # it writes to memory that is about to be freed
        self.graphs.clear()
        self.prefetcher = None
