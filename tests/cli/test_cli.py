"""The command line as a person uses it: in processes of their own, killed and started again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from formats import write_cifar10, write_faces
from l2i import recipes
from l2i.config.validate import flatten_fields
from l2i.training.loading import load_full_state
from waiting import wait_until

pytestmark = pytest.mark.slow

SMALL = [
    "--device",
    "cpu",
    "--steps",
    "200",
    "--eval-every",
    "20",
    "--save-every",
    "50",
    "--model.width",
    "16",
]


def l2i(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "l2i", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(sorted((folder / "checkpoints").glob("*.safetensors"))[-1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = l2i(
        "train", "digits", *SMALL, "--model.dropout", "0.1", "--out", str(folder), cwd=folder.parent
    )
    assert done.returncode == 0, done.stderr
    return folder


def start(folder: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "l2i",
        "train",
        "digits",
        *SMALL,
        "--model.dropout",
        "0.1",
        "--out",
        str(folder),
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_list_names_everything(tmp_path: Path) -> None:
    done = l2i("list", cwd=tmp_path)
    assert {"fixmatch", "wide-resnet", "digits", "digits/mean-teacher-l2i-40"} <= set(
        done.stdout.splitlines()
    )


def test_list_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from l2i.cli import run_command; "
        "sys.exit(run_command(['list']) or 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0


def test_list_shows_tables_with_their_axes(tmp_path: Path) -> None:
    done = l2i("list", "--tables", cwd=tmp_path)
    assert done.returncode == 0
    heading, *lines = done.stdout.splitlines()
    assert heading == "# tables"
    assert [line.split()[0] for line in lines if line[0] != " "] == list(recipes.TABLES)
    lines = l2i("list", "--tables", "cifar100", cwd=tmp_path).stdout.splitlines()
    assert lines[1] == f"cifar100 ({len(recipes.get_table('cifar100').cells)} cells)"
    axes = {line.split()[0]: line.split(maxsplit=1)[1].split(", ") for line in lines[2:]}
    assert {"supervised", "fixmatch", "uda"} < set(axes["methods"])
    assert axes["labels"] == ["500", "1000", "2000"]
    assert axes["rules"] == ["off", "normalized", "paper"]
    controls = {"zero", "shuffled", "direct", "exact-shuffled"}
    ablations = {"exact", "learnable", "separate", "holdout32", "holdout128"}
    assert set(axes["ablations"]) == controls | ablations
    assert axes["budgets"] == ["short"]


def test_help_shows_every_field_with_its_meaning(tmp_path: Path) -> None:
    done = l2i("train", "digits", "--help", cwd=tmp_path)
    assert done.returncode == 0
    plain = " ".join(done.stdout.replace("│", " ").split())
    for path, _ in flatten_fields(recipes.get("digits")):
        flag = f" --{path.replace('_', '-')}"
        assert flag in plain
        assert len(plain.split(flag, 1)[1].split("(default:")[0].split()) >= 3, flag


@pytest.mark.parametrize(
    "arguments",
    [(), ("--help",), ("train", "--help"), ("compare", "--help"), ("compare", "digits", "--help")],
)
def test_help_is_there_at_every_level(arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = l2i(*arguments, cwd=tmp_path)
    assert "usage: l2i" in (done.stdout if arguments else done.stderr)
    assert done.returncode == (0 if arguments else 2)


def test_a_run_leaves_what_it_says(whole: Path) -> None:
    result = json.loads((whole / "result.json").read_text())
    assert (result["steps"], result["seed"]) == (200, 0)
    assert result["metric"] == rows(whole)[-1]["test"]
    assert {
        "metric_definition",
        "seconds",
        "versions",
        "hardware",
        "metric_name",
        "validation",
    } <= set(result)
    assert json.loads((whole / "config.json").read_text())["model"]["dropout"] == 0.1
    assert [row["step"] for row in rows(whole)] == list(range(20, 201, 20))
    for row in rows(whole):
        assert {"c_t", "c_u", "c_h", "weight", "grad_ratio"} <= set(row)
        assert row["grad_ratio"] == pytest.approx(0.3)
        assert row["grad_ratio_raw"] > 0
    assert list(whole.glob("events.out.tfevents.*"))


def test_killed_after_its_second_checkpoint_it_goes_on_to_the_same_end(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_until((folder / "checkpoints" / "0000000100.safetensors").exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (folder / "result.json").exists()
    _, stderr = (again := start(folder)).communicate()
    assert again.returncode == 0, stderr
    resumed = int(stderr.split("resuming from step ")[1].split()[0])
    assert resumed >= 100
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    mine, theirs = final_state(folder), final_state(whole)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_stops(
    number: signal.Signals, code: int, whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_until((folder / "checkpoints" / "0000000050.safetensors").exists, process)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == code
    stopped = int(stderr.split("stopped at step ")[1].split(";")[0])
    assert (folder / "checkpoints" / f"{stopped:010d}.safetensors").exists()
    _, stderr = (again := start(folder)).communicate()
    assert again.returncode == 0
    assert f"resuming from step {stopped}" in stderr
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_one_seed_gives_the_same_metrics_and_another_seed_others(
    whole: Path, tmp_path: Path
) -> None:
    for name, seed in (("same", "0"), ("other", "1")):
        done = l2i(
            "train",
            "digits",
            *SMALL,
            "--model.dropout",
            "0.1",
            "--seed",
            seed,
            "--out",
            name,
            cwd=tmp_path,
        )
        assert done.returncode == 0
    assert (tmp_path / "same" / "metrics.jsonl").read_bytes() == (
        whole / "metrics.jsonl"
    ).read_bytes()
    assert rows(tmp_path / "other")[-1] != rows(whole)[-1]


def test_a_finished_run_is_not_trained_again(whole: Path) -> None:
    before = (whole / "result.json").read_bytes(), final_state(whole)
    before_mtime = (whole / "metrics.jsonl").stat().st_mtime_ns
    done = l2i(
        "train", "digits", *SMALL, "--model.dropout", "0.1", "--out", str(whole), cwd=whole.parent
    )
    assert done.returncode == 0
    assert "error (%)" in done.stdout
    assert (whole / "result.json").read_bytes() == before[0]
    assert (whole / "metrics.jsonl").stat().st_mtime_ns == before_mtime


def test_evaluate_reads_the_run(whole: Path) -> None:
    done = l2i("evaluate", str(whole), cwd=whole.parent)
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert printed["step"] == 200
    assert printed["test"] == {"error (%)": pytest.approx(rows(whole)[-1]["test"], abs=1e-4)}


def test_a_finished_run_of_another_configuration_is_left_alone(whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    done = l2i("train", "digits", *SMALL, "--out", str(whole), cwd=whole.parent)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "model.dropout is 0.1 there and 0.0 here" in done.stderr
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian", "digits"), "perhaps you meant 'train'"),
        (("train",), "needs a recipe"),
        (("train", "digit"), "perhaps you meant 'digits'"),
        (("train", "digits", "--stepps", "3"), "perhaps you meant --steps"),
        (("train", "digits", "--steps", "many"), "--steps"),
        (
            ("train", "digits", "--data.num-labeled", "45"),
            "is not a positive multiple of the 10 classes; use 40",
        ),
        (("train", "digits", "--data.num-labeled", "5000"), "use at most"),
        (("train", "digits", "--data.num-validation", "1200"), "num_validation=1200 must"),
        (("train", "digits", "--device", "tpu?"), "is not a device"),
        (("train", "digits", "--l2i.update", "paper"), "set l2i.paper.eta"),
        (("compare", "digitz"), "perhaps you meant 'digits'"),
        (("compare", "digits", "--cells", "digits/sl"), "unknown recipe 'digits/sl'"),
        (("compare", "digits", "--seeds", "0"), "at least 1"),
        (("evaluate", "nowhere"), "is not a run folder"),
        (("list", "aflw", "more"), "takes at most one word"),
        (
            ("train", "aflw"),
            "'aflw' is a table; train one of its cells, such as aflw/mean-teacher-l2i-91",
        ),
        (("compare", "aflw/sl-91"), "l2i compare aflw --cells sl-91"),
        (("compare", "aflw", "--cells", "cifar10/sl-250"), "a cell of a different table"),
        (("train", "digits", "--step", "4"), "perhaps you meant --steps"),
        (("train", "digits", "--steps", "-3"), "steps=-3 must be at least 1"),
        (("train", "digits", "--method.one-forward", "False"), "boolean flags take no value"),
        (
            ("train", "digits", "--no-method.one-forward"),
            "perhaps you meant --method.no-one-forward",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = l2i(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_no_whole_checkpoint_left_is_damage(tmp_path: Path) -> None:
    process = start(folder := tmp_path / "run")
    wait_until((folder / "checkpoints" / "0000000050.safetensors").exists, process)
    process.kill()
    process.communicate()
    for path in (folder / "checkpoints").iterdir():
        os.truncate(path, 100)
    before = (folder / "metrics.jsonl").read_bytes()
    _, stderr = (again := start(folder)).communicate()
    assert again.returncode == 1
    assert "no intact checkpoint is left" in stderr
    assert stderr.count("\n") == 1
    assert (folder / "metrics.jsonl").read_bytes() == before


def test_a_cost_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path: Path,
) -> None:
    done = l2i("train", "digits", *SMALL, "--optim.lr", "1e30", "--out", "bad", cwd=tmp_path)
    assert done.returncode == 1
    assert "parameters is NaN or infinite from step 1 on" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("l2i: ") and "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "bad" / "checkpoints").iterdir()] == [
        "0000000000.safetensors"
    ]
    assert all(t.isfinite().all() for t in final_state(tmp_path / "bad").values())


def test_compare_sets_methods_side_by_side(tmp_path: Path) -> None:
    done = l2i(
        "compare",
        "digits",
        "--seeds",
        "2",
        "--steps",
        "60",
        "--device",
        "cpu",
        "--out",
        "cmp",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    for cell in ("sl-40", "fixmatch-40", "fixmatch-l2i-40", "fixmatch-40-longer"):
        assert cell in done.stdout
    assert done.stdout.count(" / ") >= 6  # two seeds
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:8])
    progress = [line.partition(":")[0] for line in done.stderr.splitlines()]
    assert progress == [  # one line per cell
        f"digits/{cell}"
        for cell in ("sl-40", "fixmatch-40", "fixmatch-l2i-40", "fixmatch-40-longer")
    ]
    saved = json.loads((tmp_path / "cmp" / "digits.json").read_text())
    assert [len(line["runs"]) for line in saved] == [2, 2, 2, 2]
    for base_run, longer_run, imputed_run in zip(
        saved[1]["runs"], saved[2]["runs"], saved[3]["runs"], strict=True
    ):
        assert longer_run["steps"] == round(
            base_run["steps"] * imputed_run["seconds"] / base_run["seconds"]
        )
    again = l2i(
        "compare",
        "digits",
        "--seeds",
        "2",
        "--steps",
        "60",
        "--device",
        "cpu",
        "--out",
        "cmp",
        cwd=tmp_path,
    )
    assert again.stdout == done.stdout


def test_a_dry_run_knows_the_recipe_by_whatever_name_the_run_has(tmp_path: Path) -> None:
    done = l2i("train", "cifar10/fixmatch-250-fast", "--name", "mine", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0 and "benchmarks/" in done.stdout
    steps = recipes.get("cifar10/fixmatch-250-fast").steps
    assert (
        f"after 1,048,576 steps, not {steps:,}; on the paper's schedule, not ours)" in done.stdout
    )


def test_a_dry_run_prints_the_protocol_and_needs_no_data(tmp_path: Path) -> None:
    done = l2i("train", "cifar100/fixmatch-l2i-500", "--steps", "1000", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = dict(
        line.partition("#")[0].split(maxsplit=1) for line in done.stdout.splitlines()[1:-1]
    )
    printed = {name: value.strip() for name, value in printed.items()}
    assert (
        "# set by you; the recipe has 1048576" in done.stdout
        and done.stdout.count("# set by you") == 1
    )
    assert (
        printed["batch.unlabeled"] == "448"
        and printed["optim.schedule"] == "cosine"
        and printed["steps"] == "1000"
    )
    assert "the paper's result: 44.97 ± 0.13" in done.stdout
    assert not list(tmp_path.iterdir())


def test_missing_data_says_where_to_get_it_and_where_to_put_it(tmp_path: Path) -> None:
    for cell, words in {
        "cifar10/vat-250": "cifar.html",
        "aflw/sl-91": "aflw_release",
        "imagenet/sl": "decathlon",
    }.items():
        done = l2i("train", cell, "--data.root", str(tmp_path), cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert words in done.stderr and "--data.root" in done.stderr


def test_a_tampered_pickle_is_refused_and_its_command_not_run(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    batch = next(tmp_path.rglob("data_batch_3"))
    batch.write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "touched").encode() + b"'\ntR.")
    done = l2i("train", "cifar10/mean-teacher-250", "--data.root", str(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "data_batch_3" in done.stderr and "os.system" in done.stderr
    assert not (tmp_path / "touched").exists()


def test_a_run_says_how_the_set_was_split_and_evaluate_has_every_metric(tmp_path: Path) -> None:
    write_faces(tmp_path)
    small = ["--device", "cpu", "--steps", "2", "--batch.labeled", "4", "--data.num-labeled", "10"]
    done = l2i(
        "train", "aflw/sl-91", *small, "--data.root", str(tmp_path), "--out", "run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "landmarks: 10 labelled, 12 unlabelled, 2 validation, 8 test" in done.stderr
    printed = json.loads(l2i("evaluate", "run", cwd=tmp_path).stdout)
    assert set(printed["test"]) == set(printed["validation"]) == {"error (%)", "failure rate (%)"}


def test_list_shows_what_contains_a_word(tmp_path: Path) -> None:
    printed = l2i("list", "aflw/sl", cwd=tmp_path).stdout.split("# recipes\n")[1].splitlines()
    assert printed == ["aflw/sl-91", "aflw/sl-182", "aflw/sl-455", "aflw/sl-all"]


def test_early_stopping_keeps_the_model_that_its_metric_is_of(tmp_path: Path) -> None:
    """The run's figure, `evaluate` and its data folder, all as of the chosen evaluation."""
    write_faces(tmp_path / "set")
    small = [
        "--device",
        "cpu",
        "--steps",
        "30",
        "--eval-every",
        "3",
        "--batch.labeled",
        "4",
        "--data.num-labeled",
        "4",
    ]
    fast = ["--optim.lr", "0.05", "--optim.ema-decay", "0.3", "--save-every", "7", "--out", "run"]
    command = [sys.executable, "-m", "l2i", "train", "aflw/sl-91", *small, *fast]
    environment = {**os.environ, "L2I_DATA": str(tmp_path / "set")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    observed = {row["step"]: (row["validation"], row["test"]) for row in rows(tmp_path / "run")}
    best = min(observed, key=lambda step: observed[step])
    assert best < 30
    saved = tmp_path / "run" / "best"
    saved.joinpath(f"{99:010d}.safetensors").write_bytes(b"left over from a run that was cut")
    loaded = load_full_state(tmp_path / "run")
    assert loaded.trainer.compute_metrics()["test"]["error (%)"] == pytest.approx(
        observed[loaded.teacher_step][1], rel=1e-4
    )
    printed = json.loads(
        l2i("evaluate", "run", cwd=tmp_path).stdout
    )  # in a shell that knows nothing of the variable
    assert (printed["step"], printed["steps"], printed["finished"]) == (best, 30, True)
    assert printed["test"]["error (%)"] == pytest.approx(observed[best][1], abs=1e-4)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metric"] == observed[best][1]
