"""Law of the likelihood ratio R of k filters when all other positions hold one logo.

All m positions of D hold one logo; in D' one position holds a logo that differs from it in k filters. Counting in
each position the bits y that look like D', position by position

    R = P(D' gives x) / P(D gives x) = (1/m) sum_i v(y_i),     v(y) = (q/p)^(2y - k),

with y_i ~ Binomial(k, p) independent under D, and one of them Binomial(k, q) under D'. Both weigh the levels so that
P_D'(y) = v(y) P_D(y), hence E_D(v) = 1. What is asked of R mixes, over the y of one position, which stays exact, the
sum S over the other n = m - 1, which `column_sum` certifies. Sums with a level above t m put R above t for certain:

    delta(ln t) of D' from D = E_D(R - t)_+ = (1/m) sum_y P_D(y) E(v(y) + S - t m)_+
    delta(-ln t) of D from D', times t = E_D(t - R)_+ = (1/m) sum_y P_D(y) E(t m - v(y) - S)_+,  only S <= t m counting.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import binom

from dpbayes.bloom.column_sum import ColumnSum, Side, column_sum

__all__ = ["ROUNDING", "RatioLaw", "ratio_law"]

ROUNDING = 2.0**-46
"""Share to which thresholds, values and weights are known: a power of q/p takes 42 roundings of 2^-53, the rest fewer.

An excess E(R - t)_+ moves by that share of E(R + t) over the outputs that count, and may be far below that itself.
"""


@dataclass(frozen=True)
class RatioLaw:
    """Certified law of R, sharp in one tail; build it with `ratio_law`.

    Parameters
    ----------
    n_bits
        Number of positions m.
    values
        v(y) for y = 0, ..., k.
    under, under_alternative
        Probabilities of y under D, Binomial(k, p), and in the differing position of D', Binomial(k, q).
    kept
        Number of levels, from the lowest, that the sum over the other positions was made of.
    others
        Law of that sum.
    """

    n_bits: int
    values: np.ndarray
    under: np.ndarray
    under_alternative: np.ndarray
    kept: int
    others: ColumnSum

    def _rest(self, t: np.ndarray) -> np.ndarray:
        """Return what the other positions add up to where R = t; shape (t, kept levels)."""
        return np.atleast_1d(np.asarray(t, dtype=float))[:, None] * self.n_bits - self.values[None, : self.kept]

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
        """Certified ends of E_D(R - t)_+, the hockey-stick divergence of D' from D at epsilon = ln t."""
        t = np.atleast_1d(np.asarray(t, dtype=float))
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
        """Certified ends of E_D(t - R)_+."""
        t = np.atleast_1d(np.asarray(t, dtype=float))
        rest = self._rest(t)
        lower, upper = (bound @ self.under[: self.kept] for bound in self.others.excess_bounds(rest))
        rounding = ROUNDING * t * (self.others.tail_bounds(rest)[1] @ self.under[: self.kept])
        return np.maximum(lower / self.n_bits - rounding, 0.0), upper / self.n_bits + rounding

    def exceed_bounds(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified ends of P(R > t) under D'."""
        mass, _ = self._dropped()
        lower, upper = (bound @ self.under_alternative[: self.kept] for bound in self.others.tail_bounds(self._rest(t)))
        certain = self.under_alternative[self.kept :].sum() + mass * self.under_alternative[: self.kept].sum()
        return certain + lower, np.minimum(certain + upper, 1.0)

    def cdf_bounds(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Certified ends of P(R <= t) under D."""
        lower, upper = (bound @ self.under[: self.kept] for bound in self.others.tail_bounds(self._rest(t)))
        return lower, np.minimum(upper, 1.0)


def ratio_law(
    *,
    n_filters: int,
    n_bits: int,
    flip_prob: float,
    t: float,
    side: Side,
    size: int = 2**16,
    exception: float = 1e-9,
    split: bool = True,
) -> RatioLaw:
    """Return the law of R for questions about one tail.

    Parameters
    ----------
    n_filters
        Filters k in which the two logos differ.
    n_bits
        Positions m.
    flip_prob
        Flip probability p.
    t
        For the upper side (R > t), at least 1: the largest threshold that will be asked about. For the lower side
        (R <= t): the threshold that matters most, at most 1; all up to 1 may be asked about.
    side
        "upper" for calls and exceedance, "lower" for puts and distribution functions.
    size
        About how many lattice points to spend.
    exception
        Probability that may be given up for sharper ends; see `column_sum`.
    split
        True for calls and puts, False for probabilities; see `column_sum`.

    Returns
    -------
    RatioLaw

    Examples
    --------
    One filter, two positions: R is p/q, 1/2 (p/q + q/p) or q/p.

    >>> law = ratio_law(n_filters=1, n_bits=2, flip_prob=0.25, t=2.0, side="upper")
    >>> [round(float(end[0]), 6) for end in law.call_bounds(1.0)]
    [0.375, 0.375]
    """
    y = np.arange(n_filters + 1)
    under = binom(n_filters, y) * flip_prob**y * (1.0 - flip_prob) ** (n_filters - y)
    under /= under.sum()
    values = ((1.0 - flip_prob) / flip_prob) ** (2.0 * y - n_filters)
    x_max = max(t if side == "upper" else 1.0, 1.0) * n_bits * (1 + 1e-9)
    kept = max(1, int(np.searchsorted(values, x_max, side="right")))
    others = column_sum(
        under,
        values,
        n=n_bits - 1,
        x_max=x_max,
        focus=t * n_bits,
        side=side,
        size=size,
        exception=exception,
        split=split,
    )
    return RatioLaw(n_bits, values, under, under[::-1].copy(), kept, others)
