"""The closed forms that power-scaling reweights by are the models' own log-densities, up to constants."""

import numpy as np
import pymc as pm
import pytest
import xarray as xr

from dpbayes.runs.log_densities import logo_densities, pooled_densities, regression_densities

N = 5


def moment_model():
    from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments, whiten_moments
    from dpbayes.mvg.model import build_moment_model

    rng = np.random.default_rng(1)
    query = MomentQuery(FeatureRanges([0.0] * 4, [1.0] * 4, "replace-one"), n=500, intercept=1.0)
    release = release_moments(rng.random((4, 500)), calibrate_moments(query, epsilon=1.0, delta=1e-5), rng=rng)
    parts = {
        "coefficients": ["intercept_range", "coefficient_range"],
        "residual": ["residual_range"],
        "predictors": ["mean_range", "scatter_diagonal", "scatter_lower"],
    }
    return build_moment_model(whiten_moments(release)), parts, regression_densities


def pooled_model(with_failures):
    from dpbayes.verifier import PartitionCounts, build_model, release_counts

    counts = {"a": PartitionCounts(15, 5, 0), "b": PartitionCounts(8, 12, 0)}
    release = release_counts(counts, epsilon=1.0, with_failures=with_failures, rng=np.random.default_rng(2))
    kinds = ["", "_failed"] if with_failures else [""]
    parts = {"centre": [f"mu{kind}" for kind in kinds], "spread": [f"tau{kind}" for kind in kinds]}
    return build_model(release, pooling="partial"), parts, pooled_densities


def logo_model():
    from dpbayes.bloom.model import build_model
    from dpbayes.bloom.release import BloomRelease

    counts = np.array([700, 120, 110, 70])
    parts = {"logo shares": ["logo_probability"]}
    return build_model(BloomRelease(counts, 0.1, "simulation")), parts, lambda trace: logo_densities(trace, counts)


CASES = {
    "moments": moment_model,
    "three outcomes": lambda: pooled_model(True),
    "two outcomes": lambda: pooled_model(False),
    "logos": logo_model,
}


def unconstrained(model, values):
    """The point of the sampler's coordinates that stands for these values."""
    point = {}
    for rv in model.free_RVs:
        transform, value = model.rvs_to_transforms[rv], model.rvs_to_values[rv]
        moved = values[rv.name] if transform is None else transform.forward(values[rv.name], *rv.owner.inputs).eval()
        point[value.name] = np.asarray(moved)
    return point


@pytest.mark.parametrize("case", CASES)
def test_parts_and_likelihood_are_the_models_own_up_to_constants(case):
    model, parts, densities = CASES[case]()
    recorded = [variable.name for variable in (*model.free_RVs, *model.deterministics)]
    drawn = dict(zip(recorded, pm.draw([model[name] for name in recorded], draws=N, random_seed=3), strict=True))
    free = [variable.name for variable in model.free_RVs]
    points = [unconstrained(model, {name: drawn[name][d] for name in free}) for d in range(N)]

    def exact(variables=None, *, jacobian=False):
        logp = model.compile_logp(vars=variables, jacobian=jacobian)
        return np.array([logp(point) for point in points])

    stats = {"lp": (("chain", "draw"), exact(jacobian=True)[None])}
    posterior = {
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(values.ndim - 1))), values[None])
        for name, values in drawn.items()
    }
    groups = {"posterior": xr.Dataset(posterior), "sample_stats": xr.Dataset(stats)}
    found, likelihood = densities(xr.DataTree.from_dict(groups))
    assert found.keys() == parts.keys()
    for part, names in parts.items():
        np.testing.assert_allclose(np.diff(found[part].values[0]), np.diff(exact([model[n] for n in names])), atol=1e-6)
    observed = exact(list(model.observed_RVs))
    # Differences of sums of terms of some thousands: round-off of 1e-9 of those.
    np.testing.assert_allclose(np.diff(likelihood.values[0]), np.diff(observed), rtol=1e-6, atol=1e-6)
