"""Figures that reports share. Each function takes arrays or a trace and returns a Matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["interval_panels", "interval_strip", "rank_plot", "residual_plot"]

ESTIMATE, RELEASED, TRUTH = "#2f5fa8", "#c2571a", "#111111"


def rank_plot(draws: Mapping[str, npt.NDArray[np.float64]]) -> Figure:
    """Plot rank ECDF differences of some quantities, a line a chain, with a simultaneous 95 % envelope.

    Parameters
    ----------
    draws
        Name of each quantity to its draws, shape ``(chains, draws)``.

    Returns
    -------
    Figure
        One panel a quantity. Chains that mix stay inside the grey band.

    References
    ----------
    Säilynoja, T., Bürkner, P.-C. and Vehtari, A. (2022). Graphical test for discrete uniformity and its applications in
    goodness-of-fit evaluation and multiple sample comparison. Statistics and Computing 32, 32.
    """
    import arviz as az
    import xarray as xr

    picked = xr.Dataset({name: (("chain", "draw"), values) for name, values in draws.items()})
    columns = min(3, len(draws))
    rows = -(-len(draws) // columns)
    collection = az.plot_rank(
        xr.DataTree.from_dict({"posterior": picked}),
        envelope_prob=0.95,
        backend="matplotlib",
        col_wrap=columns,
        figure_kwargs={"figsize": (3.6 * columns, 2.6 * rows)},
    )
    figure: Figure = collection.viz["figure"].item()
    return figure


def interval_panels(
    titles: Sequence[str],
    labels: Sequence[Sequence[str]],
    estimates: Sequence[npt.NDArray[np.float64]],
    released: Sequence[npt.NDArray[np.float64]],
    truth: Sequence[npt.NDArray[np.float64]] | None,
) -> Figure:
    """Plot intervals, released values and, where public, true values, all as differences from the estimate.

    Parameters
    ----------
    titles
        One a table.
    labels
        Cell labels of each table.
    estimates
        For each table an array ``(cells, 3)``: mean, lower and upper end, in counts.
    released
        Released counts of each table.
    truth
        True counts of each table, or None.

    Returns
    -------
    Figure
        One panel a table; zero is the posterior mean.
    """
    columns = min(5, len(titles))
    rows = -(-len(titles) // columns)
    size = (2.55 * columns, (0.8 + 0.28 * max(map(len, labels))) * rows + 0.5)
    figure, axes = plt.subplots(rows, columns, figsize=size, sharex=True, squeeze=False, layout="constrained")
    for index, axis in enumerate(axes.flat):
        if index >= len(titles):
            axis.set_visible(False)
            continue
        mean, low, high = estimates[index].T
        place = np.arange(len(mean))[::-1]
        axis.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        axis.hlines(place, low - mean, high - mean, color=ESTIMATE, linewidth=4, alpha=0.45)
        axis.plot(released[index] - mean, place, "x", color=RELEASED, markersize=6, label="released")
        if truth is not None:
            axis.plot(truth[index] - mean, place, "o", mfc="none", color=TRUTH, markersize=6, label="true")
        axis.set_yticks(place, labels[index], fontsize=8)
        axis.set_ylim(-0.6, len(mean) - 0.4)
        axis.set_title(titles[index], fontsize=9)
        axis.tick_params(axis="x", labelsize=8)
    handles = [plt.Line2D([], [], color=ESTIMATE, linewidth=4, alpha=0.45, label="95 % interval")]
    handles += axes.flat[0].get_legend_handles_labels()[0]
    figure.legend(handles=handles, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    figure.supxlabel("count minus posterior mean", fontsize=9)
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
