"""What processes average, with two that threads simulate: together they do what one does."""

import copy

import pytest
import torch
from cases import cases, taken
from simulated import simulate
from torch import Tensor, nn
from torch.nn import functional as F

from l2i import Trainer, recipes, replace
from l2i.bilevel import (
    LearnableLabels,
    OuterStep,
    OutputLabels,
    Problem,
    exact,
    last_layer,
    last_layer_paper,
    lookahead,
    trainable,
)
from l2i.bilevel.functional import compute_mean_gradient
from l2i.bilevel.outer import Labels
from l2i.bilevel.problem import Imputed, Student
from l2i.data.batch import Batch, Labeled, Unlabeled
from l2i.distributed import (
    ProcessGroup,
    current_group,
    init_distributed,
    sample_integers,
    sample_normal,
    sample_uniform,
    use_group,
)
from l2i.methods.uda import UDA
from l2i.tasks import Classification
from problems import FLOAT64, relative

ETA = 0.3
TASK = Classification(num_outputs=3)


def network() -> nn.Module:
    """Without BatchNorm, whose statistics would be another thing to share."""
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(FLOAT64)


class SharedProblem:
    """A problem of which each process has every second row."""

    def __init__(self) -> None:
        self.model = network()
        self.x_u, self.student_x, self.x_h = (torch.randn(n, 5, dtype=FLOAT64) for n in (6, 6, 8))
        self.y_h = torch.arange(8) % 3

    def problem(self, group: ProcessGroup, **settings: object) -> Problem:
        model = copy.deepcopy(self.model)  # the network of this process
        params = trainable(model)
        shard = group.shard
        student = Student(
            shard(self.student_x),
            lambda f, imputed: (imputed.weight * TASK.distance(f, imputed.z)).mean(),
        )
        imputed = Imputed.unmasked(lookahead(model, params)(shard(self.x_u)).softmax(1))

        def c_h(net: object) -> Tensor:
            return F.cross_entropy(net(shard(self.x_h)), shard(self.y_h))  # type: ignore[operator]

        return Problem(model, params, student, imputed, c_h, eta=ETA, **settings)  # type: ignore[arg-type]


def join_rows(parts: list[Tensor]) -> Tensor:
    """Undo `ProcessGroup.shard`."""
    return torch.stack(parts, dim=1).flatten(0, 1)


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (exact, {}),
        (exact, {"inner_steps": 3}),
        (last_layer, {}),
        (last_layer, {"lookahead_params": "all"}),
        (last_layer_paper, {}),
    ],
    ids=["exact", "exact, 3 steps", "last layer", "last layer, all ahead", "the paper's"],
)
def test_the_derivative_of_shared_rows_is_that_of_one_process(
    function: object, settings: dict[str, object]
) -> None:
    shared = SharedProblem()
    wanted = function(shared.problem(ProcessGroup(), **settings))  # type: ignore[operator]
    parts = simulate(
        lambda group: group.rescale_local_grad(function(shared.problem(group, **settings)))  # type: ignore[operator]
    )
    assert relative(join_rows(parts), wanted) < 1e-12


@pytest.mark.parametrize(
    "labels",
    [OutputLabels(), LearnableLabels(label_lr=0.5), LearnableLabels(label_lr=0.1, normalized=True)],
    ids=["output", "learnable", "normalized"],
)
def test_the_mean_of_outer_gradients_is_that_of_one_process(labels: Labels) -> None:
    shared, step = SharedProblem(), OuterStep(hypergradient=exact, labels=labels)
    wanted = step(shared.problem(ProcessGroup())).gradient

    def outer_gradient(group: ProcessGroup) -> dict[str, Tensor]:
        return group.average_tensors(step(shared.problem(group)).gradient)

    for got in simulate(outer_gradient):
        for name, value in wanted.items():
            torch.testing.assert_close(got[name], value, rtol=1e-11, atol=1e-14)


def test_a_mean_gradient_is_over_the_samples_of_all() -> None:
    x = torch.randn(4, 3, dtype=FLOAT64)
    theta = {"w": torch.randn(3, dtype=FLOAT64)}

    def gradient_of(group: ProcessGroup) -> Tensor:
        rows = group.shard(x)
        return compute_mean_gradient(lambda p: (rows @ p["w"]).square().mean(), theta)["w"]

    wanted = gradient_of(ProcessGroup())
    assert all(relative(got, wanted) < 1e-14 for got in simulate(gradient_of))


@pytest.mark.parametrize("unsure", [1, 2, 3])
def test_annealed_costs_divide_by_the_samples_that_count_in_all_processes(unsure: int) -> None:
    """Of 4 labelled samples some are known already; the others count wherever they are."""
    y = torch.arange(4) % 3
    logits = 9.0 * F.one_hot(y, 3).to(FLOAT64)
    logits[:unsure] *= 0.01
    method, progress = UDA(annealing="linear"), torch.tensor(0.5, dtype=FLOAT64)

    def cost(group: ProcessGroup) -> Tensor:
        batch = Batch(Labeled(group.shard(y), group.shard(y)), Unlabeled({}), progress=progress)
        student = method.supervised(TASK, lambda x: x, batch)
        imputed = Imputed.unmasked(torch.zeros(1, 3))
        return group.all_reduce_mean(student.cost(group.shard(logits), imputed))

    wanted = F.cross_entropy(logits[:unsure], y[:unsure])
    assert float(cost(ProcessGroup())) == pytest.approx(float(wanted))
    assert [float(got) for got in simulate(cost)] == pytest.approx([float(wanted)] * 2)


def test_rows_are_dealt_out_in_turn_and_gathered_in_order() -> None:
    rows = torch.arange(14).view(7, 2)
    assert torch.equal(join_rows(simulate(lambda group: group.shard(rows[:6]))), rows[:6])
    columns = simulate(lambda group: group.shard(rows, dim=1))
    assert torch.equal(torch.cat(columns, dim=1), rows)

    def gathered(group: ProcessGroup) -> Tensor:
        return group.all_gather_rows(rows[slice(*group.shard_bounds(7))], 7)

    assert all(torch.equal(got, rows) for got in simulate(gathered))
    bounds = simulate(lambda group: group.shard_bounds(7), size=3)
    assert bounds == [(0, 2), (2, 4), (4, 7)]


def test_tensors_of_several_types_and_shapes_are_averaged_by_name() -> None:
    def averaged(group: ProcessGroup) -> dict[str, Tensor]:
        own = float(group.rank)
        tensors = {
            "a": torch.full((2, 3), 1 + own, dtype=FLOAT64),
            "b": torch.full((4,), 10 * own),
            "c": torch.tensor(5.0 + own, dtype=FLOAT64),
        }
        return group.average_tensors(tensors)

    for got in simulate(averaged):
        assert list(got) == ["a", "b", "c"]
        assert torch.equal(got["a"], torch.full((2, 3), 1.5, dtype=FLOAT64))
        assert torch.equal(got["b"], torch.full((4,), 5.0)) and float(got["c"]) == 5.5


def test_norms_and_means_are_those_of_all_values_together() -> None:
    values = torch.randn(6, 2, dtype=FLOAT64)
    norms = simulate(lambda group: group.global_norm(group.shard(values)))
    means = simulate(lambda group: group.all_reduce_mean(group.shard(values).mean()))
    for norm, mean in zip(norms, means, strict=True):
        torch.testing.assert_close(norm, values.norm())
        torch.testing.assert_close(mean, values.mean())
    assert torch.equal(ProcessGroup().global_norm(values), values.norm())


def test_random_draws_of_processes_are_together_those_of_one() -> None:
    def draws(group: ProcessGroup) -> list[Tensor]:
        generator = torch.Generator().manual_seed(5)
        count = 6 // group.size
        return [
            sample_uniform((count, 3), generator),
            sample_integers(9, (count, 2), generator),
            sample_normal((count, 2), generator),
            sample_uniform((2, count), generator, dim=1).t(),
        ]

    for parts, wanted in zip(
        zip(*simulate(draws), strict=True), draws(ProcessGroup()), strict=True
    ):
        assert torch.equal(join_rows(list(parts)), wanted)


SHARED_RUNS = [
    "fixmatch-O-exact-two-steps",
    "fixmatch-O-last-fewer",
    "fixmatch-L-last",
    "fixmatch-L-exact-paper",
    "fixmatch-turned",
    "fixmatch-direct",
    "fixmatch-zero-paper",
    "fixmatch-shuffled",
    "uda-supervised-inner",
    "vat-O",
    "tracked",
    "regression",
]


@pytest.mark.parametrize("name", SHARED_RUNS)
def test_two_trainers_take_the_steps_of_one(name: str) -> None:
    """The states after a few steps, what was measured on the way, and the metrics at the end."""
    run = cases()[name]
    state, metrics = taken(name, run)
    for other_state, other_metrics in simulate(lambda _: taken(name, run)):
        assert other_state.keys() == state.keys()
        for key, value in state.items():
            torch.testing.assert_close(other_state[key], value, rtol=1e-10, atol=1e-10, msg=key)
        for part, values in metrics.items():
            assert other_metrics[part] == pytest.approx(values, rel=1e-10, abs=1e-10)


def test_three_processes_recompute_statistics_on_batches_they_can_share() -> None:
    """1,024 samples, on which one process recomputes them, are not divisible by three."""
    sizes = dict.fromkeys(("labeled", "unlabeled", "holdout"), 1536)
    run = replace(recipes.get("digits/mixmatch-40"), device="cpu", batch=sizes, threads=1)
    assert run.optim.ema_bn == "recompute"
    metrics = simulate(lambda _: Trainer(run).compute_metrics(), size=3)
    assert metrics[0] == metrics[1] == metrics[2]


def test_one_process_sends_nothing_and_is_the_main_one() -> None:
    group, values = ProcessGroup(), torch.randn(3)
    assert group.is_main and group.supports_cuda_graph
    assert group.all_reduce(values) is values and group.all_reduce_mean(values) is values
    assert group.shard(values) is values and group.shard_bounds(7) == (0, 7)
    assert group.rescale_local_grad(values) is values
    assert group.all_gather_rows(values, 3) is values
    tensors = {"a": values}
    assert group.average_tensors(tensors) is tensors
    assert group.broadcast_bytes(b"abc") == b"abc"
    group.broadcast_([values])
    assert [group.any_async(value) for value in (True, False)] == [True, False]
    assert group.wait_any() is False
    with init_distributed() as joined:
        assert joined.size == 1 and current_group() is joined


def test_a_group_is_the_current_one_where_it_is_used_and_nowhere_else() -> None:
    outside, inside = current_group(), ProcessGroup(3, 1)
    with use_group(inside):
        assert current_group() is inside and not inside.is_main
    assert current_group() is outside
    with pytest.raises(KeyError), use_group(inside):
        raise KeyError
    assert current_group() is outside


def test_a_derivative_of_a_share_is_one_of_the_whole_divided_by_the_processes() -> None:
    assert ProcessGroup(4, 2).rescale_local_grad(torch.tensor([8.0])).tolist() == [2.0]


def test_the_main_process_hands_its_values_to_all() -> None:
    def received(group: ProcessGroup) -> Tensor:
        values = torch.full((2,), float(group.rank + 5))
        group.broadcast_([values])
        return values

    assert [got.tolist() for got in simulate(received)] == [[5.0, 5.0]] * 2


@pytest.mark.parametrize("name", ["mixup-O", "mixmatch-O"])
def test_processes_that_mix_their_own_samples_hold_one_state(name: str) -> None:
    run = cases()[name]
    (first, metrics), (second, other_metrics) = simulate(lambda _: taken(name, run))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert metrics == other_metrics
