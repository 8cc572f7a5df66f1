r"""`estimate`: a prior and a release in, a distribution and its posterior out.

**Intervals.** The Laplace form of the posterior of any margins f of the weights is

.. math:: V_{ff} = \frac{1}{\lambda} C_{ff}
    - \frac{n^2}{\lambda^2}\, C_{fM}\Bigl(D + \frac{n^2}{\lambda} C_{MM}\Bigr)^{-1} C_{Mf},

C the covariance of indicators under the estimate and 1/D the curvatures of the losses. A share of mean m and variance V
gets the quantiles of the Beta law with these moments, averaged over strengths by their posterior.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import beta

from dpbayes._arguments import generator, instance, probability_below_one, whole_number
from dpbayes.errors import AccuracyWarning, InputError
from dpbayes.ide import pooling
from dpbayes.ide.algorithm1 import Iterations, iterate, kl_divergence, table_answers
from dpbayes.ide.cells import CellMap, Measurements, measure
from dpbayes.ide.noise_aware import Solution, noise_loss, solve
from dpbayes.ide.pooling import grouping_attribute, justified
from dpbayes.ide.prior import Prior, check_rows, records_of
from dpbayes.ide.strength import Strength, choose_strength, posterior_variance
from dpbayes.privacy.release import Release

if TYPE_CHECKING:
    import polars as pl


type Floats = npt.NDArray[np.float64]

_SWEEPS = 20
# Released cells beyond which the dense system of the posterior is not formed.
_MOST_CELLS = 8000
# Strengths that stand for their posterior.
_NODES = 5


@dataclass(frozen=True, eq=False)
class Estimate:
    """A distribution estimated from a public prior and a release.

    Parameters
    ----------
    prior
        The prior, pooled where `estimate` was asked to.
    weights
        Distribution on the prior's support.
    n
        Number of records that the release speaks of, at least 0.
    method
        ``"noise-aware"``, ``"algorithm-1"``, or ``"prior"`` where the released number of records was not positive.
    strength, solution, posterior
        Noise-aware: the prior's strength, the certified solution, and what intervals are read from.
    iterations
        Algorithm 1: the trace.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> found = estimate(Prior.full(release.domain), release)
    >>> found.sample(3, rng=np.random.default_rng(1)).columns
    ['citizenship', 'age', 'race', 'sex', 'income']
    """

    prior: Prior
    weights: Floats
    n: float
    method: Literal["noise-aware", "algorithm-1", "prior"]
    strength: Strength | None = field(default=None, repr=False)
    solution: Solution | None = field(default=None, repr=False)
    posterior: Posterior | None = field(default=None, repr=False)
    iterations: Iterations | None = field(default=None, repr=False)

    @property
    def distribution(self) -> Prior:
        """The estimate as a prior for what comes next: for other releases, scores or groups."""
        return self.prior.reweighted(self.weights)

    @property
    def kl(self) -> float:
        """KL divergence from the prior, in nats."""
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
        if self.posterior is None:
            raise InputError(
                f"an estimate by {self.method} has no posterior; intervals need a noise-aware one "
                "(noise_aware=True) of a release with a positive number of records"
            )
        return self.posterior.interval(names, prob)

    def sample(self, n_rows: int, *, rng: np.random.Generator) -> pl.DataFrame:
        """Draw synthetic records.

        Parameters
        ----------
        n_rows
            Number of records.
        rng
            Generator; the estimate holds nothing confidential, so its seed is free.

        Returns
        -------
        polars.DataFrame
            One column per attribute, of an Enum type where the levels are text.
        """
        check_rows(rows := whole_number(n_rows, "n_rows", low=0), self.prior.domain)
        counts = rng.multinomial(rows, self.weights / self.weights.sum())
        return records_of(self.prior.domain, np.repeat(self.prior.codes, counts, axis=0))


@dataclass(frozen=True, eq=False)
class Posterior:
    """The Laplace forms of the posterior at several strengths of the prior, by their probability; see the module."""

    measurements: Measurements
    strength: Strength

    @cached_property
    def forms(self) -> list[tuple[float, LaplaceForm]]:
        """The strengths' probabilities and the posterior given each."""
        if len(self.measurements.values) > _MOST_CELLS:
            raise InputError(
                f"intervals solve a dense system in the released cells, {len(self.measurements.values):,} here and at "
                f"most {_MOST_CELLS:,}; release fewer or smaller tables"
            )
        return [(share, LaplaceForm.at(self.measurements, value)) for share, value in self.strength.nodes(_NODES)]

    def interval(self, names: Sequence[str], prob: float) -> tuple[Floats, Floats]:
        """Return the ends of equal-tailed intervals of every cell's share."""
        shares, forms = zip(*self.forms, strict=True)
        moments = [form.moments(names) for form in forms]
        laws = [_beta_law(mean, variance) for mean, variance in moments]
        tails = (0.5 - prob / 2, 0.5 + prob / 2)
        if len(laws) == 1:
            low, high = (beta.ppf(tail, *laws[0]) for tail in tails)
        else:
            low, high = (_mixed_quantile(tail, shares, laws) for tail in tails)
        n, held = self.measurements.n, moments[0][0] > 0
        return np.where(held, np.ceil(n * low - 0.5) / n, 0.0), np.where(held, np.floor(n * high + 0.5) / n, 0.0)


@dataclass(frozen=True, eq=False)
class LaplaceForm:
    """The posterior around the noise-aware estimate of one strength."""

    measurements: Measurements
    strength: float
    weights: Floats
    softness: Floats

    @classmethod
    def at(cls, measurements: Measurements, strength: float) -> LaplaceForm:
        """Solve for a strength."""
        loss = noise_loss(measurements, posterior_variance(measurements, strength))
        weights = solve(measurements, loss, strength=strength).weights
        residual = measurements.values - measurements.n * measurements.cells.predict(weights)
        # A saturated cell tells nothing more.
        softness = np.clip(1.0 / np.maximum(loss.curvature(residual), 1e-200), 1e-12, 1e200)
        return cls(measurements, strength, weights, softness)

    @cached_property
    def _factor(self) -> Any:
        matrix = (self.measurements.n**2 / self.strength) * self.measurements.cells.covariance(self.weights)
        root = 1.0 / np.sqrt(self.softness)
        matrix = matrix * root[:, None] * root
        matrix.flat[:: len(root) + 1] += 1.0 + 1e-12 * np.trace(matrix) / len(root)
        return cho_factor(matrix, lower=True), root

    def moments(self, names: Sequence[str]) -> tuple[Floats, Floats]:
        """Return the posterior mean and variance of every cell's share in the table over some attributes."""
        support, cells = self.measurements.prior, self.measurements.cells
        part, index = support.domain.project(names), support.index(names)
        mean = np.bincount(index, self.weights, part.size)
        joint = np.concatenate(
            [
                np.bincount(index * width + other, self.weights, part.size * width).reshape(part.size, width)
                for width, other in zip(cells.sizes, cells.index, strict=True)
            ],
            axis=1,
        )
        factor, root = self._factor
        scaled = (joint - np.outer(mean, cells.predict(self.weights))) * root
        explained = np.einsum("fc,cf->f", scaled, cho_solve(factor, scaled.T))
        found = mean * (1.0 - mean) / self.strength - (self.measurements.n / self.strength) ** 2 * explained
        return mean.reshape(part.shape), np.clip(found, 0.0, None).reshape(part.shape)


def _beta_law(mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return the parameters of the Beta law of a mean and a variance; what does not vary gets a very narrow one."""
    inside = np.clip(mean, 1e-12, 1.0 - 1e-12)
    free = inside * (1.0 - inside)
    size = np.clip(free / np.maximum(variance, 1e-24) - 1.0, 1e-6, 1e15)
    return inside * size, (1.0 - inside) * size


def _mixed_quantile(tail: float, shares: Sequence[float], laws: Sequence[tuple[Floats, Floats]]) -> Floats:
    """Return the quantile of a mixture of Beta laws, by bisection between the components' quantiles."""
    quantiles = [beta.ppf(tail, *law) for law in laws]
    low, high = np.minimum.reduce(quantiles), np.maximum.reduce(quantiles)
    for _ in range(25):
        middle = 0.5 * (low + high)
        below = sum(share * beta.cdf(middle, *law) for share, law in zip(shares, laws, strict=True)) < tail
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


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
    cells: CellMap | None = None,
) -> Estimate:
    r"""Estimate a distribution from a public prior and noisy marginals.

    Parameters
    ----------
    prior
        The public prior.
    release
        The noisy tables, over attributes of the prior.
    noise_aware
        True: minimize :math:`\lambda\,KL(q\|p)` plus the negative log-likelihood of the noise, so that large noise
        leaves the prior alone. False: Algorithm 1 of the paper, which trusts the answers fully.
    strength
        Noise-aware: :math:`\lambda` in records, or ``"release"`` to choose it from the release alone
        (`dpbayes.ide.strength`).
    pool
        Noise-aware: first let the prior borrow what the public data justify
        (`dpbayes.ide.pooling`), over the attribute that stands in every table if there is one. It
        costs no privacy and adds support; the result's `prior` is the pooled one. A prior that is
        no sample stays as it is. False: the estimate lives on the support of `prior` as given.
    tolerance
        Noise-aware: duality gap to reach, in nats.
    iterations
        Algorithm 1: number of updates; by default 20 for each table.
    random_state
        Algorithm 1: seed of the order of the updates; it touches nothing confidential.
    cells
        The map of an earlier release of the same tables over the prior as given, see
        `dpbayes.ide.measure`; needs ``pool=False`` or Algorithm 1.

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
        Noise-aware: if the duality gap stays above `tolerance`.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> result = estimate(Prior.full(release.domain), release)
    >>> result.method, result.marginal(["sex"]).round(2).tolist()
    ('noise-aware', [0.48, 0.52])
    """
    instance(prior, Prior, "prior", remedy="Prior.from_frame reads public records")
    measurements, given = measure(prior, release, cells=cells), Strength.of(strength)
    if measurements.n < 0.5:
        return Estimate(prior, prior.weights, 0.0, "prior")
    if noise_aware:
        if pool and cells is not None:
            raise InputError(
                "cells belong to the prior as given, and pooling changes its rows; pass pool=False with cells"
            )
        borrowed = justified(prior, grouping_attribute(release)) if pool else None
        if borrowed is not None:
            measurements = measure(pooling.pool(prior, borrowed), release)
        return _noise_aware(measurements, given or choose_strength(measurements), tolerance)
    return _algorithm1(measurements, iterations, random_state)


def _noise_aware(measurements: Measurements, strength: Strength, tolerance: float) -> Estimate:
    loss = noise_loss(measurements, posterior_variance(measurements, strength.value))
    solution = solve(measurements, loss, strength=strength.value, tolerance=tolerance)
    if solution.gap > tolerance:
        warnings.warn(
            f"the duality gap of the estimate is {solution.gap:.2g} nats, above the tolerance of {tolerance:g}: it is "
            f"within {solution.l1_bound:.2g} in L1 of the exact one; rounding limits the gap where the noise is tiny "
            "beside the number of records",
            AccuracyWarning,
            stacklevel=3,
        )
    posterior = Posterior(measurements, strength)
    found = measurements.prior, solution.weights, measurements.n
    return Estimate(*found, "noise-aware", strength=strength, solution=solution, posterior=posterior)


def _algorithm1(measurements: Measurements, iterations: int | None, random_state: int | None) -> Estimate:
    tables = table_answers(measurements)
    count = _SWEEPS * len(tables) if iterations is None else whole_number(iterations, "iterations", low=0)
    # Line 6 of Algorithm 1: uniformly at random.
    order = generator(random_state, "random_state").integers(0, len(tables), count)
    result = iterate(measurements.prior, tables, order=order)
    return Estimate(measurements.prior, result.weights, measurements.n, "algorithm-1", iterations=result)
