"""One forward for base and outer step, where both are at one θ and need the same outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from l2i.batch import Net, Seen
from l2i.bilevel.head import Head


class Note(NamedTuple):
    """A batch, what was made of it, and when that is ready in a step that is being recorded."""

    x: Tensor
    features: Tensor | None
    outputs: Tensor
    ready: torch.cuda.Event | None

    def holds(self, x: Tensor) -> bool:
        """Whether `x` is this batch or its first samples, not a copy of them."""
        layout = (x.data_ptr(), x.shape[1:], x.stride())
        return layout == (self.x.data_ptr(), self.x.shape[1:], self.x.stride()) and len(x) <= len(self.x)


class Passed:
    """Φ at θ, noting what it makes of each batch, so that a batch is passed once; with a head, its features too.

    Notes carry their graph, whether or not the first to ask wanted one.
    """

    def __init__(self, net: Net, head: Head | None = None) -> None:
        self.net, self.head = net, head
        self.notes: list[Note] = []

    def __call__(self, x: Tensor) -> Tensor:
        note = self.find(x) or self.note(x)
        outputs = note.outputs[: len(x)]
        return outputs if torch.is_grad_enabled() else outputs.detach()

    def note(self, x: Tensor) -> Note:
        with torch.enable_grad():
            features, outputs = (None, self.net(x)) if self.head is None else self.head.see(self.net, x)
        recorded = x.is_cuda and torch.cuda.is_current_stream_capturing()
        ready = torch.cuda.current_stream().record_event() if recorded else None
        self.notes.append(Note(x, features, outputs, ready))
        return self.notes[-1]

    def find(self, x: Tensor) -> Note | None:
        """What was made of `x`, waiting for it in another lane than its own."""
        note = next((note for note in self.notes if note.holds(x)), None)
        if note is not None and note.ready is not None:
            torch.cuda.current_stream().wait_event(note.ready)
        return note

    def seen(self, x: Tensor) -> Seen | None:
        """Features and outputs of `x`, cut off from their graph, where it was passed."""
        note = self.find(x)
        if note is None or note.features is None:
            return None
        return Seen(note.features[: len(x)].detach(), note.outputs[: len(x)].detach())
