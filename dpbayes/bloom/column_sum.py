"""Certified law of a sum of independent, identically distributed columns, sharp in one tail.

A column takes one of a few values v_y >= 0 with probability w_y; S is the sum of n of them. Values go to a lattice, and
the law of the lattice sum S' is the n-th power of one discrete Fourier transform.

*Two ways to the lattice.* Rounding to the nearest point gives S a known mean shift and a small centred error.
Splitting a value between its two neighbours, its mean kept, adds noise W of mean zero given S. Both errors obey
Bernstein's inequality: at most `slack` in size but for a small probability. Under splitting, moreover, Jensen gives
E(S' - x)_+ >= E(S - x)_+, and since (S + W - x)_+ - (S - x)_+ - W 1[S > x] is at most |W| and vanishes unless |W| >
|S - x|,

    E(S' - x)_+ - E(S - x)_+ <= slack P(|S' - x| <= 2 slack) + small,

which is of second order in the lattice step; the same holds for (x - S)_+.

*Rare, enormous jumps.* Values above x_max are dropped from the lattice and counted apart: a sum with one of them is
above x_max for certain. `ColumnSum` is the law on the event that there is none, its total mass W^n below 1.

*Tilting.* Roundoff of a transform is spread evenly over the lattice. Tilting the column's law by exp(theta v) towards
the tail of interest makes it small in proportion to that tail.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dpbayes.bloom.lattice_power import LatticePower, chernoff_range, lattice_power

__all__ = ["ColumnSum", "column_sum"]

_UNIT = 2.0**-53
# Candidate lattice steps: rounding gains from a lucky step, splitting hardly does.
_STEPS = {True: 64, False: 2000}
Side = Literal["upper", "lower"]


@dataclass(frozen=True)
class ColumnSum:
    """Law of the sum S of n columns none of which is above x_max, through a lattice sum S'.

    Parameters
    ----------
    origin, step
        S' takes the values ``origin + step * (0, 1, 2, ...)``.
    power
        Its masses, with the error of their sums.
    slack
        Bound on |S - S'|, outside of an event of probability `exception`.
    exception
        Bound on the probability of that event.
    side
        The tail that is summed: "upper" answers for S > x, "lower" for S <= x.
    """

    origin: float
    step: float
    power: LatticePower
    slack: float
    exception: float
    side: Side

    @cached_property
    def _sums(self) -> np.ndarray:
        """Masses summed towards the lattice point from the side's end; one more entry, 0, past that end."""
        mass = self.power.mass
        return np.append(0.0, np.cumsum(mass if self.side == "lower" else mass[::-1]))

    @cached_property
    def _integral(self) -> np.ndarray:
        return np.append(0.0, np.cumsum(self._sums[1:])) * self.step

    @cached_property
    def _error(self) -> np.ndarray:
        return np.append(self.power.error[0], self.power.error)

    @cached_property
    def _integral_error(self) -> np.ndarray:
        return np.append(0.0, np.cumsum(self._error[1:])) * self.step + self.power.beyond * self.step

    def _place(self, x: np.ndarray) -> np.ndarray:
        """Distance of `x` from the side's end point, in steps; near the lower end nothing is added that would round."""
        at = (x - self.origin) / self.step
        return at if self.side == "lower" else (self.power.mass.size - 1) - at

    def _tail(self, x: np.ndarray, *, shift: float) -> tuple[np.ndarray, np.ndarray]:
        """Mass beyond `x`, the threshold moved outward by `shift` (negative: inward), with its error."""
        outward = -shift if self.side == "lower" else shift
        place = self._place(x + outward)
        count = np.floor(place) + 1 if self.side == "lower" else np.ceil(place)
        count = np.clip(count, 0, self.power.mass.size).astype(np.int64)
        return self._sums[count], self._error[count]

    def tail_bounds(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified ends of P(S > x) for the upper side, P(S <= x) for the lower."""
        fewer, error_fewer = self._tail(x, shift=self.slack)
        more, error_more = self._tail(x, shift=-self.slack)
        lower, upper = fewer - error_fewer - self.exception, more + error_more + self.exception
        return np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)

    def excess_bounds(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified ends of E(S - x)_+ for the upper side, E(x - S)_+ for the lower; needs a law made by splitting."""
        if not self.power.split:
            raise ValueError("excess_bounds needs a law made by splitting; ask column_sum for split=True")
        size = self.power.mass.size
        at = np.clip(self._place(x), 0.0, None)
        below = np.minimum(at, size - 1 if self.side == "lower" else size).astype(np.int64)
        slope = self._sums[np.minimum(below + 1, size)]
        value = self._integral[below] + (at - below) * self.step * slope
        miss = self._integral_error[below] + (at - below) * self.step * self._error[np.minimum(below + 1, size)]
        miss = miss + 8 * _UNIT * (1 + size**0.5) * value + 8 * _UNIT * (np.abs(x) + abs(self.origin)) * slope
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
    """Return the law of the sum of `n` columns none of which is above `x_max`.

    Parameters
    ----------
    weights, values
        Probabilities and ascending non-negative values of a column, shape (levels,).
    n
        Number of columns.
    x_max
        Values above it are left to the caller; the lower side answers up to it.
    focus
        Where in the tail accuracy matters most.
    side
        "upper" to ask about S > x, "lower" about S <= x.
    size
        About how many lattice points to spend.
    exception
        Probability that may be given up for a small `slack`.
    split
        Split values between lattice points with their means kept, instead of rounding them.

    Returns
    -------
    ColumnSum

    Examples
    --------
    >>> law = column_sum(
    ...     np.array([0.75, 0.25]), np.array([0.0, 1.0]),
    ...     n=4, x_max=4.0, focus=2.0, side="upper", size=64, exception=1e-9, split=False,
    ... )
    >>> [round(float(end), 6) for end in law.tail_bounds(np.array(1.5))]
    [0.261719, 0.261719]
    """
    keep = values <= max(x_max, values[0])
    weights, offsets = weights[keep], values[keep] - values[0]
    base = n * values[0]
    if n == 0 or weights.size == 1:
        point = LatticePower(0, np.array([float(weights[0]) ** n]), np.array([_UNIT * (n + 4)]), 0.0, split)
        return ColumnSum(base, max(base, 1.0), point, 0.0, 0.0, side)
    # In units of a power of two near the largest value, exactly: squares of values would overflow.
    unit = 2.0 ** np.floor(np.log2(offsets[-1]))
    offsets = offsets / unit
    theta = _tilt(weights, offsets, n, (focus - base) / unit, side)
    low, high = _span(weights, offsets, n, theta, (x_max - base) / unit)
    step, slack = _choose_step(weights, offsets, n, max(high - low, offsets[-1] / 8) / (size - 16), exception, split)
    masses, index, shift = _to_lattice(weights, offsets / step, split)
    power = lattice_power(
        masses, index, n=n, size=size, theta=theta * step, ends=(low / step, high / step), side=side, split=split
    )
    step, slack = step * unit, slack * unit
    origin = base + n * step * shift + step * power.first
    # The lattice itself is exact to a few ulps of its largest value.
    slack += 8 * _UNIT * (abs(base) + n * step * abs(shift) + step * (power.first + power.mass.size))
    return ColumnSum(origin, step, power, slack, exception, side)


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


def _to_lattice(weights: np.ndarray, jumps: np.ndarray, split: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Return masses and indices on the lattice, and the mean of what rounding takes away from a column, in steps."""
    nearest = np.rint(jumps)
    if not split:
        return weights, nearest.astype(np.int64), float(weights @ (jumps - nearest)) / float(weights.sum())
    jumps = np.where(np.abs(jumps - nearest) <= 8 * _UNIT * jumps, nearest, jumps)
    floor = np.floor(jumps)
    up = jumps - floor
    index = np.concatenate([floor, floor + 1]).astype(np.int64)
    masses = np.concatenate([weights * (1 - up), weights * up])
    return masses[masses > 0], index[masses > 0], 0.0


def _choose_step(
    weights: np.ndarray, offsets: np.ndarray, n: int, smallest: float, exception: float, split: bool
) -> tuple[float, float]:
    """Return the lattice step, of many slightly above the smallest, that leaves the least slack.

    Bernstein: P(|sum of n centred errors| >= s) <= 2 exp(-s^2 / (2 (n V + B s / 3))).
    """
    jumps = offsets[1:] / smallest
    # Steps that hit one value exactly come first: a column with two values then has no error at all.
    exact = (offsets[1:] / np.maximum(np.floor(jumps), 1.0))[jumps >= 1.0]
    steps = np.concatenate([exact, smallest * np.linspace(1.0, 1.4, _STEPS[split])])
    share = weights / weights.sum()
    errors = offsets[None, :] - np.rint(offsets[None, :] / steps[:, None]) * steps[:, None]
    errors[np.abs(errors) <= 8 * _UNIT * offsets[None, :]] = 0.0
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
