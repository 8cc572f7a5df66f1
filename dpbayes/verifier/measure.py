"""Counting partitions: the measures that a verification can take.

Each measure turns one partition's rows into a verdict, beyond or not, or into none where it cannot be computed. The
counts of the three are confidential (`PartitionCounts`) until `dpbayes.verifier.release_counts` adds noise.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import narwhals as nw
import numpy as np

from dpbayes._arguments import shown
from dpbayes.errors import InputError
from dpbayes.verifier.checks import is_finite_number
from dpbayes.verifier.counting import count_verdicts, tally
from dpbayes.verifier.estimates import Family, estimate_partitions
from dpbayes.verifier.fits import Estimate
from dpbayes.verifier.mechanism import Assignment, PartitionCounts

__all__ = ["Direction", "count_partitions", "count_significant", "count_statistic"]

type Direction = Literal["<=", ">", "<", ">="]

_COMPARE = {"<=": operator.le, ">": operator.gt, "<": operator.lt, ">=": operator.ge}


def count_partitions(
    frame: Any,
    *,
    formula: str,
    coefficient: str,
    threshold: float,
    direction: Direction,
    n_partitions: int,
    unit: str | None = None,
    family: Family = "gaussian",
    absorb: str | Sequence[str] = (),
    levels: Mapping[str, Sequence[Any]] | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
) -> PartitionCounts:
    """Count the partitions in which a regression coefficient lies beyond a threshold.

    Parameters
    ----------
    frame
        Microdata: any frame that narwhals reads.
    formula
        ``response ~ terms``, see `dpbayes.verifier.formulas`.
    coefficient
        Name of the coefficient, as formulaic names columns: ``educ``, ``sector[T.b]``, ``np.log(hours)``.
    threshold
        What the claim compares the coefficient with, in its unit.
    direction
        ``">"`` counts a partition as beyond when its coefficient exceeds the threshold; likewise the others.
    n_partitions
        M. Public, so choose it without looking at the data.
    unit
        Column that names the unit whose privacy is protected, a person say. All of a unit's rows stay together. None:
        every row is its own unit.
    family
        ``"gaussian"`` (least squares), ``"logistic"`` or ``"poisson"``.
    absorb
        Columns whose fixed effects are absorbed by demeaning; least squares only. A row without its group is left out,
        as one with any other missing value.
    levels
        Levels of the categorical columns whose types do not declare them.
    assignment, random_state
        See `dpbayes.verifier.partition.assign_partitions`.

    Returns
    -------
    PartitionCounts
        Confidential. A partition whose fit is singular, does not converge, lacks a level or has too few rows counts as
        not computed.

    Raises
    ------
    MissingColumnError
        If the frame lacks a column.
    InputError
        If a parameter is out of range or the formula has no such coefficient.

    References
    ----------
    Balmat, T., Barrientos, A. F. and Reiter, J. P. (2018), section 3.

    Examples
    --------
    >>> import polars as pl
    >>> rng = np.random.default_rng(1)
    >>> x = rng.normal(size=500)
    >>> frame = pl.DataFrame({"x": x, "y": 1 + 2 * x + rng.normal(size=500)})
    >>> counts = count_partitions(
    ...     frame, formula="y ~ x", coefficient="x", threshold=1.5, direction=">", n_partitions=20, random_state=1
    ... )
    >>> counts.n_partitions
    20
    """
    _check_claim(threshold, direction)
    estimates = estimate_partitions(
        frame,
        formula=formula,
        coefficient=coefficient,
        n_partitions=n_partitions,
        unit=unit,
        family=family,
        absorb=absorb,
        levels=levels,
        assignment=assignment,
        random_state=random_state,
    )
    verdicts = [None if e is None else bool(_COMPARE[direction](e.coefficient, threshold)) for e in estimates]
    return tally(verdicts, unit, assignment, random_state)


def count_significant(
    frame: Any,
    *,
    formula: str,
    coefficient: str,
    level: float,
    n_partitions: int,
    direction: Literal["<", ">"] | None = None,
    unit: str | None = None,
    family: Family = "gaussian",
    absorb: str | Sequence[str] = (),
    levels: Mapping[str, Sequence[Any]] | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
) -> PartitionCounts:
    """Count the partitions in which a coefficient is significant.

    Parameters
    ----------
    level
        Level of the test, in (0, 1). A partition holds 1/M of the units, so a test has less power there than in the
        whole data.
    direction
        None tests two-sided; ``">"`` or ``"<"`` one-sided against coefficients of 0.
    frame, formula, coefficient, n_partitions, unit, family, absorb, levels, assignment, random_state
        As in `count_partitions`.

    Returns
    -------
    PartitionCounts
        Beyond: the p-value is below the level. The tests are those of the model as fitted: t for least squares, Wald z
        otherwise, with standard errors that take rows as independent.

    Raises
    ------
    MissingColumnError, InputError
        As in `count_partitions`.
    """
    if not is_finite_number(level) or not 0 < level < 1:
        raise InputError(f"level must lie strictly between 0 and 1, got {level!r}; 0.05 is usual")
    if direction not in (None, "<", ">"):
        raise InputError(f"direction must be None, '<' or '>', got {direction!r}")
    estimates = estimate_partitions(
        frame,
        formula=formula,
        coefficient=coefficient,
        n_partitions=n_partitions,
        unit=unit,
        family=family,
        absorb=absorb,
        levels=levels,
        assignment=assignment,
        random_state=random_state,
    )

    def verdict(estimate: Estimate) -> bool:
        if direction is None:
            return estimate.p_value < level
        on_side = estimate.coefficient > 0 if direction == ">" else estimate.coefficient < 0
        return on_side and estimate.p_value / 2 < level

    return tally([None if e is None else verdict(e) for e in estimates], unit, assignment, random_state)


def count_statistic(
    frame: Any,
    statistic: Callable[[Any], float],
    *,
    threshold: float,
    direction: Direction,
    n_partitions: int,
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
) -> PartitionCounts:
    """Count the partitions in which a statistic of your own lies beyond a threshold.

    Parameters
    ----------
    statistic
        Function of one partition's rows, given as a frame of the kind that came in, to a number. It must use nothing
        else: a statistic that looks at all rows breaks the sensitivity that the noise is calibrated to. A number that
        is not finite, and any exception, count as not computed. Warnings are silent.
    frame, threshold, direction, n_partitions, unit, assignment, random_state
        As in `count_partitions`.

    Returns
    -------
    PartitionCounts
        Confidential.

    Raises
    ------
    MissingColumnError, InputError
        As in `count_partitions`.

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

    return count_verdicts(
        frame, verdict, n_partitions=n_partitions, unit=unit, assignment=assignment, random_state=random_state
    )


def _check_claim(threshold: float, direction: str) -> None:
    if not is_finite_number(threshold):
        raise InputError(f"threshold must be a finite number, got {shown(threshold)}")
    if not isinstance(direction, str) or direction not in _COMPARE:
        raise InputError(f"direction must be one of {', '.join(_COMPARE)}, got {shown(direction)}")
