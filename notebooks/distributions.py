# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Noisy counts in your own model
#
# Somebody released counts with noise and said which noise. `dpbayes.distributions` has these laws as PyMC distributions, so
# that any model can take the counts for what they are. Three things go wrong in a model that does not: intervals are too
# short, thresholds bias, and slopes of noisy covariates shrink.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from dpbayes.distributions import DiscreteGaussian, DiscreteLaplace, Released
from dpbayes.inference import compile_model, sample
from dpbayes.inference.sampling import NutsSettings
from dpbayes.privacy import DiscreteGaussian as DiscreteGaussianNoise
from dpbayes.privacy import TwoSidedGeometric
from dpbayes.report.plots import STYLE

SMOKE = os.environ.get("DPBAYES_SMOKE") == "1"  # smaller sizes, for tests
plt.style.use(STYLE)
BLUE, ORANGE = "C0", "C1"
SHORT = {"chains": 2, "predictive": False, "progressbar": False, "random_seed": 1, "target_accept": 0.8}
SHORT |= {"draws": 60, "tune": 60} if SMOKE else {"draws": 400, "tune": 400}

# %% [markdown]
# ## The laws
#
# Noise on the integers, around any real centre: a latent count is a real number for a gradient sampler. Below, both laws
# around 10.3 with the same variance.

# %%
x = np.arange(-8, 30)
laws = {
    "discrete Laplace, scale 3": DiscreteLaplace.dist(10.3, 3.0),
    "discrete Gaussian, sigma 4.2": DiscreteGaussian.dist(10.3, 4.2),
}
figure, axis = plt.subplots(figsize=(6.4, 2.6))
for shift, (color, (name, law)) in zip((-0.2, 0.2), zip((BLUE, ORANGE), laws.items(), strict=True), strict=True):
    p = np.exp(pm.logp(law, x).eval(mode="FAST_COMPILE"))
    axis.vlines(x + shift, 0, p, color=color, lw=3, label=name)
    print(f"{name}: sum over the integers {p.sum():.4f}, mean {p @ x / p.sum():.2f}")
axis.set(xlabel="released count", ylabel="probability")
_ = axis.legend()

# %% [markdown]
# ## A threshold
#
# Forty pages have the same law of daily views. The publisher adds noise and withholds what falls below 90. We know the pages,
# so we know which rows are absent: `pm.Censored` says that they lie below 90. (If nobody knew how many pages there are, it
# would be `Released(..., lower=90)`: truncated.)

# %%
rng = np.random.default_rng(3)
noise = TwoSidedGeometric(scale=15.0)
views = rng.negative_binomial(4.0, 4.0 / (4.0 + 100.0), size=40)
noisy = views + noise.simulate((40,), rng)
rows = noisy[noisy >= 90]
print(
    f"{rows.size} of 40 rows were released; mean of the exact views {views.mean():.1f}, of the rows {rows.mean():.1f}"
)


# %%
with pm.Model() as pages:
    mean, alpha = pm.LogNormal("mean", np.log(100), 1.0), pm.LogNormal("alpha", np.log(4), 0.5)
    law = Released.dist(mean, noise, latent="negative-binomial", alpha=alpha)
    pm.Censored("y", law, lower=89, upper=None, observed=np.where(noisy >= 90, noisy, 89))

trace = sample(pages, **SHORT)
low, middle, high = trace["posterior"]["mean"].quantile([0.025, 0.5, 0.975]).to_numpy()
print(f"threshold known: mean views {middle:.0f}, 95 % interval {low:.0f} to {high:.0f} (true mean of the law: 100)")

# %% [markdown]
# The exact count is summed out, $p(y) = \sum_n f(n)\, g(y - n)$, so the sampler sees two parameters and no integer.
#
# ## A regression with measurement error
#
# In each area somebody released three noisy counts: the population, the smokers and the cases of a disease. Cases depend on the
# *share* of smokers, and that is known through two noisy numbers only. The areas differ beyond it: their effect is a gamma
# variable, which makes a Poisson count negative binomial.

# %%
areas, sigma, slope = (40 if SMOKE else 150), DiscreteGaussianNoise(12.0), 0.3
population = np.exp(rng.normal(np.log(800), 0.5, areas))
z = rng.standard_normal(areas)
exact = {
    "population": np.round(population),
    "smokers": rng.poisson(population / (1 + np.exp(3.2 - 0.6 * z))),
    "cases": rng.poisson(population * np.exp(-3.7 + slope * z) * rng.gamma(6.0, 1 / 6.0, areas)),
}
released = {name: counts + sigma.simulate((areas,), rng) for name, counts in exact.items()}

# %% [markdown]
# **The pattern**: a latent variable for every quantity that the regression needs exactly (population $E$, covariate $z$), a
# summed-out count for every other, and `Released` around each. The prior of the latent covariate matters: it is the
# population that the noise is judged against, so its level and spread are estimated.

# %%
with pm.Model() as regression:
    m, s = pm.Normal("size", np.log(800), 0.2), pm.LogNormal("size_sd", np.log(0.5), 0.2)
    level, spread = pm.Normal("share", -3.2, 0.2), pm.LogNormal("share_sd", np.log(0.6), 0.2)
    a, b = pm.Normal("intercept", -3.7, 0.2), pm.Normal("slope", 0.2, 0.2)
    alpha = pm.LogNormal("alpha", np.log(6), 0.3)
    E = pm.math.exp(pm.Normal("log_population", m, s, shape=areas))
    latent = pm.Normal("z", 0, 1, shape=areas)
    Released("population", E, sigma, observed=released["population"])
    share = pm.math.invlogit(level + spread * latent)
    Released("smokers", E * share, sigma, latent="poisson", observed=released["smokers"])
    rate = pm.math.exp(a + b * latent)
    Released("cases", E * rate, sigma, latent="negative-binomial", alpha=alpha, observed=released["cases"])
    regression.convergence_variables = ("size", "size_sd", "share", "share_sd", "intercept", "slope", "alpha")

trace = sample(regression, **SHORT)
aware = trace["posterior"]["slope"].to_numpy().ravel()


# %% [markdown]
# Beside it, the regression that plugs numbers in: once the noisy ones (those that allow no logarithm are moved to 1), once
# the exact ones. It is compiled once, and fitted to either.


# %%
def predictors(counts):
    population, smokers = np.maximum(counts["population"], 2.0), np.maximum(counts["smokers"], 1.0)
    logit = np.log(smokers / np.maximum(population - smokers, 1.0))
    standard = (logit - logit.mean()) / logit.std()
    return {"offset": np.log(population), "x": standard, "y": np.maximum(counts["cases"], 0)}


with pm.Model() as plugged_in:
    given = {name: pm.Data(name, values) for name, values in predictors(released).items()}
    a, b = pm.Normal("intercept", -3.7, 0.2), pm.Normal("slope", 0.2, 0.2)
    mean = pm.math.exp(given["offset"] + a + b * given["x"])
    pm.NegativeBinomial("cases", mean, alpha=pm.LogNormal("alpha", np.log(6), 0.3), observed=given["y"])

compiled = compile_model(plugged_in)
settings = NutsSettings(draws=SHORT["draws"], tune=SHORT["tune"], chains=2)
slopes = {"noise in the model": aware}
for name, counts in {"noisy counts plugged in": released, "exact counts": exact}.items():
    fit = compiled.fit(settings, data=predictors(counts), random_seed=1, progressbar=False)
    slopes[name] = fit["posterior"]["slope"].to_numpy().ravel()

# %%
figure, axis = plt.subplots(figsize=(6.4, 2.0))
for row, (name, draws) in enumerate(slopes.items()):
    low, middle, high = np.quantile(draws, [0.025, 0.5, 0.975])
    axis.hlines(-row, low, high, color=ORANGE if "plugged" in name else BLUE, lw=4)
    axis.plot(middle, -row, "o", color="white", mec="black", ms=5)
    print(f"{name}: slope {middle:.2f}, 95 % interval {low:.2f} to {high:.2f}")
axis.axvline(slope, color="black", lw=1, ls=":")
axis.set_yticks([-row for row in range(len(slopes))], list(slopes))
_ = axis.set(xlabel="slope per standard deviation of the logit share (dotted: the truth)", ylim=(-2.5, 0.5))

# %% [markdown]
# The slope of the noisy covariate is pulled towards zero, and its interval is no wider for it. In this data set it still holds
# the truth; in 3,000 areas it is a quarter as wide, and pulled as far. Noise in the model costs width, and that is honest.
# `models/released_regression.py` is this model with its data in `pm.Data`.
