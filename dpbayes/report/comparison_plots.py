"""Figures of a comparison: one colour a run, or one axis for the number that differs between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["intervals_of_runs", "ladder_panels"]

# Okabe and Ito's colours, told apart without red and green.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")


def ladder_panels(
    quantities: Mapping[str, npt.NDArray[np.float64]],
    labels: Sequence[str],
    *,
    ladder: tuple[str, Sequence[float]] | None,
) -> Figure:
    """Plot quantities across runs, a panel each.

    Parameters
    ----------
    quantities
        Title to values, shape ``(runs,)`` or ``(runs, rows)``; of many rows the median and the middle half are drawn.
    labels
        Names of the runs.
    ladder
        Name and values of the number that tells the runs apart, which becomes the axis; None for the names.

    Returns
    -------
    Figure
        One panel a quantity.
    """
    columns = min(3, len(quantities))
    rows = -(-len(quantities) // columns)
    tall = 2.7 if ladder else 2.4 + 0.05 * max(map(len, labels))
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.6 * columns, tall * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(quantities) :]:
        axis.set_visible(False)
    place = np.arange(len(labels), dtype=float) if ladder is None else np.asarray(ladder[1], dtype=float)
    for axis, (title, values) in zip(axes.flat, quantities.items(), strict=False):
        many = values if values.ndim == 2 else values[:, None]
        low, middle, high = np.nanquantile(many, [0.25, 0.5, 0.75], axis=1)
        if many.shape[1] > 1:
            axis.vlines(place, low, high, color=COLOURS[0], linewidth=5, alpha=0.35)
        axis.plot(place, middle, "o-" if ladder else "o", color=COLOURS[0], linewidth=1, markersize=5)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.grid(color="0.92")
        _scale(axis, low, middle, high)
        if ladder is None:
            axis.set_xticks(place, labels, rotation=30, ha="right", fontsize=8)
            axis.set_xlim(-0.5, len(labels) - 0.5)
        elif _spans_decades(place):
            axis.set_xscale("log")
            axis.set_xticks(place, [f"{value:g}" for value in place])
            axis.minorticks_off()
    if ladder is not None:
        figure.supxlabel(ladder[0], fontsize=9)
    return figure


def intervals_of_runs(
    titles: Sequence[str],
    estimates: npt.NDArray[np.float64],
    labels: Sequence[str],
    *,
    unit: str,
) -> Figure:
    """Plot each run's intervals side by side, as differences from the first run's estimates.

    Parameters
    ----------
    titles
        What each row is about.
    estimates
        Array ``(runs, rows, 3)``: estimate, lower and upper end.
    labels
        Names of the runs.
    unit
        What the axis shows.

    Returns
    -------
    Figure
        One group of lines a row, one colour a run.
    """
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


def _scale(
    axis: Axes, low: npt.NDArray[np.float64], middle: npt.NDArray[np.float64], high: npt.NDArray[np.float64]
) -> None:
    """Use a logarithmic axis for positive values over more than a factor of 30, and else show zero.

    The ends of the bars count as the points do, so that no bar runs off the top; on a logarithmic axis one that starts
    at zero comes from the lower edge.
    """
    drawn = np.concatenate([middle, high])
    finite = drawn[np.isfinite(drawn)]
    if not finite.size or np.nanmin(low) < 0:
        return
    if finite.min() > 0 and finite.max() > 30 * finite.min():
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 1.15 * finite.max() or 1)


def _spans_decades(values: npt.NDArray[np.float64]) -> bool:
    return bool(values.min() > 0 and values.max() >= 8 * values.min())
