"""What a colleague needs first: how many labels are usable, how many are wrong, what to label."""

from __future__ import annotations

import numpy as np

from l2i.fit.artifact import FitArtifact, FitRows
from l2i.fit.formatting import format_names, format_percent, format_significant, pluralize
from l2i.fit.impute import MAX_RELATIVE_STD, MIN_CONFIDENCE, Imputations
from l2i.fit.report.verdict import CONSTANT_NAMES, MAX_SHIFT_AUC, find_doubt

NUM_NEXT = 5  # rows to label next


def build_lead(fitted: FitArtifact, rows: FitRows, imputations: Imputations) -> list[str]:
    """Return sentences about the imputed labels, if there are any."""
    count = int(imputations.is_imputed.sum())
    if not count:
        return ["All rows are labelled, so no labels were imputed."]
    doubt = find_doubt(fitted, rows)
    if doubt is not None:
        more = " Label more rows first." if fitted.selected_name not in CONSTANT_NAMES else ""
        return [f"Do not use the imputed labels.{more}", *_name_next(rows, imputations)]
    usable = imputations.num_usable
    noun = "label" if fitted.classes is not None else "value"
    verb = "is" if usable == 1 else "are"
    sentences = [
        f"{usable:,} of the {pluralize(count, 'imputed ' + noun)} {verb} usable "
        f"({_describe_rule(fitted, rows)})."
        if count > 1
        else f"The imputed {noun} is {'' if usable else 'not '}usable."
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
        amount = f"about {wrong:,.0f}" if wrong >= 1 else "fewer than one"
        return f"Expect {amount} of them to be wrong ({share}){_qualify(fitted)}."
    assert imputations.predictive_std is not None
    is_usable = imputations.is_imputed & ~imputations.abstain
    std = np.sqrt(np.square(imputations.predictive_std[is_usable]).mean(axis=0))
    parts = [
        f"{'' if len(std) == 1 else name + ' '}± {format_significant(float(value), 2)}"
        for name, value in zip(fitted.targets, std, strict=False)
    ]
    errors = f"Expect errors of about {', '.join(parts[:4])} (one standard deviation)"
    if not fitted.interval_factors:
        return f"{errors}{_qualify(fitted)}."
    name = fitted.targets[0]
    columns = (
        f"{name}_low and {name}_high" if len(fitted.targets) == 1 else "the columns …_low, …_high"
    )
    return f"{errors}{_qualify(fitted)}; 90 % of the true values lie between {columns}."


def _qualify(fitted: FitArtifact) -> str:
    """Say that expectations hold for rows like the labelled ones, if the others differ."""
    auc = fitted.covariate_shift_auc
    if auc is None or auc <= MAX_SHIFT_AUC:
        return ""
    return ", if they are like the labelled rows; many are not (see the warnings)"


def _name_next(rows: FitRows, imputations: Imputations) -> list[str]:
    """Name the least certain rows, if some are less certain than others."""
    imputed = np.flatnonzero(imputations.is_imputed)
    confidence = imputations.confidence[imputed]
    if len(imputed) <= 1 or np.ptp(confidence) == 0:
        return []
    order = imputed[np.argsort(confidence, kind="stable")[:NUM_NEXT]]
    return [f"Label these rows next: {format_names([rows.ids[row] for row in order])}."]
