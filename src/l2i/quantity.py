"""Numbers that are counts or shares: a whole number counts, a fraction is a share of some whole."""



CountOrFraction = int | float
"""250 is 250 samples or steps; 0.05 is 5 % of all there are, and 1.0 is all."""


def resolve_count(value: CountOrFraction, total: int) -> int:
    """The count that `value` stands for; a share of something is never nothing."""
    return value if isinstance(value, int) else max(round(value * total), int(value > 0))
