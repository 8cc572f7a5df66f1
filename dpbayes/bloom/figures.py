"""Figures: the paper's three on signal, redrawn, and epsilon against flipping. Each returns a Matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np

from dpbayes.bloom._checks import Definition
from dpbayes.bloom.calibration import Pairs, bloom_epsilon, flip_prob_for
from dpbayes.bloom.signal import signal_to_noise, skewed_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "epsilon_figure",
    "flip_prob_figure",
    "signal_by_skewness_figure",
    "signal_coefficients_figure",
    "signal_heatmaps_figure",
]

_LEAST = 1e-4
SKEWNESSES = (0.0, 1.0, 2.0, 3.0)


# What the privacy figures cover.
_COVERS = {
    "paper": "one filter: all pairs; several: the paper's pair; one position differs",
    "all": "all pairs (several filters: an upper bound); one position differs",
}


def signal_by_skewness_figure(*, n_filters: int = 3, flip_probs: Sequence[float] = (0.05, 0.1, 0.2)) -> Figure:
    """Redraw the paper's figure 2: the largest signal-to-noise ratio grows with the skewness of the logo counts.

    Parameters
    ----------
    n_filters
        Filters k.
    flip_probs
        Flip probabilities, one pair of lines each.

    Returns
    -------
    Figure
        Solid: the largest ratio over all changes. Dashed: that of 0 -> 2^k - 1, where it is smaller.

    Examples
    --------
    >>> figure = signal_by_skewness_figure(n_filters=2, flip_probs=[0.1])
    >>> len(figure.axes) > 0
    True
    >>> plt.close(figure)
    """
    skewness = np.linspace(0.0, 20.0, 41)
    figure, axis = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    for colour, p in enumerate(flip_probs):
        signals = [signal_to_noise(skewed_counts(n_filters, skewness=a), flip_prob=p) for a in skewness]
        axis.plot(skewness, [s.largest[0] for s in signals], color=f"C{colour}", label=f"p = {p:g}")
        axis.plot(skewness, [s.ratio(0, 2**n_filters - 1) for s in signals], color=f"C{colour}", linestyle="--")
    axis.set_yscale("log")
    axis.set_xlabel("skewness of the logo counts")
    axis.set_ylabel("signal-to-noise ratio")
    axis.legend(title="all changes; dashed: 0 → " + str(2**n_filters - 1))
    return figure


def signal_heatmaps_figure(
    *, n_filters: int = 3, flip_prob: float = 0.05, skewnesses: Sequence[float] = SKEWNESSES
) -> Figure:
    """Redraw the paper's figure 3: the ratio of every change, for several skewnesses; the largest is marked.

    Parameters
    ----------
    n_filters, flip_prob
        Filters k and flip probability p.
    skewnesses
        One panel each.

    Returns
    -------
    Figure
        The mark is not always at 0 -> 2^k - 1: the paper's Observation 2 fails.

    Examples
    --------
    >>> figure = signal_heatmaps_figure(n_filters=2, skewnesses=[0.0])
    >>> len(figure.axes) > 0
    True
    >>> plt.close(figure)
    """
    figure, axes = plt.subplots(
        1, len(skewnesses), figsize=(3.0 * len(skewnesses), 3.4), squeeze=False, layout="constrained"
    )
    for axis, a in zip(axes.flat, skewnesses, strict=True):
        signal = signal_to_noise(skewed_counts(n_filters, skewness=a), flip_prob=flip_prob)
        image = axis.imshow(signal.matrix, origin="lower", cmap="viridis")
        value, (source, target) = signal.largest
        axis.plot([source, target], [target, source], "o", markerfacecolor="none", markeredgecolor="red", markersize=9)
        axis.set_title(f"skewness {a:g}: {value:.1f} at {source} → {target}", fontsize=9)
        axis.set_xlabel("to logo")
        figure.colorbar(image, ax=axis, location="bottom", shrink=0.85)
    axes[0, 0].set_ylabel("from logo")
    return figure


def signal_coefficients_figure(
    *, n_filters: int = 3, flip_prob: float = 0.05, skewnesses: Sequence[float] = SKEWNESSES
) -> Figure:
    """Redraw the paper's figure 4: coefficients of the released counts that show the change 0 -> 2^k - 1 best.

    Parameters
    ----------
    n_filters, flip_prob, skewnesses
        As in `signal_heatmaps_figure`.

    Returns
    -------
    Figure
        With growing skewness they approach (s, ..., s, -1) up to sign and length, as the paper says.

    Examples
    --------
    >>> figure = signal_coefficients_figure(n_filters=2, skewnesses=[0.0, 3.0])
    >>> len(figure.axes) > 0
    True
    >>> plt.close(figure)
    """
    figure, axis = plt.subplots(figsize=(6.0, 3.4), layout="constrained")
    logos = np.arange(2**n_filters)
    for a in skewnesses:
        signal = signal_to_noise(skewed_counts(n_filters, skewness=a), flip_prob=flip_prob)
        axis.plot(logos, -signal.coefficients(0, 2**n_filters - 1), marker="o", label=f"{a:g}")
    axis.axhline(0.0, color="0.7", linewidth=0.8, zorder=0)
    axis.set_xlabel("released logo")
    axis.set_ylabel("coefficient")
    axis.set_xticks(logos)
    axis.legend(title="skewness")
    return figure


def epsilon_figure(
    *,
    n_filters: Sequence[int],
    n_bits: Sequence[int],
    delta: float,
    flip_probs: Sequence[float] | None = None,
    definition: Definition = "tight",
    pairs: Pairs = "paper",
) -> Figure:
    """Plot epsilon against the flip probability, one line for each number of filters and of bits.

    Parameters
    ----------
    n_filters, n_bits
        Values of k (colour) and m (line style).
    delta
        Delta.
    flip_probs
        Where to evaluate; .05 to .45 by default.
    definition, pairs
        As in `bloom_epsilon`; "all" takes seconds to minutes a point for several filters.

    Returns
    -------
    Figure
        Upper ends. One filter: all pairs, exhaustive. Several: the paper's pair, or a bound for all pairs. The axis
        and the title say which.

    Examples
    --------
    >>> figure = epsilon_figure(n_filters=[1], n_bits=[100], delta=1e-3, flip_probs=[0.2, 0.3])
    >>> len(figure.axes) > 0
    True
    >>> plt.close(figure)
    """
    grid = np.linspace(0.05, 0.45, 17) if flip_probs is None else np.asarray(flip_probs)
    figure, axis = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for colour, k in enumerate(n_filters):
        for m, style in zip(n_bits, ("-", "--", ":", "-.") * len(n_bits), strict=False):
            epsilons = [
                bloom_epsilon(flip_prob=p, delta=delta, n_filters=k, n_bits=m, definition=definition, pairs=pairs).upper
                for p in grid
            ]
            # Below the total variation delta is enough on its own: epsilon 0 has no place on a log axis.
            shown = np.where(np.array(epsilons) > _LEAST, epsilons, np.nan)
            axis.plot(grid, shown, color=f"C{colour}", linestyle=style, label=f"k = {k}, m = {m:,}")
    axis.set_yscale("log")
    axis.set_xlabel("flip probability")
    axis.set_ylabel(f"epsilon at delta {delta:g} ({definition})")
    axis.set_title(
        f"{_COVERS[pairs]}\na line ends where delta {delta:g} is enough for epsilon 0", fontsize=9, loc="left"
    )
    axis.legend(fontsize=8)
    return figure


def flip_prob_figure(
    *,
    n_filters: Sequence[int],
    n_bits: Sequence[int],
    epsilon: float,
    delta: float,
    definition: Definition = "tight",
    pairs: Pairs = "paper",
    flip_probs: Mapping[tuple[int, int], float] | None = None,
) -> Figure:
    """Plot the flip probability that a target asks for against the number of filters.

    Parameters
    ----------
    n_filters, n_bits
        Values of k (along the axis) and m (one line each).
    epsilon, delta
        The target.
    definition, pairs
        As in `flip_prob_for`; "all" takes a minute or more a point for several filters.
    flip_probs
        What `flip_prob_for` gave for each (k, m), where it is known already.

    Returns
    -------
    Figure
        The axis and the title say which definition and pairs.

    Examples
    --------
    >>> figure = flip_prob_figure(n_filters=[1, 2], n_bits=[50], epsilon=1.0, delta=1e-2)
    >>> len(figure.axes) > 0
    True
    >>> plt.close(figure)
    """
    figure, axis = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    for m in n_bits:
        needed = [
            flip_prob_for(epsilon=epsilon, delta=delta, n_filters=k, n_bits=m, definition=definition, pairs=pairs)
            if flip_probs is None
            else flip_probs[k, m]
            for k in n_filters
        ]
        axis.plot(list(n_filters), needed, marker="o", label=f"m = {m:,}")
    axis.set_xticks(list(n_filters))
    axis.set_xlabel("filters")
    axis.set_ylabel(f"flip probability for epsilon {epsilon:.4g}\nat delta {delta:g} ({definition})")
    axis.set_title(_COVERS[pairs], fontsize=9, loc="left")
    axis.legend()
    return figure
