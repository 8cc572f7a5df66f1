"""The worst pair of inputs in which all positions but one hold the same logo, with certified ends.

Every `CrowdShape` has an epsilon at which its curve falls to delta. The search keeps a floor that some pair reaches
for certain, first that of the paper's pair, and drops a shape once the upper end of its curve at the floor is at most
delta. The most exposed shape left is enclosed on finer lattices and may raise the floor, until no shape is left.
"""

from dataclasses import dataclass
from math import log

from dpbayes._arguments import probability_below_one
from dpbayes.bloom._checks import MAX_FILTERS, check_count, check_flip_prob
from dpbayes.bloom.claims import EpsilonClaim
from dpbayes.bloom.homogeneous import CrowdShape, crowd_delta
from dpbayes.bloom.many_filters import filters_loss
from dpbayes.privacy.loss_law import Bounds

__all__ = ["worst_crowd"]

# Lattices that rank shapes and that enclose the upper and the lower end of one.
_RANK, _UPPER, _LOWER = 2**14, 2**18, 2**20
# The upper end's relative accuracy, and the lower end's first distance from it.
_STEP, _BACK = 1e-5, 2e-5


def worst_crowd(*, n_filters: int, n_bits: int, flip_prob: float, delta: float) -> EpsilonClaim:
    """Return the largest epsilon over the pairs in which all positions but one hold the same logo.

    Parameters
    ----------
    n_filters, n_bits, flip_prob, delta
        As in `all_pairs_epsilon`.

    Returns
    -------
    EpsilonClaim
        The named pair's epsilon is at least the lower end: what a mechanism costs at the least. No pair of this kind
        has an epsilon above the upper end. The paper's pair is one of these.

    Raises
    ------
    InputError
        If a value is out of range.

    Examples
    --------
    The pair that the paper calls worst is not the worst of its own kind:

    >>> worst = worst_crowd(n_filters=2, n_bits=6, flip_prob=0.2, delta=0.05)
    >>> round(worst.upper, 4), worst.pair
    (1.5344, 'logos differ in 2 filters, the others are 1 from the first and 1 from the second')
    """
    k, m = check_count(n_filters, "n_filters", low=1, high=MAX_FILTERS), check_count(n_bits, "n_bits", low=1)
    p = check_flip_prob(flip_prob)
    delta = probability_below_one(delta, "delta", remedy="a usual choice is below 1 / number of people")
    paper = filters_loss(n_filters=k, n_bits=m, flip_prob=p).epsilon_bounds(delta)
    low, high, name = paper.lower, paper.upper, CrowdShape(k, 0, 0)
    # By monotonicity a shape is no worse than with all common filters apart; the paper's law is known more closely.
    left = [CrowdShape(h, i, k - h) for h in range(1, k + 1) for i in range(h + 1) if h < k or 0 < i < k]
    search = _Search(m, p, delta)
    while left:
        excess = {shape: search.excess(shape, low, _RANK) for shape in left}
        left = [shape for shape in left if excess[shape] > 0.0]
        if left:
            left.remove(worst := max(left, key=excess.__getitem__))
            found = search.ends(worst, low)
            if found.lower > low:
                low, name = found.lower, worst
            high = max(high, found.upper)
    return EpsilonClaim(Bounds(low, high), delta, "tight", "one pair", str(name))


@dataclass(frozen=True)
class _Search:
    """Where the curve of a shape reaches delta."""

    n_bits: int
    flip_prob: float
    delta: float

    def excess(self, shape: CrowdShape, epsilon: float, size: int) -> float:
        """Return the log of the upper end of the shape's curve over delta: at most 0 where it is safe for certain."""
        upper = crowd_delta(shape, n_bits=self.n_bits, flip_prob=self.flip_prob, epsilon=epsilon, size=size).upper
        return log(max(upper, 1e-300) / self.delta)

    def exceeds(self, shape: CrowdShape, epsilon: float) -> bool:
        """Whether the shape's curve is above delta for certain."""
        bounds = crowd_delta(shape, n_bits=self.n_bits, flip_prob=self.flip_prob, epsilon=epsilon, size=_LOWER)
        return bounds.lower > self.delta

    def ends(self, shape: CrowdShape, floor: float) -> Bounds:
        """Return certified ends of where the curve falls to delta; an end at the floor may lie further down."""
        upper = self._upper(shape, floor)
        back = _BACK
        while upper * (1.0 - back) > floor:
            if self.exceeds(shape, upper * (1.0 - back)):
                return Bounds(upper * (1.0 - back), upper)
            back = 2.0 * back
        return Bounds(floor, upper)

    def _upper(self, shape: CrowdShape, floor: float) -> float:
        """Return an epsilon, at least the floor, at which the curve is at most delta for certain."""
        # scipy.optimize takes longer to import than the first answer for the paper's pair takes altogether.
        from scipy.optimize import brentq

        def over(epsilon: float) -> float:
            return self.excess(shape, epsilon, _UPPER)

        low, high, step = floor, floor, _STEP
        while over(high) > 0.0:
            low, high, step = high, max(high * (1.0 + step), 1e-9), 8.0 * step
        if high * (1.0 - _STEP) <= low:
            return high
        root, step = float(brentq(over, low, high, rtol=0.1 * _STEP)), 0.1 * _STEP
        while over(root * (1.0 + step)) > 0.0:  # the root may lie on either side of the curve's own
            step = 2.0 * step
        return root * (1.0 + step)
