r"""Claims: what a verification counts the partitions of.

Each measure turns one partition's rows into a verdict, beyond or not, or into none where it cannot be
computed. The counts of the three are confidential (`PartitionCounts`) until `release_counts` adds noise.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, Unpack

import narwhals as nw
import numpy as np

from dpbayes._arguments import finite, one_of, ordered, positive_finite, real_numbers, shown, strictly_between
from dpbayes.errors import InputError
from dpbayes.verifier.fits import Estimate, Regression, estimate_partitions
from dpbayes.verifier.formulas import as_floats, collect, column_values
from dpbayes.verifier.partition import Assignment, PartitionCounts, Partitioned, count_verdicts, tally

type Direction = Literal["<=", ">", "<", ">="]


_COMPARE = {"<=": operator.le, ">": operator.gt, "<": operator.lt, ">=": operator.ge}


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

    What is verified is a share of partitions, each of n/M units, not a statement about the coefficient
    in all records: where small samples are skewed the two differ (`dpbayes.verifier.pilot.pilot_shares`
    shows by how much, and `sum_estimates` asks about the coefficient itself).

    Parameters
    ----------
    frame
        Microdata: any frame that narwhals reads.
    threshold
        What the claim compares the coefficient with, in its unit. Give this or `significant_at`.
    direction
        ``">"`` counts a partition as beyond when its coefficient exceeds the threshold; likewise the
        others. Of a test: None is two-sided, ``">"`` and ``"<"`` one-sided against coefficients of 0.
    significant_at
        Level of a test against 0, in (0, 1). A partition holds 1/M of the units, so a test has less power
        there than in the whole data. The tests are those of the model as fitted: t for least squares, Wald
        z otherwise, with standard errors that take rows as independent.
    n_partitions
        M. Public, so choose it without looking at the data.
    unit
        Column that names the unit whose privacy is protected, a person say. All of a unit's rows stay
        together. None: every row is its own unit.
    assignment
        ``"balanced"`` for replace-one neighbours, ``"independent"`` for add-remove ones.
    random_state
        None for a release; a seed or generator for a simulation.
    strata
        A public column, the same in all rows of a unit, over whose values units are spread evenly, so that
        a rare level reaches as many partitions as it can. Balanced assignment only; the guarantee then
        speaks of replacing a unit by one with the same public value.
    **regression
        `formula`, `coefficient`, `family`, `absorb` and `levels`, see `dpbayes.verifier.fits.Regression`.

    Returns
    -------
    PartitionCounts
        Confidential. A partition whose fit is singular, does not converge, lacks a level or has too few
        rows counts as not computed.

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
    return tally([None if e is None else verdict(e) for e in estimates], **partitioned)


def coefficient_verdict(
    threshold: float | None, direction: Direction | None, significant_at: float | None
) -> Callable[[Estimate], bool]:
    """Return the function that tells whether an estimate lies beyond the threshold, or is significant."""
    if (threshold is None) == (significant_at is None):
        raise InputError("give either threshold or significant_at; a claim is about one of them")
    if significant_at is None:
        _check_claim(threshold, direction)
        bound, compare = float(threshold or 0.0), _COMPARE[direction or ">"]
        return lambda estimate: bool(compare(estimate.coefficient, bound))
    level = significant_at
    strictly_between(level, "significant_at", 0, 1, remedy="0.05 is usual")
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
    use nothing else: a statistic that looks at all rows breaks the sensitivity that the noise is calibrated to. A
    number that is not finite, and any exception, count as not computed. Warnings are silent. Arguments, result and
    errors are otherwise those of `count_partitions`.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"wage": np.arange(100.0)})
    >>> count_statistic(
    ...     frame, lambda part: part["wage"].median(), threshold=0, direction=">", n_partitions=10
    ... ).n_partitions
    10
    """
    _check_claim(threshold, direction)
    if not callable(statistic):
        # Every partition would fail, and failing is an outcome that is counted and released.
        raise InputError(f"statistic must be a function of a partition's rows, got {shown(statistic)}")
    compare = _COMPARE[direction]

    def verdict(part: nw.DataFrame[Any]) -> bool | None:
        try:
            value = float(statistic(nw.to_native(part)))
        except Exception:
            # A partition that fails is an outcome of its own, counted and released with noise; an error raised here
            # would tell about that partition.
            return None
        return bool(compare(value, threshold)) if math.isfinite(value) else None

    return count_verdicts(frame, verdict, n_partitions, **partitioned)


def _check_claim(threshold: float | None, direction: str | None) -> None:
    finite(threshold, "threshold")
    one_of(direction, _COMPARE, "direction")


def count_within(
    frame: Any,
    *,
    column: str,
    claim: float,
    tolerance: float,
    n_partitions: int,
    statistic: Literal["mean", "total"] = "mean",
    **partitioned: Unpack[Partitioned],
) -> PartitionCounts:
    """Count the partitions whose mean or total is near what was claimed: "beyond" counts those.

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
    statistic
        ``"mean"``, or ``"total"``: a partition's total is multiplied by M before it is compared.
    n_partitions, **partitioned
        As in `count_partitions`.

    Raises
    ------
    MissingColumnError, InputError
        If the frame lacks the column; if it is not numeric or a number is out of range.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"wage": np.full(40, 3.0)})
    >>> counts = count_within(frame, column="wage", claim=3.0, tolerance=0.1, n_partitions=4)
    >>> counts.beyond, counts.not_beyond, counts.not_computed
    (4, 0, 0)
    """
    one_of(statistic, ("mean", "total"), "statistic")
    finite(claim, "claim")
    positive_finite(tolerance, "tolerance", remedy="it is the largest distance that counts as near")
    table = collect(frame)
    _check_numeric(table, column)

    def verdict(part: nw.DataFrame[Any]) -> bool | None:
        values = _present(part, column)
        if not values.size:
            return None
        value = values.mean() if statistic == "mean" else n_partitions * values.sum()
        return bool(abs(value - claim) <= tolerance) if math.isfinite(value) else None

    return count_verdicts(table, verdict, n_partitions, **partitioned)


def count_trends(
    frame: Any,
    *,
    outcome: str,
    time: str,
    times: Sequence[float],
    n_partitions: int,
    signs: Sequence[int] | None = None,
    bands: Sequence[tuple[float, float]] | None = None,
    **partitioned: Unpack[Partitioned],
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
    n_partitions, **partitioned
        As in `count_partitions`.
    signs
        The two claimed signs, each 1 or -1. Give signs or bands.
    bands
        The two claimed slopes as (low, high), in outcome per unit of time; the ends belong to the band.

    Returns
    -------
    PartitionCounts
        "Beyond" counts the partitions in which both slopes are as claimed; one without rows at one of the times cannot
        be computed.

    Raises
    ------
    MissingColumnError, InputError
        If the frame lacks a column, or one is not numeric; if times, signs or bands are not of the form asked for.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"person": [1, 1, 1, 2, 2, 2], "year": [2000, 2005, 2010] * 2, "pay": [1, 2, 1, 3, 5, 4]})
    >>> claim = {"outcome": "pay", "time": "year", "times": (2000, 2005, 2010), "signs": (1, -1)}
    >>> count_trends(frame, n_partitions=2, unit="person", **claim).beyond
    2
    """
    points = [finite(t, "each of times") for t in ordered(times, "times", remedy="give three increasing numbers")]
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

    return count_verdicts(table, verdict, n_partitions, **partitioned)


def _claimed_slopes(
    signs: Sequence[int] | None, bands: Sequence[tuple[float, float]] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper ends of the two claimed slopes."""
    if (signs is None) == (bands is None):
        raise InputError("give either signs or bands for the two slopes")
    if signs is not None:
        signs = ordered(signs, "signs", remedy="give two of 1 and -1")
        if len(signs) != 2 or not all(isinstance(sign, int | np.integer) and abs(sign) == 1 for sign in signs):
            raise InputError(f"signs must be two of 1 and -1, got {shown(signs)}")
        return np.array([0.0 if s > 0 else -np.inf for s in signs]), np.array([np.inf if s > 0 else 0.0 for s in signs])
    ends = real_numbers(bands, "bands")
    if ends.shape != (2, 2) or not np.all(ends[:, 0] <= ends[:, 1]):
        raise InputError(f"bands must be two pairs (low, high) with low <= high, got {shown(bands)}")
    return ends[:, 0], ends[:, 1]


def _check_numeric(table: nw.DataFrame[Any], name: str) -> None:
    column_values(table, name)
    if not (table.schema[name].is_numeric() or table.schema[name] == nw.Boolean):
        raise InputError(f"column {name!r} of type {table.schema[name]} is not numeric; convert it first")


def _present(part: nw.DataFrame[Any], name: str) -> np.ndarray:
    values = as_floats(column_values(part, name))
    return values[~np.isnan(values)]
