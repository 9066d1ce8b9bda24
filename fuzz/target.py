"""Fuzzes one loader with atheris: fuzz/target.py NAME SECONDS; see `make fuzz`.

Whatever breaks the rule of tests/fuzz/harmless.py is kept once a place, and fuzzing goes on;
libFuzzer itself keeps what ends the process, runs too long or fills the memory.
"""

import hashlib
import os
import re
import sys
import traceback
from pathlib import Path
from tempfile import mkdtemp

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
CORPUS, CRASHES = HERE / "corpus", HERE / "crashes"
INSTRUMENTED = ["l2i", "PIL"]  # whose branches guide the search
MEMORY, LONGEST = 4096, 60  # MiB; seconds of one input
WORD = re.compile(rb'"[^"\\]{1,40}"|[A-Za-z]{2,}')

os.environ["L2I_CACHE"] = mkdtemp(prefix="l2i-fuzz-")
os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [str(TESTS / "fuzz"), str(TESTS)]

import atheris  # noqa: E402 (after the variables that what it imports reads)

with atheris.instrument_imports(include=INSTRUMENTED):
    from harmless import Loader, harmless
    from loaders import LOADERS


def fuzz(name: str, seconds: int) -> None:
    """Fuzz a loader for so long, from its seeds and earlier finds; libFuzzer ends the process."""
    loader, folder = LOADERS[name], Path(mkdtemp(prefix="l2i-fuzz-"))
    loader.prepare(folder)
    started, words = written_seeds(loader)
    for place in (CORPUS / name, CRASHES):
        place.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(
        include=INSTRUMENTED
    ):  # what is imported when it is first needed
        for seed in loader.seeds():
            checked(name, loader, folder, seed)
    largest = max(len(seed) for seed in loader.seeds())
    options = {
        "max_total_time": seconds,
        "max_len": max(4096, 2 * largest),
        "rss_limit_mb": MEMORY,
        "timeout": LONGEST,
        "dict": words,
        "artifact_prefix": f"{CRASHES / name}-",
        "print_final_stats": 1,
    }
    arguments = [f"-{key}={value}" for key, value in options.items()]
    atheris.Setup(
        [name, *arguments, str(CORPUS / name), str(started)],
        lambda content: checked(name, loader, folder, content),
    )
    atheris.Fuzz()


def written_seeds(loader: Loader) -> tuple[Path, Path]:
    """A folder of whole files, and a dictionary of their words."""
    started = Path(mkdtemp(prefix="l2i-fuzz-"))
    for number, seed in enumerate(loader.seeds()):
        (started / str(number)).write_bytes(seed)
    actual = sorted({word for seed in loader.seeds() for word in WORD.findall(seed[:20_000])})
    numbers = [b"NaN", b"Infinity", b"1e999", b"-1", b"9" * 400, b"\\ud800"]
    lines = [
        '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in [*actual[:500], *numbers]
    ]
    words = started.with_suffix(".dict")
    words.write_text("\n".join(lines) + "\n")
    return started, words


def checked(name: str, loader: Loader, folder: Path, content: bytes) -> None:
    """Read the content; what goes wrong is kept under the name of the place where it does."""
    try:
        harmless(loader, folder, content)
    except Exception as error:
        frames = [f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
        ours = [frame for frame in frames if "/l2i/" in frame] or frames
        said = (
            str(error)[:60] if isinstance(error, AssertionError) else ""
        )  # warnings, all raised in one place
        place = hashlib.sha256(f"{type(error).__name__} {ours[-1]} {said}".encode()).hexdigest()[
            :12
        ]
        saved = CRASHES / f"{name}-{place}"
        if not saved.exists():
            saved.write_bytes(content)
            saved.with_suffix(".txt").write_text(
                traceback.format_exc(), encoding="utf-8", errors="backslashreplace"
            )


if __name__ == "__main__":
    fuzz(sys.argv[1], int(sys.argv[2]))
