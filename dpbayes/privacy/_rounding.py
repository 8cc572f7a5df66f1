"""Directed rounding that the privacy modules share."""

import math
from fractions import Fraction


def float_up(value: Fraction) -> float:
    """Return the smallest double that is not below `value`.

    A privacy cost that is rounded to nearest can be claimed a hair too small: 1 / (1 / 3) in doubles is 3, yet noise
    of scale `1 / 3` (the double) costs 3.0000000000000004.

    Examples
    --------
    >>> float_up(1 / Fraction(1 / 3))
    3.0000000000000004
    """
    nearest = nearest_float(value)
    return math.nextafter(nearest, math.inf) if nearest < value else nearest


def nearest_float(value: Fraction) -> float:
    """Return the double nearest to `value`, infinity beyond them all.

    Examples
    --------
    >>> nearest_float(Fraction(10) ** 400)
    inf
    """
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
