"""`estimate`: a prior and a release in, a distribution out."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from dpbayes.errors import AccuracyWarning, InputError
from dpbayes.ide import widening
from dpbayes.ide.algorithm1 import Iterations, iterate, partial_workloads, workload_order
from dpbayes.ide.cells import CellMap
from dpbayes.ide.losses import noise_loss
from dpbayes.ide.measurements import Measurements, measure
from dpbayes.ide.noise_aware import Solution, solve
from dpbayes.ide.prior import Prior
from dpbayes.ide.strength import Strength, choose_strength, posterior_variance
from dpbayes.ide.updates import kl_divergence
from dpbayes.ide.widening import grouping_attribute, justified
from dpbayes.privacy.release import Release

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Estimate", "estimate", "sample_rows"]

type Floats = npt.NDArray[np.float64]

_SWEEPS = 20


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
    strength, solution
        Noise-aware: the prior's strength and the certified solution.
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
    iterations: Iterations | None = field(default=None, repr=False)

    @property
    def distribution(self) -> Prior:
        """The estimate as a prior for what comes next: for other releases, scores or groups."""
        return self.prior.reweighted(self.weights)

    @property
    def kl(self) -> float:
        """KL divergence from the prior, in nats."""
        return kl_divergence(self.weights, self.prior.weights)

    def marginal(self, names: tuple[str, ...] | list[str]) -> Floats:
        """Return the estimated probabilities of the table over some attributes."""
        return self.prior.marginal(names, self.weights)

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
            One column an attribute, of an Enum type where the levels are text.
        """
        return sample_rows(self.prior, self.weights, n_rows, rng=rng)


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
        Noise-aware: first let the prior borrow what the public data justify (`dpbayes.ide.pooling`), over the attribute
        that stands in every table if there is one. It costs no privacy and adds support; the result's `prior` is the
        pooled one. A prior that is no sample stays as it is. False: the estimate lives on the support of `prior` as
        given.
    tolerance
        Noise-aware: duality gap to reach, in nats.
    iterations
        Algorithm 1: number of updates; by default 20 for each table.
    random_state
        Algorithm 1: seed of the order of the updates; it touches nothing confidential.
    cells
        The map of an earlier release of the same tables over the prior as given, see `dpbayes.ide.measure`; needs
        ``pool=False`` or Algorithm 1.

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
    measurements = measure(prior, release, cells=cells)
    if isinstance(strength, str) and strength != "release":
        raise InputError(f"strength must be a number of records or 'release', got {strength!r}")
    given = None if isinstance(strength, str) else Strength.given(strength)
    if measurements.n < 0.5:
        return Estimate(prior, prior.weights, 0.0, "prior")
    if noise_aware:
        if pool and cells is not None:
            raise InputError(
                "cells belong to the prior as given, and pooling changes its rows; pass pool=False with cells"
            )
        borrowed = justified(prior, grouping_attribute(release)) if pool else None
        if borrowed is not None:
            measurements = measure(widening.pool(prior, borrowed), release)
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
    return Estimate(
        measurements.prior, solution.weights, measurements.n, "noise-aware", strength=strength, solution=solution
    )


def _algorithm1(measurements: Measurements, iterations: int | None, random_state: int | None) -> Estimate:
    workloads = partial_workloads(measurements)
    count = _SWEEPS * len(workloads) if iterations is None else iterations
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise InputError(f"iterations must be a whole number of at least 0, got {iterations!r}")
    order = workload_order(len(workloads), count, np.random.default_rng(random_state))
    result = iterate(measurements.prior, workloads, order=order)
    return Estimate(measurements.prior, result.weights, measurements.n, "algorithm-1", iterations=result)


def sample_rows(prior: Prior, weights: Floats, n_rows: int, *, rng: np.random.Generator) -> pl.DataFrame:
    """Draw independent records from a distribution on a prior's support.

    Parameters
    ----------
    prior
        Holds the support.
    weights
        The distribution.
    n_rows
        Number of records, at least 0.
    rng
        Generator.

    Returns
    -------
    polars.DataFrame
        One column an attribute.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> prior = Prior.full(Domain.from_levels({"vote": ("no", "yes")}))
    >>> sample_rows(prior, np.array([0.0, 1.0]), 2, rng=np.random.default_rng(1))["vote"].to_list()
    ['yes', 'yes']
    """
    import polars as pl

    if n_rows < 0:
        raise InputError(f"n_rows must be at least 0, got {n_rows!r}")
    counts = rng.multinomial(n_rows, weights / weights.sum())
    codes = np.repeat(prior.codes, counts, axis=0)
    columns = {}
    for axis, attribute in enumerate(prior.domain):
        text = [level for level in attribute.levels if isinstance(level, str)]
        labels = np.asarray(attribute.levels, dtype=object)[codes[:, axis]].tolist()
        columns[attribute.name] = pl.Series(labels, dtype=pl.Enum(text) if len(text) == attribute.size else None)
    return pl.DataFrame(columns)
