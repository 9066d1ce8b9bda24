"""Fine-tuning an encoder: warm-up, clipping, rates by layer; and a whole run of texts."""

from pathlib import Path

import pytest
import torch

from l2i import Optim, Run, Samples, Splits, Text, Tokenizer, Trainer, recipes, replace, train
from l2i.errors import InputError
from l2i.training.checkpoint import load_latest_checkpoint
from l2i.training.evaluation import pick_batch_size
from l2i.training.optimizer import (
    Stepper,
    clip_gradient,
    compute_layerwise_lr_scales,
    compute_lr_factor,
)
from tiny_encoder import tiny_encoder, write_imdb

NAMES = [
    "body.embeddings.word_embeddings.weight",
    "body.encoder.layer.0.output.dense.weight",
    "body.encoder.layer.1.output.dense.weight",
    "body.pooler.dense.weight",
    "head.weight",
]


def test_the_rate_grows_from_nothing_and_falls_to_nothing() -> None:
    optim = Optim(schedule="linear", warmup=0.1)
    actual = [compute_lr_factor(optim, step, 1000) for step in (0, 50, 99, 100, 500, 999)]
    assert actual == pytest.approx([0, 0.5, 0.99, 0.9, 0.5, 0.001])


def test_a_warm_up_goes_before_every_schedule() -> None:
    assert compute_lr_factor(Optim(warmup=10), 5, 100) == 0.5
    assert compute_lr_factor(Optim(warmup=10), 10, 100) == 1.0
    assert compute_lr_factor(
        Optim(warmup=10, schedule="step", milestones=(20,)), 25, 100
    ) == pytest.approx(0.1)


def test_a_gradient_is_scaled_down_to_the_largest_norm_and_never_up() -> None:
    gradient = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    short = clip_gradient(gradient, 1.0)
    assert torch.allclose(short["a"], torch.tensor([0.6, 0.0])) and torch.allclose(
        short["b"], torch.tensor([[0.8]])
    )
    for most in (10.0, 0.0):
        assert all(
            torch.equal(value, gradient[name])
            for name, value in clip_gradient(gradient, most).items()
        )
    nothing = {"a": torch.zeros(2)}
    assert torch.equal(clip_gradient(nothing, 1.0)["a"], torch.zeros(2))


def test_clipping_is_that_of_torch() -> None:
    mine, theirs = (torch.nn.Parameter(torch.arange(4.0)) for _ in range(2))
    stepper, sgd = (
        Stepper({"w": mine}, Optim(name="sgd", lr=0.1, max_grad_norm=0.5)),
        torch.optim.SGD([theirs], 0.1, 0.9),
    )
    for _ in range(3):
        gradient = torch.randn(4)
        stepper({"w": gradient.clone()}, torch.ones(()))
        theirs.grad = gradient
        torch.nn.utils.clip_grad_norm_([theirs], 0.5)
        sgd.step()
    assert torch.allclose(mine, theirs, atol=1e-5)


def test_each_layer_has_a_share_of_the_rate_of_the_one_above() -> None:
    assert list(compute_layerwise_lr_scales(NAMES, 0.5).values()) == [0.125, 0.25, 0.5, 1.0, 1.0]
    assert set(compute_layerwise_lr_scales(NAMES, 1.0).values()) == {1.0}
    for names in (
        ["encoder.weight", "head.weight"],
        ["albert.embeddings.weight", "albert.group.weight"],
    ):
        with pytest.raises(InputError, match="numbered layers"):
            compute_layerwise_lr_scales(names, 0.5)


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_rates_by_layer_are_those_of_an_optimizer_a_layer(name: str) -> None:
    mine, theirs = ({n: torch.nn.Parameter(torch.ones(2)) for n in NAMES} for _ in range(2))
    optim, shares = (
        Optim(name=name, lr=0.1, layer_decay=0.5),
        compute_layerwise_lr_scales(NAMES, 0.5),
    )
    stepper = Stepper(mine, optim)
    others = {n: Stepper({n: theirs[n]}, Optim(name=name, lr=0.1 * shares[n])) for n in NAMES}
    for factor in (1.0, 0.3):
        gradient = {n: torch.randn(2) for n in NAMES}
        stepper(dict(gradient), torch.tensor(factor))
        for n in NAMES:
            others[n]({n: gradient[n]}, torch.tensor(factor))
    assert all(torch.allclose(mine[n], theirs[n]) for n in NAMES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imdb")
    write_imdb(root)
    tiny_encoder(root / "weights")
    return root


def run_of(cell: str, place: Path, **changes: object) -> Run:
    run = replace(
        recipes.get(f"imdb/{cell}-20"), device="cpu", threads=1, data={"root": str(place)}
    )
    run = replace(run, data={"text": Text(length=32)}, model={"weights": str(place / "weights")})
    return replace(run, **changes)


@pytest.mark.parametrize("cell", ["uda-l2i", "fixmatch-l2i", "mean-teacher-l2i", "sl"])
def test_texts_are_learned(cell: str, place: Path) -> None:
    """Made-up reviews, told apart by a few words: a tiny network gets there in some steps."""
    run = run_of(cell, place, steps=100, optim={"lr": 5e-3, "ema_decay": 0.9})
    run = replace(
        run, model={"dropout": 0.0, "encoder_dropout": 0.0}
    )  # so small a network needs all of its units
    trainer = Trainer(run)
    before = trainer.compute_metrics()["test"]["error (%)"]
    for step in range(run.steps):
        trainer.step(step)
    assert trainer.compute_metrics()["test"]["error (%)"] <= 20 < before


def test_a_run_of_texts_that_was_cut_goes_on_to_the_same_weights(
    place: Path, tmp_path: Path
) -> None:
    run = run_of(
        "uda-l2i",
        place,
        steps=6,
        eval_every=2,
        save_every=2,
        optim={"lr": 1e-3, "layer_decay": 0.8},
    )
    whole = train(replace(run, out=str(tmp_path / "whole")), quiet=True)
    cut = replace(run, out=str(tmp_path / "cut"))

    class Cut(Exception):
        pass

    def stop(trainer: Trainer, step: int) -> None:
        if step == 4:
            raise Cut

    with pytest.raises(Cut):
        train(cut, quiet=True, on_evaluation=stop)
    resumed = train(cut, quiet=True)
    states = [
        load_latest_checkpoint(tmp_path / name / "checkpoints")[0] for name in ("whole", "cut")
    ]
    assert whole.metric == resumed.metric
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_an_encoder_drops_out_while_it_is_trained_and_not_while_it_is_evaluated(
    place: Path,
) -> None:
    trainer = Trainer(run_of("sl", place, model={"dropout": 0.0}))
    x = trainer.splits.to_inputs(trainer.splits.test.x)
    assert trainer.uses_rng and not torch.equal(trainer.model(x), trainer.model(x))
    assert torch.equal(trainer.predict(trainer.splits.test), trainer.predict(trainer.splits.test))
    assert not Trainer(replace(trainer.run, model={"encoder_dropout": 0.0})).uses_rng


@pytest.mark.parametrize(
    ("frozen", "stays"), [("embeddings", "word_embeddings"), ("encoder", "body.")]
)
def test_what_is_frozen_stays(frozen: str, stays: str, place: Path) -> None:
    trainer = Trainer(run_of("uda-l2i", place, steps=20, optim={"lr": 1e-2}))
    trainer = Trainer(replace(trainer.run, model={"freeze": frozen}))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for step in range(1, 4):
        trainer.step(step)
    moved = {
        name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])
    }
    assert moved and not any(stays in name for name in moved)


def test_words_cannot_be_mixed(place: Path) -> None:
    for method in ("mixmatch", "mixup", "vat"):
        run = replace(run_of("uda", place), method=method)
        with pytest.raises(InputError, match="is not possible for token ids; use uda"):
            Trainer(run)


def test_a_perturbation_is_for_texts_or_for_other_samples(place: Path) -> None:
    run = run_of("uda", place)
    noisy = replace(run, data={"weak": replace(recipes.get("digits"), data={}).data.weak})
    with pytest.raises(
        InputError, match=r"augmented by data\.words; leave out data\.weak and data\.strong"
    ):
        Trainer(noisy)
    with pytest.raises(
        InputError, match=r"data\.words applies to texts with an encoder only; leave it out"
    ):
        Trainer(replace(recipes.get("digits"), data={"words": run.data.words}))


def test_the_test_set_can_be_smaller_and_is_the_same_for_every_seed(place: Path) -> None:
    few = [
        Trainer(run_of("sl", place, seed=seed, data={"num_test": 6})).splits.test for seed in (0, 1)
    ]
    whole = Trainer(run_of("sl", place)).splits.test
    assert len(few[0].x) == 6 and torch.equal(few[0].x, few[1].x) and len(whole.x) == 20
    assert all(any(torch.equal(x, y) for y in whole.x) for x in few[0].x)
    with pytest.raises(InputError, match="num_test=21 must be"):
        Trainer(run_of("sl", place, data={"num_test": 21}))


def test_what_is_cut_of_texts_is_said(place: Path) -> None:
    printed = Trainer(
        run_of("sl", place, data={"text": Text(length=8, keep_side="start")})
    ).describe_splits()
    assert "of the texts fill all 8 tokens; longer ones keep their start" in printed


def test_fields_of_encoders_are_for_encoders() -> None:
    for field, value in {"weights": "bert", "freeze": "encoder", "encoder_dropout": 0.1}.items():
        with pytest.raises(
            InputError, match=f"model.{field} needs model.name='encoder', not 'mlp'"
        ):
            Trainer(replace(recipes.get("digits"), model={field: value}))


def test_texts_of_ones_own_are_token_ids_with_what_is_known_of_them(place: Path) -> None:
    tokenizer = Tokenizer(str(place / "weights"), Text(length=16))
    x = tokenizer(["a great film", "a dull plot", "the music was witty", "boring"])
    tokens = tokenizer.make_vocabulary(x)
    splits = Splits.from_arrays(
        labeled=(x[:2], [1, 0]), unlabeled=x, test=(x, [1, 0, 1, 0]), classes=2, vocabulary=tokens
    )
    run = replace(run_of("uda-l2i", place), batch={"labeled": 2, "unlabeled": 4, "holdout": 2})
    trainer = Trainer(run, splits=splits)
    trainer.step(0)
    assert trainer.compute_metrics()["test"]["error (%)"] in (0, 25, 50, 75, 100)
    with pytest.raises(InputError, match="token ids must be below"):
        Splits.from_arrays(
            labeled=(x[:2] + 1000, [1, 0]),
            unlabeled=x,
            test=(x, [1, 0, 1, 0]),
            classes=2,
            vocabulary=tokens,
        )


def test_long_texts_are_evaluated_fewer_at_a_time() -> None:
    for length, wanted in ((16, 64), (128, 64), (512, 16), (100_000, 1)):
        assert (
            pick_batch_size(Samples(torch.zeros(2, 1, length, dtype=torch.int32), torch.zeros(2)))
            == wanted
        )
    assert pick_batch_size(Samples(torch.zeros(2, 3, 512), torch.zeros(2))) == 64


def test_a_run_that_lacks_its_result_alone_has_no_pace(place: Path, tmp_path: Path) -> None:
    run = run_of("sl", place, steps=2, out=str(tmp_path / "run"))
    assert train(run, quiet=True).steps_per_second > 0
    (tmp_path / "run/result.json").unlink()
    again = train(run, quiet=True)
    assert again.steps_per_second is None and "steps/s" not in again.summarize()


def test_wrong_weights_are_found_before_texts_are_read(place: Path, tmp_path: Path) -> None:
    run = replace(run_of("sl", place), data={"root": str(tmp_path)})  # where there are none
    with pytest.raises(InputError, match=r"=65 exceeds the maximum of .* use at most 64"):
        Trainer(replace(run, data={"text": Text(length=65)}))
    with pytest.raises(InputError, match=r"folder .* does not exist"):
        Trainer(replace(run, model={"weights": str(tmp_path / "none")}))
    with pytest.raises(InputError, match="IMDb was not found"):
        Trainer(run)


def test_a_run_without_an_average_does_not_speak_of_one(place: Path, tmp_path: Path) -> None:
    for decay, words in (
        (0.0, "; the model on the test set"),
        (0.9, "; the averaged model on the test set"),
    ):
        run = run_of(
            "sl", place, steps=1, out=str(tmp_path / str(decay)), optim={"ema_decay": decay}
        )
        assert words in train(run, quiet=True).metric_definition
