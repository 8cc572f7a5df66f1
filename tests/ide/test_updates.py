import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize

from dpbayes.errors import InputError
from dpbayes.ide import PartialWorkload, kl_divergence, update


@st.composite
def problems(draw, *, covering):
    rows = draw(st.integers(2, 7))
    weights = np.array(draw(st.lists(st.floats(0.05, 1), min_size=rows, max_size=rows)))
    lowest = 0 if covering else -1
    cell = np.array(draw(st.lists(st.integers(lowest, 2), min_size=rows, max_size=rows)))
    answers = np.array(draw(st.lists(st.floats(-0.2, 0.8), min_size=3, max_size=3)))
    return weights / weights.sum(), PartialWorkload(cell, answers)


def least_kl(weights, workload, target):
    """The least KL divergence under the constraints, by a general convex solver that knows nothing of the update."""
    held = workload.rows > 0
    matrix = np.array([(workload.cell == c).astype(float) for c in np.flatnonzero(held)])
    wanted = target[held]
    if not workload.covers:  # otherwise the cells' constraints imply the total
        matrix, wanted = np.vstack([*matrix, np.ones(len(weights))]), np.append(wanted, 1.0)

    def objective(q):
        inside = np.maximum(q, 1e-12)  # trial steps may leave the bounds
        return np.sum(q * np.log(inside / weights)), np.log(inside / weights) + 1.0

    start = 0.5 * update(weights, workload.cell, target) + 0.5 / len(weights)
    result = minimize(
        objective,
        start,
        jac=True,
        hess=lambda q: np.diag(1.0 / np.maximum(q, 1e-12)),
        method="trust-constr",
        constraints=LinearConstraint(matrix, wanted, wanted),
        bounds=[(1e-12, 1.0)] * len(weights),
        options={"gtol": 1e-10, "xtol": 1e-12, "maxiter": 3000},
    )
    assert np.abs(matrix @ result.x - wanted).max() < 1e-6
    return result.fun


@settings(max_examples=25, deadline=None)
@given(st.booleans().flatmap(lambda covering: problems(covering=covering)))
def test_theorem_3_1_the_update_is_the_kl_minimizer(problem):
    weights, workload = problem
    target = workload.target()
    assume(np.all(target[workload.rows > 0] > 1e-3))
    assume(workload.covers or target.sum() < 1 - 1e-3)
    q = update(weights, workload.cell, target)
    mass = np.bincount(workload.cell[workload.cell >= 0], q[workload.cell >= 0], 3)
    np.testing.assert_allclose(mass, target, atol=1e-12)
    assert q.sum() == pytest.approx(1, abs=1e-12)
    # The interior-point solver stops within 1e-5 of its optimum; the closed form may not be above it.
    assert kl_divergence(q, weights) == pytest.approx(least_kl(weights, workload, target), abs=1e-5)


@given(problems(covering=True))
def test_the_update_keeps_its_answers_and_a_second_one_changes_nothing(problem):
    weights, workload = problem
    once = update(weights, workload.cell, workload.target())
    np.testing.assert_allclose(update(once, workload.cell, workload.target()), once, atol=1e-12)


@given(problems(covering=False))
def test_fixed_point_when_the_marginal_already_matches(problem):
    weights, workload = problem
    inside = workload.cell >= 0
    exact = np.bincount(workload.cell[inside], weights[inside], 3)
    np.testing.assert_allclose(update(weights, workload.cell, exact), weights, atol=1e-12)


def test_case_two_shares_equally_in_a_cell_without_mass():
    q = update(np.array([0.0, 0.0, 1.0]), np.array([0, 0, 1]), np.array([0.4, 0.6]))
    np.testing.assert_allclose(q, [0.2, 0.2, 0.6])


def test_case_three_scales_the_rows_in_no_cell():
    q = update(np.array([0.5, 0.3, 0.2]), np.array([0, -1, -1]), np.array([0.8]))
    np.testing.assert_allclose(q, [0.8, 0.12, 0.08])


def test_case_four_shares_equally_among_rows_in_no_cell_without_mass():
    q = update(np.array([1.0, 0.0, 0.0]), np.array([0, -1, -1]), np.array([0.6]))
    np.testing.assert_allclose(q, [0.6, 0.2, 0.2])


def test_a_cell_with_answer_zero_loses_its_mass():
    q = update(np.array([0.5, 0.5]), np.array([0, 1]), np.array([0.0, 1.0]))
    np.testing.assert_array_equal(q, [0.0, 1.0])


def test_answers_of_cells_without_rows_are_given_up():
    workload = PartialWorkload(np.array([0, 0, 2]), np.array([0.3, 0.4, 0.3]))
    np.testing.assert_allclose(workload.target(), [0.5, 0.0, 0.5])


def test_cells_must_have_answers():
    with pytest.raises(InputError, match="between -1"):
        PartialWorkload(np.array([0, 3]), np.array([0.5, 0.5]))


def test_kl_is_zero_only_at_the_prior_and_infinite_off_its_support():
    p = np.array([0.25, 0.75])
    assert kl_divergence(p, p) == 0
    assert kl_divergence(np.array([0.5, 0.5]), p) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert kl_divergence(np.array([0.5, 0.5]), np.array([0.0, 1.0])) == np.inf
