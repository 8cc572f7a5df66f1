"""Privacy curve of Laplace noise."""

from typing import Any

import numpy as np

from dpbayes.privacy._form_checks import ROUNDING, checked_delta, each, move_of, symmetric, width
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.curves import PrivacyLoss
from dpbayes.privacy.loss_law import LossLaw

__all__ = ["laplace_delta", "laplace_epsilon", "laplace_loss"]


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
    most = move_of(sensitivity, adjacency) / width(scale, "scale")
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
    most = move_of(sensitivity, adjacency) / width(scale, "scale")
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
        Number of cells; the ends come together with its square.
    adjacency
        The relation that `sensitivity` belongs to.

    Returns
    -------
    PrivacyLoss

    Examples
    --------
    >>> loss = laplace_loss(scale=1.0)
    >>> laplace_delta(0.3, scale=1.0) in loss.delta_bounds(0.3)
    True
    """
    a = move_of(sensitivity, adjacency) / width(scale, "scale")
    step = 2 * a / cells
    points = -a + step * np.arange(cells + 1)
    ends = np.array([0.5 * np.exp(-a), 0.5])
    # P-mass of an interval of that width around a loss: the integral of exp((loss - a) / 2) / 4.
    middle = points[:-1] + 0.5 * step
    mass = np.exp((middle - a) / 2) * np.sinh(step / 4)
    # From above: split a cell between its ends; the upper one gets the share 1 / (1 + exp(-step / 2)).
    share = 1 / (1 + np.exp(-step / 2))
    split = np.append(mass * (1 - share), 0.0) + np.insert(mass * share, 0, 0.0)
    split[[0, -1]] += ends
    # From below: merge around each inner point; the half cells at the ends move down to the next point.
    merged = np.exp((points - a) / 2) * np.sinh(step / 4)
    low, high = (np.exp((end - a) / 2) * np.sinh(step / 8) for end in (-a + step / 4, a - step / 4))
    merged[[0, -1]] = ends
    merged[0] += low
    merged[-2] += high
    above, below = (LossLaw(points, law, log_error=ROUNDING, shift=4e-15 * a) for law in (split, merged))
    return PrivacyLoss.from_bracket(*(symmetric(law, adjacency) for law in (above, below)))
