"""Designing a verification: what a budget and a number of partitions will buy, and the least that buys enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.special import xlogy

from dpbayes.errors import InputError
from dpbayes.verifier.coefficients import coefficient_table
from dpbayes.verifier.surfaces import MOST_PARTITIONS, releases_of

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Expectation", "design_surface", "expected", "smallest_epsilon", "smallest_partitions"]

_LARGEST_EPSILON = 64.0
_SMALLEST_EPSILON = 1e-3


@dataclass(frozen=True)
class Expectation:
    """What a verification will say if r and the failed share are as supposed; exact over partitions and noise.

    Parameters
    ----------
    right, wrong
        Chances that the analyst decides for the side of the threshold on which r lies, and for the other.
    width
        Mean width of the interval of r.
    coverage
        Chance that the interval holds r.
    mode_mean, mode_sd
        Mean and standard deviation of r-hat.
    mode_quantiles
        Quantiles of r-hat at .05, .25, .5, .75, .95.
    """

    right: float
    wrong: float
    width: float
    coverage: float
    mode_mean: float
    mode_sd: float
    mode_quantiles: tuple[float, ...]


def expected(
    n_partitions: int,
    *,
    epsilon: float,
    r: float,
    failed: float = 0.0,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
) -> Expectation:
    """Return what to expect of a verification, summed exactly over the true counts and the noise.

    Parameters
    ----------
    n_partitions
        M, at most 120.
    epsilon
        Cost of the release.
    r
        Supposed share of computable partitions beyond the claim's threshold; not equal to `threshold`.
    failed
        Supposed share of partitions that cannot be computed.
    alpha
        The analyst's Dirichlet prior.
    threshold, confidence
        The analyst decides that r exceeds `threshold` when its posterior probability reaches `confidence`, and that it
        does not when the complement does.
    prob
        Probability of the interval.

    Returns
    -------
    Expectation
        Decisions, width, coverage and the distribution of r-hat.

    Raises
    ------
    InputError
        If a parameter is out of range.

    Examples
    --------
    >>> more, less = (expected(20, epsilon=epsilon, r=0.9) for epsilon in (2.0, 0.5))
    >>> more.right > less.right, more.width < less.width
    (True, True)
    """
    right, wrong = _decisions(n_partitions, epsilon, r, failed, alpha, threshold, confidence)
    every = releases_of(n_partitions, epsilon=epsilon, alpha=alpha, prob=prob)
    chances = every.distribution(_counts_pmf(n_partitions, r, failed))
    mode, low, high = every.summaries
    mean = float((chances * mode).sum())
    order = np.argsort(mode, axis=None)
    below = np.cumsum(chances.ravel()[order])
    picks = [int(np.searchsorted(below, q * below[-1])) for q in (0.05, 0.25, 0.5, 0.75, 0.95)]
    return Expectation(
        right=right,
        wrong=wrong,
        width=float((chances * (high - low)).sum()),
        coverage=float((chances * ((low <= r) & (r <= high))).sum()),
        mode_mean=mean,
        mode_sd=math.sqrt(max(float((chances * (mode - mean) ** 2).sum()), 0.0)),
        mode_quantiles=tuple(mode.ravel()[order][picks].tolist()),
    )


def design_surface(
    n_partitions: Sequence[int],
    epsilon: Sequence[float],
    *,
    r: float | Sequence[float],
    failed: float = 0.0,
    alpha: Sequence[float] | None = None,
    threshold: float = 0.5,
    confidence: float = 0.95,
    prob: float = 0.95,
) -> xr.Dataset:
    """Return `expected` over a grid of M, epsilon and r.

    Parameters
    ----------
    n_partitions, epsilon, r
        The grid.
    failed, alpha, threshold, confidence, prob
        As in `expected`.

    Returns
    -------
    xarray.Dataset
        ``right``, ``wrong``, ``width``, ``coverage``, ``mode_mean``, ``mode_sd`` over n_partitions, epsilon and r.

    Examples
    --------
    >>> design_surface([5, 10], [1.0], r=[0.8, 0.9])["width"].shape
    (2, 1, 2)
    """
    import xarray as xr

    shares = [float(x) for x in np.atleast_1d(np.asarray(r, dtype=np.float64))]
    names = ("right", "wrong", "width", "coverage", "mode_mean", "mode_sd")
    found = np.empty((len(names), len(n_partitions), len(epsilon), len(shares)))
    for i, m in enumerate(n_partitions):
        for j, cost in enumerate(epsilon):
            for k, share in enumerate(shares):
                result = expected(
                    m,
                    epsilon=cost,
                    r=share,
                    failed=failed,
                    alpha=alpha,
                    threshold=threshold,
                    confidence=confidence,
                    prob=prob,
                )
                found[:, i, j, k] = [getattr(result, name) for name in names]
    dims = ("n_partitions", "epsilon", "r")
    coords = {"n_partitions": list(n_partitions), "epsilon": list(epsilon), "r": shares}
    attrs = {"failed": failed, "threshold": threshold, "confidence": confidence, "prob": prob}
    return xr.Dataset({name: (dims, found[i]) for i, name in enumerate(names)}, coords, attrs)


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
) -> float:
    """Return the smallest epsilon that makes a verification good enough.

    Parameters
    ----------
    n_partitions
        M, at most 120.
    r, failed, alpha, threshold, confidence, prob
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
    >>> epsilon = smallest_epsilon(20, r=0.9, wanted=0.8)
    >>> expected(20, epsilon=epsilon, r=0.9).right >= 0.8
    True
    """
    enough = _criterion(quantity, wanted, r, failed, alpha, threshold, confidence, prob)
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
) -> int:
    """Return the smallest number of partitions that makes a verification good enough, at a given epsilon.

    More partitions hold fewer units each, so r itself depends on M; r here is what is supposed at the M returned.

    Parameters
    ----------
    epsilon
        Cost of the release.
    r, wanted, quantity, failed, alpha, threshold, confidence, prob
        As in `smallest_epsilon`.

    Returns
    -------
    int
        M. It suffices, and so does every larger M up to the next power-of-two step that was tried.

    Raises
    ------
    InputError
        If M = 120 does not suffice, or a parameter is out of range.

    Examples
    --------
    >>> smallest_partitions(epsilon=2.0, r=0.95, wanted=0.8) <= 20
    True
    """
    enough = _criterion(quantity, wanted, r, failed, alpha, threshold, confidence, prob)
    low, high = 0, 1
    while not enough(high, epsilon):
        if high == MOST_PARTITIONS:
            raise InputError(
                f"{quantity} {wanted!r} is out of reach up to M = {MOST_PARTITIONS} at epsilon {epsilon!r} and "
                f"r = {r!r}; raise epsilon, or want less"
            )
        low, high = high, min(2 * high, MOST_PARTITIONS)
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
) -> Callable[[int, float], bool]:
    """Return the question whether M and epsilon suffice."""
    if quantity not in ("right", "width"):
        raise InputError(f"quantity must be 'right' or 'width', got {quantity!r}")
    if not 0 < wanted < 1:
        raise InputError(f"wanted must lie strictly between 0 and 1, got {wanted!r}")

    def enough(n_partitions: int, epsilon: float) -> bool:
        if quantity == "right":
            return _decisions(n_partitions, epsilon, r, failed, alpha, threshold, confidence)[0] >= wanted
        every = releases_of(n_partitions, epsilon=epsilon, alpha=alpha, prob=prob)
        _, low, high = every.summaries
        chances = every.distribution(_counts_pmf(n_partitions, r, failed))
        return float((chances * (high - low)).sum()) <= wanted

    return enough


def _decisions(
    n_partitions: int,
    epsilon: float,
    r: float,
    failed: float,
    alpha: Sequence[float] | None,
    threshold: float,
    confidence: float,
) -> tuple[float, float]:
    """Return the chances of the right and of the wrong decision."""
    if not 0.5 < confidence < 1:
        raise InputError(f"confidence must lie strictly between 0.5 and 1, got {confidence!r}; 0.95 is usual")
    if r == threshold:
        raise InputError(f"r = {r!r} lies on the threshold itself, where neither decision is right; choose another r")
    every = releases_of(n_partitions, epsilon=epsilon, alpha=alpha)
    chances = every.distribution(_counts_pmf(n_partitions, r, failed))
    above = every.prob_greater(threshold)
    yes = float(chances[above >= confidence].sum())
    no = float(chances[above <= 1 - confidence].sum())
    return (yes, no) if r > threshold else (no, yes)


def _counts_pmf(n_partitions: int, r: float, failed: float) -> np.ndarray:
    """Return the multinomial probabilities of the true counts, shape (beyond, not beyond)."""
    for name, value in (("r", r), ("failed", failed)):
        if not 0 <= value <= 1:
            raise InputError(f"{name} must lie in [0, 1], got {value!r}; it is a share of partitions")
    shares = np.array([(1 - failed) * r, (1 - failed) * (1 - r), failed])
    table = coefficient_table(n_partitions)
    logs = table.log_coefficients + xlogy(table.counts, shares).sum(axis=1)
    pmf = np.zeros((n_partitions + 1,) * 2)
    pmf[table.counts[:, 0], table.counts[:, 1]] = np.exp(logs)
    return pmf
