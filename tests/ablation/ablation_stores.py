"""Recipes of a few steps, output of the ablation's command, and records written by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmarks.ablation_cpu.grid import ARMS, TUNING_GRID, TUNING_SEEDS

from l2i import Run, recipes, replace
from l2i.recipes.table import Cell

STEPS = 6
TINY: dict[str, Any] = {"steps": STEPS, "eval_every": 2, "model": {"width": 8}}
BATCH = {"labeled": 8, "unlabeled": 8, "holdout": 8}


class Said(NamedTuple):
    code: int
    out: str
    err: str

    def table(self, part: str, which: int = 0) -> list[list[str]]:
        """The rows of a Markdown table within a part's block."""
        block = self.out.partition(f"### {part}\n")[2].partition("\n### ")[0]
        tables = [text for text in block.split("\n\n") if text.startswith("|")]
        rows = [
            line.removeprefix("| ").removesuffix(" |").split(" | ")
            for line in tables[which].splitlines()
        ]
        return [rows[0], *rows[2:]]


Call = Callable[..., Said]
Lines = list[dict[str, Any]]


def shrink(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> None:
    """Have the cells of a table take a few steps with a few samples; all else is as it is."""
    table = recipes.get_table(name)
    original = table.make_run

    def make(name: str, cell: Cell) -> Run:
        return replace(replace(original(name, cell), **TINY, batch=BATCH), **changes)

    monkeypatch.setitem(table.__dict__, "make_run", make)


def lines_of(folder: Path, problem: str = "digits-fixmatch", **wanted: object) -> Lines:
    lines = [json.loads(line) for line in (folder / f"{problem}.jsonl").read_text().splitlines()]
    return [
        line for line in lines if all(line.get(name) == value for name, value in wanted.items())
    ]


def write(folder: Path, problem: str, lines: Lines) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{problem}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def saved(part: str, arm: str, seed: int, metric: float | None, **more: Any) -> dict[str, Any]:
    """A line of a run."""
    actual = {"steps": 100, "metric": metric, "validation": metric, "seconds": 1.0}
    return {"part": part, "arm": arm, "seed": seed, **more, **actual}


def tuned(
    validation: Callable[[str, float, float], float | None] = lambda arm, lr, weight: lr + weight,
) -> Lines:
    """Every trial, with such validation metrics."""
    return [
        {
            **saved("tuning", arm, seed, 50.0, lr=lr, weight=weight),
            "validation": validation(arm, lr, weight),
        }
        for lr, weight in TUNING_GRID
        for seed in TUNING_SEEDS
        for arm in ARMS
    ]
