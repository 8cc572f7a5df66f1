"""Prior and likelihood of a latent class fit, taken apart for power-scaling, are the model's own up to constants."""

import numpy as np
import pytest
import xarray as xr

from dpbayes.data import Domain, Marginal
from dpbayes.latent_class import build_model
from dpbayes.privacy import release_tables
from dpbayes.report.latent_class import _stated
from dpbayes.report.latent_class_densities import latent_class_densities

N = 6


def release(*, levels=("x", "y", "z"), **settings):
    domain = Domain.from_levels({"a": (0, 1), "b": (0, 1), "c": levels})
    counts = np.random.default_rng(1).multinomial(500, np.full(domain.size, 1 / domain.size)).reshape(domain.shape)
    tables = [Marginal(domain, counts).project(names) for names in (("a", "b"), ("b", "c"))]
    return release_tables(tables, epsilon=1.0, rng=np.random.default_rng(2), **settings)


NOISY_N = {"adjacency": "add-remove", "total_share": 0.1}
BINARY = {"levels": ("x", "y")}
CASES = {
    "joint": (lambda: build_model(release(), n_classes=3), {}),
    "joint, impossible": (lambda: build_model(release(), n_classes=3, impossible=[{"a": 1, "c": "z"}]), {}),
    "joint, noisy n": (lambda: build_model(release(**NOISY_N), n_classes=3), NOISY_N),
    "pairs summed out": (lambda: build_model(release(**BINARY), n_classes=3, sum_out_pairs=True), BINARY),
    "composite": (lambda: build_model(release(), n_classes=3, likelihood="composite"), {}),
    "one class": (lambda: build_model(release(), n_classes=1), {}),
    "other priors": (lambda: build_model(release(), n_classes=3, **PRIORS["other priors"]), {}),
    "fixed concentration": (lambda: build_model(release(), n_classes=3, **PRIORS["fixed concentration"]), {}),
    "nothing free in the weights": (
        lambda: build_model(release(), n_classes=1, **PRIORS["nothing free in the weights"]),
        {},
    ),
}
PRIORS = {
    "other priors": {"concentration": [3, 2.0], "profile_prior": 0.7},
    "fixed concentration": {"concentration": 2.5, "profile_prior": 0.25},
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
    parts, likelihood = latent_class_densities(trace, release(**settings), **PRIORS.get(case, {}))
    free = {variable.name: variable for variable in model.free_RVs}
    prior = {
        "class weights": [name for name in ("alpha", "stick") if name in free],
        "class profiles": [name for name in free if name.startswith("profiles_of_")],
    }
    if "n" in free:
        prior["number of records"] = ["n"]
    prior = {part: names for part, names in prior.items() if names}
    assert parts.keys() == prior.keys()

    def exact(variables):
        logp = model.compile_logp(vars=variables, jacobian=False)
        return np.array([float(logp(point)) for point in points])

    for part, names in prior.items():
        own = exact([free[name] for name in names])
        np.testing.assert_allclose(np.diff(parts[part].values[0]), np.diff(own), rtol=1e-6, atol=1e-6)
    counts = ("effects", "deviates_of_sizes", "deviates_of_profiles")
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
    ("attributes", "concentration", "profile_prior", "alpha", "profiles"),
    [
        (3, (40.0, 10.0), None, "~ gamma(40, 10)", "Dirichlet(0.25, ..., 0.25)"),
        (9, (40.0, 10.0), None, "~ gamma(40, 10)", "Dirichlet(0.5, ..., 0.5)"),
        (9, 3, 1.0, "= 3", "Dirichlet(1, ..., 1)"),
    ],
)
def test_a_page_states_the_priors_that_hold_for_its_attributes(
    attributes, concentration, profile_prior, alpha, profiles
):
    domain = Domain.from_levels({f"x{i}": (0, 1) for i in range(attributes)})
    released = release_tables([Marginal(domain, np.ones(domain.shape, int))], epsilon=1.0, rng=np.random.default_rng(2))
    assert _stated(released, concentration, profile_prior) == (f"sticks ~ beta(1, α), α {alpha}", profiles)
