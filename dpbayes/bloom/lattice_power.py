"""The n-fold convolution of a law on a lattice, by one tilted Fourier transform, with the error of its tail sums."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

__all__ = ["LatticePower", "chernoff_range", "lattice_power"]

_UNIT = 2.0**-53
# Log of the probability that Chernoff's inequality may leave outside of the lattice on either side.
_OUTSIDE = 36.0


@dataclass(frozen=True)
class LatticePower:
    """Masses of an n-fold convolution on consecutive lattice points.

    Parameters
    ----------
    first
        Index of the first point.
    mass
        Masses, shape (points,).
    error
        Bound on the error of the sum of the 1, 2, ... points nearest to the end of the side asked for, shape (points,).
    beyond
        Bound on the sum, over the steps past that end, of the mass further out.
    split
        Whether the lattice law was made by splitting values with their means kept.
    """

    first: int
    mass: np.ndarray
    error: np.ndarray
    beyond: float
    split: bool


def _log_mgf(weights: np.ndarray, values: np.ndarray, rates: np.ndarray) -> np.ndarray:
    # Weights join the exponents: one far below its neighbours may still decide, and must not underflow first.
    some = weights > 0
    exponent = np.outer(rates, values[some]) + np.log(weights[some])
    top = exponent.max(axis=1)
    return np.log(np.exp(exponent - top[:, None]).sum(axis=1)) + top


def chernoff_range(weights: np.ndarray, values: np.ndarray, n: int) -> tuple[float, float]:
    """Return where Chernoff's inequality leaves less than e^-36 of a sum of `n` terms below and above.

    Examples
    --------
    >>> low, high = chernoff_range(np.array([0.5, 0.5]), np.array([0.0, 1.0]), 1000)
    >>> 350 < low < 400, 600 < high < 650
    (True, True)
    """
    scale = float(values[-1])
    rates = np.geomspace(1e-8, 1e8, 160) / scale
    low = float(np.max((-n * _log_mgf(weights, values, -rates) - _OUTSIDE) / rates))
    high = float(np.min((n * _log_mgf(weights, values, rates) + _OUTSIDE) / rates))
    return max(low, 0.0), min(max(high, 0.0), n * scale)


def lattice_power(
    weights: np.ndarray,
    index: np.ndarray,
    *,
    n: int,
    size: int,
    theta: float,
    ends: tuple[float, float],
    side: Literal["upper", "lower"],
    split: bool,
) -> LatticePower:
    """Return the n-fold convolution of a law on lattice points `index`.

    Parameters
    ----------
    weights, index
        Masses (their sum may be below 1) and lattice points >= 0 of one term.
    n
        Number of terms.
    size
        Length of the transform, rounded up to a fast one.
    theta
        Exponential tilt per lattice step.
    ends
        Range of lattice points that the caller needs.
    side
        The end from which tails are summed.
    split
        Recorded in the result.

    Returns
    -------
    LatticePower
    """
    values = index.astype(float)
    tilted = weights * np.exp(theta * (values - (values.max() if theta > 0 else 0.0)))
    log_total = float(np.log(tilted.sum())) + (theta * float(values.max()) if theta > 0 else 0.0)
    tilted /= tilted.sum()
    low, high = chernoff_range(tilted, values, n)
    first = int(min(low, ends[0]))
    last = int(min(max(high, ends[1]), n * values.max())) + 1
    length = next_fast_len(max(last - first + 2, min(size, 64)), real=True)
    lattice = np.zeros(length)
    np.add.at(lattice, index % length, tilted)
    mass = np.roll(irfft(_integer_power(rfft(lattice), n), length), -(first % length))[: last - first + 1]
    log_growth = n * log_total - theta * (first + np.arange(mass.size))
    growth = np.exp(np.minimum(log_growth, 300.0))
    # Forward error of a transform of length N: below 3 u log2 N of its norm; n factors add up.
    log_length = np.log2(length)
    rounding = 1.1 * _UNIT * (n * (3 * log_length + 4) + 6 * log_length) * float(np.linalg.norm(mass))
    outward = growth if side == "lower" else growth[::-1]
    # What lies outside of one length, e^-36 of the tilted law on either side, may have folded onto any point.
    error = rounding * np.sqrt(np.cumsum(outward**2)) + 2 * np.exp(-_OUTSIDE) * np.maximum.accumulate(outward)
    outside = 2 * np.exp(-_OUTSIDE) * outward[0] / min(abs(theta), 1.0)
    return LatticePower(first, np.maximum(mass, 0.0) * growth, error, float(outside), split)


def _integer_power(base: np.ndarray, n: int) -> np.ndarray:
    """Raise to a whole power by squaring."""
    result = None
    while n:
        if n & 1:
            result = base.copy() if result is None else result * base
        n >>= 1
        if n:
            base = base * base
    return result if result is not None else np.ones_like(base)
