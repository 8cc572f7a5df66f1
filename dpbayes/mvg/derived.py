"""Directions and magnitudes derived from a covariance that is public or was released, with the budget accounted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import positive_finite, probability_below_one
from dpbayes.errors import InputError
from dpbayes.mvg.accounting import mu_for
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.shapes import directional_shape

__all__ = ["DerivedDirections", "derive_directions", "split_mu"]

type FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DerivedDirections:
    """Directions and magnitudes derived from a covariance, and what deriving them cost.

    Parameters
    ----------
    directions
        Orthonormal columns, shape (m, m), by decreasing signal.
    theta
        Precision allocation along them, shape (m,).
    mu
        Gaussian price of the covariance they came from: 0 for public data.

    Examples
    --------
    >>> derive_directions([[4.0, 0.0], [0.0, 1.0]], mu=0.0).theta.tolist()
    [0.8, 0.2]
    """

    directions: FloatArray
    theta: FloatArray
    mu: float

    @property
    def shape(self) -> Covariance:
        """The noise shape of Algorithm 1 along these directions."""
        return directional_shape(self.theta, self.directions)


def derive_directions(
    covariance: npt.ArrayLike, *, mu: float, power: float = 1.0, floor: float = 0.01
) -> DerivedDirections:
    r"""Derive directions and magnitudes from a public or privately released covariance.

    Directions are the eigenvectors; the precision of direction i is proportional to
    :math:`\max(\lambda_i, \text{floor} \cdot \lambda_1)^{\text{power}}`, so directions with signal get little noise.
    A noisy covariance may have negative eigenvalues; the floor keeps every share positive.

    Parameters
    ----------
    covariance
        Symmetric matrix, shape (m, m). It must be public, or the value of a release: whatever this function reads is
        as public as what it returns.
    mu
        What it cost: 0 for public data, the release's ``mu.value`` otherwise. It is carried along so that
        `split_mu` and the mechanism's total can be checked.
    power
        0 gives equal shares, larger values favour strong directions more.
    floor
        Smallest eigenvalue counted, as a part of the largest, in (0, 1).

    Returns
    -------
    DerivedDirections
        Directions, theta and the price.

    Raises
    ------
    InputError
        If the matrix is not symmetric and finite or has no positive eigenvalue, or a parameter is out of range.

    Examples
    --------
    >>> derived = derive_directions([[2.0, 1.0], [1.0, 2.0]], mu=0.1)
    >>> derived.theta.round(3).tolist(), derived.mu
    ([0.75, 0.25], 0.1)
    """
    matrix = np.atleast_2d(np.asarray(covariance, dtype=float))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.all(np.isfinite(matrix)):
        raise InputError(f"covariance must be a finite square matrix, got shape {matrix.shape}")
    if np.max(np.abs(matrix - matrix.T)) > 1e-10 * np.max(np.abs(matrix)):
        raise InputError("covariance must be symmetric; a released one is once its upper triangle is mirrored")
    if not (math.isfinite(mu) and mu >= 0):
        raise InputError(f"mu must be finite and not negative, got {mu}; give 0 for public data")
    if not (math.isfinite(power) and power >= 0):
        raise InputError(f"power must be finite and not negative, got {power}; 0 gives equal shares")
    part = probability_below_one(
        floor, "floor", remedy="it is the smallest eigenvalue counted, relative to the largest"
    )
    eigenvalues, vectors = np.linalg.eigh(matrix)
    if eigenvalues[-1] <= 0:
        raise InputError(f"covariance has no positive eigenvalue (largest {eigenvalues[-1]:g}): it holds noise alone")
    signal = np.maximum(eigenvalues[::-1], part * eigenvalues[-1]) ** power
    return DerivedDirections(vectors[:, ::-1], signal / signal.sum(), float(mu))


def split_mu(epsilon: float, delta: float, share: float) -> tuple[float, float]:
    r"""Split (epsilon, delta) between deriving the directions and releasing the matrix.

    Gaussian releases compose by :math:`\mu^2 = \mu_1^2 + \mu_2^2` (Dong, Roth and Su 2022, Corollary 3.3), exactly.

    Parameters
    ----------
    epsilon, delta
        The guarantee of both together.
    share
        Part of mu squared spent on the directions, in (0, 1).

    Returns
    -------
    tuple of float
        mu for the directions, mu for the matrix.

    Raises
    ------
    InputError
        If a parameter is out of range.

    Examples
    --------
    >>> first, second = split_mu(1.0, 1e-5, 0.1)
    >>> bool(abs(math.hypot(first, second) - mu_for(1.0, 1e-5)) < 1e-12)
    True
    """
    part = probability_below_one(share, "share", remedy="it is the part of the budget for the directions")
    total = mu_for(positive_finite(epsilon, "epsilon", remedy="it is the total budget"), delta)
    return total * math.sqrt(part), total * math.sqrt(1.0 - part)
