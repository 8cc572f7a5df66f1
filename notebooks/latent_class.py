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
# # Noisy tables, one population
#
# Ten two-way tables of five yes-or-no attributes leave a custodian with noise on every count. They contradict each other: a
# margin computed from two tables comes out twice, and differently. Barrientos (2021) puts one population behind them, a
# **mixture of products**,
#
# $$P(x) = \sum_h \pi_h \prod_j \psi^{(j)}_{h x_j},\qquad
#   \pi_h = V_h\prod_{l<h}(1-V_l),\quad V_h\sim\mathrm{Beta}(1,\alpha),$$
#
# and asks which populations could have given these released counts, through the noise.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import polars as pl

from dpbayes import latent_class
from dpbayes.data import datasets
from dpbayes.inference import check_convergence, sample
from dpbayes.privacy import release_tables
from dpbayes.report.plots import STYLE

SMOKE = os.environ.get("DPBAYES_SMOKE") == "1"  # few draws, for tests
plt.style.use(STYLE)
BLUE, ORANGE, GREY = "C0", "C1", "0.75"
SETTINGS = {"draws": 40, "tune": 60, "chains": 2} if SMOKE else latent_class.sampler_defaults()

# %% [markdown]
# ## The release
#
# Two-sided geometric noise of scale $\Delta/\epsilon_t$ on each table; replacing one person moves two cells of a table by one,
# so $\Delta = 2$, and ten tables share the budget. At a total of $\epsilon = 0.5$ the scale is 40 records.

# %%
tables = datasets.acs_tables()  # really confidential; public here, so that we can check
release = release_tables(tables, epsilon=0.5, rng=np.random.default_rng(11))
names = release.domain.names
truth = np.concatenate([table.counts.ravel() for table in tables]).astype(float)
seen = np.concatenate([table.counts.ravel() for table in release.tables]).astype(float)
release

# %% [markdown]
# The tables disagree: five attributes, four tables each, four answers to how many there are.

# %%
fig, ax = plt.subplots(figsize=(7, 2.6))
for place, name in enumerate(names):
    said = [t.counts.sum(axis=1 - t.attributes.index(name))[1] for t in release.tables if name in t.attributes]
    true = next(t for t in tables if name in t.attributes).project([name]).counts[1]
    ax.plot(np.asarray(said) - true, [place] * len(said), "x", color=ORANGE)
ax.axvline(0, color=GREY)
ax.set(yticks=range(len(names)), yticklabels=[a.phrases[1] for a in release.domain], xlabel="records from the true number", ylim=(-0.5, 4.5))
plt.show()

# %% [markdown]
# ## The likelihood
#
# All tables are margins of *one* table $X \sim \mathrm{Multinomial}(n, P)$ that nobody may see. `build_model` keeps what
# moves its counts away from $nP$ as parameters $x$ (15 numbers that fix all 40 released cells), with their sampling law,
# and the noise's own law on every released count:
#
# $$x \sim N(0, I),\qquad y = nP_{\mathrm{cells}} + Bx + \text{noise},\qquad BB^\top = n\operatorname{Cov}(\text{cells of one record}).$$
#
# The file `models/latent_class.py` states the same model with the integers left in; tests hold this form to it.

# %%
model = latent_class.build_model(release, n_classes=8)
trace = sample(model, random_seed=3, progressbar=False, **SETTINGS)
verdict = check_convergence(trace)
verdict

# %% [markdown]
# ## Which question? Records or population
#
# *How many of these records* are in a cell: only privacy noise hides that. *What share of the population* they were drawn from:
# sampling adds to it. Two intervals, and a reader has to know which one is asked for.

# %%
n = release.n
posterior = trace["posterior"]
records = posterior["exact_counts"].quantile([0.025, 0.975], ("chain", "draw")).to_numpy() - truth
people = n * posterior["margin"].quantile([0.025, 0.975], ("chain", "draw")).to_numpy() - truth
fig, ax = plt.subplots(figsize=(8, 3))
place = np.arange(len(truth))
ax.vlines(place, *people, color=BLUE, linewidth=1, label="population")
ax.vlines(place, *records, color=BLUE, linewidth=5, alpha=0.45, label="these records")
ax.plot(place, seen - truth, "x", color=ORANGE, label="released")
ax.axhline(0, color=GREY)
ax.set(xlabel="cells of each released table", ylabel="records from the truth")
ax.set_xticks(np.arange(1.5, len(truth), 4), [table.label.replace(" x ", "\n") for table in release.tables], fontsize=8)
fig.legend(loc="outside upper center", ncols=3)
plt.show()
inside = np.mean((records[0] <= 0) & (0 <= records[1]))
width = np.median(records[1] - records[0])
print(f"true counts inside: {inside:.0%}; median width {width:.0f} records, a single count's own {2 * 40 * np.log(20):.0f}")

# %% [markdown]
# The noise of a count has a standard deviation of 57 records. Pooling buys the difference.
#
# ## A table that was never released
#
# Three attributes at once: no released table holds them. `margin_draws` gives the posterior of any margin; what the release
# leaves open shows as width, and is filled by the prior.

# %%
triple = ("age", "race", "income")
draws = n * latent_class.margin_draws(trace, triple)
summary = draws.stack(cell=triple).quantile([0.025, 0.5, 0.975], ("chain", "draw"))
labels = release.domain.project(triple).cell_labels(" · ", names=False)
fig, ax = plt.subplots(figsize=(7, 2.8))
low, middle, high = summary.to_numpy()
ax.hlines(range(8), low, high, color=BLUE, linewidth=5, alpha=0.45)
ax.plot(middle, range(8), "|", color=BLUE, markersize=12)
ax.set(yticks=range(8), yticklabels=labels, xlabel="records of 10,000", xscale="log", title=" · ".join(triple))
plt.show()

# %% [markdown]
# ## A regression that never sees a record
#
# $\beta(P)$, the logistic regression of income on age, sex and race in the population, is a functional of $P$: one fit a draw.

# %%
beta = latent_class.regress(trace, "income ~ age + sex + race")
latent_class.summarize(beta).to_dataframe().round(2)

# %% [markdown]
# ## Synthetic records
#
# Every data set comes from its own posterior draw. Analysed like real data and combined, twenty of them say nearly what the
# posterior says; one alone, taken as if it were real, knows nothing of the noise.

# %%
frames = latent_class.synthesize(trace, n_datasets=4 if SMOKE else 20, n_rows=5 * n, random_seed=4)


def share_of_income(frame):
    p = frame["income"].mean()
    return {"income above 11,880": (p, p * (1 - p) / len(frame))}


combined = latent_class.combine(frames, share_of_income, n=n)
share = posterior["margin"].sel(count=["age=0, income=1", "age=1, income=1"]).sum("count")
print("data sets combined:", combined.interval().round(4))
print("posterior:", share.quantile([0.025, 0.975]).round(4).to_numpy(), " truth:",
      round(float(tables[6].project(["income"]).counts[1] / n), 4))

# %% [markdown]
# ## What goes wrong
#
# **Too few classes.** One class has no associations at all. The convergence check passes, since the sampler is fine; the *fit* shows it:
# released counts that lie further from the model than the noise can explain.

# %%
small = latent_class.build_model(release, n_classes=1)
poor = sample(small, random_seed=3, progressbar=False, **SETTINGS)
noise_sd = float(np.sqrt(release.tables[0].noise.variance))
for name, one in (("8 classes", trace), ("1 class", poor)):
    predicted = n * one["posterior"]["margin"].mean(("chain", "draw")).to_numpy()
    print(f"{name}: largest residual {np.abs(seen - predicted).max() / noise_sd:.1f} noise standard deviations")

# %% [markdown]
# **Treating the noise as Gaussian, or as none.** The released law is part of the likelihood; taking a single released share as
# exact gives an interval that counts sampling alone.
#
# `docs/latent_class.md` has the mathematics and the measured coverage; `dpbayes run models/acs_latent_class.toml` is the same
# study in one command.

# %%
share = np.clip(seen / n, 1e-4, 1 - 1e-4)
half = 1.96 * np.sqrt(n * share * (1 - share))
print(f"intervals from the released counts as they are hold {np.mean(np.abs(seen - truth) <= half):.0%} of the true counts")
pl.DataFrame({"estimator": ["released", "posterior"],
              "mean absolute error": [np.abs(seen - truth).mean(),
                                      np.abs(posterior["exact_counts"].mean(("chain", "draw")).to_numpy() - truth).mean()]})
