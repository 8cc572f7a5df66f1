"""Figures on the chains: how effective draws accumulate, and the energies that the sampler visits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import numpy.typing as npt

from dpbayes.inference.convergence import mixing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["energy_plot", "evolution_plot"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
STEPS = 10


def evolution_plot(draws: Mapping[str, npt.NDArray[np.float64]]) -> Figure:
    """Plot effective sample sizes from the first tenth, two tenths, ... of every chain.

    Parameters
    ----------
    draws
        Name of each quantity to its draws, shape ``(chains, draws)``.

    Returns
    -------
    Figure
        Bulk (solid) and tail (dashed) effective sample sizes against the number of draws of all chains together.
    """
    stacked = np.stack([np.asarray(values, dtype=float) for values in draws.values()])
    _, chains, length = stacked.shape
    sizes = np.unique(np.linspace(max(length / STEPS, 8), length, STEPS).astype(int))
    sizes = sizes[sizes <= length]
    found = [mixing(stacked[:, :, :size]) for size in sizes]
    figure, axis = plt.subplots(figsize=(8.5, 3.6), layout="constrained")
    for place, name in enumerate(draws):
        colour = COLOURS[place % len(COLOURS)]
        axis.plot(sizes * chains, [one.ess_bulk[place] for one in found], "o-", color=colour, markersize=3, label=name)
        axis.plot(sizes * chains, [one.ess_tail[place] for one in found], "--", color=colour, linewidth=1)
    axis.axhline(400, color="0.4", linestyle=":", linewidth=1)
    axis.set_xlim(0, None)
    axis.set_ylim(0, None)
    axis.set_xlabel("draws of all chains", fontsize=9)
    axis.set_ylabel("effective draws", fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(color="0.93")
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    return figure


def energy_plot(energy: npt.NDArray[np.float64], bfmi: npt.NDArray[np.float64]) -> Figure:
    """Plot the law of the energy beside the law of its changes, a panel a chain.

    Parameters
    ----------
    energy
        Shape ``(chains, draws)``.
    bfmi
        The Bayesian fraction of missing information of each chain.

    Returns
    -------
    Figure
        Both laws are centred at zero.

    References
    ----------
    Betancourt, M. (2017). A conceptual introduction to Hamiltonian Monte Carlo, section 6.1.
    """
    chains = len(energy)
    columns = min(4, chains)
    rows = -(-chains // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        figsize=(2.6 * columns, 2.2 * rows),
        squeeze=False,
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axis in axes.flat[chains:]:
        axis.set_visible(False)
    centred = energy - energy.mean(axis=1, keepdims=True)
    changes = np.diff(energy, axis=1)
    reach = max(float(np.abs(centred).max()), float(np.abs(changes).max()), 1e-12)
    bins = np.linspace(-reach, reach, 41)
    for chain, axis in enumerate(axes.flat[:chains]):
        axis.hist(centred[chain], bins=bins, density=True, color=COLOURS[0], alpha=0.35)
        axis.hist(changes[chain], bins=bins, density=True, histtype="step", color=COLOURS[1], linewidth=1.4)
        axis.set_title(f"chain {chain}, BFMI {bfmi[chain]:.2f}", fontsize=9)
        axis.tick_params(labelsize=8)
        axis.set_yticks([])
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=COLOURS[0], alpha=0.35, label="energy"),
        plt.Line2D([], [], color=COLOURS[1], label="change of energy"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    figure.supxlabel("difference from the mean energy", fontsize=9)
    return figure
