"""Measures beside a coefficient: means and totals within a tolerance, and trends over three points of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal

import narwhals as nw
import numpy as np

from dpbayes.errors import InputError
from dpbayes.verifier.checks import is_finite_number
from dpbayes.verifier.counting import count_verdicts
from dpbayes.verifier.formulas import as_floats, collect, column_values
from dpbayes.verifier.mechanism import Assignment, PartitionCounts

__all__ = ["count_trends", "count_within"]


def count_within(
    frame: Any,
    *,
    column: str,
    claim: float,
    tolerance: float,
    n_partitions: int,
    statistic: Literal["mean", "total"] = "mean",
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
) -> PartitionCounts:
    """Count the partitions whose mean or total is near what was claimed.

    Parameters
    ----------
    frame
        Microdata: any frame that narwhals reads.
    column
        A numeric column; missing values are left out.
    claim
        The claimed mean, or the claimed total of the whole data.
    tolerance
        Largest distance that still counts as near, in the unit of the claim; positive.
    n_partitions
        M.
    statistic
        ``"mean"``, or ``"total"``: a partition's total is multiplied by M before it is compared.
    unit, assignment, random_state
        As in `dpbayes.verifier.measure.count_partitions`.

    Returns
    -------
    PartitionCounts
        "Beyond" counts the partitions within the tolerance, for which the claim holds.

    Raises
    ------
    MissingColumnError
        If the frame lacks the column.
    InputError
        If the column is not numeric or a number is out of range.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"wage": np.full(40, 3.0)})
    >>> counts = count_within(frame, column="wage", claim=3.0, tolerance=0.1, n_partitions=4)
    >>> counts.beyond, counts.not_beyond, counts.not_computed
    (4, 0, 0)
    """
    if statistic not in ("mean", "total"):
        raise InputError(f"statistic must be 'mean' or 'total', got {statistic!r}")
    if not (is_finite_number(claim) and is_finite_number(tolerance) and tolerance > 0):
        raise InputError(f"claim must be finite and tolerance positive, got {claim!r} and {tolerance!r}")
    table = collect(frame)
    _check_numeric(table, column)

    def verdict(part: nw.DataFrame[Any]) -> bool | None:
        values = _present(part, column)
        if not values.size:
            return None
        value = values.mean() if statistic == "mean" else n_partitions * values.sum()
        return bool(abs(value - claim) <= tolerance) if math.isfinite(value) else None

    return count_verdicts(
        table, verdict, n_partitions=n_partitions, unit=unit, assignment=assignment, random_state=random_state
    )


def count_trends(
    frame: Any,
    *,
    outcome: str,
    time: str,
    times: Sequence[float],
    n_partitions: int,
    signs: Sequence[int] | None = None,
    bands: Sequence[tuple[float, float]] | None = None,
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
) -> PartitionCounts:
    """Count the partitions whose mean outcome moves over three points of time as was claimed.

    The two slopes are the differences of mean outcome from the first to the second and from the second to the third
    time, per unit of time.

    Parameters
    ----------
    frame
        Microdata, a row for each unit and time.
    outcome, time
        Numeric columns.
    times
        Three increasing times, as they stand in the column.
    n_partitions
        M.
    signs
        The two claimed signs, each 1 or -1. Give signs or bands.
    bands
        The two claimed slopes as (low, high), in outcome per unit of time; the ends belong to the band.
    unit, assignment, random_state
        As in `dpbayes.verifier.measure.count_partitions`.

    Returns
    -------
    PartitionCounts
        "Beyond" counts the partitions in which both slopes are as claimed; one without rows at one of the times cannot
        be computed.

    Raises
    ------
    MissingColumnError
        If the frame lacks a column.
    InputError
        If a column is not numeric, or times, signs or bands are not of the form asked for.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"person": [1, 1, 1, 2, 2, 2], "year": [2000, 2005, 2010] * 2, "pay": [1, 2, 1, 3, 5, 4]})
    >>> counts = count_trends(
    ...     frame, outcome="pay", time="year", times=(2000, 2005, 2010), signs=(1, -1), n_partitions=2, unit="person"
    ... )
    >>> counts.beyond
    2
    """
    points = [float(t) if is_finite_number(t) else math.nan for t in times]
    if len(points) != 3 or not points[0] < points[1] < points[2]:
        raise InputError(f"times must be three increasing numbers, got {list(times)!r}")
    low, high = _claimed_slopes(signs, bands)
    table = collect(frame)
    for name in (outcome, time):
        _check_numeric(table, name)

    def verdict(part: nw.DataFrame[Any]) -> bool | None:
        when, values = (as_floats(column_values(part, name)) for name in (time, outcome))
        at = [values[(when == point) & ~np.isnan(values)] for point in points]
        if not all(group.size for group in at):
            return None
        slopes = np.diff([group.mean() for group in at]) / np.diff(points)
        if not np.all(np.isfinite(slopes)):
            return None
        # A claimed sign is a band that is open at zero.
        inside = (slopes > low) & (slopes < high) if signs is not None else (slopes >= low) & (slopes <= high)
        return bool(inside.all())

    return count_verdicts(
        table, verdict, n_partitions=n_partitions, unit=unit, assignment=assignment, random_state=random_state
    )


def _claimed_slopes(
    signs: Sequence[int] | None, bands: Sequence[tuple[float, float]] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper ends of the two claimed slopes."""
    if (signs is None) == (bands is None):
        raise InputError("give either signs or bands for the two slopes")
    if signs is not None:
        if len(signs) != 2 or any(sign not in (1, -1) for sign in signs):
            raise InputError(f"signs must be two of 1 and -1, got {list(signs)!r}")
        return np.array([0.0 if s > 0 else -np.inf for s in signs]), np.array([np.inf if s > 0 else 0.0 for s in signs])
    assert bands is not None
    if len(bands) != 2 or not all(map(_is_band, bands)):
        raise InputError(f"bands must be two pairs (low, high) with low <= high, got {list(bands)!r}")
    return np.array([band[0] for band in bands], float), np.array([band[1] for band in bands], float)


def _is_band(band: Sequence[float]) -> bool:
    numbers = len(band) == 2 and all(isinstance(end, Real) and not isinstance(end, bool) for end in band)
    return numbers and band[0] <= band[1]


def _check_numeric(table: nw.DataFrame[Any], name: str) -> None:
    column_values(table, name)
    if not (table.schema[name].is_numeric() or table.schema[name] == nw.Boolean):
        raise InputError(f"column {name!r} of type {table.schema[name]} is not numeric; convert it first")


def _present(part: nw.DataFrame[Any], name: str) -> np.ndarray:
    values = as_floats(column_values(part, name))
    return values[~np.isnan(values)]
