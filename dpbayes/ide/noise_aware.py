r"""The noise-aware estimate: a convex problem, solved in its dual with a duality-gap certificate (docs/ide.md).

.. math:: \min_q\; \lambda\, KL(q\|p) + \sum_c \ell_c\bigl(y_c - n (Mq)_c\bigr)

over distributions q on the prior's support, M the map to cell probabilities. With one multiplier per cell the dual is

.. math:: \max_\theta\; \theta^T y - \sum_c \ell_c^*(\theta_c) - \lambda \log \sum_i p_i\, e^{n (M^T\theta)_i/\lambda},
          \qquad q_\theta \propto p\, e^{n M^T\theta/\lambda},

as large as the release whatever the support. The two values differ by :math:`\text{gap} = \sum_c \ell_c(r_c) +
\ell_c^*(\theta_c) - \theta_c r_c`, r the residuals, and :math:`\lVert q_\theta - q^*\rVert_1 \le
\sqrt{2\,\text{gap}/\lambda}`. The loss of a cell is the negative log-likelihood of its noise averaged over a normal
error of variance V in the exact count: :math:`E|r + u|/s` for two-sided geometric and Laplace noise, and
:math:`r^2/2\sigma^2` for the Gaussians, where V changes only a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import erf, erfinv

from dpbayes.errors import InputError
from dpbayes.ide.cells import Measurements

type Floats = npt.NDArray[np.float64]

_ROOT_PI = math.sqrt(math.pi)
# A count is a whole number and the prediction is not: rounding leaves at least the variance of a unit interval.
ROUNDING = 1.0 / 12.0
# Beyond this many cells the Newton system is solved by conjugate gradients and never formed.
_DENSE_CELLS = 2500
_INSIDE = 1.0 - 1e-12
_SHRINK = 0.4
# Where the noise is far below the prior's error, Newton's direction may be good for 4e-9 of its length only (noise of
# scale 2 on two million records); this goes down to 1e-12.
_TRIES = 30
# A step that leaves more than this share of the gap asks for the curvature where it stands.
_PROGRESS = 0.25


@dataclass(frozen=True, eq=False)
class NoiseLoss:
    """Convex losses of a vector of cells, with their conjugates."""

    absolute: npt.NDArray[np.bool_]
    scale: Floats
    smoothing: Floats

    def __getitem__(self, cells: npt.NDArray[np.bool_]) -> NoiseLoss:
        return NoiseLoss(self.absolute[cells], self.scale[cells], self.smoothing[cells])

    @property
    def _width(self) -> Floats:
        return np.sqrt(2.0 * self.smoothing)

    def value(self, residual: Floats) -> Floats:
        """Return the loss at residuals, in nats."""
        x = residual / self._width
        folded = (residual * erf(x) + self._width / _ROOT_PI * np.exp(-(x**2))) / self.scale
        return np.where(self.absolute, folded, 0.5 * (residual / self.scale) ** 2)

    def slope(self, residual: Floats) -> Floats:
        """Return the derivative, per count."""
        return np.where(self.absolute, erf(residual / self._width) / self.scale, residual / self.scale**2)

    def curvature(self, residual: Floats) -> Floats:
        """Return the second derivative, per squared count."""
        folded = 2.0 / (self._width * _ROOT_PI * self.scale) * np.exp(-((residual / self._width) ** 2))
        return np.where(self.absolute, folded, 1.0 / self.scale**2)

    def conjugate(self, slope: Floats) -> Floats:
        """Return the convex conjugate at slopes strictly inside `bound`."""
        x = erfinv(np.where(self.absolute, slope * self.scale, 0.0))
        folded = -self._width / (_ROOT_PI * self.scale) * np.exp(-(x**2))
        return np.where(self.absolute, folded, 0.5 * (slope * self.scale) ** 2)

    def residual(self, slope: Floats) -> Floats:
        """Return the residual at which the loss has a slope: the derivative of the conjugate."""
        x = erfinv(np.where(self.absolute, slope * self.scale, 0.0))
        return np.where(self.absolute, self._width * x, slope * self.scale**2)

    @property
    def bound(self) -> Floats:
        """Largest size of a slope: 1 / scale, or infinite for Gaussian noise."""
        return np.where(self.absolute, 1.0 / self.scale, np.inf)


def noise_loss(measurements: Measurements, smoothing: Floats | float) -> NoiseLoss:
    """Return the losses of all cells."""
    laws = [table.noise for table in measurements.tables]
    absolute = [law.is_pure for law in laws]
    scale = [law.spread if law.is_pure else max(law.spread, math.sqrt(ROUNDING)) for law in laws]
    wide = measurements.cells.per_cell([1.0] * len(laws)) * np.maximum(smoothing, ROUNDING)
    return NoiseLoss(measurements.cells.per_cell(absolute) > 0, measurements.cells.per_cell(scale), wide)


@dataclass(frozen=True, eq=False)
class Solution:
    """A distribution with the proof of how close it is to the best one."""

    weights: Floats
    multipliers: Floats
    objective: float
    gap: float
    strength: float
    iterations: int
    gaps: tuple[float, ...]

    @property
    def l1_bound(self) -> float:
        """Largest L1 distance, over the support and over any marginal, to the exact minimizer."""
        return min(2.0, math.sqrt(2.0 * max(self.gap, 0.0) / self.strength))


@dataclass(frozen=True, eq=False)
class _Point:
    """The problem at one value of the multipliers."""

    theta: Floats
    dual: float
    rounding: float  # of the dual value, whose terms may be far larger than itself
    gap: float
    primal: float
    weights: Floats
    residual: Floats


class _Problem:
    """The dual restricted to the cells that the prior leaves free."""

    def __init__(self, measurements: Measurements, loss: NoiseLoss, strength: float) -> None:
        self.measurements, self.strength = measurements, strength
        with np.errstate(divide="ignore"):
            self.log_prior = np.log(measurements.prior.weights)
        chance = measurements.prior_chance
        # A cell that the prior holds impossible or certain keeps its residual whatever q is.
        self.free = (chance * (1.0 - chance)) > 1e-13
        self.fixed_loss = float(loss.value(measurements.values - measurements.n * chance)[~self.free].sum())
        self.loss, self.values = loss[self.free], measurements.values[self.free]
        self.limit = self.loss.bound * _INSIDE

    def at(self, theta: Floats) -> _Point:
        """Evaluate both problems."""
        n, strength = self.measurements.n, self.strength
        log_weights = self.log_prior + self.measurements.cells.spread(self.expanded(theta * (n / strength)))
        top = log_weights.max()
        weights = np.exp(log_weights - top)
        mass = weights.sum()
        weights /= mass
        residual = self.values - n * self.measurements.cells.predict(weights)[self.free]
        conjugate = self.loss.conjugate(theta)
        dual = theta @ self.values - conjugate.sum() - strength * (top + math.log(mass))
        terms = np.abs(theta * self.values).sum() + np.abs(conjugate).sum() + strength * abs(top)
        gap = float((self.loss.value(residual) + conjugate - theta * residual).sum())
        primal = float(dual) + gap + self.fixed_loss
        return _Point(theta, float(dual), 1e-14 * float(terms), gap, primal, weights, residual)

    def expanded(self, theta: Floats) -> Floats:
        full = np.zeros(len(self.free))
        full[self.free] = theta
        return full

    def covariance(self, point: _Point | None) -> Floats | None:
        r"""Return :math:`\frac{n^2}{\lambda} \mathrm{Cov}`, the log-normalizer's curvature, or None if too large."""
        if np.count_nonzero(self.free) > _DENSE_CELLS:
            return None
        cells = self.measurements.cells
        covariance = self.measurements.prior_covariance() if point is None else cells.covariance(point.weights)
        return (self.measurements.n**2 / self.strength) * covariance[np.ix_(self.free, self.free)]

    def direction(self, point: _Point, covariance: Floats | None, softness: Floats, target: Floats) -> Floats:
        r"""Solve :math:`(D + \frac{n^2}{\lambda} \mathrm{Cov})\, d = D\, t`, D the diagonal `softness`."""
        root = 1.0 / np.sqrt(softness)
        if covariance is None:
            return root * self._conjugate_gradients(point, root, target / root)
        matrix = covariance * root[:, None] * root
        # Rounding of the covariance counts as much as the second term.
        matrix.flat[:: len(root) + 1] += 1.0 + 1e-15 * np.trace(matrix)
        try:
            solution: Floats = cho_solve(cho_factor(matrix, lower=True), target / root)
        except LinAlgError:  # rounding, where the noise is tiny beside n: no eigenvalue is below one
            values, vectors = eigh(matrix)
            solution = vectors @ ((vectors.T @ (target / root)) / np.maximum(values, 1.0))
        return root * solution

    def _conjugate_gradients(self, point: _Point, root: Floats, target: Floats) -> Floats:
        factor = self.measurements.n**2 / self.strength
        mean = self.measurements.cells.predict(point.weights)[self.free]

        def apply(v: Floats) -> Floats:
            scaled = root * v
            rows = point.weights * self.measurements.cells.spread(self.expanded(scaled))
            return v + factor * root * (self.measurements.cells.predict(rows)[self.free] - mean * (mean @ scaled))

        size = len(root)
        solution, _ = cg(LinearOperator((size, size), matvec=apply, dtype=np.float64), target, rtol=1e-4, maxiter=400)
        return np.asarray(solution)


def solve(
    measurements: Measurements,
    loss: NoiseLoss,
    *,
    strength: float,
    tolerance: float = 1e-2,
    max_iterations: int = 100,
    start: Floats | None = None,
) -> Solution:
    """Minimize KL to the prior plus the noise's negative log-likelihood."""
    if not (tolerance > 0 and max_iterations >= 0):
        raise InputError(f"tolerance must be positive and max_iterations at least 0, got {tolerance}, {max_iterations}")
    problem = _Problem(measurements, loss, strength)
    first = np.zeros(len(problem.free)) if start is None else start
    point = problem.at(np.clip(first[problem.free], -problem.limit, problem.limit))
    gaps = [point.gap]
    covariance, fresh = problem.covariance(None), start is None
    while point.gap > tolerance and len(gaps) <= max_iterations:
        better = _step(problem, point, covariance)
        if better is None and (fresh or covariance is None):
            break
        if better is not None:
            gaps.append(better.gap)
        slow = better is None or better.gap > _PROGRESS * point.gap
        point, fresh = better or point, False
        if slow and covariance is not None and point.gap > tolerance:
            covariance, fresh = problem.covariance(point), True
    multipliers = problem.expanded(point.theta)
    return Solution(point.weights, multipliers, point.primal, point.gap, strength, len(gaps) - 1, tuple(gaps))


def _step(problem: _Problem, point: _Point, covariance: Floats | None) -> _Point | None:
    """Return the best point that a Newton direction leads to, or None where rounding leaves no ascent."""
    loss = problem.loss
    # A saturated cell has no curvature left: its multiplier moves to its limit and stays.
    ceiling = 1e12 * max(1.0, problem.measurements.n**2 / problem.strength)
    best: _Point | None = None
    for at in (point.residual, loss.residual(point.theta)):
        softness = np.minimum(1.0 / np.maximum(loss.curvature(at), 1e-300), ceiling)
        wanted = loss.slope(at) - point.theta + (point.residual - at) / softness
        found = _line_search(problem, point, problem.direction(point, covariance, softness, wanted))
        if found is not None and (best is None or found.dual > best.dual):
            best = found
        if best is not None and best.gap <= _PROGRESS * point.gap:
            break
    return best


def _line_search(problem: _Problem, point: _Point, direction: Floats) -> _Point | None:
    length = 1.0
    for _ in range(_TRIES):
        candidate = problem.at(np.clip(point.theta + length * direction, -problem.limit, problem.limit))
        # Where ascent drowns in rounding the gap, a sum of small terms, still tells.
        level = candidate.dual >= point.dual - point.rounding and candidate.gap < 0.5 * point.gap
        if candidate.dual > point.dual + point.rounding or level:
            return candidate
        length *= _SHRINK
    return None
