"""Plots of verifications: posteriors, and surfaces of operating characteristics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from dpbayes.errors import InputError

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.figure import Figure

    from dpbayes.verifier.exact import Posterior

__all__ = ["count_surface_plot", "design_surface_plot", "posterior_plot"]

_LINE = "#1f5fa8"
_LABELS = {
    "mode_mean": "mean of r-hat",
    "mode_sd": "standard deviation of r-hat",
    "width": "mean width of the 95 % interval",
    "coverage": "coverage of the 95 % interval",
    "right": "chance of the right decision",
    "wrong": "chance of the wrong decision",
    "decide_above": "chance to decide for the claim",
    "decide_below": "chance to decide against the claim",
    "undecided": "chance to stay undecided",
}


def posterior_plot(posteriors: Mapping[str, Posterior], *, threshold: float = 0.5) -> Figure:
    """Plot the posterior density of r for each question, its 95 % interval shaded.

    Parameters
    ----------
    posteriors
        By the name of their question.
    threshold
        Where a line is drawn.

    Returns
    -------
    Figure
        One panel a question.
    """
    figure, axes = plt.subplots(
        len(posteriors), 1, figsize=(8.0, 1.0 + 1.7 * len(posteriors)), sharex=True, squeeze=False, layout="constrained"
    )
    for axis, (name, one) in zip(axes[:, 0], posteriors.items(), strict=True):
        low, high = one.interval()
        first, last = one.r.quantile([1e-4, 1 - 1e-4]).tolist()
        inner = np.clip(np.linspace(first, last, 200), 1e-6, 1 - 1e-6)
        grid = np.unique(np.concatenate([np.linspace(1e-3, 1 - 1e-3, 120), inner]))
        density = one.r.pdf(grid)
        axis.plot(grid, density, color=_LINE)
        inside = (grid >= low) & (grid <= high)
        axis.fill_between(grid[inside], density[inside], color=_LINE, alpha=0.25, label="95 % interval")
        axis.axvline(threshold, color="0.4", linestyle=":")
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_yticks([])
        axis.set_ylabel("density", fontsize=9)
        axis.set_ylim(0, None)
    axes[-1, 0].set_xlim(0, 1)
    axes[-1, 0].set_xlabel("r: share of partitions in which the claim holds", fontsize=9)
    axes[0, 0].legend(loc="best", frameon=False, fontsize=9)
    return figure


def count_surface_plot(surface: xr.Dataset, variable: str = "width", *, solid: bool = False) -> Figure:
    """Plot an operating characteristic over all triples of true counts.

    Parameters
    ----------
    surface
        What `count_surface` returned.
    variable
        One of its variables.
    solid
        Draw a surface in perspective instead of a map.

    Returns
    -------
    Figure
        True counts beyond against not beyond; what is missing to M could not be computed.
    """
    if variable not in surface:
        raise InputError(f"variable {variable!r} is not in the surface; it has {', '.join(map(repr, surface))}")
    values = surface[variable].transpose("not_beyond", "beyond")
    x, y = values["beyond"].values, values["not_beyond"].values
    # A share of 0 or 1 is never covered; its zeros would drown the rest.
    shown = np.ma.masked_invalid(values.where(values > 0) if variable == "coverage" else values)
    label = _LABELS.get(variable, variable)
    title = f"M = {surface.attrs['n_partitions']}, epsilon = {surface.attrs['epsilon']:g}"
    if solid:
        figure = plt.figure(figsize=(6.4, 5.0))
        # The layout engine does not see the labels of a third axis.
        axis: Any = figure.add_axes((0.02, 0.02, 0.96, 0.98), projection="3d")
        mesh_x, mesh_y = np.meshgrid(x, y)
        axis.plot_surface(mesh_x, mesh_y, shown, cmap="viridis", linewidth=0)
        axis.view_init(elev=32, azim=-110)
        axis.set_box_aspect(None, zoom=0.95)
        axis.set_zlabel(label, fontsize=9)
    else:
        figure, axis = plt.subplots(figsize=(6.4, 5.0), layout="constrained")
        drawn = axis.pcolormesh(x, y, shown, shading="nearest", cmap="viridis")
        figure.colorbar(drawn, ax=axis, label=label)
    axis.set_xlabel("true partitions beyond, S1", fontsize=9)
    axis.set_ylabel("true partitions not beyond, S0", fontsize=9)
    figure.suptitle(title, fontsize=10)
    return figure


def design_surface_plot(surface: xr.Dataset, variable: str = "right") -> Figure:
    """Plot an operating characteristic over epsilon and M, one panel a supposed r.

    Parameters
    ----------
    surface
        What `design_surface` returned.
    variable
        One of its variables.

    Returns
    -------
    Figure
        Lines over epsilon, one an M.
    """
    if variable not in surface:
        raise InputError(f"variable {variable!r} is not in the surface; it has {', '.join(map(repr, surface))}")
    shares = surface["r"].values
    figure, axes = plt.subplots(
        1, shares.size, figsize=(2.0 + 2.8 * shares.size, 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, surface.sizes["n_partitions"]))
    for axis, r in zip(axes[0], shares, strict=True):
        for colour, m in zip(colours, surface["n_partitions"].values, strict=True):
            values = surface[variable].sel(r=r, n_partitions=m)
            axis.plot(
                surface["epsilon"].values, values.values, marker="o", markersize=3, color=colour, label=f"M = {m}"
            )
        if variable == "coverage":
            axis.axhline(surface.attrs["prob"], color="0.4", linestyle=":")
        axis.set_xscale("log")
        axis.set_xticks(surface["epsilon"].values, [f"{e:g}" for e in surface["epsilon"].values])
        axis.minorticks_off()
        axis.set_title(f"r = {r:g}", fontsize=10)
        axis.set_xlabel("epsilon", fontsize=9)
        axis.grid(color="0.92")
    axes[0, 0].set_ylabel(_LABELS.get(variable, variable), fontsize=9)
    axes[0, -1].legend(frameon=False, fontsize=9)
    return figure
