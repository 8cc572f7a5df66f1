"""Operating characteristics against brute force, simulation and symmetry; the designer against what it promises."""

import math

import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.privacy.laws import Laplace, TwoSidedGeometric
from dpbayes.privacy.sampling import release_values
from dpbayes.verifier import (
    count_surface,
    design_surface,
    expected,
    smallest_epsilon,
    smallest_partitions,
)
from dpbayes.verifier.every_release import _cached, count_grid, releases_of
from dpbayes.verifier.exact import posterior_of_counts
from dpbayes.verifier.release import law_of


def test_every_release_has_its_exact_posterior():
    every = releases_of(7, epsilon=1.0, alpha=(1.0, 2.0, 0.5))
    mode, low, high = every.summaries
    above = every.prob_greater(0.4)
    for y in [(7, 0, 0), (3, 4, 0), (0, 0, 7), (2, 2, 3), (7, 7, 7), (0, 5, 1)]:
        exact = posterior_of_counts(y, TwoSidedGeometric(2.0), 7, alpha=(1.0, 2.0, 0.5))
        at = (y[2], y[0], y[1])
        assert above[at] == pytest.approx(exact.prob_greater(0.4), abs=1e-12)
        assert float(exact.r.cdf(low[at])) == pytest.approx(0.025, abs=1.5e-5)
        assert float(exact.r.cdf(high[at])) == pytest.approx(0.975, abs=1.5e-5)
        assert mode[at] == pytest.approx(exact.modes["r-hat"], abs=2e-3)


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
    ("noise", "alpha", "truth"),
    [
        ("two-sided-geometric", None, (19, 9, 2)),
        ("two-sided-geometric", (0.1, 0.3, 1.0), (19, 9, 2)),
        ("two-sided-geometric", (1.0, 1.0), (19, 11)),
        ("laplace", None, (19, 9, 2)),
        ("laplace", (0.5, 2.0), (19, 11)),
    ],
)
def test_expectations_agree_with_simulation(noise, alpha, truth):
    # 20,000 simulated releases of one truth (400 of Laplace noise); 5 standard errors each (false alarm 6e-7).
    law, m = law_of(noise, 1.0), 30
    size = 20_000 if law.is_discrete else 400
    noisy = release_values(np.tile(truth, (size, 1)), law, rng=np.random.default_rng(2))
    if law.is_discrete:
        beyond, other, *failed = np.clip(noisy, 0, m).T
        place = failed[0] if failed else np.zeros_like(beyond)
        mode, low, high = (one[place, beyond, other] for one in releases_of(m, epsilon=1.0, alpha=alpha).summaries)
    else:
        every = [posterior_of_counts(row, law, m, alpha=alpha) for row in noisy]
        mode, low, high = np.array([(one.modes["r-hat"], *one.interval()) for one in every]).T
    at = count_surface(m, epsilon=1.0, noise=noise, alpha=alpha).sel(beyond=truth[0], not_beyond=truth[1])
    share = truth[0] / sum(truth[:2])
    # For Laplace noise what is not smooth inside a cell is integrated to about a thousandth.
    slack = 1e-4 if noise == "two-sided-geometric" else 2e-3
    for name, values in (
        ("mode_mean", mode),
        ("width", high - low),
        ("coverage", ((low <= share) & (share <= high)).astype(float)),
    ):
        assert abs(values.mean() - float(at[name])) < 5 * values.std() / np.sqrt(size) + slack
    assert mode.std() == pytest.approx(float(at["mode_sd"]), rel=0.05 if size > 1000 else 0.2)


def test_two_outcomes_are_sums_over_two_counts():
    m, law = 5, TwoSidedGeometric(1.0)
    surface = count_surface(m, epsilon=2.0, alpha=(1.0, 2.0), confidence=0.8)
    assert int(surface["width"].notnull().sum()) == m + 1
    clamped = releases_of(m, epsilon=2.0, alpha=(1.0, 2.0)).grid.probability
    total = sum(
        clamped[4, y[0]] * clamped[1, y[1]]
        for y in np.ndindex(m + 1, m + 1)
        if posterior_of_counts(y, law, m, alpha=(1.0, 2.0)).prob_greater(0.5) >= 0.8
    )
    assert float(surface["decide_above"].sel(beyond=4, not_beyond=1)) == pytest.approx(total, abs=1e-12)
    # A share r of M binomial partitions: the sum over all true counts, by hand.
    weights = np.array([math.comb(m, s) * 0.7**s * 0.3 ** (m - s) for s in range(m + 1)])
    widths = [float(surface["width"].sel(beyond=s, not_beyond=m - s)) for s in range(m + 1)]
    assert expected(m, epsilon=2.0, r=0.7, alpha=(1.0, 2.0)).width == pytest.approx(weights @ widths, abs=1e-12)


def test_laplace_nodes_carry_the_law(monkeypatch):
    grid = count_grid(Laplace(1.5), 12)
    assert np.abs(grid.probability.sum(axis=1) - 1).max() < 1e-14
    # Mean and variance of noise clamped to [0, M], by the nodes and by quadrature of the density.
    values = np.concatenate([[0.0], (np.arange(12)[:, None] + 0.5 + np.array([-1, 1]) / math.sqrt(12)).ravel(), [12.0]])
    x = np.linspace(-60, 60, 240_001)
    density = np.exp(Laplace(1.5).log_prob(x))
    for count in (0, 5, 12):
        clipped = np.clip(count + x, 0, 12)
        for power in (1, 2):
            exact = np.trapezoid(density * clipped**power, x)
            assert grid.probability[count] @ values**power == pytest.approx(exact, rel=1e-4, abs=1e-3)
    # Twice the nodes tell the same.
    few = expected(15, epsilon=1.0, r=0.8, noise="laplace")
    monkeypatch.setattr("dpbayes.verifier.every_release._NODES", 4)
    _cached.cache_clear()
    many = expected(15, epsilon=1.0, r=0.8, noise="laplace")
    _cached.cache_clear()
    assert few.width == pytest.approx(many.width, abs=1e-4)
    assert few.mode_mean == pytest.approx(many.mode_mean, abs=1e-3)
    assert few.right == pytest.approx(many.right, abs=5e-3)
    assert few.coverage == pytest.approx(many.coverage, abs=5e-3)


def test_the_surface_is_symmetric_and_complete():
    surface = count_surface(10, epsilon=1.0)
    swapped = surface.rename(beyond="not_beyond", not_beyond="beyond").transpose("beyond", "not_beyond")
    assert np.allclose(surface["decide_above"], swapped["decide_below"], equal_nan=True, atol=1e-12)
    assert np.allclose(surface["width"], swapped["width"], equal_nan=True, atol=1e-5)
    assert np.allclose(surface["mode_mean"], 1 - swapped["mode_mean"], equal_nan=True, atol=1e-3)
    assert int(surface["width"].notnull().sum()) == 66
    # Without computable partitions there is no share to cover or to decide about.
    assert np.isnan(float(surface["coverage"].sel(beyond=0, not_beyond=0)))


def test_truth_from_the_prior_is_covered_exactly():
    # Averaged over the prior of the truth, coverage is .95 by construction: an identity, up to the interpolation.
    nodes, weights = np.polynomial.legendre.leggauss(16)
    total = 0.0
    # Uniform prior: r uniform, failed share with density 2 (1 - e). The indicator of coverage is not smooth in r, so
    # the quadrature over r is fine and the tolerance is what 200 cells allow.
    rs = (np.arange(200) + 0.5) / 200
    for node, weight in zip(0.5 * (nodes + 1), 0.5 * weights, strict=True):
        inner = np.mean([expected(6, epsilon=1.0, r=r + 1e-9, failed=node).coverage for r in rs])
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
    epsilon = smallest_epsilon(15, r=0.9, failed=0.05, wanted=0.7)
    assert expected(15, epsilon=epsilon, r=0.9, failed=0.05).right >= 0.7
    assert expected(15, epsilon=0.995 * epsilon, r=0.9, failed=0.05).right < 0.7
    wide = smallest_epsilon(15, r=0.9, wanted=0.45, quantity="width")
    assert expected(15, epsilon=wide, r=0.9).width <= 0.45 < expected(15, epsilon=0.99 * wide, r=0.9).width
    m = smallest_partitions(epsilon=1.0, r=0.9, wanted=0.7)
    assert expected(m, epsilon=1.0, r=0.9).right >= 0.7 > expected(m - 1, epsilon=1.0, r=0.9).right


def test_a_surface_over_designs():
    surface = design_surface([5, 9], [0.5, 2.0], r=[0.2, 0.9])
    assert surface["right"].dims == ("n_partitions", "epsilon", "r")
    one = expected(9, epsilon=2.0, r=0.9)
    at = surface.sel(n_partitions=9, epsilon=2.0, r=0.9)
    assert float(at["right"]) == one.right
    assert one.mode_quantiles[0] <= one.mode_quantiles[2] <= one.mode_quantiles[4]
    assert one.right + one.wrong <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: smallest_epsilon(5, r=0.6, wanted=0.9), "out of reach"),
        (lambda: expected(10, epsilon=1, r=0.5), "on the threshold"),
        (lambda: expected(10, epsilon=0, r=0.6), "epsilon"),
        (lambda: expected(0, epsilon=1, r=0.6), "at least 1"),
        (lambda: expected(500, epsilon=1, r=0.6), "up to M = 201.*the posterior of each"),
        (lambda: expected(101, epsilon=1, r=0.6, noise="laplace"), "up to M = 100"),
        (lambda: expected(302, epsilon=1, r=0.6, alpha=(1, 1)), "up to M = 301"),
        (lambda: expected(10, epsilon=1, r=1.6), "r must lie"),
        (lambda: expected(10, epsilon=1, r=0.6, alpha=(0.01, 1, 1)), "0.02"),
        (lambda: expected(10, epsilon=1, r=0.6, alpha=(0, 1, 1)), "positive"),
        (lambda: expected(10, epsilon=1, r=0.6, alpha=(1, 1), failed=0.1), "three outcomes"),
        (lambda: expected(10, epsilon=1, r=0.6, noise="gaussian"), "two-sided-geometric, laplace"),
        (lambda: expected(10, epsilon=1, r=0.6, confidence=0.3), "confidence"),
        (lambda: count_surface(10, epsilon=1, confidence=1), "confidence"),
        (lambda: smallest_epsilon(5, r=0.6, wanted=2), "wanted"),
        (lambda: smallest_epsilon(5, r=0.6, wanted=0.5, quantity="joy"), "quantity"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_too_few_partitions_at_most(monkeypatch):
    monkeypatch.setattr("dpbayes.verifier.design.most_partitions", lambda noise, n_outcomes: 12)
    with pytest.raises(InputError, match="out of reach up to M = 12"):
        smallest_partitions(epsilon=0.01, r=0.6, wanted=0.9)
