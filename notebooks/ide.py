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
# # A public prior and noisy tables: whom to trust?
#
# A statistical office publishes noisy marginals of this year's confidential records. Last year's records of a
# similar population are public. What is this year's joint distribution?
#
# Tao, Bater and Machanavajjhala (2022) came second in a public synthetic-data challenge with a method that trusts the noisy
# answers first and the prior second. This notebook runs it on a generated population, shows where it ends up *worse than
# the prior it started from*, and puts beside it an estimate that weighs the two by how noisy the answers are.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

from dpbayes import ide
from dpbayes.data import Domain, datasets, marginals
from dpbayes.ide.prior import COMPONENTS
from dpbayes.privacy import release_tables
from dpbayes.report.plots import STYLE

SMOKE = os.environ.get("DPBAYES_SMOKE") == "1"  # smaller sizes, for tests
plt.style.use(STYLE)
BLUE, ORANGE, GREY = "C0", "C1", "#777777"

# %% [markdown]
# ## A population and its public sister
#
# Six groups of one region, nine attributes, drawn from a few household types. The private shares of the types have drifted from the public
# ones. Nobody in it is real, so the exact answers may be shown.

# %%
population = datasets.two_level_population(
    n_units=1, groups_per_unit=2 if SMOKE else 6, group_size=150 if SMOKE else 600, drift=0.3, seed=4
)
features = population.domain.names
levels = {"group": tuple(population.parent), **{a.name: a.levels for a in population.domain}}
domain = Domain.from_levels(levels)
prior = ide.Prior.from_frame(population.public, domain)
truth = ide.Prior.from_frame(population.private, domain)
tables = marginals(population.private, [("group", name) for name in features], domain=domain)  # confidential
print(f"{len(population.private):,} private records, {prior.size:,} distinct public ones, {domain.size:,} cells of the full table")
print(f"score of the prior as it is: {ide.k_marginal_score(prior, truth, by='group').value:.1f} of 1000")

# %% [markdown]
# The score is the challenge's: the mean over all pairs of attributes and all groups of $500\,(2 - L_1)$, with the $L_1$ distance
# between estimated and true two-way tables. The released tables are one-way within groups. So the pairs must come from the
# prior, and the margins from the release.

# %%
def release_at(epsilon, seed):
    """One simulated release; without `rng` it would be drawn for real."""
    return release_tables(tables, epsilon=epsilon, rng=np.random.default_rng(seed))


release = release_at(1.0, 1)
print(len(release.tables), "tables,", release.tables[0].noise, "on every count,", release.adjacency)

# %% [markdown]
# ## Algorithm 1
#
# Take the tables in random order. Project a table's noisy answers $\tilde y$ on the simplex (in $L_1$; ties go to the nearest
# point in $L_2$), and move the distribution $q$ to the closest one in $KL(\cdot \,\Vert\, q)$ that has these answers,
#
# $$q'(x) = q(x)\, \frac{y_{c(x)}}{\sum_{x' \in c(x)} q(x')}.$$
#
# If the answers agree with each other, this converges: least $L_1$ loss first, least $KL$ from the prior second. Noisy answers
# do not agree.

# %%
plain = ide.estimate(prior, release, noise_aware=False, random_state=1)
trace = plain.iterations
figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.0))
left.plot(trace.step, trace.l1_loss, color=ORANGE)
_ = left.set(xlabel="update", ylabel="L1 distance to the answers", ylim=(0, None))
right.plot(trace.step, trace.kl, color=ORANGE)
_ = right.set(xlabel="update", ylabel="KL divergence from the prior", ylim=(0, None))

# %% [markdown]
# It keeps cycling between tables that contradict each other. But the aim itself is the trouble: the *least loss* is a fit
# to noise.
#
# ## Weighing the two
#
# Ask what a Bayesian would: minimize over distributions $q$ on the prior's records
#
# $$\lambda\, KL(q \,\Vert\, p) + \sum_c \ell_c\big(y_c - n (Mq)_c\big),$$
#
# with $\ell$ the negative log-likelihood of the noise that was really added. Large noise leaves the prior alone, small
# noise overrides it. $e^{-n\,KL(q \Vert p)}$ is, up to a polynomial factor, the probability that $n$ draws from $p$ look like $q$:
# **$\lambda$ counts records**. It is chosen from the release alone, by the joint likelihood of its cells, never from a score;
# and where the release departs in a few directions by more than $\lambda$ allows, the prior is moved there first.

# %%
aware = ide.estimate(prior, release, pool=False)  # the prior as it is; what pooling adds comes below
strength = aware.strength
print(f"strength {strength.value:.0f} records (sampling error allows {strength.bound:.0f}); prior moved in {strength.moved} directions")
print(f"objective within {aware.solution.gap:.2g} of its minimum after {aware.solution.iterations} steps: "
      f"every marginal within L1 {aware.solution.l1_bound:.2g} of the exact minimizer")
for name, found in (("Algorithm 1", plain), ("noise-aware", aware)):
    score = ide.k_marginal_score(found.distribution, truth, by="group").value
    print(f"{name:12s} score {score:.1f}, KL from the prior {found.kl:.3f}")

# %%
turned = population.public.with_columns(car=population.public["car"].replace({"no": "yes", "yes": "no"}))
turned = ide.Prior.from_frame(turned, domain)  # a worse prior: one column the wrong way round
figure, axis = plt.subplots(figsize=(5.6, 2.9))
for found, colour, name in ((strength, BLUE, "public records"), (ide.estimate(turned, release, pool=False).strength, ORANGE, "one column turned round")):
    axis.semilogx(found.grid, found.log_likelihood, color=colour, label=name)
    axis.plot(found.value, np.interp(np.log(found.value), np.log(found.grid), found.log_likelihood), "o", color=colour)
axis.axvline(strength.bound, color="#111111", lw=1, label="most that sampling error allows")
axis.set(xlabel="strength of the prior, records", ylabel="log-likelihood", xlim=(20, 4 * strength.bound), ylim=(-25, 4))
_ = figure.legend(loc="outside upper center", ncols=2, fontsize=8)

# %% [markdown]
# Beforehand the two populations agree up to sampling with probability .8; the strength taken is the geometric mean of its
# posterior. Departures may be large in a few directions: there the prior itself is moved, which costs the rest nothing.
#
# ## Where Algorithm 1 falls below the prior

# %%
budgets = (0.3, 3.0) if SMOKE else (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
repeats = 1 if SMOKE else 4
credible = ide.credibility(prior, by="group")
pooled = ide.pool(prior, credible)


def value(distribution):
    return ide.k_marginal_score(distribution, truth, by="group").value


scores = {name: np.empty((len(budgets), repeats)) for name in ("Algorithm 1", "noise-aware", "noise-aware, pooled prior")}
for i, epsilon in enumerate(budgets):
    for seed in range(repeats):
        one = release_at(epsilon, seed)
        scores["Algorithm 1"][i, seed] = value(ide.estimate(prior, one, noise_aware=False, random_state=seed).distribution)
        scores["noise-aware"][i, seed] = value(ide.estimate(prior, one, pool=False).distribution)
        scores["noise-aware, pooled prior"][i, seed] = value(ide.estimate(prior, one).distribution)
print(f"{'epsilon':26s}" + "".join(f"{epsilon:8g}" for epsilon in budgets))
for name, found in scores.items():
    print(f"{name:26s}" + "".join(f"{mean:8.1f}" for mean in found.mean(axis=1)))
print(f"noise-aware, lowest draw {scores['noise-aware'].min():.1f}; Algorithm 1, lowest draw {scores['Algorithm 1'].min():.1f}")
print(f"prior alone {value(prior):.1f}, pooled prior alone {value(pooled):.1f}")

# %%
rng = np.random.default_rng(2)
bootstrap = ide.bootstrap_score(truth, by="group", rng=rng).value
figure, axes = plt.subplots(1, 2, figsize=(9.4, 3.4))
for axis in axes:
    for (name, found), colour, style in zip(scores.items(), (ORANGE, BLUE, BLUE), ("-", "-", "--"), strict=True):
        axis.plot(budgets, found.mean(axis=1), style, color=colour, label=name)
        axis.plot(np.repeat(budgets, repeats), found.ravel(), ".", ms=3, color=colour)
    axis.axhline(value(prior), color="#111111", lw=1, label="the prior untouched")
    axis.axhline(bootstrap, color=GREY, lw=1, ls=":", label="bootstrap of the private records")
    axis.axhspan(0, value(prior), color=ORANGE, alpha=0.08)
    axis.set(xscale="log", xlabel="ε for all tables together")
axes[0].set(ylabel="score (1000: the private records)", ylim=(scores["Algorithm 1"].min() - 20, 1000))
axes[1].set(ylim=(value(prior) - 22, value(prior) + 35), title="near the prior, enlarged")
_ = axes[0].legend(fontsize=8, loc="lower right")

# %% [markdown]
# In the shaded region one would have done better to publish nothing and hand out last year's records. Algorithm 1 lives there
# until the noise is small. The mean of the noise-aware estimates stays within half a point of the prior where the noise is
# largest (single draws fall a few points to either side), and gains from there.
#
# **Pooling** is the default and costs no privacy: a group's public rows are few, so its prior becomes a mixture of its own
# records, the other groups' records, and both *recombined* (every attribute drawn by itself). The weights minimize an
# unbiased estimate of the squared error over all pairs, from public data alone.
#
# ## What goes wrong
#
# * **The support is the prior's.** No estimate puts mass where the prior has no record. Two-way tables survive that while the
#   public records are many; rare combinations do not. With few records the pairs suffer too, and recombination is what
#   saves them. Below: the weights, the true mass on known records, and what is left when one public record in twenty is kept.

# %%
for name, mixed in zip(population.parent, credible.weights, strict=True):
    print(f"{name:5s}" + ", ".join(f"{part} {weight:.2f}" for part, weight in zip(COMPONENTS, mixed, strict=True)))


def known(frame_prior):
    records = {tuple(row) for row in frame_prior.codes.tolist()}
    return float(sum(w for row, w in zip(truth.codes.tolist(), truth.weights, strict=True) if tuple(row) in records))


print(f"true mass on records that the prior knows: {known(prior):.2f}; the pooled prior: {known(pooled):.2f}")
thin, one = ide.Prior.from_frame(population.public.sample(fraction=0.3 if SMOKE else 0.05, seed=1), domain), release_at(10.0, 2)
print(f"one record in twenty: prior untouched {value(thin):.1f}, noise-aware on it {value(ide.estimate(thin, one, pool=False).distribution):.1f}, "
      f"pooled first {value(ide.estimate(thin, one).distribution):.1f}")

# %% [markdown]
# Even weighed, answers can pull a handful of records the wrong way: the unpooled estimate ends below the thin prior.
#
# * **A shift that no table shows.** Watch the chosen strength, and how many directions move the prior, when public columns
#   are spoiled:

# %%
spoiled = population.public.with_columns(
    schooling=population.public["schooling"].shuffle(seed=1), income=population.public["income"].reverse()
)
for name, public in (("as it is", prior), ("two columns shuffled", ide.Prior.from_frame(spoiled, domain)), ("one turned round", turned)):
    found = ide.estimate(public, release_at(10.0, 3))
    print(f"{name:21s}: strength {found.strength.value:6.0f} records, {found.strength.moved:2d} directions; prior {value(public):.1f}, estimate {value(found.distribution):.1f}")

# %% [markdown]
# Shuffling within columns breaks pairs but leaves the margins of the whole region nearly alone, so one-way tables cannot see most of
# it. A turned column they see at once.
#
# **What to keep.** An estimator that takes noisy answers at face value can be worse than no answers. Weigh them by their noise law,
# take the weight of the prior from the release, and ask for the certificate. `models/ide_groups.toml` runs the
# hierarchy of groups (Algorithm 2) from a file; `estimate(...).interval(names)` gives 95 % intervals.
