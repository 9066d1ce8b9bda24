"""How sure the imputed labels are, and the rows most and least sure of."""

from __future__ import annotations

import base64
import binascii
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
FIELDS, LABELS = 12, 4  # columns, and targets, that a card has room for
OFTEN = 5  # changes from which labels are counted together


class Card(NamedTuple):
    """A row as it is shown."""

    id: str
    label: str
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
    facts = [
        (f"{blank.sum():,}", "labels are imputed"),
        (share(float(imputed.abstain[blank].mean())), f"of them had better be left out: {limit}"),
        (share(float((changes > 0).mean())), f"of them changed over {counted(fitted.snapshots, 'evaluation')}"),
    ]
    charts = [_confidences(fitted, imputed), _changes(changes)]
    return Sureness(facts, charts) if moved else Sureness(facts[:2], charts[:1])


def _changes(changes: NDArray[np.int64]) -> Chart:
    capped = np.bincount(np.minimum(changes, OFTEN), minlength=OFTEN + 1).tolist()
    counts = {(f"{k}" if k < OFTEN else f"{k}+"): n for k, n in enumerate(capped)}
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
    """The rows most sure of, the surest first, and those least sure of, the least sure first."""
    kept = [s for s in fitted.samples if 0 <= s.row < len(rows.ids)]
    ordered = sorted(kept, key=lambda s: -imputed.confidence[s.row])
    half = (len(ordered) + 1) // 2
    made = [_card(sample, fitted, rows, imputed) for sample in ordered]
    return made[:half], made[half:][::-1]


def _card(sample: Sample, fitted: Fitted, rows: Rows, imputed: Imputations) -> Card:
    fields = list((sample.fields or {}).items())
    return Card(
        id=rows.ids[sample.row],
        label=_label(sample.row, fitted, imputed),
        sure=_sure(sample.row, fitted, imputed),
        abstain=bool(imputed.abstain[sample.row]),
        picture=data_uri(sample.picture),
        fields=[(name, shortened(str(value))) for name, value in fields[:FIELDS]],
        more=max(0, len(fields) - FIELDS),
    )


def _label(row: int, fitted: Fitted, imputed: Imputations) -> str:
    if fitted.classes is not None:
        return fitted.classes[int(imputed.labels[row])]
    values = imputed.labels[row]
    if len(values) == 1:
        return significant(float(values[0]), 4)
    assert imputed.spread is not None
    triples = zip(fitted.targets, values, imputed.spread[row], strict=True)
    pairs = [f"{name} {significant(float(v))} ± {significant(float(s), 2)}" for name, v, s in triples]
    return ", ".join(pairs[:LABELS]) + (", …" if len(pairs) > LABELS else "")


def _sure(row: int, fitted: Fitted, imputed: Imputations) -> str:
    confidence = float(imputed.confidence[row])
    if fitted.classes is not None:
        return f"probability {min(confidence, 0.999):.3f}" if imputed.imputed[row] else "given"
    assert imputed.spread is not None
    if imputed.spread.shape[1] == 1:
        return f"± {significant(float(imputed.spread[row, 0]), 2)}"
    return f"at most {-confidence:.2f} of a target's own spread"


def data_uri(picture: str | None) -> str | None:
    """A PNG in base64 as an address, where it is one."""
    try:
        raw = base64.b64decode(picture or "", validate=True)
    except (binascii.Error, ValueError):
        return None
    return "data:image/png;base64," + base64.b64encode(raw).decode() if raw.startswith(PNG) else None
