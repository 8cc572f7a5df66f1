"""The exact price: suprema by optimization, calibration as the inverse, dp-accounting as an independent engine."""

import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

from dpbayes.errors import InputError
from dpbayes.mvg import Covariance, FeatureRanges, FrobeniusBall, calibrate
from dpbayes.mvg.matrix import MatrixGaussian, exact_mu, mu_for


def _covariance(size, rng):
    factor = rng.standard_normal((size, size))
    return factor @ factor.T + 0.2 * np.eye(size)


def _ascend(objective_and_gradient, project, start, steps=400):
    """Maximize a convex function over a compact set: x <- argmax over the set of <gradient, .> never decreases it."""
    point = start
    for _ in range(steps):
        value, gradient = objective_and_gradient(point)
        new = project(gradient)
        if objective_and_gradient(new)[0] <= value * (1 + 1e-15):
            break
        point = new
    return objective_and_gradient(point)[0]


def _best(row, col, project, shape, rng, starts):
    """Supremum of ||Sigma^-1/2 Delta Psi^-1/2||_F found from many starts."""
    p, q = np.linalg.inv(row), np.linalg.inv(col)

    def squared(delta):
        gradient = 2.0 * p @ delta @ q
        return float(np.sum(delta * gradient)) / 2.0, gradient

    return math.sqrt(max(_ascend(squared, project, project(rng.standard_normal(shape))) for _ in range(starts)))


def _one_column(support):
    """Linear maximization over matrices with a single non-zero column from a set with this support point."""

    def project(gradient):
        best, value = np.zeros_like(gradient), -math.inf
        for j in range(gradient.shape[1]):
            column = support(gradient[:, j])
            if gradient[:, j] @ column > value:
                value, best = gradient[:, j] @ column, np.zeros_like(gradient)
                best[:, j] = column
        return best

    return project


@pytest.mark.parametrize("seed", range(100))
def test_mu_equals_the_supremum_found_by_optimization(seed):
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(1, 6)), int(rng.integers(1, 5))
    row, col = _covariance(m, rng), _covariance(n, rng)
    kind = seed % 3
    if kind == 0:
        sensitivity = FrobeniusBall(rng.uniform(0.1, 3), "replace-one")

        def project(gradient):
            return sensitivity.radius * gradient / np.linalg.norm(gradient)

        # The ascent is power iteration here; it needs many steps when the two bottom eigenvalues are close.
        p, q = np.linalg.inv(row), np.linalg.inv(col)
        delta = project(rng.standard_normal((m, n)))
        for _ in range(20_000):
            delta = project(p @ delta @ q)
        found = math.sqrt(np.sum(delta * (p @ delta @ q)))
        assert exact_mu(row, col, sensitivity).value == pytest.approx(found, rel=1e-6)
        return
    lower, width = rng.standard_normal(m), rng.uniform(0.1, 3.0, m)
    sensitivity = FeatureRanges(lower, lower + width, "replace-one" if kind == 1 else "add-remove")
    half = width if kind == 1 else width / 2.0
    project = _one_column(lambda gradient: half * np.sign(gradient))
    mu = exact_mu(row, col, sensitivity)
    assert mu.method in ("vertices", "closed form")
    assert mu.value == pytest.approx(_best(row, col, project, (m, n), rng, starts=200), rel=1e-6)


def test_frobenius_supremum_is_attained_at_the_bottom_eigenvectors():
    rng = np.random.default_rng(8)
    row, col = _covariance(4, rng), _covariance(3, rng)
    u, v = np.linalg.eigh(row)[1][:, 0], np.linalg.eigh(col)[1][:, 0]
    delta = 0.7 * np.outer(u, v)
    distance = np.sqrt(np.sum(delta * (np.linalg.inv(row) @ delta @ np.linalg.inv(col))))
    assert exact_mu(row, col, FrobeniusBall(0.7, "replace-one")).value == pytest.approx(distance, rel=1e-10)


def test_neighbours_are_never_further_apart_than_mu():
    # Directly from the definition: pairs of datasets that differ in one record, in vec form.
    rng = np.random.default_rng(21)
    row, col = _covariance(3, rng), _covariance(4, rng)
    ranges = FeatureRanges([0.0, -1.0, 2.0], [1.0, 3.0, 2.5], "replace-one")
    inverse = np.linalg.inv(np.kron(col, row))
    mu = exact_mu(row, col, ranges).value
    reached = 0.0
    for _ in range(3000):
        data = rng.uniform(ranges.lower[:, None], ranges.upper[:, None], (3, 4))
        other = data.copy()
        other[:, rng.integers(4)] = np.where(rng.random(3) < 0.5, ranges.lower, ranges.upper)
        delta = (data - other).ravel(order="F")
        reached = max(reached, math.sqrt(delta @ inverse @ delta))
    assert reached <= mu * (1 + 1e-12)
    assert reached > 0.5 * mu


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_calibration_inverts_accounting(epsilon, delta):
    rng = np.random.default_rng(2)
    for sensitivity in (
        FrobeniusBall(2.0, "replace-one"),
        FeatureRanges(np.zeros(3), [1.0, 2.0, 9.0], "add-remove"),
    ):
        noise = calibrate(_covariance(3, rng), Covariance.identity(50), sensitivity, epsilon=epsilon, delta=delta)
        assert noise.mu.value == pytest.approx(mu_for(epsilon, delta), rel=1e-12)
        assert noise.delta(epsilon) == pytest.approx(delta, rel=1e-8)
        assert noise.epsilon(delta) == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-4), (1.0, 1e-5), (3.0, 1e-6)])
def test_delta_is_dp_accountings_gaussian(epsilon, delta):
    ranges = FeatureRanges(np.zeros(2), [1.0, 3.0], "replace-one")
    noise = calibrate([[2.0, 0.5], [0.5, 1.0]], Covariance.identity(9), ranges, epsilon=epsilon, delta=delta)
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(1.0 / noise.mu.value))
    # dp-accounting discretizes the loss at 1e-4 and rounds up: relative error at most about 1e-4 * epsilon * 10.
    assert accountant.get_delta(epsilon) == pytest.approx(noise.delta(epsilon), rel=2e-3)
    assert accountant.get_delta(epsilon) >= noise.delta(epsilon) * (1 - 1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-3), (1.0, 1e-5), (8.0, 1e-9)])
def test_delta_is_the_analytic_gaussian_of_dp_accounting(epsilon, delta):
    for sensitivity in (FrobeniusBall(3.0, "replace-one"), FeatureRanges([0.0, 0.0], [1.0, 3.0], "add-remove")):
        noise = calibrate([[2.0, 0.5], [0.5, 1.0]], Covariance.identity(9), sensitivity, epsilon=epsilon, delta=delta)
        loss = GaussianPrivacyLoss(standard_deviation=1.0 / noise.mu.value, sensitivity=1.0)
        assert loss.get_delta_for_epsilon(epsilon) == pytest.approx(noise.delta(epsilon), rel=1e-9)
        assert noise.delta(epsilon) == pytest.approx(delta, rel=1e-9)


def test_anchor_stddev():
    assert 1.0 / mu_for(1.0, 1e-5) == pytest.approx(3.73063163, rel=1e-8)


def test_scaling_and_rotation():
    rng = np.random.default_rng(4)
    row, ball = _covariance(3, rng), FrobeniusBall(1.0, "replace-one")
    rotation = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    base = exact_mu(row, np.eye(2), ball).value
    assert exact_mu(rotation @ row @ rotation.T, np.eye(2), ball).value == pytest.approx(base, rel=1e-10)
    assert exact_mu(9 * row, np.eye(2), ball).value == pytest.approx(base / 3, rel=1e-12)
    assert exact_mu(row, np.eye(2), FrobeniusBall(2.0, "replace-one")).value == pytest.approx(2 * base, rel=1e-12)


def test_feature_ranges_know_their_frobenius_radius():
    ranges = FeatureRanges([0.0, 0.0], [3.0, 4.0], "replace-one")
    assert ranges.frobenius == 5.0
    assert FeatureRanges([0.0, 0.0], [3.0, 4.0], "add-remove").frobenius == 2.5
    # Equal noise: the ranges and their Frobenius ball cost the same, so direction is the only way to gain.
    by_ranges = exact_mu(np.eye(2), np.eye(3), ranges).value
    assert by_ranges == pytest.approx(exact_mu(np.eye(2), np.eye(3), FrobeniusBall(5.0, "replace-one")).value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FrobeniusBall(0.0, "replace-one"), "radius must be positive"),
        (lambda: FrobeniusBall(1.0, "neighbours"), "adjacency must be 'replace-one'"),
        (lambda: FeatureRanges([0.0], [0.0], "replace-one"), "lower < upper"),
        (lambda: FeatureRanges([0.0, 1.0], [1.0], "replace-one"), "one length"),
        (lambda: MatrixGaussian([[1.0, 2.0], [2.0, 1.0]], np.eye(2), FrobeniusBall(1.0, "replace-one")), "definite"),
        (
            lambda: exact_mu(np.eye(2), np.eye(2), FeatureRanges([0.0], [1.0], "replace-one")),
            "1 features but row_cov has 2",
        ),
        (lambda: exact_mu(np.eye(2), np.eye(2), 1.0), "sensitivity must be"),
        (lambda: exact_mu(-np.eye(2), np.eye(2), FrobeniusBall(1.0, "replace-one")), "positive and finite, got -1"),
        (
            lambda: calibrate(np.eye(2), np.eye(2), FrobeniusBall(1.0, "replace-one"), epsilon=-1.0, delta=1e-5),
            "epsilon must be positive",
        ),
        (
            lambda: calibrate(np.eye(2), np.eye(2), FrobeniusBall(1.0, "replace-one"), epsilon=1.0, delta=1.5),
            "delta must be",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_price_does_not_depend_on_the_number_of_records():
    ball = FrobeniusBall(1.0, "replace-one")
    few = MatrixGaussian(Covariance.diagonal([4.0]), Covariance.identity(2), ball)
    many = MatrixGaussian(Covariance.diagonal([4.0]), Covariance.identity(10**6), ball)
    assert few.mu == many.mu and few.rho == pytest.approx(0.125)
