"""Sections on tables: released and estimated margins, the full table, and the fit to the released counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes.latent_class.record_numbers import record_numbers
from dpbayes.report.document import Block, Column, Figure, Paragraph, Section, Table
from dpbayes.report.plots import interval_panels, interval_strip, residual_plot

if TYPE_CHECKING:
    import xarray as xr

    from dpbayes.data import Domain, Marginal
    from dpbayes.privacy import Release

    Array = npt.NDArray[np.float64]

__all__ = ["cells_section", "fit_section", "margins_section", "mean_l1", "summarize"]

INTERVAL = 0.95
"""Probability of every interval on the page; intervals are equal-tailed."""

MOST_CELLS_DRAWN = 64

_RECORDS = [
    Column("these records", ",.1f", "records"),
    Column("2.5 %", ",.1f", "records_lower"),
    Column("97.5 %", ",.1f", "records_upper"),
]
_ESTIMATE = [Column("estimate", ",.1f"), Column("2.5 %", ",.1f", "lower"), Column("97.5 %", ",.1f", "upper")]


def summarize(draws: xr.DataArray) -> Array:
    """Return mean, lower and upper end of the 95 % interval of every quantity, shape ``(quantities, 3)``."""
    mean = draws.mean(("chain", "draw"))
    ends = draws.quantile([(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], ("chain", "draw"))
    return np.column_stack([mean.to_numpy().ravel(), *(end.to_numpy().ravel() for end in ends)])


def mean_l1(estimates: Sequence[Array], truth: Sequence[Array]) -> float:
    """Return the mean over tables of the sum of absolute differences in proportions.

    Parameters
    ----------
    estimates, truth
        Counts of each table; they are divided by the true total of the table.

    Returns
    -------
    float
        Between 0 and 2 for tables of proportions.

    Examples
    --------
    >>> mean_l1([np.array([60.0, 40.0])], [np.array([50.0, 50.0])])
    0.2
    """
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
        [_short(t.domain) for t in release.tables],
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
        shown = [label for label, keep in zip(_short(release.domain), possible, strict=True) if keep]
        blocks.append(
            Figure(
                interval_strip(shown, summary[possible], None, xlabel="records (logarithmic axis)"),
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
    noise = np.concatenate([np.full(t.counts.size, np.sqrt(t.noise.variance)) for t in release.tables])
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
    records: Sequence[Array] | None,
    population: Sequence[Array],
    released: Sequence[Array],
    true: Sequence[Array] | None,
) -> Table:
    columns = [
        Column("table"),
        Column("cell"),
        Column("released", ",.0f"),
        *([] if records is None else _RECORDS),
        Column("population", ",.1f"),
        Column("2.5 %", ",.1f", "population_lower"),
        Column("97.5 %", ",.1f", "population_upper"),
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
    records: Sequence[Array] | None, population: Sequence[Array], released: Sequence[Array], true: Sequence[Array]
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
            Column("mean L1 a table (proportions)", ".5f", "mean_l1"),
            Column("true counts inside their 95 % interval", ".1%", "coverage"),
        ],
        rows,
    )


def _introduction(release: Release, size: float, *, with_records: bool) -> str:
    """Say what the intervals are about, and what a fit that sums the confidential counts out cannot say."""
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
    independent = (
        " It takes the tables for samples of different persons, though all were counted on the same: where tables "
        "share an attribute, these intervals are too narrow."
    )
    return (
        f"What share of the population behind these records is in a cell, per {size:,.0f} persons? Privacy noise and "
        "sampling both hide it. How many of these records are in the cell is not answered: the composite likelihood "
        "sums each table's confidential counts out on their own, so that the fit holds no draw of them, and nothing to "
        "split the widths by source with (the joint likelihood has both)."
        f"{independent if len(release.tables) > 1 else ''} Unlike the released tables, the estimates agree with one "
        "another."
    )


def _short(domain: Domain) -> list[str]:
    """Return cell labels made of the levels alone."""
    labels = [""]
    for attribute in domain:
        labels = [f"{label} {level}".strip() for label in labels for level in attribute.levels]
    return labels
