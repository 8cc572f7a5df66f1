"""How cost grows: with partitions M, bits m, filters k, tables, groups; `dpbayes bench` plots it."""

from itertools import combinations

import numpy as np
import pytest

from dpbayes.data import Domain, Marginal
from dpbayes.privacy import release_tables


def scale(benchmark, call, *, axis, size, group, rounds=5):
    benchmark.group = group
    benchmark.extra_info.update(axis=axis, size=size)
    benchmark.pedantic(call, rounds=rounds, warmup_rounds=1)


@pytest.mark.parametrize("m", [10, 25, 50, 100, 200])
def test_exact_posterior(benchmark, m):
    from dpbayes.verifier import PartitionCounts, posterior, release_counts

    counts = PartitionCounts(int(0.8 * m), m - int(0.8 * m), 0)
    release = release_counts(counts, epsilon=1.0, rng=np.random.default_rng(1))
    scale(benchmark, lambda: posterior(release), axis="partitions M", size=m, group="exact posterior of a claim")


@pytest.mark.parametrize("bits", [1_000, 10_000, 100_000, 1_000_000])
def test_certified_epsilon_by_bits(benchmark, bits):
    from dpbayes.bloom import bloom_epsilon

    def call():
        return bloom_epsilon(flip_prob=0.2, delta=1e-3, n_filters=3, n_bits=bits)

    scale(benchmark, call, axis="bits m", size=bits, group="certified epsilon, three filters", rounds=2)


@pytest.mark.parametrize("k", [1, 2, 4, 6, 8])
def test_certified_epsilon_by_filters(benchmark, k):
    from dpbayes.bloom import bloom_epsilon

    def call():
        return bloom_epsilon(flip_prob=0.2, delta=1e-3, n_filters=k, n_bits=10_000)

    scale(benchmark, call, axis="filters k", size=k, group="certified epsilon, 10,000 bits", rounds=2)


@pytest.mark.parametrize("attributes", [3, 5, 8, 12])
def test_release_of_tables(benchmark, attributes):
    names = [f"a{i}" for i in range(attributes)]
    tables = [
        Marginal(Domain.from_levels({a: range(5), b: range(5)}), np.full((5, 5), 400))
        for a, b in combinations(names, 2)
    ]

    def call():
        return release_tables(tables, epsilon=1.0, rng=np.random.default_rng(1))

    scale(benchmark, call, axis="tables", size=len(tables), group="simulated release of 25-cell tables")


@pytest.mark.parametrize("groups", [2, 4, 8, 16])
def test_prior_aware_estimate_of_groups(benchmark, groups):
    from dpbayes.ide import Prior, estimate

    rng = np.random.default_rng(1)
    domain = Domain.from_levels({"a": range(6), "b": range(6), "c": range(4)})
    prior = Prior.full(domain)
    releases = []
    for _ in range(groups):
        full = Marginal(domain, rng.multinomial(5_000, rng.dirichlet(np.ones(domain.size))).reshape(domain.shape))
        tables = [full.project(pair) for pair in (("a", "b"), ("b", "c"))]
        releases.append(release_tables(tables, epsilon=1.0, rng=rng))

    def call():
        return [estimate(prior, release) for release in releases]

    scale(benchmark, call, axis="groups", size=groups, group="noise-aware estimates, 144 cells", rounds=2)
