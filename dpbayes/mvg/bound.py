r"""The paper's sufficient condition: how much precision Theorem 2 lets the noise have.

Theorem 2 promises (epsilon, delta)-differential privacy when
:math:`\|\sigma(\Sigma^{-1})\|_2 \, \|\sigma(\Psi^{-1})\|_2 \le B` with
:math:`B = (-\beta + \sqrt{\beta^2 + 8\alpha\epsilon})^2 / (4\alpha^2)`. The condition is sufficient and far from
necessary; `dpbayes.mvg.accounting` holds the exact price.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from dpbayes._arguments import positive_finite, probability_below_one
from dpbayes.errors import InputError
from dpbayes.mvg.covariance import CovarianceLike, as_covariance

__all__ = [
    "BoundCheck",
    "BoundTerms",
    "ZetaReading",
    "bound_terms",
    "check_bound",
    "harmonic_number",
    "precision_bound",
]

ZetaReading = Literal["printed", "laurent-massart"]
_READINGS: tuple[str, ...] = get_args(ZetaReading)


@lru_cache(maxsize=1024)
def harmonic_number(r: int, power: float = 1.0) -> float:
    r"""Return the generalized harmonic number :math:`H_{r,p} = \sum_{i=1}^r i^{-p}`.

    Parameters
    ----------
    r
        Number of terms, at least 1.
    power
        The exponent p; Theorem 2 uses 1 and 1/2.

    Returns
    -------
    float
        The sum, rounded once.

    Raises
    ------
    InputError
        If `r` is not a positive integer.

    Examples
    --------
    >>> harmonic_number(2), round(harmonic_number(2, 0.5), 6)
    (1.5, 1.707107)
    """
    size = _positive_integer(r, "r")
    return math.fsum(np.arange(1, size + 1, dtype=float) ** -power)


@dataclass(frozen=True)
class BoundTerms:
    r"""The quantities of Theorem 2 and Table 1.

    Parameters
    ----------
    alpha
        :math:`(H_r + H_{r,1/2})\gamma^2 + 2 H_r \gamma s_2`.
    beta
        :math:`2 (mn)^{1/4} \zeta(\delta) H_r s_2`.
    zeta
        :math:`\zeta(\delta)` in the reading that was asked for.
    bound
        B, the largest product of the two precision norms that the theorem allows.

    Examples
    --------
    >>> BoundTerms(alpha=2.0, beta=30.0, zeta=15.0, bound=1e-3).bound
    0.001
    """

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
    r"""Return alpha, beta, zeta and the precision bound of Theorem 2.

    The printed form :math:`(-\beta + \sqrt{\beta^2 + 8\alpha\epsilon})^2 / (4\alpha^2)` subtracts two nearly equal
    numbers as soon as beta is large (at m = 10, n = 70,000 six digits are lost in float64). It is evaluated here as
    :math:`16\epsilon^2 / (\beta + \sqrt{\beta^2 + 8\alpha\epsilon})^2`, which is the same number without the loss.

    Parameters
    ----------
    m, n
        Rows (features) and columns (records) of the query's value.
    gamma
        Supremum of the Frobenius norm of the query's value.
    sensitivity
        Frobenius sensitivity :math:`s_2` of the query, under the adjacency the guarantee is to hold for.
    epsilon, delta
        The guarantee.
    zeta
        ``"printed"``: :math:`2\sqrt{-mn\ln\delta} - 2\ln\delta + mn`, as the paper prints it.
        ``"laurent-massart"``: the square root of that, which is what the chi-square tail bound of Laurent and Massart
        gives for a norm.

    Returns
    -------
    BoundTerms
        The terms; ``bound`` is B.

    Raises
    ------
    InputError
        If a size is not a positive integer, `gamma`, `sensitivity` or `epsilon` is not positive and finite, `delta`
        is outside (0, 1), or `zeta` names no reading.

    References
    ----------
    McKay (2019), Theorem 2 and Table 1, after Chanyaswad et al. (2018), "MVG mechanism".

    Examples
    --------
    >>> terms = bound_terms(m=1, n=1, gamma=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    >>> terms.alpha, round(terms.zeta, 4), round(terms.bound, 10)
    (4.0, 30.812, 0.0010489056)
    """
    rows, columns = _positive_integer(m, "m"), _positive_integer(n, "n")
    norm = positive_finite(gamma, "gamma", remedy="it is the supremum of the query's Frobenius norm")
    s2 = positive_finite(sensitivity, "sensitivity", remedy="it is the Frobenius sensitivity of the query")
    budget = positive_finite(epsilon, "epsilon", remedy="it is the privacy parameter of Theorem 2")
    tail = probability_below_one(delta, "delta", remedy="a usual choice is below 1 / n")
    check_reading(zeta)
    h, h_half = harmonic_number(min(rows, columns)), harmonic_number(min(rows, columns), 0.5)
    reading = zeta_printed(rows * columns, math.log(tail))
    if zeta == "laurent-massart":
        reading = math.sqrt(reading)
    alpha, beta, bound = bound_formula(norm, s2, budget, reading, rows * columns, h, h_half)
    return BoundTerms(alpha, beta, reading, bound)


def check_reading(zeta: Any) -> None:
    """Raise `InputError` unless `zeta` names a reading."""
    if zeta not in _READINGS:
        raise InputError(f"zeta must be one of {', '.join(_READINGS)}, got {zeta!r}; 'printed' is the paper's")


def zeta_printed(size: Any, log_delta: Any) -> Any:
    """Return zeta as printed; works on floats, NumPy arrays and PyTensor variables (`size` is m times n)."""
    return 2.0 * (-size * log_delta) ** 0.5 - 2.0 * log_delta + size


def bound_formula(gamma: Any, s2: Any, epsilon: Any, zeta: Any, size: Any, h: Any, h_half: Any) -> Any:
    """Return (alpha, beta, B) of Theorem 2; only operators, so that scalars and graphs share one text."""
    alpha = (h + h_half) * gamma**2 + 2.0 * h * gamma * s2
    beta = 2.0 * size**0.25 * zeta * h * s2
    root = (beta**2 + 8.0 * alpha * epsilon) ** 0.5
    return alpha, beta, (4.0 * epsilon / (beta + root)) ** 2


def precision_bound(
    *,
    m: int,
    n: int,
    gamma: float,
    sensitivity: float,
    epsilon: float,
    delta: float,
    zeta: ZetaReading = "printed",
) -> float:
    r"""Return B, the right-hand side of Theorem 2, equation (1).

    Parameters and errors are those of `bound_terms`; `precision_bound_grid` does the same over arrays.

    Returns
    -------
    float
        The largest :math:`\|\sigma(\Sigma^{-1})\|_2 \|\sigma(\Psi^{-1})\|_2` that the theorem allows.

    Examples
    --------
    >>> round(precision_bound(m=2, n=2, gamma=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5), 13)
    0.0001347138235
    """
    return bound_terms(m=m, n=n, gamma=gamma, sensitivity=sensitivity, epsilon=epsilon, delta=delta, zeta=zeta).bound


@dataclass(frozen=True)
class BoundCheck:
    r"""Whether a pair of covariances satisfies Theorem 2.

    Parameters
    ----------
    holds
        True when ``precision <= bound``.
    precision
        :math:`\|\sigma(\Sigma^{-1})\|_2 \|\sigma(\Psi^{-1})\|_2` of the pair.
    bound
        B of `precision_bound`.

    Examples
    --------
    >>> BoundCheck(holds=True, precision=9e-4, bound=1e-3).holds
    True
    """

    holds: bool
    precision: float
    bound: float

    def __bool__(self) -> bool:
        return self.holds


def check_bound(
    row_cov: CovarianceLike,
    col_cov: CovarianceLike,
    *,
    gamma: float,
    sensitivity: float,
    epsilon: float,
    delta: float,
    zeta: ZetaReading = "printed",
) -> BoundCheck:
    r"""Say whether (Sigma, Psi) satisfies the sufficient condition of Theorem 2.

    A pair that fails may well be private: see `dpbayes.mvg.exact_mu`.

    Parameters
    ----------
    row_cov, col_cov
        Sigma (m x m) and Psi (n x n): `Covariance` objects or matrices.
    gamma, sensitivity, epsilon, delta, zeta
        As in `bound_terms`.

    Returns
    -------
    BoundCheck
        True in a boolean context when the condition holds. Equality up to 1e-12 relative counts as holding, so that
        noise built to use the whole budget passes.

    Raises
    ------
    InputError
        As `bound_terms`, and if a covariance is not symmetric positive definite.

    Examples
    --------
    >>> bool(check_bound([[1e3]], [[1.0]], gamma=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5))
    True
    >>> bool(check_bound([[100.0]], [[1.0]], gamma=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5))
    False
    """
    row, col = as_covariance(row_cov, "row_cov"), as_covariance(col_cov, "col_cov")
    bound = precision_bound(
        m=row.size, n=col.size, gamma=gamma, sensitivity=sensitivity, epsilon=epsilon, delta=delta, zeta=zeta
    )
    precision = row.precision_norm * col.precision_norm
    return BoundCheck(precision <= bound * (1.0 + 1e-12), precision, bound)


def _positive_integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InputError(f"{name} must be a positive integer, got {value!r}; it counts rows, columns or terms")
    return int(value)
