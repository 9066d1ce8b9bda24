"""What the commands take, apart from a run's own fields; nothing heavy is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from l2i.arguments import flag
from l2i.own.reading import ReadOptions


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the data is."""

    root: str | None = None
    """Folder that holds the data set; by default the run's own, or the one that the variable L2I_DATA names."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Train the cells of a table over several seeds and set their figures side by side, and beside the paper's."""

    cells: tuple[str, ...] = ()
    """Cells to train, with or without the table's name; those that the table names by default.
    With --from, cells to show; all that have results by default."""
    seeds: int | None = None
    """Seeds 0, 1, … a cell, by default as many as the table asks for; one seed is one split, start and order."""
    steps: int | None = None
    """Training steps, where they should not be the recipe's; schedules scale with them."""
    at_once: int = 0
    """Seeds trained side by side; 0 for as many as that makes faster: up to 5 on a GPU, one on a CPU."""
    out: str = "runs/compare"
    """Folder for the runs; those already there are not trained again."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …; auto takes the GPU where there is one."""
    precision: Literal["auto", "float32", "tf32", "bf16", "float64"] = "auto"
    """Of the forwards, as in a run: auto is bf16 on a GPU, and float32 elsewhere."""
    engine: Literal["auto", "eager", "graph"] = "auto"
    """How a step is taken, as in a run: auto records it on a GPU."""
    equal_time: bool = True
    """Also train each baseline for as long as its L2I twin took."""
    change: tuple[str, ...] = ()
    """Fields of every run that should not be the recipe's, as in model.weights=FOLDER optim.lr=1e-4."""
    dry_run: bool = False
    """Say what would be trained, and train nothing."""
    keep: str | None = None
    """Folder to copy each run's result and metrics to once it is done, as TABLE/CELL-seedN.json and .jsonl.
    Runs whose results are there already are not trained; results of other steps or settings are refused."""
    from_: Annotated[str | None, flag("from")] = None
    """Train nothing: print the table of the results that such a folder holds, over as many seeds as there are."""
    markdown: bool = False
    """Print the table as Markdown, as docs/results.md has it, and what else there is to say on stderr."""
    plot: str | None = None
    """Also draw the test error of every run against its time, into this file: .png, .svg or .pdf."""
    mechanism: str | None = None
    """Also tell what imputing did on the way in runs that were probed (--change probe=1000), and draw it into this
    file: C^H and test cost around an outer update, gradients, and imputed labels against the hidden truth, with L2I and
    without."""
    data: Place = field(default_factory=Place)
    """Where the data is."""


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


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Train small problems without L2I, with it and with its control, each tuned alike, and settings one at a time.

    PROBLEM is one or more names, as digits-fixmatch; all by default ('--dry-run' shows them). Runs that are kept are
    not trained again, so that a study that was cut goes on. Several processes may share a folder, each with its own
    problems, part or seeds: what two of them begin at the same time is trained twice.
    """

    part: Literal["pace", "tuning", "arms", "settings", "course", "all"] = "all"
    """pace: how much longer a step takes with L2I; tuning: a rate and a λ for each arm, by validation figures; arms:
    the arms so tuned, on fresh seeds; settings: one of L2I's changed at a time; course: runs looked at on their way."""
    seeds: str | None = None
    """FIRST:LAST, the seeds from FIRST up to LAST, which is left out; by default 0:8 for arms, 0:5 for settings and 0:3
    for course."""
    keep: str = "results/study"
    """Folder for what is found, PROBLEM.jsonl, a line a run."""
    dry_run: bool = False
    """Say what would be trained, and train nothing."""
    from_: Annotated[str | None, flag("from")] = None
    """Train nothing: print the tables of what such a folder holds."""
    markdown: bool = False
    """Print the tables as Markdown, as docs/study.md has them."""
    plots: str | None = None
    """With --from, folder to write gains.png, settings.png and course.png to."""
    data: Place = field(default_factory=Place)
    """Where the data is."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """The averaged model of a run folder, on its validation and test samples, as JSON."""

    device: str | None = None
    """cpu, cuda, …; the run's own by default."""
    data: Place = field(default_factory=Place)
    """Where the data is."""


@dataclass(frozen=True, kw_only=True)
class PicturesOptions:
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
    data: Place = field(default_factory=Place)
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
class FitOptions(ReadOptions):
    """Train on your own data: a CSV or Parquet file, a folder of images, an .npz, or a CSV of image paths.

    Every field of a run is a flag as well, its default chosen from your data: --steps, --seed, --device, --model.name,
    --model.width, --batch.unlabeled, --optim.lr, --method.weight, --l2i.rho, --data.weak.noise, …; 'l2i train digits
    --help' explains them.
    """

    out: str | None = None
    """Folder for the fit; runs/NAME by default, after the file or folder."""
    method: str = "auto"
    """Semi-supervised method ('l2i list' shows them); auto chooses one for the data."""
    baselines: bool = True
    """Also train the supervised baseline, and the method without L2I, on the same split."""
    validation: int | float = 0.2
    """Labelled rows to choose by, never trained on: a number of them, or a share."""
    test: int | float = 0.2
    """Labelled rows to measure on, never trained on nor chosen by: a number of them, or a share."""


@dataclass(frozen=True, kw_only=True)
class ImputeOptions:
    """The label of every input row, given or imputed, with its confidence."""

    out: str = "labels.csv"
    """File to write, .csv or .parquet."""
    threshold: float | None = None
    """Calibrated probability under which to abstain, 0.9 by default; for regression, the spread above which to abstain,
    in spreads of the labelled targets, 1.0 by default."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Labels of new rows, in a file or on stdout."""

    out: str | None = None
    """File to write, .csv or .parquet; by default CSV on stdout."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """One HTML file about a fit, to be opened in a browser or sent to a colleague."""

    out: str | None = None
    """File to write; RUN/report.html by default."""
