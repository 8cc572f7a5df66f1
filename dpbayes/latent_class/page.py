"""The page of a latent class run: the population's shares first, then what was released and what the fit says of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes.latent_class.design import CONCENTRATION, PROFILE_PRIOR, checked_concentration
from dpbayes.latent_class.record_numbers import prior_of_n, record_numbers
from dpbayes.report.document import Block, Column, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.frame import Findings
from dpbayes.report.plots import estimate_plot, interval_panels, interval_strip, residual_plot, source_bars
from dpbayes.report.sensitivity import PriorSection, prior_section
from dpbayes.report.tables import released_section
from dpbayes.report.widths import TITLE, split_variance

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data import Attribute, Marginal
    from dpbayes.privacy import Release


type FloatArray = npt.NDArray[np.float64]

# A probability that underflows counts as the smallest normal number.
TINY = float(np.finfo(float).tiny)

INTERVAL = 0.95
"""Probability of every interval on the page; intervals are equal-tailed."""

MOST_CELLS_DRAWN = 64
MOST_ANSWERED = 6
MOST_SHARES_DRAWN = 24

_CALLED = {
    "margin": "cells of the released tables",
    "cell": "cells of the full table, which the tables leave partly open",
}
_RECORDS = [
    Column("these records", ",.0f", "records"),
    Column("2.5 %", ",.0f", "records_lower"),
    Column("97.5 %", ",.0f", "records_upper"),
]
_ESTIMATE = [Column("estimate", ",.1f"), Column("2.5 %", ",.1f", "lower"), Column("97.5 %", ",.1f", "upper")]

_JUDGED = (
    "Class labels switch between chains, which is harmless: convergence is judged on quantities that do not depend on "
    "them, the probabilities of margins and cells."
)


def findings(
    trace: xr.DataTree, release: Release, *, truth: Sequence[Marginal] | None, priors: dict[str, Any] | None
) -> Findings:
    """Return what a fit says."""
    shares = population_shares(trace, release)
    found = [margins_section(trace, release, truth), fit_section(trace, release)]
    if "cell" in trace["posterior"]:
        found.insert(1, cells_section(trace, release))
    prior = _prior(trace, release, priors)
    size = float(record_numbers(trace["posterior"].to_dataset(), release).mean())
    return Findings(
        answer=_answer(trace, release, shares),
        picture=_picture(shares),
        caution=prior.caution if isinstance(prior, PriorSection) else "",
        headline=[
            Fact("n_counts", "noisy counts released", release.n_counts, f"{release.n_counts}"),
            Fact("n", "records" if release.n_public else "records (posterior mean)", size, f"{size:,.0f}"),
        ],
        sections=[found[0], *found[1:-1], prior, sources_section(trace, release), released_section(release), found[-1]],
        judged=_JUDGED,
    )


def population_shares(trace: xr.DataTree, release: Release) -> dict[Attribute, FloatArray]:
    """Return mean and 95 % interval of the population's share of every level, shape ``(levels, 3)``, by attribute."""
    draws = trace["posterior"]["margin"].transpose("chain", "draw", ...).to_numpy()
    draws = draws.reshape(-1, draws.shape[-1])
    ends = np.cumsum([table.counts.size for table in release.tables])
    shares: dict[Attribute, FloatArray] = {}
    for table, end in zip(release.tables, ends, strict=True):
        cells = draws[:, end - table.counts.size : end].reshape(-1, *table.domain.shape)
        for axis, attribute in enumerate(table.domain):
            if attribute not in shares:  # all tables agree: they are margins of one table
                rest = tuple(1 + other for other in range(len(table.domain)) if other != axis)
                shares[attribute] = _of(cells.sum(axis=rest) if rest else cells)
    return shares


def _of(draws: FloatArray) -> FloatArray:
    """Return mean and bounds of draws, shape ``(draws, quantities)``."""
    bounds = np.quantile(draws, [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=0)
    return np.column_stack([draws.mean(axis=0), *bounds])


def _told(attribute: Attribute) -> list[int]:
    """Return the levels that say all of an attribute: one of two, or all."""
    return [1] if attribute.size == 2 else list(range(attribute.size))


def _answer(trace: xr.DataTree, release: Release, shares: dict[Attribute, FloatArray]) -> str:
    """Say the population's shares, attribute by attribute, and the strongest association."""
    parts = []
    for attribute, estimates in list(shares.items())[:MOST_ANSWERED]:
        level = 1 if attribute.size == 2 else int(estimates[:, 0].argmax())
        parts.append(f"{attribute.phrases[level]} {_percent(estimates[level])}")
    more = "" if len(shares) <= MOST_ANSWERED else f", and {len(shares) - MOST_ANSWERED} more attributes below"
    kept = "of the population behind these records" if release.n_public else "of the population"
    text = f"Shares {kept}, with 95 % intervals: {'; '.join(parts)}{more}."
    return " ".join([text, *_association(trace, release)])


def _association(trace: xr.DataTree, release: Release) -> list[str]:
    """Say of the most associated pair of a released two-way table how far one attribute moves the other."""
    draws = trace["posterior"]["margin"].transpose("chain", "draw", ...).to_numpy()
    draws = draws.reshape(-1, draws.shape[-1])
    ends = np.cumsum([table.counts.size for table in release.tables])
    best: tuple[float, str] | None = None
    for table, end in zip(release.tables, ends, strict=True):
        if len(table.domain) != 2:
            continue
        cells = draws[:, end - table.counts.size : end].reshape(-1, *table.domain.shape)
        mean = cells.mean(axis=0)
        expected = np.outer(mean.sum(axis=1), mean.sum(axis=0))
        phi = float(((mean - expected) ** 2 / np.where(expected > 0, expected, 1.0)).sum())
        strength = phi / (min(table.domain.shape) - 1)  # Cramer's V, squared
        if best is not None and strength <= best[0]:
            continue
        given = cells / np.maximum(cells.sum(axis=2, keepdims=True), 1e-12)
        spread = np.ptp(given.mean(axis=0), axis=0)
        column = 1 if table.domain.shape[1] == 2 else int(spread.argmax())
        low, high = np.argsort(given.mean(axis=0)[:, column])[[0, -1]]
        first, second = table.domain
        words = [f"{_percent(_of(given[:, [row], column])[0])} among {first.phrases[row]}" for row in (low, high)]
        best = strength, f"The strongest association: {second.phrases[column]} has a share of {' and '.join(words)}."
    return [] if best is None else [best[1]]


def _percent(estimate: FloatArray) -> str:
    """Return mean and bounds as percentages: 94.1 % (93.4 to 94.6)."""
    mean, low, high = 100 * estimate
    return f"{mean:.1f}\N{NO-BREAK SPACE}% ({low:.1f} to {high:.1f})"


def _picture(shares: dict[Attribute, FloatArray]) -> Figure:
    rows = [(attribute, level) for attribute in shares for level in _told(attribute)][:MOST_SHARES_DRAWN]
    figure = estimate_plot(
        [attribute.words[level] if attribute.labels else f"{attribute.name} = {attribute.words[level]}"
         for attribute, level in rows],
        100 * np.array([shares[attribute][level] for attribute, level in rows]),
        xlabel="share of the population (%)",
        limits=(0, 100),
    )  # fmt: skip
    told = "; ".join(f"{a.phrases[level]} {_percent(shares[a][level])}" for a, level in rows)
    return Figure(figure, "The population's shares with 95 % intervals: privacy noise and sampling are in them.", told)


def _prior(trace: xr.DataTree, release: Release, priors: dict[str, Any] | None) -> Section:
    """Build the section on sensitivity to the prior, from the parameters that the trace records."""
    if priors is None:
        text = "Left out: the model is a variant, and the page does not know its prior's density."
        return Section("How much does the prior decide?", [Paragraph(text)])
    variables = [name for name in ("margin", "cell") if name in trace["posterior"]]
    parts, likelihood = latent_class_densities(trace, release, **priors)
    sticks, profiles = _stated(**{"spread": trace["constant_data"]["spread"].item()} | priors)
    weights = f"the prior of the class weights (the number of classes that matter; {sticks}) and "
    what = (
        f"The parts are {weights if 'class weights' in parts else ''}the prior of the class profiles (how sharply a "
        f"class pins its attributes; {profiles})"
    )
    what += ", and that of the number of records." if "number of records" in parts else "."
    if "level_deviations" in trace["posterior"]:
        what += (
            " The confidential counts that the fit carries along are on the likelihood's side, with the noise: their "
            "law is the drawing of the records from the population, which is no choice of ours."
        )
    return prior_section(
        trace,
        parts,
        variables=variables,
        what=what,
        log_likelihood=likelihood,
        called=_CALLED,
        named=_quantity_names(release),
    )


def _quantity_names(release: Release) -> dict[str, list[str]]:
    """Return what the quantities of the judged variables are called."""
    margins = [f"{label} ({table.label})" for table in release.tables for label in table.domain.cell_labels()]
    return {"margin": margins, "cell": release.domain.cell_labels() if release.domain.size <= 2**16 else []}


def _stated(
    concentration: float | Sequence[float] = CONCENTRATION,
    profiles: str = "common",
    spread: float | None = None,
    profile_prior: float = PROFILE_PRIOR,
) -> tuple[str, str]:
    """Return the priors of the class weights and profiles in formulas, with their numbers."""
    given = checked_concentration(concentration)
    alpha = "gamma({:g}, {:g})".format(*given) if isinstance(given, tuple) else f"{given:g}"
    sign = "~" if isinstance(given, tuple) else "="
    a = profile_prior
    law = (
        f"Dirichlet({a:g}, ..., {a:g})"
        if profiles == "dirichlet"
        else f"released share times exp({spread:g} z), z ~ N(0, 1)"
    )
    return f"sticks ~ beta(1, α), α {sign} {alpha}", law


def summarize(draws: xr.DataArray) -> FloatArray:
    """Return mean, lower and upper end of the 95 % interval of every quantity, shape ``(quantities, 3)``."""
    mean = draws.mean(("chain", "draw"))
    ends = draws.quantile([(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], ("chain", "draw"))
    return np.column_stack([mean.to_numpy().ravel(), *(end.to_numpy().ravel() for end in ends)])


def mean_l1(estimates: Sequence[FloatArray], truth: Sequence[FloatArray]) -> float:
    """Return the mean over tables of the sum of absolute differences in proportions, between 0 and 2."""
    errors = [np.abs(ours - true).sum() / true.sum() for ours, true in zip(estimates, truth, strict=True)]
    return float(np.mean(errors))


def margins_section(trace: xr.DataTree, release: Release, truth: Sequence[Marginal] | None) -> Section:
    """Build the section that sets released beside estimated margins, and the truth where it is public."""
    ends = np.cumsum([t.counts.size for t in release.tables])[:-1]
    posterior = trace["posterior"].to_dataset()
    n = record_numbers(posterior, release)
    counts = summarize(posterior["margin"] * n)
    population = np.split(counts, ends)
    records = None
    if "exact_counts" in posterior:
        # An impossible cell holds no record; the fit's counts are real numbers, off by the likelihood's nugget, and
        # its normal law knows no zero.
        held = summarize(posterior["exact_counts"].clip(min=0.0))
        records = np.split(np.where(counts[:, :1] > 0, held, 0.0), ends)
    released = [t.counts.ravel().astype(float) for t in release.tables]
    true = None if truth is None else [table.counts.ravel().astype(float) for table in truth]
    blocks: list[Block] = [Paragraph(_introduction(release, float(n.mean()), with_records=records is not None))]
    if true is not None:
        blocks.append(_error_table(records, population, released, true))
    panels = interval_panels(
        [t.label for t in release.tables],
        [t.domain.cell_labels(" · ", names=False) for t in release.tables],
        population,
        records,
        released,
        true,
    )
    also = "" if true is None else ", true count"
    intervals = ("both 95 % intervals", "two 95 % intervals") if records else ("the 95 % interval", "a 95 % interval")
    blocks.append(
        Figure(
            panels,
            f"Each table's cells around their estimated count (zero): {intervals[0]}, released count{also}, in "
            "records. Row labels give the levels in the order of the title.",
            f"For every cell of every released table, {intervals[1]} and the released count{also}.",
        )
    )
    blocks.append(_margin_table(release, records, population, released, true))
    return Section("Margins: released and estimated", blocks)


def cells_section(trace: xr.DataTree, release: Release) -> Section:
    """Build the section on the full table."""
    posterior = trace["posterior"].to_dataset()
    n = record_numbers(posterior, release)
    summary = summarize(posterior["cell"] * n)
    labels = release.domain.cell_labels()
    # A share that is never above zero is a structural zero's: no mixture of positive parts gives one.
    possible = summary[:, 0] > 0
    text = (
        f"The population's cells, per {n.mean():,.0f} records: privacy noise and sampling both widen their intervals. "
    )
    if any(len(table.domain) == len(release.domain) for table in release.tables):
        text += "The table was itself released."
    else:
        text += (
            "The released margins do not determine them: what is left open is filled by the prior, and the intervals "
            "say how much is open under it."
        )
    if not possible.all():
        text += f" {np.sum(~possible)} of the {len(labels)} cells were declared impossible and are zero with certainty."
    blocks: list[Block] = [Paragraph(text)]
    if possible.sum() <= MOST_CELLS_DRAWN:
        shown = [
            label for label, keep in zip(release.domain.cell_labels(" · ", names=False), possible, strict=True) if keep
        ]
        blocks.append(
            Figure(
                interval_strip(
                    shown,
                    summary[possible],
                    None,
                    xlabel="records (logarithmic axis; an interval that reaches the left edge goes on to zero)",
                ),
                "The population's full table with 95 % intervals. Labels give the levels of "
                f"{', '.join(release.domain.names)}.",
                "Estimated counts of every cell of the full table with 95 % intervals, sorted.",
            )
        )
    rows = [[label, *map(float, row)] for label, row in zip(labels, summary, strict=True)]
    blocks.append(Table("cells", "The population's full table, in records", [Column("cell"), *_ESTIMATE], rows))
    return Section("The full table", blocks)


def fit_section(trace: xr.DataTree, release: Release) -> Section:
    """Build the posterior predictive check of the released counts."""
    drawn = trace["posterior_predictive"]["released"].stack(draws=("chain", "draw")).transpose("draws", ...)
    values = drawn.to_numpy().reshape(drawn.sizes["draws"], -1)
    observed = np.concatenate([t.counts.ravel() for t in release.tables]).astype(float)
    spread = values.std(0, ddof=1)
    # Where noise is far below one count, no draw of an impossible cell's may differ from zero; its law still does.
    noise = np.sqrt(np.concatenate([t.variances.ravel() for t in release.tables]))
    residuals = (observed - values.mean(0)) / np.where(spread > 0, spread, noise)
    tails = 2 * np.minimum((values <= observed).mean(0), (values >= observed).mean(0))
    rows = [
        ("released counts outside their 95 % predictive interval", int((tails < 1 - INTERVAL).sum())),
        ("expected outside by chance", len(observed) * (1 - INTERVAL)),
        ("largest absolute standardized residual", float(np.abs(residuals).max())),
        ("root mean square of the standardized residuals", float(np.sqrt(np.mean(residuals**2)))),
    ]
    groups = [t.label for t in release.tables for _ in range(t.counts.size)]
    return Section(
        "Does the model explain the released counts?",
        [
            Paragraph(
                "Posterior predictive check: tables drawn from the fitted model, with the same noise added, against "
                "the counts that were released. The model has seen these counts, so that residuals are smaller than in "
                "fresh data: look for single large ones and for a table whose residuals all point one way."
            ),
            Table(
                "predictive_check",
                "Released counts and their predictive law",
                [Column("check"), Column("value", ".3g")],
                rows,
            ),
            Figure(
                residual_plot(groups, residuals, limit=2.0),
                "Released count minus predictive mean, in predictive standard deviations; the band is 2 either side.",
                "Standardized posterior predictive residuals of every released count, grouped by table.",
            ),
        ],
    )


def _margin_table(
    release: Release,
    records: Sequence[FloatArray] | None,
    population: Sequence[FloatArray],
    released: Sequence[FloatArray],
    true: Sequence[FloatArray] | None,
) -> Table:
    columns = [
        Column("table"),
        Column("cell"),
        Column("released", ",.0f"),
        *([] if records is None else _RECORDS),
        Column("population", ",.0f"),
        Column("2.5 %", ",.0f", "population_lower"),
        Column("97.5 %", ",.0f", "population_upper"),
    ]
    rows = []
    for t, table in enumerate(release.tables):
        for c, label in enumerate(table.domain.cell_labels()):
            ours = [] if records is None else [*map(float, records[t][c])]
            row = [table.label, label, released[t][c], *ours, *map(float, population[t][c])]
            rows.append(row if true is None else [*row, float(true[t][c])])
    if true is not None:
        columns.append(Column("true", ",.0f"))
    return Table("margins", "Released and estimated margins, in records", columns, rows)


def _error_table(
    records: Sequence[FloatArray] | None,
    population: Sequence[FloatArray],
    released: Sequence[FloatArray],
    true: Sequence[FloatArray],
) -> Table:
    rows: list[Sequence[str | float | None]] = [
        ("posterior mean, population", mean_l1([p[:, 0] for p in population], true), None),
        ("released counts as they are", mean_l1(released, true), None),
    ]
    if records is not None:
        inside = np.concatenate([(r[:, 1] <= t) & (t <= r[:, 2]) for r, t in zip(records, true, strict=True)])
        error = mean_l1([r[:, 0] for r in records], true)
        rows.insert(0, ("posterior mean, these records", error, float(inside.mean())))
    return Table(
        "margin_error",
        "Error against the true tables, which are public here",
        [
            Column("estimator"),
            Column("mean L1 distance per table (proportions)", ".5f", "mean_l1"),
            Column("true counts inside their 95 % interval", ".1%", "coverage"),
        ],
        rows,
    )


def _introduction(release: Release, size: float, *, with_records: bool) -> str:
    """Say what the intervals are about, and what a fit without draws of the confidential counts cannot say."""
    if with_records:
        scale = (
            f"per {size:,.0f} persons"
            if release.n_public
            else "times the number of records, draw by draw, which was released with noise and has a posterior mean of "
            f"{size:,.0f}"
        )
        return (
            "Two questions, two intervals. How many of these records are in a cell? Only privacy noise hides that. "
            "What share of the population behind them is in the cell? Sampling adds to the noise. The second is given "
            f"{scale}, so that both are in records (a draw below zero, which the counts' normal law allows, is taken "
            "as none). Unlike the released tables, the estimates agree with one another."
        )
    return (
        f"What share of the population behind these records is in a cell, per {size:,.0f} persons? Privacy noise and "
        "sampling both hide it. How many of these records are in the cell is not recorded for releases of more than "
        "20,000 counts. Unlike the released tables, the estimates agree with one another."
    )


def sources_section(trace: xr.DataTree, release: Release) -> Section:
    """Build the section that splits the width of the population's intervals by its sources, a row per table."""
    posterior = trace["posterior"].to_dataset()
    if "exact_counts" not in posterior:
        text = (
            "Not split: the trace holds no draws of the confidential counts, so that it does not say how much of a "
            "width would be left if they were known."
        )
        return Section(TITLE, [Paragraph(text)])
    shares, counts = (
        np.asarray(posterior[name].transpose("chain", "draw", ...).to_numpy(), dtype=float)
        .reshape(-1, posterior[name].sizes["count"])
        for name in ("margin", "exact_counts")
    )  # fmt: skip
    n = record_numbers(posterior, release).to_numpy().ravel()
    privacy, sampling = split_variance(n[:, None] * shares, counts)
    centre = shares.mean(axis=0)
    binomial = n.mean() * centre * (1 - centre)
    ends = np.cumsum([table.counts.size for table in release.tables])[:-1]
    parts = [np.split(values, ends) for values in (privacy, sampling, binomial)]
    rows = [
        (table.label, float(np.sqrt(table.variances.mean())), *(float(np.sqrt(part[t].mean())) for part in parts))
        for t, table in enumerate(release.tables)
    ]
    released_noise, left = (sum(row[column] ** 2 for row in rows) for column in (1, 2))
    pooled = math.sqrt(left / released_noise) if released_noise > 0 else 1.0  # a scale so small that it underflows
    text = _split_text(float(privacy.sum() / (privacy + sampling).sum()), pooled)
    if not release.n_public:
        text += (
            " Their number was released with noise: the population's counts are shares times its draws, and binomial "
            f"sampling is that of its posterior mean, {n.mean():,.0f} records."
        )
    columns = [
        Column("table"),
        Column("noise as released", ".1f", "noise_sd"),
        Column("privacy noise that is left", ".1f", "privacy_sd"),
        Column("sampling and model", ".1f", "sampling_sd"),
        Column("binomial sampling alone", ".1f", "binomial_sd"),
    ]
    return Section(
        TITLE,
        [
            Paragraph(text),
            Figure(
                source_bars(rows),
                "Variance of a population count by its source, averaged over the table's cells, in squared records. "
                "The tick is binomial sampling alone: where the bar's second part is longer, the model's own "
                "uncertainty adds to it; where it is shorter, other tables inform this one.",
                "Stacked bars, one per table: variance from privacy noise, and from sampling and the model.",
            ),
            Table("sources", "Standard deviations by source, root mean square over cells, in records", columns, rows),
        ],
    )


def _split_text(share: float, pooled: float) -> str:
    return (
        f"Of the variance of the population's counts, {share:.0%} is left by the privacy noise and {1 - share:.0%} "
        "comes from sampling, with what the model knows and does not know. Without noise the first part would be gone; "
        "with more records the second would shrink as a share of them. By pooling the tables, the model leaves the "
        f"noise with {pooled:.0%} of the standard deviation that it was released with."
    )


def latent_class_densities(
    trace: xr.DataTree,
    release: Release,
    *,
    concentration: float | Sequence[float] = CONCENTRATION,
    profiles: str = "common",
    spread: float | None = None,
    profile_prior: float = PROFILE_PRIOR,
) -> tuple[dict[str, xr.DataArray], xr.DataArray]:
    r"""Return the parts of the prior of a latent class fit, and its log-likelihood."""
    posterior = trace["posterior"].to_dataset()
    weights, weights_jacobian = _weights(posterior, concentration)
    levels, levels_jacobian = _levels(posterior, profile_prior)
    free_weights = "alpha" in posterior or "stick" in posterior
    parts = ({"class weights": weights} if free_weights else {}) | {"class profiles": levels}
    jacobian = weights_jacobian + levels_jacobian
    if "n" in posterior:
        n = _values(posterior, "n")[..., 0]
        mean, scale = prior_of_n(release)
        # The Jacobian takes the log-normal density's own 1 / n away.
        parts["number of records"] = -np.log(n) - 0.5 * np.square((np.log(n) - mean) / scale)
        jacobian = jacobian + np.log(n)
    lp = np.asarray(trace["sample_stats"]["lp"].transpose("chain", "draw"), dtype=float)
    likelihood = lp - sum(parts.values()) - jacobian
    return {name: _named(part) for name, part in parts.items()}, _named(likelihood)


def _weights(posterior: xr.Dataset, concentration: float | Sequence[float]) -> tuple[FloatArray, FloatArray]:
    """Return log-prior and log-Jacobian of the concentration (sampled as its logarithm) and the sticks (log-odds)."""
    from scipy import stats

    prior = jacobian = np.zeros((posterior.sizes["chain"], posterior.sizes["draw"], 1))
    given = checked_concentration(concentration)
    alpha: float | FloatArray
    if isinstance(given, tuple):
        alpha = _values(posterior, "alpha")
        prior, jacobian = stats.gamma.logpdf(alpha, given[0], scale=1 / given[1]), np.log(alpha)
    else:
        alpha = given
    if "stick" in posterior:
        stick = _values(posterior, "stick")
        prior = prior + stats.beta.logpdf(stick, 1.0, alpha).sum(axis=-1, keepdims=True)
        jacobian = jacobian + (np.log(stick) + np.log1p(-stick)).sum(axis=-1, keepdims=True)
    return prior[..., 0], jacobian[..., 0]


def _levels(posterior: xr.Dataset, profile_prior: float) -> tuple[FloatArray, FloatArray]:
    """Return log-prior and log-Jacobian of the levels' normal scores, or of the logarithms of their gamma weights."""
    if "level_scores" in posterior:
        scores = _values(posterior, "level_scores")
        return -0.5 * np.square(scores).sum(axis=-1), np.zeros(scores.shape[:2])
    levels = _values(posterior, "level_weights").clip(TINY)
    logs = np.log(levels).sum(axis=-1)
    return (profile_prior - 1.0) * logs - levels.sum(axis=-1), logs


def _values(posterior: xr.Dataset, name: str) -> FloatArray:
    """Return draws as an array of shape (chain, draw, values)."""
    values = np.asarray(posterior[name].transpose("chain", "draw", ...), dtype=float)
    return values.reshape(*values.shape[:2], -1)


def _named(values: FloatArray) -> xr.DataArray:
    import xarray as xr

    return xr.DataArray(values, dims=("chain", "draw"))
