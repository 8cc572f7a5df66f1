"""A pair of laws that dominates the certified curve of k filters, so that losses compose.

The hockey-stick curve h(t) = sup_A P(A) - t Q(A) is convex in t and decides everything. Upper ends at a grid of t
leave as the largest convex curve below them their lower hull, which is above the true curve on the grid's span; that
piecewise linear hull is the curve of a discrete pair: Q-mass at ratio t_i is the change of slope there, P-mass t_i
times that, and what is left of P lies where Q has none (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022,
"connect the dots").
"""

import itertools

import numpy as np

from dpbayes.bloom.many_filters import FiltersLoss
from dpbayes.privacy.curves import PrivacyLoss

__all__ = ["dominating_loss"]

_SIZE = 2**16


def dominating_loss(loss: FiltersLoss, *, n_points: int = 2000) -> PrivacyLoss:
    """Return a loss whose curve is nowhere below that of `loss`, in either direction.

    Parameters
    ----------
    loss
        Loss of k filters for the paper's pair.
    n_points
        About how many values of epsilon to connect.

    Returns
    -------
    PrivacyLoss
        P is the law under D', Q under D, for `PrivacyLoss.compose`; adjacency one-position.

    Examples
    --------
    >>> from dpbayes.bloom.many_filters import filters_loss
    >>> once = filters_loss(n_filters=3, n_bits=1000, flip_prob=0.3)
    >>> pair = dominating_loss(once)
    >>> abs(pair.epsilon(1e-3) / once.epsilon(1e-3) - 1) < 0.01, pair.compose(2).epsilon(1e-3) > once.epsilon(1e-3)
    (True, True)
    """
    ratio, height = _upper_points(loss, n_points)
    keep = _lower_hull(ratio, height)
    ratio, height = ratio[keep], height[keep]
    slopes = np.append(np.diff(height) / np.diff(ratio), 0.0)
    mass = np.diff(slopes)  # Q-mass at ratio[1:]; at ratio 0 it is 1 + slopes[0]
    used = mass > 0
    with np.errstate(divide="ignore"):
        log_ratio, log_mass = np.log(ratio[1:][used]), np.log(mass[used])
    return PrivacyLoss.from_losses(
        log_ratio,
        log_ratio + log_mass,
        log_mass,
        infinite_p=max(float(height[-1]), 0.0),
        infinite_q=max(1.0 + float(slopes[0]), 0.0),
        log_error=1e-9,
        adjacency="one-position",
    )


def _upper_points(loss: FiltersLoss, n_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ratios t from 0 up with upper ends of h(t), on windows of epsilon that double on either side of 0."""
    edges = [0.0, min(2.0 * loss.spread, loss.largest)]
    while edges[-1] < loss.largest and _left(loss, edges[-1]) > 1e-11:
        edges.append(min(2.0 * edges[-1], loss.largest))
    per_window = max(64, n_points // (2 * (len(edges) - 1)))
    ratios, heights = [np.zeros(1)], [np.ones(1)]
    for start, stop in itertools.pairwise(edges):
        grid = np.linspace(start, stop, per_window + 1)[1:]
        down = loss.law(stop, "lower", _SIZE, 1e-12, split=True).put_bounds(np.exp(-grid))[1]
        up = loss.law(stop, "upper", _SIZE, 1e-12, split=True).call_bounds(np.exp(grid))[1]
        ratios += [np.exp(-grid), np.exp(grid)]
        heights += [1.0 - np.exp(-grid) + down, up]
    # No ratio is above q/p to the k-th power: there the curve is 0 for certain.
    ratios.append(np.array([np.exp(loss.largest) * (1 + 1e-12)]))
    heights.append(np.zeros(1))
    ratio, height = np.concatenate(ratios), np.concatenate(heights)
    order = np.argsort(ratio, kind="stable")
    return ratio[order], np.minimum(height[order], 1.0)


def _left(loss: FiltersLoss, epsilon: float) -> float:
    """Return the upper end of h beyond `epsilon`, roughly."""
    return float(loss.law(epsilon, "upper", 2**13, 1e-12, split=True).call_bounds(np.exp([epsilon]))[1][0])


def _lower_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the indices of the lower convex hull of points sorted by x."""
    hull: list[int] = []
    for place in range(x.size):
        if hull and x[place] <= x[hull[-1]]:
            if y[place] >= y[hull[-1]]:
                continue
            hull.pop()
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[place] - x[a]) < (y[place] - y[a]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(place)
    return np.array(hull)
