"""Hostile names: of networks on the hub, and of classes and columns in exported files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from confined import said

HUB_NAMES = {
    "a path out of the cache": "../../../../etc/passwd",
    "an absolute path": "/etc/passwd",
    "an address": "https://example.invalid/model",
    "a file address": "file:///etc/passwd",
    "a shell command": "$(touch touched)",
    "another command": "x; touch touched",
    "too many parts": "a/b/c/d",
    "control codes": "\x1b[31mred\x07/model",
    "an option": "--trust-remote-code",
    "nothing": "",
    "many characters": "x" * 10_000,
    "dots": "..",
    "a null byte": "bert\0base",
    "markup": "[/b]/[bold]",
}


@pytest.mark.parametrize("name", HUB_NAMES)
def test_a_name_that_no_network_has_ends_in_one_line(name: str, tmp_path: Path) -> None:
    pd.DataFrame({"text": ["good day", "bad day"] * 10, "y": ["g", "b"] * 6 + [""] * 8}).to_csv(
        tmp_path / "texts.csv", index=False
    )
    before = sorted(path.name for path in tmp_path.iterdir())
    done = said(
        *("fit", "texts.csv", "--target", "y", "--text", "text"),
        f"--encoder={HUB_NAMES[name]}",
        *("--steps", "1", "--device", "cpu"),
        cwd=tmp_path,
    )
    assert done.code == 2, done
    assert "Traceback" not in done.err and "\x1b" not in done.err and "\x07" not in done.err
    assert done.err.splitlines()[-1].startswith("l2i: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


CLASSES = ("../../x", "\x1b[2J", '"><script>', "a\nb", "=cmd()", "'", "\\", "{}", "ключ")
COLUMNS = ("../x", "\x1b]0;x\x07", "a\nb", '"', "numbers", "categories", "codes", "words_0", "N")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
def test_names_in_an_exported_file_are_text_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    """Column names that are those of the graph, categories with quotes, classes with codes."""
    draw = np.random.default_rng(0)
    rows = 12 * len(CLASSES)
    frame = pd.DataFrame({name: draw.normal(size=rows) for name in COLUMNS[:5]})
    for name in COLUMNS[5:]:
        frame[name] = draw.choice(np.array(CLASSES, dtype=object), size=rows)
    frame["y"] = [CLASSES[i % len(CLASSES)] if i < rows // 2 else "" for i in range(rows)]
    frame.to_parquet(tmp_path / "data.parquet")
    fit = ("fit", "data.parquet", "--target", "y", "--device", "cpu", "--steps", "2")
    done = said(*fit, "--no-baselines", "--out", "run", cwd=tmp_path)
    assert done.code == 0, done
    assert "\x1b" not in done.err + done.out
    done = said("export", "run", f"model.{suffix}", cwd=tmp_path)
    assert done.code == 0, done
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "data.parquet", f"model.{suffix}", "run"
    ]  # fmt: skip
    if suffix == "onnx":
        import onnx

        model = onnx.load(tmp_path / "model.onnx", load_external_data=False)
        assert not any(t.external_data for t in model.graph.initializer)
        stored = {item.key: item.value for item in model.metadata_props}
        assert set(json.loads(stored["classes"])) == {name.strip() for name in CLASSES}
