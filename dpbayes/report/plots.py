"""Figures that reports share. Each function takes arrays or a trace and returns a Matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["interval_panels", "interval_strip", "rank_plot", "residual_plot"]

ESTIMATE, RELEASED, TRUTH = "#2f5fa8", "#c2571a", "#111111"


def rank_plot(draws: Mapping[str, npt.NDArray[np.float64]], effective: Mapping[str, float]) -> Figure:
    """Plot how each chain's ranks among all draws depart from uniform ones.

    Parameters
    ----------
    draws
        Name of each quantity to its draws, shape ``(chains, draws)``.
    effective
        Name of each quantity to its bulk effective sample size over all chains.

    Returns
    -------
    Figure
        One panel a quantity, one line a chain: the empirical distribution of the chain's fractional ranks minus the
        uniform one. The band is the Dvoretzky-Kiefer-Wolfowitz bound at 95 % for as many independent draws as the chain
        is worth; it holds over the whole line at once.

    References
    ----------
    Massart, P. (1990). The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality. Annals of Probability 18(3).
    Vehtari, A. et al. (2021). Rank-normalization, folding, and localization. Bayesian Analysis 16(2): rank plots.
    """
    columns = min(3, len(draws))
    rows = -(-len(draws) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(3.6 * columns, 2.3 * rows),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axis in axes.flat[len(draws) :]:
        axis.set_visible(False)
    for axis, (name, values) in zip(axes.flat, draws.items(), strict=False):
        chains, length = values.shape
        ranks = np.sort((rankdata(values).reshape(values.shape) - 0.5) / values.size, axis=1)
        grid = (np.arange(length) + 0.5) / length
        for chain in ranks:
            axis.plot(chain, grid - chain, linewidth=1)
        band = np.sqrt(np.log(2 / 0.05) / (2 * effective[name] / chains))
        axis.axhspan(-band, band, color="0.92", zorder=0)
        axis.axhline(0, color="0.6", linewidth=0.8)
        axis.set_title(name, fontsize=8)
        axis.tick_params(labelsize=8)
    figure.supxlabel("fractional rank among all draws", fontsize=9)
    figure.supylabel("difference from uniform", fontsize=9)
    return figure


def interval_panels(
    titles: Sequence[str],
    labels: Sequence[Sequence[str]],
    population: Sequence[npt.NDArray[np.float64]],
    records: Sequence[npt.NDArray[np.float64]] | None,
    released: Sequence[npt.NDArray[np.float64]],
    truth: Sequence[npt.NDArray[np.float64]] | None,
) -> Figure:
    """Plot two intervals, released counts and, where public, true counts, as differences from the estimated count.

    Parameters
    ----------
    titles
        One a table.
    labels
        Cell labels of each table.
    population
        For each table an array ``(cells, 3)``: mean, lower and upper end of the population's share, in counts.
    records
        The same for the confidential counts, or None where the fit holds none.
    released
        Released counts of each table.
    truth
        True counts of each table, or None.

    Returns
    -------
    Figure
        One panel a table; zero is the estimate of the confidential count, or of the population's share without it.
    """
    rows = -(-len(titles) // 5)
    columns = -(-len(titles) // rows)
    # The legend and the label below the panels take six inches, however few the panels are.
    size = (max(2.55 * columns, 6.0), (0.8 + 0.28 * max(map(len, labels))) * rows + 0.5)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharex=True, squeeze=False, layout="constrained")
    for index, axis in enumerate(axes.flat):
        if index >= len(titles):
            axis.set_visible(False)
            axes[rows - 2, index % columns].tick_params(axis="x", labelbottom=True)  # the lowest of its column then
            continue
        centre = (population if records is None else records)[index][:, 0]
        place = np.arange(len(centre))[::-1]
        axis.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        _, low, high = population[index].T
        axis.hlines(place, low - centre, high - centre, color=ESTIMATE, linewidth=1.2)
        if records is not None:
            _, low, high = records[index].T
            axis.hlines(place, low - centre, high - centre, color=ESTIMATE, linewidth=5, alpha=0.45)
        axis.plot(released[index] - centre, place, "x", color=RELEASED, markersize=6)
        if truth is not None:
            axis.plot(truth[index] - centre, place, "o", mfc="none", color=TRUTH, markersize=6)
        axis.set_yticks(place, labels[index], fontsize=8)
        axis.set_ylim(-0.6, len(centre) - 0.4)
        axis.set_title(titles[index], fontsize=9)
        axis.tick_params(axis="x", labelsize=8)
    handles = [
        plt.Line2D([], [], color=ESTIMATE, linewidth=5, alpha=0.45, label="these records, 95 %"),
        plt.Line2D([], [], color=ESTIMATE, linewidth=1.2, label="their population, 95 %"),
        plt.Line2D([], [], color=RELEASED, marker="x", linestyle="", label="released"),
    ]
    if records is None:
        del handles[0]
    if truth is not None:
        handles.append(plt.Line2D([], [], color=TRUTH, marker="o", mfc="none", linestyle="", label="true"))
    figure.legend(handles=handles, loc="outside upper right", ncols=4, frameon=False, fontsize=9)
    figure.supxlabel("records more or fewer than the estimated count", fontsize=9)
    return figure


def interval_strip(
    labels: Sequence[str],
    estimates: npt.NDArray[np.float64],
    truth: npt.NDArray[np.float64] | None,
    *,
    xlabel: str,
) -> Figure:
    """Plot intervals of many cells, sorted by their mean, on a logarithmic axis.

    Parameters
    ----------
    labels
        Cell labels.
    estimates
        Array ``(cells, 3)``: mean, lower and upper end.
    truth
        True values, or None.
    xlabel
        Name and unit of the axis.

    Returns
    -------
    Figure
        One row a cell.
    """
    order = np.argsort(estimates[:, 0])
    mean, low, high = estimates[order].T
    place = np.arange(len(mean))
    figure, axis = plt.subplots(figsize=(8.5, 1.0 + 0.2 * len(mean)), layout="constrained")
    axis.hlines(place, low, high, color=ESTIMATE, linewidth=4, alpha=0.45, label="95 % interval")
    axis.plot(mean, place, "|", color=ESTIMATE, markersize=9, label="posterior mean")
    if truth is not None:
        axis.plot(truth[order], place, "o", mfc="none", color=TRUTH, markersize=5, label="true")
    axis.set_xscale("log")
    axis.set_yticks(place, [labels[i] for i in order], fontsize=8)
    axis.set_ylim(-0.7, len(mean) - 0.3)
    axis.set_xlabel(xlabel, fontsize=9)
    axis.grid(axis="x", color="0.9")
    axis.legend(loc="lower right", frameon=False, fontsize=9)
    return figure


def residual_plot(groups: Sequence[str], residuals: npt.NDArray[np.float64], *, limit: float) -> Figure:
    """Plot standardized residuals of released counts against their posterior predictive law.

    Parameters
    ----------
    groups
        The table that each cell is of, in order.
    residuals
        (released - predictive mean) / predictive standard deviation.
    limit
        Half-width of the band to draw.

    Returns
    -------
    Figure
        One bar a count.
    """
    place = np.arange(len(residuals))
    figure, axis = plt.subplots(figsize=(11, 3.4), layout="constrained")
    axis.axhspan(-limit, limit, color="0.94", zorder=0)
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.vlines(place, 0, residuals, color=ESTIMATE, linewidth=2)
    axis.plot(place, residuals, "o", color=ESTIMATE, markersize=4)
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    for start in starts[1:]:
        axis.axvline(start - 0.5, color="0.85", linewidth=0.8)
    ends = [*starts[1:], len(groups)]
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    axis.set_xticks(middles, [groups[start].replace(" x ", "\nx ") for start in starts], fontsize=8)
    axis.set_xlim(-0.7, len(residuals) - 0.3)
    axis.set_ylabel("released count,\nstandardized residual", fontsize=9)
    return figure
