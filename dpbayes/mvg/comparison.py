"""What the same guarantee costs in noise: the paper's bound, i.i.d., directional and optimal noise side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError
from dpbayes.mvg.accounting import MatrixGaussian, calibrate, mu_for
from dpbayes.mvg.allocation import optimal_covariance
from dpbayes.mvg.bound import ZetaReading
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.directions import unimodal_noise
from dpbayes.mvg.sensitivity import FeatureRanges
from dpbayes.mvg.shapes import directional_shape

__all__ = ["NoiseCost", "compare_noise", "supremum_norm"]


@dataclass(frozen=True, eq=False)
class NoiseCost:
    """One way to meet a guarantee and the noise it takes.

    Parameters
    ----------
    mechanism
        Its name.
    noise
        Law and exact price.
    stddev
        Weighted root mean square of the noise of one value.
    ratio
        `stddev` divided by the optimal one.
    epsilon
        What the noise really costs at the guarantee's delta; the paper's mechanisms cost far less than they are
        allowed to.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
    >>> costs = compare_noise(ranges, n=100, epsilon=1.0, delta=1e-5)
    >>> [(cost.mechanism, round(cost.ratio, 3)) for cost in costs[2:]]
    [('i.i.d. analytic Gaussian', 1.0), ('exact directional', 1.0), ('optimal directional', 1.0)]
    """

    mechanism: str
    noise: MatrixGaussian
    stddev: float
    ratio: float
    epsilon: float


def supremum_norm(ranges: FeatureRanges, n: int) -> float:
    """Return gamma of the identity query: the supremum of the Frobenius norm of n records inside the ranges.

    Examples
    --------
    >>> supremum_norm(FeatureRanges([0.0], [1.0], "replace-one"), 4)
    2.0
    """
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
    """Return what each mechanism costs in noise for one guarantee on the identity query.

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
        Weights of the features' noise variances, shape (m,); ones when None. The optimal mechanism minimizes the
        weighted sum.
    zeta
        Reading of the paper's zeta.

    Returns
    -------
    tuple of NoiseCost
        The paper's bound with equal noise and with `theta`, the i.i.d. analytic Gaussian, `theta` at its exact price,
        and the optimal allocation.

    Raises
    ------
    InputError
        If a parameter is out of range or a shape does not fit.

    Examples
    --------
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 1.0], "replace-one")
    >>> [round(cost.stddev, 1) for cost in compare_noise(ranges, n=1000, epsilon=1.0, delta=1e-5)]
    [220712.9, 220712.9, 5.3, 5.3, 5.3]
    """
    size = ranges.size
    c = np.ones(size) if weights is None else np.asarray(weights, dtype=float)
    if c.shape != (size,) or not np.all(np.isfinite(c) & (c > 0)):
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
