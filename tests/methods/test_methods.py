import dataclasses
import inspect
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import l2i.methods
from l2i.bilevel import lookahead
from l2i.bilevel.problem import Imputed
from l2i.data.batch import Labeled
from l2i.methods import METHODS
from l2i.methods.mixmatch import MixMatch
from l2i.registry import load_registered
from l2i.tasks import Classification
from l2i.training.step import compute_costs
from problems import ToyProblem, imputing_methods, problem


def outputs(p: ToyProblem, view: str) -> torch.Tensor:
    return lookahead(p.model, p.params)(p.batch.unlabeled.views[view]).detach()


@pytest.mark.parametrize("name", METHODS)
def test_the_registry_names_the_class(name: str) -> None:
    assert load_registered("method", METHODS, name).name == name


def test_every_method_fits_on_a_screen() -> None:
    for path in Path(inspect.getfile(l2i.methods)).parent.glob("*.py"):
        if path.stem not in ("base", "__init__"):
            assert len(path.read_text().splitlines()) < 80, path


@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_student_inputs_are_free_of_z_and_its_cost_depends_on_it(method: str, task: str) -> None:
    """The Student rule: the same inputs whatever the labels, and another cost for other labels."""
    p = problem(method, task)
    imputed = p.impute().detach()
    student = p.student()
    f = lookahead(p.model, p.params)(student.inputs).detach()
    other = Imputed(imputed.z.roll(1, dims=1), imputed.weight)
    assert torch.equal(student.inputs, p.student().inputs)
    assert not torch.equal(student.cost(f, imputed), student.cost(f, other))


@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_a_method_draws_nothing_and_detaches_its_weights(method: str, task: str) -> None:
    p = problem(method, task)
    net, state = lookahead(p.model, p.params), torch.get_rng_state()
    imputed = p.impute()
    for student in (p.student(), p.supervised()):
        student.cost_of(net, imputed)
    p.method.extra_cost(p.task, net, p.batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert imputed.weight.shape == imputed.z.shape[:1] and not imputed.weight.requires_grad


@pytest.mark.parametrize(("method", "task"), imputing_methods())
def test_no_gradient_reaches_the_labels_in_the_base_step(method: str, task: str) -> None:
    p = problem(method, task)
    net = lookahead(p.model, p.params)
    imputer = lookahead(problem(method, task).model, p.params)
    costs = compute_costs(p.method, p.task, net, imputer, p.batch)
    fixed = p.method.impute(p.task, imputer, p.batch).detach()
    wanted = p.method.student(p.task, net, p.batch).cost_of(net, fixed)
    got, want = (
        torch.autograd.grad(c, list(p.params.values()), retain_graph=True)
        for c in (costs.c_u, wanted)
    )
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_pi_model_compares_two_views_by_squared_distance() -> None:
    p = problem("pi-model")
    wanted = F.mse_loss(outputs(p, "weak2").softmax(1), outputs(p, "weak").softmax(1))
    got = p.student().cost(outputs(p, "weak2"), p.impute().detach())
    assert float(got) == pytest.approx(float(wanted))


def test_fixmatch_is_masked_cross_entropy_to_the_argmax() -> None:
    p = problem("fixmatch")
    confidence, label = outputs(p, "weak").softmax(1).max(1)
    losses = F.cross_entropy(outputs(p, "strong"), label, reduction="none")
    mask = confidence >= p.method.threshold
    assert 0 < int(mask.sum()) < len(mask)
    got = p.student().cost(outputs(p, "strong"), p.impute())
    assert float(got) == pytest.approx(float((losses * mask).mean()))


def test_pseudo_label_for_regression_is_the_prediction_carried_to_the_other_crop() -> None:
    p = problem("pseudo-label", "regression")
    wanted = p.task.transport_label(outputs(p, "weak"), p.batch.unlabeled.affine_map)
    assert torch.allclose(p.impute().z.detach(), wanted)
    assert not torch.allclose(wanted, outputs(p, "weak"))


def test_pseudo_label_on_one_view_is_lees() -> None:
    p = problem("pseudo-label")
    p = p._replace(method=type(p.method)(student_view="weak", threshold=0.3))
    assert p.method.views == ("weak", "weak")
    assert torch.equal(p.student().inputs, p.batch.unlabeled.weak)


def test_mixmatch_sharpens_the_mean_of_two_predictions() -> None:
    p = problem("mixmatch")
    mean = (outputs(p, "weak").softmax(1) + outputs(p, "weak2").softmax(1)) / 2
    wanted = mean.square() / mean.square().sum(1, keepdim=True)
    assert torch.allclose(p.impute().z.detach(), wanted)
    flat = p._replace(method=MixMatch(temperature=1.0))
    assert torch.allclose(flat.impute().z.detach(), mean)


def test_mixmatch_keeps_the_larger_share_of_a_row_for_itself() -> None:
    p = problem("mixmatch")
    mix = p.batch.mix
    assert mix is not None
    rows = torch.cat([p.batch.labeled.x, p.batch.unlabeled.weak, p.batch.unlabeled.weak2])
    inputs = torch.cat([p.supervised().inputs, p.student().inputs])
    for i, row in enumerate(inputs):
        share = max(float(mix.ratio[i]), 1 - float(mix.ratio[i]))
        assert torch.allclose(row, share * rows[i] + (1 - share) * rows[mix.permutation[i]])


def test_supervised_looks_at_no_unlabelled_sample() -> None:
    p = problem("supervised")
    assert p.method.views == ()
    costs = compute_costs(p.method, p.task, lookahead(p.model, p.params), lambda x: x, p.batch)
    assert float(costs.c_u) == 0.0
    assert float(costs.c_t.detach()) > 0.0


def test_weight_ramps_up_linearly() -> None:
    method = MixMatch(weight=8.0, rampup=4)
    assert [method.compute_weight(step, 100) for step in range(6)] == [0.0, 2.0, 4.0, 6.0, 8.0, 8.0]
    assert MixMatch(weight=8.0).compute_weight(0, 100) == 8.0


def test_a_ramp_may_be_a_share_of_the_run() -> None:
    method = MixMatch(weight=8.0, rampup=0.4)
    assert [method.compute_weight(step, 10) for step in range(6)] == [0.0, 2.0, 4.0, 6.0, 8.0, 8.0]


def test_vat_finds_the_direction_in_which_the_prediction_changes_the_most() -> None:
    """The oracle is the divergence's curvature at x; one iteration nears its top eigenvector."""
    p = problem("vat")
    x, net = p.batch.unlabeled.weak, lookahead(p.model, p.params)
    method = dataclasses.replace(p.method, epsilon=0.01)
    r = method.compute_perturbation(p.task, net, p.batch)
    assert torch.allclose(r.norm(dim=1), torch.full((len(x),), 0.01, dtype=x.dtype))

    def divergence(moved: torch.Tensor) -> torch.Tensor:
        target = net(x).detach()
        return F.kl_div(
            net(moved).log_softmax(1), target.log_softmax(1), reduction="none", log_target=True
        ).sum()

    noise = p.batch.unlabeled.noise / p.batch.unlabeled.noise.norm(dim=1, keepdim=True)
    step = torch.autograd.functional.hvp(divergence, x, noise)[1]
    assert float(F.cosine_similarity(r, step, dim=1).min()) > 0.99
    random = 0.01 * torch.nn.functional.normalize(torch.randn_like(x), dim=1)
    assert float(divergence(x + r).detach()) > 2 * float(divergence(x + random).detach())


def test_vat_learns_the_divergence_and_less_entropy() -> None:
    p = problem("vat")
    z, net = p.impute().detach(), lookahead(p.model, p.params)
    student = p.student()
    f = net(student.inputs).detach()
    kl = F.kl_div(f.log_softmax(1), z.z, reduction="batchmean")
    assert float(student.cost(f, z)) == pytest.approx(float(kl))
    entropy = torch.distributions.Categorical(logits=outputs(p, "weak")).entropy().mean()
    plain, more = (
        compute_costs(dataclasses.replace(p.method, entropy=e), p.task, net, net, p.batch)
        for e in (0.0, 0.5)
    )
    assert torch.allclose(more.c_t - plain.c_t, 0.5 * entropy)  # beside C^T: λ does not ramp it up
    assert torch.equal(more.c_u, plain.c_u)


def test_vat_searches_without_moving_running_statistics() -> None:
    p = problem("vat")
    before = [b.clone() for b in p.model.buffers()]
    p.student()
    assert all(torch.equal(a, b) for a, b in zip(before, p.model.buffers(), strict=True))


def test_mixup_mixes_each_set_within_itself() -> None:
    p = problem("mixup")
    z, share = p.impute().detach(), torch.maximum(p.batch.mix.ratio, 1 - p.batch.mix.ratio)
    own = share[len(p.batch.labeled.x) :][: len(z.z), None]
    x = p.batch.unlabeled.weak
    student = p.student()
    assert torch.equal(student.inputs, own * x + (1 - own) * x.flip(0))
    f = torch.randn_like(z.z)
    wanted = -((own * z.z + (1 - own) * z.z.flip(0)) * f.log_softmax(1)).sum(1).mean()
    assert float(student.cost(f, z)) == pytest.approx(float(wanted))
    labels, mine = F.one_hot(p.batch.labeled.y, 4).double(), share[: len(p.batch.labeled.x), None]
    f = torch.randn_like(labels)
    wanted = -((mine * labels + (1 - mine) * labels.flip(0)) * f.log_softmax(1)).sum(1).mean()
    assert float(p.supervised().cost(f, z)) == pytest.approx(float(wanted), rel=1e-6)


def test_uda_learns_sharpened_labels_where_they_are_confident() -> None:
    p = problem("uda")
    p = p._replace(method=dataclasses.replace(p.method, temperature=0.4, threshold=0.3))
    weak = outputs(p, "weak")
    imputed = p.impute().detach()
    assert torch.allclose(imputed.z, (weak / 0.4).softmax(1))
    assert torch.equal(imputed.weight, (weak.softmax(1).amax(1) >= 0.3).double())
    f = outputs(p, "strong")
    kl = F.kl_div(f.log_softmax(1), imputed.z, reduction="none").sum(1)
    assert float(p.student().cost(f, imputed)) == pytest.approx(float((imputed.weight * kl).mean()))


@pytest.mark.parametrize(
    ("annealing", "limit"),
    [("linear", 0.3), ("log", 1 - math.exp(-1.5)), ("exp", math.exp(-3.5)), ("none", 1.0)],
)
def test_uda_releases_the_training_signal_step_by_step(annealing: str, limit: float) -> None:
    """At 30 % of the run; of 4 classes, predictions above limit·3/4 + 1/4 no longer count."""
    p = problem("uda")
    method = dataclasses.replace(p.method, annealing=annealing)
    y = p.batch.labeled.y
    f = torch.linspace(0, 4, len(y), dtype=torch.float64).unsqueeze(1) * F.one_hot(y, 4)
    right = f.softmax(1).gather(1, y[:, None]).squeeze(1)
    counts = right <= limit * 0.75 + 0.25
    assert 0 < int(counts.sum()) <= len(y)
    wanted = -right[counts].log().mean()
    cost = method.supervised(p.task, lookahead(p.model, p.params), p.batch).cost(
        f, p.impute().detach()
    )
    assert float(cost) == pytest.approx(float(wanted))


def test_the_entropy_beside_vat_has_its_gradient() -> None:
    p = problem("vat")
    net, params = lookahead(p.model, p.params), list(p.params.values())
    without, more = (
        torch.autograd.grad(
            compute_costs(dataclasses.replace(p.method, entropy=e), p.task, net, net, p.batch).c_t,
            params,
        )
        for e in (0.0, 0.5)
    )
    entropy = (
        0.5 * torch.distributions.Categorical(logits=net(p.batch.unlabeled.weak)).entropy().mean()
    )
    for a, b, wanted in zip(without, more, torch.autograd.grad(entropy, params), strict=True):
        assert torch.allclose(b - a, wanted, atol=1e-10)


@pytest.mark.parametrize(("share", "limit"), [(0.6, 0.5 * 0.75 + 0.25), (0.1, 1.0)])
def test_uda_anneals_over_a_share_of_the_run(share: float, limit: float) -> None:
    p = problem("uda")  # at 30 % of it
    method = dataclasses.replace(p.method, annealing_share=share)
    assert float(method.compute_tsa_threshold(p.task, p.batch)) == pytest.approx(limit)


def test_uda_costs_nothing_where_all_is_known() -> None:
    p = problem("uda")
    certain = 50.0 * F.one_hot(p.batch.labeled.y, 4).double()
    assert float(p.supervised().cost(certain, p.impute().detach())) == 0.0


DEFAULTS: dict[str, dict[str, object]] = {
    "supervised": {},
    "pseudo-label": {"threshold": 0.95, "one_forward": False},
    "pi-model": {"one_forward": False},
    "mean-teacher": {"one_forward": False},
    "vat": {
        "student_view": "weak",
        "epsilon": 6.0,
        "xi": 1e-3,
        "entropy": 0.0,
        "one_forward": False,
    },
    "mixup": {"student_view": "weak", "alpha": 0.5},
    "mixmatch": {"weight": 75.0, "temperature": 0.5, "alpha": 0.75, "one_forward": False},
    "fixmatch": {"student_view": "strong", "threshold": 0.95, "one_forward": False},
    "uda": {
        "student_view": "strong",
        "threshold": 0.8,
        "temperature": 0.4,
        "annealing": "linear",
        "annealing_share": 1.0,
        "one_forward": False,
    },
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_comes_with_the_settings_of_its_paper(name: str) -> None:
    method = load_registered("method", METHODS, name)()
    shared = {"weight": 1.0, "rampup": 0, "student_view": "weak2"}
    assert dataclasses.asdict(method) == {**shared, **DEFAULTS[name]}


def test_the_traits_of_methods_are_told_apart() -> None:
    classes = {name: load_registered("method", METHODS, name) for name in METHODS}
    having = {
        "teacher": {name for name, cls in classes.items() if cls.imputer == "teacher"},
        "mask": {name for name, cls in classes.items() if cls.uses_confidence_mask},
        "mixed": {name for name, cls in classes.items() if cls.mixes_targets},
        "noise": {name for name, cls in classes.items() if cls.needs_input_noise},
        "no labels": {name for name, cls in classes.items() if not cls.uses_pseudo_labels},
        "regression": {name for name, cls in classes.items() if "regression" in cls.tasks},
        "alpha": {name for name, cls in classes.items() if cls().mix_alpha is not None},
    }
    assert having == {
        "teacher": {"mean-teacher"},
        "mask": {"pseudo-label", "fixmatch", "uda"},
        "mixed": {"mixmatch"},
        "noise": {"vat"},
        "no labels": {"supervised"},
        "regression": {"supervised", "pseudo-label", "pi-model", "mean-teacher"},
        "alpha": {"mixup", "mixmatch"},
    }
    assert (classes["mixup"]().mix_alpha, classes["mixmatch"]().mix_alpha) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("name", "views"),
    [
        ("pi-model", ("weak", "weak2")),
        ("fixmatch", ("weak", "strong")),
        ("uda", ("weak", "strong")),
        ("mixmatch", ("weak", "weak2", "weak2")),
        ("mixup", ("weak",)),
        ("vat", ("weak",)),
    ],
)
def test_a_method_asks_for_the_views_that_it_looks_at(name: str, views: tuple[str, ...]) -> None:
    assert load_registered("method", METHODS, name)().views == views


def test_uda_counts_a_sample_that_is_as_sure_as_the_threshold() -> None:
    """Of 2 classes at the start, the threshold is 1/2, which no guess at random exceeds."""
    p = problem("uda")
    task, y = Classification(num_outputs=2), torch.tensor([0, 1, 0])
    progress = torch.tensor(0.0, dtype=torch.float64)
    batch = p.batch._replace(labeled=Labeled(torch.zeros(3, 1), y), progress=progress)
    outputs = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]], dtype=torch.float64)
    cost = p.method.supervised(task, lambda x: x, batch).cost(outputs, p.impute())
    assert float(cost) == pytest.approx(math.log(2))


def test_a_labelled_cost_is_the_tasks_loss_on_the_labelled_samples() -> None:
    for name, kind in (("pi-model", "classification"), ("pi-model", "regression")):
        p = problem(name, kind)
        student = p.supervised()
        f = torch.randn(5, 4, dtype=torch.float64)
        assert torch.equal(student.inputs, p.batch.labeled.x)
        wanted = p.task.loss(f, p.batch.labeled.y)
        assert torch.equal(student.cost(f, p.impute().detach()), wanted)


@pytest.mark.parametrize("name", ["pi-model", "fixmatch", "uda", "pseudo-label"])
def test_labels_that_do_not_count_still_count_as_samples(name: str) -> None:
    """Costs are means over the batch, not over the labels that pass."""
    p = problem(name)
    imputed, student = p.impute().detach(), p.student()
    f = torch.randn(6, 4, dtype=torch.float64)
    single = []
    for row in range(6):
        weight = torch.zeros(6, dtype=torch.float64)
        weight[row] = 1.0
        single.append(student.cost(f, imputed._replace(weight=weight)))
    ones = imputed._replace(weight=torch.ones(6, dtype=torch.float64))
    assert float(student.cost(f, ones)) == pytest.approx(float(sum(single)))


def test_the_mask_is_counted_by_class_as_shares_of_the_batch() -> None:
    p = problem("fixmatch")
    z = F.one_hot(torch.tensor([0, 0, 1, 3]), 4).double()
    imputed = Imputed(z, torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64))
    counted = p.method.mask_by_class(p.task, imputed)
    assert counted is not None and counted.tolist() == [0.5, 0.25, 0.0, 0.0]


@pytest.mark.parametrize(("view", "moves"), [("weak", False), ("weak2", True), ("strong", True)])
def test_labels_are_carried_to_the_view_of_the_student(view: str, moves: bool) -> None:
    p = problem("pi-model", "regression")
    p = p._replace(method=dataclasses.replace(p.method, student_view=view))
    z = outputs(p, "weak")
    wanted = p.task.transport_label(z, p.batch.unlabeled.affine_map) if moves else z
    torch.testing.assert_close(p.impute().z.detach(), wanted)
    assert torch.equal(p.student().inputs, p.batch.unlabeled.views[view])


def test_mixmatchs_costs_are_to_labels_mixed_as_the_rows_are() -> None:
    p = problem("mixmatch")
    mix, z = p.batch.mix, p.impute().detach()
    assert mix is not None
    share = torch.maximum(mix.ratio, 1 - mix.ratio).unsqueeze(1)
    labels = torch.cat([F.one_hot(p.batch.labeled.y, 4).double(), z.z, z.z])
    mixed = share * labels + (1 - share) * labels[mix.permutation]
    f = torch.randn(17, 4, dtype=torch.float64)
    c_u = F.mse_loss(f[5:].softmax(1), mixed[5:])
    c_t = -(mixed[:5] * f[:5].log_softmax(1)).sum(1).mean()
    assert float(p.student().cost(f[5:], z)) == pytest.approx(float(c_u))
    assert float(p.supervised().cost(f[:5], z)) == pytest.approx(float(c_t))


def test_vat_starts_its_search_at_a_step_of_length_xi() -> None:
    p = problem("vat")
    x, met = p.batch.unlabeled.weak, list[torch.Tensor]()

    def net(inputs: torch.Tensor) -> torch.Tensor:
        met.append(inputs.detach())
        return lookahead(p.model, p.params)(inputs)

    r = dataclasses.replace(p.method, xi=0.01).compute_perturbation(p.task, net, p.batch)
    clean, probed = met
    assert torch.equal(clean, x)
    noise = p.batch.unlabeled.noise
    assert noise is not None
    torch.testing.assert_close(probed - x, 0.01 * F.normalize(noise, dim=1))
    torch.testing.assert_close(r.norm(dim=1), torch.full((6,), 6.0, dtype=torch.float64))
    assert torch.equal(p.student().inputs, x + p.method.compute_perturbation(p.task, net, p.batch))
    assert not r.requires_grad


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_vats_directions_are_of_length_one_however_long_they_were(size: float) -> None:
    p = problem("vat")
    scaled = p.batch.unlabeled._replace(noise=size * p.batch.unlabeled.noise)
    batch = p.batch._replace(unlabeled=scaled)
    net = lookahead(p.model, p.params)
    got, wanted = (p.method.compute_perturbation(p.task, net, b) for b in (batch, p.batch))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("annealing", "schedule"),
    [
        ("linear", lambda t: t),
        ("log", lambda t: 1 - math.exp(-5 * t)),
        ("exp", lambda t: math.exp(5 * (t - 1))),
    ],
    ids=["linear", "log", "exp"],
)
def test_udas_threshold_is_that_of_its_paper(annealing: str, schedule: object, t: float) -> None:
    """η_t = α_t (1 − 1/K) + 1/K, with three schedules α_t (Xie et al., 2020, section 2)."""
    p = problem("uda")
    method = dataclasses.replace(p.method, annealing=annealing)
    batch = p.batch._replace(progress=torch.tensor(t, dtype=torch.float64))
    wanted = schedule(t) * (1 - 1 / 4) + 1 / 4  # type: ignore[operator]
    assert float(method.compute_tsa_threshold(p.task, batch)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "task", "tracked"),
    [
        ("fixmatch", "classification", True),
        ("uda", "classification", True),
        ("pseudo-label", "classification", True),
        ("pseudo-label", "regression", False),
        ("mean-teacher", "classification", False),
        ("mean-teacher", "regression", False),
    ],
)
def test_a_mask_is_counted_for_classes_where_there_is_one(
    name: str, task: str, tracked: bool
) -> None:
    p = problem(name, task)
    assert p.method.tracks_mask(p.task) == tracked
    assert (p.method.mask_by_class(p.task, p.impute()) is not None) == tracked
    net = lookahead(p.model, p.params)
    costs = compute_costs(p.method, p.task, net, net, p.batch)
    assert (costs.mask_by_class is not None) == tracked
