"""The posterior without a compiled model against the PyMC model's density, importance sampling, NUTS, and truth."""

import json

import numpy as np
import pytest
import xarray as xr
from mvg_simulate import HALF, draw_parameters, moment_data, records
from mvg_simulate import sampled as coordinates_of

from dpbayes.errors import InputError
from dpbayes.inference import check_convergence
from dpbayes.inference.schema import check
from dpbayes.mvg import FeatureRanges, MomentQuery, moment_posterior
from dpbayes.mvg.moments import MomentRelease, SymmetricGaussian
from dpbayes.mvg.posterior import Problem, _gram_draws, coefficient_variances, log_densities
from dpbayes.mvg.regression import Coordinates, RegressionPriors, WhitenedMoments, whiten_moments

PRIORS = RegressionPriors()


def _data(seed, *, n=400, stddev=0.05, shape=None, constant=1.3):
    rng = np.random.default_rng(seed)
    values = records(rng, draw_parameters(rng, PRIORS), n, exact_moments=False)
    return moment_data(rng, values, stddev=stddev, shape=shape, constant=constant)


def _mixing_shape():
    shape = np.diag(HALF**2)
    shape[0, 1] = shape[1, 0] = 0.6 * HALF[0] * HALF[1]  # a shape that mixes the predictors
    return shape


def _points(problem, count, seed):
    rng = np.random.default_rng(seed)
    x = problem.start() + 0.2 * rng.standard_normal((count, problem.dimension))
    return x, 0.5 * rng.standard_normal((count, problem.count + 1)), rng.uniform(0.05, 0.5, count)


@pytest.mark.parametrize("mixing", [False, True])
def test_target_is_the_density_of_the_pymc_model(mixing):
    from dpbayes.mvg import build_moment_model

    data = _data(1, shape=_mixing_shape() if mixing else None)
    problem, model = Problem(data, PRIORS), build_moment_model(data)
    compiled = model.compile_logp(jacobian=False)
    x, beta, tau = _points(problem, 5, 2)
    # The density of the chain is in logarithms of the factor's diagonal, the model's in its squares: d(F^2) / dlog F.
    jacobian = np.log(2.0) + 2.0 * x[:, 2:4]
    theirs = []
    for i in range(5):
        point = {
            "intercept_range": beta[i, 0],
            "coefficient_range": beta[i, 1:],
            "residual_range": tau[i],
            "mean_range": x[i, :2],
            "scatter_diagonal": np.exp(2.0 * x[i, 2:4]),
            "scatter_lower": x[i, 4:],
        }
        theirs.append(float(compiled(coordinates_of(model, point))))
    first, second = problem.log_likelihood(problem.grams(x)[0], beta, tau)
    prior = -np.sum(beta**2, axis=1) / (2.0 * PRIORS.coefficient**2) - tau**2 / (2.0 * PRIORS.residual**2)
    ours = problem.gram_density(x)[0] - jacobian.sum(axis=1) + first + second + prior
    np.testing.assert_allclose(ours - ours[0], np.array(theirs) - theirs[0], rtol=1e-9, atol=1e-9)


def test_gradient_is_that_of_the_density():
    problem = Problem(_data(3, shape=_mixing_shape()), PRIORS)
    x = _points(problem, 3, 4)[0]
    slope = problem.gram_density(x)[1]
    for j in range(problem.dimension):
        step = np.zeros(problem.dimension)
        step[j] = 1e-6
        difference = problem.gram_density(x + step)[0] - problem.gram_density(x - step)[0]
        np.testing.assert_allclose(slope[:, j], difference / 2e-6, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("stddev", [0.05, 0.5])
def test_means_are_those_of_importance_sampling_from_the_prior(stddev):
    rng = np.random.default_rng(17)
    ranges = FeatureRanges([0.0, 10.0], [2.0, 50.0], "replace-one")
    half, n = ranges.widths / 2.0, 300
    x = rng.uniform(-0.8, 0.6, n)
    z = np.vstack([np.full(n, 1.2), x, 0.1 + 0.5 * x + 0.2 * rng.standard_normal(n)])
    noise = SymmetricGaussian(MomentQuery(ranges, n, intercept=1.2), stddev, np.diag(half**2))
    error = stddev * rng.standard_normal((3, 3))
    value = z @ z.T / n + (error + error.T) / 2.0
    value[0, 0] = 1.2**2
    units = np.r_[1.0, half]
    data = whiten_moments(MomentRelease(value * np.outer(units, units), noise, "simulation"))
    trace = moment_posterior(data, draws=1000, random_seed=3)
    assert check_convergence(trace).passed
    problem, size = Problem(data, PRIORS), 600_000
    diagonal = np.log(rng.chisquare(4.0, size)) / 2.0
    places = np.column_stack([PRIORS.mean * rng.standard_normal(size), diagonal])
    beta, tau = rng.standard_normal((size, 2)), np.abs(PRIORS.residual * rng.standard_normal(size))
    gram = problem.grams(places)[0]
    misfit = (gram - problem.gram) ** 2
    log_weight = -(misfit[:, 0, 1] + misfit[:, 1, 1] / 2.0) / stddev**2
    log_weight += sum(problem.log_likelihood(gram, beta, tau))
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    effective = 1.0 / np.sum(weight**2)
    assert effective > 150
    posterior = trace["posterior"]
    for name, exact in (
        ("intercept_range", beta[:, 0]),
        ("coefficient_range", beta[:, 1]),
        ("residual_range", tau),
        ("mean_range", places[:, 0]),
    ):
        draws = posterior[name].to_numpy().ravel()
        centre = float(weight @ exact)
        sd = np.sqrt(float(weight @ (exact - centre) ** 2))
        # 8 comparisons of two estimates, of 4 standard errors each: a false alarm in 5e-4 runs.
        allowed = 4.0 * sd * np.sqrt(1.0 / effective + 1.0 / 2000.0)
        assert draws.mean() == pytest.approx(centre, abs=allowed), name
        assert np.log(draws.std() / sd) == pytest.approx(0.0, abs=4.0 * np.sqrt(1.0 / effective + 1.0 / 2000.0)), name


def test_trace_keeps_the_contract_and_repeats():
    data = _data(5)
    trace, again = (moment_posterior(data, draws=300, random_seed=8) for _ in range(2))
    check(trace)
    assert check_convergence(trace, ess_min=200).passed
    assert trace["posterior"].to_dataset().equals(again["posterior"].to_dataset())
    assert json.loads(trace.attrs["convergence_variables"]) == ["intercept", "coefficient", "residual_stddev"]
    assert (
        not trace["posterior"]
        .to_dataset()
        .equals(moment_posterior(data, draws=300, random_seed=9)["posterior"].to_dataset())
    )


@pytest.mark.parametrize(
    ("n", "stddev"), [(60, 3.0), (400, 0.3), (20_000, 0.002), pytest.param(1_000_000, 1e-5, marks=pytest.mark.slow)]
)
def test_converges_whether_noise_or_sampling_decides(n, stddev):
    assert check_convergence(moment_posterior(_data(6, n=n, stddev=stddev), draws=1000, random_seed=1)).passed


def test_six_predictors_converge():
    rng = np.random.default_rng(12)
    ranges, n = FeatureRanges(-np.ones(7), np.ones(7), "replace-one"), 2000
    noise = SymmetricGaussian(MomentQuery(ranges, n, intercept=2.5), 0.05, np.eye(7))
    x = rng.uniform(-0.7, 0.7, (6, n))
    z = np.vstack([np.full((1, n), 2.5), x, 0.3 * x.sum(axis=0) + 0.2 * rng.standard_normal(n)])
    error = 0.05 * rng.standard_normal((8, 8))
    value = z @ z.T / n + (error + error.T) / 2.0
    value[0, 0] = 2.5**2
    trace = moment_posterior(whiten_moments(MomentRelease(value, noise, "simulation")), random_seed=2)
    assert check_convergence(trace).passed


def test_parts_and_likelihood_are_the_models_own_up_to_constants():
    import pymc as pm

    from dpbayes.mvg import build_moment_model

    data = _data(8, shape=_mixing_shape())
    model = build_moment_model(data)
    names = {
        "coefficients": ["intercept_range", "coefficient_range"],
        "residual": ["residual_range"],
        "predictors": ["mean_range", "scatter_diagonal", "scatter_lower"],
    }
    free = [variable.name for variable in model.free_RVs]
    drawn = dict(zip(free, pm.draw([model[name] for name in free], draws=5, random_seed=3), strict=True))
    points = [coordinates_of(model, {name: drawn[name][d] for name in free}) for d in range(5)]

    def exact(variables):
        logp = model.compile_logp(vars=[model[name] for name in variables], jacobian=False)
        return np.array([logp(point) for point in points])

    posterior = {
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(values.ndim - 1))), values[None])
        for name, values in (drawn | {"intercept": drawn["intercept_range"]}).items()
    }
    found, likelihood = log_densities(xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)}), data)
    for part, variables in names.items():
        np.testing.assert_allclose(np.diff(found[part].values[0]), np.diff(exact(variables)), atol=1e-6)
    observed = exact(["released_gram", "released_response"])
    np.testing.assert_allclose(np.diff(likelihood.values[0]), np.diff(observed), rtol=1e-6, atol=1e-6)


def coefficient_trace(gram, tau, draws, coordinates, priors):
    """A trace of known predictor moments and residual, with these draws of (intercept, slopes) in range units."""
    size = len(gram) - 1
    mean = gram[0, 1:]
    factor = np.linalg.cholesky(gram[1:, 1:] - np.outer(mean, mean)) * np.sqrt(size + 3.0) / priors.spread
    original = coordinates.original(draws)
    values = {
        "mean_range": np.broadcast_to(mean, (len(draws), size)),
        "scatter_diagonal": np.broadcast_to(np.diag(factor) ** 2, (len(draws), size)),
        "scatter_lower": np.broadcast_to(factor[np.tril_indices(size, -1)], (len(draws), size * (size - 1) // 2)),
        "residual_range": np.full(len(draws), tau),
        "intercept_range": draws[:, 0],
        "coefficient_range": draws[:, 1:],
        "intercept": original[:, 0],
        "coefficient": original[:, 1:],
    }
    posterior = {
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(one.ndim - 1))), one[None])
        for name, one in values.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(posterior)})


@pytest.mark.parametrize("noise_sd", [0.0, 0.003, 0.05])
def test_the_split_of_coefficients_is_that_of_moments_drawn_beside_them(noise_sd):
    """With G and tau known everything is normal: g given coefficients and release is drawn, and what it explains."""
    rng, n, tau, priors = np.random.default_rng(7), 1000, 0.3, RegressionPriors()
    coordinates = Coordinates(("x", "z", "y"), np.array([3.0, -1.0, 50.0]), np.array([2.0, 0.5, 20.0]), np.eye(3))
    gram = np.array([[1.0, 0.2, -0.1], [0.2, 0.3, 0.05], [-0.1, 0.05, 0.4]])
    sampling, noise = tau**2 * gram / n, max(noise_sd, 1e-9) ** 2 * np.eye(3)
    prior, released = np.eye(3) / priors.coefficient**2, gram @ [0.1, 0.4, -0.3] + 0.01
    seen = gram @ np.linalg.inv(sampling + noise)
    covariance = np.linalg.inv(seen @ gram + prior)
    draws = rng.multivariate_normal(covariance @ seen @ released, covariance, size=40_000)
    # The confidential g = (1/n) sum u y of each draw, given it and the release; then E(coefficients | g).
    given = np.linalg.inv(np.linalg.inv(sampling) + np.linalg.inv(noise))
    centre = (draws @ gram @ np.linalg.inv(sampling) + np.linalg.inv(noise) @ released) @ given
    moments = centre + rng.multivariate_normal(np.zeros(3), given, size=len(draws))
    expected = moments @ np.linalg.inv(n * gram / tau**2 + prior) * n / tau**2
    data = WhitenedMoments(np.eye(4), 1.0, n, 1.0, coordinates)
    ours = coefficient_variances(coefficient_trace(gram, tau, draws, coordinates, priors), data)
    explained, left = (coordinates.original(rows) for rows in (expected, draws - expected))
    # A variance of 40,000 draws has a standard error of 0.7 % of itself; five of them, of the total.
    total = sum(ours)
    assert np.all(np.abs(ours[0] - explained.var(axis=0)) < 0.036 * total)
    assert np.all(np.abs(ours[1] - left.var(axis=0)) < 0.036 * total)


def test_what_is_no_whitened_release_is_refused():
    with pytest.raises(InputError, match="use mvg"):
        moment_posterior(np.eye(3))


@pytest.mark.parametrize(("n", "stddev"), [(400, 0.1), (400, 0.5), (20_000, 0.003)])
def test_no_walker_stands_still(n, stddev):
    problem = Problem(_data(9, n=n, stddev=stddev, shape=_mixing_shape()), RegressionPriors())
    kept = _gram_draws(problem, np.random.default_rng(1), 50)
    assert np.any(np.diff(kept, axis=0) != 0.0, axis=-1).mean(axis=0).min() > 1.0 / 3.0


@pytest.mark.slow
@pytest.mark.parametrize(("n", "stddev"), [(400, 0.1), (20_000, 0.003)])
def test_draws_are_those_of_nuts(n, stddev):
    from dpbayes.inference import sample
    from dpbayes.mvg import build_moment_model
    from dpbayes.mvg.model import sampler_defaults

    data = _data(9, n=n, stddev=stddev, shape=_mixing_shape())
    ours = moment_posterior(data, draws=2000, random_seed=1)
    theirs = sample(build_moment_model(data), **sampler_defaults() | {"draws": 2000}, random_seed=2, progressbar=False)
    assert check_convergence(ours).passed and check_convergence(theirs).passed
    for name in ("intercept", "coefficient", "residual_stddev", "mean_range", "scatter_diagonal"):
        a, b = (np.asarray(t["posterior"][name]).reshape(8000, -1) for t in (ours, theirs))
        # Effective sizes of at least 1,500 each; 10 quantities and two cases at 4.5 standard errors: below 3e-4.
        limit = 4.5 * np.sqrt(2.0 / 1500.0)
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) < limit * b.std(axis=0)), name
        assert np.all(np.abs(np.log(a.std(axis=0) / b.std(axis=0))) < limit), name


@pytest.mark.slow
@pytest.mark.parametrize("stddev", [0.02, 0.2])
def test_intervals_cover_in_200_simulated_data_sets(stddev):
    covered = []
    for seed in range(200):
        rng = np.random.default_rng([seed, int(1000 * stddev)])
        truth = draw_parameters(rng, PRIORS)
        data = moment_data(rng, records(rng, truth, 400, exact_moments=True), stddev=stddev)
        posterior = moment_posterior(data, draws=250, random_seed=seed)["posterior"]
        quantities = [("intercept_range", truth["intercept_range"]), ("residual_range", truth["residual_range"])]
        draws = [posterior[name].to_numpy().ravel() for name, _ in quantities]
        draws += list(posterior["coefficient_range"].to_numpy().reshape(-1, 2).T)
        true = [value for _, value in quantities] + list(truth["coefficient_range"])
        covered.append([np.quantile(d, 0.025) <= v <= np.quantile(d, 0.975) for d, v in zip(draws, true, strict=True)])
    rates = np.mean(covered, axis=0)
    print(f"\nstddev {stddev}: 95 % intervals cover {rates.round(3)}, together {np.mean(covered):.4f}")
    # Exact 95 % intervals of four quantities, correlated at most fully: the mean of 800 answers has a standard error of
    # at most .0154 (200 independent studies) and .0077 if uncorrelated. [.93, .97] alone alarms falsely in at most 19 %
    # of runs; the bounds on each quantity are at 3.6 standard errors, 3e-4 each.
    assert 0.93 <= np.mean(covered) <= 0.97
    assert np.all(rates >= 0.95 - 3.6 * 0.0154)
