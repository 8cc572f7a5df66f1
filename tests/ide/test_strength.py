from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import laplace, norm

from dpbayes.data import Domain
from dpbayes.ide import Prior, choose_strength, measure
from dpbayes.ide.strength import _log_normal_laplace, posterior_variance, strength_bound
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


@pytest.mark.parametrize("x", [0.0, 0.7, 3.0, 40.0])
@pytest.mark.parametrize(("stddev", "scale"), [(1.0, 1.0), (5.0, 0.3), (0.2, 3.0), (30.0, 0.05), (4.0, 20.0)])
def test_normal_laplace_density_by_quadrature(x, stddev, scale):
    ours = _log_normal_laplace(np.array([x]), np.array([stddev]), np.array([scale]))[0]
    where = sorted({0.0, x, *(u * scale for u in (-10, -1, 1, 10)), *(x + u * stddev for u in (-8, -1, 1, 8))})
    ends = [min(where) - 40 * scale, *where, max(where) + 40 * scale]
    pieces = [
        quad(lambda u: laplace.pdf(u, scale=scale) * norm.pdf(x - u, scale=stddev), a, b, epsabs=0)[0]
        for a, b in pairwise(ends)
    ]
    assert ours == pytest.approx(np.log(sum(pieces)), abs=1e-6)


def test_normal_laplace_density_survives_extremes():
    values = _log_normal_laplace(np.array([0.0, 1e6, 5.0]), np.array([1e3, 1.0, 1e-3]), np.array([1e-9, 1e3, 1e-9]))
    assert np.isfinite(values).all()


@pytest.mark.parametrize("law", [Laplace(5.0), Gaussian(7.0)], ids=lambda law: law.name)
def test_small_noise_finds_the_strength_that_made_the_data(prior, law):
    found = [choose_strength(simulate(prior, 300.0, law, seed)) for seed in range(20)]
    # 84 free cells know a variance to sqrt(2/84) = .15; 20 repeats to .035, so .15 is four standard errors.
    assert np.mean(np.log([s.most_likely for s in found])) == pytest.approx(np.log(300.0), abs=0.15)
    # The rule takes the upper end of a 95 % interval (composite: nominal). It may miss below in at most 4 of 20,
    # which at a true rate of 2.5 to 5 % happens with probability 3e-3 at most.
    assert sum(s.value < 300.0 for s in found) <= 4
    assert all(s.value < 600.0 for s in found)


def test_noise_that_says_nothing_leaves_the_bound(prior):
    found = [choose_strength(simulate(prior, 300.0, Laplace(1e5), seed)) for seed in range(20)]
    # The likelihood is flat there; each repeat fails to reach the bound with probability 2.5 % or less.
    assert sum(s.value < s.bound for s in found) <= 4


def test_a_prior_that_holds_is_trusted_to_the_bound(prior):
    found = [choose_strength(simulate(prior, 1e4 / 1.5, Laplace(5.0), seed)) for seed in range(10)]
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
