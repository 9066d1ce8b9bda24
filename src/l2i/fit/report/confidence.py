"""How reliable the labels are: calibration, confidence of imputed labels, and errors by class."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.fit.artifact import FitArtifact, FitRows, Floats, Mask, RowPreview, get_outputs
from l2i.fit.formatting import format_percent, format_significant, pluralize, truncate_text
from l2i.fit.impute import MAX_RELATIVE_STD, MIN_CONFIDENCE, Imputations, compute_probability
from l2i.fit.report.charts import (
    Chart,
    draw_columns,
    draw_histogram,
    draw_reliability,
    draw_scatter,
)
from l2i.fit.report.comparison import describe_heldout, mask_known_labels

NUM_RELIABILITY_BINS, NUM_HISTOGRAM_BINS = 10, 20
GAUSSIAN_COVERAGE = {1: 0.683, 2: 0.954}  # shares of Gaussian errors within so many stds
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MIN_ROUNDED_TO_ONE = 0.9995  # a probability that would be printed as 1.000
MAX_CARD_FIELDS, MAX_CARD_TARGETS = 12, 4  # columns and targets that fit on a card
MAX_CARDS_PER_CLASS = 3  # among the most confident rows
MAX_COUNTED_CHANGES = 5  # rows with this many label changes or more are counted together
MAX_MATRIX_CLASSES = 20  # with more classes, pairs are shown in place of the matrix
MAX_CONFUSED_PAIRS = 15
MAX_SCATTER_TARGETS, MAX_SCATTER_ROWS = 6, 500  # scatter charts, and rows per chart


class CalibrationBin(NamedTuple):
    """Rows of about equal confidence."""

    predicted: float
    """Their mean confidence, or the root of their mean squared std."""
    observed: float
    """The share of correct ones, or the root of their mean squared error."""
    num_rows: int


class CalibrationSection(NamedTuple):
    """Calibration on the held-out rows, before and after."""

    sentence: str
    charts: list[Chart]
    header: list[str]
    table: list[list[str]]


class ConfidenceSection(NamedTuple):
    """Confidence of the imputed labels; each fact is a number and what it counts."""

    facts: list[tuple[str, str]]
    charts: list[Chart]


class Card(NamedTuple):
    """A row to show; regression has one label per target."""

    id: str
    labels: list[str]
    confidence: str
    abstain: bool
    image_uri: str | None
    fields: list[tuple[str, str]]
    num_hidden_fields: int


class ConfusionCell(NamedTuple):
    """Rows of one true class that were predicted as some class."""

    num_rows: int
    share: float
    is_correct: bool


class ConfusionSection(NamedTuple):
    """A matrix, or pairs as (true, predicted, rows, share of the true class)."""

    num_rows: int
    class_names: list[str]
    matrix: list[list[ConfusionCell]]
    pairs: list[tuple[str, str, str, str]]


def build_calibration_section(fitted: FitArtifact, rows: FitRows) -> CalibrationSection | None:
    """Measure calibration on the validation and test rows, if there are any."""
    mask = mask_known_labels(fitted, rows, "validation", "test")
    if not mask.any():
        return None
    build = _build_for_targets if fitted.classes is None else _build_for_classes
    return build(fitted, rows, mask)


def _build_for_classes(fitted: FitArtifact, rows: FitRows, mask: Mask) -> CalibrationSection:
    heldout = describe_heldout(fitted).removesuffix(" rows")
    masks = {heldout: mask, "test only": mask_known_labels(fitted, rows, "test")}
    temperatures = (1.0, fitted.temperature)
    bins = {
        name: [bin_by_confidence(*compute_confidence(fitted, rows, m, t)) for t in temperatures]
        for name, m in masks.items()
        if m.any()
    }
    table = [
        [name, f"{masks[name].sum():,}", *(f"{100 * compute_ece(b):.1f} %" for b in before_after)]
        for name, before_after in bins.items()
    ]
    sentence = (
        "Of the labels with a confidence of 0.8, 80 % should be correct. Temperature scaling "
        f"divides the logits by {fitted.temperature:.2f}, fitted on the {_name_fitted(fitted)}. "
        "The expected calibration error (ECE) is the mean gap between confidence and accuracy."
    )
    charts = [
        draw_reliability(f"{name} calibration", points, 1.0, x="confidence", y="accuracy")
        for name, points in zip(("Before", "After"), bins[heldout], strict=True)
    ]
    return CalibrationSection(sentence, charts, ["Split", "Rows", "Before", "After"], table)


def _name_fitted(fitted: FitArtifact) -> str:
    """Name the rows that confidences were calibrated on."""
    return "labelled rows, out of fold" if fitted.num_folds else "validation rows"


def compute_confidence(
    fitted: FitArtifact, rows: FitRows, mask: Mask, temperature: float
) -> tuple[Floats, Mask]:
    """Return the confidence of the selected model on labelled rows, and where it is correct."""
    logits = get_outputs(fitted, rows)[mask].astype(np.float64)
    probability, labels = compute_probability(fitted, logits, temperature), logits.argmax(axis=1)
    return probability[np.arange(len(labels)), labels], labels == rows.given_labels[mask]


def bin_by_confidence(confidence: Floats, is_correct: Mask) -> list[CalibrationBin]:
    """Put rows in ten bins of equal width, without empty ones."""
    bins = np.minimum((confidence * NUM_RELIABILITY_BINS).astype(int), NUM_RELIABILITY_BINS - 1)
    return [
        CalibrationBin(float(confidence[m].mean()), float(is_correct[m].mean()), int(m.sum()))
        for m in (bins == i for i in np.unique(bins))
    ]


def compute_ece(bins: list[CalibrationBin]) -> float:
    """Return the expected calibration error: the mean gap between predicted and observed."""
    total = max(1, sum(b.num_rows for b in bins))
    return sum(b.num_rows * abs(b.predicted - b.observed) for b in bins) / total


def _build_for_targets(fitted: FitArtifact, rows: FitRows, mask: Mask) -> CalibrationSection:
    assert rows.predictive_std is not None
    scale, outputs = np.asarray(fitted.target_std), get_outputs(fitted, rows)[mask]
    error = (np.abs(outputs.astype(np.float64) - rows.given_labels[mask]) / scale).ravel()
    raw_std = (rows.predictive_std[mask].astype(np.float64) / scale).ravel()
    stds = {"Before": raw_std, "After": raw_std * fitted.std_scale}
    if fitted.num_folds:  # stds are those of the errors out of fold
        stds = {"After": raw_std}
    bins = {name: bin_by_std(std, error) for name, std in stds.items()}
    limit = 1.05 * max(max(b.predicted, b.observed) for std_bins in bins.values() for b in std_bins)
    charts = [
        draw_reliability(
            "Calibration" if fitted.num_folds else f"{name} calibration",
            std_bins,
            limit,
            x="predicted std",
            y="observed RMSE",
        )
        for name, std_bins in bins.items()
    ]
    table = []
    for k, coverage in GAUSSIAN_COVERAGE.items():
        shares = [format_percent(float((error <= k * std).mean())) for std in stds.values()]
        table.append([f"± {k} std", *shares, format_percent(coverage)])
    source = f"multiplied by {fitted.std_scale:.2f}, fitted on the {_name_fitted(fitted)}"
    header = ["Interval", "Before", "After", "Gaussian"]
    if fitted.num_folds:
        source, header = (
            f"estimated from the {_name_fitted(fitted)}",
            ["Interval", "Share", "Gaussian"],
        )
        table += _describe_intervals(error, raw_std, fitted)
    sentence = (
        "Errors should be about as large as their predicted standard deviation (std), which is "
        f"{source}. Both are in units of the std of the labelled targets."
    )
    return CalibrationSection(sentence, charts, header, table)


def _describe_intervals(error: Floats, std: Floats, fitted: FitArtifact) -> list[list[str]]:
    """Return how many targets lie within the intervals that the label file has."""
    if not fitted.interval_factors:
        return []
    factors = np.resize(fitted.interval_factors, len(error))  # targets alternate
    return [["90 % interval", format_percent(float((error <= factors * std).mean())), ""]]


def bin_by_std(predictive_std: Floats, error: Floats) -> list[CalibrationBin]:
    """Put rows in bins of equal size, by predicted std."""

    def root_mean_square(values: Floats) -> float:
        return float(np.sqrt(np.square(values).mean()))

    order = np.argsort(predictive_std, kind="stable")
    groups = np.array_split(order, min(NUM_RELIABILITY_BINS, len(predictive_std)))
    pairs = [(predictive_std[rows], error[rows]) for rows in groups]
    return [CalibrationBin(root_mean_square(s), root_mean_square(e), len(s)) for s, e in pairs]


def build_confidence_section(
    fitted: FitArtifact, rows: FitRows, imputations: Imputations
) -> ConfidenceSection | None:
    """Summarise the confidence and stability of the imputed labels, if there are any."""
    is_imputed = imputations.is_imputed
    if not is_imputed.any():
        return None
    changes = rows.change_counts[is_imputed]
    if fitted.classes is not None:
        rule = f"confidence below {MIN_CONFIDENCE}"
        evaluations = pluralize(fitted.num_snapshots, "evaluation")
        change_caption = f"changed during training ({evaluations})"
    else:
        rule = f"predicted std above {MAX_RELATIVE_STD} × the target's std"
        change_caption = "moved by more than 0.1 std between evaluations"
    abstain_share = format_percent(float(imputations.abstain[is_imputed].mean()))
    facts = [(f"{is_imputed.sum():,}", "imputed labels"), (abstain_share, f"abstain: {rule}")]
    charts = [_draw_confidences(fitted, imputations.confidence[is_imputed])]
    if fitted.num_snapshots and (fitted.classes is not None or (changes > 0).any()):
        facts.append((format_percent(float((changes > 0).mean())), change_caption))
        charts.append(_draw_changes(fitted, changes))
    return ConfidenceSection(facts, charts)


def _draw_confidences(fitted: FitArtifact, confidence: Floats) -> Chart:
    if fitted.classes is not None:
        low, high = min(1 / len(fitted.classes), float(confidence.min())), 1.0
        title, x, values = "Confidence", "calibrated probability", confidence
        threshold, label = MIN_CONFIDENCE, "abstain below"
    else:
        low, high = 0.0, max(1.2 * MAX_RELATIVE_STD, float(np.quantile(-confidence, 0.99)))
        title, x = "Predicted standard deviation", "in stds of the target"
        values = np.minimum(-confidence, high)
        threshold, label = MAX_RELATIVE_STD, "abstain above"
    counts = np.histogram(values, bins=NUM_HISTOGRAM_BINS, range=(low, high))[0].tolist()
    bounds = (low, high)
    return draw_histogram(title, counts, bounds, x=x, threshold=threshold, threshold_label=label)


def _draw_changes(fitted: FitArtifact, changes: NDArray[np.int64]) -> Chart:
    capped = np.minimum(changes, MAX_COUNTED_CHANGES)
    counts = enumerate(np.bincount(capped, minlength=MAX_COUNTED_CHANGES + 1).tolist())
    columns = {(f"{k}" if k < MAX_COUNTED_CHANGES else f"{k}+"): n for k, n in counts}
    if fitted.classes is None:
        return draw_columns("Moves by more than 0.1 std", columns, x="moves")
    return draw_columns("Label changes during training", columns, x="changes")


def make_cards(
    fitted: FitArtifact, rows: FitRows, imputations: Imputations
) -> tuple[list[Card], list[Card]]:
    """Return cards of the most confident rows, a few per class, and of the least confident ones."""
    previews = [preview for preview in fitted.previews if 0 <= preview.row < len(rows.ids)]
    ordered = sorted(previews, key=lambda preview: -imputations.confidence[preview.row])
    half = (len(ordered) + 1) // 2
    most_confident, counts = [], Counter[int]()
    for preview in ordered[:half]:
        label = -1 if fitted.classes is None else int(imputations.labels[preview.row])
        counts[label] += 1
        if fitted.classes is None or counts[label] <= MAX_CARDS_PER_CLASS:
            most_confident.append(_make_card(preview, fitted, rows, imputations))
    least_confident = reversed(ordered[half:])
    return most_confident, [_make_card(p, fitted, rows, imputations) for p in least_confident]


def _make_card(
    preview: RowPreview, fitted: FitArtifact, rows: FitRows, imputations: Imputations
) -> Card:
    fields = list((preview.fields or {}).items())
    return Card(
        id=rows.ids[preview.row],
        labels=_format_labels(preview.row, fitted, imputations),
        confidence=_format_confidence(preview.row, fitted, imputations),
        abstain=bool(imputations.abstain[preview.row]),
        image_uri=to_data_uri(preview.png_base64),
        fields=[(name, truncate_text(str(value))) for name, value in fields[:MAX_CARD_FIELDS]],
        num_hidden_fields=max(0, len(fields) - MAX_CARD_FIELDS),
    )


def _format_labels(row: int, fitted: FitArtifact, imputations: Imputations) -> list[str]:
    if fitted.classes is not None:
        return [fitted.classes[int(imputations.labels[row])]]
    values = imputations.labels[row]
    if len(values) == 1:
        return [format_significant(float(values[0]), 4)]
    assert imputations.predictive_std is not None
    lines = [
        f"{name} {format_significant(float(value))} ± {format_significant(float(std), 2)}"
        for name, value, std in zip(
            fitted.targets, values, imputations.predictive_std[row], strict=True
        )
    ]
    num_hidden = len(lines) - MAX_CARD_TARGETS
    return lines[:MAX_CARD_TARGETS] + ([f"and {num_hidden} more"] if num_hidden > 0 else [])


def _format_confidence(row: int, fitted: FitArtifact, imputations: Imputations) -> str:
    confidence = float(imputations.confidence[row])
    if fitted.classes is not None:
        probability = f"{confidence:.3f}" if confidence < MIN_ROUNDED_TO_ONE else "> 0.999"
        return f"confidence {probability}" if imputations.is_imputed[row] else "given"
    assert imputations.predictive_std is not None
    if imputations.predictive_std.shape[1] == 1:
        return f"± {format_significant(float(imputations.predictive_std[row, 0]), 2)}"
    return f"predicted std {format_significant(-confidence, 2)} × the target's"


def to_data_uri(png_base64: str | None) -> str | None:
    """Return a base64 PNG as a data URI, or None if it is not one."""
    try:
        raw = base64.b64decode(png_base64 or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    if not raw.startswith(PNG_SIGNATURE):
        return None
    return "data:image/png;base64," + base64.b64encode(raw).decode()


def build_confusion_section(fitted: FitArtifact, rows: FitRows) -> ConfusionSection:
    """Count the confusions of the selected network on the validation rows."""
    assert fitted.classes is not None
    mask, names = mask_known_labels(fitted, rows, "validation"), list(fitted.classes)
    predictions = get_outputs(fitted, rows)[mask].argmax(axis=1)
    counts = count_confusions(rows.given_labels[mask], predictions, len(names))
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    num_rows, indices = int(mask.sum()), range(len(names))

    def make_cell(i: int, j: int) -> ConfusionCell:
        return ConfusionCell(int(counts[i, j]), float(shares[i, j]), i == j)

    if len(names) > MAX_MATRIX_CLASSES:
        return ConfusionSection(num_rows, names, [], _rank_confused_pairs(counts, shares, names))
    matrix = [[make_cell(i, j) for j in indices] for i in indices]
    return ConfusionSection(num_rows, names, matrix, [])


def count_confusions(
    true_labels: NDArray[Any], predicted_labels: NDArray[Any], num_classes: int
) -> NDArray[np.int64]:
    """Count rows by true and predicted class, [C, C]."""
    cells = true_labels * num_classes + predicted_labels
    return np.bincount(cells, minlength=num_classes**2).reshape(num_classes, num_classes)


def _rank_confused_pairs(
    counts: NDArray[np.int64], shares: NDArray[Any], names: list[str]
) -> list[tuple[str, str, str, str]]:
    wrong_counts = counts * ~np.eye(len(names), dtype=bool)
    order = np.argsort(-wrong_counts, axis=None, kind="stable")[:MAX_CONFUSED_PAIRS]
    return [
        (names[i], names[j], f"{wrong_counts[i, j]:,}", format_percent(shares[i, j]))
        for i, j in (divmod(int(k), len(names)) for k in order)
        if wrong_counts[i, j]
    ]


def draw_scatters(fitted: FitArtifact, rows: FitRows) -> list[Chart]:
    """Draw predicted against true targets of validation and test rows, one chart per target."""
    indices = np.flatnonzero(mask_known_labels(fitted, rows, "validation", "test"))
    if not len(indices):
        return []
    indices = indices[:: -(-len(indices) // MAX_SCATTER_ROWS)]
    true, predicted = rows.given_labels[indices], get_outputs(fitted, rows)[indices]
    charts = []
    for d, name in enumerate(fitted.targets[:MAX_SCATTER_TARGETS]):
        points = [(float(a), float(b)) for a, b in zip(true[:, d], predicted[:, d], strict=True)]
        charts.append(draw_scatter(name, points, x="true", y="predicted"))
    return charts
