"""Precision allocations and the noise shapes they give: the directions and magnitudes of Algorithm 1, up to scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import probability_below_one, real_numbers
from dpbayes.errors import InputError
from dpbayes.mvg.covariance import Covariance, check_directions

__all__ = ["binary_allocation", "check_allocation", "directional_shape"]

type FloatArray = npt.NDArray[np.float64]


def check_allocation(theta: npt.ArrayLike, size: int | None = None) -> FloatArray:
    """Return `theta` as an array of shares in (0, 1) that sum to one, or raise `InputError`.

    A single direction takes the whole budget, so ``[1.0]`` is the one allocation with a share of one.

    Parameters
    ----------
    theta
        Precision allocation of Algorithm 1.
    size
        Number of directions, if known.

    Examples
    --------
    >>> check_allocation([0.25, 0.75])
    array([0.25, 0.75])
    """
    shares = np.atleast_1d(real_numbers(theta, "theta"))
    if shares.ndim != 1 or (size is not None and shares.shape != (size,)):
        raise InputError(f"theta must hold one share for each of the {size} directions, got shape {shares.shape}")
    inside = (shares > 0) & ((shares < 1) | (shares.size == 1))
    if not np.all(inside):
        raise InputError(f"theta must lie inside (0, 1), got {shares[~inside][0]:g}; no precision means infinite noise")
    total = math.fsum(shares)
    if abs(total - 1.0) > 1e-9:
        raise InputError(f"theta must sum to 1, got {total:.12g}; divide it by its sum")
    return shares


def binary_allocation(size: int, favoured: Sequence[int], share: float) -> FloatArray:
    """Return theta that gives `share` of the precision to the favoured features and the rest to the others.

    Parameters
    ----------
    size
        Number of directions m.
    favoured
        Indices of the directions that matter, a proper non-empty subset.
    share
        Part of the budget they divide equally, in (0, 1).

    Returns
    -------
    numpy.ndarray
        theta of shape (size,).

    Raises
    ------
    InputError
        If the subset is empty, whole, repeated or out of range, or `share` is outside (0, 1).

    Examples
    --------
    >>> binary_allocation(4, [0, 2], 0.75).tolist()
    [0.375, 0.125, 0.375, 0.125]
    """
    chosen = sorted(set(favoured))
    if len(chosen) != len(favoured) or not 0 < len(chosen) < size or chosen[0] < 0 or chosen[-1] >= size:
        raise InputError(f"favoured must name some but not all of the {size} directions, once each; got {favoured}")
    part = probability_below_one(share, "share", remedy="it is the part of the precision for the favoured directions")
    theta = np.full(size, (1.0 - part) / (size - len(chosen)))
    theta[chosen] = part / len(chosen)
    return theta


def directional_shape(theta: npt.ArrayLike, directions: npt.ArrayLike | None = None) -> Covariance:
    r"""Return the shape of Algorithm 1, variances :math:`1/\sqrt{\theta_i}` along the directions, up to scale.

    Parameters
    ----------
    theta
        Shares in (0, 1) that sum to one.
    directions
        Orthonormal columns, shape (m, m); the coordinate axes when None.

    Returns
    -------
    Covariance
        To be scaled by `calibrate`.

    Raises
    ------
    InputError
        If theta is no allocation or the directions are not orthonormal.

    Examples
    --------
    >>> directional_shape([0.2, 0.8]).marginal_variances.round(4).tolist()
    [2.2361, 1.118]
    """
    shares = check_allocation(theta)
    basis = None if directions is None else check_directions(directions, shares.size)
    return Covariance(shares.size, 1.0 / np.sqrt(shares), basis)
