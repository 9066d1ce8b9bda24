"""Ranks and tables of the lines that `benchmarks.tables_cpu.compare` measures."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from scipy.stats import rankdata

from l2i.experiments.formatting import render_markdown

OURS, CHOICE, BEST = "l2i", "cv-choice", "best"
TITLES = {
    OURS: "`l2i fit`",
    "linear": "linear",
    "gaussian-process": "Gaussian process",
    "extra-trees": "extra trees",
    "boosted-trees": "boosted trees",
    "histogram-boosting": "boosted trees, histograms",
    "neighbours": "nearest neighbours",
    "self-training": "self-training",
    "label-spreading": "label spreading",
    CHOICE: "cross-validated choice",
    BEST: "best in hindsight",
}
RANKED = tuple(method for method in TITLES if method != BEST)
METRICS = {"classification": "error", "regression": "rmse"}
PARTS = ("classes", "regression", "summary", "losses", "chosen", "large")
BOOSTED = ("boosted-trees", "histogram-boosting")
TOLERANCE = 1.05  # relative to the cross-validated choice

Line = dict[str, Any]


@dataclass(frozen=True)
class TableScores:
    """The methods on one table, over the seeds that all of its methods have."""

    name: str
    task: str
    rows: int
    labelled: int
    means: dict[str, float]
    """Mean error or RMSE per method, and of the best rival of each seed as `BEST`."""
    ours: list[Line]
    chosen: dict[str, list[str]]
    """Per method that chooses: its choice for each seed."""

    @property
    def ratio(self) -> float:
        """Return our mean relative to that of the cross-validated choice."""
        ours, choice = self.means[OURS], self.means[CHOICE]
        if choice == 0:
            return 1.0 if ours == 0 else math.inf
        return ours / choice


def read_lines(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def collect_scores(lines: Iterable[Line], task: str) -> list[TableScores]:
    """Return the tables of a task that have every method of it, in the order of the lines."""
    by_table: dict[str, dict[str, dict[int, Line]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        if line["task"] == task:
            by_table[line["table"]][line["method"]][line["seed"]] = line
    methods = {method for found in by_table.values() for method in found}
    scores = []
    for found in by_table.values():
        seeds = set.intersection(*(set(found[method]) for method in methods))
        if seeds:
            scores.append(score_table(found, sorted(seeds)))
    return scores


def score_table(found: Mapping[str, Mapping[int, Line]], seeds: Sequence[int]) -> TableScores:
    lines = {method: [found[method][seed] for seed in seeds] for method in found}
    example = next(iter(lines.values()))[0]
    metric = METRICS[example["task"]]
    values = {m: [line[metric] for line in lines[m]] for m in RANKED if m in lines}
    means = {method: mean(per_seed) for method, per_seed in values.items()}
    rivals = [values[method] for method in values if method not in (OURS, CHOICE)]
    if rivals:
        means[BEST] = mean(min(per_seed) for per_seed in zip(*rivals, strict=True))
    chosen = {m: [line["chosen"] for line in lines[m]] for m in (OURS, CHOICE) if m in lines}
    place = (example["table"], example["task"], example["rows"], example["labelled"])
    return TableScores(*place, means, lines.get(OURS, []), chosen)


def compute_ranks(
    scores: Sequence[TableScores], methods: Sequence[str]
) -> tuple[dict[str, float], dict[str, int]]:
    """Return the mean rank of each method over tables, ties averaged, and its wins, ties too."""
    ranks = [rankdata([table.means[method] for method in methods]).tolist() for table in scores]
    lowest = [min(table.means[method] for method in methods) for table in scores]
    mean_ranks = [mean(column) for column in zip(*ranks, strict=True)]
    pairs = list(zip(scores, lowest, strict=True))
    wins = {method: sum(table.means[method] == low for table, low in pairs) for method in methods}
    return dict(zip(methods, mean_ranks, strict=True)), wins


def list_methods(scores: Sequence[TableScores]) -> list[str]:
    """Return the ranked methods that all of the tables have."""
    return [method for method in RANKED if scores and all(method in t.means for t in scores)]


def render_part(lines: Sequence[Line], part: str) -> str:
    classes = collect_scores(lines, "classification")
    targets = collect_scores(lines, "regression")
    if part == "summary":
        return f"{render_ranks(classes, targets)}\n{render_counts(classes, targets)}"
    if part == "losses":
        return render_losses([*classes, *targets])
    if part == "chosen":
        return render_chosen(classes, targets)
    if part == "large":
        return render_large([*classes, *targets])
    return render_tables(classes if part == "classes" else targets)


def render_tables(scores: Sequence[TableScores]) -> str:
    """Return one row per table; the best of the ranked methods is bold."""
    methods = list_methods(scores)
    shown = [*methods, *([BEST] if any(BEST in table.means for table in scores) else [])]
    rows = [["table", "rows", "labelled", *(TITLES[method] for method in shown)]]
    for table in scores:
        lowest = min(table.means[method] for method in methods)
        cells = [format_metric(table, method) for method in shown]
        bold = [method != BEST and table.means[method] == lowest for method in shown]
        cells = [f"**{cell}**" if b else cell for cell, b in zip(cells, bold, strict=True)]
        rows.append([table.name, str(table.rows), str(table.labelled), *cells])
    return render_markdown(rows, code=False)


def format_metric(table: TableScores, method: str) -> str:
    """Format an error with one decimal, or an RMSE with three digits."""
    value = table.means[method]
    if table.task == "classification":
        return f"{value:.1f}"
    decimals = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{decimals}f}"


def render_ranks(classes: Sequence[TableScores], targets: Sequence[TableScores]) -> str:
    """Return mean ranks and wins per method, and the level of each beside the best in hindsight."""
    headings = ["", "mean rank, classes", "wins", "mean error (%)"]
    headings += ["mean rank, regression", "wins", "RMSE / best in hindsight"]
    headings += ["mean rank, all tables", "wins"]
    in_both = [m for m in list_methods(classes) if m in list_methods(targets)]
    rows = [headings]
    for method in TITLES:
        cells = format_ranks(method, classes, list_methods(classes))
        cells.append(format_error(method, classes))
        cells += format_ranks(method, targets, list_methods(targets))
        cells.append(format_ratio(method, targets))
        cells += format_ranks(method, [*classes, *targets], in_both)
        if any(cells):
            rows.append([TITLES[method], *cells])
    return render_markdown(rows, code=False)


def format_ranks(method: str, scores: Sequence[TableScores], methods: Sequence[str]) -> list[str]:
    """Return rank and wins of a method among others, blank if it is none of them."""
    if method not in methods:
        return ["", ""]
    ranks, wins = compute_ranks(scores, methods)
    return [f"{ranks[method]:.2f}", str(wins[method])]


def format_error(method: str, scores: Sequence[TableScores]) -> str:
    found = [table.means[method] for table in scores if method in table.means]
    return f"{mean(found):.2f}" if found else ""


def format_ratio(method: str, scores: Sequence[TableScores]) -> str:
    """Return the geometric mean of RMSEs relative to the best in hindsight."""
    found = [t.means[method] / t.means[BEST] for t in scores if {method, BEST} <= t.means.keys()]
    return f"{math.exp(mean(map(math.log, found))):.3f}" if found else ""


def render_counts(classes: Sequence[TableScores], targets: Sequence[TableScores]) -> str:
    """Return how often ours is as good as the cross-validated choice, and what its doubts say."""
    parts = [classes, targets, [*classes, *targets]]
    counts = [count_ratios(part) for part in parts]
    rows = [
        ["", "classes", "regression", "all tables"],
        ["tables", *(str(len(part)) for part in parts)],
        ["`l2i fit` within 5 % of the cross-validated choice, or better", *(c[0] for c in counts)],
        ["more than 5 % better", *(c[1] for c in counts)],
        ["more than 5 % worse", *(c[2] for c in counts)],
        ["mean ECE (points)", format_field(classes, "ece"), "", ""],
        ["mean coverage of 90 % intervals (%)", "", format_field(targets, "coverage"), ""],
    ]
    return render_markdown(rows, code=False)


def count_ratios(scores: Sequence[TableScores]) -> tuple[str, str, str]:
    """Return on how many tables ours is at most 5 % worse, more than 5 % better, and worse."""
    ratios = [table.ratio for table in scores if {OURS, CHOICE} <= table.means.keys()]
    if not ratios:
        return "", "", ""
    worse = sum(ratio > TOLERANCE for ratio in ratios)
    better = sum(ratio < 2 - TOLERANCE for ratio in ratios)
    return str(len(ratios) - worse), str(better), str(worse)


def format_field(scores: Sequence[TableScores], field: str) -> str:
    """Return the mean over tables of a field of our lines."""
    found = [mean(line[field] for line in table.ours) for table in scores if table.ours]
    return f"{mean(found):.1f}" if found else ""


def render_losses(scores: Sequence[TableScores]) -> str:
    """Return the tables on which ours is more than 5 % worse than the cross-validated choice."""
    comparable = [table for table in scores if {OURS, CHOICE} <= table.means.keys()]
    lost = [table for table in comparable if table.ratio > TOLERANCE]
    if not lost:
        return "None.\n"
    headings = ["table", "labelled", TITLES[OURS], TITLES[CHOICE], "ratio"]
    rows = [[*headings, "chosen by `l2i fit`", "chosen by cross-validation"]]
    for table in sorted(lost, key=lambda table: -table.ratio):
        metrics = [format_metric(table, method) for method in (OURS, CHOICE)]
        chosen = [format_chosen(table.chosen[method]) for method in (OURS, CHOICE)]
        rows.append([table.name, str(table.labelled), *metrics, f"{table.ratio:.2f}", *chosen])
    return render_markdown(rows, code=False)


def render_large(scores: Sequence[TableScores]) -> str:
    """Return the tables beside boosted trees, with the seconds of our fits."""
    titles = [TITLES[method] for method in (OURS, *BOOSTED)]
    rows = [["table", "labelled", *titles, "ratio to the better", "seconds of `l2i fit`"]]
    for table in scores:
        metrics = [format_metric(table, method) for method in (OURS, *BOOSTED)]
        ratio = table.means[OURS] / min(table.means[method] for method in BOOSTED)
        seconds = max(line["seconds"] for line in table.ours)
        rows.append([table.name, f"{table.labelled:,}", *metrics, f"{ratio:.2f}", f"{seconds:.0f}"])
    return render_markdown(rows, code=False)


def render_chosen(classes: Sequence[TableScores], targets: Sequence[TableScores]) -> str:
    """Return how often `l2i fit` chose each candidate, over all tables and seeds."""
    counts = [
        Counter(n for table in part for n in table.chosen[OURS]) for part in (classes, targets)
    ]
    rows = [["chosen by `l2i fit`", "classes", "regression"]]
    for name, _ in sum(counts, Counter()).most_common():
        rows.append([name, *(str(count[name]) for count in counts)])
    rows.append(["all", *(str(count.total()) for count in counts)])
    return render_markdown(rows, code=False)


def format_chosen(names: Sequence[str]) -> str:
    counts = Counter(names).most_common()
    return ", ".join(f"{name} × {count}" if count > 1 else name for name, count in counts)
