"""The processes of a run, which share every batch and average gradients."""

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
from torch import Generator, Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from l2i.errors import InputError
from l2i.torchrun import world_size

GROUP_TIMEOUT = timedelta(minutes=10)  # for a process that does not answer
Shape = tuple[int, ...]


@dataclass(eq=False)
class ProcessGroup:
    """The processes that share a run, seen from one of them. A single process sends nothing."""

    size: int = 1
    rank: int = 0
    local_rank: int = 0
    """Rank on this machine, which is also the index of its GPU."""
    device_group: dist.ProcessGroup | None = None
    """Sends tensors on the device."""
    host_group: dist.ProcessGroup | None = None
    """Sends tensors in main memory."""
    pending_flag: tuple[Tensor, dist.Work | None] | None = field(default=None, repr=False)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and prints for all."""
        return self.rank == 0

    @property
    def supports_cuda_graph(self) -> bool:
        """Whether CUDA graphs can capture the collectives."""
        return self.device_group is None or dist.get_backend(self.device_group) == "nccl"

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum over the processes, in place: one collective, the same bits in every process."""
        if self.device_group is not None:
            dist.all_reduce(values, group=self.device_group)
        return values

    def all_reduce_mean(self, values: Tensor) -> Tensor:
        """Average over the processes, in place."""
        return values if self.device_group is None else self.all_reduce(values).div_(self.size)

    def global_norm(self, values: Tensor) -> Tensor:
        """Return ‖·‖ of the values of all processes together."""
        if self.device_group is not None:
            return self.all_reduce(values.square().sum()).sqrt()
        norm: Tensor = values.norm()
        return norm

    def rescale_local_grad(self, derivative: Tensor) -> Tensor:
        """Turn a derivative of the local mean into one of the mean over all processes' samples."""
        return derivative if self.size == 1 else derivative / self.size

    def average_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Average named tensors over the processes, in one collective per type."""
        if self.device_group is None:
            return tensors
        averaged: dict[str, Tensor] = {}
        for dtype in dict.fromkeys(value.dtype for value in tensors.values()):
            same_dtype = {name: value for name, value in tensors.items() if value.dtype == dtype}
            flat = torch.cat([value.flatten() for value in same_dtype.values()])
            sizes = [value.numel() for value in same_dtype.values()]
            pieces = zip(same_dtype, self.all_reduce_mean(flat).split(sizes), strict=True)
            averaged |= {name: piece.view_as(same_dtype[name]) for name, piece in pieces}
        return {name: averaged[name] for name in tensors}

    def shard(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Return every `size`-th row, so that the first rows of a batch are the first here."""
        if self.size == 1:
            return rows
        return rows[(slice(None),) * dim + (slice(self.rank, None, self.size),)]

    def shard_bounds(self, count: int) -> tuple[int, int]:
        """Return the start and end of this process's part of `count` samples in order."""
        return count * self.rank // self.size, count * (self.rank + 1) // self.size

    def all_gather_rows(self, rows: Tensor, count: int) -> Tensor:
        """Return all rows in order, from the part of each process."""
        if self.device_group is None:
            return rows
        all_rows = rows.new_zeros(count, *rows.shape[1:])
        all_rows[slice(*self.shard_bounds(count))] = rows
        return self.all_reduce(all_rows)  # exact: all other terms are zero

    def broadcast_bytes(self, content: bytes = b"") -> bytes:
        """Return the main process's bytes in all processes."""
        if self.host_group is None:
            return content
        length = torch.tensor(len(content))
        dist.broadcast(length, 0, group=self.host_group)
        payload = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)
        payload = payload if self.is_main else torch.zeros(max(1, int(length)), dtype=torch.uint8)
        dist.broadcast(payload, 0, group=self.host_group)
        return payload.numpy().tobytes()[: int(length)]

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Copy the main process's values to all processes."""
        for tensor in tensors if self.device_group is not None else ():
            dist.broadcast(tensor, 0, group=self.device_group)

    def any_async(self, value: bool) -> bool:
        """Return whether any process passed True at the previous call, by an async all-reduce."""
        if self.host_group is None:
            return value
        previous, flag = self.wait_any(), torch.tensor(int(value))
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.host_group, async_op=True)
        self.pending_flag = (flag, work)
        return previous

    def wait_any(self) -> bool:
        """Wait for the pending flag, if any, and return it."""
        if self.pending_flag is None:
            return False
        flag, work = self.pending_flag
        self.pending_flag = None
        if work is not None:
            work.wait()
        return bool(flag)


_SINGLE_PROCESS = ProcessGroup()
_current_group = ContextVar("process group of the run", default=_SINGLE_PROCESS)


def current_group() -> ProcessGroup:
    """Return the processes that share the current run: one outside of `init_distributed`."""
    return _current_group.get()


def sample_uniform(
    shape: Shape, generator: Generator, *, dim: int = 0, dtype: torch.dtype | None = None
) -> Tensor:
    """Sample from [0, 1); `dim` is the batch dimension."""
    shape = _global_shape(shape, dim)
    drawn = torch.rand(shape, generator=generator, device=generator.device, dtype=dtype)
    return current_group().shard(drawn, dim)


def sample_integers(high: int, shape: Shape, generator: Generator, *, dim: int = 0) -> Tensor:
    """Sample from 0 to `high` - 1; `dim` is the batch dimension."""
    shape = _global_shape(shape, dim)
    drawn = torch.randint(high, shape, generator=generator, device=generator.device)
    return current_group().shard(drawn, dim)


def sample_normal(
    shape: Shape, generator: Generator, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Sample from the standard normal distribution."""
    shape = _global_shape(shape, 0)
    drawn = torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)
    return current_group().shard(drawn)


def _global_shape(shape: Shape, dim: int) -> Shape:
    return (*shape[:dim], shape[dim] * current_group().size, *shape[dim + 1 :])


@contextmanager
def use_group(group: ProcessGroup) -> Iterator[None]:
    """Make a group the current one."""
    token = _current_group.set(group)
    try:
        yield
    finally:
        _current_group.reset(token)


@contextmanager
def init_distributed(device: str = "cpu") -> Iterator[ProcessGroup]:
    """Join the processes that torchrun started, if it did; `device` is the run's."""
    if world_size() == 1 or current_group().size > 1:
        yield current_group()
        return
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    owns_group = not dist.is_initialized()
    if owns_group:
        backend = _pick_backend(device, local_rank)
        store, rank, size = next(rendezvous("env://", timeout=GROUP_TIMEOUT))
        store = _open_store(store, rank, size)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=GROUP_TIMEOUT
        )
    host_group = dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
    try:
        group = ProcessGroup(
            dist.get_world_size(), dist.get_rank(), local_rank, dist.group.WORLD, host_group
        )
        with use_group(group):
            yield group
        group.wait_any()
    finally:
        dist.destroy_process_group(None if owns_group else host_group)


def _pick_backend(device: str, local_rank: int) -> str:
    """Return NCCL if each process has a GPU; gloo on CPUs, or if all share a named GPU."""
    if not torch.cuda.is_available() or device not in ("auto", "cuda"):
        return "gloo"
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise InputError(
            f"this machine has more processes than GPUs ({count}); "
            f"use torchrun --nproc-per-node {count}, or --device cpu"
        )
    torch.cuda.set_device(local_rank)
    return "nccl"


def _open_store(store: Store, rank: int, size: int) -> Store:
    """Agree on a part of the store that belongs to this group alone.

    torchrun keeps one store for all groups that it starts: after a restart it still has the
    addresses of the previous processes, and connecting to those would block forever.
    """
    token = secrets.token_hex(8)
    if rank:
        store.set(f"l2i/here/{rank}", token)
        token = store.get(f"l2i/answer/{token}").decode()
        store.set(f"l2i/heard/{token}/{rank}", "")
        return PrefixStore(token, store)
    pending, deadline = set(range(1, size)), time.monotonic() + GROUP_TIMEOUT.total_seconds()
    while pending:
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out: no connection to processes {sorted(pending)}")
        for peer in pending:  # the entry may be a previous process's: repeat until it has heard
            if store.check([f"l2i/here/{peer}"]):
                store.set(f"l2i/answer/{store.get(f'l2i/here/{peer}').decode()}", token)
        pending = {peer for peer in pending if not store.check([f"l2i/heard/{token}/{peer}"])}
        time.sleep(0.01)
    return PrefixStore(token, store)
