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
# # How many people, and at what privacy cost? Bloom filters, shuffled and flipped
#
# Several publishers want to know how many people they reach *together*, and none may tell whom. Each hashes its people
# into a Bloom filter of $m$ bits with a shared seed. One random permutation moves the positions of all filters
# together; then every bit is flipped with probability $p < 1/2$ (Chen 2020). What is left is, for each *logo* (the $k$ bits
# of a position), how often it occurs.
#
# Everything below follows from two questions: what does an adversary learn, and what does an analyst learn? The
# note that proposed the mechanism answered the first by simulation. Here the answers are certified.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

from dpbayes import bloom
from dpbayes.bloom.calibration import one_filter_loss
from dpbayes.bloom.many_filters import filters_loss, worst_known_pair
from dpbayes.report.plots import STYLE
from dpbayes.runs.registry import system_module

SMOKE = os.environ.get("DPBAYES_SMOKE") == "1"  # smaller sizes, for tests
plt.style.use(STYLE)

# %% [markdown]
# ## One filter
#
# Neighbouring inputs differ in **one position**. Let $y$ of the other $m - 1$ positions hold a one, and let $C$ be their
# number of ones after flipping. With $q = 1 - p$ the count $t$ that is released has
#
# $$P(D' \to t) = p\,P(C = t) + q\,P(C = t - 1), \qquad P(D \to t) = q\,P(C = t) + p\,P(C = t - 1),$$
#
# and $C$ is a sum of two binomials: everything can be enumerated. Flipping alone gives
# $\varepsilon_0 = \ln(q/p)$; the shuffle hides the position among $m - 1$ others.

# %%
p, delta = 0.05, 1e-3
print(f"flipping alone: epsilon {np.log((1 - p) / p):.3f}")
for m in (100, 1_000) if SMOKE else (100, 1_000, 10_000):
    claim = bloom.bloom_epsilon(n_filters=1, n_bits=m, flip_prob=p, delta=delta)
    print(f"m = {m:6d}: {claim}")
    print(f"             worst pair: {claim.pair}")

# %% [markdown]
# Where is the maximum over $y$? One would like to try the ends and the middle. The curve is not unimodal, so
# `bloom_epsilon` scans every count. A look at $m = 100$:

# %%
m = 100
counts = np.arange(0, m, 5 if SMOKE else 1)
losses = [one_filter_loss(n_bits=m, flip_prob=p, count_ones=int(y)) for y in counts]
tight = np.array([loss.epsilon(delta) for loss in losses])
quantile = np.array([loss.quantile_epsilon(delta) for loss in losses])
figure, axis = plt.subplots(figsize=(6.4, 3.2))
axis.plot(counts, quantile, color="C1", label="quantile definition (the note's)")
axis.plot(counts, tight, color="C0", label="tight: the definition of differential privacy")
axis.set(xlabel="ones among the other positions", ylabel=rf"privacy cost $\varepsilon$ at $\delta$ = {delta:g}", ylim=(0, None))
_ = axis.legend(fontsize=8)

# %% [markdown]
# Two definitions, two numbers. *Tight* is the least $\varepsilon$ with hockey-stick divergence at most $\delta$ both ways,
# $E_{D'}[(1 - e^{\varepsilon} / R)_+] \le \delta$. *Quantile* asks that $\ln R > \varepsilon$ has probability at most
# $\delta$. It is never smaller, and it is not closed under post-processing; `dpbayes` offers both and promises the first.
#
# ## Several filters: certified, and what the note called the worst pair
#
# With $k$ filters the note takes logo $0$ against $2^k - 1$ among zeros. Then the likelihood ratio is an average,
# $R = \frac1m \sum_i (q/p)^{2 y_i - k}$ with $y_i \sim \mathrm{Binomial}(k, p)$, and its law comes from a lattice with
# certified bounds.

# %%
loss = filters_loss(n_filters=6, n_bits=100_000, flip_prob=0.1)
paper = loss.epsilon_bounds(delta)
print(f"k = 6, m = 1e5, p = 0.1: epsilon between {paper.lower:.5f} and {paper.upper:.5f}")
worst = worst_known_pair(n_filters=6, n_bits=100_000, flip_prob=0.1, delta=delta)
print(f"another pair:            epsilon between {worst.lower:.5f} and {worst.upper:.5f}")
print(f"  ({worst.pair})")

small = {"n_filters": 2, "n_bits": 4 if SMOKE else 6, "flip_prob": 0.2}
print("note's pair:", bloom.bloom_epsilon(delta=0.05, **small))
print("worst known:", worst_known_pair(delta=0.05, **small))
print("every pair :", bloom.bloom_epsilon(delta=0.05, pairs="all", **small))

# %% [markdown]
# **The note's pair is not the worst.** It was inferred from a signal-to-noise ratio. If the others differ from *both* logos
# of the position in question, fewer of them come near it, and there are fewer to hide among. On a small case one can
# list every input: with $k = 2$, $m = 6$, $p = 0.2$ and $\delta = 0.05$ the worst pair of all has $\varepsilon$ = 1.67586.
#
# ## Where Observation 2 fails
#
# The signal-to-noise ratio of a change from logo $j$ to logo $i$ is $a^T B^{+} a$ with $a = T(e_i - e_j)$ and $B$ the covariance
# of the released counts. The note's Observation 2: for every fixed $D$, the change $0 \to 2^k - 1$ has the largest. With
# uniform logos that is so. With skewed ones it is not.

# %%
note = system_module("study:bloom_signal")  # the note's figures, models/studies/bloom_signal.py
k = 3
figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.4))
for axis, skewness in zip(axes, (0.0, 3.0), strict=True):
    weights = np.exp(-skewness * np.arange(1, 2**k + 1) / 2**k)
    signal = note.signal_to_noise(weights / weights.sum(), flip_prob=0.05)
    ratios = np.array([[signal.ratio(i, j) if i != j else 0.0 for j in range(2**k)] for i in range(2**k)])
    image = axis.imshow(np.where(np.eye(2**k), np.nan, ratios), cmap="viridis", vmin=0, vmax=95)
    largest, (first, second) = signal.largest
    for (i, j), colour in [((0, 2**k - 1), "#ffffff"), ((first, second), "C1")]:
        axis.add_patch(plt.Rectangle((j - 0.5, i - 0.5), 1, 1, fill=False, edgecolor=colour, linewidth=2.5))
    axis.set_title(f"skewness {skewness:g}: largest {largest:.2f} at {first} → {second}", fontsize=9)
    axis.set(xlabel="to logo", ylabel="from logo")
    print(f"skewness {skewness:g}: 0 -> 7 has {signal.ratio(0, 7):.3f}, the largest is {largest:.3f} at {first} -> {second}")
_ = figure.colorbar(image, ax=axes, label="signal-to-noise ratio")

# %% [markdown]
# White: the change that Observation 2 names. Orange: the largest. And a large signal-to-noise ratio is not a
# large $\varepsilon$ either: one is a second moment, the other lives in a tail.
#
# ## Calibrate
#
# `flip_prob_for` inverts the accountant: the least noise for a promise. `pairs="all"` pays for a theorem that covers
# every pair; it takes minutes at this size, so we calibrate for the note's pair and then ask what the bound for all pairs says.

# %%
k, m, epsilon = (2, 5_000, np.log(3)) if SMOKE else (3, 20_000, np.log(3))
flip_prob = bloom.flip_prob_for(epsilon=epsilon, delta=delta, n_filters=k, n_bits=m)
print(f"flip probability {flip_prob:.6f} for epsilon {epsilon:.4f}")
print("the note's pair :", bloom.bloom_epsilon(flip_prob=flip_prob, delta=delta, n_filters=k, n_bits=m))
print("worst known pair:", worst_known_pair(n_filters=k, n_bits=m, flip_prob=flip_prob, delta=delta))
print("every pair      :", bloom.bloom_epsilon(flip_prob=flip_prob, delta=delta, n_filters=k, n_bits=m, pairs="all"))

# %% [markdown]
# ## What the analyst learns: reach
#
# An audience in which some people are more active than others, one filter a publisher, flipped. (Noise from a seeded
# generator is a simulation; leave `rng` out and the bits come from a cryptographic source, as a real release needs.)

# %%
rng = np.random.default_rng(1)
n_people, shares = m // 2, (0.5, 0.3, 0.2)[:k]
activity = rng.random(n_people)
reached = [rng.random(n_people) < 2 * share * activity for share in shares]
law = bloom.BitDistribution(m)
filters = bloom.build_filters([np.flatnonzero(one) for one in reached], distribution=law, seed=17)
flipped = bloom.shuffle_flip(filters, flip_prob=flip_prob, rng=rng)
reach = bloom.estimate_reach(flipped)
times = np.sum(reached, axis=0)
for name, estimate, truth in [
    ("union", reach.union(), (times > 0).sum()),
    *((f"exactly {f}", reach.frequency(f), (times == f).sum()) for f in range(1, k + 1)),
]:
    low, high = estimate.interval(0.95)
    print(f"{name:10s} {estimate.value:8.0f}  95 % [{low:8.1f}, {high:8.1f}]   true {truth}")

# %% [markdown]
# The counts are debiased by the inverse channel in $k$ sweeps ($T$ is a Kronecker power and never built). The interval adds
# two variances: that of the flips, which the released numbers estimate without bias, and that of hashing, where two people meet in one
# position. Do the intervals hold, and what does more privacy cost? (The ε above each strip is that of the note's pair.)

# %%
repeats = 5 if SMOKE else 60
levels = (0.02, 0.1, 0.2, 0.3)
errors = {level: [] for level in levels}
covered = dict.fromkeys(levels, 0)
for seed in range(repeats):
    built = bloom.build_filters([np.flatnonzero(one) for one in reached], distribution=law, seed=1000 + seed)
    for level in levels:
        estimate = bloom.estimate_reach(bloom.shuffle_flip(built, flip_prob=level, rng=rng)).union()
        low, high = estimate.interval(0.95)
        covered[level] += bool(low <= (times > 0).sum() <= high)
        errors[level].append(estimate.value / (times > 0).sum() - 1)
figure, axis = plt.subplots(figsize=(6.4, 3.2))
for place, level in enumerate(levels):
    worst = bloom.bloom_epsilon(flip_prob=level, delta=delta, n_filters=k, n_bits=m)
    axis.plot(np.full(repeats, place) + np.linspace(-0.2, 0.2, repeats), 100 * np.array(errors[level]), ".", color="C0")
    axis.annotate(f"ε {worst.upper:.3g}\n{covered[level]}/{repeats} cover", (place, 0.98), xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=8)
reachable = 100 * max(np.abs(values).max() for values in errors.values())
axis.set(ylim=(-1.1 * reachable, 1.7 * reachable))
axis.axhline(0, color="#111111", lw=0.8)
axis.set_xticks(range(len(levels)), [f"{level:g}" for level in levels])
axis.set_xlabel("flip probability")
_ = axis.set_ylabel("error of the union's reach, %")

# %% [markdown]
# ## Many noisy numbers, one audience
#
# Others publish reach with noise: a number for each publisher, for sets of them, week by week. Corrected one at a time, such
# numbers contradict each other, and where the noise is large they end at 0. A *reach lattice* takes the audience itself as the unknown, so
# that every posterior draw is monotone in sets and weeks and keeps inclusion and exclusion. Four publishers, eight weeks, noise
# of 60,000 people on each number; `west` is small enough to be hidden. (The numbers are simulated: `west` has reached 34,675.)

# %%
from pathlib import Path

from dpbayes.inference import sample

models = next(folder / "models" for folder in (Path(), *Path().resolve().parents) if (folder / "models" / "bloom_reach.csv").is_file())
numbers = bloom.read_reach_numbers(models / "bloom_reach.csv")
audience = bloom.build_lattice_model(numbers, population=5_000_000)
trace = sample(
    audience, draws=100 if SMOKE else 500, tune=100 if SMOKE else 500, target_accept=0.9, random_seed=1, progressbar=False
)
lattice = bloom.ReachLattice.from_trace(trace)
for names in (["north"], ["west"], ["north", "west"], list(numbers.publishers)):
    low, high = np.quantile(lattice.union(names), [0.025, 0.975])
    print(f"{' + '.join(names):30s} {lattice.union(names).mean():12,.0f}  95 % [{low:10,.0f}, {high:10,.0f}]")

figure, axis = plt.subplots(figsize=(6.4, 3.2))
weeks = range(1, numbers.n_weeks + 1)
for place, name in enumerate(("west", "east")):
    low, middle, high = np.array([np.quantile(lattice.union([name], week=week), [0.025, 0.5, 0.975]) for week in weeks]).T
    axis.fill_between(weeks, low, high, color=f"C{place}", alpha=0.3, linewidth=0)
    axis.plot(weeks, middle, color=f"C{place}", label=f"{name}, 95 % interval")
    alone = (numbers.sets.sum(axis=1) == 1) & numbers.sets[:, numbers.publishers.index(name)]
    axis.errorbar(numbers.weeks[alone], numbers.values[alone], 1.96 * numbers.stddev[alone], fmt=".", color=f"C{place}", lw=0.6, label=f"{name}, as released")
axis.axhline(0, color="#111111", lw=0.8)
axis.set(xlabel="week", ylabel="people reached since the first week")
axis.yaxis.set_major_formatter("{x:,.0f}")
_ = axis.legend()

# %% [markdown]
# **What to keep.** The shuffle buys a great deal, and one can say exactly how much. State which pairs a number covers: *one
# pair*, *the worst known*, *every pair* are three different promises, and `EpsilonClaim` carries the difference. Do not infer a worst
# case from a signal-to-noise ratio. `bloom.model` holds a PyMC model of the true counts behind a release;
# `models/bloom_audience.toml` runs it for six publishers.
