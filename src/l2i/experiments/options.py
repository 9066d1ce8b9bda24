"""What the commands take, apart from a run's own fields; nothing heavy is imported here.

MERGED:
The cells of a table over several seeds: each baseline against L2I on the same splits, and given as much time.

MERGED:
What the commands take, apart from a run's own fields; nothing heavy is imported here.

MERGED:
Plots of a run: costs before and after an outer update, error, and landmarks on faces (figures of Experiment 1).

What the commands take, apart from a run's own fields; nothing heavy is imported here.

MERGED:
What is timed: the recipes' networks and batches on a GPU, small ones on a CPU, on made-up images and texts.

What the commands take, apart from a run's own fields; nothing heavy is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal


def name_set_flag() -> object:
    """What makes --set the flag of a field that cannot be named so."""
    from l2i.cli.parsing import rename_flag  # not before: the command line imports these options

    return rename_flag("set")


@dataclass(frozen=True, kw_only=True)
class DataLocation:
    """Where the data is."""

    root: str | None = None
    """Folder that holds the data set; by default the run's own, or the one that the variable L2I_DATA names."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Train the cells of a table over several seeds and set their figures side by side, and beside the paper's."""

    cells: tuple[str, ...] = ()
    """Cells to train, with or without the table's name; those that the table names by default.
    With --load-results, cells to show; all that have results by default."""
    seeds: int | None = None
    """Seeds 0, 1, … a cell, by default as many as the table asks for; one seed is one split, start and order."""
    steps: int | None = None
    """Training steps, where they should not be the recipe's; schedules scale with them."""
    parallel: int = 0
    """Seeds trained side by side; 0 for as many as that makes faster: up to 5 on a GPU, one on a CPU."""
    out: str = "runs/compare"
    """Folder for the runs; those already there are not trained again."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes the GPU where there is one."""
    precision: Literal["auto", "float32", "tf32", "bf16", "float64"] = "auto"
    """Of the forwards, as in a run: auto is bf16 on a GPU, and float32 elsewhere."""
    engine: Literal["auto", "eager", "graph"] = "auto"
    """How a step is taken, as in a run: auto records it on a GPU."""
    time_matched: bool = True
    """Also train each baseline for as long as its L2I twin took."""
    changes: Annotated[tuple[str, ...], name_set_flag()] = ()
    """Fields of every run that should not be the recipe's, as in model.weights=FOLDER optim.lr=1e-4."""
    dry_run: bool = False
    """Say what would be trained, and train nothing."""
    save_results: str | None = None
    """Folder to copy each run's result and metrics to once it is done, as TABLE/CELL-seedN.json and .jsonl.
    Runs whose results are there already are not trained; results of other steps or settings are refused."""
    load_results: str | None = None
    """Train nothing: print the table of the results that such a folder holds, over as many seeds as there are."""
    markdown: bool = False
    """Print the table as Markdown, as docs/results.md has it, and what else there is to say on stderr."""
    plot: str | None = None
    """Also draw the test error of every run against its time, into this file: .png, .svg or .pdf."""
    analyze_updates: str | None = None
    """Also tell what imputing did on the way in runs that were probed (--set probe_samples=1000), and draw it into this
    file: C^H and test cost around an outer update, gradients, and imputed labels against the hidden truth, with L2I and
    without."""
    data: DataLocation = field(default_factory=DataLocation)
    """Where the data is."""


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Plots of a run folder, as PNG files: costs, error and, for landmarks, faces."""

    baseline: str | None = None
    """Run folder of a baseline, trained on the same split, to be drawn beside the run."""
    out: str | None = None
    """Folder for the pictures; RUN/pictures by default."""
    count: int = 12
    """Faces in a picture."""
    blank: bool = False
    """Landmarks without the faces, for pictures that may go where the faces may not."""
    device: str | None = None
    """cpu, cuda, …; the run's own by default."""
    data: DataLocation = field(default_factory=DataLocation)
    """Where the data is."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Step times, memory and the time floor of this machine, on made-up images and texts; small networks on a CPU."""

    groups: tuple[str, ...] = ()
    """Of mean-teacher, mixmatch, fixmatch, landmarks and text; all by default, text where transformers is installed."""
    variants: tuple[str, ...] = ()
    """Of base, last-layer, exact and learnable; all by default. Ratios need base."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes the GPU where there is one."""
    json: bool = False
    """Print JSON, and nothing else, on stdout."""
    blocks: int = 0
    """Timed blocks of each case; 0 for what suits the device."""
    steps: int = 0
    """Steps a block; 0 for what suits the device."""
    threads: int = 0
    """CPU threads of torch; 0 leaves its choice."""
    precision: Literal["auto", "float32", "tf32", "bf16", "float64"] = "auto"
    """Of the forwards, as in a run; auto: bf16 on a GPU and float32 elsewhere."""
    engine: Literal["auto", "eager", "graph"] = "auto"
    """How a step is taken, as in a run; auto: recorded as a graph on a GPU."""


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """Train a recipe with other settings, trial after trial, and choose the best on the validation set.

    The same command, in several shells or on several machines with one --storage, shares the trials; killed and started
    again, it goes on. Every field of a run is a flag as well, as in 'l2i train': --steps, --seed, --data.num-labeled, …
    """

    trials: int = 20
    """Trials of the study in all, those already finished among them."""
    storage: str | None = None
    """Database that the processes share: sqlite:///FILE on one machine, postgresql://… or mysql://… on several; by
    default a file of SQLite in the sweep's folder."""
    study: str | None = None
    """Name of the sweep in the storage; RECIPE-seedSEED by default."""
    out: str | None = None
    """Folder of the sweep, with a run folder a trial; runs/tune/STUDY by default."""
    fields: tuple[str, ...] = ()
    """Fields to search, as in optim.lr l2i.rho; all those that '--dry-run' shows by default."""
    range: tuple[str, ...] = ()
    """Ranges to search, as in optim.lr=1e-4:1e-2 or method.threshold=0.5:0.99:linear; also of further fields."""
    prune: bool = True
    """Stop a trial whose best validation figure so far is above the median of the others at the same step."""
    dry_run: bool = False
    """Show what would be searched, and train nothing."""
