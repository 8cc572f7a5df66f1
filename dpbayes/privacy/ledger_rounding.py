"""Numbers of a budget book that people wrote: each double has two exact readings, itself and the decimal it prints as.

Nobody who writes 0.1 means 0.1000000000000000055; ten such requests fit a budget of 1. What is printed for a person is
therefore outward rounded in one of the two readings, so that 0.105 is shown as 0.105 and not as 0.10500000000000001.
"""

import math
from fractions import Fraction

from dpbayes.privacy._checks import float_up

__all__ = ["decimal_reading", "float_down", "float_up_or_decimal"]


def decimal_reading(value: float) -> Fraction:
    """Return the decimal that a number prints as, exactly.

    Examples
    --------
    >>> decimal_reading(0.1)
    Fraction(1, 10)
    """
    return Fraction(repr(value))


def float_down(value: Fraction) -> float:
    """Return the largest double that is not above `value`, as a double or as the decimal it prints as.

    Examples
    --------
    >>> float_down(Fraction(7, 10))
    0.7
    """
    nearest = float(value)
    while Fraction(nearest) > value and decimal_reading(nearest) > value:
        nearest = math.nextafter(nearest, -math.inf)
    return nearest


def float_up_or_decimal(value: Fraction) -> float:
    """Return the smallest double that is not below `value`, as a double or as the decimal it prints as.

    Examples
    --------
    >>> float_up_or_decimal(Fraction(105, 1000))
    0.105
    """
    nearest = float(value)
    return nearest if decimal_reading(nearest) >= value else float_up(value)
