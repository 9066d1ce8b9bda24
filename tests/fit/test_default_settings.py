"""The settings that are chosen where nobody says, as docs/reference/fit.md lists them."""

from __future__ import annotations

from typing import Any

import pytest

from l2i.config import replace
from l2i.fit.defaults import (
    Facts,
    choose_method,
    choose_num_evals,
    choose_run,
    choose_update,
    describe_run,
    explain_choices,
    with_steps,
)

TABLE: dict[str, Any] = {"shape": (30,), "classes": 3, "labeled": 50, "unlabeled": 300}
NUMBERS = {**TABLE, "classes": None}
IMAGES = {**TABLE, "shape": (3, 32, 32)}
POINTS = {**NUMBERS, "shape": (1, 60, 60), "has_points": True}
TEXTS = {**TABLE, "shape": (64,), "is_text": True, "weights": "bert"}


def run_for(known: dict[str, Any], **changes: Any) -> Any:
    return choose_run(Facts(**{**known, **changes}))[0]


@pytest.mark.parametrize(
    ("known", "unlabeled", "steps"),
    [
        (TABLE, 1599, 500),
        (TABLE, 3200, 1000),  # 20 passes in batches of 64
        (TABLE, 6400, 2000),
        (TABLE, 100_000, 5000),
        (TABLE, 0, 500),
        (NUMBERS, 3200, 1000),
        (IMAGES, 3200, 1000),
        (IMAGES, 6400, 2000),
        (IMAGES, 10**6, 10_000),
        ({**IMAGES, "has_gpu": True}, 300, 10_000),
        ({**IMAGES, "has_gpu": True}, 10**6, 100_000),
        ({**IMAGES, "has_gpu": True, "shape": (3, 23, 32)}, 300, 1000),
        ({**IMAGES, "has_gpu": True, "shape": (3, 24, 32)}, 300, 10_000),
        ({**TABLE, "has_gpu": True}, 300, 500),
        (TEXTS, 10**6, 300),
        ({**TEXTS, "has_gpu": True}, 300, 3000),
    ],
)
def test_steps_are_twenty_passes_within_bounds(
    known: dict[str, Any], unlabeled: int, steps: int
) -> None:
    assert run_for(known, unlabeled=unlabeled).steps == steps


@pytest.mark.parametrize(("labeled", "batch"), [(5, 32), (32, 32), (50, 50), (64, 64), (900, 64)])
def test_a_batch_has_32_to_64_labelled_rows_and_64_unlabelled_ones(
    labeled: int, batch: int
) -> None:
    sizes = run_for(TABLE, labeled=labeled).batch
    assert (sizes.labeled, sizes.holdout, sizes.unlabeled) == (batch, batch, 64)


def test_batches_of_texts_are_small() -> None:
    sizes = run_for(TEXTS, labeled=500).batch
    assert (sizes.labeled, sizes.holdout, sizes.unlabeled) == (8, 8, 24)


@pytest.mark.parametrize(
    ("known", "name", "lr", "schedule"),
    [
        (TABLE, "adam", 0.002, "constant"),
        (NUMBERS, "adam", 0.002, "constant"),
        (IMAGES, "adam", 0.005, "cosine"),
        ({**IMAGES, "classes": None}, "adam", 0.002, "constant"),
        (POINTS, "sgd", 0.03, "cosine"),
        ({**POINTS, "shape": (1, 43, 60)}, "adam", 0.002, "constant"),
        (TEXTS, "adam", 2e-5, "linear"),
    ],
)
def test_the_optimizer_and_its_rate_suit_the_data(
    known: dict[str, Any], name: str, lr: float, schedule: str
) -> None:
    optim = run_for(known).optim
    assert (optim.name, optim.lr, optim.schedule, optim.ema_decay) == (name, lr, schedule, 0.99)


def test_weights_decay_a_little_and_texts_have_a_warm_up() -> None:
    assert run_for(TABLE).optim.weight_decay == run_for(IMAGES).optim.weight_decay == 4e-5
    points = run_for(POINTS).optim
    assert (points.weight_decay, points.weight_decay_mode) == (5e-4, "l2")
    texts = run_for(TEXTS)
    assert (texts.optim.warmup, texts.optim.max_grad_norm) == (0.1, 1.0)
    assert (texts.model.dropout, texts.model.encoder_dropout) == (0.1, 0.0)
    assert texts.data.words.replace == 0.3 and texts.data.text.length == 64


@pytest.mark.parametrize("known", [TABLE, NUMBERS])
def test_views_of_tables_swap_no_columns_since_one_may_decide(known: dict[str, Any]) -> None:
    data = run_for(known).data
    assert (data.weak.noise, data.weak.corrupt) == (0.1, 0)
    assert (data.strong.noise, data.strong.corrupt) == (0.2, 0)


@pytest.mark.parametrize(
    ("shape", "shift"),
    [((3, 3, 3), 0), ((1, 4, 4), 1), ((1, 8, 8), 1), ((3, 32, 32), 2), ((3, 48, 60), 4)],
)
def test_views_of_images_shift_by_a_twelfth_and_strong_ones_do_more(
    shape: tuple[int, ...], shift: int
) -> None:
    data = run_for(IMAGES, shape=shape).data
    assert (data.weak.shift, data.weak.randaugment) == (shift, 0)
    assert (data.strong.shift, data.strong.randaugment) == (shift, 2)
    targets = run_for(IMAGES, shape=shape, classes=None).data
    assert targets.strong == targets.weak
    assert (targets.weak.shift, targets.weak.padding) == (shift, "reflect")


@pytest.mark.parametrize(
    ("known", "network"),
    [
        (TABLE, ("mlp", 128, 2)),
        ({**IMAGES, "shape": (3, 3, 60)}, ("mlp", 128, 2)),
        ({**IMAGES, "shape": (3, 4, 4)}, ("conv", 16, 1)),
        ({**IMAGES, "shape": (3, 7, 9)}, ("conv", 16, 1)),
        ({**IMAGES, "shape": (3, 8, 8)}, ("conv", 16, 2)),
        ({**IMAGES, "shape": (3, 23, 32)}, ("conv", 16, 2)),
        ({**IMAGES, "shape": (3, 24, 24)}, ("conv", 16, 3)),
        ({**IMAGES, "has_gpu": True}, ("wide-resnet", 2, 28)),
        ({**IMAGES, "has_gpu": True, "shape": (3, 24, 24)}, ("wide-resnet", 2, 28)),
        ({**IMAGES, "has_gpu": True, "shape": (3, 23, 23)}, ("conv", 16, 2)),
        ({**POINTS, "shape": (1, 43, 43)}, ("mlp", 256, 2)),
    ],
)
def test_the_network_suits_the_samples(known: dict[str, Any], network: tuple[Any, ...]) -> None:
    model = run_for(known).model
    assert (model.name, model.width, model.depth) == network


def test_landmarks_on_large_images_and_texts_have_networks_of_their_own() -> None:
    assert run_for(POINTS, shape=(1, 44, 44)).model.name == "tcdcn"
    assert run_for(POINTS, shape=(1, 44, 44), has_gpu=True).model.name == "tcdcn"
    model = run_for(TEXTS).model
    assert (model.name, model.weights) == ("encoder", "bert")


@pytest.mark.parametrize(
    ("known", "name"),
    [
        (TABLE, "pseudo-label"),
        (NUMBERS, "mean-teacher"),
        (IMAGES, "fixmatch"),
        ({**IMAGES, "shape": (3, 4, 4)}, "fixmatch"),
        ({**IMAGES, "shape": (3, 3, 3)}, "pseudo-label"),
        ({**IMAGES, "classes": None}, "mean-teacher"),
        (TEXTS, "uda"),
        ({**TEXTS, "classes": None}, "mean-teacher"),
        ({**IMAGES, "unlabeled": 0}, "supervised"),
        ({**NUMBERS, "unlabeled": 0}, "supervised"),
    ],
)
def test_the_method_suits_the_data(known: dict[str, Any], name: str) -> None:
    run = run_for(known)
    assert run.method.name == name
    assert run.l2i.update == ("off" if name == "supervised" else "normalized")


def test_methods_have_the_strength_that_short_runs_need() -> None:
    table, numbers, images, texts = (
        {
            name: choose_method(Facts(**known), name)[0]
            for name in ("mean-teacher", "pi-model", "mixmatch", "vat", "fixmatch", "uda")
        }
        for known in (TABLE, NUMBERS, IMAGES, TEXTS)
    )
    assert [m["mean-teacher"].weight for m in (table, numbers, images, texts)] == [30, 1, 10, 10]
    assert [m["pi-model"].weight for m in (table, numbers, images, texts)] == [10, 1, 10, 10]
    assert {m[n].rampup for m in (table, images) for n in ("mean-teacher", "pi-model")} == {1 / 3}
    assert (table["mixmatch"].weight, table["vat"].epsilon) == (10, 1)
    assert (images["fixmatch"].threshold, texts["fixmatch"].threshold) == (0.8, 0.95)
    uda = texts["uda"]
    assert (uda.weight, uda.threshold, uda.temperature, uda.annealing) == (1, 0, 1, "linear")
    assert texts["mean-teacher"].student_view == texts["pi-model"].student_view == "strong"
    assert table["mean-teacher"].student_view != "strong"


def test_without_unlabelled_rows_a_wrong_method_is_still_wrong_and_a_right_one_unused() -> None:
    facts = Facts(**{**TABLE, "unlabeled": 0})
    assert choose_method(facts, "fixmatch")[0].name == "supervised"
    with pytest.raises(ValueError, match="perhaps you meant 'fixmatch'"):
        choose_method(facts, "fixmach")


def test_images_of_16_pixels_are_trained_on_several_threads_and_smaller_ones_are_not() -> None:
    assert [run_for(IMAGES, shape=(3, side, 40)).threads for side in (15, 16)] == [1, 0]
    assert run_for(TABLE).threads == 1


def test_imputing_can_be_left_out() -> None:
    method = choose_method(Facts(**TABLE))[0]
    assert (choose_update(method), choose_update(method, impute=False)) == ("normalized", "off")
    supervised = choose_method(Facts(**TABLE), "supervised")[0]
    assert choose_update(supervised) == "off"
    run, _ = choose_run(Facts(**TABLE), impute=False)
    assert (run.method.name, run.l2i.update) == ("pseudo-label", "off")


def test_a_run_is_evaluated_twenty_times_and_saved_four_times() -> None:
    run = with_steps(run_for(TABLE), 1000)
    assert (run.steps, run.eval_every, run.save_every) == (1000, 50, 250)
    short = with_steps(run, 3)
    assert (short.steps, short.eval_every, short.save_every) == (3, 1, 1)
    assert run_for(TABLE).eval_every == 25 and run_for(TEXTS).eval_every == 60
    assert choose_num_evals(Facts(**{**TEXTS, "has_gpu": True})) == 20


def test_what_the_user_changed_is_said_to_be_theirs() -> None:
    base, reasons = choose_run(Facts(**TABLE))
    changed = replace(base, steps=7, optim={"lr": 0.5})
    choices = {c.name: c for c in explain_choices(changed, base, reasons)}
    theirs = {name for name, choice in choices.items() if choice.reason == "set by you"}
    assert theirs == {"steps", "optimizer"}
    assert choices["steps"].value == "7"
    assert choices["optimizer"].value == "adam, learning rate 0.5, constant"
    assert choices["batch"].value == "50 labelled + 64 unlabelled"
    assert choices["batch"].reason == "50 labelled rows to sample from"


def test_a_run_is_described_as_it_is() -> None:
    words = describe_run(run_for(TABLE))
    assert words["method"].startswith("pseudo-label, weight 1, threshold 0.95")
    assert words["network"] == "mlp, width 128, depth 2"
    assert words["weak view"] == "noise 0.1"
    assert words["strong view"] == "noise 0.2"
    assert describe_run(run_for(TABLE, unlabeled=0))["L2I"] == "off"
    assert describe_run(run_for(TABLE, unlabeled=0))["method"] == "supervised"
    texts = describe_run(run_for(TEXTS))
    assert texts["texts"] == "64 tokens, the end of longer texts"
    assert texts["strong view"].startswith("replace 0.3") and texts["weak view"] == "none"
    assert texts["optimizer"] == "adam, learning rate 2e-05, linear with warm-up"
    _, reasons = choose_run(Facts(**{**TABLE, "unlabeled": 6400}))
    assert reasons["steps"] == "about 20 epochs over 6,400 unlabelled rows"


def test_the_reasons_are_those_of_the_data() -> None:
    def why(known: dict[str, Any], name: str = "network") -> str:
        return choose_run(Facts(**known))[1][name]

    assert why(TABLE) == "tabular data"
    assert why({**IMAGES, "shape": (3, 3, 3)}) == "images too small for convolutions"
    assert why(IMAGES) == "images of 32 pixels, no GPU"
    assert why({**IMAGES, "has_gpu": True}) == "images, and a GPU is available"
    assert why({**IMAGES, "has_gpu": True, "shape": (3, 8, 8)}) == "images of 8 pixels"
    assert why(TABLE, "L2I") == "the default ρ = 0.3 hurt on tabular classification"
    assert why(NUMBERS, "L2I") == why(IMAGES, "L2I") == "the library's default"
    assert why(TABLE, "strong view") == "stronger, for methods that train on a strong view"
    assert why(TABLE, "weak view") == "preserves the label"
