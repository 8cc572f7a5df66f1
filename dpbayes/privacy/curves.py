r"""Privacy curves in closed form: the Gaussian mechanism to nearly the last digit, and zero-concentrated DP.

For outputs N(0, 1) and N(mu, 1), mu = sensitivity / stddev, :math:`\delta(\epsilon) = \Phi(-a) - e^\epsilon \Phi(-a -
\mu)` with :math:`a = \epsilon/\mu - \mu/2` (Balle and Wang 2018, Theorem 8). With the Mills ratio m the exponential
cancels, :math:`\delta = \varphi(a) (m(a) - m(a + \mu))`, and for small mu the difference is an integral of
:math:`-m'(x) = 1 - x m(x)`, a continued fraction without cancellation. a is formed exactly, as two doubles. Under
rho-zCDP (Bun and Steinke 2016, Definition 1.1) delta is the least over orders a of Canonne, Kamath and Steinke (2020,
Proposition 12).
"""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from dpbayes._arguments import positive_finite, probability_below_one, real_numbers, shown, whole_number
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.loss_law import Bounds, last_where

_LOG_SQRT_TAU = 0.91893853320467274178
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_SQRT_HALF, _SQRT_HALF_PI = 0.70710678118654752440, 1.2533141373155002512
_FAR = 2.0
# Beyond it delta is 0 or 1 to any precision.
_LARGEST_CENTRE = Fraction(10**10)
# The bracket of mu: the least normal double, and what the largest epsilon needs at any delta.
_LEAST_MU, _LARGEST_MU = sys.float_info.min, 2e154


def gaussian_delta(mu: Any, epsilon: Any) -> Any:
    """Return the smallest delta at `epsilon` of the Gaussian mechanism: relative error below 1e-12 down to 1e-300.

    `mu`, above 0, is the L2 sensitivity divided by the noise's standard deviation; for k releases sqrt(sum of mu**2).
    `epsilon`, at least 0, broadcasts with it. `InputError` if an argument is out of range.

    Examples
    --------
    >>> f"{gaussian_delta(1 / 3.730631634816464, 1.0):.10g}"
    '1e-05'
    """
    mu, epsilon = _positive(mu, "mu"), _not_negative(epsilon, "epsilon")
    value = np.exp(np.vectorize(_log_delta, otypes=[float])(mu, epsilon))
    return float(value) if np.ndim(value) == 0 else value


def gaussian_epsilon(mu: Any, delta: Any) -> Any:
    """Return the smallest epsilon >= 0 at `delta`, in (0, 1), of the Gaussian mechanism: inverts `gaussian_delta`.

    Examples
    --------
    Noise of stddev 10 on a sensitivity of 1, a thousand times:

    >>> round(gaussian_epsilon(1000**0.5 / 10, 1e-6), 5)
    19.42366
    """
    mu, delta = _positive(mu, "mu"), _inside(delta)
    value = np.vectorize(_epsilon, otypes=[float])(mu, delta)
    return float(value) if np.ndim(value) == 0 else value


def gaussian_stddev(sensitivity: Any, epsilon: Any, delta: Any, *, adjacency: Adjacency | None = None) -> Any:
    """Return the smallest standard deviation of Gaussian noise that gives (epsilon, delta), rounded up by 4e-15.

    `sensitivity` is the L2 sensitivity and gives the unit; `adjacency`, checked, names the relation that it was derived
    under. `InputError` if an argument is out of range, or if no double is the stddev that they need.

    Examples
    --------
    >>> round(gaussian_stddev(1.0, 1.0, 1e-5), 8)
    3.73063163
    """
    if adjacency is not None:
        check_adjacency(adjacency)
    sensitivity, epsilon = _positive(sensitivity, "sensitivity"), _not_negative(epsilon, "epsilon")
    delta = _inside(delta)
    mu = np.vectorize(_mu, otypes=[float])(epsilon, delta)
    with np.errstate(over="ignore", under="ignore"):
        value = sensitivity / mu
    if not (np.isfinite(value) & (value >= sys.float_info.min)).all():
        raise InputError(
            f"noise for a sensitivity of {_first(sensitivity)} at epsilon {_first(epsilon)} and delta {_first(delta)} "
            "needs a stddev that no double holds; measure the released values in another unit"
        )
    return float(value) if np.ndim(value) == 0 else value


@dataclass(frozen=True)
class GaussianLoss:
    """Privacy loss of Gaussian noise; `mu` is the sensitivity over the stddev, and adds in squares over releases."""

    mu: float

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Return bounds of the smallest epsilon at `delta`, which the closed form gives to 1e-12."""
        value = gaussian_epsilon(self.mu, delta) if delta > 0 else math.inf
        return Bounds(value * (1 - 1e-12), value * (1 + 1e-12))

    def epsilon(self, delta: float) -> float:
        """Upper end of `epsilon_bounds`."""
        return self.epsilon_bounds(delta).upper

    def compose(self, runs: int) -> "GaussianLoss":
        """Loss of using the mechanism so many times."""
        return GaussianLoss(self.mu * math.sqrt(whole_number(runs, "the number of runs")))


def _mills(x: float) -> float:
    """(1 - Phi(x)) / phi(x); the exponential costs x**2 / 2 roundings below `_FAR`, the continued fraction none."""
    if x < _FAR:
        return _SQRT_HALF_PI * math.erfc(x * _SQRT_HALF) * math.exp(0.5 * x * x)
    c = 0.0
    for i in range(_depth(x), 0, -1):
        c = i / (x + c)
    return 1.0 / (x + c)


def _mills_slope(x: np.ndarray) -> np.ndarray:
    """Minus the derivative of the Mills ratio, ``1 - x m(x)``, without cancellation; x ascends."""
    # m(x) = 1 / (x + c) with the Laplace continued fraction c = 1 / (x + 2 / (x + 3 / ...)), so 1 - x m = c / (x + c).
    far = np.maximum(x, _FAR)
    c = np.zeros_like(far)
    for i in range(_depth(float(far[0])), 0, -1):
        c = i / (far + c)
    slope = c / (far + c)
    near = int(np.searchsorted(x, _FAR))
    slope[:near] = [1.0 - v * _mills(v) for v in x[:near].tolist()]
    return slope


def _depth(x: float) -> int:
    """Terms of the continued fraction that give 16 digits at x >= `_FAR`."""
    return int(30 + 500 / x / x)


def _centre(mu: float, epsilon: float) -> tuple[float, float]:
    """``epsilon / mu - mu / 2`` as a sum of two doubles, or the nearest number of size `_LARGEST_CENTRE`."""
    exact = (2 * Fraction(epsilon) - Fraction(mu) ** 2) / (2 * Fraction(mu))
    exact = max(-_LARGEST_CENTRE, min(_LARGEST_CENTRE, exact))
    high = float(exact)
    return high, float(exact - Fraction(high))


def _mean_slope(a: float, mu: float) -> float:
    """``(m(a) - m(a + mu)) / mu``, which is also delta / (mu phi(a))."""
    if mu < 1.0:
        half = 0.5 * mu
        return 0.5 * float(_WEIGHTS @ _mills_slope(a + half + half * _NODES))
    return (_mills(a) - _mills(a + mu)) / mu


def _log_delta(mu: float, epsilon: float) -> float:
    return _log_delta_at(*_centre(mu, epsilon), mu)


def _log_delta_at(a: float, low: float, mu: float) -> float:
    """Logarithm of delta with ``a + low`` for epsilon / mu - mu / 2."""
    if a > 1e9:
        return -math.inf
    if a < -1.0:
        # Far left delta is near 1 and the second term is small: subtract it as it is.
        density = math.exp(-0.5 * a * a - _LOG_SQRT_TAU)
        return math.log1p(-(0.5 * math.erfc(-a * _SQRT_HALF) + density * (low + _mills(a + mu))))
    return -0.5 * a * a - a * low - _LOG_SQRT_TAU + math.log(mu) + math.log(_mean_slope(a + low, mu))


def _epsilon(mu: float, delta: float) -> float:
    goal = math.log(delta)
    if _log_delta(mu, 0.0) <= goal:
        return 0.0
    # ln delta is concave in a, and delta < 1 - Phi(a) <= exp(-a**2 / 2) / 2 puts this start right of the root: Newton
    # comes down to it.
    a = max(-0.5 * mu, math.sqrt(max(0.0, -2 * (goal + math.log(2)))))
    for _ in range(200):
        slope = -_mills(a + mu) / _mean_slope(a, mu)
        step = (goal - _log_delta_at(a, 0.0, mu)) / slope
        a += step
        if abs(step) <= 1e-15 * max(abs(a), mu):
            break
    return max(0.0, mu * (a + 0.5 * mu))


def gaussian_epsilon_upper(mu: float, delta: float) -> float:
    """Return `gaussian_epsilon` rounded up by 1e-15 of itself, or by twice what the curve needs to confirm it."""
    # Near delta = 1 the roundings are those of numbers of size 1, not of the logarithm.
    epsilon, goal = _epsilon(mu, delta), _goal(delta) - 4.5e-16
    for doublings in range(15):
        most = epsilon * (1 + 1e-15 * 2**doublings)
        if _log_delta(mu, most) <= goal:
            return most
    # A delta next to 1, where the curve is flat to the last digit.
    return _epsilon(mu * (1 + 1e-10), delta) * (1 + 1e-10)


def _goal(delta: float) -> float:
    """Logarithm of delta, lowered by the roundings of a logarithm of that size, four of them at most."""
    return math.log(delta) * (1 + 4.5e-16)


def _mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that gives (epsilon, delta), less what the curve needs to confirm it (4e-15)."""
    goal = _goal(delta)
    low, high = _LEAST_MU, _LARGEST_MU
    mu = math.sqrt(2.0) * math.sqrt(epsilon + 5e-7)
    # d ln delta / d ln mu = mu phi(a) / delta; Newton on ln mu inside a bracket.
    for _ in range(200):
        a, rest = _centre(mu, epsilon)
        value = _log_delta_at(a, rest, mu)
        low, high = (mu, high) if value < goal else (low, mu)
        # At -30 delta is 1 to 200 digits, and the slope below it overflows.
        is_smooth = a > -30.0 and math.isfinite(value)
        proposal = mu * math.exp(min((goal - value) * _mean_slope(a, mu), 700.0)) if is_smooth else math.inf
        if not low <= proposal <= high:
            proposal = math.sqrt(low) * math.sqrt(high)
        if abs(proposal - mu) <= 1e-15 * mu:
            break
        mu = proposal
    for margin in (4e-15, 1e-13, 1e-11):
        least = mu * (1 - margin)
        if _log_delta(least, epsilon) <= goal:
            return least
    raise InputError(
        f"epsilon {epsilon:g} at delta {delta:g} needs more noise than doubles can describe; raise delta or epsilon"
    )


def _checked(value: Any, name: str, words: str, holds: Callable[[np.ndarray], Any], remedy: str = "") -> np.ndarray:
    """Return numbers of any shape that all hold, or say what they must be."""
    array = real_numbers(value, name)
    if not (np.isfinite(array) & holds(array)).all():
        raise InputError(f"{name} must be {words}, got {shown(value)}{remedy}")
    return array


def _positive(value: Any, name: str) -> np.ndarray:
    return _checked(value, name, "positive and finite", lambda x: x > 0)


def _not_negative(value: Any, name: str) -> np.ndarray:
    return _checked(value, name, "finite and at least 0", lambda x: x >= 0)


def _inside(delta: Any) -> np.ndarray:
    remedy = "; a usual choice is below 1 / n"
    return _checked(delta, "delta", "between 0 and 1, both excluded", lambda x: (x > 0) & (x < 1), remedy)


def _first(values: np.ndarray) -> str:
    """Return the first few of several numbers for a message."""
    return ", ".join(f"{value:g}" for value in values.flat[:3]) + (", ..." if values.size > 3 else "")


# --- zero-concentrated differential privacy --------------------------------------------------------------------------

_RHO_REMEDY = "it is the total zCDP cost, the sum over the releases"
_EPSILON_REMEDY = "zCDP promises nothing at delta = 0; a usual range is 0.1 to 10"
_DELTA_REMEDY = "a usual choice is well below 1 / n"
# A larger order would overflow; any order gives a valid bound.
_LARGEST_SHIFT = 1e150


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return an epsilon for which rho-zCDP implies (epsilon, delta)-DP.

    It is at least 0, rounded upwards, and infinite where it exceeds every double. `InputError` unless rho is positive
    and finite and delta lies strictly between 0 and 1.

    Examples
    --------
    >>> round(zcdp_epsilon(0.1, 1e-5), 4)
    1.9142
    """
    cost = positive_finite(rho, "rho", remedy=_RHO_REMEDY)
    target = math.log(probability_below_one(delta, "delta", remedy=_DELTA_REMEDY))
    if _log_zcdp_delta(cost, sys.float_info.min) <= target:
        return 0.0
    # rho + 2 sqrt(rho log 1/delta) is enough but for roundings (Bun and Steinke 2016, Proposition 1.3).
    enough = cost + 2.0 * math.sqrt(cost) * math.sqrt(-target)
    while math.isfinite(enough) and _log_zcdp_delta(cost, enough) > target:
        enough *= 2.0
    if not math.isfinite(enough):
        return math.inf
    return last_where(enough, sys.float_info.min, lambda loss: _log_zcdp_delta(cost, loss) <= target)


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho found, rounded downwards, for which rho-zCDP implies (epsilon, delta)-DP.

    Raises
    ------
    InputError
        Unless epsilon is positive and finite and delta strictly between 0 and 1, or if no double is small enough.

    Examples
    --------
    >>> rho = zcdp_rho(1.0, 1e-6)
    >>> round(rho, 6), zcdp_epsilon(rho, 1e-6) <= 1.0 + 1e-9
    (0.024356, True)
    """
    loss = positive_finite(epsilon, "epsilon", remedy=_EPSILON_REMEDY)
    target = math.log(probability_below_one(delta, "delta", remedy=_DELTA_REMEDY))

    def holds(rho: float) -> bool:
        return _log_zcdp_delta(rho, loss) <= target

    if not holds(sys.float_info.min):
        raise InputError(f"epsilon {loss!r} at delta {delta!r} needs a rho below all doubles; ask for a larger epsilon")
    return last_where(sys.float_info.min, sys.float_info.max, holds)


def _log_zcdp_delta(rho: float, epsilon: float) -> float:
    """Upper end of log delta, minimised over the Rényi order a = 1 + shift."""
    most = min(_LARGEST_SHIFT, 1e300 / epsilon)
    high = last_where(1e-12, most, lambda shift: (2.0 * shift + 1.0) * rho - epsilon - math.log1p(1.0 / shift) < 0)
    terms = (high * ((high + 1.0) * rho), -high * epsilon, -high * math.log1p(1.0 / high), -math.log1p(high))
    if not all(map(math.isfinite, terms)):
        return math.inf
    # Each term is right to a few units in the last place: stay above the truth by that much.
    return math.fsum(terms) + 8.0 * sys.float_info.epsilon * sum(abs(term) for term in terms)
