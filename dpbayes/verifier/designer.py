"""Designing a verification: the least budget, or the fewest partitions, that is good enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from dpbayes._arguments import number, shown
from dpbayes.errors import InputError
from dpbayes.verifier.expectations import decisions, expected
from dpbayes.verifier.releases import NoiseName, most_partitions

__all__ = ["smallest_epsilon", "smallest_partitions"]

_LARGEST_EPSILON = 64.0
_SMALLEST_EPSILON = 1e-3


def smallest_epsilon(
    n_partitions: int,
    *,
    r: float,
    wanted: float,
    quantity: Literal["right", "width"] = "right",
    failed: float = 0.0,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
    noise: NoiseName = "two-sided-geometric",
) -> float:
    """Return the smallest epsilon that makes a verification good enough.

    Parameters
    ----------
    n_partitions
        M, as in `expected`.
    r, failed, alpha, threshold, confidence, prob, noise
        As in `expected`.
    wanted
        Least chance of the right decision, or largest mean width of the interval.
    quantity
        ``"right"`` or ``"width"``.

    Returns
    -------
    float
        Epsilon, rounded up to four digits; the next lower four digits do not suffice.

    Raises
    ------
    InputError
        If not even epsilon 64, next to no noise, suffices, or a parameter is out of range.

    Notes
    -----
    Bisection on a logarithmic scale. A decision rate is nearly, not strictly, monotone in epsilon, because releases
    are whole numbers; the value returned always reaches what is wanted.

    Examples
    --------
    >>> from dpbayes.verifier import expected
    >>> epsilon = smallest_epsilon(20, r=0.9, wanted=0.8)
    >>> expected(20, epsilon=epsilon, r=0.9).right >= 0.8
    True
    """
    enough = _criterion(quantity, wanted, r, failed, alpha, threshold, confidence, prob, noise)
    if not enough(n_partitions, _LARGEST_EPSILON):
        raise InputError(
            f"{quantity} {wanted!r} is out of reach with M = {n_partitions} partitions at r = {r!r}, however large "
            "epsilon; raise n_partitions, or want less"
        )
    low, high = math.log(_SMALLEST_EPSILON), math.log(_LARGEST_EPSILON)
    while high - low > 1e-5:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if enough(n_partitions, math.exp(middle)) else (middle, high)
    digits = 3 - math.floor(math.log10(math.exp(high)))
    rounded = math.ceil(math.exp(high) * 10**digits) / 10**digits
    return rounded if enough(n_partitions, rounded) else math.exp(high)


def smallest_partitions(
    *,
    epsilon: float,
    r: float,
    wanted: float,
    quantity: Literal["right", "width"] = "right",
    failed: float = 0.0,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
    noise: NoiseName = "two-sided-geometric",
) -> int:
    """Return the smallest number of partitions that makes a verification good enough, at a given epsilon.

    More partitions hold fewer units each, so r itself depends on M; r here is what is supposed at the M returned.

    Parameters
    ----------
    epsilon
        Cost of the release.
    r, wanted, quantity, failed, alpha, threshold, confidence, prob, noise
        As in `smallest_epsilon`.

    Returns
    -------
    int
        M. It suffices, and so does every larger M up to the next power-of-two step that was tried.

    Raises
    ------
    InputError
        If the largest M that `expected` takes does not suffice, or a parameter is out of range.

    Examples
    --------
    >>> smallest_partitions(epsilon=2.0, r=0.95, wanted=0.8) <= 20
    True
    """
    enough = _criterion(quantity, wanted, r, failed, alpha, threshold, confidence, prob, noise)
    most = most_partitions(noise, 3 if alpha is None else len(alpha))
    low, high = 0, 1
    while not enough(high, epsilon):
        if high == most:
            raise InputError(
                f"{quantity} {wanted!r} is out of reach up to M = {most} at epsilon {epsilon!r} and "
                f"r = {r!r}; raise epsilon, or want less"
            )
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle, epsilon) else (middle, high)
    return high


def _criterion(
    quantity: str,
    wanted: float,
    r: float,
    failed: float,
    alpha: Sequence[float] | None,
    threshold: float,
    confidence: float,
    prob: float,
    noise: NoiseName,
) -> Callable[[int, float], bool]:
    """Return the question whether M and epsilon suffice."""
    if quantity not in ("right", "width"):
        raise InputError(f"quantity must be 'right' or 'width', got {quantity!r}")
    if not 0 < number(wanted, "wanted") < 1:
        raise InputError(f"wanted must lie strictly between 0 and 1, got {shown(wanted)}")

    def enough(n_partitions: int, epsilon: float) -> bool:
        if quantity == "right":
            return decisions(n_partitions, epsilon, r, failed, alpha, threshold, confidence, noise)[0] >= wanted
        return (
            expected(
                n_partitions,
                epsilon=epsilon,
                r=r,
                failed=failed,
                alpha=alpha,
                threshold=threshold,
                confidence=confidence,
                prob=prob,
                noise=noise,
            ).width
            <= wanted
        )

    return enough
