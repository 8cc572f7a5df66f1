"""The margin operator against the full table, which it must never build."""

import itertools

import numpy as np
import pytest

from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.inference.margin_operator import margin_operator

DOMAIN = Domain.from_levels({"a": (0, 1), "b": (0, 1, 2), "c": (0, 1), "d": (0, 1, 2, 3)})
SETS = [
    [("a", "b"), ("b", "c"), ("c", "a")],
    [("b", "d"), ("a",), ("d", "b", "c")],
    [("d",)],
    [("a", "b", "c", "d")],
    [("a", "b"), ("c", "d"), ("b", "a")],
]


def _full_operator(domain, sets):
    """The 0/1 map from all cells of the full table to the margins' cells."""
    cells = list(np.ndindex(*domain.shape))
    rows = []
    for names in sets:
        axes = domain.axes(names)
        for levels in np.ndindex(*[domain.shape[axis] for axis in axes]):
            rows.append([all(cell[a] == v for a, v in zip(axes, levels, strict=True)) for cell in cells])
    return np.array(rows, dtype=float), cells


@pytest.mark.parametrize("sets", SETS)
def test_reproduces_every_margin_of_random_tables(sets):
    operator = margin_operator(DOMAIN, sets)
    full, cells = _full_operator(DOMAIN, sets)
    rng = np.random.default_rng(0)
    for _ in range(5):
        table = rng.integers(0, 9, len(cells))
        effects = [
            sum(t for t, c in zip(table, cells, strict=True) if all(c[a] == v for a, v in e)) for e in operator.effects
        ]
        np.testing.assert_array_equal(operator.counts(effects, table.sum()), full @ table)


@pytest.mark.parametrize("sets", SETS)
def test_has_no_redundant_direction(sets):
    operator = margin_operator(DOMAIN, sets)
    full, _ = _full_operator(DOMAIN, sets)
    with_n = np.column_stack([operator.constant, operator.matrix])
    assert np.linalg.matrix_rank(full) == operator.n_effects + 1 == np.linalg.matrix_rank(with_n)
    # The same column space, so that every table's margins can be reached and nothing else.
    assert np.linalg.matrix_rank(np.column_stack([full, with_n])) == operator.n_effects + 1


def test_dimension_of_all_pairs_of_sixteen_binary_attributes():
    domain = Domain.from_levels({f"x{i}": (0, 1) for i in range(16)})
    operator = margin_operator(domain, list(itertools.combinations(domain.names, 2)))
    assert (operator.n_effects, len(operator.cells)) == (16 + 120, 480)
    cells, position = operator.intersections
    # Two pairs span two, three or four attributes, and many of them the same.
    assert max(map(len, cells)) == 4
    assert len(cells) == 16 + 120 + 560 + 1820
    assert position.max() == len(cells) - 1  # all effects name the second level, so that none exclude one another


@pytest.mark.parametrize("sets", SETS)
def test_intersections_are_the_cells_that_two_effects_share(sets):
    operator = margin_operator(DOMAIN, sets)
    cells, position = operator.intersections
    inside = lambda record, cell: all(record[a] == v for a, v in cell)  # noqa: E731
    records = list(np.ndindex(*DOMAIN.shape))
    for i, first in enumerate(operator.effects):
        for j, second in enumerate(operator.effects):
            both = {r for r in records if inside(r, first) and inside(r, second)}
            where = position[i, j]
            if where == len(cells):
                assert not both
            else:
                assert both == {r for r in records if inside(r, cells[where])}


def test_tables_number_the_released_cells():
    operator = margin_operator(DOMAIN, [("a", "b"), ("c",)])
    assert operator.tables.tolist() == [0] * 6 + [1] * 2


@pytest.mark.parametrize(
    ("sets", "message"),
    [([], "one attribute or more"), ([()], "one attribute or more"), ([("a", "a")], "repeats"), ([("z",)], "'z'")],
)
def test_refuses_margins_that_are_none(sets, message):
    with pytest.raises(InputError, match=message):
        margin_operator(DOMAIN, sets)
