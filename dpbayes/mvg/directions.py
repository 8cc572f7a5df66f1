"""Directional noise as the paper builds it: Algorithm 1 (unimodal) and its equimodal variant.

Noise built here spends the precision budget of Theorem 2. The `MatrixGaussian` that comes back also knows its exact
price, which is far lower; `calibrate` gives the same shape the size that the exact price asks for.
"""

from __future__ import annotations

import math

import numpy.typing as npt

from dpbayes.mvg.accounting import MatrixGaussian
from dpbayes.mvg.bound import ZetaReading, precision_bound
from dpbayes.mvg.covariance import Covariance
from dpbayes.mvg.sensitivity import Sensitivity
from dpbayes.mvg.shapes import directional_shape

__all__ = ["equimodal_noise", "unimodal_noise"]


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
    :math:`1/\sqrt{p_i}`, so that Theorem 2 holds with equality.

    Parameters
    ----------
    theta
        Precision allocation, shape (m,).
    directions
        Orthonormal columns, shape (m, m); None for the coordinate axes.
    n
        Number of records.
    gamma
        Supremum of the Frobenius norm of the query's value.
    sensitivity
        The sensitivity set; the theorem uses its Frobenius radius, the exact price uses all of it.
    epsilon, delta, zeta
        As in `precision_bound`.

    Returns
    -------
    MatrixGaussian
        Noise that satisfies Theorem 2, with its exact price.

    Raises
    ------
    InputError
        As `precision_bound`, `check_allocation` and `Covariance`.

    References
    ----------
    McKay (2019), Appendix B, Algorithm 1.

    Examples
    --------
    >>> from dpbayes.mvg import FrobeniusBall
    >>> noise = unimodal_noise([0.9, 0.1], None, n=2, gamma=1.0, sensitivity=FrobeniusBall(1.0, "replace-one"),
    ...                        epsilon=1.0, delta=1e-5)
    >>> noise.row_cov.marginal_variances.round(1).tolist()
    [11065.8, 33197.3]
    """
    shape = directional_shape(theta, directions)
    bound = precision_bound(
        m=shape.size, n=n, gamma=gamma, sensitivity=sensitivity.frobenius, epsilon=epsilon, delta=delta, zeta=zeta
    )
    # shape has precision norm 1 because theta sums to one; the columns' is sqrt(n).
    return MatrixGaussian(shape.scaled(math.sqrt(n) / bound), Covariance.identity(n), sensitivity)


def equimodal_noise(
    row_shape: Covariance,
    col_shape: Covariance | None = None,
    *,
    gamma: float,
    sensitivity: Sensitivity,
    epsilon: float,
    delta: float,
    zeta: ZetaReading = "printed",
) -> MatrixGaussian:
    r"""Build equimodal noise: rows and columns each use :math:`\sqrt B` of the precision.

    Parameters
    ----------
    row_shape
        Sigma up to scale, for example from `directional_shape`.
    col_shape
        Psi up to scale; the rows' shape when None, for a square (symmetric) query.
    gamma, sensitivity, epsilon, delta, zeta
        As in `unimodal_noise`.

    Returns
    -------
    MatrixGaussian
        Noise with :math:`\|\sigma(\Sigma^{-1})\|_2 = \|\sigma(\Psi^{-1})\|_2 = \sqrt B`.

    Raises
    ------
    InputError
        As `precision_bound`.

    Examples
    --------
    >>> from dpbayes.mvg import FrobeniusBall
    >>> noise = equimodal_noise(directional_shape([0.7, 0.3]), gamma=1.0, epsilon=1.0, delta=1e-5,
    ...                         sensitivity=FrobeniusBall(1.0, "replace-one"))
    >>> bool(abs(noise.row_cov.precision_norm - noise.col_cov.precision_norm) < 1e-12)
    True
    """
    columns = row_shape if col_shape is None else col_shape
    bound = precision_bound(
        m=row_shape.size,
        n=columns.size,
        gamma=gamma,
        sensitivity=sensitivity.frobenius,
        epsilon=epsilon,
        delta=delta,
        zeta=zeta,
    )
    half = math.sqrt(bound)
    return MatrixGaussian(
        row_shape.scaled(row_shape.precision_norm / half), columns.scaled(columns.precision_norm / half), sensitivity
    )
