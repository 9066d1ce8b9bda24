"""The ways a run ends early, each with the exit code the command line gives it."""



class InputError(ValueError):
    """Wrong input: the message says what is wrong and what to do (exit code 2)."""


class NonFiniteCost(RuntimeError):
    """A cost or gradient stopped being a number (exit code 1); the last good checkpoint stays."""


class DiskFull(RuntimeError):
    """The disk is full (exit code 1); the last checkpoint stays."""


class Stopped(RuntimeError):
    """A signal asked the run to stop; its state is saved (exit code 128 + signal)."""

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal
