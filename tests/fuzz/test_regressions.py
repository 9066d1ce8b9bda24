"""What fuzzing found, each once more and plainly."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harmless import Check, put
from loaders import LOADERS
from PIL import Image
from seeds import TINY, encoded, fit_folder, npy, npz, parquet, zipped

from l2i.config import from_json, replace, to_json
from l2i.config.validate import validate
from l2i.errors import DamagedFile, InputError
from l2i.fit.artifact import read_fit
from l2i.fit.options import ReadOptions
from l2i.fit.preprocess import load_preprocessor
from l2i.fit.readers.source import read_source
from sealing import seal

pytestmark = pytest.mark.slow

DEEP = "[" * 5000 + "]" * 5000


def test_a_number_too_large_for_a_float_is_refused() -> None:
    plain = to_json(TINY)
    plain["optim"]["lr"] = 10**400
    with pytest.raises(InputError, match=r"optim\.lr=1000.* is not valid"):
        from_json(plain)


def test_milestones_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InputError, match=r"optim\.milestones=\(nan,\) must be a finite number"):
        validate(replace(TINY, optim={"schedule": "step", "milestones": (float("nan"),)}))


def test_classes_of_thousands_of_digits_are_words(tmp_path: Path) -> None:
    long = "9" * 5000
    path = put(tmp_path / "data.csv", f"size,kind\n1,{long}\n2,1\n3,{long}\n4,\n".encode())
    source = read_source(str(path), ReadOptions(target=("kind",), task="classification"))
    assert source.classes == ("1", long)


def test_times_in_a_zone_that_nobody_knows_are_refused(tmp_path: Path) -> None:
    day = pa.array([0, 1], pa.timestamp("us", "Nowhere/City"))
    path = put(tmp_path / "data.parquet", parquet({"kind": pa.array(["a", "b"]), "day": day}))
    with pytest.raises(
        InputError, match=r"column 'day' of type timestamp.* cannot be read; save it as strings"
    ):
        read_source(str(path), ReadOptions(target=("kind",)))


def test_words_that_are_no_text_are_refused(tmp_path: Path) -> None:
    raw = [None, pa.py_buffer(np.array([0, 1, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    words = pa.Array.from_buffers(pa.string(), 2, raw)
    path = put(tmp_path / "data.parquet", parquet({"kind": pa.array(["a", "b"]), "note": words}))
    with pytest.raises(
        InputError, match=r"column 'note' of type .* cannot be read; save it as strings"
    ):
        read_source(str(path), ReadOptions(target=("kind",)))


@pytest.mark.parametrize("code", [0x110000, 0xD800])
@pytest.mark.parametrize("order", "<>")
def test_classes_that_are_no_characters_are_refused(code: int, order: str, tmp_path: Path) -> None:
    y = np.array([97, code], f"{order}u4").view(f"{order}U1")
    path = put(tmp_path / "data.npz", npz(x=np.eye(2), y=y))
    with pytest.raises(InputError, match="y contains invalid characters"):
        read_source(str(path), ReadOptions())


def test_a_member_of_an_archive_that_is_no_array_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "data.npz", zipped({"x.npy": b"", "y.npy": npy(np.arange(2))}))
    with pytest.raises(InputError, match=r"damaged, or not an \.npz of plain arrays"):
        read_source(str(path), ReadOptions())


@pytest.mark.parametrize(
    "x", [np.full((2, 4, 4), 1e300), np.array([[1, 2], [3, np.longdouble(2) ** 5000]])]
)
def test_numbers_too_large_are_refused_without_a_warning(x: np.ndarray, tmp_path: Path) -> None:
    path = put(tmp_path / "data.npz", npz(x=x, y=np.arange(2)))
    with pytest.raises(InputError, match="infinity"):
        read_source(str(path), ReadOptions())


def test_a_transparent_palette_is_read_without_a_warning(check: Check) -> None:
    image = Image.fromarray(np.arange(108, dtype=np.uint8).reshape(9, 12)).convert("P")
    for number in range(8):  # each of the ways in which images are read
        assert check("image", encoded(image, "PNG", transparency=bytes([number, 128])))


def test_a_pickle_with_odd_escapes_is_read_without_a_warning(check: Check) -> None:
    assert not check("pickle", b"(S'data'\nS'\\q'\nd.")


def test_arrays_that_python_2_wrote_are_read_without_a_warning(tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (4L, 1L), }".ljust(117) + b"\n"
    array = (
        b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + np.arange(4.0).tobytes()
    )
    path = put(
        tmp_path / "data.npz", zipped({"x.npy": array, "y.npy": npy(np.array([0, 1, 0, -1]))})
    )
    assert len(read_source(str(path), ReadOptions()).ids) == 4


FIT: list[dict[str, Any]] = [
    {"selected_name": "../l2i"},
    {"candidates": []},
    {"temperature": {}},
    {"temperature": 0},
    {"temperature": float("nan")},
    {"classes": ["cat"]},
    {"classes": 3},
    {"classes": None},
    {"target_std": None},
    {"notes": [1]},
    {"previews": [{"row": 0, "fields": {"size": 1}}]},
    {"choices": {"name": "method"}},
    {"inputs": []},
]


@pytest.mark.parametrize("change", FIT, ids=str)
def test_a_fit_of_other_values_is_damaged(change: dict[str, Any], tmp_path: Path) -> None:
    fit = fit_folder(tmp_path / "fit")
    plain = json.loads((fit / "fit.json").read_text())
    (fit / "fit.json").write_text(json.dumps({**plain, **change}))
    with pytest.raises(DamagedFile, match=r"fit\.json was changed after it was saved"):
        read_fit(fit)
    seal(fit)
    with pytest.raises(DamagedFile, match="is damaged"):
        read_fit(fit)


@pytest.mark.parametrize(
    "plain",
    [{}, {"kind": "table"}, {"kind": "table", "columns": [1]}, {"kind": "images", "std": "a"}],
)
def test_inputs_of_no_known_kind_are_refused(plain: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        load_preprocessor(plain)


@pytest.mark.parametrize("name", ["config", "result", "metrics", "checkpoint-meta", "fit-json"])
def test_json_of_any_depth_is_refused(name: str, check: Check) -> None:
    assert not check(name, DEEP.encode())


@pytest.mark.parametrize("field", ["metric", "seconds", "steps"])
def test_a_result_of_numbers_too_large_is_refused(field: str, check: Check) -> None:
    result = json.loads(LOADERS["result"].seeds()[0])
    assert not check("result", json.dumps({**result, field: 10**400}).encode())


@pytest.mark.parametrize("meta", [0, [], {}, {"step": "2"}, {"step": None}, {"step": -1}])
def test_a_checkpoint_whose_meta_is_no_runs_is_refused(meta: Any, check: Check) -> None:
    assert not check("checkpoint-meta", json.dumps(meta).encode())
