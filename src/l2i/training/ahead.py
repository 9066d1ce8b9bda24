"""A step's batch (Algorithm 1, line 3), drawn beside the step before it: a CUDA graph on a stream of its own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from l2i.batch import Batch, tensors
from l2i.data.loader import Loader


class Ahead:
    """The batches of a loader, each in the same memory, which a recorded step reads.

    Drawing and augmenting is a chain of hundreds of small kernels that leaves most of the device idle; beside a step
    most of its time is saved. A batch depends on (seed, step) alone, so it is the same whenever it is drawn.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader, self.graph = loader.twin(), torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream(loader.device, priority=-1)  # from another 32 than lanes
        self.graph.register_generator_state(self.loader.generator)
        self.loader.turn_to(0)
        with torch.cuda.graph(self.graph, stream=self.stream, capture_error_mode="thread_local"):
            self.drawn = self.loader.take()
        self.batch: Batch = tree_map_only(Tensor, torch.empty_like, self.drawn)
        self.step: int | None = None

    def __call__(self, t: int) -> Batch:
        """The batch of a step, until the next is asked for; that of the step after it is on its way then."""
        if self.step != t:  # at first, and where a run goes on elsewhere
            self.begin(t)
        torch.cuda.current_stream(self.loader.device).wait_stream(self.stream)
        torch._foreach_copy_(tensors(self.batch), tensors(self.drawn))
        self.begin(t + 1)
        return self.batch

    def begin(self, t: int) -> None:
        """Draw the batch of a step, once what was drawn before has been taken over."""
        self.step = None  # until it is on its way: whoever interrupts this must not take it for the one before
        self.stream.wait_stream(torch.cuda.current_stream(self.loader.device))
        with torch.cuda.stream(self.stream):
            self.loader.turn_to(t)
            self.graph.replay()
        self.step = t

    def close(self) -> None:
        """Wait for the batch that is on its way: what it writes to is about to be given back."""
        self.stream.synchronize()
