"""What only a CUDA device can show; skipped without one."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_map_only

from formats import write_cifar10
from image_folders import write_class_folders
from l2i import Augment, Run, Trainer, recipes, replace
from l2i.data.batch import collect_tensors
from l2i.errors import InputError
from l2i.kernels import disable_fused_kernels
from l2i.training import cuda_graph
from l2i.training.cuda_graph import BatchPrefetcher
from l2i.training.metrics import parse_metrics
from l2i.training.run import train_many

pytestmark = pytest.mark.gpu
PAPER = {"update": "paper", "paper": {"supervised_eta": 0.1, "inner_supervised": True}}


def conv(cell: str = "digits", **changes: object) -> Run:
    return replace(recipes.get(cell), **{"model": {"name": "conv", "width": 8}, **changes})


def cost_unwaited(trainer: Trainer, *, after: int = 1) -> float:
    """C^T of a step in which waiting for the device is an error, and of those before it."""
    for step in range(after):
        trainer.step(step)
    try:
        torch.cuda.set_sync_debug_mode("error")
        trainer.step(after)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return trainer.meter.read()["c_t"]


def costs(trainer: Trainer, steps: int) -> list[list[float]]:
    """Every figure of every step."""
    rows = []
    for step in range(steps):
        trainer.step(step)
        rows.append(list(trainer.meter.read().values()))
    return rows


def images(cell: str, root: Path, **changes: object) -> Run:
    """A CIFAR cell on tiny data, with a small network."""
    if not any(root.iterdir()):
        write_cifar10(root)
    return replace(
        recipes.get(f"cifar10/{cell}"),
        device="cuda",
        data={"root": str(root), "num_labeled": 20, "num_validation": 10},
        batch={"labeled": 8, "unlabeled": 16, "holdout": 8},
        model={"depth": 10, "width": 1},
        **changes,
    )


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Algorithms that add up in a fixed order.

    Else two runs of the same engine differ in the last bits, which grow.
    """
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


GRAPHED = [
    ("mean-teacher-250", {}),
    ("mean-teacher-l2i-250", {}),
    ("mean-teacher-l2i-250", {"paper": {"inner_supervised": True, "supervised_eta": 0.1}}),
    ("mean-teacher-l2i-250", {"one_forward": True}),
    ("mean-teacher-l2i-250-exact", {"one_forward": True}),
    ("mean-teacher-l2i-paper-250", {"one_forward": True, "paper": {"eta": 0.1}}),
    ("mean-teacher-l2i-250-shuffled", {}),
    ("mean-teacher-l2i-paper-250-exact", {"paper": {"eta": 0.1}}),
    ("mean-teacher-l2i-paper-250-zero", {}),
    ("mean-teacher-l2i-paper-250-direct", {}),
    ("fixmatch-l2i-250", {"one_forward": True, "outer_batch_size": 8}),
    ("mixmatch-l2i-250", {"one_forward": True}),
    ("mean-teacher-l2i-250-direct", {"one_forward": True}),
    ("mean-teacher-l2i-250-zero", {"one_forward": True}),
    ("mean-teacher-l2i-250", {"one_forward": True, "paper": {"eta": 0.1}}),
    ("mean-teacher-l2i-250-exact", {}),
    ("fixmatch-l2i-250", {"outer_batch_size": 8}),
    ("fixmatch-l2i-250-learnable", {"every": 2}),
    ("mixmatch-l2i-250", {}),
    ("uda-l2i-250", {}),
    ("mean-teacher-l2i-paper-250", {"paper": {"eta": 0.1}}),
    ("vat-250", {}),
    ("vat-250", {"update": "normalized"}),
    (
        "mean-teacher-l2i-250",
        {"ablation": "direct_gradient", "rho": 1.0, "preserve_step_norm": True},
    ),
    ("mixup-250", {}),
    ("sl-250", {}),
]
APART, TOGETHER = {"one_forward": False}, {"one_forward": True}
LOOKING_AHEAD = {"paper": {"eta": 0.1}}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("sharing", [False, True], ids=["separate streams", "shared streams"])
@pytest.mark.parametrize(
    ("cell", "l2i", "method", "changed"),
    [
        *((cell, l2i, {}, {}) for cell, l2i in GRAPHED),
        ("mean-teacher-l2i-250", {}, APART, {}),
        ("pi-model-250", {"update": "normalized"}, TOGETHER, {}),
        ("vat-250", {}, TOGETHER, {}),
        ("fixmatch-l2i-250", {}, APART, {}),
        ("uda-250", {}, APART, {}),
        ("mixmatch-l2i-250", {}, {}, {"own_labels": True}),
        ("vat-250", {"update": "normalized"}, {}, {"own_labels": True}),
        ("uda-l2i-250", {}, {}, {"forwards_apart": True}),
    ],
    ids=str,
)
def test_a_recorded_step_is_the_step_taken_one_by_one(
    cell: str,
    l2i: dict[str, object],
    method: dict[str, object],
    changed: dict[str, bool],
    sharing: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Same seed: the same figures within 1e-5 over 50 float32 steps, and the same state after."""
    if sharing:
        monkeypatch.setattr(cuda_graph, "SMALL_ACTIVATION_BYTES", 0)
    rows, states = [], []
    for engine in ("eager", "graph"):
        run = images(
            cell, tmp_path, engine=engine, precision="float32", steps=50, optim={"lr": 1e-4}
        )
        trainer = Trainer(replace(run, l2i=l2i, method=method))
        if changed.get("own_labels"):  # what the method itself imputes, in the outer step too
            trainer.gradients.outer_method = trainer.run.method
        if changed.get("forwards_apart"):
            trainer.gradients.reuses_forward = False
        rows.append(costs(trainer, 50))
        states.append(trainer.state_dict())
        assert trainer.engine == engine
    for (name, a), b in zip(states[0].items(), states[1].values(), strict=True):
        assert name.startswith("generator") or torch.allclose(
            a.double(), b.double(), rtol=1e-4, atol=1e-5
        ), name
    for step, (one_by_one, recorded) in enumerate(zip(*rows, strict=True)):
        assert recorded == pytest.approx(one_by_one, rel=1e-5, abs=1e-5), step


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    "optim", [{"name": "adam"}, {"name": "sgd", "lr": 0.01, "schedule": "cosine"}], ids=str
)
def test_a_recorded_step_follows_the_schedules(optim: dict[str, object]) -> None:
    rows = []
    for engine in ("eager", "graph"):
        changes = {
            "method": {"rampup": 30},
            "optim": optim,
            "steps": 50,
            "precision": "float32",
            "engine": engine,
        }
        trainer = Trainer(conv("digits/mean-teacher-l2i-40", device="cuda", **changes))
        rows.append(costs(trainer, 50))
        assert (trainer.step_graph is not None) == (engine == "graph")
    assert rows[0] == [pytest.approx(row, rel=1e-5, abs=1e-5) for row in rows[1]]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(
    "cell", ["mean-teacher-250", "fixmatch-l2i-250", "mean-teacher-l2i-250-exact"]
)
def test_replaying_a_step_does_not_wait_for_the_device(cell: str, tmp_path: Path) -> None:
    trainer = Trainer(images(cell, tmp_path))
    assert cost_unwaited(trainer, after=6) > 0
    assert trainer.step_graph is not None and len(trainer.step_graph.graphs) == 1


@pytest.mark.parametrize("cell", ["fixmatch-l2i-250", "mixmatch-250", "vat-250", "uda-250"])
def test_batches_drawn_ahead_are_those_of_their_steps(cell: str, tmp_path: Path) -> None:
    """In order, with a jump, and while others draw from the loader."""
    loader = Trainer(images(cell, tmp_path)).loader
    ahead = BatchPrefetcher(loader)
    for step in (0, 1, 2, 7, 8, 3):
        actual, wanted = collect_tensors(ahead(step)), collect_tensors(loader.draw_batch(step))
        torch.cuda.synchronize()
        assert len(actual) == len(wanted) >= 5
        assert all(torch.equal(a, b) for a, b in zip(actual, wanted, strict=True)), step


@pytest.mark.usefixtures("deterministic")
def test_a_run_that_used_graphs_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    run = images(
        "mean-teacher-l2i-250", tmp_path, steps=12, precision="float32", optim={"lr": 1e-4}
    )
    whole, cut, further = (Trainer(run) for _ in range(3))
    for step in range(12):
        whole.step(step)
    for step in range(7):
        cut.step(step)
    further.load_state_dict({name: value.clone() for name, value in cut.state_dict().items()})
    cut.load_state_dict(
        {name: value.clone() for name, value in cut.state_dict().items()}
    )  # into a trainer that has its graph already
    for trainer in (cut, further):
        for step in range(7, 12):
            trainer.step(step)
        for (name, a), b in zip(
            whole.state_dict().items(), trainer.state_dict().values(), strict=True
        ):
            assert torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5), name


@pytest.mark.usefixtures("deterministic")
def test_seeds_side_by_side_are_those_runs_alone(tmp_path: Path) -> None:
    root, metric_values = tmp_path / "data", {}
    root.mkdir()
    for at_once in (1, 3):
        cell = images(
            "fixmatch-l2i-250",
            root,
            steps=12,
            eval_every=4,
            precision="float32",
            optim={"lr": 1e-4},
        )
        runs = [
            replace(cell, seed=seed, out=str(tmp_path / f"{at_once}-{seed}")) for seed in range(3)
        ]
        metric_values[at_once] = [
            (r.metric, r.validation) for r in train_many(runs, concurrent_runs=at_once)
        ]
        rows = [
            parse_metrics((tmp_path / f"{at_once}-{seed}" / "metrics.jsonl").read_bytes())[-1]
            for seed in range(3)
        ]
        metric_values[at_once] += [(row["c_t"], row["c_h"]) for row in rows]
    assert metric_values[3] == [pytest.approx(pair, rel=1e-5) for pair in metric_values[1]]


@pytest.mark.usefixtures("deterministic")
def test_fused_kernels_leave_the_running_statistics_and_the_costs_that_pytorchs_leave(
    tmp_path: Path,
) -> None:
    states = []
    for context in (nullcontext(), disable_fused_kernels()):
        with context:
            trainer = Trainer(
                images("mean-teacher-l2i-250", tmp_path, precision="float32", optim={"lr": 1e-4})
            )
            for step in range(8):
                trainer.step(step)
            states.append({name: value.double() for name, value in trainer.model.named_buffers()})
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], rtol=1e-3, atol=1e-4), name
    assert any(
        float(value.abs().max()) > 1e-3
        for name, value in states[0].items()
        if name.endswith("running_mean")
    )


class Waiting(torch.nn.Module):
    """A network that looks at its values on the host, as a recorded step cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x.flatten(1))
        return self.head(x if float(x.detach().sum()) > 0 else x + 1)


def test_what_cannot_be_recorded_is_taken_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = Trainer(conv(device="cuda"), model=Waiting())
    rows = costs(trainer, 6)
    assert len(rows) == 6 and "continuing without a CUDA graph" in capsys.readouterr().err
    with pytest.raises(InputError, match="use engine='eager'"):
        costs(Trainer(conv(device="cuda", engine="graph"), model=Waiting()), 6)


def test_dropout_is_recorded_unless_the_outer_step_replays_its_masks() -> None:
    assert Trainer(conv(device="cuda", model={"dropout": 0.5})).step_graph is not None
    assert (
        Trainer(conv(device="cuda", model={"dropout": 0.5}, l2i=LOOKING_AHEAD)).step_graph is None
    )
    assert (
        Trainer(conv(device="cuda", model={"dropout": 0.5}, l2i={"update": "off"})).step_graph
        is not None
    )


@pytest.mark.parametrize("hypergradient", ["exact", "last_layer"])
def test_the_outer_gradient_is_the_cpus(hypergradient: str) -> None:
    batch = Trainer(conv(device="cpu", precision="float64")).loader.draw_batch(0)
    gradients = []
    for device in ("cpu", "cuda"):
        trainer = Trainer(
            conv(device=device, precision="float64", l2i={"hypergradient": hypergradient})
        )
        there = tree_map_only(torch.Tensor, partial(torch.Tensor.to, device=device), batch)
        gradients.append(trainer.compute_outer_gradient(there, 0))
    for name, value in gradients[0].items():
        assert torch.allclose(value, gradients[1][name].cpu(), rtol=1e-6, atol=1e-10), name


@pytest.mark.parametrize(
    "l2i",
    [{"update": "off"}, {}, {"hypergradient": "exact"}, {**PAPER, "labels": "learnable"}],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(
    "cell", ["digits/fixmatch-l2i-40", "digits/mixmatch-l2i-40", "digits/mean-teacher-l2i-40"]
)
def test_a_step_does_not_wait_for_the_device(cell: str, l2i: dict[str, object]) -> None:
    assert cost_unwaited(Trainer(conv(cell, device="cuda", l2i=l2i))) > 0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize(
    "cell",
    ["fixmatch-l2i-250", "vat-250", "mixup-250", "uda-l2i-250", "mean-teacher-l2i-250-exact"],
)
def test_a_step_on_8_bit_images_does_not_wait_for_the_device(cell: str, tmp_path: Path) -> None:
    assert cost_unwaited(Trainer(images(cell, tmp_path))) > 0


def test_streamed_images_train_as_on_the_cpu(tmp_path: Path) -> None:
    """The same rows and, without augmentation, the same costs, copied ahead to the GPU or not."""
    root = str(write_class_folders(tmp_path, classes=3, per_class=6, size=72))
    costs = []
    for device in ("cpu", "cuda"):
        run = replace(
            recipes.get("imagenet/fixmatch-l2i"), device=device, precision="float64", steps=9
        )
        plain = {"weak": Augment(), "strong": Augment(), "root": root, "workers": 2}
        batch = {"labeled": 3, "unlabeled": 4, "holdout": 3}
        trainer = Trainer(replace(run, data=plain, batch=batch, model={"depth": 8}))
        for step in range(4):
            trainer.step(step)
        costs.append(trainer.meter.read()["c_t"])
        trainer.close()
    assert costs[0] == pytest.approx(costs[1], rel=1e-6)


def test_bf16_comes_close_to_float32() -> None:
    costs = []
    for precision in ("bf16", "float32"):
        trainer = Trainer(conv(device="cuda", precision=precision))
        for step in range(5):
            trainer.step(step)
        trainer.meter.raise_if_nonfinite()
        costs.append(trainer.meter.read()["c_t"])
    assert costs[0] == pytest.approx(costs[1], rel=0.05)


def test_a_saved_state_goes_on_where_it_was() -> None:
    first, second = (Trainer(conv(device="cuda", model={"dropout": 0.5})) for _ in range(2))
    for step in range(3):
        first.step(step)
    saved = {name: value.clone() for name, value in first.state_dict().items()}
    first.step(3)
    second.load_state_dict(saved)
    second.step(3)
    for (name, a), b in zip(first.state_dict().items(), second.state_dict().values(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5), name
