"""The processes of one run: each takes its share of every batch, and what they find is averaged (docs/scaling.md)."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from l2i.errors import InputError
from l2i.torchrun import world_size

GROUP_TIMEOUT = timedelta(minutes=10)  # with a process that does not answer


@dataclass(eq=False)
class ProcessGroup:
    """A process, the `index`-th of `size`. Alone, nothing is sent and nothing that is here changes a value."""

    size: int = 1
    rank: int = 0
    local_rank: int = 0
    """Its number on its machine, and so that of its GPU."""
    device_group: dist.ProcessGroup | None = None
    """Sends what lies on the device."""
    host_group: dist.ProcessGroup | None = None
    """Sends what lies in memory."""
    pending_flag: tuple[Tensor, dist.Work | None] | None = field(default=None, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and speaks for all."""
        return self.rank == 0

    @property
    def supports_cuda_graph(self) -> bool:
        """Whether what is sent can be part of a CUDA graph."""
        return self.device_group is None or dist.get_backend(self.device_group) == "nccl"

    def all_reduce(self, values: Tensor) -> Tensor:
        """Their sum over the processes, in place: one message, and the same bits for every process."""
        if self.device_group is not None:
            dist.all_reduce(values, group=self.device_group)
        return values

    def all_reduce_mean(self, values: Tensor) -> Tensor:
        """Their mean over the processes, in place."""
        return values if self.device_group is None else self.all_reduce(values).div_(self.size)

    def global_norm(self, values: Tensor) -> Tensor:
        """‖·‖ of what lies with all processes together."""
        return values.norm() if self.device_group is None else self.all_reduce(values.square().sum()).sqrt()

    def rescale_local_grad(self, derivative: Tensor) -> Tensor:
        """A derivative of the mean over the samples here, as one of the mean over those of all processes."""
        return derivative if self.size == 1 else derivative / self.size

    def average_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The mean of named tensors, sent in one piece; of those of other kinds, in a piece a kind."""
        if self.device_group is None:
            return tensors
        averaged: dict[str, Tensor] = {}
        for dtype in dict.fromkeys(value.dtype for value in tensors.values()):
            same_dtype = {name: value for name, value in tensors.items() if value.dtype == dtype}
            flat = self.all_reduce_mean(torch.cat([value.flatten() for value in same_dtype.values()]))
            pieces = flat.split([value.numel() for value in same_dtype.values()])
            averaged |= {n: piece.view_as(same_dtype[n]) for n, piece in zip(same_dtype, pieces, strict=True)}
        return {name: averaged[name] for name in tensors}

    def shard(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Its rows of a whole batch's: every `size`-th, so that the first of the batch are the first here."""
        return rows if self.size == 1 else rows[(slice(None),) * dim + (slice(self.rank, None, self.size),)]

    def shard_bounds(self, count: int) -> tuple[int, int]:
        """Where this process's part of `count` samples, to be looked at in order, begins and ends."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def all_gather_rows(self, rows: Tensor, count: int) -> Tensor:
        """All rows in order, from the parts that each process has."""
        if self.device_group is None:
            return rows
        all_rows = rows.new_zeros(count, *rows.shape[1:])
        start, stop = self.shard_bounds(count)
        all_rows[start:stop] = rows
        return self.all_reduce(all_rows)  # zero and a number is that number: nothing is rounded

    def broadcast_bytes(self, content: bytes = b"") -> bytes:
        """What the process that writes has to say, for all to hear."""
        if self.host_group is None:
            return content
        length = torch.tensor(len(content))
        dist.broadcast(length, 0, group=self.host_group)
        payload = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)
        payload = payload if self.is_main else torch.zeros(max(1, int(length)), dtype=torch.uint8)
        dist.broadcast(payload, 0, group=self.host_group)
        return payload.numpy().tobytes()[: int(length)]

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the values of the one that writes."""
        for tensor in tensors if self.device_group is not None else ():
            dist.broadcast(tensor, 0, group=self.device_group)

    def any_async(self, value: bool) -> bool:
        """Whether any process had this wish at the last call: all hear the same, and none waits long."""
        if self.host_group is None:
            return value
        previous = self.wait_any()
        flag = torch.tensor(int(value))
        self.pending_flag = flag, dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.host_group, async_op=True)
        return previous

    def wait_any(self) -> bool:
        """The answer to the last question, which is no longer open then."""
        if self.pending_flag is None:
            return False
        flag, work = self.pending_flag
        self.pending_flag = None
        if work is not None:
            work.wait()
        return bool(flag)


SINGLE_PROCESS = ProcessGroup()
_current_group = ContextVar("the processes of the run", default=SINGLE_PROCESS)


def current_group() -> ProcessGroup:
    """The processes that share what is being done: one, unless `joined` says otherwise."""
    return _current_group.get()


@contextmanager
def init_distributed(device: str = "cpu") -> Iterator[ProcessGroup]:
    """Together with the processes that torchrun started, where it did; `device` is what the run asks for."""
    if world_size() == 1 or current_group().size > 1:
        yield current_group()
        return
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    owns_group = not dist.is_initialized()
    if owns_group:
        backend, (store, rank, size) = pick_backend(device, local_rank), next(rendezvous("env://", timeout=GROUP_TIMEOUT))
        store = fresh_store(store, rank, size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=GROUP_TIMEOUT)
    host_group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
    try:
        group = ProcessGroup(dist.get_world_size(), dist.get_rank(), local_rank, dist.group.WORLD, host_group)
        with use_group(group):
            yield group
        group.wait_any()
    finally:
        dist.destroy_process_group(None if owns_group else host_group)


@contextmanager
def use_group(group: ProcessGroup) -> Iterator[None]:
    """What is done within is shared by these processes."""
    token = _current_group.set(group)
    try:
        yield
    finally:
        _current_group.reset(token)


def fresh_store(store: Store, rank: int, size: int) -> Store:
    """A place in the store that is this group's alone.

    torchrun keeps one store for all groups that it starts: where it has restarted a group, the addresses of the
    processes before are still there, and to connect to those is to wait for ever.
    """
    token = secrets.token_hex(8)
    if rank:
        store.set(f"l2i/here/{rank}", token)
        token = store.get(f"l2i/answer/{token}").decode()
        store.set(f"l2i/heard/{token}/{rank}", "")
        return PrefixStore(token, store)
    pending_ranks, deadline = set(range(1, size)), time.monotonic() + GROUP_TIMEOUT.total_seconds()
    while pending_ranks:
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out: no connection to the processes {sorted(pending_ranks)}")
        for peer in pending_ranks:
            if store.check([f"l2i/here/{peer}"]):  # by one of a group before, perhaps: so ask until it has heard
                store.set(f"l2i/answer/{store.get(f'l2i/here/{peer}').decode()}", token)
        pending_ranks = {peer for peer in pending_ranks if not store.check([f"l2i/heard/{token}/{peer}"])}
        time.sleep(0.01)
    return PrefixStore(token, store)


def pick_backend(device: str, local_rank: int) -> str:
    """NCCL where each process has a GPU of its own; gloo on CPUs, and where a GPU is named that all share."""
    if not torch.cuda.is_available() or device not in ("auto", "cuda"):
        return "gloo"
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise InputError(
            f"there are more processes on this machine than its {count} GPU{'s' * (count > 1)}; "
            f"use torchrun --nproc-per-node {count}, or --device cpu"
        )
    torch.cuda.set_device(local_rank)
    return "nccl"
