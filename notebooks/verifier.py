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
# # Is the finding true on the confidential data?
#
# A researcher fits a regression to *synthetic* wages and finds that a year of education raises pay by more than 7 %. Would
# the confidential data agree? The custodian may not show them, but can answer one question under differential privacy
# (Balmat, Barrientos and Reiter 2018): deal the persons into $M$ random partitions, fit the model in each, and count
#
# * $S_1$ partitions in which the coefficient lies beyond the threshold,
# * $S_0$ in which it does not,
# * $S_e$ in which it could not be computed.
#
# Only noisy versions of the three are published. The analyst wants $r = p_1/(p_1 + p_0)$.

# %%
import os
import time

import matplotlib.pyplot as plt
import numpy as np

from dpbayes.data import datasets
from dpbayes.report.plots import STYLE
from dpbayes.verifier import (
    PartitionCounts,
    count_partitions,
    count_surface,
    design_surface,
    posterior,
    release_counts,
    smallest_epsilon,
)

SMOKE = os.environ.get("DPBAYES_SMOKE") == "1"  # smaller sizes, for tests
plt.style.use(STYLE)
BLUE, ORANGE = "C0", "C1"

# %% [markdown]
# ## The custodian
#
# Generated persons, several rows each. All rows of a person stay in one partition, so replacing one person moves
# at most one partition from one outcome to another: the $L_1$ sensitivity of $(S_1, S_0, S_e)$ is 2. A fit that fails
# is an *outcome*; an error message would tell something about that partition.
#
# (The seeds make this notebook repeatable, and make it a simulation. A release that is to protect anyone is drawn with
# neither `random_state` nor `rng`; the code refuses to mix the two.)

# %%
people = datasets.wages(400 if SMOKE else 1_500, seed=3)
counts = count_partitions(
    people,
    formula="np.log(wage) ~ education + experience + I(experience**2) + sex + sector",
    coefficient="education",
    threshold=0.07,
    direction=">",
    n_partitions=10 if SMOKE else 50,
    unit="person",
    random_state=5,
)
release = release_counts(counts, epsilon=1.0, rng=np.random.default_rng(6))
table = release.tables[0]
print("persons' rows:", people.height, "| partitions:", release.n, "| the noise:", table.noise)
print("what leaves the custodian:", dict(zip(("beyond", "not beyond", "not computed"), table.counts.tolist(), strict=True)))

# %% [markdown]
# ## The analyst: an exact posterior
#
# With $p \sim \mathrm{Dirichlet}(\alpha)$ and $S \mid p \sim \mathrm{Multinomial}(M, p)$, seen through noise of known law $f$,
#
# $$P(S \mid y) \propto \prod_j \frac{\Gamma(\alpha_j + S_j)}{\Gamma(\alpha_j)\, S_j!}\, f(y_j - S_j), \qquad
#   r \mid S \sim \mathrm{Beta}(\alpha_1 + S_1,\ \alpha_0 + S_0).$$
#
# The posterior is a finite mixture: 1,326 terms at $M = 50$. Nothing needs to be sampled.

# %%
started = time.perf_counter()
exact = posterior(release)
low, high = exact.interval(0.95)
print(f"E r = {exact.mean:.4f}, 95 % interval [{low:.3f}, {high:.3f}], P(r > 1/2) = {exact.prob_greater(0.5):.4f}")
print(f"truncation error below {exact.truncation_error:.0e}; under a second: {time.perf_counter() - started < 1}")

# %% [markdown]
# ## Why the printed Gibbs script is none
#
# The paper samples this posterior with an R script. Its loop body is a function passed to `sapply`, and in it stands
#
# ```r
# f.iter = function(j) { ... p <- rdirichlet(1, alpha + s) ... }
# ```
#
# In R, `<-` inside a function binds a *local* variable. The next call sees the old $p$. So $S$ is drawn 5,000 times given the
# *first* $p$, a draw from $\mathrm{Dirichlet}(1,1,1)$ that has seen no data. Below, both chains in a dozen lines: `forgets=True`
# is the script as printed.


# %%
def chain(noisy, m, scale, *, forgets, draws, rng):
    triples = np.array([(i, j, m - i - j) for i in range(m + 1) for j in range(m + 1 - i)])
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, m + 1)))])
    base = -log_factorial[triples].sum(axis=1) - np.abs(np.asarray(noisy) - triples).sum(axis=1) / scale
    p, kept = rng.dirichlet(np.ones(3)), np.empty(draws)
    for i in range(draws):
        logs = base + triples @ np.log(np.maximum(p, 1e-300))
        weights = np.cumsum(np.exp(logs - logs.max()))
        s = triples[np.searchsorted(weights, rng.random() * weights[-1])]
        new = rng.dirichlet(1.0 + s)
        kept[i] = new[0] / (new[0] + new[1])
        if not forgets:
            p = new  # the assignment that the script loses
    return kept[draws // 10 :]


m, noisy = 50, (41, 8, 2)
domain = release_counts(PartitionCounts(41, 7, 2), epsilon=1.0, rng=np.random.default_rng(0))
# The posterior depends on the noisy counts alone. Find a simulated release that shows exactly these.
seed = 0
while tuple(domain.tables[0].counts.tolist()) != noisy:
    seed += 1
    domain = release_counts(PartitionCounts(41, 7, 2), epsilon=1.0, rng=np.random.default_rng(seed))
reference = posterior(domain)
starts, draws = (2, 300) if SMOKE else (12, 1500)
printed = [chain(noisy, m, 2.0, forgets=True, draws=draws, rng=np.random.default_rng(100 + k)) for k in range(starts)]
correct = [chain(noisy, m, 2.0, forgets=False, draws=draws, rng=np.random.default_rng(100 + k)) for k in range(starts)]
for name, found in (("as printed", printed), ("corrected", correct)):
    off = np.abs(np.array([one.mean() for one in found]) - reference.mean)
    print(f"{name:10s}: |error of E r| over {starts} starts: mean {off.mean():.3f}, worst {off.max():.3f}")

# %%
grid = np.linspace(0.001, 0.999, 400)
figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.0), sharey=True)
density = np.gradient(np.array([1 - reference.prob_greater(float(x)) for x in grid]), grid)
for axis, found, name in zip(axes, (printed, correct), ("as printed: one curve per start", "with the assignment kept"), strict=True):
    for one in found:
        axis.hist(one, bins=np.linspace(0, 1, 41), density=True, histtype="step", color=ORANGE, alpha=0.6)
    axis.plot(grid, density, color=BLUE, lw=2, label="exact posterior")
    axis.set(title=name, xlabel="r, share of partitions in which the claim holds")
axes[0].set_ylabel("density")
_ = axes[0].legend(fontsize=8, loc="upper left")

# %% [markdown]
# Twelve starts of the printed chain give twelve answers, none of them the posterior; each has perfect traces and R-hat within
# itself, since its draws are independent. The error shows only against a reference. That is why `dpbayes` keeps an exact one.
#
# ## Does the interval cover?
#
# If the truth comes from the prior, a 95 % credible interval holds it 95 % of the time, at every $\varepsilon$; what noise
# takes is width.

# %%
rng, repeats = np.random.default_rng(8), 20 if SMOKE else 400
p = rng.dirichlet(np.ones(3), repeats)
outcomes = rng.multinomial(50, p)
truth = p[:, 0] / (p[:, 0] + p[:, 1])
for epsilon in (0.25, 1.0, 4.0):
    releases = [release_counts(PartitionCounts(*map(int, s)), epsilon=epsilon, rng=rng) for s in outcomes]
    low, high = np.array([posterior(release).interval() for release in releases]).T
    inside = np.mean((low <= truth) & (truth <= high))
    print(f"epsilon {epsilon:4.2f}: coverage {inside:.3f} (standard error {np.sqrt(0.05 * 0.95 / repeats):.3f}), "
          f"mean width {np.mean(high - low):.3f}")

# %% [markdown]
# ## Before any data are touched: is the question worth its budget?
#
# A release takes finitely many distinguishable values, so the chance of a right decision is a finite sum. Decide "yes" when
# $P(r > 1/2 \mid y) \ge 0.95$. Left: for every pair of true counts, the chance to decide rightly. Right: what $\varepsilon$ buys.

# %%
m = 12 if SMOKE else 30
surface = count_surface(m, epsilon=1.0)
budgets = np.geomspace(0.1, 8, 4 if SMOKE else 12)
design = design_surface([m], budgets.tolist(), r=[0.65, 0.8, 0.95], failed=0.02, confidence=0.95)
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
image = left.pcolormesh(surface["not_beyond"], surface["beyond"], surface["right"], vmin=0, vmax=1, cmap="viridis")
left.plot([0, m / 2], [0, m / 2], color="#ffffff", lw=1)
left.set(xlabel="true partitions not beyond", ylabel="true partitions beyond", title=f"{m} partitions, ε = 1", aspect="equal")
figure.colorbar(image, ax=left, label="chance of the right decision")
for r, colour in zip((0.65, 0.8, 0.95), ("#bbbbbb", ORANGE, BLUE), strict=True):
    right.semilogx(budgets, design["right"].sel(r=r, n_partitions=m), color=colour, label=f"true r = {r}")
right.set(xlabel="privacy cost ε", ylabel="chance of the right decision", ylim=(0, 1))
_ = right.legend(fontsize=8)

# %%
epsilon = smallest_epsilon(m, r=0.9, wanted=0.9)
outlook = design_surface([m], [epsilon], r=0.9).squeeze()
print(f"M = {m}, r = 0.9: epsilon {epsilon} decides rightly with probability {float(outlook['right']):.3f} (wrongly: {float(outlook['wrong']):.2g})")

# %% [markdown]
# ## What goes wrong
#
# * **The answer is about partitions, not about the population.** $r$ is the share of *partitions* in which the claim holds. More
#   partitions hold fewer persons each, their estimates are noisier, and $r$ moves towards one half, however true the claim.

# %%
for partitions in (5, 10) if SMOKE else (10, 50, 150):
    found = count_partitions(
        people, formula="np.log(wage) ~ education + experience + sex", coefficient="education", threshold=0.07,
        direction=">", n_partitions=partitions, unit="person", random_state=5,
    )
    # Invented persons: the exact counts may be shown here. A custodian never prints them.
    print(f"M = {partitions:3d}: share beyond {found.beyond / max(found.beyond + found.not_beyond, 1):.3f}, failed {found.not_computed}")

# %% [markdown]
# * **A seed is not a secret.** Who knows the assignment knows whose partition a count is about. Real releases draw it from the operating system.
# * **Floats leak.** Laplace noise drawn in floating point can give the count away through its low bits. The default noise is
#   two-sided geometric, from an exact sampler, with the same likelihood up to a constant.
# * **Questions add up.** `release_counts` takes several questions and splits the budget; `build_model` lets related
#   questions inform one another, in PyMC. `models/verifier_threshold.toml` runs the whole study from a file.
