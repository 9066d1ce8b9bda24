"""What a colleague needs first: how many labels are usable, how many are wrong, what to label."""

from __future__ import annotations

import numpy as np

from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.formatting import format_names, format_percent, format_significant, pluralize
from l2i.fit.impute import MAX_RELATIVE_STD, MIN_CONFIDENCE, Imputations

NUM_NEXT = 5  # rows to label next


def build_lead(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> list[str]:
    """Return sentences about the imputed labels, if there are any."""
    count = int(imputations.is_imputed.sum())
    if not count:
        return ["All rows are labelled, so no labels were imputed."]
    usable = imputations.num_usable
    noun = "labels" if fitted.classes is not None else "values"
    sentences = [
        f"{usable:,} of the {pluralize(count, 'imputed ' + noun[:-1])} are usable "
        f"({_describe_rule(fitted, rows)})."
        if count > 1
        else f"The imputed {noun[:-1]} is {'' if usable else 'not '}usable."
    ]
    if usable:
        sentences.append(_describe_errors(fitted, imputations))
    return sentences + _name_next(rows, imputations)


def _describe_rule(fitted: FitArtifact, rows: FitRows) -> str:
    rule = f"confidence of {MIN_CONFIDENCE:g} or more"
    if fitted.classes is None:
        rule = f"predicted std of at most {MAX_RELATIVE_STD:g} × the target's"
    is_foreign = rows.is_foreign is not None and bool(rows.is_foreign.any())
    return f"{rule}, and like the labelled rows" if is_foreign else rule


def _describe_errors(fitted: FitArtifact, imputations: Imputations) -> str:
    wrong = imputations.num_expected_wrong
    if wrong is not None:
        share = format_percent(wrong / imputations.num_usable)
        return f"Expect about {wrong:,.0f} of them to be wrong ({share})."
    assert imputations.predictive_std is not None
    is_usable = imputations.is_imputed & ~imputations.abstain
    std = np.sqrt(np.square(imputations.predictive_std[is_usable]).mean(axis=0))
    parts = [
        f"{'' if len(std) == 1 else name + ' '}± {format_significant(float(value), 2)}"
        for name, value in zip(fitted.targets, std, strict=False)
    ]
    return f"Expect errors of about {', '.join(parts[:4])} (one standard deviation)."


def _name_next(rows: FitRows, imputations: Imputations) -> list[str]:
    """Name the least certain rows, if some are less certain than others."""
    imputed = np.flatnonzero(imputations.is_imputed)
    confidence = imputations.confidence[imputed]
    if len(imputed) <= 1 or np.ptp(confidence) == 0:
        return []
    order = imputed[np.argsort(confidence, kind="stable")[:NUM_NEXT]]
    return [f"Label these rows next: {format_names([rows.ids[row] for row in order])}."]
