"""From a formula to one design matrix, row by row.

One unit's data must not reach another partition, as levels, centres or knots read off all rows would carry it. So a
formula may hold only what one row decides by itself. formulaic lays out the columns; each factor is parsed, held
against a short list of what is elementwise, and computed here. Nothing of a formula is ever run as Python.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Floats, Ints, instance, shown
from dpbayes._lazy import pd, pl
from dpbayes.data.records import UNREADABLE, as_frame, hide_values
from dpbayes.errors import InputError, MissingColumnError

MOST_PRODUCTS = 10_000
"""Products of terms that a formula may expand to; `(a + b + c + d)**10` would make a million."""

_LARGEST_MATRIX = 1 << 33  # bytes
_DEEPEST = 100


@dataclass(frozen=True, eq=False)
class Design:
    """Response and design matrix of the rows without missing values. Confidential: its repr shows columns alone."""

    response: Floats = field(repr=False)
    matrix: Floats = field(repr=False)
    columns: tuple[str, ...]
    rows: Ints = field(repr=False)


@np.errstate(all="ignore")
def design(
    frame: nw.DataFrame[Any], formula: str, *, levels: Mapping[str, Any] | None, absorbed: Sequence[str] = ()
) -> Design:
    """Build the design matrix of a formula, without the intercept where the effects of groups are absorbed."""
    from formulaic import model_matrix
    from formulaic.errors import FormulaicError

    parsed = _parse(formula)
    factors = _row_expressions(parsed, formula)
    for name, listed in (levels or {}).items():
        if name in frame.columns:
            _require_levels(frame, name, listed)
    columns: dict[str, dict[str, Any]] = {factor: {} for factor in factors}
    missing = np.zeros(len(frame), dtype=bool)
    for factor, expression in factors.items():
        for name in expression.columns:
            columns[factor][name], absent = _read(frame, name, expression, (levels or {}).get(name), formula)
            missing |= absent
    for name in absorbed:
        missing |= pd.isna(column_values(frame, name))
    rows = np.flatnonzero(~missing)
    _check_size(parsed, columns, rows.size, formula)
    data = _evaluated(factors, columns, rows)
    try:
        matrices = model_matrix(parsed, data, context={}, na_action="ignore", output="pandas")
    except (FormulaicError, TypeError, ValueError):
        # What formulaic says may show values.
        raise InputError(f"formula {shown(formula)} gives no design matrix; write it as 'response ~ terms'") from None
    response, matrix = matrices.lhs, matrices.rhs
    if response.shape[1] != 1:
        raise InputError(f"the left side of {shown(formula)} must be one numeric column, got {list(response.columns)}")
    if absorbed and "Intercept" in matrix.columns:
        matrix = matrix.drop(columns="Intercept")
    left, right = (side.to_numpy(dtype=np.float64)[: rows.size] for side in (response, matrix))
    return Design(np.ascontiguousarray(left[:, 0]), right, tuple(map(str, matrix.columns)), rows)


def _check_size(parsed: Any, columns: Mapping[str, Mapping[str, Any]], n_rows: int, formula: str) -> None:
    """Refuse a design matrix that cannot be held in memory, by arithmetic."""
    widths = {
        factor: max(len(one.categories) if hasattr(one, "categories") else 1 for one in values.values())
        for factor, values in columns.items()
    }
    n_columns = sum(math.prod(widths.get(factor.expr, 1) for factor in term.factors) for term in parsed.rhs)
    if 8 * n_columns * max(n_rows, 1) > _LARGEST_MATRIX:
        raise InputError(
            f"formula {shown(formula)} makes up to {n_columns:,} columns, and with these rows its design matrix would "
            "not fit into memory; take fewer interactions of categories, or pool their levels"
        )


def formula_columns(formula: str) -> set[str]:
    """Return the columns that a formula reads; refuse what needs no data to see: no parse, or more than one row."""
    return {name for one in _row_expressions(_parse(formula), formula).values() for name in one.columns}


def model_columns(formula: str, levels: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the columns of the design matrix as formula and declared levels alone tell; None where they do not."""
    kinds = {name: pl.Object if name in levels else pl.Float64 for name in formula_columns(formula)}
    try:
        return design(nw.from_native(pl.DataFrame(schema=kinds)), formula, levels=levels).columns
    except InputError:
        # A category whose levels the file's own types declare.
        return None


def check_coefficient(coefficient: str, columns: Sequence[str]) -> None:
    """Refuse a coefficient that is no column of the design matrix."""
    if coefficient not in columns:
        plain = "; backticks stand in formulas alone" if coefficient.replace("`", "") in columns else ""
        raise InputError(f"coefficient {coefficient!r} is not in the model; it has {list(columns)!r}{plain}")


def check_coefficient_of(formula: str, coefficient: str, levels: Mapping[str, Any]) -> None:
    """Refuse a coefficient that a formula cannot have, as far as it and the declared levels tell."""
    columns = model_columns(formula, levels)
    if columns is None:
        return
    # What is not declared stands as a number there, and may be a category by the file's own types.
    named = coefficient
    for name in formula_columns(formula).difference(levels):
        named = re.sub(rf"(?<![^:]){re.escape(name)}\[.*?\](?=:|$)", name.replace("\\", r"\\"), named)
    if named not in columns:
        check_coefficient(coefficient, columns)


def _parse(formula: str) -> Any:
    """Return formulaic's reading of a formula with one left and one right side."""
    from formulaic import Formula, SimpleFormula
    from formulaic.errors import FormulaicError
    from formulaic.parser import DefaultFormulaParser

    class Bounded(DefaultFormulaParser):
        def get_terms_from_ast(self, ast: Any, *, context: Any) -> Any:
            _check_products(ast, formula)
            return super().get_terms_from_ast(ast, context=context)

    try:
        parsed = Formula(formula, _ordering="none", _parser=Bounded())
    except InputError:
        raise
    except (FormulaicError, SyntaxError, AttributeError, TypeError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        if "`.` operator" in reason:
            reason = "a full stop stands for no columns here; name them"
        raise InputError(f"formula {shown(formula)} does not parse as 'response ~ terms': {reason}") from error
    sides = [getattr(parsed, side, None) for side in ("lhs", "rhs")]
    if not all(isinstance(side, SimpleFormula) for side in sides):
        raise InputError(
            f"formula {shown(formula)} does not parse as 'response ~ terms': it needs one left and one right side"
        )
    return parsed


def _check_products(tree: Any, formula: str) -> None:
    """Refuse a formula whose expansion would take more than `MOST_PRODUCTS` products of terms."""
    from formulaic.parser.types import ASTNode

    # Operands before their operators, without recursion: a sum of a thousand terms is a thousand levels deep.
    nodes = [tree] if isinstance(tree, ASTNode) else []
    for node in nodes:
        nodes += [one for one in node.args if isinstance(one, ASTNode)]
    found: dict[int, float] = {}
    for node in reversed(nodes):
        sizes, symbol = [found.get(id(one), 1.0) for one in node.args], node.operator.symbol
        products = sum(sizes)
        if symbol in ("**", "^"):
            text = str(node.args[1])
            power = float(text) if text.isdecimal() else 1.0
            # The power is a list of that length first, also of a single term.
            products = max(1.0 if sizes[0] <= 1 else sizes[0] ** power if power < 64 else np.inf, power)
        elif symbol in ("*", "/", "in", ":"):
            products += np.prod(sizes)
        found[id(node)] = products
        if products > MOST_PRODUCTS:
            count = f"{products:,.0f}" if np.isfinite(products) else "endlessly many"
            raise InputError(
                f"formula {shown(formula)} expands to {count} products of terms, and at most {MOST_PRODUCTS:,} are "
                "laid out; lower the power, or write the interactions that are meant"
            )


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
    frame: nw.DataFrame[Any], name: str, expression: RowExpression, levels: Any, formula: str
) -> tuple[Any, npt.NDArray[np.bool_]]:
    """Return a column of a factor, as numbers or as a categorical, and where it is missing."""
    values, dtype = column_values(frame, name), frame.schema[name]
    is_number, is_calculated = dtype.is_numeric() or dtype == nw.Boolean, expression.compute is not None
    if levels is None and isinstance(dtype, nw.Enum):
        levels = dtype.categories
    if levels is None and expression.is_category and dtype == nw.Boolean:
        levels = (False, True)
    if levels is not None and not is_calculated:
        declared, pooled, into = _checked_levels(name, levels)
        codes = pd.Index(declared).get_indexer(values)
        # A missing value's code -1 takes the last entry, which is -1 again.
        return pd.Categorical.from_codes(np.array([*into, -1])[codes], categories=pd.Index(pooled)), codes < 0
    if is_calculated and not is_number:
        raise InputError(
            f"formula {shown(formula)} calculates with column {name!r} of type {dtype}, which is not numeric; convert "
            "it first, or use it as a category"
        )
    if expression.is_category or not is_number:
        raise InputError(
            f"column {name!r} of type {dtype} is a category without declared levels; pass levels={{{name!r}: [...]}} "
            "from the codebook (levels read off confidential rows would carry one partition's data to the others)"
        )
    if values.dtype == object:
        # The missing value of pandas has no float.
        values = np.where(pd.isna(values), np.nan, values)
    floats = np.asarray(values, dtype=np.float64)
    return floats, np.isnan(floats)


def _evaluated(factors: Mapping[str, RowExpression], columns: Mapping[str, Mapping[str, Any]], rows: Ints) -> Any:
    """Return a frame with the values of every factor in the rows that are complete."""

    def complete(column: Any) -> Any:
        if rows.size:
            return column if rows.size == len(column) else column[rows]
        # The columns still follow, from a row made up (the first declared level, or 1): that no row is complete is for
        # the counts to say, with noise.
        declared = getattr(column, "categories", None)
        return np.ones(1) if declared is None else pd.Categorical(declared[:1], categories=declared)

    table = {}
    for factor, expression in factors.items():
        values = {name: complete(column) for name, column in columns[factor].items()}
        table[factor] = values[expression.columns[0]] if expression.compute is None else expression.compute(values)
    return pd.DataFrame(table, index=range(max(rows.size, 1)))


def collect(frame: Any) -> nw.DataFrame[Any]:
    """Return an eager narwhals frame, or say without a value that its engine could not read it."""
    native = as_frame(frame)
    with hide_values(UNREADABLE):
        table = native.collect() if isinstance(native, nw.LazyFrame) else native
    if not len(table):
        raise InputError("the data hold no rows; there is nothing to verify")
    return table


def column_values(frame: nw.DataFrame[Any], name: str) -> npt.NDArray[Any]:
    """Return a column as an array, or say that the frame lacks it."""
    if instance(name, str, "column", remedy="give the name of a column") not in frame.columns:
        raise MissingColumnError(
            f"column {name!r} is not in the data; correct its spelling, or let the first line of the CSV file name "
            "its columns"
        )
    series = frame[name]
    if series.dtype in (nw.Int128, nw.UInt128, nw.String) or (series.dtype.is_integer() and series.null_count()):
        # NumPy has none of 128 bits: one number of 20 digits would stop the run, and tell that somebody has it. Beside
        # a missing value it would make doubles of the others, and two names beyond 2^53 one. Of text it would take as
        # many bytes for every row as the longest one has.
        return np.array(series.to_list(), dtype=object)
    return np.asarray(series.to_numpy())


def _require_levels(frame: nw.DataFrame[Any], name: str, levels: Any) -> None:
    """Refuse a column with a value that is neither missing nor declared: left out, its rows would go unnoticed."""
    if (kind := frame.schema[name]).is_nested():
        raise InputError(f"column {name!r} of type {kind} holds no levels; write one value per row")
    values = column_values(frame, name)
    unknown = pd.Index(_checked_levels(name, levels)[0]).get_indexer(values) < 0
    if (unknown & ~pd.isna(values)).any():
        said = f"column {name!r} holds a value outside its levels {shown(list(levels))}"
        raise InputError(f"{said}; add the level, recode the column, or leave the value out where it is missing")


def _checked_levels(name: str, levels: Any) -> tuple[list[Any], list[Any], list[int]]:
    """Return the levels of the data, those of the model, and which of these each of the data's becomes."""
    groups = list(levels.items()) if isinstance(levels, Mapping) else [(one, (one,)) for one in levels]
    groups = [] if isinstance(levels, str) or any(isinstance(members, str) for _, members in groups) else groups
    listed = [one for _, members in groups for one in members]
    wrong = any(not isinstance(one, Hashable) or one is None or one != one for one in listed)
    if wrong or not all(len(members) for _, members in groups) or not listed or len(set(listed)) < len(listed):
        raise InputError(
            f"levels of column {name!r} must be a list of different values, none missing, or a mapping from pooled "
            f"levels to such lists, got {shown(levels)}"
        )
    return listed, [label for label, _ in groups], [at for at, (_, members) in enumerate(groups) for _ in members]


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
    ast.UAdd: np.positive,
    ast.USub: np.negative,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_ONE_ARGUMENT = ("abs", "cos", "exp", "expm1", "log", "log10", "log1p", "log2", "sin", "sqrt")
# Each function with the number of its arguments: NumPy takes one more as the array to write to.
_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "I": (np.positive, 1),
    **{name: (getattr(np, name), 1) for name in ("exp", "log", "log10", "log2")},
    **{f"np.{name}": (getattr(np, name), 1) for name in _ONE_ARGUMENT},
    "np.maximum": (np.maximum, 2),
    "np.minimum": (np.minimum, 2),
    "np.where": (np.where, 3),
}


@dataclass(frozen=True)
class RowExpression:
    """A factor of a formula that looks at one row at a time: its columns, and, unless it is one of them, a function."""

    columns: tuple[str, ...]
    compute: Callable[[Mapping[str, Floats]], Any] | None = None
    is_category: bool = False


def parse_factor(text: str, formula: str) -> RowExpression:
    """Read one factor of a formula that is more than the name of a column."""
    source, quoted = _without_backticks(text)
    try:
        tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(f"formula {shown(formula)} has a factor that does not parse: {shown(text)}") from error
    match tree:
        case ast.Call(func=ast.Name(id="C"), args=[ast.Name(id=name)], keywords=[]):
            return RowExpression((quoted.get(name, name),), is_category=True)
    used: dict[str, None] = {}
    compute = _compiled(tree, quoted, used, text, formula)
    if not used:
        raise InputError(
            f"formula {shown(formula)} has a factor without a column, {shown(text)}; write the intercept as 1"
        )
    return RowExpression(tuple(used), compute)


def _without_backticks(text: str) -> tuple[str, dict[str, str]]:
    """Put an identifier in the place of each name in backticks; return the text and what each stands for."""
    stem = "_"
    while stem in text:
        stem += "_"
    quoted = {f"{stem}{place}": name for place, name in enumerate(re.findall("`([^`]*)`", text))}
    for alias, name in quoted.items():
        text = text.replace(f"`{name}`", alias, 1)
    return text, quoted


def _compiled(
    node: ast.expr, quoted: Mapping[str, str], used: dict[str, None], text: str, formula: str, depth: int = 0
) -> Callable[[Mapping[str, Floats]], Any]:
    """Return the function of the columns that an expression is, refusing anything that is not on the lists above."""
    if depth > _DEEPEST:
        raise InputError(f"formula {shown(formula)} nests a factor more than {_DEEPEST} deep; write it as several")
    match node:
        case ast.Name(id=name):
            column = quoted.get(name, name)
            used[column] = None
            return operator.itemgetter(column)
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            try:
                number = np.float64(float(value))  # Python's own raise where NumPy's give infinity
            except OverflowError:
                said = f"formula {shown(formula)} holds a number beyond 1e308; measure in another unit"
                raise InputError(said) from None
            return lambda columns: number
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]) if (
            type(op) in _OPERATORS
        ):
            apply, parts = _OPERATORS[type(op)], [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            apply, parts = _OPERATORS[type(op)], [operand]
        case ast.Call(func=ast.Name() | ast.Attribute(value=ast.Name()) as function, args=parts, keywords=[]) if (
            ast.unparse(function) in _FUNCTIONS
        ):
            name = ast.unparse(function)
            apply, wanted = _FUNCTIONS[name]
            if len(parts) != wanted:
                raise InputError(
                    f"{name} takes {wanted} argument{'s' if wanted > 1 else ''} in a formula, got {len(parts)} in "
                    f"{shown(text)} of {shown(formula)}; more, or fewer, could go beyond one row"
                )
        case ast.Call(func=ast.Name(id="Q"), args=[ast.Constant(value=str() as name)]):
            raise InputError(
                f"formula {shown(formula)} names a column by {text}; write it in backticks, `{name}`, as any name "
                "that is more than letters, digits and underscores"
            )
        case _:
            raise InputError(
                f"formula {shown(formula)} may hold columns, numbers, + - * / // % **, single comparisons, C(column) "
                f"and elementwise functions ({', '.join(_FUNCTIONS)}); {shown(text)} goes beyond one row or calls "
                "something else"
            )
    given = [_compiled(part, quoted, used, text, formula, depth + 1) for part in parts]
    # A comparison gives 1 and 0, with which further steps calculate.
    return lambda columns: np.asarray(apply(*(one(columns) for one in given)), dtype=np.float64)
