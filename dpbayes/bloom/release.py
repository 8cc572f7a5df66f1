"""What leaves the publishers: the logo counts of shuffled and flipped filters, with how they were made.

After the common permutation the counts are all that the filters hold, so nothing is lost by releasing them alone.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpbayes._arguments import as_array
from dpbayes._files import write_text
from dpbayes.bloom._checks import MAX_FILTERS, check_count, check_decay, check_flip_prob
from dpbayes.bloom.filters import FlippedFilters, logo_counts
from dpbayes.errors import DamagedFileError, InputError
from dpbayes.privacy.release import record_digest

__all__ = ["BloomRelease", "read_bloom_release", "release_counts"]


@dataclass(frozen=True, eq=False)
class BloomRelease:
    """Logo counts of shuffled and flipped filters; make it with `release_counts`.

    Parameters
    ----------
    counts
        Released count of every logo, int64 of shape (2^k,).
    flip_prob
        Flip probability p.
    sampler
        "secure" or "simulation": what drew the permutation and the flips.
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

    counts: np.ndarray
    flip_prob: float
    sampler: Literal["secure", "simulation"]
    decay: float = 0.0

    def __post_init__(self) -> None:
        counts = as_array(self.counts, "counts")
        size = counts.size
        if counts.ndim != 1 or size < 2 or size & (size - 1) or counts.dtype.kind not in "iu" or (counts < 0).any():
            raise InputError("counts must be whole numbers >= 0, one for each of 2^k logos; logo_counts makes them")
        object.__setattr__(self, "counts", counts)
        check_decay(self.decay)
        check_count(self.n_filters, "n_filters", low=1, high=MAX_FILTERS)
        check_flip_prob(self.flip_prob)
        if self.sampler not in ("secure", "simulation"):
            raise InputError(f"sampler must be 'secure' or 'simulation', got {self.sampler!r}")

    @property
    def n_filters(self) -> int:
        """Number k of filters."""
        return int(self.counts.size).bit_length() - 1

    @property
    def n_bits(self) -> int:
        """Number m of positions."""
        return int(self.counts.sum())

    @property
    def digest(self) -> str:
        """SHA-256 of the release's canonical JSON; the file carries it."""
        return record_digest(self._record())

    def write(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        write_text(path, json.dumps(self._record() | {"digest": self.digest}))

    def _record(self) -> dict[str, Any]:
        return {
            "kind": "bloom",
            "adjacency": "one-position",
            "flip_prob": self.flip_prob,
            "sampler": self.sampler,
            "decay": self.decay,
            "counts": self.counts.tolist(),
        }


def release_counts(released: FlippedFilters, *, decay: float = 0.0) -> BloomRelease:
    """Count the logos of flipped filters.

    Parameters
    ----------
    released
        What `shuffle_flip` returned.
    decay
        Decay of the bit distribution that the filters were built with.

    Returns
    -------
    BloomRelease

    Examples
    --------
    >>> from dpbayes.bloom.filters import shuffle_flip
    >>> release = release_counts(shuffle_flip([[1, 0, 1], [1, 0, 0]], flip_prob=0.1))
    >>> release.n_filters, release.n_bits, release.sampler
    (2, 3, 'secure')
    """
    return BloomRelease(logo_counts(released), released.flip_prob, released.sampler, decay)


def read_bloom_release(path: str | Path) -> BloomRelease:
    """Read a release that `BloomRelease.write` wrote.

    Parameters
    ----------
    path
        The JSON file.

    Returns
    -------
    BloomRelease

    Raises
    ------
    DamagedFileError
        If the file is no such release.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "release.json"
    ...     BloomRelease(np.array([70, 10, 15, 5]), 0.1, "simulation").write(path)
    ...     read_bloom_release(path).n_bits
    100
    """
    try:
        raw: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        if raw["kind"] != "bloom":
            raise InputError(f"its kind is {raw['kind']!r}")
        stated = raw.pop("digest")
        counts = np.array(raw["counts"], dtype=np.int64)
        release = BloomRelease(counts, raw["flip_prob"], raw["sampler"], raw["decay"])
        # Files of an earlier version call the same relation replace-one.
        if raw["adjacency"] not in ("one-position", "replace-one"):
            raise InputError(f"its adjacency is {raw['adjacency']!r}")
        expected = record_digest(release._record() | {"adjacency": raw["adjacency"]})
        if not expected == stated == record_digest(raw):
            raise InputError("its digest does not match its contents")
        return release
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedFileError(f"{path} is no release of Bloom filters ({error}); write it again") from None
