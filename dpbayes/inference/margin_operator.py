r"""The linear map from one confidential table to its released margins.

All released tables are margins of one table, so their counts hold each other's totals in common: ten two-way tables of
five binary attributes have 40 counts but only 15 degrees of freedom beside n. `margin_operator` finds those degrees of
freedom for any set of k-way tables, and never builds the full table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbayes.data.domain import Domain
from dpbayes.errors import InputError

__all__ = ["Cell", "MarginOperator", "margin_operator", "only_pairs"]

type Cell = tuple[tuple[int, int], ...]
"""A cell of some margin: (axis, level) pairs, one an attribute, by ascending axis."""


@dataclass(frozen=True, eq=False)
class MarginOperator:
    r"""Margins as affine functions of independent counts.

    A level of each attribute, its first, is the baseline. The *effects* are the counts of the cells without a baseline
    level, over every attribute set that some released table contains. With :math:`m` the effects' counts,

    .. math:: \text{counts of all released cells} = n\, b + B\, m,

    where B (`matrix`) and b (`constant`) hold integers. B has full column rank, and its columns together with b span
    the column space of the map from the full table to the margins.

    Parameters
    ----------
    domain
        All attributes.
    axes
        The axes of each released table, in the order of the table's own axes.
    cells
        The released cells, table after table, each table in C order.
    effects
        The cells whose counts are the unknowns.
    matrix
        Integers (as float64), shape ``(len(cells), len(effects))``.
    constant
        Integers (as float64), shape ``(len(cells),)``.
    """

    domain: Domain
    axes: tuple[tuple[int, ...], ...]
    cells: tuple[Cell, ...]
    effects: tuple[Cell, ...]
    matrix: npt.NDArray[np.float64]
    constant: npt.NDArray[np.float64]

    @property
    def n_effects(self) -> int:
        """Number of degrees of freedom beside n."""
        return len(self.effects)

    @cached_property
    def tables(self) -> npt.NDArray[np.intp]:
        """Number of the table that each released cell belongs to."""
        sizes = [int(np.prod([self.domain.shape[axis] for axis in axes])) for axes in self.axes]
        return np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def intersections(self) -> tuple[tuple[Cell, ...], npt.NDArray[np.intp]]:
        """Cells where two effects meet, and which pair meets where.

        Returns
        -------
        cells : tuple of Cell
            Distinct intersections; an effect's own cell is its intersection with itself.
        position : array of int, shape ``(n_effects, n_effects)``
            Index into ``cells``; ``len(cells)`` where the effects name different levels of one attribute, so that no
            record is in both.
        """
        found: dict[Cell, int] = {}
        position = np.full((self.n_effects, self.n_effects), -1, dtype=np.intp)
        maps = [dict(effect) for effect in self.effects]
        for i, first in enumerate(maps):
            for j, second in enumerate(maps[: i + 1]):
                if all(first[axis] == second[axis] for axis in first.keys() & second.keys()):
                    cell = tuple(sorted((first | second).items()))
                    position[i, j] = position[j, i] = found.setdefault(cell, len(found))
        position[position == -1] = len(found)
        return tuple(found), position

    def counts(self, effects: npt.ArrayLike, n: float) -> npt.NDArray[np.float64]:
        """Return the counts of all released cells.

        Parameters
        ----------
        effects
            Counts of the effects, shape ``(..., n_effects)``.
        n
            Number of records.
        """
        return n * self.constant + np.asarray(effects, dtype=np.float64) @ self.matrix.T


def margin_operator(domain: Domain, attribute_sets: Sequence[Sequence[str]]) -> MarginOperator:
    """Find the independent counts behind a set of margins.

    Parameters
    ----------
    domain
        All attributes.
    attribute_sets
        The attributes of each margin, of any number, in the order of the margin's axes. A set may stand twice.

    Returns
    -------
    MarginOperator
        The map from independent counts to all margins.

    Raises
    ------
    InputError
        If there is no set, a set is empty, repeats an attribute, or names one that the domain lacks.

    Notes
    -----
    The two columns (1, 0, ...) and the indicators of the other levels span the functions of one attribute; their
    Kronecker products over a set span the functions of the set's cells; and a product that leaves an attribute out is
    shared by every set that holds the rest (the hierarchical log-linear basis; Lauritzen 1996, appendix B.2).

    Examples
    --------
    >>> domain = Domain.from_levels({"age": (0, 1), "sex": (0, 1), "vote": (0, 1, 2)})
    >>> operator = margin_operator(domain, [("age", "sex"), ("sex", "vote")])
    >>> len(operator.cells), operator.n_effects
    (10, 7)
    >>> operator.counts([60, 55, 20, 30, 31, 10, 12], n=100)[:4]  # age x sex; 31 have age=1 and sex=1
    array([16., 24., 29., 31.])
    """
    sets = [tuple(names) for names in attribute_sets]
    if not sets or not all(sets):
        raise InputError(f"a margin needs one attribute or more, got the attribute sets {sets!r}")
    for names in sets:
        if len(set(names)) < len(names):
            raise InputError(f"the margin {' x '.join(names)} repeats an attribute; name each once")
    axes = tuple(domain.axes(names) for names in sets)
    effects = _effects(axes, domain.shape)
    column = {effect: index for index, effect in enumerate(effects)}
    cells: list[Cell] = []
    blocks = []
    for table in axes:
        shape = [domain.shape[axis] for axis in table]
        cells += [_cell(table, levels) for levels in np.ndindex(*shape)]
        blocks.append(_block(table, shape, column))
    full = np.concatenate(blocks)
    return MarginOperator(domain, axes, tuple(cells), effects, full[:, :-1], full[:, -1])


def only_pairs(operator: MarginOperator) -> bool:
    """Return whether all attributes are binary and all margins of at most two of them.

    Parameters
    ----------
    operator
        The map from effects to released counts.

    Examples
    --------
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"a": (0, 1), "b": (0, 1), "c": (0, 1)})
    >>> only_pairs(margin_operator(domain, [("a", "b"), ("c",)])), only_pairs(margin_operator(domain, ["abc"]))
    (True, False)
    """
    return set(operator.domain.shape) == {2} and all(len(axes) <= 2 for axes in operator.axes)


def _cell(axes: Sequence[int], levels: Sequence[int]) -> Cell:
    return tuple(sorted(zip(axes, levels, strict=True)))


def _effects(axes: Sequence[tuple[int, ...]], shape: Sequence[int]) -> tuple[Cell, ...]:
    """Return the cells without a baseline level over every contained attribute set, the small sets first."""
    subsets = {s for table in axes for size in range(1, len(table) + 1) for s in combinations(sorted(table), size)}
    return tuple(
        _cell(subset, levels)
        for subset in sorted(subsets, key=lambda s: (len(s), s))
        for levels in product(*(range(1, shape[axis]) for axis in subset))
    )


def _block(axes: Sequence[int], shape: Sequence[int], column: dict[Cell, int]) -> npt.NDArray[np.float64]:
    """Return one table's rows over all effects, with the coefficient of n in the last column."""
    # Column 0 stands for "any level", column v for level v; the baseline is what the other levels leave.
    dense: npt.NDArray[Any] = np.ones((1, 1))
    for size in shape:
        factor = np.eye(size)
        factor[0, 1:] = -1.0
        dense = np.kron(dense, factor)
    block = np.zeros((len(dense), len(column) + 1))
    for source, levels in enumerate(np.ndindex(*shape)):
        kept = tuple(pair for pair in _cell(axes, levels) if pair[1] > 0)
        block[:, column[kept] if kept else -1] = dense[:, source]
    return block
