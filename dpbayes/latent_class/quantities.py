"""What an analyst estimates from one data set: means and shares with their sampling variances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np

from dpbayes.errors import InputError

__all__ = ["Estimates", "Unseen", "mean_of", "share_of"]

type Estimates = Mapping[str, tuple[float, float]]
"""Quantity name to (estimate, estimated sampling variance) in one data set."""


class Unseen(NamedTuple):
    """The share of a level that no record of a data set has and that the column's type does not declare: 0, so far."""

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

    def fit(frame: Any) -> Estimates:
        values = np.asarray(frame[column])
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

    def fit(frame: Any) -> Estimates:
        values = np.asarray(frame[column])
        declared = _declared_levels(frame[column])
        if declared is not None and level not in declared:
            raise InputError(f"column {column!r} has the levels {declared}, and {level!r} is none of them")
        found = values == level
        if declared is None and not found.any():
            _check_kind(column, values, level)
            return {f"{column}={level}": Unseen()}
        share = float(found.mean())
        return {f"{column}={level}": (share, share * (1 - share) / len(frame))}

    return fit


def _declared_levels(values: Any) -> list[Any] | None:
    """Return the levels that a column's type declares, or None where it declares none."""
    series = nw.from_native(values, series_only=True, pass_through=True)
    if not isinstance(series, nw.Series):
        return None
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
