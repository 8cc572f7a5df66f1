"""Theorem 2 against the authors' values, high precision and its own scaling laws."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.errors import InputError
from dpbayes.mvg import Covariance
from dpbayes.mvg.allocation import bound_terms, harmonic_number
from dpbayes.runs.registry import system_module

check_bound = system_module("study:mvg_paper").check_bound

# (m, n, gamma, s2, epsilon, delta): the authors' B with the printed zeta.
AUTHORS = [
    ((1, 1, 1.0, 1.0, 1.0, 1e-5), 0.0010489056281117533),
    ((2, 2, 1.0, 1.0, 1.0, 1e-5), 0.0001347138235343047),
    ((10, 70000, 836.6600265340755, 3.1622776601683795, 1.0, 1 / 70000), 2.798270559822137e-17),
]


def _bound(case, **changes):
    names = ("m", "n", "gamma", "sensitivity", "epsilon", "delta")
    return bound_terms(**(dict(zip(names, case, strict=True)) | changes)).bound


def _mpmath_bound(m, n, gamma, s2, epsilon, delta, *, root=False):
    with mpmath.workdps(60):
        r = min(m, n)
        h = mpmath.fsum(mpmath.mpf(1) / i for i in range(1, r + 1))
        h_half = mpmath.fsum(1 / mpmath.sqrt(i) for i in range(1, r + 1))
        log_delta = mpmath.log(mpmath.mpf(delta))
        zeta = 2 * mpmath.sqrt(-m * n * log_delta) - 2 * log_delta + m * n
        zeta = mpmath.sqrt(zeta) if root else zeta
        alpha = (h + h_half) * mpmath.mpf(gamma) ** 2 + 2 * h * gamma * s2
        beta = 2 * mpmath.root(m * n, 4) * zeta * h * s2
        return float((-beta + mpmath.sqrt(beta**2 + 8 * alpha * epsilon)) ** 2 / (4 * alpha**2))


@pytest.mark.parametrize(("case", "expected"), AUTHORS[:2])
def test_authors_values(case, expected):
    assert _bound(case) == pytest.approx(expected, rel=1e-12)


def test_third_authors_value_carries_cancellation():
    # The authors' number is the printed formula in float64, where -beta + sqrt(beta^2 + ...) loses six digits: it is
    # 1.9e-6 off the formula's own value, which 60 digits give as 2.7982758034191910e-17.
    case, printed = AUTHORS[2]
    exact = _mpmath_bound(*case)
    assert exact == pytest.approx(2.798275803419191e-17, rel=1e-15)
    assert _bound(case) == pytest.approx(exact, rel=1e-14)
    assert abs(_bound(case) - printed) < 1e-12
    assert _bound(case) == pytest.approx(printed, rel=3e-6)


@pytest.mark.parametrize("root", [False, True])
@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 30),
    n=st.integers(1, 500),
    gamma=st.floats(1e-3, 1e4),
    s2=st.floats(1e-3, 1e3),
    epsilon=st.floats(1e-3, 50),
    delta=st.floats(1e-12, 0.5),
)
def test_high_precision(root, m, n, gamma, s2, epsilon, delta):
    value = _bound((m, n, gamma, s2, epsilon, delta), zeta="laurent-massart" if root else "printed")
    assert value == pytest.approx(_mpmath_bound(m, n, gamma, s2, epsilon, delta, root=root), rel=1e-13)


@given(scale=st.floats(1e-3, 1e3))
def test_units_cancel(scale):
    # Measuring the query in other units scales variances by scale^2 and so precisions by scale^-2.
    case = (3, 40, 5.0, 1.5, 1.0, 1e-5)
    rescaled = _bound(case, gamma=5.0 * scale, sensitivity=1.5 * scale)
    assert rescaled == pytest.approx(_bound(case) / scale**2, rel=1e-11)


def test_monotone_in_the_guarantee():
    case = (3, 40, 5.0, 1.5, 1.0, 1e-5)
    assert _bound(case, epsilon=2.0) > _bound(case) > _bound(case, delta=1e-6)
    assert _bound(case, zeta="laurent-massart") > _bound(case)


def test_harmonic_numbers():
    assert harmonic_number(4) == pytest.approx(25 / 12, rel=1e-15)
    assert harmonic_number(3, 0.5) == pytest.approx(1 + 1 / math.sqrt(2) + 1 / math.sqrt(3), rel=1e-15)


def test_terms_by_hand():
    terms = bound_terms(m=1, n=1, gamma=1.0, sensitivity=1.0, epsilon=1.0, delta=math.exp(-4))
    assert (terms.alpha, terms.zeta, terms.beta) == pytest.approx((4.0, 2 * 2 + 8 + 1, 2 * 13))
    assert terms.bound == pytest.approx((-26 + math.sqrt(26**2 + 32)) ** 2 / 64, rel=1e-12)


def test_condition_is_checkable():
    guarantee = {"gamma": 1.0, "sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5}
    bound = bound_terms(m=2, n=3, **guarantee).bound
    # ||sigma(Sigma^-1)|| = sqrt(2) / v and ||sigma(I_3)|| = sqrt(3).
    variance = math.sqrt(6.0) / bound
    assert check_bound(np.eye(2) * variance, Covariance.identity(3), **guarantee)
    assert not check_bound(np.eye(2) * variance * 0.999, Covariance.identity(3), **guarantee)
    rotation = np.linalg.qr(np.random.default_rng(3).standard_normal((2, 2)))[0]
    skewed = rotation @ np.diag([variance, 5 * variance]) @ rotation.T
    check = check_bound(skewed, np.eye(3), **guarantee)
    assert check.precision == pytest.approx(math.sqrt(1 + 1 / 25) / variance * math.sqrt(3.0), rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 0.0}, "gamma must be positive"),
        ({"gamma": -1.0}, "gamma must be positive"),
        ({"sensitivity": -2.0}, "sensitivity must be positive"),
        ({"sensitivity": math.inf}, "sensitivity must be positive"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 0.0}, "delta must be positive"),
        ({"delta": 1.0}, "delta must be below 1"),
        ({"delta": math.nan}, "delta must be positive"),
        ({"m": 0}, "m must be a whole number"),
        ({"n": 2.5}, "n must be a whole number"),
        ({"zeta": "rooted"}, "zeta must be 'printed'"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(InputError, match=message):
        _bound((2, 3, 1.0, 1.0, 1.0, 1e-5), **change)
