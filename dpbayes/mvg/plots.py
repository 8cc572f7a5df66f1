"""Figures: noise ellipses around the sensitivity set, noise by feature, eigenvalue errors, and error strips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from dpbayes.errors import InputError
from dpbayes.mvg.comparison import NoiseCost
from dpbayes.mvg.experiments import PAPER_RSS, CovarianceResult
from dpbayes.mvg.sensitivity import FeatureRanges
from dpbayes.mvg.svr import SvrScore, SvrStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["error_strips", "noise_bars", "noise_ellipses", "rss_lines"]

# Distinguishable without colour vision, and by line style.
_COLOURS = ("#2f5fa8", "#c2571a", "#2a7f62", "#7b4b9e", "#8a6d1f", "#555555")
_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))


def noise_ellipses(
    costs: Sequence[NoiseCost],
    ranges: FeatureRanges,
    *,
    features: tuple[int, int] = (0, 1),
    names: Sequence[str] = (),
    unit: str = "",
) -> Figure:
    r"""Draw each mechanism's noise ellipse around the sensitivity set, for two features.

    The ellipse is the projection of :math:`\{d : d^T \Sigma^{-1} d \le \mu^2\}` at the mu that the guarantee allows,
    the largest among `costs`. It must hold every change one record can make: the guarantee is that the box of all
    features fits inside, the cost is the ellipse's size. The box is drawn square unless the ranges differ more than
    fourfold. Mechanisms whose ellipse is more than 20 times the box are named in the title.

    Parameters
    ----------
    costs
        From `compare_noise`.
    ranges
        The same ranges.
    features
        Two different features.
    names
        Names of all features.
    unit
        What the axes count in, added to their labels.

    Returns
    -------
    matplotlib.figure.Figure
        One panel.

    Raises
    ------
    InputError
        If the features are not two different ones.

    Examples
    --------
    >>> from dpbayes.mvg import compare_noise
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
    >>> costs = compare_noise(ranges, n=100, epsilon=1.0, delta=1e-5)
    >>> figure = noise_ellipses(costs, ranges, names=("age", "bmi"))
    >>> figure.axes[0].get_xlabel()
    'change in age'
    >>> plt.close(figure)
    """
    first, second = features
    if first == second or not all(0 <= i < ranges.size for i in features):
        raise InputError(f"features must be two different ones of {ranges.size}, got {features}")
    labels = list(names) or [f"feature {i}" for i in range(ranges.size)]
    figure, axis = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
    centre, half = ranges.box
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]]) * half[list(features)] + centre[list(features)]
    axis.fill(*corners.T, color="#dddddd", zorder=0, label="changes one record can make")
    angle = np.linspace(0, 2 * np.pi, 361)
    circle = np.vstack([np.cos(angle), np.sin(angle)])
    far, allowed = [], max(cost.noise.mu.value for cost in costs)
    for place, cost in enumerate(costs):
        block = cost.noise.row_cov.matrix()[np.ix_(features, features)] * allowed**2
        curve = np.linalg.cholesky(block) @ circle
        if np.max(np.abs(curve)) > 20.0 * np.max(half[list(features)]):
            far.append(cost.mechanism)
            continue
        style = _STYLES[place % len(_STYLES)]
        axis.plot(*curve, color=_COLOURS[place % len(_COLOURS)], linestyle=style, label=cost.mechanism)
    suffix = f" ({unit})" if unit else ""
    axis.set_xlabel(f"change in {labels[first]}{suffix}")
    axis.set_ylabel(f"change in {labels[second]}{suffix}")
    if 0.25 <= half[first] / half[second] <= 4.0:
        axis.set_aspect(float(half[first] / half[second]))
    axis.axhline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
    axis.axvline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    if far:
        axis.set_title(f"Off this scale: {', '.join(far)}", fontsize=8, loc="left")
    return figure


def noise_bars(stddevs: dict[str, Sequence[float]], names: Sequence[str]) -> Figure:
    """Draw the noise standard deviation of every feature, in parts of its range, one group of bars a feature.

    Parameters
    ----------
    stddevs
        Mechanism to its standard deviations over the features' ranges, positive.
    names
        Names of the features.

    Returns
    -------
    matplotlib.figure.Figure
        One panel with a logarithmic axis; bars start at 1, where noise is as large as the range.

    Examples
    --------
    >>> figure = noise_bars({"i.i.d.": [4.0, 4.0], "optimal": [2.0, 6.0]}, ["age", "bmi"])
    >>> len(figure.axes[0].patches)
    4
    >>> plt.close(figure)
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    width, place = 0.8 / len(stddevs), np.arange(len(names))
    for i, (name, values) in enumerate(stddevs.items()):
        offset = (i - (len(stddevs) - 1) / 2) * width
        height = np.asarray(values, dtype=float) - 1.0
        axis.bar(place + offset, height, width, bottom=1.0, color=_COLOURS[i % len(_COLOURS)], label=name)
    axis.axhline(1.0, color="#111111", linewidth=0.8)
    axis.set_yscale("log")
    everything = [1.0, *np.concatenate([np.asarray(values, dtype=float) for values in stddevs.values()])]
    axis.set_ylim(min(everything) / 1.5, max(everything) * 1.5)  # matplotlib's own limits end at the bars' feet
    axis.grid(axis="y", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_xticks(place, [name.replace("_", " ") for name in names], rotation=35, ha="right", fontsize=8)
    axis.set_ylabel("noise standard deviation / range")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8, frameon=False)
    return figure


def rss_lines(results: Sequence[CovarianceResult], *, paper: bool = True) -> Figure:
    """Draw the eigenvalue error of both queries against the sample size, beside the paper's table.

    Parameters
    ----------
    results
        From `covariance_study`.
    paper
        Whether to add the points of the paper's Appendix C. Its data and epsilon are not known: compare slopes.

    Returns
    -------
    matplotlib.figure.Figure
        One panel, both axes logarithmic.

    Examples
    --------
    >>> figure = rss_lines([CovarianceResult(100, "covariance", (1e-4, 3e-4), (0.1, 0.2), 0.01)], paper=False)
    >>> figure.axes[0].get_yscale()
    'log'
    >>> plt.close(figure)
    """
    figure, axis = plt.subplots(figsize=(5.6, 3.8), layout="constrained")
    for query, colour, marker in (("covariance", _COLOURS[0], "o"), ("identity", _COLOURS[1], "s")):
        rows = [row for row in results if row.query == query]
        if not rows:
            continue
        sizes, summary = [row.n for row in rows], [row.summary() for row in rows]
        mean = np.array([part["mean"] for part in summary])
        spread = np.array([[part["mean"] - part["low"], part["high"] - part["mean"]] for part in summary]).T
        axis.errorbar(sizes, mean, yerr=spread, color=colour, marker=marker, capsize=3, label=f"{query} query")
        if paper:
            points = [(n, rss) for n, name, rss in PAPER_RSS if name == query]
            axis.plot(
                *zip(*points, strict=True), color=colour, marker=marker, mfc="none", ls=":", label=f"{query}, paper"
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    ticks = sorted({row.n for row in results} | ({n for n, _, _ in PAPER_RSS} if paper else set()))
    axis.set_xticks(ticks, [f"{n:,}" for n in ticks], fontsize=8)
    axis.set_xticks([], minor=True)
    axis.set_xlabel("records")
    axis.set_ylabel("RSS of eigenvalue shares")
    figure.legend(loc="outside upper center", ncols=2, fontsize=8, frameon=False)
    return figure


def error_strips(study: SvrStudy) -> Figure:
    """Draw the holdout error of every draw, one strip a mechanism, one panel an epsilon.

    Parameters
    ----------
    study
        From `svr_study`.

    Returns
    -------
    matplotlib.figure.Figure
        The dashed line is the error without privacy, the solid one the error of one constant: strips at or right of it
        have drowned the signal.

    Examples
    --------
    >>> clean = SvrScore("no privacy", None, (0.1,), (0.0,), 0.0, 0.1, 1.0)
    >>> noisy = SvrScore("optimal", 1.0, (0.2, 0.3), (1.0,), 1e-3, 0.1, 1.0)
    >>> figure = error_strips(SvrStudy((clean, noisy), constant=0.14, n_train=70, n_tuning=15, n_holdout=15))
    >>> figure.axes[0].get_title()
    'epsilon 1'
    >>> plt.close(figure)
    """
    epsilons = sorted({score.epsilon for score in study.scores if score.epsilon is not None})
    clean = next(score for score in study.scores if score.epsilon is None)
    figure, axes = plt.subplots(
        1, len(epsilons), figsize=(2.2 + 2.6 * len(epsilons), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, epsilon in zip(axes[0], epsilons, strict=True):
        scores = [score for score in study.scores if score.epsilon == epsilon]
        _strips(axis, scores)
        axis.axvline(clean.mean, color="#2a7f62", linestyle="--", linewidth=1, label="no privacy")
        axis.axvline(study.constant, color="#111111", linewidth=1, label="one constant")
        axis.set_title(f"epsilon {epsilon:g}", fontsize=9)
        axis.set_xscale("log")
        axis.set_xlabel("mean absolute error of the score", fontsize=9)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=8, frameon=False
    )
    return figure


def _strips(axis: Axes, scores: Sequence[SvrScore]) -> None:
    for place, score in enumerate(scores):
        colour = _COLOURS[place % len(_COLOURS)]
        spread = np.linspace(-0.22, 0.22, len(score.mae))
        axis.plot(score.mae, place + spread, linestyle="none", marker="o", markersize=3, color=colour, alpha=0.7)
        label = "mean of the draws" if place == 0 else None
        axis.plot(
            score.mean, place, "|", markersize=16, markeredgewidth=2, color="#111111", linestyle="none", label=label
        )
    axis.set_yticks(range(len(scores)), [score.mechanism for score in scores], fontsize=8)
    axis.invert_yaxis()
