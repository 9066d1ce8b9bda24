"""Wrong data and flags to `l2i fit`: one line that says what to do, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import QUICK, READ, SMALL, flowers, photos, refused, works
from user_data import picture, written


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with flowers.csv alone."""
    flowers(150, 40).to_csv(tmp_path / "flowers.csv", index=False)
    return tmp_path


HEADER = "x,z,y\n"
ROWS = [f"{i % 7}.5,{'ab'[i % 2]}," for i in range(40)]
BOTH = [row + ("yes" if i % 2 else "no" if i < 20 else "") for i, row in enumerate(ROWS)]

TABLES = {
    "no such target": (
        "w",
        BOTH,
        r"--target 'w': data.csv has no such column; it has 'x', 'z', 'y'",
    ),
    "a target misspelt": ("Y1", ["1,a,b"], "data.csv has no such column"),
    "one class": (
        "y",
        [row + "yes" if i < 9 else row for i, row in enumerate(ROWS)],
        "only one class, 'yes'; label",
    ),
    "no labels": ("y", ROWS, "no row is labelled: 'y' is blank in every row; label some rows"),
    "no rows": ("y", [], "has a header but no rows; add some"),
    "mixed types": (
        "y",
        [*BOTH, "many,a,yes"],
        "column 'x' mixes numbers and text (1 cell, first 'many'",
    ),
    "infinity": ("y", [*BOTH, "inf,a,yes"], "column 'x' contains infinity"),
    "too few labels": ("y", ["1,a,yes", "2,b,yes", "3,a,"], "target 'y' has only one class, 'yes'"),
    "a line too long": ("y", [*BOTH, "1,a,yes,4"], "line 42: 4 cells, expected 3"),
    "a target of numbers and words": (
        "y",
        [f"{i},a,{i}.25" for i in range(20)] + ["1,a,tall"],
        "target 'y' mixes numbers and text (1 cell, first 'tall' in row 21)",
    ),
    "a target that never changes": (
        "y",
        [row + "1.5" for row in ROWS],
        "constant over the labelled rows",
    ),
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
    assert (
        "is empty; it needs a header and rows" in line
        if target
        else "is damaged, or not an .npz" in line
    )


def test_a_blank_number_is_a_choice_that_is_said_and_an_infinite_one_in_parquet_is_not(
    tmp_path: Path,
) -> None:
    frame = flowers(60, 30)
    frame.loc[4, "size0"] = np.inf
    frame.to_parquet(tmp_path / "data.parquet")
    line = refused("fit", "data.parquet", *READ, cwd=tmp_path)
    assert "column 'size0' contains infinity" in line
    frame.loc[4, "size0"] = np.nan
    frame.to_parquet(tmp_path / "data.parquet")
    said = works(
        "fit", "data.parquet", *READ, *QUICK, "--steps", "5", "--no-baselines", cwd=tmp_path
    )
    assert "blank cells are filled with the mean and flagged: 'size0' (1), 'size1' (6)" in said.err


def test_another_encoding_is_named_with_what_reads_it(tmp_path: Path) -> None:
    rows = [row.replace("a,", "Köln,") for row in BOTH]
    written(tmp_path / "data.csv", HEADER + "\n".join(rows) + "\n", "latin-1")
    utf8 = ("--target", "y", "--encoding", "utf-8")
    line = refused("fit", "data.csv", *utf8, cwd=tmp_path)
    assert "data.csv is not valid UTF-8; use --encoding latin-1, or save it as UTF-8" in line
    assert "unknown encoding 'klingon'" in refused(
        "fit", "data.csv", "--target", "y", "--encoding", "klingon", cwd=tmp_path
    )
    encoding = ("--encoding", "latin-1")
    works(
        "fit",
        "data.csv",
        "--target",
        "y",
        *encoding,
        *QUICK,
        "--steps",
        "5",
        "--no-baselines",
        cwd=tmp_path,
    )
    said = works("predict", "runs/data", "data.csv", cwd=tmp_path)
    assert "new category" not in said.err


def test_duplicate_and_blank_ids_are_named(place: Path) -> None:
    frame = flowers(150, 40)
    frame.loc[7, "name"] = "plant 3"
    frame.to_csv(place / "flowers.csv", index=False)
    assert "id 'plant 3' in row 8 is a duplicate; make every id unique" in refused(
        *SMALL, cwd=place
    )
    frame.loc[7, "name"] = ""
    frame.to_csv(place / "flowers.csv", index=False)
    assert "id column 'name' is blank in row 8; fill it in" in refused(*SMALL, cwd=place)


def test_unreadable_images_are_named_and_counted_and_skipped_only_when_asked(
    tmp_path: Path,
) -> None:
    photos(tmp_path / "photos", each=6, unlabeled=6)
    (tmp_path / "photos/dark/broken.png").write_bytes(b"no image at all")
    whole = (tmp_path / "photos/bright/5.png").read_bytes()
    (tmp_path / "photos/unlabeled/cut.png").write_bytes(whole[: len(whole) // 2])
    line = refused("fit", "photos", *QUICK, cwd=tmp_path)
    assert (
        "2 of 20 images cannot be read: dark/broken.png (not an image), unlabeled/cut.png" in line
    )
    assert "skip them with --skip-unreadable" in line
    quick = (*QUICK, "--steps", "3", "--model.width", "4", "--no-baselines")
    said = works("fit", "photos", "--skip-unreadable", *quick, cwd=tmp_path)
    assert "2 of 20 images cannot be read" in said.err and "skipped: " in said.err
    works("impute", "runs/photos", cwd=tmp_path)
    ids = pd.read_csv(tmp_path / "labels.csv")["id"]
    assert len(ids) == 18 and "dark/broken.png" not in set(ids)


def test_an_image_folder_without_classes_or_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert refused("fit", "photos", cwd=tmp_path)
    picture(tmp_path / "photos/unlabeled/1.png")
    assert refused("fit", "photos", cwd=tmp_path)
    picture(tmp_path / "photos/cat/1.png")
    assert "only one class, 'cat'" in refused("fit", "photos", cwd=tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--stpes", "3"), "perhaps you meant --steps"),
        (("--validaton", "0.3"), "perhaps you meant --validation"),
        (("--model.widht", "3"), "perhaps you meant --model.width"),
        (("--steps", "many"), "Error parsing --steps"),
        (("--steps", "0"), "steps=0 must be at least 1"),
        (("--data.num-labeled", "40"), "does not apply to 'l2i fit'; use --validation and --test"),
        (("--data.num-validation", "40"), "does not apply to 'l2i fit'; use --validation"),
        (("--data.name", "cifar10"), "does not apply to 'l2i fit'; use PATH"),
        (("--name", "mine"), "--name does not apply to 'l2i fit'; use --out"),
        (("--method", "fixmach"), "unknown method 'fixmach'"),
        (("--method", "supervised", "--method.weight", "x"), "--method.weight"),
        (("--method.epsilon", "0.5"), "--method.epsilon"),
        (("--model.name", "conv"), "model.name='conv' with depth 2 needs images"),
        (("--model.name", "nothing"), "unknown model 'nothing'"),
        (("--device", "tpu"), "device='tpu' is not"),
        (
            ("--validation", "0"),
            "no validation rows to select a model on; set --validation to 1 or more",
        ),
        (("--validation", "nan"), "--validation nan must be a whole number of rows, or a fraction"),
        (("--test", "1.5"), "--test 1.5 must be a whole number of rows, or a fraction"),
        (("--test", "90"), "40 labelled rows are too few for 8 validation and 90 test rows"),
        (("--size", "32"), "--size applies only to images, not to this data; remove it"),
        (
            ("--text", "colr"),
            "--text 'colr': flowers.csv has no such column; perhaps you meant 'colour'",
        ),
        (("--out", "flowers.csv"), "cannot use flowers.csv as a run folder"),
    ],
)
def test_flags_that_are_wrong_are_one_line(
    flags: tuple[str, ...], message: str, place: Path
) -> None:
    assert message in refused(*SMALL, *flags, cwd=place)


def test_a_network_that_does_not_fit_leaves_the_folder_free_for_one_that_does(place: Path) -> None:
    assert "'conv'" in refused(*SMALL, "--model.name", "conv", cwd=place)
    said = works(*SMALL, "--model.name", "mlp", "--no-baselines", cwd=place)
    assert "L2I (validation error " in said.out and "the only candidate" in said.out


def test_paths_that_lead_nowhere_are_said(place: Path) -> None:
    assert "nothing.csv was not found; check the path" in refused("fit", "nothing.csv", cwd=place)
    (place / "notes.docx").write_text("words")
    assert "notes.docx has an unsupported format; use a folder of images" in refused(
        "fit", "notes.docx", cwd=place
    )
    assert "'l2i fit' needs a file or folder: l2i fit PATH" in refused("fit", cwd=place)
    assert "--target must name the column of flowers.csv with the labels" in refused(
        "fit", "flowers.csv", cwd=place
    )


def test_a_real_process_has_no_traceback_either(place: Path) -> None:
    command = [sys.executable, "-m", "l2i", "fit", "flowers.csv", "--target", "labl"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        done.stderr
        == "l2i: --target 'labl': flowers.csv has no such column; perhaps you meant 'label'\n"
    )
    assert [path.name for path in place.iterdir()] == ["flowers.csv"]


def test_a_spreadsheet_is_to_be_saved_as_csv(tmp_path: Path) -> None:
    (tmp_path / "book.xlsx").write_bytes(b"PK")
    assert "save it as CSV" in refused("fit", "book.xlsx", "--target", "y", cwd=tmp_path)


def test_an_id_is_no_target(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},person-{i}" for i in range(60))
    (tmp_path / "people.csv").write_text(f"x,name\n{rows}\n")
    assert "60 classes in 60 labelled rows: is it the right column?" in refused(
        "fit", "people.csv", "--target", "name", cwd=tmp_path
    )
