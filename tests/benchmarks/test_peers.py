"""Tables that agree, and public records reweighted, beside mbi (private-pgm): the optional dependency group ``peers``.

`uv sync --group peers` installs it, with JAX; without it its benchmark is skipped. The work is the same, from ten noisy
two-way tables to one set of tables that agree; what comes of it is not: mbi fits a maximum-entropy model, a point
estimate; the latent class model here draws from a posterior, timed by its log-density and gradient, of which a fit
takes some tens of thousands. Public records are reweighted by both, from the same four noisy tables: dpbayes reads
from the release how far to trust them, mbi starts from them and fits the release in full (Liu et al. 2021, PMW-Pub).
"""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from dpbayes.data import datasets, marginals
from dpbayes.data.datasets import two_level_population
from dpbayes.ide import Prior, estimate
from dpbayes.privacy import release_tables

GROUP = "ten noisy tables of the census records"


REWEIGHTED = "public records reweighted to four noisy tables"


@pytest.fixture(scope="module")
def release():
    return release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))


def test_latent_class_posterior(benchmark, release):
    from dpbayes.inference import check_convergence, sample
    from dpbayes.latent_class import build_model, sampler_defaults

    model = build_model(release, n_classes=8)

    def fit():
        return sample(model, random_seed=1, progressbar=False, predictive=False, **sampler_defaults())

    benchmark.group = GROUP
    trace = benchmark.pedantic(fit, rounds=1)
    assert check_convergence(trace).value("rhat") < 1.05


def test_latent_class_thousand_gradients(benchmark, release):
    import pytensor

    from dpbayes.latent_class import build_model

    model = build_model(release, n_classes=8)
    with pytensor.config.change_flags(mode="NUMBA"):
        function = model.logp_dlogp_function(ravel_inputs=True)
        point = np.concatenate([np.ravel(value) for value in model.initial_point().values()])
        function.set_extra_values({})
        benchmark.group = GROUP
        benchmark.pedantic(lambda: [function(point) for _ in range(1000)], rounds=3, warmup_rounds=1)


def loaded_mbi():
    jax = pytest.importorskip("jax", reason="mbi is not installed; uv sync --group peers")
    # Double precision, as everything here; and no cache of compiled programs on disk, which mbi advises against.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    return pytest.importorskip("mbi", reason="mbi is not installed; uv sync --group peers")


def measured(mbi, release):
    return mbi.Domain(release.domain.names, release.domain.shape), [
        mbi.LinearMeasurement(table.counts.ravel().astype(float), table.domain.names, stddev=table.noise.variance**0.5)
        for table in release.tables
    ]


def test_mbi_mirror_descent(benchmark, release):
    mbi = loaded_mbi()
    domain, measurements = measured(mbi, release)
    first = release.tables[0]

    def fit():
        model = mbi.estimation.MirrorDescent().estimate(domain, measurements, known_total=float(release.n))
        # JAX returns before it has computed; reading a table waits for it.
        return np.asarray(model.project(first.domain.names).datavector()).reshape(first.domain.shape)

    benchmark.group = GROUP
    fitted = benchmark.pedantic(fit, rounds=2, warmup_rounds=1)
    # Ten tables that agree are near the noisy ones: the noise has a standard deviation of 28, and 1,000 is far off.
    assert np.abs(fitted - first.counts).max() < 1_000


@pytest.fixture(scope="module")
def public_records():
    """Public records, a release at epsilon 1, and the mean distance of two-way tables from the confidential ones."""
    population = two_level_population(n_units=1, groups_per_unit=1, group_size=10_000, seed=1)
    prior = Prior.from_frame(population.public, population.domain)
    truth = Prior.from_frame(population.private, population.domain)
    sets = [("age", "household"), ("tenure", "income"), ("work", "schooling"), ("sex", "car", "disability")]
    tables = marginals(population.private, sets, domain=population.domain)
    pairs = list(combinations(population.domain.names, 2))

    def error(found):
        return np.mean([0.5 * np.abs(found.marginal(pair) - truth.marginal(pair)).sum() for pair in pairs])

    return prior, release_tables(tables, epsilon=1.0, rng=np.random.default_rng(1)), error


def test_ide_estimate(benchmark, public_records):
    prior, data, error = public_records
    benchmark.group = REWEIGHTED
    found = benchmark.pedantic(lambda: estimate(prior, data), rounds=3)
    print(f"\nmean total variation distance of all pairs: prior {error(prior):.4f}, IDE {error(found):.4f}")
    assert error(found) < error(prior)


def test_mbi_reweighting(benchmark, public_records):
    mbi = loaded_mbi()
    optax = pytest.importorskip("optax", reason="it comes with mbi; uv sync --group peers")
    from mbi.extensions import ReweightedDatasetEstimator

    prior, data, error = public_records
    # A record for each row and each whole multiple of the rarest row's weight: mbi starts from equal weights.
    copies = np.rint(prior.weights / prior.weights[prior.weights > 0].min()).astype(int)
    domain, measurements = measured(mbi, data)
    records = {name: np.repeat(prior.codes[:, i], copies).astype(int) for i, name in enumerate(prior.domain.names)}
    estimator = ReweightedDatasetEstimator(mbi.Dataset(records, domain), optax.adam(0.01))
    for names in domain.attributes:
        np.testing.assert_allclose(
            estimator.seed_data.project([names]).datavector() / copies.sum(), prior.marginal([names])
        )

    def fit():
        found = estimator.estimate(domain, measurements, known_total=float(data.n))
        return np.asarray(found.weights)

    benchmark.group = REWEIGHTED
    weights = benchmark.pedantic(fit, rounds=2, warmup_rounds=1)
    rows = np.bincount(np.repeat(np.arange(copies.size), copies), weights / weights.sum(), copies.size)
    found = replace(prior, weights=rows)
    print(f"\nmean total variation distance of all pairs: mbi {error(found):.4f}")
    assert error(found) < error(prior)
