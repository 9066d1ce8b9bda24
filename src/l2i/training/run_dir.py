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
from l2i.config.validate import flatten_fields
from l2i.data.samples import Splits
from l2i.errors import InputError
from l2i.files.atomic import write_atomic
from l2i.files.safety import check_tree

if sys.platform != "win32":
    import fcntl

LOCK_FILE = ".lock"
FIT_FILE = "fit.json"  # what marks the folder of a fit on own data, whose runs lie in it
BEST_DIR = "best"  # the folder of the averaged model that early stopping chose
FIELDS_FREE_ON_RESUME = (
    "out",
    "device",
    "engine",
    "keep_checkpoints",
    "data.root",
    "data.workers",
)  # fields that may differ when a run goes on
NON_SETTING_FIELDS = {*FIELDS_FREE_ON_RESUME, "name", "seed", "steps", "precision", "threads", "save_every"}  # told elsewhere, or of no matter

FlatSettings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run came to, and under what conditions."""

    name: str
    metric: float
    """The final figure on the test set; lower is better."""
    metric_name: str
    metric_definition: str
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
    concurrent_runs: int = 1
    """Runs that shared the device, side by side."""
    processes: int = 1
    """Processes that shared the run, those that it ended with."""
    steps_per_second: float | None = None
    """Of the steps themselves, since the run began or went on."""
    warnings: list[str] = field(default_factory=list)
    """What makes the figure doubtful: samples seen in training, constant outputs, a mask that lets nothing through, a
    look-ahead that goes too far."""
    settings: FlatSettings | None = None
    """The run's, since a result may be kept apart from it; in results of old there are none."""

    def summarize(self) -> str:
        """In a line."""
        metric_text = f"{self.metric_name} {self.metric:.2f}"
        speed_text = "" if self.steps_per_second is None else f" ({self.steps_per_second:.3g} steps/s without evaluation)"
        process_text = f" on {self.processes} processes" if self.processes > 1 else ""
        return f"{self.name}, seed {self.seed}: {metric_text}, {self.steps} steps in {self.seconds:.1f} s{process_text}{speed_text}"

    def __str__(self) -> str:
        return "\n".join([self.summarize(), f"({self.metric_definition})", *(f"warning: {line}" for line in self.warnings)])


def resolve_run_dir(run: Run) -> Path:
    """Where a run is kept."""
    return Path(run.out if run.out is not None else f"runs/{run.name.replace('/', '-')}-seed{run.seed}")


def read_run(folder: Path) -> Run:
    """The configuration that a run folder holds."""
    path = folder / "config.json"
    if (folder / FIT_FILE).is_file():
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
        if not math.isfinite(result.metric + result.seconds + result.steps + result.seed):
            raise ValueError("not a finite figure")
        return result
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        raise InputError(f"{path} is damaged; remove it, and the same command writes it anew") from None


def flat_settings(run: Run) -> FlatSettings:
    """The fields of a run, by path, as JSON has them; of files and folders the names alone."""
    selected = {path: value for path, value in flatten_fields(run) if path not in NON_SETTING_FIELDS}
    normalized = {path: PurePath(value).name if isinstance(value, str) else value for path, value in selected.items()}
    return json.loads(json.dumps(normalized))  # type: ignore[no-any-return]


def write_result(folder: Path, result: Result) -> None:
    """Mark the run as done."""
    write_atomic(folder / "result.json", (json.dumps(asdict(result), indent=2) + "\n").encode())


@contextmanager
def lock_run_dir(folder: Path) -> Iterator[None]:
    """The folder, made where it is not there, for this process alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_tree(folder)
        lock = (folder / LOCK_FILE).open("w")
    except OSError as error:
        raise InputError(f"{folder} cannot be a run folder ({error.strerror}); give another --out") from None
    with lock:
        if sys.platform != "win32":  # which has no such locks
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"another process is at work in {folder}; wait, or give another --out") from None
        yield


def check_available(folder: Path, run: Run) -> None:
    """That the folder is free, or this run's already; another's is never overwritten."""
    try:
        is_occupied = folder.exists() and not folder.is_dir()
    except OSError as error:  # a name that no folder can have
        raise InputError(f"{folder} cannot be a run folder ({error.strerror}); give another --out") from None
    if is_occupied:
        raise InputError(f"{folder} is a file; give another --out")
    if folder.exists() and any(path.name != LOCK_FILE and path.suffix != ".partial" for path in folder.iterdir()):
        check_config(folder, to_json(read_run(folder)), run)


def check_config(folder: Path, stored: dict[str, Any], run: Run) -> None:
    """That a configuration found in the folder is this run's."""
    mismatches = find_differences(stored, to_json(run))
    if mismatches:
        raise InputError(
            f"{folder} holds a run of another configuration ({'; '.join(mismatches[:4])}); "
            "give another --out, or remove the folder"
        )


def check_fingerprint(folder: Path, meta: dict[str, Any], splits: Splits, *, custom_splits: bool) -> None:
    """That a checkpoint's run was trained on these samples: labels, scales and splits would differ on others."""
    check_data_available(folder, meta, custom_splits=custom_splits)
    if meta.get("data", splits.fingerprint()) != splits.fingerprint():
        raise InputError(
            f"{folder} was trained on other data than is there now; give the --data.root that it was trained with, "
            "put back what was changed there, or train anew in another --out"
        )


def check_data_available(folder: Path, meta: dict[str, Any], *, custom_splits: bool) -> None:
    """That the data of a checkpoint's run can be had: splits given in Python, or own data, have no name."""
    if not meta.get("given") or custom_splits:
        return
    if (folder.parent / FIT_FILE).is_file():
        raise InputError(f"{folder} is part of the fit {folder.parent}; 'l2i report {folder.parent}' tells of it")
    raise InputError(
        f"{folder} was trained on splits given in Python; open it there: l2i.load_model('{folder}', splits=…)"
    )


def claim_run_dir(folder: Path, run: Run) -> None:
    """Make the folder this run's."""
    check_available(folder, run)
    if not (folder / "config.json").exists():
        write_atomic(folder / "config.json", (json.dumps(to_json(run), indent=2) + "\n").encode())


def find_differences(stored: dict[str, Any], current: dict[str, Any], path: str = "") -> list[str]:
    """The fields that decide what a run comes to, and that two configurations have not alike."""
    mismatches: list[str] = []
    for name in sorted(stored.keys() | current.keys()):
        old, new = stored.get(name), current.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            mismatches += find_differences(old, new, f"{path}{name}.")
        elif (
            path + name not in FIELDS_FREE_ON_RESUME
            and old != new
            and (not isinstance(old, tuple | list) or list(old) != list(new or ()))
        ):
            mismatches.append(f"{path}{name} is {old} there and {new} here")
    return mismatches


def collect_versions() -> dict[str, str]:
    """Of what the figure depends on."""
    from l2i import __version__

    return {"l2i": __version__, "torch": torch.__version__, "python": platform.python_version()}


def describe_hardware(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    count = torch.get_num_threads()
    return f"{names[0] if names else platform.machine()}, {count} thread{'s' if count > 1 else ''}"
