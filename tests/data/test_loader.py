from pathlib import Path

import pytest
import torch

from image_folders import write_class_folders
from l2i import Run, Trainer, recipes, replace
from l2i.config import L2I, Data
from l2i.data.batch import BatchSizes
from l2i.data.datasets.imagenet import read_class_folders
from l2i.data.samples import DataSet, Samples, Splits
from l2i.data.splitting import draw_splits
from l2i.data.transforms.image import Augment, Normalize
from l2i.distributed import ProcessGroup, use_group
from l2i.errors import InputError
from l2i.methods.base import Method
from l2i.methods.mixup import MixUp
from l2i.methods.pi_model import PiModel
from l2i.tasks import Classification, Regression, Task
from l2i.training.loader import (
    Loader,
    compute_beta_quantiles,
    derive_seed,
    sample_indices,
    sample_stream_indices,
)
from problems import method_named


def build_loader(
    splits: Splits,
    task: Task,
    method: Method,
    *,
    sizes: BatchSizes,
    weak: Augment,
    strong: Augment,
    seed: int,
    steps: int,
    holdout: bool,
    workers: int = 0,
) -> Loader:
    data = Data(weak=weak, strong=strong, workers=workers)
    l2i = L2I(update="normalized" if holdout else "off")
    run = Run(method=method, batch=sizes, data=data, l2i=l2i, seed=seed, steps=steps)
    return Loader(run, splits, task)


def make_loader(
    method: str = "fixmatch",
    *,
    seed: int = 0,
    holdout: bool = True,
    unlabeled: int = 30,
    **sizes: int,
) -> Loader:
    def samples(count: int, seed: int = 0) -> Samples:
        generator = torch.Generator().manual_seed(seed)
        return Samples(torch.randn(count, 1, 8, 8, generator=generator), torch.arange(count) % 3)

    sets = {"labeled": samples(9), "unlabeled": samples(unlabeled), "holdout": samples(9, seed=1)}
    splits = Splits(**sets, validation=samples(3), test=samples(3), classes=3)
    return build_loader(
        splits,
        Classification(num_outputs=3),
        method_named(method),
        sizes=BatchSizes(**{"labeled": 6, "unlabeled": 8, "holdout": 5, **sizes}),
        weak=Augment(shift=1),
        strong=Augment(shift=1, noise=0.5),
        seed=seed,
        steps=100,
        holdout=holdout,
    )


def test_a_draw_depends_on_seed_and_step_alone() -> None:
    first, later = make_loader(), make_loader()
    for step in range(3):
        later.draw_batch(step)
    assert torch.equal(first.draw_batch(7).unlabeled.strong, later.draw_batch(7).unlabeled.strong)
    assert not torch.equal(first.draw_batch(7).labeled.x, first.draw_batch(8).labeled.x)
    assert not torch.equal(
        first.draw_batch(7).labeled.x, make_loader(seed=1).draw_batch(7).labeled.x
    )


def test_a_run_with_an_outer_step_sees_the_same_base_batch_as_one_without() -> None:
    with_outer, without = make_loader().draw_batch(3), make_loader(holdout=False).draw_batch(3)
    assert torch.equal(with_outer.labeled.x, without.labeled.x)
    assert torch.equal(with_outer.unlabeled.strong, without.unlabeled.strong)
    assert without.holdout is None


def test_a_batch_has_distinct_samples_where_there_are_enough() -> None:
    loader = make_loader()
    for step in range(20):
        loader.generator.manual_seed(step)
        assert len(set(sample_indices(9, 6, loader.generator).tolist())) == 6


def test_a_batch_larger_than_its_set_draws_with_replacement() -> None:
    batch = make_loader(labeled=20).draw_batch(0)
    assert batch.labeled.x.shape[0] == 20
    assert set(batch.labeled.y.tolist()) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("method", "views"),
    [("fixmatch", {"weak", "strong"}), ("mixmatch", {"weak", "weak2"}), ("supervised", set())],
)
def test_only_the_views_that_the_method_asks_for_are_drawn(method: str, views: set[str]) -> None:
    batch = make_loader(method).draw_batch(0)
    assert set(batch.unlabeled.views) == views
    assert (batch.mix is not None) == (method == "mixmatch")


def test_holdout_samples_come_from_the_holdout_set() -> None:
    loader = make_loader()
    loader.weak = Augment()
    batch = loader.draw_batch(0)
    for x, origin in (
        (batch.labeled.x, loader.splits.labeled.x),
        (batch.holdout.x, loader.splits.holdout.x),
    ):
        assert all(any(torch.equal(row, there) for there in origin) for row in x)


@pytest.mark.parametrize("method", ["fixmatch", "mixmatch"])
def test_a_twin_draws_the_same_and_may_be_at_another_step(method: str) -> None:
    loader = make_loader(method)
    twin = loader.clone()
    twin.seek(5)
    here = loader.draw_batch(2)
    there = twin.sample()  # as if nobody had drawn meanwhile
    for actual, wanted in ((here, loader.draw_batch(2)), (there, loader.draw_batch(5))):
        assert torch.equal(actual.labeled.x, wanted.labeled.x) and torch.equal(
            actual.holdout.x, wanted.holdout.x
        )
        assert all(
            torch.equal(view, wanted.unlabeled.views[name])
            for name, view in actual.unlabeled.views.items()
        )
        assert torch.equal(actual.progress, wanted.progress)
    assert not torch.equal(here.unlabeled.weak, there.unlabeled.weak)


def test_labelled_and_hold_out_samples_are_seen_on_the_weak_view() -> None:
    views = {"weak": Augment(), "strong": Augment(cutout=8, fill=9.0)}
    run = replace(recipes.get("digits/fixmatch-l2i-40"), device="cpu", data=views)
    batch = Trainer(run).loader.draw_batch(1)
    assert bool((batch.unlabeled.strong == 9.0).any())
    assert not bool((batch.labeled.x == 9.0).any())
    assert batch.holdout is not None and not bool((batch.holdout.x == 9.0).any())


def test_mixing_permutes_all_rows() -> None:
    mix = make_loader("mixmatch").draw_batch(0).mix
    assert mix is not None
    assert sorted(mix.permutation.tolist()) == list(range(6 + 2 * 8))
    assert mix.ratio.shape == (22,)


def test_beta_quantiles_have_the_moments_of_beta() -> None:
    for alpha in (0.5, 0.75, 2.0):
        values = compute_beta_quantiles(alpha)
        assert float(values.mean()) == pytest.approx(0.5, abs=1e-9)
        assert float(values.var()) == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=2e-3)


def test_no_unlabelled_samples_is_an_error_for_methods_that_need_them() -> None:
    with pytest.raises(InputError, match="needs unlabelled samples, but none are left"):
        make_loader(unlabeled=0)
    make_loader("supervised", unlabeled=0).draw_batch(0)


def test_step_seeds_do_not_collide() -> None:
    assert (
        len({derive_seed(f"{seed}/{step}") for seed in range(20) for step in range(500)}) == 10_000
    )


@pytest.mark.parametrize("view", ["weak2", "strong"])
def test_landmarks_move_with_their_crop(view: str) -> None:
    """Labels, and the frame between two views, follow the shifts that a bright dot shows."""
    place = torch.randint(2, 7, (40, 2))
    x = torch.zeros(40, 1, 9, 9)
    x[torch.arange(40), 0, place[:, 1], place[:, 0]] = 1.0
    splits = Splits.from_arrays(
        labeled=(x, place), unlabeled=x, test=(x, place), has_landmarks=True
    )
    task = Regression.from_targets(splits.labeled.y, points=True)
    weak, strong = Augment(shift=2), Augment(shift=1)
    method = PiModel(student_view=view)
    batch = build_loader(
        splits,
        task,
        method,
        sizes=BatchSizes(),
        weak=weak,
        strong=strong,
        seed=0,
        steps=9,
        holdout=False,
    ).draw_batch(0)

    def actual(images: torch.Tensor) -> torch.Tensor:
        at = images.flatten(1).argmax(dim=1)
        return torch.stack([at % 9, at // 9], dim=1).float()

    assert torch.allclose(task.decode(batch.labeled.y), actual(batch.labeled.x), atol=1e-4)
    carried = task.transport_label(
        task.encode(actual(batch.unlabeled.weak)), batch.unlabeled.affine_map
    )
    assert torch.allclose(task.decode(carried), actual(batch.unlabeled.views[view]), atol=1e-4)
    assert not torch.equal(batch.unlabeled.weak, batch.unlabeled.views[view])


def streamed(folder: Path, workers: int) -> tuple[Loader, DataSet]:
    train, test = read_class_folders(
        str(write_class_folders(folder, classes=2, per_class=8, size=12)), size=12
    )
    data = DataSet(
        train=train,
        test=test,
        classes=2,
        normalization=Normalize.from_unit_range((0.5,) * 3, (0.25,) * 3),
    )
    splits = draw_splits(data, num_labeled=4, num_validation=0, holdout="joint", seed=0)
    splits = splits.to(torch.device("cpu"), torch.float32)
    sizes = BatchSizes(labeled=3, unlabeled=4, holdout=2)
    settings = {
        "sizes": sizes,
        "weak": Augment(),
        "strong": Augment(),
        "seed": 0,
        "steps": 9,
        "holdout": True,
    }
    return build_loader(
        splits, Classification(num_outputs=2), PiModel(), **settings, workers=workers
    ), data  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_image_files_are_drawn_as_if_they_were_held(tmp_path: Path, workers: int) -> None:
    """The same interface: a step draws rows of the files, with their own labels, standardised."""
    loader, data = streamed(tmp_path, workers)
    held = loader.splits.labeled.x.read()
    whole = loader.splits.to_inputs(held)
    for step in (0, 0, 1, 5):  # a rehearsal, the start, the next, and a run that goes on
        batch = loader.draw_batch(step)
        rows = sample_stream_indices(step, part="labeled", count=len(held), size=3, seed=0)
        assert torch.equal(batch.labeled.x, whole[rows])
        assert torch.equal(batch.labeled.y, loader.splits.labeled.y[rows])
        assert batch.unlabeled.weak.shape == (4, 3, 12, 12)
    assert not torch.equal(loader.draw_batch(6).unlabeled.weak, loader.draw_batch(7).unlabeled.weak)
    assert len(data.test.x) > 0
    loader.close()


def test_8_bit_images_are_standardised_after_their_augmentation() -> None:
    x = torch.randint(256, (12, 1, 8, 8), dtype=torch.uint8)
    y = torch.arange(12) % 3
    data = DataSet(
        train=Samples(x, y), test=Samples(x, y), classes=3, normalization=Normalize.from_images(x)
    )
    splits = draw_splits(data, num_labeled=3, num_validation=0, holdout="joint", seed=0)
    splits = splits.to(torch.device("cpu"), torch.float64)
    weak = Augment(cutout=3, fill=7)
    loader = build_loader(
        splits,
        Classification(num_outputs=3),
        PiModel(),
        sizes=BatchSizes(labeled=3, unlabeled=5),
        weak=weak,
        strong=weak,
        seed=0,
        steps=9,
        holdout=False,
    )
    observed = loader.draw_batch(0).labeled.x
    levels = observed * splits.normalization.std + splits.normalization.mean
    assert observed.dtype == torch.float64
    assert torch.allclose(levels, levels.round(), atol=1e-9) and bool(
        ((levels - 7).abs() < 1e-9).any()
    )


def loader_of(splits: Splits, **changes: object) -> Loader:
    task = (
        Classification(num_outputs=3)
        if splits.classes
        else Regression.from_targets(splits.labeled.y, points=True)
    )
    settings: dict[str, object] = {
        "weak": Augment(),
        "strong": Augment(),
        "seed": 0,
        "steps": 9,
        "holdout": False,
    }
    method = changes.pop("method", PiModel())
    return build_loader(splits, task, method, sizes=BatchSizes(), **{**settings, **changes})  # type: ignore[arg-type]


def test_randaugment_is_for_8_bit_images() -> None:
    with pytest.raises(InputError, match="randaugment needs 8-bit images"):
        loader_of(make_loader().splits, weak=Augment(randaugment=2))


@pytest.mark.parametrize(
    "view", [Augment(crop=6), Augment(flip=True), Augment(randaugment=1)], ids=str
)
def test_landmarks_are_shifted_and_nothing_else(view: Augment) -> None:
    x, y = torch.rand(12, 1, 9, 9), 9 * torch.rand(12, 4)
    splits = Splits.from_arrays(labeled=(x, y), unlabeled=x, test=(x, y), has_landmarks=True)
    loader_of(splits, weak=Augment(shift=2))
    with pytest.raises(InputError, match="do not support landmarks; use shift"):
        loader_of(splits, strong=view)


def test_a_view_that_a_method_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="mixup has no view 'weak2'"):
        loader_of(make_loader().splits, method=MixUp(student_view="weak2"))


def test_a_batch_knows_how_far_the_run_is() -> None:
    assert make_loader().draw_batch(25).progress == 0.25


def test_only_a_method_that_searches_gets_a_direction() -> None:
    assert make_loader("vat").draw_batch(0).unlabeled.noise is not None
    assert make_loader("pi-model").draw_batch(0).unlabeled.noise is None


def test_streamed_sets_are_drawn_apart_and_by_the_runs_seed() -> None:
    rows = [
        sample_stream_indices(3, part=p, count=1000, size=50, seed=s)
        for p, s in (("labeled", 0), ("holdout", 0), ("labeled", 1))
    ]
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_a_loader_of_files_hands_its_seed_on(tmp_path: Path) -> None:
    loader, _ = streamed(tmp_path, 0)
    other = loader_of(loader.splits, seed=7)
    assert other.streams["unlabeled"].dataset.rows.keywords["seed"] == 7  # type: ignore[attr-defined]


def test_the_strong_view_is_the_strong_one() -> None:
    batch = make_loader("fixmatch").draw_batch(0)  # noise of 0.5 in the strong view alone
    spread = (batch.unlabeled.strong - batch.unlabeled.weak).std()
    assert float(spread) > 0.4


@pytest.mark.parametrize("method", ["vat", "mixmatch", "mixup"])
def test_all_that_is_random_depends_on_seed_and_step_alone(method: str) -> None:
    first, later = make_loader(method), make_loader(method, holdout=False)
    later.draw_batch(2)
    torch.manual_seed(5)
    one, other = first.draw_batch(7), later.draw_batch(7)
    if one.unlabeled.noise is not None and other.unlabeled.noise is not None:
        assert torch.equal(one.unlabeled.noise, other.unlabeled.noise)
    if one.mix is not None and other.mix is not None:
        assert torch.equal(one.mix.ratio, other.mix.ratio) and torch.equal(
            one.mix.permutation, other.mix.permutation
        )


def test_samples_are_drawn_as_often_as_their_weights_say() -> None:
    weight = torch.tensor([1.0, 0.0, 3.0])
    rows = sample_indices(3, 20_000, torch.Generator().manual_seed(0), weight)
    assert (
        torch.bincount(rows, minlength=3)
        .div(20_000)
        .sub(torch.tensor([0.25, 0.0, 0.75]))
        .abs()
        .max()
        < 0.02
    )


def test_repeated_samples_are_drawn_like_one_of_their_weight() -> None:
    repeated = torch.tensor([0, 0, 0, 1, 2, 2])
    one_by_one = sample_indices(
        6, 50, torch.Generator().manual_seed(0), torch.ones(6, dtype=torch.float64)
    )
    weighted = sample_indices(
        3, 50, torch.Generator().manual_seed(0), torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    )
    assert torch.equal(repeated[one_by_one], weighted)


def test_a_run_draws_labelled_samples_by_weight() -> None:
    x = torch.arange(4.0).unsqueeze(1)
    only = Samples(x, torch.tensor([0, 1, 0, 1]), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    splits = Splits(
        labeled=only, unlabeled=only, holdout=only, validation=only, test=only, classes=2
    )
    loader = build_loader(
        splits.to(torch.device("cpu"), torch.float32),
        Classification(num_outputs=2),
        method_named("pi-model"),
        sizes=BatchSizes(labeled=64, unlabeled=64, holdout=64),
        weak=Augment(),
        strong=Augment(),
        seed=0,
        steps=10,
        holdout=True,
    )
    batch = loader.draw_batch(0)
    assert batch.holdout is not None
    for drawn in (batch.labeled.x, batch.unlabeled.weak, batch.holdout.x):
        assert set(drawn.flatten().tolist()) == {1.0, 2.0}


def test_processes_share_the_rows_of_a_streamed_set() -> None:
    whole = sample_stream_indices(5, part="labeled", count=100, size=12, seed=3)
    shares = [
        sample_stream_indices(
            5, part="labeled", count=100, size=12, seed=3, rank=index, world_size=3
        )
        for index in range(3)
    ]
    assert torch.equal(torch.stack(shares, dim=1).flatten(), whole)


def test_a_batch_as_large_as_its_set_has_every_sample_once() -> None:
    for size, distinct in ((5, 5), (6, 6)):
        rows = sample_indices(6, size, torch.Generator().manual_seed(0)).tolist()
        assert len(rows) == size and len(set(rows)) == distinct
        assert set(rows) <= set(range(6))


def test_the_second_weak_view_is_a_weak_one() -> None:
    loader = make_loader("mixmatch")
    loader.weak = Augment()
    batch = loader.draw_batch(0)
    assert torch.equal(batch.unlabeled.weak, batch.unlabeled.weak2)
    loader.weak = Augment(noise=0.1)
    batch = loader.draw_batch(0)
    spread = float((batch.unlabeled.weak - batch.unlabeled.weak2).std())
    assert spread == pytest.approx(0.1 * 2**0.5, rel=0.1)  # apart, and each with its own noise


def test_seeds_of_steps_are_pinned() -> None:
    """Another seed would make a resumed run see other batches than the one it resumes."""
    assert derive_seed("0/0") == 1576848291327681832
    assert derive_seed("3/labeled/7") == 7961914374897766816
    rows = sample_stream_indices(7, part="labeled", count=1000, size=4, seed=3)
    generator = torch.Generator().manual_seed(derive_seed("3/labeled/7"))
    assert torch.equal(rows, torch.randperm(1000, generator=generator)[:4])


def test_a_batch_is_drawn_by_the_seed_of_its_run_and_step() -> None:
    loader = make_loader(seed=4)
    loader.weak = Augment()
    batch = loader.draw_batch(9)
    generator = torch.Generator().manual_seed(derive_seed("4/9"))
    rows = torch.randperm(9, generator=generator)[:6]
    assert torch.equal(batch.labeled.x, loader.splits.labeled.x[rows])
    assert torch.equal(batch.labeled.y, loader.splits.labeled.y[rows])
    rows = torch.randperm(30, generator=generator)[:8]
    assert torch.equal(batch.unlabeled.weak, loader.splits.unlabeled.x[rows])


def test_beta_quantiles_are_in_the_middle_of_equal_shares() -> None:
    """Beta(1, 1) is uniform."""
    assert compute_beta_quantiles(1.0, 4).tolist() == pytest.approx([0.125, 0.375, 0.625, 0.875])
    values = compute_beta_quantiles(0.5)
    assert len(values) == 4096 and 0 < float(values[0]) < float(values[-1]) < 1


def test_mixing_ratios_are_drawn_from_the_quantiles() -> None:
    mix = make_loader("mixmatch").draw_batch(0).mix
    assert mix is not None
    assert set(mix.ratio.tolist()) <= set(compute_beta_quantiles(0.75).tolist())


def test_no_hold_out_is_drawn_where_it_is_not_asked_for() -> None:
    loader = make_loader()
    assert loader.draw_batch(0, holdout=False).holdout is None
    held = loader.draw_batch(0).holdout
    assert held is not None and len(held.x) == 5


def test_weights_of_nothing_at_either_end_are_never_drawn() -> None:
    weight = torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    rows = sample_indices(5, 4000, torch.Generator().manual_seed(1), weight)
    assert set(rows.tolist()) == {1, 3}


def test_each_process_streams_and_mixes_its_own_share(tmp_path: Path) -> None:
    whole, _ = streamed(tmp_path, 0)
    with use_group(ProcessGroup(2, 1)):
        loader = loader_of(whole.splits, seed=5)
        batch = make_loader("mixmatch").draw_batch(0)  # of 6 labelled and 8 unlabelled samples
    rows = loader.streams["labeled"].dataset.rows(2)
    every = sample_stream_indices(2, part="labeled", count=4, size=64, seed=5)
    assert torch.equal(rows, every[1::2])
    assert batch.mix is not None
    assert (len(batch.labeled.x), len(batch.unlabeled.weak)) == (3, 4)
    assert sorted(batch.mix.permutation.tolist()) == list(range(11))
    assert len(batch.mix.ratio) == 11
