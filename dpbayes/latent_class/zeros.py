r"""Structural zeros: combinations of levels that cannot occur, and a mixture conditioned on the others.

With Z the set of impossible cells, records come from

.. math:: P^*(x) = \frac{P(x)\, 1[x \notin Z]}{1 - P(Z)}, \qquad
          P^*(c) = \frac{P(c) - P(c \cap Z)}{1 - P(Z)}

for every margin cell c. Z is a union of margin cells; it is cut into disjoint ones, so that P(Z) and P(c ∩ Z) are
plain sums of a mixture's cell probabilities, and no table over the domain is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Ints, ordered
from dpbayes.errors import InputError

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain, Level
    from dpbayes.latent_class.design import Cell


type Impossible = Mapping[str, Level | Sequence[Level]]
"""A combination that cannot occur: for some attributes, a level or several."""

MAX_CELLS = 50_000  # whose probabilities are summed


@dataclass(frozen=True, eq=False)
class Sums:
    """Which probabilities a mixture must give, and where they go; the place ``len(cells)`` stands for none."""

    cells: tuple[Cell, ...]  # distinct
    own: npt.NDArray[np.intp]  # of each wanted cell its place; none where all of it is impossible
    lost: npt.NDArray[np.intp]  # of each wanted cell the places of its impossible parts, which are disjoint
    zero: npt.NDArray[np.intp]  # the places of the disjoint parts of Z


@dataclass(frozen=True, eq=False)
class ZeroSet:
    """The impossible cells of a domain, as disjoint margin cells."""

    domain: Domain
    cells: tuple[Cell, ...]

    @classmethod
    def of(cls, domain: Domain, impossible: Sequence[Impossible]) -> ZeroSet:
        """Cut a union of combinations into disjoint cells."""
        disjoint: list[dict[int, int]] = []
        remedy = "give a list of combinations, such as [{'age': ['<5'], 'job': ['yes']}]"
        for combination in ordered(impossible, "impossible", remedy=remedy):
            for cell in _expanded(domain, combination):
                parts = [cell]
                for other in disjoint:
                    parts = [rest for part in parts for rest in _minus(part, other, domain.shape)]
                disjoint += parts
                if len(disjoint) > MAX_CELLS:
                    raise InputError(
                        f"the impossible combinations fall into more than {MAX_CELLS:,} disjoint parts; name larger "
                        "ones, of fewer attributes"
                    )
        zeros = cls(domain, tuple(tuple(sorted(cell.items())) for cell in disjoint))
        if zeros.size >= domain.size:
            raise InputError("the impossible combinations leave no cell of the domain; take some back")
        return zeros

    @property
    def size(self) -> int:
        """Number of impossible cells of the full table."""
        return sum(map(self._size, self.cells))

    def plan(self, cells: Sequence[Cell]) -> Sums:
        """Return what must be summed for the conditional probabilities of some cells; at most 50,000 of them."""
        place: dict[Cell, int] = {}
        zero = [place.setdefault(cell, len(place)) for cell in self.cells]
        own: list[int | None] = []
        lost: list[list[int]] = []
        for cell in cells:
            met = [m for m in (_meet(cell, part) for part in self.cells) if m is not None]
            if sum(self._size(m) for m in met) == self._size(cell):  # none of it is possible: exactly zero
                own.append(None)
                lost.append([])
                continue
            own.append(place.setdefault(cell, len(place)))
            lost.append([place.setdefault(m, len(place)) for m in met])
            if len(place) > MAX_CELLS:
                raise InputError(
                    f"structural zeros in {len(self.cells):,} disjoint parts meet the {len(cells):,} cells of this "
                    f"release in more than {MAX_CELLS:,} places; release fewer tables or name larger combinations"
                )
        padded = np.full((len(cells), max(map(len, lost), default=0)), len(place), dtype=np.intp)
        for row, places in zip(padded, lost, strict=True):
            row[: len(places)] = places
        owned = np.array([len(place) if at is None else at for at in own], dtype=np.intp)
        return Sums(tuple(place), owned, padded, np.array(zero, dtype=np.intp))

    def _size(self, cell: Cell) -> int:
        """Return the number of cells of the full table in a margin cell."""
        return self.domain.size // math.prod(self.domain.shape[axis] for axis, _ in cell)

    def holds(self, records: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Say which records are impossible."""
        inside = np.zeros(len(records), dtype=bool)
        for cell in self.cells:
            inside |= np.all([records[:, axis] == level for axis, level in cell], axis=0)
        return inside

    def to_array(self) -> Ints:
        """Return one row per disjoint part: a level's index for each attribute, -1 where any level will do."""
        array = np.full((len(self.cells), len(self.domain)), -1, dtype=np.int64)
        for row, cell in zip(array, self.cells, strict=True):
            for axis, level in cell:
                row[axis] = level
        return array

    @classmethod
    def from_array(cls, domain: Domain, array: npt.ArrayLike) -> ZeroSet:
        """Read what `to_array` returned."""
        rows = np.asarray(array, dtype=np.int64)
        return cls(domain, tuple(tuple((int(a), int(row[a])) for a in np.flatnonzero(row >= 0)) for row in rows))


def conditioned(padded: Any, plan: Sums) -> Any:
    """Return the conditional probabilities of a plan's wanted cells from those of its cells and, at the end, a zero.

    Of one draw as a graph, or of many, shape ``(draws, cells)``.
    """
    kept = padded[..., plan.own] - padded[..., plan.lost].sum(axis=-1)
    return kept / (1.0 - padded[..., plan.zero].sum(axis=-1, keepdims=True))


def _expanded(domain: Domain, combination: Impossible) -> Iterator[dict[int, int]]:
    """Yield a combination's cells of single levels."""
    if not isinstance(combination, Mapping):
        raise InputError(
            "impossible is a list of combinations, each of attributes and their levels, such as "
            f"[{{'age': 'child', 'work': 'yes'}}]; got {combination!r} for a combination"
        )
    if not combination:
        raise InputError("an impossible combination names no attribute; it would rule out every record")
    axes, choices = [], []
    for name, given in combination.items():
        attribute = domain[name]
        levels = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        unknown = [level for level in levels if level not in attribute.levels]
        if unknown or not levels:
            raise InputError(f"impossible levels of {name!r} must be among {list(attribute.levels)!r}, got {levels!r}")
        axes.append(domain.axis(name))
        choices.append([attribute.levels.index(level) for level in dict.fromkeys(levels)])
    for levels_ in product(*choices):
        yield dict(zip(axes, levels_, strict=True))


def _minus(cell: dict[int, int], other: dict[int, int], shape: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield disjoint parts of a cell that lie outside another one."""
    if any(cell.get(axis, level) != level for axis, level in other.items()):
        yield cell
        return
    inside = dict(cell)
    for axis, level in other.items():
        if axis not in cell:
            for value in range(shape[axis]):
                if value != level:
                    yield inside | {axis: value}
            inside[axis] = level


def _meet(cell: Cell, other: Cell) -> Cell | None:
    """Return the cell where two cells meet, or None."""
    joined = dict(cell)
    for axis, level in other:
        if joined.setdefault(axis, level) != level:
            return None
    return tuple(sorted(joined.items()))
