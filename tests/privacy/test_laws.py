"""The noise laws against 50-digit arithmetic, by enumeration, and their costs as inverses."""

import math
import subprocess
import sys
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbayes.errors import InputError
from dpbayes.privacy.laws import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric, noise_from_dict

LAWS = [TwoSidedGeometric, Laplace, DiscreteGaussian, Gaussian]
DISCRETE = [TwoSidedGeometric, DiscreteGaussian]
PARAMETERS = [1e-300, 1e-9, 1e-3, 0.05, 0.2, 0.39, 0.4, 0.7, 1.0, 3.7, 20.0, 1e3, 1e6, 1e9, 1e300]
MULTIPLES = [0.0, 0.3, 1.0, 2.5, 30.0, 700.0, 1e5]
EPS = np.finfo(float).eps

positive = st.floats(min_value=1e-12, max_value=1e12)


def exact_parts(law, x):
    """-log normalizer and the exponent at x, in 50-digit arithmetic."""
    parameter = mp.mpf(law.scale if isinstance(law, TwoSidedGeometric | Laplace) else law.stddev)
    x = mp.mpf(x)
    if isinstance(law, TwoSidedGeometric):
        q = mp.exp(-1 / parameter)
        return mp.log(-mp.expm1(-1 / parameter)) - mp.log1p(q), -abs(x) / parameter
    if isinstance(law, Laplace):
        return -mp.log(2 * parameter), -abs(x) / parameter
    exponent = -((x / parameter) ** 2) / 2
    if isinstance(law, Gaussian):
        return -mp.log(parameter * mp.sqrt(2 * mp.pi)), exponent
    if parameter < 30:  # the defining series, with no theta identity
        radius = int(16 * parameter) + 4
        tail = [mp.exp(-((k / parameter) ** 2) / 2) for k in range(1, radius)]
        return -mp.log1p(2 * mp.fsum(tail)), exponent
    # Poisson: the correction is below exp(-2 pi^2 900), under 50 digits
    return -mp.log(parameter * mp.sqrt(2 * mp.pi)), exponent


def points(law):
    parameter = law.scale if isinstance(law, TwoSidedGeometric | Laplace) else law.stddev
    xs = np.array([parameter * m for m in MULTIPLES] + [1.0, 2.0, 5.0])
    xs = xs[np.isfinite(xs)]
    xs = np.unique(np.rint(xs) if law.is_discrete else xs)
    return np.concatenate([xs, -xs])


def has_value(x):
    return abs(x) < mp.mpf(sys.float_info.max)


@pytest.mark.parametrize("parameter", PARAMETERS)
@pytest.mark.parametrize("cls", LAWS)
def test_log_prob_agrees_with_fifty_digits(cls, parameter):
    law = cls(parameter)
    with mp.workdps(50):
        for x in points(law):
            normalizer, exponent = exact_parts(law, x)
            got = float(law.log_prob(x))
            if not has_value(normalizer + exponent):
                assert got == -math.inf
                continue
            # The normalizer is the log of a number with a relative error of a few units in the last place (hence the
            # 1); the parts may cancel, so the bound is on their sizes.
            bound = 4 * EPS * float(1 + abs(normalizer) + abs(exponent))
            assert abs(mp.mpf(got) - normalizer - exponent) <= bound, (law, x, got)


@pytest.mark.parametrize("cls", LAWS)
def test_far_tail_stays_finite_in_logs(cls):
    law = cls(1.0)
    for log_mass in (-690.0, -1e5, -1e12):
        x = -log_mass if isinstance(law, TwoSidedGeometric | Laplace) else math.sqrt(-2 * log_mass)
        x = float(math.floor(x))
        with mp.workdps(50):
            assert float(law.log_prob(x)) == pytest.approx(float(sum(exact_parts(law, x))), abs=0, rel=4 * EPS)


@pytest.mark.parametrize("parameter", [1e-3, 0.05, 0.3, 0.4, 1.0, 7.3, 60.0])
@pytest.mark.parametrize("cls", DISCRETE)
def test_mass_mean_variance_and_radius_by_enumeration(cls, parameter):
    law = cls(parameter)
    radius = law.tail_radius(1e-18)
    x = np.arange(-radius, radius + 1)
    p = np.exp(law.log_prob(x))
    assert math.fsum(p) == pytest.approx(1.0, abs=1e-14)
    assert math.fsum(p * x) == pytest.approx(0.0, abs=1e-12)
    assert math.fsum(p * x.astype(float) ** 2) == pytest.approx(law.variance, rel=1e-13, abs=1e-300)
    for mass in (1e-3, 1e-9):
        outside = math.fsum(p[np.abs(x) > law.tail_radius(mass)])
        assert outside <= mass


@pytest.mark.parametrize("parameter", [1e-3, 0.03, 0.39, 0.41, 1.0, 1e3, 1e6, 1e9])
def test_variances_agree_with_fifty_digits(parameter):
    # exp(-u) from a rounded u has a relative error of u units in the last place.
    geometric_slack, gaussian_slack = 4 * EPS * (1 + 1 / parameter), 8 * EPS * (1 + 0.5 / parameter**2)
    with mp.workdps(50):
        s = mp.mpf(parameter)
        q = mp.exp(-1 / s)
        expected = float(2 * q / (1 - q) ** 2)
        assert TwoSidedGeometric(parameter).variance == pytest.approx(expected, abs=1e-320, rel=geometric_slack)
        assert Laplace(parameter).variance == pytest.approx(float(2 * s**2), abs=0, rel=EPS)
        assert Gaussian(parameter).variance == pytest.approx(float(s**2), abs=0, rel=EPS)
        if parameter < 30:
            weights = [mp.exp(-((k / s) ** 2) / 2) for k in range(1, int(16 * s) + 4)]
            moment = 2 * mp.fsum(k * k * w for k, w in enumerate(weights, start=1))
            expected = moment / (1 + 2 * mp.fsum(weights))
        else:
            expected = s**2
        assert DiscreteGaussian(parameter).variance == pytest.approx(float(expected), abs=1e-320, rel=gaussian_slack)


@pytest.mark.parametrize("scale", [1e-3, 0.3, 1.0, 20.0, 1e6])
def test_cdf_and_sf_of_the_two_sided_geometric(scale):
    law = TwoSidedGeometric(scale)
    xs = np.array([-700 * scale, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 300 * scale, 690 * scale])
    with mp.workdps(50):
        q = mp.exp(-1 / mp.mpf(scale))
        for x in xs:
            m = math.floor(x) + 1
            upper = q**m / (1 + q) if m >= 1 else 1 - q ** (1 - m) / (1 + q)
            lower = 1 - upper if m >= 1 else q ** (1 - m) / (1 + q)
            # q^m from a rounded exponent: relative error |log| * eps
            slack = 4 * EPS * (2 + abs(m) / scale)
            assert float(law.sf(x)) == pytest.approx(float(upper), rel=slack, abs=1e-322)
            assert float(law.cdf(x)) == pytest.approx(float(lower), rel=slack, abs=1e-322)


@pytest.mark.parametrize(("cls", "reference"), [(Laplace, None), (Gaussian, mp.ncdf)])
def test_cdf_and_sf_of_the_continuous_laws(cls, reference):
    law = cls(2.5)
    with mp.workdps(50):
        for x in (-90.0, -60.0, -2.5, 0.0, 1.0, 80.0):
            z = mp.mpf(x) / mp.mpf(2.5)
            lower = reference(z) if reference else (mp.exp(z) / 2 if z < 0 else 1 - mp.exp(-z) / 2)
            upper = reference(-z) if reference else (mp.exp(-z) / 2 if z > 0 else 1 - mp.exp(z) / 2)
            assert float(law.cdf(x)) == pytest.approx(float(lower), abs=0, rel=1e-12)
            assert float(law.sf(x)) == pytest.approx(float(upper), abs=0, rel=1e-12)


@pytest.mark.parametrize("cls", DISCRETE)
def test_discrete_laws_have_no_mass_between_the_integers(cls):
    got = cls(2.0).log_prob([0.5, -1.25, np.inf, -np.inf, np.nan, 3])
    assert np.isneginf(got[:4]).all()
    assert np.isnan(got[4]) and np.isfinite(got[5])


@pytest.mark.parametrize("cls", LAWS)
def test_continuous_limits_and_shapes(cls):
    law = cls(3.0)
    assert law.log_prob(np.zeros((2, 3))).shape == (2, 3)
    assert law.log_prob(1).shape == ()
    assert law.log_prob([]).shape == (0,)
    np.testing.assert_array_equal(law.log_prob([2, 7]), law.log_prob([-2, -7]))


# --- costs -----------------------------------------------------------------------------------------------------------


@given(epsilon=positive, sensitivity=positive)
@pytest.mark.parametrize("cls", [TwoSidedGeometric, Laplace])
def test_epsilon_calibration_never_costs_more_than_asked(cls, epsilon, sensitivity):
    law = cls.from_epsilon(epsilon, sensitivity=sensitivity)
    exact = Fraction(sensitivity) / Fraction(law.scale)
    assert exact <= Fraction(epsilon)
    claimed = law.epsilon(sensitivity=sensitivity)
    assert exact <= Fraction(claimed) <= Fraction(epsilon)
    assert claimed == pytest.approx(epsilon, abs=0, rel=2 * EPS)
    # no smaller double would do
    assert Fraction(sensitivity) / Fraction(math.nextafter(law.scale, 0)) > Fraction(epsilon)


@given(rho=positive, sensitivity=positive)
@pytest.mark.parametrize("cls", [DiscreteGaussian, Gaussian])
def test_rho_calibration_never_costs_more_than_asked(cls, rho, sensitivity):
    law = cls.from_rho(rho, sensitivity=sensitivity)
    exact = Fraction(sensitivity) ** 2 / (2 * Fraction(law.stddev) ** 2)
    claimed = law.rho(sensitivity=sensitivity)
    assert exact <= Fraction(claimed) <= Fraction(rho)
    assert claimed == pytest.approx(rho, abs=0, rel=16 * EPS)


@given(rho=positive, sensitivity=positive)
@pytest.mark.parametrize("cls", [TwoSidedGeometric, Laplace])
def test_pure_laws_charge_half_epsilon_squared_of_zcdp(cls, rho, sensitivity):
    law = cls.from_rho(rho, sensitivity=sensitivity)
    claimed = Fraction(law.rho(sensitivity=sensitivity))
    assert (Fraction(sensitivity) / Fraction(law.scale)) ** 2 / 2 <= claimed <= Fraction(rho)
    assert law.rho(sensitivity=sensitivity) == pytest.approx(
        law.epsilon(sensitivity=sensitivity) ** 2 / 2, abs=0, rel=1e-14
    )


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("shift", [1, 3])
def test_pure_laws_stay_below_their_zcdp_bound(scale, shift):
    law = TwoSidedGeometric(scale)
    x = np.arange(-law.tail_radius(1e-30), law.tail_radius(1e-30) + 1)
    p, q = law.log_prob(x), law.log_prob(x - shift)
    for order in (1.001, 1.5, 2.0, 10.0):
        divergence = np.logaddexp.reduce(order * p - (order - 1) * q) / (order - 1)
        assert divergence <= order * law.rho(sensitivity=shift) + 1e-10


@pytest.mark.parametrize(
    ("rho", "sensitivity"), [(1.7e308, 1e300), (1e-300, 1e-300), (1e300, 1e-300), (5e-324, 1e-170)]
)
def test_calibration_survives_the_ends_of_the_doubles(rho, sensitivity):
    law = DiscreteGaussian.from_rho(rho, sensitivity=sensitivity)
    assert Fraction(sensitivity) ** 2 <= 2 * Fraction(rho) * Fraction(law.stddev) ** 2


def test_a_third_is_not_rounded_in_the_customers_disfavour():
    # 1 / (1/3) is 3.0 in doubles, but the double 1/3 is below a third: the honest cost is above 3.
    assert TwoSidedGeometric(1 / 3).epsilon(sensitivity=1) > 3.0
    assert TwoSidedGeometric.from_epsilon(3.0, sensitivity=1).scale > 1 / 3


@given(scale=st.floats(1e-3, 1e6), factor=st.sampled_from([0.25, 0.5, 2.0, 4.0, 1024.0]))
@pytest.mark.parametrize("cls", [Laplace, Gaussian])
def test_continuous_laws_scale(cls, scale, factor):
    x = np.array([-3.0, 0.0, 0.7, 12.0])
    stretched = cls(scale * factor)
    np.testing.assert_allclose(
        stretched.log_prob(x * factor) + math.log(factor), cls(scale).log_prob(x), rtol=1e-12, atol=1e-12
    )
    assert stretched.variance == pytest.approx(factor**2 * cls(scale).variance, abs=0, rel=4 * EPS)


@given(epsilon=positive, sensitivity=positive, factor=st.sampled_from([0.5, 2.0, 8.0]))
def test_cost_is_homogeneous_in_sensitivity(epsilon, sensitivity, factor):
    law = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=sensitivity)
    wider = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=sensitivity * factor)
    assert wider.scale == law.scale * factor  # powers of two are exact
    gaussian = DiscreteGaussian(law.scale)
    ratio = gaussian.rho(sensitivity=sensitivity * factor) / gaussian.rho(sensitivity=sensitivity)
    assert ratio == pytest.approx(factor**2, abs=0, rel=4 * EPS)


# --- the PyTensor graphs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rewrites", ["fast_compile", "fast_run"])
@pytest.mark.parametrize("parameter", [1e-30, 1e-3, 0.05, 0.39, 0.4, 1.0, 3.7, 1e3, 1e9, 1e30])
@pytest.mark.parametrize("cls", LAWS)
def test_graph_equals_numpy_and_differentiates(cls, parameter, rewrites):
    import pytensor
    import pytensor.tensor as pt

    law, x = cls(parameter), pt.dvector("x")
    value = law.logp(x)
    # fast_run applies every algebraic rewrite that a compiled model gets; the Python linker needs no compiler.
    mode = pytensor.compile.Mode(linker="py", optimizer=rewrites)
    graph = pytensor.function([x], [value, pytensor.grad(value.sum(), x)], mode=mode)
    value, slope = graph(xs := points(law))
    np.testing.assert_allclose(value, law.log_prob(xs), rtol=1e-12, atol=1e-13)
    exact = -np.sign(xs) / parameter if law.is_pure else -xs / parameter / parameter
    np.testing.assert_allclose(slope, exact, rtol=1e-12)


def test_discrete_graph_is_smooth_between_integers():
    for cls in DISCRETE:
        low, mid, high = cls(2.0).logp(np.array([3.0, 3.5, 4.0])).eval(mode="FAST_COMPILE")
        assert low > mid > high


# --- records and refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", LAWS)
def test_record_round_trips(cls):
    law = cls(0.1 + 0.2)
    assert noise_from_dict(law.to_dict()) == law
    assert set(law.to_dict()) == {"law", "scale" if hasattr(law, "scale") else "stddev"}


@pytest.mark.parametrize(
    ("record", "needle"),
    [
        ([], "mapping"),
        ({}, "noise must be 'two-sided-geometric', 'laplace'"),
        ({"law": "staircase", "scale": 1.0}, "'staircase'"),
        ({"law": ["laplace"], "scale": 1.0}, "noise must be 'two-sided-geometric', 'laplace'"),
        ({"law": "laplace"}, "missing keys ['scale']"),
        ({"law": "laplace", "stddev": 1.0}, "unknown keys ['stddev']"),
        ({"law": "gaussian", "stddev": 1.0, "seed": 3}, "unknown keys ['seed']"),
        ({"law": "gaussian", "stddev": 1.0, 3: 3}, "unknown keys ['3']"),
        ({"law": "gaussian", "stddev": math.inf}, "inf"),
        ({"law": "gaussian", "stddev": math.nan}, "nan"),
        ({"law": "laplace", "scale": 0}, "got 0"),
        ({"law": "laplace", "scale": -1.0}, "got -1.0"),
        ({"law": "laplace", "scale": "1"}, "got '1'"),
        ({"law": "laplace", "scale": True}, "got True"),
        ({"law": "laplace", "scale": None}, "got None"),
        ({"law": "laplace", "scale": 10**400}, "finite"),
    ],
)
def test_damaged_records_are_refused_with_the_value(record, needle):
    with pytest.raises(InputError) as caught:
        noise_from_dict(record)
    assert needle in str(caught.value)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, "1", None, True, 1j])
def test_bad_parameters_are_refused_everywhere(bad):
    for cls in LAWS:
        with pytest.raises(InputError):
            cls(bad)
    for call in (
        lambda: TwoSidedGeometric.from_epsilon(bad, sensitivity=1),
        lambda: Laplace.from_epsilon(1, sensitivity=bad),
        lambda: DiscreteGaussian.from_rho(bad, sensitivity=1),
        lambda: Gaussian.from_rho(1, sensitivity=bad),
        lambda: TwoSidedGeometric(1.0).epsilon(sensitivity=bad),
        lambda: DiscreteGaussian(1.0).rho(sensitivity=bad),
        lambda: Gaussian(1.0).tail_radius(bad),
    ):
        with pytest.raises(InputError):
            call()


def test_laws_are_hashable_values_and_accept_numpy_scalars():
    assert TwoSidedGeometric(np.float64(2.0)) == TwoSidedGeometric(2)
    assert len({Laplace(1.0), Laplace(1), TwoSidedGeometric(1.0)}) == 2
    assert type(Gaussian(np.float32(0.5)).stddev) is float


def test_import_stays_light():
    code = (
        "import sys, dpbayes.privacy.laws, dpbayes.privacy.adjacency, dpbayes.privacy.sampling;"
        "print([m for m in ('pytensor', 'pymc', 'scipy', 'opendp', 'arviz') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("parameter", [0.03, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("cls", DISCRETE)
def test_nearly_certain_zero_keeps_its_relative_precision(cls, parameter):
    # log P(X = 0) is about -2 exp(-1 / scale): a formula through 1 - q would return 0.
    with mp.workdps(120):
        normalizer, _ = exact_parts(cls(parameter), 0)
        exponent_size = 1 / parameter if cls is TwoSidedGeometric else 0.5 / parameter**2
        got = float(cls(parameter).log_prob(0))
        assert got == pytest.approx(float(normalizer), rel=4 * EPS * (1 + exponent_size), abs=0)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-5, 0.01])
@pytest.mark.parametrize("sensitivity", [1, math.sqrt(2), 250.0])
def test_gaussian_calibration_by_the_exact_curve(epsilon, delta, sensitivity):
    law = Gaussian.from_epsilon(epsilon, delta=delta, sensitivity=sensitivity)
    with mp.workdps(60):
        mu, e = mp.mpf(sensitivity) / mp.mpf(law.stddev), mp.mpf(epsilon)
        # Balle and Wang 2018, Theorem 8
        exact = mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)
        assert exact <= mp.mpf(delta)
        assert float(exact) == pytest.approx(delta, abs=0, rel=1e-8)
    assert law.epsilon(delta=delta, sensitivity=sensitivity) == pytest.approx(epsilon, abs=0, rel=1e-10)


def test_gaussian_calibration_reproduces_the_published_stddev():
    assert Gaussian.from_epsilon(1.0, delta=1e-5, sensitivity=1).stddev == pytest.approx(3.73063163, abs=5e-9)
