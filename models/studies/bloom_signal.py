"""The signal that flipping leaves, as the paper has it, and its figures 2 to 4 redrawn.

How well can a change of one logo be told from the released counts? The paper infers its worst pair from this. Run
`python models/studies/bloom_signal.py` for the pictures. Its Observation 2, that the change 0 -> 2^k - 1 always has the
most signal, does not hold: the figures mark the largest.

With d the true logo counts, T the transition matrix and x the released counts, E(x) = T d and B = Cov(x) = diag(T d) -
T diag(d) T. Moving one count from logo j to logo i changes E(c . x) by c . a, a = T (e_i - e_j), so

    SNR(j -> i) = max_c (c . a)^2 / Var(c . x) = a' B^+ a,        c proportional to B^+ a.

B annihilates constants and nothing else and a sums to zero, so B^+ may be any generalized inverse. Scaled by the
released counts, and with the direction of the constants added back, it is positive definite: one Cholesky factor serves
all changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from scipy.linalg import cho_factor, cho_solve

from dpbayes._arguments import number, real_numbers, whole_number
from dpbayes.bloom.claims import check_flip_prob
from dpbayes.bloom.filters import apply_transition, transition_matrix
from dpbayes.errors import InputError

SKEWNESSES = (0.0, 1.0, 2.0, 3.0)


@dataclass(frozen=True)
class Signal:
    """Signal-to-noise ratios of all changes of one logo; build it with `signal_to_noise`."""

    counts: np.ndarray = field(repr=False)
    flip_prob: float

    @property
    def n_filters(self) -> int:
        """Number k of filters."""
        return self.counts.size.bit_length() - 1

    @cached_property
    def released(self) -> np.ndarray:
        """Expected released counts T d."""
        return apply_transition(self.counts, self.flip_prob)

    @cached_property
    def covariance(self) -> np.ndarray:
        """Covariance B of the released counts, shape (2^k, 2^k)."""
        kernel = transition_matrix(self.n_filters, self.flip_prob)
        return np.diag(self.released) - kernel @ (self.counts[:, None] * kernel)

    @cached_property
    def _factor(self) -> Any:
        root = np.sqrt(self.released)
        kernel = transition_matrix(self.n_filters, self.flip_prob)
        scaled = np.sqrt(self.counts)[:, None] * kernel / root[None, :]
        unit = root / np.linalg.norm(root)
        return cho_factor(np.eye(root.size) - scaled.T @ scaled + np.outer(unit, unit), lower=True)

    def _solve(self, change: np.ndarray) -> np.ndarray:
        """Apply a generalized inverse of B to columns that sum to zero."""
        root = np.sqrt(self.released)
        root = root if change.ndim == 1 else root[:, None]
        return cho_solve(self._factor, change / root) / root

    def _change(self, source: int, target: int) -> np.ndarray:
        for logo in (source, target):
            whole_number(logo, "logo", low=0, high=self.counts.size - 1)
        unit = np.zeros(self.counts.size)
        unit[target] += 1.0
        unit[source] -= 1.0
        return apply_transition(unit, self.flip_prob)

    def ratio(self, source: int, target: int) -> float:
        """Signal-to-noise ratio of moving one count from logo `source` to logo `target`."""
        change = self._change(source, target)
        return float(change @ self._solve(change))

    def coefficients(self, source: int, target: int) -> np.ndarray:
        """Coefficients c of the released counts that show the change best, of length 1 and sum 0; shape (2^k,)."""
        best = self._solve(self._change(source, target))
        best = best - best.mean()
        length = float(np.linalg.norm(best))
        if length == 0.0:
            raise InputError(f"a change from logo {source} to itself cannot be seen; give two different logos")
        return best / length

    @cached_property
    def matrix(self) -> np.ndarray:
        """Ratios of all changes, shape (2^k, 2^k): entry (j, i) for j -> i; symmetric, zero on the diagonal."""
        kernel = transition_matrix(self.n_filters, self.flip_prob)
        centred = kernel - kernel.mean(axis=0, keepdims=True)  # columns that sum to zero; differences are unchanged
        gram = centred.T @ self._solve(centred)
        size = np.diag(gram)
        ratios = size[:, None] + size[None, :] - gram - gram.T
        np.fill_diagonal(ratios, 0.0)
        return ratios

    @property
    def largest(self) -> tuple[float, tuple[int, int]]:
        """The largest ratio and its change, the smaller logo first; of equal ones the first."""
        ratios = np.triu(self.matrix)
        place = int(np.argmax(ratios.ravel() >= ratios.max() * (1 - 1e-9)))
        source, target = divmod(place, ratios.shape[1])
        return float(ratios[source, target]), (source, target)


def signal_to_noise(counts: Any, *, flip_prob: float) -> Signal:
    """Return the signal-to-noise ratios of all changes of one logo.

    Parameters
    ----------
    counts
        True logo counts or shares, shape (2^k,), k at most 10. Ratios scale with 1 / their sum.
    flip_prob
        Flip probability p.

    References
    ----------
    The "buffling" technical details (2020), part I. Its Observation 2, that 0 -> 2^k - 1 always has the most signal,
    does not hold: with k = 3, p = 0.05 and the skewed counts of its figure 3, 4 -> 7 has more.

    Examples
    --------
    >>> signal = signal_to_noise(skewed_counts(3, skewness=3.0), flip_prob=0.05)
    >>> round(signal.ratio(0, 7), 3), round(signal.largest[0], 3), signal.largest[1]
    (83.122, 93.947, (4, 7))
    """
    array = real_numbers(counts, "counts")
    if array.ndim != 1 or array.size < 2 or array.size & (array.size - 1):
        raise InputError(f"counts must hold one number for each of 2^k logos, got shape {array.shape}")
    if not (np.isfinite(array).all() and (array >= 0).all() and array.sum() > 0):
        raise InputError("logo counts must be finite, none negative, and not all zero")
    whole_number(array.size.bit_length() - 1, "number of filters", high=10)
    return Signal(array, check_flip_prob(flip_prob))


def skewed_counts(n_filters: int, *, skewness: float) -> np.ndarray:
    """Return the paper's skewed logo shares, proportional to exp(-skewness (i + 1) / 2^k)."""
    size = 2 ** whole_number(n_filters, "n_filters", high=10)
    weight = np.exp(-number(skewness, "skewness") * (np.arange(size) + 1) / size)
    return weight / weight.sum()


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
