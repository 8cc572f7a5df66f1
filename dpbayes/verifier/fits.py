r"""Fits of one partition: a coefficient, its standard error and its p-value, or nothing.

Nothing (None) means that the fit cannot be computed: too few rows, a singular design, no convergence, a non-finite
value. Whether that happens depends on the partition's rows alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from dpbayes.errors import InputError

__all__ = ["FAMILIES", "Estimate", "demean", "fit_absorbed", "fit_glm", "fit_ols"]

type FloatArray = npt.NDArray[np.float64]
type IntArray = npt.NDArray[np.int64]

# A column is collinear when what the others leave of it is this small beside it. Rounding leaves about 1e-14, and a
# cubic in calendar years 1e-8.
RANK_TOLERANCE = 1e-10

# Of the weighted design beside the design: where nothing is left of a column, its coefficient ran away until the
# weights underflowed (about exp(-36), so 1e-8 here).
INFORMATION_TOLERANCE = 1e-6
_BLOCK = 256

FAMILIES = ("logistic", "poisson")


class Estimate(NamedTuple):
    """A coefficient with its standard error and two-sided p-value."""

    coefficient: float
    standard_error: float
    p_value: float


@np.errstate(all="ignore")
def fit_ols(matrix: FloatArray, response: FloatArray, column: int, *, n_absorbed: int = 0) -> Estimate | None:
    """Fit a linear model by least squares.

    Householder QR of the matrix with the response as its last column: the coefficients are those of statsmodels and R
    to rounding, at the cost of one factorization.

    Parameters
    ----------
    matrix, response
        Shapes (rows, columns) and (rows,).
    column
        Which coefficient.
    n_absorbed
        Degrees of freedom that demeaning has used up.

    Returns
    -------
    Estimate or None
        None if there are no residual degrees of freedom, a value is not finite, or the design is singular.

    Examples
    --------
    >>> x = np.arange(4.0)
    >>> estimate = fit_ols(np.column_stack([np.ones(4), x]), np.array([1.0, 3.1, 4.9, 7.0]), 1)
    >>> round(estimate.coefficient, 12)
    1.98
    """
    n, k = matrix.shape
    df = n - k - n_absorbed
    if df < 1:
        return None
    triangle = _triangle(np.column_stack([matrix, response]))
    if triangle is None:
        return None
    factor, norms = triangle
    upper = factor[:k, :k]
    if np.abs(np.diag(upper)).min() < RANK_TOLERANCE:
        return None
    scale = norms[k] / norms[:k]
    coefficient = float(solve_triangular(upper, factor[:k, k])[column] * scale[column])
    unit = np.zeros(k)
    unit[column] = 1.0
    # The row of the inverse factor gives the variance: (X'X)^-1 = R^-1 R^-T.
    row = solve_triangular(upper, unit, trans="T")
    residual = abs(float(factor[k, k])) * norms[k]
    standard_error = math.sqrt(float(row @ row) / df) * residual / norms[column]
    return Estimate(coefficient, standard_error, _t_p_value(coefficient, standard_error, df))


@np.errstate(all="ignore")
def fit_absorbed(matrix: FloatArray, response: FloatArray, column: int, groups: list[IntArray]) -> Estimate | None:
    """Fit a linear model with fixed effects for one or several groupings, absorbed by demeaning.

    The coefficient is that of least squares with a dummy for every group (Frisch, Waugh and Lovell).

    Parameters
    ----------
    matrix, response
        Shapes (rows, columns) and (rows,); no intercept, which the fixed effects hold.
    column
        Which coefficient.
    groups
        Codes from 0, shape (rows,), one array a grouping.

    Returns
    -------
    Estimate or None
        None as in `fit_ols`, and where a column does not vary within the groups.
    """
    whole = np.column_stack([matrix, response])
    if not np.all(np.isfinite(whole)):
        return None
    residuals = demean(whole, groups)
    if residuals is None:
        return None
    within, used = residuals
    k = matrix.shape[1]
    left = np.linalg.norm(within[:, :k], axis=0)
    if np.any(left <= RANK_TOLERANCE * np.linalg.norm(matrix, axis=0)):
        return None
    return fit_ols(np.ascontiguousarray(within[:, :k]), within[:, k], column, n_absorbed=used)


@np.errstate(all="ignore")
def fit_glm(matrix: FloatArray, response: FloatArray, column: int, *, family: str) -> Estimate | None:
    """Fit a logistic or Poisson regression by maximum likelihood (statsmodels' iteratively reweighted least squares).

    Parameters
    ----------
    matrix, response
        Shapes (rows, columns) and (rows,).
    column
        Which coefficient.
    family
        ``"logistic"`` or ``"poisson"``, with the canonical link.

    Returns
    -------
    Estimate or None
        None for too few rows, a singular design, responses outside the family's range, or no convergence. Convergence
        is judged by the coefficients: under separation the deviance settles while the coefficients run away.
    """
    from statsmodels.genmod.families import Binomial, Poisson
    from statsmodels.genmod.generalized_linear_model import GLM

    if family not in FAMILIES:
        raise InputError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
    n, k = matrix.shape
    in_range = np.all(response >= 0) and (family == "poisson" or np.all(response <= 1))
    if n <= k or not in_range:
        return None
    triangle = _triangle(np.column_stack([matrix, response]))
    if triangle is None or np.abs(np.diag(triangle[0])[:k]).min() < RANK_TOLERANCE:
        return None
    with warnings.catch_warnings():
        # Warnings of a fit that fails are its failure; shown, they would tell about the data.
        warnings.simplefilter("ignore")
        try:
            result = GLM(response, matrix, family=Binomial() if family == "logistic" else Poisson()).fit(
                maxiter=50, tol_criterion="params", tol=1e-8, rtol=1e-8
            )
        except (ValueError, FloatingPointError, np.linalg.LinAlgError):
            # Counted as not computable by the caller.
            return None
    coefficient, error = float(result.params[column]), float(result.bse[column])
    if not result.converged or not (math.isfinite(coefficient) and math.isfinite(error)):
        return None
    weights = np.asarray(
        result.fittedvalues if family == "poisson" else result.fittedvalues * (1 - result.fittedvalues)
    )
    weighted = matrix * np.sqrt(weights / weights.max())[:, None] / np.linalg.norm(matrix, axis=0)
    if not np.all(np.isfinite(weighted)) or np.abs(np.diag(_tall_qr(weighted))).min() < INFORMATION_TOLERANCE:
        return None
    return Estimate(coefficient, error, float(result.pvalues[column]))


def demean(values: FloatArray, groups: list[IntArray], *, tolerance: float = 1e-13) -> tuple[FloatArray, int] | None:
    """Take the group means out of every column, for one or several groupings.

    One grouping is done exactly. Several alternate (the method of alternating projections) until no mean is left.

    Parameters
    ----------
    values
        Shape (rows, columns).
    groups
        Codes from 0, shape (rows,), one array a grouping.
    tolerance
        Largest mean left, relative to the column's norm over the root of the rows.

    Returns
    -------
    array and int, or None
        The residuals and the degrees of freedom used (an upper bound for three groupings and more); None if the
        alternation does not settle.

    References
    ----------
    Guimaraes, P. and Portugal, P. (2010). A simple feasible procedure to fit models with high-dimensional fixed
    effects. Stata Journal 10(4), 628-649.
    """
    means = [_group_means(codes) for codes in groups]
    used = sum(int(codes.max()) + 1 for codes in groups) - (len(groups) - 1)
    out = values - means[0](values)
    if len(groups) == 1:
        # A second sweep takes out what rounding left of large means.
        return out - means[0](out), used
    size = np.maximum(np.sqrt((values**2).mean(axis=0)), 1e-300)
    for _ in range(2000):
        left = 0.0
        for mean in means:
            taken = mean(out)
            out = out - taken
            left = max(left, float((np.abs(taken).max(axis=0) / size).max()))
        if left <= tolerance:
            return out, used
    return None


def _group_means(codes: IntArray) -> Callable[[FloatArray], FloatArray]:
    """Return a function that gives every row its group's mean."""
    sizes = np.bincount(codes)

    def means(values: FloatArray) -> FloatArray:
        sums = np.stack([np.bincount(codes, weights=column, minlength=sizes.size) for column in values.T])
        return np.ascontiguousarray((sums / np.maximum(sizes, 1)).T[codes])

    return means


def _triangle(matrix: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """Return the R factor of the matrix with its columns scaled to norm 1, and the norms.

    None if a value is not finite or a column is zero (a level that no row has). A response of zeros is left as it is.
    """
    norms = np.sqrt(np.einsum("ij,ij->j", matrix, matrix))
    if not np.all(np.isfinite(norms)) or np.any(norms[:-1] == 0):
        return None
    safe = np.where(norms > 0, norms, 1.0)
    return _tall_qr(matrix / safe), safe


def _tall_qr(matrix: FloatArray) -> FloatArray:
    """Return the R factor of a tall matrix: of blocks of rows, then of their stacked factors (TSQR).

    As stable as one factorization of the whole (Demmel, Grigori, Hoemmen and Langou 2012), and each block stays in the
    cache.
    """
    n, k = matrix.shape
    block = max(_BLOCK, 4 * k)
    n_blocks = n // block
    if n_blocks < 2:
        return np.linalg.qr(matrix, mode="r")
    factors = np.linalg.qr(matrix[: n_blocks * block].reshape(n_blocks, block, k), mode="r")
    return np.linalg.qr(np.concatenate([factors.reshape(-1, k), matrix[n_blocks * block :]]), mode="r")


def _t_p_value(coefficient: float, standard_error: float, df: int) -> float:
    from scipy.special import stdtr

    if standard_error == 0.0:
        return 1.0 if coefficient == 0.0 else 0.0
    return float(2 * stdtr(df, -abs(coefficient / standard_error)))
