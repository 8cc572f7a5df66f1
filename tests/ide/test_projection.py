import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog

from dpbayes.errors import InputError
from dpbayes.ide import project_simplex, project_subsimplex

ANSWERS = arrays(np.float64, st.integers(1, 8), elements=st.floats(-2, 2, allow_subnormal=False))


def l1_minimum(answers, *, equality):
    """The least L1 distance, by a linear program in (y, |y - answers|)."""
    k = len(answers)
    eye, ones = np.eye(k), np.ones((1, k))
    bounds = np.block([[eye, -eye], [-eye, -eye]])
    total = np.hstack([ones, np.zeros((1, k))])
    rows = {"A_eq": total, "b_eq": [1.0]} if equality else {}
    upper, limit = (bounds, np.r_[answers, -answers])
    if not equality:
        upper, limit = np.vstack([bounds, total]), np.r_[limit, 1.0]
    # HiGHS keeps each of up to 17 constraints to 1e-7: optima agree to 2e-6.
    return linprog(np.r_[np.zeros(k), np.ones(k)], A_ub=upper, b_ub=limit, **rows).fun


@given(ANSWERS)
def test_simplex_projection_attains_the_least_l1_distance(answers):
    y = project_simplex(answers)
    assert np.all(y >= 0)
    assert y.sum() == pytest.approx(1, abs=1e-12)
    positive = np.maximum(answers, 0).sum()
    stated = np.maximum(-answers, 0).sum() + abs(1 - positive)
    assert np.abs(y - answers).sum() == pytest.approx(stated, abs=1e-9)
    assert l1_minimum(answers, equality=True) == pytest.approx(stated, abs=2e-6)


@given(ANSWERS)
def test_subsimplex_projection_attains_the_least_l1_distance(answers):
    y = project_subsimplex(answers)
    assert np.all(y >= 0)
    assert y.sum() <= 1 + 1e-12
    assert np.abs(y - answers).sum() == pytest.approx(l1_minimum(answers, equality=False), abs=2e-6)


@given(ANSWERS)
def test_ties_go_to_the_euclidean_projection(answers):
    # Variational inequality of the Euclidean projection: (answers - y) . (z - y) <= 0 at every vertex z.
    y = project_simplex(answers)
    assert np.all((answers - y) - (answers - y) @ y <= 1e-9)


@given(ANSWERS)
def test_a_probability_vector_stays_and_order_does_not_matter(answers):
    y = project_simplex(answers)
    np.testing.assert_allclose(project_simplex(y), y, atol=1e-12)
    np.testing.assert_allclose(project_simplex(answers[::-1])[::-1], y, atol=1e-12)


def test_many_vectors_at_once_are_each_projected():
    rng = np.random.default_rng(1)
    many = rng.normal(size=(3, 4, 5))
    each = np.array([[project_simplex(vector) for vector in row] for row in many])
    np.testing.assert_array_equal(project_simplex(many), each)


@pytest.mark.parametrize("bad", [[], 1.0, [np.nan, 1.0], [np.inf]])
def test_answers_must_be_finite_and_there(bad):
    with pytest.raises(InputError):
        project_simplex(bad)
