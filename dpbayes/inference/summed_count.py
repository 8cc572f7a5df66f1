r"""One normal count behind several noisy ones, summed out: its integral, the integral's slopes, and its quantiles.

A count e is a priori normal with mean m and variance :math:`\tau^2`, and each of C released numbers says where it is:

.. math:: I = \int N(e;\, m, \tau^2)\, \prod_c \exp\bigl(-a_c |e - t_c| - b_c (e - t_c)^2\bigr)\, de.

The squares join the normal law, which becomes :math:`N(m', \sigma^2)`. Between neighbouring kinks :math:`t_l, t_{l+1}`
the rest is :math:`\exp(o_l - s_l (e - m'))`, so that I is a sum of C + 1 masses of shifted normal laws,

.. math:: I_l = \exp\bigl(o_l + \tfrac12 s_l^2\sigma^2\bigr)
          \left[\Phi\Bigl(\tfrac{e - m'}{\sigma} + s_l\sigma\Bigr)\right]_{t_l}^{t_{l+1}}.

With :math:`p_l = I_l / I` and f the product of the kinked factors, Stein's identity and the heat equation give

.. math:: \frac{\partial\log I}{\partial m'} = -\sum_l p_l s_l, \qquad
          \frac{\partial\log I}{\partial t_c} = a_c \bigl(P(e > t_c) - P(e < t_c)\bigr), \qquad
          \frac{\partial\log I}{\partial\sigma^2} = \tfrac12\sum_l p_l s_l^2 - \sum_c a_c \frac{N(t_c) f(t_c)}{I}.

Two-sided geometric noise in its relaxed form and Laplace noise have a kink, the two Gaussian laws a square.
"""

import math
from typing import Any

import numba
import numpy as np

__all__ = ["count_quantile", "summed_count", "workspace"]

_LOG_ROOT_TAU = 0.5 * math.log(2.0 * math.pi)
# Beyond this many standard deviations the complementary error function loses digits and then vanishes.
_FAR = 30.0
# What is left out where an interval has no end: a share exp(-40^2 / 2) of its mass at the most.
_WIDE = 40.0


@numba.njit(cache=False)
def _mills(x: Any) -> Any:
    """Return (1 - Phi(x)) / phi(x) far out, to 2e-12."""
    y = 1.0 / (x * x)
    return (1.0 - y * (1.0 - y * (3.0 - y * (15.0 - 105.0 * y)))) / x


@numba.njit(cache=False)
def _log_mass(low: Any, high: Any) -> Any:
    """Return the logarithm of the standard normal mass between two points."""
    if high <= low:
        return -math.inf
    if high < 0.0:
        low, high = -high, -low
    if low > _FAR:
        left = _mills(low) - math.exp(0.5 * (low - high) * (low + high)) * _mills(high)
        return -0.5 * low * low - _LOG_ROOT_TAU + math.log(left) if left > 0.0 else -math.inf
    if low > 0.0:
        mass = math.erfc(low / math.sqrt(2.0)) - math.erfc(high / math.sqrt(2.0))
    else:
        mass = math.erf(high / math.sqrt(2.0)) - math.erf(low / math.sqrt(2.0))
    return math.log(0.5 * mass) if mass > 0.0 else -math.inf


@numba.njit(cache=False)
def _joined(mean: Any, variance: Any, places: Any, squares: Any) -> Any:
    """Return mean and variance of the normal law that the squares have joined, and the log of what they leave over."""
    total = moment = 0.0
    for c in range(places.size):
        total += 2.0 * squares[c]
        moment += 2.0 * squares[c] * (places[c] - mean)
    joint = variance / (1.0 + variance * total)
    centre = mean + joint * moment
    over = -0.5 * math.log1p(variance * total) - 0.5 * (centre - mean) ** 2 / variance
    for c in range(places.size):
        over -= squares[c] * (places[c] - centre) ** 2
    return centre, joint, over


@numba.njit(cache=False)
def _pieces(centre: Any, stddev: Any, places: Any, kinks: Any, work: Any) -> Any:
    """Write the order of the kinks and each interval's slope, ends, factor and log-mass; return the log of all."""
    order, slopes, ends, factors, logs = work
    count = places.size
    for c in range(count):  # insertion sort: there are four
        i = c
        while i > 0 and places[order[i - 1]] > places[c]:
            order[i] = order[i - 1]
            i -= 1
        order[i] = c
    slope = level = 0.0
    for c in range(count):
        slope -= kinks[c]
        level -= kinks[c] * (places[c] - centre)
    for piece in range(count + 1):
        if piece > 0:
            c = order[piece - 1]
            slope += 2.0 * kinks[c]
            level += 2.0 * kinks[c] * (places[c] - centre)
        shift = slope * stddev
        low = (places[order[piece - 1]] - centre) / stddev + shift if piece > 0 else -math.inf
        high = (places[order[piece]] - centre) / stddev + shift if piece < count else math.inf
        if piece == 0:
            low = min(high, 0.0) - _WIDE
        if piece == count:
            high = max(low, 0.0) + _WIDE
        slopes[piece], ends[piece, 0], ends[piece, 1] = slope, low, high
        factors[piece] = level + 0.5 * shift * shift
        logs[piece] = factors[piece] + _log_mass(low, high)
    top = logs.max()
    total = 0.0
    for piece in range(count + 1):
        total += math.exp(logs[piece] - top)
    return top + math.log(total)


@numba.njit(cache=False)
def summed_count(mean: Any, variance: Any, places: Any, kinks: Any, squares: Any, in_places: Any, work: Any) -> Any:
    """Return log I and its derivatives in mean and variance; write those in the places.

    Parameters
    ----------
    mean, variance
        The normal law of the count before the release.
    places
        Where each released number says the count is, shape ``(C,)``.
    kinks, squares
        Rates a and b of each number's noise, shape ``(C,)``.
    in_places
        Receives the derivatives in `places`, shape ``(C,)``.
    work
        What `workspace` returns for C.

    Returns
    -------
    log_integral, in_mean, in_variance : float
    """
    order, slopes, ends, factors, logs = work
    centre, joint, over = _joined(mean, variance, places, squares)
    stddev = math.sqrt(joint)
    log_sum = _pieces(centre, stddev, places, kinks, work)
    in_centre = in_joint = before = 0.0
    for piece in range(places.size + 1):
        share = math.exp(logs[piece] - log_sum)
        in_centre -= share * slopes[piece]
        in_joint += 0.5 * share * slopes[piece] * slopes[piece]
        before += share
        if piece < places.size:
            c = order[piece]
            in_places[c] = kinks[c] * (1.0 - 2.0 * before)
            if kinks[c] > 0.0:  # the normal density times the kinked factors, where this interval ends
                density = math.exp(factors[piece] - 0.5 * ends[piece, 1] ** 2 - _LOG_ROOT_TAU - log_sum) / stddev
                in_joint -= kinks[c] * density
    share = joint / variance
    for c in range(places.size):
        in_places[c] += 2.0 * squares[c] * (joint * in_centre - (places[c] - centre))
    off = (centre - mean) / variance
    in_mean = share * in_centre + off
    in_variance = share * share * in_joint + share * off * in_centre + 0.5 * (share - 1.0) / variance + 0.5 * off * off
    return over + log_sum, in_mean, in_variance


@numba.njit(cache=False)
def count_quantile(mean: Any, variance: Any, places: Any, kinks: Any, squares: Any, level: Any, work: Any) -> Any:
    """Return the count below which a share of its law given the released numbers lies.

    Parameters
    ----------
    mean, variance, places, kinks, squares, work
        As for `summed_count`.
    level
        The share, in (0, 1).

    Returns
    -------
    float
    """
    _, slopes, ends, _, logs = work
    centre, joint, _ = _joined(mean, variance, places, squares)
    stddev = math.sqrt(joint)
    log_sum = _pieces(centre, stddev, places, kinks, work)
    left, piece = level, 0
    while piece < places.size and left >= math.exp(logs[piece] - log_sum):
        left -= math.exp(logs[piece] - log_sum)
        piece += 1
    low, high = ends[piece, 0], ends[piece, 1]
    whole = _log_mass(low, high)
    target = math.log(max(left, 1e-300)) - (logs[piece] - log_sum) + whole
    start = low
    for _ in range(60):
        middle = 0.5 * (low + high)
        if _log_mass(start, middle) < target:
            low = middle
        else:
            high = middle
    return centre + stddev * (0.5 * (low + high) - slopes[piece] * stddev)


@numba.njit(cache=False)
def workspace(count: Any) -> Any:
    """Return the arrays that hold the intervals between so many kinks."""
    pieces = count + 1
    return np.zeros(count, np.int64), np.zeros(pieces), np.zeros((pieces, 2)), np.zeros(pieces), np.zeros(pieces)
