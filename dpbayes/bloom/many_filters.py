"""Privacy of k filters for the paper's pair of inputs and for all others, in certified bounds; see docs/bloom.md.

*The paper's pair.* D is all zeros, D' has ones in all k filters at one position. With y_i the bits of position i that
look like D'

    R = P(D' gives x) / P(D gives x) = (1/m) sum_i v(y_i),     v(y) = (q/p)^(2y - k).

What is asked of R mixes, over the y of one position, which stays exact, the sum S over the other n = m - 1
(`column_sum`). S goes to a lattice, S': values are rounded, or split between neighbours with their mean kept, which
gives 0 <= E(S' - x)_+ - E(S - x)_+ <= slack P(|S' - x| <= 2 slack) + small. Values above x_max are dropped and counted
apart.

*Every pair.* The differing position holds logo a in D and b in D'; a `BackgroundShape` says how the logo c of all
others lies to them. With L_a(x) = T(a, x)/T(c, x) for the transition matrix T, delta(epsilon) of D' from D is the mean
excess of one sum of independent terms L_b - e^epsilon L_a. `all_pairs_epsilon` applies the theorem of docs/bloom.md to
any background.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from math import comb, log
from typing import Any, Literal

import numpy as np
from scipy.fft import next_fast_len
from scipy.special import binom

from dpbayes._arguments import number, probability_below_one, whole_number
from dpbayes.bloom.claims import (
    MAX_FILTERS,
    MOST_BITS,
    PEOPLE,
    Definition,
    EpsilonClaim,
    check_definition,
    check_flip_prob,
)
from dpbayes.bloom.filters import largest_loss
from dpbayes.errors import InputError
from dpbayes.privacy.composition import lattice_sum
from dpbayes.privacy.loss_law import UNIT, Bounds
from dpbayes.privacy.losses import worse
from dpbayes.privacy.rounding import least_where_kept

# Log of the probability that Chernoff's inequality may leave outside of the lattice on either side.
_OUTSIDE = 36.0
Side = Literal["upper", "lower"]


def _log_mgf(weights: np.ndarray, values: np.ndarray, rates: np.ndarray) -> np.ndarray:
    # Weights join the exponents: one far below its neighbours may still decide, and must not underflow first.
    some = weights > 0
    exponent = np.outer(rates, values[some]) + np.log(weights[some])
    top = exponent.max(axis=1)
    return np.log(np.exp(exponent - top[:, None]).sum(axis=1)) + top


def chernoff_range(weights: np.ndarray, values: np.ndarray, n: int) -> tuple[float, float]:
    """Return where Chernoff's inequality leaves less than e^-36 of a sum of `n` terms below and above."""
    scale = float(values[-1])
    rates = np.geomspace(1e-8, 1e8, 160) / scale
    low = float(np.max((-n * _log_mgf(weights, values, -rates) - _OUTSIDE) / rates))
    high = float(np.min((n * _log_mgf(weights, values, rates) + _OUTSIDE) / rates))
    return max(low, 0.0), min(max(high, 0.0), n * scale)


def _lattice_power(
    weights: np.ndarray, index: np.ndarray, *, n: int, size: int, theta: float, ends: tuple[float, float], side: Side
) -> tuple[int, np.ndarray, np.ndarray, float]:
    """Return the n-fold convolution of a law on lattice points `index`: first point, sums, errors and mass beyond."""
    values = index.astype(float)
    tilted = weights * np.exp(theta * (values - (values.max() if theta > 0 else 0.0)))
    log_total = float(np.log(tilted.sum())) + (theta * float(values.max()) if theta > 0 else 0.0)
    tilted /= tilted.sum()
    low, high = chernoff_range(tilted, values, n)
    first = int(min(low, ends[0]))
    last = int(min(max(high, ends[1]), n * values.max())) + 1
    length = next_fast_len(max(last - first + 2, min(size, 64)), real=True)
    folded, _, square_error = lattice_sum([(np.bincount(index % length, tilted, minlength=length), n)], first=first)
    mass = folded[: last - first + 1]
    log_growth = n * log_total - theta * (first + np.arange(mass.size))
    growth = np.exp(np.minimum(log_growth, 300.0))
    mass, outward = (mass * growth, growth) if side == "lower" else ((mass * growth)[::-1], growth[::-1])
    # What lies outside of one length, e^-36 of the tilted law on either side, may have folded onto any point.
    error = square_error * np.sqrt(np.cumsum(outward**2)) + 2 * np.exp(-_OUTSIDE) * np.maximum.accumulate(outward)
    outside = 2 * np.exp(-_OUTSIDE) * outward[0] / min(abs(theta), 1.0)
    return first, np.append(0.0, np.cumsum(mass)), np.append(error[0], error), float(outside)


# Candidate lattice steps: rounding gains from a lucky step, splitting hardly does.
_STEPS = {True: 64, False: 2000}


@dataclass(frozen=True)
class ColumnSum:
    """Law of the sum S of n columns none of which is above x_max, through a lattice sum S'."""

    origin: float  # S' takes the values origin + step * (0, 1, 2, ...)
    step: float
    sums: np.ndarray  # masses of the 0, 1, 2, ... points nearest to the side's end
    errors: np.ndarray  # bounds on the errors of these
    beyond: float  # bound on the sum, over the steps past that end, of the mass further out
    split: bool  # whether the lattice law was made by splitting values with their means kept
    slack: float  # bound on |S - S'|, outside of an event of probability `exception`
    exception: float
    side: Side  # "upper" answers for S > x, "lower" for S <= x

    @cached_property
    def _integral(self) -> np.ndarray:
        return np.append(0.0, np.cumsum(self.sums[1:])) * self.step

    @cached_property
    def _integral_error(self) -> np.ndarray:
        return np.append(0.0, np.cumsum(self.errors[1:])) * self.step + self.beyond * self.step

    def _place(self, x: np.ndarray) -> np.ndarray:
        """Distance of `x` from the side's end point, in steps; nothing is added near the lower end: it would round."""
        at = (x - self.origin) / self.step
        return at if self.side == "lower" else (self.sums.size - 2) - at

    def _tail(self, x: np.ndarray, *, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """Mass beyond `x`, the threshold moved outward by `shift` (negative: inward), with its error."""
        outward = -shift if self.side == "lower" else shift
        place = self._place(x + outward)
        count = np.floor(place) + 1 if self.side == "lower" else np.ceil(place)
        count = np.clip(count, 0, self.sums.size - 1).astype(np.int64)
        return self.sums[count], self.errors[count]

    def tail_bounds(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified bounds of P(S > x) for the upper side, P(S <= x) for the lower."""
        fewer, error_fewer = self._tail(x, shift=self.slack)
        more, error_more = self._tail(x, shift=-self.slack)
        lower, upper = fewer - error_fewer - self.exception, more + error_more + self.exception
        return np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)

    def excess_bounds(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified bounds of E(S - x)_+ for the upper side, E(x - S)_+ for the lower; needs splitting."""
        size = self.sums.size - 1
        at = np.clip(self._place(x), 0.0, None)
        below = np.minimum(at, size - 1 if self.side == "lower" else size).astype(np.int64)
        slope = self.sums[np.minimum(below + 1, size)]
        value = self._integral[below] + (at - below) * self.step * slope
        miss = self._integral_error[below] + (at - below) * self.step * self.errors[np.minimum(below + 1, size)]
        miss = miss + 8 * UNIT * (1 + size**0.5) * value + 8 * UNIT * (np.abs(x) + abs(self.origin)) * slope
        near_more, error = self._tail(x, shift=-2 * self.slack)
        near_fewer, _ = self._tail(x, shift=2 * self.slack)
        drop = self.slack * (near_more - near_fewer + 2 * error + 3 * self.exception)
        return np.maximum(value - drop - miss, 0.0), value + miss


def column_sum(
    weights: np.ndarray,
    values: np.ndarray,
    *,
    n: int,
    x_max: float,
    focus: float,
    side: Side,
    size: int,
    exception: float,
    split: bool,
) -> ColumnSum:
    """Return the law of the sum of `n` columns none of which is above `x_max`."""
    keep = values <= max(x_max, values[0])
    weights, offsets = weights[keep], values[keep] - values[0]
    base = n * values[0]
    if n == 0 or weights.size == 1:
        sums, errors = np.array([0.0, float(weights[0]) ** n]), np.full(2, UNIT * (n + 4))
        return ColumnSum(base, max(base, 1.0), sums, errors, 0.0, split, 0.0, 0.0, side)
    # In units of a power of two near the largest value, exactly: squares of values would overflow.
    unit = 2.0 ** np.floor(np.log2(offsets[-1]))
    offsets = offsets / unit
    theta = _tilt(weights, offsets, n, (focus - base) / unit, side)
    low, high = _span(weights, offsets, n, theta, (x_max - base) / unit)
    step, slack = _choose_step(weights, offsets, n, _least_step(offsets, high - low, size), exception, split)
    masses, index, shift = _to_lattice(weights, offsets / step, split)
    ends = low / step, high / step
    first, sums, errors, far = _lattice_power(masses, index, n=n, size=size, theta=theta * step, ends=ends, side=side)
    step, slack = step * unit, slack * unit
    origin = base + n * step * shift + step * first
    # The lattice itself is exact to a few ulps of its largest value.
    slack += 8 * UNIT * (abs(base) + n * step * abs(shift) + step * (first + sums.size - 1))
    return ColumnSum(origin, step, sums, errors, far, split, slack, exception, side)


def _tilt(weights: np.ndarray, offsets: np.ndarray, n: int, focus: float, side: Side) -> float:
    """Return the tilt that moves the mean onto the focus, no further than a tail of e^-25 and never quite zero."""
    share = weights / weights.sum()
    mean = float(share @ offsets)
    stddev = float(np.sqrt(n * (share @ (offsets - mean) ** 2)))
    fastest = 60.0 / stddev if side == "upper" else 1e6 / stddev
    rates = np.geomspace(1e-3 / (stddev + offsets[-1]), min(fastest, 500.0 / offsets[-1]), 250)
    rates *= 1.0 if side == "upper" else -1.0
    growth = np.exp(np.outer(rates, offsets)) * share
    total = growth.sum(axis=1)
    means = growth @ offsets / total
    rarity = n * (np.log(total) - rates * means)
    # A law that has run into its end point would be tilted for ever.
    if side == "upper":
        short = means <= min(focus / n, 0.9 * offsets[-1] + 0.1 * mean)
    else:
        short = means >= max(focus / n, 0.1 * mean)
    return float(rates[np.flatnonzero((rarity >= -0.1) | (short & (rarity >= -25.0)))[-1]])


def _span(weights: np.ndarray, offsets: np.ndarray, n: int, theta: float, x_max: float) -> tuple[float, float]:
    """Return the range of the lattice: both the plain and the tilted law lie within, but for e^-36 each."""
    tilted = weights * np.exp(theta * (offsets - (offsets[-1] if theta > 0 else 0.0)))
    low, high = chernoff_range(tilted / tilted.sum(), offsets, n)
    plain_low, plain_high = chernoff_range(weights, offsets, n)
    return min(low, plain_low), max(high, min(plain_high, x_max))


# Points of a lattice that is finer than asked for, so that it tells the levels of a column apart.
_MOST_POINTS = 1 << 19


def _least_step(offsets: np.ndarray, span: float, size: int) -> float:
    """Return the least step of a lattice of some size over a span, refined where it exceeds the columns themselves."""
    step = max(span, offsets[-1] / 8) / (size - 16)
    if step <= offsets[-1] / 8:
        return float(step)
    # The span grows as the root of n: of very many columns each would round to 0.
    return float(min(max(offsets[1], span / _MOST_POINTS), offsets[-1] / 8))


def _to_lattice(weights: np.ndarray, jumps: np.ndarray, split: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Return masses and indices on the lattice, and the mean of what rounding takes away from a column, in steps."""
    nearest = np.rint(jumps)
    if not split:
        return weights, nearest.astype(np.int64), float(weights @ (jumps - nearest)) / float(weights.sum())
    jumps = np.where(np.abs(jumps - nearest) <= 8 * UNIT * jumps, nearest, jumps)
    floor = np.floor(jumps)
    up = jumps - floor
    index = np.concatenate([floor, floor + 1]).astype(np.int64)
    masses = np.concatenate([weights * (1 - up), weights * up])
    return masses[masses > 0], index[masses > 0], 0.0


def _choose_step(
    weights: np.ndarray, offsets: np.ndarray, n: int, smallest: float, exception: float, split: bool
) -> tuple[float, float]:
    """Return the lattice step, of many slightly above the smallest, that leaves the least slack."""
    jumps = offsets[1:] / smallest
    # Steps that hit one value exactly come first: a column with two values then has no error at all.
    exact = (offsets[1:] / np.maximum(np.floor(jumps), 1.0))[jumps >= 1.0]
    steps = np.concatenate([exact, smallest * np.linspace(1.0, 1.4, _STEPS[split])])
    share = weights / weights.sum()
    errors = offsets[None, :] - np.rint(offsets[None, :] / steps[:, None]) * steps[:, None]
    errors[np.abs(errors) <= 8 * UNIT * offsets[None, :]] = 0.0
    if split:
        # A value at distance e from the nearest of two points that are h apart: variance e (h - e).
        away = np.abs(errors)
        variance, largest = (away * (steps[:, None] - away)) @ share, steps * (away.max(axis=1) > 0)
    else:
        centred = errors - (errors @ share)[:, None]
        variance, largest = (centred**2) @ share, np.abs(centred).max(axis=1)
    log_odds = np.log(2.0 / exception)
    half = largest * log_odds / 3
    slack = half + np.sqrt(half**2 + 2 * n * variance * log_odds)
    best = int(np.argmin(slack))
    return float(steps[best]), float(slack[best])


ROUNDING = 2.0**-46
"""Share to which thresholds, values and weights are known: a power of q/p takes 42 roundings of 2^-53, the rest fewer.

An excess E(R - t)_+ moves by that share of E(R + t) over the outputs that count, and may be far below that itself.
"""


@dataclass(frozen=True)
class RatioLaw:
    """Certified law of R, sharp in one tail; `FiltersLoss.law` builds it."""

    n_bits: int
    values: np.ndarray  # v(y) for y = 0, ..., k
    under: np.ndarray  # probabilities of y under D, Binomial(k, p)
    under_alternative: np.ndarray  # those in the differing position of D', Binomial(k, q)
    kept: int  # levels, from the lowest, that the sum over the other positions was made of
    others: ColumnSum  # law of that sum

    def _rest(self, t: np.ndarray) -> np.ndarray:
        """Return what the other positions add up to where R = t; shape (t, kept levels)."""
        return np.atleast_1d(t)[:, None] * self.n_bits - self.values[None, : self.kept]

    def _dropped(self) -> tuple[float, float]:
        """Probability that some other position is above the kept levels, and E(S) on that event."""
        n = self.n_bits - 1
        mass, mean = float(self.under[self.kept :].sum()), float(self.under_alternative[self.kept :].sum())
        if n == 0 or mass == 0.0:
            return 0.0, 0.0
        with np.errstate(divide="ignore"):
            log_kept, log_mean = np.log1p(-mass), np.log1p(-min(mean, 1.0))
        return float(-np.expm1(n * log_kept)), float(-n * np.expm1(log_mean + (n - 1) * log_kept))

    def call_bounds(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified bounds of E_D(R - t)_+, the hockey-stick divergence of D' from D at epsilon = ln t."""
        rest, m = self._rest(t), self.n_bits
        mass, mean = self._dropped()
        above, above_alternative = self.under[self.kept :].sum(), self.under_alternative[self.kept :].sum()
        # A level above t m, in the position kept apart or in another one, makes the excess positive for certain.
        gain = above_alternative + above * (m - 1) + mean * self.under[: self.kept].sum()
        cost = above * t * m + mass * (rest @ self.under[: self.kept])
        lower, upper = (bound @ self.under[: self.kept] for bound in self.others.excess_bounds(rest))
        beyond = t * m * (self.others.tail_bounds(rest)[1] @ self.under[: self.kept])
        rounding = ROUNDING * (gain + np.abs(cost) + upper + beyond) / m
        return (gain - cost + lower) / m - rounding, np.minimum((gain - cost + upper) / m + rounding, 1.0)

    def put_bounds(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified bounds of E_D(t - R)_+."""
        rest = self._rest(t)
        lower, upper = (bound @ self.under[: self.kept] for bound in self.others.excess_bounds(rest))
        rounding = ROUNDING * t * (self.others.tail_bounds(rest)[1] @ self.under[: self.kept])
        return np.maximum(lower / self.n_bits - rounding, 0.0), upper / self.n_bits + rounding

    def exceed_bounds(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified bounds of P(R > t) under D'."""
        mass, _ = self._dropped()
        lower, upper = (bound @ self.under_alternative[: self.kept] for bound in self.others.tail_bounds(self._rest(t)))
        certain = self.under_alternative[self.kept :].sum() + mass * self.under_alternative[: self.kept].sum()
        return certain + lower, np.minimum(certain + upper, 1.0)

    def cdf_bounds(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified bounds of P(R <= t) under D."""
        lower, upper = (bound @ self.under[: self.kept] for bound in self.others.tail_bounds(self._rest(t)))
        return lower, np.minimum(upper, 1.0)

    def curve(self, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of this side's divergence at `epsilon`; where values were rounded, of P(loss > epsilon)."""
        if self.others.side == "upper":
            return (self.call_bounds if self.others.split else self.exceed_bounds)(np.exp(epsilon))
        if self.others.split:
            lower, upper = self.put_bounds(np.exp(-epsilon))
            return np.exp(epsilon) * lower, np.exp(epsilon) * upper
        # R = exp(-epsilon) itself is a loss of epsilon, which does not exceed epsilon: step just below it.
        return self.cdf_bounds(np.exp(-epsilon) * (1 - 2.0**-50))


def binomial_law(n: int, p: float) -> np.ndarray:
    """Return the probabilities of 0, ..., n."""
    y = np.arange(n + 1)
    law = binom(n, y) * p**y * (1.0 - p) ** (n - y)
    return law / law.sum()


_SIDES: tuple[Side, Side] = ("upper", "lower")
_SIZES = (2**13, 2**16, 2**19, 2**22)
# Share of delta that the lattice's exceptional event may take.
_EXCEPTION = 1e-5
_TOLERANCE = 5e-4  # relative width of the bounds, about


@dataclass(frozen=True)
class FiltersLoss:
    """Privacy loss of k shuffled and flipped filters for the paper's pair of inputs; build it with `filters_loss`."""

    n_filters: int
    n_bits: int
    flip_prob: float

    @cached_property
    def largest(self) -> float:
        """Epsilon of pure differential privacy for any pair of inputs, k ln(q/p), rounded up."""
        return largest_loss(self.n_filters, self.flip_prob)

    def epsilon_bounds(self, delta: float) -> Bounds:
        """Certified bounds of the smallest epsilon >= 0 with divergence at most `delta` in both directions."""
        return self._worse(delta, split=True)

    def quantile_bounds(self, delta: float) -> Bounds:
        """Certified bounds of the paper's epsilon: the loss exceeds it with probability at most `delta`."""
        return self._worse(delta, split=False)

    def claim(self, delta: float, *, definition: Definition = "tight") -> EpsilonClaim:
        """Return epsilon at `delta` with what it covers: the paper's pair, and no other."""
        bounds = self.epsilon_bounds(delta) if check_definition(definition) == "tight" else self.quantile_bounds(delta)
        pair = f"all zeros against one position of ones in all {self.n_filters} filters"
        return EpsilonClaim(bounds, float(delta), definition, "paper's pair, certified", pair)

    def delta_bounds(self, epsilon: float) -> Bounds:
        """Certified bounds of the hockey-stick divergence at `epsilon` >= 0, the larger of both directions."""
        epsilon = number(epsilon, "epsilon")
        if not 0.0 <= epsilon < np.inf:
            raise InputError(f"epsilon must be finite and not negative, got {epsilon!r}")
        if epsilon >= self.largest:
            return Bounds(0.0, 0.0)
        bounds = Bounds(0.0, 1.0)
        for size in _SIZES:
            curves = [self.law(epsilon, side, size, 1e-12, split=True).curve(np.array([epsilon])) for side in _SIDES]
            bounds = worse([Bounds(float(lower[0]), float(upper[0])) for lower, upper in curves])
            if bounds.width <= _TOLERANCE * bounds.upper:
                break
        return bounds

    def law(self, epsilon: float, side: Side, size: int, exception: float, *, split: bool) -> RatioLaw:
        """Return the law of R for questions about one tail out to `epsilon`."""
        k, m, p = self.n_filters, self.n_bits, self.flip_prob
        under, values = binomial_law(k, p), ((1.0 - p) / p) ** (2.0 * np.arange(k + 1) - k)
        t = float(np.exp(epsilon if side == "upper" else -epsilon))
        x_max = max(t if side == "upper" else 1.0, 1.0) * m * (1 + 1e-9)
        kept = max(1, int(np.searchsorted(values, x_max, side="right")))
        how: dict[str, Any] = {"side": side, "size": size, "exception": exception, "split": split}
        others = column_sum(under, values, n=m - 1, x_max=x_max, focus=t * m, **how)
        return RatioLaw(m, values, under, under[::-1].copy(), kept, others)

    def _worse(self, delta: float, *, split: bool) -> Bounds:
        """Refine both directions, dropping one as soon as the other is certainly worse."""
        delta = probability_below_one(delta, "delta", remedy=PEOPLE)
        ends = [self._first_bracket(delta, side, split=split) for side in _SIDES]
        for size in _SIZES[1:]:
            for place, side in enumerate(_SIDES):
                here, other = ends[place], ends[1 - place]
                if here.upper <= other.lower or here.width <= _TOLERANCE * here.upper:
                    continue
                found = _root(self.law(here.upper, side, size, delta * _EXCEPTION, split=split), delta, here.upper)
                ends[place] = Bounds(max(here.lower, found.lower), min(here.upper, found.upper))
        return worse(ends)

    def _first_bracket(self, delta: float, side: Side, *, split: bool) -> Bounds:
        """Double epsilon from the standard deviation of R until the curve is certainly below `delta`."""
        q, p = 1.0 - self.flip_prob, self.flip_prob
        spread = float(np.sqrt(np.expm1(self.n_filters * np.log(q * q / p + p * p / q)) / self.n_bits))
        # Near p = 1/2 the spread is lost to rounding.
        epsilon = min(self.largest, max(2.0 * spread, 2.0**-30 * self.largest))
        while epsilon < self.largest:
            found = _root(self.law(epsilon, side, _SIZES[0], delta * _EXCEPTION, split=split), delta, epsilon)
            if found.upper < epsilon:
                return found
            epsilon = min(2.0 * epsilon, self.largest)
        return Bounds(0.0, self.largest)


def _root(law: RatioLaw, delta: float, largest: float) -> Bounds:
    """Return an epsilon where the curve certainly exceeds `delta` and one where it certainly does not."""
    lower = _first(lambda grid: law.curve(grid)[0] > delta, largest, 0.0)
    return Bounds(lower, _first(lambda grid: law.curve(grid)[1] <= delta, lower, largest))


def _first(holds: Callable[[np.ndarray], np.ndarray], start: float, end: float) -> float:
    """Return a point where something holds, close to the first from `start` on; `end` where it is found nowhere."""
    for _ in range(8):
        grid = np.linspace(start, end, 34) if start < end else np.linspace(end, start, 34)[::-1]
        found = np.flatnonzero(holds(grid))
        if not found.size:
            break
        if found[0] == 0:
            return start
        start, end = float(grid[found[0] - 1]), float(grid[found[0]])
    return end


def filters_loss(*, n_filters: int, n_bits: int, flip_prob: float) -> FiltersLoss:
    """Return the privacy loss of k filters for the paper's pair, bounded to a relative width of 5e-4 or so.

    The pair is all zeros against ones in all filters at one position, in the "buffling" technical details (2020), part
    III.1, where the same law is simulated.
    """
    k, m = whole_number(n_filters, "n_filters", high=MAX_FILTERS), whole_number(n_bits, "n_bits", high=MOST_BITS)
    return FiltersLoss(k, m, check_flip_prob(flip_prob))


# --- every pair ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class BackgroundShape:
    """How the logos a, b of the differing position and c of the others lie to each other."""

    differ: int  # filters h in which a and b differ
    like_b: int  # of these, filters i in which c agrees with b
    apart: int  # filters g in which a and b agree and c differs from them

    @property
    def from_a(self) -> int:
        """Filters in which c differs from a."""
        return self.like_b + self.apart

    @property
    def from_b(self) -> int:
        """Filters in which c differs from b."""
        return self.differ - self.like_b + self.apart

    def __str__(self) -> str:
        return (
            f"logos differ in {self.differ} filters, the others are {self.from_a} from the first "
            f"and {self.from_b} from the second"
        )


def background_shapes(n_filters: int, *, differ: int) -> list[BackgroundShape]:
    """Return all shapes of `n_filters` filters whose differing logos differ in `differ` of them."""
    return [BackgroundShape(differ, i, g) for i in range(differ + 1) for g in range(n_filters - differ + 1)]


def background_delta(
    shape: BackgroundShape, *, n_bits: int, flip_prob: float, epsilon: float, size: int = 2**14, exception: float = 1e-9
) -> Bounds:
    """Return certified bounds of delta(epsilon) of D' from D for one shape."""
    if epsilon >= largest_loss(shape.differ, flip_prob):
        return Bounds(0.0, 0.0)
    weights, values = _terms(shape, n_bits, flip_prob, epsilon)
    law = column_sum(
        weights, values, n=n_bits, x_max=np.inf, focus=0.0, side="upper", size=size, exception=exception, split=True
    )
    lower, upper = (float(end[0]) / n_bits for end in law.excess_bounds(np.zeros(1)))
    # The outputs that count have this probability under D' at most, and no more under D, e^epsilon times.
    counted = min(1.0, float(law.tail_bounds(np.zeros(1))[1][0]) * (1.0 / flip_prob - 1.0) ** shape.from_b)
    rounding = ROUNDING * (upper + 2.0 * counted)
    return Bounds(max(lower - rounding, 0.0), min(1.0, upper + rounding))


def _terms(shape: BackgroundShape, n: int, p: float, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the law of L_b - e^epsilon L_a for one of n positions: probabilities and ascending values."""
    groups = (shape.like_b, shape.differ - shape.like_b, shape.apart)
    flips = np.meshgrid(*(np.arange(size + 1) for size in groups), indexing="ij")
    weight = np.ones_like(flips[0], dtype=float)
    for flipped, size in zip(flips, groups, strict=True):
        weight = weight * binomial_law(size, p)[flipped]
    toward_a, toward_b, toward_both = flips
    odds = (1.0 - p) / p
    ratio_a = odds ** (2.0 * (toward_a + toward_both) - shape.from_a)
    ratio_b = odds ** (2.0 * (toward_b + toward_both) - shape.from_b)
    value = (ratio_b - np.exp(epsilon) * ratio_a).ravel()
    # With a term below -n times the largest the sum is negative whatever the others are: it may as well lie there.
    unique, place = np.unique(np.maximum(value, -n * max(value.max(), 0.0)), return_inverse=True)
    return np.bincount(place, weights=weight.ravel()), unique


# Lattices that rank shapes and that enclose the upper and the lower bound of one.
_RANK, _UPPER, _LOWER = 2**14, 2**18, 2**20
# The upper bound's relative accuracy, and the lower bound's first distance from it.
_STEP, _BACK = 1e-5, 2e-5


def worst_known_pair(*, n_filters: int, n_bits: int, flip_prob: float, delta: float) -> EpsilonClaim:
    """Return the largest epsilon over the pairs in which all positions but one hold the same logo.

    The named pair's epsilon is at least the lower bound, and no pair of this kind has one above the upper bound. The
    pair that the paper calls worst is of this kind, and not always the worst of it.
    """
    loss = filters_loss(n_filters=n_filters, n_bits=n_bits, flip_prob=flip_prob)
    paper, k = loss.epsilon_bounds(delta), loss.n_filters
    low, high, name = paper.lower, paper.upper, BackgroundShape(k, 0, 0)
    # By monotonicity a shape is no worse than with all common filters apart; the paper's law is known more closely.
    left = [BackgroundShape(h, i, k - h) for h in range(1, k + 1) for i in range(h + 1) if h < k or 0 < i < k]
    curve = partial(background_delta, n_bits=loss.n_bits, flip_prob=loss.flip_prob)
    while left:
        deltas = {shape: curve(shape, epsilon=low, size=_RANK).upper for shape in left}
        left = [shape for shape in left if deltas[shape] > delta]
        if left:
            left.remove(worst := max(left, key=deltas.__getitem__))
            found = _falls_to(delta, partial(curve, worst), low)
            if found.lower > low:
                low, name = found.lower, worst
            high = max(high, found.upper)
    return EpsilonClaim(Bounds(low, high), float(delta), "tight", "one pair", str(name))


def _falls_to(delta: float, curve: Callable[..., Bounds], least: float) -> Bounds:
    """Return certified bounds of where a shape's curve falls to `delta`; a bound at `least` may lie further down."""

    @cache
    def over(epsilon: float) -> float:
        return log(max(curve(epsilon=epsilon, size=_UPPER).upper, 1e-300) / delta)

    low, high, step = least, least, _STEP
    while over(high) > 0.0:
        low, high, step = high, max(high * (1.0 + step), 1e-9), 8.0 * step
    upper = least_where_kept(over, low, high, step=0.1 * _STEP * high) if low < high else least
    back = _BACK
    while (lower := upper * (1.0 - back)) > least:
        if curve(epsilon=lower, size=_LOWER).lower > delta:
            return Bounds(lower, upper)
        back = 2.0 * back
    return Bounds(least, upper)


# Share of delta given to the event that there are few clones.
_FEW = 0.02
# Numbers of positions are tried on a geometric grid with this ratio.
_RATIO = 2.0**0.25
_GRID = {True: tuple(range(7)), False: (0, 1, 2, 4, 7, 12, 20)}
_SIZE = 2**12


def all_pairs_epsilon(*, n_filters: int, n_bits: int, flip_prob: float, delta: float) -> EpsilonClaim:
    """Return an epsilon (tight definition) that holds for every pair of neighbouring inputs of k filters."""
    worst = worst_known_pair(n_filters=n_filters, n_bits=n_bits, flip_prob=flip_prob, delta=delta)
    proof = _Proof(n_filters, n_bits, flip_prob, delta)
    low, high = max(worst.lower, 1e-12), largest_loss(n_filters, flip_prob)
    step = 1.02
    while low * step < high and not proof.holds(low * step):
        low, step = low * step, step**1.5
    high = min(high, low * step)
    while high - low > 0.01 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if proof.holds(middle) else (middle, high)
    bounds = Bounds(worst.lower, max(high, worst.upper))
    return EpsilonClaim(bounds, worst.delta, "tight", "all pairs, upper bound", f"any; {worst.pair}")


@dataclass
class _Proof:
    """Applies the theorem at one epsilon after another, keeping what carries over."""

    n_filters: int
    n_bits: int
    flip_prob: float
    delta: float
    # Number of positions on the grid that is enough for a shape, by the smallest epsilon at which that was found.
    enough: dict[BackgroundShape, list[tuple[float, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.few = _FEW * self.delta
        steps = int(np.ceil(np.log(self.n_bits) / np.log(_RATIO)))
        self.sizes = np.unique(np.rint(np.minimum(_RATIO ** np.arange(steps + 1), self.n_bits)).astype(int))

    def holds(self, epsilon: float) -> bool:
        """Whether the theorem proves (epsilon, delta) for logos at every distance."""
        return all(
            self._budget(h, epsilon) <= self.n_bits - 1
            for h in range(1, self.n_filters + 1)
            if epsilon < largest_loss(h, self.flip_prob)
        )

    def _budget(self, differ: int, epsilon: float) -> float:
        """Return sum_c y_c mu*_c at the best feasible y for logos that differ in `differ` filters."""
        from scipy.optimize import linprog  # takes longer to import than the first answer for the paper's pair takes

        shapes = background_shapes(self.n_filters, differ=differ)
        needed = np.array([self._mean_needed(shape, epsilon) for shape in shapes])
        if (needed == 0.0).any():
            return 0.0
        usable = np.flatnonzero(np.isfinite(needed))
        if not usable.size:
            return np.inf
        kernel = np.array([[self._kernel(row, shapes[column]) for column in usable] for row in shapes])
        common = self.n_filters - differ
        ways = [comb(differ, shapes[column].like_b) * comb(common, shapes[column].apart) for column in usable]
        cost = np.array(ways) * needed[usable]
        # Scaled to ones, the variables are the shares of the budget.
        solution = linprog(np.ones(usable.size), A_ub=-kernel / cost, b_ub=-np.ones(len(shapes)), bounds=(0, None))
        if solution.status != 0:
            return np.inf
        # Whatever the solver's tolerance, the scaled point is feasible: that is the proof.
        reach = float((kernel / cost @ solution.x).min())
        return float(solution.x.sum()) / reach * (1 + 1e-9) if reach > 0 else np.inf

    def _kernel(self, here: BackgroundShape, other: BackgroundShape) -> float:
        """Sum of kappa^H(c, c*) over the logos c* of shape `other`, for one c of shape `here`."""
        kappa = self.flip_prob / (1.0 - self.flip_prob)
        common = self.n_filters - here.differ
        return _ways(here.differ, here.like_b, other.like_b, kappa) * _ways(common, here.apart, other.apart, kappa)

    def _mean_needed(self, shape: BackgroundShape, epsilon: float) -> float:
        """Return mu* of a shape: infinite if even n_bits positions are too few, 0 if one is enough."""
        size = self._enough(self._coarse(shape), epsilon)
        if size is None:
            return np.inf
        clones, log_few = size - 1, float(np.log(1.0 / self.few))
        return 0.0 if clones == 0 else clones + log_few + float(np.sqrt(log_few**2 + 2 * log_few * clones))

    def _coarse(self, shape: BackgroundShape) -> BackgroundShape:
        """Return a shape of the grid that is at least as exposed."""
        grid = _GRID[self.n_filters <= 6]
        like_a, like_b, apart = (
            next(size for size in grid if size >= count)
            for count in (shape.differ - shape.like_b, shape.like_b, shape.apart)
        )
        return BackgroundShape(like_a + like_b, like_b, apart)

    def _enough(self, shape: BackgroundShape, epsilon: float) -> int | None:
        """Return a number of positions of the grid at which the shape is safe; smaller epsilons need more of them."""
        known = self.enough.setdefault(shape, [])
        low = max((place for at, place in known if at >= epsilon), default=0)
        high = min((place for at, place in known if at <= epsilon), default=self.sizes.size)
        while low < high:
            middle = (low + high) // 2
            bounds = background_delta(
                shape, n_bits=int(self.sizes[middle]), flip_prob=self.flip_prob, epsilon=epsilon, size=_SIZE
            )
            low, high = (low, middle) if bounds.upper <= self.delta - self.few else (middle + 1, high)
        known.append((epsilon, low))
        return int(self.sizes[low]) if low < self.sizes.size else None


def _ways(n: int, ones: int, other: int, kappa: float) -> float:
    """Sum of kappa^(Hamming distance) from a word of n bits, `ones` of them 1, to all words with `other` ones."""
    return sum(
        comb(ones, kept) * comb(n - ones, other - kept) * kappa ** (ones - kept + other - kept)
        for kept in range(max(0, other - (n - ones)), min(ones, other) + 1)
    )
