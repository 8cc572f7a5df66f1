r"""Finite mixtures of Beta distributions whose components lie on a lattice, to the last digits.

Component (e, k) is Beta(first + k, total - e - first - k). With a = first, T = total and b = T - a, its density at x
relative to that of the corner is

.. math:: \frac{\Gamma(T - e)}{\Gamma(T)} \frac{\Gamma(a)}{\Gamma(a + k)} \frac{\Gamma(b)}{\Gamma(b - e - k)}
          \Big(\frac{x}{1 - x}\Big)^k (1 - x)^{-e}:

products of as many factors as there are steps, so that no digits cancel. The corner's density has the saddle-point
form (Loader 2000). Distribution functions of neighbours differ by one term, :math:`I_x(a, b) = I_x(a + 1, b - 1) +
\frac{\Gamma(a + b)}{\Gamma(a + 1)\Gamma(b)} x^a (1 - x)^{b - 1}` (DLMF 8.17.19 to 8.17.21), so the mixture's is one
incomplete beta function plus a sum over a lattice of densities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, expit, logit

from dpbayes._arguments import strictly_between
from dpbayes._arrays import Floats
from dpbayes.errors import InputError

_CHUNK = 1 << 21


@dataclass(frozen=True, eq=False)
class BetaLattice:
    """Weights on a lattice of Beta densities."""

    weights: Floats
    first: float
    total: float

    @cached_property
    def columns(self) -> Floats:
        """First parameter of each column."""
        return self.first + np.arange(self.weights.shape[1], dtype=np.float64)

    @cached_property
    def rows(self) -> Floats:
        """Sum of the parameters of each row."""
        return self.total - np.arange(self.weights.shape[0], dtype=np.float64)

    @cached_property
    def _log_relative(self) -> Floats:
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

    def _logs(self, points: Floats) -> Floats:
        """Return the log of each weighted density beside that of the corner, shape (points, rows, columns)."""
        odds, rest = logit(points), np.log1p(-points)
        n_rows, n_columns = self.weights.shape
        by_row, by_column = rest[:, None] * np.arange(n_rows), odds[:, None] * np.arange(n_columns)
        return self._log_relative - by_row[:, :, None] + by_column[:, None, :]

    def density(self, points: Floats) -> Floats:
        """Return the weighted sum of densities at points strictly between 0 and 1, shape (points,)."""
        size = max(1, _CHUNK // self.weights.size)
        out = np.empty(points.size)
        for i in range(0, points.size, size):
            some = points[i : i + size]
            corner = log_beta_density(self.first, self.total - self.first, some)
            out[i : i + size] = np.exp(self._logs(some) + corner[:, None, None]).sum(axis=(1, 2))
        return out

    def slope(self, x: float) -> float:
        """Return the derivative of the logarithm of the sum at a point in (0, 1); 0 if it is rounding."""
        logs = self._logs(np.array([x]))[0]
        parts = np.exp(logs - max(float(logs.max()), -1e300))
        whole = float(parts.sum())
        first = float(parts.sum(axis=0) @ (self.columns - 1)) / whole
        both = float(parts.sum(axis=1) @ (self.rows - 2)) / whole
        left, right = first / x, (both - first) / (1 - x)
        return 0.0 if abs(left - right) <= 1e-11 * (abs(left) + abs(right)) else left - right


def log_beta_density(first: float, second: float, x: npt.ArrayLike) -> Floats:
    """Return the log-density of Beta(first, second) at points in (0, 1), accurate for parameters of any size."""
    x = np.asarray(x, dtype=np.float64)
    total = first + second
    deviance = _deviance(first, total * x) + _deviance(second, total * (1.0 - x))
    stirling = _stirling_error(total) - _stirling_error(first) - _stirling_error(second)
    scale = 0.5 * (math.log(first) + math.log(second) - math.log(2 * math.pi * total))
    return np.asarray(scale + stirling - deviance - np.log(x) - np.log1p(-x))


# 1 / 3, 1 / 5, ...: with ratios below a tenth the next term is below 1e-18.
_SERIES = tuple(1.0 / (2 * k + 1) for k in range(9, 0, -1))


def _deviance(value: float, expected: Floats) -> Floats:
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


def _log_products(start: float, size: int) -> Floats:
    """Return log Gamma(start + k) / Gamma(start) for k below `size`."""
    return np.concatenate([[0.0], np.cumsum(np.log(start + np.arange(size - 1.0)))])


# Log-odds of the least and the greatest number strictly between 0 and 1 that a quantile takes.
_LOGIT_RANGE = (-708.0, 36.7)


@dataclass(frozen=True, eq=False)
class BetaMixture:
    """A mixture of Beta distributions on a lattice; `weights` sum to 1, parameters as in `BetaLattice`."""

    weights: Floats
    first: float
    total: float

    @cached_property
    def _density(self) -> BetaLattice:
        return BetaLattice(self.weights, self.first, self.total)

    @cached_property
    def _means(self) -> Floats:
        return self._density.columns[None, :] / self._density.rows[:, None]

    @cached_property
    def mean(self) -> float:
        """The mean."""
        return float((self.weights * self._means).sum())

    @cached_property
    def sd(self) -> float:
        """The standard deviation."""
        # Variance between the components plus variance within them: no difference of near-equal moments.
        within = self._means * (1 - self._means) / (self._density.rows[:, None] + 1)
        spread = (self._means - self.mean) ** 2 + within
        return math.sqrt(float((self.weights * np.where(self.weights > 0, spread, 0.0)).sum()))

    @cached_property
    def _steps(self) -> tuple[BetaLattice, float, float, float]:
        """The steps from the component farthest right, its parameters, and the whole weight."""
        n_rows, n_columns = self.weights.shape
        rows = np.arange(n_rows)
        # The last column of each row whose second parameter is positive: first the edge of the window, then, one less
        # from row to row, the edge of the lattice.
        last_column = math.ceil(self.total - self.first) - 1
        last = np.minimum(n_columns - 1, last_column - rows)
        start = int(np.flatnonzero(last == last[0])[-1])
        passed = np.cumsum(self.weights, axis=1)
        row = passed[:, -1]
        # Along a row, down to its last column; what has no column there has no weight either.
        totals = np.maximum(self._density.rows, 1e-300)[:, None]
        terms = np.where(np.arange(n_columns)[None, :] < last[:, None], passed / totals, 0.0)
        # From the last column of each row to that of row `start`: by the second parameter above it, by the first below.
        a, total = self.first + last, self._density.rows
        above, below = rows[:start], rows[start : max(int((last >= 0).sum()) - 1, start)]
        pairs = np.maximum(total * (total - 1), 1e-300)
        before, behind = np.cumsum(row), np.cumsum(row[::-1])[::-1]
        terms[above, last[above]] += (before * a / pairs)[above]
        terms[below, last[below] - 1] += behind[below + 1] * ((total - a) / pairs)[below]
        ends = float(a[start]), float(total[start] - a[start])
        return BetaLattice(terms, self.first + 1.0, self.total + 1.0), *ends, float(row.sum())

    def cdf(self, x: npt.ArrayLike) -> Floats:
        """Return P(X <= x) for an array of any shape; 0 below 0, 1 above 1, NaN at NaN."""
        points = np.asarray(x, dtype=np.float64)
        steps, first, second, whole = self._steps
        inside = (points > 0) & (points < 1)
        result = np.where(points >= 1, 1.0, np.where(np.isnan(points), np.nan, 0.0))
        sums = steps.density(points[inside]) + whole * betainc(first, second, points[inside])
        result[inside] = np.clip(sums, 0.0, 1.0)
        return result

    def pdf(self, x: npt.ArrayLike) -> Floats:
        """Return the density for an array of any shape: 0 outside [0, 1], infinite at an end where it is unbounded."""
        points = np.asarray(x, dtype=np.float64)
        inside = (points > 0) & (points < 1)
        result = np.where(np.isnan(points), np.nan, 0.0)
        result[inside] = self._density.density(points[inside])
        if np.any(points == 0):
            result[points == 0] = self._at_end(self._density.columns[None, :], self._seconds)
        if np.any(points == 1):
            result[points == 1] = self._at_end(self._seconds, self._density.columns[None, :])
        return result

    @cached_property
    def _seconds(self) -> Floats:
        return self._density.rows[:, None] - self._density.columns[None, :]

    def _at_end(self, vanishing: Floats, other: Floats) -> float:
        """Return the density where a variable with that parameter vanishes: of Beta(1, b) it is b at 0."""
        held = self.weights > 0
        if np.any(held & (vanishing < 1)):
            return math.inf
        return float((self.weights * np.where(held & (vanishing == 1), other, 0.0)).sum())

    def quantile(self, q: npt.ArrayLike) -> Floats:
        """Return the quantiles for an array of probabilities in [0, 1]."""
        probabilities = np.asarray(q, dtype=np.float64)
        if not np.all((probabilities >= 0) & (probabilities <= 1)):
            raise InputError(f"a quantile's probability must lie in [0, 1], got {probabilities!r}")
        result = np.where(probabilities > 0.5, 1.0, 0.0)
        inner = (probabilities > 0) & (probabilities < 1)
        if inner.any():
            result[inner] = self._inner_quantiles(probabilities[inner])
        return result

    def _inner_quantiles(self, q: Floats) -> Floats:
        low, high = np.full(q.shape, _LOGIT_RANGE[0]), np.full(q.shape, _LOGIT_RANGE[1])
        # Start at the Beta distribution with the same mean and standard deviation.
        size = max(self.mean * (1 - self.mean) / max(self.sd**2, 1e-300) - 1, 1e-6)
        with np.errstate(divide="ignore"):
            z = np.clip(logit(betaincinv(self.mean * size, (1 - self.mean) * size, q)), *_LOGIT_RANGE)
        z = np.where(np.isnan(z), 0.0, z)
        moving = np.ones(q.shape, dtype=bool)
        for _ in range(100):
            at, x = z[moving], expit(z[moving])
            gap = self.cdf(x) - q[moving]
            high[moving] = np.where(gap >= 0, at, high[moving])
            low[moving] = np.where(gap <= 0, at, low[moving])
            # Next to an unbounded end the slope may overflow: bisection then.
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                proposal = at - gap / (self.pdf(x) * x * expit(-at))
            ends = low[moving], high[moving]
            inside = (proposal > ends[0]) & (proposal < ends[1])
            proposal = np.where(inside, proposal, 0.5 * (ends[0] + ends[1]))
            # A gap of a few roundings says nothing more.
            settled = np.abs(gap) <= 4e-16 * np.minimum(1.0, 8 * q[moving])
            proposal = np.where(settled, at, proposal)
            z[moving] = proposal
            done = np.abs(proposal - at) <= 1e-12 * np.maximum(1.0, np.abs(at))
            moving[np.flatnonzero(moving)[done]] = False
            if not moving.any():
                break
        # Where the log-odds were driven to their limit, the probability is only reached beyond it.
        at_zero, at_one = z - _LOGIT_RANGE[0] < 1e-6, _LOGIT_RANGE[1] - z < 1e-6
        return np.where(at_zero, 0.0, np.where(at_one, 1.0, expit(z)))

    @cached_property
    def mode(self) -> float:
        """Where the density is highest; of several equal maxima, the middle of the outermost."""
        low, high = self.quantile([5e-4, 1 - 5e-4])
        inner = np.unique(np.linspace(low, high, 65))
        grid = np.concatenate([[0.0], inner[(inner > 0) & (inner < 1)], [1.0]])
        density = self.pdf(grid)
        unbounded = ~np.isfinite(density)
        padded = np.concatenate([[-np.inf], np.where(unbounded, np.inf, density), [-np.inf]])
        # Rounding must not break a tie.
        at = padded[1:-1] * (1 + 1e-11)
        local = (at >= padded[:-2]) & (at >= padded[2:]) & ~unbounded
        if not local.any():
            return float(self.quantile(0.5) >= 0.5)
        highest = np.flatnonzero(local & (density >= density[local].max() * (1 - 1e-9)))
        # Where several are equally high (a flat or a mirrored density), the middle of the outermost.
        first = self._refined(grid, int(highest[0]))
        return first if highest.size == 1 else 0.5 * (first + self._refined(grid, int(highest[-1])))

    def _refined(self, grid: Floats, best: int) -> float:
        """Return the zero of the log-density's slope next to a grid point, or the point where there is none."""
        if best in (0, grid.size - 1):
            # A bounded end; a maximum just inside it shows in the slope.
            inside = max(1e-12, grid[1] * 1e-6) if best == 0 else 1 - 1e-12
            if (self._density.slope(inside) <= 0) == (best == 0):
                return float(grid[best])
        left = max(grid[max(best - 1, 0)], 1e-300 if best > 1 else 1e-12)
        right = min(grid[min(best + 1, grid.size - 1)], 1 - 1e-12)
        if self._density.slope(left) <= 0 or self._density.slope(right) >= 0:
            return float(grid[best])
        return float(brentq(self._density.slope, left, right, xtol=1e-14, rtol=1e-14))

    def interval(self, prob: float = 0.95) -> tuple[float, float]:
        """Return the equal-tailed interval that holds `prob`."""
        low, high = self.quantile([(1 - check_prob(prob)) / 2, (1 + prob) / 2])
        return float(low), float(high)


def check_prob(prob: float) -> float:
    """Return an interval's probability if it lies strictly between 0 and 1."""
    return strictly_between(prob, "prob", 0, 1, remedy="0.95 is usual")
