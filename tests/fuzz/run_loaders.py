"""The loaders of what a run or a fit leaves behind."""

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import seeds
from harmless import Loader, put, way
from safetensors import SafetensorError
from safetensors.torch import load, save

from l2i.config.validate import validate
from l2i.fit.artifact import META_FILE, OUTPUTS_FILE, ROWS_FILE, read_fit
from l2i.fit.impute import impute
from l2i.fit.preprocess import load_preprocessor
from l2i.training.checkpoint import (
    compute_digest,
    get_checkpoint_path,
    load_checkpoint,
    load_latest_checkpoint,
)
from l2i.training.loading import evaluate_run, load_full_state, read_metric_rows
from l2i.training.run_dir import read_result, read_run
from sealing import seal


def read_config(folder: Path, content: bytes) -> None:
    validate(read_run(put(folder / "config.json", content).parent))


def read_run_result(folder: Path, content: bytes) -> None:
    result = read_result(put(folder / "result.json", content).parent)
    assert result is not None


def read_metrics(folder: Path, content: bytes) -> None:
    read_metric_rows(put(folder / "metrics.jsonl", content).parent)


def read_checkpoint(folder: Path, content: bytes) -> None:
    path = put(get_checkpoint_path(folder / "checkpoints", 2), content)
    load_checkpoint(path)
    load_latest_checkpoint(path.parent)


def read_sealed(folder: Path, content: bytes) -> None:
    """A checkpoint in its run's folder, always with the right checksum: anybody can compute one."""
    put(get_checkpoint_path(folder / "checkpoints", 2), sealed(content))
    if way(content, 2):
        evaluate_run(folder)
    else:
        load_full_state(folder).trainer.close()


def read_meta(folder: Path, content: bytes) -> None:
    """The same with whole tensors; the content is the rest."""
    tensors, _ = whole_checkpoint()
    read_sealed(folder, save(tensors, {"json": content.decode("utf-8", "replace")}))


def sealed(content: bytes) -> bytes:
    """A safetensors file with the checksum of what it holds; other content as it is."""
    with suppress(SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        tensors = load(content)
        rest = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])["__metadata__"][
            "json"
        ]
        return save(tensors, {"json": rest, "digest": compute_digest(tensors, rest)})
    return content


@cache
def run_files() -> dict[str, bytes]:
    """The files of a run of two steps."""
    with TemporaryDirectory() as folder:
        run = seeds.trained(Path(folder) / "run")
        names = (
            "config.json",
            "metrics.jsonl",
            "result.json",
            "checkpoints/0000000002.safetensors",
        )
        return {name: (run / name).read_bytes() for name in names}


@cache
def whole_checkpoint() -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and meta of that run."""
    with TemporaryDirectory() as folder:
        prepare_run(Path(folder))
        return load_latest_checkpoint(Path(folder) / "checkpoints")


def prepare_run(folder: Path) -> None:
    for name, content in run_files().items():
        put(folder / name, content)


def fit_file(name: str) -> Loader:
    """One of the three files of a fit, then what `impute` and `predict` take from it."""

    def read(folder: Path, content: bytes) -> None:
        is_regression = b'"classes": null' in content if name == META_FILE else way(content, 2)
        fit = folder / ("numbers" if is_regression else "classes")
        before = (fit / name).read_bytes()
        try:
            put(fit / name, content)
            with suppress(ValueError, TypeError, RecursionError):  # a fit.json that is none
                seal(fit)
            fitted, rows = read_fit(fit)
            impute(fitted, rows)
            load_preprocessor(fitted.inputs)
        finally:
            (fit / name).write_bytes(before)
            seal(fit)

    return Loader(read=read, seeds=fit_seeds(name), prepare=fit_folders)


def fit_folders(folder: Path) -> None:
    for kind in ("classes", "numbers"):
        seeds.fit_folder(folder / kind, numbers=kind == "numbers")


def fit_seeds(name: str) -> Callable[[], list[bytes]]:
    def made() -> list[bytes]:
        with TemporaryDirectory() as folder:
            fit_folders(Path(folder))
            return [(Path(folder) / kind / name).read_bytes() for kind in ("classes", "numbers")]

    return made


def file_of_run(name: str) -> Callable[[], list[bytes]]:
    return lambda: [run_files()[name]]


def configs() -> list[bytes]:
    return [json.dumps(config).encode() for config in seeds.configs()]


def metas() -> list[bytes]:
    return [json.dumps(whole_checkpoint()[1]).encode()]


CHECKPOINT = file_of_run("checkpoints/0000000002.safetensors")
RUNS = {
    "config": Loader(read=read_config, seeds=configs),
    "result": Loader(read=read_run_result, seeds=file_of_run("result.json")),
    "metrics": Loader(read=read_metrics, seeds=file_of_run("metrics.jsonl")),
    "checkpoint": Loader(read=read_checkpoint, seeds=CHECKPOINT),
    "checkpoint-sealed": Loader(read=read_sealed, seeds=CHECKPOINT, prepare=prepare_run),
    "checkpoint-meta": Loader(read=read_meta, seeds=metas, prepare=prepare_run),
    "fit-json": fit_file(META_FILE),
    "fit-rows": fit_file(ROWS_FILE),
    "fit-outputs": fit_file(OUTPUTS_FILE),
}
