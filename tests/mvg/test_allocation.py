"""Optimal allocations against numerical optimizers."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dpbayes.errors import InputError
from dpbayes.mvg import FeatureRanges, FrobeniusBall, optimal_covariance
from dpbayes.mvg.sensitivity import sign_vectors


def optimal_variances(reach, mu, weights=None):
    ranges = FeatureRanges(np.zeros(len(reach)), reach, "replace-one")
    return optimal_covariance(ranges, mu=mu, weights=weights).covariance.marginal_variances


@pytest.mark.parametrize("seed", range(10))
def test_closed_form_equals_a_numerical_optimizer(seed):
    rng = np.random.default_rng(seed)
    size, mu = int(rng.integers(2, 8)), float(rng.uniform(0.1, 3.0))
    w, c = rng.uniform(0.1, 5.0, size), rng.uniform(0.1, 5.0, size)
    variances = optimal_variances(w, mu, weights=c)
    assert np.sum(w**2 / variances) == pytest.approx(mu**2, rel=1e-12)
    # SLSQP in log variances, started at equal noise.
    start = np.log(np.full(size, np.sum(w**2) / mu**2))
    scale = float(c @ variances)
    found = minimize(
        lambda x: c @ np.exp(x) / scale,
        start,
        jac=lambda x: c * np.exp(x) / scale,
        constraints={
            "type": "eq",
            "fun": lambda x: np.sum(w**2 * np.exp(-x)) / mu**2 - 1.0,
            "jac": lambda x: -(w**2) * np.exp(-x) / mu**2,
        },
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success
    np.testing.assert_allclose(np.exp(found.x), variances, rtol=1e-5)
    assert c @ np.exp(found.x) == pytest.approx(c @ variances, rel=1e-8)


def _random_covariance_objective(w, mu, weights, rng):
    """Objective of a random full covariance, scaled until every vertex is inside."""
    size = len(w)
    factor = rng.standard_normal((size, size))
    covariance = factor @ factor.T + 0.02 * np.eye(size)
    corners = sign_vectors(size) * w
    worst = np.max(np.einsum("ki,ij,kj->k", corners, np.linalg.inv(covariance), corners))
    return np.sum(weights * covariance) * worst / mu**2


def test_no_full_covariance_beats_the_diagonal_for_diagonal_weights():
    rng = np.random.default_rng(5)
    w, c, mu = np.array([0.3, 1.0, 4.0]), np.array([2.0, 0.5, 1.0]), 0.7
    best = optimal_covariance(FeatureRanges(np.zeros(3), w, "replace-one"), mu=mu, weights=c).objective
    assert best == pytest.approx(np.sum(w * np.sqrt(c)) ** 2 / mu**2, rel=1e-12)
    tried = [_random_covariance_objective(w, mu, np.diag(c), rng) for _ in range(3000)]
    assert min(tried) >= best


def test_direction_buys_nothing_for_a_ball():
    ball = optimal_covariance(FrobeniusBall(2.0, "replace-one"), mu=0.5, size=3, weights=[1.0, 10.0, 0.1])
    np.testing.assert_allclose(ball.covariance.matrix(), 16.0 * np.eye(3))
    assert ball.objective == pytest.approx(16.0 * 11.1)


def test_scaling():
    w = np.array([1.0, 2.0])
    np.testing.assert_allclose(optimal_variances(3 * w, 0.5), 9 * 4 * optimal_variances(w, 1.0))
    np.testing.assert_allclose(optimal_variances(w, 1.0, weights=[7.0, 7.0]), optimal_variances(w, 1.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimal_variances([1.0, 2.0], 1.0, weights=[1.0, 0.0]), "weights must be 2 positive finite numbers"),
        (lambda: optimal_variances([1.0, 2.0], 1.0, weights=np.eye(2)), "weights must be 2 positive finite numbers"),
        (lambda: optimal_variances([1.0], -1.0), "mu must be positive"),
        (lambda: optimal_variances([1.0, 2.0], 1.0, weights=[1.0]), "weights must be 2 positive finite numbers"),
        (lambda: optimal_covariance(FrobeniusBall(1.0, "replace-one"), mu=1.0), "size must be given"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()
