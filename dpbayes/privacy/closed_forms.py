r"""Privacy curves of Laplace, two-sided geometric, discrete Gaussian noise and of randomized response.

For each law: the smallest delta at an epsilon in closed form, the smallest epsilon at a delta, and the `PrivacyLoss`,
which composes. Noise is added to one number whose largest change between neighbours is `sensitivity`. That belongs to a
neighbouring relation (a table's count changes by 1 when a record is added or removed, and two counts change by 1 each
when one is replaced), which `adjacency` states; the `*_loss` keep it and compose with their own kind only. Every law
here has a log-concave density, so that the largest change is the worst one.
"""

import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np

from dpbayes._arguments import number, positive_finite, real_numbers, shown
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.composition import ComposedLoss
from dpbayes.privacy.loss_law import UNIT, LossLaw
from dpbayes.privacy.losses import PrivacyLoss
from dpbayes.privacy.rounding import float_up

_LARGEST_STDDEV = 1e6
_LARGEST_MOVE = 1 << 20


def geometric_delta(epsilon: Any, *, scale: float, sensitivity: int = 1, adjacency: Adjacency | None = None) -> Any:
    r"""Return the smallest delta of two-sided geometric noise, rounded up by some 2e-15 of itself."""
    scale, move = width(scale, "scale"), integer_move(sensitivity, adjacency)
    ratio(move, scale)
    step, a = 1 / Fraction(scale), float(np.exp(-1 / scale))
    a_up = a * (1 + 2 / scale * UNIT) if a > 0 else 0.0

    def one(e: float) -> float:
        # Differences are formed exactly and rounded up; what follows has positive terms only.
        gap = move * step - Fraction(e) if math.isfinite(e) else Fraction(-1)
        if gap <= 0:
            return 0.0
        j = math.ceil(gap * Fraction(scale) / 2) - 1
        value = -math.expm1(-float_up(gap))
        if j > 0:
            value += a_up * -math.expm1(-j / scale) * -math.expm1(-float_up(gap - (j + 1) * step))
        return min(1.0, math.nextafter(value / (1 + a) * (1 + 16 * UNIT), math.inf))

    return each(one, epsilon)


def geometric_epsilon(delta: float, *, scale: float, sensitivity: int = 1, adjacency: Adjacency | None = None) -> float:
    """Return the smallest epsilon of two-sided geometric noise, rounded up by about 1e-13."""
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
    r"""Return the smallest delta of discrete Gaussian noise (Canonne, Kamath and Steinke 2020, Theorem 7)."""
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
    """Return the smallest epsilon of discrete Gaussian noise, rounded up by about 1e-13."""
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


_MOST_CELLS = 1 << 24


def laplace_delta(epsilon: Any, *, scale: float, sensitivity: float = 1.0, adjacency: Adjacency | None = None) -> Any:
    r"""Return the smallest delta of Laplace noise, rounded up: :math:`1 - e^{(\epsilon - \Delta/b)/2}`, or 0."""
    move, scale = move_of(sensitivity, adjacency), width(scale, "scale")
    ratio(move, scale)
    most = Fraction(move) / Fraction(scale)

    def one(e: float) -> float:
        gap = most - Fraction(e) if math.isfinite(e) else Fraction(-1)
        return 0.0 if gap <= 0 else min(1.0, math.nextafter(-math.expm1(-float_up(gap / 2)) * (1 + 4 * UNIT), math.inf))

    return each(one, epsilon)


def laplace_epsilon(
    delta: float, *, scale: float, sensitivity: float = 1.0, adjacency: Adjacency | None = None
) -> float:
    """Return the smallest epsilon of Laplace noise: sensitivity / scale + 2 ln(1 - delta), or 0."""
    most = ratio(move_of(sensitivity, adjacency), width(scale, "scale"))
    return max(0.0, most + 2 * float(np.log1p(-checked_delta(delta))))


def laplace_loss(
    *, scale: float, sensitivity: float = 1.0, cells: int = 1 << 15, adjacency: Adjacency | None = None
) -> PrivacyLoss:
    r"""Return the privacy loss of Laplace noise between two discrete ones.

    Between the two centres the loss takes every value in (-a, a), a = sensitivity / scale. Outcomes merged around each
    point of a lattice have that point as their loss (data processing, from below), and outcomes split between
    neighbouring points keep both masses (from above).

    Parameters
    ----------
    scale, sensitivity
        As in `laplace_delta`.
    cells
        Number of cells, from 2 to 2^24; the ends come together with its square.
    adjacency
        The relation that `sensitivity` belongs to.

    Returns
    -------
    PrivacyLoss

    Raises
    ------
    InputError
        If an argument is out of range, or the square of sensitivity / scale is.

    Examples
    --------
    >>> loss = laplace_loss(scale=1.0)
    >>> laplace_delta(0.3, scale=1.0) in loss.delta_bounds(0.3)
    True
    """
    if isinstance(cells, bool) or not isinstance(cells, int | np.integer) or not 2 <= cells <= _MOST_CELLS:
        raise InputError(f"cells must be a whole number from 2 to {_MOST_CELLS}, got {shown(cells)}")
    a = ratio(move_of(sensitivity, adjacency), width(scale, "scale"))
    step = 2 * (a / cells)
    # Losses by how far below the largest one they are, which is what their mass depends on.
    gap = step * np.arange(cells, -1, -1)
    points, half = a - gap, 0.5 * step
    ends = np.array([0.5 * np.exp(-a), 0.5])
    # From above: split a cell between its ends; the upper one gets the share 1 / (1 + exp(-step / 2)).
    share = 1 / (1 + np.exp(-half))
    cell = _interval(gap[1:], step)
    split = np.append(cell * (1 - share), 0.0) + np.insert(cell * share, 0, 0.0)
    split[[0, -1]] += ends
    # From below: merge around each inner point; the half cells at the ends move down to the next point.
    merged = np.concatenate([ends[:1], _interval(gap[1:-1] - half, step), ends[1:]])
    merged[0] += _interval(gap[0] - half, half)
    merged[-2] += _interval(0.0, half)
    above, below = (listed(points, mass, log_error=rounding_of(a), shift=4e-15 * a) for mass in (split, merged))
    return PrivacyLoss.from_bracket(*(symmetric(law, adjacency) for law in (above, below)))


def _interval(gap: Any, size: float) -> Any:
    """P-mass of the losses from a - gap - size to a - gap: the integral of exp((loss - a) / 2) / 4."""
    return 0.5 * np.exp(-0.5 * gap) * -np.expm1(-0.5 * size)


def randomized_response_delta(epsilon: Any, *, truth_probability: float, categories: int = 2) -> Any:
    """Return the smallest delta of randomized response under replacement of the respondent's answer."""
    high, low = sorted(_response(truth_probability, categories)[:2], reverse=True)
    return each(lambda e: max(0.0, high * -float(np.expm1(min(0.0, e - np.log(high / low))))), epsilon)


def randomized_response_epsilon(delta: float, *, truth_probability: float, categories: int = 2) -> float:
    """Return the smallest epsilon of randomized response under replacement of the respondent's answer."""
    high, low = sorted(_response(truth_probability, categories)[:2], reverse=True)
    rest = high - checked_delta(delta)
    return max(0.0, float(np.log(rest / low))) if rest > low else 0.0


def randomized_response_loss(*, truth_probability: float, categories: int = 2) -> PrivacyLoss:
    """Return the privacy loss of randomized response; its adjacency is replace-one.

    Parameters
    ----------
    truth_probability, categories
        As in `randomized_response_delta`.

    Returns
    -------
    PrivacyLoss

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(randomized_response_loss(truth_probability=0.75).compose(100).epsilon(1e-6), 4)
    94.2899
    """
    truth, other, count = _response(truth_probability, categories)
    same = (count - 2) * other
    step = abs(float(np.log(truth / other)))
    values = np.array([-step, 0.0, step]), np.array([min(truth, other), same, max(truth, other)])
    keep = values[1] > 0
    return symmetric(
        LossLaw(values[0][keep], values[1][keep], log_error=ROUNDING, shift=1e-15 * (1 + step)), "replace-one"
    )


def _response(truth_probability: float, categories: int) -> tuple[float, float, float]:
    """Return the probabilities of the true category and of each other one, and the number of categories."""
    truth, count = number(truth_probability, "truth_probability"), number(categories, "categories")
    if not 2 <= count < np.inf or count != np.floor(count):
        raise InputError(f"categories must be a whole number of at least 2, got {categories!r}")
    if not 0.0 < truth < 1.0:
        raise InputError(
            f"truth_probability must be between 0 and 1, both excluded, got {truth_probability!r}; 1 hides nothing"
        )
    other = (1.0 - truth) / (count - 1)
    if min(truth, other) < sys.float_info.min:
        raise InputError(
            f"truth_probability {truth:g} with {count:g} categories gives a probability of {min(truth, other):g}, "
            "too small for doubles; move it away from 0 and 1, or merge categories"
        )
    return truth, other, count


# Relative error of masses computed with exp and expm1 of exactly scaled arguments.
ROUNDING = 1e-14
_UNDERFLOW = 1e-300


def symmetric(law: LossLaw, adjacency: Adjacency | None) -> PrivacyLoss:
    """Pair whose two directions have the same law."""
    total = ComposedLoss(((law, 1),))
    return PrivacyLoss(total, total, adjacency)


def listed(loss: np.ndarray, mass: np.ndarray, *, log_error: float, shift: float) -> LossLaw:
    """Law without the masses at which doubles end, which are counted as underflow; losses ascend."""
    keep = mass > _UNDERFLOW
    dropped = loss[~keep]
    return LossLaw(
        loss[keep],
        mass[keep],
        underflow=2 * _UNDERFLOW * dropped.size,
        ceiling=float(dropped.max(initial=-np.inf)),
        log_error=log_error,
        shift=shift,
    )


def rounding_of(largest: float) -> float:
    """Relative error of masses exp(-x) with x up to `largest`; beyond 1e3 there is no mass left."""
    return ROUNDING * (1 + min(largest, 1e3))


def each(curve: Any, epsilon: Any) -> Any:
    """Apply `curve` to each epsilon, after checking that none is negative."""
    values = real_numbers(epsilon, "epsilon")
    if not (values >= 0).all():
        raise InputError(f"epsilon must be at least 0, got {epsilon!r}")
    result = np.vectorize(curve, otypes=[float])(values)
    return float(result) if values.ndim == 0 else result


def checked_delta(delta: float) -> float:
    """Return `delta` as a float in [0, 1)."""
    value = number(delta, "delta")
    if not 0.0 <= value < 1.0:
        raise InputError(f"delta must be at least 0 and below 1, got {delta!r}; a usual choice is below 1 / n")
    return value


def width(value: float, name: str) -> float:
    """Return a positive scale or stddev."""
    return positive_finite(value, name, remedy="it is the spread of the noise, in the unit of the number released")


def ratio(move: float, spread: float) -> float:
    """Return sensitivity / spread, or refuse it where its square, a variance of losses, is no double."""
    value = move / spread
    if not sys.float_info.min <= value * value < math.inf:
        raise InputError(
            f"a sensitivity of {move:g} over noise of spread {spread:g} is a ratio whose square no double holds; "
            "no release has such a cost, so check the unit of both"
        )
    return value


def move_of(sensitivity: float, adjacency: Adjacency | None = None) -> float:
    """Return a positive sensitivity, stated under a relation that exists."""
    if adjacency is not None:
        check_adjacency(adjacency)
    return positive_finite(
        sensitivity, "sensitivity", remedy="it is the largest change between neighbours under the adjacency in use"
    )


def integer_move(sensitivity: float, adjacency: Adjacency | None = None) -> int:
    """Return a positive whole sensitivity, stated under a relation that exists."""
    move = move_of(sensitivity, adjacency)
    if move != int(move):
        raise InputError(f"sensitivity must be a whole number, got {sensitivity!r}; integer noise protects integers")
    return int(move)
