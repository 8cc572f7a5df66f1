r"""Every release that is possible, with its posterior and its probability.

Two-sided geometric noise makes every released count a whole number, and a count outside [0, M] tells as
much as the nearest end. So M + 1 values per count are all there are: the distribution of anything that is
computed from a release is a finite sum, and no simulation is needed. With the likelihood a product over
the counts, sums over all releases and all true counts are matrix products. Laplace noise makes a
continuum: sums over two Gauss-Legendre nodes between neighbouring whole numbers, whose chances add up to
that cell's exactly, are integrals of what is smooth inside a cell.

Every posterior with the same M and prior mixes the same Beta components. Tabulated once on nodes
:math:`x_i = \sin^2(\theta_i / 2)`, evenly spaced in :math:`\theta` where the components have about one
width, a thousand posteriors are one matrix product. Quantiles come from cubic Hermite interpolation of
the distribution function (values and densities at the nodes), modes from a parabola through the highest
density and its neighbours. A prior parameter below one half makes the density in :math:`\theta` infinite
at an end. The nodes are then :math:`\theta = \pi I_t(k, k)` with t evenly spaced and k = 1 / (smallest
parameter), so that the distribution function starts like :math:`t^2`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, betaincc, betaln, gammaln, xlog1py, xlogy

from dpbayes.errors import InputError
from dpbayes.privacy.laws import PureNoise, PureNoiseName
from dpbayes.verifier.exact import (
    check_alpha,
    check_share,
    coefficient_table,
    given_alpha,
)
from dpbayes.verifier.mixture import check_prob
from dpbayes.verifier.partition import check_n_partitions
from dpbayes.verifier.release import law_of

type FloatArray = npt.NDArray[np.float64]


SMALLEST_ALPHA = 0.02
"""Below it a twentieth of a component lies below 1e-70, and nodes that resolve it are thousands."""


@dataclass(frozen=True, eq=False)
class NodeTable:
    """Components of all lattice points on a grid of nodes."""

    counts: npt.NDArray[np.int64]
    t: FloatArray
    power: float
    cdf: FloatArray
    density: FloatArray

    def at(self, t: FloatArray) -> FloatArray:
        """Return r at values of t."""
        return np.asarray(np.sin(0.5 * math.pi * betainc(self.power, self.power, t)) ** 2)

    @property
    def rate(self) -> FloatArray:
        """Derivative of r in t at each node."""
        theta = math.pi * betainc(self.power, self.power, self.t)
        return np.asarray(0.5 * np.sin(theta) * _rate(self.power, self.t))


def _rate(power: float, t: FloatArray) -> FloatArray:
    """Return the derivative of theta in t."""
    logs = xlogy(power - 1, t) + xlog1py(power - 1, -t) - betaln(power, power)
    return np.asarray(math.pi * np.exp(logs))


def n_nodes(n_partitions: int, alpha: tuple[float, ...]) -> int:
    """Return how many nodes resolve the narrowest component."""
    power = _power(alpha)
    steepest = float(_rate(power, np.array([0.5]))[0]) / math.pi
    enough = max(256, 2 * math.ceil(2 * math.pi * math.sqrt(n_partitions + sum(alpha[:2]))))
    return 1 + 2 * math.ceil(0.5 * enough * steepest)


def _power(alpha: tuple[float, ...]) -> float:
    least = min(alpha[:2])
    return 1.0 if least >= 0.5 else 1.0 / least


@lru_cache(maxsize=4)
def node_table(n_partitions: int, alpha: tuple[float, ...]) -> NodeTable:
    """Tabulate the components of every lattice point."""
    counts = coefficient_table(n_partitions, len(alpha)).counts
    power = _power(alpha)
    t = np.linspace(0, 1, n_nodes(n_partitions, alpha))
    a, b = alpha[0] + counts[:, :1], alpha[1] + counts[:, 1:2]
    # Both r and 1 - r to full relative precision: a small parameter puts weight next to either end.
    x, rest = (np.sin(0.5 * math.pi * betainc(power, power, side)) ** 2 for side in (t, t[::-1]))
    cdf = np.where(x <= 0.5, betainc(a, b, x), betaincc(b, a, rest))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # dx / dtheta = sqrt(x (1 - x)).
        density = np.exp(xlogy(a - 0.5, x) + xlogy(b - 0.5, rest) - betaln(a, b)) * _rate(power, t)
    if power > 1:
        density[:, [0, -1]] = 0.0
    for array in (t, cdf, density):
        array.setflags(write=False)
    return NodeTable(counts, t, power, cdf, density)


def hermite_quantile(table: NodeTable, cdf: FloatArray, density: FloatArray, q: float) -> FloatArray:
    """Return the quantile of r for each row of distribution functions."""
    left = np.clip((cdf <= q).sum(axis=1) - 1, 0, table.t.size - 2)
    rows = np.arange(len(cdf))
    step = table.t[1] - table.t[0]
    f0, f1 = cdf[rows, left], cdf[rows, left + 1]
    d0, d1 = density[rows, left] * step, density[rows, left + 1] * step
    low, high = np.zeros(len(cdf)), np.ones(len(cdf))
    for _ in range(40):
        t = 0.5 * (low + high)
        value = f0 * (1 + 2 * t) * (1 - t) ** 2 + d0 * t * (1 - t) ** 2 + f1 * t**2 * (3 - 2 * t) + d1 * t**2 * (t - 1)
        below = value < q
        low, high = np.where(below, t, low), np.where(below, high, t)
    return table.at(table.t[left] + step * low)


def peak(table: NodeTable, density: FloatArray, *, unbounded: tuple[bool, bool] = (False, False)) -> FloatArray:
    """Return the mode of r for each row of densities in t."""
    with np.errstate(divide="ignore", invalid="ignore"):
        in_r = density / table.rate
    # Extrapolate to the ends, where the change of variable degenerates.
    in_r[:, 0], in_r[:, -1] = 2 * in_r[:, 1] - in_r[:, 2], 2 * in_r[:, -2] - in_r[:, -3]
    if any(unbounded):
        return _refined(table, in_r, _best_local(in_r, density, unbounded))
    # Where several are equally high (a flat or a mirrored density), the middle of the outermost.
    top = in_r.max(axis=1, keepdims=True) * (1 - 1e-9)
    last = table.t.size - 1 - (in_r >= top)[:, ::-1].argmax(axis=1)
    first = (in_r >= top).argmax(axis=1)
    return 0.5 * (_refined(table, in_r, first) + _refined(table, in_r, last))


def _refined(table: NodeTable, in_r: FloatArray, best: npt.NDArray[np.int64]) -> FloatArray:
    """Return r at the top of the parabola through each row's highest node and its neighbours."""
    t = table.t
    inner = np.clip(best, 2, t.size - 3)
    rows = np.arange(len(in_r))
    with np.errstate(divide="ignore", invalid="ignore"):
        left, middle, right = (np.log(in_r[rows, inner + shift]) for shift in (-1, 0, 1))
        shift = np.clip(0.5 * (left - right) / (left - 2 * middle + right), -1, 1)
    refined = t[inner] + np.nan_to_num(shift) * (t[1] - t[0])
    return table.at(np.where(best == 0, 0.0, np.where(best == t.size - 1, 1.0, refined)))


def _best_local(in_r: FloatArray, density: FloatArray, unbounded: tuple[bool, bool]) -> npt.NDArray[np.int64]:
    """Return the highest local maximum that is no unbounded end, or the end on the side of the median."""
    higher = np.diff(in_r, axis=1) > 0
    local = np.zeros(in_r.shape, dtype=bool)
    local[:, 1:-1] = higher[:, :-1] & ~higher[:, 1:]
    local[:, 0], local[:, -1] = ~higher[:, 0] & (not unbounded[0]), higher[:, -1] & (not unbounded[1])
    best = np.where(local, in_r, -np.inf).argmax(axis=1)
    half = np.cumsum(density, axis=1)
    median = (half < 0.5 * half[:, -1:]).sum(axis=1)
    side = np.where(median >= in_r.shape[1] / 2, in_r.shape[1] - 1, 0)
    return np.asarray(np.where(local.any(axis=1), best, side))


# Gauss-Legendre nodes between two whole numbers, for Laplace noise.
_NODES = 2


@dataclass(frozen=True, eq=False)
class CountGrid:
    """Values of a released count; values beyond [0, M] tell as much as the nearest end and are taken together."""

    probability: FloatArray
    kernel: FloatArray


def count_grid(noise: PureNoise, n_partitions: int) -> CountGrid:
    """Return the values of a count between 0 and M under the noise law."""
    counts = np.arange(n_partitions + 1, dtype=np.float64)
    if noise.is_discrete:
        values = counts
        probability = np.exp(noise.log_prob(values[None, :] - counts[:, None]))
        probability[:, 0], probability[:, -1] = noise.cdf(-counts), noise.sf(n_partitions - 1 - counts)
    else:
        values, probability = _between_whole_numbers(noise, counts)
    kernel = np.exp(-np.abs(values[:, None] - counts[None, :]) / noise.scale)
    return CountGrid(probability, kernel)


def _between_whole_numbers(noise: PureNoise, counts: FloatArray) -> tuple[FloatArray, FloatArray]:
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


# Values of a count, by the number of counts released: eight million releases of three, and as much work for two.
_MOST_VALUES = {3: 202, 2: 302}


@dataclass(frozen=True, eq=False)
class Releases:
    """Every release that is possible for one M, noise law and prior, and its posterior. Made by `releases_of`."""

    n_partitions: int
    noise: PureNoise
    alpha: tuple[float, ...]
    prob: float

    @cached_property
    def grid(self) -> CountGrid:
        """Values of the beyond and of the not-beyond count."""
        return count_grid(self.noise, self.n_partitions)

    @cached_property
    def failed_grid(self) -> CountGrid:
        """Values of the failed count."""
        return self.grid if len(self.alpha) == 3 else no_count(self.n_partitions)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of arrays over releases."""
        n = self.grid.kernel.shape[0]
        return self.failed_grid.kernel.shape[0], n, n

    @cached_property
    def _third(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Failed count for each (beyond, not beyond), 0 where there is none, and whether the two are possible."""
        counts = np.arange(self.n_partitions + 1)
        third = self.n_partitions - np.add.outer(counts, counts)
        possible = third >= 0 if len(self.alpha) == 3 else third == 0
        return np.where(possible, third, 0), possible

    @cached_property
    def _prior(self) -> FloatArray:
        """Prior probability of the true counts, shape (beyond, not beyond), 0 off the lattice."""
        size = self.n_partitions + 1
        counts, logs = _log_prior(self.n_partitions, self.alpha)
        prior = np.zeros((size, size))
        prior[counts[:, 0], counts[:, 1]] = np.exp(logs - logs.max())
        return prior / prior.sum()

    def integrate(self, values: FloatArray) -> FloatArray:
        """Sum a function of the true counts against prior and likelihood, for every release."""
        third, possible = self._third
        weighted = np.where(possible, self._prior * values, 0.0)
        kernel, out = self.grid.kernel, np.empty(self.shape)
        for failed, likelihood in enumerate(self.failed_grid.kernel):
            out[failed] = kernel @ (weighted * likelihood[third]) @ kernel.T
        return out

    @cached_property
    def evidence(self) -> FloatArray:
        """Likelihood of every release, up to a factor."""
        whole = self.integrate(np.ones_like(self._prior))
        # A release that no true counts can explain within the range of doubles has no weight anywhere either.
        return np.where(whole > 0, whole, np.inf)

    def prob_greater(self, threshold: float) -> FloatArray:
        """Posterior probability of r > threshold for every release."""
        threshold = check_share(threshold, "threshold")
        grid = np.arange(self.n_partitions + 1)
        above = betainc(self.alpha[1] + grid[None, :], self.alpha[0] + grid[:, None], 1 - threshold)
        return np.asarray(self.integrate(above) / self.evidence)

    @cached_property
    def _components(self) -> tuple[NodeTable, FloatArray]:
        """Beta components at their nodes, and the prior at their lattice points."""
        table = node_table(self.n_partitions, self.alpha)
        return table, self._prior[table.counts[:, 0], table.counts[:, 1]]

    @cached_property
    def _summarized(self) -> dict[int, FloatArray]:
        return {}

    def summaries_at(self, failed: int) -> FloatArray:
        """Return mode, lower and upper end of the equal-tailed interval of r, for releases with one failed value."""
        if failed not in self._summarized:
            table, prior = self._components
            first, second = table.counts[:, 0], table.counts[:, 1]
            weights = prior * self.failed_grid.kernel[failed][self.n_partitions - first - second]
            n, tail, size = table.t.size, (1 - self.prob) / 2, self.n_partitions + 1
            # Scatter the components onto (node, beyond, not beyond), then two products spread them over all releases.
            lattice = np.zeros((2 * n, size, size))
            lattice[:n, first, second] = table.cdf.T * weights
            lattice[n:, first, second] = table.density.T * weights
            kernel = self.grid.kernel
            spread = (kernel @ lattice @ kernel.T).reshape(2 * n, -1) / self.evidence[failed].ravel()
            cdf, density = np.ascontiguousarray(spread[:n].T), np.ascontiguousarray(spread[n:].T)
            mode = peak(table, density, unbounded=(self.alpha[0] < 1, self.alpha[1] < 1))
            ends = (hermite_quantile(table, cdf, density, q) for q in (tail, 1 - tail))
            self._summarized[failed] = np.stack([mode, *ends]).reshape(3, *self.shape[1:])
        return self._summarized[failed]

    @cached_property
    def summaries(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mode, lower and upper end of the equal-tailed interval of r for every release."""
        mode, low, high = np.stack([self.summaries_at(failed) for failed in range(self.shape[0])], axis=1)
        return mode, low, high

    def expect(self, values: FloatArray) -> FloatArray:
        """Average a function of the release over its noise, for every possible triple of true counts."""
        chances = self.grid.probability
        whole = np.einsum("fij,Ff->Fij", values, self.failed_grid.probability, optimize=True)
        whole = np.einsum("Fij,Ii->FIj", whole, chances, optimize=True)
        whole = np.einsum("FIj,Jj->FIJ", whole, chances, optimize=True)
        third, possible = self._third
        beyond, other = np.indices(third.shape)
        return np.where(possible, whole[third, beyond, other], np.nan)

    def distribution(self, counts_pmf: FloatArray) -> FloatArray:
        """Return the probability of every release when the true counts have this distribution."""
        third, possible = self._third
        weighted = np.where(possible, counts_pmf, 0.0)
        chances, out = self.grid.probability, np.empty(self.shape)
        for failed, chance in enumerate(self.failed_grid.probability.T):
            out[failed] = chances.T @ (weighted * chance[third]) @ chances
        return out


def most_partitions(noise: str, n_outcomes: int) -> int:
    """Return the largest M whose releases are summed: three outcomes 201 (Laplace noise 100), two 301 (150)."""
    values = _MOST_VALUES[n_outcomes]
    return values - 1 if noise == "two-sided-geometric" else values // 2 - 1


@lru_cache(maxsize=2)
def _cached(n_partitions: int, noise: PureNoise, alpha: tuple[float, ...], prob: float) -> Releases:
    return Releases(n_partitions, noise, alpha, prob)


def releases_of(
    n_partitions: int,
    *,
    epsilon: float,
    alpha: Sequence[float] | None = None,
    prob: float = 0.95,
    noise: PureNoiseName = "two-sided-geometric",
) -> Releases:
    """Return every release that is possible, with its posterior computed when asked for. Cached."""
    law = law_of(noise, epsilon)
    prior = check_alpha(alpha, 3 if alpha is None else len(given_alpha(alpha)))
    most = most_partitions(noise, len(prior))
    if check_n_partitions(n_partitions) > most:
        raise InputError(
            f"operating characteristics sum over every possible release, up to M = {most} with {noise} noise and "
            f"{len(prior)} outcomes, got {n_partitions}; beyond it simulate releases with release_counts(rng=...) and "
            "take the posterior of each"
        )
    if min(prior[:2]) < SMALLEST_ALPHA:
        raise InputError(
            f"alpha must be at least {SMALLEST_ALPHA} for both shares here, got {prior!r}: below it the posterior has "
            "weight nearer to its ends than double precision can tell"
        )
    return _cached(n_partitions, law, prior, check_prob(prob))


def _log_prior(n_partitions: int, prior: tuple[float, ...]) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Return the lattice points, and the log of their Dirichlet-multinomial probabilities up to a constant."""
    counts, k = coefficient_table(n_partitions, len(prior)).counts, np.arange(n_partitions + 1)
    return counts, np.asarray(sum((gammaln(a + k) - gammaln(k + 1.0))[counts[:, j]] for j, a in enumerate(prior)))
