"""A person's data made ready for training: encoded inputs of every row, and the split."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from l2i.config import Run
from l2i.data.draw import by_class, divided
from l2i.data.split import Samples, Splits
from l2i.data.words import Tokens
from l2i.errors import InputError
from l2i.options import FitOptions
from l2i.own.inputs import AnyInputs
from l2i.own.parts import parts_of
from l2i.own.prepare import BLANK, ImageInputs, TableInputs, learned
from l2i.own.prepare_text import TextInputs, cut_note
from l2i.own.reading import few
from l2i.own.source import Source


class Data(NamedTuple):
    """A source, made ready: encoded inputs of every row, and the split."""

    source: Source
    inputs: AnyInputs
    parts: NDArray[np.str_]
    x: Tensor
    y: Tensor
    splits: Splits
    offset: NDArray[np.float64]
    """[D], regression: what was taken off the targets, so that float32 holds their digits; [0] otherwise."""

    def rows_on(self, device: torch.device, dtype: torch.dtype) -> Samples:
        """Every row, on a device."""
        return Samples(self.x, self.y).to(device, dtype, whole=self.splits.whole)


def made_ready(source: Source, options: FitOptions, run: Run) -> Data:
    """Encode and split; what inputs look like is learned from rows that are trained on."""
    parts = parts_of(source.given, validation=options.validation, test=options.test, seed=run.seed)
    if not (parts == "validation").any():
        raise InputError("no rows are set aside to choose by; give --validation 1 or more, or a share such as 0.2")
    seen = np.isin(parts, ("labeled", "unlabeled"))
    if isinstance(source.inputs, np.ndarray):
        images = ImageInputs.learned(source.inputs[seen])
        return ready(source, images, parts, torch.from_numpy(images.grey(source.inputs)), run)
    source = without_blank(source, seen)
    if source.encoder is not None:
        return texts_ready(source, source.encoder, parts, seen, run)
    rows = source.inputs[seen]
    table = TableInputs(columns=tuple(learned(rows[name], kind) for name, kind in source.kinds.items()))
    return ready(source, table, parts, torch.from_numpy(table(source.inputs)), run)


def texts_ready(source: Source, encoder: str, parts: NDArray[np.str_], seen: NDArray[np.bool_], run: Run) -> Data:
    """Texts as token ids; how long they are, and which words say little, is learned from rows that are trained on."""
    assert not isinstance(source.inputs, np.ndarray)
    inputs = TextInputs.learned(source.inputs[seen], encoder, run.data.text)
    tokenizer = inputs.tokenizer
    ids = tokenizer(inputs.texts(source.inputs))
    source = dataclasses.replace(source, notes=(*source.notes, *cut_note(ids, tokenizer)))
    return ready(source, inputs, parts, ids, run, tokenizer.tokens(ids[torch.from_numpy(seen)]))


def without_blank(source: Source, seen: NDArray[np.bool_]) -> Source:
    """Without the columns that are blank in all rows that are trained on: nothing can be learned of them."""
    assert not isinstance(source.inputs, np.ndarray)
    rows = source.inputs[seen]
    blank = [name for name in source.kinds if (rows[name].isna() | (rows[name] == BLANK)).all()]
    if not blank:
        return source
    if len(blank) == len(source.kinds):
        raise InputError("no column holds anything in the rows that are trained on; give more rows")
    note = f"blank in all rows that are trained on, left out: {few(blank)}"
    kinds = {name: kind for name, kind in source.kinds.items() if name not in blank}
    return dataclasses.replace(source, kinds=kinds, inputs=source.inputs[list(kinds)], notes=(*source.notes, note))


def offset_of(targets: NDArray[Any], *, around: bool) -> NDArray[np.float64]:
    """The mean of each target, where targets are to be `around` 0: float32 has too few digits for a date in seconds."""
    return np.asarray(targets.mean(axis=0), dtype=np.float64) if around else np.zeros(1)


def ready(
    source: Source, inputs: AnyInputs, parts: NDArray[np.str_], x: Tensor, run: Run, tokens: Tokens | None = None
) -> Data:
    """The five sets of a run, and all rows in a piece."""
    classes = None if source.classes is None else len(source.classes)
    offset = offset_of(source.given[parts == "labeled"], around=classes is None and not source.points)
    y = torch.from_numpy(source.given - offset).float() if classes is None else torch.from_numpy(source.given).long()
    every = Samples(x, y)
    sets = {
        n: every.take(torch.from_numpy(np.flatnonzero(parts == n))) for n in np.unique([*parts, "unlabeled", "test"])
    }
    labeled = sets["labeled"]
    fitted = drawn = torch.arange(len(labeled.x))
    if run.l2i.holdout == "separate" and run.l2i.outer_update != "off":
        fitted, drawn = (torch.cat(groups) for groups in divided(by_class(labeled.y, fitted, classes)))
    splits = Splits(
        labeled=labeled.take(fitted),
        unlabeled=sets["unlabeled"],
        holdout=labeled.take(drawn),
        validation=sets["validation"],
        test=sets["test"],
        classes=classes,
        points=source.points,
        pixels=inputs.pixels if isinstance(inputs, ImageInputs) else None,
        columns=inputs.layout if isinstance(inputs, TableInputs) else None,
        tokens=tokens,
    )
    return Data(source, inputs, parts, x, y, splits, offset)
