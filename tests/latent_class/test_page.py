"""Prior and likelihood of a latent class fit, taken apart for power-scaling, are the model's own up to constants."""

import numpy as np
import pytest
import xarray as xr

from dpbayes.data import Domain, Marginal
from dpbayes.latent_class import build_model
from dpbayes.latent_class.page import _stated, latent_class_densities
from dpbayes.privacy import release_tables

N = 6


def release(*, levels=("x", "y", "z"), **settings):
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1), "c": levels})
    counts = np.random.default_rng(1).multinomial(500, np.full(domain.size, 1 / domain.size)).reshape(domain.shape)
    tables = [Marginal(domain, counts).project(names) for names in (("a", "b"), ("b", "c"))]
    return release_tables(tables, epsilon=1.0, rng=np.random.default_rng(2), **settings)


NOISY_N = {"adjacency": "add-remove", "total_share": 0.1}
BINARY = {"levels": ("x", "y")}
CASES = {
    "cells": (lambda: build_model(release(), n_classes=3, likelihood="cells"), {}),
    "tables": (lambda: build_model(release(), n_classes=3, likelihood="tables"), {}),
    "a population that varies": (lambda: build_model(release(), n_classes=3, overdispersion=True), {}),
    "impossible": (lambda: build_model(release(), n_classes=3, impossible=[{"a": 1, "c": "z"}]), {}),
    "noisy n": (lambda: build_model(release(**NOISY_N), n_classes=3), NOISY_N),
    "one class": (lambda: build_model(release(), n_classes=1), {}),
    "other priors": (lambda: build_model(release(), n_classes=3, **PRIORS["other priors"]), {}),
    "fixed concentration": (lambda: build_model(release(), n_classes=3, **PRIORS["fixed concentration"]), {}),
    "nothing free in the weights": (
        lambda: build_model(release(), n_classes=1, **PRIORS["nothing free in the weights"]),
        {},
    ),
}
PRIORS = {
    "other priors": {"concentration": [3, 2.0], "profiles": "dirichlet", "profile_prior": 0.7},
    "fixed concentration": {"concentration": 2.5, "spread": 1.25},
    "nothing free in the weights": {"concentration": 2.5},
}


def points_and_trace(model):
    """Return points of the sampler's coordinates, and the trace that a sampler which visited them would leave."""
    recorded = [*model.free_RVs, *model.deterministics]
    graphs = model.replace_rvs_by_values(recorded)
    function = model.compile_fn(graphs, inputs=model.value_vars, on_unused_input="ignore")
    rng = np.random.default_rng(3)
    start = model.initial_point()
    points = [{name: value + rng.normal(size=value.shape) for name, value in start.items()} for _ in range(N)]
    drawn = [function(point) for point in points]
    posterior = {}
    for place, variable in enumerate(recorded):
        values = np.array([one[place] for one in drawn])
        dims = model.named_vars_to_dims.get(variable.name) or [f"{variable.name}_{i}" for i in range(values.ndim - 1)]
        posterior[variable.name] = (("chain", "draw", *dims), values[None])
    lp = model.compile_logp()
    stats = {"lp": (("chain", "draw"), np.array([[lp(point) for point in points]]))}
    return points, xr.DataTree.from_dict({"posterior": xr.Dataset(posterior), "sample_stats": xr.Dataset(stats)})


@pytest.mark.parametrize("case", CASES)
def test_parts_and_likelihood_are_the_models_own_up_to_constants(case):
    build, settings = CASES[case]
    model = build()
    points, trace = points_and_trace(model)
    parts, likelihood = latent_class_densities(
        trace, release(**settings), **PRIORS.get(case, {"concentration": (40.0, 10.0)})
    )
    free = {variable.name: variable for variable in model.free_RVs}
    prior = {
        "class weights": [name for name in ("alpha", "stick") if name in free],
        "class profiles": [name for name in free if name in ("level_scores", "level_weights")],
    }
    if "n" in free:
        prior["number of records"] = ["n"]
    if "overdispersion" in free:
        prior["overdispersion"] = ["overdispersion"]
    prior = {part: names for part, names in prior.items() if names}
    assert parts.keys() == prior.keys()

    def exact(variables):
        logp = model.compile_logp(vars=variables, jacobian=False)
        return np.array([float(logp(point)) for point in points])

    for part, names in prior.items():
        own = exact([free[name] for name in names])
        np.testing.assert_allclose(np.diff(parts[part].values[0]), np.diff(own), rtol=1e-6, atol=1e-6)
    counts = ("count_deviations", "size_deviations", "level_deviations")
    rest = [variable for name, variable in free.items() if name in counts] + list(model.observed_RVs)
    # Differences of sums of terms of some thousands: round-off of 1e-9 of those.
    np.testing.assert_allclose(np.diff(likelihood.values[0]), np.diff(exact(rest)), rtol=1e-6, atol=1e-5)


def test_scaling_the_likelihood_with_its_latent_counts_is_scaling_it_without_them():
    """For normal laws: [N(y; m, s^2) N(m; x, t^2)]^a over m is N(y; x, s^2 + t^2)^a, up to a constant in x."""
    s, t, y, a = 3.0, 2.0, 1.5, 1.3
    x, m = np.linspace(-4, 5, 10)[:, None], np.linspace(-60, 60, 24_001)[None]
    scaled = np.exp(-0.5 * a * (((y - m) / s) ** 2 + ((m - x) / t) ** 2)).sum(axis=1)
    alone = -0.5 * a * (y - x[:, 0]) ** 2 / (s**2 + t**2)
    np.testing.assert_allclose(np.diff(np.log(scaled)), np.diff(alone), atol=1e-10)


@pytest.mark.parametrize(
    ("given", "alpha", "profiles"),
    [
        (
            {"concentration": (40.0, 10.0), "spread": 6.0},
            "~ gamma(40, 10)",
            "released share times exp(6 z), z ~ N(0, 1)",
        ),
        ({"concentration": 3, "spread": 1.0}, "= 3", "released share times exp(1 z), z ~ N(0, 1)"),
        (
            {"concentration": [3, 2], "profiles": "dirichlet", "profile_prior": 1.0},
            "~ gamma(3, 2)",
            "Dirichlet(1, ..., 1)",
        ),
    ],
)
def test_a_page_states_the_priors(given, alpha, profiles):
    assert _stated(**given) == (f"sticks ~ beta(1, α), α {alpha}", profiles)
