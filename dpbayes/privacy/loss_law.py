"""The law of a privacy loss in one direction, and its hockey-stick curve evaluated without cancellation.

For two output distributions P and Q the privacy loss of an outcome is ``ln(P/Q)``. Everything that a curve needs is
the law of that number under P: ``delta(epsilon) = E_P[(1 - exp(epsilon - loss))_+]``, with outcomes that Q cannot
produce counted as infinite loss. The sum has no negative term, so it keeps its relative accuracy where delta is 1e-300.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Unit roundoff of a double: every elementary operation has relative error at most this.
UNIT = 2.0**-53
# exp, expm1, the subtraction before them and a pairwise sum of up to 2^40 terms (blocks of 128 summed in 8 lanes, then
# a binary tree) stay below 96 roundings; doubled for libm implementations that are off by more than half an ulp.
_SUM_ERROR = 192 * UNIT


@dataclass(frozen=True, slots=True)
class Bounds:
    """Certified bounds of a number, in its unit: the true value is at least `lower` and at most `upper`."""

    lower: float
    upper: float

    @property
    def width(self) -> float:
        """Distance of the two ends; 0 when both are infinite."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper


@dataclass(frozen=True)
class LossLaw:
    """Law of ``ln(P/Q)`` under P: finite losses with their masses, and the mass at infinity."""

    loss: np.ndarray  # finite losses, ascending
    mass: np.ndarray  # P-mass of each, above 0
    infinite: float = 0.0  # P-mass of the outcomes that Q cannot produce
    missing: float = 0.0  # P-mass left out: infinite loss in the upper bound, nothing in the lower
    underflow: float = 0.0  # bound on the P-mass of finite losses too improbable to list
    ceiling: float = -np.inf  # the largest of those
    log_error: float = 0.0  # bound on the error of the logarithm of each mass
    shift: float = 0.0  # bound on the error of each loss

    @property
    def largest(self) -> float:
        """The largest listed loss; minus infinity when there is none."""
        return float(self.loss[-1]) if self.loss.size else -np.inf

    @property
    def highest(self) -> float:
        """The largest finite loss, listed or not."""
        return max(self.largest, self.ceiling)

    def value(self, epsilon: float, *, tail: bool = False) -> float:
        """Hockey-stick divergence, or P-mass of the losses above `epsilon`, up to rounding; `bounds` certifies it."""
        start = int(np.searchsorted(self.loss, epsilon, side="right"))
        mass = self.mass[start:]
        return self.infinite + float(np.sum(mass if tail else mass * -np.expm1(epsilon - self.loss[start:])))

    def _slack(self, epsilon: float) -> tuple[float, float]:
        """Relative error of a computed sum and error of its argument, rounding included."""
        magnitude = max(abs(epsilon), abs(self.largest) if self.loss.size else 0.0)
        return self.log_error + _SUM_ERROR, self.shift + 4 * UNIT * magnitude

    def bounds(self, epsilon: float, *, tail: bool = False) -> Bounds:
        """Return certified bounds of the hockey-stick divergence at `epsilon`, or of the P-mass of losses above it."""
        if epsilon == -np.inf:
            return Bounds(1.0, 1.0)
        relative, shift = self._slack(epsilon if np.isfinite(epsilon) else 0.0)
        if epsilon - self.shift >= self.highest:
            error = float(np.exp(relative))
            return Bounds(self.infinite / error, min(1.0, self.infinite * error + self.missing))
        lower = float(np.exp(-relative)) * self.value(epsilon + shift, tail=tail)
        upper = float(np.exp(relative)) * self.value(epsilon - shift, tail=tail) + self.missing + self.underflow
        return Bounds(min(1.0, lower), min(1.0, upper))

    def crossing(self, delta: float, *, tail: bool = False) -> Bounds:
        """Return certified bounds of the smallest epsilon >= 0 where the divergence, or tail, is at most `delta`."""
        if delta < self.infinite:
            return Bounds(np.inf, np.inf)
        top = self.highest + self.shift if delta >= self.infinite + self.missing else np.inf
        if delta == 0.0:
            return Bounds(max(0.0, self.highest - self.shift), max(0.0, top))
        # Solved with the errors on either side; then each end moves outward until the certified curve agrees.
        relative, shift = self._slack(0.0)
        factor = float(np.exp(relative))
        upper = self._solve((delta - self.missing - self.underflow) / factor, tail=tail) + shift
        # At an atom the tail jumps: the certified point lies just below it.
        lower = float(np.nextafter(self._solve(min(1.0, delta * factor), tail=tail), -np.inf)) - shift
        upper = outward(upper, +1, self.largest + 1.0, lambda e: self.bounds(e, tail=tail).upper <= delta)
        lower = outward(lower, -1, 0.0, lambda e: self.bounds(e, tail=tail).lower >= delta)
        return Bounds(lower, max(0.0, min(top, upper)))

    def _solve(self, delta: float, *, tail: bool) -> float:
        """Point where the computed curve, or tail, comes down to `delta`; 0 when it starts below, infinite if never."""
        if delta < self.infinite:
            return np.inf
        if self.value(0.0, tail=tail) <= delta:
            return 0.0
        start = int(np.searchsorted(self.loss, 0.0, side="right"))
        indices = range(self.loss.size)
        first = bisect_left(indices, True, start, key=lambda k: self.value(float(self.loss[k]), tail=tail) <= delta)
        end = float(self.loss[first])
        if tail:
            return end
        # From the loss before up to this one the curve is value(end) + slope (1 - exp(epsilon - end)).
        slope = float(np.sum(self.mass[first:] * np.exp(end - self.loss[first:])))
        root = end + math.log1p(max((self.value(end) - delta) / slope, UNIT - 1.0))
        return max(root, float(self.loss[first - 1]) if first > start else 0.0)


def last_where(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Last double from `low` towards `high`, neither below 0, where `holds` still holds; `low` if it holds nowhere."""
    if low == high or not holds(low):
        return low
    while True:
        small, large = sorted((low, high))
        near = small == 0.0 or large <= 2.0 * small
        middle = small + 0.5 * (large - small) if near else math.sqrt(small) * math.sqrt(large)
        if not small < middle < large:
            return low
        low, high = (middle, high) if holds(middle) else (low, middle)


def outward(start: float, direction: int, last: float, holds: Callable[[float], bool]) -> float:
    """First point from `start` outward where `holds` certifies a bound; past `last` only 0 or infinity is certain."""
    if not np.isfinite(start):
        return start
    gap, inner, outer = UNIT * max(1.0, abs(start)), start, start
    while not holds(outer):
        if (outer - last) * direction >= 0:
            return 0.0 if direction < 0 else np.inf
        inner, outer, gap = outer, outer + direction * gap, 2 * gap
    for _ in range(30 if outer != start else 0):
        middle = 0.5 * (inner + outer)
        inner, outer = (inner, middle) if holds(middle) else (middle, outer)
    return max(0.0, outer)
