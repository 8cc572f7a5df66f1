"""Latent class: tables, gradients, synthetic records, beside what they could be made with."""

from itertools import combinations

import numpy as np
import polars as pl
import pytest
import xarray as xr

from dpbayes.data import Domain, datasets, marginals
from dpbayes.privacy import release_tables

ROWS = 1_000_000
LEVELS = {f"a{i}": tuple(range(4)) for i in range(6)}
PAIRS = list(combinations(LEVELS, 2))


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    return pl.DataFrame({name: rng.integers(0, 4, ROWS) for name in LEVELS})


def test_count_15_tables_of_a_million_records(benchmark, frame):
    benchmark.group = "15 two-way tables of 1e6 records"
    benchmark.pedantic(lambda: marginals(frame, PAIRS, domain=Domain.from_levels(LEVELS)), rounds=5)


def test_numpy_bincount_with_the_indices_ready(benchmark, frame):
    columns = {name: frame[name].to_numpy() for name in LEVELS}
    benchmark.group = "15 two-way tables of 1e6 records"
    benchmark.pedantic(lambda: [np.bincount(4 * columns[a] + columns[b], minlength=16) for a, b in PAIRS], rounds=5)


def test_pandas_crosstab(benchmark, frame):
    import pandas as pd

    table = pd.DataFrame(frame.to_dict(as_series=False))
    benchmark.group = "15 two-way tables of 1e6 records"
    benchmark.pedantic(lambda: [pd.crosstab(table[a], table[b]) for a, b in PAIRS], rounds=2)


@pytest.fixture(scope="module")
def release():
    return release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))


def time_gradient(benchmark, model):
    """Time a model's compiled log-density and gradient at its initial point."""
    import pytensor

    with pytensor.config.change_flags(mode="NUMBA", numba__fastmath=False):
        function = model.logp_dlogp_function(ravel_inputs=True)
        point = np.concatenate([np.ravel(value) for value in model.initial_point().values()])
        function.set_extra_values({})
        function(point)
        benchmark.pedantic(lambda: function(point), rounds=20, iterations=5, warmup_rounds=3)


@pytest.mark.parametrize(("likelihood", "n_classes"), [("cells", 4), ("cells", 8), ("cells", 16), ("tables", 8)])
def test_gradient(benchmark, release, likelihood, n_classes):
    from dpbayes.latent_class import build_model

    benchmark.group = "gradient, ACS tables"
    if likelihood == "cells":
        benchmark.extra_info.update(axis="classes k", size=n_classes)
    time_gradient(benchmark, build_model(release, n_classes=n_classes, likelihood=likelihood))


@pytest.mark.parametrize("attributes", [4, 8, 16])
@pytest.mark.parametrize("levels", [2, 6])
def test_gradient_by_tables(benchmark, attributes, levels):
    """Ten classes: linear in released cells, beside two products of matrices."""
    from dpbayes.data import Marginal
    from dpbayes.latent_class import build_model

    domain = Domain.from_levels({f"x{i}": tuple(range(levels)) for i in range(attributes)})
    counts = np.full((levels, levels), 20_000 // levels**2)
    tables = [Marginal(domain.project(pair), counts) for pair in combinations(domain.names, 2)]
    released = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(0))
    benchmark.group = f"gradient, ten classes, attributes of {levels} levels"
    benchmark.extra_info.update(axis="two-way tables", size=attributes * (attributes - 1) // 2)
    time_gradient(benchmark, build_model(released, n_classes=10, record_cells=False, likelihood="cells"))


def test_fit(benchmark, release):
    """A whole fit with the default settings, compiling included; the check's numbers go along with the time."""
    from dpbayes.inference import check_convergence, sample
    from dpbayes.latent_class import build_model, sampler_defaults

    model = build_model(release)
    settings = sampler_defaults() | {"progressbar": False, "predictive": False}
    benchmark.group = "a fit of the ten ACS tables, many chains"
    trace = benchmark.pedantic(lambda: sample(model, random_seed=1, **settings), rounds=1, warmup_rounds=0)
    verdict = check_convergence(trace)
    names = ("rhat", "ess_bulk", "ess_tail", "divergences")
    benchmark.extra_info.update({name: round(float(verdict.value(name)), 4) for name in names})
    assert verdict.passed


def trace_of(domain, n_classes, draws=20):
    """Make a posterior that names what synthesis reads, without sampling."""
    rng = np.random.default_rng(2)
    data = {"weights": (("chain", "draw", "class"), rng.dirichlet(np.ones(n_classes), (1, draws)))}
    for attribute in domain:
        values = rng.dirichlet(np.ones(attribute.size), (1, draws, n_classes))
        data[f"profile_{attribute.name}"] = (("chain", "draw", "class", attribute.name), values)
    coords = {attribute.name: list(attribute.levels) for attribute in domain}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(data, coords=coords)})


@pytest.mark.parametrize("rows", [10_000, 100_000, 1_000_000])
def test_synthesize(benchmark, rows):
    from dpbayes.latent_class import synthesize

    trace = trace_of(datasets.acs_tables()[0].domain, 8)
    benchmark.group = "one synthetic data set, two attributes"
    benchmark.extra_info.update(axis="synthetic records", size=rows)
    benchmark.pedantic(lambda: synthesize(trace, n_datasets=1, n_rows=rows, random_seed=1), rounds=5)
