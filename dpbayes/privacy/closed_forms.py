r"""Privacy losses of Laplace, two-sided geometric and discrete Gaussian noise, and of randomized response.

Noise is added to one number whose largest change between neighbours is `sensitivity`. That belongs to a neighbouring
relation (a table's count changes by 1 when a record is added or removed, and two counts change by 1 each when one is
replaced), which `adjacency` states; a loss composes with its own kind only. Every law here has a log-concave density,
so that the largest change is the worst one.
"""

import math
import sys
from typing import Any

import numpy as np

from dpbayes._arguments import number, positive_finite, whole_number
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.composition import ComposedLoss
from dpbayes.privacy.loss_law import LossLaw
from dpbayes.privacy.losses import PrivacyLoss

_LARGEST_STDDEV = 1e6
_LARGEST_MOVE = 1 << 20
_MOST_CELLS = 1 << 24
# Relative error of masses computed with exp and expm1 of exactly scaled arguments.
_ROUNDING = 1e-14
_UNDERFLOW = 1e-300


def geometric_loss(*, scale: float, sensitivity: int = 1, adjacency: Adjacency | None = None) -> PrivacyLoss:
    """Return the privacy loss of two-sided geometric noise: sensitivity + 1 values on a lattice, exact to rounding.

    Parameters
    ----------
    scale
        Scale of the noise, in the unit of the number.
    sensitivity
        Largest change of the integer between neighbours, at most 2^20.
    adjacency
        The relation that `sensitivity` belongs to.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(geometric_loss(scale=10.0).compose(100).epsilon(1e-6), 6)
    4.774568
    """
    move, most = _ratio(scale, "scale", sensitivity, adjacency, whole=True)
    if move > _LARGEST_MOVE:
        raise InputError(f"a sensitivity of {move:g} needs a list of as many losses; use the Laplace curve above 2**20")
    return symmetric(lattice_law(1 / scale, int(move), most), adjacency)


def lattice_law(rate: float, move: int, most: float) -> LossLaw:
    """Return the law of the loss of geometric noise of scale 1 / rate: the values (move - 2 t) rate."""
    t = np.arange(move, -1, -1)
    inside = np.where((t > 0) & (t < move), -np.expm1(-rate), 1.0)
    mass = inside * np.exp(-t * rate) / (1 + np.exp(-rate))
    return _listed((move - 2 * t) * rate, mass, largest=most, shift=2e-15 * most)


def discrete_gaussian_loss(*, stddev: float, sensitivity: int = 1, adjacency: Adjacency | None = None) -> PrivacyLoss:
    """Return the privacy loss of discrete Gaussian noise: a lattice, exact to rounding for delta above 1e-280.

    Parameters
    ----------
    stddev
        The law's parameter sigma, at most 1e6; the lattice has 74 points a unit of it.
    sensitivity, adjacency
        As in `geometric_loss`.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(discrete_gaussian_loss(stddev=10.0).compose(1000).epsilon(1e-6), 5)
    19.42366
    """
    move, _ = _ratio(stddev, "stddev", sensitivity, adjacency, whole=True)
    if stddev > _LARGEST_STDDEV:
        raise InputError(f"stddev must be at most 1e6, got {stddev:g}; beyond it the Gaussian curve is the same")
    # exp(-37**2 / 2) = 1e-297: what is left out is below 1e-295 and counted as infinite loss.
    radius = int(np.ceil(37 * stddev)) + 1
    x = np.arange(radius, -radius - 1, -1, dtype=float)
    with np.errstate(over="ignore"):
        mass = np.exp(-0.5 * (x / stddev) ** 2 - _log_norm(stddev))
    keep = mass > _UNDERFLOW
    loss = (0.5 * move - x) * (move / (stddev * stddev))
    law = LossLaw(loss[keep], mass[keep], missing=1e-290, log_error=3e-13, shift=2e-15 * float(loss[-1]))
    return symmetric(law, adjacency)


def _log_norm(sigma: float) -> float:
    """Logarithm of the sum of exp(-x**2 / (2 sigma**2)) over the integers."""
    if sigma < 1.0:
        with np.errstate(over="ignore"):
            return float(np.log1p(2 * np.sum(np.exp(-0.5 * (np.arange(1, 40) / sigma) ** 2))))
    # Poisson summation: the dual sum converges at once.
    dual = np.exp(-2 * (np.pi * sigma * np.arange(1, 4)) ** 2)
    return float(np.log(sigma * np.sqrt(2 * np.pi)) + np.log1p(2 * np.sum(dual)))


def laplace_loss(
    *, scale: float, sensitivity: float = 1.0, cells: int = 1 << 15, adjacency: Adjacency | None = None
) -> PrivacyLoss:
    r"""Return the privacy loss of Laplace noise between two discrete ones.

    Between the two centres the loss takes every value in (-a, a), a = sensitivity / scale. Outcomes merged around each
    point of a lattice have that point as their loss (data processing, from below), and outcomes split between
    neighbouring points keep both masses (from above).

    Parameters
    ----------
    scale, sensitivity, adjacency
        As in `geometric_loss`, of a real number.
    cells
        Number of cells, from 2 to 2^24; the bounds come together with its square.

    Raises
    ------
    InputError
        If an argument is out of range, or the square of sensitivity / scale is.

    Examples
    --------
    >>> 1 - np.exp((0.3 - 1.0) / 2) in laplace_loss(scale=1.0).delta_bounds(0.3)
    True
    """
    whole_number(cells, "cells", low=2, high=_MOST_CELLS)
    _, a = _ratio(scale, "scale", sensitivity, adjacency)
    step = 2 * (a / cells)
    # Losses by how far below the largest one they are, which is what their mass depends on.
    gap = step * np.arange(cells, -1, -1)
    half, ends = 0.5 * step, np.array([0.5 * np.exp(-a), 0.5])
    # From above: split a cell between its ends; the upper one gets the share 1 / (1 + exp(-step / 2)).
    share = 1 / (1 + np.exp(-half))
    cell = _interval(gap[1:], step)
    split = np.append(cell * (1 - share), 0.0) + np.insert(cell * share, 0, 0.0)
    split[[0, -1]] += ends
    # From below: merge around each inner point; the half cells at the ends move down to the next point.
    merged = np.concatenate([ends[:1], _interval(gap[1:-1] - half, step), ends[1:]])
    merged[0] += _interval(gap[0] - half, half)
    merged[-2] += _interval(0.0, half)
    laws = (_listed(a - gap, mass, largest=a, shift=4e-15 * a) for mass in (split, merged))
    return PrivacyLoss.from_bracket(*(symmetric(law, adjacency) for law in laws))


def _interval(gap: Any, size: float) -> Any:
    """P-mass of the losses from a - gap - size to a - gap: the integral of exp((loss - a) / 2) / 4."""
    return 0.5 * np.exp(-0.5 * gap) * -np.expm1(-0.5 * size)


def randomized_response_loss(*, truth_probability: float, categories: int = 2) -> PrivacyLoss:
    """Return the privacy loss of randomized response; its adjacency is replace-one, of the respondent's answer.

    Parameters
    ----------
    truth_probability
        Probability of reporting the true category, between 0 and 1.
    categories
        Number of categories; a lie is uniform over the others.

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(randomized_response_loss(truth_probability=0.75).compose(100).epsilon(1e-6), 4)
    94.2899
    """
    truth, count = number(truth_probability, "truth_probability"), number(categories, "categories")
    if not 2 <= count < np.inf or count != np.floor(count):
        raise InputError(f"categories must be a whole number of at least 2, got {categories!r}")
    if not 0.0 < truth < 1.0:
        raise InputError(
            f"truth_probability must be between 0 and 1, both excluded, got {truth_probability!r}; 1 hides nothing"
        )
    low, high = sorted((truth, other := (1.0 - truth) / (count - 1)))
    if low < sys.float_info.min:
        raise InputError(
            f"truth_probability {truth:g} with {count:g} categories gives a probability of {low:g}, "
            "too small for doubles; move it away from 0 and 1, or merge categories"
        )
    step = abs(float(np.log(truth / other)))
    loss, mass = np.array([-step, 0.0, step]), np.array([low, (count - 2) * other, high])
    law = LossLaw(loss[mass > 0], mass[mass > 0], log_error=_ROUNDING, shift=1e-15 * (1 + step))
    return symmetric(law, "replace-one")


def symmetric(law: LossLaw, adjacency: Adjacency | None) -> PrivacyLoss:
    """Pair whose two directions have the same law."""
    total = ComposedLoss(((law, 1),))
    return PrivacyLoss(total, total, adjacency)


def _listed(loss: np.ndarray, mass: np.ndarray, *, largest: float, shift: float) -> LossLaw:
    """Law without the masses at which doubles end, which are counted as underflow; losses ascend up to `largest`."""
    keep = mass > _UNDERFLOW
    dropped = loss[~keep]
    return LossLaw(
        loss[keep],
        mass[keep],
        underflow=2 * _UNDERFLOW * dropped.size,
        ceiling=float(dropped.max(initial=-np.inf)),
        # Of masses exp(-x): beyond 1e3 there is none left.
        log_error=_ROUNDING * (1 + min(largest, 1e3)),
        shift=shift,
    )


def _ratio(
    spread: Any, name: str, sensitivity: Any, adjacency: Adjacency | None, *, whole: bool = False
) -> tuple[float, float]:
    """Return the sensitivity, and its ratio to the spread; refuse a ratio whose square, a variance, is no double."""
    if adjacency is not None:
        check_adjacency(adjacency)
    of_noise = positive_finite(spread, name, remedy="it is the spread of the noise, in the unit of the number released")
    remedy = "it is the largest change between neighbours under the adjacency in use"
    move = positive_finite(sensitivity, "sensitivity", remedy=remedy)
    if whole and move != math.floor(move):
        raise InputError(f"sensitivity must be a whole number, got {sensitivity!r}; integer noise protects integers")
    ratio = move / of_noise
    if not sys.float_info.min <= ratio * ratio < math.inf:
        raise InputError(
            f"a sensitivity of {move:g} over noise of spread {of_noise:g} is a ratio whose square no double holds; "
            "no release has such a cost, so check the unit of both"
        )
    return move, ratio
