"""Weights on the lattice of counts: dropping what weighs nothing, and exchanging two of the counts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["mirrored", "trim"]

type FloatArray = npt.NDArray[np.float64]

# Rows and columns that together weigh less than this are dropped, and count as truncation error.
_TRIM = 1e-15


def mirrored(weights: FloatArray, low: tuple[int, int], n_partitions: int) -> tuple[FloatArray, tuple[int, int]]:
    """Return the weights with rows by the failed and columns by the not-beyond count."""
    rows, columns = weights.shape
    size = rows + columns - 1
    swapped = np.zeros((rows, size))
    # S0 = M - Se - S1 rises to the left of each row; rows shift by one.
    for row in range(rows):
        start = rows - 1 - row
        swapped[row, start : start + columns] = weights[row, ::-1]
    first = n_partitions - low[1] - (rows - 1) - low[0] - (columns - 1)
    cut = max(0, -first)
    return swapped[:, cut:], (first + cut, low[1])


def trim(weights: FloatArray, low: tuple[int, int]) -> tuple[FloatArray, tuple[int, int], float]:
    """Drop outer rows and columns that weigh next to nothing, and return what was dropped."""
    rows, columns = weights.sum(axis=1), weights.sum(axis=0)
    row_ends, column_ends = _core(rows), _core(columns)
    kept = weights[row_ends[0] : row_ends[1], column_ends[0] : column_ends[1]]
    dropped = float(
        rows[: row_ends[0]].sum()
        + rows[row_ends[1] :].sum()
        + columns[: column_ends[0]].sum()
        + columns[column_ends[1] :].sum()
    )
    if dropped:
        kept = kept / kept.sum()
    kept = np.ascontiguousarray(kept)
    kept.setflags(write=False)
    return kept, (low[0] + column_ends[0], low[1] + row_ends[0]), dropped


def _core(margin: FloatArray) -> tuple[int, int]:
    """Return the ends of the range outside which each tail of a margin weighs at most the trimming share."""
    below, above = np.cumsum(margin), np.cumsum(margin[::-1])
    return int(np.searchsorted(below, _TRIM)), margin.size - int(np.searchsorted(above, _TRIM))
