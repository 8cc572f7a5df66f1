"""Expressions that every row decides by itself.

A factor of a formula is parsed, held against a short list of what is elementwise, and evaluated here: nothing of it is
ever run as Python. What is not on the list is refused, because a formula that could reach a second row would let one
unit decide the outcome of every partition.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes.errors import InputError

__all__ = ["RowExpression", "evaluate", "parse_factor"]

type FloatArray = npt.NDArray[np.float64]

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
# Each function with the number of its arguments: NumPy takes one more as the array to write to.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "I": (operator.pos, 1),
    **{name: (getattr(np, name), 1) for name in ("exp", "log", "log10", "log2")},
    **{
        f"np.{name}": (getattr(np, name), 1)
        for name in ("abs", "cos", "exp", "expm1", "log", "log10", "log1p", "log2", "sin", "sqrt")
    },
    "np.maximum": (np.maximum, 2),
    "np.minimum": (np.minimum, 2),
    "np.where": (np.where, 3),
}


@dataclass(frozen=True)
class RowExpression:
    """A factor of a formula that looks at one row at a time.

    Parameters
    ----------
    columns
        The columns it uses, by their names in the data.
    tree
        What to compute from them; None for a column taken as it is.
    is_category
        Whether the factor is ``C(column)``.
    """

    columns: tuple[str, ...]
    tree: ast.expr | None = None
    is_category: bool = False


def parse_factor(text: str, formula: str) -> RowExpression:
    """Read one factor of a formula that is more than the name of a column.

    Parameters
    ----------
    text
        The factor, with names in backticks where they are no identifiers.
    formula
        The whole formula, for the error.

    Returns
    -------
    RowExpression
        With the columns it uses. A name that is not called is a column, even ``exp``.

    Raises
    ------
    InputError
        If the factor does not parse, could look beyond a row, or uses no column.

    Examples
    --------
    >>> parse_factor("np.log(hours + 1)", "wage ~ np.log(hours + 1)").columns
    ('hours',)
    """
    source, quoted = _without_backticks(text)
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise InputError(f"formula {formula!r} has a factor that does not parse: {text!r}") from error
    category = _category_of(tree)
    if category is not None:
        return RowExpression((quoted.get(category, category),), is_category=True)
    used: dict[str, None] = {}
    _check(tree, used, text, formula)
    if not used:
        raise InputError(f"formula {formula!r} has a factor without a column, {text!r}; write the intercept as 1")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = quoted.get(node.id, node.id)
    return RowExpression(tuple(quoted.get(name, name) for name in used), tree)


def evaluate(expression: RowExpression, columns: Mapping[str, FloatArray]) -> FloatArray:
    """Compute an expression for every row.

    Parameters
    ----------
    expression
        What `parse_factor` made.
    columns
        Numeric columns by name, each of shape (rows,).

    Returns
    -------
    numpy.ndarray
        Shape (rows,). Not finite where a function is not defined; comparisons give 1 and 0.

    Examples
    --------
    >>> evaluate(parse_factor("I(x > 1)", "y ~ I(x > 1)"), {"x": np.array([0.0, 1.0, 2.0])})
    array([0., 0., 1.])
    """
    assert expression.tree is not None
    with np.errstate(all="ignore"):
        return np.asarray(_value(expression.tree, columns), dtype=np.float64)


def _without_backticks(text: str) -> tuple[str, dict[str, str]]:
    """Put an identifier in the place of each name in backticks; return the text and what each stands for."""
    stem = "_"
    while stem in text:
        stem += "_"
    quoted: dict[str, str] = {}

    def alias(match: re.Match[str]) -> str:
        name = f"{stem}{len(quoted)}"
        quoted[name] = match.group(1)
        return name

    return re.sub("`([^`]*)`", alias, text), quoted


def _category_of(tree: ast.expr) -> str | None:
    """Return the column of ``C(column)``, or None for anything else."""
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.func.id != "C":
        return None
    if len(tree.args) != 1 or tree.keywords or not isinstance(tree.args[0], ast.Name):
        return None
    return tree.args[0].id


def _check(node: ast.expr, used: dict[str, None], text: str, formula: str) -> None:
    """Collect the columns of an expression, refusing anything that is not on the lists above."""
    match node:
        case ast.Name(id=name):
            used[name] = None
            return
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            _check_constant(value, formula)
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            parts = [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            parts = [operand]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            parts = [left, right]
        case ast.Call(func=function, args=parts, keywords=[]) if _name_of(function) in _FUNCTIONS:
            _check_arguments(_name_of(function), len(parts), text, formula)
        case _:
            raise InputError(
                f"formula {formula!r} may hold columns, numbers, + - * / // % **, single comparisons, C(column) and "
                f"elementwise functions ({', '.join(_FUNCTIONS)}); {text!r} goes beyond one row or calls something else"
            )
    for part in parts:
        _check(part, used, text, formula)


def _check_constant(value: float, formula: str) -> None:
    try:
        float(value)
    except OverflowError:
        raise InputError(f"formula {formula:.80} holds a number beyond 1e308; measure in another unit") from None


def _check_arguments(name: str, n_given: int, text: str, formula: str) -> None:
    wanted = _FUNCTIONS[name][1]
    if n_given != wanted:
        raise InputError(
            f"{name} takes {wanted} argument{'s' if wanted > 1 else ''} in a formula, got {n_given} in {text!r} of "
            f"{formula!r}; more, or fewer, could go beyond one row"
        )


def _name_of(function: ast.expr) -> str:
    """Return the name of a called function, "" where it has none that could be allowed."""
    match function:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id="np"), attr=name):
            return f"np.{name}"
    return ""


def _value(node: ast.expr, columns: Mapping[str, FloatArray]) -> Any:
    match node:
        case ast.Name(id=name):
            return columns[name]
        case ast.Constant(value=int() | float() as value):
            # Python's own numbers raise where NumPy's give infinity.
            return np.float64(value)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, columns), _value(right, columns))
        case ast.UnaryOp(op=op, operand=operand):
            return _UNARY[type(op)](_value(operand, columns))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            held = _COMPARISONS[type(op)](_value(left, columns), _value(right, columns))
            return np.asarray(held, dtype=np.float64)
        case ast.Call(func=function, args=arguments):
            return _FUNCTIONS[_name_of(function)][0](*(_value(argument, columns) for argument in arguments))
    raise AssertionError(f"{type(node).__name__} passed the check")  # pragma: no cover
