"""People reached: debiased estimates from one release of filters, published reach numbers, and lattices of both.

Every number of people is L = sum_S l_S n_S, n_S the people that a set S of publishers has reached together. Its
variance has two parts. Flipping's is sum_j x_j g_j^2 - sum_i d_i c_i^2, d the debiased counts, c the local coefficients
of L in them, g the inverse channel applied to c; hashing's is sum_i d_i c_i^2 - (c . d)^2 / m less sum_T lambda_T^2 N_T
for the N_T people with exactly the publishers T, each counted lambda_T times in L. docs/bloom.md has the lattice.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dpbayes._arguments import (
    as_array,
    instance,
    one_of,
    ordered,
    probability_below_one,
    real_numbers,
    shown,
    whole_number,
)
from dpbayes._files import input_file
from dpbayes._lazy import xr
from dpbayes.bloom.claims import MAX_WEEKS, check_publishers
from dpbayes.bloom.filters import BitDistribution, BloomRelease, sweep
from dpbayes.errors import DamagedFileError, InputError
from dpbayes.privacy.envelope import Enveloped, FileKind, expect


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
        coefficients[check_publishers(publishers, self.release.n_filters)] = 1.0
        return self.combine(coefficients)

    def intersection(self, publishers: tuple[int, ...] | None = None) -> Estimate:
        """People reached by every one of these publishers, of all by default."""
        code, sets = check_publishers(publishers, self.release.n_filters), np.arange(self.people.size)
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
    >>> from dpbayes.bloom.filters import build_filters, shuffle_flip
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
    return sweep(values, np.array([[1.0, 0.0], [-1.0 if inverse else 1.0, 1.0]]))


MAX_PUBLISHERS, _MAX_ROWS = 10, 100_000
_COLUMNS = "publishers, week (left out for one), reach and stddev"


@dataclass(frozen=True, eq=False)
class ReachNumbers(Enveloped):
    """Published noisy reach of sets of publishers, each cumulative to the end of a week.

    Parameters
    ----------
    publishers
        Names, at most 10.
    sets
        Booleans of shape (n, publishers): which publishers a number is the joint reach of.
    weeks
        Shape (n,), from 1 to at most 52.
    values, stddev
        Published numbers of people, which may be negative, and the standard deviations of their noise, as published.
        Shape (n,).
    noise
        Law of the noise: ``"gaussian"``, or ``"laplace"`` (also for two-sided geometric noise).

    Raises
    ------
    InputError
        If the arrays do not fit together, or a number is out of range.

    Examples
    --------
    >>> numbers = ReachNumbers.of({("A",): 410.0, ("B",): 350.0, ("A", "B"): 600.0}, stddev=25.0)
    >>> numbers.publishers, numbers.n_weeks, numbers.values.tolist()
    (('A', 'B'), 1, [410.0, 350.0, 600.0])
    """

    FILE: ClassVar[FileKind] = FileKind("dpbayes-reach", "a table of reach numbers")
    sampler: ClassVar[str] = "published"
    adjacency: ClassVar[str] = "as published"

    publishers: tuple[str, ...]
    sets: np.ndarray
    weeks: np.ndarray
    values: np.ndarray
    stddev: np.ndarray
    noise: Literal["gaussian", "laplace"] = "gaussian"

    def __post_init__(self) -> None:
        names = ordered(self.publishers, "publishers", remedy="give a list of names", kind=str)
        if not 1 <= len(names) <= MAX_PUBLISHERS or len(set(names)) < len(names):
            raise InputError(f"publishers must be 1 to {MAX_PUBLISHERS} different names, got {shown(names)}")
        sets, weeks = as_array(self.sets, "sets"), as_array(self.weeks, "weeks")
        values, stddev = real_numbers(self.values, "values"), real_numbers(self.stddev, "stddev")
        n = values.size
        shapes = sets.shape == (n, len(names)) and weeks.shape == values.shape == stddev.shape == (n,)
        if not shapes or sets.dtype != bool or weeks.dtype.kind not in "iu" or not 1 <= n <= _MAX_ROWS:
            raise InputError(
                f"give one set, week, value and standard deviation per number, at least one number; got shapes "
                f"{sets.shape}, {weeks.shape}, {values.shape} and {stddev.shape} for {len(names)} publishers"
            )
        if not sets.any(axis=1).all():
            raise InputError("each set must name a publisher")
        if weeks.min() < 1 or weeks.max() > MAX_WEEKS:
            raise InputError(f"weeks must lie between 1 and {MAX_WEEKS}, got {weeks.min()} to {weeks.max()}")
        if not np.isfinite(values).all() or not (np.isfinite(stddev) & (stddev > 0)).all():
            raise InputError("reach must be finite, and each standard deviation positive and finite")
        one_of(self.noise, ("gaussian", "laplace"), "noise")
        checked = {"publishers": names, "sets": sets, "weeks": weeks.astype(int), "values": values, "stddev": stddev}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(
        cls, reach: dict[tuple[str, ...], Any], *, stddev: Any, noise: Literal["gaussian", "laplace"] = "gaussian"
    ) -> Self:
        """Build from a number, or a list of one number per week, for each set of publishers, with one noise for all."""
        instance(reach, dict, "reach", remedy="give {('A', 'B'): [reach by week 1, by week 2]}")
        if not reach:
            raise InputError("reach must name at least one set of publishers, such as {('A', 'B'): 600.0}")
        names = tuple(sorted({name for which in reach for name in which}))
        rows = [
            ([name in which for name in names], week, value)
            for which, numbers in reach.items()
            for week, value in enumerate(np.atleast_1d(real_numbers(numbers, "reach")), start=1)
        ]
        sets, weeks, values = (np.array(column) for column in zip(*rows, strict=True))
        return cls(names, sets, weeks, values, np.broadcast_to(real_numbers(stddev, "stddev"), values.shape), noise)

    @property
    def n_weeks(self) -> int:
        """Weeks up to the last that a number is about."""
        return int(self.weeks.max())

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What a trace records: the noise is somebody else's."""
        return {"adjacency": self.adjacency, "sampler": self.sampler, "noise": self.noise}

    def _body(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name).tolist() for name in ("sets", "weeks", "values", "stddev")}
        return {"sampler": self.sampler, "publishers": list(self.publishers), "noise": self.noise, **numbers}

    @classmethod
    def _from_body(cls, body: dict[str, Any]) -> Self:
        expect(body, "sampler publishers noise sets weeks values stddev", "a table of reach numbers")
        sets, weeks, values, stddev = (np.array(body[name]) for name in ("sets", "weeks", "values", "stddev"))
        return cls(tuple(body["publishers"]), sets, weeks, values, stddev, body["noise"])


def read_reach_numbers(path: str | Path) -> ReachNumbers:
    r"""Read published reach numbers from a CSV file, or one that `ReachNumbers.write` wrote.

    Parameters
    ----------
    path
        A CSV file with the columns ``publishers`` (names joined by ``+``), ``week`` (1 where it is left out), ``reach``
        and ``stddev``, and if the noise is not Gaussian ``noise`` (``laplace`` in every line); or a JSON file.

    Raises
    ------
    DamagedFileError
        If the file is neither; the message names the line.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "reach.csv"
    ...     _ = path.write_text("publishers,week,reach,stddev\nA,1,410,25\nB,1,350,25\nA+B,1,600,25\n")
    ...     read_reach_numbers(path).sets.tolist()
    [[True, False], [False, True], [True, True]]
    """
    path = input_file(path)
    if path.suffix.lower() != ".csv":
        return ReachNumbers.read(path)
    rows = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            for place, row in enumerate(csv.DictReader(file, strict=True), start=2):
                if place > _MAX_ROWS:
                    raise InputError(f"it has more than {_MAX_ROWS:,} lines")
                rows.append(_parsed(row, place))
        except (csv.Error, UnicodeDecodeError, InputError) as error:
            raise DamagedFileError(
                f"{path} is no table of reach numbers: {error}; its columns are {_COLUMNS}"
            ) from None
    names = tuple(dict.fromkeys(name for which, *_ in rows for name in which))
    if not rows:
        raise DamagedFileError(f"{path} holds no numbers; its columns are {_COLUMNS}")
    weeks, values, stddev, laws = (list(column) for column in zip(*(row[1:] for row in rows), strict=True))
    if len(set(laws)) > 1:
        raise DamagedFileError(f"{path} names the noise laws {sorted(set(laws))}; a table has one")
    sets = np.array([[name in which for name in names] for which, *_ in rows])
    return ReachNumbers(names, sets, np.array(weeks), np.array(values), np.array(stddev), laws[0])


def _parsed(row: dict[Any, Any], place: int) -> tuple[list[str], int, float, float, Any]:
    which = [name.strip() for name in (row.get("publishers") or "").split("+") if name.strip()]
    try:
        week, law = int(row.get("week") or 1), row.get("noise") or "gaussian"
        return which, week, float(row["reach"]), float(row["stddev"]), law
    except (KeyError, TypeError, ValueError):
        raise InputError(f"line {place} lacks a number, or a column") from None


def shown_sets(n_publishers: int) -> list[tuple[int, ...]]:
    """Return the sets that every lattice reports: each publisher, each pair, all."""
    everybody = tuple(range(n_publishers))
    return list(dict.fromkeys([*combinations(everybody, 1), *combinations(everybody, 2), everybody]))


def empty_positions(release: BloomRelease) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sets of publishers, debiased counts of positions without a bit in each, and a Cholesky factor."""
    k, m = release.n_filters, release.n_bits
    if release.decay:
        raise InputError(f"a reach lattice takes filters with uniform hashing, got decay {release.decay:g}")
    whole_number(k, "number of filters", high=MAX_PUBLISHERS)
    code, logo = np.arange(1, 2**k), np.arange(2**k)
    size = np.bitwise_count(code)
    code = code[(k <= 6) | (size <= 2) | (size == k)]
    # The row of a set maps released counts to the debiased count of positions with no bit in it: a factor per filter.
    ones, size = np.bitwise_count(code[:, None] & logo).astype(float), np.bitwise_count(code)[:, None]
    p = release.flip_prob
    weights = (1.0 - p) ** (size - ones) * (-p) ** ones / (1.0 - 2.0 * p) ** size
    counts = weights @ release.counts
    total = (weights * release.counts) @ weights.T - np.outer(counts, counts) / m
    # People reached by both of two sets, with what the debiased counts say. Sums are kept within bounds, and not the
    # counts in them: with many filters most of those are noise about 0, and what is left of them would add up.
    share = np.clip(subset_sums(release.debiased)[::-1] / m, 1.0 / m, 1.0)
    reach = -m * np.log(share)
    both = np.maximum(reach[code][:, None] + reach[code][None, :] - reach[code[:, None] | code[None, :]], 0.0)
    fixed = share[code][:, None] * share[code][None, :] * both
    # Noise must not make more of that than there is: what is taken away stays below the whole in every direction.
    root = np.linalg.cholesky(total + 1e-9 * np.diag(np.diag(total)))
    part = np.linalg.solve(root, np.linalg.solve(root, fixed).T)
    values, vectors = np.linalg.eigh(0.5 * (part + part.T))
    left = (vectors * (1.0 - np.clip(values, 0.0, 0.98))) @ vectors.T
    return (code[:, None] >> np.arange(k)) & 1 == 1, counts, np.linalg.cholesky(root @ left @ root.T)


@dataclass(frozen=True, eq=False)
class ReachLattice:
    """Posterior draws of an audience, and the reach of any set of publishers in any week; make it with `from_trace`.

    Parameters
    ----------
    publishers
        Names.
    population
        People in all.
    size
        The classes' shares of them.
    position, level
        Posterior draws, shapes (draws, classes, publishers) and (draws, publishers, weeks).
    """

    publishers: tuple[str, ...]
    population: float
    size: np.ndarray
    position: np.ndarray
    level: np.ndarray

    @classmethod
    def from_trace(cls, trace: "xr.DataTree") -> Self:
        """Take the draws from a fit of `dpbayes.bloom.model.build_lattice_model`."""
        posterior = trace["posterior"].to_dataset()
        flat = posterior[["position", "level"]].stack(sample=("chain", "draw"), create_index=False)
        position = flat["position"].transpose("sample", "class", "publisher").to_numpy()
        level = flat["level"].transpose("sample", "publisher", "week").to_numpy()
        names = tuple(str(name) for name in posterior["publisher"].to_numpy())
        constants = trace["constant_data"]
        return cls(names, float(constants["population"]), constants["class_size"].to_numpy(), position, level)

    @property
    def n_weeks(self) -> int:
        """Number of weeks."""
        return int(self.level.shape[2])

    def union(self, publishers: Sequence[str] | None = None, *, week: int | None = None) -> np.ndarray:
        """Draws of the people reached by at least one of these publishers (all), by the end of a week (the last)."""
        missed = np.prod(1.0 - self._probabilities(week)[:, :, self._places(publishers)], axis=2)
        return self.population * (1.0 - missed @ self.size)

    def intersection(self, publishers: Sequence[str] | None = None, *, week: int | None = None) -> np.ndarray:
        """Draws of the people reached by every one of these publishers."""
        every = np.prod(self._probabilities(week)[:, :, self._places(publishers)], axis=2)
        return self.population * (every @ self.size)

    def frequency(self, *, week: int | None = None) -> np.ndarray:
        """Draws of the people reached by exactly 0, 1, ... publishers, shape (draws, publishers + 1)."""
        probabilities = self._probabilities(week)
        law = np.ones((*probabilities.shape[:2], 1))
        for place in range(probabilities.shape[2]):
            p = probabilities[:, :, place, None]
            law = np.pad(law * (1.0 - p), ((0, 0), (0, 0), (0, 1))) + np.pad(law * p, ((0, 0), (0, 0), (1, 0)))
        return self.population * np.einsum("dcj,c->dj", law, self.size)

    def _probabilities(self, week: int | None) -> np.ndarray:
        """Probability of reach by draw, class and publisher."""
        place = self.n_weeks - 1 if week is None else whole_number(week, "week", high=self.n_weeks) - 1
        return -np.expm1(-np.exp(self.position + self.level[:, None, :, place]))

    def _places(self, publishers: Sequence[str] | None) -> list[int]:
        if publishers is None:
            return list(range(len(self.publishers)))
        names = ordered(publishers, "publishers", remedy="give a list of names", kind=str)
        if not names or (unknown := [name for name in names if name not in self.publishers]):
            raise InputError(f"publishers must be some of {self.publishers}, got {shown(unknown if names else names)}")
        return [self.publishers.index(name) for name in dict.fromkeys(names)]
