"""Privacy of k filters for the paper's pair of inputs, with certified ends.

D is all zeros, D' has ones in all k filters at one position. `ratio_law` certifies the law of R = P(D' gives x)/P(D
gives x); here its curves are inverted. Each of the four numbers (tight or quantile, D' from D or D from D') is a root
of a monotone curve, and is refined on a finer lattice until its ends are close.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpbayes._arguments import probability_below_one
from dpbayes.bloom._checks import MAX_FILTERS, Definition, check_count, check_definition, check_flip_prob
from dpbayes.bloom.claims import EpsilonClaim
from dpbayes.bloom.column_sum import Side
from dpbayes.bloom.ratio_law import RatioLaw, ratio_law
from dpbayes.bloom.transition import largest_loss
from dpbayes.errors import InputError
from dpbayes.privacy.curves import PrivacyLoss
from dpbayes.privacy.loss_law import Bounds

__all__ = ["FiltersLoss", "filters_loss"]

_SIZES = (2**13, 2**16, 2**19, 2**22)
# Share of delta that the lattice's exceptional event may take.
_EXCEPTION = 1e-5
_DELTA_REMEDY = "a usual choice is below 1 / number of people"
_Curve = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class FiltersLoss:
    """Privacy loss of k shuffled and flipped filters for the paper's pair of inputs; build it with `filters_loss`.

    Parameters
    ----------
    n_filters, n_bits, flip_prob
        Filters k, positions m and flip probability p.
    tolerance
        Width of the certified ends, relative to epsilon, at which refining stops.

    Examples
    --------
    >>> loss = filters_loss(n_filters=2, n_bits=1000, flip_prob=0.2)
    >>> bounds = loss.epsilon_bounds(1e-3)
    >>> bounds.width < 5e-4 * bounds.upper, loss.delta_bounds(bounds.upper).lower <= 1e-3
    (True, True)
    """

    n_filters: int
    n_bits: int
    flip_prob: float
    tolerance: float = 5e-4

    @cached_property
    def largest(self) -> float:
        """Epsilon of pure differential privacy for any pair of inputs, k ln(q/p), rounded up."""
        return largest_loss(self.n_filters, self.flip_prob)

    @property
    def spread(self) -> float:
        """Standard deviation of R under D."""
        q, p = 1.0 - self.flip_prob, self.flip_prob
        return float(np.sqrt(np.expm1(self.n_filters * np.log(q * q / p + p * p / q)) / self.n_bits))

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Certified ends of the smallest epsilon >= 0 with hockey-stick divergence at most `delta`, both directions."""
        delta = probability_below_one(delta, "delta", remedy=_DELTA_REMEDY)
        return self._worse(delta, self._tight_up, self._tight_down, split=True)

    def epsilon(self, delta: float) -> float:
        """Upper end of `epsilon_bounds`."""
        return self.epsilon_bounds(delta).upper

    def quantile_bounds(self, delta: float) -> Bounds:
        """Certified ends of the paper's epsilon: the loss exceeds it with probability at most `delta`."""
        delta = probability_below_one(delta, "delta", remedy=_DELTA_REMEDY)
        return self._worse(delta, self._quantile_up, self._quantile_down, split=False)

    def quantile_epsilon(self, delta: float) -> float:
        """Upper end of `quantile_bounds`."""
        return self.quantile_bounds(delta).upper

    def claim(self, delta: float, *, definition: Definition = "tight") -> EpsilonClaim:
        """Return epsilon at `delta` with what it covers: the paper's pair, and no other."""
        bounds = self.epsilon_bounds(delta) if check_definition(definition) == "tight" else self.quantile_bounds(delta)
        pair = f"all zeros against one position of ones in all {self.n_filters} filters"
        return EpsilonClaim(bounds, float(delta), definition, "paper's pair, certified", pair)

    def delta_bounds(self, epsilon: float) -> Bounds:
        """Certified ends of the hockey-stick divergence at `epsilon` >= 0, the larger of both directions."""
        epsilon = float(epsilon)
        if not 0.0 <= epsilon < np.inf:
            raise InputError(f"epsilon must be finite and not negative, got {epsilon!r}")
        if epsilon >= self.largest:
            return Bounds(0.0, 0.0)
        bounds = Bounds(0.0, 1.0)
        for size in _SIZES:
            up = self._tight_up(self.law(epsilon, "upper", size, 1e-12, split=True))(np.array([epsilon]))
            down = self._tight_down(self.law(epsilon, "lower", size, 1e-12, split=True))(np.array([epsilon]))
            bounds = Bounds(float(max(up[0][0], down[0][0])), float(max(up[1][0], down[1][0])))
            if bounds.width <= self.tolerance * bounds.upper:
                break
        return bounds

    def compose(self, n_releases: int) -> PrivacyLoss:
        """Return the loss of `n_releases` independent releases, through a dominating pair of laws."""
        from dpbayes.bloom.dominating import dominating_loss

        return dominating_loss(self).compose(n_releases)

    def law(self, epsilon: float, side: Side, size: int, exception: float, *, split: bool) -> RatioLaw:
        """Return the law of R for questions about one tail out to `epsilon`; see `ratio_law`."""
        return ratio_law(
            n_filters=self.n_filters,
            n_bits=self.n_bits,
            flip_prob=self.flip_prob,
            t=float(np.exp(epsilon if side == "upper" else -epsilon)),
            side=side,
            size=size,
            exception=exception,
            split=split,
        )

    def _worse(self, delta: float, up: "_Family", down: "_Family", *, split: bool) -> Bounds:
        """Refine both directions, dropping one as soon as the other is certainly worse."""
        sides: tuple[Side, Side] = ("upper", "lower")
        ends = [
            self._first_bracket(delta, side, family, split=split)
            for side, family in zip(sides, (up, down), strict=True)
        ]
        for size in _SIZES[1:]:
            for place, family in enumerate((up, down)):
                here, other = ends[place], ends[1 - place]
                if here.upper <= other.lower or here.width <= self.tolerance * here.upper:
                    continue
                law = self.law(here.upper, sides[place], size, delta * _EXCEPTION, split=split)
                found = _root(family(law), delta, here.upper)
                ends[place] = Bounds(max(here.lower, found.lower), min(here.upper, found.upper))
        return Bounds(max(end.lower for end in ends), max(end.upper for end in ends))

    def _first_bracket(self, delta: float, side: Side, family: "_Family", *, split: bool) -> Bounds:
        """Double epsilon from the standard deviation of R until the curve is certainly below `delta`."""
        # Near p = 1/2 the spread is lost to rounding.
        epsilon = min(self.largest, max(2.0 * self.spread, 2.0**-30 * self.largest))
        while epsilon < self.largest:
            law = self.law(epsilon, side, _SIZES[0], delta * _EXCEPTION, split=split)
            found = _root(family(law), delta, epsilon)
            if found.upper < epsilon:
                return found
            epsilon = min(2.0 * epsilon, self.largest)
        return Bounds(0.0, self.largest)

    def _tight_up(self, law: RatioLaw) -> _Curve:
        return lambda epsilon: law.call_bounds(np.exp(epsilon))

    def _tight_down(self, law: RatioLaw) -> _Curve:
        def curve(epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            lower, upper = law.put_bounds(np.exp(-epsilon))
            return np.exp(epsilon) * lower, np.exp(epsilon) * upper

        return curve

    def _quantile_up(self, law: RatioLaw) -> _Curve:
        return lambda epsilon: law.exceed_bounds(np.exp(epsilon))

    def _quantile_down(self, law: RatioLaw) -> _Curve:
        # R = exp(-epsilon) itself is a loss of epsilon, which does not exceed epsilon: step just below it.
        return lambda epsilon: law.cdf_bounds(np.exp(-epsilon) * (1 - 2.0**-50))


_Family = Callable[[RatioLaw], _Curve]


def _root(curve: _Curve, delta: float, largest: float) -> Bounds:
    """Return an epsilon where the curve certainly exceeds `delta` and one where it certainly does not.

    Both ends are points at which the curve was evaluated, so they hold even if its bounds are not monotone.
    """
    low, high = 0.0, largest
    for _ in range(8):
        grid = np.linspace(low, high, 34)
        over = np.flatnonzero(curve(grid)[0] > delta)
        if not over.size or over[-1] == grid.size - 1:
            low = float(grid[over[-1]]) if over.size else low
            break
        low, high = float(grid[over[-1]]), float(grid[over[-1] + 1])
    lower, low, high = low, low, largest
    for _ in range(8):
        grid = np.linspace(low, high, 34)
        under = np.flatnonzero(curve(grid)[1] <= delta)
        if not under.size or under[0] == 0:
            high = float(grid[0]) if under.size else high
            break
        low, high = float(grid[under[0] - 1]), float(grid[under[0]])
    return Bounds(lower, high)


def filters_loss(*, n_filters: int, n_bits: int, flip_prob: float, tolerance: float = 5e-4) -> FiltersLoss:
    """Return the privacy loss of k filters for the paper's pair, with certified ends.

    Parameters
    ----------
    n_filters
        Filters k, at most 20. One column permutation serves all of them.
    n_bits
        Positions m.
    flip_prob
        Flip probability p, between 0 and 1/2.
    tolerance
        Relative width of the certified ends at which refining stops.

    Returns
    -------
    FiltersLoss
        Covers the pair that the paper calls worst: all zeros against ones in all filters at one position
        (one-position). It is not always the worst; see `worst_pair` and `all_pairs_epsilon`.

    Raises
    ------
    InputError
        If a value is out of range.

    References
    ----------
    The "buffling" technical details (2020), part III.1, where the same law is simulated.

    Examples
    --------
    >>> loss = filters_loss(n_filters=6, n_bits=100_000, flip_prob=0.1)
    >>> round(loss.epsilon(1e-3), 2), round(loss.quantile_epsilon(1e-3), 2)
    (2.41, 2.8)
    """
    k, m = check_count(n_filters, "n_filters", low=1, high=MAX_FILTERS), check_count(n_bits, "n_bits", low=1)
    if not 0.0 < tolerance < 1.0:
        raise InputError(f"tolerance must lie between 0 and 1, got {tolerance!r}; it is relative to epsilon")
    return FiltersLoss(k, m, check_flip_prob(flip_prob), float(tolerance))
