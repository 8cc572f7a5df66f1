"""Neighbouring relations: sensitivities by exhaustion, conversions refused."""

import itertools
import math

import numpy as np
import pytest

from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import (
    check_adjacency,
    check_relation,
    l1_sensitivity_of_counts,
    l2_sensitivity_of_counts,
)

RELATIONS = ["replace-one", "add-remove"]


def tables(cells, n):
    """Every contingency table of n records over `cells` cells."""
    return [np.array(t) for t in itertools.product(range(n + 1), repeat=cells) if sum(t) == n]


def neighbours(adjacency, cells, n):
    if adjacency == "add-remove":
        return [(a, a + unit) for a in tables(cells, n) for unit in np.eye(cells, dtype=int)]
    return [
        (a, a - np.eye(cells, dtype=int)[i] + np.eye(cells, dtype=int)[j])
        for a in tables(cells, n)
        for i in range(cells)
        for j in range(cells)
        if a[i] > 0
    ]


@pytest.mark.parametrize("adjacency", RELATIONS)
@pytest.mark.parametrize(("cells", "n"), [(2, 1), (4, 3)])
def test_sensitivities_are_the_maxima_over_all_neighbours(adjacency, cells, n):
    changes = [b - a for a, b in neighbours(adjacency, cells, n)]
    assert max(np.abs(c).sum() for c in changes) == l1_sensitivity_of_counts(adjacency)
    squared = max((c**2).sum() for c in changes)
    assert l2_sensitivity_of_counts(adjacency) == math.sqrt(squared)


def test_root_two_is_rounded_upwards():
    from fractions import Fraction

    assert Fraction(l2_sensitivity_of_counts("replace-one")) ** 2 >= 2


@pytest.mark.parametrize("bad", ["", "replace_one", "Replace-One", "bounded", None, 1, ["replace-one"]])
def test_unknown_relations_are_refused(bad):
    for call in (check_adjacency, l1_sensitivity_of_counts, l2_sensitivity_of_counts):
        with pytest.raises(InputError, match="'replace-one' or 'add-remove'") as caught:
            call(bad)
        assert repr(bad) in str(caught.value)


def test_one_position_labels_losses_and_neither_records_nor_ledgers():
    assert [check_relation(name) for name in (*RELATIONS, "one-position")] == [*RELATIONS, "one-position"]
    with pytest.raises(InputError, match="'replace-one', 'add-remove' or 'one-position', got 'two-position'"):
        check_relation("two-position")
    for call in (check_adjacency, l1_sensitivity_of_counts, l2_sensitivity_of_counts):
        with pytest.raises(InputError, match="got 'one-position'"):
            call("one-position")
