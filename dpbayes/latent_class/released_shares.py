"""Shares of levels as the released tables have them: where the sampler starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes.inference.constant_map import constant_map

if TYPE_CHECKING:
    from dpbayes.privacy.noisy_table import NoisyTable
    from dpbayes.privacy.release import Release

__all__ = ["released_shares"]

# Noise may carry a share out of its range, and nothing starts at its end.
_LEAST = 0.02


def released_shares(release: Release, released: Any) -> dict[int, Any]:
    """Return the shares of the levels of every attribute, by the released counts.

    Parameters
    ----------
    release
        What was released; says which counts belong to which table.
    released
        The counts, table after table (data), so that new data move the shares along.

    Returns
    -------
    dict
        For each number L of levels that some attribute has, a graph of shape ``(attributes of L levels, L)``: means
        over the tables that hold the attribute, none below .02 before they are made to add up to one; equal shares
        where no table does.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> counts = np.concatenate([table.counts.ravel() for table in release.tables])
    >>> released_shares(release, counts)[2][:, 1].eval().round(2)
    array([0.94, 0.96, 0.8 , 0.52, 0.68])
    """
    n = max(float(release.n if isinstance(release.n, int) else release.n.value), 1.0)
    found = {}
    for size in sorted(set(release.domain.shape)):
        names = [attribute.name for attribute in release.domain if attribute.size == size]
        sums = np.hstack([_sums(table, names, size) for table in release.tables])
        tables = np.array([sum(name in table.attributes for table in release.tables) for name in names])
        means = sums / (n * np.maximum(tables, 1))[:, None, None]
        shares = constant_map(means.transpose(0, 2, 1).reshape(len(names) * size, -1), released)
        shares = shares.reshape((len(names), size)) + (tables == 0)[:, None] / size
        shares = shares.clip(_LEAST, 1.0)
        found[size] = shares / shares.sum(axis=1, keepdims=True)
    return found


def _sums(table: NoisyTable, names: list[str], size: int) -> np.ndarray:
    """Return which counts of a table belong to each level of each attribute, shape ``(names, counts, size)``."""
    block = np.zeros((len(names), table.counts.size, size))
    levels = np.indices(table.counts.shape).reshape(table.counts.ndim, -1)
    for name, own in zip(table.attributes, levels, strict=True):
        if name in names:
            block[names.index(name), np.arange(own.size), own] = 1.0
    return block
