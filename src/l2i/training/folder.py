"""A run's folder: config.json, metrics.jsonl, checkpoints/, TensorBoard events and, at the end, result.json."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from l2i.config import Run, from_json, to_json
from l2i.errors import InputError
from l2i.training.checkpoint import write_whole

ELSEWHERE = ("out", "device")  # fields that may differ when a run goes on


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
    """Time in the training loop, evaluation and saving included."""
    versions: dict[str, str]
    hardware: str

    def __str__(self) -> str:
        figure = f"{self.figure_name} {self.figure:.2f} ({self.definition})"
        return f"{self.name}, seed {self.seed}: {figure}, {self.steps} steps in {self.seconds:.1f} s"


def folder_of(run: Run) -> Path:
    """Where a run is kept."""
    return Path(run.out if run.out is not None else f"runs/{run.name.replace('/', '-')}-seed{run.seed}")


def read_run(folder: Path) -> Run:
    """The configuration that a run folder holds."""
    try:
        return from_json(json.loads((folder / "config.json").read_text()))
    except FileNotFoundError:
        raise InputError(f"{folder} is not a run folder (it has no config.json); give the folder of a run") from None
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, TypeError):
        raise InputError(f"{folder}/config.json is damaged; restore it, or give another folder") from None


def read_result(folder: Path) -> Result | None:
    """What the run came to, where it is done."""
    path = folder / "result.json"
    return Result(**json.loads(path.read_text())) if path.exists() else None


def write_result(folder: Path, result: Result) -> None:
    """Mark the run as done."""
    write_whole(folder / "result.json", (json.dumps(asdict(result), indent=2) + "\n").encode())


def claim(folder: Path, run: Run) -> None:
    """Make the folder this run's, or find that it is already; never overwrite another's."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give another --out")
    if not folder.exists() or not any(folder.iterdir()):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "config.json", (json.dumps(to_json(run), indent=2) + "\n").encode())
        return
    differences = _differences(to_json(read_run(folder)), to_json(run))
    if differences:
        raise InputError(
            f"{folder} holds a run of another configuration ({'; '.join(differences[:4])}); "
            "give another --out, or remove the folder"
        )


def _differences(there: dict[str, Any], here: dict[str, Any], path: str = "") -> list[str]:
    found: list[str] = []
    for name in sorted(there.keys() | here.keys()):
        old, new = there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{path}{name}.")
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
