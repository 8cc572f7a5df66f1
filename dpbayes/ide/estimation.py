r"""`estimate`: a prior and a release in, a distribution and its posterior out; and the paper's Algorithm 1.

A share f has the mean of the estimate and, c_k its covariance with direction k of `dpbayes.ide.strength` under the
estimate, the variance :math:`\frac1\lambda (f(1-f) - \sum_k c_k^2/G_k) + \sum_k (c_k/G_k)^2 v_k`, v the mean squares of
the departures about the estimate; its intervals are those of the Beta law with these moments.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, rel_entr

from dpbayes._arguments import Floats, generator, instance, probability_below_one, whole_number
from dpbayes._lazy import pl
from dpbayes.data.domain import check_rows
from dpbayes.errors import AccuracyWarning, InputError
from dpbayes.ide.noise_aware import Measurements, Solution, measure
from dpbayes.ide.prior import Prior, grouping_attribute, records_of, strengthened
from dpbayes.ide.strength import Strength, solved, spectrum, weigh, weighed_solution
from dpbayes.privacy.release import Release

type Method = Literal["algorithm-1", "noise-aware"]

# Released cells beyond which the dense system of the posterior is not formed.
_MOST_CELLS = 8000
# Points of the trace: evaluating the loss over all tables costs as much as updating them all once.
_TRACE_POINTS = 60


@dataclass(frozen=True, eq=False)
class Estimate:
    """A distribution estimated from a public prior and a release of n records: what `estimate` returns.

    `weights` are on the rows of `prior`, pooled where `estimate` was asked to. `method` is ``"prior"`` where the
    released number of records was not positive. `measurements` set the release against the prior. A noise-aware
    estimate has a `strength` and a certified `solution`; Algorithm 1 has the trace of its `iterations`.
    """

    prior: Prior
    weights: Floats
    n: float
    method: Literal["noise-aware", "algorithm-1", "prior"]
    measurements: Measurements = field(repr=False)
    strength: Strength | None = field(default=None, repr=False)
    solution: Solution | None = field(default=None, repr=False)
    iterations: Iterations | None = field(default=None, repr=False)

    @property
    def distribution(self) -> Prior:
        """The estimate as a prior for what comes next: for other releases, scores or groups."""
        return self.prior.reweighted(self.weights)

    @property
    def kl(self) -> float:
        """KL divergence from the prior, with natural logarithms."""
        return kl_divergence(self.weights, self.prior.weights)

    def marginal(self, names: Sequence[str]) -> Floats:
        """Return the estimated probabilities of the table over some attributes."""
        return self.prior.marginal(names, self.weights)

    def interval(self, names: Sequence[str], *, prob: float = 0.95) -> tuple[Floats, Floats]:
        """Return the ends of equal-tailed posterior intervals for the table over some attributes.

        Parameters
        ----------
        names
            The attributes, in the order of the axes wanted; any of the prior's, released together or not.
        prob
            Posterior probability of each interval.

        Returns
        -------
        tuple of numpy.ndarray
            Lower and upper ends of the confidential records' shares, each of the shape of `marginal`.

        Raises
        ------
        InputError
            If the estimate is not noise-aware, or there are more than 8,000 released cells.

        Notes
        -----
        The shares of n records are whole multiples of 1 / n: the ends are rounded to them, with the usual correction
        for continuity. Intervals hold on the prior's support: where it has no row, the share is 0 for certain.
        """
        prob = probability_below_one(prob, "prob", remedy="the usual choice is 0.95")
        if self.solution is None:
            raise InputError(
                f"an estimate by {self.method} has no posterior; intervals need a noise-aware one "
                "(noise_aware=True) of a release with a positive number of records"
            )
        mean, variance = self.moments(names)
        # What does not vary gets a very narrow law.
        inside = np.clip(mean, 1e-12, 1.0 - 1e-12)
        size = np.clip(inside * (1.0 - inside) / np.maximum(variance, 1e-24) - 1.0, 1e-6, 1e15)
        tails = 0.5 - prob / 2, 0.5 + prob / 2
        low, high = (betaincinv(inside * size, (1.0 - inside) * size, tail) for tail in tails)
        n, held = self.n, mean > 0
        return np.where(held, np.ceil(n * low - 0.5) / n, 0.0), np.where(held, np.floor(n * high + 0.5) / n, 0.0)

    def moments(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Return the posterior mean and variance of every cell's share in the table over some attributes."""
        part, index, cells = self.prior.domain.project(names), self.prior.index(names), self.measurements.cells
        mean = np.bincount(index, self.weights, part.size)
        counted = zip(cells.sizes, cells.index, strict=True)
        joints = [np.bincount(index * k + at, self.weights, part.size * k).reshape(part.size, k) for k, at in counted]
        joint = np.concatenate(joints, axis=1)
        tilts, variance, unseen = self._directions
        seen = ((joint - np.outer(mean, cells.predict(self.weights))) @ tilts) ** 2
        found = (mean * (1.0 - mean) - seen.sum(axis=1)).clip(0.0) * unseen + seen @ variance
        return mean.reshape(part.shape), found.reshape(part.shape)

    @cached_property
    def _directions(self) -> tuple[Floats, Floats, float]:
        """Directions scaled to unit variance, their posterior variances, and the variance of what no cell sees."""
        given, strength = self.measurements, self.strength
        assert strength is not None
        if len(given.values) > _MOST_CELLS:
            raise InputError(
                f"intervals solve a dense system in the released cells, {len(given.values):,} here and at most "
                f"{_MOST_CELLS:,}; release fewer or smaller tables"
            )
        found = spectrum(given, self.weights, strength.value, given.cells.covariance(self.weights))
        variance, unseen = found.ratios / (found.ratios + strength.value), 1.0 / strength.value
        if len(strength.grid):
            belief = weigh(found, strength.bound, same=0.0, tails=())
            moved = found.tilts.T @ (given.n * (given.cells.predict(self.weights) - given.prior_chance))
            variance = belief.variance + (belief.share * found.departures - moved) ** 2
            unseen = float(belief.posterior @ (1.0 / belief.grid))
        tilts = given.n * found.tilts.toarray() / np.sqrt(found.ratios)
        return tilts, variance / found.ratios, unseen

    def sample(self, n_rows: int, *, rng: np.random.Generator) -> pl.DataFrame:
        """Draw synthetic records, one column per attribute; nothing here is confidential, so the seed is free."""
        check_rows(rows := whole_number(n_rows, "n_rows", low=0), self.prior.domain)
        counts = rng.multinomial(rows, self.weights / self.weights.sum())
        return records_of(self.prior.domain, np.repeat(self.prior.codes, counts, axis=0))


def estimate(
    prior: Prior,
    release: Release,
    *,
    noise_aware: bool = True,
    strength: float | Literal["release"] = "release",
    pool: bool = True,
    tolerance: float = 1e-2,
    iterations: int | None = None,
    random_state: int | None = None,
) -> Estimate:
    r"""Estimate a distribution from a public prior and noisy marginals.

    Parameters
    ----------
    prior, release
        The public prior, and noisy tables over attributes of it.
    noise_aware
        True: minimize :math:`\lambda\,KL(q\|p)` plus the negative log-likelihood of the noise, so that large noise
        leaves the prior alone. False: Algorithm 1 of the paper, which trusts the answers fully,
        and takes none that a threshold held back.
    strength
        Noise-aware: :math:`\lambda` in records, or ``"release"`` to choose it from the release alone
        (`dpbayes.ide.strength`).
    pool
        Noise-aware: first let the prior borrow what the public data justify (`dpbayes.ide.prior`), over the attribute
        that stands in every table if there is one. It costs no privacy and adds support; the result's `prior` is the
        pooled one. A prior that is no sample stays as it is. False: the estimate lives on the support of `prior`.
    tolerance
        Noise-aware: how far above its minimum the objective, a negative log-likelihood, may stay.
    iterations, random_state
        Algorithm 1: number of updates, by default 20 for each table, and seed of their order; it touches nothing
        confidential.

    Returns
    -------
    Estimate
        The distribution with its certificate or its trace. If the number of records was released with noise and came
        out below 1/2, the release says nothing and the prior is returned as it is, with n = 0.

    Raises
    ------
    InputError
        If the release asks about what the prior does not have, or a setting is out of range.

    Warns
    -----
    AccuracyWarning
        Noise-aware: if the objective may be further than `tolerance` above its minimum.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> result = estimate(Prior.full(release.domain), release)
    >>> result.method, result.marginal(["sex"]).round(2).tolist()
    ('noise-aware', [0.48, 0.52])
    >>> result.sample(3, rng=np.random.default_rng(1)).columns
    ['citizenship', 'age', 'race', 'sex', 'income']
    """
    instance(prior, Prior, "prior", remedy="Prior.from_frame reads public records")
    measurements, given = measure(prior, release), Strength.of(strength)
    if not noise_aware:
        return estimated(measurements, "algorithm-1", iterations=iterations, random_state=random_state)
    if pool and measurements.n >= 0.5:
        pooled, borrowed = strengthened(prior, grouping_attribute(release))
        measurements = measurements if borrowed is None else measure(pooled, release)
    return estimated(measurements, "noise-aware", given=given, tolerance=tolerance)


def estimated(
    measurements: Measurements,
    method: Method,
    *,
    given: Strength | None = None,
    tolerance: float = 1e-2,
    sweeps: int = 20,
    iterations: int | None = None,
    random_state: int | None = None,
) -> Estimate:
    """Return the estimate: at a given strength or as the release says, or after so many updates, or sweeps of them."""
    prior, n_tables = measurements.prior, len(measurements.tables)
    if method == "algorithm-1":
        check_all_published(measurements)
    if measurements.n < 0.5:
        return Estimate(prior, prior.weights, 0.0, "prior", measurements)
    if method == "algorithm-1":
        count = sweeps * n_tables if iterations is None else whole_number(iterations, "iterations", low=0)
        # Line 6 of Algorithm 1: uniformly at random.
        result = iterate(measurements, generator(random_state, "random_state").integers(0, n_tables, count))
        return Estimate(prior, result.weights, measurements.n, method, measurements, iterations=result)
    if given is None:
        solution, strength = weighed_solution(measurements, tolerance)
    else:
        solution, strength = solved(measurements, given.value, tolerance), given
    if solution.gap > tolerance:
        warnings.warn(
            f"the estimate is not solved to its tolerance: its objective is up to {solution.gap:.2g} above the minimum "
            f"(tolerance {tolerance:g}), and it is within {solution.l1_bound:.2g} in L1 distance of the exact one; "
            "rounding limits this where the noise is tiny beside the number of records",
            AccuracyWarning,
            stacklevel=3,
        )
    return Estimate(prior, solution.weights, measurements.n, method, measurements, strength, solution)


def check_all_published(measurements: Measurements) -> None:
    """Refuse for Algorithm 1 what a threshold held back."""
    for table in measurements.tables:
        if held := int(table.withheld.sum()):
            raise InputError(
                f"Algorithm 1 takes all counts as released, and table {table.label} has {held:,} of them held back "
                f'below {table.threshold:g}; leave the table out, or weigh the noise (method = "noise-aware")'
            )


def project_simplex(answers: Floats) -> Floats:
    """Return the nearest probability vector in L1 (ties: nearest in L2)."""
    descending = np.sort(answers)[::-1]
    excess = np.cumsum(descending) - 1.0
    # The number of positive cells: the last rank whose answer exceeds the threshold that the ranks so far imply.
    positive = np.count_nonzero(descending * np.arange(1, len(answers) + 1) > excess)
    return np.maximum(answers - excess[positive - 1] / positive, 0.0)


@dataclass(frozen=True, eq=False)
class TableAnswers:
    """A table's cell of every support row, and its answers, both as probabilities of shape ``(cells,)``."""

    cell: npt.NDArray[np.intp]
    answers: Floats

    @cached_property
    def rows(self) -> Floats:
        """Number of support rows of each cell."""
        return self.masses(np.ones(len(self.cell)))

    @cached_property
    def target(self) -> Floats:
        """The probabilities to reach: the answers projected on the cells that have rows."""
        held, target = self.rows > 0, np.zeros_like(self.answers)
        target[held] = project_simplex(self.answers[held])
        return target

    def masses(self, weights: Floats) -> Floats:
        """Return the probability of every cell under a distribution."""
        return np.bincount(self.cell, weights, len(self.answers))

    def update(self, weights: Floats) -> Floats:
        """Return the distribution with the cell probabilities to reach that is nearest in relative entropy."""
        mass = self.masses(weights)
        empty = mass <= 0.0
        updated: Floats = weights * np.divide(self.target, mass, out=np.zeros_like(mass), where=~empty)[self.cell]
        if np.any(self.target[empty] > 0.0):
            updated += np.where(empty, self.target / np.maximum(self.rows, 1.0), 0.0)[self.cell]
        return updated


def kl_divergence(q: Floats, p: Floats) -> float:
    """Return KL(q || p); infinite where q has mass that p lacks."""
    return float(max(rel_entr(q, p).sum(), 0.0))


@dataclass(frozen=True, eq=False)
class Iterations:
    """The distribution that Algorithm 1 reached, and loss and divergence after some of its steps."""

    weights: Floats
    step: npt.NDArray[np.intp]
    l1_loss: Floats
    kl: Floats


def iterate(given: Measurements, order: npt.NDArray[np.integer]) -> Iterations:
    """Run Algorithm 1 on the tables in that order, noting loss and divergence on the way."""
    answers = zip(given.cells.index, given.tables, strict=True)
    tables = [TableAnswers(cell, table.counts.ravel() / given.n) for cell, table in answers]
    weights = given.prior.weights
    marks = np.unique(np.linspace(0, len(order), _TRACE_POINTS).round().astype(int))
    points = [(given.l1_loss(weights), 0.0)]
    for first, last in pairwise(marks):
        for place in order[first:last]:
            weights = tables[place].update(weights)
        points.append((given.l1_loss(weights), kl_divergence(weights, given.prior.weights)))
    loss, kl = np.array(points).T
    return Iterations(weights, marks, loss, kl)
