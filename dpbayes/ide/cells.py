"""Released tables as linear measurements of a distribution on a prior's support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpbayes.errors import InputError
from dpbayes.ide.prior import Prior
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release, check_all_published, check_of_records

type Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CellMap:
    """Which cell of each table every row of a support falls into."""

    support: Prior
    attribute_sets: tuple[tuple[str, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of cells of each table."""
        return tuple(self.support.domain.project(names).size for names in self.attribute_sets)

    @cached_property
    def starts(self) -> npt.NDArray[np.intp]:
        """First cell of each table, and the number of cells at the end."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.intp)

    @cached_property
    def index(self) -> tuple[npt.NDArray[np.intp], ...]:
        """Each row's cell within each table."""
        return tuple(self.support.index(names) for names in self.attribute_sets)

    @cached_property
    def _by_row(self) -> sparse.csr_array:
        rows, tables = self.support.size, len(self.attribute_sets)
        cells = np.stack([index + start for index, start in zip(self.index, self.starts[:-1], strict=True)], axis=1)
        pointers = np.arange(0, rows * tables + 1, tables)
        return sparse.csr_array((np.ones(rows * tables), cells.ravel(), pointers), shape=(rows, int(self.starts[-1])))

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The map as zeros and ones, shape ``(cells, rows)``."""
        return sparse.csr_array(self._by_row.T)

    def predict(self, weights: Floats) -> Floats:
        """Return the probability of every cell, shape ``(cells,)``."""
        return np.asarray(self.matrix @ weights)

    def spread(self, multipliers: Floats) -> Floats:
        """Return the sum of the multipliers of each row's cells, shape ``(rows,)``: the transpose of `predict`."""
        return np.asarray(self._by_row @ multipliers)

    @cached_property
    def support_chance(self) -> Floats:
        """Probability of every cell under the support's own weights."""
        return self.predict(self.support.weights)

    @cached_property
    def support_covariance(self) -> Floats:
        """Covariance of the cells' indicators under the support's own weights."""
        return self.covariance(self.support.weights)

    def covariance(self, weights: Floats) -> Floats:
        """Return the covariance of the cells' indicators under a distribution, shape ``(cells, cells)``."""
        mean = self.predict(weights)
        second = np.diag(mean)
        for a, b in combinations(range(len(self.sizes)), 2):
            pairs = self.index[a] * self.sizes[b] + self.index[b]
            joint = np.bincount(pairs, weights, self.sizes[a] * self.sizes[b]).reshape(self.sizes[a], self.sizes[b])
            rows, columns = (slice(self.starts[t], self.starts[t + 1]) for t in (a, b))
            second[rows, columns], second[columns, rows] = joint, joint.T
        return second - np.outer(mean, mean)

    def blocks(self, most: int) -> list[tuple[int, int]]:
        """Cut the tables into runs of at most so many cells (first, last); a larger table is a run by itself."""
        found = [(0, int(self.starts[1]))]
        for first, last in zip(self.starts[1:-1], self.starts[2:], strict=True):
            if last - found[-1][0] <= most:
                found[-1] = (found[-1][0], int(last))
            else:
                found.append((int(first), int(last)))
        return found

    def per_cell(self, values: Sequence[float]) -> Floats:
        """Repeat one number per table over the table's cells."""
        return np.repeat(np.asarray(values, dtype=np.float64), self.sizes)


@dataclass(frozen=True, eq=False)
class Measurements:
    """Released counts, shape ``(cells,)``, with the map from a distribution on the support to their means."""

    prior: Prior
    cells: CellMap
    tables: tuple[NoisyTable, ...]
    values: Floats
    n: float

    @cached_property
    def prior_chance(self) -> Floats:
        """Prior probability of every cell."""
        if self.prior.weights is self.cells.support.weights:
            return self.cells.support_chance
        return self.cells.predict(self.prior.weights)

    def prior_covariance(self) -> Floats:
        """Return the covariance of the cells' indicators under the prior, shape ``(cells, cells)``."""
        if self.prior.weights is self.cells.support.weights:
            return self.cells.support_covariance
        return self.cells.covariance(self.prior.weights)

    def block_covariance(self, first: int, last: int) -> Floats:
        """Return the same covariance of the cells of some whole tables, those from `first` to before `last`."""
        chosen = [t for t, start in enumerate(self.cells.starts[:-1]) if first <= start < last]
        sets = tuple(self.cells.attribute_sets[t] for t in chosen)
        return CellMap(self.prior, sets).covariance(self.prior.weights)


def measure(prior: Prior, release: Release, *, cells: CellMap | None = None) -> Measurements:
    """Set a release against a prior; `cells` is the map of another release with the same tables over the support."""
    check_of_records(release, "an estimate")
    check_all_published(release, "prior-aware estimation", even=True)
    for table in release.tables:
        for attribute in table.domain:
            if attribute.name not in prior.domain:
                raise InputError(
                    f"table {table.label} is over {attribute.name!r}, which the prior lacks: add the column to the "
                    f"public data or leave the table out; the prior has {', '.join(map(repr, prior.domain.names))}"
                )
            if prior.domain[attribute.name] != attribute:
                raise InputError(
                    f"table {table.label} answers for levels {list(attribute.levels)!r} of {attribute.name!r}, outside "
                    f"the prior's {list(prior.domain[attribute.name].levels)!r}; code both over one domain"
                )
    sets = tuple(table.attributes for table in release.tables)
    if cells is None or cells.attribute_sets != sets or cells.support.codes is not prior.codes:
        cells = CellMap(prior, sets)
    values = np.concatenate([table.counts.ravel() for table in release.tables]).astype(np.float64)
    return Measurements(prior, cells, release.tables, values, estimated_size(release))


def estimated_size(release: Release) -> float:
    """Return the number of records: public, or the best linear unbiased estimate from what was released."""
    if not isinstance(release.n, NoisyTotal):
        return float(release.n)
    values = [release.n.value, *(float(table.counts.sum()) for table in release.tables)]
    variances = [release.n.noise.variance, *(t.counts.size * t.noise.variance for t in release.tables)]
    precisions = 1.0 / np.maximum(variances, 1e-300)
    return float(np.average(values, weights=precisions))
