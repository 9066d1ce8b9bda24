"""CIFAR-10 and CIFAR-100 from the files their authors publish, python or binary version.

The python version is pickles, which are loaded without letting them call anything.
"""

from __future__ import annotations

import io
import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import Any

import numpy as np
import torch

from l2i.data.datasets import make_missing_error, translate_read_errors
from l2i.data.samples import DataSet, Samples
from l2i.errors import InputError
from l2i.files.safety import check_regular_file, translate_any_error

CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar.html"
UNPACK_AGAIN = f"unpack the archive from {CIFAR_URL} again"
PIXEL_BYTES = 3 * 32 * 32  # a row is 1024 red, 1024 green, 1024 blue
MAX_FILE_BYTES = 1 << 30  # CIFAR's largest file has 155 MB, 222 MB as Python 3 rewrites it
MAX_TUPLE_DEPTH = 10  # tuples within tuples
INTEGER_DTYPES = frozenset(kind + size for kind in "iu" for size in "1248")


@dataclass(frozen=True, kw_only=True)
class CifarFormat:
    """Where the files of a dataset are, and its labels in them."""

    name: str
    classes: int
    folders: tuple[str, str]  # python and binary version
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_key: str  # of the labels, in a pickle
    label_bytes: int  # before the pixels of a binary row; the last is the label


CIFAR10 = CifarFormat(
    name="CIFAR-10",
    classes=10,
    folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
    train_files=tuple(f"data_batch_{k}" for k in range(1, 6)),
    test_files=("test_batch",),
    label_key="labels",
    label_bytes=1,
)
CIFAR100 = CifarFormat(
    name="CIFAR-100",
    classes=100,
    folders=("cifar-100-python", "cifar-100-binary"),
    train_files=("train",),
    test_files=("test",),
    label_key="fine_labels",
    label_bytes=2,  # coarse, fine
)


def _load_cifar(cifar: CifarFormat, root: str | None) -> DataSet:
    return DataSet.from_images(*_read_cifar(cifar, root), classes=cifar.classes)


def _read_cifar(cifar: CifarFormat, root: str | None) -> tuple[Samples, Samples]:
    """Read training and test images uint8 [N, 3, 32, 32] with (fine) classes [N], in file order."""
    folder, suffix = _find_folder(cifar, root)
    paths = [folder / (name + suffix) for name in (*cifar.train_files, *cifar.test_files)]
    for path in paths:
        if not path.exists():
            raise InputError(f"{cifar.name}: {path} is missing; {UNPACK_AGAIN}")
        _check_file(path, Path(root or folder).expanduser())
    parts = [(_read_binary_file if suffix else _read_python_file)(cifar, path) for path in paths]
    num_train_files = len(cifar.train_files)
    return _concat_files(parts[:num_train_files]), _concat_files(parts[num_train_files:])


load_cifar10, load_cifar100 = partial(_load_cifar, CIFAR10), partial(_load_cifar, CIFAR100)
read_cifar10, read_cifar100 = partial(_read_cifar, CIFAR10), partial(_read_cifar, CIFAR100)


def _find_folder(cifar: CifarFormat, root: str | None) -> tuple[Path, str]:
    if root is not None:
        files = (*cifar.train_files, *cifar.test_files)
        for name, suffix in zip((*cifar.folders, "", ""), ("", ".bin") * 2, strict=True):
            folder = Path(root, name).expanduser()
            if any((folder / (file + suffix)).is_file() for file in files):
                return folder, suffix
    archive = f"the python version or binary version archive from {CIFAR_URL}"
    fix = f"Download {archive} and unpack it in a folder"
    raise make_missing_error(cifar.name, root, f"neither {' nor '.join(cifar.folders)} is", fix)


def _check_file(path: Path, root: Path | None = None) -> None:
    if check_regular_file(path, root).stat().st_size > MAX_FILE_BYTES:
        limit = f"{MAX_FILE_BYTES >> 30} GiB, more than any file of CIFAR"
        raise InputError(f"{path} has over {limit}; unpack the archive again")


def _read_python_file(cifar: CifarFormat, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read rows [N, 3072] and labels [N] of a pickle."""
    fields = load_pickled_arrays(path)
    for key in ("data", cifar.label_key):
        if key not in fields:
            expected = f"a file of {cifar.name}, python version, from {CIFAR_URL}"
            raise InputError(f"{path} has no {key!r}; replace it with {expected}")
    rows = fields["data"]
    is_bytes = isinstance(rows, np.ndarray) and rows.dtype == np.uint8
    if not is_bytes or rows.shape[1:] != (PIXEL_BYTES,):
        raise InputError(f"{path}: data is not uint8 [N, {PIXEL_BYTES}]; {UNPACK_AGAIN}")
    return _check_rows(cifar, path, rows, _to_integer_array(fields[cifar.label_key]))


def _read_binary_file(cifar: CifarFormat, path: Path) -> tuple[np.ndarray, np.ndarray]:
    row_bytes = cifar.label_bytes + PIXEL_BYTES
    with translate_read_errors(path):
        raw = np.fromfile(path, np.uint8)
    if len(raw) % row_bytes:
        problem = f"it is cut short or not {cifar.name}, binary version; {UNPACK_AGAIN}"
        raise InputError(f"{path} has {len(raw)} bytes, not a multiple of {row_bytes}: {problem}")
    table = raw.reshape(-1, row_bytes)
    return _check_rows(cifar, path, table[:, cifar.label_bytes :], table[:, cifar.label_bytes - 1])


def _to_integer_array(labels: Any) -> np.ndarray | None:
    if isinstance(labels, list) and not all(type(label) is int for label in labels):
        return None  # nested lists may refer to the same few very many times
    try:
        array = np.asarray(labels)
    except (ValueError, OverflowError):
        return None
    return array if array.ndim == 1 and array.dtype.kind in "iu" else None


def _check_rows(
    cifar: CifarFormat, path: Path, rows: np.ndarray, labels: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    if not len(rows):
        problem = "there are no images"
    elif labels is None:
        problem = f"{cifar.label_key} is not a list of integers"
    elif len(rows) != len(labels):
        problem = f"{len(rows)} images and {len(labels)} labels do not match"
    elif labels.min() < 0 or labels.max() >= cifar.classes:
        bad_label = labels[(labels < 0) | (labels >= cifar.classes)][0]
        problem = f"label {bad_label} is not between 0 and {cifar.classes - 1}"
    else:
        return rows, labels.astype(np.int64)
    raise InputError(f"{path}: {problem}; check that it is from {cifar.name}, or {UNPACK_AGAIN}")


def _concat_files(parts: list[tuple[np.ndarray, np.ndarray]]) -> Samples:
    rows, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Samples(torch.from_numpy(rows.reshape(-1, 3, 32, 32)), torch.from_numpy(labels))


def load_pickled_arrays(path: Path) -> dict[str, Any]:
    """Load a dict of lists, numbers, bytes, and read-only integer arrays, running no code."""
    problem = f"{path} is damaged: it is not a complete pickle of arrays"
    with translate_any_error(problem, "unpack the archive again"):
        _check_file(path)
        # Python's own warnings are about odd escapes
        with translate_read_errors(path), warnings.catch_warnings(action="ignore"):
            fields = _unpickle(path)
        if not all(isinstance(key, str | bytes) for key in fields):
            raise UnpicklingError("a key is not text")
        return {
            _decode_text(key): value.value if isinstance(value, PickledArray) else value
            for key, value in fields.items()
        }


def _unpickle(path: Path) -> Any:
    content = path.read_bytes()
    _check_opcodes(content)
    try:
        return RestrictedUnpickler(content).load()
    except UnsafePickleError as error:
        request = ascii(str(error)[:100])[1:-1]  # the file's own words, on one short line
        raise InputError(
            f"{path} asks for {request}, which CIFAR's files never do. It could run code, "
            f"so it was not loaded; download the dataset from its publisher, {CIFAR_URL}"
        ) from None


class UnsafePickleError(Exception):
    """A pickle requests something that CIFAR's files never do."""


class RestrictedUnpickler(Unpickler):
    """An unpickler that finds a few stand-ins, and no module."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        # the same text is the same bytes: encoded a million times, it fills no memory
        encode_once = cache(lambda text: text.encode("latin1"))
        self.allowed_globals = {
            ("numpy.core.multiarray", "_reconstruct"): Stub(_reconstruct),
            ("numpy._core.multiarray", "_reconstruct"): Stub(_reconstruct),
            ("numpy", "ndarray"): NdarrayStub(),
            ("numpy", "dtype"): Stub(_make_dtype),
            ("__builtin__", "bytes"): Stub(lambda: b""),  # Python 3's empty bytes, in protocol 2
            ("_codecs", "encode"): Stub(partial(_encode, encode_once)),  # and its other bytes
        }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed_globals:
            raise UnsafePickleError(f"{module}.{name}")
        return self.allowed_globals[module, name]


class Stub:
    """Stand in for a callable without any attributes that a pickle can set (opcode BUILD)."""

    __slots__ = ("_function",)
    _function: Callable[..., object]

    def __init__(self, function: Callable[..., object]) -> None:
        object.__setattr__(self, "_function", function)

    def __setattr__(self, name: str, value: object) -> None:
        raise UnsafePickleError("a state of a function")

    def __call__(self, *args: Any) -> object:
        return self._function(*args)


class NdarrayStub:
    """Stand in for `numpy.ndarray`, the kind of array to make; it cannot be called."""

    __slots__ = ()


def _encode(encode_once: Callable[[str], bytes], text: str, encoding: str) -> bytes:
    if type(text) is not str or encoding != "latin1":
        raise UnsafePickleError(f"_codecs.encode to {encoding!r}")
    return encode_once(text)


def _reconstruct(kind: object, shape: object, code: object) -> PickledArray:
    if not isinstance(kind, NdarrayStub):
        raise UnsafePickleError("an array of a kind of its own")
    return PickledArray()


def _make_dtype(code: str | bytes, align: object = False, copy: object = True) -> IntegerDtype:
    name = _decode_text(code)
    if name not in INTEGER_DTYPES:
        raise UnsafePickleError(f"numpy.dtype {name!r}")
    return IntegerDtype(name)


class IntegerDtype:
    """An integer type whose byte order is set as its state."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *fields = state
        if _decode_text(order) not in ("<", ">", "|") or any(f is not None for f in fields[:3]):
            raise UnsafePickleError("a numpy.dtype of parts")
        self.code = _decode_text(order) + self.code[-2:]


class PickledArray:
    """An array whose shape and contents are set as its state."""

    __slots__ = ("value",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, IntegerDtype) or type(raw) is not bytes:
            raise UnsafePickleError("an array of other things than integers")
        values = np.frombuffer(raw, np.dtype(dtype.code))
        self.value = values.reshape(shape, order="F" if fortran else "C")


def _decode_text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value  # bytes of Python 2


def _check_opcodes(content: bytes) -> None:
    """Check that the instructions of a pickle fill neither the memory nor the stack.

    No index into the unpickler's memo may lie beyond the file, and tuples may not be nested deeply:
    as a key of a dict, one is hashed by a C function that calls itself. Lengths are checked as
    well, since reading the instructions reads what they announce.
    """
    depths: list[int] = []  # of the tuples on the unpickler's stack
    marks: list[int] = []
    memo: dict[int, int] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if "PUT" in name and int(argument or 0) > len(content):
            raise UnpicklingError("a place in memory that no whole pickle has")
        if "PUT" in name or name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = depths[-1]
        elif name == "MARK":
            marks.append(len(depths))
        elif name == "POP" and marks and marks[-1] == len(depths):
            marks.pop()
        elif "GET" in name or name == "DUP":
            depths.append(depths[-1] if argument is None else memo[argument])
        else:
            depths += [_pop_operands(opcode, depths, marks)] * len(opcode.stack_after)


def _pop_operands(opcode: pickletools.OpcodeInfo, depths: list[int], marks: list[int]) -> int:
    """Pop the operands of an instruction, and return the depth of the tuple it makes of them."""
    before = opcode.stack_before
    if pickletools.markobject in before:
        start = marks.pop() - before.index(pickletools.markobject)
    else:
        start = len(depths) - len(before)
    depth = 1 + max(depths[start:], default=0) if "TUPLE" in opcode.name else 0
    if start < 0 or depth > MAX_TUPLE_DEPTH:
        raise UnpicklingError("an empty stack, or tuples nested deeper than in CIFAR's files")
    del depths[start:]
    return depth
