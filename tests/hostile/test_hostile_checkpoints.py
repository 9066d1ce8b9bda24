"""A stranger's checkpoints run no code, make no room for absent data, stay in their run folder."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from confined import files, said
from safetensors.torch import save

from l2i.cli import run_command
from l2i.training.checkpoint import compute_digest, load_checkpoint

TRAIN = (
    "train",
    "digits",
    "--steps",
    "4",
    "--eval-every",
    "2",
    "--save-every",
    "4",
    "--threads",
    "1",
    "--device",
    "cpu",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run that a stranger could have sent."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert run_command([*TRAIN, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """A folder with that run in it."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path


def newest(place: Path) -> Path:
    """Its one checkpoint, the others taken away."""
    *others, last = sorted((place / "run" / "checkpoints").iterdir())
    for other in others:
        other.unlink()
    return last


class Touch:
    """What a pickle runs when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch touched",)


def shaped(header: dict[str, Any], body: bytes = bytes(64), *, length: int | None = None) -> bytes:
    """A safetensors file of whatever header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def tensor(start: int, end: int, shape: list[int]) -> dict[str, Any]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}


FILES: dict[str, Callable[[], bytes]] = {
    "a pickle": lambda: pickle.dumps(Touch()),
    "a pickle as torch saves it": lambda: saved_by_torch(),
    "a header of 2⁶⁰ bytes": lambda: shaped({}, length=2**60),
    "a header longer than the file": lambda: shaped({}, length=10**8),
    "tensors of terabytes": lambda: shaped({"a": tensor(0, 4 * 2**40, [2**40])}),
    "a shape that is too large to count": lambda: shaped({"a": tensor(0, 64, [2**62, 2**62])}),
    "tensors in one place": lambda: shaped({"a": tensor(0, 64, [16]), "b": tensor(0, 64, [16])}),
    "tensors that overlap": lambda: shaped({"a": tensor(0, 40, [10]), "b": tensor(24, 64, [10])}),
    "places before the start": lambda: shaped({"a": tensor(-64, 0, [16])}),
    "nested JSON": lambda: struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000,
    "a name twice": lambda: struct.pack("<Q", 12) + b'{"a":1,"a":1' + bytes(8),
    "nothing": lambda: b"",
}


def saved_by_torch() -> bytes:
    import io

    file = io.BytesIO()
    torch.save({"x": Touch()}, file)
    return file.getvalue()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_a_checkpoint_that_is_something_else_is_refused(
    name: str, command: str, place: Path
) -> None:
    newest(place).write_bytes(FILES[name]())
    (place / "run" / "result.json").unlink()
    arguments = ("evaluate", "run") if command == "evaluate" else (*TRAIN, "--out", "run")
    done = said(*arguments, cwd=place)
    assert done.code == 1, done
    assert "no intact checkpoint is left in run/checkpoints" in done.err
    assert "Traceback" not in done.err
    assert not (place / "touched").exists()


def deep() -> dict[str, Any]:
    actual: dict[str, Any] = {}
    for _ in range(500):
        actual = {"deeper": actual}
    return actual


CHANGES: dict[str, Any] = {
    "step that is no number": {"step": float("nan")},
    "step without end": {"step": float("inf")},
    "step before the start": {"step": -5},
    "step in words": {"step": "4; import os"},
    "step as a list": {"step": [4]},
    "step of many digits": {"step": 10**400},
    "step far away": {"step": 10**15},
    "no step": {"step": None},
    "metrics before the start": {"metrics_size": -1},
    "metrics of terabytes": {"metrics_size": 2**50},
    "seconds in words": {"seconds": "long"},
    "data in words": {"data": "../../elsewhere"},
    "data as a list": {"data": [1] * 1000},
    "given in words": {"given": "yes"},
    "nested": {"more": deep()},
    "no configuration": {"config": {}},
    "configuration in words": {"config": "x"},
}


def rewritten(path: Path, meta: Callable[[dict[str, Any]], Any], **more: torch.Tensor) -> None:
    """The checkpoint with other words beside its tensors, its checksum right."""
    loaded = load_checkpoint(path)
    assert loaded is not None
    tensors = {**loaded[0], **more}
    rest = json.dumps(meta(loaded[1]))
    path.write_bytes(save(tensors, {"json": rest, "digest": compute_digest(tensors, rest)}))


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("command", ["evaluate", "train"])
def test_words_beside_the_tensors_that_make_no_sense_end_in_a_message(
    name: str, command: str, place: Path
) -> None:
    rewritten(newest(place), lambda meta: {**meta, **CHANGES[name]})
    (place / "run" / "result.json").unlink()
    arguments = ("evaluate", "run") if command == "evaluate" else (*TRAIN, "--out", "run")
    outside = files(place.parent)
    done = said(*arguments, cwd=place)
    assert done.code in (0, 1, 2), done
    assert "Traceback" not in done.err
    assert {name for name in files(place.parent) if f"{place.name}/run/" not in name} == {
        name for name in outside if f"{place.name}/run/" not in name
    }


def test_names_of_tensors_are_names_alone(place: Path) -> None:
    odd = {
        "../../elsewhere": torch.zeros(3),
        "/tmp/elsewhere": torch.zeros(3),
        "teacher.../x": torch.zeros(3),
    }
    rewritten(newest(place), lambda meta: meta, **odd)
    done = said("evaluate", "run", cwd=place)
    assert done.code in (0, 1, 2), done
    assert "Traceback" not in done.err
    assert sorted(path.name for path in place.iterdir()) == ["run"]
