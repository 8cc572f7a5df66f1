"""Epsilon of one filter, for one count of ones and at the worst of all counts."""

import numpy as np
from scipy.special import ndtri

from dpbayes._arguments import probability_below_one
from dpbayes.bloom._checks import Definition, check_count, check_definition, check_flip_prob
from dpbayes.bloom.claims import EpsilonClaim
from dpbayes.bloom.count_scan import CountTails
from dpbayes.bloom.one_filter import output_laws
from dpbayes.privacy.curves import PrivacyLoss
from dpbayes.privacy.loss_law import Bounds

__all__ = ["one_filter_epsilon", "one_filter_loss"]

# Relative error allowed to the scan; whatever comes this close to the maximum is enumerated again.
_SCAN_ERROR = 1e-8
# Filters this short are enumerated count by count.
_ALL_BELOW = 128
_DELTA_REMEDY = "a usual choice is below 1 / number of people"


def one_filter_loss(*, n_bits: int, flip_prob: float, count_ones: int) -> PrivacyLoss:
    """Return the exact privacy loss of one shuffled and flipped filter, for one pair of inputs.

    Parameters
    ----------
    n_bits
        Length m of the filter.
    flip_prob
        Flip probability p, between 0 and 1/2.
    count_ones
        Ones y_d in D, between 0 and m - 1; the neighbour D' has one more (one-position: one bit differs).

    Returns
    -------
    PrivacyLoss
        P is the output law under D, Q that under D': "backward" is the paper's ln R under D'.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    >>> loss = one_filter_loss(n_bits=100, flip_prob=0.1, count_ones=50)
    >>> round(loss.epsilon(1e-3), 9), round(loss.quantile_epsilon(1e-3), 9)
    (0.611323287, 0.792638984)
    """
    laws = output_laws(n_bits=n_bits, flip_prob=flip_prob, count_ones=count_ones)
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(laws.without), np.log(laws.with_one)
    # A convolution of that many positive terms and the running sums before it: two roundings a term.
    log_error = max(1e-13, 2.0**-51 * laws.without.size)
    return PrivacyLoss.from_pmfs(log_p, log_q, log_error=log_error, adjacency="one-position")


def one_filter_epsilon(
    *, n_bits: int, flip_prob: float, delta: float, definition: Definition = "tight"
) -> EpsilonClaim:
    """Return epsilon of one filter over every pair of neighbouring inputs, by an exhaustive scan of the counts.

    Parameters
    ----------
    n_bits
        Length m of the filter.
    flip_prob
        Flip probability p.
    delta
        Delta, between 0 and 1.
    definition
        "tight" for (epsilon, delta)-differential privacy, "quantile" for the paper's.

    Returns
    -------
    EpsilonClaim
        Covers all pairs: one filter's output law depends on its input through the count of ones alone.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    All m counts are evaluated from the characteristic function (`CountTails`); those that come within 1e-8 of the
    maximum are enumerated exactly, and the claim is the largest of these. Neither definition is monotone or unimodal in
    the count, so no shortcut is taken: at m = 1000, p = 0.05, delta = 1e-3 the maxima lie at counts 4 (which is
    995 with directions exchanged) and 993.

    Examples
    --------
    >>> claim = one_filter_epsilon(n_bits=1000, flip_prob=0.05, delta=1e-3)
    >>> round(claim.upper, 9), claim.pair
    (0.308037587, '995 ones against 996')
    """
    m, p = check_count(n_bits, "n_bits", low=1), check_flip_prob(flip_prob)
    delta = probability_below_one(delta, "delta", remedy=_DELTA_REMEDY)
    quantile = check_definition(definition) == "quantile"
    search = _Search(m, p, delta, quantile)
    if m <= _ALL_BELOW:
        for count in range(m):
            search.enumerate(count)
    elif quantile:
        search.settle(CountTails(m, p, -float(ndtri(delta))).quantile_log_ratios(delta * (1 - _SCAN_ERROR)))
    else:
        search.climb()
    pair = f"{search.count} ones against {search.count + 1}"
    return EpsilonClaim(search.best, delta, definition, "all pairs, exhaustive", pair)


class _Search:
    """The largest epsilon over counts, each candidate enumerated at most once."""

    def __init__(self, m: int, p: float, delta: float, quantile: bool) -> None:
        self.m, self.p, self.delta, self.quantile = m, p, delta, quantile
        self.best, self.count = Bounds(0.0, 0.0), 0
        self._seen: set[int] = set()

    def enumerate(self, count: int) -> None:
        """Enumerate one count, in the direction that the scan covers (ln R under D')."""
        self._seen.add(count)
        loss = one_filter_loss(n_bits=self.m, flip_prob=self.p, count_ones=count)
        value = loss.quantile_bounds if self.quantile else loss.epsilon_bounds
        found = value(self.delta, direction="backward")
        if found.upper > self.best.upper:
            self.count = count
        self.best = Bounds(max(found.lower, self.best.lower), max(found.upper, self.best.upper))

    def settle(self, scanned: np.ndarray) -> None:
        """Enumerate counts from the largest scanned value down until none can exceed the best."""
        for count in np.argsort(-scanned, kind="stable"):
            if scanned[count] < self.best.upper - _SCAN_ERROR * (1 + self.best.upper):
                break
            self.enumerate(int(count))

    def climb(self) -> None:
        """Raise epsilon to that of the worst count left, until no count exceeds delta at it.

        A count whose delta is at most the target at some epsilon stays so at any larger one, so it is dropped for good.
        """
        # A good start spares passes: maxima lie near either end.
        ends = np.unique(np.geomspace(1, self.m, 12).astype(int)) - 1
        for count in np.unique(np.concatenate([ends, self.m - 1 - ends])):
            self.enumerate(int(count))
        left = np.arange(self.m)
        largest = float(np.log1p(-self.p) - np.log(self.p))
        while left.size and self.best.lower < largest * (1 - 1e-12):
            epsilon = self.best.lower
            deltas = CountTails.for_epsilon(self.m, self.p, epsilon).deltas(epsilon, left)
            exceeds = deltas > self.delta * (1 - _SCAN_ERROR)
            left, deltas = left[exceeds], deltas[exceeds]
            fresh = ~np.isin(left, list(self._seen))
            left, deltas = left[fresh], deltas[fresh]
            if left.size:
                self.enumerate(int(left[np.argmax(deltas)]))
