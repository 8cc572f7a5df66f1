"""Fits of one partition against statsmodels, and every way in which a fit can fail."""

import numpy as np
import pytest
import statsmodels.api as sm

from dpbayes.verifier.claim import demean, fit_absorbed, fit_glm, fit_ols


def data(n, k, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    matrix = np.column_stack([np.ones(n), rng.normal(3, 1, size=(n, k - 1)) * scale])
    return matrix, matrix @ np.linspace(-1, 2, k) + rng.normal(size=n)


@pytest.mark.parametrize(("n", "k", "scale"), [(12, 3, 1), (300, 5, 1), (513, 2, 1), (20_000, 9, 1)])
def test_ols_is_statsmodels(n, k, scale):
    # Row counts below, at and far above the block size of the factorization.
    matrix, response = data(n, k, seed=n, scale=scale)
    expected = sm.OLS(response, matrix).fit()
    for column in (0, k - 1):
        estimate = fit_ols(matrix, response, column)
        assert estimate.coefficient == pytest.approx(expected.params[column], rel=1e-10, abs=1e-10)
        assert estimate.standard_error == pytest.approx(expected.bse[column], rel=1e-9)
        assert estimate.p_value == pytest.approx(expected.pvalues[column], rel=1e-7, abs=1e-300)


def test_columns_of_very_different_size_do_not_disturb_each_other():
    # Whole numbers, so the response is exact: 1, 2, 3, 4 must come back to rounding times a modest condition number.
    rng = np.random.default_rng(9)
    matrix = np.column_stack([np.ones(4000), rng.integers(-50, 50, (4000, 3)) * [1.0, 2.0**30, 2.0**-30]])
    response = matrix @ [1.0, 2.0, 3.0 * 2.0**-30, 4.0 * 2.0**30]
    for column, expected in enumerate([1.0, 2.0, 3.0 * 2.0**-30, 4.0 * 2.0**30]):
        assert fit_ols(matrix, response, column).coefficient == pytest.approx(expected, rel=1e-12)


def test_ols_keeps_its_digits_where_normal_equations_lose_them():
    # Condition number 1e7: squaring it would leave two digits.
    rng = np.random.default_rng(5)
    x = rng.normal(size=2000)
    matrix = np.column_stack([np.ones(2000), x, x + 1e-7 * rng.normal(size=2000)])
    response = matrix @ [1.0, 2.0, 3.0]
    assert fit_ols(matrix, response, 2).coefficient == pytest.approx(3.0, abs=1e-6)


@pytest.mark.parametrize("n_groupings", [1, 2])
def test_absorbed_effects_are_dummies(n_groupings):
    rng = np.random.default_rng(7)
    n = 240
    groups = [rng.integers(0, 15, n), rng.integers(0, 6, n)][:n_groupings]
    groups = [np.unique(codes, return_inverse=True)[1] for codes in groups]
    x = rng.normal(size=(n, 2)) + groups[0][:, None] * 0.1
    response = x @ [0.5, -1.0] + 50 * np.sin(groups[0]) + rng.normal(size=n)
    dummies = [np.eye(15)[groups[0]]] + [np.eye(6)[g][:, 1:] for g in groups[1:]]
    expected = sm.OLS(response, np.column_stack([x, *dummies])).fit()
    estimate = fit_absorbed(x, response, 1, groups)
    assert estimate.coefficient == pytest.approx(expected.params[1], rel=1e-10)
    assert estimate.standard_error == pytest.approx(expected.bse[1], rel=1e-9)
    assert estimate.p_value == pytest.approx(expected.pvalues[1], rel=1e-6)


def test_a_column_without_variation_within_groups_is_not_computed():
    codes = np.repeat(np.arange(30), 4)
    rng = np.random.default_rng(1)
    # Values whose group means round, so that demeaning leaves dust and not zeros.
    matrix = np.column_stack([rng.normal(size=120), (codes * 0.1 + 0.3)])
    assert fit_absorbed(matrix, rng.normal(size=120), 0, [codes]) is None
    assert fit_absorbed(matrix[:, :1], rng.normal(size=120), 0, [codes]) is not None


def test_groups_that_take_every_degree_of_freedom_are_not_computed():
    rng = np.random.default_rng(2)
    assert fit_absorbed(rng.normal(size=(6, 1)), rng.normal(size=6), 0, [np.arange(6)]) is None


def test_demeaning_leaves_no_means():
    rng = np.random.default_rng(3)
    groups = [rng.integers(0, 20, 500), rng.integers(0, 9, 500)]
    values = 1e6 + rng.normal(size=(500, 2))
    out, used = demean(values, groups)
    for codes in groups:
        assert np.abs(np.bincount(codes, weights=out[:, 0])).max() < 1e-5
    assert used == 28


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_glm_is_statsmodels(family):
    rng = np.random.default_rng(11)
    matrix = np.column_stack([np.ones(400), rng.normal(size=(400, 2))])
    eta = matrix @ [0.2, 0.8, -0.5]
    response = rng.poisson(np.exp(eta)) if family == "poisson" else rng.random(400) < 1 / (1 + np.exp(-eta))
    response = response.astype(float)
    sm_family = sm.families.Poisson() if family == "poisson" else sm.families.Binomial()
    expected = sm.GLM(response, matrix, family=sm_family).fit(tol=1e-14, maxiter=100)
    estimate = fit_glm(matrix, response, 1, family=family)
    assert estimate.coefficient == pytest.approx(expected.params[1], rel=1e-8)
    assert estimate.standard_error == pytest.approx(expected.bse[1], rel=1e-6)


def separated():
    x = np.linspace(-1, 1, 60)
    return np.column_stack([np.ones(60), x]), (x > 0.1).astype(float)


def quasi_separated():
    # A category all of whose members say yes: its coefficient has no maximum.
    group = np.repeat([0.0, 1.0], 30)
    response = np.concatenate([np.tile([0.0, 1.0], 15), np.ones(30)])
    return np.column_stack([np.ones(60), group]), response


@pytest.mark.parametrize("case", [separated, quasi_separated])
def test_separation_is_not_computed(case):
    assert fit_glm(*case(), 1, family="logistic") is None


def test_poisson_without_events_in_a_category_is_not_computed():
    group = np.repeat([0.0, 1.0], 30)
    response = np.concatenate([np.tile([1.0, 2.0], 15), np.zeros(30)])
    assert fit_glm(np.column_stack([np.ones(60), group]), response, 1, family="poisson") is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
@pytest.mark.parametrize("where", ["matrix", "response"])
def test_values_that_are_not_finite_are_not_computed(bad, where):
    matrix, response = data(50, 3, seed=1)
    (matrix[:, 2] if where == "matrix" else response)[7] = bad
    for estimate in (
        fit_ols(matrix, response, 1),
        fit_glm(matrix, np.abs(response), 1, family="poisson"),
        fit_absorbed(matrix[:, 1:], response, 0, [np.repeat(np.arange(10), 5)]),
    ):
        assert estimate is None or np.isfinite(estimate.coefficient)
    if not np.isfinite(bad):
        assert fit_ols(matrix, response, 1) is None


def test_singular_and_small_designs_are_not_computed():
    matrix, response = data(30, 3, seed=2)
    doubled = np.column_stack([matrix, matrix[:, 1] * 3 - 1])
    empty_level = np.column_stack([matrix, np.zeros(30)])
    for design in (doubled, empty_level, matrix[:3], matrix[:2]):
        rows = len(design)
        assert fit_ols(design, response[:rows], 0) is None
        assert fit_glm(design, np.abs(response[:rows]), 0, family="poisson") is None
    assert fit_ols(matrix[:4], response[:4], 0) is not None


def test_out_of_range_responses_are_not_computed():
    matrix, _ = data(40, 2, seed=3)
    assert fit_glm(matrix, np.full(40, 2.0), 1, family="logistic") is None
    assert fit_glm(matrix, np.full(40, -1.0), 1, family="poisson") is None


def test_a_constant_response_has_slope_zero():
    matrix, _ = data(40, 2, seed=3)
    for constant in (0.0, 5.0):
        assert fit_ols(matrix, np.full(40, constant), 1).coefficient == pytest.approx(0, abs=1e-14)
