"""Parse the arguments of the modules under benchmarks/."""

from __future__ import annotations

import argparse


def make_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is the docstring of `benchmarks.MODULE`."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{module}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
