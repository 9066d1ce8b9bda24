"""Pictures of tiny runs: what is drawn, and where it is written."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from formats import write_faces
from l2i import InputError, cli, recipes, replace, train
from l2i.experiments.figures import (
    AFTER_COLOR,
    BEFORE_COLOR,
    NUM_FACES,
    TRUTH_COLOR,
    compute_arrow_scale,
    decode_points,
    draw_face_grid,
    draw_landmarks,
    iter_figures,
    plot_imputed,
    select_best_and_worst,
    select_evenly_spaced,
)
from l2i.training.loading import check_same_split, load_full_state, load_trainer

SIZES = {"labeled": 4, "unlabeled": 4, "holdout": 4}
FACES = ["costs.png", "error.png", "landmarks.png", "cases.png", "imputed.png"]


def trained(folder: Path, cell: str, root: Path, **changes: object) -> str:
    """A run of a few steps."""
    data = {"root": str(root), "num_labeled": 10, "num_validation": 4}
    run = replace(
        recipes.get(cell),
        device="cpu",
        steps=6,
        eval_every=2,
        save_every=6,
        batch=SIZES,
        out=str(folder),
    )
    train(replace(run, **{"data": data, "probe_samples": 5, **changes}), quiet=True)
    return str(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs on the same faces, and the faces."""
    place = tmp_path_factory.mktemp("pictures")
    write_faces(place / "data", train=30, test=9)
    trained(place / "ours", "aflw/mean-teacher-l2i-91", place / "data")
    trained(place / "base", "aflw/mean-teacher-91", place / "data")
    return place


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    code = cli.run_command(["plot", *arguments])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def check_png(path: Path) -> None:
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert 300 <= image.width <= 1500
        assert 250 <= image.height <= 1500
        assert len(np.unique(np.asarray(image))) > 20


def test_the_command_writes_every_picture_and_prints_its_path(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [
        str(place / "ours"),
        "--baseline",
        str(place / "base"),
        "--out",
        str(tmp_path / "seen"),
    ]
    code, out, err = printed(capsys, *folders)
    assert (code, err) == (0, "")
    assert out == [str(tmp_path / "seen" / name) for name in FACES]
    for path in out:
        check_png(Path(path))


def test_pictures_lie_in_the_run_folder_which_can_still_be_used(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(place / "ours")
    moved = (place / "data").rename(place / "elsewhere")
    try:
        code, out, err = printed(capsys, run, "--device", "cpu", "--data.root", str(moved))
    finally:
        moved.rename(place / "data")
    assert (code, err) == (0, "")
    assert out == [str(place / "ours" / "plots" / name) for name in FACES]
    assert trained(place / "ours", "aflw/mean-teacher-l2i-91", place / "data") == run


def test_a_run_without_an_update_has_none_to_show(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = printed(capsys, str(place / "base"), "--out", str(tmp_path))
    assert code == 0
    assert [Path(path).name for path in out] == ["error.png", "landmarks.png", "cases.png"]
    assert err == "l2i: no costs.png: this run takes no outer updates\n"


def test_a_classification_run_has_its_curves_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digits = {
        "data": {"num_labeled": 20, "num_validation": 0},
        "model": {"width": 4},
        "probe_samples": 0,
    }
    run = trained(tmp_path / "run", "digits", tmp_path, **digits)
    code, out, err = printed(capsys, run)
    assert code == 0
    assert [Path(path).name for path in out] == ["error.png"]
    assert err.count("\n") == 1
    assert "--probe-samples N" in err
    run = trained(tmp_path / "probed", "digits", tmp_path, **{**digits, "probe_samples": 20})
    code, out, err = printed(capsys, run, "--baseline", str(tmp_path / "run"))
    assert (code, err) == (0, "")
    assert [Path(path).name for path in out] == ["costs.png", "error.png"]
    for path in out:
        check_png(Path(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs a run folder"),
        (("nowhere",), "nowhere is not a run folder"),
        (("ours", "--baseline", "nowhere"), "nowhere is not a run folder"),
        (("ours", "--data.root", "nowhere"), "nowhere"),
    ],
)
def test_wrong_input_is_one_line(
    arguments: tuple[str, ...],
    message: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    code, out, err = printed(capsys, *arguments)
    assert (code, out) == (2, [])
    assert message in err
    assert err.count("\n") == 1


def test_a_baseline_of_another_split_or_data_set_is_refused(place: Path, tmp_path: Path) -> None:
    other = trained(tmp_path / "seed", "aflw/mean-teacher-91", place / "data", seed=1)
    with pytest.raises(InputError, match=r"a different split \(seed is 1 there and 0 here\)"):
        check_same_split(place / "ours", other)
    digits = trained(
        tmp_path / "digits", "digits/fixmatch-40", tmp_path, data={}, model={"width": 4}
    )
    with pytest.raises(InputError, match=r"data\.name is digits there and landmarks here"):
        check_same_split(place / "ours", digits)


def test_a_run_before_its_first_evaluation_or_with_damaged_rows_is_named(
    place: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((place / "ours" / "config.json").read_bytes())
    with pytest.raises(InputError, match="has no evaluations yet"):
        load_full_state(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl is damaged"):
        load_full_state(tmp_path)


def test_the_points_drawn_are_those_that_the_averaged_model_finds(place: Path) -> None:
    run = load_full_state(place / "ours", device="cpu")
    base = load_full_state(place / "base", device="cpu")
    named = dict(draw_landmarks([run, base]))
    trainer, _ = load_trainer(place / "ours", device="cpu")
    test = trainer.splits.test
    task = trainer.task
    expected = task.decode(trainer.predict(test)).reshape(9, 5, 2)  # type: ignore[attr-defined]
    axes = named["landmarks"].axes[1]
    row = select_evenly_spaced(9, NUM_FACES)[1]
    by_color = {line.get_color(): line.get_xydata() for line in axes.lines}
    np.testing.assert_allclose(by_color[AFTER_COLOR], expected[row], rtol=1e-6)
    np.testing.assert_allclose(by_color[TRUTH_COLOR], test.y[row].reshape(5, 2))
    assert set(by_color) == {TRUTH_COLOR, BEFORE_COLOR, AFTER_COLOR}
    np.testing.assert_array_equal(axes.images[0].get_array(), test.x[row, 0])  # type: ignore[call-overload]
    error = 100 * float(task.compute_landmark_errors(expected, test.y)[row])  # type: ignore[attr-defined]
    assert axes.get_title().startswith(f"{error:.1f} %, baseline ")


def test_imputed_landmarks_are_the_models_own_and_arrows_as_long_as_the_title_says(
    place: Path,
) -> None:
    run = load_full_state(place / "ours", device="cpu")
    metric = plot_imputed(run)
    unlabeled = run.trainer.splits.unlabeled
    row = select_evenly_spaced(len(unlabeled.x), NUM_FACES)[2]
    axes = metric.axes[2]
    before, after = (
        next(line.get_xydata() for line in axes.lines if line.get_color() == color)
        for color in (BEFORE_COLOR, AFTER_COLOR)
    )
    arrows = axes.collections[0]
    factor = float(metric.get_suptitle().split("drawn ")[1].split(" times")[0].replace(",", ""))
    np.testing.assert_allclose(np.c_[arrows.U, arrows.V], factor * (after - before), rtol=1e-6)
    run.trainer.step(5)  # the last batch again, as the run takes it
    run.trainer.model.eval()
    with torch.no_grad():
        outputs = run.trainer.model(run.trainer.preprocess(unlabeled.x[row : row + 1]))
    np.testing.assert_allclose(after, decode_points(run.trainer, outputs)[0], rtol=1e-6)


def test_costs_show_the_rows_of_the_run(place: Path) -> None:
    run = load_full_state(place / "ours", device="cpu")
    metric = dict(iter_figures([run], print))["costs"]
    rows = [
        json.loads(line) for line in (place / "ours" / "metrics.jsonl").read_text().splitlines()
    ]
    upper, _, strip, _ = metric.axes
    np.testing.assert_allclose(upper.lines[0].get_ydata(), [row["c_h_before"] for row in rows])
    np.testing.assert_allclose(upper.lines[1].get_ydata(), [row["c_h_after"] for row in rows])
    np.testing.assert_allclose(
        strip.lines[1].get_ydata(), [row["c_h_after"] - row["c_h_before"] for row in rows]
    )
    assert "5 test samples" in metric.axes[1].get_title()


def test_the_best_faces_gain_most_over_the_baseline_and_the_worst_have_the_largest_errors() -> None:
    ours, theirs = torch.tensor([5.0, 1.0, 9.0, 3.0]), torch.tensor([6.0, 1.5, 20.0, 2.0])
    assert select_best_and_worst([ours, theirs], 2) == [2, 0, 2, 0]
    assert select_best_and_worst([ours], 2) == [1, 3, 2, 0]


@pytest.mark.parametrize(
    ("move", "factor"), [(9e-4, 5000.0), (0.39, 20.0), (0.0081, 500.0), (70.0, 1.0), (8.0, 1.0)]
)
def test_arrows_are_lengthened_by_a_round_factor(move: float, factor: float) -> None:
    assert compute_arrow_scale(torch.tensor([[[move, 0.0]]])) == factor


def test_rows_are_spread_and_never_more_than_there_are() -> None:
    assert select_evenly_spaced(9, 4) == [0, 2, 4, 6]
    assert select_evenly_spaced(2, 12) == [0, 1]


def test_a_single_face_makes_a_picture(place: Path) -> None:
    test = load_full_state(place / "base", device="cpu").trainer.splits.test
    metric = draw_face_grid(test, [], ["one"] * 9, [3], "A face", across=1)
    assert len(metric.axes) == 1
