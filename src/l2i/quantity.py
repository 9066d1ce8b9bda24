"""Quantities that are counts or fractions: an int counts, a float is a fraction of a total."""

CountOrFraction = int | float
"""250 means 250 samples or steps; 0.05 means 5 % of the total, and 1.0 all of it."""


def resolve_count(value: CountOrFraction, total: int) -> int:
    """Return the count that `value` stands for; a positive fraction is at least 1."""
    return value if isinstance(value, int) else max(round(value * total), int(value > 0))
