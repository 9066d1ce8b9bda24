"""Options of `l2i compare`, `plot`, `bench` and `tune`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class DataLocation:
    """Location of the data."""

    root: str | None = None
    """Folder of the dataset; by default that of the run, or the environment variable L2I_DATA."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Train the cells of a table over several seeds; compare them with each other and the paper."""

    cells: tuple[str, ...] = ()
    """Cells to train, with or without the table's name; the table's default cells if empty.
    With --from, cells to show; all that have results by default."""
    seeds: int | None = None
    """Number of seeds per cell, by default the table's; a seed sets the split, the initial weights
    and the order of samples."""
    controls: bool = False
    """Also train the controls of each cell with L2I, to see what of a gain is due to imputing."""
    steps: int | None = None
    """Training steps, if not the recipe's; schedules scale with them."""
    parallel: int = 0
    """Number of seeds to train in parallel; 0 for the fastest: up to 5 on a GPU, 1 on a CPU."""
    out: str = "runs/compare"
    """Folder for the runs; those already there are not trained again."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto uses a GPU if there is one."""
    time_matched: bool = True
    """Also train each baseline for the same wall-clock time as L2I."""
    set: tuple[str, ...] = ()
    """Fields to change in every run, as in model.weights=FOLDER optim.lr=1e-4."""
    dry_run: bool = False
    """Print what would be trained, and train nothing."""
    save_results: str | None = None
    """Folder to copy results and metrics of finished runs to, as TABLE/CELL-seedN.json and .jsonl.
    Runs with a result there are not trained; results of other steps or settings are refused."""
    from_: Annotated[str | None, tyro.conf.arg(name="from")] = None
    """Train nothing: print the table from results that --save-results has stored in this folder."""
    markdown: bool = False
    """Print the table as Markdown, as in benchmarks/, and everything else to stderr."""
    plot: str | None = None
    """Also plot the test error of every run against time, to this file: .png, .svg or .pdf."""
    analyze_updates: str | None = None
    """Also report what imputing did in probed runs (--set probe_samples=1000), and plot it to this
    file: C^H and test cost before and after outer updates, gradient norms, and the errors of
    imputed labels, with and without L2I."""
    overwrite: bool = False
    """Replace plots and OUT/TABLE.json even if l2i did not write them, or if they have changed."""
    data: DataLocation = field(default_factory=DataLocation)
    """Location of the data."""


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Plot a run folder, as PNG files: costs, error and, for landmarks, faces."""

    baseline: str | None = None
    """Run folder of a baseline, trained on the same split, to plot next to the run."""
    out: str | None = None
    """Folder for the plots; RUN/plots by default."""
    overwrite: bool = False
    """Replace files in --out even if l2i did not write them, or if they have changed since."""
    device: str | None = None
    """cpu, cuda, …; the run's device by default."""
    data: DataLocation = field(default_factory=DataLocation)
    """Location of the data."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Measure step time, memory use and the roofline of this machine, on synthetic data.

    On a CPU, it uses small networks.
    """

    groups: tuple[str, ...] = ()
    """Any of mean-teacher, mixmatch, fixmatch, fixmatch-fast, landmarks and text; all by default,
    text only if transformers is installed."""
    variants: tuple[str, ...] = ()
    """Any of base, last-layer, exact and learnable; all by default. Ratios need base."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto uses a GPU if there is one."""
    json: bool = False
    """Print only JSON to stdout."""
    blocks: int = 0
    """Number of timed blocks per case; 0 for a default that depends on the device."""
    steps: int = 0
    """Steps per block; 0 for a default that depends on the device."""
    threads: int = 0
    """CPU threads of torch; 0 for its default."""
    precision: Literal["auto", "float32", "bf16", "float64"] = "auto"
    """Precision of forward passes, as in a run; auto is bf16 on a GPU and float32 otherwise."""
    engine: Literal["auto", "eager", "graph"] = "auto"
    """Run steps eagerly or as a CUDA graph, as in a run; auto uses a graph on a GPU."""


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Tune the hyperparameters of a recipe by validation error, one trial after another.

    Start the same command in several shells, or on several machines with one --storage, to share
    the trials; start it again to resume. Every field of a run is a flag as well, as in 'l2i train':
    --steps, --seed, --data.num-labeled, …
    """

    trials: int = 20
    """Total number of trials of the study, including finished ones."""
    storage: str | None = None
    """Database that the processes share: sqlite:///FILE on one machine, postgresql://… or
    mysql://… on several; by default an SQLite file in the study's folder."""
    study: str | None = None
    """Name of the study in the storage; RECIPE-seedSEED by default."""
    out: str | None = None
    """Folder of the study, with one run folder per trial; runs/tune/STUDY by default."""
    fields: tuple[str, ...] = ()
    """Fields to search, as in optim.lr l2i.rho; by default all those that '--dry-run' shows."""
    range: tuple[str, ...] = ()
    """Ranges to search, as in optim.lr=1e-4:1e-2 or method.threshold=0.5:0.99:linear; may add
    fields that are not searched by default."""
    prune: bool = True
    """Stop a trial whose best validation error is above the median of the others at that step."""
    dry_run: bool = False
    """Print the search space, and train nothing."""
