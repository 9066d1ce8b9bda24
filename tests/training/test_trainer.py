import re
from pathlib import Path

import pytest
import torch
from torch import nn

from golden import run_of
from image_folders import write_class_folders
from l2i import L2I, Run, Trainer, recipes, replace
from l2i.bilevel import Problem, exact, last_layer
from l2i.bilevel.outer import OuterGradient
from l2i.data.datasets.imagenet import IMAGENET_NORMALIZE
from l2i.data.samples import Samples, Splits
from l2i.data.transforms.image import Augment
from l2i.errors import InputError
from l2i.methods.mean_teacher import MeanTeacher
from l2i.methods.pseudo_label import PseudoLabel
from l2i.training.setup import SHAPE_ERROR


def small(cell: str = "digits", **changes: object) -> Run:
    return replace(
        recipes.get(cell), **{"device": "cpu", "model": {"name": "conv", "width": 4}, **changes}
    )


def dots() -> Splits:
    """Images of one bright dot, to be found: landmark regression in small."""
    place = torch.randint(2, 6, (300, 2))
    x = torch.zeros(300, 1, 8, 8)
    x[torch.arange(300), 0, place[:, 1], place[:, 0]] = 1.0
    every = Samples(x, place.float())
    parts = {"labeled": slice(0, 20), "holdout": slice(0, 20), "unlabeled": slice(20, 200)}
    rest = {"validation": slice(200, 220), "test": slice(220, 300)}
    sets = {name: Samples(every.x[s], every.y[s]) for name, s in {**parts, **rest}.items()}
    return Splits(**sets, classes=None, has_landmarks=True)


@pytest.mark.parametrize("method", [MeanTeacher(weight=1.0), PseudoLabel(weight=1.0)])
@pytest.mark.parametrize("labels", ["output", "learnable"])
def test_landmarks_are_learned_by_regression(
    method: MeanTeacher | PseudoLabel, labels: str
) -> None:
    run = replace(
        small(),
        method=method,
        l2i=L2I(update="normalized", labels=labels),
        data={"weak": Augment(shift=1)},
    )
    trainer = Trainer(replace(run, model={"name": "mlp", "width": 64}), splits=dots())
    before = trainer.compute_metrics()["test"]["RMSE"]
    for step in range(150):
        trainer.step(step)
    after = trainer.compute_metrics()["test"]["RMSE"]
    assert trainer.task.kind == "regression"
    assert after < 0.8 * before


def test_only_the_base_steps_own_forwards_move_running_statistics() -> None:
    """With or without an outer step, BatchNorm has seen the same batches after the first step."""
    states = []
    for update in ("off", "normalized"):
        trainer = Trainer(small("digits/mean-teacher-l2i-40", l2i={"update": update}))
        trainer.step(0)
        states.append({name: b.clone() for name, b in trainer.model.named_buffers()})
    assert all(
        torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values(), strict=True)
    )
    counts = {int(b) for name, b in states[0].items() if name.endswith("num_batches_tracked")}
    assert counts == {2}  # labelled and student; not the imputing forward


def test_the_outer_step_moves_the_parameters_and_nothing_else() -> None:
    trainer = Trainer(small(l2i={"hypergradient": "exact"}))
    batch = trainer.loader.draw_batch(0)
    before = {name: value.clone() for name, value in trainer.state_dict().items()}
    gradient = trainer.compute_outer_gradient(batch, 0)
    assert set(gradient) == set(trainer.params)
    after = trainer.state_dict()
    assert all(
        torch.equal(before[name], after[name])
        for name in before
        if not name.startswith("generator.")
    )


def test_a_users_module_trains_with_its_last_linear_as_head() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
    )
    trainer = Trainer(small(), model=model)
    for step in range(5):
        trainer.step(step)
    trainer.meter.raise_if_nonfinite()
    assert trainer.meter.read()["grad_ratio_raw"] > 0


def test_frozen_parameters_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model[1].requires_grad_(False)
    saved = model[1].weight.clone()
    trainer = Trainer(small(l2i={"hypergradient": "exact"}), model=model)
    for step in range(3):
        trainer.step(step)
    assert torch.equal(model[1].weight, saved)


def test_the_outer_step_is_what_the_run_says() -> None:
    def solved(**l2i: object) -> tuple[Trainer, Problem]:
        """The problem that the outer step is given."""
        trainer, given = Trainer(small(l2i=l2i)), []
        outer_step = trainer.gradients.outer_step

        def keeping(problem: Problem) -> OuterGradient:
            given.append(problem)
            return outer_step(problem)

        trainer.gradients.outer_step = keeping
        trainer.compute_outer_gradient(trainer.loader.draw_batch(0), 0)
        (problem,) = given
        return trainer, problem

    trainer, problem = solved(paper={"eta": 0.1}, head="head")
    assert (float(problem.eta), problem.inner_steps) == (pytest.approx(0.1), 1)
    assert problem.head is trainer.model.head and problem.c_t is None
    assert trainer.outer_step.hypergradient is last_layer
    trainer, problem = solved(hypergradient="exact", paper={"eta": 0.1, "inner_steps": 3})
    assert problem.inner_steps == 3 and trainer.outer_step.hypergradient is exact
    text = {"eta": 64.0, "supervised_eta": 0.1, "inner_supervised": True}
    trainer, problem = solved(paper=text)
    assert problem.c_t is not None and float(problem.eta) == pytest.approx(0.1)
    assert solved()[1].eta is None


def test_separate_holdout_trains_on_three_fifths_of_the_labels() -> None:
    trainer = Trainer(small(l2i={"holdout": "separate"}))
    assert (len(trainer.splits.labeled.x), len(trainer.splits.holdout.x)) == (
        20,
        20,
    )  # 2 and 2 of 4 labels a class
    trainer.step(0)


def test_bf16_forwards_leave_parameters_and_costs_in_float32() -> None:
    trainer = Trainer(small(precision="bf16"))
    reference = Trainer(small())
    for t in (trainer, reference):
        t.step(0)
    assert all(p.dtype == torch.float32 for p in trainer.model.parameters())
    assert trainer.network(trainer.loader.draw_batch(0).labeled.x).dtype == torch.float32
    assert trainer.meter.read()["c_t"] == pytest.approx(reference.meter.read()["c_t"], rel=0.05)


@pytest.mark.parametrize("hypergradient", ["exact", "last_layer"])
def test_the_outer_gradient_in_bf16_points_where_it_does_in_float32(hypergradient: str) -> None:
    flat = []
    for precision in ("bf16", "float32"):
        trainer = Trainer(small(precision=precision, l2i={"hypergradient": hypergradient}))
        gradient = trainer.compute_outer_gradient(trainer.loader.draw_batch(0), 0)
        flat.append(torch.cat([g.flatten() for g in gradient.values()]))
    assert float(torch.cosine_similarity(*flat, dim=0)) > 0.99


@pytest.mark.parametrize("hypergradient", ["exact", "last_layer"])
def test_every_hypergradient_trains(hypergradient: str) -> None:
    trainer = Trainer(small(l2i={"hypergradient": hypergradient}))
    for step in range(3):
        trainer.step(step)
    trainer.meter.raise_if_nonfinite()
    assert trainer.meter.read()["grad_ratio"] == pytest.approx(0.3)


def test_state_and_load_reproduce_a_trainer() -> None:
    model = [
        nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 10))
        for _ in range(2)
    ]
    run = small(l2i={"update": "paper", "paper": {"eta": 0.1}})
    first, second = (Trainer(run, model=m) for m in model)
    for step in range(3):
        first.step(step)
    second.load_state_dict({name: value.clone() for name, value in first.state_dict().items()})
    rng = torch.get_rng_state()
    for step in range(3, 6):
        first.step(step)
    torch.set_rng_state(rng)
    for step in range(3, 6):
        second.step(step)
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_the_golden_runs_use_the_default_outer_rule() -> None:
    run = run_of("fixmatch", "O")
    assert (run.l2i.update, run.l2i.hypergradient, run.l2i.paper.eta, run.l2i.rho) == (
        "normalized",
        "last_layer",
        None,
        0.3,
    )


def test_a_threshold_that_no_label_passes_is_no_trouble_for_learnable_labels() -> None:
    trainer = Trainer(small(l2i={"labels": "learnable"}, method={"threshold": 1.0}))
    trainer.gradients.outer_method = trainer.run.method
    for step in range(3):
        trainer.step(step)
    means = trainer.meter.read()
    assert means["c_u"] == 0.0
    assert means["grad_ratio"] == 0.0


def test_a_method_may_be_given_by_name() -> None:
    run = replace(small(), method="mixmatch")
    assert run.method.name == "mixmatch"
    Trainer(replace(run, method={"student_view": "strong"})).step(0)


@pytest.mark.parametrize("changes", [{"stepz": 3}, {"l2i": {"roh": 1.0}}])
def test_replace_names_the_field_that_was_meant(changes: dict[str, object]) -> None:
    with pytest.raises(InputError, match="perhaps you meant"):
        replace(small(), **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"l2i": {"update": "paper"}}, "set l2i.paper.eta"),
        ({"l2i": {"hypergradient": "unrolled"}}, "it must be last_layer | exact"),
        ({"l2i": {"paper": {"inner_steps": 3}}}, "needs l2i.hypergradient='exact'"),
        ({"l2i": {"head": "nose"}}, "head='nose' is not"),
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"steps": "many"}, "steps='many' is not valid"),
        ({"l2i": {"update": "on"}}, "it must be off | normalized | paper"),
        ({"l2i": {"rho": float("nan")}}, "l2i.rho=nan must be a finite number"),
        ({"optim": {"name": "adam", "nesterov": True}}, "optim.nesterov needs"),
        ({"model": {"name": "conv", "dropout": 2.0}}, "model.dropout=2.0 must be"),
        (
            {"batch": {"holdout": 1}, "model": {"width": 8}},
            "the first step fails with these settings",
        ),
        ({"data": {"weak": Augment(shift=9)}}, "shift=9 is too large for images"),
        ({"out": ""}, "must not be empty"),
        ({"device": "cpu:3"}, "is not supported"),
        ({"optim": {"schedule": "step", "milestones": (-5,)}}, "must be steps, from 1"),
        ({"device": "mps"}, "is not supported"),
        ({"seed": -1}, "seed=-1"),
        ({"optim": {"lr": 0.0}}, "optim.lr=0.0"),
        ({"optim": {"schedule": "step"}}, "needs optim.milestones"),
        ({"device": "nonsense"}, "is not a device"),
        ({"data": {"name": "digit"}}, "perhaps you meant 'digits'"),
        (
            {"data": {"num_labeled": 45}},
            "num_labeled=45 is not a positive multiple of the 10 classes; use 40",
        ),
        ({"data": {"num_labeled": 2000}}, "use at most"),
    ],
)
def test_wrong_input_says_what_to_do(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("|", r"\|")):
        Trainer(small(**changes))


def test_supervised_learning_has_nothing_to_impute() -> None:
    with pytest.raises(InputError, match="imputes no labels"):
        Trainer(small("digits/sl-40", l2i={"update": "normalized"}))


def test_fixmatch_is_not_for_regression() -> None:
    with pytest.raises(
        InputError,
        match="fixmatch does not support regression; use one of supervised, pseudo-label",
    ):
        Trainer(small(), splits=dots())


def test_eta_may_follow_the_learning_rate() -> None:
    """At a tenth of the rate, a look-ahead at 10·η under «rate» is one at η under «constant»."""
    changes = {"update": "paper", "hypergradient": "exact"}
    optim = {"schedule": "step", "milestones": (1,)}
    rate = {"paper": {"eta": 0.5, "eta_schedule": "rate"}}
    follows = replace(small(), l2i={**changes, **rate}, optim=optim)
    stays = replace(small(), l2i={**changes, "paper": {"eta": 0.05}}, optim=optim)
    gradients = []
    for run, step in ((follows, 1), (stays, 1), (follows, 0)):
        trainer = Trainer(run)
        assert trainer.outer_step is not None
        gradients.append(trainer.compute_outer_gradient(trainer.loader.draw_batch(1), step))
    assert all(
        torch.allclose(a, b, rtol=1e-4)
        for a, b in zip(gradients[0].values(), gradients[1].values(), strict=True)
    )
    assert not all(
        torch.allclose(a, b)
        for a, b in zip(gradients[0].values(), gradients[2].values(), strict=True)
    )


def test_windows_of_another_size_in_the_strong_view_are_refused() -> None:
    with pytest.raises(InputError, match="differ; set both to the same size"):
        Trainer(
            replace(
                recipes.get("digits/fixmatch-40"), device="cpu", data={"strong": Augment(crop=6)}
            )
        )


def test_evaluation_takes_the_centre_of_larger_images(tmp_path: Path) -> None:
    root = str(write_class_folders(tmp_path, classes=3, per_class=6, size=72))
    run = replace(
        recipes.get("imagenet/sl"),
        device="cpu",
        data={"root": root, "workers": 0},
        model={"depth": 8},
    )
    trainer = Trainer(replace(run, batch={"labeled": 4}))
    raw = trainer.splits.test.x.read()
    assert torch.allclose(
        trainer.preprocess(raw), IMAGENET_NORMALIZE.apply(raw[:, :, 4:68, 4:68]).float(), atol=1e-5
    )


@pytest.mark.parametrize(
    ("message", "fits"),
    [
        ("mat1 and mat2 shapes cannot be multiplied (8x3 and 4x2)", False),
        ("The size of tensor a (3) must match the size of tensor b (4)", False),
        ("CUDA out of memory. Tried to allocate 2 GiB.\nSee max_split_size_mb", True),
        ("derivative for aten::x is not implemented", True),
    ],
)
def test_what_does_not_fit_is_told_from_what_is_a_fault(message: str, fits: bool) -> None:
    assert (re.search(SHAPE_ERROR, message) is None) == fits


def test_a_graph_is_for_a_gpu() -> None:
    assert Trainer(small()).engine == "eager"
    message = "captures steps on a GPU, but the device is not a CUDA GPU; use engine='auto'"
    with pytest.raises(InputError, match=f"engine='graph' {message}"):
        Trainer(small(engine="graph"))


def test_a_model_given_in_evaluation_mode_is_trained_and_single_layers_stay() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8), nn.Linear(8, 10)
    )
    trainer = Trainer(small(), model=model.eval())
    trainer.step(0)
    assert trainer.model.training and int(trainer.model[2].num_batches_tracked) == 2
    model[3].eval()
    before = model[3].running_mean.clone()
    trainer = Trainer(small(), model=model)
    trainer.step(0)
    assert torch.equal(trainer.model[3].running_mean, before)


def test_a_model_that_cannot_learn_is_refused() -> None:
    with pytest.raises(InputError, match="no parameter of the model requires a gradient"):
        Trainer(small(), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).requires_grad_(False))
    with pytest.raises(InputError, match="run a forward pass first"):
        Trainer(small(), model=nn.Sequential(nn.Flatten(), nn.LazyLinear(10)))
