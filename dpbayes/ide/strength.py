r"""How much the prior is worth, in records, from the release alone (docs/ide.md).

To second order the released counts are :math:`y \sim N(n M p,\, \frac{n^2}{\lambda} C + N)`, C the covariance of the
cells under the prior and N the noise's. In the eigenvectors of :math:`N^{-1/2} C N^{-1/2}` (eigenvalues g) they are
independent with variance :math:`1 + \gamma_k`, :math:`\gamma_k = n^2 g_k/\lambda`. The departure in a direction is
:math:`\sqrt{\gamma_k}` times a Student t variable of 1, 2, 4 or infinitely many degrees of freedom, each as likely.

Beforehand the populations agree up to sampling, :math:`1/\lambda = 1/n + 1/m`, with probability .8; otherwise
:math:`\log\lambda` is uniform below that bound. A strength :math:`\lambda` where :math:`\lambda^*` is true has the
squared error :math:`R = \sum_k (1-a_k)^2 \gamma^*_k + a_k^2` with :math:`a_k = \gamma_k/(1+\gamma_k)`; what is taken
has the least expected :math:`\log R(\lambda, \lambda^*) - \log \min_\lambda R(\lambda, \lambda^*)`. Intervals average
over strengths by the posterior under normal departures, with probability .5 beforehand that the populations agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import gamma

from dpbayes._arguments import positive_finite, shown
from dpbayes.errors import InputError
from dpbayes.ide.cells import Measurements
from dpbayes.ide.noise_aware import ROUNDING, noise_loss

type Floats = npt.NDArray[np.float64]

_GRID = 41
_SAME_POPULATION = 0.8
_SAME_FOR_INTERVALS = 0.5
# Expected log-losses this close do not differ; the more probable strength is taken.
_INDIFFERENT = 1e-3
_TAILS = (1.0, 2.0, 4.0)
# Points of equal probability that stand for the gamma law of a Student variable's precision.
_POINTS = 16
# Blocks of tables with more cells than this are taken as independent of each other.
_DENSE_CELLS = 2500
_DAMPING = 0.7
_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class Strength:
    """A prior strength, in records, and the likelihood and posterior it was read from."""

    value: float
    most_likely: float
    bound: float
    grid: Floats
    log_likelihood: Floats
    posterior: Floats

    @classmethod
    def of(cls, value: float | str) -> Strength | None:
        """Return a strength that the caller chose, or None for the one that the release says."""
        if isinstance(value, str):
            if value != "release":
                raise InputError(f"strength must be a number of records or 'release', got {shown(value)}")
            return None
        remedy = "in records, or 'release'; n trusts the prior as the population that the records were drawn from"
        number, none = positive_finite(value, "strength", remedy=remedy), np.empty(0)
        return cls(number, number, number, none, none, none)

    def nodes(self, n: int) -> list[tuple[float, float]]:
        """Return probabilities and strengths that stand for the posterior: the medians of n parts, equally likely."""
        if not self.posterior.size:
            return [(1.0, self.value)]
        cumulative = np.cumsum(self.posterior)
        places = np.searchsorted(cumulative, (np.arange(n) + 0.5) / n * cumulative[-1])
        values, counts = np.unique(np.minimum(places, len(self.grid) - 1), return_counts=True)
        return [(float(count) / n, float(self.grid[place])) for place, count in zip(values, counts, strict=True)]


def strength_bound(measurements: Measurements) -> float:
    """Return the strength at which prior and private data are samples of one population: 1 / (1/n + 1/m)."""
    records = measurements.prior.n_records
    return 1.0 / (1.0 / measurements.n + (0.0 if records is None else 1.0 / records))


def choose_strength(measurements: Measurements) -> Strength:
    """Choose the prior strength from the release alone."""
    bound = strength_bound(measurements)
    grid = np.geomspace(min(1.0, bound), bound, _GRID)
    ratios, departures = spectrum(measurements)
    scale = ratios / grid[:, None]
    curve = log_likelihood(scale, departures)
    belief = _posterior(curve, _SAME_POPULATION)
    regret = _log_regret(scale) @ belief
    close = np.flatnonzero(regret <= regret.min() + _INDIFFERENT)
    value = float(grid[close[np.argmax(belief[close])]])
    posterior = _posterior(_normal(1.0 + scale, departures).sum(axis=1), _SAME_FOR_INTERVALS)
    return Strength(value, float(grid[int(np.argmax(curve))]), bound, grid, curve - curve.max(), posterior)


def _posterior(curve: Floats, same: float) -> Floats:
    """Return probabilities of the strengths, the last of which has the probability `same` beforehand."""
    beforehand = np.full(len(curve), (1.0 - same) / len(curve))
    beforehand[-1] += same
    found = beforehand * np.exp(curve - curve.max())
    return found / found.sum()


def _normal(variance: Floats, departures: Floats) -> Floats:
    """Return log-densities of departures under normal laws, up to a constant."""
    found: Floats = -0.5 * (np.log(variance) + departures**2 / variance)
    return found


def spectrum(measurements: Measurements) -> tuple[Floats, Floats]:
    """Return, by direction, the prior's variance at strength 1 over the noise's, and the departure seen."""
    cells = measurements.cells
    noise = np.sqrt(cells.per_cell([max(table.noise.variance, ROUNDING) for table in measurements.tables]))
    residual = (measurements.values - measurements.n * measurements.prior_chance) / noise
    blocks = cells.blocks(_DENSE_CELLS)
    whole = (
        measurements.prior_covariance() if len(blocks) == 1 and blocks[0][1] - blocks[0][0] <= _DENSE_CELLS else None
    )
    ratios, departures = [], []
    for first, last in blocks:
        if last - first > _DENSE_CELLS:  # one table: its cells, which depend on each other through their sum alone
            chance = measurements.prior_chance[first:last]
            values, seen = chance * (1.0 - chance) / noise[first:last] ** 2, residual[first:last]
        else:
            covariance = measurements.block_covariance(first, last) if whole is None else whole
            scaled = covariance / noise[first:last, None] / noise[first:last]
            values, vectors = np.linalg.eigh(scaled)
            seen = vectors.T @ residual[first:last]
        held = values > 1e-11 * max(float(values.max()), 1e-300)
        ratios.append(measurements.n**2 * values[held])
        departures.append(seen[held])
    return np.concatenate(ratios), np.concatenate(departures)


def log_likelihood(scale: Floats, departures: Floats) -> Floats:
    """Return the log-density of departures at every strength, up to a constant, averaged over the kinds of tails."""
    curves = [_normal(1.0 + scale, departures).sum(axis=1)]
    for freedom in _TAILS:
        precisions = gamma.ppf((np.arange(_POINTS) + 0.5) / _POINTS, freedom / 2.0, scale=2.0 / freedom)
        total = np.full(scale.shape, -np.inf)
        for precision in precisions:
            total = np.logaddexp(total, _normal(1.0 + scale / precision, departures))
        curves.append((total - np.log(_POINTS)).sum(axis=1))
    found: Floats = np.logaddexp.reduce(curves, axis=0)
    return found


def _log_regret(scale: Floats) -> Floats:
    """Return log R(used, true) less its least over the strengths used; axes used, true."""
    weight = scale / (1.0 + scale)
    risk = ((1.0 - weight) ** 2) @ scale.T + (weight**2).sum(axis=1)[:, None]
    risk = np.maximum(risk, 1e-300)
    return np.log(risk) - np.log(risk.min(axis=0))


def posterior_variance(measurements: Measurements, strength: float) -> Floats:
    r"""Return how uncertain each exact count remains, taken by itself, in squared counts."""
    mean, variance = _prior_moments(measurements, strength)
    noise = measurements.cells.per_cell([table.noise.variance for table in measurements.tables])
    variance = np.maximum(variance, 1e-9)
    residual = measurements.values - mean
    ends = np.minimum(residual, 0.0), np.maximum(residual, 0.0)
    shift, current = np.zeros_like(mean), np.minimum(variance, noise)
    for _ in range(_ROUNDS):
        loss = noise_loss(measurements, current)
        slope, precision = loss.slope(residual - shift), 1.0 / variance + loss.curvature(residual - shift)
        # The mean lies between the prior's count and the released one; a Newton step may jump over either.
        shift = np.clip(shift - _DAMPING * (shift / variance - slope) / precision, *ends)
        current = current ** (1 - _DAMPING) * precision**-_DAMPING
    return current


def _prior_moments(measurements: Measurements, strength: float) -> tuple[Floats, Floats]:
    chance = measurements.prior_chance
    free = np.clip(chance * (1.0 - chance), 0.0, None)
    # Sums of weights reach 1 only up to rounding: what is left then is no freedom.
    return measurements.n * chance, np.where(free > 1e-13, measurements.n**2 / strength * free, 0.0)
