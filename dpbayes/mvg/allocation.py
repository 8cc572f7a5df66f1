r"""Which covariance adds the least noise for a given price.

The problem: minimize :math:`\operatorname{tr}(C \Sigma)` over row covariances subject to
:math:`\sup_d d^T \Sigma^{-1} d \le \mu^2`, where C weighs the noise (columns are independent). The noise ellipsoid
:math:`\{d : d^T \Sigma^{-1} d \le \mu^2\}` must hold the sensitivity set. docs/mvg.md has the derivations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import positive_finite
from dpbayes.errors import InputError
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.ellipsoid import smallest_trace
from dpbayes.mvg.sensitivity import FeatureRanges, FrobeniusBall, RecordEllipsoid, Sensitivity
from dpbayes.mvg.vertices import sign_vectors

__all__ = ["OptimalCovariance", "optimal_covariance", "optimal_variances"]

type FloatArray = npt.NDArray[np.float64]

#: Largest number of features for which a full weight matrix is optimized over all vertices.
MATRIX_LIMIT = 12


@dataclass(frozen=True, eq=False)
class OptimalCovariance:
    r"""The cheapest row covariance and a proof of how close to the minimum it is.

    Parameters
    ----------
    covariance
        Sigma, feasible: its mu is the one asked for.
    objective
        :math:`\operatorname{tr}(C \Sigma)`, the weighted noise variance of one record.
    lower
        No feasible covariance has a smaller objective (equal to `objective` for a closed form).

    Examples
    --------
    >>> from dpbayes.mvg.sensitivity import FeatureRanges
    >>> found = optimal_covariance(FeatureRanges([0.0, 0.0], [1.0, 2.0], "replace-one"), mu=1.0)
    >>> round(found.objective, 6), round(found.lower, 6)
    (9.0, 9.0)
    """

    covariance: Covariance
    objective: float
    lower: float


def optimal_variances(reach: npt.ArrayLike, mu: float, *, weights: npt.ArrayLike | None = None) -> FloatArray:
    r"""Return the noise variances that minimize :math:`\sum_i c_i v_i` for per-feature ranges.

    Under :math:`\sum_i w_i^2 / v_i = \mu^2` the Lagrange condition gives :math:`v_i = (w_i / \sqrt{c_i}) \, \sum_k w_k
    \sqrt{c_k} / \mu^2`, with objective :math:`(\sum_k w_k \sqrt{c_k})^2 / \mu^2`. Equal noise costs
    :math:`\sum c_k \sum w_k^2 / \mu^2`; the ratio is Cauchy and Schwarz's and is 1 only when
    :math:`w_i \propto \sqrt{c_i}`.

    Parameters
    ----------
    reach
        Largest change w of each feature, shape (m,), positive.
    mu
        The price.
    weights
        Positive c, shape (m,); all ones when None.

    Returns
    -------
    numpy.ndarray
        v, shape (m,).

    Raises
    ------
    InputError
        If a number is not positive and finite or the shapes differ.

    Examples
    --------
    >>> optimal_variances([1.0, 3.0], 1.0)
    array([ 4., 12.])
    """
    price = positive_finite(mu, "mu", remedy="it is the Gaussian price, see mu_for(epsilon, delta)")
    w = _positive_vector(reach, "reach")
    c = np.ones_like(w) if weights is None else _positive_vector(weights, "weights")
    if c.shape != w.shape:
        raise InputError(f"weights must have shape {w.shape}, one a feature, got {c.shape}")
    return np.asarray(w / np.sqrt(c) * math.fsum(w * np.sqrt(c)) / price**2)


def optimal_covariance(
    sensitivity: Sensitivity, *, mu: float, size: int | None = None, weights: npt.ArrayLike | None = None
) -> OptimalCovariance:
    r"""Return the row covariance with the least weighted noise at the price `mu` (independent columns).

    A Frobenius ball needs :math:`\Sigma \succeq (s/\mu)^2 I` and an ellipsoid :math:`\Sigma \succeq A / \mu^2`, so
    those are optimal whatever the weights: direction buys nothing there. For feature ranges and diagonal weights the
    optimum over *all* covariances is diagonal (`optimal_variances`). For feature ranges and a full weight matrix the
    minimum over covariances is a convex problem with one constraint a vertex; it is solved through its dual and
    the gap is reported.

    Parameters
    ----------
    sensitivity
        The sensitivity set. A box that is not centred at zero (add-remove with a fill off the middle) is covered by
        the centred box of the same reach.
    mu
        The price.
    size
        Number of features, needed for a `FrobeniusBall`.
    weights
        C: None for the identity, shape (m,) for a diagonal, shape (m, m) for a positive definite matrix.

    Returns
    -------
    OptimalCovariance
        Covariance, objective and lower bound.

    Raises
    ------
    InputError
        If the weights are not positive definite, a shape does not fit, or a full matrix of weights has more than
        12 features.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 3.0], "replace-one")
    >>> optimal_covariance(ranges, mu=1.0).objective
    16.0
    """
    price = positive_finite(mu, "mu", remedy="it is the Gaussian price, see mu_for(epsilon, delta)")
    if isinstance(sensitivity, FrobeniusBall):
        if size is None:
            raise InputError("size must be given with a FrobeniusBall, which does not know its number of features")
        covariance = Covariance.identity(size).scaled((sensitivity.radius / price) ** 2)
    elif isinstance(sensitivity, RecordEllipsoid):
        covariance = sensitivity.covariance.scaled(price**-2)
    else:
        return _for_ranges(sensitivity, price, weights)
    objective = _objective(covariance, weights)
    return OptimalCovariance(covariance, objective, objective)


def _for_ranges(sensitivity: FeatureRanges, mu: float, weights: npt.ArrayLike | None) -> OptimalCovariance:
    values = None if weights is None else np.asarray(weights, dtype=float)
    if values is None or values.ndim == 1:
        covariance = Covariance.diagonal(optimal_variances(sensitivity.reach, mu, weights=values))
        objective = _objective(covariance, values)
        # The proof that no other covariance does better needs the box to be symmetric.
        return OptimalCovariance(covariance, objective, objective)
    return _for_matrix(sensitivity.reach, mu, Covariance.from_matrix(values, "weights"))


def _objective(covariance: Covariance, weights: npt.ArrayLike | None) -> float:
    if weights is None:
        return float(np.sum(covariance.marginal_variances))
    values = np.asarray(weights, dtype=float)
    if values.ndim == 1:
        if values.shape != (covariance.size,):
            raise InputError(f"weights must have shape ({covariance.size},), got {values.shape}")
        return float(covariance.marginal_variances @ values)
    if values.shape != (covariance.size, covariance.size):
        raise InputError(f"weights must have shape ({covariance.size}, {covariance.size}), got {values.shape}")
    return float(np.sum(covariance.matrix() * values))


def _for_matrix(reach: FloatArray, mu: float, weights: Covariance) -> OptimalCovariance:
    size = reach.shape[0]
    if weights.size != size:
        raise InputError(f"weights must have shape ({size}, {size}), got ({weights.size}, {weights.size})")
    if size > MATRIX_LIMIT:
        raise InputError(
            f"a full weight matrix is optimized up to {MATRIX_LIMIT} features, got {size}; give diagonal weights"
        )
    # C = K K'; with e = K'd and X = K' Sigma K the problem is: least trace of X with e' X^-1 e <= mu^2 at every vertex.
    factor = weights.colour(np.eye(size))
    vertices = sign_vectors(size)[2 ** (size - 1) :] * reach  # s and -s are one constraint
    smallest, objective, lower = smallest_trace(vertices @ factor)
    inverse = weights.whiten(np.eye(size))  # K^-1
    covariance = inverse.T @ smallest @ inverse / mu**2
    return OptimalCovariance(Covariance.from_matrix(covariance), objective / mu**2, lower / mu**2)


def _positive_vector(values: npt.ArrayLike, name: str) -> FloatArray:
    vector = np.atleast_1d(np.asarray(values, dtype=float))
    if vector.ndim != 1 or not np.all(np.isfinite(vector) & (vector > 0)):
        raise InputError(f"{name} must be a vector of positive finite numbers, got {values!r}")
    return vector
