"""Checks and directed rounding that the privacy modules share."""

import math
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np

from dpbayes._arguments import shown
from dpbayes.errors import InputError


def positive_finite(value: Any, name: str, *, remedy: str) -> float:
    """Return `value` as a float, or say why it cannot be a positive finite number.

    Raises
    ------
    InputError
        If `value` is no real number (a bool is none), is not finite, or is not above zero.

    Examples
    --------
    >>> positive_finite(2, "scale", remedy="give sensitivity / epsilon")
    2.0
    """
    if isinstance(value, bool) or not isinstance(value, (Real, Integral)):
        raise InputError(f"{name} must be a real number, got {shown(value)}; {remedy}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name} must be positive and finite, got {shown(value)}; {remedy}")
    return number


def probability_below_one(value: Any, name: str, *, remedy: str) -> float:
    """Return `value` as a float strictly between 0 and 1, or raise `InputError`.

    Examples
    --------
    >>> probability_below_one(1e-6, "delta", remedy="a usual choice is below 1 / n")
    1e-06
    """
    number = positive_finite(value, name, remedy=remedy)
    if number >= 1:
        raise InputError(f"{name} must be below 1, got {shown(value)}; {remedy}")
    return number


def real_numbers(value: Any, name: str) -> np.ndarray:
    """Return `value` as an array of doubles, so that no later step computes in a narrower type.

    Raises
    ------
    InputError
        If an entry is no real number or beyond the doubles; NaN and the infinities are left to the caller.

    Examples
    --------
    >>> real_numbers(np.float16(0.5), "epsilon").dtype
    dtype('float64')
    """
    try:
        # NumPy would read "0.7" as 0.7 and True as 1.
        if np.asarray(value).dtype.kind not in "USbc":
            return np.asarray(value, dtype=float)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(
        f"{name} must be real and within the range of doubles, got {shown(value)}; give it as plain numbers"
    )


def number(value: Any, name: str) -> float:
    """Return `value` as a float that is not NaN, or raise `InputError`.

    Examples
    --------
    >>> number(np.float32(0.5), "epsilon")
    0.5
    """
    result = real_numbers(value, name)
    if result.ndim or np.isnan(result):
        raise InputError(f"{name} must be a number, got {shown(value)}")
    return float(result)


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
