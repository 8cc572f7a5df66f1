"""Figures that reports share. Each function takes arrays or a trace and returns a Matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpbayes._arguments import Floats
from dpbayes.report.document import show_number

# Okabe and Ito's colours, told apart without red and green.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
ESTIMATE, RELEASED, TRUTH = COLOURS[0], COLOURS[1], "#111111"
# As many rows of a page's first picture leave room on a screen for the words, the verdict and the privacy cost.
SCREEN_ROWS = 16
# Matplotlib settings for figures beside a report: plt.style.use(STYLE).
STYLE = {"figure.dpi": 150, "figure.constrained_layout.use": True, "axes.prop_cycle": plt.cycler(color=COLOURS)}
STYLE |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}


def panel_grid(
    count: int, *, columns: int, size: tuple[float, float], heights: Sequence[float] = (), **options: Any
) -> tuple[Figure, list[Any]]:
    """Return a figure with so many panels in rows of `columns`, of equal heights or of those given per row."""
    columns = min(columns, count)
    rows = -(-count // columns)
    tall = list(heights) or [size[1]] * rows
    options |= {"figsize": (size[0] * columns, sum(tall)), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, columns, height_ratios=tall, **options)
    for place, axis in enumerate(axes.flat):
        axis.tick_params(labelsize=8)
        axis.set_visible(place < count)
        if place >= count:  # the panel above is the lowest of its column then
            axes[rows - 2, place % columns].tick_params(axis="x", labelbottom=True)
    return figure, list(axes.flat[:count])


def rank_plot(titles: Sequence[str], draws: Floats, effective: Floats) -> Figure:
    """Plot how each chain's ranks among all draws, array ``(titles, chains, draws)``, depart from uniform ones.

    Equal draws, such as of a count, are ranked in random order: chains that agree have uniform ranks then too.
    """
    rng = np.random.default_rng(1)
    figure, axes = panel_grid(len(titles), columns=3, size=(3.6, 2.3), sharex=True, sharey=True)
    for axis, title, values, size in zip(axes, titles, draws, effective, strict=True):
        chains, length = values.shape
        order = np.lexsort((rng.random(values.size), values.ravel()))
        ranks = np.sort((np.argsort(order).reshape(values.shape) + 0.5) / values.size, axis=1)
        grid = (np.arange(length) + 0.5) / length
        for place, chain in enumerate(ranks):
            axis.plot(chain, grid - chain, linewidth=1, color=COLOURS[place % len(COLOURS)])
        band = np.sqrt(np.log(2 / 0.05) / (2 * size / chains))
        axis.axhspan(-band, band, color="0.92", zorder=0)
        axis.axhline(0, color="0.6", linewidth=0.8)
        axis.set_title(fill(title, 44), fontsize=8)
    figure.supxlabel("fractional rank among all draws", fontsize=9)
    figure.supylabel("difference from uniform", fontsize=9)
    return figure


def interval_panels(
    titles: Sequence[str],
    labels: Sequence[Sequence[str]],
    population: Sequence[Floats],
    records: Sequence[Floats] | None,
    released: Sequence[Floats],
    truth: Sequence[Floats] | None,
) -> Figure:
    """Plot intervals, released counts and, where public, true counts, as differences from the estimated count."""
    longest = max(len(label) for table in labels for label in table)
    width = 1.6 + 0.062 * longest
    rows = -(-len(titles) // min(5, max(1, int(11.5 / width))))
    columns = -(-len(titles) // rows)
    cells = [max(map(len, labels[start : start + columns])) for start in range(0, len(labels), columns)]
    # The legend and the label below the panels take six inches, however few the panels are.
    size, heights = (max(width, 6.0 / columns), 0.0), [0.8 + 0.28 * most + 0.5 / rows for most in cells]
    figure, axes = panel_grid(len(titles), columns=columns, size=size, heights=heights, sharex=True)
    for index, axis in enumerate(axes):
        centre = (population if records is None else records)[index][:, 0]
        place = np.arange(len(centre))[::-1]
        axis.axvline(0, color="0.8", linewidth=0.8, zorder=0)
        for estimates, label, style in (
            (records, "these records, 95 %", {"linewidth": 5, "alpha": 0.45}),
            (population, "their population, 95 %", {"linewidth": 1.2}),
        ):
            if estimates is not None:
                _, low, high = estimates[index].T
                axis.hlines(place, low - centre, high - centre, color=ESTIMATE, label=label, **style)
        axis.plot(released[index] - centre, place, "x", color=RELEASED, markersize=6, label="released")
        if truth is not None:
            axis.plot(truth[index] - centre, place, "o", mfc="none", color=TRUTH, markersize=6, label="true")
        axis.set_yticks(place, labels[index], fontsize=8)
        axis.set_ylim(len(centre) - cells[index // columns] - 0.6, len(centre) - 0.4)
        axis.set_title(titles[index], fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper right", ncols=4, frameon=False, fontsize=9)
    figure.supxlabel("records more or fewer than the estimated count", fontsize=9)
    return figure


def residual_plot(groups: Sequence[str], residuals: Floats, *, limit: float) -> Figure:
    """Plot (released - predictive mean) / predictive standard deviation, a bar per count, grouped by table."""
    starts = [i for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]]
    sizes = np.diff([*starts, len(groups)])
    # Every table has the same width: by its cells, names of small tables would lie upon one another.
    place = np.concatenate([table + (np.arange(size) + 0.5) / size for table, size in enumerate(sizes)])
    many = len(starts) > 12
    figure, axis = plt.subplots(figsize=(11, 4.4 if many else 3.4), layout="constrained")
    axis.axhspan(-limit, limit, color="0.94", zorder=0)
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.vlines(place, 0, residuals, color=ESTIMATE, linewidth=1 if many else 2)
    axis.plot(place, residuals, "o", color=ESTIMATE, markersize=2 if many else 4)
    for table in range(1, len(starts)):
        axis.axvline(table, color="0.85", linewidth=0.8)
    step = -(-len(starts) // 72)  # as many names as there is room for
    names = [groups[start] if many else groups[start].replace(" x ", "\nx ") for start in starts[::step]]
    axis.set_xticks(np.arange(0, len(starts), step) + 0.5, names, fontsize=8, rotation=90 if many else 0)
    axis.set_xlim(0, len(starts))
    axis.set_ylabel("released count less predicted,\nin standard deviations", fontsize=9)
    return figure


def ladder_panels(
    quantities: Mapping[str, Floats], labels: Sequence[str], *, ladder: tuple[str, Sequence[float]] | None
) -> Figure:
    """Plot quantities across runs, a panel per quantity: title to values, shape ``(runs,)`` or ``(runs, rows)``."""
    tall = 2.7 if ladder else 2.4 + 0.05 * max(map(len, labels))
    figure, axes = panel_grid(len(quantities), columns=3, size=(3.6, tall))
    place = np.arange(len(labels), dtype=float) if ladder is None else np.asarray(ladder[1], dtype=float)
    for axis, (title, values) in zip(axes, quantities.items(), strict=True):
        many = values if values.ndim == 2 else values[:, None]
        low, middle, high = np.nanquantile(many, [0.25, 0.5, 0.75], axis=1)
        if many.shape[1] > 1:
            axis.vlines(place, low, high, color=COLOURS[0], linewidth=5, alpha=0.35)
        axis.plot(place, middle, "o-" if ladder else "o", color=COLOURS[0], linewidth=1, markersize=5)
        axis.set_title(title, fontsize=9)
        axis.grid(color="0.92")
        _scale(axis, low, middle, high)
        if ladder is None:
            axis.set_xticks(place, labels, rotation=30, ha="right", fontsize=8)
            axis.set_xlim(-0.5, len(labels) - 0.5)
        elif place.min() > 0 and place.max() >= 8 * place.min():
            log_ticks(axis, place)
    if ladder is not None:
        figure.supxlabel(ladder[0], fontsize=9)
    return figure


def intervals_of_runs(titles: Sequence[str], estimates: Floats, labels: Sequence[str], *, unit: str) -> Figure:
    """Plot each run's intervals, array ``(runs, rows, 3)``, as differences from the first run's estimates."""
    runs, rows, _ = estimates.shape
    centre = estimates[0, :, 0]
    figure, axis = plt.subplots(figsize=(9.5, 1.3 + rows * (0.14 + 0.11 * runs)), layout="constrained")
    offsets = (np.arange(runs) - (runs - 1) / 2) * (0.7 / runs)
    for run, label in enumerate(labels):
        colour = COLOURS[run % len(COLOURS)]
        middle, low, high = (estimates[run] - centre[:, None]).T
        place = np.arange(rows) + offsets[run]
        axis.hlines(place, low, high, color=colour, linewidth=2.2, alpha=0.75, label=label)
        axis.plot(middle, place, "o", color=colour, markersize=4)
    axis.axvline(0, color="0.75", linewidth=0.8, zorder=0)
    axis.set_yticks(range(rows), titles, fontsize=8)
    axis.set_ylim(rows - 0.45, -0.55)
    for row in range(1, rows):
        axis.axhline(row - 0.5, color="0.94", linewidth=0.8, zorder=0)
    axis.set_xlabel(unit, fontsize=9)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=min(4, runs), frameon=False, fontsize=9)
    return figure


def log_ticks(axis: Axes, at: Floats) -> None:
    """Give an axis a logarithmic scale with these ticks alone."""
    axis.set_xscale("log")
    axis.set_xticks(at, [f"{value:g}" for value in at])
    axis.minorticks_off()


def _scale(axis: Axes, low: Floats, middle: Floats, high: Floats) -> None:
    """Use a logarithmic axis for positive values over more than a factor of 30, and else show zero."""
    drawn = np.concatenate([middle, high])
    finite = drawn[np.isfinite(drawn)]
    if not finite.size or np.nanmin(low) < 0:
        return
    if finite.min() > 0 and finite.max() > 30 * finite.min():
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 1.15 * finite.max() or 1)


def spread_rows(count: int) -> list[int]:
    """Return the places of at most `SCREEN_ROWS` of so many ordered rows, at even steps, the first and last among them.

    >>> spread_rows(31)[:3], len(spread_rows(31)), spread_rows(3)
    ([0, 2, 4], 16, [0, 1, 2])
    """
    return np.unique(np.linspace(0, count - 1, SCREEN_ROWS).astype(int)).tolist()


def estimate_plot(
    labels: Sequence[str],
    estimates: Floats,
    *,
    xlabel: str,
    limits: tuple[float, float] | None = None,
    format: str = ".1f",
    marks: Mapping[str, Floats] | None = None,
    log: bool = False,
) -> Figure:
    """Plot estimates with their intervals, array ``(rows, 3)`` of value and bounds, and print them beside."""
    rows = len(labels)
    # Narrow where labels are short: phones scale it down.
    width = min(8.5, max(5.2, 3.8 + 0.075 * max(map(len, labels))))
    tall = 0.34 if rows <= 10 else 0.28 if rows <= 24 else 0.22
    figure, axis = plt.subplots(figsize=(width, 0.8 + tall * rows), layout="constrained")
    place = np.arange(rows)[::-1]
    mean, low, high = np.asarray(estimates, dtype=float).T
    axis.hlines(place, low, high, color=COLOURS[0], linewidth=6 if rows <= 24 else 4, alpha=0.4)
    # A line across, not a dot: a dot would hide an interval narrower than itself.
    axis.plot(mean, place, "|", color=COLOURS[0], markersize=11 if rows <= 24 else 8, markeredgewidth=2)
    for (name, values), colour, mark in zip((marks or {}).items(), COLOURS[1:], "x+s", strict=False):
        axis.plot(values, place, mark, color=colour, markersize=7, label=name)
    if marks:
        figure.legend(loc="outside upper right", ncols=len(marks), frameon=False, fontsize=9)
    axis.set_yticks(place, labels, fontsize=10 if rows <= 24 else 8)
    axis.set_ylim(-0.6, rows - 0.4)
    if limits is not None:
        axis.set_xlim(*limits)
    if log:
        axis.set_xscale("log")
        # A share that is almost zero would stretch the axis over decades in which there is not half a record.
        axis.set_xlim(left=max(min(0.5, float(mean.min())), 0.9 * float(low.min())), right=1.5 * float(high.max()))
    beside = axis.get_yaxis_transform()
    for y, middle, bottom, top in zip(place, mean, low, high, strict=True):
        text = "{} ({} to {})".format(*(show_number(number, format) for number in (middle, bottom, top)))
        axis.text(1.015, y, text, transform=beside, va="center", fontsize=9 if rows <= 24 else 8)
    axis.set_xlabel(xlabel, fontsize=10)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    if not log and np.abs(axis.get_xlim()).max() >= 1000:
        axis.locator_params(axis="x", nbins=3)  # long numbers would touch
    axis.grid(axis="x", color="0.9")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    return figure
