"""The map from a distribution on a prior's support to the cells of several tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpbayes.ide.prior import Prior

__all__ = ["CellMap"]

type Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CellMap:
    """Which cell of each table every row of a support falls into.

    Parameters
    ----------
    support
        The prior whose rows are mapped.
    attribute_sets
        Attributes of each table. Cells of all tables are flattened in C order and joined.

    Notes
    -----
    Groups that start from one prior share its map, and with it what is costly and depends on the prior alone: the
    cells' chances and their covariance are computed once.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> prior = Prior.full(Domain.from_levels({"x": (0, 1), "y": (0, 1)}), [[1, 2], [3, 4]])
    >>> CellMap(prior, (("x",), ("y",))).predict(prior.weights).round(9).tolist()
    [0.3, 0.7, 0.4, 0.6]
    """

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

    def per_cell(self, values: Sequence[float]) -> Floats:
        """Repeat one number a table over the table's cells."""
        return np.repeat(np.asarray(values, dtype=np.float64), self.sizes)
