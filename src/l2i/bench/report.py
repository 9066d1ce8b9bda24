"""What `l2i bench` prints: a table, or the same as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

import torch
from rich.console import Console

from l2i.bench.cases import Case
from l2i.bench.floor import Ceilings, Work
from l2i.bench.saving import Saving
from l2i.bench.timing import Memory, Times
from l2i.tabular import print_whole, rendered
from l2i.training.folder import hardware, versions

NONE = "–"
NAMES = ("group", "variant", "network")
HEADINGS = ("batch", "ms", "× base", "images/s", "samples/s", "MiB", "× base", "host µs", "floor ms", "of floor")
FAR = 1.5
UNREST = f"some blocks of the same steps took more than {FAR} times as long as others"
DEFINITIONS = {
    "ms": "of a step with its draws and augmentation, the median over blocks of steps; the cases of a group take turns",
    "ratio": "to the base step, a round of blocks at a time, the median",
    "images_per_second": "labelled and unlabelled images of the base step, once each whatever their views",
    "samples_per_second": "labelled and unlabelled samples of a step, and hold-out ones where there is an outer step, "
    "once each whatever their views; for texts, sequences",
    "memory": "growth at its peak while the case is built and warmed up, the data left out; MiB reserved by torch on a "
    "GPU, resident on a CPU (there to some 20 %)",
    "host": "time for the host to issue a step without waiting for the device",
    "floor": "the longer of operations / ceiling and bytes / ceiling, where convolutions and matrix products read "
    "their inputs and write their outputs once and all else is free but the update of the parameters and their average",
    "share": "floor / ms, how near a step comes to its floor",
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Samples a step; outer_unlabeled of the unlabelled ones are the outer step's."""

    labeled: int
    unlabeled: int
    holdout: int | None
    outer_unlabeled: int | None

    @property
    def drawn(self) -> int:
        return self.labeled + self.unlabeled + (self.holdout or 0)

    @classmethod
    def of(cls, case: Case) -> Self:
        sizes, l2i = case.run.batch, case.run.l2i
        held, outer = (sizes.holdout, l2i.outer_unlabeled or sizes.unlabeled)
        off = l2i.outer_update == "off"
        return cls(
            labeled=sizes.labeled,
            unlabeled=sizes.unlabeled,
            holdout=None if off else held,
            outer_unlabeled=None if off else outer,
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A row."""

    group: str
    variant: str
    network: str
    batch: Sizes
    ms: float
    ms_min: float
    ms_max: float
    ratio: float | None
    images_per_second: float | None
    samples_per_second: float
    memory_mib: Memory
    memory_ratio: float | None
    host_us: float | None
    operations: int
    bytes: int
    floor_ms: float
    share: float

    @classmethod
    def of(cls, case: Case, times: Times, work: Work, base: Times | None, limits: Ceilings) -> Self:
        sizes, floor = Sizes.of(case), work.floor_ms(limits)
        mine, theirs = times.memory.peak, None if base is None else base.memory.peak
        return cls(
            group=case.group,
            variant=case.variant,
            network=case.network,
            batch=sizes,
            ms=times.ms,
            ms_min=min(times.blocks),
            ms_max=max(times.blocks),
            ratio=None if base is None else times.ratio(base),
            images_per_second=None if case.texts else 1e3 * (sizes.labeled + sizes.unlabeled) / times.ms,
            samples_per_second=1e3 * sizes.drawn / times.ms,
            memory_mib=times.memory,
            memory_ratio=mine / theirs if mine is not None and theirs else None,
            host_us=times.host_us,
            operations=work.operations,
            bytes=work.bytes,
            floor_ms=floor,
            share=floor / times.ms,
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """The figures, and under what conditions they were taken."""

    hardware: str
    versions: dict[str, str]
    device: str
    precision: str
    engine: str
    threads: int
    ceilings: Ceilings
    saving: Saving
    definitions: dict[str, str]
    notes: list[str]
    cases: list[Figures]

    def json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def print(self) -> None:
        """The table, whole however narrow the terminal, and what one has to know to read it."""
        print_whole(rendered(rows_of(self.cases), left=NAMES))
        console = Console(highlight=False, soft_wrap=True)
        for name, meaning in DEFINITIONS.items():
            console.print(f"{name.replace('_per_second', '/s').replace('ratio', '× base')}: {meaning}.")
        console.print(str(self.saving))
        for line in self.notes:
            console.print(line)
        console.print(
            f"Ceilings: {self.ceilings.bytes_per_second / 1e9:.3g} GB/s copied, "
            f"{self.ceilings.operations_per_second / 1e12:.3g} Tera-operations/s in {self.precision} matrix products."
        )
        console.print(f"On {self.hardware}; torch {self.versions['torch']}, l2i {self.versions['l2i']}.")


def report(
    found: list[Figures], limits: Ceilings, kept: Saving, *, device: torch.device, precision: str, engine: str
) -> Report:
    """The figures with the machine they are of."""
    return Report(
        hardware=hardware(device),
        versions=versions(),
        device=str(device),
        precision=precision,
        engine=engine,
        threads=torch.get_num_threads(),
        ceilings=limits,
        saving=kept,
        definitions=DEFINITIONS,
        notes=[f"Mind that {UNREST}: the machine was not at rest."] if any(map(restless, found)) else [],
        cases=found,
    )


def restless(case: Figures) -> bool:
    """Whether blocks of the same steps differ by too much."""
    return case.ms_max > FAR * case.ms_min


def rows_of(cases: list[Figures]) -> list[tuple[str, ...]]:
    """The table, its headings first."""
    return [
        (*NAMES, *HEADINGS),
        *(
            (
                case.group,
                case.variant,
                case.network,
                f"{case.batch.labeled}+{case.batch.unlabeled}",
                f"{case.ms:.2f}",
                told(case.ratio, ".2f"),
                told(case.images_per_second, ",.0f"),
                f"{case.samples_per_second:,.0f}",
                told(case.memory_mib.peak, ",.0f"),
                told(case.memory_ratio, ".2f"),
                told(case.host_us, ",.0f"),
                f"{case.floor_ms:.3f}",
                f"{100 * case.share:.1f} %",
            )
            for case in cases
        ),
    ]


def told(value: float | None, form: str) -> str:
    """A figure, where there is one."""
    return NONE if value is None else format(value, form)
