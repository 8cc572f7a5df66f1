"""Neighbouring datasets: what a privacy guarantee protects one of.

Two relations are in use and they are not interchangeable. Under *replace-one* two datasets of the same
size n differ in one record (a row, or the counted rows of one unit), and n is public. Under *add-remove*
one dataset holds one record more than the other, and n is protected. A guarantee names its relation, always.

A third relation labels privacy losses only. Under *one-position* two inputs to Bloom filters differ in one position,
whose bits may change in all filters: a person more or less changes one position, a person exchanged for another two.
So it is not replace-one, and no release of records and no ledger counts under it.
"""

import math
from typing import Any, Literal, get_args

from dpbayes._arguments import shown
from dpbayes.errors import InputError

Adjacency = Literal["replace-one", "add-remove"]
"""Neighbouring relations of records: what a release of records, or a ledger, counts under."""

Relation = Literal["replace-one", "add-remove", "one-position"]
"""Neighbouring relations that a privacy loss may be labelled with."""


def check_adjacency(value: Any) -> Adjacency:
    """Return `value` when it names a neighbouring relation."""
    return _named(value, get_args(Adjacency), "")


def check_relation(value: Any) -> Relation:
    """Return `value` when it names a relation that a privacy loss may be labelled with."""
    return _named(value, get_args(Relation), ", one-position for Bloom filters")


def _named(value: Any, known: tuple[str, ...], further: str) -> Any:
    if isinstance(value, str) and value in known:
        return value
    raise InputError(
        f"adjacency must be one of {', '.join(known)}, got {shown(value)}; choose replace-one when the number of "
        f"records is public, add-remove when it is not{further}"
    )


def l1_sensitivity_of_counts(adjacency: Adjacency) -> int:
    r"""Return the largest L1 change, in records, of one contingency table between neighbours.

    Every record falls in exactly one cell. Adding or removing one changes that cell by 1. Replacing a record moves it
    from one cell to another: the first loses 1 and the second gains 1, so the change is 2. For a workload of T tables
    it adds up to T times this number, because one person is in every table. `InputError` if there is no such relation.

    Examples
    --------
    >>> l1_sensitivity_of_counts("replace-one"), l1_sensitivity_of_counts("add-remove")
    (2, 1)
    """
    return 2 if check_adjacency(adjacency) == "replace-one" else 1


def l2_sensitivity_of_counts(adjacency: Adjacency) -> float:
    r"""Return the largest L2 change, in records, of one contingency table between neighbours.

    One entry of size 1 (add-remove) or two of them (replace-one), see `l1_sensitivity_of_counts`: 1 or
    :math:`\sqrt 2`, for which the double is not below it. For T tables multiply by :math:`\sqrt T`.

    Examples
    --------
    >>> l2_sensitivity_of_counts("add-remove")
    1.0
    """
    # The double nearest to sqrt(2) lies above it: its square exceeds 2.
    return math.sqrt(2.0) if check_adjacency(adjacency) == "replace-one" else 1.0
