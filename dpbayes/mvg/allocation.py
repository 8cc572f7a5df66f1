r"""Allocating noise: the paper's sufficient condition, the least noise at the exact cost, and both side by side.

Theorem 2 promises (epsilon, delta)-differential privacy when
:math:`\|\sigma(\Sigma^{-1})\|_2 \, \|\sigma(\Psi^{-1})\|_2 \le B`; it is sufficient and far from necessary. The least
noise minimizes :math:`\sum_i c_i \Sigma_{ii}` subject to :math:`\sup_d d^T \Sigma^{-1} d \le \mu^2` (docs/mvg.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import (
    Floats,
    instance,
    one_of,
    positive_finite,
    probability_below_one,
    real_numbers,
    shown,
    whole_number,
)
from dpbayes.errors import InputError
from dpbayes.mvg.matrix import Covariance, MatrixGaussian, calibrate, check_directions, mu_for
from dpbayes.mvg.sensitivity import FeatureRanges, Sensitivity, check_sensitivity

if TYPE_CHECKING:
    from matplotlib.figure import Figure


ZetaReading = Literal["printed", "laurent-massart"]


@lru_cache(maxsize=1024)
def harmonic_number(r: int, power: float = 1.0) -> float:
    r"""Return the generalized harmonic number :math:`H_{r,p} = \sum_{i=1}^r i^{-p}`, rounded once."""
    return math.fsum(np.arange(1, r + 1, dtype=float) ** -power)


@dataclass(frozen=True)
class BoundTerms:
    """alpha, beta, zeta and B of Theorem 2 and Table 1."""

    alpha: float
    beta: float
    zeta: float
    bound: float


def bound_terms(
    *, m: int, n: int, gamma: float, sensitivity: float, epsilon: float, delta: float, zeta: ZetaReading = "printed"
) -> BoundTerms:
    r"""Return alpha, beta, zeta and B of Theorem 2, equation (1).

    `gamma` is the supremum of the Frobenius norm of the m x n value and `sensitivity` its Frobenius sensitivity. Zeta
    is ``"printed"`` for the paper's :math:`2\sqrt{-mn \ln\delta} - 2\ln\delta + mn`, ``"laurent-massart"`` for its
    square root, which is what the tail bound for the norm itself gives.
    """
    rows, columns = (whole_number(size, name, high=2**53) for size, name in ((m, "m"), (n, "n")))
    norm = positive_finite(gamma, "gamma", remedy="it is the supremum of the query's Frobenius norm")
    s2 = positive_finite(sensitivity, "sensitivity", remedy="it is the Frobenius sensitivity of the query")
    budget = positive_finite(epsilon, "epsilon", remedy="it is the privacy parameter of Theorem 2")
    tail = probability_below_one(delta, "delta", remedy="a usual choice is below 1 / n")
    check_reading(zeta)
    h, h_half = harmonic_number(min(rows, columns)), harmonic_number(min(rows, columns), 0.5)
    size, log_delta = rows * columns, math.log(tail)
    reading = 2.0 * math.sqrt(-size * log_delta) - 2.0 * log_delta + size
    if zeta == "laurent-massart":
        reading = math.sqrt(reading)
    alpha = (h + h_half) * norm**2 + 2.0 * h * norm * s2
    beta = 2.0 * size**0.25 * reading * h * s2
    bound = (4.0 * budget / (beta + math.sqrt(beta**2 + 8.0 * alpha * budget))) ** 2
    return BoundTerms(alpha, beta, reading, bound)


def check_reading(zeta: Any) -> None:
    """Raise `InputError` unless `zeta` names a reading."""
    one_of(zeta, get_args(ZetaReading), "zeta", remedy="'printed' is the paper's")


def check_allocation(theta: npt.ArrayLike) -> Floats:
    """Return `theta` as shares in (0, 1) that sum to one (a single direction takes all), or raise `InputError`."""
    shares = np.atleast_1d(real_numbers(theta, "theta"))
    if shares.ndim != 1:
        raise InputError(f"theta must hold one share for each direction, got shape {shares.shape}")
    inside = (shares > 0) & ((shares < 1) | (shares.size == 1))
    if not np.all(inside):
        raise InputError(f"theta must lie inside (0, 1), got {shares[~inside][0]:g}; no precision means infinite noise")
    total = math.fsum(shares)
    if abs(total - 1.0) > 1e-9:
        raise InputError(f"theta must sum to 1, got {total:.12g}; divide it by its sum")
    return shares


def directional_shape(theta: npt.ArrayLike, directions: npt.ArrayLike | None = None) -> Covariance:
    r"""Return the shape of Algorithm 1, variances :math:`1/\sqrt{\theta_i}` along the directions, up to scale."""
    shares = check_allocation(theta)
    basis = None if directions is None else check_directions(directions, shares.size)
    return Covariance(shares.size, 1.0 / np.sqrt(shares), basis)


def unimodal_noise(
    theta: npt.ArrayLike,
    directions: npt.ArrayLike | None,
    *,
    n: int,
    gamma: float,
    sensitivity: Sensitivity,
    epsilon: float,
    delta: float,
    zeta: ZetaReading = "printed",
) -> MatrixGaussian:
    r"""Build the noise of Algorithm 1: directional rows, independent columns.

    The precision budget is :math:`P = B^2 / n`; direction i gets :math:`p_i = \theta_i P` and the variance
    :math:`1/\sqrt{p_i}`, so that Theorem 2 holds with equality. It uses the Frobenius radius of the sensitivity set.
    """
    shape = directional_shape(theta, directions)
    check_sensitivity(sensitivity)
    bound = bound_terms(
        m=shape.size, n=n, gamma=gamma, sensitivity=sensitivity.frobenius, epsilon=epsilon, delta=delta, zeta=zeta
    ).bound
    # shape has precision norm 1 because theta sums to one; the columns' is sqrt(n).
    return MatrixGaussian(shape.scaled(math.sqrt(n) / bound), Covariance.identity(n), sensitivity)


@dataclass(frozen=True, eq=False)
class OptimalCovariance:
    r"""The row covariance of least weighted noise variance, and that :math:`\sum_i c_i \Sigma_{ii}`."""

    covariance: Covariance
    objective: float


def optimal_covariance(
    sensitivity: Sensitivity, *, mu: float, size: int | None = None, weights: npt.ArrayLike | None = None
) -> OptimalCovariance:
    r"""Return the row covariance with the least weighted noise at the privacy cost `mu` (independent columns).

    A Frobenius ball needs :math:`\Sigma \succeq (s/\mu)^2 I`, so that is optimal whatever the weights: direction buys
    nothing there. For feature ranges the optimum over *all* covariances is diagonal, with the variances
    :math:`w_i / \sqrt{c_i} \sum_k w_k \sqrt{c_k} / \mu^2`.

    Parameters
    ----------
    sensitivity, mu
        The sensitivity set, and the privacy cost that the noise may have.
    size
        Number of features, needed for a `FrobeniusBall`.
    weights
        Weights c of the features' noise variances, shape (m,); ones when None.

    Raises
    ------
    InputError
        If a weight is not positive, or a shape does not fit.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 3.0], "replace-one")
    >>> optimal_covariance(ranges, mu=1.0).objective
    16.0
    """
    cost = positive_finite(mu, "mu", remedy="it is the privacy cost of the noise")
    check_sensitivity(sensitivity)
    if isinstance(sensitivity, FeatureRanges):
        w, c = sensitivity.reach, _weights(weights, sensitivity.size)
        covariance = Covariance.diagonal(w / np.sqrt(c) * math.fsum(w * np.sqrt(c)) / cost**2)
    elif size is None:
        raise InputError("size must be given with a FrobeniusBall, which does not know its number of features")
    else:
        covariance = Covariance.identity(size).scaled((sensitivity.radius / cost) ** 2)
        c = _weights(weights, size)
    return OptimalCovariance(covariance, float(c @ covariance.marginal_variances))


def _weights(weights: npt.ArrayLike | None, size: int) -> Floats:
    """Return one positive weight per feature."""
    vector = np.ones(size) if weights is None else np.atleast_1d(real_numbers(weights, "weights"))
    if vector.shape != (size,) or not np.all(np.isfinite(vector) & (vector > 0)):
        raise InputError(f"weights must be {size} positive finite numbers, one per feature, got {shown(weights)}")
    return vector


@dataclass(frozen=True, eq=False)
class NoiseCost:
    """One way to meet a guarantee: its noise, and what that really costs."""

    mechanism: str
    noise: MatrixGaussian
    stddev: float  # weighted root mean square of the noise of one value
    ratio: float  # `stddev` divided by the optimal one
    epsilon: float  # exact privacy cost at the guarantee's delta; the paper's mechanisms cost far less than they may


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
    theta, directions
        Precision allocation of the directional mechanisms (equal shares when None), and their orthonormal directions
        (the axes when None).
    weights
        Weights of the features' noise variances, shape (m,); ones when None. The optimal mechanism minimizes the
        weighted sum.
    zeta
        Reading of the paper's zeta.

    Returns
    -------
    tuple of NoiseCost
        The paper's bound with equal noise and with `theta`, the i.i.d. analytic Gaussian, `theta` at its exact cost,
        and the optimal allocation.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
    >>> [round(cost.stddev, 1) for cost in compare_noise(ranges, n=1000, epsilon=1.0, delta=1e-5)]
    [220712.9, 220712.9, 5.3, 5.3, 5.3]
    """
    instance(ranges, FeatureRanges, "ranges", remedy="it states the bounds of the features")
    size = ranges.size
    c = _weights(weights, size)
    shares = np.full(size, 1.0 / size) if theta is None else theta
    shape, columns = directional_shape(shares, directions), Covariance.identity(n)
    guarantee: dict[str, Any] = {"epsilon": epsilon, "delta": delta}
    paper: dict[str, Any] = {"n": n, "gamma": supremum_norm(ranges, n), "sensitivity": ranges, "zeta": zeta} | guarantee
    optimal = optimal_covariance(ranges, mu=mu_for(epsilon, delta), weights=c).covariance
    found = {
        "paper's bound, equal noise": unimodal_noise(np.full(size, 1.0 / size), None, **paper),
        "paper's bound, directional": unimodal_noise(shares, directions, **paper),
        "i.i.d. analytic Gaussian": calibrate(Covariance.identity(size), columns, ranges, **guarantee),
        "exact directional": calibrate(shape, columns, ranges, **guarantee),
        "optimal directional": MatrixGaussian(optimal, columns, ranges),
    }
    stddevs = {name: math.sqrt(float(c @ x.row_cov.marginal_variances) / c.sum()) for name, x in found.items()}
    best = stddevs["optimal directional"]
    return tuple(
        NoiseCost(name, noise, stddevs[name], stddevs[name] / best, noise.epsilon(delta))
        for name, noise in found.items()
    )


_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))


def noise_ellipses(
    costs: Sequence[NoiseCost], ranges: FeatureRanges, *, names: Sequence[str] = (), unit: str = ""
) -> Figure:
    """Draw each mechanism's noise ellipse around the sensitivity set, for the first two features."""
    import matplotlib.pyplot as plt

    from dpbayes.report.plots import COLOURS

    if ranges.size < 2:
        raise InputError("an ellipse is of two features, and the ranges have one")
    first, second, *_ = names or ("feature 0", "feature 1")
    half = ranges.reach[:2]
    figure, axis = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half
    axis.fill(*corners.T, color="#dddddd", zorder=0, label="changes one record can make")
    angle = np.linspace(0, 2 * np.pi, 361)
    circle = np.vstack([np.cos(angle), np.sin(angle)])
    far, allowed = [], max(cost.noise.mu.value for cost in costs)
    for place, cost in enumerate(costs):
        block = cost.noise.row_cov.matrix()[:2, :2] * allowed**2
        curve = np.linalg.cholesky(block) @ circle
        if np.max(np.abs(curve)) > 20.0 * np.max(half):
            far.append(cost.mechanism)
            continue
        colour, style = COLOURS[place % len(COLOURS)], _STYLES[place % len(_STYLES)]
        axis.plot(*curve, color=colour, linestyle=style, label=cost.mechanism)
    suffix = f" ({unit})" if unit else ""
    axis.set(xlabel=f"change in {first}{suffix}", ylabel=f"change in {second}{suffix}")
    if 0.25 <= half[0] / half[1] <= 4.0:
        axis.set_aspect(float(half[0] / half[1]))
    axis.axhline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
    axis.axvline(0, color="#bbbbbb", linewidth=0.6, zorder=0)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    if far:
        axis.set_title(f"Off this scale: {'; '.join(far)}", fontsize=8, loc="left")
    return figure
