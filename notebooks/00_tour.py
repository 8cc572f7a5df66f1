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
# # A tour: from confidential counts to an answer that knows the noise
#
# A custodian holds 10,000 census records and releases ten noisy two-way tables. An analyst wants to know what they say, how
# surely, and whether the numbers can be trusted. This notebook walks the whole way once, then shows the other doors of the
# house. Each system has a notebook of its own.

# %%
import logging
import os

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
from IPython.display import display

from dpbayes import bloom, ide, latent_class, mvg, verifier
from dpbayes.data import datasets
from dpbayes.inference import check_convergence, sample, summarize
from dpbayes.privacy import DiscreteGaussian, gaussian_epsilon, release_tables
from dpbayes.report.plots import STYLE

SMOKE = os.environ.get("DPBAYES_SMOKE") == "1"  # few draws, for tests
plt.style.use(STYLE)
BLUE, ORANGE = "C0", "C1"
logging.getLogger("pymc").setLevel("ERROR")

# %% [markdown]
# ## 1. What the custodian does
#
# `acs_tables` are exact tables: confidential, elsewhere in the world. `release_tables` adds two-sided geometric noise,
# $P(x) \propto e^{-|x|/s}$ with $s = \Delta/\epsilon$, and what comes out is the **only** thing that leaves. A seed makes a
# simulation, which the release says of itself; a real one is drawn by OpenDP without it.

# %%
tables = datasets.acs_tables()
release = release_tables(tables, epsilon=1.0, rng=np.random.default_rng(7))
display(release.domain)
display(release)

# %% [markdown]
# ## 2. The model, looked at before it is fitted
#
# A mixture of products behind all tables, the noise's own law on every count. `model.table()` is PyMC's list of
# variables; the same graph as Mermaid text renders on any page that knows the language.

# %%
model = latent_class.build_model(release)
display(model.table())
lines = pm.model_to_mermaid(model).splitlines()
print("\n".join(line for line in lines if "-->" in line))

# %% [markdown]
# Does the prior allow the data? The prior predictive draws releases from it. One cross lies above its grey bar: the prior
# rarely puts nine persons of ten into one cell of four. It allows it, and 10,000 records overrule it; a cross far outside would
# be a reason to change the prior before going on.

# %%
prior = pm.sample_prior_predictive(50 if SMOKE else 400, model=model, random_seed=1, var_names=["released"])
drawn = prior["prior_predictive"]["released"].to_numpy().reshape(-1, release.n_counts)
observed = np.concatenate([table.counts.ravel() for table in release.tables])
fig, ax = plt.subplots(figsize=(8, 3))
place = np.arange(release.n_counts)
ax.vlines(place, *np.quantile(drawn, [0.025, 0.975], axis=0), color="0.8", linewidth=6)
ax.plot(place, observed, "x", color=ORANGE)
ax.set(xlabel="cells of each released table", ylabel="records", title="prior predictive (95 %) and the release")
by_table = np.arange(1.5, release.n_counts, 4), [table.label.replace(" x ", "\n") for table in release.tables]
ax.set_xticks(*by_table, fontsize=8)
plt.show()

# %% [markdown]
# ## 3. Fit, and check convergence
#
# Samplers do not stop a bad fit. The convergence check judges what does not depend on class labels, and says what to change if a check
# fails.

# %%
settings = {"draws": 40, "tune": 60, "chains": 2} if SMOKE else latent_class.sampler_defaults()
trace = sample(model, random_seed=1, progressbar=False, **settings)
display(check_convergence(trace))

# %% [markdown]
# ## 4. The answer
#
# `exact_counts` are the confidential counts as the posterior knows them: only privacy noise hides them. Pooling ten tables
# leaves less of it than any one table shows. `summarize` is the table to look at first: each quantity with its interval and
# how well the chains mixed, and the verdict below. The trace itself is an xarray tree, for everything else. The truth is
# public here, so we may look.

# %%
display(summarize(trace, var_names=["exact_counts"]))
counts = trace["posterior"]["exact_counts"]
estimate = counts.mean(("chain", "draw")).to_numpy()
low, high = counts.quantile([0.025, 0.975], ("chain", "draw")).to_numpy()
truth = np.concatenate([table.counts.ravel() for table in tables])
fig, ax = plt.subplots(figsize=(8, 3), layout="constrained")
ax.vlines(place, low - truth, high - truth, color=BLUE, linewidth=3, alpha=0.6, label="95 % interval")
ax.plot(place, observed - truth, "x", color=ORANGE, label="released")
ax.axhline(0, color="0.6", linewidth=0.8)
ax.set(xlabel="cells of each released table", ylabel="records from the truth")
ax.set_xticks(*by_table, fontsize=8)
fig.legend(loc="outside upper center", ncols=2)
plt.show()
print(f"mean absolute error: released {np.abs(observed - truth).mean():.1f}, posterior {np.abs(estimate - truth).mean():.1f}")
print(f"true counts inside their interval: {np.mean((low <= truth) & (truth <= high)):.0%}")

# %% [markdown]
# ## 5. Change the noise or the prior in one line
#
# The noise law travels with the release, so a model never has to be told about it twice.

# %%
gaussian = release_tables(tables, rho=0.05, noise="discrete-gaussian", rng=np.random.default_rng(7))
other_noise = latent_class.build_model(gaussian)
other_prior = latent_class.build_model(release, spread=1.5)
paper = latent_class.build_model(release, profiles="dirichlet")
for name, one in (("discrete Gaussian", other_noise), ("profiles more alike", other_prior), ("the paper's", paper)):
    print(f"{name:18s} free: {', '.join(variable.name for variable in one.free_RVs)}")
print(isinstance(gaussian.tables[0].noise, DiscreteGaussian), gaussian.tables[0].noise)

# %% [markdown]
# ## 6. Synthetic records
#
# Each data set comes from one posterior draw, so that several of them together carry the uncertainty.

# %%
frames = latent_class.synthesize(trace, n_datasets=3, n_rows=10_000, random_seed=1)
display(frames[0].head(5))
print([f"{frame['income'].mean():.3f}" for frame in frames])

# %% [markdown]
# ## 7. The other doors
#
# **Verifier**: is a published claim true on the confidential data? Of 50 partitions 41 say yes, 8 no and 1 fails; three
# noisy counts leave, and the posterior is an exact sum.
#
# **Bloom**, **MVG** and the privacy floor say what a mechanism costs; where a sum is cut off, its bound from below stands
# beside the one from above. **IDE** starts from a public prior instead of a model.

# %%
question = verifier.release_counts(verifier.PartitionCounts(41, 8, 1), epsilon=1.0, rng=np.random.default_rng(2))
display(verifier.posterior(question))
claim = bloom.bloom_epsilon(flip_prob=0.2, delta=1e-3, n_filters=3, n_bits=10_000)
print("three flipped filters:", claim.epsilon)
box = mvg.FeatureRanges([0.0, 0.0], [1.0, 4.0], "replace-one")
noise = mvg.calibrate(np.diag([1.0, 4.0]), np.eye(1), box, epsilon=1.0, delta=1e-5)
print("matrix noise, standard deviations:", np.sqrt(noise.row_cov.marginal_variances).round(2))
print("Gaussian noise of mu = 1 at delta 1e-6: epsilon", round(float(gaussian_epsilon(1.0, 1e-6)), 4))
found = ide.estimate(ide.Prior.full(release.domain), release).distribution
cells = np.concatenate([release.n * found.marginal(table.attributes).ravel() for table in tables])
print("prior-aware from a uniform prior, mean absolute error:", round(float(np.abs(cells - truth).mean()), 1))

# %% [markdown]
# ## 8. What goes wrong
#
# Take the released counts as if they were exact, and an interval counts sampling alone. At epsilon 0.25 it holds far fewer of
# the true counts than it claims.
#
# The notebooks `latent_class`, `verifier`, `bloom`, `mvg` and `ide` go deeper; `06_calibration` asks whether intervals cover.
# `dpbayes run models/acs_latent_class.toml` does all of this in one command and writes the report.

# %%
poor = release_tables(tables, epsilon=0.25, rng=np.random.default_rng(8))
seen = np.concatenate([table.counts.ravel() for table in poor.tables]).astype(float)
share = np.clip(seen / 10_000, 1e-4, 1 - 1e-4)
half = 1.96 * np.sqrt(10_000 * share * (1 - share))
print(f"naive 95 % intervals hold {np.mean(np.abs(seen - truth) <= half):.0%} of the true counts")
