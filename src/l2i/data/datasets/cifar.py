"""Arrays out of CIFAR's python pickles, without letting a pickle call anything of Python's or numpy's.

MERGED:
CIFAR-10 and CIFAR-100 from the files their authors publish, python or binary version.

MERGED:
Images in class folders, as ImageNet comes; decoded only when asked for.

MERGED:
Image sets, ready to be split: MNIST and Fashion-MNIST, CIFAR, ImageNet at 72 pixels, and faces with landmarks.

"""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l2i.data.samples import DataSet, Samples, load_in_memory
from l2i.errors import InputError
from l2i.files.safety import check_regular_file

MAX_FILE_BYTES = 1 << 30  # bytes: CIFAR's largest file has 155 MB, 222 MB as Python 3 rewrites it
MAX_TUPLE_DEPTH = 10  # tuples within tuples
INTEGER_DTYPES = frozenset(kind + size for kind in "iu" for size in "1248")


class UnsafePickleError(Exception):
    """What a file asked for that CIFAR's files never do."""


# What a pickle gets in place of real callables are objects without attributes or classes to get hold of, so that
# neither a call nor a state set on them (opcode BUILD) reaches further than the lines below.
class EncodeStub:
    """`_codecs.encode`, by which Python 3 writes bytes in protocol 2: text to latin1, nothing else.

    The same text is the same bytes: asked for a million times, it fills no memory.
    """

    __slots__ = ("made",)
    made: dict[str, bytes]

    def __init__(self) -> None:
        object.__setattr__(self, "made", {})

    def __setattr__(self, name: str, value: object) -> None:
        raise UnsafePickleError("a state of _codecs.encode")

    def __call__(self, text: str, encoding: str) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise UnsafePickleError(f"_codecs.encode to {encoding!r}")
        if text not in self.made:
            self.made[text] = text.encode("latin1")
        return self.made[text]


class EmptyBytesStub:
    """`bytes`, which Python 3 calls for empty ones in protocol 2."""

    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


class NdarrayStub:
    """`numpy.ndarray`, as the kind of array to make; it cannot be called."""

    __slots__ = ()


class ReconstructStub:
    """`_reconstruct`, for plain arrays alone; shape and contents come as the array's state."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> PickledArray:
        if not isinstance(kind, NdarrayStub):
            raise UnsafePickleError("an array of a kind of its own")
        return PickledArray()


class DtypeStub:
    """`numpy.dtype`, for integers alone."""

    __slots__ = ()

    def __call__(self, code: str | bytes, align: object = False, copy: object = True) -> IntegerDtype:
        name = decode_text(code)
        if name not in INTEGER_DTYPES:
            raise UnsafePickleError(f"numpy.dtype {name!r}")
        return IntegerDtype(name)


class IntegerDtype:
    """An integer type whose byte order comes as its state."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *fields = state
        if decode_text(order) not in ("<", ">", "|") or any(field is not None for field in fields[:3]):
            raise UnsafePickleError("a numpy.dtype of parts")
        self.code = decode_text(order) + self.code[-2:]


class PickledArray:
    """An array to be, until its state comes."""

    __slots__ = ("value",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, IntegerDtype) or type(raw) is not bytes:
            raise UnsafePickleError("an array of other things than integers")
        self.value = np.frombuffer(raw, np.dtype(dtype.code)).reshape(shape, order="F" if fortran else "C")


ALLOWED_GLOBALS: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): ReconstructStub(),
    ("numpy._core.multiarray", "_reconstruct"): ReconstructStub(),
    ("numpy", "ndarray"): NdarrayStub(),
    ("numpy", "dtype"): DtypeStub(),
    ("__builtin__", "bytes"): EmptyBytesStub(),
}


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that finds the few names above, and no module."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.allowed_globals = {**ALLOWED_GLOBALS, ("_codecs", "encode"): EncodeStub()}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed_globals:
            raise UnsafePickleError(f"{module}.{name}")
        return self.allowed_globals[module, name]


def decode_text(value: str | bytes) -> str:
    """Python 2's text comes as bytes, Python 3's as text."""
    return value.decode("latin1") if isinstance(value, bytes) else value


def load_pickled_arrays(path: Path) -> dict[str, Any]:
    """The dict a file holds: lists, numbers, bytes, and arrays of integers (read-only) as its values."""
    try:
        check_file_size(check_regular_file(path))
        content = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own, of text that is written oddly
            check_opcodes(content)
            fields = RestrictedUnpickler(content).load()
        return {decode_key(key): value.value if isinstance(value, PickledArray) else value for key, value in fields.items()}
    except InputError:
        raise
    except UnsafePickleError as unsafe_error:
        request = ascii(str(unsafe_error)[:100])[1:-1]  # the file's own words: on one line, and short
        raise InputError(
            f"{path} asks for {request}, which CIFAR's files never do; such a file could run code, so it was not loaded: "
            "get the data set from its publisher, https://www.cs.toronto.edu/~kriz/cifar.html"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is there and readable") from None
    except Exception as error:  # a damaged pickle fails in many ways, all meaning the same
        raise InputError(
            f"{path} is damaged: it holds no whole pickle of arrays ({type(error).__name__}); unpack the archive again"
        ) from None


def check_file_size(path: Path) -> None:
    """That a file is no larger than CIFAR's are."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path} has over {MAX_FILE_BYTES >> 30} GiB, which no file of CIFAR has; unpack the archive again")


def check_opcodes(content: bytes) -> None:
    """That a pickle's instructions fill neither the memory nor the stack, in few bytes.

    No place in the unpickler's memory may lie beyond the file, and tuples may not be nested deeply: where one is a key
    of a dict, a C function that hashes it calls itself. Lengths are checked as well, since reading the instructions
    reads what they announce.
    """
    depths: list[int] = []  # how deep the tuples are that the unpickler would have there
    marks: list[int] = []
    memo: dict[int, int] = {}
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if "PUT" in name and int(argument or 0) > len(content):
            raise pickle.UnpicklingError("a place in memory that no whole pickle has")
        if "PUT" in name or name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = depths[-1]
        elif name == "MARK":
            marks.append(len(depths))
        elif name == "POP" and marks and marks[-1] == len(depths):
            marks.pop()
        elif "GET" in name or name == "DUP":
            depths.append(depths[-1] if argument is None else memo[argument])
        else:
            depths += [pop_operands(opcode, depths, marks)] * len(opcode.stack_after)


def pop_operands(opcode: pickletools.OpcodeInfo, depths: list[int], marks: list[int]) -> int:
    """Take off the stack what an instruction does, and return how deep a tuple it makes of that."""
    before = opcode.stack_before
    has_mark = pickletools.markobject in before
    start = marks.pop() - before.index(pickletools.markobject) if has_mark else len(depths) - len(before)
    depth = 1 + max(depths[start:], default=0) if "TUPLE" in opcode.name else 0
    if start < 0 or depth > MAX_TUPLE_DEPTH:
        raise pickle.UnpicklingError("an empty stack, or tuples within tuples that no file of CIFAR has")
    del depths[start:]
    return depth


def decode_key(key: object) -> str:
    """A key as text."""
    if not isinstance(key, str | bytes):
        raise pickle.UnpicklingError("a key is not text")
    return decode_text(key)


CIFAR_URL = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXEL_BYTES = 3 * 32 * 32  # a row is 1024 red, 1024 green, 1024 blue


@dataclass(frozen=True, kw_only=True)
class CifarFormat:
    """Where a data set's files lie and what tells its labels."""

    name: str
    classes: int
    python_folder: str
    binary_folder: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_key: str  # of the labels, in a pickle
    label_bytes: int  # before the pixels of a binary row; the last is the label


CIFAR10 = CifarFormat(
    name="CIFAR-10",
    classes=10,
    python_folder="cifar-10-batches-py",
    binary_folder="cifar-10-batches-bin",
    train_files=tuple(f"data_batch_{k}" for k in range(1, 6)),
    test_files=("test_batch",),
    label_key="labels",
    label_bytes=1,
)
CIFAR100 = CifarFormat(
    name="CIFAR-100",
    classes=100,
    python_folder="cifar-100-python",
    binary_folder="cifar-100-binary",
    train_files=("train",),
    test_files=("test",),
    label_key="fine_labels",
    label_bytes=2,  # coarse, fine
)


def read_cifar10(root: str | None) -> tuple[Samples, Samples]:
    """Training and test images uint8 [N, 3, 32, 32] with classes [N], in the files' order."""
    return read_cifar(CIFAR10, root)


def read_cifar100(root: str | None) -> tuple[Samples, Samples]:
    """Training and test images uint8 [N, 3, 32, 32] with fine classes [N], in the files' order."""
    return read_cifar(CIFAR100, root)


def read_cifar(cifar: CifarFormat, root: str | None) -> tuple[Samples, Samples]:
    """The training and the test files of whichever version lies in `root`."""
    folder, suffix = find_cifar_folder(cifar, root)
    paths = [folder / (name + suffix) for name in (*cifar.train_files, *cifar.test_files)]
    for path in paths:
        if not path.exists():
            raise InputError(f"{cifar.name}: {path} is missing; unpack the archive from {CIFAR_URL} again")
        check_file_size(check_regular_file(path, Path(root or folder).expanduser()))
    parts = [(read_binary_file if suffix else read_python_file)(cifar, path) for path in paths]
    num_train_files = len(cifar.train_files)
    return concat_files(parts[:num_train_files]), concat_files(parts[num_train_files:])


def find_cifar_folder(cifar: CifarFormat, root: str | None) -> tuple[Path, str]:
    """The folder of the files, and how their names end."""
    if root is not None:
        root_path = Path(root).expanduser()
        versions = ((cifar.python_folder, ""), (cifar.binary_folder, ".bin"))
        candidates = [(root_path / name, end) for name, end in versions] + [(root_path, end) for _, end in versions]
        for folder, end in candidates:
            if any((folder / (name + end)).is_file() for name in (*cifar.train_files, *cifar.test_files)):
                return folder, end
    reason = "no folder is given" if root is None else f"neither {cifar.python_folder} nor {cifar.binary_folder} is in {root}"
    raise InputError(
        f"{cifar.name} is not there: {reason}. Get the python version or binary version archive from {CIFAR_URL}, unpack it, "
        "and give the folder you unpacked it in as --data.root, or in L2I_DATA"
    )


def read_python_file(cifar: CifarFormat, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, 3072] and labels [N] of a pickle."""
    fields = load_pickled_arrays(path)
    for key in ("data", cifar.label_key):
        if key not in fields:
            raise InputError(f"{path} has no {key!r}: it is not a file of {cifar.name}, python version, from {CIFAR_URL}")
    rows, labels = fields["data"], to_integer_array(fields[cifar.label_key])
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != PIXEL_BYTES:
        raise InputError(f"{path}: data is not uint8 [N, {PIXEL_BYTES}]; unpack the archive from {CIFAR_URL} again")
    return check_rows(cifar, path, rows, labels)


def read_binary_file(cifar: CifarFormat, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, 3072] and labels [N] of a binary file."""
    row_bytes = cifar.label_bytes + PIXEL_BYTES
    try:
        raw = np.fromfile(path, np.uint8)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is readable") from None
    if len(raw) % row_bytes:
        raise InputError(
            f"{path} has {len(raw)} bytes, not a multiple of {row_bytes}: it is cut short or not {cifar.name}, binary "
            f"version; unpack the archive from {CIFAR_URL} again"
        )
    table = raw.reshape(-1, row_bytes)
    return check_rows(cifar, path, table[:, cifar.label_bytes :], table[:, cifar.label_bytes - 1])


def to_integer_array(labels: Any) -> np.ndarray | None:
    """A list or array of labels as an array, None where it is something else."""
    if isinstance(labels, list) and not all(type(label) is int for label in labels):
        return None  # lists within lists may be a few that are there very many times
    try:
        array = np.asarray(labels)
    except (ValueError, OverflowError):
        return None
    return array if array.ndim == 1 and array.dtype.kind in "iu" else None


def check_rows(cifar: CifarFormat, path: Path, rows: np.ndarray, labels: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows and labels of a file, if they can be right."""
    if not len(rows):
        problem = "there are no images"
    elif labels is None:
        problem = f"{cifar.label_key} is not a list of whole numbers"
    elif len(rows) != len(labels):
        problem = f"{len(rows)} images and {len(labels)} labels do not match"
    elif labels.min() < 0 or labels.max() >= cifar.classes:
        bad_label = labels[(labels < 0) | (labels >= cifar.classes)][0]
        problem = f"label {bad_label} is not from 0 to {cifar.classes - 1}"
    else:
        return rows, labels.astype(np.int64)
    raise InputError(f"{path}: {problem}; see that it is a file of {cifar.name} and unpack the archive from {CIFAR_URL} again")


def concat_files(parts: list[tuple[np.ndarray, np.ndarray]]) -> Samples:
    """Files one after the other."""
    x = np.concatenate([rows for rows, _ in parts]).reshape(-1, 3, 32, 32)
    return Samples(torch.from_numpy(x), torch.from_numpy(np.concatenate([labels for _, labels in parts])))


def load_cifar10(root: str | None) -> DataSet:
    """CIFAR-10, python or binary version."""
    return load_in_memory(read_cifar10, root, classes=10)


def load_cifar100(root: str | None) -> DataSet:
    """CIFAR-100 with its fine labels, python or binary version."""
    return load_in_memory(read_cifar100, root, classes=100)
