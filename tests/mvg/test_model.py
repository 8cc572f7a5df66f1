"""The regression model against its own law, written out independently, and calibrated by simulation."""

import numpy as np
import pytest
from mvg_simulate import draw_parameters, moment_data, records, sampled
from scipy import stats

from dpbayes.errors import InputError
from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
from dpbayes.mvg.model import RegressionPriors, build_moment_model, sampler_defaults

PRIORS = RegressionPriors()
SHAPE = np.array([[1.0, 0.6, 0.0], [0.6, 30.0, 0.0], [0.0, 0.0, 300.0]])


def _data(n=300, seed=4, **changes):
    rng = np.random.default_rng(seed)
    values = records(rng, draw_parameters(rng, PRIORS), n, exact_moments=False)
    return moment_data(rng, values, **({"stddev": 0.05, "shape": SHAPE} | changes))


def _point(seed):
    rng = np.random.default_rng(seed)
    return {
        "intercept_range": 0.3 * rng.standard_normal(),
        "coefficient_range": 0.5 * rng.standard_normal(2),
        "residual_range": rng.uniform(0.1, 0.5),
        "mean_range": 0.3 * rng.standard_normal(2),
        "scatter_diagonal": rng.uniform(1.0, 6.0, 2),
        "scatter_lower": rng.standard_normal(1),
    }


def _likelihood(model, point):
    """Log-likelihood of the observed variables at a point given in natural units."""
    observed = model.compile_logp(vars=model.observed_RVs, sum=True, jacobian=False)
    return float(observed(sampled(model, point)))


def _range_quantities(point):
    factor = np.diag(np.sqrt(point["scatter_diagonal"]))
    factor[1, 0] = point["scatter_lower"][0]
    return factor @ factor.T * PRIORS.spread**2 / 5.0, point["mean_range"]


def test_moment_likelihood_is_the_stated_law():
    data = _data(constant=1.3)
    model = build_moment_model(data)
    to_white = data.coordinates.to_white
    for seed in (1, 2, 3):
        point = _point(seed)
        covariance, mean = _range_quantities(point)
        # In range units with the constant 1, then mapped: moments of (constant, x'', y'').
        second = np.block([[np.ones((1, 1)), mean[None, :]], [mean[:, None], covariance + np.outer(mean, mean)]])
        coefficients = np.append(point["intercept_range"], point["coefficient_range"])
        change = np.eye(3) * data.constant
        change[1:, 1:] = to_white[:2, :2]
        gram = change @ second @ change.T
        b = to_white[2, 2] * np.linalg.solve(change.T, coefficients)
        tau2 = (to_white[2, 2] * point["residual_range"]) ** 2
        expected = 0.0
        for i in range(3):
            for j in range(max(i, 1), 3):
                scale = data.stddev if i == j else data.stddev / np.sqrt(2)
                expected += stats.norm.logpdf(data.moments[i, j], gram[i, j], scale)
        law = np.zeros((4, 4))
        law[:3, :3] = tau2 / data.n * gram
        law[:3, 3] = law[3, :3] = 2 * tau2 / data.n * gram @ b
        law[3, 3] = (4 * tau2 * b @ gram @ b + 2 * tau2**2) / data.n
        law += np.diag([data.stddev**2 / 2] * 3 + [data.stddev**2])
        centre = np.append(gram @ b, b @ gram @ b + tau2)
        expected += stats.multivariate_normal.logpdf(data.moments[:, 3], centre, law)
        assert _likelihood(model, point) == pytest.approx(expected, rel=1e-8)


def test_response_moments_have_the_stated_mean_and_covariance():
    # From records: y = u'b + noise with u held fixed.
    rng, n, tau = np.random.default_rng(6), 40, 0.7
    u = np.vstack([np.ones(n), rng.uniform(-1, 1, (2, n))])
    b = np.array([0.5, -1.0, 2.0])
    gram = u @ u.T / n
    draws = 40_000
    y = b @ u + tau * rng.standard_normal((draws, n))
    sample = np.column_stack([y @ u.T / n, np.mean(y**2, axis=1)])
    law = np.zeros((4, 4))
    law[:3, :3] = tau**2 / n * gram
    law[:3, 3] = law[3, :3] = 2 * tau**2 / n * gram @ b
    law[3, 3] = (4 * tau**2 * b @ gram @ b + 2 * tau**4) / n
    centre = np.append(gram @ b, b @ gram @ b + tau**2)
    # Standard errors of means and covariances; 4 + 10 numbers at 4.5: false alarm 1e-4.
    scale = np.sqrt(np.diag(law))
    assert np.all(np.abs(sample.mean(axis=0) - centre) < 4.5 * scale / np.sqrt(draws))
    error = np.sqrt((np.outer(np.diag(law), np.diag(law)) + law**2) / draws)
    assert np.all(np.abs(np.cov(sample.T) - law) < 4.5 * 1.05 * error)


def test_one_predictor_needs_no_lower_factor():
    from dpbayes.mvg import FeatureRanges, MomentQuery, calibrate_moments, release_moments
    from dpbayes.mvg.regression import whiten_moments

    query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"), n=60, intercept=1.0)
    noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    rng = np.random.default_rng(1)
    model = build_moment_model(whiten_moments(release_moments(rng.random((2, 60)), noise, rng=rng)))
    assert "scatter_lower" not in model.named_vars
    assert np.isfinite(model.compile_logp()(model.initial_point()))


@pytest.mark.parametrize("change", [{"coefficient": 0.0}, {"spread": -1.0}, {"residual": np.inf}])
def test_bad_priors(change):
    with pytest.raises(InputError, match="must be positive and finite"):
        RegressionPriors(**change)


def test_a_release_as_it_was_read_is_refused_with_the_call_that_it_lacks():
    query = MomentQuery(FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one"), n=500, intercept=1.0)
    noise = calibrate_moments(query, epsilon=1.0, delta=1e-5)
    rng = np.random.default_rng(1)
    with pytest.raises(InputError, match=r"got MomentRelease; use mvg\.whiten_moments"):
        build_moment_model(release_moments(rng.random((2, 500)), noise, rng=rng))


RANKED = ("intercept_range", "coefficient_range", "residual_range")
N = 400


def simulate_study(seed):
    """True values from the prior and a release of records drawn with them: the data, not the model's formulas."""
    rng = np.random.default_rng(seed)
    parameters = draw_parameters(rng, PRIORS)
    data = moment_data(rng, records(rng, parameters, N, exact_moments=True), stddev=0.05, shape=SHAPE)
    upper = tuple(index[1:] for index in np.triu_indices(3))
    truth = {name: parameters[name] for name in RANKED}
    return truth, {"gram_values": data.moments[upper], "response_values": data.moments[:, -1]}


@pytest.mark.slow
def test_posterior_is_calibrated():
    from dpbayes.inference.sampling import NutsSettings
    from dpbayes.inference.sbc import coverage, simulate_and_rank, uniformity

    study = simulate_and_rank(
        lambda: build_moment_model(_data(n=N)),
        n_simulations=100,
        random_seed=20261120,
        var_names=RANKED,
        simulate=simulate_study,
        settings=NutsSettings(**sampler_defaults() | {"draws": 300, "tune": 400, "chains": 2}),
        progressbar=False,
    )
    pvalues = uniformity(study)
    # Intercept, two coefficients and the residual: alpha 1 % over four; the seed is fixed.
    assert len(pvalues) == 4
    assert min(pvalues.values()) > 0.0025, pvalues
    # 90 % intervals over 100 studies: standard error 3 %, four of them at 4 standard errors, false alarm 2e-4.
    assert all(abs(share - 0.9) < 0.12 for share in coverage(study, prob=0.9).values())
