import io
import os
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from formats import class_images, python2_pickle, write_cifar10, write_cifar100
from l2i.data.datasets.cifar import load_pickled_arrays, read_cifar10, read_cifar100
from l2i.errors import InputError

REAL = os.environ.get("L2I_DATA")
real = pytest.mark.skipif(REAL is None, reason="L2I_DATA names no folder of real data")


class Call:
    """Pickles as a call of a function, which is how a pickle runs code."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def saved(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "batch"
    path.write_bytes(raw)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_pickled_arrays(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_cifar10_comes_back_as_it_was_written(tmp_path: Path) -> None:
    train, test = read_cifar10(str(write_cifar10(tmp_path, per_class=12, test_per_class=3)))
    for actual, (rows, labels) in (
        (train, class_images(10, 12, seed=1)),
        (test, class_images(10, 3, seed=2)),
    ):
        assert actual.x.dtype == torch.uint8
        assert np.array_equal(actual.x.numpy(), rows.reshape(-1, 3, 32, 32))
        assert np.array_equal(actual.y.numpy(), labels)


def test_cifar100_comes_back_with_fine_labels(tmp_path: Path) -> None:
    train, test = read_cifar100(str(write_cifar100(tmp_path, per_class=2, test_per_class=1)))
    for actual, (rows, labels) in (
        (train, class_images(100, 2, seed=1)),
        (test, class_images(100, 1, seed=2)),
    ):
        assert np.array_equal(actual.x.numpy(), rows.reshape(-1, 3, 32, 32))
        assert np.array_equal(actual.y.numpy(), labels)


@pytest.mark.parametrize(
    ("write", "read"), [(write_cifar10, read_cifar10), (write_cifar100, read_cifar100)]
)
def test_python_and_binary_versions_give_the_same(tmp_path: Path, write: Any, read: Any) -> None:
    python, binary = (read(str(write(tmp_path / str(flag), binary=flag))) for flag in (False, True))
    for one, other in zip(python, binary, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)


@pytest.mark.parametrize("binary", [False, True])
def test_the_inner_folder_may_be_given_itself(tmp_path: Path, binary: bool) -> None:
    (inner,) = write_cifar100(tmp_path, per_class=1, test_per_class=1, binary=binary).iterdir()
    assert len(read_cifar100(str(inner))[0].x) == 100


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_pickles_rewritten_by_python_3_read_the_same(tmp_path: Path, protocol: int) -> None:
    fields = {
        b"data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        b"labels": [1, 2, 3],
        b"batch_label": b"",
    }
    fields[b"turned"] = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    actual = load_pickled_arrays(saved(tmp_path, pickle.dumps(fields, protocol=protocol)))
    assert list(actual) == ["data", "labels", "batch_label", "turned"]
    assert np.array_equal(actual["data"], fields[b"data"])
    assert np.array_equal(actual["turned"], fields[b"turned"])
    assert (actual["labels"], actual["batch_label"]) == ([1, 2, 3], b"")


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, "system"), (eval, "eval"), (getattr, "getattr"), (np.load, "load")],
)
def test_a_pickle_that_would_call_something_is_refused(
    tmp_path: Path, function: Callable[..., Any], name: str, protocol: int
) -> None:
    touched = tmp_path / "touched"
    order = {os.system: f"touch {touched}", eval: f"open({str(touched)!r}, 'w')"}.get(
        function, str(touched)
    )
    path = saved(tmp_path, pickle.dumps({b"data": Call(function, order)}, protocol=protocol))
    message = refusal(path)
    assert f".{name}," in message
    assert "could run code" in message
    assert "publisher" in message
    assert not touched.exists()


@pytest.mark.parametrize(
    "raw",
    [
        b"cnumpy.f2py.capi_maps\nload_f2cmap_file\n(S'x'\ntR.",  # evaluates a file's text
        b"cnumpy.f2py.crackfortran\nmyeval\n(S'1'\ntR.",
        b"cnumpy.core.multiarray\nscalar\n(tR.",
        b"cnumpy\ncore.multiarray._reconstruct\n(tR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93.",  # dots look attributes up
        b"c__builtin__\nbytearray\n(J\xff\xff\xff\x7ftR.",
        b"\x80\x04\x8c\x03a\nb\x8c\x01c\x93.",
    ],
)
def test_other_names_of_admitted_modules_are_refused(tmp_path: Path, raw: bytes) -> None:
    assert "could run code" in refusal(saved(tmp_path, raw))


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    harmful = np.array([Call(os.system, f"touch {touched}")], dtype=object)
    for array in (
        harmful,
        np.array([None]),
        np.zeros(2, dtype=[("a", "i4")]),
        np.zeros(2),
        np.ma.zeros(2),
    ):
        assert "could run code" in refusal(
            saved(tmp_path, pickle.dumps({b"data": array}, protocol=2))
        )
    assert not touched.exists()


def test_admitted_names_do_no_more_than_they_are_for(tmp_path: Path) -> None:
    array = b"cnumpy.core.multiarray\n_reconstruct\n"
    other_codec = b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR."
    dtype_of_objects = b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR."
    array_of_another_kind = array + b"(cnumpy\ndtype\n(I0\ntS'b'\ntR."
    for raw in (other_codec, dtype_of_objects, array_of_another_kind):
        assert "could run code" in refusal(saved(tmp_path, raw))
    state_on_a_function = b"}(S'data'\n" + array + b"}S'x'\nI1\nsbu."
    called_array_type = b"}(S'data'\ncnumpy\nndarray\n(I4\ntRu."
    array_without_state = b"}(S'data'\n" + array + b"(cnumpy\nndarray\n(I0\ntS'b'\ntRu."
    for raw in (state_on_a_function, called_array_type, array_without_state):
        assert "damaged" in refusal(saved(tmp_path, raw))


def test_damaged_pickles_say_so(tmp_path: Path) -> None:
    rng, whole = (
        np.random.default_rng(0),
        python2_pickle({b"data": np.zeros((2, 3), np.uint8), b"labels": [0, 1]}),
    )
    assert set(load_pickled_arrays(saved(tmp_path, whole))) == {"data", "labels"}
    cut_short = [whole[:length] for length in range(0, len(whole), 7)]
    for raw in [
        *cut_short,
        b"no pickle",
        rng.bytes(500),
        python2_pickle([1]),
        python2_pickle({1: 2}),
    ]:
        assert "damaged" in refusal(saved(tmp_path, raw))


def test_a_huge_pickle_is_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path, b"")
    os.truncate(path, (1 << 30) + 1)  # sparse: takes no room
    assert "1 GiB" in refusal(path)


def change(root: Path, **fields: Any) -> None:
    path = root / "cifar-10-batches-py" / "data_batch_2"
    old = pickle.load(io.BytesIO(path.read_bytes()), encoding="bytes")
    new = old | {key.encode(): value for key, value in fields.items()}
    path.write_bytes(
        python2_pickle({key: value for key, value in new.items() if value is not None})
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"labels": [0, 1] * 9 + [3, 10]}, "label 10 is not between 0 and 9"),
        ({"labels": [0, 1] * 9 + [3, -1]}, "label -1 is not"),
        ({"labels": [0, 1]}, "20 images and 2 labels do not match"),
        ({"labels": [b"cat"] * 20}, "not a list of integers"),
        ({"labels": [[1], [2, 3]]}, "not a list of integers"),
        ({"labels": None}, "has no 'labels'"),
        ({"data": None}, "has no 'data'"),
        ({"data": np.zeros((20, 3000), np.uint8)}, r"not uint8 \[N, 3072\]"),
        ({"data": np.zeros((20, 3072), np.int64)}, r"not uint8 \[N, 3072\]"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "no images"),
    ],
)
def test_wrong_contents_are_told_with_the_file(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    root = write_cifar10(tmp_path, per_class=10)
    change(root, **fields)
    with pytest.raises(InputError, match=f"data_batch_2.*{message}"):
        read_cifar10(str(root))


def test_binary_files_cut_short_or_with_wrong_labels_are_told(tmp_path: Path) -> None:
    root = write_cifar100(tmp_path, per_class=1, test_per_class=1, binary=True)
    path = root / "cifar-100-binary" / "test.bin"
    raw = path.read_bytes()
    path.write_bytes(raw[:-5])
    with pytest.raises(InputError, match=r"test\.bin.*not a multiple of 3074"):
        read_cifar100(str(root))
    path.write_bytes(raw[:3074] + b"\x00\xc8" + raw[3076:])
    with pytest.raises(InputError, match=r"test\.bin.*label 200 is not between 0 and 99"):
        read_cifar100(str(root))
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"test\.bin.*no images"):
        read_cifar100(str(root))


@pytest.mark.parametrize("read", [read_cifar10, read_cifar100])
def test_a_missing_set_says_where_to_get_it_and_where_to_put_it(tmp_path: Path, read: Any) -> None:
    (tmp_path / "file").touch()
    for root in (None, str(tmp_path), str(tmp_path / "nowhere"), str(tmp_path / "file")):
        with pytest.raises(InputError, match="CIFAR-10") as caught:
            read(root)
        for part in (
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            "python version",
            "binary version",
            "--data.root",
        ):
            assert part in str(caught.value)


def test_a_set_with_a_file_missing_names_it(tmp_path: Path) -> None:
    root = write_cifar10(tmp_path, per_class=1, test_per_class=1)
    (root / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(InputError, match="data_batch_4 is missing"):
        read_cifar10(str(root))
    shutil.rmtree(root / "cifar-10-batches-py")
    with pytest.raises(InputError, match="was not found"):
        read_cifar10(str(root))


@real
@pytest.mark.parametrize(
    ("read", "each", "means"),
    [
        (read_cifar10, (5000, 1000), (0.4914, 0.4822, 0.4465)),
        (read_cifar100, (500, 100), (0.5071, 0.4866, 0.4409)),
    ],
)
def test_the_real_set_has_its_known_counts_and_means(
    read: Any, each: tuple[int, int], means: tuple[float, ...]
) -> None:
    train, test = read(REAL)
    assert set(train.y.bincount().tolist()) == {each[0]}
    assert set(test.y.bincount().tolist()) == {each[1]}
    for channel, mean in enumerate(means):
        assert abs(float(train.x[:, channel].float().mean()) / 255 - mean) < 1.5e-4


@pytest.mark.parametrize(
    "bomb",
    [b"}r\xff\xff\xff\x3f.", b"\x80\x05\x96\xff\xff\xff\x7f\x00\x00\x00\x00ab."],
    ids=["memo", "length"],
)
def test_a_few_bytes_that_ask_for_gigabytes_are_refused_at_once(
    bomb: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(bomb)
    tracemalloc.start()
    with pytest.raises(InputError, match="is damaged"):
        load_pickled_arrays(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000
