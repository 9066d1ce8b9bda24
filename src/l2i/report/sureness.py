"""How sure the imputed labels are, and the rows most and least sure of."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from l2i.own.fitted import Fitted, Rows, Sample
from l2i.own.imputed import SURE, VAGUE, Imputations
from l2i.own.reading import counted
from l2i.report.charts import Chart, columns, histogram
from l2i.report.words import share, shortened, significant

PNG = b"\x89PNG\r\n\x1a\n"
BINS = 20
CERTAIN = 0.9995  # a probability that three digits would call 1
FIELDS, LABELS = 12, 4  # columns, and targets, that a card has room for
ALIKE = 3  # cards of one class among the most sure
OFTEN = 5  # changes from which labels are counted together


class Card(NamedTuple):
    """A row as it is shown."""

    id: str
    labels: list[str]
    """A class, or a line a target."""
    sure: str
    abstain: bool
    picture: str | None
    fields: list[tuple[str, str]]
    more: int


class Sureness(NamedTuple):
    """The section."""

    facts: list[tuple[str, str]]
    """A figure and what it counts."""
    charts: list[Chart]


def sureness(fitted: Fitted, rows: Rows, imputed: Imputations) -> Sureness | None:
    """Of the imputed labels; None where there are none."""
    blank = imputed.imputed
    if not blank.any():
        return None
    changes = rows.changes[blank]
    limit = f"a probability under {SURE}" if fitted.classes is not None else f"a spread above {VAGUE} of the target's"
    moved = bool((changes > 0).any()) or fitted.classes is not None
    changed = (
        f"of them changed over {counted(fitted.snapshots, 'evaluation')}"
        if fitted.classes is not None
        else "of them moved by more than a tenth of the targets' spread between evaluations, of which there were "
        f"{fitted.snapshots:,}"
    )
    facts = [
        (f"{blank.sum():,}", "labels are imputed"),
        (share(float(imputed.abstain[blank].mean())), f"of them had better be left out: {limit}"),
        (share(float((changes > 0).mean())), changed),
    ]
    charts = [_confidences(fitted, imputed), _changes(fitted, changes)]
    return Sureness(facts, charts) if moved else Sureness(facts[:2], charts[:1])


def _changes(fitted: Fitted, changes: NDArray[np.int64]) -> Chart:
    capped = np.bincount(np.minimum(changes, OFTEN), minlength=OFTEN + 1).tolist()
    counts = {(f"{k}" if k < OFTEN else f"{k}+"): n for k, n in enumerate(capped)}
    if fitted.classes is None:
        return columns("How often targets moved by that much", counts, x="moves")
    return columns("How often labels changed", counts, x="changes")


def _confidences(fitted: Fitted, imputed: Imputations) -> Chart:
    confidence = imputed.confidence[imputed.imputed]
    if fitted.classes is not None:
        low = min(1 / len(fitted.classes), float(confidence.min()))
        counts = np.histogram(confidence, bins=BINS, range=(low, 1.0))[0]
        return histogram("Confidence", counts.tolist(), low, 1.0, x="probability", mark=SURE, said="abstain below")
    high = max(1.2 * VAGUE, float(np.quantile(-confidence, 0.99)))
    counts = np.histogram(np.minimum(-confidence, high), bins=BINS, range=(0.0, high))[0]
    x = "spread, in the target's own"
    return histogram("Spread", counts.tolist(), 0.0, high, x=x, mark=VAGUE, said="abstain above")


def cards(fitted: Fitted, rows: Rows, imputed: Imputations) -> tuple[list[Card], list[Card]]:
    """The rows most sure of, the surest first and a few a class, and those least sure of, the least sure first."""
    kept = [s for s in fitted.samples if 0 <= s.row < len(rows.ids)]
    ordered = sorted(kept, key=lambda s: -imputed.confidence[s.row])
    half = (len(ordered) + 1) // 2
    ends = _varied(ordered[:half], fitted, imputed), ordered[half:][::-1]
    most, least = ([_card(sample, fitted, rows, imputed) for sample in end] for end in ends)
    return most, least


def _varied(ordered: list[Sample], fitted: Fitted, imputed: Imputations) -> list[Sample]:
    """Those of them that are among the first few of their class."""
    if fitted.classes is None:
        return ordered
    seen = Counter[int]()
    kept = []
    for sample in ordered:
        label = int(imputed.labels[sample.row])
        seen[label] += 1
        kept += [sample] if seen[label] <= ALIKE else []
    return kept


def _card(sample: Sample, fitted: Fitted, rows: Rows, imputed: Imputations) -> Card:
    fields = list((sample.fields or {}).items())
    return Card(
        id=rows.ids[sample.row],
        labels=_labels(sample.row, fitted, imputed),
        sure=_sure(sample.row, fitted, imputed),
        abstain=bool(imputed.abstain[sample.row]),
        picture=data_uri(sample.picture),
        fields=[(name, shortened(str(value))) for name, value in fields[:FIELDS]],
        more=max(0, len(fields) - FIELDS),
    )


def _labels(row: int, fitted: Fitted, imputed: Imputations) -> list[str]:
    if fitted.classes is not None:
        return [fitted.classes[int(imputed.labels[row])]]
    values = imputed.labels[row]
    if len(values) == 1:
        return [significant(float(values[0]), 4)]
    assert imputed.spread is not None
    triples = zip(fitted.targets, values, imputed.spread[row], strict=True)
    pairs = [f"{name} {significant(float(v))} ± {significant(float(s), 2)}" for name, v, s in triples]
    return pairs[:LABELS] + [f"and {len(pairs) - LABELS} more"] * (len(pairs) > LABELS)


def _sure(row: int, fitted: Fitted, imputed: Imputations) -> str:
    confidence = float(imputed.confidence[row])
    if fitted.classes is not None:
        said = f"{confidence:.3f}" if confidence < CERTAIN else "> 0.999"
        return f"probability {said}" if imputed.imputed[row] else "given"
    assert imputed.spread is not None
    if imputed.spread.shape[1] == 1:
        return f"± {significant(float(imputed.spread[row, 0]), 2)}"
    return f"spread {significant(-confidence, 2)} × that of the labelled targets"


def data_uri(picture: str | None) -> str | None:
    """A PNG in base64 as an address, where it is one."""
    try:
        raw = base64.b64decode(picture or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    return "data:image/png;base64," + base64.b64encode(raw).decode() if raw.startswith(PNG) else None
