"""Draws have the stated covariance; releases clip, never rescale, and carry their privacy cost."""

import math

import numpy as np
import pytest
from scipy import stats

from dpbayes.errors import BudgetExceededError, InputError
from dpbayes.mvg import (
    Covariance,
    FeatureRanges,
    FrobeniusBall,
    MomentQuery,
    calibrate,
    calibrate_moments,
    release_moments,
    release_records,
)
from dpbayes.mvg.matrix import MatrixGaussian, _rounding_slack, _whiten, draw
from dpbayes.mvg.sensitivity import clip_records
from dpbayes.privacy.ledger import create_ledger

RANGES = FeatureRanges([0.0, -1.0], [1.0, 3.0], "replace-one")


def _covariance(size, seed):
    factor = np.random.default_rng(seed).standard_normal((size, size))
    return factor @ factor.T + 0.3 * np.eye(size)


@pytest.mark.parametrize(
    ("row", "col"),
    [
        (_covariance(2, 1), _covariance(3, 2)),
        (np.diag([1.0, 4.0]), _covariance(3, 3)),
        (_covariance(2, 4), np.diag([1.0, 2.0, 0.5])),
        (_covariance(2, 5), None),
        (np.diag([0.5, 3.0]), None),
    ],
)
def test_empirical_covariance_is_the_kronecker_product(row, col):
    draws, rng = 8_000, np.random.default_rng(77)
    col_cov = Covariance.identity(3) if col is None else col
    sample = np.stack([draw(row, col_cov, rng=rng).ravel(order="F") for _ in range(draws)])
    expected = np.kron(np.eye(3) if col is None else col, row)
    found = sample.T @ sample / draws
    # An entry has the variance (k_ii k_jj + k_ij^2) / draws. 105 entries in all: two may pass 3 standard errors by
    # chance (probability of more: 0.3 %), none passes 5 (false alarm 6e-5).
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / draws)
    z = np.abs(found - expected)[np.triu_indices(6)] / error[np.triu_indices(6)]
    assert np.sum(z > 3) <= 1 and np.max(z) < 5


def test_identity_is_never_formed(monkeypatch):
    monkeypatch.setattr(np, "eye", lambda *_: pytest.fail("an identity was formed"))
    monkeypatch.setattr(np.linalg, "eigh", lambda *_: pytest.fail("a matrix was factored"))
    noise = draw(Covariance.diagonal([1.0, 2.0]), Covariance.identity(200_000), rng=np.random.default_rng(1))
    assert noise.shape == (2, 200_000)


def test_diagonal_draw_equals_dense_draw():
    one = draw(Covariance.diagonal([4.0, 9.0]), Covariance.identity(5), rng=np.random.default_rng(2))
    two = draw(
        Covariance(2, np.array([4.0, 9.0]), np.eye(2)), Covariance.diagonal(np.ones(5)), rng=np.random.default_rng(2)
    )
    np.testing.assert_allclose(one, two, rtol=1e-14)


def _noise(n, epsilon=1.0):
    return calibrate(_covariance(2, 6), Covariance.identity(n), RANGES, epsilon=epsilon, delta=1e-5)


def test_release_knows_its_price_and_says_simulation():
    release = release_records(np.zeros((2, 4)), _noise(4), ranges=RANGES, rng=np.random.default_rng(1))
    assert release.sampler == "simulation" and release.adjacency == "replace-one"
    assert release.noise.epsilon(1e-5) == pytest.approx(1.0, rel=1e-8)
    assert release.noise.delta(1.0) == pytest.approx(1e-5, rel=1e-8)


def test_real_release_has_the_stated_law():
    n = 1500
    noise = calibrate(_covariance(2, 6), Covariance.identity(n), RANGES, epsilon=1.0, delta=1e-5)
    records = np.stack([np.linspace(0, 1, n), np.linspace(-1, 3, n)])
    release = release_records(records, noise, ranges=RANGES)
    assert release.sampler == "opendp"
    white = noise.row_cov.whiten(release.values - records)
    # Entropy is the operating system's: no seed. False alarm: 1e-6 for each of the three tests.
    assert stats.kstest(white.ravel(), "norm").pvalue > 1e-6
    assert abs(np.sum(white**2) - 2 * n) < stats.norm.isf(5e-7) * math.sqrt(4 * n)
    assert abs(np.sum(white[0] * white[1])) < stats.norm.isf(5e-7) * math.sqrt(n)


@pytest.mark.parametrize("col", [np.diag([1.0, 2.0, 5.0]), _covariance(3, 9)])
def test_real_release_with_general_columns(col):
    noise = MatrixGaussian(Covariance.from_matrix(1e-16 * _covariance(2, 6)), Covariance.from_matrix(col), RANGES)
    records = np.array([[0.1, 0.9, 0.5], [2.0, -1.0, 0.0]])
    release = release_records(records, noise, ranges=RANGES)
    # Noise of stddev about 1e-8: the transforms there and back cancel.
    np.testing.assert_allclose(release.values, records, atol=3e-7)


def test_values_outside_the_ranges_are_clipped():
    clipped = clip_records([[0.5, 2.0, -3.0], [np.nan, 0.0, 9.0]], RANGES)
    np.testing.assert_array_equal(clipped, [[0.5, 1.0, 0.0], [1.0, 0.0, 3.0]])
    noise = _noise(3)
    raw = np.array([[0.5, 2.0, -3.0], [np.nan, 0.0, 9.0]])
    one = release_records(raw, noise, ranges=RANGES, rng=np.random.default_rng(5))
    two = release_records(clipped, noise, ranges=RANGES, rng=np.random.default_rng(5))
    np.testing.assert_array_equal(one.values, two.values)


def test_a_record_filled_by_hand_moves_no_further_than_its_stated_ranges():
    unit = FeatureRanges([0.0], [1.0], "replace-one")
    noise = MatrixGaussian(1e-18 * np.eye(1), Covariance.identity(3), unit)
    filled = np.array([[900.0, np.nan, 0.25]])
    for rng in (None, np.random.default_rng(1)):
        released = release_records(filled, noise, ranges=unit, rng=rng).values
        np.testing.assert_allclose(released, [[1.0, 0.5, 0.25]], atol=1e-7)


def test_nothing_of_the_data_but_its_clipped_values_enters():
    # The same noise on two datasets differs by exactly their difference: no minimum, maximum or mean is read.
    rng = np.random.default_rng(3)
    one, two = rng.uniform(0, 1, (2, 50)), np.zeros((2, 50))
    noise = _noise(50)
    first = release_records(one, noise, ranges=RANGES, rng=np.random.default_rng(9)).values
    second = release_records(two, noise, ranges=RANGES, rng=np.random.default_rng(9)).values
    np.testing.assert_allclose(first - second, one, atol=1e-12)
    assert np.max(first) > 1.0 or np.min(first) < 0.0


def test_errors_show_no_values():
    with pytest.raises(InputError, match=r"shape \(2, n\)") as caught:
        clip_records(np.full((3, 2), 0.123456), RANGES)
    assert "0.123456" not in str(caught.value)
    with pytest.raises(InputError, match="must be numbers") as caught:
        clip_records([["secret", 1.0], [2.0, 3.0]], RANGES)
    assert "secret" not in str(caught.value) and caught.value.__suppress_context__


def test_sensitivity_must_cover_the_ranges():
    records, rng = np.zeros((2, 3)), np.random.default_rng(1)
    small = MatrixGaussian(np.eye(2), Covariance.identity(3), FrobeniusBall(1.0, "replace-one"))
    with pytest.raises(InputError, match=r"Frobenius radius of at least 4\.12311"):
        release_records(records, small, ranges=RANGES, rng=rng)
    other = MatrixGaussian(np.eye(2), Covariance.identity(3), FrobeniusBall(9.0, "add-remove"))
    with pytest.raises(InputError, match="made for add-remove"):
        release_records(records, other, ranges=RANGES, rng=rng)
    enough = MatrixGaussian(np.eye(2), Covariance.identity(3), FrobeniusBall(4.2, "replace-one"))
    assert release_records(records, enough, ranges=RANGES, rng=rng).values.shape == (2, 3)
    with pytest.raises(InputError, match=r"records have shape \(2, 5\)"):
        release_records(np.zeros((2, 5)), enough, ranges=RANGES, rng=rng)
    with pytest.raises(InputError, match="rng must be None"):
        release_records(records, enough, ranges=RANGES, rng=7)


def test_rounding_is_covered_by_the_slack():
    # Whitening in double precision against exact rational arithmetic, on neighbours.
    from fractions import Fraction

    noise, rng = _noise(1), np.random.default_rng(12)
    row = noise.row_cov
    middle = ((RANGES.lower + RANGES.upper) / 2)[:, None]
    basis = [[Fraction(float(x)) for x in line] for line in row.directions]
    slack, worst = _rounding_slack(noise, RANGES), 0.0
    for _ in range(200):
        one, two = (rng.uniform(RANGES.lower, RANGES.upper)[:, None] for _ in range(2))
        rounded = _whiten(one - middle, row, noise.col_cov) - _whiten(two - middle, row, noise.col_cov)
        errors = []
        for i in range(2):
            exact = sum(basis[k][i] * (Fraction(float(one[k, 0])) - Fraction(float(two[k, 0]))) for k in range(2))
            errors.append(float(rounded[i, 0]) - float(exact) / math.sqrt(row.variances[i]))
        worst = max(worst, math.hypot(*errors))
    assert 0 < worst <= slack < 1e-13


WIDE = FeatureRanges([0.0, 0.0], [1.0, 4.0], "replace-one")
RECORDS = np.array([[0.1, 0.5, 0.9], [1.0, 2.0, 3.0]])


def _releases(**changes):
    matrix = calibrate(np.eye(2), Covariance.identity(3), WIDE, epsilon=0.5, delta=1e-6)
    moments = calibrate_moments(MomentQuery(WIDE, 3), epsilon=0.5, delta=1e-6)
    yield lambda: release_records(RECORDS, matrix, ranges=WIDE, **changes)
    yield lambda: release_moments(RECORDS, moments, **changes)


def test_releases_are_entered_until_the_budget_is_spent(tmp_path):
    ledger = create_ledger(tmp_path / "a.db", epsilon=1.0, delta=2e-6, adjacency="replace-one", composition="basic")
    for release in _releases(ledger=ledger, ledger_delta=1e-6):
        assert len(release().digest) == 64
    for release in _releases(ledger=ledger, ledger_delta=1e-6):
        with pytest.raises(BudgetExceededError):
            release()


@pytest.mark.parametrize("composition", ["basic", "tight"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (3.3, 1e-5)])
def test_one_release_may_spend_the_whole_ledger(tmp_path, epsilon, delta, composition):
    for adjacency in ("replace-one", "add-remove"):
        budget = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "composition": composition}
        ledger = create_ledger(tmp_path / f"{adjacency}.db", **budget)
        query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 4.0], adjacency), 3, intercept=1.5)
        noise = calibrate_moments(query, epsilon=epsilon, delta=delta)
        release_moments(RECORDS, noise, ledger=ledger, ledger_delta=delta)
        assert epsilon * (1 - 1e-12) <= ledger.spent().epsilon <= epsilon
        with pytest.raises(BudgetExceededError):
            release_moments(RECORDS, noise, ledger=ledger, ledger_delta=delta)


def test_simulations_are_not_entered(tmp_path):
    ledger = create_ledger(tmp_path / "a.db", epsilon=1.0, delta=2e-6, adjacency="replace-one", composition="basic")
    for release in _releases(ledger=ledger, ledger_delta=1e-6, rng=np.random.default_rng(1)):
        with pytest.raises(InputError, match="records real releases"):
            release()
