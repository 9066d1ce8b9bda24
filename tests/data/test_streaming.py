import multiprocessing
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from image_folders import write_class_folders
from l2i.data.datasets.imagenet import read_class_folders
from l2i.data.samples import Samples, Splits, describe_changes
from l2i.data.streaming import NUM_CORES, ImageStream, iter_batches
from l2i.errors import InputError
from l2i.files.images import ImageFiles
from waiting import PATIENCE

CPU = torch.device("cpu")
STEPS = 6


@dataclass
class Draw:
    """Four rows that depend on the step alone."""

    count: int

    def __call__(self, step: int) -> Tensor:
        return torch.randint(self.count, (4,), generator=torch.Generator().manual_seed(step))


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    return read_class_folders(str(write_class_folders(tmp_path, classes=3, per_class=5)), size=16)[
        0
    ].x


@pytest.fixture(params=[0, 2], ids=["in this process", "two workers"])
def stream(files: ImageFiles, request: pytest.FixtureRequest) -> Iterator[ImageStream]:
    made = ImageStream(files, Draw(len(files)), device=CPU, steps=STEPS, workers=request.param)
    yield made
    made.close()


def wanted(files: ImageFiles, step: int) -> Tensor:
    return files.read(Draw(len(files))(step))


def test_a_stream_gives_each_steps_rows_in_order(files: ImageFiles, stream: ImageStream) -> None:
    for step in range(STEPS):
        assert torch.equal(stream(step), wanted(files, step))


def test_a_stream_starts_anew_where_it_is_asked(files: ImageFiles, stream: ImageStream) -> None:
    for step in (0, 0, 1, 4, 5, 2, 3):  # a rehearsal, a resumed run, an earlier checkpoint
        assert torch.equal(stream(step), wanted(files, step))


def test_closing_leaves_no_worker_behind(files: ImageFiles, stream: ImageStream) -> None:
    stream(0)
    assert len(multiprocessing.active_children()) == min(stream.workers, NUM_CORES)
    stream.close()
    assert multiprocessing.active_children() == []
    assert torch.equal(stream(1), wanted(files, 1))


def test_a_stream_leaves_the_global_generator_alone(stream: ImageStream) -> None:
    before = torch.get_rng_state()
    stream(0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_damaged_file_is_named_when_its_step_comes(
    files: ImageFiles, stream: ImageStream
) -> None:
    bad = int(Draw(len(files))(2)[0])
    clean = [step for step in (0, 1) if bad not in Draw(len(files))(step)]
    Path(files.paths[bad]).write_bytes(b"no image")
    for step in clean:
        stream(step)
    with pytest.raises(
        InputError, match=f"^cannot read image {re.escape(files.paths[bad])}"
    ) as caught:
        stream(2)
    assert "Traceback" not in str(caught.value)
    assert multiprocessing.active_children() == []


def test_what_workers_need_pickles(files: ImageFiles, stream: ImageStream) -> None:
    """They are not forks of this process everywhere."""
    assert torch.equal(pickle.loads(pickle.dumps(stream.dataset))[3], wanted(files, 3))


@pytest.mark.skipif(not hasattr(os, "getpgid"), reason="no process groups")
def test_workers_are_out_of_reach_of_ctrl_c(stream: ImageStream) -> None:
    stream(0), stream(1)
    for worker in multiprocessing.active_children():
        assert os.getpgid(worker.pid) == worker.pid


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_all_rows_in_order(files: ImageFiles, workers: int) -> None:
    parts = list(iter_batches(files[2:], 5, device=CPU, workers=workers))
    assert [len(part) for part in parts] == [5, 5, 3]
    assert torch.equal(torch.cat(parts), files.read()[2:])
    assert list(iter_batches(files[:0], 5, device=CPU, workers=workers)) == []
    assert multiprocessing.active_children() == []


def test_batches_left_halfway_end_their_workers(files: ImageFiles) -> None:
    parts = iter_batches(files, 2, device=CPU, workers=2)
    next(parts)
    parts.close()
    assert multiprocessing.active_children() == []


def test_a_program_that_forgets_to_close_ends_in_silence(files: ImageFiles) -> None:
    folder = Path(files.paths[0]).parents[2]
    program = (
        "import torch; from l2i.data.datasets.imagenet import read_class_folders; "
        "from l2i.data.streaming import ChunkRows, ImageStream\n"
        f"files = read_class_folders({str(folder)!r}, size=16)[0].x\n"
        "stream = ImageStream(files, ChunkRows(15, 3), "
        "device=torch.device('cpu'), steps=5, workers=2)\n"
        "print(stream(0).shape[0])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("3\n", "", 0)


@pytest.mark.gpu
def test_batches_copied_ahead_are_whole_while_the_device_is_busy(files: ImageFiles) -> None:
    cuda = torch.device("cuda")
    stream = ImageStream(files, Draw(len(files)), device=cuda, steps=STEPS, workers=2)
    busy, saved = torch.randn(4096, 4096, device=cuda), []
    for step in (0, 1, 2, 4, 5):
        batch = stream(step)
        for _ in range(20):
            busy = torch.tanh(busy @ busy)
        saved.append((step, batch.clone()))
        del batch
    stream.close()
    for step, batch in saved:
        assert batch.device.type == "cuda"
        assert torch.equal(batch.cpu(), wanted(files, step))


def splits_of(files: ImageFiles) -> Splits:
    labels = torch.zeros(len(files), dtype=torch.long)
    samples = Samples(files, labels)
    part = samples.take(torch.arange(2))
    return Splits(
        labeled=part, unlabeled=samples, holdout=part, validation=part, test=part, classes=1
    )


def test_streamed_files_are_known_by_name_size_and_time(files: ImageFiles, tmp_path: Path) -> None:
    last = Path(files.paths[int(files.rows[-1])])
    before = splits_of(files).fingerprint()
    assert splits_of(files).fingerprint() == before
    status = last.stat()
    os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    changed = splits_of(files).fingerprint()
    assert describe_changes(before, changed) == "the modification times of the unlabelled samples"
    last.write_bytes(last.read_bytes() + b"\0")
    os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = splits_of(files).fingerprint()
    assert describe_changes(before, changed) == "the inputs of the unlabelled samples"
    reordered = splits_of(files[torch.arange(len(files)).flip(0)]).fingerprint()
    assert before["unlabeled.inputs"] != reordered["unlabeled.inputs"]
    last.unlink()
    with pytest.raises(InputError, match=f"image .*{last.name} cannot be read"):
        splits_of(files).fingerprint()


def test_files_are_known_wherever_their_folder_lies(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "here", classes=2, per_class=2)
    shutil.copytree(tmp_path / "here", tmp_path / "there", copy_function=shutil.copy2)
    here, there = (
        splits_of(read_class_folders(str(tmp_path / name), size=8)[0].x).fingerprint()
        for name in ("here", "there")
    )
    assert here == there
