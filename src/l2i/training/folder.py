"""A run's folder: config.json, metrics.jsonl, checkpoints/, TensorBoard events and, at the end, result.json."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

import torch

from l2i.config import Run, from_json, to_json
from l2i.data.limits import check_tree
from l2i.data.split import Splits
from l2i.errors import InputError
from l2i.training.checkpoint import write_whole
from l2i.validate import fields_of

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"
FIT = "fit.json"  # what marks the folder of a fit on own data, whose runs lie in it
BEST = "best"  # the folder of the averaged model that early stopping chose
ELSEWHERE = (
    "out",
    "device",
    "engine",
    "keep",
    "data.root",
    "data.workers",
)  # fields that may differ when a run goes on
ASIDE = {*ELSEWHERE, "name", "seed", "steps", "precision", "threads", "save_every"}  # told elsewhere, or of no matter

Settings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to, and under what conditions."""

    name: str
    figure: float
    """The final figure on the test set; lower is better."""
    figure_name: str
    definition: str
    validation: float | None
    """The same figure on the validation set."""
    seed: int
    steps: int
    seconds: float
    """Time in the training loop, evaluation and saving included, probes left out."""
    versions: dict[str, str]
    hardware: str
    precision: str = "float32"
    engine: str = "eager"
    """Whether steps were taken operation by operation, or recorded as a CUDA graph and replayed."""
    at_once: int = 1
    """Runs that shared the device, side by side."""
    processes: int = 1
    """Processes that shared the run, those that it ended with."""
    steps_per_second: float | None = None
    """Of the steps themselves, since the run began or went on."""
    warnings: list[str] = field(default_factory=list)
    """What makes the figure doubtful: samples seen in training, constant outputs, a mask that lets nothing through, a
    look-ahead that goes too far."""
    settings: Settings | None = None
    """The run's, since a result may be kept apart from it; in results of old there are none."""

    def short(self) -> str:
        """In a line."""
        figure = f"{self.figure_name} {self.figure:.2f}"
        pace = "" if self.steps_per_second is None else f" ({self.steps_per_second:.3g} steps/s without evaluation)"
        many = f" on {self.processes} processes" if self.processes > 1 else ""
        return f"{self.name}, seed {self.seed}: {figure}, {self.steps} steps in {self.seconds:.1f} s{many}{pace}"

    def __str__(self) -> str:
        return "\n".join([self.short(), f"({self.definition})", *(f"warning: {line}" for line in self.warnings)])


def folder_of(run: Run) -> Path:
    """Where a run is kept."""
    return Path(run.out if run.out is not None else f"runs/{run.name.replace('/', '-')}-seed{run.seed}")


def read_run(folder: Path) -> Run:
    """The configuration that a run folder holds."""
    path = folder / "config.json"
    if (folder / FIT).is_file():
        raise InputError(f"{folder} is the folder of a fit, not of a run; 'l2i report {folder}' tells of it")
    if not path.is_file():
        raise InputError(f"{folder} is not a run folder (it has no config.json); give another")
    check_tree(folder)
    try:
        return from_json(dict(**json.loads(path.read_text(encoding="utf-8"))))  # a TypeError where it is no JSON object
    except InputError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{path} is damaged; restore it, or give another folder") from None


def read_result(folder: Path) -> Result | None:
    """What the run came to, where it is done."""
    path = folder / "result.json"
    if not path.exists():
        return None
    try:
        result = Result(**json.loads(path.read_text(encoding="utf-8")))
        if not math.isfinite(result.figure + result.seconds + result.steps + result.seed):
            raise ValueError("not a finite figure")
        return result
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        raise InputError(f"{path} is damaged; remove it, and the same command writes it anew") from None


def settings_of(run: Run) -> Settings:
    """The fields of a run, by path, as JSON has them; of files and folders the names alone."""
    found = {path: value for path, value in fields_of(run) if path not in ASIDE}
    plain = {path: PurePath(value).name if isinstance(value, str) else value for path, value in found.items()}
    return json.loads(json.dumps(plain))  # type: ignore[no-any-return]


def write_result(folder: Path, result: Result) -> None:
    """Mark the run as done."""
    write_whole(folder / "result.json", (json.dumps(asdict(result), indent=2) + "\n").encode())


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made where it is not there, for this process alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_tree(folder)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise InputError(f"{folder} cannot be a run folder ({error.strerror}); give another --out") from None
    with lock:
        if sys.platform != "win32":  # which has no such locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another process is at work in {folder}; wait, or give another --out") from None
        yield


def check(folder: Path, run: Run) -> None:
    """That the folder is free, or this run's already; another's is never overwritten."""
    try:
        taken = folder.exists() and not folder.is_dir()
    except OSError as error:  # a name that no folder can have
        raise InputError(f"{folder} cannot be a run folder ({error.strerror}); give another --out") from None
    if taken:
        raise InputError(f"{folder} is a file; give another --out")
    if folder.exists() and any(path.name != LOCK and path.suffix != ".partial" for path in folder.iterdir()):
        match(folder, to_json(read_run(folder)), run)


def match(folder: Path, there: dict[str, Any], run: Run) -> None:
    """That a configuration found in the folder is this run's."""
    found = differences(there, to_json(run))
    if found:
        raise InputError(
            f"{folder} holds a run of another configuration ({'; '.join(found[:4])}); "
            "give another --out, or remove the folder"
        )


def same_data(folder: Path, meta: dict[str, Any], splits: Splits, *, given: bool) -> None:
    """That a checkpoint's run was trained on these samples: labels, scales and splits would differ on others."""
    known_here(folder, meta, given=given)
    if meta.get("data", splits.fingerprint()) != splits.fingerprint():
        raise InputError(
            f"{folder} was trained on other data than is there now; give the --data.root that it was trained with, "
            "put back what was changed there, or train anew in another --out"
        )


def known_here(folder: Path, meta: dict[str, Any], *, given: bool) -> None:
    """That the data of a checkpoint's run can be had: splits given in Python, or own data, have no name."""
    if not meta.get("given") or given:
        return
    if (folder.parent / FIT).is_file():
        raise InputError(f"{folder} is part of the fit {folder.parent}; 'l2i report {folder.parent}' tells of it")
    raise InputError(
        f"{folder} was trained on splits given in Python; open it there: l2i.load_model('{folder}', splits=…)"
    )


def claim(folder: Path, run: Run) -> None:
    """Make the folder this run's."""
    check(folder, run)
    if not (folder / "config.json").exists():
        write_whole(folder / "config.json", (json.dumps(to_json(run), indent=2) + "\n").encode())


def differences(there: dict[str, Any], here: dict[str, Any], path: str = "") -> list[str]:
    """The fields that decide what a run comes to, and that two configurations have not alike."""
    found: list[str] = []
    for name in sorted(there.keys() | here.keys()):
        old, new = there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{path}{name}.")
        elif (
            path + name not in ELSEWHERE
            and old != new
            and (not isinstance(old, tuple | list) or list(old) != list(new or ()))
        ):
            found.append(f"{path}{name} is {old} there and {new} here")
    return found


def versions() -> dict[str, str]:
    """Of what the figure depends on."""
    from l2i import __version__

    return {"l2i": __version__, "torch": torch.__version__, "python": platform.python_version()}


def hardware(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    count = torch.get_num_threads()
    return f"{names[0] if names else platform.machine()}, {count} thread{'s' if count > 1 else ''}"
