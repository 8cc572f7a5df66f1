from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy import sparse
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm
from scipy.stats import t as student

from dpbayes.data import Domain
from dpbayes.ide import Prior, strength
from dpbayes.ide.noise_aware import measure
from dpbayes.ide.strength import (
    Directions,
    posterior_variance,
    recentred,
    scalar_strength,
    spectrum,
    strength_bound,
    weigh,
    weighed_solution,
)
from dpbayes.privacy import Gaussian, Laplace, NoisyTable, Release

DOMAIN = Domain.from_levels({f"x{i}": tuple(range(8)) for i in range(12)})


@pytest.fixture(scope="module")
def prior():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 8, (3000, 12))
    return Prior(DOMAIN, codes, rng.gamma(1.0, size=3000), n_records=20_000)


def simulate(prior, strength, law, seed, n=10_000):
    """A release whose distribution is the prior moved by a Dirichlet draw worth `strength` records."""
    rng = np.random.default_rng(seed)
    gamma = rng.gamma(strength * prior.weights)
    q = prior.reweighted(gamma)
    draw = rng.laplace(0, law.scale, (12, 8)) if isinstance(law, Laplace) else rng.normal(0, law.stddev, (12, 8))
    tables = tuple(
        NoisyTable(DOMAIN.project([name]), n * q.marginal([name]) + noise, law, 2.0, None)
        for name, noise in zip(DOMAIN.names, draw, strict=True)
    )
    return measure(prior, Release(DOMAIN, tables, "replace-one", n, "simulation"))


@pytest.mark.parametrize("law", [Laplace(40.0), Gaussian(30.0)], ids=lambda law: law.name)
def test_directions_carry_the_joint_density_of_all_cells(prior, law):
    """The normal law of all cells by its full covariance; two-way tables, so that cells depend on each other."""
    rng = np.random.default_rng(2)
    part = DOMAIN.project(DOMAIN.names[:3])
    whole = Prior(part, prior.codes[:, :3], prior.weights, 20_000)
    tables = tuple(
        NoisyTable(part.project(names), 10_000 * whole.marginal(names) + rng.normal(0, 60, (8, 8)), law, 2.0, None)
        for names in combinations(part.names, 2)
    )
    m = measure(whole, Release(part, tables, "replace-one", 10_000, "simulation"))
    found = spectrum(m)
    noise, covariance = np.eye(3 * 64) * law.variance, m.prior_covariance()
    strengths = np.array([20.0, 500.0])
    full = [
        multivariate_normal.logpdf(m.values, m.n * m.prior_chance, m.n**2 / strength * covariance + noise)
        for strength in strengths
    ]
    scale = found.ratios / strengths[:, None]
    ours = -0.5 * (np.log1p(scale) + found.departures**2 / (1 + scale)).sum(axis=1)
    assert ours[1] - ours[0] == pytest.approx(full[1] - full[0], abs=1e-6)
    # Directions are independent with unit noise: their tilts say so.
    tilts = found.tilts.toarray()
    np.testing.assert_allclose(tilts.T @ noise @ tilts, np.eye(len(scale[0])), atol=1e-9)
    np.testing.assert_allclose(m.n**2 * tilts.T @ covariance @ tilts, np.diag(found.ratios), atol=1e-6 * scale.max())


@pytest.mark.parametrize("smoothing", [1e-6, 500.0])
def test_pseudo_observations_are_unbiased_and_as_precise_as_they_say(prior, smoothing, monkeypatch):
    """At the exact counts: mean zero, and half the variance of Laplace noise where nothing else blurs them."""
    m, rng = simulate(prior, 1e9, Laplace(40.0), 1), np.random.default_rng(3)
    monkeypatch.setattr(strength, "posterior_variance", lambda *_: np.full(96, smoothing))
    draws = []
    for _ in range(400):
        noisy = replace(m, values=m.n * m.prior_chance + rng.laplace(0, 40.0, 96) + rng.normal(0, smoothing**0.5, 96))
        departure, root = strength._observed(noisy, prior.weights, 1.0)
        draws.append(departure * root)
    # 38,400 values know a variance to 1 %; a blurred observation is a little better than stated.
    assert np.mean(draws) == pytest.approx(0.0, abs=0.03)
    assert np.var(draws) == pytest.approx(1.0, abs=0.05) if smoothing < 1 else np.var(draws) < 1.2
    if smoothing < 1:
        assert root[0] ** -2 == pytest.approx(40.0**2, rel=0.01)  # a count is rounded


def test_the_likelihood_averages_over_normal_and_student_departures():
    departures, scale = np.array([0.3, 6.0]), np.array([[4.0, 9.0], [0.5, 0.2]])
    found = []
    for row in scale:
        kinds = [np.prod(norm.pdf(departures, scale=np.sqrt(1 + row)))]
        for freedom in (1.0, 2.0, 4.0):
            laws = [student(freedom, scale=np.sqrt(g)) for g in row]
            sums = [
                quad(lambda u, z=z, law=law: law.pdf(u) * norm.pdf(z - u), -60, 60)[0]
                for z, law in zip(departures, laws, strict=True)
            ]
            kinds.append(np.prod(sums))
        found.append(np.log(sum(kinds)))
    curves = []
    for row in scale:  # a bound of 1 makes a grid of one strength
        directions = Directions(row, departures, sparse.csc_array(np.eye(2)))
        curves.append(weigh(directions, 1.0).log_likelihood[0])
    # Sixteen points stand for the gamma law of the precision: within a few hundredths of a nat.
    assert curves[0] - curves[1] == pytest.approx(found[0] - found[1], abs=0.08)


def test_shares_and_variances_are_those_of_the_posterior_by_quadrature():
    """Normal and Cauchy-like departures of one direction at one strength, each as likely."""
    ratio, seen = 9.0, 4.0
    directions = Directions(np.array([ratio]), np.array([seen]), sparse.csc_array(np.eye(1)))
    belief = weigh(directions, 1.0, tails=(4.0,), same=0.0)

    def moment(power):
        def density(u):
            return u**power * (norm.pdf(u, scale=3.0) + student.pdf(u, 4.0, scale=3.0)) * norm.pdf(seen - u)

        return quad(density, -60, 60, points=[seen])[0]

    mean = moment(1) / moment(0)
    assert belief.share[0] * seen == pytest.approx(mean, rel=0.01)
    assert belief.variance[0] == pytest.approx(moment(2) / moment(0) - mean**2, rel=0.02)


def test_tables_beyond_a_dense_block_count_as_independent(prior, monkeypatch):
    m = simulate(prior, 300.0, Gaussian(20.0), 1)
    whole = spectrum(m)
    monkeypatch.setattr(strength, "_DENSE_CELLS", 40)
    blocks = spectrum(m)
    assert [m.cells.starts[[first, last]].tolist() for first, last in m.cells.blocks(40)] == [
        [0, 40],
        [40, 80],
        [80, 96],
    ]
    assert sum(blocks.ratios) == pytest.approx(sum(whole.ratios))
    monkeypatch.setattr(strength, "_DENSE_CELLS", 4)
    cells = spectrum(m)
    assert len(cells.ratios) == 96 and sum(cells.ratios) == pytest.approx(sum(whole.ratios))
    assert weighed_solution(m, 1e-2)[1].value == pytest.approx(300.0, rel=0.6)


@pytest.mark.parametrize("law", [Laplace(5.0), Gaussian(7.0)], ids=lambda law: law.name)
def test_small_noise_finds_the_strength_that_made_the_data(prior, law):
    found = [weighed_solution(simulate(prior, 300.0, law, seed), 1e-2)[1] for seed in range(20)]
    # 84 directions know a variance to sqrt(2/84) = .15, 20 repeats to .035, and the grid's step is .2 in logs.
    assert np.mean(np.log([s.most_likely for s in found])) == pytest.approx(np.log(300.0), abs=0.2)
    # Heavier tails explain normal departures now and then, with a scale that is up to half the standard deviation.
    assert all(150.0 < s.value < 1200.0 for s in found)


def test_noise_that_says_nothing_leaves_the_bound(prior):
    found = [weighed_solution(simulate(prior, 300.0, Laplace(1e5), seed), 1e-2)[1] for seed in range(20)]
    # Nothing is learnt: four fifths at the bound, the rest between 1 and the bound, in logs.
    assert all(s.value > s.bound**0.85 and s.moved == 0 for s in found)


def test_a_few_directions_far_out_move_the_prior_and_do_not_cost_it_its_strength(prior):
    """One of twelve attributes turned round: a normal law of departures would trust the other eleven no more."""
    m = simulate(prior, 3000.0, Gaussian(20.0), 1)
    values = m.values.copy()
    values[:8] = values[:8][::-1]
    shifted = replace(m, values=values)
    solution, chosen = weighed_solution(shifted, 1e-2)
    normal = scalar_strength(shifted)
    assert chosen.value > 1.5 * normal.value and chosen.moved >= 1
    # Half the noise's error or less: the turned attribute is followed, whatever the strength.
    assert np.abs(m.n * m.cells.predict(solution.weights)[:8] - values[:8]).max() < 3 * 20.0


def test_moving_the_prior_first_is_the_gaussian_answer_with_both_variances(prior, monkeypatch):
    """Linear theory: what the move leaves is shrunk as the strength says, in all by (e + gamma) / (1 + e + gamma)."""
    monkeypatch.setattr(strength, "_MOST_MOVED", 100)
    m = simulate(prior, 3000.0, Gaussian(400.0), 1)
    directions, value = spectrum(m), 2000.0
    belief = replace(weigh(directions, strength_bound(m)), share=np.full(len(directions.ratios), 0.2))
    fine = directions.ratios / value
    moved, count = recentred(m, directions, belief, value)
    extra = 0.25 - fine
    wanted = extra / (1 + fine + extra) * directions.departures
    still = np.abs(wanted) <= strength._STILL
    found = directions.tilts.T @ (m.n * (m.cells.predict(moved.weights) - m.prior_chance))
    assert count == np.sum(~still)
    # Shares move by a few percent here, and a tilt is linear up to that.
    np.testing.assert_allclose(found[~still], wanted[~still], rtol=0.2, atol=0.05)


def test_a_prior_that_holds_is_trusted_to_the_bound(prior):
    found = [weighed_solution(simulate(prior, 1e4 / 1.5, Laplace(5.0), seed), 1e-2)[1] for seed in range(10)]
    assert np.mean([s.value / s.bound for s in found]) > 0.9


def test_bound_is_what_sampling_error_allows(prior):
    m = simulate(prior, 300.0, Laplace(5.0), 1)
    assert strength_bound(m) == pytest.approx(1 / (1 / 10_000 + 1 / 20_000))
    m = measure(Prior(DOMAIN, prior.codes, prior.weights), Release(DOMAIN, m.tables, "replace-one", 10_000, "opendp"))
    assert strength_bound(m) == pytest.approx(10_000)


def test_posterior_variance_matches_gaussian_algebra_and_lies_below_the_prior(prior):
    m = simulate(prior, 300.0, Gaussian(20.0), 1)
    chance = m.cells.predict(prior.weights)
    before = m.n**2 / 300.0 * chance * (1 - chance)
    np.testing.assert_allclose(posterior_variance(m, 300.0), 1 / (1 / before + 1 / 400.0), rtol=1e-6)
    m = simulate(prior, 300.0, Laplace(14.0), 1)
    after = posterior_variance(m, 300.0)
    assert np.all(after < before)
    assert np.median(after) < 1.2 * 2 * 14.0**2
