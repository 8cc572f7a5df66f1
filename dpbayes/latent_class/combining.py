"""Inference from several fully synthetic data sets: the combining rules of Raghunathan, Reiter and Rubin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import narwhals as nw
import numpy as np
import numpy.typing as npt
from scipy import stats

from dpbayes._arguments import (
    function,
    instance,
    number,
    one_of,
    ordered,
    real_numbers,
    shown,
    strictly_between,
    whole_number,
)
from dpbayes.data.records import as_frame
from dpbayes.errors import InputError, MissingColumnError

type Estimates = Mapping[str, tuple[float, float]]
"""Quantity name to (estimate, estimated sampling variance) in one data set."""


class Unseen(NamedTuple):
    """The share of a level that no record of a data set has and that the column's type does not declare."""

    estimate: float = 0.0
    variance: float = 0.0


def mean_of(column: str) -> Callable[[Any], Estimates]:
    """Return a fitting function for the mean of a numeric column.

    Parameters
    ----------
    column
        A column of the frames; its levels are numbers.

    Examples
    --------
    >>> import polars as pl
    >>> mean_of("age")(pl.DataFrame({"age": [20, 30, 40]}))
    {'mean of age': (30.0, 33.333333333333336)}
    """
    instance(column, str, "column", remedy=_NAME)

    def fit(frame: Any) -> Estimates:
        values = np.asarray(_column(frame, column))
        if values.dtype.kind not in "iuf":
            raise InputError(f"column {column!r} holds no numbers; share_of({column!r}, level) estimates a share")
        return {f"mean of {column}": (float(values.mean()), float(values.var(ddof=1) / len(values)))}

    return fit


def share_of(column: str, level: str | int) -> Callable[[Any], Estimates]:
    """Return a fitting function for the share of a level.

    Parameters
    ----------
    column
        A column of the frames.
    level
        One of its levels, as the column holds it: 1 is not ``"1"``.

    Returns
    -------
    callable
        From a frame to the share and its variance. Where no record has the level, and the column's type does not
        declare it (an Enum or a pandas categorical does), the pair is an `Unseen`: `dpbayes.latent_class.combine`
        refuses a level that is unseen in every data set.

    Raises
    ------
    InputError
        By the function returned, if `level` is a number and the column holds text, or the other way round, or if the
        column's type declares other levels.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"sex": ["f", "m", "m", "m"]})
    >>> share_of("sex", "f")(frame)
    {'sex=f': (0.25, 0.046875)}
    >>> share_of("sex", "F")(frame)
    {'sex=F': Unseen(estimate=0.0, variance=0.0)}
    """
    instance(column, str, "column", remedy=_NAME)
    if not isinstance(level, str | bool | np.bool_):
        number(level, "level")

    def fit(frame: Any) -> Estimates:
        series = _column(frame, column)
        values, declared = np.asarray(series), _declared_levels(series)
        if declared is not None and level not in declared:
            raise InputError(f"column {column!r} has the levels {declared}, and {level!r} is none of them")
        found = values == level
        if declared is None and not found.any():
            _check_kind(column, values, level)
            return {f"{column}={level}": Unseen()}
        share = float(found.mean())
        return {f"{column}={level}": (share, share * (1 - share) / len(frame))}

    return fit


def _column(frame: Any, name: str) -> nw.Series[Any]:
    """Return a column of a frame in memory, or say that it is none or lacks the column."""
    read = as_frame(frame)
    if not isinstance(read, nw.DataFrame):
        raise InputError(f"the records must be a data frame in memory, got {type(frame).__name__}; collect it first")
    if name not in read.columns:
        raise MissingColumnError(f"column {name!r} is not in the data set; it has {', '.join(read.columns)}")
    return read[name]


def _declared_levels(series: nw.Series[Any]) -> list[Any] | None:
    """Return the levels that a column's type declares, or None where it declares none."""
    if isinstance(series.dtype, nw.Enum):
        return list(series.dtype.categories)
    # A Polars Categorical collects the levels it meets; one of pandas declares them.
    if series.dtype == nw.Categorical and series.implementation.is_pandas_like():
        return list(series.to_native().cat.categories)
    return [False, True] if series.dtype == nw.Boolean else None


def _check_kind(column: str, values: Any, level: str | int) -> None:
    """Refuse a level of text in a column of numbers, and the other way round."""
    text = values.dtype.kind in "UT" or (values.dtype.kind == "O" and all(isinstance(value, str) for value in values))
    number = values.dtype.kind in "iuf"
    if (number and isinstance(level, str)) or (text and not isinstance(level, str)):
        holds, given = ("numbers", "text") if number else ("text", "a number")
        raise InputError(
            f"column {column!r} holds {holds}, and the level {level!r} is {given}; give it as the column holds it"
        )


_MOST = 10**15
_NAME = "give the name of a column"

type Variant = Literal["nonnegative", "unbiased"]
type Reference = Literal["t", "normal"]


@dataclass(frozen=True, eq=False)
class Combined:
    """What m synthetic data sets say together about population quantities."""

    names: tuple[str, ...]
    estimate: npt.NDArray[np.float64]
    variance: npt.NDArray[np.float64]
    df: npt.NDArray[np.float64]
    between: npt.NDArray[np.float64]
    within: npt.NDArray[np.float64]
    adjusted: npt.NDArray[np.bool_]
    n_datasets: int

    def interval(self, prob: float = 0.95) -> npt.NDArray[np.float64]:
        """Return the central intervals, shape ``(quantities, 2)``."""
        strictly_between(prob, "prob", 0, 1, remedy="0.95 is usual")
        half = stats.t.ppf(0.5 + prob / 2, self.df) * np.sqrt(self.variance)
        return np.column_stack([self.estimate - half, self.estimate + half])

    def summary(self, prob: float = 0.95) -> list[dict[str, Any]]:
        """Return one record a quantity: name, estimate, standard error, ends of the interval, degrees of freedom."""
        ends = self.interval(prob)
        return [
            {
                "quantity": name,
                "estimate": float(self.estimate[i]),
                "stderr": float(np.sqrt(self.variance[i])),
                "lower": float(ends[i, 0]),
                "upper": float(ends[i, 1]),
                "df": float(self.df[i]),
            }
            for i, name in enumerate(self.names)
        ]


def combine(
    frames: Sequence[Any],
    fit: Callable[[Any], Estimates | Any],
    *,
    n: int,
    variant: Variant = "nonnegative",
    reference: Reference = "t",
) -> Combined:
    r"""Fit every synthetic data set and combine the results.

    Parameters
    ----------
    frames
        Two or more synthetic data sets of equally many records, each drawn from a posterior draw of its own
        (`dpbayes.latent_class.synthesize`).
    fit
        What an analyst would do with one confidential data set: it takes a frame and returns either a mapping from
        names to (estimate, sampling variance), or a fitted statsmodels result, whose ``params`` and ``bse`` are taken.
        `mean_of` and `share_of` make such functions.
    n
        Records in the confidential data; used by the non-negative variant alone.
    variant
        ``"nonnegative"``: where T is not positive, :math:`(n_{syn} / n)\, \bar u` takes its place (Reiter 2002).
        ``"unbiased"``: T as it is; a negative one gives NaN.
    reference
        ``"t"``, with Reiter's degrees of freedom, at least 1; or ``"normal"``, for many data sets.

    Returns
    -------
    Combined
        Estimates, variances and intervals for the *population* that the confidential records were drawn from.

    Raises
    ------
    InputError
        If there are fewer than two data sets, they differ in size or in quantities, `fit` returns something else or a
        number that is not finite, or `share_of` was asked for a level that occurs in no data set and that the column's
        type does not declare.

    Notes
    -----
    .. math:: T = (1 + 1/m)\, b - \bar u, \qquad \nu = (m - 1) (1 - 1/r)^2, \quad r = (1 + 1/m)\, b / \bar u.

    b holds the posterior variance of the quantity, privacy noise included, and the sampling variance of a synthetic
    data set; subtracting u takes the second out again, so that the rule holds for any number of synthetic records. The
    difference is noisy unless u is small against b: ask for many data sets (20) of many records (5 n). As nu falls to
    zero the t law has no useful quantile, so nu is at least 1. In simulations (docs/latent_class.md) t intervals then
    cover at least their nominal share, and normal ones fall short by up to a tenth when data sets are few.

    References
    ----------
    Raghunathan, T. E., Reiter, J. P. and Rubin, D. B. (2003). Multiple imputation for statistical disclosure
    limitation. Journal of Official Statistics 19, 1-16, section 2; Reiter, J. P. (2002). Satisfying disclosure
    restrictions with synthetic data sets. Journal of Official Statistics 18, 531-543, section 2.

    Examples
    --------
    >>> import polars as pl
    >>> from dpbayes.latent_class import share_of
    >>> frames = [pl.DataFrame({"vote": [0] * (60 - 4 * i) + [1] * (40 + 4 * i)}) for i in range(5)]
    >>> combined = combine(frames, share_of("vote", 1), n=100)
    >>> combined.names, combined.estimate.round(2).tolist(), combined.variance.round(4).tolist()
    (('vote=1',), [0.48], [0.0023])
    """
    frames = ordered(frames, "frames", remedy="give two synthetic data sets or more, as synthesize returns them")
    function(fit, "fit", remedy="mean_of and share_of make one")
    if len(frames) < 2:
        raise InputError(f"combining takes two synthetic data sets or more, got {len(frames)}")
    sizes = {_n_records(frame) for frame in frames}
    if len(sizes) > 1:
        raise InputError(f"the synthetic data sets must have equally many records, got {sorted(sizes)}")
    fits = [_estimates(fit(frame)) for frame in frames]
    names = tuple(fits[0])
    if not names:
        raise InputError("the fitting function returned an empty mapping; name the quantities to combine")
    for place, found in enumerate(fits):
        if tuple(found) != names:
            raise InputError(f"data set {place} gave the quantities {list(found)}, the first one {list(names)}")
    _check_seen(fits)
    values = np.array([[found[name] for name in names] for found in fits], dtype=np.float64)
    return combine_estimates(
        values[..., 0],
        values[..., 1],
        names=names,
        n_synthetic=sizes.pop(),
        n=n,
        variant=variant,
        reference=reference,
    )


def combine_estimates(
    estimates: npt.ArrayLike,
    variances: npt.ArrayLike,
    *,
    names: Sequence[str],
    n_synthetic: int,
    n: int,
    variant: Variant = "nonnegative",
    reference: Reference = "t",
) -> Combined:
    """Combine estimates that were computed elsewhere.

    Parameters
    ----------
    estimates, variances
        Estimates and their sampling variances, shape ``(data sets, quantities)``.
    names
        The quantities.
    n_synthetic
        Records in each synthetic data set.
    n, variant, reference
        As in `combine`.

    Returns
    -------
    Combined
        As `combine`.

    Raises
    ------
    InputError
        If shapes or values do not fit.

    Examples
    --------
    >>> combine_estimates([[0.4], [0.6]], [[0.01], [0.01]], names=["p"], n_synthetic=24, n=24).variance.round(3)
    array([0.02])
    """
    q, u = real_numbers(estimates, "estimates"), real_numbers(variances, "variances")
    names = ordered(names, "names", remedy="give one a column of estimates", kind=str)
    _check(q, u, names, n_synthetic, n, variant, reference)
    m = len(q)
    between, within = q.var(axis=0, ddof=1), u.mean(axis=0)
    total = (1 + 1 / m) * between - within
    silent = (np.ptp(q, axis=0) == 0) & np.all(u == 0, axis=0)
    adjusted = (total <= 0) & ~silent
    share = np.divide(within, (1 + 1 / m) * between, out=np.ones_like(within), where=total > 0)
    df = np.maximum((m - 1) * (1 - share) ** 2, 1.0)
    if variant == "nonnegative":
        total = np.where(adjusted, n_synthetic / n * within, total)
        df = np.where(adjusted, m - 1.0, df)
    else:
        total = np.where(total < 0, np.nan, total)
    total = np.where(silent, np.nan, total)
    if reference == "normal":
        df = np.full_like(df, np.inf)
    return Combined(tuple(names), q.mean(axis=0), total, df, between, within, adjusted, m)


def _n_records(frame: Any) -> int:
    """Return the number of records of a data set, of whatever kind the fitting function takes."""
    try:
        return len(frame)
    except TypeError:
        raise InputError(f"each of frames must be a data set, got {shown(frame)}; synthesize returns them") from None


def _estimates(fitted: Any) -> dict[str, tuple[float, float]]:
    """Read a mapping, or the coefficients and standard errors of a statsmodels result."""
    if isinstance(fitted, Mapping):
        return {str(name): pair if isinstance(pair, Unseen) else _pair(name, pair) for name, pair in fitted.items()}
    try:
        params, stderr = fitted.params, np.asarray(fitted.bse, dtype=np.float64)
    except AttributeError:
        raise InputError(
            f"the fitting function returned {type(fitted).__name__}; it must return a mapping from names to "
            "(estimate, variance), or a result with params and bse"
        ) from None
    if stderr.ndim != 1 or np.shape(params) != stderr.shape:
        raise InputError(
            f"the fitted result has params of shape {np.shape(params)} and bse of shape {stderr.shape}; one number a "
            "coefficient is combined: return a mapping from names to (estimate, variance)"
        )
    names = getattr(params, "index", range(len(stderr)))
    return {str(name): (float(v), float(s) ** 2) for name, v, s in zip(names, np.asarray(params), stderr, strict=True)}


def _pair(name: Any, given: Any) -> tuple[float, float]:
    """Read an estimate and its sampling variance."""
    try:
        estimate, variance = given
        return float(estimate), float(variance)
    except (TypeError, ValueError):
        raise InputError(
            f"the fitting function returned {shown(given)} for {str(name)!r}; it must be a pair of numbers, the "
            "estimate and its sampling variance"
        ) from None


def _check_seen(fits: Sequence[Estimates]) -> None:
    """Refuse a level that no data set has and no type declares: a mistyped one looks the same."""
    for name in fits[0]:
        if all(isinstance(found[name], Unseen) for found in fits):
            raise InputError(
                f"the level of {name!r} occurs in none of the {len(fits)} data sets; give it as the column holds it "
                "(1 is not '1'). If it is right and merely rare, declare the column's levels (an Enum), and the "
                "variance is NaN; or take margin_draws, which has a share for every level"
            )


def _check(
    q: npt.NDArray[np.float64],
    u: npt.NDArray[np.float64],
    names: Sequence[str],
    n_synthetic: int,
    n: int,
    variant: str,
    reference: str,
) -> None:
    if q.shape != u.shape or q.ndim != 2 or len(q) < 2 or q.shape[1] != len(names):
        raise InputError(
            f"estimates and variances must both have shape (data sets, {len(names)}) with two data sets or more, got "
            f"{q.shape} and {u.shape}"
        )
    if not (np.all(np.isfinite(q)) and np.all(np.isfinite(u)) and np.all(u >= 0)):
        raise InputError("every estimate must be finite and every variance finite and not negative; one fit failed")
    for name, value in (("n_synthetic", n_synthetic), ("n", n)):
        whole_number(value, name, high=_MOST)
    one_of(variant, ("nonnegative", "unbiased"), "variant")
    one_of(reference, ("t", "normal"), "reference")
