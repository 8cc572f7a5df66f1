"""The paper's figures 2 to 4 on the signal that flipping leaves, redrawn.

Run it with `python models/studies/bloom_signal_figures.py`; it writes three pictures.
Its Observation 2, that the change 0 -> 2^k - 1 always has the most signal, does not hold: the figures mark the largest.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from dpbayes.bloom.signal import signal_to_noise, skewed_counts

SKEWNESSES = (0.0, 1.0, 2.0, 3.0)


def signal_by_skewness_figure(*, n_filters: int = 3, flip_probs: Sequence[float] = (0.05, 0.1, 0.2)) -> Figure:
    """Redraw the paper's figure 2: the largest signal-to-noise ratio grows with the skewness of the logo counts."""
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
    """Redraw the paper's figure 3: the ratio of every change, for several skewnesses; the largest is marked."""
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
    """Redraw the paper's figure 4: coefficients of the released counts that show the change 0 -> 2^k - 1 best."""
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


if __name__ == "__main__":
    for draw in (signal_by_skewness_figure, signal_heatmaps_figure, signal_coefficients_figure):
        draw().savefig(f"{draw.__name__}.png", dpi=150)
