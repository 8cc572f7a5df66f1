"""Coordinates and the naive fit against least squares on the records themselves."""

import numpy as np
import pytest
from mvg_simulate import CENTRE, HALF, RANGES, draw_parameters, moment_data, records

from dpbayes.errors import InputError
from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
from dpbayes.mvg.model import RegressionPriors
from dpbayes.mvg.regression import naive_regression, whiten_moments


def _records(seed=3, n=400):
    rng = np.random.default_rng(seed)
    return records(rng, draw_parameters(rng, RegressionPriors()), n, exact_moments=False), rng


def _least_squares(values):
    design = np.vstack([np.ones(values.shape[1]), values[:-1]]).T
    fit, residual = np.linalg.lstsq(design, values[-1], rcond=None)[:2]
    variance = residual[0] / (values.shape[1] - 3)
    return fit, np.sqrt(np.diag(np.linalg.inv(design.T @ design)) * variance)


def _mixed(scale):
    shape = np.diag(HALF**2) * scale
    shape[0, 1] = shape[1, 0] = 0.4 * scale * HALF[0] * HALF[1]
    return shape


@pytest.mark.parametrize("shape", [None, _mixed(2.0)])
def test_naive_fit_without_noise_is_least_squares(shape):
    values, rng = _records()
    expected, stderr = _least_squares(values)
    fit = naive_regression(moment_data(rng, values, stddev=1e-12, shape=shape, constant=1.7))
    np.testing.assert_allclose(fit.estimate, expected, rtol=1e-6)
    np.testing.assert_allclose(fit.stderr, stderr, rtol=1e-6)


def test_naive_fit_that_does_not_exist_is_nan():
    values, rng = _records(n=20)
    fit = naive_regression(moment_data(rng, values, stddev=50.0))
    assert np.all(np.isnan(fit.stderr))


def test_original_units():
    values, rng = _records()
    coordinates = moment_data(rng, values, stddev=1.0).coordinates
    # y at the centre plus the slope, by hand.
    intercept, *slopes = coordinates.original(np.array([0.2, 0.5, -1.0]))
    point = np.array([1.3, 2.0])
    in_range = (point - CENTRE[:2]) / HALF[:2]
    expected = CENTRE[2] + HALF[2] * (0.2 + 0.5 * in_range[0] - in_range[1])
    assert intercept + slopes @ point == pytest.approx(expected, rel=1e-12)


def test_whitened_noise_is_standard():
    values, rng = _records(n=50)
    shape = _mixed(3.0)
    exact = moment_data(rng, values, stddev=1e-100, shape=shape).moments
    sample = np.stack([moment_data(rng, values, stddev=0.7, shape=shape).moments - exact for _ in range(4000)])
    upper = np.triu_indices(4)
    flat = sample[:, upper[0], upper[1]][:, 1:]
    expected = np.where(upper[0] == upper[1], 0.49, 0.245)[1:]
    # Relative error of a variance: sqrt(2 / 4000) = 2.2 %; nine of them, 5 standard errors: false alarm 5e-6.
    np.testing.assert_allclose(flat.var(axis=0), expected, rtol=0.112)
    correlation = np.corrcoef(flat.T) - np.eye(9)
    assert np.max(np.abs(correlation)) < 5.0 / np.sqrt(4000)


def test_response_can_be_any_row():
    values, rng = _records()
    query = MomentQuery(RANGES, values.shape[1], intercept=1.0)
    release = release_moments(values, calibrate_moments(query, epsilon=50.0, delta=1e-5), rng=rng)
    data = whiten_moments(release, features=("a", "b", "c"), response=0)
    assert data.coordinates.features == ("b", "c", "a")
    np.testing.assert_allclose(data.coordinates.half, HALF[[1, 2, 0]])
    # The shape is the identity here, so whitening changes nothing and moments come in the new order.
    np.testing.assert_allclose(data.moments[1:, 1:], release.value[np.ix_([2, 3, 1], [2, 3, 1])], rtol=1e-12)


def test_bad_input():
    values, rng = _records(n=30)
    plain = release_moments(values, calibrate_moments(MomentQuery(RANGES, 30), epsilon=1.0, delta=1e-5), rng=rng)
    with pytest.raises(InputError, match="no intercept row"):
        whiten_moments(plain)
    protected = FeatureRanges(RANGES.lower, RANGES.upper, "add-remove")
    query = MomentQuery(protected, 30, intercept=1.0)
    release = release_moments(values, calibrate_moments(query, epsilon=1.0, delta=1e-5), rng=rng)
    with pytest.raises(InputError, match="n must be public"):
        whiten_moments(release)
    query = MomentQuery(RANGES, 30, intercept=1.0)
    tilted = np.diag(HALF**2)
    tilted[0, 2] = tilted[2, 0] = 0.3 * HALF[0] * HALF[2]
    mixed = release_moments(values, calibrate_moments(query, epsilon=1.0, delta=1e-5, shape=tilted), rng=rng)
    with pytest.raises(InputError, match="mixes the response"):
        whiten_moments(mixed)
    good = release_moments(values, calibrate_moments(query, epsilon=1.0, delta=1e-5), rng=rng)
    with pytest.raises(InputError, match="3 different names"):
        whiten_moments(good, features=("a", "a", "b"))
    with pytest.raises(InputError, match="response must be one of"):
        whiten_moments(good, response=3)
