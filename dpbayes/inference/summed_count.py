r"""One normal count behind several noisy ones, summed out: its integral, the integral's slopes, and its quantiles.

A count e is a priori normal with mean m and variance :math:`\tau^2`, and each of C released numbers says where it is:

.. math:: I = \int N(e;\, m, \tau^2)\, \prod_c \exp\bigl(-a_c |e - t_c| - b_c (e - t_c)^2\bigr)\, de.

The squares join the normal law, which becomes :math:`N(m', \sigma^2)`. Between neighbouring kinks :math:`t_l, t_{l+1}`
the rest is :math:`\exp(o_l - s_l (e - m'))`, so that I is a sum of C + 1 masses of shifted normal laws,

.. math:: I_l = \exp\bigl(o_l + \tfrac12 s_l^2\sigma^2\bigr)
          \left[\Phi\Bigl(\tfrac{e - m'}{\sigma} + s_l\sigma\Bigr)\right]_{t_l}^{t_{l+1}}.

With z the argument of Phi, :math:`R(z) = (1 - \Phi(z))/\varphi(z)` and D the whole integrand, a mass of
:math:`\sigma D(t) R(z)` of that normal law lies to the right of a kink where :math:`z \ge 0`, and of
:math:`\sigma D(t) R(-z)` to its left where not: an interval's mass is a difference of these, or what they leave of the
whole law. So a kink costs one exponential, and digits are kept far out.

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

from dpbayes.inference.mills_ratio import mills_ratio

__all__ = ["count_quantile", "summed_count", "workspace"]

_ROOT_TAU = math.sqrt(2.0 * math.pi)
# Where an interval has no end, its quantiles are sought so many standard deviations out: what is left out is a share
# exp(-40^2 / 2) of its mass at the most.
_WIDE = 40.0


@numba.njit(cache=False, error_model="numpy")
def _mass(low: Any, high: Any, at_low: Any, at_high: Any, top: Any) -> Any:
    """Return the integral of exp(top - z^2 / 2) between two points, where it has these values."""
    if low >= 0.0:
        return at_low * mills_ratio(low) - at_high * mills_ratio(high)
    if high <= 0.0:
        return at_high * mills_ratio(-high) - at_low * mills_ratio(-low)
    return _ROOT_TAU * math.exp(top) - at_low * mills_ratio(-low) - at_high * mills_ratio(high)


@numba.njit(cache=False, error_model="numpy")
def _joined(mean: Any, variance: Any, places: Any, squares: Any) -> Any:
    """Return mean and variance of the normal law that the squares have joined, and the log of what they leave over."""
    total = moment = 0.0
    for c in range(places.size):
        total += 2.0 * squares[c]
        moment += 2.0 * squares[c] * (places[c] - mean)
    if total == 0.0:
        return mean, variance, 0.0
    joint = variance / (1.0 + variance * total)
    centre = mean + joint * moment
    over = -0.5 * math.log1p(variance * total) - 0.5 * (centre - mean) ** 2 / variance
    for c in range(places.size):
        over -= squares[c] * (places[c] - centre) ** 2
    return centre, joint, over


@numba.njit(cache=False, error_model="numpy")
def _pieces(centre: Any, stddev: Any, places: Any, kinks: Any, work: Any) -> Any:
    """Write the order of the kinks, the density at each, and each interval's slope, ends, top and mass.

    Return the sum of the masses, and the logarithm by which densities, tops and masses were divided.
    """
    order, slopes, ends, tops, masses, densities = work
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
    highest, low = -math.inf, -math.inf
    for piece in range(count + 1):
        shift = slope * stddev
        top = level + 0.5 * shift * shift
        high = math.inf
        if piece < count:
            c = order[piece]
            off = places[c] - centre
            high = off / stddev + shift
            densities[piece] = level - slope * off - 0.5 * (off / stddev) ** 2
            highest = max(highest, densities[piece])
        if low < 0.0 < high:
            highest = max(highest, top)
        slopes[piece], ends[piece, 0], ends[piece, 1], tops[piece] = slope, low, high, top
        if piece < count:
            low = high + 2.0 * kinks[c] * stddev
            slope += 2.0 * kinks[c]
            level += 2.0 * kinks[c] * off
    for piece in range(count + 1):
        tops[piece] -= highest
        densities[piece] = math.exp(densities[piece] - highest) if piece < count else 0.0
    total = at_low = 0.0
    for piece in range(count + 1):
        masses[piece] = _mass(ends[piece, 0], ends[piece, 1], at_low, densities[piece], tops[piece])
        total += masses[piece]
        at_low = densities[piece]
    return total, highest


@numba.njit(cache=False, error_model="numpy")
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
    order, slopes, _, _, masses, densities = work
    centre, joint, over = _joined(mean, variance, places, squares)
    stddev = math.sqrt(joint)
    total, highest = _pieces(centre, stddev, places, kinks, work)
    in_centre = in_joint = before = 0.0
    for piece in range(places.size + 1):
        share = masses[piece] / total
        in_centre -= share * slopes[piece]
        in_joint += 0.5 * share * slopes[piece] * slopes[piece]
        before += share
        if piece < places.size:
            c = order[piece]
            in_places[c] = kinks[c] * (1.0 - 2.0 * before)
            in_joint -= kinks[c] * densities[piece] / (total * stddev)
    share = joint / variance
    for c in range(places.size):
        in_places[c] += 2.0 * squares[c] * (joint * in_centre - (places[c] - centre))
    off = (centre - mean) / variance
    in_mean = share * in_centre + off
    in_variance = share * share * in_joint + share * off * in_centre + 0.5 * (share - 1.0) / variance + 0.5 * off * off
    return over + highest + math.log(total / _ROOT_TAU), in_mean, in_variance


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
    _, slopes, ends, tops, masses, densities = work
    centre, joint, _ = _joined(mean, variance, places, squares)
    stddev = math.sqrt(joint)
    total, _ = _pieces(centre, stddev, places, kinks, work)
    left, piece = level * total, 0
    while piece < places.size and left >= masses[piece]:
        left -= masses[piece]
        piece += 1
    start, at_start = ends[piece, 0], densities[piece - 1] if piece > 0 else 0.0
    low = max(start, min(ends[piece, 1], 0.0) - _WIDE)
    high = min(ends[piece, 1], max(start, 0.0) + _WIDE)
    for _ in range(60):
        middle = 0.5 * (low + high)
        at_middle = math.exp(tops[piece] - 0.5 * middle * middle)
        if _mass(start, middle, at_start, at_middle, tops[piece]) < left:
            low = middle
        else:
            high = middle
    return centre + stddev * (0.5 * (low + high) - slopes[piece] * stddev)


@numba.njit(cache=False)
def workspace(count: Any) -> Any:
    """Return the arrays that hold what is said of the kinks and of the intervals between them."""
    pieces = count + 1
    return (
        np.zeros(count, np.int64),
        np.zeros(pieces),
        np.zeros((pieces, 2)),
        np.zeros(pieces),
        np.zeros(pieces),
        np.zeros(pieces),
    )
