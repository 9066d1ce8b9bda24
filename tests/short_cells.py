"""The files of the table at 8,192 steps, and the page that tells of them."""

import json
import re
from pathlib import Path
from statistics import mean

from l2i.experiments.formatting import format_mean_stderr
from l2i.experiments.plots import compute_cost_change as change_of
from l2i.experiments.plots import select_probes
from l2i.training.metrics import MetricRow, parse_metrics

ROOT = Path(__file__).parent.parent
PLACES = (
    "cifar10",
    "cifar100",
    "copied/cifar10",
    "copied/cifar100",
    "falling/cifar10",
    "ahead/cifar10",
)
TEN, HUNDRED, OLD_TEN, OLD_HUNDRED, FALLING, AHEAD = (ROOT / "results" / place for place in PLACES)
SMALL, COPIED, PLAIN = (
    ROOT / "results" / place / "cifar10" for place in ("small", "small-copied", "small-plain")
)
PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
MECHANISM = re.compile(
    r"^<!-- l2i (compare \S+ [^\n]*) --analyze-updates (\S+) -->\n(.*?)^<!-- end -->$", re.M | re.S
)
PAIRS = {
    "CIFAR-10, mean teacher": (TEN, "mean-teacher", 250),
    "CIFAR-10, MixMatch": (TEN, "mixmatch", 250),
    "CIFAR-10, FixMatch": (TEN, "fixmatch", 250),
    "CIFAR-100, FixMatch": (HUNDRED, "fixmatch", 500),
}


def printed() -> str:
    return " ".join(PAGE.partition("## CIFAR at a 128th")[2].partition("\n## ")[0].split())


def metric_values(place: Path, cell: str) -> dict[int, float]:
    """By seed."""
    actual = [json.loads(path.read_text()) for path in place.glob(f"{cell}-short-seed*.json")]
    return {
        result["seed"]: result["metric"]
        for result in sorted(actual, key=lambda result: int(result["seed"]))
    }


def gain(
    place: Path, cell: str, baseline: str, *, beside: Path | None = None, seeds: int = 3
) -> str:
    ours, theirs = metric_values(place, cell), metric_values(beside or place, baseline)
    paired = [ours[seed] - theirs[seed] for seed in ours if seed in theirs and seed < seeds]
    assert len(paired) > 1
    return format_mean_stderr(paired, sign="+").replace("-", "−")


def looked(cell: str) -> list[list[MetricRow]]:
    return [
        select_probes(parse_metrics(path.read_bytes()))
        for path in sorted(TEN.glob(f"{cell}-short-seed*.jsonl"))
    ]


def mean_at(cell: str, look: int, column: str) -> float:
    return mean(float(run[look][column] or 0) for run in looked(cell))


def change(place: Path, cell: str, cost: str) -> str:
    return format_mean_stderr(changes(place, cell, cost), decimals=4, sign="+").replace("-", "−")


def changes(place: Path, cell: str, cost: str) -> list[float]:
    rows = [
        row
        for path in sorted(place.glob(f"{cell}-short-seed*.jsonl"))
        for row in parse_metrics(path.read_bytes())
    ]
    return [value for row in rows if (value := change_of(row, cost)) is not None]
