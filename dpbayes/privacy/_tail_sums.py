"""Certified tails and crossings read from one tilted composition."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpbayes.privacy.loss_law import UNIT, Bounds

__all__ = ["TailSum", "TiltedSum", "last_where", "tail_lower", "tail_upper"]

# Spacings (in epsilon) of the divided differences that bound a tail probability by hockey-stick values.
_GAPS = 10.0 ** np.arange(-9, 0)
# Logarithm of factors that no answer needs: what would be multiplied by more is not known at all.
_FAR = 600.0


@dataclass(frozen=True)
class TailSum:
    """Tail sums of a composed law in one tilted window, with what is uncertain about them.

    With s the grid points, g the tilted masses and c the reference loss, ``plain`` holds sums of g exp(-tilt (s - c))
    from each point up and ``damped`` those of g exp(-(tilt + 1)(s - c)). Each g is off by at most ``bin_error``, all of
    them together by ``square_error`` in Euclidean norm; ``wrapped`` is the tilted mass outside the window. ``exact``
    says that the losses themselves are on the grid, so that tail probabilities can be read too; ``whole`` that no loss
    lies below the window, so that the tail can be read there as well.
    """

    start: float
    step: float
    reference: float
    tilt: float
    log_scale: float
    plain: np.ndarray
    damped: np.ndarray
    bin_error: float
    square_error: float
    wrapped: float
    log_error: float
    shift: float
    exact: bool
    whole: bool

    @property
    def end(self) -> float:
        """Last point where the tail can be read."""
        return self.start + self.step * (self.plain.size - 2)

    def covers(self, epsilon: float) -> bool:
        """Tell whether the tail at `epsilon` can be read."""
        return (self.whole or self.start <= epsilon) and epsilon <= self.end

    @property
    def scale(self) -> float:
        """Factor that turns tilted sums into probabilities."""
        return float(np.exp(min(self.log_scale, _FAR)))

    @property
    def says_nothing(self) -> bool:
        """Whether the errors of a very long composition have swallowed everything."""
        return max(self.log_scale, self.log_error) > _FAR

    def value(self, epsilon: float, *, tail: bool = False) -> tuple[float, float]:
        """Return the hockey stick (or the tail) at `epsilon` and its absolute error, before the common `scale`."""
        first = int(np.clip(np.floor((epsilon - self.start) / self.step) + 1, 0, self.plain.size - 1))
        plain = float(self.plain[first])
        ahead = 0.0 if tail else epsilon - self.reference
        # That far ahead the factor overflows and the damped sum underflows: between nothing and the plain sum.
        if ahead > _FAR:
            return 0.0, plain * (1 + 1e-9) + self.bin_error * float(self.plain.size - first) + self.wrapped
        value = plain if tail else plain - float(np.exp(ahead)) * float(self.damped[first])
        # Left of the window no outcome is near epsilon, so the factor 1 - exp(-t) may be 1 for each.
        most, total, squares = self._weights(float(self.plain.size - first), tail=tail or epsilon < self.start)
        noise = min(self.bin_error * total, self.square_error * np.sqrt(squares))
        weight = float(np.exp(-self.tilt * (max(epsilon, self.start) - self.reference)))
        rounding = 4 * (2 * np.sqrt(self.plain.size) + 64) * UNIT * plain
        return max(value, 0.0), weight * (float(noise) + most * self.wrapped) + rounding

    def _weights(self, count: float, *, tail: bool) -> tuple[float, float, float]:
        """Largest value, sum and sum of squares of the weights of the outcomes above a point.

        A loss t above it has weight exp(-tilt t), for the hockey stick times 1 - exp(-t). A sum over the grid is at
        most the integral over the step plus the largest value.
        """
        a = self.tilt
        if a == 0:
            return 1.0, count, count
        if tail:
            return 1.0, min(count, 1 / (a * self.step) + 1), min(count, 1 / (2 * a * self.step) + 1)
        most = 1 / (1 + a)
        total = 1 / (a * (a + 1) * self.step) + most
        squares = 1 / (2 * a * (2 * a + 1) * (a + 1) * self.step) + most * most
        return most, min(count * most, total), min(count * most * most, squares)


@dataclass(frozen=True)
class TiltedSum:
    """A composed law near one loss: from above and from below, plus the mass at infinity."""

    tilt: float
    above: TailSum
    below: TailSum
    infinite: Bounds

    def upper(self, epsilon: float, *, tail: bool = False) -> float:
        """Upper end at `epsilon` of the hockey stick, or of the tail probability; 1 outside the window."""
        law, point = self.above, epsilon - self.above.shift
        if law.says_nothing or not law.covers(point):
            return 1.0
        if tail and not law.exact:
            return tail_upper(self.upper, self.lower, epsilon)
        value, error = law.value(point, tail=tail)
        return min(1.0, law.scale * (float(np.exp(law.log_error)) * value + error) + self.infinite.upper)

    def lower(self, epsilon: float, *, tail: bool = False) -> float:
        """Lower end at `epsilon` of the hockey stick, or of the tail probability; that at infinity outside."""
        law, point = self.below, epsilon + self.below.shift
        if not law.whole and not (tail and not law.exact):
            point = max(point, law.start)  # the curve falls: on its left it is at least what it is there
        if law.says_nothing or not law.covers(point):
            return self.infinite.lower
        if tail and not law.exact:
            return tail_lower(self.upper, self.lower, epsilon)
        value, error = law.value(point, tail=tail)
        return max(0.0, law.scale * (float(np.exp(-law.log_error)) * value - error)) + self.infinite.lower

    def bounds(self, epsilon: float, *, tail: bool = False) -> Bounds:
        """Certified ends at `epsilon`."""
        return Bounds(float(min(1.0, self.lower(epsilon, tail=tail))), float(self.upper(epsilon, tail=tail)))

    def error_share(self, epsilon: float) -> float:
        """Absolute error at `epsilon` as a share of the hockey stick; infinite outside the window."""
        if not self.above.covers(epsilon):
            return np.inf
        value, error = self.above.value(epsilon)
        return error / value if value > 0 else np.inf

    @property
    def good_share(self) -> float:
        """Error share that a better tilt would not improve by much: that at the centre of this one, or 1e-9."""
        return max(1e-9, 100 * self.error_share(self.above.reference))

    def crossing(self, delta: float, *, tail: bool = False) -> Bounds:
        """Certified ends of the smallest epsilon >= 0 where the curve is at most `delta`, as far as the window goes."""
        low, high = (0.0 if self.above.whole else max(0.0, self.above.start)), self.above.end
        read = tail and self.above.exact
        finite = delta - self.infinite.lower
        root = last_where(low, high, lambda e: self.above.scale * self.above.value(e, tail=read)[0] > finite)

        def fits(epsilon: float) -> bool:
            return self.upper(epsilon, tail=tail) <= delta

        lower = _outward(root, -1, low, lambda e: self.lower(e, tail=tail) > delta) if root > 0 else 0.0
        return Bounds(lower, 0.0 if fits(0.0) else _outward(root, +1, high, fits))


def tail_upper(upper: Callable[[float], float], lower: Callable[[float], float], epsilon: float) -> float:
    """Upper end of the probability of losses above `epsilon` from the ends of the hockey stick.

    It is H - x H' for the convex curve H of x = exp(epsilon), and divided differences bound the slope H'.
    """
    slopes = [(upper(epsilon - gap) - lower(epsilon)) / -np.expm1(-gap) for gap in _GAPS]
    return min(1.0, upper(epsilon) + float(min(slopes)))


def tail_lower(upper: Callable[[float], float], lower: Callable[[float], float], epsilon: float) -> float:
    """Lower end of the probability of losses above `epsilon`, see `tail_upper`."""
    slopes = [(lower(epsilon) - upper(epsilon + gap)) / np.expm1(gap) for gap in _GAPS]
    return lower(epsilon) + max(0.0, float(max(slopes)))


def last_where(low: float, high: float, holds: Callable[[float], bool]) -> float:
    """Largest point of [low, high] up to which `holds` holds; `low` when it holds nowhere."""
    if high <= low or not holds(low):
        return low
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return low
        low, high = (middle, high) if holds(middle) else (low, middle)


def _outward(root: float, direction: int, end: float, holds: Callable[[float], bool]) -> float:
    """First point from `root` outward where `holds` certifies the end; 0 or infinity when the window has none.

    The certified curves are not monotone over a whole window, because the absolute error weighs more far from the
    centre; hence the search starts at the root.
    """
    gap, inner, outer = 4 * UNIT * max(1.0, abs(root)), root, root
    while not holds(outer):
        if (outer - end) * direction >= 0:
            return 0.0 if direction < 0 else np.inf
        inner, outer, gap = outer, outer + direction * gap, 2 * gap
    for _ in range(30):
        middle = 0.5 * (inner + outer)
        inner, outer = (inner, middle) if holds(middle) else (middle, outer)
    return max(0.0, outer)
