"""Fuzzes every loader of a stranger's file for its share of the time.

    fuzz/run.py --minutes 60 [NAME …]

What was found is in fuzz/corpus, and the next time goes on from there; an input that breaks the
rule of tests/fuzz/harmless.py is kept in fuzz/crashes with its traceback, and the exit code is
then 1.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests/fuzz"), str(HERE.parent / "tests")]

from loaders import LOADERS  # noqa: E402 (after the path that it is on)

CRASHES = HERE / "crashes"
EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
COUNTED = re.compile(r"^#(\d+)\s", re.MULTILINE)
SPEED = re.compile(r"stat::average_exec_per_sec:\s*(\d+)")
COVERED = re.compile(r"\bcov: (\d+)")
TABLE = "{:<20}{:>12}{:>10}{:>9}{:>9}"


class Found(NamedTuple):
    """What fuzzing one loader came to."""

    name: str
    executions: int
    edges: int
    seconds: float
    crashes: int


def main() -> int:
    """Fuzz, and say what came of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="in all, of fuzzing alone")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(LOADERS)}; all by default"
    )
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(LOADERS))
    if unknown:
        parser.error(f"there is no loader {unknown[0]!r}")
    names = asked.names or list(LOADERS)
    share = max(1, round(60 * asked.minutes / len(names)))
    actual: list[Found] = []
    try:
        for name in names:
            actual.append(fuzzed(name, share))
            print(TABLE.format(*map(shown, actual[-1])), flush=True)
    except KeyboardInterrupt:
        print("stopped; the next time goes on from fuzz/corpus")
    return printed(actual)


def fuzzed(name: str, seconds: int) -> Found:
    """One loader for so long; where an input ends the process, it is begun anew."""
    left, executions, edges, spent = float(seconds), 0, 0, 0.0
    while left >= 1:
        command = [sys.executable, str(HERE / "target.py"), name, str(round(left))]
        code, said = ended(command)
        counts = EXECUTED.findall(said) or COUNTED.findall(said)
        if not counts:
            raise SystemExit(f"{said[-4000:]}\n{name} could not be fuzzed")
        executions += int(counts[-1])
        edges = max([edges, *map(int, COVERED.findall(said))])
        rates = [*map(int, SPEED.findall(said)), 1]
        taken = min(left, max(1.0, int(counts[-1]) / max(rates))) if code else left
        spent, left = spent + taken, left - taken
        if code:
            print(said[-2000:], flush=True)
    return Found(name, executions, edges, spent, len(saved(name)))


def ended(command: list[str]) -> tuple[int, str]:
    """Exit code and output of a process; its temporary files go with it."""
    with TemporaryDirectory(prefix="l2i-fuzz-") as folder:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "TMPDIR": folder},
        )
    return done.returncode, done.stdout


def saved(name: str) -> list[Path]:
    """The inputs that broke the rule, or ended the process."""
    ours = re.compile(rf"{re.escape(name)}-(crash-|oom-|timeout-|slow-unit-)?[0-9a-f]+")
    return sorted(path for path in CRASHES.glob(f"{name}-*") if ours.fullmatch(path.name))


def printed(actual: list[Found]) -> int:
    """The table, the inputs that were kept, and the exit code."""
    print("\n" + TABLE.format("loader", "executions", "edges", "seconds", "crashes"))
    for row in actual:
        print(TABLE.format(*map(shown, row)))
    total = Found("all", *(sum(row[i] for row in actual) for i in range(1, 5)))
    print(TABLE.format(*map(shown, total)))
    for row in actual:
        for path in saved(row.name):
            print(f"{row.name} broke on {path}")
    return 1 if total.crashes else 0


def shown(value: object) -> str:
    """A number with commas, or a word."""
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
