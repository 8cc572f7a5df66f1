"""From a formula to one design matrix, row by row.

One unit's data must not reach another partition. Whatever is computed over all rows would carry it there: levels read
off the data, centring, splines with knots at quantiles. So a formula may hold only what one row decides by itself:
columns, arithmetic, elementwise functions, and categories whose levels are declared. `dpbayes.verifier.rowwise`
computes these; formulaic only lays out the columns that come of it, so a formula in a run spec calls nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from dpbayes.data._guards import UNREADABLE, as_frame, hide_values
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.verifier.partition import missing_units
from dpbayes.verifier.rowwise import RowExpression, evaluate, parse_factor

__all__ = ["Design", "as_floats", "check_formula", "collect", "column_values", "design", "formula_columns"]


@dataclass(frozen=True, eq=False)
class Design:
    """Response and design matrix of the rows without missing values. Confidential: its repr shows columns alone.

    Parameters
    ----------
    response
        Shape (rows,).
    matrix
        Shape (rows, columns).
    columns
        Names of the columns; they follow from the formula and the declared levels alone.
    rows
        Where the rows stand in the frame.
    """

    response: npt.NDArray[np.float64] = field(repr=False)
    matrix: npt.NDArray[np.float64] = field(repr=False)
    columns: tuple[str, ...]
    rows: npt.NDArray[np.int64] = field(repr=False)


def design(
    frame: nw.DataFrame[Any], formula: str, *, levels: Mapping[str, Sequence[Any]] | None, intercept: bool
) -> Design:
    """Build the design matrix of a formula.

    Parameters
    ----------
    frame
        All rows.
    formula
        ``response ~ terms`` in Wilkinson's notation as formulaic reads it, with columns, arithmetic, elementwise
        functions (log, exp, np.sqrt, ...), I(...) and C(column).
    levels
        Levels of categorical columns whose type does not declare them (Enum and Boolean do).
    intercept
        False takes the intercept out, for models that absorb one.

    Returns
    -------
    Design
        Rows with a missing value in any column used are left out; a non-finite result of a function stays and makes
        its partition fail.

    Raises
    ------
    MissingColumnError
        If the frame lacks a column.
    InputError
        If the formula does not parse, uses something that looks across rows, or has a category without levels; if a
        column holds a value that is not among its levels.
    """
    from formulaic import model_matrix
    from formulaic.errors import FormulaicError

    parsed = _parse(formula)
    factors = _row_expressions(parsed, formula)
    for name, listed in (levels or {}).items():
        if name in frame.columns:
            _require_levels(frame, name, listed)
    columns, missing = {}, np.zeros(len(frame), dtype=bool)
    for factor, expression in factors.items():
        columns[factor], absent = _read(frame, expression, levels or {}, formula)
        missing |= absent
    rows = np.flatnonzero(~missing)
    data = _evaluated(factors, columns, rows)
    try:
        with np.errstate(all="ignore"):
            matrices = model_matrix(parsed, data, context={}, na_action="ignore", output="pandas")
    except (FormulaicError, TypeError, ValueError):
        # What formulaic says may show values.
        raise InputError(f"formula {formula!r} gives no design matrix; write it as 'response ~ terms'") from None
    response, matrix = matrices.lhs, matrices.rhs
    if response.shape[1] != 1:
        raise InputError(f"the left side of {formula!r} must be one numeric column, got {list(response.columns)}")
    if not intercept and "Intercept" in matrix.columns:
        matrix = matrix.drop(columns="Intercept")
    return Design(
        np.ascontiguousarray(response.to_numpy(dtype=np.float64)[: rows.size, 0]),
        matrix.to_numpy(dtype=np.float64)[: rows.size],
        tuple(map(str, matrix.columns)),
        rows,
    )


def check_formula(formula: str) -> str:
    """Return a formula, or refuse what needs no data to see: that it does not parse, or looks beyond one row.

    Examples
    --------
    >>> check_formula("np.log(pay) ~ hours")
    'np.log(pay) ~ hours'
    >>> check_formula("pay ~ center(hours)")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dpbayes.errors.InputError: formula 'pay ~ center(hours)' may hold columns, ...
    """
    formula_columns(formula)
    return formula


def formula_columns(formula: str) -> set[str]:
    """Return the names of the columns that a formula reads; refuse it as `check_formula` does.

    Examples
    --------
    >>> sorted(formula_columns("np.log(pay) ~ hours:C(sector) + hours"))
    ['hours', 'pay', 'sector']
    """
    return {name for one in _row_expressions(_parse(formula), formula).values() for name in one.columns}


def _parse(formula: str) -> Any:
    """Return formulaic's reading of a formula with one left and one right side."""
    from formulaic import Formula, SimpleFormula
    from formulaic.errors import FormulaicError

    try:
        parsed = Formula(formula, _ordering="none")
    except (FormulaicError, SyntaxError, AttributeError, TypeError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(f"formula {formula!r} does not parse as 'response ~ terms': {reason}") from error
    sides = [getattr(parsed, side, None) for side in ("lhs", "rhs")]
    if not all(isinstance(side, SimpleFormula) for side in sides):
        raise InputError(
            f"formula {formula!r} does not parse as 'response ~ terms': it needs one left and one right side"
        )
    return parsed


def _row_expressions(parsed: Any, formula: str) -> dict[str, RowExpression]:
    """Return what each factor computes, and have formulaic look its values up instead of evaluating it."""
    expressions = {}
    for term in [*parsed.lhs, *parsed.rhs]:
        for factor in term.factors:
            kind = factor.eval_method.value
            if kind == "lookup":
                expressions[factor.expr] = RowExpression((factor.expr,))
            elif kind == "python":
                expressions[factor.expr] = parse_factor(factor.expr, formula)
                factor.eval_method = "lookup"
    return expressions


def _read(
    frame: nw.DataFrame[Any], expression: RowExpression, levels: Mapping[str, Sequence[Any]], formula: str
) -> tuple[dict[str, Any], npt.NDArray[np.bool_]]:
    """Return the columns of one factor, numbers or one categorical, and where any of them is missing."""
    values, missing = {}, np.zeros(len(frame), dtype=bool)
    for name in expression.columns:
        if expression.tree is None:
            values[name], absent = _column(frame, name, levels.get(name), expression.is_category)
        else:
            values[name], absent = _operand(frame, name, formula)
        missing |= absent
    return values, missing


def _evaluated(
    factors: Mapping[str, RowExpression], columns: Mapping[str, Mapping[str, Any]], rows: npt.NDArray[np.int64]
) -> Any:
    """Return a frame with the values of every factor in the rows that are complete."""
    import pandas as pd

    table = {}
    for factor, expression in factors.items():
        # Without a complete row the columns still follow, from a row made up: that no row is complete is for the
        # counts to say, with noise.
        values = {
            name: (column if rows.size == len(column) else column[rows]) if rows.size else _made_up(column)
            for name, column in columns[factor].items()
        }
        table[factor] = values[expression.columns[0]] if expression.tree is None else evaluate(expression, values)
    return pd.DataFrame(table, index=range(max(rows.size, 1)))


def _made_up(values: Any) -> Any:
    """Return a column of one value that is no datum: the first declared level, or 1."""
    import pandas as pd

    if isinstance(values, pd.Categorical):
        return pd.Categorical(values.categories[:1], categories=values.categories)
    return np.ones(1)


def collect(frame: Any) -> nw.DataFrame[Any]:
    """Return an eager narwhals frame, or say without a value that its engine could not read it."""
    native = as_frame(frame)
    with hide_values(UNREADABLE):
        table = native.collect() if isinstance(native, nw.LazyFrame) else native
    if not len(table):
        raise InputError("the data hold no rows; there is nothing to verify")
    return table


def column_values(frame: nw.DataFrame[Any], name: str) -> npt.NDArray[Any]:
    """Return a column as an array, or say that the frame lacks it.

    What it has is not said: the columns of a file without a header are a person's record.
    """
    if name not in frame.columns:
        raise MissingColumnError(
            f"column {name!r} is not in the data; correct its spelling, or let the first line of the CSV file name "
            "its columns"
        )
    series = frame[name]
    if series.dtype in (nw.Int128, nw.UInt128):
        # NumPy has none: one number of 20 digits would stop the run, and tell that somebody has it.
        return np.array(series.to_list(), dtype=object)
    return np.asarray(series.to_numpy())


def as_floats(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return a numeric column as floats, NaN where it is missing.

    Examples
    --------
    >>> as_floats(np.array([True, None], dtype=object))
    array([ 1., nan])
    """
    import pandas as pd

    if values.dtype == object:
        # The missing value of pandas has no float.
        values = values.copy()
        values[pd.isna(values)] = np.nan
    return np.asarray(values, dtype=np.float64)


def _column(
    frame: nw.DataFrame[Any], name: str, levels: Sequence[Any] | None, as_category: bool
) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Return a column for the model matrix (floats, or a categorical with declared levels) and where it is missing."""
    import pandas as pd

    values = column_values(frame, name)
    dtype = frame.collect_schema()[name]
    if levels is None and isinstance(dtype, nw.Enum):
        levels = dtype.categories
    if levels is None and as_category and dtype == nw.Boolean:
        levels = (False, True)
    if levels is not None:
        declared = pd.Index(_checked_levels(name, levels))
        codes = declared.get_indexer(values)
        return pd.Categorical.from_codes(codes, categories=declared), codes < 0
    if as_category or not _is_number(dtype):
        raise InputError(
            f"column {name!r} of type {dtype} is a category without declared levels; pass levels={{{name!r}: [...]}} "
            "from the codebook (levels read off confidential rows would carry one partition's data to the others)"
        )
    return _numbers(values)


def _operand(frame: nw.DataFrame[Any], name: str, formula: str) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Return a column that a formula calculates with, and where it is missing."""
    values = column_values(frame, name)
    dtype = frame.collect_schema()[name]
    if not _is_number(dtype):
        raise InputError(
            f"formula {formula!r} calculates with column {name!r} of type {dtype}, which is not numeric; convert it "
            "first, or use it as a category"
        )
    return _numbers(values)


def _is_number(dtype: Any) -> bool:
    return bool(dtype.is_numeric() or dtype == nw.Boolean)


def _numbers(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    floats = as_floats(values)
    return floats, np.isnan(floats)


def _require_levels(frame: nw.DataFrame[Any], name: str, levels: Sequence[Any]) -> None:
    """Refuse a column with a value that is neither missing nor declared: left out, its rows would go unnoticed."""
    import pandas as pd

    values = column_values(frame, name)
    unknown = pd.Index(_checked_levels(name, levels)).get_indexer(values) < 0
    if (unknown & ~missing_units(values)).any():
        raise InputError(
            f"column {name!r} holds a value outside its levels {list(levels)!r}; add the level, recode the column, or "
            "leave the value out where it is missing"
        )


def _checked_levels(name: str, levels: Sequence[Any]) -> list[Any]:
    """Return declared levels, which are different values, or say what is wrong with them."""
    listed = [levels] if isinstance(levels, str) else list(levels)
    wrong = isinstance(levels, str) or not listed or any(not isinstance(one, Hashable) or one != one for one in listed)
    if wrong or None in listed or len(set(listed)) < len(listed):
        raise InputError(f"levels of column {name!r} must be a list of different values, none missing, got {levels!r}")
    return listed
