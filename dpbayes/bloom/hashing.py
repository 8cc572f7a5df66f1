"""From people to bits: which position of a filter a person sets.

Publishers share the seed, so a person has one position, the same in every filter: that is why a person more or less
changes one position, and why a permutation of positions common to all filters keeps what they have in common.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpbayes._arguments import instance, ordered, real_numbers, whole_number
from dpbayes.bloom.claims import MAX_FILTERS, check_decay
from dpbayes.bloom.filters import Filters
from dpbayes.errors import InputError


@dataclass(frozen=True)
class BitDistribution:
    """Law of the position that a person's hash falls on: flat, or falling like exp(-decay x) over the filter.

    Parameters
    ----------
    n_bits
        Length m of a filter.
    decay
        0 for uniform; otherwise the log of how much likelier the first position is than the last.

    Examples
    --------
    >>> BitDistribution(4).probabilities().tolist()
    [0.25, 0.25, 0.25, 0.25]
    >>> BitDistribution(3, decay=3 * np.log(2)).probabilities().round(4).tolist()
    [0.5714, 0.2857, 0.1429]
    """

    n_bits: int
    decay: float = 0.0

    def __post_init__(self) -> None:
        whole_number(self.n_bits, "n_bits", high=2**53)
        check_decay(self.decay)

    def probabilities(self) -> np.ndarray:
        """Probability of each position, shape (n_bits,)."""
        weight = np.exp(-self.decay / self.n_bits * np.arange(self.n_bits))
        return weight / weight.sum()

    def positions(self, hashes: np.ndarray) -> np.ndarray:
        """Map 64-bit hashes to positions with this law."""
        uniform = (hashes >> np.uint64(11)).astype(float) * 2.0**-53
        if self.decay:
            uniform = -np.log1p(uniform * np.expm1(-self.decay)) / self.decay
        return np.minimum((uniform * self.n_bits).astype(np.int64), self.n_bits - 1)

    def zero_fraction(self, people: np.ndarray) -> np.ndarray:
        """Return the expected share of positions that none of so many people falls on.

        Positions are taken as independent Poisson and, for a decay, as a continuum: both are off by O(1/n_bits).
        """
        people = real_numbers(people, "people")
        if not self.decay:
            return np.exp(-people / self.n_bits)
        from scipy.special import exp1  # takes longer to import than most of what is done without a decay

        rate = np.maximum(people * self.decay / (self.n_bits * -np.expm1(-self.decay)), 1e-300)
        return np.where(people > 0, (exp1(rate * np.exp(-self.decay)) - exp1(rate)) / self.decay, 1.0)

    def people(self, zero_fraction: np.ndarray) -> np.ndarray:
        """Invert `zero_fraction`; a share above 1, as debiasing may give, stands for less than nobody."""
        share = real_numbers(zero_fraction, "zero_fraction")
        if (share <= 0).any():
            raise InputError(
                f"no position is estimated to be empty (share {share.min():.3g}); the filters are too full for their "
                "noise: use more bits, a decaying distribution, or a smaller flip probability"
            )
        if not self.decay:
            return -self.n_bits * np.log(share)
        # The curve is convex, decreasing and above its tangent at 0: Newton from there never passes the root.
        estimate = self.n_bits * (1.0 - share)
        for _ in range(300):
            inside = np.maximum(estimate, 1e-9)
            step = np.where(estimate > 0, (self.zero_fraction(inside) - share) / self.slope(inside), 0.0)
            estimate = estimate + step
            if np.all(np.abs(step) <= 1e-11 * (1 + np.abs(estimate))):
                break
        return estimate

    def slope(self, people: np.ndarray) -> np.ndarray:
        """Minus the derivative of `zero_fraction`."""
        if not self.decay:
            return np.exp(-people / self.n_bits) / self.n_bits
        rate = people * self.decay / (self.n_bits * -np.expm1(-self.decay))
        return (np.exp(-rate * np.exp(-self.decay)) - np.exp(-rate)) / (self.decay * people)


def hash_items(items: Any, *, seed: int) -> np.ndarray:
    """Hash people to 64 bits; equal items and seeds give equal hashes everywhere."""
    whole_number(seed, "seed", low=0, high=2**64 - 1)
    # NumPy makes one type of a list: a text among integers would turn all of them into texts, with other hashes.
    values = np.asarray(items, dtype=object) if isinstance(items, list | tuple) else np.asarray(items)
    if values.dtype == object and all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values.flat):
        values = np.asarray(values.tolist())
    if values.dtype.kind in "iu":
        mixed = _mix(np.array([seed], dtype=np.uint64))
        return _mix(values.astype(np.uint64).ravel() ^ mixed)
    key = int(seed).to_bytes(8, "little")
    digests = [hashlib.blake2b(_raw(item), digest_size=8, key=key).digest() for item in values.ravel().tolist()]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _raw(item: Any) -> bytes:
    if isinstance(item, bytes):
        return item
    if isinstance(item, str):
        return item.encode()
    # The type alone: an item is a person's identifier.
    raise InputError(
        "items must all be 64-bit integers, or all strings or bytes, got an item of type "
        f"{type(item).__name__}; drop missing ones and convert the others (a column of integers with one missing is a "
        "column of floats)"
    )


def _mix(value: np.ndarray) -> np.ndarray:
    """Return the splitmix64 finalizer, a bijection of 64-bit words (Steele, Lea and Flood 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def build_filters(items_by_publisher: Sequence[Any], *, distribution: BitDistribution, seed: int) -> Filters:
    """Build one filter per publisher from the people that each has reached.

    Parameters
    ----------
    items_by_publisher
        For each of k publishers, its people (repeats do not matter).
    distribution
        Law of the positions, shared.
    seed
        Hash seed, shared.

    Returns
    -------
    Filters
        Confidential: pass it through `shuffle_flip` before anything leaves.

    Examples
    --------
    >>> filters = build_filters([[1, 2, 3], [3]], distribution=BitDistribution(100), seed=1)
    >>> filters.n_filters, int(filters.bits.sum())
    (2, 4)
    """
    instance(distribution, BitDistribution, "distribution", remedy="such as BitDistribution(n_bits=1000)")
    remedy = "give one list of items per publisher"
    items_by_publisher = ordered(items_by_publisher, "items_by_publisher", remedy=remedy)
    k = whole_number(len(items_by_publisher), "number of publishers", high=MAX_FILTERS)
    logos = np.zeros(distribution.n_bits, dtype=np.uint32)
    for place, items in enumerate(items_by_publisher):
        logos[distribution.positions(hash_items(items, seed=seed))] |= np.uint32(1 << place)
    return Filters(logos, k)
