r"""The exact privacy cost of Gaussian matrix noise.

With :math:`\operatorname{vec} Z \sim N(0, \Psi \otimes \Sigma)` two neighbouring values that differ
by Delta give two Gaussians whose distance is :math:`\|\Sigma^{-1/2} \Delta \Psi^{-1/2}\|_F`. The
mechanism is therefore the Gaussian mechanism with
:math:`\mu = \sup_\Delta \|\Sigma^{-1/2} \Delta \Psi^{-1/2}\|_F` and its privacy curve is the
analytic Gaussian curve at mu (Balle and Wang 2018; mu-GDP of Dong, Roth and Su 2022). Nothing else
about the covariances, and nothing about the size of the query's value, enters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpbayes._arguments import positive_finite, probability_below_one
from dpbayes.errors import InputError
from dpbayes.mvg.covariance import Covariance, CovarianceLike, as_covariance
from dpbayes.mvg.sensitivity import (
    FeatureRanges,
    FrobeniusBall,
    Maximum,
    Sensitivity,
    box_maximum,
    check_sensitivity,
)
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.curves import gaussian_delta, gaussian_epsilon, gaussian_stddev


def mu_for(epsilon: float, delta: float) -> float:
    """Return the mu (sensitivity over stddev) of the Gaussian mechanism that just satisfies (epsilon, delta).

    Examples
    --------
    >>> round(1 / mu_for(1.0, 1e-5), 6)
    3.730632
    """
    budget = positive_finite(epsilon, "epsilon", remedy="it is the privacy parameter of the release")
    tail = probability_below_one(delta, "delta", remedy="a usual choice is below 1 / n")
    return 1.0 / gaussian_stddev(1.0, budget, tail)


def exact_mu(row_cov: CovarianceLike, col_cov: CovarianceLike, sensitivity: Sensitivity) -> Maximum:
    r"""Return mu of the noise N(0, col_cov kron row_cov) under a sensitivity set, and how it is known.

    For a Frobenius ball, :math:`\mu = s / \sqrt{\lambda_{\min}(\Sigma) \lambda_{\min}(\Psi)}`,
    attained at the two bottom eigenvectors. When one column changes by d,
    :math:`\|\Sigma^{-1/2} d e_j^T \Psi^{-1/2}\|_F^2 = d^T \Sigma^{-1} d \, (\Psi^{-1})_{jj}`, so
    :math:`\mu^2 = \max_j (\Psi^{-1})_{jj} \max_d d^T \Sigma^{-1} d`: over an ellipsoid an
    eigenvalue, over feature ranges a sum when Sigma is diagonal and otherwise a maximum over vertices.

    Parameters
    ----------
    row_cov, col_cov
        Sigma (m x m) and Psi (n x n): `Covariance` objects or matrices.
    sensitivity
        `FrobeniusBall`, `FeatureRanges` or `RecordEllipsoid`; each states its adjacency.

    Returns
    -------
    Maximum
        ``value`` is mu; ``method`` says whether it is exact (closed form, vertices) or a proven
        upper bound, in which case ``lower`` is a mu that is attained.

    Examples
    --------
    >>> exact_mu([[1.0, 0.0], [0.0, 4.0]], Covariance.identity(1000), FrobeniusBall(2.0, "replace-one")).value
    2.0
    >>> ranges = FeatureRanges([0.0, 0.0], [1.0, 2.0], "replace-one")
    >>> exact_mu([[1.0, 0.0], [0.0, 4.0]], Covariance.identity(1000), ranges)
    Maximum(value=1.4142135623730951, method='closed form', lower=1.4142135623730951)
    """
    row, col = as_covariance(row_cov, "row_cov"), as_covariance(col_cov, "col_cov")
    check_sensitivity(sensitivity)
    if isinstance(sensitivity, FrobeniusBall):
        value = sensitivity.radius / math.sqrt(row.smallest * col.smallest)
        return Maximum(value, "closed form", value)
    if sensitivity.size != row.size:
        raise InputError(f"the sensitivity has {sensitivity.size} features but row_cov has {row.size} rows")
    column = math.sqrt(float(np.max(col.precision_diagonal)))
    if isinstance(sensitivity, FeatureRanges) and row.is_diagonal:
        value = float(row.precision_diagonal @ sensitivity.reach**2)
        record = Maximum(value, "closed form", value)
    elif isinstance(sensitivity, FeatureRanges):
        record = box_maximum(row.precision(), *sensitivity.box)
    else:  # sup d'Pd over d'A^-1 d <= 1 is the top eigenvalue of A^1/2 P A^1/2
        half = sensitivity.covariance.colour(np.eye(row.size))
        value = float(np.linalg.eigvalsh(half.T @ row.precision() @ half)[-1])
        record = Maximum(value, "closed form", value)
    return Maximum(column * math.sqrt(record.value), record.method, column * math.sqrt(record.lower))


class GaussianCost:
    """What a Gaussian mechanism costs, as a function of its mu: a number, or an upper bound where that is known."""

    mu: Any  # a Maximum, that each kind of noise finds its own way

    @property
    def rho(self) -> float:
        """The zero-concentrated privacy parameter, mu squared over two."""
        return self.mu.value**2 / 2.0

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon at this `delta`."""
        return gaussian_epsilon(self.mu.value, delta)

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta at this `epsilon`."""
        return gaussian_delta(self.mu.value, epsilon)


@dataclass(frozen=True, eq=False)
class MatrixGaussian(GaussianCost):
    """Gaussian matrix noise together with its exact privacy cost.

    Parameters
    ----------
    row_cov, col_cov
        Sigma (m x m) and Psi (n x n).
    sensitivity
        The set of changes one unit (by default one record) can make, with its adjacency.

    Attributes
    ----------
    mu
        `exact_mu` of the three: the value, and whether it is exact or an upper bound.

    Examples
    --------
    >>> noise = MatrixGaussian([[9.0]], Covariance.identity(50), FrobeniusBall(1.0, "replace-one"))
    >>> noise.mu.value, round(noise.epsilon(1e-5), 4)
    (0.3333333333333333, 1.2711)
    """

    row_cov: Covariance
    col_cov: Covariance
    sensitivity: Sensitivity
    mu: Maximum = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_cov", as_covariance(self.row_cov, "row_cov"))
        object.__setattr__(self, "col_cov", as_covariance(self.col_cov, "col_cov"))
        object.__setattr__(self, "mu", exact_mu(self.row_cov, self.col_cov, self.sensitivity))

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of the guarantee."""
        return self.sensitivity.adjacency

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the noise."""
        return self.row_cov.size, self.col_cov.size

    @property
    def total_stddev(self) -> float:
        """Root mean square of the noise over all entries of the matrix."""
        rows, columns = self.row_cov.marginal_variances, self.col_cov.marginal_variances
        return math.sqrt(float(rows.mean()) * float(columns.mean()))


def calibrate(
    row_shape: CovarianceLike, col_shape: CovarianceLike, sensitivity: Sensitivity, *, epsilon: float, delta: float
) -> MatrixGaussian:
    """Scale a covariance of any shape until the noise satisfies (epsilon, delta) exactly.

    Parameters
    ----------
    row_shape, col_shape
        Sigma and Psi up to a factor. The factor goes to the rows.
    sensitivity
        As in `exact_mu`.
    epsilon, delta
        The guarantee.

    Returns
    -------
    MatrixGaussian
        Its row covariance is `row_shape` times one number, and its ``mu`` is the largest that (epsilon, delta) allows
        (when mu is only bounded above, the bound is what meets the guarantee).

    Examples
    --------
    >>> noise = calibrate([[1.0]], Covariance.identity(10), FrobeniusBall(1.0, "replace-one"), epsilon=1.0, delta=1e-5)
    >>> round(noise.total_stddev, 6)
    3.730632
    """
    row = as_covariance(row_shape, "row_shape")
    unit = exact_mu(row, col_shape, sensitivity).value
    target = mu_for(epsilon, delta)
    return MatrixGaussian(row.scaled((unit / target) ** 2), as_covariance(col_shape, "col_shape"), sensitivity)
