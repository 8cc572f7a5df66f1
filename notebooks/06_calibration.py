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
# # Are the intervals right?
#
# A 95 % interval that knows the noise should hold the truth 95 times in a hundred. Nobody can look at the truth of a
# confidential data set, but everybody can simulate: draw a truth from the prior, data from the truth, a release from the
# data; compute the posterior; ask where in it the truth lies. Over many repeats that position,
#
# $$\mathrm{PIT} = \Pr(\theta \le \theta_\text{true} \mid \text{release}),$$
#
# is **uniform** if the posterior is right (Talts et al. 2018), whatever the prior, the noise and the sample size.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from scipy import stats

from dpbayes.inference import plot_ranks, simulate_and_rank, uniformity
from dpbayes.privacy import Laplace
from dpbayes.report.plots import STYLE
from dpbayes.verifier import PartitionCounts, posterior, release_counts

SMOKE = os.environ.get("DPBAYES_SMOKE") == "1"  # few simulations, for tests
plt.style.use(STYLE)
BLUE, ORANGE = "C0", "C1"
REPEATS = 60 if SMOKE else 600

# %% [markdown]
# ## An exact posterior
#
# The verifier's posterior is a finite sum, so calibration must hold to the last digit: shares from the Dirichlet prior, counts of
# 25 partitions, two-sided geometric noise, posterior of $r$. Beside it the analyst who takes the noisy counts for the true ones.

# %%
rng = np.random.default_rng(5)
exact, naive, truths, widths = [], [], [], []
for _ in range(REPEATS):
    p = rng.dirichlet([1.0, 1.0, 1.0])
    true = p[0] / (p[0] + p[1])
    counts = PartitionCounts(*map(int, rng.multinomial(25, p)))
    release = release_counts(counts, epsilon=0.5, rng=rng)
    known = posterior(release)
    yes, no = np.clip(release.tables[0].counts.ravel()[:2], 0, None)
    exact.append(1.0 - known.prob_greater(true))
    naive.append(stats.beta.cdf(true, 1 + yes, 1 + no))
    truths.append(true)
    widths.append(np.subtract(*known.interval()[::-1]))
exact, naive = np.array(exact), np.array(naive)

# %% [markdown]
# The picture: the empirical distribution of the PIT values minus the uniform one. The band holds a uniform sample's whole curve
# with probability 95 % (Dvoretzky-Kiefer-Wolfowitz, with Massart's constant).

# %%
def draw_curve(ax, pit, colour, label):
    ordered = np.sort(pit)
    ax.plot(ordered, (np.arange(len(pit)) + 0.5) / len(pit) - ordered, color=colour, label=label)


fig, ax = plt.subplots(figsize=(7, 3))
half = np.sqrt(np.log(2 / 0.05) / (2 * REPEATS))
ax.axhspan(-half, half, color="0.93")
draw_curve(ax, exact, BLUE, "knows the noise")
draw_curve(ax, naive, ORANGE, "takes the counts as exact")
ax.set(xlabel="position of the true r in its posterior (PIT)", ylabel="cumulative share minus uniform")
ax.legend()
plt.show()
for name, pit in (("knows the noise", exact), ("takes the counts as exact", naive)):
    inside = np.mean((pit > 0.025) & (pit < 0.975))
    print(f"{name:26s} 95 % intervals hold {inside:.1%}; Kolmogorov-Smirnov p {stats.kstest(pit, 'uniform').pvalue:.2g}")

# %% [markdown]
# The orange curve lies above the band on the left and below it on the right: truths fall outside of the posterior too often, on both
# sides. That is the mark of a posterior that is **too narrow**. Too wide is the mirror image; a bias stays on one side.
#
# ## An average, and only an average
#
# Calibration holds on average over the prior. At one fixed truth the coverage may be anything; sorted by the truth, the same
# simulations show it. (Grey: two standard errors about 95 %.)

# %%
inside = (exact > 0.025) & (exact < 0.975)
edges = np.linspace(0, 1, 6)
fig, ax = plt.subplots(figsize=(7, 3))
for low, high in zip(edges[:-1], edges[1:], strict=True):
    chosen = (np.array(truths) >= low) & (np.array(truths) < high)
    share, error = inside[chosen].mean(), 2 * np.sqrt(0.95 * 0.05 / chosen.sum())
    ax.vlines((low + high) / 2, 0.95 - error, min(1, 0.95 + error), color="0.85", linewidth=9)
    ax.plot((low + high) / 2, share, "o", color=BLUE)
ax.axhline(0.95, color="0.6", linewidth=0.8)
ax.set(xlabel="true r, the share of partitions in which the claim holds", ylabel="coverage of 95 % intervals", ylim=(0.8, 1.02))
plt.show()

# %% [markdown]
# ## A posterior that is sampled
#
# With NUTS a truth is ranked among posterior draws instead. `simulate_and_rank` compiles the model once and refits it: here a
# mean of 50 values in (0, 1), released as a sum with Laplace noise. The noise's scale is part of the model.

# %%
N, LAW = 50, Laplace(2.0)


def noisy_sum(scale):
    def build():
        with pm.Model() as model:
            mean = pm.Beta("mean", 2, 2)
            total = pm.Normal("total", N * mean, np.sqrt(N) * 0.1)
            pm.Laplace("released", total, scale, observed=pm.Data("data", 25.0))
        return model

    return build


STUDY = {"n_simulations": 10 if SMOKE else 120, "random_seed": 3, "progressbar": False}
right = simulate_and_rank(noisy_sum(LAW.scale), **STUDY)
plot_ranks(right)

# %% [markdown]
# `uniformity` gives a p-value for each quantity; with $q$ of them the smallest is compared with $\alpha/q$. Its null law is
# exact, for few simulations too and however small the p-value.

# %%
uniformity(right)

# %% [markdown]
# ## What goes wrong: the wrong noise in the model
#
# Now data are made as before, and the analyst believes that the noise is five times smaller than it is. `simulate` states how
# data come about in truth, and the model states what is believed.

# %%
def truth_and_data(seed):
    rng = np.random.default_rng(seed)
    mean = rng.beta(2, 2)
    total = rng.normal(N * mean, np.sqrt(N) * 0.1)
    return {"mean": mean, "total": total}, {"data": total + rng.laplace(0, LAW.scale)}


wrong = simulate_and_rank(noisy_sum(LAW.scale / 5), simulate=truth_and_data, **STUDY)
plot_ranks(wrong)

# %%
print({name: f"{value:.2g}" for name, value in uniformity(wrong).items()})

# %% [markdown]
# ## How many simulations?
#
# Coverage $c$ from $S$ simulations has a standard error of $\sqrt{c(1-c)/S}$: at 95 % it takes 200 for 1.5 points and 1,900 for half
# a point. A study finds gross errors with a few dozen and small ones never; the plot says which kind it would have found.
#
# `dpbayes sbc models/acs_latent_class.toml -n 200` does this for a run spec, with a design that reads no confidential record;
# `docs/calibration.md` has the rules by which it judges.

# %%
for simulations in (50, 200, 1000, 5000):
    print(f"{simulations:5d} simulations: coverage of 95 % known to within {2 * np.sqrt(0.95 * 0.05 / simulations):.1%}")
