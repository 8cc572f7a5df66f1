"""Partitioning rows and counting verdicts."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from dpbayes.verifier.formulas import collect, column_values
from dpbayes.verifier.mechanism import Assignment, PartitionCounts
from dpbayes.verifier.partition import assign_partitions, unit_codes

__all__ = ["count_verdicts", "partition_slices", "row_partitions", "tally"]

type IntArray = npt.NDArray[np.int64]


def count_verdicts(
    frame: Any,
    verdict: Callable[[nw.DataFrame[Any]], bool | None],
    *,
    n_partitions: int,
    unit: str | None,
    assignment: Assignment,
    random_state: int | np.random.Generator | None,
) -> PartitionCounts:
    """Partition the rows, ask `verdict` of each partition's rows, and count; an empty partition is not computed.

    Warnings are silent: shown, they would tell about the partition that caused them.
    """
    table = collect(frame)
    partition = row_partitions(table, unit, n_partitions, assignment, random_state)
    order, bounds = partition_slices(partition, n_partitions)
    verdicts = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for first, last in itertools.pairwise(bounds):
            verdicts.append(verdict(table[np.sort(order[first:last])]) if last > first else None)
    return tally(verdicts, unit, assignment, random_state)


def tally(
    verdicts: Sequence[bool | None],
    unit: str | None,
    assignment: Assignment,
    random_state: int | np.random.Generator | None,
) -> PartitionCounts:
    """Count verdicts; a partition without one is not computed."""
    return PartitionCounts(
        sum(v is True for v in verdicts),
        sum(v is False for v in verdicts),
        sum(v is None for v in verdicts),
        assignment,
        reproducible=random_state is not None,
        unit=unit,
    )


def row_partitions(
    table: nw.DataFrame[Any],
    unit: str | None,
    n_partitions: int,
    assignment: Assignment,
    random_state: int | np.random.Generator | None,
) -> IntArray:
    """Return the partition of every row."""
    if unit is None:
        return assign_partitions(len(table), n_partitions, assignment=assignment, random_state=random_state)
    codes, n_units = unit_codes(column_values(table, unit))
    return assign_partitions(n_units, n_partitions, assignment=assignment, random_state=random_state)[codes]


def partition_slices(partition: IntArray, n_partitions: int) -> tuple[IntArray, IntArray]:
    """Return the row order by partition, and where each partition starts."""
    # NumPy sorts 16-bit integers by radix.
    keys = partition.astype(np.uint16) if n_partitions <= 1 << 16 else partition
    order = np.argsort(keys, kind="stable")
    return order, np.concatenate([[0], np.cumsum(np.bincount(partition, minlength=n_partitions))])
