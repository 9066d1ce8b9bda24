"""The files of a fit are checked when they are read, and commands write over nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fits import SMALL, files, flowers, l2i, refused, small_fit, works
from safetensors.numpy import load_file, save_file

from l2i.errors import DamagedFile
from l2i.fit.artifact import LOCK_FILE, META_FILE, REPORT_FILE, read_fit
from l2i.fit.modules import load_network
from sealing import seal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_fit(tmp_path_factory.mktemp("made"))
    flowers(20, 0).dropna().to_csv(folder / "new.csv", index=False)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A folder with flowers.csv, new.csv, and a fit in `run`."""
    shutil.copytree(made, tmp_path / "place")
    return tmp_path / "place"


# -- checksums


def test_every_file_of_a_fit_has_a_checksum(place: Path) -> None:
    fitted, _ = read_fit(place / "run")
    actual = {str(p.relative_to(place / "run")) for p in (place / "run").rglob("*") if p.is_file()}
    locks = {LOCK_FILE, f"l2i/{LOCK_FILE}"}
    assert fitted.files.keys() == actual - locks - {META_FILE}
    assert {"rows.parquet", "outputs.safetensors", "identity.json", "l2i/config.json"} <= actual


def test_outputs_with_flipped_signs_are_not_labels(place: Path) -> None:
    path = place / "run" / "outputs.safetensors"
    tensors = load_file(path)
    save_file({n: -t if n.startswith("outputs") else t for n, t in tensors.items()}, path)
    line = refused("impute", "run", "--out", "labels.csv", cwd=place, code=1)
    assert "run/outputs.safetensors is damaged or another file" in line


def test_rows_of_another_fit_are_not_taken(place: Path) -> None:
    path = place / "run" / "rows.parquet"
    rows = pd.read_parquet(path)
    rows.assign(id=rows["id"].to_numpy()[::-1]).to_parquet(path, index=False)
    line = refused("impute", "run", "--out", "labels.csv", cwd=place, code=1)
    assert "run/rows.parquet is damaged or another file" in line


@pytest.mark.parametrize("command", [("predict", "new.csv"), ("export", "model.pt2")])
@pytest.mark.parametrize("name", ["l2i/config.json", "l2i/checkpoints/0000000010.safetensors"])
def test_a_flipped_bit_of_the_network_is_named(
    name: str, command: tuple[str, str], place: Path
) -> None:
    path = place / "run" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    line = refused(command[0], "run", command[1], cwd=place, code=1)
    assert f"run/{name} is damaged or another file" in line
    path.unlink()
    line = refused(command[0], "run", command[1], cwd=place, code=1)
    assert f"run/{name} is missing or cannot be read" in line


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
def test_a_report_shows_no_changed_file(name: str, place: Path) -> None:
    path = place / "run" / "l2i" / name
    path.write_bytes(path.read_bytes() + b" ")
    assert f"run/l2i/{name} is damaged" in refused("report", "run", cwd=place, code=1)


def test_a_changed_number_of_fit_json_is_found(place: Path) -> None:
    path = place / "run" / META_FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "temperature": content["temperature"] * 3}))
    line = refused("impute", "run", "--out", "labels.csv", cwd=place, code=1)
    assert "run/fit.json was changed after it was saved" in line


def test_a_fit_of_another_version_says_so(place: Path) -> None:
    path = place / "run" / META_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 1}))
    line = refused("impute", "run", "--out", "labels.csv", cwd=place)
    assert "run was written by another version of l2i; fit again" in line


def test_a_network_is_that_of_the_newest_checkpoint_and_no_older_one(place: Path) -> None:
    """A damaged newest checkpoint must not make an older model answer in silence."""
    newest = max((place / "run/l2i/checkpoints").iterdir())
    assert len(list(newest.parent.iterdir())) == 2
    newest.write_bytes(b"")
    fitted, _ = read_fit(place / "run")
    with pytest.raises(DamagedFile, match=newest.name):
        load_network(place / "run", fitted)


def test_reports_and_plain_copies_leave_a_fit_intact(place: Path) -> None:
    works("report", "run", cwd=place)
    assert (place / "run" / REPORT_FILE).is_file()
    shutil.copytree(place / "run", place / "copy")
    assert works("impute", "copy", "--out", "a.csv", cwd=place).code == 0
    seal(place / "copy")
    assert works("impute", "copy", "--out", "b.csv", cwd=place).code == 0
    assert (place / "a.csv").read_bytes() == (place / "b.csv").read_bytes()


# -- what --out may not be


def asked(command: str, out: str) -> tuple[str, ...]:
    if command == "export":
        return (command, "run", out)
    return (command, "run", *(("new.csv",) if command == "predict" else ()), "--out", out)


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("impute", "flowers.csv"),
        ("predict", "flowers.csv"),
        ("predict", "new.csv"),
        ("impute", "run/rows.parquet"),
        ("predict", "run/rows.parquet"),
        ("impute", "run/l2i/labels.csv"),
        ("report", "run/l2i/report.html"),
        ("export", "run/model.pt2"),
        ("impute", "link.csv"),
    ],
)
def test_outputs_over_data_and_fits_are_refused(
    command: str, out: str, overwrite: tuple[str, ...], place: Path
) -> None:
    (place / "link.csv").symlink_to("flowers.csv")
    line = refused(*asked(command, out), *overwrite, cwd=place)
    assert f"cannot write '{out}': it is " in line
    assert line.endswith("; choose a different path")


def test_the_data_of_a_fit_are_known_from_another_folder(made: Path, tmp_path: Path) -> None:
    out = ("--out", str(made / "flowers.csv"), "--overwrite")
    assert "it is your data" in refused("impute", str(made / "run"), *out, cwd=tmp_path)


@pytest.mark.parametrize(
    ("command", "out"),
    [("impute", "x.csv"), ("predict", "x.parquet"), ("report", "x.html"), ("export", "x.pt2")],
)
def test_a_file_of_somebody_else_is_replaced_with_overwrite_alone(
    command: str, out: str, place: Path
) -> None:
    (place / out).write_text("years of work")
    (place / out).chmod(0o640)
    assert "it exists, and l2i has no record of writing it" in refused(
        *asked(command, out), cwd=place
    )
    works(*asked(command, out), "--overwrite", cwd=place)
    ours = (place / out).read_bytes()
    assert ours != b"years of work"
    assert (place / out).stat().st_mode & 0o777 == 0o640
    works(*asked(command, out), cwd=place)  # now it is ours


@pytest.mark.parametrize("out", ["run/again", "run/l2i/again", "run/l2i"])
def test_neither_fits_nor_runs_are_made_inside_others(out: str, place: Path) -> None:
    line = refused(*SMALL, "--no-baselines", "--out", out, cwd=place)
    assert f"cannot write '{out}': it is inside" in line
    line = refused(
        "train", "digits/sl-40", "--device", "cpu", "--steps", "2", "--out", out, cwd=place
    )
    assert f"cannot write '{out}': it is inside" in line


def test_a_report_may_be_named_where_it_is_anyway(place: Path) -> None:
    works("report", "run", cwd=place)
    page = (place / "run/report.html").read_bytes()
    (place / "run/report.html").unlink()
    works("report", "run", "--out", "run/report.html", cwd=place)
    assert (place / "run/report.html").read_bytes() == page


def test_formulas_in_ids_are_warned_of_and_escaped_on_request(tmp_path: Path) -> None:
    frame = flowers(150, 40)
    frame["name"] = [f'=HYPERLINK("http://e/{i}")' if i % 2 else f"-{i}" for i in range(150)]
    frame["label"] = frame["label"].replace("aster", "=cmd|'/c calc'!A0")
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    works(*SMALL, "--no-baselines", "--out", "run", cwd=tmp_path)
    said = works("impute", "run", "--out", "plain.csv", cwd=tmp_path)
    assert "cells begin with =, +, - or @" in said.err and "--escape-formulas" in said.err
    ids = pd.read_csv(tmp_path / "plain.csv")["id"].astype(str)
    assert ids.tolist() == frame["name"].tolist()
    said = works("impute", "run", "--out", "safe.csv", "--escape-formulas", cwd=tmp_path)
    assert "formulas" not in said.err and "cells begin" not in said.err
    table = pd.read_csv(tmp_path / "safe.csv", dtype=str)
    wanted = [f"'{name}" if name.startswith("=") else name for name in frame["name"]]
    assert table["id"].tolist() == wanted
    assert not table["label"].str.startswith("=").any()
    on_stdout = works("predict", "run", "flowers.csv", "--escape-formulas", cwd=tmp_path)
    assert '\n"=' not in on_stdout.out and "cells begin" not in on_stdout.err
    line = refused("impute", "run", "--out", "x.parquet", "--escape-formulas", cwd=tmp_path)
    assert "--escape-formulas applies only to CSV" in line


def test_control_codes_of_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    frame = flowers(150, 40).rename(columns={"size0": "\x1b[31mRED\x1b]0;pwned\x07"})
    frame["label"] = frame["label"].replace("aster", "\x1b[2Jaster")
    frame.to_csv(tmp_path / "flowers.csv", index=False)
    said = works(*SMALL, "--no-baselines", "--out", "run", cwd=tmp_path)
    assert r"'\x1b[31mRED\x1b]0;pwned\x07'" in said.err and r"'\x1b[2Jaster'" in said.err
    assert "\x1b" not in said.out + said.err
    other = flowers(5, 0).dropna()
    other.to_csv(tmp_path / "new.csv", index=False)
    assert "\x1b" not in refused("predict", "run", "new.csv", cwd=tmp_path)


def test_data_whose_name_is_no_utf_8_make_a_fit_that_can_be_read(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.csv")
    flowers(150, 40).to_csv(tmp_path / name, index=False)
    works("fit", name, *SMALL[2:], "--no-baselines", "--out", "run", cwd=tmp_path)
    works("impute", "run", "--out", "labels.csv", cwd=tmp_path)
    assert "it is your data" in refused("impute", "run", "--out", name, "--overwrite", cwd=tmp_path)


def test_a_home_in_the_path_of_data_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    flowers(150, 40).to_csv(tmp_path / "flowers.csv", index=False)
    works("fit", "~/flowers.csv", *SMALL[2:], "--no-baselines", "--out", "run", cwd=tmp_path)
    for command in (("impute", "run"), ("predict", "run", "~/flowers.csv")):
        line = refused(*command, "--out", "flowers.csv", "--overwrite", cwd=tmp_path)
        assert "it is your data" in line


def test_a_fit_of_the_folder_it_was_in_says_nothing_about_other_folders(tmp_path: Path) -> None:
    """The data were '.', which is another folder now."""
    (tmp_path / "data").mkdir()
    x, y = np.zeros((40, 8, 8), dtype=np.uint8), np.arange(40) % 2
    x[y == 1] = 200
    np.savez(tmp_path / "data" / "i.npz", x=x, y=np.where(np.arange(40) < 30, y, -1))
    quick = ("--device", "cpu", "--steps", "2", "--model.width", "2", "--no-baselines")
    works("fit", "i.npz", *quick, "--out", "../run", cwd=tmp_path / "data")
    (tmp_path / "i.npz").mkdir()
    for _ in range(2):  # the second time there is a file, and it is ours
        works("impute", "run", "--out", "i.npz/labels.csv", cwd=tmp_path)
    assert len(pd.read_csv(tmp_path / "i.npz" / "labels.csv")) == 40


def test_a_missing_file_of_a_run_is_not_shown_as_nothing(place: Path) -> None:
    (place / "run/l2i/metrics.jsonl").unlink()
    line = refused("report", "run", cwd=place, code=1)
    assert "run/l2i/metrics.jsonl is missing or cannot be read" in line


# -- a full disk


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of file sizes there")
@pytest.mark.slow
def test_a_full_disk_anywhere_in_a_fit_names_the_file_and_the_fit_resumes(place: Path) -> None:
    """Raise the largest size of a file step by step: each file of a fit fails once."""
    whole = read_fit(place / "run")[1]
    command = [sys.executable, "-m", "l2i", *SMALL, "--no-baselines", "--out", "again"]
    failed = set()
    for limit in (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 1000):  # blocks of 512 or 1,024 bytes
        done = subprocess.run(
            ["bash", "-c", f"ulimit -f {limit}; exec \"$@\"", "bash", *command],
            cwd=place, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode == 0:
            break
        line = done.stderr.splitlines()[-1]
        assert done.returncode == 1, done.stderr
        assert line.startswith("l2i: the disk is full: cannot write again") and "(" in line, line
        assert line.endswith("free some space, then the same command resumes"), line
        failed.add(Path(line.partition("cannot write ")[2].partition(" (")[0]).name)
    assert done.returncode == 0 and len(failed) >= 2, failed
    assert not list((place / "again").rglob("*.partial"))
    rows = read_fit(place / "again")[1]
    assert all(np.array_equal(rows.outputs[n], whole.outputs[n]) for n in whole.outputs)


@pytest.mark.parametrize("name", ["rows.parquet", "outputs.safetensors", "fit.json"])
def test_a_full_disk_at_the_very_end_of_a_fit_says_that_it_resumes(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def fail(path: Path, target: Path) -> Path:
        if target.name == name:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    for file in ("fit.json", "rows.parquet", "outputs.safetensors"):
        (place / "run" / file).unlink()
    monkeypatch.setattr(Path, "replace", fail)
    said = l2i(*SMALL, "--no-baselines", "--out", "run", cwd=place)
    assert said.code == 1
    assert said.err.splitlines()[-1] == (
        f"l2i: the disk is full: cannot write run/{name} (No space left on device); "
        "free some space, then the same command resumes"
    )
    monkeypatch.undo()
    works(*SMALL, "--no-baselines", "--out", "run", cwd=place)


def test_a_folder_on_a_full_disk_is_no_wrong_input(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def fail(path: object, *arguments: object, **options: object) -> None:
        if str(path).endswith("again"):
            raise OSError(28, "No space left on device", str(path))
        mkdir(path, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "mkdir", fail)
    before = files(place)
    said = l2i(*SMALL, "--no-baselines", "--out", "again", cwd=place)
    assert said.code == 1 and "cannot write again (No space left on device)" in said.err
    assert files(place) == before
