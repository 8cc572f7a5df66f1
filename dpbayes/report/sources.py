"""Where the width of an interval comes from: privacy noise, sampling, and what the model takes away."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes.latent_class.record_numbers import record_numbers
from dpbayes.report.document import Column, Figure, Paragraph, Section, Table

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure as MatplotlibFigure

    from dpbayes.privacy import Release

    Array = npt.NDArray[np.float64]

__all__ = ["TITLE", "sources_section", "split_variance"]

TITLE = "Where the width comes from"


def split_variance(shares: Array, counts: Array) -> tuple[Array, Array]:
    r"""Split the posterior variance of population counts by the law of total variance over the confidential counts.

    .. math:: \mathrm{Var}(np_i) = \mathrm{Var}\,\mathrm{E}(np_i \mid X) + \mathrm{E}\,\mathrm{Var}(np_i \mid X),

    all given the release. The first part would vanish had X been released without noise: it is the privacy noise's. The
    second would stay: it is sampling's and the model's.

    Parameters
    ----------
    shares
        Draws of the population's cells in records, n p, shape ``(draws, cells)``.
    counts
        Draws of the confidential counts of the same cells, shape ``(draws, cells)``.

    Returns
    -------
    tuple of numpy.ndarray
        Both variances, each of shape ``(cells,)``. The conditional mean is taken as linear in X, so that the first is
        a lower bound for the privacy noise's part.

    Examples
    --------
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(0, 3, size=(100_000, 1))
    >>> [part.round(1).tolist() for part in split_variance(x + rng.normal(0, 4, size=x.shape), x)]
    [[9.0], [16.0]]
    """
    design = np.column_stack([np.ones(len(counts)), counts - counts.mean(axis=0)])
    coefficients, _, rank, _ = np.linalg.lstsq(design, shares, rcond=None)
    fitted = design @ coefficients
    residual = shares - fitted
    # Residual degrees of freedom: a regression on noise alone would seem to explain rank / draws.
    left = (residual**2).sum(axis=0) / max(len(counts) - int(rank), 1)
    return np.maximum(shares.var(axis=0, ddof=1) - left, 0.0), left


def sources_section(trace: xr.DataTree, release: Release) -> Section:
    """Build the section that splits the width of the population's intervals by its sources.

    Parameters
    ----------
    trace
        A fit that records ``margin`` and ``exact_counts``; without the latter a sentence says why nothing is split.
    release
        What was fitted.

    Returns
    -------
    Section
        A row a released table: standard deviations, in records, of the released noise, of what the model leaves of it,
        of sampling with the model, and of binomial sampling alone.
    """
    posterior = trace["posterior"].to_dataset()
    if "exact_counts" not in posterior:
        text = (
            "Not split: the fit sums the confidential counts out, and takes each table's for drawn by itself, so that "
            "it does not say how much of a width would be left if they were known."
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
        (table.label, float(np.sqrt(table.noise.variance)), *(float(np.sqrt(part[t].mean())) for part in parts))
        for t, table in enumerate(release.tables)
    ]
    released_noise, left = (sum(row[column] ** 2 for row in rows) for column in (1, 2))
    pooled = math.sqrt(left / released_noise) if released_noise > 0 else 1.0  # a scale so small that it underflows
    text = _text(float(privacy.sum() / (privacy + sampling).sum()), pooled)
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
                _plot(rows),
                "Variance of a population count by its source, averaged over the table's cells, in squared records. "
                "The tick is binomial sampling alone: where the bar's second part is longer, the model's own "
                "uncertainty adds to it; where it is shorter, other tables inform this one.",
                "Stacked bars, one a table: variance from privacy noise, and from sampling and the model.",
            ),
            Table("sources", "Standard deviations by source, root mean square over cells, in records", columns, rows),
        ],
    )


def _text(share: float, pooled: float) -> str:
    return (
        f"Of the variance of the population's counts, {share:.0%} is left by the privacy noise and {1 - share:.0%} "
        "comes from sampling, with what the model knows and does not know. Without noise the first part would be gone; "
        "with more records the second would shrink as a share of them. By pooling the tables, the model leaves the "
        f"noise with {pooled:.0%} of the standard deviation that it was released with."
    )


def _plot(rows: list[tuple[str, float, float, float, float]]) -> MatplotlibFigure:
    import matplotlib.pyplot as plt

    labels = [row[0] for row in rows]
    privacy, sampling, binomial = (np.array([row[i] for row in rows]) ** 2 for i in (2, 3, 4))
    place = np.arange(len(rows))
    figure, axis = plt.subplots(figsize=(8.5, 1.0 + 0.3 * len(rows)), layout="constrained")
    axis.barh(place, privacy, 0.6, color="#0072b2", label="privacy noise that is left")
    axis.barh(place, sampling, 0.6, left=privacy, color="#e69f00", label="sampling and model")
    axis.plot(privacy + binomial, place, "|", color="black", markersize=13, label="if sampling were binomial")
    axis.set_yticks(place, labels, fontsize=8)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=8)
    axis.set_xlabel("variance of a population count (squared records)", fontsize=9)
    axis.legend(loc="lower center", bbox_to_anchor=(0.4, 1), ncols=3, frameon=False, fontsize=8)
    return figure
