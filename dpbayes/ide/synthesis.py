"""Algorithm 2, the analyst's side: refine the prior unit by unit, then group by group, and draw records.

Everything here is post-processing of a `GroupRelease`; it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, one_of
from dpbayes.data.domain import Level
from dpbayes.errors import InputError
from dpbayes.ide.algorithm1 import TableAnswers, advance, kl_divergence, l1_loss
from dpbayes.ide.cells import CellMap, measure
from dpbayes.ide.estimation import Estimate, estimate
from dpbayes.ide.prior import Prior, column_type, records_of
from dpbayes.ide.release import GroupRelease
from dpbayes.privacy.release import NoisyTotal, Release

if TYPE_CHECKING:
    import polars as pl

type Floats = npt.NDArray[np.float64]
type Method = Literal["algorithm-1", "noise-aware"]

# Weights of one chunk: small enough to stay near the processor, large enough to share the cost of a step.
_CHUNK_BYTES = 16 * 2**20
_SWEEPS = 2


@dataclass(frozen=True, eq=False)
class GroupResult:
    """What was estimated for one group."""

    size: int
    records: npt.NDArray[np.int32]
    l1_loss: float
    kl: float
    gap: float


@dataclass(frozen=True, eq=False)
class GroupSynthesis:
    """Synthetic records of all groups.

    Parameters
    ----------
    priors
        The support of each unit.
    units
        The estimate of each unit, from which its groups started.
    groups
        The result of each group.
    parent
        Group to unit.
    attribute
        Name of the group's column.
    """

    priors: Mapping[Level, Prior]
    units: Mapping[Level, Estimate]
    groups: Mapping[Level, GroupResult]
    parent: Mapping[Level, Level]
    attribute: str

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of synthetic records of each group."""
        return np.array([result.size for result in self.groups.values()], dtype=np.int64)

    def frame(self) -> pl.DataFrame:
        """Return all synthetic records, the group's column first. Without any record the columns stand all the same."""
        import polars as pl

        kind = column_type(list(self.groups))
        parts = []
        for group, result in self.groups.items():
            prior = self.priors[self.parent[group]]
            records = records_of(prior.domain, np.repeat(prior.codes, result.records, axis=0))
            parts.append(records.select(pl.lit(group, dtype=kind).alias(self.attribute), pl.all()))
        return pl.concat(parts)


def synthesize_groups(
    prior: Prior | Mapping[Level, Prior],
    released: GroupRelease,
    *,
    method: Method = "noise-aware",
    iterations: int | None = None,
    random_state: int = 1,
    n_jobs: int = 1,
) -> GroupSynthesis:
    """Draw synthetic records for every group of a hierarchy.

    Parameters
    ----------
    prior
        One prior for all units, or one a unit. It is taken as it is: a thin one may be strengthened first
        (`dpbayes.ide.credibility` and `pool`, without a grouping attribute).
    released
        What `release_groups` released.
    method
        ``"algorithm-1"`` as in the paper, all groups of a unit advancing together;
        ``"noise-aware"`` weighs the noise instead, group by group.
    iterations
        Algorithm 1: updates at each level; twice the number of tables by default, as the authors had it (section 4.2).
    random_state
        Seed of the updates' order and of the records drawn; it touches nothing confidential.
    n_jobs
        Processes that share the groups, by joblib, as many as there are processors at most; under
        ``joblib.parallel_config(backend="dask")`` a cluster's.

    Returns
    -------
    GroupSynthesis
        The same whatever `n_jobs`.

    Raises
    ------
    InputError
        If a unit has no prior, or a table is over an attribute that the prior lacks.

    Examples
    --------
    >>> import polars as pl
    >>> from dpbayes.data import Domain
    >>> from dpbayes.ide import Hierarchy, Prior, release_groups
    >>> domain = Domain.from_levels({"x": ("n", "y"), "y": ("n", "y")})
    >>> frame = pl.DataFrame({"place": ["a", "b"] * 50, "x": ["n"] * 60 + ["y"] * 40, "y": ["n", "y", "y", "y"] * 25})
    >>> places = Hierarchy("place", {"a": "north", "b": "north"})
    >>> released = release_groups(
    ...     frame, places, domain, unit_sets=[["x", "y"]], group_sets=[["x"]], epsilon=8.0, rng=np.random.default_rng(1)
    ... )
    >>> result = synthesize_groups(Prior.full(domain), released)
    >>> result.frame().columns, result.sizes.tolist()
    (['place', 'x', 'y'], [49, 50])
    """
    instance(released, GroupRelease, "released", remedy="release_groups makes one")
    from joblib import Parallel, delayed, effective_n_jobs

    one_of(method, ("algorithm-1", "noise-aware"), "method")
    priors = _priors(prior, released)
    units = {
        unit: _estimate_unit(priors[unit], release, method, iterations, random_state)
        for unit, release in released.units.items()
    }
    jobs = list(_chunks(units, released))
    seeds = dict(zip(released.groups, np.random.SeedSequence(random_state).spawn(len(released.groups)), strict=True))
    # More would only start: a thousand processes of one small study starve the machine.
    parts = Parallel(n_jobs=min(n_jobs, effective_n_jobs(-1)))(
        delayed(_run_chunk)(
            units[unit].distribution,
            [released.groups[group] for group in groups],
            [seeds[group] for group in groups],
            method,
            iterations,
            random_state,
        )
        for unit, groups in jobs
    )
    found = {
        group: result
        for (_, groups), results in zip(jobs, parts, strict=True)
        for group, result in zip(groups, results, strict=True)
    }
    return GroupSynthesis(
        priors,
        units,
        {group: found[group] for group in released.groups},
        released.hierarchy.parent,
        released.hierarchy.attribute,
    )


def released_size(release: Release) -> int:
    """Return a group's number of records as Algorithm 2 takes it: rounded, at least 0."""
    value = release.n.value if isinstance(release.n, NoisyTotal) else release.n
    return max(round(value), 0)


def _priors(prior: Prior | Mapping[Level, Prior], released: GroupRelease) -> dict[Level, Prior]:
    if isinstance(prior, Prior):
        return dict.fromkeys(released.units, prior)
    missing = [unit for unit in released.units if unit not in prior]
    if missing:
        raise InputError(f"no prior for units {missing!r}; it has {list(prior)!r}: add them, or pass one prior for all")
    return {unit: prior[unit] for unit in released.units}


def _estimate_unit(
    prior: Prior, release: Release, method: Method, iterations: int | None, random_state: int
) -> Estimate:
    if method == "noise-aware":
        return estimate(prior, release, pool=False)
    return estimate(
        prior,
        release,
        noise_aware=False,
        iterations=_SWEEPS * len(release.tables) if iterations is None else iterations,
        random_state=random_state,
    )


def _chunks(units: Mapping[Level, Estimate], released: GroupRelease) -> Iterator[tuple[Level, tuple[Level, ...]]]:
    """Cut each unit's groups into chunks whose weights fit the chunk size, whatever the number of processes."""
    for unit, found in units.items():
        children = released.hierarchy.children(unit)
        width = max(1, _CHUNK_BYTES // (8 * found.prior.size))
        for start in range(0, len(children), width):
            yield unit, children[start : start + width]


def _run_chunk(
    prior: Prior,
    releases: Sequence[Release],
    seeds: Sequence[np.random.SeedSequence],
    method: Method,
    iterations: int | None,
    random_state: int,
) -> list[GroupResult]:
    """Estimate some groups of one unit and draw their records."""
    cells = measure(prior, releases[0]).cells
    sizes = [released_size(release) for release in releases]
    if method == "noise-aware":
        found = [_noise_aware(prior, release, cells) for release in releases]
    else:
        found = _algorithm1(prior, releases, sizes, cells, iterations, random_state)
    results = []
    for size, (weights, loss, gap), seed in zip(sizes, found, seeds, strict=True):
        records = np.random.default_rng(seed).multinomial(size, weights / weights.sum()).astype(np.int32)
        kl = kl_divergence(weights, prior.weights)
        results.append(GroupResult(size, records, loss if size else np.nan, kl, gap))
    return results


def _noise_aware(prior: Prior, release: Release, cells: CellMap) -> tuple[Floats, float, float]:
    result = estimate(prior, release, pool=False, cells=cells)
    if result.solution is None:
        return result.weights, np.nan, np.nan
    values = np.concatenate([table.counts.ravel() for table in release.tables])
    loss = float(np.abs(values / result.n - cells.predict(result.weights)).sum())
    return result.weights, loss, result.solution.gap


def _algorithm1(
    prior: Prior,
    releases: Sequence[Release],
    sizes: Sequence[int],
    cells: CellMap,
    iterations: int | None,
    random_state: int,
) -> list[tuple[Floats, float, float]]:
    live = [place for place, size in enumerate(sizes) if size > 0]
    found: list[tuple[Floats, float, float]] = [(prior.weights, np.nan, np.nan)] * len(sizes)
    if not live:
        return found
    tables = [
        TableAnswers(
            cell, np.stack([releases[group].tables[place].counts.ravel() / sizes[group] for group in live], axis=1)
        )
        for place, cell in enumerate(cells.index)
    ]
    steps = _SWEEPS * len(tables) if iterations is None else iterations
    order = np.random.default_rng(random_state).integers(0, len(tables), steps)
    weights = advance(np.repeat(prior.weights[:, None], len(live), axis=1), tables, order)
    loss = l1_loss(weights, tables)
    for column, place in enumerate(live):
        found[place] = (np.ascontiguousarray(weights[:, column]), float(loss[column]), np.nan)
    return found
