"""Numbers that are counts or shares: a whole number counts, a fraction is a share of some whole."""

Count = int | float
"""250 is 250 samples or steps; 0.05 is 5 % of all there are, and 1.0 is all."""


def resolved(value: Count, whole: int) -> int:
    """The count that `value` stands for; a share of something is never nothing."""
    return value if isinstance(value, int) else max(round(value * whole), int(value > 0))
