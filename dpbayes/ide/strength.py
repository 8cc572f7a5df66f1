r"""How much the prior is worth, in records and direction by direction, from the release alone (docs/ide.md).

Each noisy count gives a pseudo-observation :math:`z = n(Mq - Mp)_c + \ell'(r_c)/I_c` of how far the exact count departs
from the prior's. In the eigenvectors of :math:`I^{1/2} C I^{1/2}`, C the cells' covariance under the prior (eigenvalues
g), departures are observed with independent errors of variance 1 and have beforehand the scale
:math:`\sqrt{\gamma_k}`, :math:`\gamma_k = n^2 g_k/\lambda`, times a normal or Student t variable.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse
from scipy.special import gammaincinv, logsumexp

from dpbayes._arguments import Floats, positive_finite, shown
from dpbayes.errors import InputError
from dpbayes.ide.noise_aware import ROUNDING, CellMap, Measurements, Solution, noise_loss, solve
from dpbayes.ide.prior import Prior

_GRID = 41
_SAME = 0.8
_TAILS = (1.0, 2.0, 4.0)
# Points of equal probability that stand for the gamma law of a Student variable's precision.
_POINTS = 16
# Blocks of tables with more cells than this are taken as independent of each other.
_DENSE_CELLS = 2500
# Directions moved by less than this, in standard errors, stay; at most so many are moved.
_STILL, _MOST_MOVED = 0.02, 64
# Nats within which the estimate is good enough to linearize at.
_ROUGH = 0.5
_DAMPING = 0.7
_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class Strength:
    """A prior strength in records, the likelihood that it was read from, and how many directions moved the prior."""

    value: float
    most_likely: float
    bound: float
    grid: Floats
    log_likelihood: Floats
    moved: int = 0

    @classmethod
    def of(cls, value: float | str) -> Strength | None:
        """Return a strength that the caller chose, or None for the one that the release says."""
        if isinstance(value, str):
            if value != "release":
                raise InputError(f"strength must be a number of records or 'release', got {shown(value)}")
            return None
        remedy = "in records, or 'release'; n trusts the prior as the population that the records were drawn from"
        number, none = positive_finite(value, "strength", remedy=remedy), np.empty(0)
        return cls(number, number, number, none, none)


@dataclass(frozen=True, eq=False)
class Directions:
    """Independent observations of how the records depart from the prior, in standard errors."""

    ratios: Floats  # variances at strength 1
    departures: Floats
    tilts: sparse.csc_array  # the cells' parts in each, shape (cells, directions)


@dataclass(frozen=True, eq=False)
class Belief:
    """What a release says of the prior's strength and of each direction's share of departure that is real."""

    grid: Floats
    log_likelihood: Floats
    posterior: Floats
    share: Floats
    variance: Floats

    def strength(self, moved: int = 0) -> Strength:
        """Return the geometric mean of the posterior."""
        curve = self.log_likelihood - self.log_likelihood.max()
        value = float(np.exp(self.posterior @ np.log(self.grid)))
        return Strength(value, float(self.grid[int(np.argmax(curve))]), float(self.grid[-1]), self.grid, curve, moved)


def strength_bound(measurements: Measurements) -> float:
    """Return the strength at which prior and private data are samples of one population: 1 / (1/n + 1/m)."""
    records = measurements.prior.n_records
    return 1.0 / (1.0 / measurements.n + (0.0 if records is None else 1.0 / records))


def scalar_strength(measurements: Measurements) -> Strength:
    """Return the strength under normal departures alone, for a model with one strength for all directions."""
    return weigh(spectrum(measurements), strength_bound(measurements), tails=()).strength()


def weighed_solution(measurements: Measurements, tolerance: float) -> tuple[Solution, Strength]:
    """Estimate with the strength, and the moves of the prior, that the release itself asks for."""
    bound = strength_bound(measurements)
    first = weigh(spectrum(measurements), bound).strength().value
    start = solved(measurements, first, max(tolerance, _ROUGH)).weights
    directions = spectrum(measurements, start, first)
    belief = weigh(directions, bound)
    strength = belief.strength().value
    prior, moved = recentred(measurements, directions, belief, strength)
    centred = replace(measurements, prior=prior) if moved else measurements
    return solved(centred, strength, tolerance), belief.strength(moved)


def solved(measurements: Measurements, strength: float, tolerance: float) -> Solution:
    """Solve at a given strength, the loss averaged over how uncertain each exact count remains."""
    loss = noise_loss(measurements, posterior_variance(measurements, strength))
    return solve(measurements, loss, strength=strength, tolerance=tolerance)


def _observed(measurements: Measurements, weights: Floats | None, strength: float) -> tuple[Floats, Floats]:
    """Return how far the exact counts depart from the prior's, as observed, and the roots of the precisions."""
    expected = measurements.n * measurements.prior_chance
    smoothing = 0.0 if weights is None else posterior_variance(measurements, strength)
    near = expected if weights is None else measurements.n * measurements.cells.predict(weights)
    loss, residual = noise_loss(measurements, smoothing), measurements.values - near
    information = loss.information(residual)
    observed, root = near - expected + loss.slopes(residual)[0] / information, np.sqrt(information)
    if weights is None:
        # Pseudo-observations hold near the exact counts only: those that were held back have nothing else.
        variances = np.maximum(measurements.noise_variances, ROUNDING)
        observed = np.where(measurements.held, observed, residual)
        root = np.where(measurements.held, root, 1.0 / np.sqrt(variances))
    return observed, root


def spectrum(
    measurements: Measurements, weights: Floats | None = None, strength: float = 1.0, covariance: Floats | None = None
) -> Directions:
    """Return the departures from the prior, linearized at `weights` where given; the covariance is the prior's."""
    departure, root = _observed(measurements, weights, strength)
    working, cells = departure * root, measurements.cells
    blocks = cells.blocks(_DENSE_CELLS) if covariance is None else [(0, len(cells.sizes))]
    if covariance is None and len(blocks) == 1 and len(root) <= _DENSE_CELLS:
        covariance = measurements.prior_covariance()
    ratios, departures, tilts = [], [], []
    for first, last in blocks:
        part, block = slice(cells.starts[first], cells.starts[last]), covariance
        here = root[part]
        if covariance is None and len(here) > _DENSE_CELLS:
            # One table: its cells, which depend on each other through their sum alone.
            chance = measurements.prior_chance[part]
            values, vectors = chance * (1.0 - chance) * here**2, sparse.eye_array(len(here), format="csc")
        else:
            if block is None:
                block = CellMap(cells.support, cells.attribute_sets[first:last]).covariance(measurements.prior.weights)
            values, dense = np.linalg.eigh(block * here[:, None] * here)
            vectors = sparse.csc_array(dense)
        held = np.flatnonzero(values > 1e-11 * max(float(values.max()), 1e-300))
        ratios.append(measurements.n**2 * values[held])
        departures.append(vectors[:, held].T @ working[part])
        tilts.append(sparse.csc_array(vectors[:, held].multiply(here[:, None])))
    whole = sparse.csc_array(sparse.block_diag(tilts, format="csc"))
    return Directions(np.concatenate(ratios), np.concatenate(departures), whole)


def weigh(directions: Directions, bound: float, *, same: float = _SAME, tails: tuple[float, ...] = _TAILS) -> Belief:
    """Average over strengths and tails; `same` is the probability beforehand that the populations agree."""
    grid = np.geomspace(min(1.0, bound), bound, _GRID)
    scale, seen = directions.ratios / grid[:, None], directions.departures
    kinds = [_tail(scale, seen, np.ones(1))]
    for freedom in tails:
        points = (np.arange(_POINTS) + 0.5) / _POINTS
        kinds.append(_tail(scale, seen, 2.0 / freedom * gammaincinv(freedom / 2.0, points)))
    curves = np.stack([curve for curve, _, _ in kinds])
    beforehand = np.full(curves.shape, (1.0 - same) / curves.size)
    beforehand[0, -1] += same
    belief = beforehand * np.exp(curves - curves.max())
    belief /= belief.sum()
    share, square = (
        sum(np.einsum("g,gk->k", part, kind[power]) for part, kind in zip(belief, kinds, strict=True))
        for power in (1, 2)
    )
    variance = share + np.clip(square - share**2, 0.0, None) * seen**2
    return Belief(grid, logsumexp(curves, axis=0), belief.sum(axis=0), np.asarray(share), np.asarray(variance))


def _tail(scale: Floats, departures: Floats, precisions: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the log-density at every strength, and the mean and mean square share that is real by direction."""
    total, first, second = (np.full(scale.shape, -np.inf) for _ in range(3))
    for precision in precisions:
        variance = 1.0 + scale / precision
        density = -0.5 * (np.log(variance) + departures**2 / variance)
        real = np.log1p(-1.0 / variance)
        total = np.logaddexp(total, density)
        first, second = np.logaddexp(first, density + real), np.logaddexp(second, density + 2.0 * real)
    curve = (total - np.log(len(precisions))).sum(axis=1)
    return curve, np.exp(first - total), np.exp(second - total)


def recentred(measurements: Measurements, directions: Directions, belief: Belief, strength: float) -> tuple[Prior, int]:
    r"""Return the prior moved along the directions that depart by more than the strength allows, and their number.

    With e the variance that a direction needs beyond :math:`\gamma`, the tilt t minimizes
    :math:`\log \sum_i p_i e^{t^T f_i} - t^T(\mu + d) + \tfrac12 \sum_k (1 + \gamma_k) (G_k/e_k) t_k^2`, f the rows'
    values in the directions, :math:`\mu` their mean under p, d the departures and G their variances at strength 1.
    """
    fine = directions.ratios / strength
    extra = np.clip(belief.share / np.maximum(1.0 - belief.share, 1e-12) - fine, 0.0, None)
    move = extra / (1.0 + fine + extra) * np.abs(directions.departures)
    chosen = np.argsort(-move)[:_MOST_MOVED]
    chosen = chosen[move[chosen] > _STILL]
    prior = measurements.prior
    if not len(chosen):
        return prior, 0
    tilts = measurements.n * directions.tilts[:, chosen]
    ridge = (1.0 + fine[chosen]) * directions.ratios[chosen] / extra[chosen]
    weights = _tilted(measurements, tilts, directions.departures[chosen], directions.ratios[chosen], ridge)
    return prior.reweighted(weights), len(chosen)


def _tilted(given: Measurements, tilts: sparse.csc_array, departures: Floats, ratios: Floats, ridge: Floats) -> Floats:
    """Minimize the convex function of `recentred`, in coordinates in which its curvature at 0 is the identity."""
    with np.errstate(divide="ignore"):
        start = np.log(given.prior.weights)
    mean = tilts.T @ given.prior_chance
    unit = 1.0 / np.sqrt(ratios + ridge)

    def weights(tilt: Floats) -> tuple[Floats, float]:
        logs = start + given.cells.spread(tilts @ tilt)
        total = float(logsumexp(logs))
        return np.exp(logs - total), total

    def value_and_slope(point: Floats) -> tuple[float, Floats]:
        tilt = unit * point
        found, total = weights(tilt)
        slope = tilts.T @ given.cells.predict(found) - mean - departures + ridge * tilt
        return total - tilt @ (mean + departures) + 0.5 * ridge @ tilt**2, unit * slope

    from scipy.optimize import minimize  # takes longer to import than a spec to be refused

    found = minimize(value_and_slope, np.zeros(len(unit)), jac=True, method="L-BFGS-B", options={"gtol": 1e-3})
    return weights(unit * found.x)[0]


def posterior_variance(measurements: Measurements, strength: float) -> Floats:
    """Return how uncertain each exact count remains, taken by itself, in squared counts."""
    chance = measurements.prior_chance
    # Sums of weights reach 1 only up to rounding: what is left then is no freedom.
    free = np.where(chance * (1.0 - chance) > 1e-13, chance * (1.0 - chance), 0.0)
    variance = np.maximum(measurements.n**2 / strength * free, 1e-9)
    residual = measurements.values - measurements.n * chance
    ends = np.minimum(residual, 0.0), np.maximum(residual, 0.0)
    shift, current = np.zeros_like(residual), np.minimum(variance, measurements.noise_variances)
    for _ in range(_ROUNDS):
        loss = noise_loss(measurements, current)
        if loss.held is not None:
            shift[loss.held] = residual[loss.held] - loss.of_held.pulled(residual[loss.held], variance[loss.held])
        slope, curvature = loss.slopes(residual - shift)
        precision = 1.0 / variance + curvature
        # The mean lies between the prior's count and the released one; a Newton step may jump over either.
        moved = np.clip(shift - _DAMPING * (shift / variance - slope) / precision, *ends)
        shift = np.where(measurements.held, shift, moved)
        current = current ** (1 - _DAMPING) * precision**-_DAMPING
    return current
