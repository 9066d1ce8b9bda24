"""Wrong input to the commands for own data: one line that says what to do, and nothing left behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import QUICK, flowers, photos, refused, works
from own_data import picture, written

READ = ("--target", "label", "--id", "name", "--ignore", "kind")
FIT = ("fit", "flowers.csv", *READ, *QUICK, "--steps", "10")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with flowers.csv and a fit of it in `run`."""
    folder = tmp_path_factory.mktemp("fitted")
    flowers(150, 40).to_csv(folder / "flowers.csv", index=False)
    works(*FIT, "--no-baselines", "--out", "run", cwd=folder)
    return folder


@pytest.fixture
def place(fitted: Path, tmp_path: Path) -> Path:
    """A folder with flowers.csv alone."""
    shutil.copy(fitted / "flowers.csv", tmp_path)
    return tmp_path


HEADER = "x,z,y\n"
ROWS = [f"{i % 7}.5,{'ab'[i % 2]}," for i in range(40)]
BOTH = [row + ("yes" if i % 2 else "no" if i < 20 else "") for i, row in enumerate(ROWS)]

TABLES = {
    "no such target": ("w", BOTH, r"--target 'w': data.csv has no such column; it has 'x', 'z', 'y'"),
    "a target misspelt": ("Y1", ["1,a,b"], "data.csv has no such column"),
    "one class": ("y", [row + "yes" if i < 9 else row for i, row in enumerate(ROWS)], "one class alone, 'yes'; label"),
    "no labels": ("y", ROWS, "no row has a label: 'y' is blank everywhere; label some rows"),
    "no rows": ("y", [], "has a header and no rows; give a table with rows"),
    "mixed types": (
        "y",
        [*BOTH, "many,a,yes"],
        "column 'x' mixes numbers with 1 cell of words, first 'many'",
    ),
    "infinity": ("y", [*BOTH, "inf,a,yes"], "column 'x' holds an infinity"),
    "too few labels": ("y", ["1,a,yes", "2,b,no", "3,a,"], "2 labelled rows are too few to set 1 aside to choose by"),
    "a line too long": ("y", [*BOTH, "1,a,yes,4"], "line 42: 4 cells where there should be 3"),
    "a target of numbers and words": (
        "y",
        [f"{i},a,{i}.25" for i in range(20)] + ["1,a,tall"],
        "target 'y' mixes numbers with 1 cell of words, first 'tall' in row 21",
    ),
    "a target that never changes": ("y", [row + "1.5" for row in ROWS], "the same in every labelled row"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_that_are_wrong_are_one_line(name: str, tmp_path: Path) -> None:
    target, rows, message = TABLES[name]
    written(tmp_path / "data.csv", HEADER + "\n".join(rows) + "\n")
    assert message in refused("fit", "data.csv", "--target", target, cwd=tmp_path)


@pytest.mark.parametrize("name", ["data.csv", "data.parquet", "data.npz"])
def test_an_empty_file_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    target = () if name.endswith(".npz") else ("--target", "y")
    line = refused("fit", name, *target, cwd=tmp_path)
    assert "is empty; give a table" in line if target else "is damaged, or no .npz" in line


def test_a_blank_number_is_a_choice_that_is_said_and_an_infinite_one_in_parquet_is_not(tmp_path: Path) -> None:
    frame = flowers(60, 30)
    frame.loc[4, "size0"] = np.inf
    frame.to_parquet(tmp_path / "data.parquet")
    line = refused("fit", "data.parquet", *READ, cwd=tmp_path)
    assert "column 'size0' holds an infinity" in line
    frame.loc[4, "size0"] = np.nan
    frame.to_parquet(tmp_path / "data.parquet")
    said = works("fit", "data.parquet", *READ, *QUICK, "--steps", "5", "--no-baselines", cwd=tmp_path)
    assert "blank cells are filled with the mean and marked: 'size0' (1), 'size1' (6)" in said.err


def test_another_encoding_is_named_with_what_reads_it(tmp_path: Path) -> None:
    rows = [row.replace("a,", "Köln,") for row in BOTH]
    written(tmp_path / "data.csv", HEADER + "\n".join(rows) + "\n", "latin-1")
    line = refused("fit", "data.csv", "--target", "y", cwd=tmp_path)
    assert "data.csv is not UTF-8; give --encoding latin-1, or save it as UTF-8" in line
    assert "there is no encoding 'klingon'" in refused(
        "fit", "data.csv", "--target", "y", "--encoding", "klingon", cwd=tmp_path
    )
    encoding = ("--encoding", "latin-1")
    works("fit", "data.csv", "--target", "y", *encoding, *QUICK, "--steps", "5", "--no-baselines", cwd=tmp_path)
    said = works("predict", "runs/data", "data.csv", cwd=tmp_path)
    assert "new category" not in said.err


def test_duplicate_and_blank_ids_are_named(place: Path) -> None:
    frame = flowers(150, 40)
    frame.loc[7, "name"] = "plant 3"
    frame.to_csv(place / "flowers.csv", index=False)
    assert "the id 'plant 3' in row 8 is another row's too; give each row its own" in refused(*FIT, cwd=place)
    frame.loc[7, "name"] = ""
    frame.to_csv(place / "flowers.csv", index=False)
    assert "column 'name' of ids is blank in row 8; fill it in" in refused(*FIT, cwd=place)


def test_unreadable_images_are_named_and_counted_and_skipped_only_when_asked(tmp_path: Path) -> None:
    photos(tmp_path / "photos", each=6, unlabeled=6)
    (tmp_path / "photos/dark/broken.png").write_bytes(b"no image at all")
    whole = (tmp_path / "photos/bright/5.png").read_bytes()
    (tmp_path / "photos/unlabeled/cut.png").write_bytes(whole[: len(whole) // 2])
    line = refused("fit", "photos", *QUICK, cwd=tmp_path)
    assert "2 images of 20 cannot be read: dark/broken.png (no image), unlabeled/cut.png" in line
    assert "leave them out with --skip-unreadable" in line
    quick = (*QUICK, "--steps", "3", "--model.width", "4", "--no-baselines")
    said = works("fit", "photos", "--skip-unreadable", *quick, cwd=tmp_path)
    assert "2 images of 20 cannot be read" in said.err and ": left out" in said.err
    works("impute", "runs/photos", cwd=tmp_path)
    ids = pd.read_csv(tmp_path / "labels.csv")["id"]
    assert len(ids) == 18 and "dark/broken.png" not in set(ids)


def test_an_image_folder_without_classes_or_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert refused("fit", "photos", cwd=tmp_path)
    picture(tmp_path / "photos/unlabeled/1.png")
    assert refused("fit", "photos", cwd=tmp_path)
    picture(tmp_path / "photos/cat/1.png")
    assert "one class alone, 'cat'" in refused("fit", "photos", cwd=tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--stpes", "3"), "perhaps you meant --steps"),
        (("--validaton", "0.3"), "perhaps you meant --validation"),
        (("--model.widht", "3"), "perhaps you meant --model.width"),
        (("--steps", "many"), "Error parsing --steps"),
        (("--steps", "0"), "steps=0 must be at least 1"),
        (("--data.num-labeled", "40"), "is not for your own data; use --validation and --test"),
        (("--data.num-validation", "40"), "is not for your own data; use --validation"),
        (("--data.name", "cifar10"), "is not for your own data; use PATH"),
        (("--name", "mine"), "--name is not for your own data; use --out"),
        (("--method", "fixmach"), "unknown method 'fixmach'"),
        (("--method", "supervised", "--method.weight", "x"), "--method.weight"),
        (("--method.threshold", "0.5"), "--method.threshold"),
        (("--model.name", "conv"), "model.name='conv' with depth 2 needs images"),
        (("--model.name", "nothing"), "unknown model 'nothing'"),
        (("--device", "tpu"), "device='tpu' is not"),
        (("--validation", "0"), "no rows are set aside to choose by; give --validation 1 or more"),
        (("--validation", "nan"), "--validation nan must be a whole number of rows, or a share"),
        (("--test", "1.5"), "--test 1.5 must be a whole number of rows, or a share"),
        (("--test", "90"), "40 labelled rows are too few to set 8 aside to choose by and 90 to measure on"),
        (("--size", "32"), "--size is for images, which these data are not; leave it out"),
        (("--text", "colr"), "--text 'colr': flowers.csv has no such column; perhaps you meant 'colour'"),
        (("--out", "flowers.csv"), "flowers.csv cannot be a run folder"),
    ],
)
def test_flags_that_are_wrong_are_one_line(flags: tuple[str, ...], message: str, place: Path) -> None:
    assert message in refused(*FIT, *flags, cwd=place)


def test_a_network_that_does_not_fit_leaves_the_folder_free_for_one_that_does(place: Path) -> None:
    refused(*FIT, "--model.name", "conv", cwd=place)
    works(*FIT, "--model.name", "mlp", "--no-baselines", cwd=place)


def test_paths_that_lead_nowhere_are_said(place: Path) -> None:
    assert "there is no file or folder nothing.csv; check the path" in refused("fit", "nothing.csv", cwd=place)
    (place / "notes.docx").write_text("words")
    assert "notes.docx is of no known kind; give a folder of images" in refused("fit", "notes.docx", cwd=place)
    assert "'l2i fit' needs a file or folder: l2i fit PATH" in refused("fit", cwd=place)
    assert "say with --target which column of flowers.csv holds the labels" in refused("fit", "flowers.csv", cwd=place)


COMMANDS = {
    "impute": ("--out", "labels.csv"),
    "report": (),
    "predict": ("flowers.csv",),
    "export": ("model.onnx",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_is_no_fit_is_refused_by_every_command(command: str, place: Path) -> None:
    (place / "photos").mkdir()
    for folder in ("photos", "nowhere", "flowers.csv"):
        line = refused(command, folder, *COMMANDS[command], cwd=place)
        assert f"{folder} is not the folder of a fit (it has no fit.json)" in line
    assert f"'l2i {command}' needs the folder of a fit" in refused(command, cwd=place)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "name",
    ["outputs.safetensors", "rows.parquet", "fit.json"],
)
def test_a_damaged_fit_is_refused_by_every_command(command: str, name: str, fitted: Path, tmp_path: Path) -> None:
    shutil.copytree(fitted, tmp_path / "all")
    path = tmp_path / "all" / "run" / name
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"\x00\xff" * 50):
        path.write_bytes(content)
        line = refused(command, "run", *COMMANDS[command], cwd=tmp_path / "all")
        assert "run is damaged; restore it, or fit again in another --out" in line


@pytest.mark.parametrize("command", ["predict", "export"])
def test_a_fit_without_its_network_is_refused(command: str, fitted: Path, tmp_path: Path) -> None:
    shutil.copytree(fitted, tmp_path / "all")
    for checkpoint in (tmp_path / "all/run/l2i/checkpoints").iterdir():
        checkpoint.write_bytes(b"nothing")
    line = refused(command, "run", *COMMANDS[command], cwd=tmp_path / "all")
    assert "no whole checkpoint is left in run/l2i/checkpoints" in line


@pytest.mark.parametrize("command", ["impute", "predict"])
@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("labels.xlsx", "cannot write 'labels.xlsx': it must end in .csv or .parquet"),
        ("labels", "cannot write 'labels': it must end in .csv or .parquet"),
        ("nowhere/labels.csv", "cannot write 'nowhere/labels.csv': its folder is not there"),
        ("folder.csv", "cannot write 'folder.csv': it is a folder"),
    ],
)
def test_a_place_that_labels_cannot_have_is_refused(command: str, out: str, message: str, fitted: Path) -> None:
    (fitted / "folder.csv").mkdir(exist_ok=True)
    new = ("flowers.csv",) if command == "predict" else ()
    assert message in refused(command, "run", *new, "--out", out, cwd=fitted)


@pytest.mark.parametrize("out", ["model.bin", "nowhere/model.onnx"])
def test_a_place_that_a_model_cannot_have_is_refused(out: str, fitted: Path) -> None:
    assert out.split("/")[-1] in refused("export", "run", out, cwd=fitted)


def test_a_report_cannot_be_a_folder(fitted: Path) -> None:
    (fitted / "folder.html").mkdir(exist_ok=True)
    assert "folder.html is a folder" in refused("report", "run", "--out", "folder.html", cwd=fitted)


@pytest.mark.parametrize("threshold", ["-0.1", "1.5", "nan", "sure"])
def test_a_threshold_that_is_no_probability_is_refused(threshold: str, fitted: Path) -> None:
    assert "threshold" in refused("impute", "run", f"--threshold={threshold}", cwd=fitted)


def test_new_rows_that_do_not_fit_are_refused(fitted: Path, tmp_path: Path) -> None:
    frame = flowers(10, 0)
    for name, change, message in (
        ("short", frame.drop(columns="size2"), "has no column 'size2', with which the model was trained"),
        ("words", frame.assign(size0="big"), "column 'size0' is a number but holds 'big' in row 1"),
        ("infinite", frame.assign(size0=np.inf), "column 'size0' holds an infinity"),
        ("double", frame.assign(name="same"), "the id 'same' in row 2 is another row's too"),
    ):
        change.to_csv(tmp_path / f"{name}.csv", index=False)
        line = refused("predict", str(fitted / "run"), f"{name}.csv", "--out", "labels.csv", cwd=tmp_path)
        assert message in line
    (tmp_path / "empty.csv").touch()
    assert "is empty" in refused("predict", str(fitted / "run"), "empty.csv", cwd=tmp_path)
    assert "needs a file or folder" in refused("predict", str(fitted / "run"), cwd=tmp_path)


def test_a_real_process_has_no_traceback_either(place: Path) -> None:
    command = [sys.executable, "-m", "l2i", "fit", "flowers.csv", "--target", "labl"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "l2i: --target 'labl': flowers.csv has no such column; perhaps you meant 'label'\n"
    assert [path.name for path in place.iterdir()] == ["flowers.csv"]
