"""`l2i compare --plot`: error against time, from the files of runs."""

import json
import shutil
from pathlib import Path

import pytest

from l2i import recipes
from l2i.cli import run_command
from l2i.experiments.options import CompareOptions
from l2i.experiments.plots import Curve, load_curve, make_curves_figure
from l2i.training.run_dir import Result

CELLS = ("sl-40", "pseudo-label-40")
TRAINING = [
    "compare",
    "digits",
    "--cells",
    *CELLS,
    "--seeds",
    "2",
    "--steps",
    "6",
    "--device",
    "cpu",
    "--set",
]
TRAINING += ["threads=1", "eval-every=2", "batch.labeled=8", "batch.unlabeled=8"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert (
        run_command(
            [*TRAINING, "--save-results", str(folder / "results"), "--out", str(folder / "runs")]
        )
        == 0
    )
    return folder


@pytest.fixture
def results(trained: Path, tmp_path: Path) -> Path:
    """A copy of the results, to be changed."""
    return shutil.copytree(trained / "results", tmp_path / "results")


def curve_of(
    results: Path, name: str
) -> tuple[list[float], list[float], list[dict[str, float]], float]:
    saved = json.loads((results / "digits" / f"{name}-seed1.json").read_text())
    rows = [
        json.loads(row)
        for row in (results / "digits" / f"{name}-seed1.jsonl").read_text().splitlines()
    ]
    options = CompareOptions(from_=str(results))
    actual = load_curve(recipes.get_table("digits"), f"digits/{name}", Result(**saved), options)
    return actual.minutes, actual.errors, rows, saved["seconds"]


def test_a_curve_has_the_runs_evaluations_at_their_share_of_its_time(results: Path) -> None:
    minutes, errors, rows, seconds = curve_of(results, "sl-40")
    assert errors == [row["test"] for row in rows] and len(errors) == 3
    assert minutes == pytest.approx([step / 6 * seconds / 60 for step in (2, 4, 6)])


@pytest.mark.parametrize("source", ["kept", "runs"])
def test_the_picture_has_every_cell(source: str, trained: Path, tmp_path: Path) -> None:
    picture = tmp_path / "new" / "curve.svg"
    asked = ["compare", "digits", "--from", str(trained / "results")]
    asked = (
        asked
        if source == "kept"
        else [*TRAINING[:-4], *TRAINING[-4:], "--out", str(trained / "runs")]
    )
    assert run_command([*asked, "--plot", str(picture)]) == 0
    assert all(
        f"<!-- {words} -->" in picture.read_text() for words in (*CELLS, "training time (minutes)")
    )


def test_cells_beyond_the_colours_are_told_apart(results: Path) -> None:
    actual = load_curve(
        recipes.get_table("digits"),
        "digits/sl-40",
        Result(**json.loads((results / "digits" / "sl-40-seed0.json").read_text())),
        CompareOptions(from_=str(results)),
    )
    lines = (
        make_curves_figure({f"cell {number}": [actual] for number in range(17)}).axes[0].lines[::2]
    )
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 17


@pytest.mark.parametrize(
    ("errors", "scale"),
    [
        ([60.0, 6.0], "log"),
        ([60.0, 20.0], "linear"),
        ([60.0, 0.0], "linear"),
        ([float("nan"), 60.0, 6.0], "log"),
    ],
)
def test_errors_of_a_wide_range_are_drawn_on_a_logarithmic_axis(
    errors: list[float], scale: str, results: Path
) -> None:
    saved = Result(**json.loads((results / "digits" / "sl-40-seed0.json").read_text()))
    axes = make_curves_figure(
        {"digits/sl-40": [Curve(saved, list(range(len(errors))), errors)]}
    ).axes[0]
    assert axes.get_yscale() == scale


def test_what_cannot_be_drawn_is_said(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    rows = results / "digits" / "sl-40-seed1.jsonl"
    asked = ["compare", "digits", "--from", str(results), "--plot"]
    for change, picture, message in (
        (None, "curve.gif", "the file name must end in .png, .svg, .pdf"),
        (None, str(tmp_path / "file" / "curve.png"), "(File exists); choose a different --plot"),
        (
            '{"step": 2, "test": null, "validation": 1.0}',
            str(tmp_path / "a.png"),
            "has no test errors to plot",
        ),
        ("damaged", str(tmp_path / "a.png"), "the metrics of a run, cannot be read"),
        (
            '{"step": 2, "test": "5", "validation": 1.0}',
            str(tmp_path / "a.png"),
            "metrics of a run, cannot be read",
        ),
    ):
        if change is not None:
            rows.write_text(change)
        assert run_command([*asked, picture]) == (1 if "cannot be read" in message else 2)
        assert message in capsys.readouterr().err
    assert run_command([*TRAINING, "--dry-run", "--plot", "a.png"]) == 2
