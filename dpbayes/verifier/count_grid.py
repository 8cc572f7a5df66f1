"""The values that one released count can take, as far as they can be told apart, and their probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes.privacy.noise import Laplace, TwoSidedGeometric

__all__ = ["CountGrid", "count_grid", "no_count"]

type FloatArray = npt.NDArray[np.float64]

# Gauss-Legendre nodes between two whole numbers, for Laplace noise.
_NODES = 2


@dataclass(frozen=True, eq=False)
class CountGrid:
    """Values of a released count; values beyond [0, M] tell as much as the nearest end and are taken together.

    Parameters
    ----------
    probability
        Shape (M + 1, values): the chance of each value (columns) at each true count (rows). Rows sum to 1.
    kernel
        Shape (values, M + 1): likelihood of each true count (columns) given a value (rows), up to a factor a row.
    """

    probability: FloatArray
    kernel: FloatArray


def count_grid(noise: TwoSidedGeometric | Laplace, n_partitions: int) -> CountGrid:
    """Return the values of a count between 0 and M under the noise law.

    Two-sided geometric noise makes M + 1 values: the sums over them are exact. Laplace noise makes a continuum: sums
    over two Gauss-Legendre nodes between neighbouring whole numbers, whose chances add up to that cell's exactly, are
    integrals of what is smooth inside a cell.

    Parameters
    ----------
    noise
        The law.
    n_partitions
        M.

    Returns
    -------
    CountGrid
        M + 1 values, or 2 M + 2.

    Examples
    --------
    >>> count_grid(TwoSidedGeometric(2.0), 5).probability.shape, count_grid(Laplace(2.0), 5).probability.shape
    ((6, 6), (6, 12))
    """
    counts = np.arange(n_partitions + 1, dtype=np.float64)
    if isinstance(noise, TwoSidedGeometric):
        values = counts
        probability = np.exp(noise.log_prob(values[None, :] - counts[:, None]))
        probability[:, 0], probability[:, -1] = noise.cdf(-counts), noise.sf(n_partitions - 1 - counts)
    else:
        values, probability = _between_whole_numbers(noise, counts)
    kernel = np.exp(-np.abs(values[:, None] - counts[None, :]) / noise.scale)
    return CountGrid(probability, kernel)


def _between_whole_numbers(noise: Laplace, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the nodes of Laplace noise, both ends included, and their chances at each true count."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    inner = (counts[:-1, None] + 0.5 * (1 + nodes)).ravel()
    gaps = counts[None, :] - counts[:, None]
    below, above = np.asarray(noise.cdf(gaps)), np.asarray(noise.sf(gaps))
    # Each cell's chance is a difference of the smaller tails, so that it keeps its digits.
    cells = np.where(gaps[:, :-1] >= 0, above[:, :-1] - above[:, 1:], below[:, 1:] - below[:, :-1])
    density = noise.log_prob(inner[None, :] - counts[:, None]).reshape(counts.size, -1, _NODES)
    parts = weights * np.exp(density - density.max(axis=2, keepdims=True))
    inside = cells[:, :, None] * parts / parts.sum(axis=2, keepdims=True)
    values = np.concatenate([[0.0], inner, [counts[-1]]])
    return values, np.column_stack([below[:, 0], inside.reshape(counts.size, -1), above[:, -1]])


def no_count(n_partitions: int) -> CountGrid:
    """Return the grid of a count that is not released: one value, which tells nothing."""
    return CountGrid(np.ones((n_partitions + 1, 1)), np.ones((1, n_partitions + 1)))
