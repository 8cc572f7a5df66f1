r"""The noise-aware estimate: a convex problem, solved in its dual with a duality-gap certificate (docs/ide.md).

.. math:: \min_q\; \lambda\, KL(q\|p) + \sum_c \ell_c\bigl(y_c - n (Mq)_c\bigr) \quad\text{and}\quad
          \max_\theta\; \theta^T y - \sum_c \ell_c^*(\theta_c) - \lambda \log \sum_i p_i\, e^{n (M^T\theta)_i/\lambda},

q on the prior's support, M the map to cell probabilities, :math:`q_\theta \propto p\, e^{n M^T\theta/\lambda}`. The
values differ by :math:`\text{gap} = \sum_c \ell_c(r_c) + \ell_c^*(\theta_c) - \theta_c r_c`, r the residuals, and
:math:`\lVert q_\theta - q^*\rVert_1 \le \sqrt{2\,\text{gap}/\lambda}`. The loss is the negative log-likelihood of the
noise averaged over a normal error u of the exact count; of a count held back below t it is :math:`-E \log F(r + u)`,
:math:`r = t - n(Mq)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import erf, erfcx, erfinv, log_ndtr, ndtr

from dpbayes._arguments import Floats, positive_finite, shown
from dpbayes.errors import InputError
from dpbayes.ide.prior import Prior
from dpbayes.privacy.release import NoisyTable, Release, check_of_records

_ROOT_PI = math.sqrt(math.pi)
# A count is a whole number and the prediction is not: rounding leaves at least the variance of a unit interval.
ROUNDING = 1.0 / 12.0
_MOST_STEPS = 100
# Beyond this many cells the Newton system is solved by conjugate gradients and never formed.
_DENSE_CELLS = 2500
_INSIDE = 1.0 - 1e-12
# The least slope of a count that was held back, in units of the scale: 36 scales or 8 standard deviations below.
_LEAST_SLOPE = 1e-16
_TERMS = np.arange(1, 46)
_HALVES = 0.5**_TERMS
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
_ROOT_STEPS = 100
_SHRINK = 0.4
# Where the noise is far below the prior's error, Newton's direction may be good for 4e-9 of its length only (noise of
# scale 2 on two million records); this goes down to 1e-12.
_TRIES = 30
# A step that leaves more than this share of the gap asks for the curvature where it stands.
_PROGRESS = 0.25


@dataclass(frozen=True, eq=False)
class CellMap:
    """Which cell of each table every row of a support falls into."""

    support: Prior
    attribute_sets: tuple[tuple[str, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of cells of each table."""
        return tuple(self.support.domain.project(names).size for names in self.attribute_sets)

    @cached_property
    def starts(self) -> npt.NDArray[np.intp]:
        """First cell of each table, and the number of cells at the end."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.intp)

    @cached_property
    def index(self) -> tuple[npt.NDArray[np.intp], ...]:
        """Each row's cell within each table."""
        return tuple(self.support.index(names) for names in self.attribute_sets)

    @cached_property
    def _by_row(self) -> sparse.csr_array:
        rows, tables = self.support.size, len(self.attribute_sets)
        cells = np.stack([index + start for index, start in zip(self.index, self.starts[:-1], strict=True)], axis=1)
        pointers = np.arange(0, rows * tables + 1, tables)
        return sparse.csr_array((np.ones(rows * tables), cells.ravel(), pointers), shape=(rows, int(self.starts[-1])))

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The map as zeros and ones, shape ``(cells, rows)``."""
        return sparse.csr_array(self._by_row.T)

    def predict(self, weights: Floats) -> Floats:
        """Return the probability of every cell, shape ``(cells,)``."""
        return np.asarray(self.matrix @ weights)

    def spread(self, multipliers: Floats) -> Floats:
        """Return the sum of the multipliers of each row's cells, shape ``(rows,)``: the transpose of `predict`."""
        return np.asarray(self._by_row @ multipliers)

    @cached_property
    def support_covariance(self) -> Floats:
        """Covariance of the cells' indicators under the support's own weights."""
        return self.covariance(self.support.weights)

    def covariance(self, weights: Floats) -> Floats:
        """Return the covariance of the cells' indicators under a distribution, shape ``(cells, cells)``."""
        mean = self.predict(weights)
        second = np.diag(mean)
        for a, b in combinations(range(len(self.sizes)), 2):
            pairs = self.index[a] * self.sizes[b] + self.index[b]
            joint = np.bincount(pairs, weights, self.sizes[a] * self.sizes[b]).reshape(self.sizes[a], self.sizes[b])
            rows, columns = (slice(self.starts[t], self.starts[t + 1]) for t in (a, b))
            second[rows, columns], second[columns, rows] = joint, joint.T
        return second - np.outer(mean, mean)

    def blocks(self, most: int) -> list[tuple[int, int]]:
        """Cut the tables into runs (first, last) of at most so many cells; a larger table is a run by itself."""
        firsts = [0]
        for table in range(1, len(self.sizes)):
            if self.starts[table + 1] - self.starts[firsts[-1]] > most:
                firsts.append(table)
        return list(pairwise([*firsts, len(self.sizes)]))


@dataclass(frozen=True, eq=False)
class Measurements:
    """Released counts, shape ``(cells,)``, with the map from a distribution on the support to their means."""

    prior: Prior
    cells: CellMap
    tables: tuple[NoisyTable, ...]
    values: Floats  # of counts that were held back the limits below which they lie
    n: float

    @cached_property
    def prior_chance(self) -> Floats:
        """Prior probability of every cell."""
        return self.cells.predict(self.prior.weights)

    def prior_covariance(self) -> Floats:
        """Return the covariance of the cells' indicators under the prior, shape ``(cells, cells)``."""
        own = self.prior.weights is self.cells.support.weights
        return self.cells.support_covariance if own else self.cells.covariance(self.prior.weights)

    @cached_property
    def noise_variances(self) -> Floats:
        """Variance of every released count's noise."""
        return np.concatenate([table.variances.ravel() for table in self.tables])

    @cached_property
    def held(self) -> npt.NDArray[np.bool_]:
        """Which counts a threshold held back."""
        return np.concatenate([table.withheld.ravel() for table in self.tables])

    def l1_loss(self, weights: Floats) -> float:
        """Return the L1 distance between the released shares, but those held back, and a distribution's."""
        off = self.values / self.n - self.cells.predict(weights)
        return float(np.abs(off[~self.held]).sum())


def measure(prior: Prior, release: Release, *, cells: CellMap | None = None) -> Measurements:
    """Set a release against a prior; `cells` is the map of another release with the same tables over the support."""
    check_of_records(release, "an estimate")
    for table in release.tables:
        for attribute in table.domain:
            if attribute.name not in prior.domain:
                raise InputError(
                    f"table {table.label} is over {attribute.name!r}, which the prior lacks: add the column to the "
                    f"public data or leave the table out; the prior has {', '.join(map(repr, prior.domain.names))}"
                )
            if prior.domain[attribute.name] != attribute:
                raise InputError(
                    f"table {table.label} answers for levels {shown(list(attribute.levels))} of {attribute.name!r}, "
                    f"outside the prior's {shown(list(prior.domain[attribute.name].levels))}; code both over one domain"
                )
    sets = tuple(table.attributes for table in release.tables)
    if cells is None or cells.attribute_sets != sets or cells.support.codes is not prior.codes:
        cells = CellMap(prior, sets)
    values = np.concatenate([np.where(t.withheld, t.limit, t.counts).ravel() for t in release.tables])
    return Measurements(prior, cells, release.tables, values, release.estimated_size[0])


@dataclass(frozen=True, eq=False)
class HeldLoss:
    r"""The losses -E log F(r + u) of counts that were held back, u normal of variance V.

    Gaussian noise: u by Gauss and Hermite's rule. Laplace noise in closed form: with :math:`z = r/\sqrt V`,
    :math:`a = \sqrt V/s` and :math:`T_k = E[e^{-k(r+u)/s}; r + u > 0] = e^{k^2a^2/2 - kaz}\,\Phi(z - ka)` the loss is
    :math:`\log 2\,\Phi(-z) + a\varphi(z) - az\Phi(-z) + \sum_k 2^{-k} T_k/k`.
    """

    absolute: npt.NDArray[np.bool_]
    scale: Floats
    smoothing: Floats

    def value(self, residual: Floats) -> Floats:
        """Return the loss."""
        u, z, a, powers = self._scaled(residual)
        below = (math.log(2.0) - a * z) * ndtr(-z) + a * np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
        return self._joined(-log_ndtr(u) @ _WEIGHTS, below + powers @ (_HALVES / _TERMS))

    def slopes(self, residual: Floats) -> Floats:
        """Return the first and the second derivative."""
        u, z, _, powers = self._scaled(residual)
        mills = math.sqrt(2.0 / math.pi) / erfcx(-u / math.sqrt(2.0))
        gaussian = np.stack([-mills @ _WEIGHTS, np.clip(mills * (mills + u), 0.0, 1.0) @ _WEIGHTS])
        laplace = np.stack([-ndtr(-z) - powers @ _HALVES, powers @ (_HALVES * _TERMS)])
        return self._joined(gaussian, laplace) / np.stack([self.scale, self.scale**2])

    def _scaled(self, residual: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the rule's nodes of Gaussian noise in units of the scale, and z, a and the T_k of Laplace noise."""
        root, own = np.sqrt(self.smoothing), self.absolute
        u = (residual[~own, None] + root[~own, None] * _NODES) / self.scale[~own, None]
        z, a = residual[own] / root[own], root[own] / self.scale[own]
        shift = a[:, None] * _TERMS
        return u, z, a, np.exp(0.5 * shift**2 - shift * z[:, None] + log_ndtr(z[:, None] - shift))

    def _joined(self, gaussian: Floats, laplace: Floats) -> Floats:
        found = np.empty((*gaussian.shape[:-1], len(self.absolute)))
        found[..., ~self.absolute], found[..., self.absolute] = gaussian, laplace
        return found

    def residual(self, slope: Floats) -> Floats:
        """Return where the loss has a slope; its conjugate is stated by that."""
        size = np.maximum(-slope * self.scale, 1e-300)
        # Beyond all nodes slopes of Laplace noise are below exp(-u), and inverse Mills ratios below exp(-u^2/2).
        over, rest = np.sqrt(self.smoothing) * _NODES[-1], np.maximum(-np.log(size), 0.0)
        low = np.where(self.absolute, -over - self.smoothing / self.scale, -self.scale * size)
        return self._root(low, over + self.scale * np.where(self.absolute, rest, np.sqrt(2.0 * rest)), 0.0, slope)

    def pulled(self, residual: Floats, variance: Floats) -> Floats:
        """Return the minimizer r of the loss plus (r - residual)^2 / 2 variance."""
        high = residual - variance * self.slopes(residual)[0]
        return self._root(residual, high, 1.0 / variance, residual / variance)

    def _root(self, low: Floats, high: Floats, rate: Floats | float, target: Floats) -> Floats:
        """Solve slope(r) + rate r = target within bounds, by Newton's method in the logarithm of the slope."""
        r = 0.5 * (low + high)
        for _ in range(_ROOT_STEPS):
            slope, curvature = self.slopes(r)
            wanted = target - rate * r
            low, high = np.where(slope < wanted, r, low), np.where(slope < wanted, high, r)
            with np.errstate(all="ignore"):
                step = np.log(slope / wanted) / (curvature / slope - rate / (rate * r - target))
            moved = np.where((r - step >= low) & (r - step <= high), r - step, 0.5 * (low + high))
            near = np.abs(moved - r) <= 1e-11 * (np.abs(r) + self.scale)
            r = moved
            if near.all():
                break
        return r


@dataclass(frozen=True, eq=False)
class NoiseLoss:
    """Convex losses of a vector of cells, with their conjugates; `held` says which were held back, if any."""

    absolute: npt.NDArray[np.bool_]
    scale: Floats
    smoothing: Floats
    held: npt.NDArray[np.bool_] | None = None

    def __getitem__(self, cells: npt.NDArray[np.bool_]) -> NoiseLoss:
        held = None if self.held is None or not self.held[cells].any() else self.held[cells]
        return NoiseLoss(self.absolute[cells], self.scale[cells], self.smoothing[cells], held)

    @cached_property
    def of_held(self) -> HeldLoss:
        """The losses of what was held back."""
        assert self.held is not None
        return HeldLoss(self.absolute[self.held], self.scale[self.held], self.smoothing[self.held])

    def _with_held(self, found: Floats, law: Callable[[HeldLoss, Floats], Floats], at: Floats) -> Floats:
        """Return what was found, in cells that were held back by their own law."""
        if self.held is not None:
            found[..., self.held] = law(self.of_held, at[self.held])
        return found

    @property
    def _width(self) -> Floats:
        return np.sqrt(2.0 * self.smoothing)

    def value(self, residual: Floats) -> Floats:
        """Return the loss at residuals."""
        x = residual / self._width
        folded = (residual * erf(x) + self._width / _ROOT_PI * np.exp(-(x**2))) / self.scale
        found = np.where(self.absolute, folded, 0.5 * (residual / self.scale) ** 2)
        return self._with_held(found, HeldLoss.value, residual)

    def slopes(self, residual: Floats) -> Floats:
        """Return the first derivative, per count, and the second, per squared count."""
        x = residual / self._width
        first = np.where(self.absolute, erf(x) / self.scale, residual / self.scale**2)
        folded = 2.0 / (self._width * _ROOT_PI * self.scale) * np.exp(-(x**2))
        second = np.where(self.absolute, folded, 1.0 / self.scale**2)
        return self._with_held(np.stack([first, second]), HeldLoss.slopes, residual)

    def conjugate(self, slope: Floats) -> Floats:
        """Return the convex conjugate at slopes strictly inside `ends`."""
        residual = self.residual(slope)
        return slope * residual - self.value(residual)

    def residual(self, slope: Floats) -> Floats:
        """Return the residual at which the loss has a slope: the derivative of the conjugate."""
        x = erfinv(np.where(self.absolute, slope * self.scale, 0.0))
        found = np.where(self.absolute, self._width * x, slope * self.scale**2)
        return self._with_held(found, HeldLoss.residual, slope)

    def information(self, residual: Floats) -> Floats:
        """Return the expected curvature where the noise follows its law, per squared count."""
        folded = erfcx(np.sqrt(self.smoothing / 2.0) / self.scale)
        found = np.where(self.absolute, folded, 1.0) / self.scale**2
        if self.held is not None:
            # The curvature at the residual or, where Laplace noise has none, the squared slope.
            slope, curvature = self.of_held.slopes(residual[self.held])
            found[self.held] = np.clip(np.maximum(curvature, slope**2), 1e-12 * found[self.held], found[self.held])
        return found

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """Bounds inside which slopes are taken: 1 / scale either side, none for Gaussian noise, 0 of what was held."""
        high = np.where(self.absolute, _INSIDE / self.scale, np.inf)
        return -high, high if self.held is None else np.where(self.held, -_LEAST_SLOPE / self.scale, high)


def noise_loss(measurements: Measurements, smoothing: Floats | float) -> NoiseLoss:
    """Return the losses of all cells."""
    absolute = np.repeat([table.noise.is_pure for table in measurements.tables], measurements.cells.sizes)
    scale = np.concatenate([table.cell_spreads.ravel() for table in measurements.tables])
    scale = np.where(absolute, scale, np.maximum(scale, math.sqrt(ROUNDING)))
    held = measurements.held if measurements.held.any() else None
    return NoiseLoss(absolute, scale, np.broadcast_to(np.maximum(smoothing, ROUNDING), scale.shape), held)


@dataclass(frozen=True, eq=False)
class Solution:
    """A distribution with the proof of how close it is to the best one."""

    weights: Floats
    objective: float
    gap: float
    strength: float
    iterations: int

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
        self.ends = self.loss.ends

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
        return _Point(theta, float(dual), 1e-14 * float(terms), gap, weights, residual)

    def expanded(self, theta: Floats) -> Floats:
        """Return multipliers of all cells."""
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


def solve(measurements: Measurements, loss: NoiseLoss, *, strength: float, tolerance: float = 1e-2) -> Solution:
    """Minimize KL to the prior plus the noise's negative log-likelihood."""
    positive_finite(tolerance, "tolerance", remedy="0.01 is the default")
    problem = _Problem(measurements, loss, strength)
    point, steps = problem.at(np.clip(np.zeros(len(problem.values)), *problem.ends)), 0
    covariance, fresh = problem.covariance(None), True
    while point.gap > tolerance and steps < _MOST_STEPS:
        better = _step(problem, point, covariance)
        if better is None and (fresh or covariance is None):
            break
        steps += better is not None
        slow = better is None or better.gap > _PROGRESS * point.gap
        point, fresh = better or point, False
        if slow and covariance is not None and point.gap > tolerance:
            covariance, fresh = problem.covariance(point), True
    return Solution(point.weights, point.dual + point.gap + problem.fixed_loss, point.gap, strength, steps)


def _step(problem: _Problem, point: _Point, covariance: Floats | None) -> _Point | None:
    """Return the best point that a Newton direction leads to, or None where rounding leaves no ascent."""
    loss = problem.loss
    # A saturated cell has no curvature left: its multiplier moves to its limit and stays.
    ceiling = 1e12 * max(1.0, problem.measurements.n**2 / problem.strength)
    best: _Point | None = None
    for at in (point.residual, loss.residual(point.theta)):
        slope, curvature = loss.slopes(at)
        softness = np.minimum(1.0 / np.maximum(curvature, 1e-300), ceiling)
        wanted = slope - point.theta + (point.residual - at) / softness
        found = _line_search(problem, point, problem.direction(point, covariance, softness, wanted))
        if found is not None and (best is None or found.dual > best.dual):
            best = found
        if best is not None and best.gap <= _PROGRESS * point.gap:
            break
    return best


def _line_search(problem: _Problem, point: _Point, direction: Floats) -> _Point | None:
    length = 1.0
    for _ in range(_TRIES):
        candidate = problem.at(np.clip(point.theta + length * direction, *problem.ends))
        # Where ascent drowns in rounding the gap, a sum of small terms, still tells.
        level = candidate.dual >= point.dual - point.rounding and candidate.gap < 0.5 * point.gap
        if candidate.dual > point.dual + point.rounding or level:
            return candidate
        length *= _SHRINK
    return None
