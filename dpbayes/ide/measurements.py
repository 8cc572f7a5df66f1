"""Released tables as linear measurements of a distribution on a prior's support."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.ide.cells import CellMap
from dpbayes.ide.prior import Prior
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release, check_of_records

__all__ = ["Measurements", "estimated_size", "measure"]

type Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Measurements:
    """Released counts with the map from a distribution on the support to the counts it predicts.

    Parameters
    ----------
    prior
        The support and its prior weights.
    cells
        The map to the cells of the released tables.
    tables
        The released tables, in the map's order.
    values
        Released counts of all cells, shape ``(cells,)``.
    n
        Number of records, a real number where it was released with noise.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables()[:1], epsilon=1.0, rng=np.random.default_rng(1))
    >>> measurements = measure(Prior.full(release.domain), release)
    >>> measurements.n, measurements.prior_chance.tolist()
    (10000.0, [0.25, 0.25, 0.25, 0.25])
    """

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

    def rescaled(self) -> Measurements:
        """Return the same measurements as probabilities: values divided by the number of records, n = 1."""
        return replace(self, values=self.values / self.n, n=1.0)


def measure(prior: Prior, release: Release, *, cells: CellMap | None = None) -> Measurements:
    """Set a release against a prior.

    Parameters
    ----------
    prior
        The prior.
    release
        The released tables; each is over attributes of the prior, with the same levels.
    cells
        The map of another release with the same tables over the same support, to save building it again.

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
    check_of_records(release, "an estimate")
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
    """Return the number of records: public, or the best linear unbiased estimate from what was released.

    Under add-remove the noisy total and the sum of every noisy table are independent unbiased estimates; they are
    weighed by the inverse of their variances (Gauss-Markov). The result may be 0 or negative.

    Examples
    --------
    A noisy total of 101, and a table of two cells, twice as uncertain, that sums to 110:

    >>> from dpbayes.data import Domain
    >>> from dpbayes.privacy import Laplace
    >>> domain, law = Domain.from_levels({"x": (0, 1)}), Laplace(2.0)
    >>> table = NoisyTable(domain, np.array([60.0, 50.0]), law, 1.0, 0.5)
    >>> estimated_size(Release(domain, (table,), "add-remove", NoisyTotal(101.0, law, 1.0, 0.5), "simulation"))
    104.0
    """
    if not isinstance(release.n, NoisyTotal):
        return float(release.n)
    values = [release.n.value, *(float(table.counts.sum()) for table in release.tables)]
    variances = [release.n.noise.variance, *(t.counts.size * t.noise.variance for t in release.tables)]
    precisions = 1.0 / np.maximum(variances, 1e-300)
    return float(np.average(values, weights=precisions))
