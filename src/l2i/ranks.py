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

from l2i.batch import Params
from l2i.errors import InputError
from l2i.launched import started

PATIENCE = timedelta(minutes=10)  # with a process that does not answer


@dataclass(eq=False)
class Ranks:
    """A process, the `index`-th of `size`. Alone, nothing is sent and nothing that is here changes a value."""

    size: int = 1
    index: int = 0
    local: int = 0
    """Its number on its machine, and so that of its GPU."""
    group: dist.ProcessGroup | None = None
    """Sends what lies on the device."""
    host: dist.ProcessGroup | None = None
    """Sends what lies in memory."""
    asked: tuple[Tensor, dist.Work | None] | None = field(default=None, repr=False)

    @property
    def writes(self) -> bool:
        """Whether this is the one that writes and speaks for all."""
        return self.index == 0

    @property
    def recordable(self) -> bool:
        """Whether what is sent can be part of a CUDA graph."""
        return self.group is None or dist.get_backend(self.group) == "nccl"

    def summed(self, values: Tensor) -> Tensor:
        """Their sum over the processes, in place: one message, and the same bits for every process."""
        if self.group is not None:
            dist.all_reduce(values, group=self.group)
        return values

    def mean(self, values: Tensor) -> Tensor:
        """Their mean over the processes, in place."""
        return values if self.group is None else self.summed(values).div_(self.size)

    def norm(self, values: Tensor) -> Tensor:
        """‖·‖ of what lies with all processes together."""
        return values.norm() if self.group is None else self.summed(values.square().sum()).sqrt()

    def of_whole(self, derivative: Tensor) -> Tensor:
        """A derivative of the mean over the samples here, as one of the mean over those of all processes."""
        return derivative if self.size == 1 else derivative / self.size

    def mean_of(self, named: Params) -> Params:
        """The mean of named tensors, sent in one piece; of those of other kinds, in a piece a kind."""
        if self.group is None:
            return named
        found: Params = {}
        for dtype in dict.fromkeys(value.dtype for value in named.values()):
            mine = {name: value for name, value in named.items() if value.dtype == dtype}
            flat = self.mean(torch.cat([value.flatten() for value in mine.values()]))
            pieces = flat.split([value.numel() for value in mine.values()])
            found |= {n: piece.view_as(mine[n]) for n, piece in zip(mine, pieces, strict=True)}
        return {name: found[name] for name in named}

    def share(self, rows: Tensor, dim: int = 0) -> Tensor:
        """Its rows of a whole batch's: every `size`-th, so that the first of the batch are the first here."""
        return rows if self.size == 1 else rows[(slice(None),) * dim + (slice(self.index, None, self.size),)]

    def part(self, count: int) -> tuple[int, int]:
        """Where this process's part of `count` samples, to be looked at in order, begins and ends."""
        return count * self.index // self.size, count * (self.index + 1) // self.size

    def gathered(self, rows: Tensor, count: int) -> Tensor:
        """All rows in order, from the parts that each process has."""
        if self.group is None:
            return rows
        whole = rows.new_zeros(count, *rows.shape[1:])
        first, last = self.part(count)
        whole[first:last] = rows
        return self.summed(whole)  # zero and a number is that number: nothing is rounded

    def told(self, content: bytes = b"") -> bytes:
        """What the process that writes has to say, for all to hear."""
        if self.host is None:
            return content
        length = torch.tensor(len(content))
        dist.broadcast(length, 0, group=self.host)
        said = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8)
        said = said if self.writes else torch.zeros(max(1, int(length)), dtype=torch.uint8)
        dist.broadcast(said, 0, group=self.host)
        return said.numpy().tobytes()[: int(length)]

    def level(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the values of the one that writes."""
        for tensor in tensors if self.group is not None else ():
            dist.broadcast(tensor, 0, group=self.group)

    def agreed(self, wish: bool) -> bool:
        """Whether any process had this wish at the last call: all hear the same, and none waits long."""
        if self.host is None:
            return wish
        found = self.heard()
        flag = torch.tensor(int(wish))
        self.asked = flag, dist.all_reduce(flag, dist.ReduceOp.MAX, group=self.host, async_op=True)
        return found

    def heard(self) -> bool:
        """The answer to the last question, which is no longer open then."""
        if self.asked is None:
            return False
        flag, work = self.asked
        self.asked = None
        if work is not None:
            work.wait()
        return bool(flag)


ALONE = Ranks()
_here = ContextVar("the processes of the run", default=ALONE)


def here() -> Ranks:
    """The processes that share what is being done: one, unless `joined` says otherwise."""
    return _here.get()


@contextmanager
def joined(device: str = "cpu") -> Iterator[Ranks]:
    """Together with the processes that torchrun started, where it did; `device` is what the run asks for."""
    if started() == 1 or here().size > 1:
        yield here()
        return
    local = int(os.environ.get("LOCAL_RANK", 0))
    own = not dist.is_initialized()
    if own:
        backend, (store, rank, size) = backend_for(device, local), next(rendezvous("env://", timeout=PATIENCE))
        store = anew(store, rank, size)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    host = dist.new_group(backend="gloo", timeout=PATIENCE)
    try:
        ranks = Ranks(dist.get_world_size(), dist.get_rank(), local, dist.group.WORLD, host)
        with among(ranks):
            yield ranks
        ranks.heard()
    finally:
        dist.destroy_process_group(None if own else host)


@contextmanager
def among(ranks: Ranks) -> Iterator[None]:
    """What is done within is shared by these processes."""
    token = _here.set(ranks)
    try:
        yield
    finally:
        _here.reset(token)


def anew(store: Store, rank: int, size: int) -> Store:
    """A place in the store that is this group's alone.

    torchrun keeps one store for all groups that it starts: where it has restarted a group, the addresses of the
    processes before are still there, and to connect to those is to wait for ever.
    """
    mine = secrets.token_hex(8)
    if rank:
        store.set(f"l2i/here/{rank}", mine)
        mine = store.get(f"l2i/answer/{mine}").decode()
        store.set(f"l2i/heard/{mine}/{rank}", "")
        return PrefixStore(mine, store)
    silent, end = set(range(1, size)), time.monotonic() + PATIENCE.total_seconds()
    while silent:
        if time.monotonic() > end:
            raise RuntimeError(f"timed out: no connection to the processes {sorted(silent)}")
        for other in silent:
            if store.check([f"l2i/here/{other}"]):  # by one of a group before, perhaps: so ask until it has heard
                store.set(f"l2i/answer/{store.get(f'l2i/here/{other}').decode()}", mine)
        silent = {other for other in silent if not store.check([f"l2i/heard/{mine}/{other}"])}
        time.sleep(0.01)
    return PrefixStore(mine, store)


def backend_for(device: str, local: int) -> str:
    """NCCL where each process has a GPU of its own; gloo on CPUs, and where a GPU is named that all share."""
    if not torch.cuda.is_available() or device not in ("auto", "cuda"):
        return "gloo"
    count = torch.cuda.device_count()
    if local >= count:
        raise InputError(
            f"there are more processes on this machine than its {count} GPU{'s' * (count > 1)}; "
            f"use torchrun --nproc-per-node {count}, or --device cpu"
        )
    torch.cuda.set_device(local)
    return "nccl"
