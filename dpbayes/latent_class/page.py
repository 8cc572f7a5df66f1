"""The page of a latent class run: the population's shares first, then what was released and what the fit says of it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbayes._arguments import Floats
from dpbayes._lazy import xr
from dpbayes.inference.noisy_counts import released_limits, released_vector
from dpbayes.latent_class.design import (
    OVERDISPERSION,
    PROFILE_PRIOR,
    by_table,
    checked_concentration,
    flat_draws,
    prior_of_n,
    record_numbers,
)
from dpbayes.report.document import Block, Column, Fact, Figure, Paragraph, Section, Table
from dpbayes.report.frame import Findings
from dpbayes.report.plots import SCREEN_ROWS, estimate_plot, interval_panels, residual_plot
from dpbayes.report.sensitivity import WIDTH_TITLE, prior_section, shares_section, split_variance
from dpbayes.report.tables import interval_columns, mean_and_interval, released_section

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

    from dpbayes.data import Attribute, Domain, Marginal
    from dpbayes.privacy import Release


# A probability that underflows counts as the smallest normal number.
TINY = float(np.finfo(float).tiny)

MOST_CELLS_DRAWN = 64  # of a figure below the first screen
MOST_ANSWERED = 6

_CALLED = {
    "margin": "cells of the released tables",
    "cell": "cells of the full table, which the tables leave partly open",
}
FALSE_ALARM = 1e-3  # the chance, at most, that a fit of a right model names any table
_REMEDIES = (
    "Some tables are farther from the model than their noise allows. Mostly one attribute determines another there, "
    "as a code determines its group, which a mixture of some dozen classes cannot say. Leave one of the two out and "
    "derive it afterwards, merge levels, or declare the combinations that cannot occur (impossible)."
)
_JUDGED = (
    "Class labels switch between chains, which is harmless: convergence is judged on quantities that do not depend on "
    "them, the probabilities of margins and cells."
)


def findings(
    trace: xr.DataTree,
    release: Release,
    *,
    truth: Sequence[Marginal] | None,
    priors: dict[str, Any] | None,
    question: str = "",
) -> Findings:
    """Return what a fit says; attributes that the question names come first in the answer."""
    shares = population_shares(trace, release)
    mentions = {attribute: _mention(attribute.name, question) for attribute in shares}
    ordered = {attribute: shares[attribute] for attribute in sorted(shares, key=mentions.__getitem__)}
    asked = [attribute for attribute in ordered if mentions[attribute] < math.inf]
    full = [cells_section(trace, release)] if "cell" in trace["posterior"] else []
    size = float(_record_numbers(trace, release).mean())
    prior, fit = _prior(trace, release, priors), fit_section(trace, release)
    return Findings(
        answer=_answer(trace, release, ordered, asked[0] if asked else None),
        picture=_picture(ordered, asked),
        headline=[
            Fact("n_counts", "noisy counts released", release.n_counts, f"{release.n_counts}"),
            Fact("n", "records" if release.n_public else "records (posterior mean)", size, f"{size:,.0f}"),
        ],
        sections=[
            _shares_section(shares),
            margins_section(trace, release, truth),
            *full,
            prior,
            sources_section(trace, release),
            released_section(release),
            fit,
        ],
        caution=" ".join(filter(None, (fit.caution, prior.caution))),
        judged=_JUDGED,
        named=quantity_names(release),
    )


def _draws(trace: xr.DataTree, name: str) -> Floats:
    """Return draws of a variable, shape ``(draws, quantities)``."""
    values = flat_draws(trace["posterior"].to_dataset(), name)
    return values.reshape(len(values), -1).astype(float)


def _cells(trace: xr.DataTree, release: Release) -> list[tuple[Domain, Floats]]:
    """Return the attributes of every released table, with draws of its cells' probabilities."""
    parts = zip(release.tables, by_table(_draws(trace, "margin"), release), strict=True)
    return [(table.domain, part.reshape(-1, *table.domain.shape)) for table, part in parts]


def population_shares(trace: xr.DataTree, release: Release) -> dict[Attribute, Floats]:
    """Return mean and 95 % interval of the population's share of every level, shape ``(levels, 3)``, by attribute."""
    shares: dict[Attribute, Floats] = {}
    for domain, cells in _cells(trace, release):
        for axis, attribute in enumerate(domain):
            if attribute not in shares:  # all tables agree: they are margins of one table
                rest = tuple(1 + other for other in range(len(domain)) if other != axis)
                shares[attribute] = mean_and_interval(cells.sum(axis=rest) if rest else cells)
    return shares


def _record_numbers(trace: xr.DataTree, release: Release) -> Floats:
    """Return the number of records of every draw, shape ``(draws, 1)``."""
    return np.asarray(record_numbers(trace["posterior"].to_dataset(), release), dtype=float).reshape(-1, 1)


def _told(attribute: Attribute) -> list[int]:
    """Return the levels that say all of an attribute: one of two, or all."""
    return [1] if attribute.size == 2 else list(range(attribute.size))


def _first_level(attribute: Attribute, estimates: Floats) -> int:
    """Return the level that stands for an attribute: the second of two, or the most frequent."""
    return 1 if attribute.size == 2 else int(estimates[:, 0].argmax())


def _mention(name: str, question: str) -> float:
    """Return the place of the first word of a question that is, or begins as, a word of a name ("smokes", "smoker")."""
    parts = re.findall(r"\w+", name.casefold())
    words = enumerate(re.findall(r"\w+", question.casefold()))
    return next((i for i, w in words if any(w == p or w[:5] == p[:5] for p in parts if w[4:] or w == p)), math.inf)


def _answer(
    trace: xr.DataTree, release: Release, shares: dict[Attribute, Floats], asked: Attribute | None = None
) -> str:
    """Say the population's shares, attribute by attribute, and the strongest association."""
    parts = []
    for attribute, estimates in list(shares.items())[:MOST_ANSWERED]:
        level = _first_level(attribute, estimates)
        parts.append(f"{attribute.phrases[level]} {_percent(estimates[level])}")
    more = "" if len(shares) <= MOST_ANSWERED else f", and {len(shares) - MOST_ANSWERED} more attributes below"
    kept = "of the population behind these records" if release.n_public else "of the population"
    text = f"Shares {kept}, with 95 % intervals: {'; '.join(parts)}{more}."
    return " ".join([text, *_association(trace, release, asked)])


def _association(trace: xr.DataTree, release: Release, asked: Attribute | None) -> list[str]:
    """Say of the most associated pair of a released two-way table how far one attribute moves the one asked for.

    Only where it does so beyond doubt: its two intervals are apart.
    """
    best: tuple[float, str] | None = None
    for domain, cells in _cells(trace, release):
        if len(domain) != 2 or (cells.max(axis=0) == 0).any():  # what was declared impossible is no finding
            continue
        pair = tuple(domain)
        if asked in pair[:1]:
            pair, cells = pair[::-1], cells.swapaxes(1, 2)
        if asked is not None and asked != pair[1]:
            continue
        mean = cells.mean(axis=0)
        expected = np.outer(mean.sum(axis=1), mean.sum(axis=0))
        phi = float(((mean - expected) ** 2 / np.where(expected > 0, expected, 1.0)).sum())
        strength = phi / (min(mean.shape) - 1)  # Cramer's V, squared
        if best is not None and strength <= best[0]:
            continue
        given = cells / np.maximum(cells.sum(axis=2, keepdims=True), 1e-12)
        spread = np.ptp(given.mean(axis=0), axis=0)
        column = 1 if mean.shape[1] == 2 else int(spread.argmax())
        low, high = np.argsort(given.mean(axis=0)[:, column])[[0, -1]]
        first, second = pair
        told = [mean_and_interval(given[:, row, column]) for row in (low, high)]
        if told[0][2] >= told[1][1]:  # intervals that overlap tell no difference
            continue
        words = [f"{_percent(one)} among {first.phrases[row]}" for one, row in zip(told, (low, high), strict=True)]
        best = strength, f"The strongest association: {second.phrases[column]} has a share of {' and '.join(words)}."
    return [] if best is None else [best[1]]


def _percent(estimate: Floats) -> str:
    """Return mean and bounds as percentages: 94.1 % (93.4 to 94.6)."""
    mean, low, high = 100 * estimate
    return f"{mean:.1f}\N{NO-BREAK SPACE}% ({low:.1f} to {high:.1f})"


def _picture(shares: dict[Attribute, Floats], asked: Collection[Attribute] = ()) -> Figure:
    """Draw a screen's worth of levels: of every attribute one, then those asked for, then the largest."""
    rows = [(attribute, level) for attribute in shares for level in _told(attribute)]
    some = ""
    if len(rows) > SCREEN_ROWS:
        first = {(attribute, _first_level(attribute, estimates)) for attribute, estimates in shares.items()}
        rank = {row: (row not in first, row[0] not in asked, -shares[row[0]][row[1], 0]) for row in rows}
        drawn = set(sorted(rows, key=rank.__getitem__)[:SCREEN_ROWS])
        then = "then those that the question asks for, " if asked else ""
        some = f" Drawn are {SCREEN_ROWS} of {len(rows)} levels: one of each attribute first, {then}then the largest."
        rows = [row for row in rows if row in drawn]
    alt = "; ".join(f"{a.phrases[level]} {_percent(shares[a][level])}" for a, level in rows)
    caption = f"The population's shares with 95 % intervals: privacy noise and sampling are in them.{some}"
    return Figure(_share_plot(shares, rows), caption, alt)


def _share_plot(shares: dict[Attribute, Floats], rows: Sequence[tuple[Attribute, int]]) -> MatplotlibFigure:
    return estimate_plot(
        [attribute.phrases[level] for attribute, level in rows],
        100 * np.array([shares[attribute][level] for attribute, level in rows]),
        xlabel="share of the population (%)",
        limits=(0, 100),
    )


def _shares_section(shares: dict[Attribute, Floats]) -> Section:
    """Return the table of all attributes' shares, and their picture where the first one draws a part."""
    rows: list[tuple[str | float, ...]] = [
        (attribute.name, attribute.words[level], *map(float, 100 * estimates[level]))
        for attribute, estimates in shares.items()
        for level in range(attribute.size)
    ]
    columns = [Column("attribute"), Column("level"), *interval_columns(".1f")]
    table = Table("shares", "Shares of the population's members, in percent, with 95 % intervals", columns, rows)
    told = [(attribute, level) for attribute in shares for level in _told(attribute)]
    blocks: list[Block] = [table]
    if SCREEN_ROWS < len(told) <= MOST_CELLS_DRAWN:
        alt = "Every level's share with its 95 % interval, as in the table."
        blocks.insert(0, Figure(_share_plot(shares, told), "The share of every level, with 95 % intervals.", alt))
    return Section("Shares of every level", blocks)


def _prior(trace: xr.DataTree, release: Release, priors: dict[str, Any] | None) -> Section:
    """Build the section on sensitivity to the prior, from the parameters that the trace records."""
    if priors is None:
        text = "Left out: the model is a variant, and the page does not know its prior's density."
        return Section("How much does the prior decide?", [Paragraph(text)])
    variables = [name for name in ("margin", "cell") if name in trace["posterior"]]
    constant = trace["constant_data"]
    priors = {
        name: constant[name].to_numpy().tolist() for name in ("spread", "concentration") if name in constant
    } | priors
    parts, likelihood = latent_class_densities(trace, release, **priors)
    sticks, profiles = _stated(**priors)
    weights = f"the prior of the class weights (the number of classes that matter; {sticks}) and "
    what = (
        f"The parts are {weights if 'class weights' in parts else ''}the prior of the class profiles (how sharply a "
        f"class pins its attributes; {profiles})"
    )
    further = [f"that of the {name}" for name in ("number of records", "overdispersion") if name in parts]
    what += f", and {' and '.join(further)}." if further else "."
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
        named=quantity_names(release),
    )


def quantity_names(release: Release) -> dict[str, list[str]]:
    """Return what the quantities of the judged variables are called."""
    margins = [f"{label} ({table.label})" for table in release.tables for label in table.domain.cell_labels()]
    return {"margin": margins, "cell": release.domain.cell_labels() if release.domain.size <= 2**16 else []}


def _stated(
    concentration: float | Sequence[float],
    profiles: str = "common",
    spread: float | None = None,
    profile_prior: float = PROFILE_PRIOR,
) -> tuple[str, str]:
    """Return the priors of the class weights and profiles in formulas, with their numbers."""
    given = checked_concentration(concentration)
    alpha = "~ gamma({:g}, {:g})".format(*given) if isinstance(given, tuple) else f"= {given:g}"
    sticks = f"sticks ~ beta(1, α), α {alpha}"
    if profiles == "dirichlet":
        return sticks, f"Dirichlet({profile_prior:g}, ..., {profile_prior:g})"
    return sticks, f"released share times exp({spread:g} z), z ~ N(0, 1)"


def margins_section(trace: xr.DataTree, release: Release, truth: Sequence[Marginal] | None) -> Section:
    """Build the section that sets released beside estimated margins, and the truth where it is public."""
    n = _record_numbers(trace, release)
    population, records = mean_and_interval(_draws(trace, "margin") * n), None
    if "exact_counts" in trace["posterior"]:
        # An impossible cell holds no record; the fit's counts are real numbers, off by the likelihood's nugget, and
        # its normal law knows no zero.
        held = mean_and_interval(_draws(trace, "exact_counts").clip(min=0.0))
        records = np.where(population[:, :1] > 0, held, 0.0)
    true = None if truth is None else np.concatenate([table.counts.ravel() for table in truth]).astype(float)
    released = np.concatenate([table.counts.ravel() for table in release.tables]).astype(float)
    margins = population, records, released, true
    agree = "Unlike the released tables, the estimates agree with one another."
    if "overdispersion" in trace["posterior"]:
        agree = (
            "The classes do not describe every table, and the population is allowed to vary about them: each table is "
            "estimated by itself, from them and from its own counts."
        )
    introduction = _introduction(release, float(n.mean()), with_records=records is not None)
    blocks: list[Block] = [Paragraph(f"{introduction} {agree}")]
    if true is not None:
        blocks.append(_error_table(release, population, records, released, true))
    blocks += [*_margin_figure(release, margins), _margin_table(release, margins)]
    return Section("Margins: released and estimated", blocks)


def _tables(values: Floats, release: Release) -> list[Floats]:
    """Return the parts of an array (count, ...) that belong to the released tables."""
    return [part.T for part in by_table(values.T, release)]


def _margin_figure(release: Release, margins: Sequence[Floats | None]) -> list[Figure]:
    """Draw the smallest tables, as many as a figure holds."""
    sizes = np.array([table.counts.size for table in release.tables])
    smallest = np.argsort(sizes, kind="stable")
    drawn = sorted(smallest[np.cumsum(sizes[smallest]) <= MOST_CELLS_DRAWN].tolist())
    if not drawn:
        return []
    _, records, _, true = margins
    also = "" if true is None else ", true count"
    some = "" if len(drawn) == len(sizes) else f"{len(drawn)} of {len(sizes)} tables are drawn. "
    both, two = "both 95 % intervals", "two 95 % intervals"
    if records is None:
        both, two = "the 95 % interval", "a 95 % interval"
    chosen: Any = (None if values is None else [_tables(values, release)[t] for t in drawn] for values in margins)
    titles = [release.tables[t].label for t in drawn]
    labels = [release.tables[t].domain.cell_labels(" · ", names=False) for t in drawn]
    caption = (
        f"{some}Each table's cells around their estimated count (zero): {both}, released count"
        f"{also}, in records. Row labels give the levels in the order of the title."
    )
    panels = interval_panels(titles, labels, *chosen)
    return [Figure(panels, caption, f"For every cell of the tables, {two} and the released count{also}.")]


def cells_section(trace: xr.DataTree, release: Release) -> Section:
    """Build the section on the full table."""
    n = _record_numbers(trace, release)
    summary = mean_and_interval(_draws(trace, "cell") * n)
    labels = release.domain.cell_labels()
    # A share that is never above zero is a structural zero's: no mixture of positive parts gives one.
    possible, order = summary[:, 0] > 0, np.argsort(-summary[:, 0], kind="stable")
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
        drawn = order[: int(possible.sum())]
        short = release.domain.cell_labels(" · ", names=False)
        figure = estimate_plot(
            [short[i] for i in drawn],
            summary[drawn],
            xlabel="records (logarithmic axis; an interval that reaches the left edge goes on to zero)",
            format=",.0f",
            log=True,
        )
        caption = (
            "The population's full table with 95 % intervals. Labels give the levels of "
            f"{', '.join(release.domain.names)}."
        )
        alt = "Estimated counts of every cell of the full table with 95 % intervals, sorted."
        blocks.append(Figure(figure, caption, alt))
    rows = [[labels[i], *summary[i].tolist()] for i in order]
    columns = ["cell", ("estimate", ",.1f"), ("2.5 %", ",.1f", "lower"), ("97.5 %", ",.1f", "upper")]
    blocks.append(Table("cells", "The population's full table, in records", columns, rows))
    return Section("The full table", blocks)


def fit_section(trace: xr.DataTree, release: Release) -> Section:
    """Build the posterior predictive check of the released counts."""
    # What a threshold holds back, in the release or in a draw, stands at the threshold.
    least = released_limits(release)
    values = np.maximum(flat_draws(trace["posterior_predictive"].to_dataset(), "released"), least)
    counts = released_vector(release)
    observed, held = np.maximum(counts, least), np.isinf(counts)
    spread = values.std(0, ddof=1)
    # Where noise is far below one count, no draw of an impossible cell's may differ from zero; its law still does.
    noise = np.sqrt(np.concatenate([t.variances.ravel() for t in release.tables]))
    residuals = (observed - values.mean(0)) / np.where(spread > 0, spread, noise)
    beyond = unexplained(trace, release)
    tails = 2 * np.minimum((values <= observed).mean(0), (values >= observed).mean(0))
    rows = [
        ("released counts outside their 95 % predictive interval", int((tails < 0.05).sum())),
        ("expected outside by chance", 0.05 * len(observed)),
        ("largest absolute standardized residual", float(np.abs(residuals).max())),
        ("root mean square of the standardized residuals", float(np.sqrt(np.mean(residuals**2)))),
    ]
    columns = [Column("check"), Column("value", ".3g")]
    groups = [t.label for t in release.tables for _ in range(t.counts.size)]
    return Section(
        "Does the model explain the released counts?",
        [
            Paragraph(
                "Posterior predictive check: tables drawn from the fitted model, with the same noise added, against "
                "the counts that were released. The model has seen these counts, so that residuals are smaller than in "
                "fresh data: look for single large ones and for a table whose residuals all point one way."
                + (" Counts that were held back stand at their threshold." if np.isfinite(least).any() else "")
                + (f" {_REMEDIES}" if beyond else "")
            ),
            Table("predictive_check", "Released counts and their predictive law", columns, rows),
            Figure(
                residual_plot(groups, residuals, limit=2.0),
                "Released count minus predictive mean, in predictive standard deviations; the band is 2 either side.",
                "Standardized posterior predictive residuals of every released count, grouped by table.",
            ),
            _farthest(release, np.where(held, np.nan, counts), values.mean(0), residuals),
        ],
        caution=_caution(beyond),
    )


def unexplained(trace: xr.DataTree, release: Release) -> list[str]:
    """Name the tables whose noise, as the posterior has it, is larger than the law of that noise allows.

    Under the model a posterior draw of a table's noise follows the law. With Laplace noise the sum of c magnitudes over
    their mean is Gamma(c), and by Chernoff's bound and Jensen's inequality their posterior mean exceeds a c > c with
    probability exp(-c (a - 1 - log a)) at most; other laws have lighter tails. One fit in a thousand names any table.
    """
    if "exact_counts" not in trace["posterior"]:
        return []
    off = released_vector(release) - _draws(trace, "exact_counts")
    off = np.abs(off, out=off).mean(axis=0)
    judged = []
    for table, sizes in zip(release.tables, by_table(off, release), strict=True):
        if table.threshold is not None:
            continue  # of what a threshold lets through, noise is larger than its law
        means = table.noise.mean_magnitude * np.sqrt(table.variances.ravel() / table.noise.variance)
        excess = float(np.mean(sizes / means))
        judged.append((-sizes.size * (excess - 1.0 - math.log(excess)) if excess > 1.0 else 0.0, table.label))
    return [label for log_bound, label in sorted(judged) if log_bound < math.log(FALSE_ALARM / len(judged))]


def _caution(tables: Sequence[str]) -> str:
    """Say of which tables a fit is wrong: of three by name."""
    if not tables:
        return ""
    names = f"{', '.join(tables[:3])}{f' and {len(tables) - 3} more' if len(tables) > 3 else ''}"
    return (
        f"The mixture does not explain the released counts of {names}: they are farther from it than noise and "
        "sampling allow, and intervals for combinations of these attributes are not to be trusted."
    )


def _farthest(release: Release, counts: Floats, predicted: Floats, residuals: Floats) -> Table:
    """Build the table of the released counts that the model predicts worst; NaN stands for one that was held back."""
    cells = [label for table in release.tables for label in table.domain.cell_labels()]
    columns = [Column("cell"), Column("released", ",.0f"), Column("predicted", ",.1f"),
               Column("standard deviations away", "+.2f", "residual")]  # fmt: skip
    rows = [
        (cells[i], None if np.isnan(counts[i]) else float(counts[i]), float(predicted[i]), float(residuals[i]))
        for i in np.argsort(-np.abs(residuals), kind="stable")[:5]
    ]
    return Table("farthest_counts", "The released counts farthest from their predictive means", columns, rows)


def _margin_table(release: Release, margins: Sequence[Floats | None]) -> Table:
    population, records, released, true = margins
    columns: list[Any] = ["table", "cell", ("released", ",.0f")]
    if records is not None:
        columns += [("these records", ",.0f", "records"), ("2.5 %", ",.0f", "records_lower")]
        columns += [("97.5 %", ",.0f", "records_upper")]
    columns += [("population", ",.0f"), ("2.5 %", ",.0f", "population_lower"), ("97.5 %", ",.0f", "population_upper")]
    columns += [] if true is None else [("true", ",.0f")]
    cells = [(table.label, cell) for table in release.tables for cell in table.domain.cell_labels()]
    values = np.column_stack([one for one in (released, records, population, true) if one is not None]).tolist()
    rows = [[*cell, *row] for cell, row in zip(cells, values, strict=True)]
    unseen = "; a released count that is missing was held back below its threshold"
    some = unseen if any(table.withheld.any() for table in release.tables) else ""
    return Table("margins", f"Released and estimated margins, in records{some}", columns, rows)


def _error_table(release: Release, population: Floats, records: Floats | None, released: Floats, true: Floats) -> Table:
    """Compare estimators by the sum of absolute differences in proportions, between 0 and 2, averaged over tables."""

    def error(estimates: Floats) -> float:
        pairs = zip(_tables(estimates, release), _tables(true, release), strict=True)
        return float(np.mean([np.abs(estimate - exact).sum() / exact.sum() for estimate, exact in pairs]))

    rows: list[Sequence[str | float | None]] = [
        ("posterior mean, population", error(population[:, 0]), None),
        ("released counts as they are", error(released), None),
    ]
    if records is not None:
        inside = float(((records[:, 1] <= true) & (true <= records[:, 2])).mean())
        rows.insert(0, ("posterior mean, these records", error(records[:, 0]), inside))
    columns = [
        "estimator",
        ("mean L1 distance per table (proportions)", ".5f", "mean_l1"),
        ("true counts inside their 95 % interval", ".1%", "coverage"),
    ]
    caption = (
        "Error against the true tables, which are public here. Cells of one release share its noise: over releases, "
        "this coverage scatters far more than that of as many independent cells"
    )
    return Table("margin_error", caption, columns, rows)


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
            "as none)."
        )
    return (
        f"What share of the population behind these records is in a cell, per {size:,.0f} persons? Privacy noise and "
        "sampling both hide it. How many of these records are in the cell is not recorded for releases of more than "
        "20,000 counts."
    )


def sources_section(trace: xr.DataTree, release: Release) -> Section:
    """Build the section that splits the width of the population's intervals by its sources, a row per table."""
    if "exact_counts" not in trace["posterior"]:
        text = (
            "Not split: the trace holds no draws of the confidential counts, so that it does not say how much of a "
            "width would be left if they were known."
        )
        return Section(WIDTH_TITLE, [Paragraph(text)])
    shares, n = _draws(trace, "margin"), _record_numbers(trace, release)
    privacy, sampling = split_variance(n * shares, _draws(trace, "exact_counts"))
    centre = shares.mean(axis=0)
    binomial = n.mean() * centre * (1 - centre)
    left, rest, multinomial = (
        [float(part.mean()) for part in by_table(values, release)] for values in (privacy, sampling, binomial)
    )
    noise = [float(table.variances.mean()) for table in release.tables]
    pooled = math.sqrt(sum(left) / sum(noise)) if sum(noise) > 0 else 1.0  # a scale so small that it underflows
    return shares_section(
        [(table.label, *parts) for table, *parts in zip(release.tables, left, rest, strict=True)],
        subject="table",
        rest="sampling and model",
        meaning="Without noise the first part would be gone; with more records the second would shrink as a share of "
        f"them. By pooling the tables, the model leaves the noise with {100 * pooled:.0f} % of the standard deviation "
        "that it was released with. Where sampling and model take more than binomial sampling of "
        f"{n.mean():,.0f} records, the model's own uncertainty adds to it; where less, other tables inform this one.",
        unit="root mean square over a table's cells, in records",
        format=".1f",
        beside=[
            (Column("noise as released", ".1f", "noise_sd"), np.sqrt(noise).tolist()),
            (Column("binomial sampling", ".1f", "binomial_sd"), np.sqrt(multinomial).tolist()),
        ],
    )


def latent_class_densities(
    trace: xr.DataTree,
    release: Release,
    *,
    concentration: float | Sequence[float],
    profiles: str = "common",
    spread: float | None = None,
    profile_prior: float = PROFILE_PRIOR,
) -> tuple[dict[str, xr.DataArray], xr.DataArray]:
    """Return the parts of the prior of a latent class fit, and its log-likelihood.

    The sampler's log-density has the log-Jacobians too: sticks move as log-odds, what is positive as its logarithm.
    """
    from scipy import stats

    draws, parts = trace["posterior"].to_dataset(), dict[str, Floats]()
    jacobian: Any = 0.0

    def values(name: str) -> Floats:
        """Return draws of shape (chain, draw, values)."""
        found = np.asarray(draws[name].transpose("chain", "draw", ...), dtype=float)
        return found.reshape(*found.shape[:2], -1)

    def add(part: str, density: Floats, slope: Floats | float = 0.0) -> None:
        nonlocal jacobian
        parts[part] = parts.get(part, 0.0) + density.sum(axis=-1)
        jacobian = jacobian + np.sum(slope, axis=-1)

    alpha: Any = checked_concentration(concentration)
    if isinstance(alpha, tuple):
        (shape, rate), alpha = alpha, values("alpha")
        add("class weights", stats.gamma.logpdf(alpha, shape, scale=1 / rate), np.log(alpha))
    if "stick" in draws:
        stick = values("stick")
        add("class weights", stats.beta.logpdf(stick, 1.0, alpha), np.log(stick) + np.log1p(-stick))
    if "level_scores" in draws:
        add("class profiles", -0.5 * np.square(values("level_scores")))
    else:
        levels = values("level_weights").clip(TINY)
        add("class profiles", (profile_prior - 1.0) * np.log(levels) - levels, np.log(levels))
    for name, part in (("n", "number of records"), ("overdispersion", "overdispersion")):
        if name in draws:
            logs, (mean, scale) = np.log(values(name)), prior_of_n(release) if name == "n" else (0.0, OVERDISPERSION)
            # The Jacobian takes the log-normal density's own 1 / n away.
            add(part, -logs - 0.5 * np.square((logs - mean) / scale), logs)
    lp = np.asarray(trace["sample_stats"]["lp"].transpose("chain", "draw"), dtype=float)
    sample = ("chain", "draw")
    likelihood = xr.DataArray(lp - sum(parts.values()) - jacobian, dims=sample)
    return {part: xr.DataArray(density, dims=sample) for part, density in parts.items()}, likelihood
