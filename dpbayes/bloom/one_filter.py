"""Output laws of one shuffled and flipped filter, by enumeration.

A filter of m bits is shuffled and every bit is flipped with probability p; the count of ones is all that is left.
Neighbouring inputs D and D' differ in one bit (one-position), 0 in D and 1 in D', and share the other m - 1 bits,
`count_ones` of which are 1. With C the count of output ones among the shared bits,

    P(D gives t)  = q P(C = t) + p P(C = t - 1),      P(D' gives t) = p P(C = t) + q P(C = t - 1),

and C is a sum of Binomial(count_ones, q) and Binomial(m - 1 - count_ones, p). All terms are positive, so the
likelihood ratio keeps full relative accuracy far into the tails.
"""

from dataclasses import dataclass

import numpy as np

from dpbayes.bloom._checks import check_count, check_flip_prob

__all__ = ["OutputLaws", "output_laws"]

# Log of the mass, relative to the mode, below which a binomial is cut; what is cut stays below 1e-59.
_FLOOR = 140.0
# Outputs rarer than this (relative to the mode) are left out: there the cut terms would show in the ratio.
_TRIM = 95.0


@dataclass(frozen=True)
class OutputLaws:
    """Law of the count of output ones under two neighbouring inputs.

    Parameters
    ----------
    first
        The output count of the first entry.
    without, with_one
        Probabilities under D (the differing bit is 0) and D' (it is 1), shape (n,).
    missing
        Upper bound on the probability left out, under either input.
    """

    first: int
    without: np.ndarray
    with_one: np.ndarray
    missing: float

    @property
    def outputs(self) -> np.ndarray:
        """Output counts of ones, shape (n,)."""
        return self.first + np.arange(self.without.size)

    @property
    def log_ratio(self) -> np.ndarray:
        """The paper's ln R: log of the probability under D' over that under D; increasing in the output count."""
        return np.log(self.with_one / self.without)


def output_laws(*, n_bits: int, flip_prob: float, count_ones: int) -> OutputLaws:
    """Enumerate what one filter can give out under two inputs that differ in one bit.

    Parameters
    ----------
    n_bits
        Length m of the filter.
    flip_prob
        Probability p, below 1/2, with which every bit is flipped after the shuffle.
    count_ones
        Ones y_d in D, between 0 and m - 1; D' has one more.

    Returns
    -------
    OutputLaws
        The two laws on the outputs that matter: those left out have probability below 1e-40 together.

    Raises
    ------
    InputError
        If a value is out of range.

    References
    ----------
    The "buffling" technical details (2020), part II.1, where the same law is written through a hypergeometric mean.

    Examples
    --------
    >>> laws = output_laws(n_bits=2, flip_prob=0.25, count_ones=0)
    >>> laws.without.round(4).tolist(), laws.with_one.round(4).tolist()
    ([0.5625, 0.375, 0.0625], [0.1875, 0.625, 0.1875])
    """
    m, p = check_count(n_bits, "n_bits", low=1), check_flip_prob(flip_prob)
    ones = check_count(count_ones, "count_ones", low=0, high=m - 1)
    q = 1.0 - p
    first, shared = _shared_law(m - 1, p, ones)
    without = q * np.append(shared, 0.0) + p * np.append(0.0, shared)
    with_one = p * np.append(shared, 0.0) + q * np.append(0.0, shared)
    keep = np.flatnonzero(np.minimum(without, with_one) > np.exp(-_TRIM) * without.max())
    kept = slice(int(keep[0]), int(keep[-1]) + 1)
    # Both laws are unimodal, so what lies outside decays from the trim level; the number of outputs bounds the sum.
    missing = 0.0 if without.size == kept.stop - kept.start == m + 1 else (m + 1) * np.exp(-_TRIM)
    return OutputLaws(first + kept.start, without[kept], with_one[kept], float(missing))


def _shared_law(n: int, p: float, ones: int) -> tuple[int, np.ndarray]:
    """Return the law of Binomial(ones, q) + Binomial(n - ones, p) as its first value and probabilities."""
    first_a, law_a = _binomial(ones, 1.0 - p)
    first_b, law_b = _binomial(n - ones, p)
    return first_a + first_b, np.convolve(law_a, law_b)


def _binomial(n: int, p: float) -> tuple[int, np.ndarray]:
    """Return a binomial law cut where it is below e^-140 of its mode.

    Running sums of log ratios from the mode keep the relative error near the length times the unit roundoff, where a
    difference of log gammas of size n log n would lose those digits.
    """
    if n == 0:
        return 0, np.ones(1)
    mode = min(n, int((n + 1) * p))
    half = int(np.sqrt(2.0 * _FLOOR * n * p * (1.0 - p)) + _FLOOR) + 2
    above, below = np.arange(mode, min(n, mode + half)), np.arange(max(0, mode - half), mode)
    odds = p / (1.0 - p)
    rise = np.cumsum(np.log((n - above) / (above + 1.0) * odds))
    fall = np.cumsum(np.log((n - below) / (below + 1.0) * odds)[::-1])[::-1]
    logs = np.concatenate([-fall, [0.0], rise])
    keep = np.flatnonzero(logs > -_FLOOR)
    mass = np.exp(logs[keep[0] : keep[-1] + 1])
    return max(0, mode - half) + int(keep[0]), mass / mass.sum()
