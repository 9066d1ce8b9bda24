"""Print the trials of a trials.jsonl file as a Markdown table.

A trial is one JSON object per line: "setting", "cell" or "method", "seed", "steps" and "metric"
(the test metric, or that of the "split" it names; null if the run diverged), and fields that only
some trials have: "validation", "reached" (the last step of a run that was stopped early),
"evaluations", "seconds", …
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.arguments import make_parser

from l2i.experiments.formatting import format_values, render_markdown

Trial = dict[str, Any]
Rows = list[Sequence[str]]


def read_trials(path: Path) -> list[Trial]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def format_metric(trial: Trial) -> str:
    return "diverged" if trial["metric"] is None else f"{trial['metric']:.2f}"


def group_by_setting(trials: list[Trial]) -> dict[str, list[Trial]]:
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial["setting"], []).append(trial)
    return groups


def build_pivot(trials: list[Trial], columns: Sequence[str], fields: Sequence[str]) -> Rows:
    """Return one row per setting and one column per value of `columns`."""

    def get_key(trial: Trial) -> tuple[Any, ...]:
        return tuple(trial[name] for name in columns)

    keys = list(dict.fromkeys(map(get_key, trials)))
    headings = [
        ", ".join(
            f"seed {value}" if name == "seed" else str(value)
            for name, value in zip(columns, key, strict=True)
        )
        for key in keys
    ]
    rows: Rows = [("setting", *fields, *headings)]
    for setting, group in group_by_setting(trials).items():
        cells = {get_key(trial): format_metric(trial) for trial in group}
        values = [format_field(group[0].get(name)) for name in fields]
        rows.append((setting, *values, *(cells.get(key, "") for key in keys)))
    return rows


def format_field(value: Any) -> str:
    """Format a field of a JSON line: whole numbers with separators, null as an empty cell."""
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def build_summary(trials: list[Trial], baseline: str | None) -> Rows:
    """Return means over seeds, and differences from a baseline, paired by seed.

    Settings of which a run diverged have no mean.
    """
    groups = group_by_setting(trials)
    rows: Rows = [("setting", "metric", *([f"Δ {baseline}"] if baseline else []), "seeds")]
    reference = {trial["seed"]: trial["metric"] for trial in groups.get(baseline or "", [])}
    for setting, group in groups.items():
        metrics = [trial["metric"] for trial in group if trial["metric"] is not None]
        if diverged := len(group) - len(metrics):
            text = f"{diverged} of {len(group)} diverged"
            rows.append((setting, text, *([] if baseline is None else [""]), str(len(group))))
            continue
        differences = [trial["metric"] - reference[trial["seed"]] for trial in group if reference]
        gain = format_values(differences, sign="+") if differences else ""
        cells = [] if baseline is None else ["" if setting == baseline else gain]
        rows.append((setting, format_values(metrics), *cells, str(len(group))))
    return rows


def build_evaluations(trials: list[Trial], column: str, steps: Sequence[int]) -> Rows:
    """Return one row per trial: a column of its evaluations at some steps."""
    rows: Rows = [(f"{column} at step", *(f"{step:,}" for step in steps))]
    for trial in trials:
        values = {row["step"]: row[column] for row in trial["evaluations"]}
        cells = [f"{values[step]:.3g}" if step in values else "" for step in steps]
        rows.append((trial["setting"], *cells))
    return rows


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("trials", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--where", nargs="+", default=[], metavar="FIELD=VALUE", help="filter")
    parser.add_argument("--columns", nargs="+", default=["seed"], metavar="FIELD")
    parser.add_argument("--fields", nargs="+", default=[], metavar="FIELD", help="also shown")
    parser.add_argument("--summary", action="store_true", help="means over seeds")
    parser.add_argument("--baseline", metavar="SETTING", help="with --summary, reference of Δ")
    parser.add_argument("--evaluations", metavar="COLUMN", help="show evaluations at --steps")
    parser.add_argument("--steps", nargs="+", type=int, default=[])
    options = parser.parse_args(arguments)
    wanted = [condition.split("=", 1) for condition in options.where]
    trials = [
        trial
        for trial in read_trials(options.file)
        if all(str(trial.get(name)) == value for name, value in wanted)
    ]
    if not trials:
        parser.error(f"{options.file} has no trial with {' '.join(options.where)}")
    if options.evaluations:
        rows = build_evaluations(trials, options.evaluations, options.steps)
    elif options.summary:
        rows = build_summary(trials, options.baseline)
    else:
        rows = build_pivot(trials, options.columns, options.fields)
    print(render_markdown(rows, code=False), end="")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
