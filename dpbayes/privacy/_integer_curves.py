"""Privacy curves of integer noise: two-sided geometric and discrete Gaussian."""

from typing import Any

import numpy as np

from dpbayes.errors import InputError
from dpbayes.privacy._form_checks import (
    checked_delta,
    each,
    integer_move,
    listed,
    ratio,
    rounding_of,
    symmetric,
    width,
)
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.curves import PrivacyLoss
from dpbayes.privacy.loss_law import LossLaw

__all__ = [
    "discrete_gaussian_delta",
    "discrete_gaussian_epsilon",
    "discrete_gaussian_loss",
    "geometric_delta",
    "geometric_epsilon",
    "geometric_loss",
]

_LARGEST_STDDEV = 1e6
_LARGEST_MOVE = 1 << 20


def geometric_delta(epsilon: Any, *, scale: float, sensitivity: int = 1, adjacency: Adjacency | None = None) -> Any:
    r"""Return the smallest delta of two-sided geometric noise.

    Parameters
    ----------
    epsilon
        At least 0; scalar or array.
    scale
        s of the pmf tanh(1 / (2 s)) exp(-abs(x) / s) on the integers.
    sensitivity
        Largest change of the integer between neighbours.
    adjacency
        The relation that `sensitivity` was derived under, for the reader; checked, and without effect on the number.

    Returns
    -------
    float or numpy.ndarray

    Raises
    ------
    InputError
        If an argument is out of range.

    Notes
    -----
    With :math:`a = e^{-1/s}` and j the largest integer with loss :math:`(\Delta - 2j)/s > \epsilon`,
    :math:`\delta (1 + a) = (1 - e^{\epsilon - \Delta/s}) + (a^{-j} - 1)(a^{j+1} - e^\epsilon a^\Delta)`: the outcomes
    up to 0, and those from 1 to j; no term is negative.

    Examples
    --------
    >>> round(geometric_delta(0.5, scale=1.0), 6)
    0.287649
    """
    scale, move = width(scale, "scale"), integer_move(sensitivity, adjacency)
    most = ratio(move, scale)

    def one(e: float) -> float:
        if e >= most:
            return 0.0
        j = int(np.ceil((move - e * scale) / 2)) - 1
        first = -np.expm1(e - most)
        rest = np.exp(-1 / scale) * -np.expm1(-j / scale) * -np.expm1(e - (move - j - 1) / scale) if j > 0 else 0.0
        return float((first + rest) / (1 + np.exp(-1 / scale)))

    return each(one, epsilon)


def geometric_epsilon(delta: float, *, scale: float, sensitivity: int = 1, adjacency: Adjacency | None = None) -> float:
    """Return the smallest epsilon of two-sided geometric noise, rounded up by about 1e-13.

    Parameters
    ----------
    delta
        At least 0 and below 1.
    scale, sensitivity, adjacency
        As in `geometric_delta`.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(geometric_epsilon(0.0, scale=2.0), 9)
    0.5
    """
    return geometric_loss(scale=scale, sensitivity=sensitivity, adjacency=adjacency).epsilon(checked_delta(delta))


def geometric_loss(*, scale: float, sensitivity: int = 1, adjacency: Adjacency | None = None) -> PrivacyLoss:
    """Return the privacy loss of two-sided geometric noise: sensitivity + 1 values on a lattice, exact to rounding.

    Parameters
    ----------
    scale
        As in `geometric_delta`.
    sensitivity
        Largest change of the integer between neighbours, at most 2^20.
    adjacency
        The relation that `sensitivity` belongs to; losses of different relations do not compose.

    Returns
    -------
    PrivacyLoss

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(geometric_loss(scale=10.0).compose(100).epsilon(1e-6), 6)
    4.774568
    """
    scale, move = width(scale, "scale"), integer_move(sensitivity, adjacency)
    if move > _LARGEST_MOVE:
        raise InputError(f"a sensitivity of {move} needs a list of as many losses; use the Laplace curve above 2**20")
    most = ratio(move, scale)
    t = np.arange(move + 1)
    inside = np.where((t > 0) & (t < move), -np.expm1(-1 / scale), 1.0)
    mass = inside * np.exp(-t / scale) / (1 + np.exp(-1 / scale))
    loss = (move - 2 * t) / scale
    return symmetric(listed(loss[::-1], mass[::-1], log_error=rounding_of(most), shift=2e-15 * most), adjacency)


def discrete_gaussian_delta(
    epsilon: Any, *, stddev: float, sensitivity: int = 1, adjacency: Adjacency | None = None
) -> Any:
    r"""Return the smallest delta of discrete Gaussian noise (Canonne, Kamath and Steinke 2020, Theorem 7).

    Parameters
    ----------
    epsilon
        At least 0; scalar or array.
    stddev
        sigma of the pmf proportional to ``exp(-x**2 / (2 sigma**2))`` on the integers, at most 1e6.
    sensitivity, adjacency
        As in `geometric_delta`.

    Returns
    -------
    float or numpy.ndarray

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(discrete_gaussian_delta(1.0, stddev=3.730631634816464), 9)
    1.0346e-05
    """
    sigma, move = _stddev(stddev), integer_move(sensitivity, adjacency)
    ratio(move, sigma)
    log_norm = _log_norm(sigma)

    def one(e: float) -> float:
        # Outcomes x below this have loss (move**2 - 2 move x) / (2 sigma**2) above epsilon.
        last = np.ceil(0.5 * move - e * sigma * sigma / move) - 1
        if last < -1e150:
            return 0.0
        # Beyond 40 sigma exp ends.
        last = min(last, np.ceil(40 * sigma))
        x = last - np.arange(int(np.ceil(9 * sigma + max(0.0, last))) + 40, dtype=float)
        loss = (0.5 * move - x) * (move / (sigma * sigma))
        return float(np.sum(np.exp(-0.5 * (x / sigma) ** 2 - log_norm) * -np.expm1(np.minimum(e - loss, 0.0))))

    with np.errstate(over="ignore"):
        return each(one, epsilon)


def discrete_gaussian_epsilon(
    delta: float, *, stddev: float, sensitivity: int = 1, adjacency: Adjacency | None = None
) -> float:
    """Return the smallest epsilon of discrete Gaussian noise, rounded up by about 1e-13.

    Parameters
    ----------
    delta
        At least 0 and below 1; infinite epsilon at 0.
    stddev, sensitivity, adjacency
        As in `discrete_gaussian_delta`.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(discrete_gaussian_epsilon(1e-5, stddev=3.730631634816464), 6)
    1.002623
    """
    loss = discrete_gaussian_loss(stddev=stddev, sensitivity=sensitivity, adjacency=adjacency)
    return loss.epsilon(checked_delta(delta))


def discrete_gaussian_loss(*, stddev: float, sensitivity: int = 1, adjacency: Adjacency | None = None) -> PrivacyLoss:
    """Return the privacy loss of discrete Gaussian noise: a lattice, exact to rounding for delta above 1e-280.

    Parameters
    ----------
    stddev
        As in `discrete_gaussian_delta`; the lattice has 74 points a unit of it.
    sensitivity, adjacency
        As in `geometric_loss`.

    Returns
    -------
    PrivacyLoss

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(discrete_gaussian_loss(stddev=10.0).compose(1000).epsilon(1e-6), 5)
    19.42366
    """
    sigma, move = _stddev(stddev), integer_move(sensitivity, adjacency)
    ratio(move, sigma)
    # exp(-37**2 / 2) = 1e-297: what is left out is below 1e-295 and counted as infinite loss.
    radius = int(np.ceil(37 * sigma)) + 1
    x = np.arange(radius, -radius - 1, -1, dtype=float)
    with np.errstate(over="ignore"):
        mass = np.exp(-0.5 * (x / sigma) ** 2 - _log_norm(sigma))
    keep = mass > 1e-300
    loss = (0.5 * move - x) * (move / (sigma * sigma))
    return symmetric(
        LossLaw(loss[keep], mass[keep], missing=1e-290, log_error=3e-13, shift=2e-15 * float(loss[-1])), adjacency
    )


def _stddev(stddev: float) -> float:
    sigma = width(stddev, "stddev")
    if sigma > _LARGEST_STDDEV:
        raise InputError(f"stddev must be at most 1e6, got {stddev:g}; beyond it the Gaussian curve is the same")
    return sigma


def _log_norm(sigma: float) -> float:
    """Logarithm of the sum of exp(-x**2 / (2 sigma**2)) over the integers."""
    if sigma < 1.0:
        with np.errstate(over="ignore"):
            return float(np.log1p(2 * np.sum(np.exp(-0.5 * (np.arange(1, 40) / sigma) ** 2))))
    # Poisson summation: the dual sum converges at once.
    dual = np.exp(-2 * (np.pi * sigma * np.arange(1, 4)) ** 2)
    return float(np.log(sigma * np.sqrt(2 * np.pi)) + np.log1p(2 * np.sum(dual)))
