"""From a formula to one design matrix, row by row.

One unit's data must not reach another partition. Whatever is computed over all rows would carry it there: levels read
off the data, centring, splines with knots at quantiles. So a formula may hold only what one row decides by itself:
columns, arithmetic, elementwise functions, and categories whose levels are declared. This also keeps a formula in a
run spec from calling anything.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from dpbayes.data._guards import UNREADABLE, hide_values
from dpbayes.errors import InputError, MissingColumnError

__all__ = ["Design", "collect", "column_values", "design"]

_FUNCTIONS = {"log", "log10", "log2", "exp", "I", "C"}
_NUMPY = {"log", "log10", "log2", "log1p", "exp", "expm1", "sqrt", "abs", "sin", "cos", "where", "maximum", "minimum"}
_OPERATORS = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.Name, ast.Load, ast.Constant, ast.Attribute,
    ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Design:
    """Response and design matrix of the rows without missing values. Confidential.

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

    response: npt.NDArray[np.float64]
    matrix: npt.NDArray[np.float64]
    columns: tuple[str, ...]
    rows: npt.NDArray[np.int64]


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
        Levels of categorical columns whose type does not declare them (Enum and Boolean do). A value that is not among
        them counts as missing.
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
        If the formula does not parse, uses something that looks across rows, or has a category without levels.
    """
    import pandas as pd
    from formulaic import Formula, model_matrix
    from formulaic.errors import FormulaicError

    try:
        parsed = Formula(formula, _ordering="none")
        left, right = [list(part) for part in (parsed.lhs, parsed.rhs)]
    except (FormulaicError, SyntaxError, AttributeError, TypeError) as error:
        raise InputError(f"formula {formula!r} does not parse as 'response ~ terms': {error}") from error
    expressions = [factor.expr for term in [*left, *right] for factor in term.factors]
    used: list[str] = []
    categories: set[str] = set()
    for expression in expressions:
        _check_expression(expression, formula, used, categories)
    used = list(dict.fromkeys(name for name in used if name not in _FUNCTIONS | {"np"}))
    table, missing = {}, np.zeros(len(frame), dtype=bool)
    for name in used:
        values, absent = _column(frame, name, (levels or {}).get(name), name in categories)
        table[name] = values
        missing |= absent
    rows = np.flatnonzero(~missing)
    # Boolean indexing of everything once costs less than formulaic's own handling of missing rows.
    whole = rows.size == len(frame)
    data = pd.DataFrame({name: values if whole else values[rows] for name, values in table.items()})
    if not rows.size:
        # That no row is complete is for the counts to say, with noise. The columns follow from a row made up.
        data = pd.DataFrame({name: _made_up(values) for name, values in table.items()}, index=[0])
    with np.errstate(all="ignore"):
        matrices = model_matrix(parsed, data, context={}, na_action="ignore", output="pandas")
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


def _made_up(values: Any) -> Any:
    """Return a column of one value that is no datum: the first declared level, or 1."""
    import pandas as pd

    if isinstance(values, pd.Categorical):
        return pd.Categorical(values.categories[:1], categories=values.categories)
    return np.ones(1)


def collect(frame: Any) -> nw.DataFrame[Any]:
    """Return an eager narwhals frame, or say without a value that its engine could not read it."""
    native = nw.from_native(frame)
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
    return np.asarray(frame[name].to_numpy())


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
        category = pd.Categorical(values, categories=list(levels))
        return category, np.asarray(category.codes) < 0
    if as_category or not (dtype.is_numeric() or dtype == nw.Boolean):
        raise InputError(
            f"column {name!r} of type {dtype} is a category without declared levels; pass levels={{{name!r}: [...]}} "
            "from the codebook (levels read off confidential rows would carry one partition's data to the others)"
        )
    floats = np.asarray([np.nan if v is None else v for v in values] if values.dtype == object else values, np.float64)
    return floats, np.isnan(floats)


def _check_expression(expression: str, formula: str, used: list[str], categories: set[str]) -> None:
    """Collect the columns of one factor, refusing anything that could look beyond a row."""
    try:
        tree = ast.parse(expression.replace("`", ""), mode="eval")
    except SyntaxError as error:
        raise InputError(f"formula {formula!r} has a factor that does not parse: {expression!r}") from error
    for node in ast.walk(tree):
        allowed = isinstance(node, _OPERATORS)
        if isinstance(node, ast.Attribute):
            allowed = isinstance(node.value, ast.Name) and node.value.id == "np" and node.attr in _NUMPY
        elif isinstance(node, ast.Call):
            function = node.func
            allowed = not node.keywords and (
                isinstance(function, ast.Attribute) or (isinstance(function, ast.Name) and function.id in _FUNCTIONS)
            )
            if allowed and isinstance(function, ast.Name) and function.id == "C":
                allowed = len(node.args) == 1 and isinstance(node.args[0], ast.Name)
                if isinstance(node.args[0], ast.Name):
                    categories.add(node.args[0].id)
        elif isinstance(node, ast.Name):
            used.append(node.id)
        if not allowed:
            raise InputError(
                f"formula {formula!r} may hold columns, arithmetic, C(column) and elementwise functions "
                f"({', '.join(sorted(_FUNCTIONS - {'C', 'I'}))}, np.{', np.'.join(sorted(_NUMPY))}); {expression!r} "
                "goes beyond one row or calls something else"
            )
