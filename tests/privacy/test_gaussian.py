"""The Gaussian curve against mpmath on a wide grid, its inverses, its published numbers, its scaling."""

import math

import mpmath
import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.privacy.curves import gaussian_delta, gaussian_epsilon, gaussian_epsilon_upper, gaussian_stddev

MUS = 10.0 ** np.arange(-6, 3.1, 1.5)
DELTAS = (1e-300, 1e-150, 1e-50, 1e-15, 1e-9, 1e-6, 1e-3, 0.05, 0.5, 0.95, 0.9999)


def exact(mu: float, epsilon: float, *, digits: int = 400) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Delta and minus its derivative in epsilon, with enough digits that the subtraction costs none."""
    with mpmath.workdps(digits):
        mu, epsilon = mpmath.mpf(mu), mpmath.mpf(epsilon)
        a = epsilon / mu - mu / 2
        second = mpmath.exp(epsilon) * mpmath.erfc((a + mu) / mpmath.sqrt(2)) / 2
        return mpmath.erfc(a / mpmath.sqrt(2)) / 2 - second, second


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", DELTAS)
def test_curve_and_inverses_are_right_to_twelve_digits(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    value, slope = exact(mu, epsilon)
    if epsilon == 0.0:
        assert value <= delta  # the total variation distance is below delta
        return
    assert abs(gaussian_delta(mu, epsilon) / value - 1) < 1e-12
    # One Newton step of the exact curve is the error of epsilon; near epsilon = 0 it is an error of delta / slope,
    # which no algorithm that reads delta in doubles can make smaller relative to epsilon.
    assert abs(value - mpmath.mpf(delta)) / slope < 1e-12 * max(epsilon, delta / float(slope))
    assert abs(gaussian_stddev(2.0, epsilon, delta) * mu / 2.0 - 1) < 1e-12


def test_published_numbers():
    assert gaussian_stddev(1.0, 1.0, 1e-5) == pytest.approx(3.73063163, abs=5e-9)
    assert gaussian_epsilon(np.sqrt(1000) / 10, 1e-6) == pytest.approx(19.4236565, abs=5e-8)


@pytest.mark.parametrize("mu", MUS)
def test_at_epsilon_zero_delta_is_the_total_variation_distance(mu):
    assert gaussian_delta(mu, 0.0) == pytest.approx(float(mpmath.erf(mu / (2 * mpmath.sqrt(2)))), rel=1e-13)


def test_stddev_is_never_too_small_for_its_claim():
    generator = np.random.default_rng(7)
    for _ in range(50):
        epsilon, delta = 10 ** generator.uniform(-3, 2), 10 ** generator.uniform(-12, -1)
        stddev = gaussian_stddev(3.0, epsilon, delta)
        assert exact(3.0 / stddev, epsilon, digits=120)[0] <= delta
        assert exact(3.0 / (stddev * (1 - 1e-12)), epsilon, digits=120)[0] > delta


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 1e-30), (1e-30, 1e-30), (0.0, 1e-300), (1e-300, 1e-200), (1e12, 1e-6), (1e40, 1e-6), (1e300, 0.5)],
)
def test_stddev_keeps_its_claim_at_extreme_costs(epsilon, delta):
    with mpmath.workdps(800):
        mu = 1 / mpmath.mpf(gaussian_stddev(1.0, epsilon, delta))
        at_most, more = (far_out(value, epsilon) for value in (mu, mu * (1 + mpmath.mpf(10) ** -11)))
        assert at_most <= delta < more


def test_the_upper_end_of_epsilon_is_none_too_small_and_takes_back_what_was_calibrated():
    generator = np.random.default_rng(11)
    for _ in range(50):
        epsilon, delta = 10 ** generator.uniform(-2, 1.3), 10 ** generator.uniform(-14, -1)
        calibrated = 1 / gaussian_stddev(1.0, epsilon, delta)
        for mu in (calibrated, calibrated * generator.uniform(0.1, 3.0)):
            upper = gaussian_epsilon_upper(mu, delta)
            assert exact(mu, upper, digits=120)[0] <= delta
            assert upper <= gaussian_epsilon(mu, delta) * (1 + 2e-11)
        assert gaussian_epsilon_upper(calibrated, delta) <= epsilon
    assert gaussian_epsilon(50.0, 1 - 1e-12) < gaussian_epsilon_upper(50.0, 1 - 1e-12) < math.inf


def far_out(mu: mpmath.mpf, epsilon: float) -> mpmath.mpf:
    """Delta where mu is tiny, and where it is so large that m(a + mu) is 1 / (a + mu)."""
    a = epsilon / mu - mu / 2
    if mu > 1e4:
        return mpmath.ncdf(-a) - mpmath.npdf(a) / (a + mu)
    return mpmath.ncdf(-a) - mpmath.exp(epsilon) * mpmath.ncdf(-a - mu)


def test_stddev_scales_with_the_sensitivity_and_arguments_broadcast():
    ratio = gaussian_stddev(np.array([1.0, 8.0]), 0.5, 1e-7)
    assert ratio[1] / ratio[0] == pytest.approx(8.0, rel=1e-15)
    assert gaussian_delta(np.ones(3)[:, None], np.zeros(2)).shape == (3, 2)


def test_far_out_values_stay_finite():
    assert gaussian_delta(1e-6, 1.0) == 0.0
    assert gaussian_delta(1e6, 1.0) == 1.0
    assert gaussian_delta(1e200, 1.0) == 1.0
    assert gaussian_epsilon(1e-6, 0.5) == 0.0


def test_far_out_delta_is_on_the_right_side_of_its_jump():
    assert gaussian_delta(1e150, 1e200) == gaussian_delta(2e100, 1e199) == 1.0
    assert gaussian_delta(1e150, 1e300) == 0.0
    # epsilon = mu**2 / 2 without rounding: Phi(0), less a second term of order 1 / mu.
    assert gaussian_delta(2.0**400, 2.0**799) == pytest.approx(0.5, rel=1e-12)
    assert gaussian_delta(1e-320, 1e-314) == 0.0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: gaussian_delta(0.0, 1.0), "mu must be positive and finite, got 0.0"),
        (lambda: gaussian_delta(1.0, -1.0), "epsilon must be finite and at least 0, got -1.0"),
        (lambda: gaussian_epsilon(1.0, 0.0), "delta must be between 0 and 1"),
        (lambda: gaussian_delta("0.7", 1.0), "mu must be real and within the range of doubles, got '0.7'"),
        (lambda: gaussian_epsilon(10**400, 0.1), "mu must be real and within the range of doubles, got 1000"),
        (lambda: gaussian_epsilon(1.0, 1j), "delta must be real and within the range of doubles, got 1j"),
        (lambda: gaussian_stddev(1.0, 0.0, 5e-324), "epsilon 0 at delta 4.94066e-324 needs more noise than doubles"),
        (lambda: gaussian_stddev(1e300, 0.0, 1e-100), r"sensitivity of 1e\+300 .* in another unit"),
        (lambda: gaussian_stddev(1e-300, 1e300, 0.5), "sensitivity of 1e-300 .* in another unit"),
        (lambda: gaussian_stddev(np.nan, 1.0, 1e-5), "sensitivity must be positive and finite, got nan"),
    ],
)
def test_a_refusal_gives_the_value(call, match):
    with pytest.raises(InputError, match=match):
        call()
