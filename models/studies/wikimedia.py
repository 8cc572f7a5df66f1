"""Views of Wikipedia's pages on bushfires from Australia, by summer, from what Wikimedia released with noise.

``system = "study:wikimedia"``. The rows are daily page views of one country: two-sided geometric noise of scale 30
until 5 February 2023, released at 450 or more; a discrete Gaussian of rho = 0.015 at an L2 sensitivity of sqrt(10)
since then, released at 90 or more. A day without a row had a noisy count below the threshold: that is known, and it is
not zero.

The model is a state space: a page's weekly level in a summer is a stationary process around level + season, and a day's
views are lognormal around it. Days are integrated out, over the noise (a Gauss rule of its law), and drawn afterwards.
Post-processing of a published release: nothing confidential is read, and nothing is charged.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pytensor.tensor as pt
from pydantic import Field
from scipy.special import log_ndtr, ndtri_exp

from dpbayes.errors import InputError, SpecError
from dpbayes.privacy import read_wikimedia_views, wikimedia_era
from dpbayes.privacy.laws import NoiseLaw
from dpbayes.runs.protocol import Context, Findings
from dpbayes.runs.spec import Chains, DataSection, Draws, RunSpec, Section, Seed, Tune

if TYPE_CHECKING:
    import pymc as pm
    import xarray as xr

DAYS, WEEKS = 90, 13  # a summer is the 90 days from 1 December
CHANGED = dt.date(2023, 2, 6)
ERAS = {
    name: (era.law, era.threshold)
    for name, era in (("until_2023", wikimedia_era(dt.date(2023, 2, 5))), ("since_2023", wikimedia_era(CHANGED)))
}
"""Noise law and threshold before and since the change, of countries like Australia."""


@dataclass(frozen=True)
class Panel:
    """Released views by page and summer (a block each) and day; absent ones are -1."""

    pages: tuple[str, ...]
    summers: tuple[int, ...]
    page: npt.NDArray[np.int64]
    summer: npt.NDArray[np.int64]
    views: npt.NDArray[np.int64]

    @property
    def late(self) -> npt.NDArray[np.bool_]:
        """Whether a day of a block lies after the change of mechanism."""
        start = np.array([np.datetime64(f"{year}-12-01") for year in self.summers])[self.summer]
        return np.asarray(start[:, None] + np.arange(DAYS) >= np.datetime64(CHANGED))

    @property
    def has_row(self) -> npt.NDArray[np.bool_]:
        """Whether a day has a row."""
        return self.views >= 0

    @property
    def data(self) -> dict[str, Any]:
        """What `build_model` observes: an absent day is seen just below its threshold."""
        return {"seen": np.where(self.has_row, self.views, self.threshold - 1)}

    @property
    def threshold(self) -> npt.NDArray[np.int64]:
        """The threshold of each day."""
        return np.where(self.late, *(threshold for _, threshold in reversed(ERAS.values())))


def empty_panel(pages: Sequence[str], summers: Sequence[int], created: Mapping[str, int]) -> Panel:
    """Lay out the blocks: a page has one for each summer since the one in which it was created."""
    blocks = [(p, s) for p, name in enumerate(pages) for s, year in enumerate(summers) if year >= created.get(name, 0)]
    page, summer = np.array(blocks).T
    return Panel(tuple(pages), tuple(summers), page, summer, np.full((len(blocks), DAYS), -1))


def read_panel(path: Path, pages: Sequence[str], summers: Sequence[int], created: Mapping[str, int]) -> Panel:
    """Read the columns page_name, date and views of a CSV file; a row below its day's threshold is refused."""
    import polars as pl

    rows = read_wikimedia_views(path).filter(pl.col("page").is_in(list(pages)))
    panel, known = empty_panel(pages, summers, created), rows["page"].unique().to_list()
    if missing := [name for name in pages if name not in known]:
        raise InputError(f"{path.name} has no row of the pages {missing}; data.pages names them as the file does")
    number = {block: i for i, block in enumerate(zip(panel.page.tolist(), panel.summer.tolist(), strict=True))}
    views = panel.views.copy()
    for name, date, seen in rows.select("page", "date", "views").iter_rows():
        year = date.year if date.month == 12 else date.year - 1
        day = (date - dt.date(year, 12, 1)).days
        block = number.get((panel.pages.index(name), panel.summers.index(year) if year in panel.summers else -1))
        if block is not None and day < DAYS:
            views[block, day] = seen
    return replace(panel, views=views)


def simulate(panel: Panel, rng: np.random.Generator) -> tuple[npt.NDArray[np.float64], Panel]:
    """Return a twin: exact views by block and day, and what would have been released of them."""
    levels = np.array([5.7, 5.6, 4.2, 4.0, 3.8, 3.5])[: len(panel.pages)]
    mean = levels[panel.page] + 0.8 * rng.standard_normal(len(panel.summers))[panel.summer]
    weekly = 0.7 * 0.7 ** np.abs(np.subtract.outer(np.arange(WEEKS), np.arange(WEEKS)))
    week = mean[:, None] + rng.multivariate_normal(np.zeros(WEEKS), weekly, len(mean))
    exact = np.exp(week[:, np.arange(DAYS) // 7] + 0.45 * rng.standard_normal((len(mean), DAYS)))
    exact = rng.poisson(exact)
    shown = np.full(exact.shape, -1)
    for (law, threshold), cells in zip(ERAS.values(), (~panel.late, panel.late), strict=True):
        noisy = exact[cells] + law.simulate((int(cells.sum()),), rng)
        shown[cells] = np.where(noisy >= threshold, noisy, -1)
    return exact, replace(panel, views=shown)


def gauss_rule(law: NoiseLaw, size: int = 8) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return nodes and weights that integrate polynomials of degree 2 size - 1 over noise exactly (Lanczos)."""
    x = np.arange(-law.tail_radius(1e-16), law.tail_radius(1e-16) + 1.0)
    q = [np.sqrt(np.exp(law.log_prob(x)))]
    q[0] /= np.linalg.norm(q[0])
    beta = []
    for _ in range(size - 1):
        v = x * q[-1]
        for u in q:  # the law is symmetric: the diagonal is zero but for rounding
            v -= (u @ v) * u
        beta.append(np.linalg.norm(v))
        q.append(v / beta[-1])
    nodes, vectors = np.linalg.eigh(np.diag(beta, 1) + np.diag(beta, -1))
    return nodes, vectors[0] ** 2


RULES = {late: gauss_rule(law) for late, (law, _) in zip((False, True), ERAS.values(), strict=True)}
WEEK = np.arange(DAYS) // 7
NAIVE_DRAWS = 400  # of the model beside, per chain: only its intervals are shown


def build_model(panel: Panel, *, naive: bool = False) -> pm.Model:
    """State the model; the naive one takes rows for exact views, and drops the days without one."""
    import pymc as pm

    from dpbayes.distributions import Released

    block = [f"{panel.pages[p]} {panel.summers[s]}" for p, s in zip(panel.page, panel.summer, strict=True)]
    late, threshold = panel.late, panel.threshold
    gaps = np.abs(np.subtract.outer(np.arange(WEEKS), np.arange(WEEKS)))

    def logp(value: Any, week: Any, daily: Any) -> Any:
        """Log-probability of rows and of absent days, the day's views integrated out."""
        around, daily = week[:, WEEK], daily[:, None]
        absent = pt.lt(value, threshold)
        nodes, weights = (np.where(late[..., None], RULES[True][i], RULES[False][i]) for i in (0, 1))
        views = value[..., None] - (0.0 if naive else nodes)
        z = (pt.log(pt.maximum(views, 1.0)) - around[..., None]) / daily[..., None]
        row = pt.logsumexp(np.log(weights) - 0.5 * z**2 - pt.log(pt.maximum(views, 1.0)), axis=-1) - pt.log(daily)
        if naive:
            return pt.switch(absent, 0.0, row)
        below = [_log_below(week, daily, limit, *RULES[since])[:, WEEK] for since, limit in ((False, 450), (True, 90))]
        return pt.switch(absent, pt.switch(late, below[1], below[0]), row)

    def dist(week: Any, daily: Any, size: Any) -> Any:
        """Draw views, and what is released of them."""
        views = pm.math.exp(week[:, WEEK] + daily[:, None] * pm.Normal.dist(shape=late.shape))
        noisy = [Released.dist(views, law) for law, _ in ERAS.values()]
        return pt.maximum(pt.switch(late, noisy[1], noisy[0]), threshold - 1)

    coords = {"page": panel.pages, "summer": panel.summers, "block": block, "week_of_summer": range(1, WEEKS + 1)}
    with pm.Model(coords=coords) as model:
        level = pm.Normal("level", 5.0, 1.5, dims="page")
        season = pm.ZeroSumNormal("season", pm.HalfNormal("between_summers", 1.0), dims="summer")
        wave, persistence = pm.HalfNormal("wave", 1.0), pm.Beta("persistence", 4.0, 2.0)
        daily = pm.LogNormal("daily", np.log(0.4), 0.5, dims="page")[panel.page]
        mean = (level[panel.page] + season[panel.summer])[:, None] + np.zeros(WEEKS)
        week = pm.MvNormal("week", mean, cov=wave**2 * persistence**gaps, dims=("block", "week_of_summer"))
        seen = pm.Data("seen", panel.data["seen"])
        pm.CustomDist("released", week, daily, logp=logp, dist=dist, observed=seen, class_name="ReleasedViews")
        model.convergence_variables = ("level", "season", "between_summers", "wave", "persistence", "daily", "week")
        model.complete_posterior = partial(add_views, panel, naive=naive)
    return model


def _log_below(week: Any, daily: Any, limit: int, nodes: Any, weights: Any) -> Any:
    """Log of the chance that a day's views and noise stay below a threshold."""
    z = (np.log(np.maximum(limit - 0.5 - nodes, 1e-9)) - week[..., None]) / daily[..., None]
    return pt.log(pt.maximum((weights * 0.5 * pt.erfc(-z / np.sqrt(2.0))).sum(axis=-1), 1e-300))


def add_views(panel: Panel, posterior: Any, data: Any, rng: np.random.Generator, *, naive: bool = False) -> Any:
    """Draw each day's exact views given its week, and add them up by block and by summer."""
    import xarray as xr

    week, spread = posterior["week"].to_numpy(), posterior["daily"].to_numpy()[..., panel.page, None]
    seen, around = data["seen"], week[..., WEEK]
    late, absent = panel.late, seen < panel.threshold
    total = np.empty((*week.shape[:2], len(panel.page)))
    for place in np.ndindex(week.shape[:2]):
        total[place] = _views(seen, around[place], spread[place], late, absent, naive, rng).sum(axis=1)
    by_summer = np.stack([total[..., panel.summer == s].sum(axis=-1) for s in range(len(panel.summers))], axis=-1)
    dims = ("chain", "draw")
    return posterior.assign(
        views=xr.DataArray(total, dims=(*dims, "block")), views_summer=xr.DataArray(by_summer, dims=(*dims, "summer"))
    )


def _views(seen: Any, around: Any, spread: Any, late: Any, absent: Any, naive: bool, rng: np.random.Generator) -> Any:
    """Draw one set of exact views: the noise is one of 12 draws of its law, by how likely it makes what was seen."""
    spread = np.broadcast_to(spread, around.shape)
    if naive:
        return np.where(absent, np.exp(around + spread * rng.standard_normal(around.shape)), seen)
    noise = np.empty((12, *around.shape))
    for since, (law, _) in zip((False, True), ERAS.values(), strict=True):
        noise[:, late == since] = law.simulate((12, int((late == since).sum())), rng)
    views = np.maximum(seen + 0.5 * absent - noise, 0.5)  # of an absent day: the bound of its views
    log_views = np.log(views)
    z = (log_views - around) / spread
    log_weight = -0.5 * z**2 - log_views
    log_weight[:, absent] = log_ndtr(z[:, absent])
    mass = np.exp(log_weight - log_weight.max(axis=0)).cumsum(axis=0)
    chosen = (mass < rng.random(absent.shape) * mass[-1]).sum(axis=0)[None]
    z, views = np.take_along_axis(z, chosen, 0)[0], np.take_along_axis(views, chosen, 0)[0]
    below = ndtri_exp(log_ndtr(z) + np.log(rng.random(z.shape)))
    return np.where(absent, np.exp(around + spread * below), views)


Year = Annotated[int, Field(ge=1900, le=2100)]


class Data(DataSection):
    """The rows, or a twin."""

    files = ("views",)

    views: str | None = None
    """CSV file of the columns page_name, date and views, beside the spec."""
    twin: Seed = 1
    """Seed of a simulated panel, which the study takes where `views` names no file: its exact views are known."""
    pages: list[str] = Field(min_length=1, max_length=6)
    """Titles of the pages."""
    summers: list[Year] = Field(min_length=2, max_length=100)
    """Years in which the summers begin, on 1 December."""
    created: dict[str, Year] = Field(default_factory=dict)
    """First summer of a page that was not there from the beginning."""


class Sampling(Section):
    """Settings of NUTS."""

    draws: Draws = Field(default=1200, ge=50)
    """Draws kept per chain."""
    tune: Tune = Field(default=1000, ge=50)
    """Draws spent on adaptation per chain."""
    chains: Chains = Field(default=4, ge=2)
    """Chains."""
    seed: Seed = 1
    """Seed of the sampler."""


class Spec(RunSpec):
    """A run of this study."""

    system: Literal["study:wikimedia"]
    """The study's name."""
    data: Data
    """What was released."""
    asked: Year
    """The summer that the others are compared with."""
    sampling: Sampling = Sampling()
    """Settings of NUTS."""


def design(spec: Spec, beside: Path, *, n_records: int | None = None, ledger: Any = None) -> None:
    """Return no release: the publisher has drawn the noise."""


def release(spec: Spec, context: Context, *, rng: Any, ledger: Any) -> None:
    """Return no release: nothing confidential is read."""


def _panel(spec: Spec, beside: Path) -> tuple[Panel, npt.NDArray[np.int64] | None]:
    """Return the released panel, and the exact views of a twin."""
    data = spec.data
    if spec.asked not in data.summers:
        raise SpecError(f"asked = {spec.asked} is none of data.summers")
    if data.views is not None:
        return read_panel(beside / data.views, data.pages, data.summers, data.created), None
    exact, panel = simulate(empty_panel(data.pages, data.summers, data.created), np.random.default_rng(data.twin))
    return panel, exact


def by_summer(panel: Panel, blocks: Any) -> npt.NDArray[np.float64]:
    """Add up what is given by block."""
    return np.array([np.asarray(blocks)[panel.summer == s].sum() for s in range(len(panel.summers))])


def fit(spec: Spec, release: None, context: Context) -> xr.DataTree:
    """Sample the views, and those of the naive model beside."""
    from dpbayes.inference import sample

    panel, exact = _panel(spec, context.beside)
    settings = spec.sampling.model_dump(exclude={"seed"}) | {"target_accept": 0.8, "adaptation": "diag"}
    options = settings | {
        "random_seed": spec.sampling.seed,
        "progressbar": False,
        "progress": context.progress,
        "predictive": False,
    }
    if exact is not None:
        context.keep("truth", by_summer(panel, exact.sum(axis=1)).tolist())
    trace = sample(build_model(panel), **options)
    short = {name: min(settings[name], NAIVE_DRAWS) for name in ("draws", "tune")}
    said = context.progress and (lambda stage, share: context.progress(f"naive model: {stage}", share))
    naive = sample(build_model(panel, naive=True), **options | short | {"progress": said})
    low, high = np.quantile(naive["posterior"]["views_summer"], [0.025, 0.975], axis=(0, 1))
    rows = {
        "rows": by_summer(panel, np.where(panel.has_row, panel.views, 0).sum(axis=1)),
        "days": by_summer(panel, panel.has_row.sum(axis=1)),
        "of_days": by_summer(panel, np.full(len(panel.page), DAYS)),
    }
    found = rows | {"low": low, "high": high}
    context.keep("naive", {name: values.tolist() for name, values in found.items()})
    return trace


def _rows(result: xr.DataTree, kept: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    naive, draws = kept["naive"], result["posterior"]["views_summer"]
    low, mean, high = (
        draws.quantile(0.025, ("chain", "draw")),
        draws.mean(("chain", "draw")),
        draws.quantile(0.975, ("chain", "draw")),
    )
    truth = kept.get("truth", [None] * draws.sizes["summer"])
    names = [f"{year}-{(year + 1) % 100:02d}" for year in draws["summer"].to_numpy().tolist()]
    return [
        (
            name,
            int(naive["days"][i]),
            int(naive["of_days"][i]),
            naive["rows"][i],
            naive["low"][i],
            naive["high"][i],
            float(low[i]),
            float(mean[i]),
            float(high[i]),
            *([] if truth[i] is None else [truth[i]]),
        )
        for i, name in enumerate(names)
    ]


def sections(spec: Spec, release: None, result: xr.DataTree, kept: Mapping[str, Any]) -> Findings:
    """Return what the page says."""
    from dpbayes.report.document import Column, Fact, Figure, Paragraph, Table
    from dpbayes.report.document import Section as PageSection
    from dpbayes.report.tables import NO_COST, show_interval

    rows = _rows(result, kept)
    draws = result["posterior"]["views_summer"]
    others = draws.drop_sel(summer=spec.asked).mean("summer")
    ratio = (draws.sel(summer=spec.asked) / others).quantile([0.025, 0.5, 0.975]).to_numpy()
    asked = next(row for row in rows if row[0].startswith(str(spec.asked)))
    views, low, high = show_interval(asked[7], asked[6], asked[8])
    columns = [
        Column("summer"),
        Column("page-days with a row", ",d"),
        Column("page-days", ",d"),
        Column("sum of rows", ",.0f"),
    ]
    columns += [
        Column("naive 2.5 %", ",.0f", "naive_low"),
        Column("naive 97.5 %", ",.0f", "naive_high"),
        Column("2.5 %", ",.0f", "low"),
        Column("mean", ",.0f"),
        Column("97.5 %", ",.0f", "high"),
    ]
    columns += [Column("exact (twin)", ",d")] if "truth" in kept else []
    caption = (
        "Views in the 90 days from 1 December, over all pages: sum of the rows (absent days as zero), the naive 95 % "
        "interval (rows as exact, absent days as if missing at random), and mean and 95 % interval that know noise "
        "and thresholds"
    )
    words = "Simulated twin. " if "truth" in kept else ""
    return Findings(
        answer=(
            f"{words}In the summer of {asked[0]} the pages had {views} views from Australia (95 % interval {low} to "
            f"{high}), {ratio[1]:.2f} times the mean of the other summers ({ratio[0]:.2f} to {ratio[2]:.2f})."
        ),
        picture=Figure(_figure(rows), f"{caption}.", "Views by summer with two intervals each"),
        sections=[
            PageSection("Views by summer", [Table("views", caption, columns, rows)]),
            PageSection("What was released", [Paragraph(_MECHANISM)]),
        ],
        cost=[NO_COST],
        headline=[
            Fact("views", f"views in the summer of {asked[0]}", asked[7], views),
            Fact("ratio", "times the mean of the other summers", float(ratio[1]), f"{ratio[1]:.2f}"),
        ],
        judged="The views by summer and the model's parameters; not the thousands of daily states.",
        provenance={"rows": spec.data.views or f"simulated twin, seed {spec.data.twin}"},
    )


_MECHANISM = (
    "Wikimedia drew the noise and states its mechanism: two-sided geometric noise of scale 30 and a threshold of 450 "
    "until 5 February 2023, a discrete Gaussian of standard deviation 18.3 and a threshold of 90 since then. This page "
    "post-processes a published release: it reads nothing confidential and costs no privacy."
)


def _figure(rows: Sequence[tuple[Any, ...]]) -> Any:
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import LogLocator

    from dpbayes.report.plots import ESTIMATE, RELEASED

    figure = Picture(figsize=(7.2, 3.7), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(rows))
    _, _, _, total, naive_low, naive_high, low, _, high, *truth = (np.array(each) for each in zip(*rows, strict=True))
    axes.vlines(
        place + 0.14, naive_low, naive_high, color=RELEASED, lw=4, alpha=0.7, label="naive: absent days dropped"
    )
    axes.plot(place + 0.28, total, "x", color=RELEASED, ms=5, label="sum of rows: absent days as zero")
    axes.vlines(place, low, high, color=ESTIMATE, lw=4, label="noise and threshold known")
    if truth:
        axes.plot(place, truth[0], "_", color="black", ms=13, label="exact views of the twin")
    axes.set(yscale="log", xlabel="summer", ylabel="views in 90 days (log scale)")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda views, _: f"{views:,.0f}")
    axes.yaxis.set_minor_formatter("")
    axes.set_xticks(place, [row[0] for row in rows], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    return figure
