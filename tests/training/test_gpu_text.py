"""Texts on a CUDA device: recorded steps with dropout, fused attention, bf16; else skipped."""

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import torch
from test_gpu import cost_unwaited, costs
from torch.utils._pytree import tree_map_only

from l2i import Run, Trainer, recipes, replace
from l2i.bilevel import exact, unrolled
from l2i.data.tokenization import Text
from tiny_encoder import tiny_encoder, write_imdb

pytestmark = pytest.mark.gpu
NO_DROPOUT = {"dropout": 0.0, "encoder_dropout": 0.0}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imdb")
    write_imdb(root)
    tiny_encoder(root / "weights", width=64)
    return root


def run_of(
    cell: str, root: Path, *, model: dict[str, object] | None = None, **changes: object
) -> Run:
    run = replace(recipes.get(f"imdb/{cell}-20"), device="cuda", steps=50)
    data = {"root": str(root), "text": Text(length=32)}
    run = replace(
        run,
        data=data,
        model={"weights": str(root / "weights"), **(model or {})},
        optim={"lr": 1e-4},
    )
    return replace(run, **changes)


@pytest.mark.parametrize(
    ("cell", "dropout"),
    [("sl", 0.1), ("uda", 0.1), ("uda-l2i", 0.0), ("mean-teacher-l2i", 0.0), ("fixmatch-l2i", 0.0)],
)
def test_a_recorded_step_is_the_step_taken_one_by_one(
    cell: str, dropout: float, reviews: Path
) -> None:
    """With dropout before the head, for cells without an outer step."""
    rows = []
    for engine in ("eager", "graph"):
        model = {"dropout": dropout, "encoder_dropout": 0.0}
        torch.manual_seed(0)
        trainer = Trainer(run_of(cell, reviews, model=model, engine=engine, precision="float32"))
        rows.append(costs(trainer, 20))
        assert trainer.engine == engine
    for step, (one_by_one, recorded) in enumerate(zip(*rows, strict=True)):
        assert recorded == pytest.approx(one_by_one, rel=1e-3, abs=1e-4), step


def test_the_exact_outer_step_is_recorded(reviews: Path) -> None:
    run = replace(run_of("uda-l2i", reviews), l2i={"hypergradient": "exact"}, engine="graph")
    trainer = Trainer(run)
    assert len(costs(trainer, 8)) == 8 and trainer.engine == "graph"


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("l2i", [{}, {"hypergradient": "exact"}, {"update": "off"}], ids=str)
def test_a_step_does_not_wait_for_the_device(l2i: dict[str, object], reviews: Path) -> None:
    assert cost_unwaited(Trainer(run_of("uda-l2i", reviews, l2i=l2i))) > 0


@pytest.mark.parametrize("hypergradient", ["exact", "last_layer"])
def test_the_outer_gradient_is_the_cpus(hypergradient: str, reviews: Path) -> None:
    changes = {"precision": "float64", "model": NO_DROPOUT, "l2i": {"hypergradient": hypergradient}}
    batch = Trainer(replace(run_of("uda-l2i", reviews, **changes), device="cpu")).loader.draw_batch(
        5
    )
    actual = []
    for device in ("cpu", "cuda"):
        trainer = Trainer(replace(run_of("uda-l2i", reviews, **changes), device=device))
        there = tree_map_only(torch.Tensor, partial(torch.Tensor.to, device=device), batch)
        actual.append(
            torch.cat(
                [g.flatten().cpu() for g in trainer.compute_outer_gradient(there, 5).values()]
            )
        )
    assert (actual[0] - actual[1]).norm() < 1e-5 * actual[0].norm()


def test_exact_meets_the_masks_of_the_inner_step(reviews: Path) -> None:
    """With dropout, of attention too, exact is unrolled: fused kernels would draw other masks."""
    actual, l2i = [], {"hypergradient": "exact", "paper": {"eta": 0.1}}
    for hypergradient in (exact, unrolled):
        trainer = Trainer(run_of("uda-l2i", reviews, precision="float64", l2i=l2i))
        outer_step = dataclasses.replace(trainer.outer_step, hypergradient=hypergradient)
        trainer.gradients.outer_step = outer_step
        torch.manual_seed(3)
        gradient = trainer.compute_outer_gradient(trainer.loader.draw_batch(5), 5)
        actual.append(torch.cat([g.flatten() for g in gradient.values()]))
    assert (actual[0] - actual[1]).norm() < 1e-6 * actual[1].norm()


@pytest.mark.parametrize(("hypergradient", "least"), [("exact", 0.9), ("last_layer", 0.98)])
def test_bf16_keeps_the_direction_of_the_outer_gradient(
    hypergradient: str, least: float, reviews: Path
) -> None:
    actual = []
    for precision in ("bf16", "float32"):
        changes = {
            "precision": precision,
            "model": NO_DROPOUT,
            "l2i": {"hypergradient": hypergradient},
        }
        trainer = Trainer(run_of("uda-l2i", reviews, **changes))
        gradient = trainer.compute_outer_gradient(trainer.loader.draw_batch(5), 5)
        actual.append(torch.cat([g.flatten().double() for g in gradient.values()]))
    assert torch.cosine_similarity(*actual, dim=0) > least
