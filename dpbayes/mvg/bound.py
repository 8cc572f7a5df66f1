r"""The paper's sufficient condition: how much precision Theorem 2 lets the noise have.

Theorem 2 promises (epsilon, delta)-differential privacy when
:math:`\|\sigma(\Sigma^{-1})\|_2 \, \|\sigma(\Psi^{-1})\|_2 \le B` with
:math:`B = (-\beta + \sqrt{\beta^2 + 8\alpha\epsilon})^2 / (4\alpha^2)`. The condition is sufficient
and far from necessary; `dpbayes.mvg.cost` holds the exact privacy cost, which noise built here knows too. Algorithm 1
spends the whole precision along chosen directions.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import one_of, positive_finite, probability_below_one, real_numbers, whole_number
from dpbayes.errors import InputError
from dpbayes.mvg.cost import MatrixGaussian
from dpbayes.mvg.covariance import Covariance, check_directions
from dpbayes.mvg.sensitivity import Sensitivity, check_sensitivity

type FloatArray = npt.NDArray[np.float64]

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
    *,
    m: int,
    n: int,
    gamma: float,
    sensitivity: float,
    epsilon: float,
    delta: float,
    zeta: ZetaReading = "printed",
) -> BoundTerms:
    r"""Return alpha, beta, zeta and B of Theorem 2, equation (1).

    Parameters
    ----------
    m, n
        Rows (features) and columns (records) of the query's value.
    gamma
        Supremum of the Frobenius norm of the query's value.
    sensitivity
        Frobenius sensitivity of the query.
    epsilon, delta
        The guarantee.
    zeta
        ``"printed"`` for the paper's :math:`2\sqrt{-mn \ln\delta} - 2\ln\delta + mn`, ``"laurent-massart"`` for its
        square root, which is what the tail bound for the norm itself gives.

    Returns
    -------
    BoundTerms
        Its ``bound`` is the largest :math:`\|\sigma(\Sigma^{-1})\|_2 \|\sigma(\Psi^{-1})\|_2` that the theorem allows.

    Examples
    --------
    >>> round(bound_terms(m=2, n=2, gamma=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5).bound, 13)
    0.0001347138235
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


def check_allocation(theta: npt.ArrayLike, size: int | None = None) -> FloatArray:
    """Return `theta` as shares in (0, 1) that sum to one (a single direction takes all), or raise `InputError`."""
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

    The precision budget is :math:`P = B^2 / n`; direction i gets :math:`p_i = \theta_i P` and the
    variance :math:`1/\sqrt{p_i}`, so that Theorem 2 holds with equality.

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
        The sensitivity set; the theorem uses its Frobenius radius, the exact cost uses all of it.
    epsilon, delta, zeta
        As in `bound_terms`.

    Returns
    -------
    MatrixGaussian
        Noise that satisfies Theorem 2, with its exact privacy cost.

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
    check_sensitivity(sensitivity)
    bound = bound_terms(
        m=shape.size, n=n, gamma=gamma, sensitivity=sensitivity.frobenius, epsilon=epsilon, delta=delta, zeta=zeta
    ).bound
    # shape has precision norm 1 because theta sums to one; the columns' is sqrt(n).
    return MatrixGaussian(shape.scaled(math.sqrt(n) / bound), Covariance.identity(n), sensitivity)
