"""Arrays out of CIFAR's python pickles, without letting a pickle call anything of Python's or numpy's."""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from l2i.errors import InputError

LIMIT = 1 << 30  # bytes: CIFAR's largest file has 155 MB, 222 MB as Python 3 rewrites it
INTEGERS = frozenset(kind + size for kind in "iu" for size in "1248")


class Refused(Exception):
    """What a file asked for that CIFAR's files never do."""


# What a pickle gets in place of real callables are objects without attributes or classes to get hold of, so that
# neither a call nor a state set on them (opcode BUILD) reaches further than the lines below.


class Encode:
    """`_codecs.encode`, by which Python 3 writes bytes in protocol 2: text to latin1, nothing else."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise Refused(f"_codecs.encode to {encoding!r}")
        return text.encode("latin1")


class NoBytes:
    """`bytes`, which Python 3 calls for empty ones in protocol 2."""

    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


class Ndarray:
    """`numpy.ndarray`, as the kind of array to make; it cannot be called."""

    __slots__ = ()


class Reconstruct:
    """`_reconstruct`, for plain arrays alone; shape and contents come as the array's state."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> Array:
        if not isinstance(kind, Ndarray):
            raise Refused("an array of a kind of its own")
        return Array()


class Dtype:
    """`numpy.dtype`, for integers alone."""

    __slots__ = ()

    def __call__(self, code: str | bytes, align: object = False, copy: object = True) -> Integer:
        name = text_of(code)
        if name not in INTEGERS:
            raise Refused(f"numpy.dtype {name!r}")
        return Integer(name)


class Integer:
    """An integer type whose byte order comes as its state."""

    __slots__ = ("code",)

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, *fields = state
        if text_of(order) not in ("<", ">", "|") or any(field is not None for field in fields[:3]):
            raise Refused("a numpy.dtype of parts")
        self.code = text_of(order) + self.code[-2:]


class Array:
    """An array to be, until its state comes."""

    __slots__ = ("value",)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, Integer) or type(raw) is not bytes:
            raise Refused("an array of other things than integers")
        self.value = np.frombuffer(raw, np.dtype(dtype.code)).reshape(shape, order="F" if fortran else "C")


ADMITTED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): Reconstruct(),
    ("numpy", "ndarray"): Ndarray(),
    ("numpy", "dtype"): Dtype(),
    ("_codecs", "encode"): Encode(),
    ("__builtin__", "bytes"): NoBytes(),
}


class Unpickler(pickle.Unpickler):
    """An unpickler that finds the few names above, and no module."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise Refused(f"{module}.{name}")
        return ADMITTED[module, name]


def text_of(value: str | bytes) -> str:
    """Python 2's text comes as bytes, Python 3's as text."""
    return value.decode("latin1") if isinstance(value, bytes) else value


def load_arrays(path: Path) -> dict[str, Any]:
    """The dict a file holds: lists, numbers, bytes, and arrays of integers (read-only) as its values."""
    try:
        if path.stat().st_size > LIMIT:
            raise InputError(f"{path} has over {LIMIT >> 30} GiB, which no file of CIFAR has; unpack the archive again")
        content = path.read_bytes()
        check_memo(content)
        fields = Unpickler(io.BytesIO(content), encoding="bytes").load()
        return {name_of(key): value.value if isinstance(value, Array) else value for key, value in fields.items()}
    except InputError:
        raise
    except Refused as refused:
        asked = ascii(str(refused)[:100])[1:-1]  # the file's own words: on one line, and short
        raise InputError(
            f"{path} asks for {asked}, which CIFAR's files never do; such a file could run code, so it was not loaded: "
            "get the data set from its publisher, https://www.cs.toronto.edu/~kriz/cifar.html"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); see that it is there and readable") from None
    except Exception as error:  # a damaged pickle fails in many ways, all meaning the same
        raise InputError(
            f"{path} is damaged: it holds no whole pickle of arrays ({type(error).__name__}); unpack the archive again"
        ) from None


def check_memo(content: bytes) -> None:
    """That no place in the unpickler's memory is asked for that lies beyond the file: a few bytes would fill gigabytes.

    Lengths are checked as well, since reading the instructions reads what they announce.
    """
    for instruction, argument, _ in pickletools.genops(content):
        if "PUT" in instruction.name and int(argument or 0) > len(content):
            raise pickle.UnpicklingError("a place in memory that no whole pickle has")


def name_of(key: object) -> str:
    """A key as text."""
    if not isinstance(key, str | bytes):
        raise pickle.UnpicklingError("a key is not text")
    return text_of(key)
