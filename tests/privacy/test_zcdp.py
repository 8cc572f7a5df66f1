"""zCDP conversions: against a fine grid of orders, as inverses, and above the exact Gaussian curve."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbayes.errors import InputError
from dpbayes.privacy import curves
from dpbayes.privacy.curves import zcdp_epsilon, zcdp_rho
from dpbayes.privacy.laws import DiscreteGaussian

rhos = st.floats(1e-10, 1e6)
deltas = st.floats(1e-250, 0.9)


def delta_of_zcdp(rho, epsilon):
    """Delta for which rho-zCDP implies (epsilon, delta)-DP."""
    return min(1.0, math.exp(min(0.0, curves._log_zcdp_delta(rho, epsilon))))


@pytest.mark.parametrize(("rho", "epsilon"), [(1e-6, 0.01), (1e-3, 0.5), (0.1, 3.0), (1.0, 10.0), (5.0, 30.0), (10, 1)])
def test_delta_is_the_minimum_over_orders(rho, epsilon):
    shift = np.logspace(-8, 7, 300_001)
    alpha = 1 + shift
    # Corollary 13 as printed
    log_delta = shift * (alpha * rho - epsilon) - np.log(shift) + alpha * np.log1p(-1 / alpha)
    assert delta_of_zcdp(rho, epsilon) == pytest.approx(math.exp(log_delta.min()), abs=0, rel=1e-6)
    assert delta_of_zcdp(rho, epsilon) <= math.exp(log_delta.min()) * (1 + 1e-9)


@given(rho=rhos, delta=deltas)
def test_epsilon_inverts_delta(rho, delta):
    epsilon = zcdp_epsilon(rho, delta)
    if epsilon > 0:
        assert delta_of_zcdp(rho, epsilon) <= delta * (1 + 1e-11)
        # tight: a little less is not enough
        assert delta_of_zcdp(rho, epsilon * (1 - 1e-6)) > delta * (1 - 1e-9)


@given(epsilon=st.floats(1e-6, 1e5), delta=deltas)
def test_rho_inverts_epsilon(epsilon, delta):
    rho = zcdp_rho(epsilon, delta)
    assert zcdp_epsilon(rho, delta) <= epsilon * (1 + 1e-12)
    assert zcdp_epsilon(rho * (1 + 1e-6), delta) > epsilon * (1 - 1e-12)


@given(rho=rhos, delta=deltas)
def test_never_worse_than_the_simple_bound(rho, delta):
    # Bun and Steinke 2016, Proposition 1.3
    assert zcdp_epsilon(rho, delta) <= rho + 2 * math.sqrt(-rho * math.log(delta)) * (1 + 1e-9)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
def test_lies_above_the_exact_curve_of_the_gaussian(mu, epsilon):
    with mp.workdps(40):
        exact = mp.ncdf(mu / mp.mpf(2) - epsilon / mp.mpf(mu)) - mp.exp(epsilon) * mp.ncdf(
            -mu / 2 - epsilon / mp.mpf(mu)
        )
    assert delta_of_zcdp(mu**2 / 2, epsilon) >= float(exact)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sensitivity"), [(0.1, 1e-9, 1), (1.0, 1e-6, math.sqrt(2)), (5.0, 1e-3, 3)]
)
def test_discrete_gaussian_calibrates_to_epsilon_and_delta(epsilon, delta, sensitivity):
    law = DiscreteGaussian.from_epsilon(epsilon, delta=delta, sensitivity=sensitivity)
    assert law.epsilon(delta=delta, sensitivity=sensitivity) <= epsilon * (1 + 1e-12)
    smaller = DiscreteGaussian(law.stddev * 0.999)
    assert smaller.epsilon(delta=delta, sensitivity=sensitivity) > epsilon


EXTREMES = [1e-300, 1e-155, 1e-30, 1e-16, 1e-6, 0.3, 1.0, 50.0, 1e10, 1e300]
DELTAS = [1e-300, 1e-150, 1e-30, 1e-6, 0.5, 0.999, 1 - 1e-12]


@pytest.fixture
def evaluations(monkeypatch):
    """How often the bound was evaluated since the test began."""
    counted = []
    evaluate = curves._log_zcdp_delta
    monkeypatch.setattr(curves, "_log_zcdp_delta", lambda rho, epsilon: counted.append(1) or evaluate(rho, epsilon))
    return counted


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EXTREMES)
def test_a_rho_is_found_in_few_evaluations_and_is_next_to_the_largest(evaluations, epsilon, delta):
    try:
        rho = zcdp_rho(epsilon, delta)
    except InputError as error:
        assert "below all doubles" in str(error) and max(epsilon, delta) <= 1e-150
        return
    finally:
        assert len(evaluations) < 100
    assert 0 < rho < math.inf
    assert delta_of_zcdp(rho, epsilon) <= delta * (1 + 1e-12)
    if rho < 1e307:
        assert delta_of_zcdp(rho * (1 + 1e-9), epsilon) > delta * (1 - 1e-12)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("rho", [*EXTREMES, 1e-308, 1e308])
def test_an_epsilon_is_found_in_few_evaluations(evaluations, rho, delta):
    epsilon = zcdp_epsilon(rho, delta)
    assert len(evaluations) < 100
    if 0 < epsilon < math.inf:
        assert delta_of_zcdp(rho, epsilon) <= delta * (1 + 1e-12)
        assert delta_of_zcdp(rho, epsilon * (1 - 1e-9)) >= delta * (1 - 1e-12)


def test_a_tiny_epsilon_no_longer_starts_from_nothing():
    # At epsilon 0 zCDP gives delta = min over a of (1/a) (1 - 1/a)^(a - 1) exp(a (a - 1) rho), free of epsilon.
    assert zcdp_rho(1e-30, 0.999) == pytest.approx(zcdp_rho(1e-12, 0.999), rel=1e-9)
    assert zcdp_rho(1e-16, 1e-6) == pytest.approx(zcdp_rho(1e-14, 1e-6), rel=1e-6)
    assert DiscreteGaussian.from_epsilon(1e-16, delta=1e-6, sensitivity=1).rho(sensitivity=1) <= zcdp_rho(1e-16, 1e-6)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", True])
def test_bad_parameters_are_refused(bad):
    for call in (
        lambda: zcdp_epsilon(bad, 0.1),
        lambda: zcdp_epsilon(1.0, bad),
        lambda: zcdp_rho(bad, 0.1),
        lambda: zcdp_rho(1.0, bad),
    ):
        with pytest.raises(InputError):
            call()
    with pytest.raises(InputError, match="below 1"):
        zcdp_epsilon(1.0, 1.0)
