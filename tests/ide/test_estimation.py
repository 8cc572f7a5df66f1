"""Intervals of the noise-aware estimate: their algebra, and how often they cover over simulated populations."""

from itertools import combinations

import numpy as np
import pytest

from dpbayes.data import Domain, Marginal
from dpbayes.errors import InputError
from dpbayes.ide import Prior, estimate
from dpbayes.ide.noise_aware import measure
from dpbayes.privacy import Gaussian, NoisyTable, Release, release_tables

DOMAIN = Domain.from_levels({"a": (0, 1, 2), "b": (0, 1), "c": (0, 1, 2, 3), "d": (0, 1), "e": (0, 1, 2)})


def population(drift, seed, *, n=5000, m=3000):
    """Public records of one population, and all two-way tables of the records of another that drifted from it."""
    rng = np.random.default_rng(seed)
    base = rng.gamma(np.full(DOMAIN.size, 0.7))
    base /= base.sum()
    codes = rng.multinomial(m, base)
    moved = rng.gamma(np.maximum(drift * base, 1e-9)) if np.isfinite(drift) else base
    records = rng.multinomial(n, moved / moved.sum()).reshape(DOMAIN.shape)
    whole = Marginal(DOMAIN, records)
    prior = Prior.full(DOMAIN, codes.reshape(DOMAIN.shape))
    prior = Prior(DOMAIN, prior.codes[prior.weights > 0], prior.weights[prior.weights > 0], n_records=m)
    return prior, [whole.project(names) for names in combinations(DOMAIN.names, 2)], whole


@pytest.mark.parametrize("drift", [50.0, 500.0, np.inf], ids=["far", "near", "same population"])
@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_intervals_cover_over_simulated_populations(drift, epsilon):
    hits = []
    for seed in range(12):
        prior, tables, whole = population(drift, seed)
        release = release_tables(tables[::2], epsilon=epsilon, rng=np.random.default_rng(seed))
        found = estimate(prior, release, pool=False)
        for table in tables:
            low, high = found.interval(table.attributes)
            share = table.counts / whole.total
            hits.append(np.mean((low <= share + 1e-12) & (share <= high + 1e-12)))
    assert 0.93 <= np.mean(hits) <= 0.97


def test_moments_are_those_of_normal_theory_for_gaussian_noise():
    """A small support, dense: rows with covariance (diag q - q q') / strength, conditioned on noisy sums of them."""
    prior, tables, _ = population(200.0, 3)
    n, strength = tables[0].total, 150.0
    noisy = tuple(NoisyTable(t.domain, t.counts, Gaussian(40.0), 2.0, None) for t in tables[:3])
    release = Release(DOMAIN, noisy, "replace-one", n, "simulation")
    m = measure(prior, release)
    form = estimate(prior, release, strength=strength, pool=False)
    q, cells = form.weights, m.cells.matrix.toarray()
    before = (np.diag(q) - np.outer(q, q)) / strength
    gain = before @ (n * cells).T @ np.linalg.inv(n**2 * cells @ before @ cells.T + np.eye(len(cells)) * 1600.0)
    after = before - gain @ (n * cells) @ before
    index = prior.index(("c", "e"))
    sums = np.array([index == cell for cell in range(12)], dtype=float)
    mean, variance = form.moments(("c", "e"))
    np.testing.assert_allclose(mean.ravel(), sums @ q, atol=1e-12)
    np.testing.assert_allclose(variance.ravel(), np.diag(sums @ after @ sums.T), rtol=1e-6)


def test_an_estimate_without_posterior_says_so():
    prior, tables, _ = population(200.0, 3)
    release = release_tables(tables[:2], epsilon=1.0, rng=np.random.default_rng(1))
    with pytest.raises(InputError, match="an estimate by algorithm-1 has no posterior"):
        estimate(prior, release, noise_aware=False, random_state=1).interval(["a"])
    with pytest.raises(InputError, match="prob"):
        estimate(prior, release).interval(["a"], prob=95)
    with pytest.raises(InputError, match="prior must be a Prior"):
        estimate(tables, release)


def test_more_synthetic_records_than_memory_holds_are_refused_before_they_are_drawn():
    prior, tables, _ = population(200.0, 3)
    found = estimate(prior, release_tables(tables[:2], epsilon=1.0, rng=np.random.default_rng(1)))
    with pytest.raises(InputError, match=r"1,000,000,000,000,000 synthetic records of .* ask for fewer by n_rows"):
        found.sample(10**15, rng=np.random.default_rng(1))
