"""Optimal allocations against numerical optimizers and their own duality gap."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dpbayes.errors import InputError
from dpbayes.mvg import FeatureRanges, FrobeniusBall, RecordEllipsoid, optimal_covariance
from dpbayes.mvg.allocation import optimal_variances
from dpbayes.mvg.sensitivity import sign_vectors


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
    # The dual of the matrix problem finds the same optimum without being told that it is diagonal.
    dual = optimal_covariance(FeatureRanges(np.zeros(3), w, "replace-one"), mu=mu, weights=np.diag(c) + 1e-12)
    assert dual.objective == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_matrix_weights_meet_their_lower_bound(seed):
    rng = np.random.default_rng(20 + seed)
    size, mu = 2 + seed, 0.4
    w = rng.uniform(0.2, 3.0, size)
    factor = rng.standard_normal((size, size))
    weights = factor @ factor.T + 0.05 * np.eye(size)
    found = optimal_covariance(FeatureRanges(np.zeros(size), w, "replace-one"), mu=mu, weights=weights)
    corners = sign_vectors(size) * w
    price = np.einsum("ki,ij,kj->k", corners, found.covariance.precision(), corners)
    assert np.max(price) == pytest.approx(mu**2, rel=1e-9)
    assert np.sum(found.covariance.matrix() * weights) == pytest.approx(found.objective, rel=1e-9)
    assert found.lower <= found.objective * (1 + 1e-12) and found.objective <= found.lower * (1 + 1e-8)
    diagonal = optimal_variances(w, mu, weights=np.diag(weights))
    # The solver stops at a relative gap of 1e-9, so this is the most by which the diagonal could seem better.
    assert found.objective <= diagonal @ np.diag(weights) * (1 + 1e-8)


def test_direction_buys_nothing_for_balls_and_ellipsoids():
    rng = np.random.default_rng(9)
    ball = optimal_covariance(FrobeniusBall(2.0, "replace-one"), mu=0.5, size=3, weights=[1.0, 10.0, 0.1])
    np.testing.assert_allclose(ball.covariance.matrix(), 16.0 * np.eye(3))
    shape = np.diag([1.0, 4.0]) + 0.5
    ellipsoid = optimal_covariance(RecordEllipsoid(shape, "replace-one"), mu=0.5, weights=np.eye(2) + 0.3)
    np.testing.assert_allclose(ellipsoid.covariance.matrix(), 4.0 * shape, rtol=1e-12)
    for _ in range(500):
        factor = rng.standard_normal((2, 2))
        covariance = factor @ factor.T + 0.01 * np.eye(2)
        # Feasible after scaling by the largest generalized eigenvalue of (A, Sigma mu^2).
        scale = np.max(np.linalg.eigvals(np.linalg.solve(covariance, shape)).real) / 0.25
        assert np.sum(covariance * (np.eye(2) + 0.3)) * scale >= ellipsoid.objective * (1 - 1e-12)


def test_scaling():
    w = np.array([1.0, 2.0])
    np.testing.assert_allclose(optimal_variances(3 * w, 0.5), 9 * 4 * optimal_variances(w, 1.0))
    np.testing.assert_allclose(optimal_variances(w, 1.0, weights=[7.0, 7.0]), optimal_variances(w, 1.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: optimal_variances([1.0, 0.0], 1.0), "reach must be a vector of positive"),
        (lambda: optimal_variances([1.0], -1.0), "mu must be positive"),
        (lambda: optimal_variances([1.0, 2.0], 1.0, weights=[1.0]), "weights must have shape"),
        (lambda: optimal_covariance(FrobeniusBall(1.0, "replace-one"), mu=1.0), "size must be given"),
        (
            lambda: optimal_covariance(
                FeatureRanges([0.0] * 13, [1.0] * 13, "replace-one"), mu=1.0, weights=np.ones((13, 13)) + np.eye(13)
            ),
            "up to 12 features",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_twelve_features_have_a_certified_optimum():
    rng = np.random.default_rng(12)
    factor, reach = rng.standard_normal((12, 12)), rng.uniform(0.2, 3.0, 12)
    found = optimal_covariance(
        FeatureRanges(np.zeros(12), reach, "replace-one"), mu=1.0, weights=factor @ factor.T + 0.05 * np.eye(12)
    )
    assert found.lower <= found.objective <= found.lower * (1 + 1e-4)
