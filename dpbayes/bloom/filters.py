"""Bloom filters of several publishers: from people to bits, the mechanism that makes them safe, and what leaves.

Publishers share the hash seed, so a person has one position, the same in every filter. The k filters are kept as one
logo per position, a number whose binary digit i is the bit of filter i. Every bit is flipped on its own, and the
positions are put in one random order, the same for all filters: after that the logo counts are all that the filters
hold, so they alone are released (`BloomRelease`), and need no shuffling. Flipping turns logo i into j with probability
p^H q^(k - H), H their Hamming distance: the k-fold Kronecker power of the channel of one bit, in k sweeps.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np

from dpbayes._arguments import as_array, instance, one_of, ordered, real_numbers, shown, whole_number
from dpbayes._lazy import nw
from dpbayes.bloom.claims import MAX_FILTERS, MAX_POSITIONS, MAX_WEEKS, check_decay, check_flip_prob
from dpbayes.errors import DamagedFileError, InputError
from dpbayes.privacy.envelope import Enveloped, FileKind, expect
from dpbayes.privacy.sampling import sampler_name

Sampler = Literal["secure", "simulation"]


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
        """Return the expected share of positions without anybody: Poisson, for a decay on a continuum, to O(1/m)."""
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
    column = nw.from_native(items, allow_series=True, pass_through=True)
    if isinstance(column, nw.Series) and column.dtype == nw.String:
        items = column.to_list()  # an array takes as many bytes for every text as the longest one has
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


@dataclass(frozen=True, repr=False)
class Filters:
    """Filters of k publishers: a uint32 logo per position, digit i the bit of filter i; a repr shows sizes alone."""

    logos: np.ndarray
    n_filters: int

    def __repr__(self) -> str:
        return f"Filters(n_filters={self.n_filters}, n_bits={self.n_bits})"

    def __post_init__(self) -> None:
        k = whole_number(self.n_filters, "n_filters", high=MAX_FILTERS)
        instance(self.logos, np.ndarray, "logos", remedy="Filters.from_bits takes bits")
        if self.logos.ndim != 1 or self.logos.size == 0 or self.logos.dtype != np.uint32:
            raise InputError(
                f"logos must be a uint32 array with one entry per position, got {self.logos.dtype} of shape "
                f"{self.logos.shape}; Filters.from_bits takes bits"
            )
        if int(self.logos.max()) >> k:
            raise InputError(f"a logo of {k} filters must be below {2**k}; n_filters is too small for these logos")

    @classmethod
    def from_bits(cls, bits: Any) -> "Filters":
        """Pack an array of zeros and ones of shape (k, m), one row per filter."""
        array = as_array(bits, "the filters")
        if array.ndim != 2 or array.shape[1] == 0:
            raise InputError(f"bits must have one row per filter and one column per position, got shape {array.shape}")
        whole_number(array.shape[0], "number of filters", high=MAX_FILTERS)
        if array.dtype != bool and not np.isin(array, (0, 1)).all():
            raise InputError("bits must be 0 or 1")
        logos = np.zeros(array.shape[1], dtype=np.uint32)
        for place, row in enumerate(array):
            logos |= row.astype(np.uint32) << np.uint32(place)
        return cls(logos, array.shape[0])

    @property
    def n_bits(self) -> int:
        """Number m of positions."""
        return self.logos.size

    @property
    def counts(self) -> np.ndarray:
        """How often each of the 2^k logos occurs, int64 of shape (2^k,); it adds up to m."""
        return np.bincount(self.logos, minlength=2**self.n_filters).astype(np.int64)


@dataclass(frozen=True, eq=False)
class BloomRelease(Enveloped):
    """Logo counts of shuffled and flipped filters; `shuffle_flip` makes it.

    Parameters
    ----------
    counts
        Released count of every logo, int64 of shape (2^k,).
    flip_prob
        Flip probability p.
    sampler
        "secure" or "simulation": what drew the flips.
    decay
        Decay of the bit distribution (public), 0 for uniform.

    Notes
    -----
    Neighbouring inputs differ in one position (one-position): a person more or less, or one person's other publishers;
    one person exchanged for another changes two. What the release costs is a function of its three public numbers:
    `bloom_epsilon`.

    Examples
    --------
    >>> BloomRelease(np.array([70, 10, 15, 5]), 0.1, "simulation").n_filters
    2
    """

    FILE: ClassVar[FileKind] = FileKind("dpbayes-bloom", "a release of Bloom filters")
    adjacency: ClassVar[str] = "one-position"

    counts: np.ndarray
    flip_prob: float
    sampler: Sampler
    decay: float = 0.0

    def __post_init__(self) -> None:
        counts = as_array(self.counts, "counts")
        size = counts.size
        if counts.ndim != 1 or size < 2 or size & (size - 1) or counts.dtype.kind not in "iu" or (counts < 0).any():
            raise InputError("counts must be whole numbers >= 0, one for each of 2^k logos; shuffle_flip returns them")
        if float(counts.sum(dtype=float)) > MAX_POSITIONS:
            raise InputError(f"counts must be of at most {MAX_POSITIONS:,} positions in all; a filter has no more")
        object.__setattr__(self, "counts", counts)
        check_decay(self.decay)
        whole_number(self.n_filters, "n_filters", high=MAX_FILTERS)
        check_flip_prob(self.flip_prob)
        one_of(self.sampler, get_args(Sampler), "sampler")

    @property
    def n_filters(self) -> int:
        """Number k of filters."""
        return int(self.counts.size).bit_length() - 1

    @property
    def n_bits(self) -> int:
        """Number m of positions."""
        return int(self.counts.sum())

    @property
    def weeks(self) -> "tuple[BloomRelease]":
        """The release of each week: itself alone."""
        return (self,)

    @cached_property
    def debiased(self) -> np.ndarray:
        """Unbiased estimates of the true logo counts, float of shape (2^k,)."""
        return solve_transition(self.counts, self.flip_prob)

    def flip_variance(self, coefficients: np.ndarray) -> float:
        """Return the unbiased estimate of the variance that flipping gives ``coefficients @ debiased``."""
        weights = solve_transition(coefficients, self.flip_prob)
        return float(self.counts @ weights**2 - self.debiased @ coefficients**2)

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What decides the privacy cost, for a trace."""
        return {
            "adjacency": self.adjacency,
            "flip_prob": self.flip_prob,
            "n_filters": self.n_filters,
            "sampler": self.sampler,
        }

    def _body(self) -> dict[str, Any]:
        known = {key: value for key, value in self.privacy_record.items() if key != "n_filters"}
        return known | {"decay": self.decay, "counts": self.counts.tolist()}

    @classmethod
    def _from_body(cls, body: dict[str, Any]) -> Self:
        expect(body, "adjacency flip_prob sampler decay counts", "a release of Bloom filters")
        if body["adjacency"] != "one-position":
            raise DamagedFileError(
                f"its adjacency is {shown(body['adjacency'])}; that of Bloom filters is one-position"
            )
        return cls(np.array(body["counts"], dtype=np.int64), body["flip_prob"], body["sampler"], body["decay"])


@dataclass(frozen=True)
class WeeklyFilters(Enveloped):
    """Releases of the same publishers' filters, one per week, each of all people reached by then.

    Parameters
    ----------
    weeks
        One `BloomRelease` per week, at most 52, each built with a hash seed of its own: then weeks err independently.

    Raises
    ------
    InputError
        If there is no week, more than 52, or the weeks have other numbers of filters.

    Notes
    -----
    A person is in the filters of every week that follows: epsilons and deltas of the weeks add up.

    Examples
    --------
    >>> weeks = [BloomRelease(np.array(counts), 0.1, "simulation") for counts in ([80, 20], [70, 30])]
    >>> WeeklyFilters(weeks).n_weeks
    2
    """

    FILE: ClassVar[FileKind] = FileKind("dpbayes-bloom-weeks", "a release of Bloom filters for each week")
    adjacency: ClassVar[str] = "one-position"

    weeks: tuple[BloomRelease, ...]

    def __post_init__(self) -> None:
        weeks = ordered(self.weeks, "weeks", remedy="give a list of one BloomRelease per week", kind=BloomRelease)
        whole_number(len(weeks), "number of weeks", high=MAX_WEEKS)
        if len({week.n_filters for week in weeks}) > 1:
            raise InputError(f"every week has the same publishers, got {[week.n_filters for week in weeks]} filters")
        object.__setattr__(self, "weeks", tuple(weeks))

    @property
    def n_weeks(self) -> int:
        """Number of weeks."""
        return len(self.weeks)

    @property
    def n_filters(self) -> int:
        """Number of filters of a week."""
        return self.weeks[0].n_filters

    @property
    def sampler(self) -> Sampler:
        """What drew the flips; "simulation" where it drew those of any week."""
        return "secure" if all(week.sampler == "secure" for week in self.weeks) else "simulation"

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What decides the privacy cost, for a trace."""
        flips = {"flip_prob": [week.flip_prob for week in self.weeks]}
        return self.weeks[0].privacy_record | flips | {"sampler": self.sampler}

    def _body(self) -> dict[str, Any]:
        return {"weeks": [week.to_dict() for week in self.weeks]}

    @classmethod
    def _from_body(cls, body: dict[str, Any]) -> Self:
        expect(body, "weeks", "a release of Bloom filters for each week")
        return cls(tuple(BloomRelease.from_dict(week) for week in body["weeks"]))


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
    >>> filters.counts.tolist()
    [97, 2, 0, 1]
    """
    instance(distribution, BitDistribution, "distribution", remedy="such as BitDistribution(n_bits=1000)")
    remedy = "give one list of items per publisher"
    items_by_publisher = ordered(items_by_publisher, "items_by_publisher", remedy=remedy)
    k = whole_number(len(items_by_publisher), "number of publishers", high=MAX_FILTERS)
    logos = np.zeros(distribution.n_bits, dtype=np.uint32)
    for place, items in enumerate(items_by_publisher):
        logos[distribution.positions(hash_items(items, seed=seed))] |= np.uint32(1 << place)
    return Filters(logos, k)


def shuffle_flip(
    bits: Any, *, flip_prob: float, decay: float = 0.0, rng: np.random.Generator | None = None
) -> BloomRelease:
    """Flip every bit with the same probability, and release the filters shuffled: as counts of logos alone.

    Parameters
    ----------
    bits
        `Filters`, or zeros and ones of shape (k, m), one row per filter.
    flip_prob
        Flip probability p, between 0 and 1/2.
    decay
        Decay of the bit distribution that the filters were built with (public), 0 for uniform.
    rng
        None for a release: exact coins from the operating system's generator. A NumPy generator is for simulation, and
        the result says so.

    Examples
    --------
    >>> released = shuffle_flip([[1, 0, 1, 0], [1, 0, 0, 0]], flip_prob=0.1)
    >>> released.n_filters, released.n_bits, released.sampler
    (2, 4, 'secure')
    """
    p, source = check_flip_prob(flip_prob), sampler_name(rng)
    filters = bits if isinstance(bits, Filters) else Filters.from_bits(bits)
    # Counts do not depend on the order of the positions. A simulation moves them all the same, as the paper's does.
    logos = filters.logos.copy() if rng is None else filters.logos[rng.permutation(filters.n_bits)]
    for place in range(filters.n_filters):
        flips = secure_coins(filters.n_bits, p) if rng is None else rng.random(filters.n_bits) < p
        logos ^= flips.astype(np.uint32) << np.uint32(place)
    return BloomRelease(Filters(logos, filters.n_filters).counts, p, "secure" if source == "opendp" else source, decay)


def transition_matrix(n_filters: int, flip_prob: float) -> np.ndarray:
    """Return the matrix of logo transition probabilities; it is symmetric and its rows sum to 1."""
    k, p = whole_number(n_filters, "n_filters", high=10), check_flip_prob(flip_prob)
    return apply_transition(np.eye(2**k), p)


def largest_loss(differ: int, flip_prob: float) -> float:
    """Return h ln(q/p), the largest loss between logos that differ in h filters, rounded up."""
    # The quotient keeps its relative accuracy up to p = 1/2; all roundings together stay below eight units of 2^-53.
    return differ * float(np.log1p((1.0 - 2.0 * flip_prob) / flip_prob)) * (1.0 + 2.0**-49)


def apply_transition(values: np.ndarray, flip_prob: float) -> np.ndarray:
    """Return the transition matrix times `values`, in k sweeps."""
    p = check_flip_prob(flip_prob)
    return sweep(values, np.array([[1.0 - p, p], [p, 1.0 - p]]))


def solve_transition(values: np.ndarray, flip_prob: float) -> np.ndarray:
    """Return the inverse of the transition matrix times `values`, in k sweeps: released counts, debiased."""
    p = check_flip_prob(flip_prob)
    return sweep(values, np.array([[1.0 - p, -p], [-p, 1.0 - p]]) / (1.0 - 2.0 * p))


def sweep(values: np.ndarray, bit: np.ndarray) -> np.ndarray:
    """Apply a 2 x 2 matrix along every binary digit of the first axis."""
    result = np.array(values, dtype=float)
    length = result.shape[0] if result.ndim else 0
    if length < 2 or length & (length - 1):
        raise InputError(f"logo values must number a power of two, got {length}; there is one for each of 2^k logos")
    stride = 1
    while stride < length:
        pairs = result.reshape(length // (2 * stride), 2, stride, -1)
        pairs[:] = np.einsum("ij,ajbc->aibc", bit, pairs)
        stride *= 2
    return result


def secure_coins(n: int, prob: float | Fraction) -> np.ndarray:
    """Return `n` independent coins that are true with probability exactly `prob`, which is below 1."""
    digit, rest = divmod(Fraction(prob) * 256, 1)
    byte = np.frombuffer(os.urandom(n), dtype=np.uint8)
    coins, tied = byte < digit, np.flatnonzero(byte == digit)
    if rest and tied.size:
        coins[tied] = secure_coins(tied.size, rest)
    return coins
