"""The report of `l2i bench`, as a table or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Self

from l2i.experiments.benchmark.cases import Case
from l2i.experiments.benchmark.roofline import Ceilings, Work
from l2i.experiments.benchmark.timing import CheckpointOverhead, Memory, StepTimes
from l2i.experiments.formatting import print_rows
from l2i.files.terminal import print_lines

NAME_COLUMNS = ("group", "variant", "network")
METRIC_COLUMNS = (
    *("batch", "ms", "× base", "images/s", "samples/s", "MiB", "× base"),
    *("host µs", "floor ms", "of floor"),
)
MAX_BLOCK_RATIO = 1.5
UNSTABLE_TIMING_NOTE = (
    f"Warning: some blocks of steps took more than {MAX_BLOCK_RATIO} times as long as others; "
    "the machine was busy."
)
METRIC_DEFINITIONS = {
    "ms": "time per step, with sampling and augmentation: the median over blocks of steps; "
    "the cases of a group are timed alternately",
    "ratio": "relative to the base step: the median over rounds of blocks",
    "images_per_second": "labelled and unlabelled images of the base step, "
    "each counted once regardless of its views",
    "samples_per_second": "labelled and unlabelled samples of a step, and hold-out ones if there "
    "is an outer step, each counted once regardless of its views; sequences, for texts",
    "memory": "peak increase while the case is built and warmed up, without the data: MiB "
    "reserved by torch on a GPU, resident on a CPU (accurate to about 20 %)",
    "host": "time for the host to launch a step without waiting for the device",
    "floor": "roofline bound: the larger of operations / ceiling and bytes / ceiling, where "
    "convolutions and matrix products read their inputs and write their outputs once, and all "
    "else is free except the update of the parameters and their average",
    "share": "floor / ms, the fraction of the roofline that a step reaches",
}


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The measurements of a case."""

    group: str
    variant: str
    network: str
    batch: dict[str, int | None]
    """Samples per step; `outer_batch_size` of the unlabelled ones are the outer step's."""
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
    def from_measurements(
        cls, case: Case, times: StepTimes, work: Work, base: StepTimes | None, ceilings: Ceilings
    ) -> Self:
        sizes, l2i, floor_ms = case.run.batch, case.run.l2i, work.compute_floor_ms(ceilings)
        holdout = outer_batch_size = None
        if l2i.update != "off":
            holdout, outer_batch_size = sizes.holdout, l2i.outer_batch_size or sizes.unlabeled
        batch = {"labeled": sizes.labeled, "unlabeled": sizes.unlabeled, "holdout": holdout}
        num_images = sizes.labeled + sizes.unlabeled
        mib, base_mib = times.memory.peak, None if base is None else base.memory.peak
        return cls(
            group=case.group,
            variant=case.variant,
            network=case.network,
            batch={**batch, "outer_batch_size": outer_batch_size},
            ms=times.ms,
            ms_min=min(times.blocks),
            ms_max=max(times.blocks),
            ratio=None if base is None else times.compute_ratio(base),
            images_per_second=None if case.is_text else 1e3 * num_images / times.ms,
            samples_per_second=1e3 * (num_images + (holdout or 0)) / times.ms,
            memory_mib=times.memory,
            memory_ratio=mib / base_mib if mib is not None and base_mib else None,
            host_us=times.host_us,
            operations=work.operations,
            bytes=work.bytes,
            floor_ms=floor_ms,
            share=floor_ms / times.ms,
        )

    def format_row(self) -> tuple[str, ...]:
        """Return the cells of the table: `NAME_COLUMNS`, then `METRIC_COLUMNS`."""
        return (
            self.group,
            self.variant,
            self.network,
            f"{self.batch['labeled']}+{self.batch['unlabeled']}",
            f"{self.ms:.2f}",
            _format_optional(self.ratio, ".2f"),
            _format_optional(self.images_per_second, ",.0f"),
            f"{self.samples_per_second:,.0f}",
            _format_optional(self.memory_mib.peak, ",.0f"),
            _format_optional(self.memory_ratio, ".2f"),
            _format_optional(self.host_us, ",.0f"),
            f"{self.floor_ms:.3f}",
            f"{100 * self.share:.1f} %",
        )


def _format_optional(value: float | None, format_spec: str) -> str:
    return "–" if value is None else format(value, format_spec)


def make_notes(cases: list[CaseResult]) -> list[str]:
    """Return warnings about the measurements."""
    is_unstable = any(case.ms_max > MAX_BLOCK_RATIO * case.ms_min for case in cases)
    return [UNSTABLE_TIMING_NOTE] if is_unstable else []


@dataclass(frozen=True, kw_only=True)
class BenchmarkReport:
    """The measurements, and the conditions under which they were taken."""

    hardware: str
    versions: dict[str, str]
    device: str
    precision: str
    engine: str
    threads: int
    ceilings: Ceilings
    saving: CheckpointOverhead
    definitions: dict[str, str] = field(default_factory=METRIC_DEFINITIONS.copy)
    notes: list[str]
    cases: list[CaseResult]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def print_report(self) -> None:
        """Print the table, complete however narrow the terminal is, and how to read it."""
        rows = [(*NAME_COLUMNS, *METRIC_COLUMNS), *(case.format_row() for case in self.cases)]
        print_rows(rows, left_aligned=NAME_COLUMNS)
        copied = f"{self.ceilings.bytes_per_second / 1e9:.3g} GB/s memory copy"
        multiplied = f"{self.ceilings.operations_per_second / 1e12:.3g} TFLOP/s"
        definitions = {
            name.replace("_per_second", "/s").replace("ratio", "× base"): text
            for name, text in self.definitions.items()
        }
        print_lines(
            *(f"{name}: {text}." for name, text in definitions.items()),
            str(self.saving),
            *self.notes,
            f"Ceilings: {copied}, {multiplied} in {self.precision} matrix products.",
            f"On {self.hardware}; torch {self.versions['torch']}, l2i {self.versions['l2i']}.",
        )
