"""Splits of posterior variance between privacy noise and the rest, held to independent computations."""

import itertools

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from dpbayes.bloom.hashing import BitDistribution
from dpbayes.mvg.model import RegressionPriors
from dpbayes.mvg.regression import Coordinates
from dpbayes.runs.width_sources import claim_variances, coefficient_variances, reach_variances
from dpbayes.verifier import PartitionCounts, posterior, release_counts

DIMS = ("chain", "draw")


@pytest.mark.parametrize(
    ("alpha", "with_failures"), [((1.0, 1.0, 1.0), True), ((0.5, 2.0, 0.7), True), ((2, 3), False)]
)
def test_the_split_of_a_claim_is_the_enumerated_one(alpha, with_failures):
    m, epsilon = 12, 0.7
    counts = PartitionCounts(7, 4, 1) if with_failures else PartitionCounts(8, 4, 0)
    release = release_counts(counts, epsilon=epsilon, with_failures=with_failures, rng=np.random.default_rng(5))
    noisy, ratio = release.tables[0].counts, np.exp(-epsilon / 2)
    weights, means, variances = [], [], []
    for true in itertools.product(range(m + 1), repeat=len(alpha)):
        if sum(true) == m:
            law = stats.dirichlet_multinomial(alpha, m)
            weights.append(law.pmf(true) * np.prod(ratio ** np.abs(noisy - np.array(true))))
            r = stats.beta(alpha[0] + true[0], alpha[1] + true[1])
            means.append(r.mean())
            variances.append(r.var())
    weights = np.array(weights) / sum(weights)
    privacy = weights @ (np.array(means) - weights @ means) ** 2
    found = posterior(release, alpha=alpha)
    np.testing.assert_allclose(claim_variances(found), [privacy, weights @ variances], rtol=1e-8)
    assert sum(claim_variances(found)) == pytest.approx(found.sd**2, rel=1e-12)


def test_without_noise_a_claim_has_the_variance_of_one_beta_law():
    release = release_counts(PartitionCounts(45, 5, 0), epsilon=400.0, rng=np.random.default_rng(6))
    privacy, partitions = claim_variances(posterior(release))
    assert privacy < 1e-12
    assert partitions == pytest.approx(stats.beta(46, 6).var(), rel=1e-9)


def coefficient_trace(gram, tau, draws, coordinates, priors):
    """A trace of known predictor moments and residual, with these draws of (intercept, slopes) in range units."""
    size = len(gram) - 1
    mean = gram[0, 1:]
    factor = np.linalg.cholesky(gram[1:, 1:] - np.outer(mean, mean)) * np.sqrt(size + 3.0) / priors.spread
    original = [coordinates.original(row[0], row[1:]) for row in draws]
    values = {
        "mean_range": np.broadcast_to(mean, (len(draws), size)),
        "scatter_diagonal": np.broadcast_to(np.diag(factor) ** 2, (len(draws), size)),
        "scatter_lower": np.broadcast_to(factor[np.tril_indices(size, -1)], (len(draws), size * (size - 1) // 2)),
        "residual_range": np.full(len(draws), tau),
        "intercept": np.array([one for one, _ in original]),
        "coefficient": np.array([slopes for _, slopes in original]),
    }
    posterior = {
        name: ((*DIMS, *(f"{name}_{i}" for i in range(one.ndim - 1))), one[None]) for name, one in values.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)})


@pytest.mark.parametrize("noise_sd", [0.0, 0.003, 0.05])
def test_the_split_of_coefficients_is_that_of_moments_drawn_beside_them(noise_sd):
    """With G and tau known everything is normal: g given coefficients and release is drawn, and what it explains."""
    rng, n, tau, priors = np.random.default_rng(7), 1000, 0.3, RegressionPriors()
    coordinates = Coordinates(("x", "z", "y"), np.array([3.0, -1.0, 50.0]), np.array([2.0, 0.5, 20.0]), np.eye(3))
    gram = np.array([[1.0, 0.2, -0.1], [0.2, 0.3, 0.05], [-0.1, 0.05, 0.4]])
    sampling, noise = tau**2 * gram / n, max(noise_sd, 1e-9) ** 2 * np.eye(3)
    prior, released = np.eye(3) / priors.coefficient**2, gram @ [0.1, 0.4, -0.3] + 0.01
    seen = gram @ np.linalg.inv(sampling + noise)
    covariance = np.linalg.inv(seen @ gram + prior)
    draws = rng.multivariate_normal(covariance @ seen @ released, covariance, size=40_000)
    # The confidential g = (1/n) sum u y of each draw, given it and the release; then E(coefficients | g).
    given = np.linalg.inv(np.linalg.inv(sampling) + np.linalg.inv(noise))
    centre = (draws @ gram @ np.linalg.inv(sampling) + np.linalg.inv(noise) @ released) @ given
    moments = centre + rng.multivariate_normal(np.zeros(3), given, size=len(draws))
    expected = moments @ np.linalg.inv(n * gram / tau**2 + prior) * n / tau**2
    ours = coefficient_variances(coefficient_trace(gram, tau, draws, coordinates, priors), coordinates, n)
    explained, left = (
        np.array([np.append(one, slopes) for one, slopes in (coordinates.original(r[0], r[1:]) for r in rows)])
        for rows in (expected, draws - expected)
    )
    # A variance of 40,000 draws has a standard error of 0.7 % of itself; five of them, of the total.
    total = sum(ours)
    assert np.all(np.abs(ours[0] - explained.var(axis=0)) < 0.036 * total)
    assert np.all(np.abs(ours[1] - left.var(axis=0)) < 0.036 * total)


def test_the_split_of_reach_is_that_of_linear_counting():
    rng, m, people = np.random.default_rng(8), 4000, 1500.0
    empty = np.round(m * np.exp(-people / m) + 40.0 * rng.normal(size=2000)).astype(int)
    true = np.stack([empty, m - empty], axis=1)
    privacy, hashing = reach_variances(true, BitDistribution(m), random_seed=9)
    n = -m * np.log(empty / m)
    # Relative standard errors: hashing sqrt(2 / 40,000) = 0.7 %; both at five.
    assert hashing == pytest.approx((m * (np.exp(n / m) - 1 - n / m)).mean(), rel=0.036)
    # A mean of twenty draws adds a twentieth of hashing's variance, which is known to sqrt(2 / 2,000) of itself, and is
    # uncorrelated with n to one in sqrt(2,000).
    twentieth = hashing / 20
    margin = 5 * (np.sqrt(2 / 2000) * twentieth + 2 * np.sqrt(n.var() * twentieth / 2000))
    assert privacy == pytest.approx(n.var(ddof=1), abs=margin)


def test_filters_that_were_not_flipped_leave_hashing_alone():
    true = np.tile([2500, 1500], (1000, 1))
    privacy, hashing = reach_variances(true, BitDistribution(4000), random_seed=10)
    assert privacy < 0.02 * hashing
