"""Run folders of a stranger that ask for more than their checkpoint holds."""

import json
from pathlib import Path

import pytest
from confined import said

from sealing import seal


@pytest.mark.parametrize("field", ["model.width", "model.depth"])
@pytest.mark.parametrize("command", [("evaluate", "run"), ("predict", "fit", "data.csv")])
def test_a_network_larger_than_its_checkpoint_is_not_built(
    field: str, command: tuple[str, ...], place: Path
) -> None:
    path = place / ("run" if command[0] == "evaluate" else "fit/l2i") / "config.json"
    plain = json.loads(path.read_text())
    plain["model"][field.partition(".")[2]] = 100_000 if field.endswith("width") else 10_000
    path.write_text(json.dumps(plain))
    if "fit" in path.parts:
        seal(place / "fit")
    done = said(*command, cwd=place)
    assert done.code == 2, done
    assert "memory" not in done.err


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch.labeled", 10**9), ("data.workers", 1024), ("threads", 1024), ("probe_samples", 10**9)],
)
def test_a_run_that_asks_for_much_is_looked_at(field: str, value: int, place: Path) -> None:
    path = place / "run" / "config.json"
    plain = json.loads(path.read_text())
    section, _, name = field.rpartition(".")
    (plain[section] if section else plain)[name] = value
    path.write_text(json.dumps(plain))
    done = said("evaluate", "run", cwd=place)
    assert done.code in (0, 2), done
