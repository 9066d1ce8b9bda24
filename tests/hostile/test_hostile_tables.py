"""A stranger's tables: too wide, too long, never ending, or a billion cells in a few bytes."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confined import confined, refused

from l2i.fit.options import ReadOptions
from l2i.fit.readers.source import Source, read_source

FIT = ("--target", "y")


def read(path: Path) -> Source:
    return read_source(str(path), ReadOptions(target=("y",)))


def test_a_million_columns_are_refused(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(10**6))
    (tmp_path / "data.csv").write_text(f"y,{names}\n" + "1," * 10**6 + "1\n")
    line = refused("fit", "data.csv", *FIT, cwd=tmp_path)
    assert (
        "data.csv has 1,000,001 columns, more than 100,000; drop those that are not needed" in line
    )


def test_lines_of_a_byte_are_not_filled_up_to_a_wide_header(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(20_000))
    (tmp_path / "data.csv").write_text(f"y,{names}\n" + "a\n" * 100_000)
    line = refused("fit", "data.csv", *FIT, cwd=tmp_path)
    assert "data.csv has 20,001 columns and many of its 100,001 rows have fewer cells" in line


def test_short_lines_of_a_table_that_is_not_large_are_filled_up(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("x,y,z\n" + "1,a\n2,b,3\n" * 5)
    assert confined(lambda: read(tmp_path / "data.csv").inputs["z"].isna().sum()) == 5


def test_a_first_line_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"y," + b"x" * 100_000_000)
    assert "starts with a line of 67,108,864 characters or more" in refused(
        "fit", "data.csv", *FIT, cwd=tmp_path
    )


def test_a_file_of_holes_is_not_read(tmp_path: Path) -> None:
    for name in ("data.csv", "data.parquet", "data.npz"):
        (tmp_path / name).write_text("x,y\n1,")
        os.truncate(tmp_path / name, 2**36)  # takes no room on disk
        target = () if name.endswith(".npz") else FIT
        line = refused("fit", name, *target, cwd=tmp_path)
        assert (
            f"{name} would take 64.0 GiB of memory, more than 1 GiB and 20 times its size on disk; "
            "it is a sparse file" in line
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('x,y\n1,"' + "open\n" * 1_000_000, "cannot be parsed as a table"),
        ('"x,y\n' + "1,2\n" * 1_000_000, "cannot be parsed as a table"),
        ("x,y\n1,2\n" + "\0" * 5_000_000, "has only one class, '2'"),
        ("\0" * 5_000_000, "data.csv"),
        ("x\0,y\n\0,\0\n", "has only one class"),
        ('"' * 1_000_001, "data.csv"),
    ],
    ids=[
        "open quote",
        "open quote in the header",
        "NUL at the end",
        "NUL alone",
        "NUL in cells",
        "quotes",
    ],
)
def test_quotes_that_are_never_closed_and_nul_bytes_end_in_a_message(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "data.csv").write_text(text)
    assert message in refused("fit", "data.csv", *FIT, cwd=tmp_path)


@pytest.mark.parametrize(
    "name", ["data.csv.gz", "data.csv.bz2", "data.csv.zip", "data.csv.zst", "data.tar", "data.pkl"]
)
def test_packed_tables_are_not_unpacked(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"x,y\n1,2\n"))
    assert f"{name} has an unsupported format" in refused("fit", name, *FIT, cwd=tmp_path)


def test_a_packed_table_by_the_name_of_a_plain_one_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(gzip.compress(b"x,y\n" + b"1,2\n" * 1000))
    assert "data.csv is not valid UTF-8" in refused("fit", "data.csv", *FIT, cwd=tmp_path)


def test_parquet_of_many_equal_rows_is_counted_before_it_is_read(tmp_path: Path) -> None:
    one = pa.table({"x": np.zeros(10**6, dtype=np.int8), "y": np.zeros(10**6, dtype=np.int8)})
    with pq.ParquetWriter(tmp_path / "data.parquet", one.schema, compression="zstd") as writer:
        for _ in range(80):
            writer.write_table(one)
    assert (tmp_path / "data.parquet").stat().st_size < 1_000_000
    line = refused("fit", "data.parquet", *FIT, cwd=tmp_path, room=5 * 10**8)
    assert (
        "data.parquet would take 1.2 GiB of memory, more than 1 GiB and 20 times its size on disk; "
        "save it" in line
    )


def many_times(path: Path, **packed: Any) -> None:
    """A word of a megabyte, 1,200 times."""
    part = pa.array(["word" * 250_000] * 100)
    table = pa.table({"text": pa.chunked_array([part] * 12), "y": pa.array(range(1200))})
    pq.write_table(table, path, compression="zstd", **packed)
    assert path.stat().st_size < 1_000_000


def test_a_long_word_that_is_there_many_times_is_held_once_and_refused(tmp_path: Path) -> None:
    many_times(tmp_path / "data.parquet", use_dictionary=True)
    line = refused("fit", "data.parquet", *FIT, "--text", "text", cwd=tmp_path, room=5 * 10**8)
    assert "data.parquet would take 1.1 GiB of memory" in line


def test_words_that_are_written_as_parts_of_others_are_not_read(tmp_path: Path) -> None:
    encodings = {"text": "DELTA_BYTE_ARRAY", "y": "PLAIN"}
    many_times(tmp_path / "data.parquet", use_dictionary=False, column_encoding=encodings)
    line = refused("fit", "data.parquet", *FIT, "--text", "text", cwd=tmp_path, room=5 * 10**8)
    assert "column 'text' is encoded as DELTA_BYTE_ARRAY; use plain or dictionary encoding" in line


def test_lists_are_left_out_unread_whatever_their_names(tmp_path: Path) -> None:
    many = pa.ListArray.from_arrays(
        [0, 30_000_000, *[30_000_000] * 39], pa.array(np.zeros(30_000_000, dtype=np.int8))
    )
    columns = {"x": pa.array(np.arange(40.0)), "x.more": many, "y": pa.array(np.arange(40) % 2)}
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")

    def notes() -> tuple[str, ...]:
        return read(tmp_path / "data.parquet").notes

    assert "ignored (neither strings nor numbers): 'x.more'" in confined(notes, room=8 * 10**7)


def test_parquet_of_too_many_columns_is_refused(tmp_path: Path) -> None:
    schema = pa.schema([(f"c{i}", pa.int8()) for i in range(100_001)])
    pq.write_metadata(schema, tmp_path / "data.parquet", store_schema=False)
    assert "has 100,001 columns, more than 100,000" in refused(
        "fit", "data.parquet", *FIT, cwd=tmp_path
    )


class Touch:
    """What a pickle runs when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch touched",)


def test_pickles_in_the_types_of_columns_and_in_the_words_of_pandas_are_not_loaded(
    tmp_path: Path,
) -> None:
    harm = pickle.dumps(Touch(), protocol=0)
    own = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": harm}
    schema = pa.schema(
        [pa.field("x", pa.int64(), metadata=own), pa.field("y", pa.int64())], {b"pandas": harm}
    )
    table = pa.table({"x": np.arange(40), "y": np.arange(40) % 2}, schema=schema)
    pq.write_table(table, tmp_path / "data.parquet")

    def loaded() -> bool:
        os.chdir(tmp_path)
        return len(read(tmp_path / "data.parquet").ids) == 40

    assert confined(loaded)
    assert not (tmp_path / "touched").exists()


def test_a_table_as_large_as_its_file_is_read(tmp_path: Path) -> None:
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20_000, 20)))
    frame.columns = [f"c{i}" for i in frame.columns]
    frame.assign(y=np.arange(20_000) % 2).to_parquet(tmp_path / "data.parquet")
    assert confined(lambda: len(read(tmp_path / "data.parquet").kinds)) == 20
