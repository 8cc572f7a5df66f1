"""Privacy curve of Laplace noise."""

from typing import Any

import numpy as np

from dpbayes._arguments import shown
from dpbayes.errors import InputError
from dpbayes.privacy._form_checks import checked_delta, each, listed, move_of, ratio, rounding_of, symmetric, width
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.curves import PrivacyLoss

__all__ = ["laplace_delta", "laplace_epsilon", "laplace_loss"]

_MOST_CELLS = 1 << 24


def laplace_delta(epsilon: Any, *, scale: float, sensitivity: float = 1.0, adjacency: Adjacency | None = None) -> Any:
    r"""Return the smallest delta of Laplace noise, :math:`\delta = 1 - e^{(\epsilon - \Delta/b)/2}`, or 0.

    Parameters
    ----------
    epsilon
        At least 0; scalar or array.
    scale
        b of the density exp(-abs(x) / b) / (2 b).
    sensitivity
        Largest change of the number between neighbours.
    adjacency
        The relation that `sensitivity` was derived under, for the reader; checked, and without effect on the number.

    Returns
    -------
    float or numpy.ndarray

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> round(laplace_delta(0.5, scale=1.0), 6)
    0.221199
    """
    most = ratio(move_of(sensitivity, adjacency), width(scale, "scale"))
    return each(lambda e: max(0.0, -float(np.expm1(min(0.0, (e - most) / 2)))), epsilon)


def laplace_epsilon(
    delta: float, *, scale: float, sensitivity: float = 1.0, adjacency: Adjacency | None = None
) -> float:
    """Return the smallest epsilon of Laplace noise: sensitivity / scale + 2 ln(1 - delta), or 0.

    Parameters
    ----------
    delta
        At least 0 and below 1.
    scale, sensitivity, adjacency
        As in `laplace_delta`.

    Returns
    -------
    float

    Raises
    ------
    InputError
        If an argument is out of range.

    Examples
    --------
    >>> laplace_epsilon(0.0, scale=2.0)
    0.5
    """
    most = ratio(move_of(sensitivity, adjacency), width(scale, "scale"))
    return max(0.0, most + 2 * float(np.log1p(-checked_delta(delta))))


def laplace_loss(
    *, scale: float, sensitivity: float = 1.0, cells: int = 1 << 15, adjacency: Adjacency | None = None
) -> PrivacyLoss:
    r"""Return the privacy loss of Laplace noise between two discrete ones.

    Between the two centres the loss takes every value in (-a, a), a = sensitivity / scale. Outcomes merged around each
    point of a lattice have that point as their loss (data processing, from below), and outcomes split between
    neighbouring points keep both masses (from above).

    Parameters
    ----------
    scale, sensitivity
        As in `laplace_delta`.
    cells
        Number of cells, from 2 to 2^24; the ends come together with its square.
    adjacency
        The relation that `sensitivity` belongs to.

    Returns
    -------
    PrivacyLoss

    Raises
    ------
    InputError
        If an argument is out of range, or the square of sensitivity / scale is.

    Examples
    --------
    >>> loss = laplace_loss(scale=1.0)
    >>> laplace_delta(0.3, scale=1.0) in loss.delta_bounds(0.3)
    True
    """
    if isinstance(cells, bool) or not isinstance(cells, int | np.integer) or not 2 <= cells <= _MOST_CELLS:
        raise InputError(f"cells must be a whole number from 2 to {_MOST_CELLS}, got {shown(cells)}")
    a = ratio(move_of(sensitivity, adjacency), width(scale, "scale"))
    step = 2 * (a / cells)
    # Losses by how far below the largest one they are, which is what their mass depends on.
    gap = step * np.arange(cells, -1, -1)
    points, half = a - gap, 0.5 * step
    ends = np.array([0.5 * np.exp(-a), 0.5])
    # From above: split a cell between its ends; the upper one gets the share 1 / (1 + exp(-step / 2)).
    share = 1 / (1 + np.exp(-half))
    cell = _interval(gap[1:], step)
    split = np.append(cell * (1 - share), 0.0) + np.insert(cell * share, 0, 0.0)
    split[[0, -1]] += ends
    # From below: merge around each inner point; the half cells at the ends move down to the next point.
    merged = np.concatenate([ends[:1], _interval(gap[1:-1] - half, step), ends[1:]])
    merged[0] += _interval(gap[0] - half, half)
    merged[-2] += _interval(0.0, half)
    above, below = (listed(points, mass, log_error=rounding_of(a), shift=4e-15 * a) for mass in (split, merged))
    return PrivacyLoss.from_bracket(*(symmetric(law, adjacency) for law in (above, below)))


def _interval(gap: Any, size: float) -> Any:
    """P-mass of the losses from a - gap - size to a - gap: the integral of exp((loss - a) / 2) / 4."""
    return 0.5 * np.exp(-0.5 * gap) * -np.expm1(-0.5 * size)
