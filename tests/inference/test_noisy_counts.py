"""Released counts: the continuous stand-in of a discrete law, and forward draws of every law."""

import mpmath as mp
import numpy as np
import pymc as pm
import pytest
from scipy import stats

from dpbayes.errors import InputError
from dpbayes.inference.noisy_counts import ReleasedNoise, noisy_counts
from dpbayes.privacy.laws import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric

LAWS = (TwoSidedGeometric(2.0), Laplace(3.0), DiscreteGaussian(4.0), Gaussian(2.5))


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_density_has_the_laws_mass_and_variance(law):
    """Trapezoid rule on a fine grid over +-60 standard deviations: its own error is below 1e-5."""
    x = np.linspace(-60, 60, 2_400_001) * law.variance**0.5
    density = np.exp(ReleasedNoise((law,)).logp(x[:, None]).eval()[:, 0])
    assert np.trapezoid(density, x) == pytest.approx(1.0, abs=1e-5)
    assert np.trapezoid(density * x**2, x) == pytest.approx(law.variance, rel=1e-5)


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("spread", [3.0, 10.0])
def test_stands_for_the_integer_law_behind_a_spread_out_count(scale, spread):
    """A count with a lattice normal law plus noise: exact sum over the integers against the integral.

    The two characteristic functions differ at order omega^4, so the error falls with the fourth power of the spread;
    the pmf's own formula, read between the integers, errs already in its mass (1/12 scale^2).
    """
    law = TwoSidedGeometric(scale)
    counts = np.arange(-150, 151)
    p = np.exp(-0.5 * (counts / spread) ** 2)
    p /= p.sum()
    y = np.arange(0, int(3 * spread) + 1)
    exact = np.exp(law.log_prob(y[:, None] - counts)) @ p
    x = np.linspace(-150, 150, 30_001)
    q = stats.norm(scale=spread).pdf(x) * (x[1] - x[0])
    matched = np.exp(ReleasedNoise((law,)).logp((y[:, None] - x)[..., None]).eval()[..., 0]) @ q
    formula = np.tanh(0.5 / scale) * np.exp(-np.abs(y[:, None] - x) / scale) @ q
    error = np.abs(matched / exact - 1).max()
    # The next term of the expansion is (tau^-4) (s^2 + 1) / 4 times a Hermite polynomial, at most 18 within 3 tau.
    assert error < 18 * (scale**2 + 1) / 4 / spread**4 + 1e-5
    assert error < np.abs(formula / exact - 1).max()


@pytest.mark.slow
def test_forward_draws_follow_each_law():
    """100 counts a law, 400 draws each: standard deviations within 4 % (10 standard errors at a kurtosis of 6)."""
    noise = ReleasedNoise(LAWS * 100)
    centre = np.array([10.3, 20.2, 30.4, 40.1] * 100)
    with pm.Model():
        noisy_counts("y", centre, noise)
        drawn = pm.sample_prior_predictive(400, random_seed=3)["prior"]["y"].to_numpy()[0]
    base = np.where([law.is_discrete for law in noise.laws], np.round(centre), centre)
    errors = (drawn - base).reshape(-1, 100, 4)
    np.testing.assert_allclose(errors.std(axis=(0, 1)), [law.variance**0.5 for law in LAWS], rtol=0.04)
    np.testing.assert_array_less(np.abs(errors.mean(axis=(0, 1))), 6 * noise.stddev[:4] / 200)
    discrete = [law.is_discrete for law in LAWS]
    assert np.all(errors[..., discrete] == np.round(errors[..., discrete]))
    # Every count has noise of its own: the largest of 80,000 correlations, each of standard error .05.
    assert np.abs(np.corrcoef(errors.reshape(-1, 400).T) - np.eye(400)).max() < 8 / np.sqrt(400)


@pytest.mark.slow
def test_forward_draws_have_the_geometric_laws_probabilities():
    """Chi-square over the 21 central values, 200,000 draws: fails by chance once in 10,000 seeds."""
    law = TwoSidedGeometric(2.0)
    with pm.Model():
        noisy_counts("y", np.zeros(10), ReleasedNoise((law,) * 10))
        drawn = pm.sample_prior_predictive(20_000, random_seed=4)["prior"]["y"].to_numpy().ravel()
    values = np.arange(-10, 11)
    p = np.exp(law.log_prob(values))
    seen = np.array([(drawn == value).sum() for value in values])
    seen, p = np.append(seen, drawn.size - seen.sum()), np.append(p, 1 - p.sum())
    assert stats.chisquare(seen, drawn.size * p).pvalue > 1e-4


def test_refuses_no_count():
    with pytest.raises(InputError, match="got none"):
        ReleasedNoise(())


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_the_chance_that_noise_is_below_a_limit(law):
    """Against mpmath, from 1,000 scales below to 30 above; a discrete law's own is near halfway between integers."""
    noise = ReleasedNoise((law,))
    linear, quadratic = (float(part[0]) for part in noise.coefficients[1:])
    scale = 1 / linear if linear else (2 * quadratic) ** -0.5

    def exact(x):
        if not linear:
            return mp.log(mp.ncdf(x / mp.mpf(scale)))
        return mp.log(mp.exp(x / mp.mpf(scale)) / 2 if x < 0 else 1 - mp.exp(-x / mp.mpf(scale)) / 2)

    x = np.array([-1000, -300, -37.5, -8, -1, -1e-6, 0, 1e-6, 0.7, 5, 30]) * scale
    found = noise.log_below(x[:, None]).eval()[:, 0]
    with mp.workdps(250):
        wanted = np.array([float(exact(float(one))) for one in x])
    np.testing.assert_allclose(found, wanted, rtol=1e-9)
    if law.is_discrete:
        half = np.arange(-12, 13) + 0.5
        own = noise.log_below(half[:, None]).eval()[:, 0]
        np.testing.assert_allclose(np.exp(own), law.cdf(half), atol=0.012)


@pytest.mark.slow
def test_counts_held_back_have_their_chance_and_are_drawn_as_often():
    """20,000 draws of each law: a share has a standard error below .0036, five of them once in two million."""
    limits = np.array([12.0, 20.5, -np.inf, 41.5])
    laws = (Gaussian(2.5), TwoSidedGeometric(2.0), Laplace(3.0), DiscreteGaussian(4.0))
    noise, centre = ReleasedNoise(laws, limits), np.array([10.0, 20.0, 30.0, 40.0])
    with pm.Model() as model:
        noisy_counts("y", centre, noise, observed=np.array([-np.inf, 23.0, 31.0, -np.inf]))
    chances = noise.log_below(np.where(np.isinf(limits), 0.0, limits) - centre).eval()
    seen = noise.logp(np.array([0.0, 3.0, 1.0, 0.0])).eval()
    wanted = chances[0] + seen[1] + seen[2] + chances[3]
    assert float(model.compile_logp()({})) == pytest.approx(wanted, rel=1e-12)
    with pm.Model():
        noisy_counts("y", np.tile(centre, 100), ReleasedNoise(laws * 100, np.tile(limits, 100)), observed=np.zeros(400))
        drawn = pm.sample_prior_predictive(200, random_seed=3)["prior_predictive"]["y"].to_numpy().reshape(-1, 4)
    assert np.all(drawn[np.isfinite(drawn)] >= np.broadcast_to(limits, drawn.shape)[np.isfinite(drawn)])
    shares = [law.cdf(limit - at) for law, limit, at in zip(laws, limits, centre, strict=True)]
    np.testing.assert_allclose(np.isinf(drawn).mean(0), np.where(np.isinf(limits), 0.0, shares), atol=0.018)
