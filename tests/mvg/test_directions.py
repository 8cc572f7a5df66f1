"""Algorithm 1 and its variants spend exactly the paper's budget, and cost far less than it says."""

import math

import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.mvg import Covariance, FrobeniusBall
from dpbayes.mvg.allocation import bound_terms, check_allocation, directional_shape, unimodal_noise
from dpbayes.mvg.matrix import mu_for
from dpbayes.runs.registry import system_module

paper = system_module("study:mvg_paper")
BALL = FrobeniusBall(1.5, "replace-one")
GUARANTEE = {"gamma": 4.0, "epsilon": 1.0, "delta": 1e-5}


def _rotation(size, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]


@pytest.mark.parametrize("zeta", ["printed", "laurent-massart"])
def test_algorithm_one_step_by_step(zeta):
    m, n, theta, basis = 3, 20, np.array([0.5, 0.3, 0.2]), _rotation(3)
    noise = unimodal_noise(theta, basis, n=n, sensitivity=BALL, zeta=zeta, **GUARANTEE)
    bound = bound_terms(m=m, n=n, sensitivity=1.5, zeta=zeta, **GUARANTEE).bound
    budget = bound**2 / n  # P of step 2: (-beta + sqrt(...))^4 / (16 alpha^4 n)
    variances = 1.0 / np.sqrt(theta * budget)
    np.testing.assert_allclose(noise.row_cov.matrix(), basis @ np.diag(variances) @ basis.T, rtol=1e-10)
    assert noise.col_cov.is_identity


@pytest.mark.parametrize("zeta", ["printed", "laurent-massart"])
def test_noise_meets_the_theorem_with_equality(zeta):
    uni = unimodal_noise([0.5, 0.3, 0.2], None, n=20, sensitivity=BALL, zeta=zeta, **GUARANTEE)
    equi = paper.equimodal_noise(directional_shape([0.7, 0.3], _rotation(2)), sensitivity=BALL, zeta=zeta, **GUARANTEE)
    wide = paper.equimodal_noise(
        directional_shape([0.7, 0.3]), directional_shape([0.2] * 5), sensitivity=BALL, zeta=zeta, **GUARANTEE
    )
    for noise in (uni, equi, wide):
        check = paper.check_bound(noise.row_cov, noise.col_cov, sensitivity=1.5, zeta=zeta, **GUARANTEE)
        assert check and check.precision == pytest.approx(check.bound, rel=1e-12)
    np.testing.assert_allclose(equi.row_cov.matrix(), equi.col_cov.matrix(), rtol=1e-12)
    assert wide.shape == (2, 5)


def test_the_theorem_overpays():
    noise = unimodal_noise([0.5, 0.3, 0.2], None, n=20, sensitivity=BALL, **GUARANTEE)
    assert noise.delta(1.0) < 1e-5
    assert noise.epsilon(1e-5) < 0.1


def test_noise_of_the_anchors():
    # Equal noise asked by the bound: 30.88, 121.8 and 5.5e9.
    cases = [
        (1, 1, 1.0, 1.0, 1e-5, 30.88, 3.7306),
        (2, 2, 1.0, 1.0, 1e-5, 121.8, 3.7306),
        (10, 70000, math.sqrt(700000), math.sqrt(10), 1 / 70000, 5.5e9, 11.542),
    ]
    for m, n, gamma, s2, delta, by_bound, by_curve in cases:
        ball = FrobeniusBall(s2, "replace-one")
        noise = unimodal_noise(np.full(m, 1 / m), None, n=n, gamma=gamma, sensitivity=ball, epsilon=1.0, delta=delta)
        variances = noise.row_cov.marginal_variances.mean() * noise.col_cov.marginal_variances.mean()
        assert math.sqrt(variances) == pytest.approx(by_bound, rel=7e-3 if m == 10 else 5e-4)
        assert s2 / mu_for(1.0, delta) == pytest.approx(by_curve, rel=2e-5)


def test_binary_allocation():
    theta = paper.binary_allocation(5, [1, 4], 0.8)
    assert theta.sum() == pytest.approx(1.0) and theta[1] == theta[4] == 0.4
    shape = directional_shape(theta)
    assert shape.marginal_variances[1] < shape.marginal_variances[0]


def test_derived_directions_follow_the_eigenvectors():
    basis = _rotation(4, seed=5)
    covariance = basis @ np.diag([8.0, 4.0, 2.0, -0.5]) @ basis.T
    derived = paper.derive_directions((covariance + covariance.T) / 2, mu=0.3, power=0.5, floor=0.01)
    np.testing.assert_allclose(np.abs(derived.directions.T @ basis), np.eye(4), atol=1e-10)
    expected = np.sqrt([8.0, 4.0, 2.0, 0.08])
    np.testing.assert_allclose(derived.theta, expected / expected.sum(), rtol=1e-10)
    assert derived.mu == 0.3
    np.testing.assert_allclose(derived.shape.variances, 1 / np.sqrt(derived.theta))


def test_split_composes_to_the_whole():
    first, second = paper.split_mu(2.0, 1e-6, 0.2)
    assert math.hypot(first, second) == pytest.approx(mu_for(2.0, 1e-6), rel=1e-13)
    assert (first / second) ** 2 == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_allocation([0.5, 0.6]), "theta must sum to 1, got 1.1"),
        (lambda: check_allocation([0.0, 1.0]), r"inside \(0, 1\), got 0"),
        (lambda: check_allocation([-0.5, 1.5]), r"inside \(0, 1\), got -0.5"),
        (lambda: check_allocation([np.nan, 1.0]), r"inside \(0, 1\), got nan"),
        (lambda: check_allocation([[0.5, 0.5]]), r"one share for each direction, got shape \(1, 2\)"),
        (lambda: directional_shape([0.5, 0.5], [[1.0, 1.0], [0.0, 1.0]]), "must be orthonormal"),
        (lambda: directional_shape([0.5, 0.5], np.eye(3)), "directions must have shape"),
        (lambda: paper.binary_allocation(3, [0, 1, 2], 0.9), "some but not all"),
        (lambda: paper.binary_allocation(3, [], 0.9), "some but not all"),
        (lambda: paper.binary_allocation(3, [0, 0], 0.9), "once each"),
        (lambda: paper.binary_allocation(3, [3], 0.9), "some but not all"),
        (lambda: paper.binary_allocation(3, [0], 1.0), "share must be below 1"),
        (lambda: paper.derive_directions(-np.eye(2), mu=0.0), "no positive eigenvalue"),
        (lambda: paper.derive_directions([[1.0, 2.0], [0.0, 1.0]], mu=0.0), "must be symmetric"),
        (lambda: paper.derive_directions(np.eye(2), mu=-1.0), "mu must be finite and not negative"),
        (lambda: paper.derive_directions(np.eye(2), mu=0.0, power=-1.0), "power must be"),
        (lambda: paper.split_mu(1.0, 1e-5, 0.0), "share must be positive"),
        (lambda: unimodal_noise([0.5, 0.5], None, n=0, sensitivity=BALL, **GUARANTEE), "n must be a whole number"),
        (
            lambda: unimodal_noise([0.5, 0.5], None, n=2, sensitivity=BALL, gamma=-1.0, epsilon=1.0, delta=1e-5),
            "gamma must be positive",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_identity_columns_are_never_stored():
    noise = unimodal_noise([0.5, 0.5], None, n=350_000, sensitivity=BALL, **GUARANTEE)
    assert noise.col_cov.variances is None and noise.col_cov == noise.col_cov
    assert isinstance(noise.row_cov, Covariance)
