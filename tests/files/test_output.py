"""Output files: nothing of the user's is destroyed, and an existing file keeps what it is."""

import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from l2i.errors import DiskFull, InputError
from l2i.files import output
from l2i.files.output import (
    check_output_file,
    check_outside_data,
    get_cache_dir,
    is_disk_full,
    name_file_in_errors,
    report_progress,
    translate_write_errors,
    was_written,
    write_atomic,
    write_output,
)

CSV = (".csv",)


def test_a_file_that_l2i_did_not_write_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "thesis.csv"
    path.write_text("years of work")
    with pytest.raises(InputError, match=r"l2i has no record of writing it, .*--overwrite"):
        check_output_file(path, CSV)
    assert check_output_file(path, CSV, overwrite=True) == path.resolve()


def test_a_file_is_ours_until_somebody_changes_it(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    assert not was_written(path)
    write_output(path, b"id,label\n1,a\n")
    assert was_written(path)
    assert check_output_file(path, CSV) == path.resolve()
    path.write_text("id,label\n1,b\n")  # corrected by hand
    assert not was_written(path)
    with pytest.raises(InputError, match="l2i has no record of writing it"):
        check_output_file(path, CSV)
    path.write_bytes(b"id,label\n1,a\n")
    assert was_written(path)


def test_a_file_of_ours_is_known_by_its_path(tmp_path: Path) -> None:
    write_output(tmp_path / "labels.csv", b"id,label\n")
    (tmp_path / "copy.csv").write_bytes(b"id,label\n")
    assert not was_written(tmp_path / "copy.csv")


def test_without_a_place_for_notes_a_file_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    monkeypatch.setenv("L2I_CACHE", str(tmp_path / "cache"))
    write_output(tmp_path / "labels.csv", b"id\n")
    assert (tmp_path / "labels.csv").read_bytes() == b"id\n"
    assert not was_written(tmp_path / "labels.csv")


def link_hard(path: Path, source: Path) -> None:
    path.hardlink_to(source)


def link_soft(path: Path, source: Path) -> None:
    path.symlink_to(source)


@pytest.mark.parametrize("link", [link_hard, link_soft])
def test_data_are_never_written_to_under_any_name(link: object, tmp_path: Path) -> None:
    source = tmp_path / "data.csv"
    source.write_text("precious")
    (tmp_path / "x").mkdir()
    link(tmp_path / "other.csv", source)  # type: ignore[operator]
    for out in (source, tmp_path / "other.csv", tmp_path / "x" / ".." / "data.csv"):
        with pytest.raises(InputError, match=r"it is your data .*data\.csv; choose a different"):
            check_output_file(out, CSV, data=[source], overwrite=True)


def test_files_in_a_folder_of_data_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "photos" / "cats")
    for name in ("photos/labels.csv", "photos/cats/labels.csv"):
        check_output_file(tmp_path / name, CSV, data=[tmp_path / "photos"])  # nothing is there
        (tmp_path / name).touch()
    for out in ("photos/labels.csv", "photos/cats/labels.csv", "link/labels.csv"):
        with pytest.raises(InputError, match="it is inside your data"):
            check_output_file(tmp_path / out, CSV, data=[tmp_path / "photos"], overwrite=True)
    check_output_file(tmp_path / "labels.csv", CSV, data=[tmp_path / "photos"])
    check_output_file(tmp_path / "labels.csv", CSV, data=[tmp_path / "missing.csv"])


@pytest.mark.parametrize(
    "markers",
    [
        ("fit.json", "rows.parquet"),
        ("identity.json", ".lock"),
        ("config.json", "checkpoints", "metrics.jsonl"),
    ],
)
def test_a_folder_that_l2i_trained_in_takes_no_outputs(
    markers: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / "plots").mkdir(parents=True)
    for name in markers:
        check_output_file(run / "labels.csv", CSV)  # some of the names may be anybody's
        (run / name).touch()
    (tmp_path / "link").symlink_to(run / "plots")
    for out in ("run/labels.csv", "run/plots/labels.csv", "link/labels.csv"):
        with pytest.raises(InputError, match="which l2i trained in; choose a different path"):
            check_output_file(tmp_path / out, CSV, overwrite=True)
    check_output_file(tmp_path / "labels.csv", CSV)


def test_permissions_of_an_existing_file_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    write_output(path, b"a")
    plain = stat.S_IMODE(path.stat().st_mode)
    assert plain == 0o666 & ~current_umask()
    for mode in (0o600, 0o640, 0o664):
        path.chmod(mode)
        write_output(path, b"b")
        assert stat.S_IMODE(path.stat().st_mode) == mode


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_an_unfinished_file_is_no_more_readable_than_the_one_it_replaces(tmp_path: Path) -> None:
    path, modes = tmp_path / "labels.csv", []
    path.touch(mode=0o600)

    def pieces() -> Iterator[bytes]:
        yield b"secret"
        modes.extend(stat.S_IMODE(p.stat().st_mode) for p in tmp_path.glob("*.partial"))

    write_atomic(path, pieces(), mode=0o640)
    assert modes == [0o600]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    target, link = tmp_path / "kept" / "labels.csv", tmp_path / "labels.csv"
    link.symlink_to(target)
    for content in (b"first", b"second"):
        write_output(check_output_file(link, CSV), content)
        assert link.is_symlink() and target.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "labels.csv"]


def test_a_link_that_is_swapped_after_the_check_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious.csv").write_text("precious")
    for name in ("new.csv", "ours.csv"):
        if name == "ours.csv":
            write_output(check_output_file(tmp_path / name, CSV), b"old")
        target = check_output_file(tmp_path / name, CSV)
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to(tmp_path / "precious.csv")
        write_output(target, b"labels")
        assert (tmp_path / "precious.csv").read_text() == "precious"
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).read_bytes() == b"labels"


def test_files_of_our_own_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "result.json").symlink_to(tmp_path / "precious")
    write_atomic(tmp_path / "result.json", b"{}")
    assert (tmp_path / "precious").read_text() == "precious"
    assert (tmp_path / "result.json").read_bytes() == b"{}"


def test_two_writers_of_one_name_cannot_mix(tmp_path: Path) -> None:
    """Interleaved piece by piece: both succeed, and the file is one of the two."""
    path, turns = tmp_path / "labels.csv", threading.Barrier(2)

    def pieces(letter: bytes) -> Iterator[bytes]:
        for _ in range(20):
            turns.wait()
            yield letter * 100_000

    writers = [
        threading.Thread(target=write_atomic, args=(path, pieces(letter)))
        for letter in (b"a", b"b")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert path.read_bytes() in (b"a" * 2_000_000, b"b" * 2_000_000)
    assert [p.name for p in tmp_path.iterdir()] == ["labels.csv"]


def test_a_name_as_long_as_a_name_may_be_is_written(tmp_path: Path) -> None:
    for name in ("x" * 251 + ".csv", "ä" * 125 + ".csv"):
        write_output(tmp_path / name, b"id")
        assert (tmp_path / name).read_bytes() == b"id"
    with pytest.raises(InputError, match=r"cannot write 'mine\.csv': File name too long; choose"):
        write_output(tmp_path / ("x" * 252 + ".csv"), b"id", "mine.csv")


def test_a_full_disk_is_no_wrong_input() -> None:
    with (
        pytest.raises(DiskFull, match=r"the disk is full: cannot write 'x\.csv' \(No space left"),
        translate_write_errors("x.csv"),
    ):
        raise OSError(28, "No space left on device")
    with (
        pytest.raises(InputError, match=r"cannot write 'x\.csv': Permission denied"),
        translate_write_errors("x.csv"),
    ):
        raise OSError(13, "Permission denied")


def test_an_error_names_the_file_and_not_its_unfinished_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        write_atomic(tmp_path / "nowhere" / "x.json", b"{}")
    assert raised.value.filename == str(tmp_path / "nowhere" / "x.json")


def test_an_error_without_a_number_stays_as_it_is(tmp_path: Path) -> None:
    original = OSError("a library's own")
    with pytest.raises(OSError, match="a library's own") as raised, name_file_in_errors(tmp_path):
        raise original
    assert raised.value is original


def test_a_quota_and_a_limit_on_file_sizes_are_a_full_disk() -> None:
    assert all(is_disk_full(OSError(n, "")) for n in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
    assert not any(is_disk_full(OSError(n, "")) for n in (errno.EACCES, errno.EIO, errno.EMFILE))


def test_a_place_for_a_file_is_checked_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for name in ("labels.csv", "labels.CSV"):
        assert check_output_file(str(tmp_path / name), CSV) == tmp_path / name
    for name, problem in (
        ("folder.csv", "it is a folder; add a file name"),
        ("labels.txt", r"it must end in \.csv"),
        ("labels", r"it must end in \.csv"),
        ("nowhere/labels.csv", "its folder does not exist"),
    ):
        with pytest.raises(InputError, match=problem):
            check_output_file(tmp_path / name, CSV)


def test_what_is_no_file_was_not_written(tmp_path: Path) -> None:
    write_output(tmp_path / "labels.csv", b"")
    assert was_written(tmp_path / "labels.csv")
    (tmp_path / "labels.csv").unlink()
    assert not was_written(tmp_path / "labels.csv")


def test_the_cache_lies_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for l2i_cache, xdg_cache, expected in (
        (None, None, tmp_path / "home/.cache/l2i"),
        ("", "", tmp_path / "home/.cache/l2i"),
        (None, str(tmp_path / "xdg"), tmp_path / "xdg/l2i"),
        ("~/own", str(tmp_path / "xdg"), tmp_path / "home/own"),
    ):
        for name, value in (("L2I_CACHE", l2i_cache), ("XDG_CACHE_HOME", xdg_cache)):
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        assert get_cache_dir() == expected


def test_a_fit_lies_outside_a_folder_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "photos"
    (data / "cats").mkdir(parents=True)
    (tmp_path / "link").symlink_to(data / "cats")
    (tmp_path / "table.csv").touch()
    for folder in (data, data / "run", data / "cats" / "a" / "run", tmp_path / "link" / "run"):
        with pytest.raises(InputError, match="is inside the data folder"):
            check_outside_data(folder, data)
    for folder in (tmp_path, tmp_path / "photos-run", tmp_path / "runs" / "photos"):
        check_outside_data(folder, data)
    check_outside_data(tmp_path / "table.csv" / "run", tmp_path / "table.csv")
    check_outside_data(tmp_path, tmp_path / ("x" * 300))  # reported when it is read
    monkeypatch.chdir(data)
    with pytest.raises(InputError, match="is inside the data folder"):
        check_outside_data(Path("runs"), Path())


def test_progress_is_reported_when_so_much_time_has_passed_since_the_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: clock.now))
    heard: list[str] = []
    for _ in report_progress(range(1000, 1008), 2000, "read", heard.append, noun="texts"):
        clock.now += 2.0
    assert heard == ["read 3 of 2,000 texts", "read 6 of 2,000 texts"]  # 5 s by default
    heard.clear()
    for _ in report_progress("abcd", 4, "read", heard.append, interval_s=4.0):
        clock.now += 2.0
    assert heard == ["read 2 of 4 images", "read 4 of 4 images"]


def test_without_a_home_a_file_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", fail)
    write_output(tmp_path / "labels.csv", b"id")
    assert (tmp_path / "labels.csv").read_bytes() == b"id"
    assert not was_written(tmp_path / "labels.csv")
