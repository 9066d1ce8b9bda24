"""A run's folder: config.json, metrics.jsonl, checkpoints, TensorBoard events and result.json."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath
from typing import Any

import torch

from l2i.config import Run, from_json, to_json
from l2i.config.serialization import from_dict
from l2i.config.validate import flatten_fields
from l2i.data.samples import Fingerprint, describe_changes
from l2i.errors import DamagedFile, InputError
from l2i.files.lock import try_lock
from l2i.files.output import PARTIAL_SUFFIX, is_disk_full, write_atomic
from l2i.files.safety import check_tree

LOCK_FILE = ".lock"
FIT_FILE = "fit.json"  # marks the folder of a fit, whose runs are inside
BEST_DIR = "best"  # the averaged model that early stopping selected
# fields that may differ when a run is resumed, and those that are reported apart from the settings
FIELDS_FREE_ON_RESUME = ("out", "device", "engine", "keep_checkpoints", "data.root", "data.workers")
REPORTED_FIELDS = ("name", "seed", "steps", "precision", "threads", "save_every")

FlatSettings = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run, and the conditions under which it was obtained."""

    name: str
    metric: float
    """The final metric on the test set; lower is better."""
    metric_name: str
    metric_definition: str
    validation: float | None
    """The same metric on the validation set."""
    seed: int
    steps: int
    seconds: float
    """Time in the training loop, with evaluation and saving but without probes."""
    versions: dict[str, str]
    hardware: str
    precision: str = "float32"
    engine: str = "eager"
    """Whether steps were run eagerly or replayed as a CUDA graph."""
    concurrent_runs: int = 1
    """Number of runs that shared the device."""
    processes: int = 1
    """Number of processes that shared the run when it ended."""
    steps_per_second: float | None = None
    """Rate of the steps alone, since the run was started or resumed."""
    warnings: list[str] = field(default_factory=list)
    """Reasons to doubt the metric, such as leaked samples, constant outputs or an empty mask."""
    settings: FlatSettings | None = None
    """The run's settings, as results may be stored apart from it; None in old results."""

    def summarize(self) -> str:
        """Return a one-line summary."""
        text = f"{self.name}, seed {self.seed}: {self.metric_name} {self.metric:.2f}, "
        text += f"{self.steps} steps in {self.seconds:.1f} s"
        if self.processes > 1:
            text += f" on {self.processes} processes"
        if self.steps_per_second is not None:
            text += f" ({self.steps_per_second:.3g} steps/s without evaluation)"
        return text

    def __str__(self) -> str:
        warnings = [f"warning: {line}" for line in self.warnings]
        return "\n".join([self.summarize(), f"({self.metric_definition})", *warnings])


def resolve_run_dir(run: Run) -> Path:
    """Return the folder of a run."""
    default = f"runs/{run.name.replace('/', '-')}-seed{run.seed}"
    return Path(default if run.out is None else run.out)


def read_run(folder: Path) -> Run:
    """Read the configuration in a run folder."""
    path = folder / "config.json"
    if (folder / FIT_FILE).is_file():
        hint = f"use 'l2i report {folder}'"
        raise InputError(f"{folder} is a fit, not a run; {hint}")
    if not path.is_file():
        raise InputError(f"{folder} is not a run folder (it has no config.json); check the path")
    check_tree(folder)
    try:
        return from_json(dict(**json.loads(path.read_text(encoding="utf-8"))))
    except InputError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        raise DamagedFile(f"{path} is damaged; restore it, or choose a different folder") from None


def read_result(folder: Path) -> Result | None:
    """Read the result of a run, or return None if it is not finished."""
    path = folder / "result.json"
    if not path.exists():
        return None
    try:
        result = parse_result(path.read_bytes())
        if not math.isfinite(result.metric + result.seconds + result.steps + result.seed):
            raise ValueError("not a finite metric")
        return result
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        fix = "remove it, and run the same command to write it again"
        raise DamagedFile(f"{path} is damaged; {fix}") from None


def parse_result(content: bytes) -> Result:
    """Parse a result; raise ValueError or TypeError if it is damaged."""
    return from_dict(Result, json.loads(content))


def flatten_settings(run: Run) -> FlatSettings:
    """Return the settings of a run by path, as JSON; files and folders by name only."""
    excluded = FIELDS_FREE_ON_RESUME + REPORTED_FIELDS
    fields = {path: v for path, v in flatten_fields(run) if path not in excluded}
    names = {path: PurePath(v).name if isinstance(v, str) else v for path, v in fields.items()}
    return json.loads(json.dumps(names))  # type: ignore[no-any-return]


def write_result(folder: Path, result: Result) -> None:
    """Write result.json, which marks the run as finished."""
    _write_json(folder / "result.json", asdict(result))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_atomic(path, (json.dumps(content, indent=2) + "\n").encode())


@contextmanager
def lock_run_dir(folder: Path) -> Iterator[None]:
    """Create the folder if needed, and lock it for this process."""
    with _translate_folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        check_tree(folder)
        lock = try_lock(folder / LOCK_FILE)
    if lock is None:
        raise InputError(f"another process is using {folder}; wait, or choose a different --out")
    with lock:
        yield


@contextmanager
def _translate_folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise
        problem = f"cannot use {folder} as a run folder ({error.strerror})"
        raise InputError(f"{problem}; choose a different --out") from None


def check_available(folder: Path, run: Run) -> None:
    """Check that the folder is free or belongs to this run; others are never overwritten."""
    with _translate_folder_errors(folder):  # a name that no folder can have
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; choose a different --out")
    paths = folder.iterdir() if folder.exists() else ()
    if any(path.name != LOCK_FILE and path.suffix != PARTIAL_SUFFIX for path in paths):
        check_config(folder, to_json(read_run(folder)), run)


def check_config(folder: Path, stored: dict[str, Any], run: Run) -> None:
    """Check that the configuration stored in the folder is this run's."""
    mismatches = find_differences(stored, to_json(run))
    if mismatches:
        problem = f"{folder} contains a run with other settings ({'; '.join(mismatches[:4])})"
        raise InputError(f"{problem}; choose a different --out, or remove the folder")


def check_fingerprint(
    folder: Path, meta: dict[str, Any], fingerprint: Fingerprint, *, custom_splits: bool
) -> None:
    """Check that a checkpoint's run was trained on the samples with this fingerprint."""
    check_data_available(folder, meta, custom_splits=custom_splits)
    stored = meta.get("data")
    if not isinstance(stored, dict):
        problem = f"{folder} was trained by an older version, which recorded less of its data"
        raise InputError(f"{problem}; train again with a different --out")
    changes = describe_changes(stored, fingerprint)
    if changes is not None:
        raise InputError(
            f"the data has changed since {folder} was trained (changed: {changes}); use the "
            "--data.root that it was trained with, restore the data, or train again with a "
            "different --out"
        )


def check_data_available(folder: Path, meta: dict[str, Any], *, custom_splits: bool) -> None:
    """Check that the data of a checkpoint's run has a name, unlike splits given in Python."""
    if not meta.get("given") or custom_splits:
        return
    fit = folder.parent
    if (fit / FIT_FILE).is_file():
        raise InputError(f"{folder} is part of the fit {fit}; use 'l2i report {fit}'")
    fix = f"load it with l2i.load_model('{folder}', splits=…)"
    raise InputError(f"{folder} was trained on splits passed from Python; {fix}")


def claim_run_dir(folder: Path, run: Run) -> None:
    """Write config.json, which makes the folder this run's."""
    check_available(folder, run)
    if not (folder / "config.json").exists():
        _write_json(folder / "config.json", to_json(run))


def _is_same_list(old: Any, new: Any) -> bool:
    return (new is None or isinstance(new, tuple | list)) and list(old) == list(new or ())


def find_differences(stored: dict[str, Any], current: dict[str, Any], path: str = "") -> list[str]:
    """List the result-affecting fields that differ between two configurations."""
    mismatches: list[str] = []
    for name in sorted(stored.keys() | current.keys()):
        old, new = stored.get(name), current.get(name)
        is_equal = old == new or (isinstance(old, tuple | list) and _is_same_list(old, new))
        if isinstance(old, dict) and isinstance(new, dict):
            mismatches += find_differences(old, new, f"{path}{name}.")
        elif not is_equal and path + name not in FIELDS_FREE_ON_RESUME:
            mismatches.append(f"{path}{name} is {old} there and {new} here")
    return mismatches


def collect_versions() -> dict[str, str]:
    """Return the versions of the software that results depend on."""
    try:
        own_version = version("l2i")
    except PackageNotFoundError:  # imported from a folder, without an installation
        own_version = "unknown"
    python = platform.python_version()
    return {"l2i": own_version, "torch": torch.__version__, "python": python}


def describe_hardware(device: torch.device) -> str:
    """Describe the device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    count = torch.get_num_threads()
    return f"{names[0] if names else platform.machine()}, {count} thread{'s' if count > 1 else ''}"
