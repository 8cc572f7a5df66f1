"""A test of the stated noise: where released tables overlap, they measure the same counts, and differ by noise alone.

A table over attributes S splits into one part per subset T: its margin on T, centred along every axis of T. All tables
that hold T measure the same part of the exact counts; sums of squares of their differences are compared with their law
under the stated noise, by simulation. The statistic, and what bounds a threshold, are in docs/published.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from dpbayes._arguments import Floats, instance, whole_number
from dpbayes.data.domain import Attribute, Domain
from dpbayes.errors import InputError
from dpbayes.privacy.laws import NoiseLaw
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release

LEVEL = 0.01
"""Probability of an alarm where the noise is as stated."""

_DRAWS, _FEWEST = 1999, 499  # simulated releases; fewer where they are large
_NUMBERS = 3e8  # of simulated noise in all
_BLOCK = 1 << 22
_PARTS = 4096  # subsets T, lowest order first
_CLEAR = 6.0  # standard deviations above the threshold from which it cannot have chosen among the counts


@dataclass(frozen=True)
class StatedNoise:
    """What overlaps say of one table's noise, as if the others' were as stated, or of all tables together."""

    table: str
    dof: int  # independent differences from other tables
    ratio: float  # standard deviation that the data show over the stated one
    lower: float  # of an approximate 99 % interval
    upper: float
    z: float  # distance of the cube root of the sum of squares from its expectation, in standard deviations


@dataclass(frozen=True)
class NoiseCheck:
    """The stated noise against the data: `agrees`, `p_value` and the evidence, table by table and in words (`lines`).

    Parameters
    ----------
    rows
        All tables together, and then each table that overlaps with another.
    p_value
        Probability of evidence as strong as this if noise and thresholds are as stated; None where nothing overlaps.
    excess
        Of the tables with counts held back, the margin that exceeds most what they can hold: its name, by how many
        records, and in how many standard deviations of the noise.
    """

    rows: tuple[StatedNoise, ...]
    p_value: float | None
    excess: tuple[str, float, float] | None = None
    sd_p: float | None = None
    threshold_p: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether the data give no reason to doubt the statement, at a rate of false alarms of 1 %."""
        return self.p_value is None or self.p_value > LEVEL

    @property
    def lines(self) -> list[str]:
        """What was found, in sentences."""
        if self.p_value is None:
            return ["No two tables measure the same counts: the data cannot say whether the noise is as stated."]
        found = []
        if self.rows:
            every = self.rows[0]
            found.append(
                f"In {every.dof:,} independent differences between tables that measure the same counts, the noise has "
                f"{every.ratio:.3g} times the stated standard deviation (99 % interval {every.lower:.3g} to "
                f"{every.upper:.3g}; p = {self.sd_p:.2g})."
            )
        level = LEVEL if self.sd_p is None or self.threshold_p is None else 0.5 * LEVEL
        if self.sd_p is not None and self.sd_p <= level:
            worst = max(self.rows, key=lambda row: abs(row.z) - (row is not self.rows[0]))
            alone = "" if worst is self.rows[0] else ", were the other tables' noise as stated"
            found.append(
                f"It is not as stated, most clearly in {worst.table}: {worst.ratio:.3g} times the stated standard "
                f"deviation (z = {worst.z:.1f}{alone}). Ask the publisher for law and scale."
            )
        if self.excess is not None and self.threshold_p is not None and self.threshold_p <= level:
            where, records, z = self.excess
            found.append(
                f"A threshold is not as stated: {where} leaves {records:,.0f} records more than the counts held back "
                f"can hold (z = {z:.1f}). The true threshold is higher, or counts were left out for another reason."
            )
        if self.agrees:
            found.append("The data give no reason to doubt it (1 % of true statements would be doubted).")
        return found


def check_stated_noise(
    release: Release, *, parts: Mapping[str, Release] | None = None, draws: int | None = None, seed: int = 1
) -> NoiseCheck:
    """Hold the stated noise and thresholds of a release against its data, where tables overlap.

    Parameters
    ----------
    release
        Tables that share attributes, or the same table twice. Any law, and one per cell.
    parts
        Releases whose records add up to those of `release`, by name: such as tracts of a county.
    draws
        Simulated releases; by default 1,999, and fewer (at least 499) of a large release.
    seed
        Seed of the simulation.

    Returns
    -------
    NoiseCheck
        With a rate of false alarms of 1 %. A standard deviation that is wrong by a factor of 1.25 is found with a
        probability above .9 from 1,000 degrees of freedom of overlap on.

    Raises
    ------
    InputError
        If parts do not fit the release, or draws or seed are no whole numbers in their range.

    Examples
    --------
    >>> import numpy as np
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(2))
    >>> check = check_stated_noise(release)
    >>> check.rows[0].dof, check.agrees
    (25, True)
    """
    instance(release, Release, "release", remedy="read_published makes one")
    if draws is not None:
        whole_number(draws, "draws", low=99, high=10**6, remedy="the least p value is one in draws + 1")
    whole_number(seed, "seed", low=0, high=2**53)
    sources = _sources(release if parts is None else join_parts(release, parts))
    overlaps, bounds = _overlaps(sources), _bounds(sources)
    if not overlaps and not bounds:
        return NoiseCheck((), None)
    cells = sum(math.prod(source.shape) for source in sources)
    n = draws or int(np.clip(_NUMBERS / cells, _FEWEST, _DRAWS))
    squares, highest = [], []
    rng = np.random.default_rng(seed)
    step = max(1, _BLOCK // cells)
    for start in range(0, n, step):
        noise = [source.noise(rng, min(step, n - start)) for source in sources]
        squares.append(_squares(overlaps, sources, noise))
        if bounds:
            highest.append(_largest(bounds, sources, noise, noise=True).max(axis=1))
    observed = [source.values[None] for source in sources]
    rows: tuple[StatedNoise, ...] = ()
    sd_p = threshold_p = excess = None
    if overlaps:
        rows, sd_p = _judged(overlaps, sources, _squares(overlaps, sources, observed)[0], np.concatenate(squares))
    if bounds:
        z = _largest(bounds, sources, observed, noise=False)[0]
        threshold_p = (1 + int((np.concatenate(highest) >= z.max()).sum())) / (n + 1)
        excess = _named(bounds, sources, int(z.argmax()), float(z.max()))
    # Either test keeps to half the level where there are both.
    ps = [p for p in (sd_p, threshold_p) if p is not None]
    return NoiseCheck(rows, min(1.0, len(ps) * min(ps)), excess, sd_p, threshold_p)


def _named(bounds: list[_Bound], sources: list[_Source], place: int, z: float) -> tuple[str, float, float]:
    """Say which margin exceeds most what was held back, by how many records, and by how many standard deviations."""
    bound, place = [(bound, k) for bound in bounds for k in range(len(bound.stddev))][place]
    margin = sources[bound.other]
    cell = "" if margin.table is None else f" ({margin.table.domain.cell_labels()[place]})"
    held = sources[bound.held].label
    return f"{margin.label}{cell}, less what is released of it in {held},", float(z * bound.stddev[place]), z


def join_parts(release: Release, parts: Mapping[str, Release], name: str = "part") -> Release:
    """Return one release of a whole and its parts, with an attribute that names the part; they add up.

    Parameters
    ----------
    release
        The whole: its tables stay as they are.
    parts
        Two or more releases with the same tables and laws (their scales may differ), by name.
    name
        The new attribute.

    Examples
    --------
    >>> import polars as pl
    >>> from dpbayes.privacy import Publication, PublishedTable, read_published
    >>> stated = Publication("An office", "https://example.org", "2026", "geometric mechanism, scale 2")
    >>> def read(f, m):
    ...     table = PublishedTable("n", ["sex"], scale=2.0)
    ...     return read_published(
    ...         pl.DataFrame({"sex": ["f", "m"], "n": [f, m]}), [table], publication=stated, total=f + m
    ...     )
    >>> joined = join_parts(read(52, 47), {"001": read(30, 21), "002": read(20, 29)}, "tract")
    >>> [table.label for table in joined.tables]
    ['sex', 'tract x sex']
    """
    if len(parts) < 2 or name in release.domain:
        raise InputError(f"parts must be two or more releases, and {name!r} no attribute of them; got {len(parts)}")
    geography = Attribute(name, tuple(parts))
    tables = list(release.tables)
    for k, table in enumerate(next(iter(parts.values())).tables):
        own = [part.tables[k] for part in parts.values() if k < len(part.tables)]
        same = [part for part in own if part.domain == table.domain]
        laws = {type(part.noise) for part in same}
        if len(same) < len(parts) or len(laws) != 1 or any(part.threshold is not None for part in same):
            raise InputError(
                f"all parts need table {table.label} of the same levels, under one law, without a threshold"
            )
        spreads = np.array([part.cell_spreads for part in same])
        law, counts = table.noise.of(float(spreads.max())), np.array([part.counts for part in same])
        domain, even = Domain((geography, *table.domain)), spreads.min() == spreads.max()
        tables.append(NoisyTable(domain, counts, law, None, None, None if even else spreads))
    return replace(release, domain=Domain((geography, *release.domain)), tables=tuple(tables))


@dataclass(frozen=True, eq=False)
class _Source:
    """A table, or the number of records, as something that measures margins."""

    label: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    values: Floats
    variances: Floats
    table: NoisyTable | None
    law: NoiseLaw | None = None

    def noise(self, rng: np.random.Generator, draws: int) -> Floats:
        """Return simulated noise, draws first; none of an exact number."""
        if self.table is not None:
            return np.asarray(self.table.simulated_noise(rng, draws), dtype=np.float64)
        drawn = np.zeros(draws) if self.law is None else self.law.simulate((draws,), rng)
        return np.asarray(drawn, dtype=np.float64)

    @property
    def chosen(self) -> bool:
        """Whether a threshold may have chosen among the counts by their noise."""
        if self.table is None or self.table.threshold is None:
            return False
        near = self.table.threshold + _CLEAR * math.sqrt(float(self.variances.max()))
        return bool(np.isnan(self.values).any() or self.values.min() < near)


def _sources(release: Release) -> list[_Source]:
    found = [
        _Source(t.label, t.attributes, t.domain.shape, t.counts.astype(float), t.variances, t) for t in release.tables
    ]
    value, law = (release.n.value, release.n.noise) if isinstance(release.n, NoisyTotal) else (release.n, None)
    variance = np.asarray(0.0 if law is None else law.variance)
    return [*found, _Source("number of records", (), (), np.asarray(value, dtype=float), variance, None, law)]


@dataclass(frozen=True, eq=False)
class _Overlap:
    """A part T that several sources measure: which, and the precision of each one's measurement, 1 / variance."""

    names: tuple[str, ...]
    members: tuple[int, ...]
    precisions: Floats
    dof: int

    @property
    def shares(self) -> Floats:
        """Weight of each in the mean; 1 minus it is its share of the variance of its difference from the others."""
        return self.precisions / self.precisions.sum()


def _overlaps(sources: list[_Source]) -> list[_Overlap]:
    """Return all parts that two or more sources measure."""
    usable = [k for k, source in enumerate(sources) if not source.chosen]
    shared = {frozenset(sources[a].names) & frozenset(sources[b].names) for a, b in combinations(usable, 2)}
    subsets = {part for names in shared for size in range(len(names) + 1) for part in combinations(sorted(names), size)}
    found = []
    for names in sorted(subsets, key=lambda names: (len(names), names))[:_PARTS]:
        members = tuple(k for k in usable if set(names) <= set(sources[k].names))
        first = sources[members[0]]
        sizes = [first.shape[first.names.index(name)] for name in names]
        summed = [math.prod(sources[k].shape) / math.prod(sizes) for k in members]  # cells that are added up
        variances = np.array(
            [float(sources[k].variances.mean()) * cells for k, cells in zip(members, summed, strict=True)]
        )
        # An exact number takes all the weight.
        precisions = 1.0 / np.maximum(variances, 1e-12 * variances.max())
        found.append(_Overlap(names, members, precisions, math.prod(size - 1 for size in sizes)))
    return found


def _part(source: _Source, values: Floats, names: tuple[str, ...]) -> Floats:
    """Return the part T of values ``(draws, *shape)``: summed over the other axes, centred along its own, in order."""
    sizes = [source.shape[source.names.index(name)] for name in names]
    summed = _margin(source, values, names).reshape(len(values), *sizes)
    for axis in range(1, summed.ndim):
        summed = summed - summed.mean(axis=axis, keepdims=True)
    return summed.reshape(len(summed), -1)


def _squares(overlaps: list[_Overlap], sources: list[_Source], values: list[Floats]) -> Floats:
    """Return sums of squared differences, ``(draws, 1 + sources)``: all together, and each source from the others."""
    found = np.zeros((len(values[0]), 1 + len(sources)))
    for overlap in overlaps:
        parts = np.array([_part(sources[k], values[k], overlap.names) for k in overlap.members])
        squares = ((parts - np.tensordot(overlap.shares, parts, 1)) ** 2).sum(axis=2).T * overlap.precisions
        found[:, 0] += squares.sum(axis=1)
        # u_k minus the mean of the others is (u_k - mean) / (1 - share), with variance 1 / (p_k (1 - share)).
        found[:, 1 + np.array(overlap.members)] += squares / (1.0 - overlap.shares)
    return found


def _judged(
    overlaps: list[_Overlap], sources: list[_Source], observed: Floats, simulated: Floats
) -> tuple[tuple[StatedNoise, ...], float]:
    """Return the evidence of all sources and of each, and the probability of the largest departure among them."""
    # A table's own noise has this share of each difference's variance; all together have all of it.
    own = np.zeros(1 + len(sources))
    dof = np.zeros(1 + len(sources), dtype=int)
    for overlap in overlaps:
        dof[0] += (len(overlap.members) - 1) * overlap.dof
        dof[1 + np.array(overlap.members)] += overlap.dof
        own[1 + np.array(overlap.members)] += overlap.dof * (1.0 - overlap.shares)
    own[0] = dof[0]
    exact = [1 + k for k, source in enumerate(sources) if not source.variances.any()]
    own[exact] = 0.0
    held = np.flatnonzero(own > 0.5)
    # The cube root of a sum of squares is nearly normal.
    roots, root = np.cbrt(simulated[:, held]), np.cbrt(observed[held])
    centre, spread = roots.mean(axis=0), roots.std(axis=0)
    z = (root - centre) / spread
    largest = np.abs((roots - centre) / spread).max(axis=1)
    p_value = (1 + int((largest >= np.abs(z).max()).sum())) / (len(roots) + 1)
    expected, ends = simulated[:, held].mean(axis=0), np.quantile(simulated[:, held], [0.995, 0.005], axis=0)
    # With other noise the sum of squares keeps its shape, about, and has its scale from that noise's share.
    with np.errstate(divide="ignore"):
        scales = np.stack([observed[held] / expected, *(observed[held] / ends)])
    bounds = np.sqrt(np.maximum(1.0 + expected * (scales - 1.0) / own[held], 0.0))
    labels = ["all tables", *(source.label for source in sources)]
    ratio, lower, upper = bounds.tolist()
    rows = tuple(
        StatedNoise(labels[k], int(dof[k]), ratio[i], lower[i], upper[i], float(z[i])) for i, k in enumerate(held)
    )
    return rows, p_value


@dataclass(frozen=True, eq=False)
class _Bound:
    """What the counts held back in a table can hold at most, by the cells of a margin that another source measures."""

    held: int
    other: int
    counted: Floats
    limit: Floats
    stddev: Floats


def _margin(source: _Source, values: Floats, names: tuple[str, ...]) -> Floats:
    """Return the margin of values ``(draws, *shape)`` on some attributes, flat, in the order of the names."""
    out = tuple(1 + axis for axis, name in enumerate(source.names) if name not in names)
    kept = [name for name in source.names if name in names]
    summed = np.transpose(values.sum(axis=out), [0, *(1 + kept.index(name) for name in names)])
    return summed.reshape(len(values), -1)


def _bounds(sources: list[_Source]) -> list[_Bound]:
    """Return all margins that bound what a threshold held back."""
    found = []
    for held, table in enumerate(sources):
        if table.table is None or table.table.threshold is None or not np.isnan(table.values).any():
            continue
        most = table.table.limit - (0.5 if table.table.noise.is_discrete else 0.0)
        for other, margin in enumerate(sources):
            if other == held or margin.chosen or not set(margin.names) <= set(table.names):
                continue
            counted = _margin(table, np.isnan(table.values)[None].astype(float), margin.names)[0]
            if counted.any():
                variance = margin.variances.ravel() + _margin(table, table.variances[None], margin.names)[0]
                found.append(_Bound(held, other, counted, most * counted, np.sqrt(variance)))
    return found


def _largest(bounds: list[_Bound], sources: list[_Source], values: list[Floats], *, noise: bool) -> Floats:
    """Return each bound's standardized excesses, ``(draws, cells)``, side by side; of noise alone there is no limit."""
    parts = []
    for b in bounds:
        released = _margin(sources[b.held], np.nan_to_num(values[b.held]), sources[b.other].names)
        excess = values[b.other].reshape(len(released), -1) - released - (0.0 if noise else b.limit)
        parts.append(np.where(b.counted > 0, excess / b.stddev, -np.inf))
    return np.concatenate(parts, axis=1)
