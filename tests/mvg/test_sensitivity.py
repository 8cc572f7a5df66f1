"""The box maximum by closed form, vertices and upper bound, each against brute force."""

import itertools

import numpy as np
import pytest

from dpbayes.mvg import sensitivity
from dpbayes.mvg.sensitivity import box_maximum


def _precision(size, rng):
    factor = rng.standard_normal((size, size))
    return factor @ factor.T + 0.05 * np.eye(size)


def _brute(precision, half):
    corners = np.array(list(itertools.product([-1.0, 1.0], repeat=len(half)))) * half
    return np.max(np.einsum("ki,ij,kj->k", corners, precision, corners))


@pytest.mark.parametrize("size", [1, 2, 3, 6, 9])
def test_vertices_equal_brute_force(size):
    rng = np.random.default_rng(100 + size)
    for _ in range(5):
        precision, half = _precision(size, rng), rng.uniform(0.1, 3.0, size)
        assert box_maximum(precision, half).value == pytest.approx(_brute(precision, half), rel=1e-12)


def test_diagonal_is_closed_form():
    half = np.array([1.0, 2.0, 0.5])
    found = box_maximum(np.diag([1.0, 4.0, 9.0]), half)
    assert found.method == "closed form"
    assert found.value == pytest.approx(_brute(np.diag([1.0, 4.0, 9.0]), half), rel=1e-14)


def test_twenty_features_are_enumerated():
    rng = np.random.default_rng(7)
    half = rng.uniform(0.5, 2.0, 20)
    precision = _precision(20, rng)
    found = box_maximum(precision, half)
    assert found.method == "vertices"
    # No random vertex beats it.
    corners = rng.choice([-1.0, 1.0], (20_000, 20)) * half
    assert found.value >= np.max(np.einsum("ki,ij,kj->k", corners, precision, corners))


def test_upper_bound_brackets_the_maximum(monkeypatch):
    rng = np.random.default_rng(11)
    for size in (2, 5, 10):
        for _ in range(3):
            precision, half = _precision(size, rng), rng.uniform(0.1, 3.0, size)
            exact = _brute(precision, half)
            with monkeypatch.context() as patch:
                patch.setattr(sensitivity, "VERTEX_LIMIT", 1)
                found = box_maximum(precision, half)
            assert found.method == "upper bound"
            # The dual of the semidefinite relaxation is at most pi/2 above (Nesterov 1998); 1 % for stopping early.
            assert exact <= found.value <= np.pi / 2 * exact * 1.01
    big = _precision(30, rng)
    corners = rng.choice([-1.0, 1.0], (20_000, 30))
    assert box_maximum(big, np.ones(30)).value >= np.max(np.einsum("ki,ij,kj->k", corners, big, corners))


def test_sign_consistent_form_is_tight_beyond_the_limit():
    # All entries positive: s = 1 is optimal, so the sum of absolute entries is attained.
    precision = np.full((25, 25), 0.3) + np.eye(25)
    found = box_maximum(precision, np.ones(25))
    assert found.value == pytest.approx(precision.sum(), rel=1e-11)
