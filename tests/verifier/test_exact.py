"""The exact posterior against brute force over the whole lattice, published values, symmetries and extremes."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, dirichlet_multinomial

from dpbayes.errors import InputError
from dpbayes.privacy.laws import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric
from dpbayes.verifier.exact import lattice_axes, log_rising, omitted_mass_bound, posterior_of_counts
from dpbayes.verifier.partition import OUTCOMES


def brute_force(noisy, law, m, alpha):
    """Every triple of counts, its posterior probability by SciPy's pmf, and the evidence."""
    triples = np.array([(i, j, m - i - j) for i in range(m + 1) for j in range(m + 1 - i)])
    log_weights = dirichlet_multinomial.logpmf(triples, alpha, m)
    log_weights = log_weights + sum(law.log_prob(y - triples[:, j]) for j, y in enumerate(noisy))
    top = log_weights.max()
    weights = np.exp(log_weights - top)
    return triples, weights / weights.sum(), top + math.log(weights.sum())


CASES = [
    (TwoSidedGeometric(2.0), 20, (12, 5, 4), (1.0, 1.0, 1.0)),
    (TwoSidedGeometric(0.5), 20, (12, 5, 4), (0.3, 2.0, 0.7)),
    (Laplace(2.0), 50, (45.3, 3.9, 2.2), (1.0, 1.0, 1.0)),
    (Laplace(8.0), 30, (-11.7, 44.1, 2.2), (3.0, 0.5, 1.0)),
    (DiscreteGaussian(2.5), 25, (3, 20, 1), (1.0, 1.0, 1.0)),
    (Gaussian(1.5), 40, (30.2, 7.7, 1.4), (2.0, 2.0, 0.4)),
    (TwoSidedGeometric(2.0), 120, (60, 66, -3), (0.5, 0.5, 0.5)),
    (TwoSidedGeometric(1.0), 150, (0, 0, 0), (1.0, 1.0, 1.0)),
    (TwoSidedGeometric(3.0), 130, (20, 90, 15), (40.0, 5.0, 300.0)),
    (DiscreteGaussian(4.0), 140, (70, 50, 40), (0.05, 1.0, 12.0)),
]


@pytest.mark.parametrize(("law", "m", "noisy", "alpha"), CASES)
def test_matches_brute_force(law, m, noisy, alpha):
    exact = posterior_of_counts(noisy, law, m, alpha=alpha)
    triples, weights, log_evidence = brute_force(noisy, law, m, alpha)
    assert exact.truncation_error < 1e-12
    assert exact.log_evidence == pytest.approx(log_evidence, abs=1e-9)
    for j, outcome in enumerate(OUTCOMES):
        values, probabilities = exact.counts(outcome)
        expected = np.bincount(triples[:, j], weights=weights, minlength=m + 1)
        assert np.abs(probabilities - expected[values]).max() < 2e-12
        assert expected.sum() - expected[values].sum() < 1e-12
        share = (weights * (alpha[j] + triples[:, j]) / (sum(alpha) + m)).sum()
        assert exact.share(outcome).mean == pytest.approx(share, abs=1e-12)

    a, b = alpha[0] + triples[:, 0], alpha[1] + triples[:, 1]
    assert exact.mean == pytest.approx((weights * a / (a + b)).sum(), abs=1e-12)
    second = (weights * a * (a + 1) / (a + b) / (a + b + 1)).sum()
    assert exact.sd == pytest.approx(math.sqrt(second - (weights * a / (a + b)).sum() ** 2), rel=1e-9)
    grid = np.concatenate([[0.0, 1e-9], np.linspace(0.01, 0.99, 25), [1.0]])
    cdf = np.array([(weights * beta.cdf(x, a, b)).sum() for x in grid])
    assert np.abs(exact.r.cdf(grid) - cdf).max() < 5e-12
    pdf = np.array([(weights * beta.pdf(x, a, b)).sum() for x in grid[2:-1]])
    np.testing.assert_allclose(exact.r.pdf(grid[2:-1]), pdf, rtol=1e-8, atol=1e-11)
    assert exact.prob_greater(0.37) == pytest.approx((weights * beta.sf(0.37, a, b)).sum(), abs=5e-12)


@pytest.mark.parametrize(("law", "m", "noisy", "alpha"), CASES)
def test_quantiles_intervals_and_mode_are_what_they_say(law, m, noisy, alpha):
    exact = posterior_of_counts(noisy, law, m, alpha=alpha)
    q = np.array([1e-6, 0.025, 0.5, 0.975, 1 - 1e-6])
    np.testing.assert_allclose(exact.r.cdf(exact.r.quantile(q)), q, rtol=1e-9)
    low, high = exact.interval(0.9)
    assert exact.r.cdf(high) - exact.r.cdf(low) == pytest.approx(0.9, abs=1e-10)
    mode = exact.modes["r-hat"]
    if min(alpha[:2]) < 1:
        # The density is unbounded at an end; the mode is a local maximum elsewhere.
        assert exact.r.pdf(mode) >= exact.r.pdf([mode - 1e-4, mode + 1e-4]).max()
    else:
        grid = np.linspace(*exact.r.quantile([0.001, 0.999]), 1001)[1:-1]
        assert exact.r.pdf(mode) >= exact.r.pdf(grid).max() * (1 - 1e-12)


def test_two_outcomes_reproduce_the_published_check():
    # epsilon 1, M 50, alpha (1, 1), noisy S = S: mean .884386 and .115614; the mode .9015 was read off a grid of
    # thousandths (its cell centres), so it is right to half a thousandth. With 40 digits it is .901424724933.
    for noisy, mean, published, mode in (
        ((45, 5), 0.884386, 0.9015, 0.901424724933),
        ((5, 45), 0.115614, 0.0985, None),
    ):
        exact = posterior_of_counts(noisy, TwoSidedGeometric(2.0), 50)
        assert round(exact.mean, 6) == mean
        assert abs(exact.modes["r-hat"] - published) <= 5e-4
        assert exact.modes["r-hat"] == pytest.approx(mode or 1 - 0.901424724933, abs=1e-11)
        assert "e-hat" not in exact.modes


def test_the_mode_by_forty_digits():
    # The mixture's log-density summed in mpmath, its derivative's zero sought there: nothing shared with the package.
    import mpmath

    with mpmath.workdps(40):
        weights = [mpmath.exp(-mpmath.mpf(abs(45 - k) + abs(5 - (50 - k))) / 2) for k in range(51)]
        terms = [w / mpmath.beta(1 + k, 51 - k) for k, w in enumerate(weights)]

        def density(x):
            return mpmath.fsum(t * x**k * (1 - x) ** (50 - k) for k, t in enumerate(terms))

        mode = mpmath.findroot(lambda x: mpmath.diff(density, x) / density(x), mpmath.mpf("0.9"))
        assert float(abs(mode - mpmath.mpf("0.901424724933"))) < 1e-12


def test_two_outcomes_are_the_limit_of_a_failure_category_that_never_happens():
    two = posterior_of_counts((33, 15), TwoSidedGeometric(2.0), 50)
    three = posterior_of_counts((33, 15, 0), TwoSidedGeometric(2.0), 50, alpha=(1, 1, 1e-12))
    assert three.mean == pytest.approx(two.mean, abs=1e-9)
    assert three.sd == pytest.approx(two.sd, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 80),
    st.lists(st.integers(-30, 110), min_size=3, max_size=3),
    st.lists(st.floats(0.05, 30), min_size=3, max_size=3),
    st.floats(0.2, 20),
)
def test_swapping_the_outcomes_mirrors_the_posterior(m, noisy, alpha, scale):
    law = TwoSidedGeometric(scale)
    one = posterior_of_counts(noisy, law, m, alpha=alpha)
    other = posterior_of_counts([noisy[1], noisy[0], noisy[2]], law, m, alpha=[alpha[1], alpha[0], alpha[2]])
    assert one.mean == pytest.approx(1 - other.mean, abs=1e-11)
    assert one.sd == pytest.approx(other.sd, rel=1e-8, abs=1e-12)
    grid = np.linspace(0.05, 0.95, 7)
    np.testing.assert_allclose(one.r.cdf(grid), 1 - other.r.cdf(1 - grid), atol=2e-11)
    assert one.prob_greater(0.3) == pytest.approx(float(other.r.cdf(0.7)), abs=1e-11)
    assert 0 <= one.mean <= 1
    assert one.weights.sum() == pytest.approx(1, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(70, 160),
    st.lists(st.integers(-20, 180), min_size=3, max_size=3),
    st.lists(st.sampled_from([0.05, 0.5, 1.0, 3.0, 60.0]), min_size=3, max_size=3),
    st.sampled_from([TwoSidedGeometric(0.7), TwoSidedGeometric(2.0), DiscreteGaussian(3.0)]),
    st.sampled_from([1e-3, 1e-6, 1e-12]),
)
def test_the_certificate_bounds_what_the_window_leaves_out(m, noisy, alpha, law, tolerance):
    noisy = np.clip(noisy, 0, m)
    axes = lattice_axes(noisy.astype(float), law, m, tuple(alpha), tolerance=tolerance, max_terms=10**7)
    triples, weights, _ = brute_force(noisy, law, m, alpha)
    inside = np.all([(triples[:, j] >= a.low) & (triples[:, j] <= a.high) for j, a in enumerate(axes)], axis=0)
    bound = omitted_mass_bound(axes, m)
    assert weights[~inside].sum() <= bound + 1e-15
    assert bound <= tolerance


def test_the_certificate_is_not_vacuous():
    # At a loose tolerance something must be left out, or the test above tests nothing.
    axes = lattice_axes(
        np.array([300.0, 680.0, 20.0]), TwoSidedGeometric(2.0), 1000, (1.0,) * 3, tolerance=1e-3, max_terms=10**6
    )
    assert 0 < omitted_mass_bound(axes, 1000) <= 1e-3
    assert all(a.high - a.low < 120 for a in axes)


def test_cost_does_not_grow_with_the_number_of_partitions():
    sizes = [
        posterior_of_counts((0.4 * m, 0.5 * m, 0.1 * m), TwoSidedGeometric(2.0), m).weights.size
        for m in (10**4, 10**6, 10**9)
    ]
    assert max(sizes) <= 1.02 * min(sizes)


def test_large_m_agrees_with_a_wide_window():
    noisy, law = (40_000, 50_001, 10_003), TwoSidedGeometric(2.0)
    narrow = posterior_of_counts(noisy, law, 100_000)
    wide = posterior_of_counts(noisy, law, 100_000, tolerance=1e-30)
    assert narrow.truncation_error < 1e-12
    assert narrow.mean == pytest.approx(wide.mean, abs=1e-12)
    assert np.abs(narrow.r.cdf([0.442, 0.444, 0.446]) - wide.r.cdf([0.442, 0.444, 0.446])).max() < 1e-12


def test_more_budget_tells_more_on_average():
    # A two-sided geometric release at a smaller epsilon can be made from one at a larger epsilon (Ghosh, Roughgarden
    # and Sundararajan 2012), so the posterior variance averaged over the prior predictive must fall. Exact sums.
    m = 6
    averages = []
    for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0):
        law = TwoSidedGeometric(2 / epsilon)
        average = whole = 0.0
        # Beyond [0, M] the posterior no longer changes: the ends carry the tails.
        log_mass = np.array([[_clamped_mass(law, y, s, m) for s in range(m + 1)] for y in range(m + 1)])
        for y in np.ndindex(m + 1, m + 1, m + 1):
            exact = posterior_of_counts(y, law, m)
            triples = [(i, j, m - i - j) for i in range(m + 1) for j in range(m + 1 - i)]
            mass = sum(math.prod(log_mass[y[j], t[j]] for j in range(3)) for t in triples) / len(triples)
            average += mass * exact.sd**2
            whole += mass
        assert whole == pytest.approx(1, abs=1e-12)
        averages.append(average)
    assert all(later < earlier for earlier, later in itertools.pairwise(averages))


def _clamped_mass(law, y, s, m):
    if y == 0:
        return float(law.cdf(-s))
    if y == m:
        return float(law.sf(m - 1 - s))
    return float(np.exp(law.log_prob(y - s)))


def test_counts_far_outside_the_range_have_exact_answers():
    law = TwoSidedGeometric(2.0)
    far = posterior_of_counts((10**15, -(10**15), 7), law, 50)
    near = posterior_of_counts((50, 0, 7), law, 50)
    assert far.mean == near.mean
    assert far.log_evidence < near.log_evidence - 1e14
    with pytest.raises(InputError, match="40 standard deviations"):
        posterior_of_counts((1000, 10, 10), Gaussian(2.0), 50)


@pytest.mark.parametrize("m", [10, 5000])
def test_releases_that_no_counts_can_explain_are_refused(m):
    noisy, law = np.array([6.0, m - 5.0, 0.0]), TwoSidedGeometric(1e-310)
    said = "no true counts .*explain the released counts under noise .*check that M and the noise law"
    with pytest.raises(InputError, match=said):
        posterior_of_counts(noisy, law, m)
    assert posterior_of_counts(noisy - [1, 0, 0], law, m).mean == pytest.approx(6 / (m + 2), rel=0.1)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"n_partitions": 0}, "from 1 to"),
        ({"n_partitions": 2.5}, "from 1 to"),
        ({"alpha": (1, 1, 0)}, "positive"),
        ({"alpha": (1, 1, math.nan)}, "positive"),
        ({"alpha": (1, 1)}, "3 numbers"),
        ({"noisy": (1, 2, math.inf)}, "not finite"),
        ({"noisy": (1, 2, 3, 4)}, "two or three"),
        ({"tolerance": 0}, "tolerance"),
        ({"n_partitions": 10**5, "alpha": (1e6, 1e6, 1e6), "noisy": (9e4, 1, 1)}, "max_terms"),
    ],
)
def test_bad_input(kwargs, message):
    given_values = {"noisy": (10, 10, 5), "n_partitions": 25, **kwargs}
    noisy, m = given_values.pop("noisy"), given_values.pop("n_partitions")
    with pytest.raises(InputError, match=message):
        posterior_of_counts(noisy, TwoSidedGeometric(2.0), m, **given_values)


def test_bad_probabilities():
    exact = posterior_of_counts((10, 10, 5), TwoSidedGeometric(2.0), 25)
    for prob in (0, 1, -0.5, True):
        with pytest.raises(InputError, match="prob"):
            exact.interval(prob)
    with pytest.raises(InputError, match="threshold"):
        exact.prob_greater(1.5)
    with pytest.raises(InputError, match="outcome"):
        exact.share("maybe")


def test_the_smallest_study():
    # M = 1: three lattice points, by hand.
    law = TwoSidedGeometric(2.0)
    exact = posterior_of_counts((1, 0, 0), law, 1)
    q = math.exp(-1 / law.scale)
    weights = np.array([1.0, q * q, q * q])
    weights /= weights.sum()
    assert exact.mean == pytest.approx(weights @ [2 / 3, 1 / 3, 1 / 2], abs=1e-14)


def test_rising_factors_do_not_cancel():
    # For alpha = 2 the factor is k + 1. A difference of log-gammas of size 1e7 would be off by 1e-9.
    k = np.arange(10**6, 10**6 + 50)
    assert np.abs(np.diff(log_rising(2.0, k[0], k[-1])) - np.log1p(1 / (k[:-1] + 1.0))).max() < 4e-15


def test_unbounded_ends_do_not_take_the_mode():
    # alpha below 1 makes the density infinite at both ends, with next to no weight there.
    exact = posterior_of_counts((25, 25, 0), TwoSidedGeometric(1.0), 50, alpha=(0.5, 0.5, 0.5))
    assert exact.modes["r-hat"] == pytest.approx(0.5, abs=1e-6)
    assert np.isinf(exact.r.pdf(0.0)) or exact.counts("beyond")[0][0] > 0
    edge = posterior_of_counts((0, 50, 0), TwoSidedGeometric(1.0), 50)
    assert edge.modes["r-hat"] == 0.0


def test_a_mirrored_density_has_its_mode_in_the_middle():
    assert posterior_of_counts((0, 0, 10), TwoSidedGeometric(2.0), 10).modes["r-hat"] == pytest.approx(0.5, abs=1e-9)
    assert posterior_of_counts((20, 20, 10), TwoSidedGeometric(2.0), 50).modes["r-hat"] == pytest.approx(0.5, abs=1e-9)
