"""What ArviZ users try on a model's trace works for every system: log-likelihoods, LOO, predictive plots, constants."""

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import dpbayes.latent_class as lc
from dpbayes import mvg, verifier
from dpbayes.bloom import BloomRelease
from dpbayes.bloom.model import build_model as build_bloom
from dpbayes.data import Domain, Marginal
from dpbayes.inference import read_trace, write_trace
from dpbayes.privacy import release_tables

DOMAIN = Domain.from_levels({"age": (0, 1), "sex": ("f", "m")})
COUNTS = [Marginal(DOMAIN, [[100, 200], [300, 400]])]


def mixture(likelihood=None, **budget):
    release = release_tables(COUNTS, rng=np.random.default_rng(1), **budget)
    return lc.build_model(release, n_classes=3, likelihood=likelihood)


def moments():
    rng = np.random.default_rng(2)
    query = mvg.MomentQuery(
        mvg.FeatureRanges(np.zeros(3), np.ones(3), "replace-one"), 500, features=("a", "b", "y"), intercept=3**0.5
    )
    noise = mvg.calibrate_moments(query, epsilon=5.0, delta=1e-6)
    release = mvg.release_moments(rng.random((3, 500)), noise, rng=rng)
    return mvg.build_moment_model(mvg.whiten_moments(release, features=["a", "b", "y"]))


def questions():
    counts, rng = verifier.PartitionCounts(20, 4, 1), np.random.default_rng(3)
    releases = [verifier.release_counts(counts, epsilon=1.0, rng=rng) for _ in range(3)]
    return verifier.build_model(releases, pooling="partial")


MODELS = {
    "cells": lambda: mixture("cells", epsilon=1.0),
    "tables": lambda: mixture("tables", epsilon=1.0),
    "normal noise": lambda: mixture(rho=0.5, noise="gaussian"),
    "moments": moments,
    "questions": questions,
    "filters": lambda: build_bloom(BloomRelease(np.array([700, 100, 120, 80]), 0.1, "simulation", 0.0)),
}


# The prior is a poor proposal, and a joint law has one log-likelihood: LOO warns of both, and is finite.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_what_arviz_offers_works_on_draws_of_the_model(name, tmp_path):
    model = MODELS[name]()
    # Draws of the prior have the names and shapes of a posterior; nothing is compiled for a sampler.
    prior = pm.sample_prior_predictive(100, model=model, random_seed=4)
    groups = {"posterior": "prior", "posterior_predictive": "prior_predictive"}
    trace = xr.DataTree.from_dict(
        {group: prior[groups.get(group, group)] for group in (*groups, "observed_data", "constant_data")}
    )
    with_pointwise = pm.compute_log_likelihood(trace, model=model, progressbar=False)
    for variable in model.observed_RVs:
        assert trace["posterior_predictive"][variable.name].dims[:2] == ("chain", "draw")
        assert variable.name in trace["observed_data"]
        assert np.isfinite(az.loo(with_pointwise, var_name=variable.name).elpd)
    assert trace["constant_data"].data_vars
    az.plot_ppc_dist(trace, backend="matplotlib")
    plt.close("all")
    with_pointwise["sample_stats"] = xr.DataTree()  # of the sampler, which drew nothing here
    assert "log_likelihood" in read_trace(write_trace(with_pointwise, tmp_path / "trace.nc"))
