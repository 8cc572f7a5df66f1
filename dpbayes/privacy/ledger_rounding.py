"""Numbers of a budget book that people wrote: each double has two exact readings, itself and the decimal it prints as.

Nobody who writes 0.1 means 0.1000000000000000055; ten such requests fit a budget of 1. What is spent is
therefore rounded up in one of the two readings (0.105 is shown as 0.105, not as 0.10500000000000001), and the epsilon
that remains is rounded down in both, because a law calibrated to it takes the double.
"""

import math
from fractions import Fraction

from dpbayes.privacy._rounding import float_up, nearest_float

__all__ = ["decimal_down", "decimal_reading", "float_down", "float_up_or_decimal"]


def decimal_reading(value: float) -> Fraction:
    """Return the decimal that a number prints as, exactly.

    Examples
    --------
    >>> decimal_reading(0.1)
    Fraction(1, 10)
    """
    return Fraction(repr(value))


def float_down(value: Fraction) -> float:
    """Return the largest double that is not above `value` in either reading, so that asking for it certainly fits.

    Examples
    --------
    >>> float_down(Fraction(7, 10))
    0.7
    >>> float_down(Fraction(1, 10))  # the double 0.1 is above 1/10
    0.09999999999999999
    """
    nearest = float(value)
    while max(Fraction(nearest), decimal_reading(nearest)) > value:
        nearest = math.nextafter(nearest, -math.inf)
    return nearest


def float_up_or_decimal(value: Fraction) -> float:
    """Return the smallest double that is not below `value`, as a double or as the decimal it prints as.

    Examples
    --------
    >>> float_up_or_decimal(Fraction(105, 1000))
    0.105
    """
    nearest = nearest_float(value)
    return nearest if math.isinf(nearest) or decimal_reading(nearest) >= value else float_up(value)


def decimal_down(value: Fraction) -> float:
    """Return a double that prints as a decimal not above `value`, the largest but for one step.

    Examples
    --------
    >>> decimal_down(Fraction(1, 10))
    0.1
    """
    nearest = float(value)
    return nearest if decimal_reading(nearest) <= value else float_down(value)
