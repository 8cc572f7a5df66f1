"""Exact marginal tables: counting them from microdata and keeping them consistent.

Everything here is confidential. Nothing in this module writes a file or prints a count, and an error names attributes
and levels of the public domain, never a count or a value found in the data.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import as_array, instance, ordered, shown
from dpbayes._lazy import nw
from dpbayes.data.domain import Attribute, Domain
from dpbayes.data.records import UNREADABLE, as_frame, hide_values
from dpbayes.errors import InputError, MissingColumnError

_LARGEST = 2.0**62
_FEW_CELLS = 2**12  # that are counted in one reading of the records
PRIME = 1_048_573  # below 2^20, so that products fit into 64 bits


@dataclass(frozen=True, eq=False)
class Marginal:
    """An exact table of counts over some attributes. **Confidential**: its repr shows attributes and shape alone.

    Parameters
    ----------
    domain
        The table's attributes, in the order of its axes.
    counts
        Non-negative integers of shape ``domain.shape``; a read-only int64 copy is kept.

    Raises
    ------
    InputError
        If the shape differs from the domain's, or a count is negative or not a whole number.

    Examples
    --------
    >>> domain = Domain.from_levels({"age": ("<18", "18+"), "sex": ("f", "m")})
    >>> table = Marginal(domain, [[10, 12], [40, 38]])
    >>> table
    Marginal(age x sex, shape=(2, 2), counts=<confidential>)
    >>> table.total, table.project(["sex"]).counts.tolist()
    (100, [50, 50])
    """

    domain: Domain
    counts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        domain = instance(self.domain, Domain, "domain", remedy="Domain.from_levels makes one")
        where = " x ".join(domain.names)
        counts = as_array(self.counts, f"table {where}")
        if counts.shape != self.domain.shape:
            raise InputError(
                f"table {where} has shape {counts.shape}, its domain {self.domain.shape}; give one count per cell"
            )
        if counts.dtype.kind not in "iuf" or not np.all(np.isfinite(counts) & (counts == np.floor(counts))):
            raise InputError(f"table {where} holds a value that is not a whole number; counts are integers")
        if np.any(counts < 0):
            raise InputError(f"table {where} holds a negative count; exact counts are at least 0")
        if np.any(counts.astype(np.float64) > _LARGEST):
            raise InputError(f"table {where} holds a count beyond {_LARGEST:g}, which no table of records reaches")
        counts = counts.astype(np.int64)
        counts.setflags(write=False)
        object.__setattr__(self, "counts", counts)

    def __repr__(self) -> str:
        # A notebook, a log or a traceback shows reprs; exact counts must not reach it by accident.
        return f"Marginal({' x '.join(self.attributes)}, shape={self.domain.shape}, counts=<confidential>)"

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes, in the order of the axes."""
        return self.domain.names

    @property
    def total(self) -> int:
        """Sum of the counts."""
        return int(self.counts.sum())

    def project(self, names: Sequence[str]) -> Marginal:
        """Sum out every attribute that is not named; axes come in the order named."""
        axes = self.domain.axes(names)
        if len(set(axes)) < len(axes):
            raise InputError(f"an attribute is named twice in {list(names)!r}; name each once")
        every = range(len(self.domain))
        return Marginal(self.domain.project(names), np.einsum(self.counts, every, axes))


def check_consistent(tables: Sequence[Marginal]) -> int:
    """Check that tables can be margins of one data set, and return its size.

    Tables must give an attribute the same levels, have the same total, and agree on every margin that two of them
    share.

    Parameters
    ----------
    tables
        One or more exact tables.

    Returns
    -------
    int
        The common total.

    Raises
    ------
    InputError
        Naming the tables and the attributes on which they disagree. Counts are not shown: they are confidential.

    Examples
    --------
    >>> domain = Domain.from_levels({"age": (0, 1), "sex": (0, 1)})
    >>> table = Marginal(domain, [[1, 2], [3, 4]])
    >>> check_consistent([table, table.project(["sex"])])
    10
    """
    tables = ordered(tables, "tables", remedy="give a list of Marginal", kind=Marginal)
    if not tables:
        raise InputError("no tables were given; give at least one Marginal")
    levels: dict[str, tuple[Marginal, Attribute]] = {}
    for table in tables:
        for attribute in table.domain:
            first, known = levels.setdefault(attribute.name, (table, attribute))
            if attribute != known:
                raise InputError(
                    f"{_pair(first, table)} give {attribute.name!r} different levels; count them over one domain"
                )
        if table.total != tables[0].total:
            raise InputError(
                f"{_pair(tables[0], table)} disagree on the number of records; count them on the same ones"
            )
    # Each table says once what it shares with any other: two say it of thousands of pairs.
    sets = [frozenset(table.attributes) for table in tables]
    having = {name: {one for one in sets if name in one} for name in levels}
    margins: dict[frozenset[str], tuple[Marginal, npt.NDArray[np.int64]]] = {}
    for table, mine in zip(tables, sets, strict=True):
        for names in sorted(map(sorted, {mine & other for name in mine for other in having[name]})):
            shared = frozenset(names)
            counts = table.project(names).counts
            first, known_counts = margins.setdefault(shared, (table, counts))
            if not np.array_equal(counts, known_counts):
                margin = " x ".join(names)
                raise InputError(f"{_pair(first, table)} disagree on their common margin {margin}; count them together")
    return tables[0].total


def _pair(first: Marginal, second: Marginal) -> str:
    return f"tables {' x '.join(first.attributes)} and {' x '.join(second.attributes)}"


def _declared_domain(schema: nw.Schema, names: Sequence[str]) -> Domain:
    """Return the domain that the types of columns declare (Enum and Boolean)."""
    attributes = []
    for name in names:
        dtype = schema[name]
        if isinstance(dtype, nw.Enum):
            attributes.append(Attribute(name, tuple(dtype.categories)))
        elif dtype == nw.Boolean:
            attributes.append(Attribute(name, (0, 1)))
        else:
            raise InputError(
                f"column {name!r} has type {dtype}, which does not declare its levels; pass domain=Domain(...) from "
                "the codebook (levels read off confidential rows would themselves leak)"
            )
    return Domain(tuple(attributes))


def marginals(
    frame: Any,
    attribute_sets: Sequence[Sequence[str]],
    *,
    domain: Domain | None = None,
    unit: str | None = None,
    max_rows_per_unit: int = 1,
) -> tuple[Marginal, ...]:
    """Count marginal tables from microdata.

    Parameters
    ----------
    frame
        Any eager or lazy frame that narwhals reads (Polars, pandas, PyArrow, DuckDB, Spark, ...), one row per record.
        Lazy ones are counted where they are: ``pl.scan_parquet`` and DuckDB need not hold the records in memory, and a
        Spark session counts on its cluster. Only the cells come back.
    attribute_sets
        The attributes of each table.
    domain
        Levels of the attributes, from the codebook. Without it the columns' types must declare them (Enum or Boolean).
    unit, max_rows_per_unit
        Column whose equal values make rows one unit (a person, say), and the most rows of a unit that count. Which ones
        depends on that unit's rows alone: those whose combination of levels comes first in a public random order. Tell
        `dpbayes.privacy.release_tables` both.

    Raises
    ------
    MissingColumnError
        If the frame lacks a column.
    InputError
        If a row's value is null or not among the levels of its attribute (the value itself is confidential and is not
        shown).
    UnreadableDataError
        If the engine of a lazy frame cannot read the records.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"age": [0, 0, 1], "sex": ["f", "m", "f"]})
    >>> domain = Domain.from_levels({"age": (0, 1), "sex": ("f", "m")})
    >>> [table.counts.tolist() for table in marginals(frame, [["age", "sex"], ["sex"]], domain=domain)]
    [[[1, 1], [1, 0]], [2, 1]]
    """
    remedy = 'give a list of lists of names, such as [["age", "sex"]]'
    given = ordered(attribute_sets, "attribute_sets", remedy=remedy)
    sets = [ordered(names, "an attribute set", remedy=remedy) for names in given]
    if not sets or not all(sets):
        raise InputError(f"attribute_sets must name at least one attribute per table, got {attribute_sets!r}")
    table = as_frame(frame).lazy()
    with hide_values(UNREADABLE):
        schema = table.collect_schema()
    wanted = list(dict.fromkeys(name for names in sets for name in names))
    _check_columns(wanted, schema)
    if domain is None:
        domain = _declared_domain(schema, wanted)
    instance(domain, Domain, "domain", remedy="Domain.from_levels makes one")
    if unit is not None:
        _check_columns([unit], schema)
        if unit in wanted:
            raise InputError(f"the unit {unit!r} is also an attribute to count; release no table of it")
        table = bounded_rows(table, unit, max_rows_per_unit, _place(table, domain.project(wanted)))
    counted = [_count(table, domain.project(names)) for names in _together(sets, domain)]
    return tuple(next(one for one in counted if set(names) <= set(one.attributes)).project(names) for names in sets)


def bounded_rows(table: nw.LazyFrame[Any], unit: str, most: int, place: nw.Expr) -> nw.LazyFrame[Any]:
    """Keep at most so many rows of every unit by a rule that looks at that unit's rows alone."""
    # `place` is a whole number from 0 that follows from a row's values. Rows with other values get another place in an
    # order that differs from unit to unit, so that none of them is kept more often than others.
    with hide_values(UNREADABLE):
        nobody = table.filter(nw.col(unit).is_null()).select(nw.len().alias("n")).collect()["n"].to_list()
    if nobody != [0]:
        raise InputError(f"column {unit!r}, the unit, holds a missing value; give every row its unit")
    order, number = "__dpbayes_order", "__dpbayes_row"
    table = table.with_columns((place % PRIME).alias(order), nw.lit(1).alias(number))
    shuffle = 1 + nw.col(order).sum().over(unit) % (PRIME - 1)
    table = table.with_columns((nw.col(order) * shuffle % PRIME).alias(order))
    numbered = table.with_columns(nw.col(number).cum_sum().over(unit, order_by=order).alias(number))
    return numbered.filter(nw.col(number) <= most)


def _place(table: nw.LazyFrame[Any], domain: Domain) -> nw.Expr:
    """Return a whole number that says which combination of levels a row has."""
    rng = np.random.default_rng(0)
    with hide_values(UNREADABLE):
        schema = table.collect_schema()
    place = nw.lit(0, nw.Int64)
    for attribute in domain:
        column = nw.col(attribute.name)
        column = column.cast(nw.Int64) if schema[attribute.name] == nw.Boolean else column
        for level, weight in zip(attribute.levels, rng.integers(1, PRIME, attribute.size).tolist(), strict=True):
            place = place + nw.when(column == level).then(nw.lit(weight, nw.Int64)).otherwise(nw.lit(0, nw.Int64))
    return place


def _check_columns(wanted: Iterable[str], columns: Container[str]) -> None:
    """Refuse a column that is not there; what there is is not said: a file without a header has a record there."""
    for name in wanted:
        if name not in columns:
            raise MissingColumnError(
                f"column {name!r} is not in the data; correct it, or let the first line of a CSV file name its columns"
            )


def _together(sets: Sequence[Sequence[str]], domain: Domain) -> list[tuple[str, ...]]:
    """Return sets of few cells that hold the given ones between them, so that records are read a few times only."""
    levels, found = dict(zip(domain.names, domain.shape, strict=True)), list[tuple[str, ...]]()
    for names in sorted(sets, key=lambda names: -domain.project(names).size):
        joined = [tuple(dict.fromkeys([*one, *names])) for one in found]
        sizes = [math.prod(map(levels.__getitem__, one)) for one in joined]
        best = min(range(len(found)), key=sizes.__getitem__, default=None)
        if best is None or (sizes[best] > _FEW_CELLS and len(joined[best]) > len(found[best])):
            found.append(tuple(names))
        else:
            found[best] = joined[best]
    return found


def _count(table: nw.LazyFrame[Any], domain: Domain) -> Marginal:
    """Group, count and place one table's cells."""
    counted = table.group_by(*domain.names).agg(nw.len().alias("__dpbayes_count"))
    # Polars reads a file that is larger than memory only in its streaming engine; other engines decide for themselves.
    with hide_values(UNREADABLE):
        grouped = counted.collect(engine="streaming") if counted.implementation.is_polars() else counted.collect()
    cells = []
    for attribute in domain:
        index = {level: position for position, level in enumerate(attribute.levels)}
        values = grouped[attribute.name].to_list()
        try:
            cells.append([index[value] for value in values])
        except (KeyError, TypeError):  # lists and structs cannot be looked up
            raise InputError(
                f"column {attribute.name!r} holds a missing value or a level outside the domain "
                f'{shown(list(attribute.levels))}; add the level ("" for a blank, say) or recode the column'
            ) from None
    counts = np.zeros(domain.shape, dtype=np.int64)
    np.add.at(counts, tuple(np.asarray(axis, dtype=np.intp) for axis in cells), grouped["__dpbayes_count"].to_numpy())
    return Marginal(domain, counts)
