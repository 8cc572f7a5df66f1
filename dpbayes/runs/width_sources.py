r"""Posterior variances split by the law of total variance over the confidential numbers X behind a release y.

.. math:: \mathrm{Var}(\theta \mid y) = \mathrm{Var}(\mathrm{E}(\theta \mid X) \mid y)
          + \mathrm{E}(\mathrm{Var}(\theta \mid X) \mid y).

The first part would vanish had X been released as it is: it is the privacy noise's. The second would stay. Every
function here returns both for one system, the first one first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.bloom.hashing import BitDistribution
    from dpbayes.mvg.regression import Coordinates
    from dpbayes.verifier.exact import Posterior

__all__ = ["claim_variances", "coefficient_variances", "reach_variances"]

type FloatArray = npt.NDArray[np.float64]


def claim_variances(posterior: Posterior) -> tuple[float, float]:
    r"""Split the variance of r, the share of partitions in which a claim holds; X are the true counts S.

    Parameters
    ----------
    posterior
        From `dpbayes.verifier.posterior`.

    Returns
    -------
    tuple of float
        Variance from privacy noise, and from the number of partitions with the prior. Both are sums over the mixture:
        r given S is Beta(a, t - a) with :math:`a = \alpha_1 + S_1` and :math:`t = \alpha_1 + \alpha_0 + M - S_e`.

    Examples
    --------
    >>> from dpbayes.verifier import PartitionCounts, posterior, release_counts
    >>> release = release_counts(PartitionCounts(45, 5, 0), epsilon=1.0, rng=np.random.default_rng(3))
    >>> found = posterior(release)
    >>> bool(np.isclose(sum(claim_variances(found)), found.sd**2))
    True
    """
    rows, columns = posterior.weights.shape
    beyond = posterior.alpha[0] + posterior.low[0] + np.arange(columns)[None, :]
    total = sum(posterior.alpha[:2]) + posterior.n_partitions - posterior.low[1] - np.arange(rows)[:, None]
    # A corner of the rectangle of counts may lie outside their simplex; it carries no weight.
    weights = np.where(beyond < total, posterior.weights, 0.0)
    centre = np.where(beyond < total, beyond / total, 0.0)
    mean = (weights * centre).sum()
    return float((weights * (centre - mean) ** 2).sum()), float((weights * centre * (1 - centre) / (total + 1)).sum())


def coefficient_variances(
    trace: xr.DataTree, coordinates: Coordinates, n: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    r"""Split the variances of regression coefficients; X are the confidential second moments.

    Parameters
    ----------
    trace
        A fit of `dpbayes.mvg.build_moment_model` with its default priors, as every run has.
    coordinates
        Those of the release (`dpbayes.mvg.whiten_moments`).
    n
        Number of records.

    Returns
    -------
    tuple of numpy.ndarray
        Variances from privacy noise and from sampling, each of intercept and coefficients in original units.

    Notes
    -----
    In range units, given X and the residual standard deviation :math:`\tau`, the coefficients are normal with precision
    :math:`nG/\tau^2 + I/\sigma^2`, G the moments of (1, predictors) and :math:`\sigma` the prior's scale. The mean of
    its inverse over the posterior of G and :math:`\tau` is the second part, and what the total leaves is the first;
    what little :math:`\tau` is unsure given X counts with the first.
    """
    from dpbayes.mvg.model import RegressionPriors

    priors, size = RegressionPriors(), len(coordinates.predictors)
    posterior = trace["posterior"].to_dataset()
    mean, diagonal, lower = (
        _flat(posterior, name) if name in posterior else np.zeros((1, 0))
        for name in ("mean_range", "scatter_diagonal", "scatter_lower")
    )
    factor = np.zeros((len(mean), size, size))
    factor[:, range(size), range(size)] = np.sqrt(diagonal)
    if size > 1:
        factor[(slice(None), *np.tril_indices(size, -1))] = lower
    root = factor * (priors.spread / np.sqrt(size + 3.0))
    with_one = np.concatenate([np.ones((len(mean), 1)), mean], axis=1)
    gram = with_one[:, :, None] * with_one[:, None, :]
    gram[:, 1:, 1:] += root @ root.swapaxes(1, 2)
    precision = n * gram / np.square(_flat(posterior, "residual_range"))[:, :, None]
    within = np.linalg.inv(precision + np.eye(size + 1) / priors.coefficient**2).mean(axis=0)
    # To original units: slopes by the ratio of half-widths, the intercept moved from the centre of the ranges to zero.
    slopes = coordinates.half[-1] / coordinates.half[:-1]
    units = np.diag([coordinates.half[-1], *slopes])
    units[0, 1:] = -slopes * coordinates.centre[:-1]
    sampling = np.diag(units @ within @ units.T)
    draws = np.concatenate([_flat(posterior, "intercept"), _flat(posterior, "coefficient")], axis=1)
    return np.maximum(draws.var(axis=0, ddof=1) - sampling, 0.0), sampling


def reach_variances(
    true_counts: npt.NDArray[np.int64],
    distribution: BitDistribution,
    *,
    publishers: tuple[int, ...] | None = None,
    random_seed: int,
    repeats: int = 20,
) -> tuple[float, float]:
    """Split the variance of the people reached; X are the true logo counts, hashed but not flipped.

    Parameters
    ----------
    true_counts
        Posterior draws of X (`dpbayes.bloom.draw_true_counts`), shape ``(draws, 2^k)``.
    distribution
        Law of the positions.
    publishers
        Publishers by number; all by default.
    random_seed
        Seed of the draws.
    repeats
        Draws of the people for each X: a one-way analysis of variance splits them. The second part then has a relative
        standard error of about ``sqrt(2 / (draws * repeats))``.

    Returns
    -------
    tuple of float
        Variance from flipping, and from hashing: people who share a position.
    """
    from dpbayes.bloom.model import draw_reach

    again = np.repeat(true_counts, repeats, axis=0)
    people = draw_reach(again, distribution, publishers=publishers, random_seed=random_seed).reshape(-1, repeats)
    within = float(people.var(axis=1, ddof=1).mean())
    return max(float(people.mean(axis=1).var(ddof=1)) - within / repeats, 0.0), within


def _flat(posterior: xr.Dataset, name: str) -> FloatArray:
    """Return draws of all chains as an array of shape (draws, values)."""
    values = np.asarray(posterior[name].transpose("chain", "draw", ...), dtype=float)
    return values.reshape(values.shape[0] * values.shape[1], -1)
