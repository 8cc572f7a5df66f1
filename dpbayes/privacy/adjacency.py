"""Neighbouring datasets: what a privacy guarantee protects one of.

Two relations are in use and they are not interchangeable. Under *replace-one* two datasets of the same
size n differ in one record (a row, or the counted rows of one unit), and n is public. Under *add-remove*
one dataset holds one record more than the other, and n is protected. A guarantee names its relation, always.

A third relation labels privacy losses only. Under *one-position* two inputs to Bloom filters differ in one position,
whose bits may change in all filters: a person more or less changes one position, a person exchanged for another two.
So it is not replace-one, and no release of records and no ledger counts under it.
"""

import math
from fractions import Fraction
from typing import Any, Literal, get_args

from dpbayes._arguments import positive_finite, shown
from dpbayes.errors import InputError
from dpbayes.privacy.rounding import float_up

Adjacency = Literal["replace-one", "add-remove"]
"""Neighbouring relations of records: what a release of records, or a ledger, counts under."""

Relation = Literal["replace-one", "add-remove", "one-position"]
"""Neighbouring relations that a privacy loss may be labelled with."""

_KNOWN: tuple[str, ...] = get_args(Adjacency)
_RELATIONS: tuple[str, ...] = get_args(Relation)

# The double nearest to sqrt(2) lies above it (its square exceeds 2), so it is a valid bound.
_SQRT2_UP = math.sqrt(2.0)


def check_adjacency(value: Any) -> Adjacency:
    """Return `value` when it names a neighbouring relation."""
    if isinstance(value, str) and value in _KNOWN:
        return value  # type: ignore[return-value]
    raise InputError(
        f"adjacency must be one of {', '.join(_KNOWN)}, got {shown(value)}; choose replace-one when the number of "
        "records is public, add-remove when it is not"
    )


def check_relation(value: Any) -> Relation:
    """Return `value` when it names a relation that a privacy loss may be labelled with."""
    if isinstance(value, str) and value in _RELATIONS:
        return value  # type: ignore[return-value]
    raise InputError(
        f"adjacency must be one of {', '.join(_RELATIONS)}, got {shown(value)}; choose replace-one when the number of "
        "records is public, add-remove when it is not, one-position for Bloom filters"
    )


def l1_sensitivity_of_counts(adjacency: Adjacency) -> int:
    r"""Return the largest L1 change of one contingency table between neighbours.

    Every record falls in exactly one cell. Adding or removing a record changes that cell by 1, so
    :math:`\|h(D) - h(D')\|_1 = 1`. Replacing a record moves it from one cell to another (or leaves it): the first
    loses 1 and the second gains 1, so the change is at most 2, and is 2 as soon as the table has two cells. For a
    workload of T tables the change adds up to T times this number, because one person is in every table.

    Parameters
    ----------
    adjacency
        The neighbouring relation.

    Returns
    -------
    int
        2 under replace-one, 1 under add-remove; unit: records.

    Raises
    ------
    InputError
        If `adjacency` names no relation.

    Examples
    --------
    >>> l1_sensitivity_of_counts("replace-one"), l1_sensitivity_of_counts("add-remove")
    (2, 1)
    """
    return 2 if check_adjacency(adjacency) == "replace-one" else 1


def l2_sensitivity_of_counts(adjacency: Adjacency) -> float:
    r"""Return the largest L2 change of one contingency table between neighbours.

    The change is one entry of size 1 (add-remove) or two entries of size 1 (replace-one), see
    `l1_sensitivity_of_counts`; its Euclidean length is 1 or :math:`\sqrt 2`. For T tables multiply by
    :math:`\sqrt T`. The double returned for :math:`\sqrt 2` is not below it.

    Parameters
    ----------
    adjacency
        The neighbouring relation.

    Returns
    -------
    float
        sqrt(2) under replace-one, 1 under add-remove; unit: records.

    Raises
    ------
    InputError
        If `adjacency` names no relation.

    Examples
    --------
    >>> l2_sensitivity_of_counts("add-remove")
    1.0
    """
    return _SQRT2_UP if check_adjacency(adjacency) == "replace-one" else 1.0


def convert_epsilon(epsilon: float, *, source: Adjacency, target: Adjacency) -> float:
    r"""Return `epsilon` when both relations are the same; refuse otherwise, as no exact conversion exists."""
    cost = positive_finite(epsilon, "epsilon", remedy="it is a privacy cost under the source adjacency")
    if check_adjacency(source) == check_adjacency(target):
        return cost
    if target == "replace-one":
        bound = float_up(2 * Fraction(cost))
        why = f"group privacy only bounds the replace-one cost by {bound:g}, and the mechanism may cost less"
    else:
        why = "a replace-one guarantee says nothing about datasets of different size"
    raise InputError(
        f"epsilon {cost:g} under {source} has no exact equivalent under {target}: {why}; derive the mechanism's cost "
        f"under {target} from its own sensitivity (a contingency table: l1_sensitivity_of_counts({target!r}))"
    )
