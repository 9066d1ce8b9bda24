"""The verdict in words: do the unlabelled rows help, does learning to impute help, and how sure is that."""

from __future__ import annotations

from typing import Literal, NamedTuple

from l2i.own.fitted import Candidate, Fitted, Rows
from l2i.own.reading import counted
from l2i.report.paired import FEW_TARGETS, Estimate, difference, errors_of, figures, known
from l2i.report.words import significant, told

Tone = Literal["good", "bad", "open"]


class Sentence(NamedTuple):
    """What is claimed, and the facts that it rests on."""

    claim: str
    facts: str
    tone: Tone = "open"

    def __str__(self) -> str:
        return f"{self.claim}: {self.facts}."


class Verdict(NamedTuple):
    """Sentences in the order in which they are read."""

    sentences: list[Sentence]
    chosen: str
    footnotes: list[str]


def verdict(fitted: Fitted, rows: Rows) -> Verdict:
    """What the comparison came to, on the test rows or, where there are none, on the validation rows."""
    part = next((p for p in ("test", "validation") if known(fitted, rows, p).any()), None)
    if part is None:
        nothing = Sentence("Nothing can be compared", "no rows with known labels were held out")
        return Verdict([nothing], _chosen(fitted), [])
    supervised, baseline, l2i = (_trained(fitted, rows, name) for name in ("supervised", "baseline", "l2i"))
    semi = sorted((c for c in (baseline, l2i) if c), key=lambda c: c.rank)
    sentences = [
        _compared("the unlabelled rows", "help", semi[0] if semi else None, supervised, fitted, rows, part),
        _compared("learning to impute", "helps", l2i, baseline, fitted, rows, part),
    ]
    return Verdict(sentences, _chosen(fitted), _footnotes(fitted, part, both=baseline is not None and l2i is not None))


def _trained(fitted: Fitted, rows: Rows, name: str) -> Candidate | None:
    return fitted.candidate(name) if name in rows.outputs else None


def _compared(
    what: str, helps: str, ours: Candidate | None, theirs: Candidate | None, fitted: Fitted, rows: Rows, part: str
) -> Sentence:
    """A sentence on one question."""
    if ours is None or theirs is None:
        return Sentence(f"Whether {what} {helps} was not compared", _missing(what, ours, theirs))
    mask, classes = known(fitted, rows, part), fitted.classes is not None
    e_ours, e_theirs = (errors_of(fitted, rows, c.name, mask) for c in (ours, theirs))
    found = difference(e_ours, e_theirs, classes=classes)
    both = figures(fitted, rows, part)
    facts = _facts(ours.title, theirs.title, both[ours.name], both[theirs.name], found, part, classes=classes)
    claim, tone = _claim(what, helps, found)
    return Sentence(claim, facts, tone)


def _missing(what: str, ours: Candidate | None, theirs: Candidate | None) -> str:
    if what == "the unlabelled rows":
        return "no network was trained on " + ("the labelled rows alone" if theirs is None else "the unlabelled rows")
    return "no network was trained " + ("without it" if theirs is None and ours is not None else "with it")


def _claim(what: str, helps: str, found: Estimate) -> tuple[str, Tone]:
    """What is established, and no more."""
    if not found.established:
        return f"Whether {what} {helps} cannot be told", "open"
    subject, better = what[0].upper() + what[1:], found.value < 0
    hurts = "hurts" if helps == "helps" else "hurt"
    return f"{subject} {helps if better else hurts}", "good" if better else "bad"


def _facts(ours: str, theirs: str, a: Estimate, b: Estimate, found: Estimate, part: str, *, classes: bool) -> str:
    """Both figures and their difference."""
    where = counted(a.rows, f"{part} row")
    if classes:
        pair = f"{ours} is wrong on {a.value:.1f} % of {where}, {theirs} on {b.value:.1f} %"
        size, way = f"{abs(found.value):.1f} points", "fewer" if found.value < 0 else "more"
    else:
        pair = f"{ours} has an RMSE of {significant(a.value)} on {where}, {theirs} of {significant(b.value)}"
        size, way = significant(abs(found.value), 2), "lower" if found.value < 0 else "higher"
    error = f"± {found.error:.1f}" if classes else f"± {significant(found.error, 2)}"
    if found.value == found.error == 0:
        return f"{pair} (no difference on any row)"
    told_so = "no difference" if found.value == 0 else f"{size} {way}"
    few = not classes and found.rows < FEW_TARGETS
    too_few = f"under {FEW_TARGETS} rows nothing is claimed" if few else "the rows are too few to tell it from chance"
    doubt = "" if found.established or found.value == 0 else f"; {too_few}"
    return f"{pair} ({told_so}, {error}{doubt})"


def _chosen(fitted: Fitted) -> str:
    """Which candidate was chosen, and why."""
    best, others = fitted.best, [c for c in fitted.candidates if c.name != fitted.chosen]
    value = f"{fitted.figure_name} {told(best.validation, fitted.figure_name)}"
    if not others:
        return f"{best.title} was the only one trained ({value} on the validation rows)."
    least = min(others, key=lambda c: c.rank)
    if least.validation < best.validation:
        return (
            f"{best.title} was chosen: its figure on the validation rows ({value}) is within a standard error of the "
            f"best, {least.title}'s {told(least.validation, fitted.figure_name)}, and it has learned from more."
        )
    if least.validation == best.validation:
        return f"{best.title} was chosen: of equal figures on the validation rows ({value}), it has learned from more."
    return f"{best.title} was chosen: its figure on the validation rows ({value}) is the best of {1 + len(others)}."


def _footnotes(fitted: Fitted, part: str, *, both: bool) -> list[str]:
    notes = ["± is one standard error of the difference, paired row by row; it counts from two of them on."]
    if both:
        notes.append("The unlabelled rows are judged by the better of the two networks on the validation rows.")
    if part == "validation":
        notes.append(
            "There are no test rows. These are the validation rows, on which the choice was made: expect somewhat "
            "larger errors on new ones."
        )
    if fitted.classes is None and fitted.figure_name != "RMSE":
        notes.append(f"The difference is one of RMSE, in the targets' units; the {fitted.figure_name} is below.")
    return notes
