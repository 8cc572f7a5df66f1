"""What several runs have in common: tables of the same name, rows of the same meaning, columns of the same quantity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbayes.report.run_facts import Row, RunFacts, Scalar

__all__ = ["Interval", "SharedTable", "shared_caption", "shared_headline", "shared_tables"]

# A number as a caption prints it: 10, 1,000, 0.5, 1e-05; not the sign before it, nor a full stop after it.
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


@dataclass(frozen=True)
class Interval:
    """The three columns of an estimate with its interval."""

    estimate: str
    lower: str
    upper: str


@dataclass(frozen=True)
class SharedTable:
    """A table that every run has.

    Parameters
    ----------
    name
        Its key in ``facts.json``.
    keys
        The columns that say what a row is about.
    places
        What the rows are about: one tuple a row, the values of `keys`. Rows that only some runs have are left out.
    left_out
        How many distinct rows those are.
    quantities
        The columns of numbers.
    values
        Array ``(runs, rows, quantities)``; NaN where a run has no number.
    intervals
        Columns that belong together as estimate, lower and upper end.
    """

    name: str
    keys: tuple[str, ...]
    places: tuple[tuple[Scalar, ...], ...]
    left_out: int
    quantities: tuple[str, ...]
    values: npt.NDArray[np.float64]
    intervals: tuple[Interval, ...]

    def of(self, quantity: str) -> npt.NDArray[np.float64]:
        """Return one quantity, shape ``(runs, rows)``."""
        return self.values[:, :, self.quantities.index(quantity)]

    def width(self, interval: Interval) -> npt.NDArray[np.float64]:
        """Return the widths of an interval, shape ``(runs, rows)``."""
        return self.of(interval.upper) - self.of(interval.lower)

    @property
    def titles(self) -> list[str]:
        """What the rows are about, as text."""
        return [", ".join(str(part) for part in place) for place in self.places]


def shared_tables(runs: Sequence[RunFacts]) -> list[SharedTable]:
    """Return the tables that all runs have, with the rows and the columns of numbers that all of them share.

    Parameters
    ----------
    runs
        Two or more runs.

    Returns
    -------
    list of SharedTable
        In the order of the first run's page. A table of which nothing is shared is left out.
    """
    found = []
    for name in runs[0].tables:
        tables = [run.tables.get(name) for run in runs]
        if all(tables):
            shared = _shared(name, [list(table) for table in tables if table])
            if shared is not None:
                found.append(shared)
    return found


def shared_headline(runs: Sequence[RunFacts]) -> dict[str, list[float]]:
    """Return the numbers at the top of the pages that all runs have: name to one value a run."""
    names = [name for name in runs[0].headline if all(_is_number(run.headline.get(name)) for run in runs)]
    return {name: [float(run.headline[name] or 0) for run in runs] for name in names}


def shared_caption(runs: Sequence[RunFacts], name: str) -> str:
    """Return what the captions of a table say alike in all runs: numbers that differ give way to an ellipsis.

    Captions that differ in their words say nothing that is true of all runs, and the table's name stands for them.

    Examples
    --------
    >>> from pathlib import Path
    >>> captions = ("Noise for epsilon 1 at delta 1e-05.", "Noise for epsilon 10 at delta 1e-05.")
    >>> runs = [RunFacts(Path(c), c, {}, {"about": {"noise": {"caption": c}}}) for c in captions]
    >>> shared_caption(runs, "noise")
    'Noise for epsilon … at delta 1e-05.'
    """
    captions = [run.caption(name) for run in runs]
    words = {tuple(_NUMBER.split(caption)) for caption in captions}
    if len(words) > 1:
        return name.replace("_", " ").capitalize()
    numbers = zip(*(_NUMBER.findall(caption) for caption in captions), strict=True)
    kept = [row[0] if len(set(row)) == 1 else "…" for row in numbers]
    return "".join(part for pair in zip(words.pop(), [*kept, ""], strict=True) for part in pair)


def _shared(name: str, tables: Sequence[Sequence[Row]]) -> SharedTable | None:
    columns = [key for key in tables[0][0] if all(key in row for rows in tables for row in rows)]
    keys = _keys(columns, tables)
    if keys is None:
        return None
    maps = [{tuple(row[key] for key in keys): row for row in rows} for rows in tables]
    places = [place for place in maps[0] if all(place in other for other in maps)]
    quantities = [
        column
        for column in columns
        if column not in keys
        and all(row[column] is None or _is_number(row[column]) for one in maps for row in one.values())
        and any(_is_number(row[column]) for one in maps for row in one.values())
    ]
    if not places or not quantities:
        return None
    values = np.array([[[_number(one[place][q]) for q in quantities] for place in places] for one in maps])
    left_out = len({place for one in maps for place in one}) - len(places)
    return SharedTable(
        name, keys, tuple(places), left_out, tuple(quantities), values, _intervals(columns, quantities, values)
    )


def _keys(columns: Sequence[str], tables: Sequence[Sequence[Row]]) -> tuple[str, ...] | None:
    """Return the shortest run of leading columns that tells every row of every table from the others."""
    for count in range(len(columns) + 1):
        keys = tuple(columns[:count])
        if all(len({tuple(row[key] for key in keys) for row in rows}) == len(rows) for rows in tables):
            return keys
    return None


def _intervals(
    columns: Sequence[str], quantities: Sequence[str], values: npt.NDArray[np.float64]
) -> tuple[Interval, ...]:
    """Find columns named like ``x, x_lower, x_upper`` that stand together and contain each other in every row."""
    found = []
    for place, lower in enumerate(columns[1:-1], start=1):
        for low, high in (("lower", "upper"), ("low", "high")):
            upper = lower.removesuffix(low) + high
            triple = (columns[place - 1], lower, upper)
            if not lower.endswith(low) or columns[place + 1] != upper or not set(triple) <= set(quantities):
                continue
            middle, bottom, top = (values[:, :, quantities.index(column)] for column in triple)
            if np.all((bottom <= middle) & (middle <= top) | np.isnan(middle + bottom + top)):
                found.append(Interval(*triple))
    return tuple(found)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Scalar) -> float:
    return float(value) if isinstance(value, int | float) else np.nan
