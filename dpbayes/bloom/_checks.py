"""Checks of the inputs that the Bloom modules share."""

from numbers import Real
from typing import Any, Literal, get_args

import numpy as np

from dpbayes._arguments import number, shown
from dpbayes.errors import InputError

Definition = Literal["tight", "quantile"]
"""Reading of (epsilon, delta): the hockey-stick divergence, or the paper's quantile of the privacy loss."""

MAX_FILTERS = 20
MIN_FLIP_PROB = 1e-12
"""Least flip probability supported: below it, 1 - p and powers of p/q run out of digits."""


def check_flip_prob(value: Any) -> float:
    """Return `value` as a float from 1e-12 up and below 1/2.

    Examples
    --------
    >>> check_flip_prob(0.1)
    0.1
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 < number(value, "flip_prob") < 0.5:
        raise InputError(
            f"flip_prob must lie strictly between 0 and 0.5, got {shown(value)}; "
            "0 publishes the bits as they are and 0.5 leaves nothing of them"
        )
    if value < MIN_FLIP_PROB:
        raise InputError(
            f"flip_prob must be at least {MIN_FLIP_PROB:g}, got {value!r}; less is as good as publishing the bits"
        )
    return float(value)


def check_count(value: Any, name: str, *, low: int, high: int | None = None) -> int:
    """Return `value` as an int between `low` and `high`, both included.

    Examples
    --------
    >>> check_count(7, "n_bits", low=1)
    7
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputError(f"{name} must be a whole number, got {shown(value)}")
    if value < low or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InputError(f"{name} must be {span}, got {shown(value)}")
    return int(value)


def check_decay(value: Any) -> float:
    """Return `value` as a finite float of at least 0.

    Examples
    --------
    >>> check_decay(10)
    10.0
    """
    decay = number(value, "decay")
    if not 0.0 <= decay < np.inf:
        raise InputError(f"decay must be finite and not negative, got {shown(value)}; 0 is uniform, 10 is usual")
    return decay


def check_definition(value: Any) -> Definition:
    """Return `value` if it names a definition of epsilon.

    Examples
    --------
    >>> check_definition("tight")
    'tight'
    """
    if value not in get_args(Definition):
        raise InputError(
            f"definition must be 'tight' or 'quantile', got {shown(value)}; only 'tight' implies (epsilon, delta)"
        )
    return value
