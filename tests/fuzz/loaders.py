"""All loaders by name, for tests and for `make fuzz`."""

from data_loaders import DATA
from run_loaders import RUNS

LOADERS = RUNS | DATA
