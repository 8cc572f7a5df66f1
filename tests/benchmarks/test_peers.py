"""Tables that agree, beside mbi (private-pgm): the optional dependency group ``peers``.

`uv sync --group peers` installs it, with JAX; without it its benchmark is skipped. The work is the same, from ten noisy
two-way tables to one set of tables that agree; what comes of it is not: mbi fits a maximum-entropy model, a point
estimate; the latent class model here draws from a posterior, timed by its log-density and gradient, of which a fit
takes some tens of thousands.
"""

import numpy as np
import pytest

from dpbayes.data import datasets
from dpbayes.privacy import release_tables

GROUP = "ten noisy tables of the census records"


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


def test_mbi_mirror_descent(benchmark, release):
    jax = pytest.importorskip("jax", reason="mbi is not installed; uv sync --group peers")
    # Double precision, as everything here; and no cache of compiled programs on disk, which mbi advises against.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    mbi = pytest.importorskip("mbi", reason="mbi is not installed; uv sync --group peers")
    domain = mbi.Domain(release.domain.names, release.domain.shape)
    measurements = [
        mbi.LinearMeasurement(table.counts.ravel().astype(float), table.domain.names, stddev=table.noise.variance**0.5)
        for table in release.tables
    ]

    first = release.tables[0]

    def fit():
        model = mbi.estimation.MirrorDescent().estimate(domain, measurements, known_total=float(release.n))
        # JAX returns before it has computed; reading a table waits for it.
        return np.asarray(model.project(first.domain.names).datavector()).reshape(first.domain.shape)

    benchmark.group = GROUP
    fitted = benchmark.pedantic(fit, rounds=2, warmup_rounds=1)
    # Ten tables that agree are near the noisy ones: the noise has a standard deviation of 28, and 1,000 is far off.
    assert np.abs(fitted - first.counts).max() < 1_000
