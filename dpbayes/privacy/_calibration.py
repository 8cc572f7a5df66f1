"""Calibration of a noise law's parameter to a privacy cost, rounded outwards.

Costs round upwards and parameters round upwards: what a stored double costs, in exact arithmetic, never exceeds what
was asked for. Sensitivities are those of the caller's adjacency: L1 for the first pair of functions; for the second, L2
under Gaussian noise, L1 where a pure law is charged its zCDP bound.
"""

import math
from fractions import Fraction

from dpbayes._arguments import positive_finite
from dpbayes.privacy._rounding import float_up

__all__ = ["epsilon_from_scale", "rho_from_stddev", "scale_from_epsilon", "stddev_from_rho"]

SCALE_REMEDY = "the scale of the noise is sensitivity / epsilon"
STDDEV_REMEDY = "under zCDP the stddev of the noise is sensitivity / sqrt(2 rho)"
SENSITIVITY_REMEDY = "it is the largest change between neighbours, in the unit of the released values"
_COST_REMEDY = "it is the cost of the one release that this noise protects"


def scale_from_epsilon(epsilon: float, sensitivity: float) -> float:
    """Smallest double scale with sensitivity / scale <= epsilon."""
    cost = positive_finite(epsilon, "epsilon", remedy=_COST_REMEDY)
    change = positive_finite(sensitivity, "sensitivity", remedy=SENSITIVITY_REMEDY)
    return float_up(Fraction(change) / Fraction(cost))


def epsilon_from_scale(scale: float, sensitivity: float) -> float:
    """Smallest double that is not below sensitivity / scale."""
    change = positive_finite(sensitivity, "sensitivity", remedy=SENSITIVITY_REMEDY)
    return float_up(Fraction(change) / Fraction(scale))


def stddev_from_rho(rho: float, sensitivity: float) -> float:
    """Double with sensitivity^2 / (2 stddev^2) <= rho, a few units in the last place above the smallest one."""
    cost = positive_finite(rho, "rho", remedy=_COST_REMEDY)
    change = positive_finite(sensitivity, "sensitivity", remedy=SENSITIVITY_REMEDY)
    stddev = change / (math.sqrt(2.0) * math.sqrt(cost))
    while 0 < stddev < math.inf and Fraction(change) ** 2 > 2 * Fraction(cost) * Fraction(stddev) ** 2:
        stddev = math.nextafter(stddev, math.inf)
    # The sampler's own accountant rounds each of its steps upwards; this margin keeps it within `rho` as well.
    for _ in range(2):
        stddev = math.nextafter(stddev, math.inf)
    return stddev


def rho_from_stddev(stddev: float, sensitivity: float) -> float:
    """Smallest double that is not below sensitivity^2 / (2 stddev^2)."""
    change = positive_finite(sensitivity, "sensitivity", remedy=SENSITIVITY_REMEDY)
    return float_up(Fraction(change) ** 2 / (2 * Fraction(stddev) ** 2))
