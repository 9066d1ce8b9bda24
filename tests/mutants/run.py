"""Mutation testing: put one fault at a time into a copy of the source, and run the tests for it.

    python tests/mutants/run.py [ID or file …] [--fast] [--jobs 2]

A mutant is killed if one of its tests fails. The lists beside this file have one entry per mutant.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
TIERS = {"fast": "not slow", "slow": "slow"}  # pytest's -m
MAX_SECONDS = 600  # of one run of tests: a mutant that never ends is killed
NO_TESTS = 5  # pytest's exit code if it selected none
PRELOADED = (
    "torch",
    "pandas",
    "pyarrow.parquet",
    "scipy.optimize",
    "sklearn.linear_model",
    "pytest",
)


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A fault: the one place of `old` in a file of src/l2i becomes `new`."""

    id: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Test files, or single tests, that should find it; as arguments of pytest."""
    slow: tuple[str, ...] = ()
    """Further tests, of the slow tier, to run if those find nothing."""
    equivalent: str = ""
    """Why no test can find it, if so; it does not count."""
    survives: str = ""
    """Why it is allowed to survive, if so; it counts as a survivor."""

    def apply(self, package: Path) -> None:
        path = package / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), "utf-8")


@dataclass(kw_only=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant
    killer: str = ""
    """The test that failed."""
    tier: str = ""
    seconds: float = field(default=0.0)


def load_mutants(names: Iterable[str] = ()) -> list[Mutant]:
    """Load the mutants of all lists, or those with an id, a list or a source file of that name."""
    mutants = []
    wanted = set(names)
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            lists = {name: tuple(entry.get(name, ())) for name in ("tests", "slow")}
            mutant = Mutant(**{**entry, **lists})
            if not wanted or wanted & {mutant.id, path.stem, mutant.file}:
                mutants.append(mutant)
    return mutants


def run_tests(package_root: Path, tests: tuple[str, ...], tier: str) -> str:
    """Run tests against a copy of the source; return the name of the one that failed, or ''."""
    arguments = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header", "-m", TIERS[tier]]
    with tempfile.TemporaryFile("w+") as output:
        code = _run_in_fork(package_root, [*arguments, *tests], output.fileno())
        output.seek(0)
        text = output.read()
    if code is None:
        return "(the tests did not end)"
    if code in (0, NO_TESTS):
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return failed[1] if failed else f"(pytest ended with {code})"


def _run_in_fork(package_root: Path, arguments: list[str], output: int) -> int | None:
    """Run pytest in a fork, in which torch and others are imported already; None if it never ends.

    A copy of the source comes first on the path of the fork, and of all processes that it starts.
    """
    child = os.fork()
    if not child:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(ROOT)
        os.environ |= {"PYTHONPATH": str(package_root), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path.insert(0, str(package_root))
        sys.dont_write_bytecode = True
        import pytest

        code = 1
        try:
            code = int(pytest.main(arguments))
        finally:
            sys.stdout.flush()
            os._exit(code)
    deadline = time.monotonic() + MAX_SECONDS
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def preload() -> None:
    """Import what every test needs, except the package itself; it starts no threads."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        import_module(name)
    assert "l2i" not in sys.modules


def try_mutant(mutant: Mutant, tiers: Iterable[str]) -> Outcome:
    """Apply a mutant to a copy of the source, and run its tests tier by tier until one fails."""
    outcome, start = Outcome(mutant=mutant), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="l2i-mutant-") as folder:
        package = Path(folder, "src", "l2i")
        shutil.copytree(SOURCE / "l2i", package, ignore=shutil.ignore_patterns("__pycache__"))
        mutant.apply(package)
        for tier in tiers:
            tests = mutant.tests + (mutant.slow if tier == "slow" else ())
            outcome.killer = run_tests(package.parent, tests, tier)
            if outcome.killer:
                outcome.tier = tier
                break
    outcome.seconds = time.monotonic() - start
    return outcome


def check_unmutated(mutants: list[Mutant], tiers: Iterable[str], jobs: int) -> list[str]:
    """Return the tests that fail without any mutant: they would kill everything."""
    pairs = {(test, tier) for m in mutants for tier in tiers for test in m.tests + m.slow}
    by_tier = [(tuple(sorted(t for t, at in pairs if at == tier)), tier) for tier in tiers]
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        failures = pool.map(partial(run_tests, SOURCE), *zip(*by_tier, strict=True))
        return [failure for failure in failures if failure]


def report(outcomes: list[Outcome]) -> None:
    """Print who survives, and the share killed by tier."""
    counted = [o for o in outcomes if not o.mutant.equivalent]
    survivors = [o for o in counted if not o.killer]
    for outcome in survivors:
        mutant = outcome.mutant
        reason = mutant.survives or "no test finds it"
        print(f"survives: {mutant.id} in {mutant.file} ({reason})\n  {mutant.old!r}")
        print(f"  -> {mutant.new!r}")
    for outcome in outcomes:
        if outcome.mutant.equivalent:
            found = f", but {outcome.killer} fails" if outcome.killer else ""
            print(f"equivalent: {outcome.mutant.id} ({outcome.mutant.equivalent}){found}")
    total, fast = len(counted), sum(o.tier == "fast" for o in counted)
    killed = total - len(survivors)
    by_part: dict[str, list[bool]] = {}
    for outcome in counted:
        by_part.setdefault(outcome.mutant.file.split("/")[0], []).append(bool(outcome.killer))
    parts = [f"{name} {sum(found)}/{len(found)}" for name, found in sorted(by_part.items())]
    print(", ".join(parts))
    share, fast_share = 100 * killed / max(1, total), 100 * fast / max(1, total)
    print(f"{killed} of {total} mutants killed ({share:.1f} %)", end="; ")
    print(f"{fast} by the fast tests alone ({fast_share:.1f} %)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="ID", help="mutants, lists or source files")
    parser.add_argument("--fast", action="store_true", help="run the fast tests only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--trust", action="store_true", help="do not run the tests unmutated first")
    options = parser.parse_args()
    mutants = load_mutants(options.names)
    if not mutants:
        parser.error(f"no mutant, list or source file is named {' or '.join(options.names)}")
    tiers = ("fast",) if options.fast else ("fast", "slow")
    preload()
    if not options.trust and (failures := check_unmutated(mutants, tiers, options.jobs)):
        print(f"these fail without a mutant; fix them first: {', '.join(failures)}")
        return 1
    outcomes = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("fork")) as pool:
        futures = [pool.submit(try_mutant, mutant, tiers) for mutant in mutants]
        for i, future in enumerate(as_completed(futures), 1):
            outcome = future.result()
            outcomes.append(outcome)
            verdict = f"killed by {outcome.killer}" if outcome.killer else "SURVIVES"
            line = f"[{i}/{len(mutants)}] {outcome.mutant.id}: {verdict}, {outcome.seconds:.0f} s"
            print(line, flush=True)
    report(sorted(outcomes, key=lambda o: o.mutant.id))
    return int(
        any(not o.killer and not (o.mutant.equivalent or o.mutant.survives) for o in outcomes)
    )


if __name__ == "__main__":
    sys.exit(main())
