"""Disturbs many short runs, one after the other, and says what came of it.

    tests/soak/run.py --cases 100 --minutes 40

No new case is begun after that time. The exit code is 1 where a run did not end as an undisturbed
one; its folder, with what its commands said, is then kept and named.
"""

import argparse
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "distributed")]

from disturbances import Done  # noqa: E402 (after the path that it needs)
from plans import FULL, LIMIT, Plan, planned, soaked  # noqa: E402

WORDS = {
    "SIGKILL": "SIGKILLs",
    "SIGTERM": "SIGTERMs",
    "damaged": "damaged or unfinished files",
    "full": "full disks",
    "moved": "changes of the number of processes",
}
speaking = threading.Lock()


class Case(NamedTuple):
    """What came of one."""

    plan: Plan
    met: dict[str, Done]
    wrong: str
    seconds: float


def main() -> int:
    """Go through the cases, and sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100, help="how many")
    parser.add_argument(
        "--first", type=int, default=0, help="seed of the first; the others' follow it"
    )
    parser.add_argument("--minutes", type=float, default=40, help="after which no case is begun")
    parser.add_argument(
        "--parallel", type=int, default=2, help="cases at a time; two for each two cores is well"
    )
    asked = parser.parse_args()
    began, work = time.monotonic(), Path(mkdtemp(prefix="l2i-soak-"))
    with ThreadPoolExecutor(asked.parallel) as pool:
        seeds = range(asked.first, asked.first + asked.cases)
        actual = list(pool.map(lambda seed: tried(seed, work, began + 60 * asked.minutes), seeds))
    cases = [case for case in actual if case is not None]
    print(summary(cases, asked.cases, time.monotonic() - began), flush=True)
    failed = [case for case in cases if case.wrong]
    shutil.rmtree(work / "undisturbed" if failed else work, ignore_errors=True)
    return 1 if failed or not cases else 0


def tried(seed: int, work: Path, end: float) -> Case | None:
    """A case, unless it is too late to begin it."""
    began, plan, folder = time.monotonic(), planned(seed), work / f"case-{seed}"
    if began > end:
        return None
    met, wrong = dict[str, Done](), ""
    try:
        met = soaked(plan, folder, work / "undisturbed")
        shutil.rmtree(folder)
    except Exception as error:
        met = {
            kind: Done() for kind in plan.kinds
        }  # in the table all the same, as runs that did not end so
        wrong = f"{type(error).__name__}: {error}\nin {folder}"
    case = Case(plan, met, wrong, time.monotonic() - began)
    with speaking:
        printed = (
            ", ".join(f"{count} {name}" for name, count in total(case.met.values()).items())
            or "nothing in time"
        )
        print(f"{plan}: {wrong or f'the same, after {printed}'} ({case.seconds:.0f} s)", flush=True)
    return case


def total(counts: Iterable[Done]) -> Done:
    return sum(counts, Counter())


def summary(cases: list[Case], asked: int, seconds: float) -> str:
    """A table in Markdown, and the totals."""
    met = [
        (kind, case.plan.processes, done, case) for case in cases for kind, done in case.met.items()
    ]
    rows = sorted({(kind, processes) for kind, processes, *_ in met})
    lines = [
        "| disturbance | processes | runs | came in time | ended the same |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        mine = [(done, case) for kind, processes, done, case in met if (kind, processes) == row]
        same = sum(not case.wrong for _, case in mine)
        lines.append(
            f"| {row[0]} | {row[1]} | {len(mine)} | "
            f"{total([d for d, _ in mine]).total()} | {same} |"
        )
    every = total([done for _, _, done, _ in met])
    good = sum(not case.wrong for case in cases)
    lines += [
        "",
        f"{len(cases)} of {asked} cases in {seconds / 60:.0f} min; "
        f"{good} ended as undisturbed runs do.",
    ]
    lines.append(
        f"{every.total()} disturbances: "
        + ", ".join(f"{every[name]} {WORDS[name]}" for name in WORDS)
        + "."
    )
    if any(
        FULL in case.plan.kinds and FULL not in case.met and LIMIT in case.met for case in cases
    ):
        lines.append("No disk could be mounted here: files were limited in size instead.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
