r"""Structural zeros: combinations of levels that cannot occur, and a mixture conditioned on the others.

With Z the set of impossible cells, records come from :math:`P^*(x) \propto P(x)\, 1[x \notin Z]`. Attributes that zeros
tie together are one *unit*, whose levels are their possible combinations. Within a class units are independent, so that
the conditioned mixture is a mixture of products again,

.. math:: P^*(x) = \sum_h \pi^*_h \prod_u \psi^*_{hu}(x_u), \qquad
          \psi^*_{hu}(c) = \frac{1}{s_{hu}} \prod_{j \in u} \psi_{hj}(c_j), \qquad \pi^*_h \propto \pi_h \prod_u s_{hu},

with the sums :math:`s_{hu}` over a unit's combinations. Where these would be many, possible records are cut into
*cases* (children, others), each with fewer levels and less that is tied, and every class counts once in each case.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpbayes._arguments import Floats, Ints, ordered
from dpbayes.errors import InputError

if TYPE_CHECKING:
    from dpbayes.data.domain import Domain, Level
    from dpbayes.latent_class.design import Cell


type Impossible = Mapping[str, Level | Sequence[Level]]
"""A combination that cannot occur: for some attributes, a level or several."""
type Bools = npt.NDArray[np.bool_]
type Rule = frozenset[tuple[int, int]]  # a cell that is impossible, as (axis, level) pairs
type Case = tuple[list[set[int]], set[Rule]]  # the levels that each attribute may have, and what is impossible of them

MAX_CELLS = 50_000  # that may be declared impossible
MAX_PARTS = 20_000  # combinations of all units, times cases
_MOST_CASES = 64
_LISTED = 200_000  # combinations of a unit's levels that are looked at
_LIMITS = (32, 64, 128, 256, 512, 1024, 4096)  # of a unit's combinations, as tried: beyond it is cut into cases


@dataclass(frozen=True, eq=False)
class Support:
    """The possible records of a domain: all but a union of impossible margin `cells`.

    Of every unit its `axes` and `levels` (combination, axis), and which combinations are `allowed` in each case.
    """

    domain: Domain
    cells: tuple[Cell, ...]
    axes: tuple[tuple[int, ...], ...]
    levels: tuple[Ints, ...]
    allowed: tuple[Bools, ...]

    @classmethod
    def of(cls, domain: Domain, impossible: Sequence[Impossible] = ()) -> Support:
        """Read the combinations that are impossible."""
        remedy = "give a list of combinations, such as [{'age': ['<5'], 'job': ['yes']}]"
        found: dict[Cell, None] = {}
        for combination in ordered(impossible, "impossible", remedy=remedy):
            for cell in _expanded(domain, combination):
                found[tuple(sorted(cell.items()))] = None
                if len(found) > MAX_CELLS:
                    raise InputError(
                        f"the impossible combinations are more than {MAX_CELLS:,} cells; name larger ones, of fewer "
                        "attributes"
                    )
        return cls._without(domain, tuple(found))

    @classmethod
    def _without(cls, domain: Domain, cells: tuple[Cell, ...]) -> Support:
        """Cut what is possible into units and cases, in the cheapest of a few ways."""
        start: Case = [set(range(size)) for size in domain.shape], set(map(frozenset, cells))
        best: Support | None = None
        for limit in _LIMITS if cells else _LIMITS[:1]:
            cases = list(islice(_cases(start, limit), _MOST_CASES + 1))
            if not cases:
                raise InputError("the impossible combinations leave no cell of the domain; take some back")
            units = _units(cases)
            parts = [found for found in (_combinations(cases, unit) for unit in units) if found is not None]
            if len(cases) > _MOST_CASES or len(parts) < len(units):
                continue
            levels, allowed = zip(*parts, strict=True)
            made = cls(domain, cells, units, levels, allowed)
            best = made if best is None or made._work < best._work else best
        if best is None or best.n_parts > MAX_PARTS:
            tied = ", ".join(domain.names[axis] for axis in sorted({axis for cell in cells for axis, _ in cell}))
            raise InputError(
                f"the impossible combinations tie {tied} together in more than {MAX_PARTS:,} ways; declare fewer, of "
                "fewer attributes"
            )
        return best

    @property
    def n_cases(self) -> int:
        """Number of cases."""
        return len(self.allowed[0])

    @property
    def n_parts(self) -> int:
        """Number of all units' combinations, times that of cases: what a class takes of memory and time."""
        return self.n_cases * sum(map(len, self.levels))

    @property
    def _work(self) -> float:
        """What a class takes in time, in combinations: a gradient has ten cells of all pairs for one of them."""
        return self.n_parts + self.n_cases * sum(self.domain.shape) ** 2 / 20

    @property
    def n_impossible(self) -> int:
        """Number of impossible cells of the full table."""
        each = [own.sum(axis=1).tolist() for own in self.allowed]
        return self.domain.size - sum(math.prod(case) for case in zip(*each, strict=True))

    @cached_property
    def _restricted(self) -> tuple[int, ...]:
        """The units of which not all is possible."""
        shape = self.domain.shape
        sizes = [math.prod(shape[axis] for axis in unit) for unit in self.axes]
        return tuple(u for u, own in enumerate(self.allowed) if own.shape[1] < sizes[u] or not own.all())

    def coords(self, n_classes: int) -> dict[str, list[str]]:
        """Return labels of classes in cases, and of units' combinations, where some records are impossible."""
        if not self.cells:
            return {}
        cases = [f"case {case}, class {h}" for case in range(self.n_cases) for h in range(n_classes)]
        labels = []
        for unit, levels in zip(self.axes, self.levels, strict=True):
            of = [self.domain.attributes[axis] for axis in unit]
            for own in levels:
                labels.append(", ".join(f"{one.name}={one.levels[level]}" for one, level in zip(of, own, strict=True)))
        return {"case": cases, "combination": labels}

    def conditioned(
        self, weights: Floats, profiles: Sequence[Floats], axes: Sequence[int] | None = None
    ) -> tuple[Floats, list[Floats | None]]:
        """Return draws of weights ``(draws, cases x classes)`` and of units' profiles (``..., combinations``).

        From those of all attributes, unconditioned; None of units that have none of the `axes`, if these are given.
        """
        draws, k = weights.shape
        chance, found = np.repeat(weights[:, None], self.n_cases, axis=1), list[Floats | None]()
        for place, (unit, levels, allowed) in enumerate(zip(self.axes, self.levels, self.allowed, strict=True)):
            wanted = axes is None or bool(set(axes) & set(unit))
            if place not in self._restricted:
                found.append(np.tile(profiles[unit[0]], (1, self.n_cases, 1)) if wanted else None)
                continue
            joint = reduce(np.multiply, [profiles[axis][..., own] for axis, own in zip(unit, levels.T, strict=True)])
            own = joint[:, None] * allowed[:, None]
            total = own.sum(axis=-1)
            chance = chance * total
            shares = own / np.maximum(total, np.finfo(float).tiny)[..., None]
            found.append(shares.reshape(draws, self.n_cases * k, -1) if wanted else None)
        chance = chance.reshape(draws, -1)
        return chance / chance.sum(axis=1, keepdims=True), found

    def margin(self, weights: Floats, profiles: Sequence[Floats | None], axes: Sequence[int]) -> Floats:
        """Return a margin's probabilities in C order, ``(draws, cells)``, from what `conditioned` returns."""
        order, factors = list[int](), list[Floats]()
        for unit, levels, values in zip(self.axes, self.levels, profiles, strict=True):
            own = [axis for axis in axes if axis in unit]
            if own and values is not None:
                order += own
                whole = len(unit) == 1 and len(levels) == self.domain.shape[unit[0]]
                factors.append(values if whole else values @ self._sums(unit, levels, own))
        # A cell is a product of two parts, whose sum over the classes is a product of matrices.
        sizes = [factor.shape[-1] for factor in factors]
        cut = min(range(len(sizes)), key=lambda place: math.prod(sizes[:place]) + math.prod(sizes[place:]))
        left, right = (reduce(_outer, part, np.ones((*weights.shape, 1))) for part in (factors[:cut], factors[cut:]))
        cells = np.matmul(np.swapaxes(left * weights[:, :, None], 1, 2), right)
        cells = cells.reshape(len(weights), *(self.domain.shape[axis] for axis in order))
        return np.transpose(cells, (0, *(1 + order.index(axis) for axis in axes))).reshape(len(weights), -1)

    def _sums(self, unit: Sequence[int], levels: Ints, own: Sequence[int]) -> Floats:
        """Return what sums a unit's combinations to the cells of some of its attributes, in their order."""
        shape = [self.domain.shape[axis] for axis in own]
        cells = np.ravel_multi_index(tuple(levels[:, unit.index(axis)] for axis in own), shape)
        return np.eye(math.prod(shape))[cells]

    def possible(self, names: Sequence[str]) -> Bools:
        """Say which cells of a margin are possible, in C order."""
        counts = self.margin(np.ones((1, self.n_cases)), [own[None].astype(float) for own in self.allowed],
                             self.domain.axes(names))  # fmt: skip
        return np.asarray(counts[0] > 0.0)

    def records(self, combinations: Sequence[Ints]) -> Ints:
        """Return records, a level for each attribute, from the number of every unit's combination."""
        found = np.empty((len(combinations[0]), len(self.domain)), dtype=np.intp)
        for unit, levels, own in zip(self.axes, self.levels, combinations, strict=True):
            found[:, unit] = levels[own]
        return found

    def to_array(self) -> Ints:
        """Return one row per impossible cell: a level's index for each attribute, -1 where any level will do."""
        array = np.full((len(self.cells), len(self.domain)), -1, dtype=np.int64)
        for row, cell in zip(array, self.cells, strict=True):
            for axis, level in cell:
                row[axis] = level
        return array

    @classmethod
    def from_array(cls, domain: Domain, array: npt.ArrayLike) -> Support:
        """Read what `to_array` returned."""
        rows = np.asarray(array, dtype=np.int64)
        cells = (tuple((int(axis), int(row[axis])) for axis in np.flatnonzero(row >= 0)) for row in rows)
        return cls._without(domain, tuple(cells))


def _outer(a: Any, b: Any) -> Any:
    """Return products of all entries of two last axes."""
    return (a[..., None] * b[..., None, :]).reshape(*a.shape[:-1], -1)


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


# --- cutting into cases ----------------------------------------------------------------------------------------------


def _cases(case: Case, limit: int) -> Iterator[Case]:
    """Cut a case by an attribute's levels until no unit has more combinations than the limit."""
    levels, rules = _simplified(*case)
    if levels is None:
        return
    large = [unit for unit in _tied(rules) if _listed(levels, rules, unit, limit) is None]
    if not large:
        yield levels, rules
        return
    # By the attribute that most rules are of, as all are of a person's age where children have no job, wage or spouse.
    axis = max(large[0], key=lambda one: sum(any(a == one for a, _ in rule) for rule in rules))
    others = {rule for rule in rules if all(a != axis for a, _ in rule)}
    for rests, own in _patterns(levels[axis], rules, axis).items():
        parts = [own if place == axis else set(given) for place, given in enumerate(levels)]
        yield from _cases((parts, others | rests), limit)


def _simplified(levels: Sequence[set[int]], rules: set[Rule]) -> tuple[list[set[int]] | None, set[Rule]]:
    """Drop rules of levels that are out, and what holds of every level; None if no record is left."""
    levels = [set(own) for own in levels]
    while True:
        rules = {rule for rule in rules if all(level in levels[axis] for axis, level in rule)}
        rules = {frozenset(one for one in rule if len(levels[one[0]]) > 1) for rule in rules}
        alone = [next(iter(rule)) for rule in rules if len(rule) == 1]
        if frozenset() in rules:
            return None, set()
        for axis, level in alone:
            levels[axis].discard(level)
        if alone:
            if not all(levels):
                return None, set()
            continue
        seen: dict[tuple[int, Rule], set[int]] = {}
        for rule in rules:
            for one in rule:
                seen.setdefault((one[0], rule - {one}), set()).add(one[1])
        always = {(axis, rest) for (axis, rest), own in seen.items() if own == levels[axis]}
        if not always:
            return levels, rules
        covered = {rest | {(axis, level)} for axis, rest in always for level in levels[axis]}
        rules = (rules - covered) | {rest for _, rest in always}


def _patterns(levels: set[int], rules: set[Rule], axis: int) -> dict[frozenset[Rule], set[int]]:
    """Group an attribute's levels by what each of them makes impossible."""
    rests: dict[int, set[Rule]] = {level: set() for level in levels}
    for rule in rules:
        for one in rule:
            if one[0] == axis:
                rests[one[1]].add(rule - {one})
    found: dict[frozenset[Rule], set[int]] = {}
    for level, own in rests.items():
        found.setdefault(frozenset(own), set()).add(level)
    return found


def _tied(rules: Iterable[Iterable[tuple[int, int]]]) -> list[tuple[int, ...]]:
    """Return the sets of attributes that rules tie together."""
    units: list[set[int]] = []
    for rule in rules:
        joined = {axis for axis, _ in rule}
        apart = [unit for unit in units if not unit & joined]
        units = [*apart, joined.union(*(unit for unit in units if unit & joined))]
    return sorted(tuple(sorted(unit)) for unit in units)


def _listed(levels: Sequence[set[int]], rules: set[Rule], unit: Sequence[int], limit: int) -> Ints | None:
    """Return the possible combinations of a unit in a case, or None if they are too many."""
    choices = [np.array(sorted(levels[axis])) for axis in unit]
    if math.prod(map(len, choices)) > _LISTED:
        return None
    rows = np.stack(np.meshgrid(*choices, indexing="ij"), axis=-1).reshape(-1, len(unit))
    kept = np.ones(len(rows), dtype=bool)
    for rule in rules:
        if all(axis in unit for axis, _ in rule):
            kept &= ~np.all([rows[:, unit.index(axis)] == level for axis, level in rule], axis=0)
    return rows[kept] if kept.sum() <= limit else None


def _units(cases: Sequence[Case]) -> tuple[tuple[int, ...], ...]:
    """Return units that hold what is tied in any case, every attribute in one of them."""
    alone = [[(axis, 0)] for axis in range(len(cases[0][0]))]
    return tuple(_tied([*alone, *(rule for _, rules in cases for rule in rules)]))


def _combinations(cases: Sequence[Case], unit: tuple[int, ...]) -> tuple[Ints, Bools] | None:
    """Return a unit's combinations that are possible in some case, and in which; None if they are too many."""
    listed = [_listed(levels, rules, unit, MAX_PARTS) for levels, rules in cases]
    if any(own is None for own in listed):
        return None
    rows = [own for own in listed if own is not None]
    found, place = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
    allowed = np.zeros((len(cases), len(found)), dtype=bool)
    allowed[np.repeat(np.arange(len(cases)), list(map(len, rows))), place.ravel()] = True
    return found, allowed
