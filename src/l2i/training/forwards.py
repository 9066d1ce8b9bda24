"""Forwards of a step: each batch passes once, and several batches may pass together."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from l2i.bilevel.functional import Net
from l2i.bilevel.head import Head
from l2i.bilevel.problem import Activations, Student
from l2i.errors import InputError


def is_part_of(x: Tensor, batch: Tensor) -> bool:
    """Return whether `x` is a batch or its first samples, not a copy of them."""
    layout, batch_layout = ((t.data_ptr(), t.shape[1:], t.stride()) for t in (x, batch))
    return layout == batch_layout and len(x) <= len(batch)


class CachedForward(NamedTuple):
    """A batch, the network's features and outputs, and when they are ready in a captured step."""

    x: Tensor
    features: Tensor | None
    outputs: Tensor
    ready: torch.cuda.Event | None


class ForwardCache:
    """Φ at θ with a cache, so that a batch passes once; with a head, its features are cached too.

    Entries carry their graph, even if the first caller did not need it.
    """

    def __init__(self, net: Net, head: Head | None = None) -> None:
        self.net, self.head = net, head
        self.entries: list[CachedForward] = []

    def __call__(self, x: Tensor) -> Tensor:
        entry = self._find(x) or self._run_forward(x)
        outputs = entry.outputs[: len(x)]
        return outputs if torch.is_grad_enabled() else outputs.detach()

    def _run_forward(self, x: Tensor) -> CachedForward:
        features, ready = None, None
        with torch.enable_grad():
            if self.head is None:
                outputs = self.net(x)
            else:
                features, outputs = self.head.forward_with_features(self.net, x)
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            ready = torch.cuda.current_stream().record_event()
        self.entries.append(CachedForward(x, features, outputs, ready))
        return self.entries[-1]

    def _find(self, x: Tensor) -> CachedForward | None:
        """Return the entry of `x`, and let the current stream wait for it."""
        entry = next((entry for entry in self.entries if is_part_of(x, entry.x)), None)
        if entry is not None and entry.ready is not None:
            torch.cuda.current_stream().wait_event(entry.ready)
        return entry

    def get_activations(self, x: Tensor) -> Activations | None:
        """Return the detached features and outputs of `x`, if it was passed."""
        entry = self._find(x)
        if entry is None or entry.features is None:
            return None
        return Activations(entry.features[: len(x)].detach(), entry.outputs[: len(x)].detach())


class JointBatch:
    """Batches that pass the network in one forward, and so share its BatchNorm statistics."""

    def __init__(self, *batches: Tensor) -> None:
        if len({x.shape[1:] for x in batches}) > 1:
            shapes = ", ".join(str(list(x.shape[1:])) for x in batches)
            problem = f"method.one_forward needs samples of one shape, not {shapes}"
            raise InputError(f"{problem}; leave it out")
        self.rows: list[tuple[Tensor, slice]] = []
        start = 0
        for batch in batches:
            if self._find(batch) is None:  # views may be one and the same
                self.rows.append((batch, slice(start, start + len(batch))))
                start += len(batch)
        self.x = torch.cat([batch for batch, _ in self.rows])

    def _find(self, x: Tensor) -> slice | None:
        """Return the rows of a batch, or of its first samples; None if it is not among them."""
        starts = (rows.start for batch, rows in self.rows if is_part_of(x, batch))
        return next((slice(start, start + len(x)) for start in starts), None)

    def join(self, net: Net) -> Net:
        """Return a net that passes all rows to compute the outputs of one of the batches."""

        def joint_net(x: Tensor) -> Tensor:
            rows = self._find(x)
            return net(x) if rows is None else net(self.x)[rows]

        return joint_net

    def widen(self, student: Student) -> Student:
        """Return the same student with all rows as its inputs."""
        rows = self._find(student.inputs)
        assert rows is not None
        return Student(self.x, lambda outputs, imputed: student.cost(outputs[rows], imputed))
