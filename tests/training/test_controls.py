"""Controls of L2I: what they replace in a step, and that they leave everything else as it is."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from second_steps import STEPS, follow_second_step
from torch.nn import functional as F

from formats import write_faces
from image_folders import write_class_folders
from l2i import Run, Trainer, recipes, replace
from l2i.data.batch import Batch
from l2i.tasks import Regression


def small(cell: str, **changes: object) -> Run:
    return replace(recipes.get(cell), device="cpu", precision="float64", threads=1, **changes)


def final_values(run: Run) -> torch.Tensor:
    trainer = Trainer(run)
    for t in range(STEPS):
        trainer.step(t)
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("method", ["mean-teacher", "fixmatch", "mixmatch"])
def test_an_outer_gradient_of_zero_leaves_normalized_steps_to_the_base_method(method: str) -> None:
    baseline, zero = (small(f"digits/{method}{name}") for name in ("-40", "-l2i-40-zero"))
    assert torch.equal(final_values(baseline), final_values(zero))


LEARNED = {
    "exact": {"hypergradient": "exact"},
    "learnable": {"labels": "learnable"},
    "two inner steps": {"hypergradient": "exact", "paper": {"inner_steps": 2, "eta": 0.5}},
}


@pytest.mark.parametrize("control", ["zero", "direct"])
@pytest.mark.parametrize("update", ["l2i", "l2i-paper"])
@pytest.mark.parametrize("l2i", LEARNED.values(), ids=LEARNED)
def test_controls_that_impute_nothing_are_the_same_however_labels_are_learned(
    l2i: dict[str, object], update: str, control: str
) -> None:
    plain = small(f"digits/mean-teacher-{update}-40-{control}")
    assert torch.equal(final_values(plain), final_values(replace(plain, l2i=l2i)))


def test_outer_samples_in_the_base_forward_change_its_statistics_even_at_a_gradient_of_zero() -> (
    None
):
    joint = {"method": {"one_forward": True}, "l2i": {"one_forward": True}}
    zero = small("digits/mean-teacher-l2i-40-zero", **joint)
    apart = replace(zero, l2i={"one_forward": False})
    baseline = small("digits/mean-teacher-40", method={"one_forward": True})
    assert torch.equal(final_values(apart), final_values(baseline))
    assert not torch.allclose(final_values(zero), final_values(baseline), rtol=1e-4)


def compute_zeros(trainer: Trainer, _: Batch) -> list[torch.Tensor]:
    return [torch.zeros_like(p) for p in trainer.model.parameters()]


def compute_holdout_gradient(trainer: Trainer, batch: Batch) -> list[torch.Tensor]:
    assert batch.holdout is not None
    cost = F.cross_entropy(trainer.model(batch.holdout.x), batch.holdout.y)
    return list(torch.autograd.grad(cost, list(trainer.model.parameters())))


@pytest.mark.parametrize(
    ("control", "outer"), [("zero", compute_zeros), ("direct", compute_holdout_gradient)]
)
def test_the_papers_update_takes_its_second_step_on_the_control(
    control: str, outer: Callable[[Trainer, Batch], list[torch.Tensor]]
) -> None:
    run = small(f"digits/pi-model-l2i-paper-40-{control}")
    ours, wanted = follow_second_step(run, outer)
    assert float((ours - wanted).norm() / wanted.norm()) < 1e-12
    baseline = small("digits/pi-model-40")
    assert float((final_values(baseline) - wanted).norm() / wanted.norm()) > 1e-3


def compare_batches(plain: Run, shuffled: Run) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the hold-out labels of a few batches, which are otherwise the same."""
    trainers, labels = [Trainer(run) for run in (plain, shuffled)], []
    for t in range(STEPS):
        a, b = (trainer.loader.draw_batch(t) for trainer in trainers)
        assert a.holdout is not None and b.holdout is not None
        assert torch.equal(a.holdout.x, b.holdout.x)
        assert torch.equal(a.labeled.x, b.labeled.x) and torch.equal(a.labeled.y, b.labeled.y)
        for name, view in a.unlabeled.views.items():
            assert torch.equal(view, b.unlabeled.views[name])
        labels.append((a.holdout.y, b.holdout.y))
    for trainer in trainers:
        trainer.close()
    return labels


@pytest.mark.parametrize("update", ["l2i", "l2i-paper"])
def test_shuffled_hold_out_labels_are_those_of_other_samples_of_the_batch(update: str) -> None:
    cell = f"digits/mean-teacher-{update}-40"
    labels = compare_batches(small(cell), small(f"{cell}-shuffled"))
    for plain, shuffled in labels:
        assert torch.equal(plain.sort().values, shuffled.sort().values)
        assert (plain != shuffled).float().mean() > 0.5
    orders = [shuffled.tolist() for _, shuffled in labels]
    assert orders[0] != orders[1]


def test_shuffled_landmarks_are_moved_with_the_crop_of_their_new_image(tmp_path: Path) -> None:
    write_faces(tmp_path)
    cell = "aflw/mean-teacher-l2i-91"
    changes = {"data": {"root": str(tmp_path), "num_labeled": 10}}
    changes |= {"batch": {"labeled": 4, "unlabeled": 4, "holdout": 6}}
    runs = [small(name, **changes) for name in (cell, f"{cell}-shuffled")]
    trainer = Trainer(runs[0])
    assert isinstance(trainer.task, Regression)
    raw = trainer.task.encode(trainer.splits.holdout.y)
    for plain, shuffled in compare_batches(*runs):
        # an own label less the crop's shift, which is the same for all x and for all y
        assert not torch.allclose(plain, shuffled)
        scale = trainer.task.std.view(-1)
        shapes = [(y * scale).view(-1, 5, 2) for y in (plain, shuffled, raw)]
        relative = [(s - s[:, :1]).flatten(1) for s in shapes]
        for row in relative[1]:
            assert (relative[2] - row).abs().amax(dim=1).min() < 1e-4
        found = [(relative[0] - row).abs().amax(dim=1).argmin() for row in relative[1]]
        assert sorted(map(int, found)) == list(range(6))


@pytest.mark.slow
def test_labels_of_streamed_images_are_shuffled_too(tmp_path: Path) -> None:
    root = str(write_class_folders(tmp_path, classes=3, per_class=6, size=72))
    changes = {"data": {"root": root, "workers": 0}, "model": {"depth": 8}}
    changes |= {"batch": {"labeled": 3, "unlabeled": 4, "holdout": 3}}
    cell = "imagenet/fixmatch-l2i"
    labels = compare_batches(small(cell, **changes), small(f"{cell}-shuffled", **changes))
    assert all(torch.equal(a.sort().values, b.sort().values) for a, b in labels)
    assert any(not torch.equal(a, b) for a, b in labels)
