"""The small parts around the step: teacher, optimizer, evaluation, meter, checkpoint."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from l2i import recipes, replace
from l2i.config import Optim
from l2i.data.samples import Samples
from l2i.errors import InputError, NonFiniteCost
from l2i.training.checkpoint import (
    compute_digest,
    list_checkpoints,
    load_checkpoint,
    load_latest_checkpoint,
    save_checkpoint,
)
from l2i.training.ema import Teacher
from l2i.training.evaluation import (
    compute_final_metric,
    compute_final_steps,
    compute_outputs,
    find_best_step,
    is_eval_step,
)
from l2i.training.metrics import METRIC_NAMES, MetricAccumulator
from l2i.training.optimizer import FlatParameters, Stepper, StepScalars, compute_lr_factor
from l2i.training.precision import (
    list_matrix_params,
    resolve_precision,
    round_params,
    use_precision,
)


def test_the_teacher_averages_parameters_and_copies_buffers() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    teacher, flat = Teacher(model), FlatParameters(dict(model.named_parameters()))
    average = model[0].weight.detach().clone()
    for step in range(20):
        with torch.no_grad():
            model[0].weight.normal_()
            model[1].running_mean.normal_()
        alpha = min(1 - 1 / (step + 1), 0.9)
        teacher.update(model, flat.values, torch.tensor(1 - alpha))
        average = alpha * average + (1 - alpha) * model[0].weight.detach()
    assert torch.allclose(teacher.model[0].weight, average, atol=1e-6)
    assert torch.equal(teacher.model[1].running_mean, model[1].running_mean)
    assert not any(p.requires_grad for p in teacher.model.parameters())


def test_rates_follow_their_schedules() -> None:
    step = Optim(schedule="step", milestones=(10, 20))
    assert [compute_lr_factor(step, t, 30) for t in (0, 9, 10, 20)] == pytest.approx(
        [1, 1, 0.1, 0.01]
    )
    cosine = Optim(schedule="cosine")
    assert [compute_lr_factor(cosine, t, 100) for t in (0, 50, 100)] == pytest.approx(
        [1, math.cos(7 * math.pi / 32), math.cos(7 * math.pi / 16)]
    )
    assert compute_lr_factor(Optim(), 99, 100) == 1.0


@pytest.mark.parametrize(
    "optim",
    [
        Optim(lr=0.1),
        Optim(name="sgd", lr=0.1, nesterov=True, weight_decay=0.01, weight_decay_mode="l2"),
    ],
)
def test_a_stepper_is_its_torch_optimizer(optim: Optim) -> None:
    mine, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
    if optim.name == "adam":
        reference: torch.optim.Optimizer = torch.optim.Adam([theirs], lr=0.1)
    else:
        reference = torch.optim.SGD(
            [theirs], lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
        )
    stepper = Stepper({"w": mine}, optim)
    for _ in range(5):
        gradient = torch.randn(3)
        stepper({"w": gradient}, torch.tensor(1.0))
        stepper.apply_weight_decay()
        theirs.grad = gradient
        reference.step()
    assert torch.equal(mine, theirs)


def test_decoupled_decay_shrinks_whatever_the_rate() -> None:
    weight = nn.Parameter(torch.ones(3))
    stepper = Stepper({"w": weight}, Optim(lr=1e-9, weight_decay=0.1))
    stepper.apply_weight_decay()
    assert weight.tolist() == pytest.approx([0.9] * 3)


def test_evaluations_that_count_lie_at_the_end() -> None:
    for steps in (1000, 1500, 22_500, 2**20):
        counted = compute_final_steps(steps)
        assert len(set(counted)) == 20
        assert counted[-1] == steps
        assert counted[0] >= 0.9 * steps
        assert all(is_eval_step(step, steps, 10**9) for step in counted)
    assert compute_final_steps(999) == [999]
    assert [step for step in range(1, 251) if is_eval_step(step, 250, 100)] == [100, 200, 250]


def test_final_metric_is_the_median() -> None:
    curve = dict.fromkeys(range(1, 1001), 50.0) | {
        step: float(step - 900) ** 2 for step in compute_final_steps(1000)
    }
    assert compute_final_metric(curve, {}, 1000, "median") == (50**2 + 55**2) / 2
    assert compute_final_metric({100: 3.0, 200: 1.0}, {}, 200, "median") == 1.0


def test_final_metric_may_be_by_early_stopping() -> None:
    assert (
        compute_final_metric(
            {1: 9.0, 2: 5.0, 3: 4.0, 4: 3.0}, {1: 8.0, 2: 1.0, 3: 1.0, 4: 2.0}, 4, "best"
        )
        == 5.0
    )


def test_evaluation_is_in_evaluation_mode_and_in_batches() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.9), nn.BatchNorm1d(3)).train()
    samples = Samples(torch.randn(50, 4), torch.randint(3, (50,)))
    whole, batched = (
        compute_outputs(model, samples, torch.neg, batch_size=size) for size in (50, 7)
    )
    torch.testing.assert_close(whole, batched)
    assert torch.equal(whole, model.eval()(-samples.x))
    model.train()
    assert model.training
    assert int(model[2].num_batches_tracked) == 0


def test_evaluation_leaves_each_module_in_its_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).train()
    model[1].eval()
    compute_outputs(model, Samples(torch.randn(5, 4), torch.randint(3, (5,))), torch.neg)
    assert (model.training, model[1].training) == (True, False)


def values(**changes: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(changes.get(name, 1.0)) for name in METRIC_NAMES}


def test_the_meter_reads_means_and_starts_again() -> None:
    meter = MetricAccumulator(torch.device("cpu"))
    meter.add(values(c_t=1.0), torch.tensor(0))
    meter.add(values(c_t=3.0), torch.tensor(1))
    assert meter.read()["c_t"] == 2.0
    meter.add(values(c_t=5.0), torch.tensor(2))
    assert meter.read()["c_t"] == 5.0


def test_the_meter_counts_the_outer_steps_values_where_there_was_one() -> None:
    meter = MetricAccumulator(torch.device("cpu"))
    meter.add(values(c_h=4.0), torch.tensor(0))
    for step in (1, 2, 3):
        base = {
            name: value
            for name, value in values(c_t=5.0).items()
            if name in ("c_t", "c_u", "gradient", "parameters")
        }
        meter.add(base, torch.tensor(step))
    assert (meter.read()["c_h"], meter.count.tolist()) == (4.0, [0] * len(METRIC_NAMES))


def test_the_meter_names_the_first_bad_step_and_cost() -> None:
    meter = MetricAccumulator(torch.device("cpu"))
    meter.add(values(), torch.tensor(0))
    meter.raise_if_nonfinite()
    meter.add(values(c_u=math.nan), torch.tensor(1))
    meter.add(values(c_u=math.nan, c_t=math.inf), torch.tensor(2))
    with pytest.raises(NonFiniteCost, match="c_u is NaN or infinite from step 2 on"):
        meter.raise_if_nonfinite()


def test_checkpoints_keep_the_last_two(tmp_path: Path) -> None:
    for step in (0, 10, 20):
        save_checkpoint(tmp_path, step, {"w": torch.full((3,), float(step))}, {"step": step})
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "0000000010.safetensors",
        "0000000020.safetensors",
    ]
    tensors, meta = load_latest_checkpoint(tmp_path)
    assert (tensors["w"].tolist(), meta) == ([20.0] * 3, {"step": 20})


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    for step in (10, 20):
        save_checkpoint(tmp_path, step, {"w": torch.randn(100)}, {"step": step})
    newest = list_checkpoints(tmp_path)[-1]
    newest.write_bytes(newest.read_bytes()[:-50])
    assert load_checkpoint(newest) is None
    assert (
        load_latest_checkpoint(tmp_path)[1] == {"step": 10} and newest.exists()
    )  # others may look, and touch nothing
    printed: list[str] = []
    assert load_latest_checkpoint(tmp_path, printed.append)[1] == {"step": 10}
    assert printed == [f"{newest} is damaged; resuming from the previous one, at step 10"]
    assert newest.with_suffix(".damaged").exists() and not newest.exists()
    list_checkpoints(tmp_path)[0].write_bytes(b"nonsense")
    with pytest.raises(InputError, match="no intact checkpoint is left"):
        load_latest_checkpoint(tmp_path)


def test_a_single_changed_byte_is_found(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"w": torch.randn(100)}, {"step": 1})
    path = list_checkpoints(tmp_path)[0]
    for place in (60, -1):  # in the JSON, in a tensor
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.with_name("changed").write_bytes(content)
        assert load_checkpoint(path.with_name("changed")) is None


def test_a_checkpoint_holds_tensors_and_json_alone(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"w": torch.zeros(2)}, {"step": 1})
    content = list_checkpoints(tmp_path)[0].read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + length])["__metadata__"]["json"] == '{"step": 1}'


def test_early_stopping_takes_the_first_of_equal_metrics() -> None:
    assert find_best_step({10: 3.0, 20: 1.0, 30: 1.0, 40: 2.0}) == 20


def test_milestones_may_be_shares_of_the_run() -> None:
    optim = Optim(schedule="step", milestones=(0.5, 0.75))
    factors = [compute_lr_factor(optim, step, 200) for step in (0, 1, 99, 100, 149, 150)]
    assert factors == pytest.approx([1, 1, 1, 0.1, 0.1, 0.01])


@pytest.mark.parametrize(
    ("device", "changes", "wanted"),
    [
        ("cpu", {}, "float32"),
        ("cuda", {}, "bf16"),
        ("cuda", {"precision": "float32"}, "float32"),
        ("cuda", {"method": "vat"}, "float32"),
    ],
    ids=str,
)
def test_precision_is_bf16_on_a_gpu_where_nothing_is_lost_in_it(
    device: str, changes: dict[str, object], wanted: str
) -> None:
    assert (
        resolve_precision(replace(recipes.get("digits"), **changes), torch.device(device)) == wanted
    )


def test_tf32_is_off_while_a_run_computes_and_as_it_was_afterwards() -> None:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    own = cudnn.allow_tf32, matmul.allow_tf32
    try:
        for before in (True, False):
            cudnn.allow_tf32 = matmul.allow_tf32 = before
            with use_precision(torch.device("cpu")):
                assert (cudnn.allow_tf32, matmul.allow_tf32) == (False, False)
            assert (cudnn.allow_tf32, matmul.allow_tf32) == (before, before)
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = own


def test_only_matrices_are_rounded_ahead() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))
    names = list_matrix_params(model)
    assert names == ["0.weight", "0.bias", "3.weight", "3.bias"]
    values = round_params(dict(model.named_parameters()), names)
    for name, p in model.named_parameters():
        assert torch.equal(values[name], p.bfloat16() if name in names else p)
        assert values[name].requires_grad is False


def test_parameters_in_one_piece_are_what_they_were() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(5, 7)).to(
        memory_format=torch.channels_last
    )
    params = dict(model.named_parameters())
    before = {name: p.detach().clone() for name, p in params.items()}
    flat = FlatParameters(params)
    assert all(
        torch.equal(p, before[name]) and p.stride() == before[name].stride()
        for name, p in params.items()
    )
    with torch.no_grad():
        flat.values.mul_(2)
    assert all(torch.equal(p, 2 * before[name]) for name, p in model.named_parameters())
    assert all(p.data_ptr() % 256 == flat.values.data_ptr() % 256 for p in params.values())


def test_a_model_that_has_left_its_piece_is_found() -> None:
    params = dict(nn.Linear(3, 2).named_parameters())
    flat = FlatParameters(params)
    flat.check_storage(params)
    FlatParameters(params)
    with pytest.raises(InputError, match="passed to another trainer"):
        flat.check_storage(params)


def test_a_gradient_in_one_piece_comes_apart_again() -> None:
    params = dict(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(5, 7)).named_parameters())
    flat = FlatParameters(params)
    gradient = {name: torch.randn_like(p) for name, p in params.items()}
    gradient["0.weight"] = gradient["0.weight"].bfloat16()
    del gradient["1.bias"]
    piece = flat.flatten(gradient)
    assert float(piece.norm()) == pytest.approx(
        float(torch.cat([g.float().flatten() for g in gradient.values()]).norm())
    )
    parts = flat.split(piece)
    assert (
        all(torch.equal(parts[name], g.float()) for name, g in gradient.items())
        and not parts["1.bias"].any()
    )


@pytest.mark.parametrize("schedule", ["constant", "rate"])
def test_the_clock_tells_the_numbers_of_a_step(schedule: str) -> None:
    optim = Optim(schedule="step", milestones=(10,), ema_decay=0.9)
    run = replace(recipes.get("digits"), steps=20, optim=optim, method={"rampup": 8, "weight": 4.0})
    clock = StepScalars(
        replace(run, l2i={"paper": {"eta": 0.5, "eta_schedule": schedule}}),
        torch.device("cpu"),
        torch.float64,
    )
    printed = []
    for step in (0, 4, 12):
        clock.set_step(step)
        printed.append(
            [
                float(value)
                for value in (
                    clock.step,
                    clock.weight,
                    clock.lr_factor,
                    clock.eta,
                    clock.ema_weight,
                )
            ]
        )
    late = 0.05 if schedule == "rate" else 0.5
    assert printed == [
        pytest.approx([0, 0.0, 1.0, 0.5, 1.0]),
        pytest.approx([4, 2.0, 1.0, 0.5, 0.2]),
        pytest.approx([12, 4.0, 0.1, late, 0.1]),
    ]


def test_a_checkpoint_is_what_safetensors_itself_would_read(tmp_path: Path) -> None:
    """Every type, odd sizes and shapes, and none: written by our hand, read by the library's."""
    kinds = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
    shapes = [(), (0,), (3,), (2, 5), (1, 0, 2)]
    tensors = {
        f"{kind}{shape}".lower(): (9 * torch.rand(shape)).to(kind)
        for kind in kinds
        for shape in shapes
    }
    tensors["turned"] = torch.rand(3, 4).t()
    save_checkpoint(tmp_path, 1, tensors, {"step": 1})
    read = load_file(tmp_path / "0000000001.safetensors")
    assert read.keys() == tensors.keys()
    assert all(
        read[name].dtype == t.dtype and torch.equal(read[name], t) for name, t in tensors.items()
    )


def test_a_checksum_is_of_types_shapes_names_bytes_and_metadata() -> None:
    w = torch.arange(6, dtype=torch.int32)
    states = [
        ({"w": w}, "{}"),
        ({"w": w.view(2, 3)}, "{}"),
        ({"w": w.view(3, 2)}, "{}"),
        ({"w": w.view(torch.float32)}, "{}"),
        ({"v": w}, "{}"),
        ({"w": w + 1}, "{}"),
        ({"w": w}, '{"step": 1}'),
        ({"w": w[:3], "x": w[3:]}, "{}"),
    ]
    assert len({compute_digest(*state) for state in states}) == len(states)
    two = {"a": w, "b": w + 1}
    assert compute_digest(two, "{}") == compute_digest(dict(reversed(two.items())), "{}")


@pytest.mark.parametrize(
    ("old", "new"), [(b'"shape":[2,3]', b'"shape":[3,2]'), (b'"dtype":"F32"', b'"dtype":"I32"')]
)
def test_a_changed_shape_or_type_is_found(tmp_path: Path, old: bytes, new: bytes) -> None:
    """The file stays one that safetensors reads, and no byte of a tensor changes."""
    save_checkpoint(tmp_path, 1, {"w": torch.rand(2, 3)}, {"step": 1})
    path = list_checkpoints(tmp_path)[0]
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    assert load_file(path)["w"].numel() == 6
    assert load_checkpoint(path) is None
