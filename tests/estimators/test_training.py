"""What an estimator trains, keeps and predicts with."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.utils import get_tags
from torch import nn

from l2i import InputError, L2IClassifier, L2IRegressor
from l2i.errors import NonFiniteCost
from l2i.estimators import base

X = np.random.default_rng(0).normal(size=(30, 3))
TRUTH = (X[:, 0] > 0).astype(int)
Y = np.where(np.arange(30) < 14, TRUTH, -1)
VALUES = 100 + 10 * X[:, 0]
TARGETS = np.where(np.arange(30) < 14, VALUES, np.nan)
QUICK = {"steps": 5, "random_state": 0}


@pytest.fixture
def spied_trainers(monkeypatch):
    """The trainers of all fits; they are the real ones."""
    observed = []

    class Spy(base.Trainer):
        def __init__(self, run, *, splits, model):
            super().__init__(run, splits=splits, model=model)
            observed.append(self)

    monkeypatch.setattr(base, "Trainer", Spy)
    return observed


def weights_of(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_the_network_that_is_kept_is_the_averaged_one(spied_trainers):
    model = L2IClassifier(**QUICK, learning_rate=0.05).fit(X, Y)
    (trainer,) = spied_trainers
    assert torch.equal(weights_of(model.model_), weights_of(trainer.teacher.model))
    assert not torch.allclose(weights_of(model.model_), weights_of(trainer.model), atol=1e-3)
    assert not model.model_.training
    assert not any(parameter.requires_grad for parameter in model.model_.parameters())


def test_probabilities_are_the_softmax_of_the_network_of_standardised_features():
    model = L2IClassifier(**QUICK).fit(X, Y)
    inputs = torch.as_tensor((X - X.mean(axis=0)) / X.std(axis=0)).float().double()
    logits = copy.deepcopy(model.model_).double()(inputs)
    expected = torch.softmax(logits, dim=1).numpy()
    assert_allclose(model.predict_proba(X), expected, rtol=1e-6)
    assert_array_equal(model.predict(X), expected.argmax(axis=1))
    assert_allclose(model.label_distributions_[Y < 0], expected[Y < 0], rtol=1e-6)
    assert_array_equal(model.label_distributions_[Y >= 0], np.eye(2)[Y[Y >= 0]])
    assert_array_equal(model.transduction_, np.where(Y < 0, expected.argmax(axis=1), Y))


def test_probabilities_are_in_the_order_of_classes_and_labels_are_theirs():
    words = np.array(["yes", "no"], dtype=object)[TRUTH]  # class 0 of TRUTH is the later word
    y = np.where(Y < 0, None, words)
    model = L2IClassifier(steps=80, random_state=0).fit(X, y)
    assert model.classes_.tolist() == ["no", "yes"]
    best = model.predict_proba(X).argmax(axis=1)
    assert_array_equal(model.predict(X), np.array(["no", "yes"])[best])
    assert (model.predict(X) == words).mean() > 0.8
    assert_array_equal(model.transduction_[:14], words[:14])
    assert_array_equal(model.label_distributions_[:14, 0], words[:14] == "no")


def test_given_labels_stay_even_where_the_network_says_otherwise():
    y = Y.copy()
    y[:14] = np.arange(14) % 2  # labels that nothing tells
    model = L2IClassifier(steps=1, random_state=0).fit(X, y)
    assert (model.predict(X[:14]) != y[:14]).any()
    assert_array_equal(model.transduction_[:14], y[:14])
    targets = np.where(np.arange(30) < 14, 1e3 * (np.arange(30) % 2), np.nan)
    regressor = L2IRegressor(**QUICK).fit(X, targets)
    assert_array_equal(regressor.transduction_[:14], targets[:14])
    assert_allclose(regressor.transduction_[14:], regressor.predict(X[14:]), rtol=1e-9)


def test_predicted_targets_are_in_their_units():
    """Outputs are standardised by mean and std of the labelled targets alone."""
    model = L2IRegressor(**QUICK).fit(X, np.column_stack([TARGETS, 1e6 - 1000 * TARGETS]))
    labeled = np.column_stack([VALUES, 1e6 - 1000 * VALUES])[:14]
    assert_allclose(model.target_mean_, labeled.mean(axis=0), rtol=1e-6)
    assert_allclose(model.target_std_, labeled.std(axis=0), rtol=1e-4)
    inputs = torch.as_tensor((X - X.mean(axis=0)) / X.std(axis=0)).float().double()
    outputs = copy.deepcopy(model.model_).double()(inputs).numpy()
    expected = outputs * labeled.std(axis=0) + labeled.mean(axis=0)
    assert_allclose(model.predict(X), expected, rtol=1e-5)


def with_dropout(shape, outputs):
    return nn.Sequential(
        nn.Linear(shape[0], 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, outputs)
    )


def test_a_seed_decides_what_dropout_draws_whatever_was_drawn_before():
    model = L2IClassifier(model=with_dropout, **QUICK)
    torch.manual_seed(1)
    first = model.fit(X, Y).predict_proba(X)
    torch.manual_seed(2)
    assert_array_equal(model.fit(X, Y).predict_proba(X), first)
    other = L2IClassifier(model=with_dropout, steps=5, random_state=1)
    assert not np.allclose(other.fit(X, Y).predict_proba(X), first)
    assert_array_equal(model.predict_proba(X), model.predict_proba(X))  # none is dropped now


def test_a_seed_decides_the_first_weights_of_a_network_of_ones_own():
    made = []

    def make(shape, outputs):
        made.append(with_dropout(shape, outputs))
        return copy.deepcopy(made[-1])

    for seed in (0, 0, 1):
        torch.manual_seed(len(made))  # whatever was drawn before
        L2IClassifier(model=make, steps=1, random_state=seed).fit(X, Y)
    first, again, other = map(weights_of, made)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_a_generator_as_random_state_draws_another_seed_each_time():
    state = np.random.RandomState(0)
    model = L2IClassifier(steps=1, random_state=state)
    assert model.fit(X, Y).run_.seed != model.fit(X, Y).run_.seed


def test_parameters_reach_the_run():
    model = L2IClassifier(
        "fixmatch",
        "mlp",
        impute=False,
        steps=4,
        batch_size=7,
        learning_rate=0.25,
        settings={"optim": {"ema_decay": 0.5}},
        device="cpu",
        random_state=3,
    ).fit(X, Y)
    run = model.run_
    assert (run.method.name, run.model.name, run.l2i.update) == ("fixmatch", "mlp", "off")
    assert (run.steps, run.optim.lr, run.optim.ema_decay, run.device) == (4, 0.25, 0.5, "cpu")
    assert (run.batch.labeled, run.batch.unlabeled, run.batch.holdout) == (7, 7, 7)
    assert run.seed == np.random.RandomState(3).randint(2**31 - 1)
    assert L2IClassifier("fixmatch", steps=1, random_state=0).fit(X, Y).run_.l2i.update != "off"


def test_the_run_is_chosen_by_how_many_rows_are_labelled_and_unlabelled():
    """Without --steps, 20 passes over 3,200 unlabelled rows would be 1,000 steps."""
    x = np.random.default_rng(0).normal(size=(3240, 1))
    y = np.where(np.arange(3240) < 40, np.arange(3240) % 2, -1)
    model = L2IClassifier("pseudo-label", settings={"steps": 1}).fit(x, y)
    assert model.run_.batch.labeled == 40
    estimator = L2IClassifier("pseudo-label")
    estimator.inputs_ = model.inputs_
    splits = estimator._make_splits(x, y, y < 0, np.ones(len(y)), 2)
    assert estimator._make_run(splits, 40.0, 0).steps == 1000


def test_costs_are_kept_at_twenty_intervals_and_at_the_end():
    steps = [row["step"] for row in L2IClassifier(steps=45, random_state=0).fit(X, Y).history_]
    assert steps == [*range(2, 45, 2), 45]


def test_progress_is_printed_only_if_verbose(capsys):
    L2IClassifier(**QUICK).fit(X, Y)
    assert capsys.readouterr().out == ""
    L2IClassifier(**QUICK, verbose=1).fit(X, Y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[-1].startswith("[L2IClassifier] step 5 of 5: c_t ") and "c_u" in lines[-1]


def test_auto_compares_candidates_of_tables_alone():
    enough = np.where(np.arange(30) < 20, TRUTH, -1)
    images = X[:, :, None, None].repeat(4, 2).repeat(4, 3)
    for model in (L2IClassifier("pseudo-label", **QUICK), L2IClassifier(model="mlp", **QUICK)):
        assert model.fit(X, enough).helped_ is None and model.run_.method.name == "pseudo-label"
    assert L2IClassifier(model=with_dropout, **QUICK).fit(X, enough).helped_ is None
    assert L2IClassifier(**QUICK).fit(images, enough).helped_ is None
    few = L2IClassifier(**QUICK).fit(X, Y)  # too few labels for networks in folds
    assert few.helped_ is None and few.run_.method.name == "pseudo-label"
    networks = L2IClassifier(**QUICK).fit(X, enough)
    assert networks.helped_ in (True, False)
    assert set(networks.validation_) == {"network", "semi-supervised", "l2i"}
    plain = L2IClassifier(candidates=["majority", "logistic-regression"]).fit(X, Y)
    assert plain.helped_ is False and plain.run_ is None and plain.history_ == []


def test_candidates_are_named_and_of_tables():
    with pytest.raises(InputError, match="unknown candidate 'extratrees'; perhaps you meant"):
        L2IClassifier(candidates=["extratrees"]).fit(X, Y)
    for options in ({"method": "vat"}, {"model": "mlp"}, {"impute": False}):
        with pytest.raises(InputError, match="leave out method, model and impute"):
            L2IClassifier(candidates=["majority"], **options).fit(X, Y)
    with pytest.raises(InputError, match="none of these candidates suits"):
        L2IClassifier(candidates=["ridge", "mean"]).fit(X, Y)


def test_with_a_label_a_class_the_plainest_model_is_fitted_without_folds():
    y = np.full(30, -1)
    y[[0, 1]] = [0, 1]
    model = L2IClassifier(random_state=0).fit(X, y)
    assert model.candidate_ == "logistic regression" and model.temperature_ == 1.0
    assert model.predict_proba(X).shape == (30, 2)


def test_probabilities_are_those_of_the_chosen_model_at_its_temperature():
    model = L2IClassifier(candidates=["majority", "extra-trees"], random_state=0).fit(X, Y)
    inputs = torch.as_tensor((X - X.mean(axis=0)) / X.std(axis=0)).float()
    logits = model.model_(inputs)
    expected = torch.softmax(logits / model.temperature_, dim=1).numpy()
    assert model.temperature_ != 1.0
    assert_allclose(model.predict_proba(X), expected, rtol=1e-6)


def test_no_further_candidate_is_begun_when_time_is_up():
    model = L2IClassifier(minutes=0.0, random_state=0).fit(X, Y)
    assert model.candidate_ == "majority class"
    assert set(model.skipped_.values()) >= {"no time was left"}


def test_weights_that_are_not_finite_are_refused():
    with pytest.raises(NonFiniteCost):
        L2IClassifier(**QUICK, learning_rate=1e30).fit(X, Y)


def test_rows_of_a_frame_are_told_apart_by_every_column():
    frame = pd.DataFrame({"n": [0.0, 0.0, 1.0, 1.0], "c": ["a", "b", "a", "b"]})
    model = L2IClassifier("supervised", steps=60, random_state=0, learning_rate=0.05)
    assert model.fit(frame, [0, 1, 0, 1]).predict(frame).tolist() == [0, 1, 0, 1]
    lists = frame.assign(c=[[1], [2], [3], [4]])
    with pytest.raises(InputError, match="contains lists or other objects"):
        L2IClassifier(**QUICK).fit(lists, [0, 1, 0, 1])


def test_scikit_learn_is_told_what_the_estimators_take():
    classifier, regressor = get_tags(L2IClassifier()), get_tags(L2IRegressor())
    for tags in (classifier, regressor):
        assert tags.input_tags.three_d_array and tags.input_tags.categorical
        assert tags.input_tags.string
    assert regressor.target_tags.multi_output and not classifier.target_tags.multi_output
    assert (classifier.estimator_type, regressor.estimator_type) == ("classifier", "regressor")
