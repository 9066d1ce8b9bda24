"""Whether the chosen network is as often right as it says, before and after calibration.

MERGED:
How sure the imputed labels are, and the rows most and least sure of.
Where the chosen network is wrong: classes taken for others, or predicted against true targets.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.fit.artifact import FitArtifact, FitRows, RowPreview
from l2i.fit.impute import MAX_RELATIVE_STD, MIN_CONFIDENCE, Imputations
from l2i.fit.options import pluralize
from l2i.fit.report.charts import Chart, draw_columns, draw_histogram, draw_reliability, draw_scatter
from l2i.fit.report.comparison import Floats, mask_known_labels
from l2i.fit.report.formatting import format_percent, format_significant, truncate_text

NUM_RELIABILITY_BINS = 10
GAUSSIAN_COVERAGE = {1: 0.683, 2: 0.954}  # shares of Gaussian errors within so many spreads


class CalibrationBin(NamedTuple):
    """Rows that are about equally sure."""

    predicted: float
    """Their mean confidence, or the root of their mean squared spread."""
    observed: float
    """The share of them that is right, or the root of their mean squared error."""
    num_rows: int


class CalibrationSection(NamedTuple):
    """The section."""

    sentence: str
    charts: list[Chart]
    header: list[str]
    table: list[list[str]]


def bin_by_confidence(confidence: Floats, is_correct: NDArray[np.bool_]) -> list[CalibrationBin]:
    """Rows in ten bins of equal width; empty ones are left out."""
    bin_index = np.minimum((confidence * NUM_RELIABILITY_BINS).astype(int), NUM_RELIABILITY_BINS - 1)
    bin_masks = [bin_index == i for i in range(NUM_RELIABILITY_BINS)]
    return [CalibrationBin(float(confidence[m].mean()), float(is_correct[m].mean()), int(m.sum())) for m in bin_masks if m.any()]


def compute_ece(bins: list[CalibrationBin]) -> float:
    """The expected calibration error: the mean gap between what was said and found."""
    return sum(b.num_rows * abs(b.predicted - b.observed) for b in bins) / max(1, sum(b.num_rows for b in bins))


def bin_by_std(predictive_std: Floats, error: Floats) -> list[CalibrationBin]:
    """Rows in bins of equal number, by spread."""
    index_groups = np.array_split(np.argsort(predictive_std, kind="stable"), min(NUM_RELIABILITY_BINS, len(predictive_std)))
    return [CalibrationBin(_root_mean_square(predictive_std[indices]), _root_mean_square(error[indices]), len(indices)) for indices in index_groups]


def _root_mean_square(values: Floats) -> float:
    return float(np.sqrt(np.square(values).mean()))


def build_calibration_section(fitted: FitArtifact, rows: FitRows) -> CalibrationSection | None:
    """Of the validation and test rows; None where there are none."""
    if not mask_known_labels(fitted, rows, "validation", "test").any():
        return None
    return _build_for_classes(fitted, rows) if fitted.classes is not None else _build_for_targets(fitted, rows)


def _bin_predictions(fitted: FitArtifact, rows: FitRows, mask: NDArray[np.bool_], temperature: float) -> list[CalibrationBin]:
    from scipy.special import softmax

    probability = softmax(rows.outputs[fitted.selected_name][mask].astype(np.float64) / temperature, axis=1)
    return bin_by_confidence(probability.max(axis=1), probability.argmax(axis=1) == rows.given_labels[mask])


def _build_for_classes(fitted: FitArtifact, rows: FitRows) -> CalibrationSection:
    heldout_mask = mask_known_labels(fitted, rows, "validation", "test")
    before, after = (_bin_predictions(fitted, rows, heldout_mask, t) for t in (1.0, fitted.temperature))
    table = []
    for name, splits in {"validation and test": ("validation", "test"), "test alone": ("test",)}.items():
        mask = mask_known_labels(fitted, rows, *splits)
        ece_pair = [compute_ece(_bin_predictions(fitted, rows, mask, t)) for t in (1.0, fitted.temperature)]
        table += [[name, f"{mask.sum():,}", *(f"{100 * e:.1f} %" for e in ece_pair)]] if mask.any() else []
    sentence = (
        f"A label of confidence 0.8 should be right 8 times in 10. Logits are divided by a temperature of "
        f"{fitted.temperature:.2f}, found on the validation rows; the expected calibration error is the mean gap "
        "between confidence and share of right labels."
    )
    charts = [
        draw_reliability("Before", before, 1.0, x="confidence", y="share right"),
        draw_reliability("After", after, 1.0, x="confidence", y="share right"),
    ]
    return CalibrationSection(sentence, charts, ["Rows", "Number", "Before", "After"], table)


def _build_for_targets(fitted: FitArtifact, rows: FitRows) -> CalibrationSection:
    assert rows.predictive_std is not None
    mask, scale = mask_known_labels(fitted, rows, "validation", "test"), np.asarray(fitted.target_std)
    error = (np.abs(rows.outputs[fitted.selected_name][mask].astype(np.float64) - rows.given_labels[mask]) / scale).ravel()
    raw_std = (rows.predictive_std[mask].astype(np.float64) / scale).ravel()
    stds = {"Before": raw_std, "After": raw_std * fitted.std_scale}
    bins = {name: bin_by_std(std, error) for name, std in stds.items()}
    limit = 1.05 * max(max(b.predicted, b.observed) for std_bins in bins.values() for b in std_bins)
    charts = [draw_reliability(name, std_bins, limit, x="spread said", y="error found") for name, std_bins in bins.items()]
    table = [
        [
            f"within {pluralize(k, 'spread')}",
            *(format_percent(float((error <= k * std).mean())) for std in stds.values()),
            format_percent(coverage),
        ]
        for k, coverage in GAUSSIAN_COVERAGE.items()
    ]
    sentence = (
        f"Errors should be about as large as the spread that goes with them. Spreads are multiplied by "
        f"{fitted.std_scale:.2f}, found on the validation rows. Both are in units of the labelled targets' own "
        "spread."
    )
    return CalibrationSection(sentence, charts, ["Errors", "Before", "After", "Gaussian"], table)


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
NUM_HISTOGRAM_BINS = 20
MIN_ROUNDED_TO_ONE = 0.9995  # a probability that three digits would call 1
MAX_CARD_FIELDS, MAX_CARD_TARGETS = 12, 4  # columns, and targets, that a card has room for
MAX_CARDS_PER_CLASS = 3  # cards of one class among the most sure
MAX_COUNTED_CHANGES = 5  # changes from which labels are counted together


class Card(NamedTuple):
    """A row as it is shown."""

    id: str
    labels: list[str]
    """A class, or a line a target."""
    confidence: str
    abstain: bool
    image_uri: str | None
    fields: list[tuple[str, str]]
    num_hidden_fields: int


class ConfidenceSection(NamedTuple):
    """The section."""

    facts: list[tuple[str, str]]
    """A figure and what it counts."""
    charts: list[Chart]


def build_confidence_section(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> ConfidenceSection | None:
    """Of the imputed labels; None where there are none."""
    is_imputed = imputations.is_imputed
    if not is_imputed.any():
        return None
    changes = rows.change_counts[is_imputed]
    abstain_rule = f"a probability under {MIN_CONFIDENCE}" if fitted.classes is not None else f"a spread above {MAX_RELATIVE_STD} of the target's"
    has_changes = bool((changes > 0).any()) or fitted.classes is not None
    change_caption = (
        f"of them changed over {pluralize(fitted.num_snapshots, 'evaluation')}"
        if fitted.classes is not None
        else "of them moved by more than a tenth of the targets' spread between evaluations, of which there were "
        f"{fitted.num_snapshots:,}"
    )
    facts = [
        (f"{is_imputed.sum():,}", "labels are imputed"),
        (format_percent(float(imputations.abstain[is_imputed].mean())), f"of them had better be left out: {abstain_rule}"),
        (format_percent(float((changes > 0).mean())), change_caption),
    ]
    charts = [_draw_confidences(fitted, imputations), _draw_changes(fitted, changes)]
    return ConfidenceSection(facts, charts) if has_changes else ConfidenceSection(facts[:2], charts[:1])


def _draw_changes(fitted: FitArtifact, changes: NDArray[np.int64]) -> Chart:
    capped = np.bincount(np.minimum(changes, MAX_COUNTED_CHANGES), minlength=MAX_COUNTED_CHANGES + 1).tolist()
    counts = {(f"{k}" if k < MAX_COUNTED_CHANGES else f"{k}+"): n for k, n in enumerate(capped)}
    if fitted.classes is None:
        return draw_columns("How often targets moved by that much", counts, x="moves")
    return draw_columns("How often labels changed", counts, x="changes")


def _draw_confidences(fitted: FitArtifact, imputations: Imputations) -> Chart:
    confidence = imputations.confidence[imputations.is_imputed]
    if fitted.classes is not None:
        low = min(1 / len(fitted.classes), float(confidence.min()))
        counts = np.histogram(confidence, bins=NUM_HISTOGRAM_BINS, range=(low, 1.0))[0]
        return draw_histogram("Confidence", counts.tolist(), low, 1.0, x="probability", threshold=MIN_CONFIDENCE, threshold_label="abstain below")
    high = max(1.2 * MAX_RELATIVE_STD, float(np.quantile(-confidence, 0.99)))
    counts = np.histogram(np.minimum(-confidence, high), bins=NUM_HISTOGRAM_BINS, range=(0.0, high))[0]
    x = "spread, in the target's own"
    return draw_histogram("Spread", counts.tolist(), 0.0, high, x=x, threshold=MAX_RELATIVE_STD, threshold_label="abstain above")


def make_cards(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> tuple[list[Card], list[Card]]:
    """The rows most sure of, the surest first and a few a class, and those least sure of, the least sure first."""
    previews = [s for s in fitted.previews if 0 <= s.row < len(rows.ids)]
    ordered = sorted(previews, key=lambda s: -imputations.confidence[s.row])
    half = (len(ordered) + 1) // 2
    ends = _limit_per_class(ordered[:half], fitted, imputations), ordered[half:][::-1]
    most_confident, least_confident = ([_make_card(sample, fitted, rows, imputations) for sample in end] for end in ends)
    return most_confident, least_confident


def _limit_per_class(ordered: list[RowPreview], fitted: FitArtifact, imputations: Imputations) -> list[RowPreview]:
    """Those of them that are among the first few of their class."""
    if fitted.classes is None:
        return ordered
    class_counts = Counter[int]()
    limited_previews = []
    for sample in ordered:
        label = int(imputations.labels[sample.row])
        class_counts[label] += 1
        limited_previews += [sample] if class_counts[label] <= MAX_CARDS_PER_CLASS else []
    return limited_previews


def _make_card(sample: RowPreview, fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> Card:
    fields = list((sample.fields or {}).items())
    return Card(
        id=rows.ids[sample.row],
        labels=_format_labels(sample.row, fitted, imputations),
        confidence=_format_confidence(sample.row, fitted, imputations),
        abstain=bool(imputations.abstain[sample.row]),
        image_uri=to_data_uri(sample.png_base64),
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
    triples = zip(fitted.targets, values, imputations.predictive_std[row], strict=True)
    pairs = [f"{name} {format_significant(float(v))} ± {format_significant(float(s), 2)}" for name, v, s in triples]
    return pairs[:MAX_CARD_TARGETS] + [f"and {len(pairs) - MAX_CARD_TARGETS} more"] * (len(pairs) > MAX_CARD_TARGETS)


def _format_confidence(row: int, fitted: FitArtifact, imputations: Imputations) -> str:
    confidence = float(imputations.confidence[row])
    if fitted.classes is not None:
        probability = f"{confidence:.3f}" if confidence < MIN_ROUNDED_TO_ONE else "> 0.999"
        return f"probability {probability}" if imputations.is_imputed[row] else "given"
    assert imputations.predictive_std is not None
    if imputations.predictive_std.shape[1] == 1:
        return f"± {format_significant(float(imputations.predictive_std[row, 0]), 2)}"
    return f"spread {format_significant(-confidence, 2)} × that of the labelled targets"


def to_data_uri(png_base64: str | None) -> str | None:
    """A PNG in base64 as an address, where it is one."""
    try:
        raw = base64.b64decode(png_base64 or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    return "data:image/png;base64," + base64.b64encode(raw).decode() if raw.startswith(PNG_SIGNATURE) else None


MAX_MATRIX_CLASSES = 20  # classes up to which the matrix is shown as a whole
MAX_CONFUSED_PAIRS = 15  # the most confused pairs otherwise
MAX_SCATTER_TARGETS, MAX_SCATTER_ROWS = 6, 500  # scatter charts, and rows in each


class ConfusionCell(NamedTuple):
    """Rows of a true class that were given some class."""

    num_rows: int
    share: float
    is_correct: bool


class ConfusionSection(NamedTuple):
    """The section; a matrix, or pairs as (true, given, rows, share of the true class)."""

    num_rows: int
    class_names: list[str]
    matrix: list[list[ConfusionCell]]
    pairs: list[tuple[str, str, str, str]]


def count_confusions(true_labels: NDArray[Any], predicted_labels: NDArray[Any], num_classes: int) -> NDArray[np.int64]:
    """Rows by true and predicted class, [C, C]."""
    return np.bincount(true_labels * num_classes + predicted_labels, minlength=num_classes**2).reshape(num_classes, num_classes)


def build_confusion_section(fitted: FitArtifact, rows: FitRows) -> ConfusionSection:
    """Of the chosen network on the validation rows."""
    assert fitted.classes is not None
    mask, names = mask_known_labels(fitted, rows, "validation"), list(fitted.classes)
    counts = count_confusions(rows.given_labels[mask], rows.outputs[fitted.selected_name][mask].argmax(axis=1), len(names))
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    if len(names) > MAX_MATRIX_CLASSES:
        return ConfusionSection(int(mask.sum()), names, [], _rank_confused_pairs(counts, shares, names))
    matrix = [
        [ConfusionCell(int(counts[i, j]), float(shares[i, j]), i == j) for j in range(len(names))] for i in range(len(names))
    ]
    return ConfusionSection(int(mask.sum()), names, matrix, [])


def _rank_confused_pairs(counts: NDArray[np.int64], shares: NDArray[Any], names: list[str]) -> list[tuple[str, str, str, str]]:
    wrong_counts = counts * ~np.eye(len(names), dtype=bool)
    order = np.argsort(-wrong_counts, axis=None, kind="stable")[:MAX_CONFUSED_PAIRS]
    index_pairs = [divmod(int(k), len(names)) for k in order]
    return [(names[i], names[j], f"{wrong_counts[i, j]:,}", format_percent(shares[i, j])) for i, j in index_pairs if wrong_counts[i, j]]


def draw_scatters(fitted: FitArtifact, rows: FitRows) -> list[Chart]:
    """Predicted against true on the validation and test rows, a chart a target."""
    known_rows = np.flatnonzero(mask_known_labels(fitted, rows, "validation", "test"))
    plotted_rows = known_rows[:: -(-len(known_rows) // MAX_SCATTER_ROWS)] if len(known_rows) else known_rows
    true_values, predicted_values = rows.given_labels[plotted_rows], rows.outputs[fitted.selected_name][plotted_rows]
    return [
        draw_scatter(
            name,
            [(float(a), float(b)) for a, b in zip(true_values[:, d], predicted_values[:, d], strict=True)],
            x="true",
            y="predicted",
        )
        for d, name in enumerate(fitted.targets[:MAX_SCATTER_TARGETS])
        if len(plotted_rows)
    ]
