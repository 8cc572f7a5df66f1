"""Shares of levels as the released tables have them: where the sampler starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes.inference.constant_map import constant_map

if TYPE_CHECKING:
    from dpbayes.privacy.release import Release

__all__ = ["released_shares"]

# Noise may carry a share out of its range, and nothing starts at its end.
_LEAST = 0.02


def released_shares(release: Release, released: Any) -> Any:
    """Return the share of the second level of every attribute of two levels, by the released counts.

    Parameters
    ----------
    release
        What was released; says which counts belong to which table.
    released
        The counts, table after table (data), so that new data move the shares along.

    Returns
    -------
    pytensor.tensor.TensorVariable
        Means over the tables that hold the attribute, between .02 and .98, shape ``(attributes of two levels,)``; one
        half where no table does.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> counts = np.concatenate([table.counts.ravel() for table in release.tables])
    >>> released_shares(release, counts).eval().round(2)
    array([0.94, 0.95, 0.8 , 0.52, 0.67])
    """
    rows = {attribute.name: row for row, attribute in enumerate(a for a in release.domain if a.size == 2)}
    columns = [np.zeros((len(rows), 0))]
    for table in release.tables:
        levels = np.indices(table.counts.shape).reshape(table.counts.ndim, -1)
        block = np.zeros((len(rows), table.counts.size))
        for name, level in zip(table.attributes, levels, strict=True):
            if name in rows:
                block[rows[name]] = level
        columns.append(block)
    sums = np.hstack(columns)
    tables = np.array([sum(name in table.attributes for table in release.tables) for name in rows])
    n = max(float(release.n if isinstance(release.n, int) else release.n.value), 1.0)
    shares = constant_map(sums / (n * np.maximum(tables, 1))[:, None], released) + 0.5 * (tables == 0)
    return shares.clip(_LEAST, 1.0 - _LEAST)
