r"""The noise-aware estimate: a convex problem, solved in its dual with a duality-gap certificate.

.. math:: \min_q\; \lambda\, KL(q\|p) + \sum_c \ell_c\bigl(y_c - n (Mq)_c\bigr)

over distributions q on the prior's support, M the map to cell probabilities and :math:`\ell_c` the negative
log-likelihood of the cell's noise (`dpbayes.ide.losses`). With one multiplier a cell the dual is

.. math:: \max_\theta\; \theta^T y - \sum_c \ell_c^*(\theta_c) - \lambda \log \sum_i p_i\, e^{n (M^T\theta)_i/\lambda},
          \qquad q_\theta \propto p\, e^{n M^T\theta/\lambda},

smooth, concave, and as large as the release whatever the support. At :math:`q_\theta` the two values differ by

.. math:: \text{gap} = \sum_c \ell_c(r_c) + \ell_c^*(\theta_c) - \theta_c r_c \ge 0, \qquad r = y - nMq_\theta,

and since KL is a Bregman divergence, :math:`\lambda KL(q_\theta\|q^*) \le \text{gap}`, so that by Pinsker's inequality
:math:`\lVert q_\theta - q^*\rVert_1 \le \sqrt{2\,\text{gap}/\lambda}`: the certificate holds for every marginal at
once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh
from scipy.sparse.linalg import LinearOperator, cg

from dpbayes.errors import InputError
from dpbayes.ide.losses import NoiseLoss
from dpbayes.ide.measurements import Measurements

__all__ = ["Solution", "solve"]

type Floats = npt.NDArray[np.float64]

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
class Solution:
    """A distribution with the proof of how close it is to the best one.

    Parameters
    ----------
    weights
        Distribution on the support.
    multipliers
        Dual variables, one a cell: the pull of each released count, in nats a count.
    objective
        Primal value, in nats.
    gap
        Primal minus dual value: the most that any distribution could gain.
    strength
        Of the prior, in records.
    iterations
        Newton steps.
    gaps
        The gap before the first step and after each.

    Examples
    --------
    >>> Solution(np.ones(1), np.zeros(2), 3.0, 0.005, 100.0, 2, (4.0, 0.1, 0.005)).l1_bound
    0.01
    """

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
        r"""Return :math:`\frac{n^2}{\lambda} \mathrm{Cov}`, the log-normalizer's curvature, or None if too large.

        Without a point it is the prior's, which all groups of one prior share.
        """
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
    """Minimize KL to the prior plus the noise's negative log-likelihood.

    Parameters
    ----------
    measurements
        The release set against the prior.
    loss
        The cells' losses.
    strength
        Of the prior, in records; positive.
    tolerance
        Duality gap, in nats of penalized likelihood, at which to stop; a hundredth of a nat is far below what data can
        tell apart.
    max_iterations
        Newton steps at most. A solution whose gap is above the tolerance says so by its `gap`: rounding leaves that
        where the noise is of the order of 1e-8 of the records.
    start
        Multipliers to start from, those of a similar problem; zero, the prior itself, by default.

    Returns
    -------
    Solution
        The distribution, its multipliers and its certificate.

    Raises
    ------
    InputError
        If a setting is out of range.

    Notes
    -----
    There are two Newton directions of the dual, one with the losses' curvature at the residuals predicted, one at the
    residuals that the multipliers imply. The first is taken where it closes the gap fast, otherwise the better of the
    two after backtracking. The second is Newton's method for the dual itself, so that every step ascends.

    The costly part of the curvature is the cells' covariance. The prior's, which is shared by all groups that start
    from it, serves as long as the gap falls fast (chord steps); then the covariance is taken anew where it stands.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.ide import Prior, measure
    >>> from dpbayes.ide.losses import noise_loss
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> measurements = measure(Prior.full(release.domain), release)
    >>> solution = solve(measurements, noise_loss(measurements, 50.0), strength=20.0)
    >>> bool(solution.gap <= 1e-2), bool(solution.l1_bound < 0.04)
    (True, True)
    """
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
