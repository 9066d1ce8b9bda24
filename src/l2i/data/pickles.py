"""Arrays out of CIFAR's python pickles, without letting a pickle call anything of Python's or numpy's."""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from l2i.data.limits import plain_file
from l2i.errors import InputError

LIMIT = 1 << 30  # bytes: CIFAR's largest file has 155 MB, 222 MB as Python 3 rewrites it
DEEPEST = 10  # tuples within tuples
INTEGERS = frozenset(kind + size for kind in "iu" for size in "1248")


class Refused(Exception):
    """What a file asked for that CIFAR's files never do."""


# What a pickle gets in place of real callables are objects without attributes or classes to get hold of, so that
# neither a call nor a state set on them (opcode BUILD) reaches further than the lines below.


class Encode:
    """`_codecs.encode`, by which Python 3 writes bytes in protocol 2: text to latin1, nothing else.

    The same text is the same bytes: asked for a million times, it fills no memory.
    """

    __slots__ = ("made",)
    made: dict[str, bytes]

    def __init__(self) -> None:
        object.__setattr__(self, "made", {})

    def __setattr__(self, name: str, value: object) -> None:
        raise Refused("a state of _codecs.encode")

    def __call__(self, text: str, encoding: str) -> bytes:
        if type(text) is not str or encoding != "latin1":
            raise Refused(f"_codecs.encode to {encoding!r}")
        if text not in self.made:
            self.made[text] = text.encode("latin1")
        return self.made[text]


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
    ("__builtin__", "bytes"): NoBytes(),
}


class Unpickler(pickle.Unpickler):
    """An unpickler that finds the few names above, and no module."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.admitted = {**ADMITTED, ("_codecs", "encode"): Encode()}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.admitted:
            raise Refused(f"{module}.{name}")
        return self.admitted[module, name]


def text_of(value: str | bytes) -> str:
    """Python 2's text comes as bytes, Python 3's as text."""
    return value.decode("latin1") if isinstance(value, bytes) else value


def load_arrays(path: Path) -> dict[str, Any]:
    """The dict a file holds: lists, numbers, bytes, and arrays of integers (read-only) as its values."""
    try:
        check_size(plain_file(path))
        content = path.read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own, of text that is written oddly
            check_program(content)
            fields = Unpickler(content).load()
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


def check_size(path: Path) -> None:
    """That a file is no larger than CIFAR's are."""
    if path.stat().st_size > LIMIT:
        raise InputError(f"{path} has over {LIMIT >> 30} GiB, which no file of CIFAR has; unpack the archive again")


def check_program(content: bytes) -> None:
    """That a pickle's instructions fill neither the memory nor the stack, in few bytes.

    No place in the unpickler's memory may lie beyond the file, and tuples may not be nested deeply: where one is a key
    of a dict, a C function that hashes it calls itself. Lengths are checked as well, since reading the instructions
    reads what they announce.
    """
    stack: list[int] = []  # how deep the tuples are that the unpickler would have there
    marks: list[int] = []
    memo: dict[int, int] = {}
    for instruction, argument, _ in pickletools.genops(content):
        name = instruction.name
        if "PUT" in name and int(argument or 0) > len(content):
            raise pickle.UnpicklingError("a place in memory that no whole pickle has")
        if "PUT" in name or name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif name == "MARK":
            marks.append(len(stack))
        elif name == "POP" and marks and marks[-1] == len(stack):
            marks.pop()
        elif "GET" in name or name == "DUP":
            stack.append(stack[-1] if argument is None else memo[argument])
        else:
            stack += [taken(instruction, stack, marks)] * len(instruction.stack_after)


def taken(instruction: pickletools.OpcodeInfo, stack: list[int], marks: list[int]) -> int:
    """Take off the stack what an instruction does, and return how deep a tuple it makes of that."""
    before = instruction.stack_before
    marked = pickletools.markobject in before
    start = marks.pop() - before.index(pickletools.markobject) if marked else len(stack) - len(before)
    depth = 1 + max(stack[start:], default=0) if "TUPLE" in instruction.name else 0
    if start < 0 or depth > DEEPEST:
        raise pickle.UnpicklingError("an empty stack, or tuples within tuples that no file of CIFAR has")
    del stack[start:]
    return depth


def name_of(key: object) -> str:
    """A key as text."""
    if not isinstance(key, str | bytes):
        raise pickle.UnpicklingError("a key is not text")
    return text_of(key)
