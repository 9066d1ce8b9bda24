"""A stranger's run and fit folders: their words lead nowhere, end, and allocate little."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confined import files, said

from sealing import seal

NESTED = "[" * 100_000 + "]" * 100_000
CHANGED = "fit/fit.json was changed after it was saved"
DAMAGED = "l2i: fit is damaged; restore it, or fit again with a different --out\n"


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def put(keys: str, value: Any) -> Callable[[Any], Any]:
    """A change of one field, by its path."""

    def change(plain: Any) -> Any:
        *outer, last = keys.split(".")
        section = plain
        for key in outer:
            section = section[int(key) if isinstance(section, list) else key]
        section[last] = value
        return plain

    return change


RUNS = {"evaluate": ("run",), "plot": ("run",)}
FITS = {
    "impute": ("fit", "--out", "labels.csv"),
    "predict": ("fit", "data.csv", "--out", "new.csv"),
    "report": ("fit",),
    "export": ("fit", "model.pt2"),
}
NAMED = {"labels.csv", "new.csv", "model.pt2"}  # what the user asks for


def outside(place: Path) -> dict[str, tuple[int, int]]:
    """All files but those in the run and the fit, and those that a command was told to write."""
    actual = files(place.parent.parent)
    return {
        name: observed
        for name, observed in actual.items()
        if "place/run/" not in name and Path(name).name not in NAMED
    }


def tried(command: str, place: Path) -> tuple[int, str]:
    """A command that ends in a result or a message, and leaves all else as it was."""
    before = outside(place)
    done = said(command, *(RUNS | FITS)[command], cwd=place)
    assert "Traceback" not in done.err, done.err
    assert done.code in (0, 1, 2), done
    inside = {name for name in outside(place) if "place/fit/" not in name}
    assert inside == {name for name in before if "place/fit/" not in name}
    return done.code, done.err


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.parametrize(
    "out", ["../../elsewhere", "/tmp/l2i-hostile-elsewhere", "~/l2i-hostile-elsewhere"]
)
def test_where_a_run_says_it_is_does_not_matter(command: str, out: str, place: Path) -> None:
    edit(place / "run" / "config.json", put("out", out))
    code, message = tried(command, place)
    assert code == 0, message
    assert not Path(out).expanduser().exists()


CONFIGS: dict[str, tuple[str, Any]] = {
    "another data set": ("data.name", "../../elsewhere"),
    "a module as data set": ("data.name", "os:system"),
    "a module as model": ("model.name", "os:system"),
    "a module as method": ("method.name", "os.system"),
    "a folder as data set": ("data.root", "/proc/self"),
    "weights elsewhere": ("model.weights", "/etc"),
    "a huge number": ("steps", 10**400),
    "a huge width": ("model.width", 10**18),
    "a huge batch": ("batch.labeled", 10**18),
    "many threads": ("threads", 10**9),
    "not a number": ("optim.lr", float("nan")),
    "a field that is not there": ("__class__", "x"),
    "words for a section": ("data", "x"),
    "a list for a section": ("model", [1, 2]),
    "a device that is none": ("device", "cpu; touch touched"),
}


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_that_makes_no_sense_ends_in_a_message(
    command: str, name: str, place: Path
) -> None:
    edit(place / "run" / "config.json", put(*CONFIGS[name]))
    tried(command, place)


OTHER = ("9" * 10_000, '{"steps": 1e999}', "\0" * 100, "null", "")  # contents
DEEP = (NESTED, '{"a":' * 100_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, text) for name in ("config.json", "result.json", "metrics.jsonl") for text in OTHER]
    + [("config.json", text) for text in DEEP],
)
def test_files_of_a_run_that_are_something_else_end_in_a_message(
    name: str, content: str, place: Path
) -> None:
    (place / "run" / name).write_text(content)
    for command in RUNS:
        tried(command, place)


OWN: dict[str, tuple[str, Any]] = {
    "a model elsewhere": ("selected_name", "../run"),
    "a candidate elsewhere": ("candidates.0.name", "../../run"),
    "a nested source": ("source", {"layout": {"layout": []}}),
    "an encoding that is none": ("source.encoding", "../../x"),
    "a separator that is a pattern": ("source.separator", ".*"),
    "a gigantic sample": ("shape", [3, 10**6, 10**6]),
    "a sample without size": ("shape", [0]),
    "a huge temperature": ("temperature", 1e400),
    "classes in words": ("classes", "ab"),
    "very many classes": ("classes", ["c"] * 100_000),
    "inputs of no kind": ("inputs", {"kind": "os.system"}),
    "a picture that is markup": (
        "previews",
        [{"row": 0, "png_base64": '"><script>', "fields": None}],
    ),
    "a row that is not there": (
        "previews",
        [{"row": 10**9, "png_base64": None, "fields": {"x": "1"}}],
    ),
    "a path elsewhere": ("source.path", "/etc/passwd"),
}


@pytest.mark.parametrize("command", FITS)
@pytest.mark.parametrize("name", OWN)
def test_a_fit_that_makes_no_sense_ends_in_a_message(command: str, name: str, place: Path) -> None:
    edit(place / "fit" / "fit.json", put(*OWN[name]))
    assert "fit.json was changed after it was saved" in tried(command, place)[1]
    seal(place / "fit")
    code, message = tried(command, place)
    if "elsewhere" in name and "path" not in name:
        assert code == 1 and "fit is damaged" in message
    if command == "report" and code == 0:
        assert "<script>" not in (place / "fit" / "report.html").read_text()


@pytest.mark.parametrize("command", ["impute", "report"])
@pytest.mark.parametrize("content", [*DEEP, *OTHER, "[]"])
def test_a_fit_file_that_is_something_else_is_damaged(
    command: str, content: str, place: Path
) -> None:
    (place / "fit" / "fit.json").write_text(content)
    code, message = tried(command, place)
    assert code == 1
    assert message in (DAMAGED, DAMAGED.replace("fit is damaged", CHANGED))


@pytest.mark.parametrize("command", ["impute", "predict"])
def test_rows_of_a_fit_that_unpack_to_gibibytes_are_refused(command: str, place: Path) -> None:
    part = pa.array(["labeled" * 100_000] * 100)
    rows = pa.table(
        {
            "id": pa.chunked_array([part] * 20),
            "part": pa.chunked_array([part] * 20),
            "changes": [0] * 2000,
        }
    )
    pq.write_table(rows, place / "fit" / "rows.parquet", compression="zstd")
    assert tried(command, place)[0] == 1
    seal(place / "fit")
    assert tried(command, place) == (1, DAMAGED)


@pytest.mark.parametrize("name", ["fit.json", "rows.parquet", "outputs.safetensors"])
def test_a_pipe_in_a_fit_is_not_waited_for(name: str, place: Path) -> None:
    (place / "fit" / name).unlink()
    os.mkfifo(place / "fit" / name)
    done = said("impute", "fit", "--out", "labels.csv", cwd=place)
    assert done.code in (1, 2), done


@pytest.mark.parametrize("command", ["report", "predict"])
@pytest.mark.parametrize(
    "name", ["report.html", "report.html.partial", "l2i/config.json", "l2i/checkpoints/x", "more"]
)
def test_a_fit_with_a_link_that_leads_out_is_not_worked_with(
    command: str, name: str, place: Path
) -> None:
    precious = place.parent / "precious"
    precious.write_text("precious")
    (place / "fit" / name).unlink(missing_ok=True)
    (place / "fit" / name).symlink_to(precious)
    code, message = tried(command, place)
    assert code == 2
    assert f"fit/{name} is a link that points outside fit; replace it with a copy" in message
    assert precious.read_text() == "precious"


def test_a_fit_that_is_reached_by_a_link_is_worked_with(place: Path) -> None:
    (place / "fit").rename(place.parent / "kept")
    (place / "fit").symlink_to(place.parent / "kept")
    assert said("report", "fit", cwd=place).code == 0
