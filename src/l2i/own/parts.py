"""Which labelled rows are trained on, which are chosen by and which are measured on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2i.errors import InputError
from l2i.shares import Count, resolved

FEW = 40  # labelled rows, up to which classes may have a row each
MOST = 2000  # rows set aside by a share: more would tell little more


def parts_of(given: NDArray[Any], *, validation: Count, test: Count, seed: int) -> NDArray[np.str_]:
    """The part of each row: unlabeled, labeled, validation or test; `given` as in `Rows`.

    Rows are set aside such that classes, or small and large targets, keep their shares, and one row of each class at
    least is trained on.
    """
    classes = given.ndim == 1
    known = np.flatnonzero(given >= 0 if classes else ~np.isnan(given).any(axis=1))
    parts = np.where(np.isin(np.arange(len(given)), known), "labeled", "unlabeled").astype("<U10")
    wanted = {name: _count(share, len(known), name) for name, share in (("validation", validation), ("test", test))}
    generator = np.random.default_rng(seed)
    spare = generator.permutation(known)
    if classes:
        _, first = np.unique(given[spare], return_index=True)
        spare = np.delete(spare, first)  # one of each class stays
    spare = spare[np.argsort(given[spare] if classes else given[spare, 0], kind="stable")]
    total = sum(wanted.values())
    different = len(np.unique(given[known]))
    if classes and 2 * different > len(known) > FEW:
        raise InputError(
            f"the target has {different:,} classes in {len(known):,} labelled rows: is it the right column? "
            "For numbers, give --task regression"
        )
    if total > len(spare) - (not classes):
        raise InputError(
            f"{len(known):,} labelled rows are too few to set {wanted['validation']} aside to choose by and "
            f"{wanted['test']} to measure on; label more, or lower --validation and --test"
        )
    if not total:
        return parts
    taken = spare[((np.arange(total) + generator.random()) * len(spare) / total).astype(int)]  # evenly spread
    is_test = (np.arange(total) * wanted["test"]) // total != (np.arange(1, total + 1) * wanted["test"]) // total
    parts[taken[is_test]], parts[taken[~is_test]] = "test", "validation"
    return parts


def _count(asked: Count, known: int, name: str) -> int:
    if not asked >= 0 or (isinstance(asked, float) and asked >= 1):  # not a number, too
        raise InputError(f"--{name} {asked} must be a whole number of rows, or a share from 0.0 to less than 1.0")
    return min(max(1, resolved(asked, known)), MOST) if isinstance(asked, float) and asked else int(asked)
