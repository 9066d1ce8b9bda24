"""A run within a process: what users of the library call."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import l2i
from formats import write_faces
from l2i import Augment, InputError, NonFiniteCost, Splits, load_model, recipes, replace, train
from l2i.training.checkpoint import load_latest_checkpoint, save_checkpoint
from l2i.training.loading import evaluate_run
from l2i.training.run_dir import check_fingerprint, lock_run_dir


def short(folder: Path, **changes: object) -> l2i.Run:
    run = replace(
        recipes.get("digits"),
        device="cpu",
        steps=30,
        eval_every=10,
        save_every=20,
        model={"width": 8},
        out=str(folder),
    )
    return replace(run, **changes)


def test_train_returns_its_result_and_leaves_the_process_as_it_was(tmp_path: Path) -> None:
    rng, threads = torch.get_rng_state(), torch.get_num_threads()
    result = train(short(tmp_path / "run"), quiet=True)
    assert result.steps == 30
    assert 0 < result.metric < 100
    assert torch.equal(torch.get_rng_state(), rng)
    assert torch.get_num_threads() == threads
    assert train(short(tmp_path / "run"), quiet=True) == result


def test_a_run_says_what_it_does_unless_it_is_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"steps": 2, "eval_every": 2, "save_every": 2}
    result = train(short(tmp_path / "quiet", **run), quiet=True)
    assert capsys.readouterr() == ("", "")
    assert (result.concurrent_runs, result.processes) == (1, 1)
    meta = load_latest_checkpoint(tmp_path / "quiet" / "checkpoints")[1]
    assert meta["concurrent_runs"] == 1 and meta["step"] == 2
    train(short(tmp_path / "plain", **run))
    (line,) = "".join(capsys.readouterr()).splitlines()  # of devices and processes, GPUs alone
    assert line.startswith("digits: 40 labelled (4 per class), 1,060 unlabelled")


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a run folder"):
        train(short(tmp_path), quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json is damaged"):
        train(short(tmp_path), quiet=True)


def test_a_run_cut_before_its_result_was_written_ends_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    metric_value = train(short(folder), quiet=True).metric
    (folder / "result.json").unlink()
    assert train(short(folder), quiet=True).metric == metric_value


def test_rows_after_the_last_checkpoint_are_written_once_and_time_adds_up(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(short(folder), quiet=True)
    whole = (folder / "metrics.jsonl").read_bytes()
    (folder / "result.json").unlink()
    (folder / "checkpoints" / "0000000030.safetensors").unlink()
    tensors, meta = load_latest_checkpoint(folder / "checkpoints")
    save_checkpoint(folder / "checkpoints", 20, tensors, {**meta, "seconds": 1000.0})
    assert train(short(folder), quiet=True).seconds > 1000
    assert (folder / "metrics.jsonl").read_bytes() == whole


def test_a_checkpoint_of_another_configuration_is_not_loaded(tmp_path: Path) -> None:
    for name, rho in (("a", 0.3), ("b", 0.5)):
        train(short(tmp_path / name, l2i={"rho": rho}), quiet=True)
    (tmp_path / "a" / "result.json").unlink()
    for path in (tmp_path / "b" / "checkpoints").iterdir():
        path.replace(tmp_path / "a" / "checkpoints" / path.name)
    with pytest.raises(InputError, match=r"l2i\.rho is 0\.5 there and 0\.3 here"):
        train(short(tmp_path / "a"), quiet=True)


def test_rows_tell_the_weight_and_rate_of_their_last_step(tmp_path: Path) -> None:
    ramped = {"weight": 10.0, "rampup": 20}
    run = short(
        tmp_path / "run", method=ramped, optim={"lr": 0.01, "schedule": "step", "milestones": (20,)}
    )
    train(run, quiet=True)
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["weight"] for row in rows] == pytest.approx([4.5, 9.5, 10.0])
    assert [row["lr"] for row in rows] == pytest.approx([0.01, 0.01, 0.001])


def test_running_statistics_that_overflow_are_not_saved(tmp_path: Path) -> None:
    sgd = {"name": "sgd", "lr": 1e4}
    with pytest.raises(NonFiniteCost, match="is NaN or infinite"):
        train(short(tmp_path / "run", optim=sgd, save_every=1, model={"width": 128}), quiet=True)
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        assert all(t.isfinite().all() for t in load_file(path).values() if t.is_floating_point()), (
            path
        )


@pytest.mark.parametrize("save_every", [1, 20])
def test_a_bad_state_is_not_saved(tmp_path: Path, save_every: int) -> None:
    run = short(tmp_path / "run", optim={"lr": 1e30}, eval_every=30, save_every=save_every)
    with pytest.raises(NonFiniteCost, match="NaN or infinite from step 1 on"):
        train(run, quiet=True)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [
        "0000000000.safetensors"
    ]


def test_wrong_input_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use 40"):
        train(short(tmp_path / "run", data={"num_labeled": 45}), quiet=True)
    assert not (tmp_path / "run").exists()


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with lock_run_dir(folder), pytest.raises(InputError, match="another process is using"):
        train(short(folder), quiet=True)
    train(short(folder), quiet=True)


def test_a_run_cut_while_its_config_was_written_starts(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json.partial").write_text("{")
    assert train(short(folder), quiet=True).steps == 30


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "{}"),
        ("result.json", "nonsense"),
        ("config.json", '"abc"'),
        ("config.json", "[]"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str) -> None:
    folder = tmp_path / "run"
    train(short(folder), quiet=True)
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=f"{name} is damaged"):
        train(short(folder), quiet=True)


@pytest.mark.parametrize(
    ("share", "message"), [(0, "is shorter than it was at the checkpoint"), (1, "is damaged")]
)
def test_a_metrics_file_that_was_tampered_with_is_not_glossed_over(
    tmp_path: Path, share: int, message: str
) -> None:
    folder = tmp_path / "run"
    train(short(folder), quiet=True)
    (folder / "result.json").unlink()
    path = folder / "metrics.jsonl"
    path.write_bytes(b"x" * path.stat().st_size * share)
    with pytest.raises(InputError, match=rf"metrics\.jsonl {message}"):
        train(short(folder), quiet=True)


def test_a_rehearsal_that_fails_leaves_a_users_model_as_it_was() -> None:
    model = own_model()
    run = replace(
        recipes.get("digits"),
        device="cpu",
        batch={"holdout": 1},
        data={"weak": Augment(), "strong": Augment()},
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match="the first step fails with these settings"):
        l2i.Trainer(run, splits=own_splits(), model=model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def own_splits(seed: int = 0) -> Splits:
    x = np.random.default_rng(seed).normal(size=(200, 5)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    return Splits.from_arrays(
        labeled=(x[:20], y[:20]), unlabeled=x[20:150], test=(x[150:], y[150:]), classes=2
    )


def own_model() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def test_own_data_and_an_own_model_make_a_run_that_can_be_loaded(tmp_path: Path) -> None:
    noisy = {"weak": Augment(noise=0.1), "strong": Augment(noise=0.3)}
    run = short(tmp_path / "run", data=noisy)
    splits, model = own_splits(), own_model()
    result = train(run, splits=splits, model=model, quiet=True)
    loaded = load_model(tmp_path / "run", splits=splits, model=own_model())
    assert not loaded.training
    wrong = (loaded(splits.test.x).argmax(1) != splits.test.y).float().mean()
    assert 100 * float(wrong) == pytest.approx(result.metric)
    with pytest.raises(InputError, match="of a different network"):
        load_model(tmp_path / "run", splits=splits, model=nn.Sequential(nn.Linear(5, 2)))
    assert train(run, splits=splits, model=model, quiet=True) == result
    with pytest.raises(InputError, match="the data has changed since"):
        train(run, splits=own_splits(seed=1), model=model, quiet=True)
    further = replace(run, out=str(tmp_path / "further"))
    assert train(further, splits=splits, model=loaded, quiet=True).steps == 30


def test_a_model_of_the_wrong_width_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"output has shape \[40, 3\]; it must be \[40, 2\]"):
        train(
            short(tmp_path / "run", data={"weak": Augment(), "strong": Augment()}),
            splits=own_splits(),
            model=nn.Linear(5, 3),
        )


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    model[3].weight = model[1].weight
    assert train(short(tmp_path / "run"), model=model, quiet=True).steps == 30


def test_public_names_are_there() -> None:
    assert [name for name in l2i.__all__ if getattr(l2i, name) is None] == []


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainr'"):
        _ = l2i.Trainr  # type: ignore[attr-defined]


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path) -> None:
    """The same settings and another set of faces: neither resumed nor evaluated."""
    write_faces(tmp_path / "first", train=24)
    write_faces(tmp_path / "other", train=23)
    run = replace(
        recipes.get("aflw/sl-91"),
        device="cpu",
        steps=4,
        save_every=2,
        out=str(tmp_path / "run"),
        data={"root": str(tmp_path / "first"), "num_labeled": 10},
        batch={"labeled": 4},
    )
    train(run, quiet=True)
    (tmp_path / "run" / "result.json").unlink()
    assert train(run, quiet=True).steps == 4
    with pytest.raises(InputError, match="the data has changed since"):
        evaluate_run(tmp_path / "run", root=str(tmp_path / "other"))
    elsewhere = replace(run, data={"root": str(tmp_path / "other")})
    shutil.copytree(tmp_path / "first", tmp_path / "moved")
    assert train(replace(run, data={"root": str(tmp_path / "moved")}), quiet=True).steps == 4
    for name in ("finished", "unfinished"):
        with pytest.raises(InputError, match="the data has changed since"):
            train(elsewhere, quiet=True)
        if name == "finished":
            (tmp_path / "run" / "result.json").unlink()


def test_a_run_does_not_resume_on_other_unlabelled_samples(tmp_path: Path) -> None:
    noisy = {"weak": Augment(noise=0.1), "strong": Augment(noise=0.3)}
    run, splits = short(tmp_path / "run", data=noisy), own_splits()
    train(run, splits=splits, model=own_model(), quiet=True)
    assert isinstance(splits.unlabeled.x, torch.Tensor)
    reversed_rows = splits.unlabeled._replace(x=splits.unlabeled.x.flip(0))
    other = dataclasses.replace(splits, unlabeled=reversed_rows)
    for name in ("finished", "unfinished"):
        if name == "unfinished":
            (tmp_path / "run" / "result.json").unlink()
        with pytest.raises(InputError, match=r"\(changed: the inputs of the unlabelled samples\)"):
            train(run, splits=other, model=own_model(), quiet=True)
    assert train(run, splits=splits, model=own_model(), quiet=True).steps == 30


def test_a_checkpoint_that_knows_less_of_its_data_is_not_resumed(tmp_path: Path) -> None:
    fingerprint = own_splits().fingerprint()
    for meta in ({}, {"data": "0123"}, {"data": None}):
        with pytest.raises(
            InputError, match="by an older version, which recorded less of its data"
        ):
            check_fingerprint(tmp_path, meta, fingerprint, custom_splits=True)
    check_fingerprint(tmp_path, {"data": fingerprint}, fingerprint, custom_splits=True)


def test_a_run_on_data_of_ones_own_is_opened_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = torch.rand(40, 1, 8, 8), torch.arange(40) % 2
    splits = Splits.from_arrays(
        labeled=(x[:10], y[:10]), unlabeled=x[10:30], test=(x[30:], y[30:]), classes=2
    )
    train(short(tmp_path / "own"), splits=splits)
    assert "your data: 10 labelled" in capsys.readouterr().err
    with pytest.raises(InputError, match="splits passed from Python; load it with"):
        evaluate_run(tmp_path / "own")
    assert load_model(tmp_path / "own", splits=splits)(x[30:]).shape == (10, 2)


@pytest.mark.filterwarnings("ignore")  # those of TensorBoard's own imports
def test_tensorboard_reads_what_a_run_wrote_and_each_step_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    whole = short(tmp_path / "run")
    train(whole, quiet=True)
    (tmp_path / "run" / "result.json").unlink()
    (tmp_path / "run" / "checkpoints" / "0000000030.safetensors").unlink()
    train(whole, quiet=True)
    read = EventAccumulator(str(tmp_path / "run"))
    read.Reload()
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    for name in ("c_t", "test", "lr"):
        actual = read.Scalars(name)
        assert [event.step for event in actual] == [10, 20, 30]
        assert [event.value for event in actual] == pytest.approx([row[name] for row in rows])
