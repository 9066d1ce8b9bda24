"""Errors that end a run early, each with its exit code on the command line."""


class InputError(ValueError):
    """Wrong input; the message says what is wrong and what to do (exit code 2)."""

    exit_code = 2


class DamagedFile(InputError):
    """A file that l2i wrote is damaged, missing, or belongs elsewhere (exit code 1)."""

    exit_code = 1


class NonFiniteCost(RuntimeError):
    """A cost or gradient is no longer finite (exit code 1); the last good checkpoint stays."""


class DiskFull(RuntimeError):
    """The disk is full (exit code 1); the last checkpoint stays."""


class Stopped(RuntimeError):
    """A signal stopped the run; its state is saved (exit code 128 + signal)."""

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal
