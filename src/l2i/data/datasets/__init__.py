"""The datasets: one module per source, with functions from a folder to a DataSet."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from l2i.errors import InputError


@contextmanager
def translate_read_errors(path: Path, rewrite: str = "save it as UTF-8") -> Iterator[None]:
    """Turn read errors into InputErrors; `rewrite` is the fix for text that is not UTF-8."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; {rewrite}") from None
    except OSError as error:
        fix = "check that it is a readable file"
        raise InputError(f"{path} cannot be read ({error.strerror}); {fix}") from None


def make_missing_error(name: str, root: str | None, missing: str, fix: str) -> InputError:
    """Return the error for missing files; `missing` is "a.txt is not" or "neither a nor b is"."""
    reason = "no folder was given" if root is None else f"{missing} in {root}"
    set_root = "then set --data.root or L2I_DATA to that folder"
    return InputError(f"{name} was not found: {reason}. {fix}; {set_root}")
