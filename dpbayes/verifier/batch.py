"""Exact posteriors of many releases at once, for simulation studies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from dpbayes._arguments import ordered
from dpbayes.errors import InputError
from dpbayes.privacy.noise import Laplace, NoiseLaw, TwoSidedGeometric
from dpbayes.privacy.release import Release
from dpbayes.verifier.checks import check_alpha, check_explained, check_n_partitions, reachable, verification_table
from dpbayes.verifier.coefficients import coefficient_table
from dpbayes.verifier.exact import posterior_of_counts
from dpbayes.verifier.mixture import check_prob
from dpbayes.verifier.nodes import SMALLEST_ALPHA, hermite_quantile, node_table, peak

__all__ = ["BatchPosterior", "posterior_batch", "posterior_of_many"]

type FloatArray = npt.NDArray[np.float64]

MOST_PARTITIONS = 300
_WORK = 1 << 22


@dataclass(frozen=True, eq=False)
class BatchPosterior:
    """Posterior summaries of r, one entry a release.

    Parameters
    ----------
    mean, sd
        Exact to rounding.
    mode
        The paper's r-hat, within about 1e-4.
    low, high
        Ends of the equal-tailed interval, within about 1e-5 in probability.
    prob
        Probability that the interval holds.
    """

    mean: FloatArray
    sd: FloatArray
    mode: FloatArray
    low: FloatArray
    high: FloatArray
    prob: float


def posterior_batch(
    releases: Sequence[Release], *, alpha: Sequence[float] | None = None, prob: float = 0.95
) -> BatchPosterior:
    """Return the posterior summaries of many releases with the same M and noise law.

    Parameters
    ----------
    releases
        Verification releases of one question each.
    alpha
        Dirichlet prior; all 1 by default.
    prob
        Probability of the interval.

    Returns
    -------
    BatchPosterior
        In the order given.

    Raises
    ------
    InputError
        If there is none, they differ in M or noise law, or no true counts can explain one.

    Notes
    -----
    Up to M = 300 all releases share one table of Beta components and 10,000 take a second. Beyond it, or with a prior
    parameter of a share below 0.02, each takes its own exact posterior: about ten milliseconds at epsilon 1.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, release_counts
    >>> rng = np.random.default_rng(1)
    >>> releases = [release_counts(PartitionCounts(15, 4, 1), epsilon=1.0, rng=rng) for _ in range(100)]
    >>> posterior_batch(releases).mean.shape
    (100,)
    """
    releases = ordered(releases, "releases", remedy="give a list of Release")
    tables = [verification_table(release) for release in releases]
    if not tables:
        raise InputError("no release was given; give at least one")
    laws, sizes = {table.noise for table in tables}, {release.n for release in releases}
    if len(laws) > 1 or len(sizes) > 1 or len({table.counts.shape for table in tables}) > 1:
        raise InputError("the releases differ in M, noise law or outcomes; batch those that are alike")
    size = sizes.pop()
    assert isinstance(size, int)
    noisy = np.stack([table.counts for table in tables])
    return posterior_of_many(noisy, laws.pop(), size, alpha=alpha, prob=prob)


def posterior_of_many(
    noisy: npt.ArrayLike,
    noise: NoiseLaw,
    n_partitions: int,
    *,
    alpha: Sequence[float] | None = None,
    prob: float = 0.95,
) -> BatchPosterior:
    """Return the posterior summaries of many rows of released counts; see `posterior_batch`.

    Parameters
    ----------
    noisy
        Shape (releases, outcomes). Released values: exact counts have no place here.
    noise, n_partitions, alpha, prob
        As in `posterior_batch`.

    Returns
    -------
    BatchPosterior
        One entry a row.
    """
    values = np.asarray(noisy, dtype=np.float64)
    if values.ndim != 2 or not len(values):
        raise InputError(f"noisy must have shape (releases, outcomes) with at least one release, got {values.shape}")
    prior = check_alpha(alpha, values.shape[1])
    check_prob(prob)
    check_n_partitions(n_partitions)
    values, _ = reachable(values, noise, n_partitions)
    # Clamped to [0, M] many releases coincide.
    distinct, back = np.unique(values, axis=0, return_inverse=True)
    shared = n_partitions <= MOST_PARTITIONS and min(prior[:2]) >= SMALLEST_ALPHA
    summarize = _by_table if shared else _one_by_one
    mean, sd, mode, low, high = summarize(distinct, noise, n_partitions, prior, prob)[:, back.ravel()]
    return BatchPosterior(mean, sd, mode, low, high, prob)


def _one_by_one(
    distinct: FloatArray, noise: NoiseLaw, n_partitions: int, prior: tuple[float, ...], prob: float
) -> FloatArray:
    """Return mean, sd, mode and interval of each row from its own posterior, shape (5, rows)."""
    every = (posterior_of_counts(row, noise, n_partitions, alpha=prior) for row in distinct)
    return np.array([(one.mean, one.sd, one.r.mode, *one.interval(prob)) for one in every]).T


def _by_table(
    distinct: FloatArray, noise: NoiseLaw, n_partitions: int, prior: tuple[float, ...], prob: float
) -> FloatArray:
    """Return mean, sd, mode and interval of each row from the shared table, shape (5, rows)."""
    table = node_table(n_partitions, prior)
    parameters = table.counts[:, :2] + np.asarray(prior[:2])
    total = parameters.sum(axis=1)
    mean = parameters[:, 0] / total
    moments = np.column_stack([mean, mean * (parameters[:, 0] + 1) / (total + 1)])
    base = _log_prior(n_partitions, prior)
    parts = []
    step = max(1, _WORK // len(base))
    for start in range(0, len(distinct), step):
        weights = _weights(distinct[start : start + step], noise, n_partitions, base)
        first, second = (weights @ moments).T
        cdf, density = weights @ table.cdf, weights @ table.density
        low, high = (hermite_quantile(table, cdf, density, q) for q in ((1 - prob) / 2, (1 + prob) / 2))
        mode = peak(table, density, unbounded=(prior[0] < 1, prior[1] < 1))
        parts.append(np.stack([first, np.sqrt(np.maximum(second - first**2, 0.0)), mode, low, high]))
    return np.concatenate(parts, axis=1)


def _log_prior(n_partitions: int, prior: tuple[float, ...]) -> FloatArray:
    """Log of the Dirichlet-multinomial probabilities of the lattice points, up to a constant."""
    counts = coefficient_table(n_partitions, len(prior)).counts
    k = np.arange(n_partitions + 1)
    return np.asarray(sum((gammaln(a + k) - gammaln(k + 1.0))[counts[:, j]] for j, a in enumerate(prior)))


def _weights(noisy: FloatArray, noise: NoiseLaw, n_partitions: int, base: FloatArray) -> FloatArray:
    """Return the posterior probabilities of the lattice points, shape (releases, points)."""
    counts = coefficient_table(n_partitions, noisy.shape[1]).counts
    grid = np.arange(n_partitions + 1)
    logs = np.repeat(base[None, :], len(noisy), axis=0)
    for j in range(noisy.shape[1]):
        gaps = noisy[:, j, None] - grid[None, :]
        # The constant of the law cancels.
        with np.errstate(over="ignore"):
            log_noise = (
                -np.abs(gaps) / noise.scale if isinstance(noise, TwoSidedGeometric | Laplace) else noise.log_prob(gaps)
            )
        logs += np.take(log_noise, counts[:, j], axis=1)
    top = logs.max(axis=1, keepdims=True)
    check_explained(top, noise, n_partitions)
    logs -= top
    weights = np.exp(logs, out=logs)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights
