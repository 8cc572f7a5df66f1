"""Covariances as directions and variances agree with dense linear algebra."""

import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.mvg import Covariance
from dpbayes.mvg.matrix import as_covariance
from dpbayes.runs.registry import system_module

precision_norm = system_module("study:mvg_paper").precision_norm


def _random(size, seed):
    factor = np.random.default_rng(seed).standard_normal((size, size))
    return factor @ factor.T + 0.1 * np.eye(size)


@pytest.mark.parametrize("seed", range(5))
def test_dense_algebra(seed):
    matrix = _random(4, seed)
    cov = Covariance.from_matrix(matrix)
    inverse = np.linalg.inv(matrix)
    np.testing.assert_allclose(cov.matrix(), matrix, rtol=1e-11)
    np.testing.assert_allclose(cov.precision(), inverse, rtol=1e-9)
    np.testing.assert_allclose(cov.precision_diagonal, np.diag(inverse), rtol=1e-9)
    np.testing.assert_allclose(cov.marginal_variances, np.diag(matrix), rtol=1e-11)
    assert precision_norm(cov) == pytest.approx(np.linalg.norm(inverse), rel=1e-9)
    assert cov.smallest == pytest.approx(np.linalg.eigvalsh(matrix)[0], rel=1e-9)
    coloured = cov.colour(np.eye(4))
    np.testing.assert_allclose(coloured @ coloured.T, matrix, rtol=1e-11)
    np.testing.assert_allclose(cov.whiten(coloured), np.eye(4), atol=1e-11)
    np.testing.assert_allclose(cov.scaled(2.5).matrix(), 2.5 * matrix, rtol=1e-11)


@pytest.mark.parametrize("cov", [Covariance.identity(3), Covariance.diagonal([1.0, 1.0, 1.0])])
def test_identity_and_unit_diagonal_agree(cov):
    np.testing.assert_array_equal(cov.matrix(), np.eye(3))
    assert precision_norm(cov) == pytest.approx(np.sqrt(3.0))
    np.testing.assert_array_equal(cov.scaled(4.0).marginal_variances, [4.0, 4.0, 4.0])


def test_diagonal_matrix_is_recognized():
    assert Covariance.from_matrix([[2.0, 0.0], [0.0, 3.0]]).is_diagonal
    assert not Covariance.from_matrix([[2.0, 0.1], [0.1, 3.0]]).is_diagonal


def test_whiten_leaves_its_argument_alone():
    array = np.ones((2, 3))
    Covariance.diagonal([4.0, 9.0]).whiten(array)
    assert np.all(array == 1.0)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, 0.5], [0.2, 1.0]], "must be symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "positive definite"),
        ([[1.0, 1.0], [1.0, 1.0]], "positive definite"),
        ([[1.0, 0.0], [0.0, 0.0]], "positive and finite, got 0"),
        ([[np.nan, 0.0], [0.0, 1.0]], "must be finite"),
        ([[1.0, 2.0, 3.0]], "square matrix"),
        ("text", "must be real and within"),
    ],
)
def test_not_a_covariance(matrix, message):
    with pytest.raises(InputError, match=message):
        Covariance.from_matrix(matrix)


def test_variances_far_apart_are_kept_where_no_rotation_rounds_them():
    assert Covariance.from_matrix(np.diag([1e-9, 1e18])).variances.tolist() == [1e-9, 1e18]
    with pytest.raises(InputError, match=r"within a factor of 1e13, but they go from .* to 1e\+18"):
        Covariance.from_matrix([[1.0, 0.5], [0.5, 1e18]])


def test_bad_parts():
    with pytest.raises(InputError, match="directions must be orthonormal"):
        Covariance(2, np.ones(2), np.array([[1.0, 0.1], [0.0, 1.0]]))
    with pytest.raises(InputError, match="directions must have shape"):
        Covariance(2, np.ones(2), np.eye(3))
    with pytest.raises(InputError, match="positive and finite, got -1"):
        Covariance.diagonal([1.0, -1.0])
    with pytest.raises(InputError, match="size must be a whole number"):
        Covariance.identity(0)
    with pytest.raises(InputError, match="must have 3 rows"):
        as_covariance(np.eye(2), "row_cov", size=3)
