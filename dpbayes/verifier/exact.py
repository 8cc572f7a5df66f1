r"""The exact posterior of a verification release, as a finite mixture (docs/verifier.md).

With :math:`p \sim` Dirichlet(:math:`\alpha`), counts :math:`S \mid p \sim` Multinomial(M, p) and released values
:math:`y_j = S_j + x_j` with independent noise of density f,

.. math:: P(S \mid y) \propto \prod_j h_j(S_j) \text{ on } \sum_j S_j = M, \qquad
          h_j(k) = \frac{\Gamma(\alpha_j + k)}{\Gamma(\alpha_j)\, k!}\, f(y_j - k).

Mixtures of Beta distributions on a lattice: component (e, k) is Beta(a + k, b - e - k), b = T - a, whose density at x
relative to the corner's is a product of as many factors as there are steps, so that no digits cancel,

.. math:: \frac{\Gamma(T - e)}{\Gamma(T)} \frac{\Gamma(a)}{\Gamma(a + k)} \frac{\Gamma(b)}{\Gamma(b - e - k)}
          \Big(\frac{x}{1 - x}\Big)^k (1 - x)^{-e}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv, expit, gammaln, logit

from dpbayes._arguments import Floats, Ints, number, one_of, ordered, positive_finite, strictly_between, whole_number
from dpbayes._html import html_table
from dpbayes._lazy import xr
from dpbayes.errors import InputError
from dpbayes.privacy.laws import NoiseLaw
from dpbayes.privacy.release import Release, check_release
from dpbayes.verifier.partition import MOST_TABULATED, OUTCOMES, check_n_partitions, is_count_table, question_table

DEFAULT_TOLERANCE = 1e-12
DEFAULT_MAX_TERMS = 4_000_000
_CHUNK = 1 << 21
# Log-odds of the least and the greatest number strictly between 0 and 1 that a quantile takes.
_LOGIT_RANGE = (-708.0, 36.7)


@dataclass(frozen=True, eq=False)
class BetaMixture:
    """Beta distributions on a lattice; a distribution itself where the weights sum to 1."""

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
        by_column, by_row = _log_products(self.columns[:-1]), _log_products(self.rows[1:])
        by_second = _log_products(self.total - self.first - np.arange(1.0, n_rows + n_columns - 1))
        index = np.add.outer(np.arange(n_rows), np.arange(n_columns))
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.weights) - by_row[:, None] - by_column[None, :] + by_second[index])

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
        left = float(parts.sum(axis=0) @ (self.columns - 1)) / whole / x
        right = float((parts * (self.rows[:, None] - self.columns - 1)).sum()) / whole / (1 - x)
        return 0.0 if abs(left - right) <= 1e-11 * (abs(left) + abs(right)) else left - right

    @cached_property
    def _means(self) -> Floats:
        return self.columns[None, :] / self.rows[:, None]

    @cached_property
    def mean(self) -> float:
        """The mean."""
        return float((self.weights * self._means).sum())

    @cached_property
    def variances(self) -> tuple[float, float]:
        """The variance between the components, and within them."""
        parts = (self._means - self.mean) ** 2, self._means * (1 - self._means) / (self.rows[:, None] + 1)
        between, within = (float((self.weights * np.where(self.weights > 0, one, 0.0)).sum()) for one in parts)
        return between, within

    @property
    def sd(self) -> float:
        """The standard deviation: no difference of near-equal moments."""
        return math.sqrt(sum(self.variances))

    @cached_property
    def _steps(self) -> tuple[BetaMixture, float, float, float]:
        """The steps (DLMF 8.17.19 to 8.17.21) from the component farthest right, its parameters, the whole weight."""
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
        totals = np.maximum(self.rows, 1e-300)[:, None]
        terms = np.where(np.arange(n_columns)[None, :] < last[:, None], passed / totals, 0.0)
        # From the last column of each row to that of row `start`: by the second parameter above it, by the first below.
        a, total = self.first + last, self.rows
        above, below = rows[:start], rows[start : max(int((last >= 0).sum()) - 1, start)]
        pairs = np.maximum(total * (total - 1), 1e-300)
        before, behind = np.cumsum(row), np.cumsum(row[::-1])[::-1]
        terms[above, last[above]] += (before * a / pairs)[above]
        terms[below, last[below] - 1] += behind[below + 1] * ((total - a) / pairs)[below]
        ends = float(a[start]), float(total[start] - a[start])
        return BetaMixture(terms, self.first + 1.0, self.total + 1.0), *ends, float(row.sum())

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
        result[inside] = self.density(points[inside])
        firsts, seconds = self.columns[None, :], self.rows[:, None] - self.columns[None, :]
        for end, vanishing, other in ((0, firsts, seconds), (1, seconds, firsts)):
            if np.any(points == end):
                result[points == end] = self._at_end(vanishing, other)
        return result

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
        result[inner] = self._inner_quantiles(probabilities[inner])
        return result

    def _inner_quantiles(self, q: Floats) -> Floats:
        low, high = np.full(q.shape, _LOGIT_RANGE[0]), np.full(q.shape, _LOGIT_RANGE[1])
        # Start at the Beta distribution with the same mean and standard deviation.
        size = max(self.mean * (1 - self.mean) / max(self.sd**2, 1e-300) - 1, 1e-6)
        with np.errstate(divide="ignore"):
            z = np.clip(logit(betaincinv(self.mean * size, (1 - self.mean) * size, q)), *_LOGIT_RANGE)
        z = np.where(np.isnan(z), 0.0, z)
        done = np.zeros(q.shape, dtype=bool)
        for _ in range(100):
            x = expit(z)
            gap = self.cdf(x) - q
            low, high = np.where(gap <= 0, z, low), np.where(gap >= 0, z, high)
            # Next to an unbounded end the slope may overflow: bisection then.
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                proposal = z - gap / (self.pdf(x) * x * expit(-z))
            proposal = np.where((proposal > low) & (proposal < high), proposal, 0.5 * (low + high))
            # A gap of a few roundings says nothing more.
            settled = done | (np.abs(gap) <= 4e-16 * np.minimum(1.0, 8 * q))
            at, z = z, np.where(settled, z, proposal)
            done = np.abs(z - at) <= 1e-12 * np.maximum(1.0, np.abs(at))
            if done.all():
                break
        # Where the log-odds were driven to their limit, the probability is only reached beyond it.
        at_zero, at_one = z - _LOGIT_RANGE[0] < 1e-6, _LOGIT_RANGE[1] - z < 1e-6
        return np.where(at_zero, 0.0, np.where(at_one, 1.0, expit(z)))

    @cached_property
    def mode(self) -> float:
        """Where the density is highest and bounded; of several equal maxima, the middle of the outermost."""
        low, high = self.quantile([5e-4, 1 - 5e-4])
        grid = np.unique(np.clip([0.0, *np.linspace(low, high, 65), 1.0], 1e-12, 1 - 1e-12))
        slopes = np.array([self.slope(x) for x in grid])
        turns = np.flatnonzero((slopes[:-1] > 0) & (slopes[1:] <= 0))
        inner = [float(brentq(self.slope, *grid[i : i + 2], xtol=1e-14, rtol=1e-14)) for i in turns]
        peaks = np.array([*([0.0] if slopes[0] <= 0 else []), *inner, *([1.0] if slopes[-1] >= 0 else [])])
        density = self.pdf(peaks)
        bounded = np.isfinite(density)
        if not bounded.any():
            return float(self.quantile(0.5) >= 0.5)
        highest = peaks[bounded & (density >= density[bounded].max() * (1 - 1e-9))]
        return float(0.5 * (highest[0] + highest[-1]))

    def interval(self, prob: float = 0.95) -> tuple[float, float]:
        """Return the equal-tailed interval that holds `prob`."""
        strictly_between(prob, "prob", 0, 1, remedy="0.95 is usual")
        low, high = self.quantile([(1 - prob) / 2, (1 + prob) / 2])
        return float(low), float(high)


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


def _log_products(factors: Floats) -> Floats:
    """Return the logarithms of the products of the first 0, 1, ... factors."""
    # Cells with a parameter of 0 or less hold no weight: any finite factor will do there.
    return np.concatenate([[0.0], np.cumsum(np.log(np.maximum(factors, 1e-300)))])


@dataclass(frozen=True, eq=False)
class Axis:
    """log h of one outcome on its window from `low` to `high`, and a bound on the log of its sum outside."""

    low: int
    high: int
    log_factor: Floats
    log_tail: float


@lru_cache(maxsize=512)
def log_rising(alpha: float, low: int, high: int) -> Floats:
    r"""Return :math:`\log \Gamma(\alpha + k) / (\Gamma(\alpha)\, k!)` for k from `low` to `high`."""
    start = float(gammaln(alpha + low) - gammaln(alpha) - gammaln(low + 1.0))
    steps = np.log1p((alpha - 1.0) / np.arange(low + 1.0, high + 1.0))
    values = start + np.concatenate([[0.0], np.cumsum(steps)])
    values.setflags(write=False)
    return values


def lattice_axes(
    noisy: Floats, noise: NoiseLaw, n_partitions: int, alpha: tuple[float, ...], *, tolerance: float, max_terms: int
) -> tuple[Axis, ...]:
    """Return a window for each outcome such that what they leave out is certified below `tolerance`."""
    centres = np.clip(noisy, 0, n_partitions)
    spread = abs(float(centres.sum()) - n_partitions) + noise.tail_radius(min(tolerance, 0.1) * 1e-3)
    if (n_partitions + 1) ** (len(alpha) - 1) <= 4096:
        spread = n_partitions
    # Once the windows are the whole range nothing is left out.
    while True:
        lows = np.maximum(np.floor(centres - spread), 0).astype(int).tolist()
        highs = np.minimum(np.ceil(centres + spread), n_partitions).astype(int).tolist()
        sizes = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
        # Before any array is made: a strong prior far from the data can ask for windows without end.
        if math.prod(sizes[::2]) > max_terms or sizes[1] > max_terms:
            raise InputError(
                f"the posterior of the counts spreads over more than max_terms = {max_terms:,} terms (M = "
                f"{n_partitions:,}, noise {noise}, alpha {alpha}); raise max_terms or tolerance, or sample with "
                "verifier.build_model"
            )
        given = zip(noisy, alpha, lows, highs, strict=True)
        axes = tuple(_axis(y, noise, n_partitions, a, low, high) for y, a, low, high in given)
        if omitted_mass_bound(axes, n_partitions) <= tolerance:
            return axes
        spread = 1.3 * spread + 1


def omitted_mass_bound(axes: tuple[Axis, ...], n_partitions: int) -> float:
    """Return a certified upper bound on the share of posterior mass outside the windows."""
    if all(axis.log_tail == -math.inf for axis in axes):
        return 0.0
    if any(axis.log_tail == math.inf for axis in axes):
        return math.inf
    log_kept = _logsumexp(lattice_log_weights(axes, n_partitions))
    if log_kept == -math.inf:
        return math.inf
    log_max = [max(float(axis.log_factor.max()), axis.log_tail) for axis in axes]
    log_sum = [float(np.logaddexp(_logsumexp(axis.log_factor), axis.log_tail)) for axis in axes]
    parts = []
    for j, axis in enumerate(axes):
        a, *rest = (i for i in range(len(axes)) if i != j)
        # (h_a * h_b)(m) <= max h_a sum h_b, either way round; with two outcomes there is no convolution.
        cross = min((min(log_max[a] + log_sum[b], log_max[b] + log_sum[a]) for b in rest), default=log_max[a])
        parts.append(axis.log_tail + cross)
    return math.exp(min(_logsumexp(np.array(parts)) - log_kept, 700.0))


def lattice_log_weights(axes: tuple[Axis, ...], n_partitions: int) -> Floats:
    """Return the unnormalized log-weights, rows by the failed count and columns by the beyond count."""
    beyond, other = axes[0], axes[1]
    failed_low, failed = (axes[2].low, axes[2].log_factor) if len(axes) == 3 else (0, np.zeros(1))
    # The third count is M - Se - S1: reversed, one padded copy of its factor slides over the columns row by row.
    top = n_partitions - failed_low - beyond.low - other.low
    index = top - np.add.outer(np.arange(failed.size), np.arange(beyond.log_factor.size))
    padded = np.concatenate([other.log_factor, [-np.inf]])
    # Anything outside the window points at the last entry, -inf.
    outside = (index < 0) | (index >= other.log_factor.size)
    third = padded[np.where(outside, other.log_factor.size, index)]
    third += beyond.log_factor[None, :]
    third += failed[:, None]
    return np.asarray(third)


def _axis(noisy: float, noise: NoiseLaw, n_partitions: int, alpha: float, low: int, high: int) -> Axis:
    """Return the factor on the window and the bound on its tails."""
    inside = noise.log_prob(noisy - np.arange(low, high + 1, dtype=np.float64)) + log_rising(alpha, low, high)
    # The factor of the prior changes by (alpha + k) / (k + 1): it rises for alpha >= 1, ever less, and falls otherwise.
    rise = max(0.0, math.log((alpha + high + 1) / (high + 2)))
    # A bound, so the cancellation of log-gammas is paid for with a millionth.
    before, after = (float(log_rising(alpha, k, k)[0]) + 1e-6 for k in (max(low - 1, 0), high + 1))
    upper = _log_tail(noise, noisy, high + 1, 1, rise, after) if high < n_partitions else -math.inf
    lower = _log_tail(noise, noisy, low - 1, -1, 0.0, max(before, 0.0)) if low > 0 else -math.inf
    return Axis(low, high, inside, float(np.logaddexp(upper, lower)))


def _log_tail(noise: NoiseLaw, noisy: float, first: int, step: int, rise: float, log_g: float) -> float:
    """Return the logarithm of a bound on the sum of h from a count on in one direction, by a geometric series."""
    here, next_one = float(noise.log_prob(noisy - first)), float(noise.log_prob(noisy - first - step))
    if here == -math.inf:
        return -math.inf
    log_ratio = next_one - here + rise
    # Without convergence there is no bound.
    return here + log_g - math.log(-math.expm1(log_ratio)) if log_ratio < -1e-12 else math.inf


def _logsumexp(values: Floats) -> float:
    top = float(values.max())
    return top if math.isinf(top) else top + math.log(float(np.exp(values - top).sum()))


def _heavy(margin: Floats) -> slice:
    """Return the range outside of which a margin weighs next to nothing."""
    held = np.flatnonzero(margin > 1e-15 / margin.size)
    return slice(int(held[0]), int(held[-1]) + 1)


@dataclass(frozen=True, eq=False)
class Posterior:
    """The posterior of p, of r and of the true counts, made by `posterior`, as a finite mixture.

    `weights` are posterior probabilities of the true counts, shape (failed, beyond), from `low` = (beyond, failed) on.
    `truncation_error` bounds the posterior mass of the counts left out, and every probability is within it.
    `log_evidence` is the log-density of the released counts under prior and noise law.
    """

    alpha: tuple[float, ...]
    n_partitions: int
    weights: Floats
    low: tuple[int, int]
    truncation_error: float
    log_evidence: float

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The outcomes that were counted."""
        return OUTCOMES[: len(self.alpha)]

    @cached_property
    def r(self) -> BetaMixture:
        """Posterior of r = p1 / (p1 + p0), the share beyond among partitions that can be computed."""
        total = self.alpha[0] + self.alpha[1] + self.n_partitions - self.low[1]
        return BetaMixture(self.weights, self.alpha[0] + self.low[0], total)

    def share(self, outcome: str) -> BetaMixture:
        """Return the posterior of one component of p, by its name in `outcomes`."""
        index = self._index(outcome)
        counts, probabilities = self.counts(outcome)
        total = sum(self.alpha) + self.n_partitions
        return BetaMixture(probabilities[None, :], self.alpha[index] + int(counts[0]), total)

    def counts(self, outcome: str) -> tuple[Ints, Floats]:
        """Return the posterior of one true count, by its name in `outcomes`: its values, and their probabilities."""
        failed, beyond = np.indices(self.weights.shape) + np.array(self.low[::-1])[:, None, None]
        counts = (beyond, self.n_partitions - beyond - failed, failed)[self._index(outcome)]
        # A corner of the rectangle may hold a count below zero; it carries no weight.
        held = counts >= 0
        first = int(counts[held].min())
        summed = np.bincount(counts[held] - first, weights=self.weights[held])
        return first + np.arange(summed.size), summed

    def _index(self, outcome: str) -> int:
        return self.outcomes.index(one_of(outcome, self.outcomes, "outcome"))

    @cached_property
    def mean(self) -> float:
        """Posterior mean of r."""
        return self.r.mean

    @cached_property
    def sd(self) -> float:
        """Posterior standard deviation of r."""
        return self.r.sd

    @property
    def modes(self) -> dict[str, float]:
        """The paper's point estimates: modes of r (r-hat), 1 - r (p0-hat), and the failed share (e-hat), if counted."""
        estimates = {"r-hat": self.r.mode, "p0-hat": 1.0 - self.r.mode}
        if len(self.alpha) == 3:
            estimates["e-hat"] = self.share(OUTCOMES[2]).mode
        return estimates

    def interval(self, prob: float = 0.95) -> tuple[float, float]:
        """Return the equal-tailed credible interval of r."""
        return self.r.interval(prob)

    def prob_greater(self, threshold: float) -> float:
        """Return P(r > threshold): with 0.5, the posterior probability that the claim holds in most partitions."""
        threshold = check_share(threshold, "threshold")
        # From the other end: a tiny probability keeps its digits.
        rows, columns = np.nonzero(self.weights)
        first = self.r.columns[columns]
        return float(self.weights[rows, columns] @ betainc(self.r.rows[rows] - first, first, 1.0 - threshold))

    def _repr_html_(self) -> str:
        from dpbayes.report.document import show_probability

        low, high = self.interval()
        rows = [
            ("share of partitions in which the claim holds, mean", f"{self.mean:.4f}"),
            ("standard deviation", f"{self.sd:.4f}"),
            ("95 % interval", f"{low:.4f} to {high:.4f}"),
            ("probability that the claim holds in most partitions", show_probability(self.prob_greater(0.5), 4)),
            *((f"most likely {name}", f"{value:.4f}") for name, value in self.modes.items()),
        ]
        return html_table(f"Verification of {self.n_partitions:,} partitions", (), rows)


def posterior(
    release: Release,
    *,
    alpha: Sequence[float] | None = None,
    question: str | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    max_terms: int = DEFAULT_MAX_TERMS,
) -> Posterior:
    r"""Return the exact posterior of a verification release.

    With S the true counts, :math:`P(S \mid y) \propto \mathrm{DirichletMultinomial}(S; M, \alpha)\prod_j f(y_j - S_j)`:
    what a Gibbs sampler as in section 4 of the paper converges to. The sum is exact and costs less than one sweep.

    Parameters
    ----------
    release
        Noisy counts of partitions (see `dpbayes.verifier.release_counts`): a one-attribute table with three levels, or
        with two where no fit can fail.
    alpha
        Dirichlet parameters for (beyond, not beyond, not computed), positive; all 1 by default.
    question
        Which table, when the release answers several questions.
    tolerance
        Largest posterior mass of the counts that may be left out, certified.
    max_terms
        Largest number of terms of the mixture.

    Raises
    ------
    InputError
        If the release is none of a verification, a parameter is out of range, no true counts can explain the released
        ones, these are too far outside their range for Gaussian noise, or the mixture needs more than `max_terms`
        terms.

    References
    ----------
    Balmat, T., Barrientos, A. F. and Reiter, J. P. (2018). Efficient evaluation of multinomial probabilities in
    differentially private synthetic data verification servers. Sections 3 and 4.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, release_counts
    >>> release = release_counts(PartitionCounts(45, 5, 0), epsilon=1.0, rng=np.random.default_rng(3))
    >>> exact = posterior(release)
    >>> 0.7 < exact.mean < 1, exact.truncation_error < 1e-12
    (True, True)
    """
    table, m = question_table(release, question)
    return posterior_of_counts(table.counts, table.noise, m, alpha=alpha, tolerance=tolerance, max_terms=max_terms)


def posterior_of_counts(
    noisy: npt.ArrayLike,
    noise: NoiseLaw,
    n_partitions: int,
    *,
    alpha: Sequence[float] | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    max_terms: int = DEFAULT_MAX_TERMS,
) -> Posterior:
    """Return the exact posterior from released values (never exact counts) and their noise law; see `posterior`."""
    values = np.asarray(noisy, dtype=np.float64)
    prior = check_alpha(alpha, values.size)
    check_n_partitions(n_partitions)
    strictly_between(tolerance, "tolerance", 0, 1, remedy="the default is 1e-12")
    values, log_shift = reachable(values, noise, n_partitions)
    axes = lattice_axes(values, noise, n_partitions, prior, tolerance=tolerance, max_terms=max_terms)
    log_weights = lattice_log_weights(axes, n_partitions)
    top = float(log_weights.max())
    if top == -math.inf:
        said = f"no true counts of {n_partitions} partitions can explain the released counts under noise {noise}"
        raise InputError(f"{said}; check that M and the noise law are those of the release")
    weights = np.exp(log_weights - top)
    mass = float(weights.sum())
    weights /= mass
    # Outer rows and columns that weigh less than 1e-15 together would cost digits and time: they count as left out.
    rows, columns = (_heavy(weights.sum(axis=axis)) for axis in (1, 0))
    low = axes[0].low + columns.start, (axes[2].low if len(axes) == 3 else 0) + rows.start
    weights = np.ascontiguousarray(weights[rows, columns])
    dropped = max(1.0 - float(weights.sum()), 0.0)
    weights /= weights.sum()
    weights.setflags(write=False)
    whole = sum(prior)
    log_prior = float(gammaln(whole) + gammaln(n_partitions + 1.0) - gammaln(whole + n_partitions))
    log_evidence = top + math.log(mass) + log_prior + log_shift
    omitted = omitted_mass_bound(axes, n_partitions) + dropped
    return Posterior(prior, n_partitions, weights, low, omitted, log_evidence)


_MOST_DRAWS = 10**9


def draw_posterior(
    release: Release,
    *,
    alpha: Sequence[float] | None = None,
    draws: int = 1000,
    chains: int = 4,
    random_seed: int | None = None,
) -> xr.DataTree:
    """Draw independently from the exact joint posterior of p, r and the true counts of every question.

    Parameters
    ----------
    release, alpha
        As in `posterior`; the prior is that of every question.
    draws, chains
        How many; all draws are independent, and chains are for what compares them.
    random_seed
        Seed; by default a fresh one. It is recorded: draws from a posterior touch nothing confidential.

    Returns
    -------
    xarray.DataTree
        ``posterior`` with ``p`` and the true counts ``S`` (question, outcome), ``r`` (question), and ``coefficient``
        (mean_question) where sums of estimates were released; empty ``sample_stats``, since nothing was sampled step
        by step; the released counts as ``observed_data``; M and the noise's standard deviations as ``constant_data``.

    Raises
    ------
    InputError
        If draws, chains or the seed is no whole number or out of range, or as from `posterior`.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, release_counts
    >>> release = release_counts(PartitionCounts(45, 5, 0), epsilon=1.0, rng=np.random.default_rng(3))
    >>> draw_posterior(release, draws=100, random_seed=1)["posterior"]["p"].shape
    (4, 100, 1, 3)
    """
    from dpbayes.inference.sampling import checked_seed
    from dpbayes.inference.schema import new_trace

    size = tuple(whole_number(n, name, high=_MOST_DRAWS) for name, n in (("chains", chains), ("draws", draws)))
    seed = checked_seed(random_seed)
    check_release(release, "a posterior")
    counted = [table for table in release.tables if is_count_table(table)]
    names = [table.label for table in counted]
    averaged = [table.label for table in release.tables if not is_count_table(table)]
    coords: dict[str, Any] = {"chain": np.arange(chains), "draw": np.arange(draws)}
    dims = ("chain", "draw", "question", "outcome")
    data, observed, constant = {}, xr.Dataset(), xr.Dataset({"n_partitions": release.n})
    if counted:
        streams = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(len(names)))
        exact = [posterior(release, alpha=alpha, question=name) for name in names]
        drawn = [sample_posterior(one, size, rng=rng) for one, rng in zip(exact, streams, strict=True)]
        p, r, true = (np.stack(parts, axis=2) for parts in zip(*drawn, strict=True))
        data = {"p": (dims, p), "r": (dims[:3], r), "S": (dims, true)}
        asked = {"question": names, "outcome": list(exact[0].outcomes)}
        released = np.array([table.counts for table in counted], dtype=float)
        observed = xr.Dataset({"released": (dims[2:], released)}, asked)
        spread = [math.sqrt(table.noise.variance) for table in counted]
        constant = constant.assign_coords(question=names).assign(noise_stddev=("question", spread))
        coords |= asked
    if averaged:
        from dpbayes.verifier.means import coefficient_posterior

        rng = np.random.default_rng([seed, len(names)])
        means = [coefficient_posterior(release, question=name).quantile(rng.random(size)) for name in averaged]
        data["coefficient"] = ((*dims[:2], "mean_question"), np.stack(means, axis=2))
        coords["mean_question"] = averaged
    groups = {"posterior": xr.Dataset(data, coords), "sample_stats": xr.Dataset()}
    groups |= {"observed_data": observed, "constant_data": constant}
    return new_trace(groups, sampler="exact i.i.d. draws", random_seed=seed, release_digest=release.digest)


def sample_posterior(one: Posterior, size: tuple[int, ...], *, rng: np.random.Generator) -> tuple[Floats, Floats, Ints]:
    """Draw p, r and the true counts as arrays of shape (*size, outcomes), of r of shape `size`."""
    below = np.cumsum(one.weights.ravel())
    cells = np.searchsorted(below, rng.random(size) * below[-1], side="right")
    failed, beyond = np.divmod(np.minimum(cells, below.size - 1), one.weights.shape[1])
    beyond, failed = beyond + one.low[0], failed + one.low[1]
    counts = np.stack([beyond, one.n_partitions - beyond - failed, failed], axis=-1)
    counts = counts[..., : len(one.alpha)]
    gammas = rng.standard_gamma(np.asarray(one.alpha) + counts)
    p = gammas / gammas.sum(axis=-1, keepdims=True)
    both = p[..., 0] + p[..., 1]
    lost = both == 0
    r = p[..., 0] / np.where(lost, 1.0, both)
    # Where both lie below all doubles (an alpha near 0, counts of 0), their logarithms are drawn.
    logs = [np.log1p(-rng.random(np.count_nonzero(lost))) / shape for shape in one.alpha[:2]]
    r[lost] = expit(logs[0] - logs[1])
    return p, r, counts


def check_alpha(alpha: Sequence[float] | None, n_outcomes: int | None = None) -> tuple[float, ...]:
    """Return the Dirichlet parameters, positive and finite: one per outcome, or, of two or three, as many as given."""
    asked = [1.0] * (n_outcomes or 3) if alpha is None else alpha
    given = ordered(asked, "alpha", remedy="give one number per outcome")
    values = tuple(positive_finite(value, "alpha", remedy="1 for each is the uniform prior") for value in given)
    wanted = n_outcomes or len(values)
    if wanted not in (2, 3):
        raise InputError(f"a verification release has two or three counts, got {wanted}")
    if len(values) != wanted:
        raise InputError(f"alpha must give {wanted} numbers, one per outcome, got {values!r}")
    return values


def check_share(value: Any, name: str) -> float:
    """Return a share of partitions, or a threshold of it, as a float from 0 to 1."""
    share = number(value, name)
    if not 0 <= share <= 1:
        raise InputError(f"{name} must lie in [0, 1], got {share!r}; it is a share of partitions")
    return share


def reachable(values: Floats, noise: NoiseLaw, n_partitions: int) -> tuple[Floats, float]:
    """Return values for which the noise law can be evaluated, and the change of log-density that this makes."""
    if not np.all(np.isfinite(values)):
        raise InputError("a released count is not finite; ask the custodian for the release again")
    ends = np.clip(values, 0, n_partitions)
    if not noise.is_pure:
        if np.any(np.abs(values - ends) > 40 * noise.spread):
            said = f"released counts {values.tolist()} lie more than 40 standard deviations outside [0, {n_partitions}]"
            raise InputError(f"{said}; noise {noise} cannot have done this: check M and the noise law")
        return values, 0.0
    return ends, -float(np.abs(values - ends).sum()) / noise.spread


class CoefficientTable(NamedTuple):
    """Possible counts, shape (rows, outcomes), and the logarithm of their multinomial coefficient."""

    counts: Ints
    log_coefficients: Floats


@lru_cache(maxsize=8)
def coefficient_table(n_partitions: int, n_outcomes: int = 3) -> CoefficientTable:
    """Tabulate M! / (S1! S0! Se!) for every triple of counts, in the order of the paper's section 6.3."""
    m = check_n_partitions(n_partitions)
    if m > MOST_TABULATED:
        said = f"a coefficient table of M = {m:,} partitions would have {(m + 1) ** 2 // 2:,} rows"
        raise InputError(f"{said}; up to {MOST_TABULATED:,} are tabulated, and verifier.posterior has no such limit")
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, m + 1)))])
    rest, other = np.tril_indices(m + 1) if n_outcomes == 3 else (np.arange(m + 1),) * 2
    counts = np.column_stack([m - rest, other, rest - other])[:, :n_outcomes]
    logs = log_factorial[m] - log_factorial[counts].sum(axis=1)
    for array in (counts, logs):
        array.setflags(write=False)
    return CoefficientTable(counts, logs)
