"""Two processes of a run, simulated by threads that take turns: fast, and in one interpreter.

A thread runs until it sends something, then the next one does, so that nothing runs at the same
time: torch's generator and its forward mode belong to the whole interpreter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from l2i.distributed import ProcessGroup, use_group

T = TypeVar("T")
TIMEOUT = 20.0  # seconds to wait for a thread that sends less often than the others


@dataclass(eq=False)
class Mailbox:
    """What the threads send, and whose turn it is."""

    size: int
    sent: dict[int, Tensor] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.size, timeout=TIMEOUT)

    def wait_for_others(self) -> None:
        self.turn.release()
        try:
            self.barrier.wait()
        finally:
            self.turn.acquire()

    def exchange(self, rank: int, values: Tensor) -> list[Tensor]:
        """Return the values of all processes, in order."""
        self.sent[rank] = values.detach().clone()
        self.wait_for_others()
        received = [self.sent[other] for other in range(self.size)]
        self.wait_for_others()
        return received


class SimulatedGroup(ProcessGroup):
    """A process group whose messages go from thread to thread."""

    def __init__(self, rank: int, mailbox: Mailbox) -> None:
        super().__init__(mailbox.size, rank, rank, device_group=mailbox)  # type: ignore[arg-type]
        self.mailbox = mailbox

    @property
    def supports_cuda_graph(self) -> bool:
        return False

    @torch.no_grad()
    def all_reduce(self, values: Tensor) -> Tensor:
        return values.copy_(torch.stack(self.mailbox.exchange(self.rank, values)).sum(0))

    @torch.no_grad()
    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            tensor.copy_(self.mailbox.exchange(self.rank, tensor)[0])


def simulate(function: Callable[[ProcessGroup], T], size: int = 2) -> list[T]:
    """Return what `function` returns in each of `size` processes."""
    mailbox = Mailbox(size)

    def run(rank: int) -> T:
        group = SimulatedGroup(rank, mailbox)
        with mailbox.turn, use_group(group):
            try:
                return function(group)
            except BaseException:
                mailbox.barrier.abort()  # nobody need wait for this one
                raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]
