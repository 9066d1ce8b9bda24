"""What `l2i bench` prints: a table, or the same as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

import torch
from rich.console import Console

from l2i.experiments.benchmark.cases import Case
from l2i.experiments.benchmark.roofline import Ceilings, Work
from l2i.experiments.benchmark.timing import CheckpointOverhead, Memory, StepTimes
from l2i.experiments.formatting import print_full_width, render_table
from l2i.training.run_dir import collect_versions, describe_hardware

MISSING_VALUE = "–"
NAME_COLUMNS = ("group", "variant", "network")
METRIC_COLUMNS = ("batch", "ms", "× base", "images/s", "samples/s", "MiB", "× base", "host µs", "floor ms", "of floor")
MAX_BLOCK_RATIO = 1.5
UNSTABLE_TIMING_NOTE = f"some blocks of the same steps took more than {MAX_BLOCK_RATIO} times as long as others"
METRIC_DEFINITIONS = {
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
class StepSamples:
    """Samples a step; outer_batch_size of the unlabelled ones are the outer step's."""

    labeled: int
    unlabeled: int
    holdout: int | None
    outer_batch_size: int | None

    @property
    def total(self) -> int:
        return self.labeled + self.unlabeled + (self.holdout or 0)

    @classmethod
    def from_case(cls, case: Case) -> Self:
        sizes, l2i = case.run.batch, case.run.l2i
        num_holdout, num_outer = (sizes.holdout, l2i.outer_batch_size or sizes.unlabeled)
        is_baseline = l2i.update == "off"
        return cls(
            labeled=sizes.labeled,
            unlabeled=sizes.unlabeled,
            holdout=None if is_baseline else num_holdout,
            outer_batch_size=None if is_baseline else num_outer,
        )


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """A row."""

    group: str
    variant: str
    network: str
    batch: StepSamples
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
    def from_measurements(cls, case: Case, times: StepTimes, work: Work, base: StepTimes | None, limits: Ceilings) -> Self:
        sizes, floor = StepSamples.from_case(case), work.compute_floor_ms(limits)
        peak_mib, base_peak_mib = times.memory.peak, None if base is None else base.memory.peak
        return cls(
            group=case.group,
            variant=case.variant,
            network=case.network,
            batch=sizes,
            ms=times.ms,
            ms_min=min(times.blocks),
            ms_max=max(times.blocks),
            ratio=None if base is None else times.compute_ratio(base),
            images_per_second=None if case.is_text else 1e3 * (sizes.labeled + sizes.unlabeled) / times.ms,
            samples_per_second=1e3 * sizes.total / times.ms,
            memory_mib=times.memory,
            memory_ratio=peak_mib / base_peak_mib if peak_mib is not None and base_peak_mib else None,
            host_us=times.host_us,
            operations=work.operations,
            bytes=work.bytes,
            floor_ms=floor,
            share=floor / times.ms,
        )


@dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """The figures, and under what conditions they were taken."""

    hardware: str
    versions: dict[str, str]
    device: str
    precision: str
    engine: str
    threads: int
    ceilings: Ceilings
    saving: CheckpointOverhead
    definitions: dict[str, str]
    notes: list[str]
    cases: list[CaseResult]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def print_report(self) -> None:
        """The table, whole however narrow the terminal, and what one has to know to read it."""
        print_full_width(render_table(build_rows(self.cases), left_aligned=NAME_COLUMNS))
        console = Console(highlight=False, soft_wrap=True)
        for name, meaning in METRIC_DEFINITIONS.items():
            console.print(f"{name.replace('_per_second', '/s').replace('ratio', '× base')}: {meaning}.")
        console.print(str(self.saving))
        for line in self.notes:
            console.print(line)
        console.print(
            f"Ceilings: {self.ceilings.bytes_per_second / 1e9:.3g} GB/s copied, "
            f"{self.ceilings.operations_per_second / 1e12:.3g} Tera-operations/s in {self.precision} matrix products."
        )
        console.print(f"On {self.hardware}; torch {self.versions['torch']}, l2i {self.versions['l2i']}.")


def build_report(
    results: list[CaseResult], limits: Ceilings, overhead: CheckpointOverhead, *, device: torch.device, precision: str, engine: str
) -> BenchmarkReport:
    """The figures with the machine they are of."""
    return BenchmarkReport(
        hardware=describe_hardware(device),
        versions=collect_versions(),
        device=str(device),
        precision=precision,
        engine=engine,
        threads=torch.get_num_threads(),
        ceilings=limits,
        saving=overhead,
        definitions=METRIC_DEFINITIONS,
        notes=[f"Mind that {UNSTABLE_TIMING_NOTE}: the machine was not at rest."] if any(map(is_unstable, results)) else [],
        cases=results,
    )


def is_unstable(case: CaseResult) -> bool:
    """Whether blocks of the same steps differ by too much."""
    return case.ms_max > MAX_BLOCK_RATIO * case.ms_min


def build_rows(cases: list[CaseResult]) -> list[tuple[str, ...]]:
    """The table, its headings first."""
    return [
        (*NAME_COLUMNS, *METRIC_COLUMNS),
        *(
            (
                case.group,
                case.variant,
                case.network,
                f"{case.batch.labeled}+{case.batch.unlabeled}",
                f"{case.ms:.2f}",
                format_optional(case.ratio, ".2f"),
                format_optional(case.images_per_second, ",.0f"),
                f"{case.samples_per_second:,.0f}",
                format_optional(case.memory_mib.peak, ",.0f"),
                format_optional(case.memory_ratio, ".2f"),
                format_optional(case.host_us, ",.0f"),
                f"{case.floor_ms:.3f}",
                f"{100 * case.share:.1f} %",
            )
            for case in cases
        ),
    ]


def format_optional(value: float | None, format_spec: str) -> str:
    """A figure, where there is one."""
    return MISSING_VALUE if value is None else format(value, format_spec)
