"""Claims: one regression in every partition, and a verdict on it: beyond, not beyond, or not computed.

A fit is not computed (None) with too few rows, a singular design, no convergence or a non-finite value. Whether that
happens depends on the partition's rows alone. Counts are confidential until `release_counts` adds noise.
"""

import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Required, TypedDict, Unpack, get_args

import narwhals as nw
import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import stdtr

from dpbayes._arguments import Floats, Ints, finite, function, instance, one_of, strictly_between
from dpbayes.errors import InputError
from dpbayes.verifier.formulas import check_coefficient, collect, column_values, design
from dpbayes.verifier.partition import (
    Assignment,
    PartitionCounts,
    Partitioned,
    check_n_partitions,
    row_partitions,
    rows_by_partition,
    unit_codes,
)

type Family = Literal["gaussian", "logistic", "poisson"]
type Direction = Literal["<=", ">", "<", ">="]

_COMPARE = {"<=": operator.le, ">": operator.gt, "<": operator.lt, ">=": operator.ge}

# A column is collinear when what the others leave of it is this small beside it. Rounding leaves about 1e-14, and a
# cubic in calendar years 1e-8.
RANK_TOLERANCE = 1e-10

# Of the weighted design beside the design: where nothing is left of a column, its coefficient ran away until the
# weights underflowed (about exp(-36), so 1e-8 here).
INFORMATION_TOLERANCE = 1e-6
_BLOCK = 256


class Regression(TypedDict, total=False):
    """A regression in every partition."""

    formula: Required[str]
    """``response ~ terms``, see `dpbayes.verifier.formulas`."""
    coefficient: Required[str]
    """Name of the coefficient, as formulaic names columns: ``educ``, ``sector[T.b]``, ``np.log(hours)``."""
    family: Family
    """``"gaussian"`` (least squares, the default), ``"logistic"`` or ``"poisson"``."""
    absorb: str | Sequence[str]
    """Columns whose fixed effects are absorbed by demeaning; least squares only. A row without its group is left out,
    as one with any other missing value."""
    levels: Mapping[str, Any] | None
    """Levels of the categorical columns whose types do not declare them: a list, or, to pool levels by a public rule,
    a mapping from each pooled level to those it stands for."""


class Fitted(NamedTuple):
    """A coefficient with its standard error and two-sided p-value."""

    coefficient: float
    standard_error: float
    p_value: float


@np.errstate(all="ignore")
def fit_ols(matrix: Floats, response: Floats, column: int, *, n_absorbed: int = 0) -> Fitted | None:
    """Fit a linear model by least squares: one Householder QR of the matrix with the response as last column."""
    n, k = matrix.shape
    df = n - k - n_absorbed
    triangle = _triangle(matrix, response) if df >= 1 else None
    if triangle is None:
        return None
    factor, norms = triangle
    upper = factor[:k, :k]
    coefficient = float(solve_triangular(upper, factor[:k, k])[column] * (norms[k] / norms[column]))
    # The row of the inverse factor gives the variance: (X'X)^-1 = R^-1 R^-T.
    row = solve_triangular(upper, np.eye(k)[column], trans="T")
    residual = abs(float(factor[k, k])) * norms[k]
    standard_error = math.sqrt(float(row @ row) / df) * residual / norms[column]
    # A perfect fit of 0 is 0 / 0: nothing speaks against it.
    t = np.nan_to_num(np.divide(coefficient, standard_error), posinf=np.inf, neginf=-np.inf)
    return Fitted(coefficient, standard_error, float(2 * stdtr(df, -abs(t))))


@np.errstate(all="ignore")
def fit_absorbed(matrix: Floats, response: Floats, column: int, groups: list[Ints]) -> Fitted | None:
    """Fit a linear model with absorbed fixed effects, as with a dummy per group (Frisch, Waugh and Lovell)."""
    whole = np.column_stack([matrix, response])
    codes = [np.unique(group, return_inverse=True)[1] for group in groups]
    residuals = demean(whole, codes) if np.all(np.isfinite(whole)) else None
    if residuals is None:
        return None
    within, used = residuals
    left = np.linalg.norm(within[:, :-1], axis=0)
    if np.any(left <= RANK_TOLERANCE * np.linalg.norm(matrix, axis=0)):
        return None
    return fit_ols(np.ascontiguousarray(within[:, :-1]), within[:, -1], column, n_absorbed=used)


@np.errstate(all="ignore")
def fit_glm(matrix: Floats, response: Floats, column: int, *, family: str) -> Fitted | None:
    """Fit a logistic or Poisson regression by statsmodels' iteratively reweighted least squares."""
    from statsmodels.genmod.families import Binomial, Poisson
    from statsmodels.genmod.generalized_linear_model import GLM

    n, k = matrix.shape
    in_range = np.all(response >= 0) and (family == "poisson" or np.all(response <= 1))
    if n <= k or not in_range or _triangle(matrix, response) is None:
        return None
    with warnings.catch_warnings():
        # Warnings of a fit that fails are its failure; shown, they would tell about the data.
        warnings.simplefilter("ignore")
        law = Binomial() if family == "logistic" else Poisson()
        try:
            result = GLM(response, matrix, family=law).fit(maxiter=50, tol_criterion="params", tol=1e-8, rtol=1e-8)
        except (ValueError, FloatingPointError, np.linalg.LinAlgError):
            # Counted as not computable by the caller.
            return None
    coefficient, error = float(result.params[column]), float(result.bse[column])
    if not result.converged or not (math.isfinite(coefficient) and math.isfinite(error)):
        return None
    means = np.asarray(result.fittedvalues)
    weights = means if family == "poisson" else means * (1 - means)
    weighted = matrix * np.sqrt(weights / weights.max())[:, None] / np.linalg.norm(matrix, axis=0)
    if not np.all(np.isfinite(weighted)) or np.abs(np.diag(_tall_qr(weighted))).min() < INFORMATION_TOLERANCE:
        return None
    return Fitted(coefficient, error, float(result.pvalues[column]))


def demean(values: Floats, groups: list[Ints]) -> tuple[Floats, int] | None:
    """Take the group means out of every column; return the residuals and the degrees of freedom used."""
    sizes = [np.bincount(codes) for codes in groups]
    used = sum(map(len, sizes)) - (len(groups) - 1)
    out, size = values, np.maximum(np.sqrt((values**2).mean(axis=0)), 1e-300)
    for _ in range(2000):
        left = 0.0
        for codes, counts in zip(groups, sizes, strict=True):
            sums = np.stack([np.bincount(codes, weights=column) for column in out.T])
            taken = np.ascontiguousarray((sums / np.maximum(counts, 1)).T[codes])
            out = out - taken
            left = max(left, float((np.abs(taken).max(axis=0) / size).max()))
        if left <= 1e-13:
            return out, used
    return None


def _triangle(matrix: Floats, response: Floats) -> tuple[Floats, Floats] | None:
    """Return the R factor of both, columns scaled to norm 1, and the norms; None where the matrix is singular."""
    both = np.column_stack([matrix, response])
    norms = np.sqrt(np.einsum("ij,ij->j", both, both))
    if not np.all(np.isfinite(norms)) or np.any(norms[:-1] == 0):
        return None
    safe = np.where(norms > 0, norms, 1.0)
    factor = _tall_qr(both / safe)
    return None if np.abs(np.diag(factor)[: len(norms) - 1]).min() < RANK_TOLERANCE else (factor, safe)


def _tall_qr(matrix: Floats) -> Floats:
    """Return the R factor of a tall matrix: of blocks of rows, then of their factors (TSQR, Demmel et al. 2012)."""
    n, k = matrix.shape
    block = max(_BLOCK, 4 * k)
    n_blocks = n // block
    if n_blocks < 2:
        return np.linalg.qr(matrix, mode="r")
    factors = np.linalg.qr(matrix[: n_blocks * block].reshape(n_blocks, block, k), mode="r")
    return np.linalg.qr(np.concatenate([factors.reshape(-1, k), matrix[n_blocks * block :]]), mode="r")


def estimate_partitions(
    frame: Any,
    n_partitions: int,
    *,
    corrected: bool = False,
    strata: str | None = None,
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
    **regression: Unpack[Regression],
) -> list[Fitted | None]:
    """Return each partition's estimate, or None where it cannot be computed. Confidential."""
    table = collect(frame)
    split = 2 if corrected else 1
    partitioned: Partitioned = {"unit": unit, "assignment": assignment, "random_state": random_state}
    cells = row_partitions(table, split * check_n_partitions(n_partitions), strata=strata, **partitioned)
    known, fit = model_of(table, **regression)
    cells = cells[known]
    whole = [fit(rows) for rows in rows_by_partition(cells // split, n_partitions)]
    if not corrected:
        return whole
    halves = [fit(rows) for rows in rows_by_partition(cells, split * n_partitions)]
    return [halved(*three) for three in zip(whole, halves[::2], halves[1::2], strict=True)]


def halved(whole: Fitted | None, first: Fitted | None, second: Fitted | None) -> Fitted | None:
    """Return Quenouille's estimate from that of all rows and of two halves; None where one is or it overflows."""
    if whole is None or first is None or second is None:
        return None
    coefficient = 2 * whole.coefficient - 0.5 * (first.coefficient + second.coefficient)
    return whole._replace(coefficient=coefficient) if math.isfinite(coefficient) else None


def model_of(
    table: nw.DataFrame[Any],
    formula: str,
    coefficient: str,
    family: str = "gaussian",
    absorb: str | Sequence[str] = (),
    levels: Mapping[str, Any] | None = None,
) -> tuple[Ints, Callable[[Ints], Fitted | None]]:
    """Return the complete rows, and the function that fits some of these, by their places among them."""
    absorbed = [absorb] if isinstance(absorb, str) else list(absorb)
    one_of(family, get_args(Family.__value__), "family")
    if absorbed and family != "gaussian":
        raise InputError(f"fixed effects can be absorbed in least squares only, got family {family!r}; use C(column)")
    model = design(table, formula, levels=levels, absorbed=absorbed)
    instance(coefficient, str, "coefficient", remedy=f"the model has {list(model.columns)!r}")
    check_coefficient(coefficient, model.columns)
    groups = [unit_codes(column_values(table, name)[model.rows])[0] for name in absorbed]
    column = model.columns.index(coefficient)

    def fit(places: Ints) -> Fitted | None:
        if not places.size:
            return None
        matrix, response = model.matrix[places], model.response[places]
        if groups:
            found = fit_absorbed(matrix, response, column, [codes[places] for codes in groups])
        elif family == "gaussian":
            found = fit_ols(matrix, response, column)
        else:
            found = fit_glm(matrix, response, column, family=family)
        # An estimate that overflowed is none.
        return found if found is not None and math.isfinite(found.coefficient) else None

    return model.rows, fit


def count_partitions(
    frame: Any,
    *,
    threshold: float | None = None,
    direction: Direction | None = None,
    significant_at: float | None = None,
    n_partitions: int,
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
    strata: str | None = None,
    **regression: Unpack[Regression],
) -> PartitionCounts:
    """Count the partitions in which a regression coefficient lies beyond a threshold, or is significant.

    What is verified is a share of partitions, each of n/M units, and not the coefficient in all records: where small
    samples are skewed the two differ. `pilot_shares` shows by how much; `sum_estimates` asks about the coefficient.

    Parameters
    ----------
    frame
        Microdata: any frame that narwhals reads.
    threshold
        What the claim compares the coefficient with, in its unit. Give this or `significant_at`.
    direction
        ``">"`` counts a partition as beyond when its coefficient exceeds the threshold; likewise the others. Of a test:
        None is two-sided, ``">"`` and ``"<"`` one-sided against coefficients of 0.
    significant_at
        Level of a test against 0, in (0, 1): t for least squares, Wald z otherwise, with standard errors that take
        rows as independent. A partition holds 1/M of the units, and a test has less power there.
    n_partitions
        M. Public, so choose it without looking at the data.
    unit
        Column that names the unit whose privacy is protected, a person say. All of a unit's rows stay together. None:
        every row is its own unit.
    assignment
        ``"balanced"`` for replace-one neighbours, ``"independent"`` for add-remove ones.
    random_state
        None for a release; a seed or generator for a simulation.
    strata
        A public column, the same in all rows of a unit, over whose values units are spread evenly: a rare level then
        reaches as many partitions as it can. Balanced assignment only; the guarantee then speaks of replacing a unit
        by one with the same public value.
    **regression
        `formula`, `coefficient`, `family`, `absorb` and `levels`, see `dpbayes.verifier.claim.Regression`.

    Returns
    -------
    PartitionCounts
        Confidential. A partition whose fit is singular, does not converge, lacks a level or has too few rows counts as
        not computed.

    Raises
    ------
    MissingColumnError, InputError
        If the frame lacks a column; if a parameter is out of range or the formula has no such coefficient.

    References
    ----------
    Balmat, T., Barrientos, A. F. and Reiter, J. P. (2018), section 3.

    Examples
    --------
    >>> import polars as pl
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=500)
    >>> frame = pl.DataFrame({"x": x, "y": 1 + 2 * x + rng.normal(size=500)})
    >>> claim = {"formula": "y ~ x", "coefficient": "x", "threshold": 1.5, "direction": ">"}
    >>> count_partitions(frame, n_partitions=20, random_state=1, **claim).n_partitions
    20
    """
    verdict = coefficient_verdict(threshold, direction, significant_at)
    partitioned: Partitioned = {"unit": unit, "assignment": assignment, "random_state": random_state}
    estimates = estimate_partitions(frame, n_partitions, strata=strata, **partitioned, **regression)
    return _tally([None if e is None else verdict(e) for e in estimates], **partitioned)


def coefficient_verdict(
    threshold: float | None, direction: Direction | None, significant_at: float | None
) -> Callable[[Fitted], bool]:
    """Return the function that tells whether an estimate lies beyond the threshold, or is significant."""
    if (threshold is None) == (significant_at is None):
        raise InputError("give either threshold or significant_at; a claim is about one of them")
    if significant_at is None:
        compare = _compared(threshold, direction)
        return lambda estimate: compare(estimate.coefficient)
    level = strictly_between(significant_at, "significant_at", 0, 1, remedy="0.05 is usual")
    if direction not in (None, "<", ">"):
        raise InputError(f"direction of a test must be None, '<' or '>', got {direction!r}")
    if direction is None:
        return lambda estimate: estimate.p_value < level
    side = 1 if direction == ">" else -1
    return lambda estimate: side * estimate.coefficient > 0 and estimate.p_value / 2 < level


def count_statistic(
    frame: Any,
    statistic: Callable[[Any], float],
    *,
    threshold: float,
    direction: Direction,
    n_partitions: int,
    **partitioned: Unpack[Partitioned],
) -> PartitionCounts:
    """Count the partitions in which a statistic of your own lies beyond a threshold.

    `statistic` is a function of one partition's rows, given as a frame of the kind that came in, to a number. It must
    use nothing else: one that looks at all rows breaks the sensitivity that the noise is calibrated to. A number that
    is not finite, and any exception, count as not computed. Warnings are silent. All else is as in `count_partitions`.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"wage": np.arange(100.0)})
    >>> count_statistic(
    ...     frame, lambda part: part["wage"].median(), threshold=0, direction=">", n_partitions=10
    ... ).n_partitions
    10
    """
    compare = _compared(threshold, direction)
    # Not a function, it would fail in every partition, and failing is an outcome that is counted and released.
    function(statistic, "statistic", remedy="it takes a partition's rows")
    table = collect(frame)
    parts = rows_by_partition(row_partitions(table, n_partitions, **partitioned), n_partitions)

    def verdict(rows: Ints) -> bool | None:
        try:
            value = float(statistic(nw.to_native(table[np.sort(rows)]))) if rows.size else math.nan
        except Exception:
            # A partition that fails is an outcome of its own, counted and released with noise; an error raised here
            # would tell about that partition.
            return None
        return compare(value) if math.isfinite(value) else None

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return _tally([verdict(rows) for rows in parts], **partitioned)


def _compared(threshold: Any, direction: Any) -> Callable[[float], bool]:
    """Return the function that tells whether a number lies beyond the threshold."""
    bound, compare = finite(threshold, "threshold"), _COMPARE[one_of(direction, _COMPARE, "direction")]
    return lambda value: bool(compare(value, bound))


def _tally(verdicts: Sequence[bool | None], **partitioned: Unpack[Partitioned]) -> PartitionCounts:
    """Count verdicts; a partition without one is not computed."""
    beyond, other, failed = (sum(verdict is one for verdict in verdicts) for one in (True, False, None))
    assignment, reproducible = partitioned.get("assignment", "balanced"), partitioned.get("random_state") is not None
    return PartitionCounts(beyond, other, failed, assignment, reproducible, partitioned.get("unit"))
