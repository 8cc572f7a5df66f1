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
# # How many people read about the fires?
#
# Wikimedia publishes how often each page was viewed from each country on each day, with differential privacy: noise is added,
# and a number below a threshold is withheld. In February 2023 the mechanism changed, noise and threshold alike. How often were
# Wikipedia's pages on bushfires viewed from Australia in the summer of 2019-20, against the summers before and after?
#
# Nothing here reads confidential data: it is post-processing of a published release, and costs no privacy.

# %%
import inspect
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from dpbayes.inference import sample
from dpbayes.report.plots import STYLE
from dpbayes.runs import load_spec

SMOKE = os.environ.get("DPBAYES_SMOKE") == "1"  # smaller sizes, for tests
plt.style.use(STYLE)
BLUE, ORANGE = "C0", "C1"
root = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "models").is_dir())
loaded = load_spec(root / "models" / "wikimedia_disasters.toml")
spec, study = loaded.spec, loaded.module

# %% [markdown]
# ## What was released
#
# | | noise | a row exists where the noisy count is at least |
# |---|---|---|
# | 9 February 2017 to 5 February 2023 | two-sided geometric, scale 30 (standard deviation 42) | 450 |
# | since 6 February 2023 | discrete Gaussian, standard deviation 18.3 | 90 |
#
# A day without a row is not a day without views: its noisy count was below the threshold of its day. The repository holds no
# rows of the real release; where `WIKIMEDIA_VIEWS` names the file (columns page_name, date, views), this notebook reads it.
# Otherwise it simulates a **twin**: three pages over nine summers with views that we know, released in the same way.

# %%
file = os.environ.get("WIKIMEDIA_VIEWS")
pages, summers = spec.data.pages, spec.data.summers[1:4] if SMOKE else spec.data.summers
if file:
    panel, exact = study.read_panel(Path(file), pages, summers, spec.data.created), None
else:
    layout = study.empty_panel(pages, summers, spec.data.created)
    exact, panel = study.simulate(layout, np.random.default_rng(spec.data.twin))
print(
    "real rows" if file else "simulated twin", "|", int(panel.has_row.sum()), "rows of", panel.has_row.size, "page-days"
)
for summer, year in enumerate(panel.summers):
    share = panel.has_row[panel.summer == summer].mean(axis=1)
    print(f"{year}-{(year + 1) % 100:02d}: days with a row,", ", ".join(f"{one:.0%}" for one in share))

# %%
block = int(np.flatnonzero((panel.page == 0) & (panel.summer == list(panel.summers).index(2019)))[0])
figure, axis = plt.subplots(figsize=(7.6, 2.8))
day = np.arange(study.DAYS)
rows = panel.has_row[block]
axis.plot(day[rows], panel.views[block][rows], "o", color=BLUE, ms=3.5, label="released")
if exact is not None:
    axis.plot(day, exact[block], color="black", lw=0.7, label="exact (twin)")
axis.axhline(450, color=ORANGE, lw=1, ls=":", label="threshold")
axis.set(yscale="log", xlabel="days since 1 December 2019", ylabel="views per day", title=pages[0])
_ = axis.legend(fontsize=8)

# %% [markdown]
# ## The model
#
# A page's week has a level: page + summer + a stationary process. A day's views vary around the week's level. What was released
# of a day is its views plus noise, and an absent day says "below the threshold": `pm.Censored` around `Released`.

# %%
print(inspect.getsource(study.build_model))

# %%
settings = {"random_seed": 1, "progressbar": False, "predictive": False, "target_accept": 0.8}
settings |= {"draws": 60, "tune": 60, "chains": 2} if SMOKE else {"draws": 1200, "tune": 600, "chains": 4}
trace = sample(study.build_model(panel), **settings)
naive = sample(study.build_model(panel, naive=True), **settings | ({} if SMOKE else {"draws": 400, "tune": 400}))
print(trace.attrs["convergence"][:16], "|", "seconds under 120:", trace.attrs["sampling_seconds"] < 120)

# %% [markdown]
# ## Views by summer
#
# Two naive answers stand beside ours. *Absent as zero*: the sum of the rows. *Absent dropped*: the same state space with every row
# taken for exact, and absent days imputed as if they were missing at random.

# %%
ours = trace["posterior"]["views_summer"].quantile([0.025, 0.5, 0.975], ("chain", "draw")).to_numpy()
theirs = naive["posterior"]["views_summer"].quantile([0.025, 0.975], ("chain", "draw")).to_numpy()
zeros = study.by_summer(panel, np.where(panel.has_row, panel.views, 0).sum(axis=1))
truth = None if exact is None else study.by_summer(panel, exact.sum(axis=1))
print(
    "summer    absent as zero      absent dropped        noise and threshold known"
    + ("    exact" if file is None else "")
)
for i, year in enumerate(panel.summers):
    known = "" if truth is None else f"{truth[i]:10,.0f}"
    print(
        f"{year}-{(year + 1) % 100:02d} {zeros[i]:12,.0f} {theirs[0, i]:12,.0f} to {theirs[1, i]:9,.0f}"
        f" {ours[1, i]:12,.0f} ({ours[0, i]:9,.0f} to {ours[2, i]:9,.0f}) {known}"
    )

# %%
figure, axis = plt.subplots(figsize=(7.6, 3.4))
place = np.arange(len(panel.summers))
axis.vlines(place, ours[0], ours[2], color=BLUE, lw=5, label="noise and threshold known")
axis.vlines(place + 0.18, theirs[0], theirs[1], color=ORANGE, lw=5, alpha=0.7, label="naive: absent dropped")
axis.plot(place + 0.32, zeros, "x", color=ORANGE, label="naive: absent as zero")
if truth is not None:
    axis.plot(place, truth, "_", color="black", ms=16, label="exact (twin)")
axis.set(yscale="log", xlabel="summer", ylabel="views in 90 days")
axis.set_xticks(place, [f"{year}-{(year + 1) % 100:02d}" for year in panel.summers], fontsize=8)
_ = axis.legend(fontsize=8)

# %% [markdown]
# ## The summer of 2019-20 against the others

# %%
draws = trace["posterior"]["views_summer"]
ratio = draws.sel(summer=2019) / draws.drop_sel(summer=2019).mean("summer")
low, middle, high = ratio.quantile([0.025, 0.5, 0.975]).to_numpy()
print(f"{middle:.2f} times the mean of the other summers, 95 % interval {low:.2f} to {high:.2f}")
if truth is not None:
    asked = list(panel.summers).index(2019)
    print(f"exact ratio of the twin: {truth[asked] / np.delete(truth, asked).mean():.2f}")

# %% [markdown]
# Absent days are days of few views, so dropping them biases upwards, and counting them as zero biases downwards; both are
# worst where the threshold was 450. The change of mechanism in February 2023 makes later summers look larger than they were to
# whoever counts rows. Change `twin` in the spec for other twins.
