"""Distributions of released numbers against sums in high precision, and inside models as PyMC's own."""

import math
import runpy
from pathlib import Path

import arviz as az
import mpmath as mp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from scipy import stats

from dpbayes.distributions import DiscreteGaussian, DiscreteLaplace, Released, TwoSidedGeometric
from dpbayes.errors import InputError
from dpbayes.inference import simulate_and_rank, uniformity
from dpbayes.inference.sampling import NutsSettings
from dpbayes.privacy import DiscreteGaussian as DiscreteGaussianNoise
from dpbayes.privacy import Gaussian, Laplace
from dpbayes.privacy import TwoSidedGeometric as Geometric

MODE = pytensor.compile.Mode(linker="py", optimizer="fast_compile")
LAWS = [Geometric, Laplace, DiscreteGaussianNoise, Gaussian]
BOUNDS = [{"lower": 90}, {"upper": 85}, {"lower": 88, "upper": 93}]


def evaluated(*outputs):
    return [np.asarray(each) for each in pytensor.function([], list(outputs), mode=MODE)()]


# --- log-probabilities over twelve orders of magnitude ---------------------------------------------------------------


def exact_logp(kind, x, mu, width):
    """Log-probability in 40 digits, the normalizer by its defining sum."""
    x, mu, width = mp.mpf(x), mp.mpf(mu), mp.mpf(width)
    if kind == "laplace":
        q, f = mp.exp(-1 / width), mu - mp.floor(mu)
        normalizer = (mp.exp(-f / width) + mp.exp(-(1 - f) / width)) / (1 - q)
        return -abs(x - mu) / width - mp.log(normalizer)
    if width > 20:  # Poisson summation: the first wave is below exp(-7000)
        return -((x - mu) ** 2) / (2 * width**2) - mp.log(width * mp.sqrt(2 * mp.pi))
    centre, reach = mp.nint(mu), int(16 * width) + 6
    total = mp.fsum(mp.exp(-((centre + k - mu) ** 2) / (2 * width**2)) for k in range(-reach, reach + 1))
    return -((x - mu) ** 2) / (2 * width**2) - mp.log(total)


@pytest.mark.parametrize(("distribution", "kind"), [(DiscreteLaplace, "laplace"), (DiscreteGaussian, "gaussian")])
def test_logp_agrees_with_mpmath_over_twelve_orders_of_magnitude(distribution, kind):
    rng = np.random.default_rng(3)
    widths = np.concatenate([10.0 ** np.arange(-6, 7), [0.05, 0.2, 0.39, 0.41, 0.7, 2.3]])
    cases = []
    for width in widths:
        for mu in (0.0, 17.0, -3.25, 0.5, 12.999, 1e5 + 0.125):
            cases += [(np.round(mu + step), mu, width) for step in (0, 1, -2, *np.round(width * rng.normal(0, 9, 3)))]
    x, mu, width = np.array(cases).T
    got = evaluated(pm.logp(distribution.dist(mu, width), x))[0]
    with mp.workdps(40):
        for value, *case in zip(got, x, mu, width, strict=True):
            want = exact_logp(kind, *case)
            assert abs(mp.mpf(float(value)) - want) <= 1e-10 * max(1, abs(want)), case


@pytest.mark.parametrize("distribution", [DiscreteLaplace, DiscreteGaussian])
def test_the_laws_are_normalized_around_any_centre(distribution):
    k = np.arange(-400, 400)
    mu, width = np.array([0.0, 0.3, 0.5, 7.9])[:, None, None], np.array([0.02, 0.3, 0.45, 1.0, 8.0])[:, None]
    mu, width, k = np.broadcast_arrays(mu, width, k)
    [logp] = evaluated(pm.logp(distribution.dist(mu, width), k))
    np.testing.assert_allclose(np.exp(logp).sum(axis=-1), 1.0, rtol=1e-12)


def test_at_an_integer_centre_the_distributions_are_the_noise_laws():
    k = np.arange(-30, 31)
    for distribution, law in ((DiscreteLaplace, Geometric(3.7)), (DiscreteGaussian, DiscreteGaussianNoise(3.7))):
        [logp] = evaluated(pm.logp(distribution.dist(5, 3.7, shape=k.shape), k + 5))
        np.testing.assert_allclose(logp, law.log_prob(k), rtol=1e-13)
    assert TwoSidedGeometric is DiscreteLaplace


def test_cumulative_probabilities_of_the_discrete_laplace_law_are_its_sums():
    k = np.arange(-2000, 301)
    mu, scale = np.array([0.0, 0.4, 0.5, -1.7])[:, None, None], np.array([0.1, 1.0, 6.0])[:, None]
    mu, scale, k = np.broadcast_arrays(mu, scale, k)
    dist = DiscreteLaplace.dist(mu, scale)
    logp, logcdf = evaluated(pm.logp(dist, k), pm.logcdf(dist, k))
    sums = np.cumsum(np.exp(logp), axis=-1)
    np.testing.assert_allclose(np.exp(logcdf)[..., 1700:], sums[..., 1700:], rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("distribution", [DiscreteLaplace, DiscreteGaussian])
def test_slopes_in_centre_and_width_are_those_of_the_log_probability(distribution):
    mu, width = pt.dscalar("mu"), pt.dscalar("width")
    logp = pm.logp(distribution.dist(mu, width, shape=12), np.arange(-3, 9)).sum()
    evaluate = pytensor.function([mu, width], [logp, *pytensor.grad(logp, [mu, width])], mode=MODE)
    for at in ((2.2, 0.3), (2.2, 0.8), (2.7, 5.0)):
        _, *slopes = evaluate(*at)
        for i, slope in enumerate(slopes):
            step = np.eye(2)[i] * 1e-5
            high, low = evaluate(*(at + step))[0], evaluate(*(at - step))[0]
            assert slope == pytest.approx((high - low) / 2e-5, rel=1e-6, abs=1e-7)


# --- truncation ------------------------------------------------------------------------------------------------------


def mass_within(noise, low, high):
    """P(low <= X <= high) from the tail that is small."""
    step = 1 if noise.is_discrete else 0
    return noise.sf(low - step) - noise.sf(high) if low > 0 else noise.cdf(high) - noise.cdf(low - step)


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_a_truncated_number_is_normalized(law, bounds):
    low, high = bounds.get("lower", -np.inf), bounds.get("upper", np.inf)
    values = np.arange(max(low, 60), min(high, 120) + 1)
    centres, spreads = np.array([80.0, 91.0, 97.0]), np.array([0.6, 2.5, 20.0, 90.0])
    y, centre, spread = (each.ravel() for each in np.meshgrid(values, centres, spreads, indexing="ij"))
    dist = Released.dist(centre, [law(s) for s in spread], **bounds)
    [logp] = evaluated(pm.logp(dist, y))
    for value, at, c, s in zip(logp, y, centre, spread, strict=True):
        want = float(law(s).log_prob(at - c)) - math.log(mass_within(law(s), low - c, high - c))
        assert value == pytest.approx(want, rel=1e-8, abs=1e-8), (at, c, s)


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("law", [Geometric, DiscreteGaussianNoise])
def test_a_truncated_number_around_any_centre_sums_to_one_and_is_never_outside(law, bounds):
    grid = np.arange(bounds.get("lower", -3000), bounds.get("upper", 3000) + 1)
    centres, spreads = np.tile([80.3, 91.5, 97.6], 4), np.repeat([0.6, 2.5, 20.0, 90.0], 3)
    grid = np.concatenate([[grid[0] - 1, grid[-1] + 1], grid])
    dist = Released.dist(centres, [law(s) for s in spreads], **bounds, shape=(grid.size, 12))
    [logp] = evaluated(pm.logp(dist, np.repeat(grid[:, None], 12, axis=1)))
    np.testing.assert_allclose(np.exp(logp[2:]).sum(axis=0), 1.0, rtol=1e-10)
    assert "lower" not in bounds or np.all(logp[0] == -np.inf)
    assert "upper" not in bounds or np.all(logp[1] == -np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{}, *BOUNDS], ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_a_truncated_number_is_drawn_from_its_law(law, bounds):
    centres, spreads = np.array([80.0, 91.0, 97.0, 91.0]), np.array([2.5, 0.6, 2.5, 20.0])
    laws = [law(s) for s in spreads]
    drawn = pm.draw(Released.dist(centres, laws, **bounds, shape=(4000, 4)), random_seed=5, mode=MODE)
    low, high = bounds.get("lower", -np.inf), bounds.get("upper", np.inf)
    assert drawn.dtype.kind == ("i" if law.is_discrete else "f")
    assert drawn.min() >= low and drawn.max() <= high
    for column, (centre, noise) in enumerate(zip(centres, laws, strict=True)):
        # Kolmogorov and Smirnov's distance at the integers: below 2.5 / sqrt(draws) but for a probability of 1e-5.
        at = np.arange(drawn[:, column].min(), drawn[:, column].max() + 1) - centre
        whole = mass_within(noise, low - centre, high - centre)
        want = np.array([mass_within(noise, low - centre, x) for x in np.minimum(at, high - centre)]) / whole
        seen = (drawn[:, column, None] <= at + centre).mean(axis=0)
        assert np.abs(seen - want).max() <= 2.5 / math.sqrt(4000), (centre, noise)


@pytest.mark.parametrize("law", LAWS)
def test_slopes_of_a_truncated_number_are_finite_and_right_far_from_its_bounds(law):
    centre = pt.dvector("centre")
    lower = np.array([90.0, -np.inf, 90.0, 90.0])  # the second row is not truncated
    logp = pm.logp(Released.dist(centre, law(4.0), lower=lower), np.array([93, 40, 91, 700]))
    evaluate = pytensor.function([centre], [logp, pytensor.grad(logp.sum(), centre)], mode=MODE)
    at = np.array([88.2, 41.3, 10.6, 705.2])
    _, slopes = evaluate(at)
    high, low = evaluate(at + 1e-5)[0], evaluate(at - 1e-5)[0]
    np.testing.assert_allclose(slopes, (high - low) / 2e-5, rtol=2e-5, atol=1e-6)


# --- counts summed out -----------------------------------------------------------------------------------------------

COUNTS = {
    "poisson": lambda mean, extra: stats.poisson(mean),
    "negative-binomial": lambda mean, extra: stats.nbinom(extra, extra / (extra + mean)),
    "binomial": lambda mean, extra: stats.binom(extra, mean / extra),
}
EXTRAS = {"poisson": {}, "negative-binomial": {"alpha": [0.3, 0.9, 4.0]}, "binomial": {"n": [30, 60, 400]}}


WITHIN = [{}, {"lower": 12}, {"lower": 8, "upper": 30}]
# A Latin square: every two of count, law and bounds meet.
SUMMED = [(latent, law, WITHIN[(i + j) % 3]) for i, latent in enumerate(COUNTS) for j, law in enumerate(LAWS)]


@pytest.mark.parametrize(("latent", "law", "bounds"), SUMMED, ids=str)
def test_a_summed_out_count_is_its_sum(latent, law, bounds):
    k = np.arange(0, 6000)
    [extras] = EXTRAS[latent].values() if EXTRAS[latent] else [[1.0]]
    spread, means = np.array([0.2, 1.0, 6.0]), [0.4, 9.0, 25.0]
    values = [0, 13, 29] if bounds else [-7, 3, 40]
    y, mean, extra, width = (a.ravel() for a in np.meshgrid(values, means, extras, spread, indexing="ij"))
    if bounds:
        y = np.maximum(y, bounds["lower"])
    options = {name: extra for name in EXTRAS[latent]}
    [got] = evaluated(pm.logp(Released.dist(mean, [law(w) for w in width], latent=latent, **options, **bounds), y))
    for i, value in enumerate(got):
        noise, log_f = law(width[i]), COUNTS[latent](mean[i], extra[i]).logpmf(k)
        want = np.logaddexp.reduce(log_f + noise.log_prob(y[i] - k))
        if bounds:
            step = 1 if law.is_discrete else 0
            within = noise.sf(bounds["lower"] - step - k) - noise.sf(bounds.get("upper", np.inf) - k)
            with np.errstate(divide="ignore"):
                want -= np.logaddexp.reduce(log_f + np.log(np.maximum(within, 0.0)))
        assert value == pytest.approx(want, rel=1e-9, abs=1e-9), (y[i], mean[i], extra[i], noise)


def test_far_from_its_mean_a_negative_binomial_count_of_small_alpha_is_summed_from_both_ends():
    k = np.arange(0, 40_000)
    for y, mean, alpha, law in ((10_000, 1.0, 0.5, Geometric(10.0)), (700, 2.0, 0.2, DiscreteGaussianNoise(60.0))):
        [got] = evaluated(pm.logp(Released.dist(mean, law, latent="negative-binomial", alpha=alpha), y))
        want = np.logaddexp.reduce(stats.nbinom(alpha, alpha / (alpha + mean)).logpmf(k) + law.log_prob(y - k))
        assert float(got) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("latent", COUNTS)
@pytest.mark.parametrize("bounds", [{}, {"lower": 12}], ids=str)
def test_slopes_of_a_summed_out_count_are_those_of_its_log_probability(latent, bounds):
    mean, extra = pt.dscalar("mean"), pt.dscalar("extra")
    options = {name: extra for name in EXTRAS[latent]}
    dist = Released.dist(mean, Geometric(3.0), latent=latent, **options, **bounds, shape=3)
    logp = pm.logp(dist, np.array([12, 15, 31])).sum()
    wanted = [mean] if latent != "negative-binomial" else [mean, extra]
    evaluate = pytensor.function(
        [mean, extra], [logp, *pytensor.grad(logp, wanted)], mode=MODE, on_unused_input="ignore"
    )
    for at in (np.array([9.0, 60.0]), np.array([22.5, 40.0])):
        for i, slope in enumerate(evaluate(*at)[1:]):
            step = np.eye(2)[i] * 1e-4
            high, low = evaluate(*(at + step))[0], evaluate(*(at - step))[0]
            assert slope == pytest.approx((high - low) / 2e-4, rel=1e-6, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("latent", COUNTS)
def test_draws_of_a_summed_out_count_follow_its_law(latent):
    options = {name: values[2] for name, values in EXTRAS[latent].items()}
    for bounds in ({}, {"lower": 12}):
        grid = np.arange(bounds.get("lower", -60), 250)
        many, draws = (
            Released.dist(11.0, Geometric(2.0), latent=latent, **options, **bounds, shape=size)
            for size in (grid.size, 3000)
        )
        p = np.exp(evaluated(pm.logp(many, grid))[0])
        assert p.sum() == pytest.approx(1.0, rel=1e-9)
        drawn = pm.draw(draws, random_seed=8, mode=MODE)
        mean = p @ grid
        assert abs(drawn.mean() - mean) <= 5 * math.sqrt(p @ (grid - mean) ** 2 / 3000)


@pytest.mark.parametrize("bounds", [{}, {"lower": 8, "upper": 30}], ids=str)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("latent", [None, "negative-binomial"])
def test_cumulative_probabilities_of_released_numbers_are_sums_of_their_probabilities(latent, law, bounds):
    options = {name: values[2] for name, values in EXTRAS[latent].items()} if latent else {}
    dist = Released.dist(20.3, law(3.0), latent=latent, **options, **bounds)
    at = np.array([7, 13, 21, 29.0, 40])
    if law in (Geometric, DiscreteGaussianNoise):
        grid, weight = np.arange(-60.0, 200.0), 1.0
    else:
        weight = 0.02
        grid = np.arange(-60.0, 200.0, weight) + weight / 2
    [logp, logcdf] = evaluated(pm.logp(dist, grid), pm.logcdf(dist, at))
    want = [weight * np.exp(logp[grid <= x]).sum() for x in at]
    np.testing.assert_allclose(np.exp(logcdf), want, rtol=1e-9 if weight == 1.0 else 2e-4, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "latent"), [(Geometric(3.0), "negative-binomial"), (DiscreteGaussianNoise(5.0), None)], ids=str
)
def test_posteriors_are_calibrated_where_rows_below_a_threshold_are_absent(law, latent):
    """Simulation-based calibration without a sampler: a mean's posterior on a grid, from 250 data sets of 4 rows.

    Kolmogorov and Smirnov's test of the posterior probabilities below the true means fails once in 10,000 seeds.
    """
    options = {"alpha": 4.0} if latent == "negative-binomial" else {}
    grid, z = np.linspace(-3.0, 3.0, 61), np.random.default_rng(4).standard_normal(250)

    def released(z, shape):
        noisy = Released.dist(np.exp(3.0 + 0.5 * z), law, latent=latent, **options, shape=shape)
        return pm.Censored.dist(noisy, lower=14, upper=None, shape=shape)

    rows = pm.draw(released(z[:, None], (250, 4)), random_seed=6, mode=MODE)
    assert 0.05 < (rows == 14).mean() < 0.5
    repeated = np.broadcast_to(rows[..., None], (250, 4, 61))
    [logp] = evaluated(pm.logp(released(grid, repeated.shape), repeated))
    logp = logp.sum(axis=1) - 0.5 * grid**2
    weight = np.exp(logp - logp.max(axis=1, keepdims=True))
    share = np.cumsum(weight, axis=1) / weight.sum(axis=1, keepdims=True)
    # At a grid point half of its own weight lies below.
    share -= 0.5 * weight / weight.sum(axis=1, keepdims=True)
    below = [np.interp(one, grid, values) for one, values in zip(z, share, strict=True)]
    assert stats.kstest(below, "uniform").pvalue > 1e-4


# --- in models -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numbers_released_in_a_model_are_sampled_predicted_and_scored():
    rng = np.random.default_rng(2)
    exact = rng.poisson(30.0, 40)
    law = Geometric(4.0)
    views = exact + law.simulate((40,), rng)
    with pm.Model(coords={"place": np.arange(views.size)}):
        rate = pm.LogNormal("rate", 3.0, 1.0)
        Released("views", rate, law, latent="poisson", dims="place", observed=views)
        DiscreteLaplace("more", rate, 4.0, observed=views[:5])
        DiscreteGaussian("most", pm.math.log(rate), 2.0, observed=np.full((2, 3), 4))
        prior = pm.sample_prior_predictive(20, random_seed=1)
        trace = pm.sample(
            200,
            tune=200,
            chains=2,
            cores=1,
            random_seed=3,
            progressbar=False,
            compute_convergence_checks=False,
        )
        trace = pm.sample_posterior_predictive(trace, extend_inferencedata=True, random_seed=4, progressbar=False)
        trace = pm.compute_log_likelihood(trace, progressbar=False)
    assert np.isfinite(az.loo(trace, var_name="views").elpd)
    assert prior.prior_predictive["views"].shape == (1, 20, 40) and prior.prior_predictive["most"].shape[1:] == (
        20,
        2,
        3,
    )
    assert trace.posterior_predictive["views"].dims == ("chain", "draw", "place")
    assert trace.log_likelihood["views"].shape == (2, 200, 40)
    assert abs(float(trace.posterior["rate"].mean()) - views.mean()) < 1.0
    with pm.Model(coords={"row": range(2)}) as unobserved:
        DiscreteGaussian("most", 3.2, 2.0, dims=("row", "row"))
    assert np.array_equal(unobserved.initial_point()["most"], np.full((2, 2), 3))


def test_masked_rows_are_imputed_and_support_points_lie_within_the_bounds():
    values = np.ma.masked_array([95, 0, 130], mask=[False, True, False])
    with pm.Model() as model, pytest.warns(pm.exceptions.ImputationWarning):
        Released("y", 80.0, DiscreteGaussianNoise(5.0), lower=90, observed=values)
    assert model.initial_point()["y_unobserved"] == 90


def released_regression(areas=40):
    """Return the statement of models/released_regression.py, its data placeholders."""
    [file] = (Path(__file__).resolve().parents[1] / "models").glob("released_regression.py")
    counts = np.full((3, areas), 20.0) + np.array([[800.0], [10.0], [0.0]])
    return runpy.run_path(str(file))["released_regression"](*counts, DiscreteGaussianNoise(12.0))


def test_the_regression_of_released_counts_depends_on_all_it_states():
    model = released_regression(3)
    point, evaluate = model.initial_point(), model.compile_fn(model.logp(sum=True), mode=MODE)
    moved = {name: evaluate(point | {name: value + 0.1}) for name, value in point.items()}
    assert np.isfinite([evaluate(point), *moved.values()]).all()
    assert evaluate(point) not in moved.values()


@pytest.mark.slow
def test_the_regression_of_released_counts_is_calibrated():
    """100 data sets of 40 areas; the smallest of seven p-values is below 0.001 / 7 once in a thousand seeds."""
    settings = NutsSettings(draws=300, tune=300, chains=1, target_accept=0.8)
    ranks = simulate_and_rank(
        released_regression, n_simulations=100, random_seed=2, settings=settings, progressbar=False
    )
    assert min(uniformity(ranks).values()) > 0.001 / 7


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"law": "laplace"}, "a noise law is an object such as Laplace"),
        ({"law": [Geometric(1.0), Laplace(1.0)]}, "law must be of one kind"),
        ({"law": [Geometric(1.0), 2.0]}, "a noise law is an object"),
        (
            {"latent": "geometric"},
            "latent must be 'poisson', 'negative-binomial' or 'binomial', got 'geometric'; None sums no count out",
        ),
        ({"latent": "multinomial"}, "write the cells as Poisson counts of mean total"),
        ({"latent": "negative-binomial"}, "alpha belongs to a negative-binomial count"),
        ({"latent": "binomial"}, "n belongs to a binomial count"),
        ({"alpha": 2.0}, "alpha belongs to a negative-binomial count and only to it; got latent=None"),
        ({"latent": "poisson", "n": 3}, "n belongs to a binomial count"),
    ],
)
def test_what_no_number_is_released_under_is_one_clear_error(arguments, message):
    with pytest.raises(InputError, match=message):
        Released.dist(10.0, **({"law": Geometric(2.0)} | arguments))


@pytest.mark.parametrize("distribution", [DiscreteLaplace, DiscreteGaussian])
def test_a_width_that_is_not_positive_has_no_probability(distribution):
    with pytest.raises(pm.logprob.utils.ParameterValueError):
        evaluated(pm.logp(distribution.dist(0.0, -1.0), 3))
