"""Operating characteristics against brute force, simulation and symmetry; the designer against what it promises."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.errors import InputError
from dpbayes.privacy.laws import TwoSidedGeometric
from dpbayes.privacy.sampling import release_values
from dpbayes.verifier import count_surface, design_surface, smallest_epsilon
from dpbayes.verifier.design import expected, releases_of
from dpbayes.verifier.exact import posterior_of_counts


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 7, 30]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.5, 1.0, 3.0]),
    st.sampled_from([(1.0, 1.0, 1.0), (0.5, 0.5, 0.5), (4.0, 1.5, 0.1), (2.0, 0.7)]),
)
def test_each_release_has_the_exact_posterior(m, seed, epsilon, alpha):
    rng = np.random.default_rng(seed)
    every, law = releases_of(m, epsilon, alpha), TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2)
    for counts in rng.multinomial(m, rng.dirichlet(alpha), size=3):
        failed = int(counts[2]) if len(alpha) == 3 else 0
        at = failed, counts[0], counts[1]
        low, high = (end[at[1:]] for end in every.intervals(failed))
        exact = posterior_of_counts(counts, law, m, alpha=alpha)
        # The interpolation error of the quantiles: 1.5e-5 in probability.
        assert float(exact.r.cdf(low)) == pytest.approx(0.025, abs=1.5e-5)
        assert float(exact.r.cdf(high)) == pytest.approx(0.975, abs=1.5e-5)
        assert every.prob_greater(0.5)[at] == pytest.approx(exact.prob_greater(0.5), abs=1e-10)
        assert every.mean[at] == pytest.approx(exact.mean, abs=1e-10)


def test_every_release_has_its_exact_posterior():
    every = releases_of(7, 1.0, (1.0, 2.0, 0.5))
    for y in [(7, 0, 0), (3, 4, 0), (0, 0, 7), (2, 2, 3), (7, 7, 7), (0, 5, 1)]:
        exact = posterior_of_counts(y, TwoSidedGeometric(2.0), 7, alpha=(1.0, 2.0, 0.5))
        low, high = (end[y[0], y[1]] for end in every.intervals(y[2]))
        assert every.prob_greater(0.4)[y[2], y[0], y[1]] == pytest.approx(exact.prob_greater(0.4), abs=1e-12)
        assert every.mean[y[2], y[0], y[1]] == pytest.approx(exact.mean, abs=1e-12)
        assert float(exact.r.cdf(low)) == pytest.approx(0.025, abs=1.5e-5)
        assert float(exact.r.cdf(high)) == pytest.approx(0.975, abs=1.5e-5)


def test_expectations_are_sums_over_the_noise():
    # M = 4 by brute force: every release within 60 of the truth, posterior by the one-at-a-time code.
    m, law = 4, TwoSidedGeometric(1.0)
    surface = count_surface(m, epsilon=2.0, confidence=0.8)
    truth = (3, 1, 0)
    grid = np.arange(-60, 65)
    decide = {}
    total = 0.0
    masses = [np.exp(law.log_prob(grid - t)) for t in truth]
    clamped = [[mass[np.clip(grid, 0, m) == k].sum() for k in range(m + 1)] for mass in masses]
    for y in np.ndindex(m + 1, m + 1, m + 1):
        decide[y] = posterior_of_counts(y, law, m).prob_greater(0.5) >= 0.8
        total += decide[y] * clamped[0][y[0]] * clamped[1][y[1]] * clamped[2][y[2]]
    found = float(surface["decide_above"].sel(beyond=3, not_beyond=1))
    assert found == pytest.approx(total, abs=1e-12)
    assert float(surface["right"].sel(beyond=3, not_beyond=1)) == found


@pytest.mark.parametrize(
    ("alpha", "truth"), [(None, (19, 9, 2)), ((0.5, 0.7, 1.0), (19, 9, 2)), ((1.0, 1.0), (19, 11))]
)
def test_expectations_agree_with_simulation(alpha, truth):
    # 20,000 simulated releases of one truth; 5 standard errors each (false alarm 6e-7).
    m, size = 30, 20_000
    noisy = release_values(np.tile(truth, (size, 1)), TwoSidedGeometric(2.0), rng=np.random.default_rng(2))
    beyond, other, *failed = np.clip(noisy, 0, m).T
    place = failed[0] if failed else np.zeros_like(beyond)
    every = releases_of(m, 1.0, alpha)
    low, high = (np.stack([every.intervals(f)[end] for f in range(len(every.mean))]) for end in (0, 1))
    mean, low, high = (one[place, beyond, other] for one in (every.mean, low, high))
    at = count_surface(m, epsilon=1.0, alpha=alpha).sel(beyond=truth[0], not_beyond=truth[1])
    share = truth[0] / sum(truth[:2])
    for name, values in (
        ("estimate_mean", mean),
        ("width", high - low),
        ("coverage", ((low <= share) & (share <= high)).astype(float)),
    ):
        assert abs(values.mean() - float(at[name])) < 5 * values.std() / np.sqrt(size) + 1e-4
    assert mean.std() == pytest.approx(float(at["estimate_sd"]), rel=0.05)


def test_two_outcomes_are_sums_over_two_counts():
    m, law = 5, TwoSidedGeometric(1.0)
    surface = count_surface(m, epsilon=2.0, alpha=(1.0, 2.0), confidence=0.8)
    assert int(surface["width"].notnull().sum()) == m + 1
    clamped = np.array([[np.exp(law.log_prob(y - s)) for y in range(-60, 66)] for s in range(m + 1)])
    clamped = np.column_stack([clamped[:, :61].sum(axis=1), clamped[:, 61:65], clamped[:, 65:].sum(axis=1)])
    total = sum(
        clamped[4, y[0]] * clamped[1, y[1]]
        for y in np.ndindex(m + 1, m + 1)
        if posterior_of_counts(y, law, m, alpha=(1.0, 2.0)).prob_greater(0.5) >= 0.8
    )
    assert float(surface["decide_above"].sel(beyond=4, not_beyond=1)) == pytest.approx(total, abs=1e-12)
    # A share r of M binomial partitions: the sum over all true counts, by hand.
    weights = np.array([math.comb(m, s) * 0.7**s * 0.3 ** (m - s) for s in range(m + 1)])
    widths = [float(surface["width"].sel(beyond=s, not_beyond=m - s)) for s in range(m + 1)]
    assert expected(m, 2.0, 0.7, alpha=(1.0, 2.0))["width"] == pytest.approx(weights @ widths, abs=1e-12)


def test_the_surface_is_symmetric_and_complete():
    surface = count_surface(10, epsilon=1.0)
    swapped = surface.rename(beyond="not_beyond", not_beyond="beyond").transpose("beyond", "not_beyond")
    assert np.allclose(surface["decide_above"], swapped["decide_below"], equal_nan=True, atol=1e-12)
    assert np.allclose(surface["width"], swapped["width"], equal_nan=True, atol=1e-5)
    assert np.allclose(surface["estimate_mean"], 1 - swapped["estimate_mean"], equal_nan=True, atol=1e-12)
    assert int(surface["width"].notnull().sum()) == 66
    # Without computable partitions there is no share to cover or to decide about.
    assert np.isnan(float(surface["coverage"].sel(beyond=0, not_beyond=0)))


@pytest.mark.slow
def test_truth_from_the_prior_is_covered_exactly():
    # Averaged over the prior of the truth, coverage is .95 by construction: an identity, up to the interpolation.
    nodes, weights = np.polynomial.legendre.leggauss(6)
    total = 0.0
    # Uniform prior: r uniform, failed share with density 2 (1 - e). The indicator of coverage is not smooth in r, so
    # the quadrature over r is fine and the tolerance is what 200 cells allow.
    rs = (np.arange(200) + 0.5) / 200
    for node, weight in zip(0.5 * (nodes + 1), 0.5 * weights, strict=True):
        inner = np.mean([expected(6, 1.0, r + 1e-9, failed=node)["coverage"] for r in rs])
        total += 2 * (1 - node) * weight * inner
    assert total == pytest.approx(0.95, abs=0.004)


def test_averages_improve_with_epsilon():
    # Two-sided geometric noise at a smaller epsilon is a coarsening of that at a larger one, so averaged over the prior
    # the width cannot grow much and a Bayes decision cannot get worse.
    sizes = []
    for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0):
        surface = count_surface(12, epsilon=epsilon)
        sizes.append((float(surface["width"].mean()), float(surface["undecided"].mean())))
    widths, undecided = zip(*sizes, strict=True)
    assert list(widths) == sorted(widths, reverse=True)
    assert list(undecided) == sorted(undecided, reverse=True)


def test_the_designer_finds_the_least():
    def of(name, epsilon, **given):
        return expected(15, epsilon, 0.9, **given)[name]

    epsilon = smallest_epsilon(15, r=0.9, failed=0.05, wanted=0.7)
    assert of("right", epsilon, failed=0.05) >= 0.7 > of("right", 0.995 * epsilon, failed=0.05)
    wide = smallest_epsilon(15, r=0.9, wanted=0.45, quantity="width")
    assert of("width", wide) <= 0.45 < of("width", 0.99 * wide)


def test_a_surface_over_designs():
    surface = design_surface([5, 9], [0.5, 2.0], r=[0.2, 0.9])
    assert surface["right"].dims == ("n_partitions", "epsilon", "r")
    one = expected(9, 2.0, 0.9)
    at = surface.sel(n_partitions=9, epsilon=2.0, r=0.9)
    assert {name: float(at[name]) for name in surface.data_vars} == one
    assert one["right"] + one["wrong"] <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r": 0.5}, "on the threshold"),
        ({"epsilon": [0]}, "epsilon"),
        ({"n_partitions": [0]}, "from 1 to"),
        ({"n_partitions": [500]}, "up to M = 201.*the posterior of each"),
        ({"n_partitions": [302], "alpha": (1, 1)}, "up to M = 301"),
        ({"r": 1.6}, "r must lie"),
        ({"alpha": (0.4, 1, 1)}, "at least 0.5"),
        ({"alpha": (0, 1, 1)}, "positive"),
        ({"alpha": (1, 1), "failed": 0.1}, "three outcomes"),
        ({"confidence": 0.3}, "confidence"),
    ],
)
def test_bad_designs(change, message):
    with pytest.raises(InputError, match=message):
        design_surface(**({"n_partitions": [10], "epsilon": [1.0], "r": 0.6} | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"wanted": 0.9}, "out of reach"), ({"wanted": 2}, "wanted"), ({"quantity": "joy"}, "quantity")],
)
def test_bad_wishes(change, message):
    with pytest.raises(InputError, match=message):
        smallest_epsilon(5, **({"r": 0.6, "wanted": 0.5} | change))


def test_a_surface_checks_its_confidence():
    with pytest.raises(InputError, match="confidence"):
        count_surface(10, epsilon=1, confidence=1)
