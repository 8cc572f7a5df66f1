"""Noisy tables that somebody else published, read into a `Release`: nothing is confidential, nothing is charged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from dpbayes._arguments import Floats, instance, ordered, shown
from dpbayes.data.domain import Attribute, Domain, Level
from dpbayes.data.records import as_frame
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.laws import law_named
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Publication, Release

_ROW, _COLUMN, _COUNT = "__row__", "__column__", "__value__"  # a count, with its row and column in the file
_FAR = 10.0  # standard deviations by which a sum of noisy counts may miss the exact total before it contradicts it
_MOST_SHOWN = 5


@dataclass(frozen=True)
class PublishedTable:
    """Where one table of noisy counts stands in a file, and what noise its publisher states.

    Parameters
    ----------
    value
        Column of the counts; or, of a wide file, each column of counts with its level of `across`.
    levels
        Attributes with the columns that hold their levels; a list where they have the same names. None of them: the one
        count is the number of records.
    law
        ``"two-sided-geometric"`` (discrete Laplace), ``"laplace"``, ``"discrete-gaussian"``, ``"gaussian"``, or, of the
        number of records, ``"exact"``.
    scale, variance
        One of them, a number or a column: the law's parameter (scale of the first two laws, standard deviation of the
        others), or the variance. Of a discrete Gaussian that is the square of its parameter, as publishers state it.
    across
        Of a wide file: the attribute whose levels stand side by side.
    where
        Columns and the value that they must have: which rows of a file with several tables belong to this one.
    threshold
        Counts below it were left out: rows without a count, or no rows at all.
    file
        File of this table, where it is not the first argument of `read_published`.

    Examples
    --------
    >>> PublishedTable("noisy", ["age", "sex"], law="two-sided-geometric", scale=20.0).levels
    {'age': 'age', 'sex': 'sex'}
    """

    value: str | Mapping[str, Level]
    levels: Mapping[str, str] = field(default_factory=dict)
    law: str = "two-sided-geometric"
    scale: float | str | None = None
    variance: float | str | None = None
    across: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    threshold: float | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.levels, Mapping):
            names = ordered(self.levels, "levels of a table", remedy="give a list of columns", kind=str)
            object.__setattr__(self, "levels", {name: name for name in names})
        if self.law != "exact":
            law_named(self.law)
        given = [name for name in ("scale", "variance") if getattr(self, name) is not None]
        if len(given) != (self.law != "exact"):
            need = "neither scale nor variance" if self.law == "exact" else "one of scale and variance"
            raise InputError(f"a table under the law {self.law!r} takes {need}, got {' and '.join(given) or 'neither'}")
        if isinstance(self.value, str) != (self.across is None):
            raise InputError("a wide table has across and value = {column: level}; a long one has value = 'column'")
        if self.law == "exact" and (self.levels or self.across):
            raise InputError(
                "only the number of records may be exact: no system fits other exact tables; state cells that cannot "
                "occur by model.impossible, and leave the table out"
            )
        if not self.names and self.threshold is not None:
            raise InputError("a number of records has no threshold; leave it out")

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes in the order of the table's axes."""
        return (*self.levels, *([] if self.across is None else [self.across]))


def read_published(
    source: Any,
    tables: Sequence[PublishedTable],
    *,
    publication: Publication,
    levels: Mapping[str, Sequence[Level]] | None = None,
    total: int | None = None,
    adjacency: Adjacency | Literal["as published"] = "as published",
) -> Release:
    """Read noisy tables that somebody else published.

    Parameters
    ----------
    source
        A CSV or Parquet file, or a data frame: long (a count per row) or wide (a level per column). Tables may name
        files of their own, beside this one.
    tables
        What stands where, and under which noise; any margins in any order, each under a law of its own.
    publication
        Who published them, and what mechanism they state.
    levels
        The levels of attributes, in order; of one that is left out, those of the first table that has it, as text.
    total
        The exact number of records, where it is published and stands in no table.
    adjacency
        The neighbouring relation, where it is stated.

    Returns
    -------
    Release
        With ``sampler="published"``. Whether its noise is as stated, `check_stated_noise` asks the tables themselves.

    Raises
    ------
    InputError
        If a level is missing, a cell stands twice, a number does not read, a variance is not positive, a count lies
        below its threshold, or a table contradicts the exact total: with file, row and remedy. The first row has the
        number 1, the line of names not counted.

    Examples
    --------
    >>> import polars as pl
    >>> frame = pl.DataFrame({"sex": ["f", "m", "f", "m"], "age": ["<18", "<18", "18+", "18+"], "n": [9, 12, 41, 36]})
    >>> stated = Publication("An office", "https://example.org", "2026-11", "geometric mechanism, scale 2")
    >>> table = PublishedTable("n", ["age", "sex"], law="two-sided-geometric", scale=2.0)
    >>> release = read_published(frame, [table], publication=stated, total=100)
    >>> release.tables[0].counts.tolist(), release.sampler
    ([[9, 12], [41, 36]], 'published')
    """
    asked = ordered(tables, "tables", remedy="give a list of PublishedTable", kind=PublishedTable)
    instance(publication, Publication, "publication", remedy="Publication says who published the numbers")
    read = _Files(source)
    known = {name: Attribute(name, tuple(given)) for name, given in (levels or {}).items()}
    parts = [_Part(table, *read.rows(table)) for table in asked]
    for part in parts:
        for name in part.table.names:
            if name not in known:
                known[name] = part.attribute(name)
    totals = [part.number() for part in parts if not part.table.names]
    found = [part.table_of(known) for part in parts if part.table.names]
    if not found:
        raise InputError(f"{read.name}: tables name no attribute; give levels or across of at least one")
    domain = Domain(tuple({a.name: a for table in found for a in table.domain}.values()))
    n = _total([*totals, *([] if total is None else [_whole(total)])], read.name)
    if isinstance(n, int):
        _check_total(found, n, read.name)
    return Release(domain, tuple(found), adjacency, n, "published", publication=publication)


def polars_frame(source: Any) -> pl.DataFrame:
    """Return a data frame of any kind as a Polars one."""
    return as_frame(source).lazy().collect(backend="polars").to_native()


class _Files:
    """The source, and files that tables name beside it, each read once; every row keeps its number."""

    def __init__(self, source: Any) -> None:
        self.path = Path(source) if isinstance(source, str | Path) else None
        self.name = self.path.name if self.path else "the data frame"
        self.frames: dict[Path | None, pl.DataFrame] = {}
        if self.path is None:
            self.frames[None] = _numbered(polars_frame(source), self.name)

    def rows(self, table: PublishedTable) -> tuple[pl.DataFrame, str]:
        """Return a table's rows, and the name of their file."""
        path = self.path
        if table.file is not None:
            path = Path(table.file) if self.path is None else self.path.parent / table.file
        if path not in self.frames:
            assert path is not None
            self.frames[path] = _numbered(_read(path), path.name)
        name = self.name if path is None else path.name
        frame = self.frames[path]
        counts = [table.value] if isinstance(table.value, str) else list(table.value)
        columns = [*table.levels.values(), *table.where, *counts]
        columns += [given for given in (table.scale, table.variance) if isinstance(given, str)]
        if missing := [column for column in columns if column not in frame.columns]:
            has = shown(frame.columns[1:])
            raise MissingColumnError(f"{name} lacks the columns {', '.join(missing)}, which tables name; it has {has}")
        for column, value in table.where.items():
            frame = frame.filter(pl.col(column).cast(pl.String).str.strip_chars() == str(value))
        if frame.is_empty():
            wanted = " and ".join(f"{column} = {value!r}" for column, value in table.where.items())
            raise InputError(f"{name} has no row{' with ' + wanted if wanted else ''}; correct where, or leave it out")
        # A wide table becomes a long one: the counts of one column after the other.
        kept = [column for column in frame.columns if column not in counts]
        return frame.unpivot(counts, index=kept, variable_name=_COLUMN, value_name=_COUNT), name


def _read(path: Path) -> pl.DataFrame:
    """Return a public file, CSV as text."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".parquet":
            return pl.read_parquet(path)
        return pl.read_csv(path, infer_schema=False, separator="\t" if path.suffix.lower() == ".tsv" else ",")
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise InputError(f"{path.name} does not read as CSV, TSV or Parquet: {shown(str(error))}") from None


def _numbered(frame: pl.DataFrame, name: str) -> pl.DataFrame:
    if taken := {_ROW, _COLUMN, _COUNT} & set(frame.columns):
        raise InputError(f"{name} has a column {min(taken)}; rename it")
    return frame.with_row_index(_ROW, offset=1)


@dataclass(frozen=True, eq=False)
class _Part:
    """The rows of one table."""

    table: PublishedTable
    rows: pl.DataFrame
    name: str

    def texts(self, name: str) -> list[str]:
        """Return an attribute's level in every row, as text."""
        if isinstance(self.table.value, str) or name != self.table.across:
            column = self.rows[self.table.levels[name]]
            return [str(text) for text in column.cast(pl.String).str.strip_chars().fill_null("").to_list()]
        return [str(self.table.value[column]) for column in self.rows[_COLUMN].to_list()]

    def numbers(self, column: str, *, gaps: bool = False) -> Floats:
        """Return a column of numbers, NaN where none stands and gaps are allowed."""
        given = self.rows[column]
        if given.dtype == pl.String:
            given = given.str.strip_chars()
            given = given.set(given == "", None)
        values = given.cast(pl.Float64, strict=False)
        wrong = ~values.is_finite().fill_null(False)
        if gaps:
            wrong &= given.is_not_null()
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            remedy = "leave it empty if a threshold held it back" if gaps else "give threshold if one held it back"
            raise InputError(f"{self._at(row, column)} must be a number, got {shown(given[row])}; {remedy}")
        return values.to_numpy().astype(np.float64)

    def _row(self, place: int) -> str:
        return f"{self.name}, row {self.rows[_ROW][place]}"

    def _at(self, place: int, column: str = _COUNT) -> str:
        return f"{self._row(place)}: {self.rows[_COLUMN][place] if column == _COUNT else column}"

    def attribute(self, name: str) -> Attribute:
        """Return an attribute with the levels that stand in the rows, in the order of their first."""
        if not isinstance(self.table.value, str) and name == self.table.across:
            return Attribute(name, tuple(self.table.value.values()))
        found = tuple(dict.fromkeys(self.texts(name)))
        if len(found) < 2:
            raise InputError(
                f"{self.name}: {self.table.levels[name]} has the one level {found[0]!r}; give its levels, or omit it"
            )
        return Attribute(name, found)

    def spreads(self) -> Floats:
        """Return the law's parameter of every row."""
        given = self.table.scale if self.table.scale is not None else self.table.variance
        what = "scale" if self.table.scale is not None else "variance"
        values = self.numbers(given) if isinstance(given, str) else np.full(len(self.rows), float(given or 0.0))
        if (wrong := ~(np.isfinite(values) & (values > 0))).any():
            place = int(wrong.argmax())
            where = self._row(place) if isinstance(given, str) else self.name
            raise InputError(f"{where}: {what} must be positive, got {values[place]:g}; state that of the noise")
        return values if what == "scale" else np.asarray(law_named(self.table.law).spread_of(values))

    def number(self) -> int | NoisyTotal:
        """Return the number of records that the one row gives."""
        exact = self.table.law == "exact"
        values = self.numbers(_COUNT) if exact else self._counts()
        if len(values) != 1:
            raise InputError(
                f"{self.name}: a table without levels is one number, the number of records, and {len(values)} rows are "
                "there; give levels, or where"
            )
        if exact:
            return _whole(values[0])
        law = law_named(self.table.law).of(float(self.spreads()[0]))
        return NoisyTotal(int(values[0]) if law.is_discrete else float(values[0]), law, None, None)

    def table_of(self, known: Mapping[str, Attribute]) -> NoisyTable:
        """Return the table over the attributes' levels."""
        domain, spreads = Domain(tuple(known[name] for name in self.table.names)), self.spreads()
        index = self._index(domain)
        counts = self._filled(domain, index, self._counts())
        largest, shape = float(spreads.max()), domain.shape
        own = np.full(domain.size, largest)
        own[index] = spreads
        law, cells = law_named(self.table.law).of(largest), None if spreads.min() == largest else own.reshape(shape)
        return NoisyTable(domain, counts.reshape(shape), law, None, None, cells, self.table.threshold)

    def _counts(self) -> Floats:
        """Return the counts, and refuse a fraction under a discrete law, and one below the threshold."""
        limit = self.table.threshold
        values = self.numbers(_COUNT, gaps=limit is not None)
        if limit is not None and (below := values < limit).any():
            place = int(below.argmax())
            raise InputError(
                f"{self._at(place)} is {values[place]:g}, below the threshold {limit:g}; a threshold is the least "
                "count that was published: correct it"
            )
        if law_named(self.table.law).is_discrete and (part := np.nan_to_num(values) % 1.0 != 0.0).any():
            place = int(part.argmax())
            raise InputError(
                f"{self._at(place)} is {values[place]:g}, and the law {self.table.law} is on whole numbers; "
                "state laplace or gaussian if the publisher did not round"
            )
        return values

    def _index(self, domain: Domain) -> npt.NDArray[np.intp]:
        """Return each row's cell, and refuse an unknown level and a cell that stands twice."""
        axes = []
        for attribute in domain:
            place = {str(level): k for k, level in enumerate(attribute.levels)}
            texts = self.texts(attribute.name)
            for row, text in enumerate(texts):
                if text not in place:
                    column = self.table.levels.get(attribute.name, "across")
                    raise InputError(
                        f"{self._at(row, column)} is {text!r}, which is no level of {attribute.name!r}; the levels "
                        f"are {shown(list(attribute.levels))}, and where leaves out rows of other tables"
                    )
            axes.append([place[text] for text in texts])
        index = np.ravel_multi_index(tuple(map(np.array, axes)), domain.shape)
        first, counts = np.unique(index, return_counts=True)
        if counts.max() > 1:
            former, row = np.flatnonzero(index == first[counts.argmax()])[:2].tolist()
            first_row = self.rows[_ROW][former]
            raise InputError(
                f"{self._row(row)} repeats the cell of row {first_row}; give where, so that each stands once"
            )
        return np.asarray(index)

    def _filled(self, domain: Domain, index: Any, values: Floats) -> npt.NDArray[Any]:
        """Return the counts of all cells; absent ones are held back where there is a threshold, else an error."""
        counts = np.full(domain.size, np.nan)
        counts[index] = values
        absent = np.isnan(counts)
        if absent.any() and self.table.threshold is None:
            labels = domain.cell_labels()
            some = [labels[k] for k in np.flatnonzero(absent)[:_MOST_SHOWN]]
            raise InputError(
                f"{self.name} lacks {absent.sum():,} of the {domain.size:,} cells of {' x '.join(domain.names)}: "
                f"{'; '.join(some)}{' ...' if absent.sum() > len(some) else ''}; give a threshold if counts below "
                "one were left out, or leave out the levels that the publisher does not release"
            )
        return counts if absent.any() or not law_named(self.table.law).is_discrete else counts.astype(np.int64)


def _whole(value: Any) -> int:
    """Return an exact number of records."""
    if isinstance(value, bool) or not math.isfinite(value) or value != math.floor(value) or value < 1:
        raise InputError(f"the exact number of records must be whole and positive, got {shown(value)}; correct total")
    return int(value)


def _total(found: Sequence[int | NoisyTotal], name: str) -> int | NoisyTotal:
    """Return the number of records: the exact one where there is one."""
    exact = {value for value in found if isinstance(value, int)}
    noisy = [value for value in found if isinstance(value, NoisyTotal)]
    if len(exact) > 1 or (len(noisy) > 1 and not exact):
        raise InputError(f"{name}: the number of records is given {len(found)} times; give it once")
    if not found:
        raise InputError(
            f"{name}: the number of records is not stated; give total, the published exact number, or a table without "
            "levels that holds the noisy number with its law"
        )
    return exact.pop() if exact else noisy[0]


def _check_total(tables: Sequence[NoisyTable], n: int, name: str) -> None:
    """Refuse an exact total that a table's sum cannot have come from."""
    for table in tables:
        if table.withheld.any():
            continue
        off, sd = float(table.counts.sum()) - n, math.sqrt(float(table.variances.sum()))
        if abs(off) > _FAR * sd:
            raise InputError(
                f"{name}: the counts of {table.label} sum to {table.counts.sum():,.0f}, and the number of records "
                f"is {n:,}: {abs(off) / sd:.0f} standard deviations of the noise apart; correct the total, or leave it "
                "out and give the noisy number"
            )
