"""Parts of the trainer on a small table in float64: what each step does, predicts and keeps."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from l2i import InputError, Run, Splits, Trainer, recipes, replace
from l2i.bilevel.functional import trainable
from l2i.config import L2I
from l2i.data.samples import Samples
from l2i.data.transforms.image import Augment
from l2i.distributed import ProcessGroup
from l2i.training import setup
from l2i.training.forwards import ForwardCache, JointBatch, is_part_of

VIEWS = {"weak": Augment(noise=0.1), "strong": Augment(noise=0.3)}


def table(classes: int | None = 3) -> Splits:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=draw)
    y = torch.arange(60) % 3 if classes else x[:, :2] * 3 + 1
    return Splits.from_arrays(
        labeled=(x[:12], y[:12]),
        unlabeled=x[12:40],
        validation=(x[40:48], y[40:48]),
        test=(x[48:], y[48:]),
        classes=classes,
    )


def small(cell: str = "digits/mean-teacher-l2i-40", **changes: object) -> Run:
    settings: dict[str, object] = {
        "device": "cpu",
        "precision": "float64",
        "steps": 10,
        "data": VIEWS,
        "batch": {"labeled": 6, "unlabeled": 8, "holdout": 4},
    }
    return replace(recipes.get(cell), **{**settings, **changes})


def mlp(outputs: int = 3) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs))


def build(run: Run | None = None, classes: int | None = 3) -> Trainer:
    return Trainer(run or small(), splits=table(classes), model=mlp(classes or 2))


def flat(params: dict[str, Tensor]) -> Tensor:
    return torch.cat([p.detach().flatten() for p in params.values()])


@pytest.mark.parametrize(
    ("outer", "taken"), [(None, [1, 0, 1, 0]), (True, [1, 1, 1, 1]), (False, [0, 0, 0, 0])]
)
def test_whether_a_step_has_an_outer_step_can_be_said(outer: bool | None, taken: list[int]) -> None:
    trainer = build(small(l2i={"every": 2}))
    for step, expected in enumerate(taken):
        trainer.step(step, outer=outer)
        assert ("c_h" in trainer.meter.read()) == bool(expected)


def test_a_run_without_an_outer_step_takes_none_even_if_asked() -> None:
    trainer = build(small(l2i={"update": "off"}))
    trainer.step(0, outer=True)
    assert "c_h" not in trainer.meter.read()


def test_the_teacher_is_the_model_after_the_first_step_and_lags_behind_it_later() -> None:
    trainer = build(small(optim={"ema_decay": 0.9}))
    average = None
    for step in range(4):
        trainer.step(step)
        model = flat(trainer.params)
        rate = max(1 / (step + 1), 0.1)
        average = model if average is None else average + rate * (model - average)
        torch.testing.assert_close(flat(dict(trainer.teacher.model.named_parameters())), average)
    pairs = zip(trainer.model.buffers(), trainer.teacher.model.buffers(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_predictions_are_the_averaged_models_in_evaluation_mode() -> None:
    trainer = build()
    for step in range(3):
        trainer.step(step)
    with torch.no_grad():
        wanted = copy.deepcopy(trainer.teacher.model).eval()(trainer.splits.test.x)
        other = copy.deepcopy(trainer.model).eval()(trainer.splits.test.x)
    counts: list[int] = []
    got = trainer.predict(trainer.splits.test, counts.append)
    torch.testing.assert_close(got, wanted)
    assert not torch.allclose(got, other) and sum(counts) == 12


def test_metrics_are_of_each_set_by_its_own_labels() -> None:
    trainer = build()
    trainer.step(0)
    metrics = trainer.compute_metrics()
    for part in ("validation", "test"):
        samples = getattr(trainer.splits, part)
        wrong = trainer.predict(samples).argmax(1) != samples.y
        assert metrics[part] == {"error (%)": pytest.approx(100 * float(wrong.double().mean()))}
    none = Samples(trainer.splits.test.x[:0], trainer.splits.test.y[:0])
    trainer.splits = dataclasses.replace(trainer.splits, validation=none)
    assert list(trainer.compute_metrics()) == ["test"]


def test_the_first_step_is_tried_without_a_trace() -> None:
    torch.manual_seed(5)
    model = mlp()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trainer = Trainer(small(), splits=table(), model=model)
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name].to(value.dtype)), name
    assert trainer.meter.count.sum() == 0


def test_a_state_names_every_part_and_the_teacher_can_be_loaded_alone() -> None:
    first, second = build(), build()
    for step in range(2):
        first.step(step)
    state = {name: value.clone() for name, value in first.state_dict().items()}
    assert {name.split(".")[0] for name in state} == {
        "model",
        "teacher",
        "optimizer",
        "meter",
        "generator",
    }
    before = flat(second.params).clone()
    second.load_teacher(state)
    assert torch.equal(
        flat(dict(second.teacher.model.named_parameters())),
        flat(dict(first.teacher.model.named_parameters())),
    )
    assert torch.equal(flat(second.params), before)


def test_a_state_of_another_network_or_run_is_refused() -> None:
    trainer = build()
    state = {name: value.clone() for name, value in trainer.state_dict().items()}
    for name in ("model.0.weight", "teacher.3.bias", "meter.total"):
        wrong = {**state, name: torch.zeros(99)}
        with pytest.raises(InputError, match="the checkpoint"):
            build().load_state_dict(wrong)
    del state["generator.torch"]
    with pytest.raises(InputError, match="does not match this run"):
        build().load_state_dict(state)


@pytest.mark.parametrize(
    ("l2i", "words"),
    [
        ({}, "12 test (4 per class), hold-out batches drawn from the labelled samples"),
        ({"update": "off"}, "12 test (4 per class)"),
        ({"holdout": "separate"}, "12 test (4 per class)"),
    ],
    ids=["joint", "off", "separate"],
)
def test_sets_are_described_with_where_the_hold_out_comes_from(
    l2i: dict[str, object], words: str
) -> None:
    described = build(small(l2i=l2i)).describe_splits()
    assert described.endswith(words)
    assert ("12 hold-out (4 per class)" in described) == (l2i.get("holdout") == "separate")


def test_a_table_is_predicted_as_it_is() -> None:
    trainer = build()
    assert torch.equal(trainer.preprocess(trainer.splits.test.x), trainer.splits.test.x)


def test_the_base_gradient_is_of_c_t_and_lambda_times_c_u() -> None:
    trainer = build(small("digits/pi-model-40", method={"weight": 3.0, "rampup": 4}))
    batch = trainer.loader.draw_batch(2)
    model = copy.deepcopy(trainer.model)
    params = list(model.parameters())
    u = batch.unlabeled
    c_t = F.cross_entropy(model(batch.labeled.x), batch.labeled.y)
    z = model(u.weak).softmax(1).detach()
    c_u = F.mse_loss(model(u.weak2).softmax(1), z)
    wanted = torch.autograd.grad(c_t + 1.5 * c_u, params)  # λ is half way up at step 2
    got = trainer.compute_base_gradient(batch, 2)
    for g, w in zip(got.values(), wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-14)


def test_the_weight_of_c_u_may_be_zero() -> None:
    trainer = build(small("digits/pi-model-40", method={"weight": 0.0, "rampup": 0}))
    batch = trainer.loader.draw_batch(0)
    model = copy.deepcopy(trainer.model)
    c_t = F.cross_entropy(model(batch.labeled.x), batch.labeled.y)
    wanted = torch.autograd.grad(c_t, list(model.parameters()))
    got = trainer.compute_base_gradient(batch, 0)
    for g, w in zip(got.values(), wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-14)


def test_a_task_is_that_of_the_labels() -> None:
    assert build().task.num_outputs == 3
    trainer = build(small("friedman/mean-teacher-l2i-60"), classes=None)
    labeled = trainer.splits.labeled.y
    torch.testing.assert_close(trainer.task.mean, labeled.mean(0))  # type: ignore[attr-defined]
    assert trainer.task.kind == "regression" and not trainer.task.points  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["labeled", "unlabeled", "holdout"])
def test_batches_that_processes_cannot_share_are_refused(name: str) -> None:
    even = {"labeled": 6, "unlabeled": 6, "holdout": 6}
    setup.check_divisible(small(batch=even), ProcessGroup(3, 0))
    with pytest.raises(InputError, match=f"batch.{name}=7 is not divisible by the 3 processes"):
        setup.check_divisible(small(batch={**even, name: 7}), ProcessGroup(3, 0))
    with pytest.raises(InputError, match=r"l2i\.outer_batch_size=4 is not divisible"):
        setup.check_divisible(small(batch=even, l2i={"outer_batch_size": 4}), ProcessGroup(3, 0))


def test_early_stopping_needs_validation_samples() -> None:
    run, splits = small(report="best"), table()
    setup.check_validation(run, splits)
    none = Samples(splits.test.x[:0], splits.test.y[:0])
    without = dataclasses.replace(splits, validation=none)
    setup.check_validation(small(), without)
    with pytest.raises(InputError, match="needs validation samples"):
        setup.check_validation(run, without)


def test_a_network_is_drawn_by_the_seed_of_its_run_and_leaves_the_generator_alone() -> None:
    digits = recipes.get("digits/fixmatch-40")
    state = torch.get_rng_state()
    first, again, other = (
        flat(Trainer(replace(digits, device="cpu", seed=seed)).params) for seed in (0, 0, 1)
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_parts_of_a_state_are_selected_by_their_prefix() -> None:
    tensors = {name: torch.zeros(1) for name in ("model.a.b", "model.c", "models.d", "teacher.a")}
    assert list(setup.select_prefix(tensors, "model")) == ["a.b", "c"]


def test_a_network_is_checked_before_it_is_built() -> None:
    state = nn.Linear(3, 2).state_dict()
    setup.check_shapes(lambda: nn.Linear(3, 2), state)
    for wrong in ({"weight": state["weight"]}, {**state, "weight": torch.zeros(2, 4)}):
        with pytest.raises(InputError, match="of a different network"):
            setup.check_shapes(lambda: nn.Linear(3, 2), wrong)


@pytest.mark.parametrize(("dropout", "draws"), [(0.0, False), (0.5, True)])
def test_networks_that_draw_random_numbers_are_known(dropout: float, draws: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(dropout))
    uses_rng, held = setup.probe_forward(model, torch.randn(5, 4), 3)
    assert (uses_rng, held) == (draws, 0)
    with pytest.raises(InputError, match=r"output has shape \[5, 3\]; it must be \[5, 2\]"):
        setup.probe_forward(model, torch.randn(5, 4), 2)


def test_a_batch_is_known_by_its_memory_and_not_by_its_values() -> None:
    x = torch.randn(6, 4)
    assert is_part_of(x, x) and is_part_of(x[:3], x) and is_part_of(x.view(6, 4), x)
    assert not is_part_of(x.clone(), x) and not is_part_of(x[1:], x)
    assert not is_part_of(x[:, :2], x) and not is_part_of(x, x[:3])
    assert not is_part_of(x.view(3, 8), x)


def test_activations_are_known_of_batches_that_were_passed_and_only_with_a_head() -> None:
    from l2i.bilevel.head import Head

    model, x = mlp().double(), torch.randn(6, 4, dtype=torch.float64)
    cache = ForwardCache(model, Head.from_model(model))
    assert cache.get_activations(x) is None
    outputs = cache(x)
    known = cache.get_activations(x[:4])
    assert known is not None and len(known.features) == len(known.outputs) == 4
    assert torch.equal(known.outputs, outputs[:4].detach())
    assert not known.features.requires_grad and not known.outputs.requires_grad
    torch.testing.assert_close(known.features @ model[3].weight.T + model[3].bias, known.outputs)
    plain = ForwardCache(model)
    plain(x)
    assert plain.get_activations(x) is None


def test_batches_in_one_forward_get_their_own_outputs() -> None:
    a, b, c = (torch.full((n, 2), float(n)) for n in (1, 2, 3))
    net = JointBatch(a, b, c).join(lambda x: x.sum(1, keepdim=True) + len(x))
    assert [net(x).flatten().tolist() for x in (c, a, b)] == [[12.0] * 3, [8.0], [10.0] * 2]


def test_learnable_labels_take_normalized_steps_in_a_normalized_update_alone() -> None:
    paper = {"eta": 0.1, "label_lr": 0.25}
    for update, is_normalized in (("normalized", True), ("paper", False)):
        l2i = {"update": update, "labels": "learnable", "paper": paper}
        labels = build(small(l2i=l2i)).outer_step.labels  # type: ignore[union-attr]
        assert (labels.normalized, labels.label_lr) == (is_normalized, 0.25)  # type: ignore[attr-defined]
    assert build(small(l2i=L2I(update="off"))).outer_step is None


def test_frozen_parameters_have_no_place_in_the_step() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    trainer = Trainer(small(l2i={"hypergradient": "exact"}), splits=table(), model=model)
    assert (
        list(trainer.params)
        == list(trainable(model))
        == ["1.weight", "1.bias", "3.weight", "3.bias"]
    )
    gradient = trainer.compute_outer_gradient(trainer.loader.draw_batch(0), 0)
    assert not gradient["0.weight"].any() and gradient["3.weight"].any()
