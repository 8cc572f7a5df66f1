"""Random partitions of units, drawn without looking at the data, and what is counted of them."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack, get_args

import narwhals as nw
import numpy as np
import numpy.typing as npt

from dpbayes._arguments import generator, one_of, shown, whole_number
from dpbayes.errors import InputError

type Assignment = Literal["balanced", "independent"]
type IntArray = npt.NDArray[np.int64]


class Partitioned(TypedDict, total=False):
    """How rows come to partitions, besides their number."""

    unit: str | None
    """Column that names the unit whose privacy is protected, a person say. All of a unit's rows stay together. None:
    every row is its own unit."""
    assignment: Assignment
    """``"balanced"``, the default, for replace-one neighbours, ``"independent"`` for add-remove ones."""
    random_state: int | np.random.Generator | None
    """None for a release; a seed or generator for a simulation."""


@dataclass(frozen=True)
class PartitionCounts:
    """Exact counts of partitions: confidential until released.

    Parameters
    ----------
    beyond, not_beyond, not_computed
        S1, S0 and Se of the paper: how many partitions lie beyond the threshold, do not, or could not
        be computed. `InputError` if one is negative or not whole, or all are 0.
    assignment
        How units came to their partitions. ``"balanced"``: sizes differ by one at most, as fits
        replace-one neighbours; ``"independent"``: every unit by itself, as add-remove neighbours need.
    reproducible
        Whether the assignment came from a given seed or generator. Such counts are released in simulations only.
    unit
        Column of the protected unit: all rows that share its value stayed in one partition, and are one
        record. None: every row is a record of its own.

    Examples
    --------
    >>> PartitionCounts(41, 7, 2).n_partitions
    50
    """

    beyond: int
    not_beyond: int
    not_computed: int
    assignment: Assignment = "balanced"
    reproducible: bool = False
    unit: str | None = None

    def __post_init__(self) -> None:
        for name in ("beyond", "not_beyond", "not_computed"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise InputError(f"{name} must be a count of at least 0; it counts partitions")
            object.__setattr__(self, name, int(value))
        one_of(self.assignment, get_args(Assignment.__value__), "assignment")
        if self.unit is not None and not (isinstance(self.unit, str) and self.unit):
            raise InputError(f"unit must be the name of a column, or None for rows, got {self.unit!r}")
        check_n_partitions(self.n_partitions)

    @property
    def n_partitions(self) -> int:
        """M."""
        return self.beyond + self.not_beyond + self.not_computed

    def __repr__(self) -> str:
        # A notebook or a log shows reprs; exact counts must not reach it by accident.
        public = f"n_partitions={self.n_partitions}, assignment={self.assignment!r}, unit={self.unit!r}"
        return f"PartitionCounts(<confidential>, {public})"


def check_n_partitions(n_partitions: Any) -> int:
    """Return M if it is a whole number of at least 1."""
    return whole_number(n_partitions, "the number of partitions", remedy="50 is usual")


def assign_partitions(
    n_units: int,
    n_partitions: int,
    *,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
    strata: npt.NDArray[Any] | None = None,
) -> IntArray:
    """Assign each unit to one of M partitions at random."""
    check_n_partitions(n_partitions)
    if n_units < 1:
        raise InputError("there are no units to partition; the data are empty")
    rng = generator(random_state, "random_state")
    if one_of(assignment, get_args(Assignment.__value__), "assignment") == "independent":
        return rng.integers(0, n_partitions, size=n_units)
    if n_partitions > n_units:
        raise InputError(
            f"{shown(n_partitions)} partitions are more than the {n_units:,} units, and an empty one cannot be "
            "computed; choose at most as many partitions as units, and many fewer for a fit"
        )
    if strata is not None:
        # Shuffled, then by stratum: consecutive units go round the partitions, from a random one on.
        order = rng.permutation(n_units)
        order = order[np.argsort(strata[order], kind="stable")]
        out = np.empty(n_units, dtype=np.int64)
        out[order] = np.resize(rng.permutation(n_partitions), n_units)
        return out
    # Which partitions hold one unit more is drawn as well, so that no partition is larger by its number.
    dealt = np.resize(rng.permutation(n_partitions), n_units)
    return np.asarray(rng.permutation(dealt))


def unit_codes(units: npt.NDArray[Any]) -> tuple[IntArray, int]:
    """Return a code from 0 for the unit of each row, and the number of units; names are compared as text."""
    import pandas as pd

    if missing_units(units).any():
        raise InputError("the unit column holds a missing value; every row must name its unit")
    if units.dtype == object:
        # As an array of text each row would take as many bytes as the longest name.
        found, names = pd.factorize(units)
        as_text, n_units = _codes_of_text([str(name) for name in names])
        return as_text[found], n_units
    _, codes = np.unique(units, return_inverse=True)
    return codes.astype(np.int64), int(codes.max(initial=-1)) + 1


def _codes_of_text(names: list[str]) -> tuple[IntArray, int]:
    ordered = {name: code for code, name in enumerate(sorted(set(names)))}
    return np.array([ordered[name] for name in names], dtype=np.int64), len(ordered)


def missing_units(units: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where the name of a unit or of a group is missing."""
    if units.dtype.kind == "O":
        import pandas as pd

        return np.asarray(pd.isna(units))
    if units.dtype.kind in "Mm":
        return np.isnat(units)
    return np.isnan(units) if units.dtype.kind in "fc" else np.zeros(units.shape, dtype=bool)


def row_partitions(
    table: nw.DataFrame[Any],
    n_partitions: int,
    *,
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
    strata: str | None = None,
) -> IntArray:
    """Return the partition of every row; `strata` names a public column."""
    from dpbayes.verifier.formulas import column_values

    codes, n_units = (np.arange(len(table)), len(table)) if unit is None else unit_codes(column_values(table, unit))
    public = None if strata is None else _strata(column_values(table, strata), codes, n_units, strata, assignment)
    of_units = assign_partitions(n_units, n_partitions, assignment=assignment, random_state=random_state, strata=public)
    return of_units[codes]


def _strata(values: npt.NDArray[Any], codes: IntArray, n_units: int, name: str, assignment: Assignment) -> IntArray:
    """Return the stratum of each unit; refuse a column that differs between the rows of a unit."""
    if assignment != "balanced":
        raise InputError(f"strata = {name!r} balances partitions, as fits replace-one; leave it out under add-remove")
    of_rows, _ = unit_codes(values)
    of_units = np.empty(n_units, dtype=np.int64)
    of_units[codes] = of_rows
    if np.any(of_units[codes] != of_rows):
        raise InputError(f"strata = {name!r} differs between the rows of one unit; name a public column that does not")
    return of_units


def partition_slices(partition: IntArray, n_partitions: int) -> tuple[IntArray, IntArray]:
    """Return the row order by partition, and where each partition starts."""
    # NumPy sorts 16-bit integers by radix.
    keys = partition.astype(np.uint16) if n_partitions <= 1 << 16 else partition
    order = np.argsort(keys, kind="stable")
    return order, np.concatenate([[0], np.cumsum(np.bincount(partition, minlength=n_partitions))])


def count_verdicts(
    frame: Any,
    verdict: Callable[[nw.DataFrame[Any]], bool | None],
    n_partitions: int,
    **partitioned: Unpack[Partitioned],
) -> PartitionCounts:
    """Partition the rows, ask `verdict` of each partition's rows, and count; an empty partition is not computed."""
    from dpbayes.verifier.formulas import collect

    table = collect(frame)
    order, bounds = partition_slices(row_partitions(table, n_partitions, **partitioned), n_partitions)
    verdicts = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for first, last in itertools.pairwise(bounds):
            verdicts.append(verdict(table[np.sort(order[first:last])]) if last > first else None)
    return tally(verdicts, **partitioned)


def tally(
    verdicts: Sequence[bool | None],
    *,
    unit: str | None = None,
    assignment: Assignment = "balanced",
    random_state: int | np.random.Generator | None = None,
) -> PartitionCounts:
    """Count verdicts; a partition without one is not computed."""
    beyond, other, failed = (sum(verdict is one for verdict in verdicts) for one in (True, False, None))
    return PartitionCounts(beyond, other, failed, assignment, reproducible=random_state is not None, unit=unit)
