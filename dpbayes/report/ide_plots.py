"""Figures of prior-aware estimation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator

from dpbayes.report.plots import ESTIMATE, RELEASED, TRUTH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["dependence_plot", "error_by_group_plot", "strength_plot", "trace_plot"]

_COLORS = {"prior": TRUTH, "pooled prior": "#8a8a8a", "algorithm-1": RELEASED, "bootstrap of the truth": "#8a8a8a"}
_MARKERS = {"prior": "s", "pooled prior": "D", "algorithm-1": "^", "bootstrap of the truth": "|"}


def error_by_group_plot(groups: Sequence[str], errors: Mapping[str, Sequence[float]]) -> Figure:
    """Plot the mean L1 error of every group, a mark for each distribution (the paper's Figure 1).

    Parameters
    ----------
    groups
        Names of the groups.
    errors
        Name of a distribution to its error in every group, from 0 to 2.

    Returns
    -------
    Figure
        One row a group, sorted by the prior's error.
    """
    order = np.argsort(errors["prior"])
    place = np.arange(len(groups))
    figure, axis = plt.subplots(figsize=(8.5, 1.2 + 0.26 * len(groups)), layout="constrained")
    for name, values in errors.items():
        mark, color = _MARKERS.get(name, "o"), _COLORS.get(name, ESTIMATE)
        size = 11 if mark == "|" else 6
        axis.plot(np.asarray(values)[order], place, mark, markersize=size, markeredgewidth=1.5, color=color, label=name)
    axis.set_yticks(place, [groups[i] for i in order], fontsize=8)
    axis.set_xlim(left=0)
    axis.set_ylim(-0.6, len(groups) - 0.4)
    axis.set_xlabel("mean L1 distance of two-way marginals (0 equal, 2 disjoint)", fontsize=9)
    axis.grid(axis="x", color="0.9")
    figure.legend(loc="outside upper right", ncols=len(errors), frameon=False, fontsize=9)
    return figure


def trace_plot(step: Sequence[int], l1_loss: Sequence[float], kl: Sequence[float], minimum: float | None) -> Figure:
    """Plot Algorithm 1's L1 loss and KL divergence from the prior by iteration.

    Parameters
    ----------
    step, l1_loss, kl
        The trace.
    minimum
        Least L1 loss of any distribution on the support, where it is known.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.2), layout="constrained")
    left.plot(step, l1_loss, color=ESTIMATE, linewidth=1.5)
    if minimum is not None:
        left.axhline(minimum, color=RELEASED, linewidth=1.2, linestyle="--", label="least possible")
        left.legend(frameon=False, fontsize=9)
    left.set_ylim(bottom=0)
    left.set_ylabel("L1 distance to the released answers", fontsize=9)
    right.plot(step, kl, color=ESTIMATE, linewidth=1.5)
    right.set_ylabel("KL divergence from the prior (nats)", fontsize=9)
    for axis in (left, right):
        axis.set_xlabel("iteration", fontsize=9)
        axis.tick_params(labelsize=8)
    return figure


def strength_plot(grid: Sequence[float], log_likelihood: Sequence[float], value: float) -> Figure:
    """Plot the likelihood of the prior strength and the strength that was taken.

    Parameters
    ----------
    grid
        Strengths, in records.
    log_likelihood
        Relative to the maximum, in nats.
    value
        The strength taken.
    """
    figure, axis = plt.subplots(figsize=(7.5, 3.3), layout="constrained")
    axis.plot(grid, log_likelihood, color=ESTIMATE, linewidth=1.5)
    axis.axhline(-1.92, color="0.5", linewidth=1.0, linestyle="--", label="1.92 below the best")
    axis.axvline(value, color=RELEASED, linewidth=1.2, label=f"taken: {value:,.0f} records")
    axis.axvline(max(grid), color=TRUTH, linewidth=1.2, linestyle=":", label=f"at most {max(grid):,.0f}")
    axis.set_xscale("log")
    shown = [strength for strength, value in zip(grid, log_likelihood, strict=True) if value > -12.0]
    axis.set_xlim(min(shown), max(grid) * 1.1)
    axis.set_ylim(-12.0, 0.7)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.xaxis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
    axis.xaxis.set_minor_formatter("{x:,.0f}")
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_xlabel("prior strength (records)", fontsize=9)
    axis.set_ylabel("log-likelihood less its maximum", fontsize=9)
    figure.legend(loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def dependence_plot(
    names: Sequence[str], information: Sequence[Sequence[float]], roots: Sequence[str], cliques: Sequence[Sequence[str]]
) -> Figure:
    """Plot pairwise mutual information, with the pairs that the upper level's tables hold and the groups' attributes.

    Parameters
    ----------
    names
        The attributes.
    information
        Mutual information in nats, a square matrix.
    roots
        Attributes of the groups' workload.
    cliques
        Attribute sets of the upper level's workload.
    """
    matrix = np.asarray(information, dtype=float)
    figure, axis = plt.subplots(figsize=(1.8 + 0.5 * len(names), 1.0 + 0.45 * len(names)), layout="constrained")
    image = axis.imshow(matrix, cmap="Blues", vmin=0)
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            if i != j and any({first, second} <= set(clique) for clique in cliques):
                axis.add_patch(plt.Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, edgecolor=RELEASED, lw=1.6))
    labels = [f"{name} *" if name in roots else name for name in names]
    axis.set_xticks(range(len(names)), labels, rotation=90, fontsize=8)
    axis.set_yticks(range(len(names)), labels, fontsize=8)
    figure.colorbar(image, ax=axis, label="mutual information (nats)", shrink=0.8)
    return figure
