"""Gradients that are not finite while every cost is: found on the device, named when next read."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from l2i import Augment, NonFiniteCost, Run, Splits, Trainer, recipes, replace, train
from l2i.training.metrics import BLAME_ORDER, METRIC_NAMES

STEPS = 20


class Rooted(nn.Module):
    """Adds √(w |x₀|): fine at x₀ = 0, but for its derivative by w, which is 0 · ∞ there."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.linear = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) + (self.scale * x[:, :1].abs()).sqrt()


def model() -> nn.Module:
    return nn.Sequential(Rooted(), nn.Linear(8, 2))


def splits(*, labeled_zero: bool, count: int = 1) -> Splits:
    """One sample of the labelled or the unlabelled ones, or more, have x₀ = 0."""
    x = torch.randn(400, 4)
    y = (x[:, 1] > 0).long()
    first = 7 if labeled_zero else 107
    x[first : first + count, 0] = 0
    return Splits.from_arrays(
        labeled=(x[:100], y[:100]), unlabeled=x[100:200], test=(x[200:], y[200:]), classes=2
    )


def run_of(cell: str = "digits/fixmatch-l2i-40", **changes: object) -> Run:
    """Labels are imputed on samples as they are, and learned under noise, so no x₀ stays at 0."""
    views = {"weak": Augment(), "strong": Augment(noise=0.1)}
    batch = {"labeled": 10, "unlabeled": 10, "holdout": 10}
    short = {"device": "cpu", "steps": STEPS, "data": views, "batch": batch, "eval_every": STEPS}
    return replace(recipes.get(cell), **{**short, **changes})


def first_drawn(run: Run, given: Splits, part: str) -> int:
    """The first step with x₀ = 0 among its labelled or unlabelled samples, counted from 1."""
    loader = Trainer(run, splits=given, model=model()).loader
    for t in range(STEPS):
        batch = loader.draw_batch(t)
        assert batch.holdout is None or bool((batch.holdout.x[:, 0] != 0).all())
        if bool(
            ((batch.labeled.x if part == "labeled" else batch.unlabeled.weak)[:, 0] == 0).any()
        ):
            return t + 1
    raise AssertionError("x₀ = 0 does not come")


def steps_saved(folder: Path) -> list[int]:
    return [int(path.stem) for path in sorted((folder / "checkpoints").iterdir())]


@pytest.mark.parametrize("save_every", [1, 100])
def test_a_gradient_that_is_no_number_is_named_with_its_step(
    save_every: int, tmp_path: Path
) -> None:
    run, given = (
        run_of("digits/sl-40", save_every=save_every, out=str(tmp_path / "run")),
        splits(labeled_zero=True),
    )
    first = first_drawn(run, given, "labeled")
    with pytest.raises(NonFiniteCost, match=f"^gradient is NaN or infinite from step {first} on"):
        train(run, splits=given, model=model(), quiet=True)
    assert steps_saved(tmp_path / "run")[-1] == (first - 1 if save_every == 1 else 0)


@pytest.mark.parametrize("hypergradient", ["last_layer", "exact"])
@pytest.mark.parametrize("update", [{}, {"update": "paper", "paper": {"eta": 0.1}}], ids=str)
def test_an_outer_gradient_that_is_no_number_is_named_before_what_it_does(
    hypergradient: str, update: dict[str, object], tmp_path: Path
) -> None:
    """Only the outer step's gradient goes through the labels; parameters take it at that step."""
    run = run_of(l2i={"hypergradient": hypergradient, **update}, out=str(tmp_path / "run"))
    given = splits(labeled_zero=False)
    first = first_drawn(run, given, "unlabeled")
    with pytest.raises(
        NonFiniteCost, match=f"^the outer gradient is NaN or infinite from step {first} on"
    ):
        train(run, splits=given, model=model(), quiet=True)


def test_the_step_is_right_where_outer_steps_are_left_out(tmp_path: Path) -> None:
    """With an outer step every third step, what is drawn in between does no harm."""
    run, given = (
        run_of(l2i={"every": 3}, out=str(tmp_path / "run")),
        splits(labeled_zero=False, count=8),
    )
    loader = Trainer(run, splits=given, model=model()).loader
    hit = [
        t
        for t in range(0, STEPS, 3)
        if bool((loader.draw_batch(t).unlabeled.weak[:, 0] == 0).any())
    ]
    with pytest.raises(
        NonFiniteCost, match=f"^the outer gradient is NaN or infinite from step {hit[0] + 1} on"
    ):
        train(run, splits=given, model=model(), quiet=True)


def test_every_value_has_its_place_among_the_causes() -> None:
    assert sorted(BLAME_ORDER) == sorted(METRIC_NAMES)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph"])
@pytest.mark.parametrize(
    ("cell", "name"), [("sl", "gradient"), ("fixmatch-l2i", "the outer gradient")]
)
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_it_is_found_on_the_device_without_waiting_for_it(
    engine: str, cell: str, name: str
) -> None:
    given = splits(labeled_zero=cell == "sl", count=3)  # a GPU draws others
    run = run_of(f"digits/{cell}-40", device="cuda", engine=engine, precision="float32")
    first = first_drawn(run, given, "labeled" if cell == "sl" else "unlabeled")
    trainer = Trainer(run, splits=given, model=model())
    for t in range(STEPS):
        try:
            torch.cuda.set_sync_debug_mode("error" if t > 5 else "default")
            trainer.step(t)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert trainer.engine == engine
    with pytest.raises(NonFiniteCost, match=f"^{name} is NaN or infinite from step {first} on"):
        trainer.meter.raise_if_nonfinite()
