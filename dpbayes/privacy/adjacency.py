"""Neighbouring datasets: what a privacy guarantee protects one of.

Under *replace-one* two datasets of the same size differ in one record (a row, or the counted rows of one unit), and n
is public. Under *add-remove* one dataset holds one record more, and n is protected. Losses of Bloom filters are
labelled *one-position*: no release of records and no ledger counts under it.
"""

import math
from typing import Any, Literal, get_args

from dpbayes._arguments import one_of

Adjacency = Literal["replace-one", "add-remove"]
"""Neighbouring relations of records: what a release of records, or a ledger, counts under."""

_REMEDY = "choose replace-one when the number of records is public, add-remove when it is not"

Relation = Literal["replace-one", "add-remove", "one-position"]
"""Neighbouring relations that a privacy loss may be labelled with."""


def check_adjacency(value: Any) -> Adjacency:
    """Return `value` when it names a neighbouring relation of records."""
    return one_of(value, get_args(Adjacency), "adjacency", remedy=_REMEDY)


def check_relation(value: Any) -> Relation:
    """Return `value` when it names a relation that a privacy loss may be labelled with."""
    return one_of(value, get_args(Relation), "adjacency", remedy=f"{_REMEDY}; one-position is for Bloom filters")


def l1_sensitivity_of_counts(adjacency: Adjacency) -> int:
    """Return the largest L1 change, in records, of one contingency table between neighbours; of T tables T times it.

    Adding or removing a record changes its cell by 1; replacing it takes 1 from one cell and adds 1 to another.

    Examples
    --------
    >>> l1_sensitivity_of_counts("replace-one"), l1_sensitivity_of_counts("add-remove")
    (2, 1)
    """
    return 2 if check_adjacency(adjacency) == "replace-one" else 1


def l2_sensitivity_of_counts(adjacency: Adjacency) -> float:
    r"""Return the largest L2 change, in records, of one table between neighbours; of T tables :math:`\sqrt T` times it.

    One entry of size 1 (add-remove) or two of them (replace-one): 1 or :math:`\sqrt 2`.

    Examples
    --------
    >>> l2_sensitivity_of_counts("add-remove")
    1.0
    """
    # The double nearest to sqrt(2) lies above it: its square exceeds 2.
    return math.sqrt(2.0) if check_adjacency(adjacency) == "replace-one" else 1.0


def sensitivity_of_counts(adjacency: Adjacency, *, pure: bool) -> float:
    """Return the largest change of one table in the norm that decides: L1 for a pure epsilon, L2 for zCDP."""
    return l1_sensitivity_of_counts(adjacency) if pure else l2_sensitivity_of_counts(adjacency)
