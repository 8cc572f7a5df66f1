r"""Which covariance adds the least noise for a given privacy cost, and what other mechanisms need beside it.

The problem: minimize :math:`\operatorname{tr}(C \Sigma)` over row covariances subject to
:math:`\sup_d d^T \Sigma^{-1} d \le \mu^2`, where C weighs the noise (columns are independent). The
noise ellipsoid :math:`\{d : d^T \Sigma^{-1} d \le \mu^2\}` must hold the sensitivity set.
docs/mvg.md has the derivations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import instance, positive_finite, real_numbers
from dpbayes.errors import InputError
from dpbayes.mvg.bound import ZetaReading, directional_shape, unimodal_noise
from dpbayes.mvg.cost import MatrixGaussian, calibrate, mu_for
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.sensitivity import (
    FeatureRanges,
    FrobeniusBall,
    RecordEllipsoid,
    Sensitivity,
    check_sensitivity,
    sign_vectors,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

type FloatArray = npt.NDArray[np.float64]

#: Largest number of features for which a full weight matrix is optimized over all vertices.
MATRIX_LIMIT = 12
_GAP, _STEPS = 1e-9, 10_000


@dataclass(frozen=True, eq=False)
class OptimalCovariance:
    r"""A feasible row covariance and its weighted noise variance :math:`\operatorname{tr}(C \Sigma)`."""

    covariance: Covariance
    objective: float
    lower: float


def optimal_variances(reach: npt.ArrayLike, mu: float, *, weights: npt.ArrayLike | None = None) -> FloatArray:
    r"""Return the noise variances that minimize :math:`\sum_i c_i v_i` for per-feature ranges of reach w."""
    cost = positive_finite(mu, "mu", remedy="it is the privacy cost, see mu_for(epsilon, delta)")
    w = _positive_vector(reach, "reach")
    c = np.ones_like(w) if weights is None else _positive_vector(weights, "weights")
    if c.shape != w.shape:
        raise InputError(f"weights must have shape {w.shape}, one per feature, got {c.shape}")
    return np.asarray(w / np.sqrt(c) * math.fsum(w * np.sqrt(c)) / cost**2)


def optimal_covariance(
    sensitivity: Sensitivity, *, mu: float, size: int | None = None, weights: npt.ArrayLike | None = None
) -> OptimalCovariance:
    r"""Return the row covariance with the least weighted noise at the privacy cost `mu` (independent columns).

    A Frobenius ball needs :math:`\Sigma \succeq (s/\mu)^2 I` and an ellipsoid
    :math:`\Sigma \succeq A / \mu^2`, so those are optimal whatever the weights: direction buys
    nothing there. For feature ranges and diagonal weights the optimum over *all* covariances is diagonal
    (`optimal_variances`). For feature ranges and a full weight matrix the minimum over covariances is a convex problem
    with one constraint per vertex; it is solved through its dual and the gap is reported.

    Parameters
    ----------
    sensitivity
        The sensitivity set. A box that is not centred at zero (add-remove with a fill off the
        middle) is covered by the centred box of the same reach.
    mu
        The privacy cost that the noise may have.
    size
        Number of features, needed for a `FrobeniusBall`.
    weights
        C: None for the identity, shape (m,) for a diagonal, shape (m, m) for a positive definite matrix.

    Raises
    ------
    InputError
        If the weights are not positive definite, a shape does not fit, or a full matrix of weights
        has more than 12 features.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 3.0], "replace-one")
    >>> optimal_covariance(ranges, mu=1.0).objective
    16.0
    """
    cost = positive_finite(mu, "mu", remedy="it is the privacy cost, see mu_for(epsilon, delta)")
    check_sensitivity(sensitivity)
    if isinstance(sensitivity, FrobeniusBall):
        if size is None:
            raise InputError("size must be given with a FrobeniusBall, which does not know its number of features")
        covariance = Covariance.identity(size).scaled((sensitivity.radius / cost) ** 2)
    elif isinstance(sensitivity, RecordEllipsoid):
        covariance = sensitivity.covariance.scaled(cost**-2)
    elif weights is None or np.ndim(weights) == 1:
        covariance = Covariance.diagonal(optimal_variances(sensitivity.reach, cost, weights=weights))
    else:
        return _for_matrix(sensitivity.reach, cost, Covariance.from_matrix(weights, "weights"))
    objective = _objective(covariance, weights)
    return OptimalCovariance(covariance, objective, objective)


def _objective(covariance: Covariance, weights: npt.ArrayLike | None) -> float:
    values = np.ones(covariance.size) if weights is None else real_numbers(weights, "weights")
    if values.shape not in ((covariance.size,), (covariance.size,) * 2):
        raise InputError(f"weights must be one number or one row per feature, {covariance.size}, got {values.shape}")
    return float(np.sum((covariance.marginal_variances if values.ndim == 1 else covariance.matrix()) * values))


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
    smallest, lower = smallest_trace(vertices @ factor)
    inverse = weights.whiten(np.eye(size))  # K^-1
    covariance = inverse.T @ smallest @ inverse / mu**2
    return OptimalCovariance(Covariance.from_matrix(covariance), float(np.trace(smallest)) / mu**2, lower / mu**2)


def _positive_vector(values: npt.ArrayLike, name: str) -> FloatArray:
    vector = np.atleast_1d(real_numbers(values, name))
    if vector.ndim != 1 or not np.all(np.isfinite(vector) & (vector > 0)):
        raise InputError(f"{name} must be a vector of positive finite numbers, got {values!r}")
    return vector


def smallest_trace(points: FloatArray) -> tuple[FloatArray, float]:
    r"""Return a matrix of least trace whose ellipsoid holds the points, and a lower bound of the least trace.

    The dual is :math:`\max_w (\operatorname{tr} M_w^{1/2})^2` over weights of the points, :math:`M_w = \sum_k w_k p_k
    p_k^T`. At any w, :math:`M_w^{1/2}` scaled until it holds the points is feasible, so that every step has its gap; a
    weight grows with how far its point is outside.
    """
    weights, best, upper, lower = np.full(len(points), 1.0 / len(points)), np.eye(points.shape[1]), np.inf, 0.0
    for _ in range(_STEPS):
        squares, directions = np.linalg.eigh((points.T * weights) @ points)
        roots = np.sqrt(np.maximum(squares, 1e-14 * squares[-1]))
        trace = float(roots.sum())
        outside = np.sum((points @ directions) ** 2 / roots, axis=1)
        lower = max(lower, trace**2)
        if trace * float(outside.max()) < upper:
            upper, best = trace * float(outside.max()), (directions * roots * outside.max()) @ directions.T
        if upper <= lower * (1.0 + _GAP):
            break
        weights = weights * (outside / trace) ** 3
        weights /= weights.sum()
    return best, lower


@dataclass(frozen=True, eq=False)
class NoiseCost:
    """One way to meet a guarantee: its noise, and what that really costs."""

    mechanism: str
    noise: MatrixGaussian
    stddev: float
    """Weighted root mean square of the noise of one value."""
    ratio: float
    """`stddev` divided by the optimal one."""
    epsilon: float
    """Exact privacy cost at the guarantee's delta; the paper's mechanisms cost far less than they may."""


def supremum_norm(ranges: FeatureRanges, n: int) -> float:
    """Return gamma of the identity query: the supremum of the Frobenius norm of n records inside the ranges."""
    return math.sqrt(n * float(np.sum(np.maximum(np.abs(ranges.lower), np.abs(ranges.upper)) ** 2)))


def compare_noise(
    ranges: FeatureRanges,
    *,
    n: int,
    epsilon: float,
    delta: float,
    theta: npt.ArrayLike | None = None,
    directions: npt.ArrayLike | None = None,
    weights: npt.ArrayLike | None = None,
    zeta: ZetaReading = "printed",
) -> tuple[NoiseCost, ...]:
    """Return the noise that each mechanism needs for one guarantee on the identity query.

    Parameters
    ----------
    ranges
        Bounds of the features, with the adjacency.
    n
        Number of records.
    epsilon, delta
        The guarantee.
    theta
        Precision allocation of the directional mechanisms; equal shares when None.
    directions
        Orthonormal directions of the directional mechanisms; the axes when None.
    weights
        Weights of the features' noise variances, shape (m,); ones when None. The optimal mechanism
        minimizes the weighted sum.
    zeta
        Reading of the paper's zeta.

    Returns
    -------
    tuple of NoiseCost
        The paper's bound with equal noise and with `theta`, the i.i.d. analytic Gaussian, `theta`
        at its exact cost, and the optimal allocation.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
    >>> [round(cost.stddev, 1) for cost in compare_noise(ranges, n=1000, epsilon=1.0, delta=1e-5)]
    [220712.9, 220712.9, 5.3, 5.3, 5.3]
    """
    instance(ranges, FeatureRanges, "ranges", remedy="it states the bounds of the features")
    size = ranges.size
    c = np.ones(size) if weights is None else _positive_vector(weights, "weights")
    if c.shape != (size,):
        raise InputError(f"weights must be {size} positive numbers, got {weights!r}")
    shares = np.full(size, 1.0 / size) if theta is None else theta
    shape, columns = directional_shape(shares, directions), Covariance.identity(n)
    paper = {
        "n": n,
        "gamma": supremum_norm(ranges, n),
        "sensitivity": ranges,
        "epsilon": epsilon,
        "delta": delta,
        "zeta": zeta,
    }
    optimal = optimal_covariance(ranges, mu=mu_for(epsilon, delta), weights=c).covariance
    found = {
        "paper's bound, equal noise": unimodal_noise(np.full(size, 1.0 / size), None, **paper),  # type: ignore[arg-type]
        "paper's bound, directional": unimodal_noise(shares, directions, **paper),  # type: ignore[arg-type]
        "i.i.d. analytic Gaussian": calibrate(Covariance.identity(size), columns, ranges, epsilon=epsilon, delta=delta),
        "exact directional": calibrate(shape, columns, ranges, epsilon=epsilon, delta=delta),
        "optimal directional": MatrixGaussian(optimal, columns, ranges),
    }
    stddevs = {name: math.sqrt(float(c @ x.row_cov.marginal_variances) / c.sum()) for name, x in found.items()}
    best = stddevs["optimal directional"]
    return tuple(
        NoiseCost(name, noise, stddevs[name], stddevs[name] / best, noise.epsilon(delta))
        for name, noise in found.items()
    )


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
    r"""Draw each mechanism's noise ellipse around the sensitivity set, for two features."""
    import matplotlib.pyplot as plt

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
