"""What a run tells of its imputed labels, against labels counted by hand."""

import copy
import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from formats import write_faces
from l2i import Run, Splits, Trainer, recipes, replace, train
from l2i.data.samples import Samples
from l2i.data.transforms.image import Augment
from l2i.training.diagnostics import ERROR_COLUMNS, measure_pseudo_label_error, sample_unlabeled

COUNT = 300


def started(cell: str, **method: object) -> Trainer:
    run = replace(
        recipes.get(cell), device="cpu", precision="float64", probe_samples=COUNT, method=method
    )
    trainer = Trainer(run)
    for t in range(20):
        trainer.step(t)
    return trainer


def counted(trainer: Trainer, model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Confidence and whether the class is wrong, a mini-batch at a time, by a copy of the model."""
    hidden, size, copied = (
        trainer.splits.unlabeled,
        trainer.run.batch.unlabeled,
        copy.deepcopy(model),
    )
    rows = torch.randperm(len(hidden.y), generator=torch.Generator().manual_seed(0))[
        : COUNT // size * size
    ]
    with torch.no_grad():
        said = [
            copied(trainer.splits.to_inputs(hidden.x[some])).softmax(1) for some in rows.split(size)
        ]
    actual = torch.cat(said)
    return actual.max(1).values, actual.argmax(1) != hidden.y[rows]


def test_labels_above_and_below_the_threshold_are_counted_apart() -> None:
    trainer = started("digits/fixmatch-40", threshold=0.5)
    confidence, wrong = counted(trainer, trainer.model)
    above = confidence >= 0.5
    assert 0 < int(above.sum()) < len(above)
    parts = (wrong, above, wrong[above], wrong[~above])
    wanted = [100 * float(p.double().mean()) for p in parts]
    wanted[1] /= 100
    assert measure_pseudo_label_error(trainer) == dict(
        zip(ERROR_COLUMNS, map(pytest.approx, wanted), strict=True)
    )


def test_a_teacher_is_asked_where_it_imputes() -> None:
    trainer = started("digits/mean-teacher-40")
    _, wrong = counted(trainer, trainer.teacher.model)
    assert measure_pseudo_label_error(trainer) == {
        "pseudo_label_error": pytest.approx(100 * float(wrong.double().mean()))
    }


def test_the_samples_are_of_all_classes_and_as_many_as_mini_batches_hold() -> None:
    trainer = Trainer(replace(recipes.get("digits/fixmatch-40"), device="cpu"))
    some, size = sample_unlabeled(trainer, COUNT), trainer.run.batch.unlabeled
    assert len(some.y) == COUNT // size * size and len(sample_unlabeled(trainer, 1).y) == size
    assert len(some.y.unique()) == 10 and bool(
        (trainer.splits.unlabeled.y[:50] == 0).all()
    )  # which are in order
    assert bool((some.y == sample_unlabeled(trainer, COUNT).y).all())


def test_batch_norm_takes_the_statistics_of_each_mini_batch_and_moves_none() -> None:
    net = {"name": "wide-resnet", "depth": 10, "width": 1}
    trainer = Trainer(
        replace(recipes.get("digits/fixmatch-40"), device="cpu", model=net, probe_samples=COUNT)
    )
    for t in range(3):
        trainer.step(t)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    _, wrong = counted(trainer, trainer.model)  # in training mode
    assert measure_pseudo_label_error(trainer)["pseudo_label_error"] == pytest.approx(
        100 * float(wrong.double().mean())
    )
    assert all(
        bool((value == before[name]).all()) for name, value in trainer.model.state_dict().items()
    )
    assert all(module.training for module in trainer.model.modules())


def test_a_mask_that_lets_nothing_through_leaves_no_number() -> None:
    actual = measure_pseudo_label_error(started("digits/fixmatch-40", threshold=1.0))
    assert (
        actual["mask_rate_probe"] == 0
        and math.isnan(actual["pseudo_label_error_above_threshold"])
        and actual["pseudo_label_error"] == actual["pseudo_label_error_below_threshold"]
    )


def test_nothing_is_told_where_the_truth_is_not_known(tmp_path: Path) -> None:
    x, y = torch.randn(40, 8), torch.arange(40) % 3
    own = Splits.from_arrays(
        labeled=(x[:12], y[:12]), unlabeled=x[12:30], test=(x[30:], y[30:]), classes=3
    )
    run = replace(recipes.get("digits/pseudo-label-40"), device="cpu", probe_samples=10)
    plain = {"weak": Augment(), "strong": Augment()}
    assert measure_pseudo_label_error(Trainer(replace(run, data=plain), splits=own)) == {}
    for cell in ("digits/sl-40", "digits/fixmatch-40"):
        assert (
            measure_pseudo_label_error(
                Trainer(
                    replace(
                        recipes.get(cell), device="cpu", probe_samples=10 * (cell == "digits/sl-40")
                    )
                )
            )
            == {}
        )
    faces: Run = replace(recipes.get("aflw/mean-teacher-91"), device="cpu", probe_samples=10)
    few = {"root": str(write_faces(tmp_path)), "num_labeled": 10}
    assert (
        measure_pseudo_label_error(
            Trainer(replace(faces, data=few, batch={"labeled": 8, "unlabeled": 8}))
        )
        == {}
    )


@pytest.mark.parametrize("cell", ["digits/fixmatch-40", "digits/fixmatch-l2i-40"])
def test_a_run_tells_it_at_every_evaluation(cell: str, tmp_path: Path) -> None:
    run = replace(
        recipes.get(cell),
        device="cpu",
        steps=6,
        eval_every=3,
        probe_samples=50,
        out=str(tmp_path / "run"),
    )
    train(run, quiet=True)
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [3, 6] and all(
        0 <= row["pseudo_label_error"] <= 100 for row in rows
    )
    assert all(set(ERROR_COLUMNS) <= row.keys() for row in rows)


def test_a_label_as_confident_as_the_threshold_is_above_it() -> None:
    """A network of zeros gives each of four classes 1/4."""
    x, y = torch.randn(40, 8), torch.arange(40) % 4
    splits = Splits.from_arrays(
        labeled=(x[:8], y[:8]), unlabeled=x[8:30], test=(x[30:], y[30:]), classes=4
    )
    splits = dataclasses.replace(splits, unlabeled=Samples(x[8:30], y[8:30]))
    model = nn.Linear(8, 4)
    nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
    plain = {"weak": Augment(), "strong": Augment()}
    run = replace(recipes.get("digits/fixmatch-40"), device="cpu", data=plain, probe_samples=20)
    run = replace(run, method={"threshold": 0.25}, batch={"labeled": 8, "unlabeled": 10})
    actual = measure_pseudo_label_error(Trainer(run, splits=splits, model=model))
    assert actual["mask_rate_probe"] == 1.0
    assert math.isnan(actual["pseudo_label_error_below_threshold"])
