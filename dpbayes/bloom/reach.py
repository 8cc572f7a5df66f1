"""People reached, from released filters: union, intersection and frequency, with standard errors.

Debiasing by the inverse channel gives unbiased counts d of true logos. For a set S of publishers the share of
positions with no bit in S estimates exp(-n_S / m) (uniform hashing), n_S the people that S has reached together; every
other number of people is L = sum_S l_S n_S by inclusion and exclusion. L is locally c . d; its variance has two parts:
flipping, estimated without bias by sum_j x_j g_j^2 - sum_i d_i c_i^2 with g the inverse channel applied to c, and
hashing, sum_i d_i c_i^2 - (c . d)^2 / m were the number of people Poisson, less sum_T lambda_T^2 N_T for fixing the
N_T people with exactly the publishers T, each counted lambda_T times in L.
"""

from dataclasses import dataclass

import numpy as np

from dpbayes._arguments import instance, probability_below_one, real_numbers, whole_number
from dpbayes.bloom.claims import check_publishers
from dpbayes.bloom.filters import BloomRelease
from dpbayes.bloom.hashing import BitDistribution
from dpbayes.errors import InputError


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error."""

    value: float
    stderr: float

    def interval(self, prob: float) -> tuple[float, float]:
        """Return the normal interval with this coverage, rounded to one decimal."""
        from scipy.special import ndtri

        probability_below_one(prob, "prob", remedy="0.95 is usual")
        half = float(ndtri(0.5 + prob / 2)) * self.stderr
        return round(self.value - half, 1), round(self.value + half, 1)


@dataclass(frozen=True)
class ReachEstimate:
    """People reached by every set of publishers; build it with `estimate_reach`."""

    release: BloomRelease
    distribution: BitDistribution
    people: np.ndarray

    def union(self, publishers: tuple[int, ...] | None = None) -> Estimate:
        """People reached by at least one of these publishers, of all by default."""
        coefficients = np.zeros(self.people.size)
        coefficients[self._code(publishers)] = 1.0
        return self.combine(coefficients)

    def intersection(self, publishers: tuple[int, ...] | None = None) -> Estimate:
        """People reached by every one of these publishers, of all by default."""
        code, sets = self._code(publishers), np.arange(self.people.size)
        inside = (sets & ~code == 0) & (sets > 0)
        return self.combine(np.where(inside, 1.0 - 2.0 * (np.bitwise_count(sets) % 2 == 0), 0.0))

    def frequency(self, publishers: int) -> Estimate:
        """People reached by exactly this many publishers, at least one."""
        k = self.release.n_filters
        whole_number(publishers, "the number of publishers that reached a person", high=k)
        sizes = np.bitwise_count(np.arange(2**k)).astype(int)
        exactly = np.where(sizes == publishers, 1.0, 0.0)
        # People within S number n_all - n_(complement of S); those with exactly T follow by inclusion and exclusion.
        coefficients = -subset_sums(exactly[::-1], inverse=True)
        coefficients[0] = 0.0
        return self.combine(coefficients)

    def combine(self, coefficients: np.ndarray) -> Estimate:
        """Return ``sum_S coefficients[S] n_S`` with its standard error, flipping and hashing together."""
        coefficients, m = real_numbers(coefficients, "coefficients"), self.release.n_bits
        if coefficients.shape != self.people.shape:
            raise InputError(f"coefficients must be {self.people.size} numbers, one per set, got {coefficients.shape}")
        slope = self.distribution.slope(np.maximum(self.people, 1e-9))
        # n_S as a function of the count of positions without a bit in S has slope -1 / (m slope).
        local = np.where(coefficients != 0.0, -coefficients / (m * slope), 0.0)
        gradient = subset_sums(local)[::-1]
        flips = self.release.flip_variance(gradient)
        spread = self.release.debiased @ gradient**2 - (self.release.debiased @ gradient) ** 2 / m
        meeting = coefficients.sum() - subset_sums(coefficients)[::-1]
        exactly = subset_sums(self.people[-1] - self.people[::-1], inverse=True)
        hashing = max(float(spread - meeting**2 @ exactly), 0.0)
        return Estimate(float(coefficients @ self.people), float(np.sqrt(max(flips, 0.0) + hashing)))

    def _code(self, publishers: tuple[int, ...] | None) -> int:
        return check_publishers(publishers, self.release.n_filters)


def estimate_reach(release: BloomRelease) -> ReachEstimate:
    """Estimate how many people each set of publishers has reached.

    Parameters
    ----------
    release
        What `shuffle_flip` released. Where its bit distribution decays, the standard error's hashing part is an upper
        bound.

    Raises
    ------
    InputError
        If the filters are so full that no position is estimated to be empty.

    Examples
    --------
    >>> from dpbayes.bloom.filters import shuffle_flip
    >>> from dpbayes.bloom.hashing import build_filters
    >>> people = np.arange(3000)
    >>> filters = build_filters([people[:2000], people[1000:]], distribution=BitDistribution(20_000), seed=3)
    >>> reach = estimate_reach(shuffle_flip(filters, flip_prob=0.1, rng=np.random.default_rng(1)))
    >>> estimate = reach.union()
    >>> abs(estimate.value - 3000) < 3 * estimate.stderr, 50 < estimate.stderr < 150
    (True, True)
    """
    instance(release, BloomRelease, "release", remedy="shuffle_flip makes it")
    law = BitDistribution(release.n_bits, release.decay)
    # Positions without a bit in S hold a logo inside the complement of S.
    empty = subset_sums(release.debiased)[::-1]
    return ReachEstimate(release, law, law.people(empty / release.n_bits))


def subset_sums(values: np.ndarray, *, inverse: bool = False) -> np.ndarray:
    """Sum over all subsets of each set (zeta transform), or undo that (Moebius)."""
    result = np.array(values, dtype=float)
    stride = 1
    while stride < result.size:
        pairs = result.reshape(-1, 2, stride)
        pairs[:, 1] += -pairs[:, 0] if inverse else pairs[:, 0]
        stride *= 2
    return result
