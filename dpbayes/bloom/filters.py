"""Bloom filters of several publishers, and the mechanism that makes them safe to give out.

The k filters are kept as one logo a position, a number whose binary digit i is the bit of filter i: four bytes a
position whatever k. `shuffle_flip` puts the positions in one random order, the same for all filters, and flips every
bit on its own.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dpbayes._arguments import instance, shown
from dpbayes.bloom._checks import MAX_FILTERS, check_count, check_flip_prob
from dpbayes.bloom.secure_bits import secure_coins, secure_permutation
from dpbayes.errors import InputError
from dpbayes.privacy.sampling import sampler_name

__all__ = ["Filters", "FlippedFilters", "logo_counts", "shuffle_flip"]


@dataclass(frozen=True, repr=False)
class Filters:
    """Filters of k publishers with m positions each; confidential, so a repr shows their size alone.

    Parameters
    ----------
    logos
        uint32 array of shape (m,); digit i of an entry is the bit of filter i at that position.
    n_filters
        Number k of filters, at most 20.

    Examples
    --------
    >>> filters = Filters.from_bits([[1, 0, 1], [1, 0, 0]])
    >>> filters
    Filters(n_filters=2, n_bits=3)
    >>> filters.logos.tolist()
    [3, 0, 1]
    """

    logos: np.ndarray
    n_filters: int

    def __repr__(self) -> str:
        return f"Filters(n_filters={self.n_filters}, n_bits={self.n_bits})"

    def __post_init__(self) -> None:
        k = check_count(self.n_filters, "n_filters", low=1, high=MAX_FILTERS)
        instance(self.logos, np.ndarray, "logos", remedy="Filters.from_bits takes bits")
        if self.logos.ndim != 1 or self.logos.size == 0 or self.logos.dtype != np.uint32:
            raise InputError(
                f"logos must be a uint32 array with one entry a position, got {self.logos.dtype} of shape "
                f"{self.logos.shape}; Filters.from_bits takes bits"
            )
        if int(self.logos.max()) >> k:
            raise InputError(f"a logo of {k} filters must be below {2**k}; n_filters is too small for these logos")

    @classmethod
    def from_bits(cls, bits: Any) -> "Filters":
        """Pack an array of zeros and ones of shape (k, m), one row a filter."""
        try:
            array = np.asarray(bits)
        except ValueError:
            raise InputError("the filters are ragged; give every filter the same number of bits") from None
        if array.ndim != 2 or array.shape[1] == 0:
            raise InputError(f"bits must have one row a filter and one column a position, got shape {array.shape}")
        check_count(array.shape[0], "number of filters", low=1, high=MAX_FILTERS)
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
    def bits(self) -> np.ndarray:
        """The bits as a uint8 array of shape (k, m)."""
        places = np.arange(self.n_filters, dtype=np.uint32)
        return ((self.logos[None, :] >> places[:, None]) & 1).astype(np.uint8)


@dataclass(frozen=True, repr=False)
class FlippedFilters(Filters):
    """Filters that have been shuffled and flipped: what may leave.

    Parameters
    ----------
    logos, n_filters
        As in `Filters`.
    flip_prob
        Flip probability p.
    sampler
        "secure" if the operating system's generator drew the noise, "simulation" if a NumPy generator did; only the
        former protects anybody.

    Examples
    --------
    >>> released = shuffle_flip([[1, 0, 1, 0]], flip_prob=0.2)
    >>> released
    FlippedFilters(n_filters=1, n_bits=4, flip_prob=0.2, sampler='secure')
    """

    flip_prob: float
    sampler: Literal["secure", "simulation"] = "simulation"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flip_prob(self.flip_prob)
        if not isinstance(self.sampler, str) or self.sampler not in ("secure", "simulation"):
            raise InputError(f"sampler must be 'secure' or 'simulation', got {shown(self.sampler)}")

    def __repr__(self) -> str:
        size = f"n_filters={self.n_filters}, n_bits={self.n_bits}"
        return f"FlippedFilters({size}, flip_prob={self.flip_prob!r}, sampler={self.sampler!r})"


def shuffle_flip(bits: Any, *, flip_prob: float, rng: np.random.Generator | None = None) -> FlippedFilters:
    """Shuffle the positions of all filters together, then flip every bit with the same probability.

    Parameters
    ----------
    bits
        `Filters`, or zeros and ones of shape (k, m), one row a filter.
    flip_prob
        Flip probability p, between 0 and 1/2.
    rng
        None for a release: exact coins and permutation from the operating system's generator. A NumPy generator is for
        simulation, and the result says so.

    Returns
    -------
    FlippedFilters

    Raises
    ------
    InputError
        If the bits are ragged or no bits, or the flip probability is out of range.

    Examples
    --------
    >>> released = shuffle_flip([[1, 0, 1, 0], [1, 0, 0, 0]], flip_prob=0.1)
    >>> released.n_filters, released.n_bits, released.sampler
    (2, 4, 'secure')
    """
    p = check_flip_prob(flip_prob)
    sampler_name(rng)
    filters = bits if isinstance(bits, Filters) else Filters.from_bits(bits)
    if isinstance(filters, FlippedFilters):
        raise InputError("these filters have been flipped already; flip the original ones once, with the final p")
    m = filters.n_bits
    logos = filters.logos[secure_permutation(m) if rng is None else rng.permutation(m)]
    for place in range(filters.n_filters):
        flips = secure_coins(m, p) if rng is None else rng.random(m) < p
        logos ^= flips.astype(np.uint32) << np.uint32(place)
    return FlippedFilters(logos, filters.n_filters, p, "secure" if rng is None else "simulation")


def logo_counts(bits: Any) -> np.ndarray:
    """Count how often each of the 2^k logos occurs.

    Parameters
    ----------
    bits
        `Filters` or `FlippedFilters`, or zeros and ones of shape (k, m).

    Returns
    -------
    numpy.ndarray
        int64, shape (2^k,); it adds up to m.

    Examples
    --------
    >>> logo_counts([[1, 0, 1], [1, 0, 0]]).tolist()
    [1, 1, 0, 1]
    """
    filters = bits if isinstance(bits, Filters) else Filters.from_bits(bits)
    return np.bincount(filters.logos, minlength=2**filters.n_filters).astype(np.int64)
