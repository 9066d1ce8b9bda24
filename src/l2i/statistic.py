"""How figures over several seeds are written."""

import math
from collections.abc import Iterable
from statistics import mean, stdev


def with_error(values: Iterable[float], digits: int = 2, sign: str = "") -> str:
    """Mean ± standard error."""
    listed = list(values)
    middle = f"{mean(listed):{sign}.{digits}f}"
    return middle if len(listed) < 2 else f"{middle} ± {stdev(listed) / math.sqrt(len(listed)):.{digits}f}"
