r"""Finite mixtures of Beta distributions whose components lie on a lattice.

Component (e, k) is Beta(first + k, total - e - first - k): along a row one unit at a time moves from the second to the
first parameter, and from row to row the second loses one. The distribution functions of neighbours differ by one term,

.. math:: I_x(a, b) = I_x(a + 1, b - 1) + \frac{\Gamma(a + b)}{\Gamma(a + 1)\Gamma(b)} x^a (1 - x)^{b - 1}

(DLMF 8.17.19 to 8.17.21), so the mixture's is one incomplete beta function, of the component that lies farthest right,
plus a sum of positive terms that is again a sum over a lattice of densities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, expit, logit

from dpbayes._arguments import number, shown
from dpbayes.errors import InputError
from dpbayes.verifier.beta_lattice import BetaLattice

__all__ = ["BetaMixture"]

type FloatArray = npt.NDArray[np.float64]

_CHUNK = 1 << 21
# Log-odds of the least and the greatest number strictly between 0 and 1 that a quantile takes.
_LOGIT_RANGE = (-708.0, 36.7)


@dataclass(frozen=True, eq=False)
class BetaMixture:
    """A mixture of Beta distributions on a lattice.

    Parameters
    ----------
    weights
        Shape (rows, columns), non-negative, summing to 1. A cell whose second parameter would not be positive holds 0.
    first
        First parameter of column 0; column k has first + k. Positive.
    total
        Sum of the two parameters in row 0; row e has total - e. Above `first`.

    Examples
    --------
    >>> mixture = BetaMixture(np.array([[0.5, 0.5]]), 1.0, 3.0)
    >>> round(mixture.mean, 12), mixture.cdf(0.5).round(12).item()  # an even mixture of Beta(1, 2) and Beta(2, 1)
    (0.5, 0.5)
    """

    weights: FloatArray
    first: float
    total: float

    @cached_property
    def _density(self) -> BetaLattice:
        return BetaLattice(self.weights, self.first, self.total)

    @cached_property
    def _means(self) -> FloatArray:
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
        room = math.ceil(self.total - self.first) - 1
        last = np.minimum(n_columns - 1, room - rows)
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

    def cdf(self, x: npt.ArrayLike) -> FloatArray:
        """Return P(X <= x) for an array of any shape; 0 below 0, 1 above 1, NaN at NaN."""
        points = np.asarray(x, dtype=np.float64)
        steps, first, second, whole = self._steps

        def chunk(values: FloatArray) -> FloatArray:
            sums = steps.density(values) + whole * betainc(first, second, values)
            return np.asarray(np.clip(sums, 0.0, 1.0))

        inside = (points > 0) & (points < 1)
        result = np.where(points >= 1, 1.0, np.where(np.isnan(points), np.nan, 0.0))
        result[inside] = self._in_chunks(chunk, points[inside])
        return result

    def pdf(self, x: npt.ArrayLike) -> FloatArray:
        """Return the density for an array of any shape: 0 outside [0, 1], infinite at an end where it is unbounded."""
        points = np.asarray(x, dtype=np.float64)
        inside = (points > 0) & (points < 1)
        result = np.where(np.isnan(points), np.nan, 0.0)
        result[inside] = self._in_chunks(self._density.density, points[inside])
        if np.any(points == 0):
            result[points == 0] = self._at_end(self._density.columns[None, :], self._seconds)
        if np.any(points == 1):
            result[points == 1] = self._at_end(self._seconds, self._density.columns[None, :])
        return result

    @cached_property
    def _seconds(self) -> FloatArray:
        return self._density.rows[:, None] - self._density.columns[None, :]

    def _at_end(self, vanishing: FloatArray, other: FloatArray) -> float:
        """Return the density where a variable with that parameter vanishes: of Beta(1, b) it is b at 0."""
        held = self.weights > 0
        if np.any(held & (vanishing < 1)):
            return math.inf
        return float((self.weights * np.where(held & (vanishing == 1), other, 0.0)).sum())

    def quantile(self, q: npt.ArrayLike) -> FloatArray:
        """Return the quantiles for an array of probabilities in [0, 1].

        Safeguarded Newton steps on the log-odds, to about 1e-12 in them. A quantile nearer to 0 or 1 than double
        precision can tell is that end.
        """
        probabilities = np.asarray(q, dtype=np.float64)
        if not np.all((probabilities >= 0) & (probabilities <= 1)):
            raise InputError(f"a quantile's probability must lie in [0, 1], got {probabilities!r}")
        result = np.where(probabilities > 0.5, 1.0, 0.0)
        inner = (probabilities > 0) & (probabilities < 1)
        if inner.any():
            result[inner] = self._inner_quantiles(probabilities[inner])
        return result

    def _inner_quantiles(self, q: FloatArray) -> FloatArray:
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
        """Where the density is highest.

        Where a component's parameter is below 1 the density is unbounded at that end, however little weight sits there.
        Such an end is the mode only if there is no other local maximum and the median lies on its side. Where several
        maxima are equally high, the middle of the outermost.
        """
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

    def _refined(self, grid: FloatArray, best: int) -> float:
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

    def hdi(self, prob: float = 0.95) -> tuple[float, float]:
        """Return the shortest interval that holds `prob`: the highest-density interval of a unimodal density."""
        rest = 1 - check_prob(prob)
        grid = rest * np.linspace(0, 1, 17)
        ends = self.quantile(np.concatenate([grid, np.minimum(grid + prob, 1.0)]))
        widths = ends[17:] - ends[:17]
        best = int(widths.argmin())
        left, right = grid[max(best - 1, 0)], grid[min(best + 1, 16)]

        def imbalance(lower: float) -> float:
            low, high = self.pdf(self.quantile([lower, min(lower + prob, 1.0)]))
            return float(np.clip(low, 0, 1e300) - np.clip(high, 0, 1e300))

        # At the shortest interval both ends are equally dense, unless it starts or stops at an end of [0, 1].
        lower = float(grid[best])
        if imbalance(left) < 0 < imbalance(right):
            lower = float(brentq(imbalance, left, right, xtol=1e-14, rtol=1e-13))
        low, high = self.quantile([lower, min(lower + prob, 1.0)])
        return float(low), float(high)

    def _in_chunks(self, function: Callable[[FloatArray], FloatArray], values: FloatArray) -> FloatArray:
        """Apply a vectorized function to so many points at a time that the work arrays stay small."""
        size = max(1, _CHUNK // sum(self.weights.shape))
        parts = [function(values[i : i + size]) for i in range(0, values.size, size)]
        return np.concatenate(parts) if parts else np.zeros(0)


def check_prob(prob: float) -> float:
    """Return an interval's probability if it lies strictly between 0 and 1."""
    value = number(prob, "prob")
    if not 0 < value < 1:
        raise InputError(f"prob must lie strictly between 0 and 1, got {shown(prob)}; 0.95 is usual")
    return value
