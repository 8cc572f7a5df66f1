r"""Zero-concentrated differential privacy and its (epsilon, delta) meaning.

A mechanism is :math:`\rho`-zCDP when its Rényi divergence of every order :math:`\alpha > 1` between neighbours is at
most :math:`\rho\alpha` (Bun and Steinke 2016, Definition 1.1). Costs add over releases, and each conversion here is an
upper bound that holds in any dimension, under the adjacency for which :math:`\rho` was derived.

References
----------
Bun, M. and Steinke, T. (2016). Concentrated differential privacy. TCC, 635-658.
Canonne, C., Kamath, G. and Steinke, T. (2020). The discrete Gaussian for differential privacy. NeurIPS 33.
"""

import math
import sys
from collections.abc import Callable

from dpbayes._arguments import positive_finite, probability_below_one
from dpbayes.errors import InputError

_RHO_REMEDY = "it is the total zCDP cost, the sum over the releases"
_EPSILON_REMEDY = "zCDP promises nothing at delta = 0; a usual range is 0.1 to 10"
_DELTA_REMEDY = "a usual choice is well below 1 / n"
# A larger order would overflow; any order gives a valid bound.
_LARGEST_SHIFT = 1e150


def zcdp_delta(rho: float, epsilon: float) -> float:
    r"""Return a delta for which rho-zCDP implies (epsilon, delta)-DP."""
    cost = positive_finite(rho, "rho", remedy=_RHO_REMEDY)
    loss = positive_finite(epsilon, "epsilon", remedy=_EPSILON_REMEDY)
    log_delta = _log_delta(cost, loss)
    return min(1.0, math.exp(min(0.0, log_delta)))


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
    if _log_delta(cost, sys.float_info.min) <= target:
        return 0.0
    # rho + 2 sqrt(rho log 1/delta) is enough but for roundings (Bun and Steinke 2016, Proposition 1.3).
    enough = cost + 2.0 * math.sqrt(cost) * math.sqrt(-target)
    while math.isfinite(enough) and _log_delta(cost, enough) > target:
        enough *= 2.0
    if not math.isfinite(enough):
        return math.inf
    return _bisect(lambda loss: _log_delta(cost, loss) <= target, enough, sys.float_info.min)


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
        return _log_delta(rho, loss) <= target

    # Bun and Steinke's bound solved for rho is enough but for roundings; this form of it cancels nothing.
    good = (loss / (math.sqrt(loss - target) + math.sqrt(-target))) ** 2
    if good < sys.float_info.min or not holds(good):
        good = sys.float_info.min
        if not holds(good):
            raise InputError(
                f"epsilon {loss!r} at delta {delta!r} needs a rho below the smallest double; ask for a larger epsilon"
            )
    # Where epsilon is tiny the answer is far above that start: the steps grow.
    bad, step = 2.0 * good, 2.0
    while bad <= sys.float_info.max and holds(bad):
        step *= step
        good, bad = bad, bad * step
    return _bisect(holds, good, min(bad, sys.float_info.max))


def _log_delta(rho: float, epsilon: float) -> float:
    """Upper end of log delta, minimised over the Rényi order a = 1 + shift."""

    def slope(shift: float) -> float:
        return (2.0 * shift + 1.0) * rho - epsilon - math.log1p(1.0 / shift)

    low, high = 1e-12, 1.0
    while high < min(_LARGEST_SHIFT, 1e300 / epsilon) and slope(high) < 0:
        low, high = high, 2.0 * high
    for _ in range(100):
        middle = math.sqrt(low) * math.sqrt(high)
        if not low < middle < high:
            break
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    terms = (high * ((high + 1.0) * rho), -high * epsilon, -high * math.log1p(1.0 / high), -math.log1p(high))
    if not all(map(math.isfinite, terms)):
        return math.inf
    # Each term is right to a few units in the last place: stay above the truth by that much.
    return math.fsum(terms) + 8.0 * sys.float_info.epsilon * sum(abs(term) for term in terms)


def _bisect(holds: Callable[[float], bool], good: float, bad: float) -> float:
    """Return a double next to where a monotone condition stops holding; it holds at `good`, both are positive."""
    for _ in range(200):
        near = max(good, bad) <= 2.0 * min(good, bad)
        middle = good + 0.5 * (bad - good) if near else math.sqrt(good) * math.sqrt(bad)
        if not min(good, bad) < middle < max(good, bad):
            break
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
