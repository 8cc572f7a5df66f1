"""Mixtures of Beta densities on a lattice: against SciPy where it is accurate, against 40 digits where it is not."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from dpbayes.privacy.laws import DiscreteGaussian, Laplace, TwoSidedGeometric
from dpbayes.verifier.exact import BetaMixture, log_beta_density, posterior_of_counts

# The doubles next to the ends at which quantiles stop.
LEAST, GREATEST = 4e-308, 1 - 2**-52

RELEASES = [
    ((4.0, -1.0, -3.0), DiscreteGaussian(0.3466509544498073), 2, (6.978285037805099, 0.010569382680890674, 28.9)),
    ((6.047777112765261, 13.47416557745878, 13.25995722297684), Laplace(6.069047631160639), 12, (0.0134, 0.0101, 14.4)),
    ((0.0, 5.0, 5.0), TwoSidedGeometric(1.0), 10, (0.001, 1.0, 1.0)),
    ((1.0, 0.0, 5.0), TwoSidedGeometric(2.0), 6, (0.001, 0.002, 1.0)),
]


@pytest.fixture(params=[*range(len(RELEASES))])
def mixtures(request):
    noisy, law, m, alpha = RELEASES[request.param]
    swapped = [(values[1], values[0], values[2]) for values in (noisy, alpha)]
    return posterior_of_counts(noisy, law, m, alpha=alpha).r, posterior_of_counts(
        swapped[0], law, m, alpha=swapped[1]
    ).r


def test_quantiles_are_an_end_where_nothing_before_it_reaches_the_probability(mixtures):
    q = np.linspace(0.001, 0.999, 500)
    for mixture in mixtures:
        found = mixture.quantile(q)
        at_zero, below_one = mixture.cdf(LEAST), mixture.cdf(GREATEST)
        assert np.all(found[q < at_zero - 1e-3] == 0)
        assert np.all(found[q > at_zero + 1e-3] > 0)
        assert np.all(found[q > below_one + 1e-3] == 1)
        assert np.all(found[q < below_one - 1e-3] < 1)
        # In order, to the spacing of the log-odds' doubles next to 1.
        assert np.all(np.diff(found) >= -(2**-52))


def test_intervals_with_weight_at_an_end_hold_what_they_say(mixtures):
    for mixture in mixtures:
        low, high = mixture.interval(0.9)
        # The ends belong to the interval.
        below = mixture.cdf(np.nextafter(low, 0)) if low > 0 else 0.0
        assert mixture.cdf(high) - below >= 0.9 - 1e-9
    assert mixtures[0].interval(0.9)[1] == pytest.approx(1 - mixtures[1].interval(0.9)[0], abs=2**-52)


def random_weights(rng, rows, columns, total, first):
    weights = rng.exponential(size=(rows, columns))
    second = total - first - np.add.outer(np.arange(rows), np.arange(columns))
    weights[second < 1e-9] = 0  # a difference that is zero may be rounded to the other side
    return weights / weights.sum()


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([0.05, 0.5, 1.0, 1.7, 30.0]),
    st.sampled_from([0.05, 0.5, 1.0, 1.7, 30.0]),
    st.integers(0, 30),
    st.integers(0, 2**32 - 1),
)
def test_small_lattices_are_sums_of_scipy(rows, columns, first, second, spare, seed):
    # `spare` units to share on the lattice; the rectangle of weights may reach beyond its edge.
    rng = np.random.default_rng(seed)
    total = first + second + spare
    mixture = BetaMixture(random_weights(rng, rows, columns, total, first), first, total)
    x = np.concatenate([rng.random(5), [1e-9, 1e-3, 0.999, 1 - 1e-9]])
    a = first + np.arange(columns)[None, :] + np.zeros((rows, 1))
    b = total - np.arange(rows)[:, None] - a
    held = mixture.weights > 0
    w, a, b = mixture.weights[held], a[held], b[held]
    # SciPy's own densities are good to about 1e-12 here.
    np.testing.assert_allclose(mixture.pdf(x), [(w * beta.pdf(t, a, b)).sum() for t in x], rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(mixture.cdf(x), [(w * beta.cdf(t, a, b)).sum() for t in x], rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("size", [1e3, 1e5, 1e9])
def test_large_parameters_keep_their_digits(size):
    # Log-gammas of parameters near 1e9 have absolute errors near 1e-6; the certificate of the windows promises 1e-12.
    rng = np.random.default_rng(3)
    first, total, columns = 0.4 * size + 0.3, 0.9 * size, 61
    weights = rng.exponential(size=(1, columns))
    mixture = BetaMixture(weights / weights.sum(), first, total)
    sd = mixture.sd
    points = mixture.mean + sd * np.array([-6.0, -1.0, 0.3, 4.0])
    with mpmath.workdps(40):
        a, t = mpmath.mpf(first), mpmath.mpf(total)
        logs = [
            mpmath.log(mpmath.mpf(float(w))) + mpmath.loggamma(t) - mpmath.loggamma(a + k) - mpmath.loggamma(t - a - k)
            for k, w in enumerate(mixture.weights[0])
        ]
        ratios = [mpmath.exp(value - logs[0]) for value in logs]

        def density(x):
            odds = x / (1 - x)
            corner = mpmath.exp(logs[0] + (a - 1) * mpmath.log(x) + (t - a - 1) * mpmath.log1p(-x))
            return corner * mpmath.polyval(ratios, odds, asc=True)

        exact = [float(density(mpmath.mpf(float(x)))) for x in points]
        start = max(mpmath.mpf(mixture.mean) - 30 * mpmath.mpf(sd), mpmath.mpf(10) ** -6)
        inside = [mpmath.quad(density, mpmath.linspace(start, mpmath.mpf(float(x)), 9)) for x in points]
    # A point is rounded to 1e-16, which moves its log-density by up to 6 / sd times that: 6e-12 at size 1e9.
    np.testing.assert_allclose(mixture.pdf(points), exact, rtol=2e-12 + 1e-16 * 6 / sd)
    assert np.abs(mixture.cdf(points) - np.array([float(v) for v in inside])).max() < 2e-13 + 1e-16 / sd


def test_the_derivative_is_a_difference_quotient():
    rng = np.random.default_rng(4)
    lattice = BetaMixture(random_weights(rng, 7, 9, 40.0, 3.0), 3.0, 40.0)
    for x in (0.01, 0.2, 0.5, 0.93):
        step = 1e-6 * x * (1 - x)
        low, high = np.log(lattice.density(np.array([x - step, x + step])))
        assert lattice.slope(x) == pytest.approx((high - low) / (2 * step), rel=1e-7, abs=1e-6)


@pytest.mark.parametrize(("a", "b"), [(0.01, 0.01), (0.5, 7.0), (15.9, 16.1), (1e4, 3.0), (1e8, 2e8)])
def test_single_densities(a, b):
    for x in (1e-12, 0.25, 1 / 3, 0.99):
        with mpmath.workdps(40):
            p, q, t = mpmath.mpf(a), mpmath.mpf(b), mpmath.mpf(x)
            logs = mpmath.loggamma(p + q) - mpmath.loggamma(p) - mpmath.loggamma(q)
            exact = float(logs + (p - 1) * mpmath.log(t) + (q - 1) * mpmath.log1p(-t))
        assert log_beta_density(a, b, x) == pytest.approx(exact, rel=1e-13, abs=1e-13)
