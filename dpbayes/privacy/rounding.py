"""Directed rounding, and sums that keep their digits.

A number that a person wrote has two exact readings: its double, and the decimal that it prints as. What is spent is
rounded up in one of them (ten requests of 0.1 fit a total of 1), and what remains is rounded down in both.
"""

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt


def nearest_float(value: Fraction) -> float:
    """Return the double nearest to `value`, infinity beyond them all."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def float_up(value: Fraction) -> float:
    """Return the smallest double that is not below `value`."""
    nearest = nearest_float(value)
    return math.nextafter(nearest, math.inf) if nearest < value else nearest


def decimal_reading(value: float) -> Fraction:
    """Return the decimal that a number prints as, exactly."""
    return Fraction(repr(value))


def float_down(value: Fraction) -> float:
    """Return the largest double that is not above `value` in either reading, so that asking for it certainly fits."""
    nearest = float(value)
    while max(Fraction(nearest), decimal_reading(nearest)) > value:
        nearest = math.nextafter(nearest, -math.inf)
    return nearest


def float_up_or_decimal(value: Fraction) -> float:
    """Return the smallest double that is not below `value`, as a double or as the decimal it prints as."""
    nearest = nearest_float(value)
    return nearest if math.isinf(nearest) or decimal_reading(nearest) >= value else float_up(value)


def decimal_down(value: Fraction) -> float:
    """Return a double that prints as a decimal not above `value`, the largest but for one step."""
    nearest = float(value)
    return nearest if decimal_reading(nearest) <= value else float_down(value)


def least_where_kept(excess: Callable[[float], float], low: float, high: float, *, step: float) -> float:
    """Return, to `step`, the least argument from which a falling certified bound is kept (excess at most 0).

    The ITP method (Oliveira and Takahashi 2021, ACM TOMS 47(1)) takes no more steps than bisection, and usually a third
    of them.
    """
    at_low, at_high = excess(low), excess(high)
    while at_high > 0.0:  # such a bound is not quite continuous
        at_high = excess(high := high + step)
    steps = math.ceil(math.log2(max((high - low) / step, 1.0))) + 1
    for left in range(steps, 0, -1):
        if high - low <= step:
            break
        middle = (low + high) / 2
        point = (at_high * low - at_low * high) / (at_high - at_low)
        side = math.copysign(1.0, middle - point)
        nudge = 0.2 * (high - low) ** 2
        point = point + side * nudge if nudge <= abs(middle - point) else middle
        radius = step * 2.0 ** (left - 1) - (high - low) / 2
        point = point if abs(point - middle) <= radius else middle - side * radius
        if (value := excess(point)) > 0.0:
            low, at_low = point, value
        else:
            high, at_high = point, value
    return high


def suffix_sums(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return ``values[i:].sum()`` for every i, with relative error about 2 sqrt(n) roundings instead of n."""
    rows = max(1, int(np.sqrt(values.size)))
    columns = -(-values.size // rows)
    table = np.zeros(rows * columns)
    table[: values.size] = values[::-1]
    table = np.cumsum(table.reshape(rows, columns), axis=1)
    table[1:] += np.cumsum(table[:-1, -1])[:, None]
    return np.asarray(table.ravel()[: values.size][::-1])
