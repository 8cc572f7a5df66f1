"""One count between kinks, summed out: against quadrature, differences of itself, and a grid's distribution."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from dpbayes.inference.summed_count import count_quantile, summed_count, workspace

KINKS = np.full(4, 0.05)
NONE = np.zeros(4)


def cases():
    """Counts, spreads and noise over some four orders of magnitude: kinks, squares, and both."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        mean, variance = 100.0 * rng.normal(), 10.0 ** rng.uniform(0, 4)
        places = mean + 10.0 ** rng.uniform(0, 2.5) * rng.normal(size=4)
        kinks = 10.0 ** rng.uniform(-2.5, 0.3, size=4) * (rng.random(4) < 0.7)
        yield mean, variance, places, kinks, 10.0 ** rng.uniform(-4, 0, size=4) * (rng.random(4) < 0.4)


def exponent(e, mean, variance, places, kinks, squares):
    off = e - places
    return 0.5 * (e - mean) ** 2 / variance + np.sum(kinks * abs(off) + squares * off**2)


def by_quadrature(mean, variance, places, kinks, squares):
    case = (mean, variance, places, kinks, squares)
    reach = min(mean, *places) - 1.0, max(mean, *places) + 1.0
    top = minimize_scalar(exponent, args=case, bounds=reach, method="bounded", options={"xatol": 1e-9}).x
    least = exponent(top, *case)
    width = 12.0 / np.sqrt(1.0 / variance + 2.0 * squares.sum())
    inside = [place for place in places if abs(place - top) < width]
    ends = np.sort([top - width, top, top + width, *inside])
    parts = [
        quad(lambda e: np.exp(least - exponent(e, *case)), low, high, epsabs=0, epsrel=1e-12, limit=200)[0]
        for low, high in pairwise(ends)
        if high > low
    ]
    return np.log(sum(parts)) - least - 0.5 * np.log(2 * np.pi * variance)


def log_integral(*case):
    return summed_count(*case, np.zeros(4), workspace(4))[0]


def test_is_the_integral():
    for case in cases():
        assert log_integral(*case) == pytest.approx(by_quadrature(*case), abs=1e-9)


def test_slopes_are_the_limits_of_differences():
    for mean, variance, places, kinks, squares in cases():
        in_places = np.zeros(4)
        _, in_mean, in_variance = summed_count(mean, variance, places, kinks, squares, in_places, workspace(4))
        scale = np.sqrt(variance)
        step = 1e-4 * scale

        def between(first, second):
            return log_integral(*first, kinks, squares) - log_integral(*second, kinks, squares)  # noqa: B023

        expected = between((mean + step, variance, places), (mean - step, variance, places)) / 2e-4
        assert in_mean * scale == pytest.approx(expected, rel=1e-5, abs=1e-5)
        wide, narrow = variance * (1 + 1e-5), variance * (1 - 1e-5)
        expected = between((mean, wide, places), (mean, narrow, places)) / 2e-5
        assert in_variance * variance == pytest.approx(expected, rel=1e-5, abs=1e-5)
        for c, axis in enumerate(np.eye(4)):
            expected = between((mean, variance, places + step * axis), (mean, variance, places - step * axis)) / 2e-4
            assert in_places[c] * scale == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_ties_and_a_vanishing_spread_have_limits():
    places = np.array([10.0, 10.0, 10.0, 40.0])
    at_once = -np.sum(KINKS * abs(20.0 - places))
    assert log_integral(20.0, 1e-12, places, KINKS, NONE) == pytest.approx(at_once, abs=1e-6)
    found = summed_count(20.0, 25.0, places, KINKS, NONE, np.zeros(4), workspace(4))
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(by_quadrature(20.0, 25.0, places, KINKS, NONE), abs=1e-9)


def test_a_release_a_hundred_deviations_off_keeps_its_digits():
    case = (0.0, 1.0, np.full(4, 100.0) + np.arange(4.0), np.full(4, 30.0), NONE)
    in_places = np.zeros(4)
    value, in_mean, _ = summed_count(*case, in_places, workspace(4))
    assert value == pytest.approx(by_quadrature(*case), rel=1e-10)
    assert in_mean == pytest.approx(-in_places.sum(), rel=1e-10)  # moving all together changes nothing


def test_quantiles_have_the_share_below_them():
    case = (3.0, 400.0, np.array([-30.0, 5.0, 12.0, 60.0]), KINKS, np.array([0.0, 0.0, 0.001, 0.0]))
    grid = np.linspace(-250, 250, 500_001)
    density = np.exp([-exponent(e, *case) for e in grid])
    below = (np.cumsum(density) - 0.5 * density) / density.sum()
    above = (np.cumsum(density[::-1])[::-1] - 0.5 * density) / density.sum()
    for level in (1e-4, 0.2, 0.5, 0.9, 1 - 1e-6):
        found = count_quantile(*case, level, workspace(4))
        # With halves at the ends the sums are trapezoidal, off by (hazard x step)^2 / 12 < 1e-7 of a tail; the rest is
        # the linear interpolation's, of the same order.
        assert np.interp(found, grid, below) == pytest.approx(level, rel=1e-6)
        assert np.interp(found, grid, above) == pytest.approx(1.0 - level, rel=1e-6)
