"""Candidates for features of images: clusters, self-trained least squares, and which there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import RidgeClassifierCV

from l2i.candidates.base import Candidate, Level, TableRows, predict
from l2i.candidates.catalog import DEFAULTS, check_names, list_candidates
from l2i.candidates.features import Clusters, SoftSelfTraining, fit_least_squares
from l2i.candidates.models import RIDGE_PENALTIES
from l2i.candidates.selection import Selection, select_candidate
from l2i.candidates.storage import build_model, describe_model
from l2i.config import Run
from l2i.data.transforms.image import ColumnLayout
from l2i.errors import InputError

WIDTH, CLASSES = 12, 3
SOFT = SoftSelfTraining(name="soft-self-training", title="", penalty=30.0)


def make_rows(
    labeled: int = 2, unlabeled: int = 200, *, noise: float = 1.5, seed: int = 0
) -> tuple[TableRows, np.ndarray]:
    """Rows whose classes lie in directions, and the classes of the unlabelled ones."""
    rng = np.random.default_rng(seed)
    directions = 3 * np.linalg.qr(rng.normal(size=(WIDTH, CLASSES)))[0].T
    y = np.repeat(np.arange(CLASSES), labeled)
    hidden = rng.integers(0, CLASSES, size=unlabeled)
    x, other = (directions[c] + noise * rng.normal(size=(len(c), WIDTH)) for c in (y, hidden))
    rows = TableRows(
        x=x.astype(np.float32),
        y=y,
        weight=np.ones(len(y)),
        unlabeled=other.astype(np.float32),
        unlabeled_weight=np.ones(unlabeled),
        num_classes=CLASSES,
    )
    return rows, hidden


def error(candidate: Candidate, rows: TableRows, hidden: np.ndarray) -> float:
    outputs = predict(candidate.fit(rows, 0), rows.unlabeled)
    return float((outputs.argmax(axis=1) != hidden).mean())


@pytest.mark.parametrize("candidate", [Clusters(), SOFT], ids=lambda c: c.name)
def test_unlabelled_rows_help(candidate: Candidate) -> None:
    """With two labels a class: far fewer errors than the labels alone make."""
    errors = []
    for seed in range(8):
        rows, hidden = make_rows(seed=seed)
        alone = fit_least_squares(rows, 0)
        wrong = (predict(alone, rows.unlabeled).argmax(axis=1) != hidden).mean()
        errors.append((error(candidate, rows, hidden), wrong))
    ours, labels_alone = np.mean(errors, axis=0)
    assert ours < 0.8 * labels_alone
    assert candidate.level == Level.SEMI_SUPERVISED


def test_clusters_are_what_an_independent_loop_finds() -> None:
    rows, _ = make_rows(seed=3)
    labeled, unlabeled = (
        [row / np.sqrt((row**2).sum()) for row in x.astype(np.float64)]
        for x in (rows.x, rows.unlabeled)
    )
    centers = []
    for k in range(CLASSES):
        total = sum(row for row, label in zip(labeled, rows.y, strict=True) if label == k)
        centers.append(total / np.sqrt((total**2).sum()))
    for _ in range(20):
        shares = [softmax([20 * row @ center for center in centers]) for row in unlabeled]
        moved = []
        for k in range(CLASSES):
            total = 5 * sum(row for row, label in zip(labeled, rows.y, strict=True) if label == k)
            total = total + sum(s[k] * row for s, row in zip(shares, unlabeled, strict=True))
            moved.append(total / np.sqrt((total**2).sum()))
        centers = moved
    expected = [[20 * row @ center for center in centers] for row in unlabeled]
    actual = predict(Clusters().fit(rows, 0), rows.unlabeled)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_soft_self_training_is_what_solving_anew_each_round_gives() -> None:
    rows, _ = make_rows(seed=4)
    x = np.concatenate([rows.x, rows.unlabeled]).astype(np.float64)
    count, num_unlabeled = len(rows.x), len(rows.unlabeled)
    weight = np.diag([1.0] * count + [count / num_unlabeled] * num_unlabeled)
    imputed = softmax(predict(Clusters().fit(rows, 0), rows.unlabeled), axis=1)
    design = np.column_stack([x, np.ones(len(x))])  # the last column, of the bias, is not shrunk
    penalty = np.diag([30.0] * WIDTH + [0.0])
    for _ in range(5):
        targets = np.concatenate([np.eye(CLASSES)[rows.y], imputed])
        found = np.linalg.solve(design.T @ weight @ design + penalty, design.T @ weight @ targets)
        imputed = softmax(design[count:] @ found / 0.05, axis=1)
    actual = predict(SOFT.fit(rows, 0), rows.unlabeled)
    np.testing.assert_allclose(actual, design[count:] @ found / 0.1, atol=1e-6)


def test_least_squares_are_scikit_learns() -> None:
    rows, _ = make_rows(labeled=8)
    ours = predict(fit_least_squares(rows, 0), rows.unlabeled).argmax(axis=1)
    theirs = RidgeClassifierCV(RIDGE_PENALTIES).fit(rows.x, rows.y).predict(rows.unlabeled)
    assert (ours == theirs).mean() > 0.97  # theirs has targets of −1 and 1, and another penalty


@pytest.mark.parametrize("fit", [Clusters().fit, SOFT.fit, fit_least_squares])
def test_a_class_without_labels_in_a_fold_never_wins(fit) -> None:  # type: ignore[no-untyped-def]
    rows, _ = make_rows(labeled=4)
    outputs = predict(fit(rows.take(np.flatnonzero(rows.y != 1)), 0), rows.unlabeled)
    assert np.isfinite(outputs).all()
    assert set(outputs.argmax(axis=1)) == {0, 2}


def test_a_class_without_labels_takes_no_part_in_the_clusters() -> None:
    rows, _ = make_rows(labeled=4)
    without = rows.take(np.flatnonzero(rows.y != 1))
    two = TableRows(**{**without.__dict__, "y": without.y // 2, "num_classes": 2})
    outputs = predict(Clusters().fit(without, 0), rows.unlabeled)[:, [0, 2]]
    expected = predict(Clusters().fit(two, 0), rows.unlabeled)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)


@pytest.mark.parametrize("candidate", [Clusters(), SOFT], ids=lambda c: c.name)
def test_weights_count_as_repeated_rows(candidate: Candidate) -> None:
    rows, _ = make_rows(labeled=3)
    twice = np.r_[np.arange(len(rows.x)), 0, 1]
    repeated = predict(candidate.fit(rows.take(twice), 0), rows.unlabeled)
    weight = np.bincount(twice).astype(float)
    weighted = TableRows(**{**rows.__dict__, "weight": weight})
    actual = predict(candidate.fit(weighted, 0), rows.unlabeled)
    np.testing.assert_allclose(actual, repeated, rtol=1e-4, atol=1e-4)


def test_saved_clusters_are_the_same_model() -> None:
    rows, _ = make_rows()
    model = Clusters().fit(rows, 0)
    description, tensors = describe_model(model)
    sizes = {"num_inputs": WIDTH, "num_outputs": CLASSES, "is_classifier": True}
    again = build_model(description, tensors, **sizes)
    np.testing.assert_allclose(predict(again, rows.x), predict(model, rows.x), rtol=1e-12)
    scaled = 100 * torch.from_numpy(rows.x)
    by_direction = model(torch.from_numpy(rows.x))
    torch.testing.assert_close(model(scaled), by_direction, rtol=1e-5, atol=1e-5)


def test_features_have_candidates_of_their_own() -> None:
    layout = ColumnLayout(torch.arange(WIDTH), torch.ones(WIDTH, dtype=torch.bool), WIDTH)
    run, args = Run(), (layout, "classification", ())
    names = [c.name for c in list_candidates(run, *args, "features")]
    assert {"clusters", "soft-self-training", "least-squares", "network"} <= set(names)
    assert not {"extra-trees", "boosted-trees", "gaussian-process", "network-swaps"} & set(names)
    assert not {"clusters", "least-squares"} & {c.name for c in list_candidates(run, *args)}
    targets = [c.name for c in list_candidates(run, layout, "regression", (), "features")]
    assert targets[:2] == ["mean", "ridge"]
    assert "clusters" not in targets
    with pytest.raises(InputError, match="none of these candidates suits the data: extra-trees"):
        check_names(("extra-trees",), "classification", "features")
    with pytest.raises(InputError, match="none of these candidates suits the data: clusters"):
        check_names(("clusters",), "classification", "columns")


def select(rows: TableRows, default: tuple[str, ...]) -> Selection:
    layout = ColumnLayout(torch.arange(WIDTH), torch.ones(WIDTH, dtype=torch.bool), WIDTH)
    candidates = list_candidates(None, layout, "classification", (), "features")
    return select_candidate(candidates, rows, 0, default=default)


def test_features_are_fitted_by_the_default_average_unless_another_is_clearly_better() -> None:
    default = DEFAULTS["features"]
    rows, hidden = make_rows(labeled=8)
    usual = select(rows, default)
    assert usual.chosen == default and usual.name == "average"
    outputs = predict(usual.fit(), rows.unlabeled)
    assert (outputs.argmax(axis=1) != hidden).mean() < 0.4
    # labels that nothing but the nearest row tells: islands of two rows
    rng = np.random.default_rng(0)
    islands = 6 * rng.normal(size=(60, WIDTH)).repeat(3, axis=0)
    x = (islands + 0.01 * rng.normal(size=islands.shape)).astype(np.float32)
    y = rng.integers(0, CLASSES, size=60).repeat(3)
    ones = np.ones(len(x))
    odd = TableRows(x=x, y=y, weight=ones, unlabeled=x, unlabeled_weight=ones, num_classes=CLASSES)
    chosen = select(odd, default)
    assert len(chosen.chosen) == 1 and chosen.chosen[0] not in default
    losses = {name: score.loss for name, score in chosen.scores.items()}
    assert chosen.chosen[0] == min(losses, key=lambda name: losses[name])


def test_a_default_that_was_not_tried_decides_nothing() -> None:
    rows, _ = make_rows(labeled=8)
    assert select(rows, ("logistic-regression", "unknown")).chosen == select(rows, ()).chosen
