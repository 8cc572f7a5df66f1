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
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release

__all__ = ["Measurements", "estimated_size", "measure"]

type Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measurements:
    """Released counts with the map from a distribution on the support to the counts it predicts.

    Parameters
    ----------
    prior
        The support and its prior weights.
    tables
        The released tables, in order; the cells of all of them, flattened and joined, are the measurements.
    n
        Number of records, a real number where it was released with noise.
    """

    prior: Prior
    tables: tuple[NoisyTable, ...]
    n: float

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of cells of each table."""
        return tuple(table.counts.size for table in self.tables)

    @cached_property
    def starts(self) -> npt.NDArray[np.intp]:
        """First cell of each table, and the total at the end."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.intp)

    @cached_property
    def values(self) -> Floats:
        """Released counts, shape ``(cells,)``."""
        return np.concatenate([table.counts.ravel() for table in self.tables]).astype(np.float64)

    @cached_property
    def prior_chance(self) -> Floats:
        """Prior probability of every cell."""
        return self.predict(self.prior.weights)

    @cached_property
    def index(self) -> tuple[npt.NDArray[np.intp], ...]:
        """Each row's cell within each table."""
        return tuple(self.prior.index(table.attributes) for table in self.tables)

    @cached_property
    def _incidence(self) -> tuple[sparse.csr_array, sparse.csr_array]:
        rows, tables = self.prior.size, len(self.tables)
        cells = np.stack([index + start for index, start in zip(self.index, self.starts[:-1], strict=True)], axis=1)
        shape = (rows, int(self.starts[-1]))
        pointers = np.arange(0, rows * tables + 1, tables)
        by_row = sparse.csr_array((np.ones(rows * tables), cells.ravel(), pointers), shape=shape)
        return by_row, sparse.csr_array(by_row.T)

    def predict(self, weights: Floats) -> Floats:
        """Return the probability of every cell, shape ``(cells,)``."""
        return np.asarray(self._incidence[1] @ weights)

    def spread(self, multipliers: Floats) -> Floats:
        """Return the sum of the multipliers of each row's cells, shape ``(rows,)``: the transpose of `predict`."""
        return np.asarray(self._incidence[0] @ multipliers)

    def covariance(self, weights: Floats) -> Floats:
        """Return the covariance of the cells' indicators under a distribution, shape ``(cells, cells)``."""
        mean = self.predict(weights)
        second = np.diag(mean)
        for a, b in combinations(range(len(self.tables)), 2):
            joint = np.bincount(
                self.index[a] * self.sizes[b] + self.index[b], weights, self.sizes[a] * self.sizes[b]
            ).reshape(self.sizes[a], self.sizes[b])
            rows, columns = (slice(self.starts[t], self.starts[t + 1]) for t in (a, b))
            second[rows, columns], second[columns, rows] = joint, joint.T
        return second - np.outer(mean, mean)

    def per_cell(self, values: Sequence[float]) -> Floats:
        """Repeat one number a table over the table's cells."""
        return np.repeat(np.asarray(values, dtype=np.float64), self.sizes)


def measure(prior: Prior, release: Release) -> Measurements:
    """Set a release against a prior.

    Parameters
    ----------
    prior
        The prior.
    release
        The released tables; each is over attributes of the prior, with the same levels.

    Returns
    -------
    Measurements
        All of the release's tables.

    Raises
    ------
    InputError
        If a table names an attribute that the prior lacks, or answers for levels outside its domain.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> measure(Prior.full(release.domain), release).values.shape
    (40,)
    """
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
    return Measurements(prior, release.tables, estimated_size(release))


def estimated_size(release: Release) -> float:
    """Return the number of records: public, or the best linear unbiased estimate from what was released.

    Under add-remove the noisy total and the sum of every noisy table are independent unbiased estimates; they are
    weighed by the inverse of their variances (Gauss-Markov). The result may be 0 or negative.
    """
    if not isinstance(release.n, NoisyTotal):
        return float(release.n)
    values = [release.n.value, *(float(table.counts.sum()) for table in release.tables)]
    variances = [release.n.noise.variance, *(t.counts.size * t.noise.variance for t in release.tables)]
    precisions = 1.0 / np.maximum(variances, 1e-300)
    return float(np.average(values, weights=precisions))
