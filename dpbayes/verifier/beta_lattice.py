r"""Weighted sums of Beta densities whose parameters lie on a lattice, fast and to the last digits.

Cell (e, k) is Beta(a + k, b - e - k): along a row one unit at a time moves from the second parameter to the first, and
from row to row the second loses one. Relative to the density of the corner cell, that of cell (e, k) at x is

.. math:: \frac{\Gamma(T - e)}{\Gamma(T)} \frac{\Gamma(a)}{\Gamma(a + k)} \frac{\Gamma(b)}{\Gamma(b - e - k)}
          \Big(\frac{x}{1 - x}\Big)^k (1 - x)^{-e}, \qquad T = a + b.

The gamma ratios are products of as many factors as there are steps, so that nothing cancels however large the
parameters are; the corner's density comes from the saddle-point form (Loader 2000); and what depends on x splits into a
factor for the row and one for the column, so that many points near a reference point cost one matrix product.

References
----------
Loader, C. (2000). Fast and accurate computation of binomial probabilities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

__all__ = ["BetaLattice", "log_beta_density"]

type FloatArray = npt.NDArray[np.float64]

# Points share a reference while the factors of rows and columns stay within exp(+-150).
_REACH = 300.0
_LOG_ODDS = (-690.0, 36.0)


@dataclass(frozen=True, eq=False)
class BetaLattice:
    """Weights on a lattice of Beta densities.

    Parameters
    ----------
    weights
        Shape (rows, columns), non-negative. A cell whose second parameter would not be positive holds 0.
    first
        First parameter of column 0, positive; column k has first + k.
    total
        Sum of the two parameters in row 0; row e has total - e.

    Examples
    --------
    >>> lattice = BetaLattice(np.array([[0.5, 0.5]]), 1.0, 3.0)  # an even mixture of Beta(1, 2) and Beta(2, 1)
    >>> lattice.density(np.array([0.2, 0.9])).round(12)
    array([1., 1.])
    """

    weights: FloatArray
    first: float
    total: float
    _references: dict[int, tuple[float, float, FloatArray]] = field(default_factory=dict, repr=False)

    @cached_property
    def columns(self) -> FloatArray:
        """First parameter of each column."""
        return self.first + np.arange(self.weights.shape[1], dtype=np.float64)

    @cached_property
    def rows(self) -> FloatArray:
        """Sum of the parameters of each row."""
        return self.total - np.arange(self.weights.shape[0], dtype=np.float64)

    @cached_property
    def _log_relative(self) -> FloatArray:
        """Log of weight times density relative to the corner's, but for what depends on the point."""
        n_rows, n_columns = self.weights.shape
        by_column = -_log_products(self.first, n_columns)
        # Cells with a second parameter of 0 or less hold no weight: any finite factor will do there.
        by_row = -np.concatenate([[0.0], np.cumsum(np.log(np.maximum(self.rows[1:], 1e-300)))])
        steps = np.maximum(self.total - self.first - np.arange(1.0, n_rows + n_columns - 1), 1e-300)
        by_second = np.concatenate([[0.0], np.cumsum(np.log(steps))])
        index = np.arange(n_rows)[:, None] + np.arange(n_columns)[None, :]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.weights) + by_row[:, None] + by_column[None, :] + by_second[index])

    def density(self, points: FloatArray) -> FloatArray:
        """Return the weighted sum of densities at points strictly between 0 and 1, shape (points,)."""
        out = np.empty(points.size)
        groups = self._groups(points)
        for group in np.unique(groups):
            inside = groups == group
            common, by_column, by_row, relative = self._factors(points[inside], int(group))
            with np.errstate(over="ignore", under="ignore"):
                out[inside] = common * np.einsum("ne,ne->n", by_column @ relative.T, by_row)
        return out

    def slope(self, x: float) -> float:
        """Return the derivative of the logarithm of the sum at a point in (0, 1); 0 if it is rounding."""
        point = np.array([x])
        _, by_column, by_row, relative = self._factors(point, int(self._groups(point)[0]))
        parts = relative * by_column * by_row.T
        whole = float(parts.sum())
        first = float(parts.sum(axis=0) @ (self.columns - 1)) / whole
        both = float(parts.sum(axis=1) @ (self.rows - 2)) / whole
        left, right = first / x, (both - first) / (1 - x)
        return 0.0 if abs(left - right) <= 1e-11 * (abs(left) + abs(right)) else left - right

    def _groups(self, points: FloatArray) -> npt.NDArray[np.int64]:
        """Return the number of the reference point that serves each point."""
        return np.floor(np.clip(logit(points), *_LOG_ODDS) * sum(self.weights.shape) / _REACH).astype(np.int64)

    def _reference(self, group: int) -> tuple[float, float, FloatArray]:
        """Return a reference point, the log of its largest cell beside the corner, and all cells beside that."""
        if group not in self._references:
            x = float(expit(np.clip((group + 0.5) * _REACH / sum(self.weights.shape), *_LOG_ODDS)))
            log_x, log_rest = math.log(x), math.log1p(-x)
            n_rows, n_columns = self.weights.shape
            logs = self._log_relative + np.arange(n_columns) * (log_x - log_rest)
            logs -= (np.arange(n_rows) * log_rest)[:, None]
            # Without any weight (a mixture of one component takes no steps) the sum is 0.
            top = max(float(logs.max()), -1e300)
            if len(self._references) >= 8:
                self._references.clear()
            self._references[group] = x, top, np.exp(logs - top)
        return self._references[group]

    def _factors(self, points: FloatArray, group: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return what multiplies the relative cells at each point: a common factor, one a column and one a row."""
        x, top, relative = self._reference(group)
        rest = _log_ratio(1.0 - points, 1.0 - x, x - points)
        odds = _log_ratio(points, x, points - x) - rest
        row, column = (size // 2 for size in relative.shape)
        corner = log_beta_density(self.first, self.total - self.first, points)
        common = np.exp(corner + top + column * odds - row * rest)
        by_column = np.exp(odds[:, None] * np.arange(-column, relative.shape[1] - column))
        by_row = np.exp(rest[:, None] * np.arange(row, row - relative.shape[0], -1))
        return common, by_column, by_row, relative


def log_beta_density(first: float, second: float, x: npt.ArrayLike) -> FloatArray:
    """Return the log-density of Beta(first, second) at points in (0, 1), accurate for parameters of any size.

    Examples
    --------
    >>> log_beta_density(2.0, 1.0, 0.25).round(12) == np.log(0.5).round(12)
    np.True_
    """
    x = np.asarray(x, dtype=np.float64)
    total = first + second
    deviance = _deviance(first, total * x) + _deviance(second, total * (1.0 - x))
    stirling = _stirling_error(total) - _stirling_error(first) - _stirling_error(second)
    scale = 0.5 * (math.log(first) + math.log(second) - math.log(2 * math.pi * total))
    return np.asarray(scale + stirling - deviance - np.log(x) - np.log1p(-x))


# 1 / 3, 1 / 5, ...: with ratios below a tenth the next term is below 1e-18.
_SERIES = tuple(1.0 / (2 * k + 1) for k in range(9, 0, -1))


def _deviance(value: float, expected: FloatArray) -> FloatArray:
    """Return value log(value / expected) + expected - value, without cancellation (Loader's bd0)."""
    gap = value - expected
    ratio = gap / (value + expected)
    square = ratio * ratio
    series = np.polyval(_SERIES, square) * square
    with np.errstate(divide="ignore", over="ignore"):
        far = value * (math.log(value) - np.log(expected)) - gap
    return np.asarray(np.where(np.abs(ratio) < 0.1, gap * ratio + 2 * value * ratio * series, far))


def _stirling_error(value: float) -> float:
    """Return log Gamma(value) minus Stirling's formula for it."""
    if value < 16.0:
        return math.lgamma(value) - (value - 0.5) * math.log(value) + value - 0.5 * math.log(2 * math.pi)
    square = value * value
    return (1 / 12 - (1 / 360 - (1 / 1260 - (1 / 1680 - 1 / 1188 / square) / square) / square) / square) / value


def _log_products(start: float, size: int) -> FloatArray:
    """Return log Gamma(start + k) / Gamma(start) for k below `size`."""
    return np.concatenate([[0.0], np.cumsum(np.log(start + np.arange(size - 1.0)))])


def _log_ratio(values: FloatArray, reference: float, gap: FloatArray) -> FloatArray:
    """Return log(values / reference), from their difference where they are close."""
    relative = gap / reference
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(np.abs(relative) < 0.5, np.log1p(relative), np.log(values / reference)))
