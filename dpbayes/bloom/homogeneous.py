"""Pairs of inputs in which all positions but one hold the same logo.

The differing position holds logo a in D and b in D'; the n - 1 others hold c. Of the k filters, h are those where a
and b differ, i of these those where c agrees with b, and g those where a and b agree but c differs from both; the
rest agree in all three. With L_a(x) = T(a, x)/T(c, x) for the transition matrix T, exchangeability gives

    delta(epsilon) of D' from D = E (mean of L_b(x_j) - e^epsilon L_a(x_j))_+,    x_1, ..., x_n independent from T(c,
    .),

one sum of independent, identically distributed terms. The paper's pair is h = k, i = g = 0.
"""

from dataclasses import dataclass

import numpy as np

from dpbayes.bloom.column_sum import column_sum
from dpbayes.bloom.ratio_law import ROUNDING
from dpbayes.bloom.transition import largest_loss
from dpbayes.privacy.loss_law import Bounds

__all__ = ["CrowdShape", "crowd_delta", "crowd_shapes"]


@dataclass(frozen=True, order=True)
class CrowdShape:
    """How the logos a, b of the differing position and c of the others lie to each other.

    Parameters
    ----------
    differ
        Filters h in which a and b differ.
    like_b
        Of these, filters i in which c agrees with b.
    apart
        Filters g in which a and b agree and c differs from them.

    Examples
    --------
    >>> str(CrowdShape(2, 0, 1))
    'logos differ in 2 filters, the others are 1 from the first and 3 from the second'
    """

    differ: int
    like_b: int
    apart: int

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


def crowd_shapes(n_filters: int, *, differ: int) -> list[CrowdShape]:
    """Return all shapes of `n_filters` filters whose differing logos differ in `differ` of them.

    Examples
    --------
    >>> len(crowd_shapes(3, differ=2))
    6
    """
    return [CrowdShape(differ, i, g) for i in range(differ + 1) for g in range(n_filters - differ + 1)]


def crowd_delta(
    shape: CrowdShape, *, n_bits: int, flip_prob: float, epsilon: float, size: int = 2**14, exception: float = 1e-9
) -> Bounds:
    """Return certified ends of delta(epsilon) of D' from D for one shape.

    Parameters
    ----------
    shape
        Position of the three logos to each other.
    n_bits
        Positions n, the differing one included.
    flip_prob
        Flip probability p.
    epsilon
        Epsilon >= 0.
    size
        About how many lattice points to spend.
    exception
        Probability that may be given up for a sharper lower end.

    Returns
    -------
    Bounds

    Examples
    --------
    >>> delta = crowd_delta(CrowdShape(1, 0, 0), n_bits=1, flip_prob=0.25, epsilon=0.0)
    >>> round(delta.lower, 9), round(delta.upper, 9)
    (0.5, 0.5)
    """
    if epsilon >= largest_loss(shape.differ, flip_prob):
        return Bounds(0.0, 0.0)
    weights, values = _terms(shape, n_bits, flip_prob, epsilon)
    law = column_sum(
        weights,
        values,
        n=n_bits,
        x_max=np.inf,
        focus=0.0,
        side="upper",
        size=size,
        exception=exception,
        split=True,
    )
    lower, upper = (float(end[0]) / n_bits for end in law.excess_bounds(np.zeros(1)))
    # The outputs that count have this probability under D' at most, and no more under D, e^epsilon times.
    counted = min(1.0, float(law.tail_bounds(np.zeros(1))[1][0]) * (1.0 / flip_prob - 1.0) ** shape.from_b)
    rounding = ROUNDING * (upper + 2.0 * counted)
    return Bounds(max(lower - rounding, 0.0), min(1.0, upper + rounding))


def _terms(shape: CrowdShape, n: int, p: float, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the law of L_b - e^epsilon L_a for one of n positions: probabilities and ascending values."""
    groups = (shape.like_b, shape.differ - shape.like_b, shape.apart)
    flips = np.meshgrid(*(np.arange(size + 1) for size in groups), indexing="ij")
    weight = np.ones_like(flips[0], dtype=float)
    for flipped, size in zip(flips, groups, strict=True):
        weight = weight * _binomial(size, p)[flipped]
    toward_a, toward_b, toward_both = flips
    odds = (1.0 - p) / p
    ratio_a = odds ** (2.0 * (toward_a + toward_both) - shape.from_a)
    ratio_b = odds ** (2.0 * (toward_b + toward_both) - shape.from_b)
    value = (ratio_b - np.exp(epsilon) * ratio_a).ravel()
    # With a term below -n times the largest the sum is negative whatever the others are: it may as well lie there.
    unique, place = np.unique(np.maximum(value, -n * max(value.max(), 0.0)), return_inverse=True)
    return np.bincount(place, weights=weight.ravel()), unique


def _binomial(n: int, p: float) -> np.ndarray:
    law = np.ones(1)
    for _ in range(n):
        law = np.append(law * (1 - p), 0.0) + np.append(0.0, law * p)
    return law
