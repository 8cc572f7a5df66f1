r"""The custodian's side of Algorithm 2: count, and add noise under a budget split in four.

With :math:`\epsilon_0 = \epsilon/4`, each level (upper units, groups) releases its numbers of
records at :math:`\epsilon_0` and its workload W at :math:`\epsilon_0`, the workload's tables
sharing evenly: the scale is :math:`\lVert W\rVert_1 \Delta/\epsilon_0`, :math:`\lVert W\rVert_1`
the number of tables. What is protected, a row or all rows that share a value of a column, has at
most :math:`\Delta` rows, so that the L1 sensitivity of a table over all groups together is
:math:`\Delta`, wherever those rows lie; the cost is therefore :math:`\epsilon_0` per part and
:math:`4\epsilon_0 = \epsilon` in all (Theorem 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from dpbayes._arguments import instance, ordered, shown, whole_number
from dpbayes.data.domain import Attribute, Domain, Level
from dpbayes.data.tables import marginals
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.envelope import Enveloped, FileKind, expect
from dpbayes.privacy.laws import NoiseLaw, law_named
from dpbayes.privacy.mechanism import Part, reserve_draw_confirm, split_budget
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release
from dpbayes.privacy.sampling import release_values, sampler_name

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

type Sets = Sequence[Sequence[str]]

_PARTS = 4


@dataclass(frozen=True)
class Hierarchy:
    """Groups (such as PUMA and year) and the upper unit (such as the state) that each belongs to.

    Parameters
    ----------
    attribute
        Column that names the group of a confidential record.
    parent
        Group to upper unit. The list is public: it comes from a gazetteer, never from the confidential data.

    Examples
    --------
    >>> Hierarchy("tract", {"a1": "A", "a2": "A", "b1": "B"}).children("A")
    ('a1', 'a2')
    """

    attribute: str
    parent: Mapping[Any, Level]

    def __post_init__(self) -> None:
        instance(self.parent, Mapping, "parent", remedy="give {group: upper unit}")
        if not self.attribute or not self.parent:
            raise InputError("a hierarchy needs the name of the group's column and at least one group with its parent")
        object.__setattr__(self, "parent", dict(self.parent))
        names = [self.attribute, *(name for name in (*self.groups, *self.units) if not isinstance(name, int))]
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise InputError(f"the column, groups and units of a hierarchy must have names, got {shown(wrong[0])}")

    @property
    def groups(self) -> tuple[Level, ...]:
        """All groups, in order."""
        return tuple(self.parent)

    @property
    def units(self) -> tuple[Level, ...]:
        """All upper units, in order of first appearance."""
        return tuple(dict.fromkeys(self.parent.values()))

    @property
    def as_attribute(self) -> Attribute:
        """The group as an attribute of records."""
        return Attribute(self.attribute, self.groups)

    def children(self, unit: Level) -> tuple[Level, ...]:
        """Return the groups of an upper unit."""
        return tuple(group for group, parent in self.parent.items() if parent == unit)


@dataclass(frozen=True, eq=False)
class GroupRelease(Enveloped):
    """What leaves the custodian for Algorithm 2: a release for each upper unit and one for each group.

    Each holds the tables of one workload and the noisy number of records. Units, and groups, are disjoint, so that each
    level costs what its costliest release costs (parallel composition), and the two levels add up.

    Parameters
    ----------
    hierarchy
        The groups and their units.
    units, groups
        Releases by unit and by group, all under add-remove.
    unit
        The column whose equal values make rows one unit of privacy, such as a person; None where
        every row is one: neighbours differ in one row then.
    max_rows_per_unit
        Most rows of one unit (the paper's Delta).
    """

    hierarchy: Hierarchy
    units: Mapping[Level, Release]
    groups: Mapping[Level, Release]
    unit: str | None = None
    max_rows_per_unit: int = 1

    FILE: ClassVar[FileKind] = FileKind("dpbayes-group-release", "a release of groups")

    def __post_init__(self) -> None:
        instance(self.hierarchy, Hierarchy, "hierarchy", remedy="Hierarchy(attribute, parent) makes one")
        for level in (self.units, self.groups):
            parts = instance(level, Mapping, "units and groups", remedy="give {name: release}").values()
            ordered(parts, "releases", remedy="release_groups makes them", kind=Release)
        if set(self.units) != set(self.hierarchy.units) or set(self.groups) != set(self.hierarchy.groups):
            raise InputError("a group release holds exactly one release for each unit and each group of its hierarchy")
        if len({release.adjacency for release in [*self.units.values(), *self.groups.values()]}) != 1:
            raise InputError("all parts of a group release share one adjacency")
        for level in (self.units, self.groups):
            if len({tuple(table.domain for table in release.tables) for release in level.values()}) != 1:
                raise InputError("all units, and all groups, of a group release have the same tables")
        _check_unit(self.unit, self.max_rows_per_unit)

    @cached_property
    def epsilon(self) -> float:
        """Privacy-loss parameter of the whole, for one unit of privacy (Theorem 4.1)."""
        levels = ([release.epsilon for release in level.values()] for level in (self.units, self.groups))
        return math.fsum(max(math.inf if cost is None else cost for cost in level) for level in levels)

    @property
    def sampler(self) -> str:
        """What drew the noise."""
        return next(iter(self.groups.values())).sampler

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation, between units of privacy."""
        return check_adjacency(next(iter(self.groups.values())).adjacency)

    @property
    def protects(self) -> str:
        """What the guarantee speaks of, in words."""
        if self.unit is None:
            return "one row"
        return f"one unit of column {self.unit!r} (at most {self.max_rows_per_unit} of its rows counted)"

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What it cost, as a run records it."""
        return {
            "epsilon": self.epsilon,
            "adjacency": self.adjacency,
            "protects": self.protects,
            "max_rows_per_unit": self.max_rows_per_unit,
        }

    def _body(self) -> dict[str, Any]:
        return {
            "adjacency": self.adjacency,
            "sampler": self.sampler,
            "attribute": self.hierarchy.attribute,
            "unit": self.unit,
            "max_rows_per_unit": self.max_rows_per_unit,
            "units": [[unit, release.to_dict()] for unit, release in self.units.items()],
            "groups": [
                [group, self.hierarchy.parent[group], release.to_dict()] for group, release in self.groups.items()
            ],
        }

    @classmethod
    def _from_body(cls, body: dict[str, Any]) -> Self:
        keys = "adjacency sampler attribute unit max_rows_per_unit units groups"
        body = expect(body, keys, "a release of groups")
        return cls(
            Hierarchy(body["attribute"], {group: parent for group, parent, _ in body["groups"]}),
            {unit: Release.from_dict(part) for unit, part in body["units"]},
            {group: Release.from_dict(part) for group, _, part in body["groups"]},
            body["unit"],
            body["max_rows_per_unit"],
        )


def release_groups(
    frame: Any,
    hierarchy: Hierarchy,
    domain: Domain,
    *,
    unit_sets: Sets,
    group_sets: Sets,
    epsilon: float,
    unit: str | None = None,
    max_rows_per_unit: int = 1,
    noise: Literal["two-sided-geometric", "laplace"] = "two-sided-geometric",
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    purpose: str = "group marginals",
) -> GroupRelease:
    """Release what Algorithm 2 asks of the confidential data.

    Neighbouring data sets differ in one row, or in all rows of one `unit` (add-remove adjacency).

    Parameters
    ----------
    frame
        Confidential records: any frame that narwhals reads, with the group's column and the attributes.
    hierarchy
        Groups and units.
    domain
        The attributes besides the group.
    unit_sets
        Attributes of each table of the upper units' workload (the paper's W_S).
    group_sets
        Attributes of each table of the groups' workload (W_G).
    epsilon
        Total privacy-loss parameter, for one row or one unit.
    unit
        Column whose equal values make rows one unit of privacy, such as a person; not released.
        None protects one row, and a person with several rows less.
    max_rows_per_unit
        Most rows of one unit that are counted (the paper's Delta): which ones hangs on that unit's rows alone.
    noise
        The noise law; the paper's is Laplace, the geometric law is its exact form for counts.
    rng
        None draws a real release from OpenDP; a generator simulates, without guarantee.
    ledger
        Privacy-budget ledger in which all parts are reserved before any noise is drawn.
    purpose
        Public text for the ledger.

    Returns
    -------
    GroupRelease
        One release per upper unit and one per group.

    Raises
    ------
    InputError
        If a setting is out of range or a record's group is not in the hierarchy. No message shows a confidential value.
    MissingColumnError
        If the frame lacks the group's column, an attribute or `unit`.
    BudgetExceededError
        If the ledger has too little left; nothing is drawn then.

    Examples
    --------
    >>> import numpy as np
    >>> import polars as pl
    >>> from dpbayes.data import Domain
    >>> domain = Domain.from_levels({"x": ("n", "y"), "y": ("n", "y")})
    >>> frame = pl.DataFrame({"place": ["a", "b"] * 50, "x": ["n"] * 60 + ["y"] * 40, "y": ["n", "y", "y", "y"] * 25})
    >>> places = Hierarchy("place", {"a": "north", "b": "north"})
    >>> released = release_groups(
    ...     frame, places, domain, unit_sets=[["x", "y"]], group_sets=[["x"]], epsilon=8.0, rng=np.random.default_rng(1)
    ... )
    >>> released.epsilon, released.protects, list(released.groups)
    (8.0, 'one row', ['a', 'b'])
    """
    instance(hierarchy, Hierarchy, "hierarchy", remedy="Hierarchy(column, {group: upper unit})")
    instance(domain, Domain, "domain", remedy="Domain.from_levels makes one")
    _check(hierarchy, domain, unit_sets, group_sets)
    _check_unit(unit, max_rows_per_unit)
    part = split_budget(epsilon, None, _PARTS, part="part")[0]
    family, sensitivity = law_named(noise, pure=True), float(max_rows_per_unit)
    law = family.spending(part, sensitivity=sensitivity)
    table_laws = [family.spending(part / len(sets), sensitivity=sensitivity) for sets in (unit_sets, group_sets)]
    bound = {"unit": unit, "max_rows_per_unit": max_rows_per_unit}
    counted = _count(frame, hierarchy, domain, unit_sets, group_sets, bound)

    def draw() -> GroupRelease:
        levels = []
        for (sizes, tables), sets, table_law in zip(counted, (unit_sets, group_sets), table_laws, strict=True):
            costs = (float(part), float(part / len(sets)))
            levels.append(_noisy(sizes, tables, domain, sets, (law, table_law), costs, sensitivity, rng))
        units = dict(zip(hierarchy.units, levels[0], strict=True))
        groups = dict(zip(hierarchy.groups, levels[1], strict=True))
        return GroupRelease(hierarchy, units, groups, unit, max_rows_per_unit)

    # Disjoint units and groups cost once (parallel composition).
    laws = [law, *[table_laws[0]] * len(unit_sets), law, *[table_laws[1]] * len(group_sets)]
    return reserve_draw_confirm(
        draw,
        [Part(each, sensitivity) for each in laws],
        mechanism=noise,
        adjacency="add-remove",
        purpose=purpose,
        rng=rng,
        ledger=ledger,
    )


def _count(
    frame: Any, hierarchy: Hierarchy, domain: Domain, unit_sets: Sets, group_sets: Sets, bound: dict[str, Any]
) -> tuple[tuple[np.ndarray, list[np.ndarray]], ...]:
    """Count sizes and tables by upper unit and by group; first axis the unit or group."""
    whole = Domain((_attribute(hierarchy), *domain.attributes))
    name = hierarchy.attribute
    wanted = [(name,), *[(name, *names) for names in (*unit_sets, *group_sets)]]
    tables = [table.counts[: len(hierarchy.groups)] for table in marginals(frame, wanted, domain=whole, **bound)]
    membership = np.array([[hierarchy.parent[g] == unit for g in hierarchy.groups] for unit in hierarchy.units])
    merged = [np.tensordot(membership.astype(np.int64), table, axes=1) for table in tables[: 1 + len(unit_sets)]]
    return (merged[0], merged[1:]), (tables[0], tables[1 + len(unit_sets) :])


def _attribute(hierarchy: Hierarchy) -> Attribute:
    levels: tuple[Level, ...] = hierarchy.groups
    if len(levels) == 1:
        # An attribute needs two levels; no record has the second, which is cut off after counting.
        levels = (*levels, "no other group" if isinstance(levels[0], str) else levels[0] + 1)
    return Attribute(hierarchy.attribute, levels)


def _noisy(
    sizes: np.ndarray,
    tables: Sequence[np.ndarray],
    domain: Domain,
    sets: Sets,
    laws: tuple[NoiseLaw, NoiseLaw],
    costs: tuple[float, float],
    sensitivity: float,
    rng: np.random.Generator | None,
) -> list[Release]:
    """Add noise to one level at once and cut it into one release for each."""
    noisy_sizes = release_values(sizes, laws[0], rng=rng)
    noisy_tables = [release_values(table, laws[1], rng=rng) for table in tables]
    used = domain.project([name for name in domain.names if any(name in names for names in sets)])
    return [
        Release(
            used,
            tuple(
                NoisyTable(domain.project(names), table[place], laws[1], sensitivity, costs[1])
                for names, table in zip(sets, noisy_tables, strict=True)
            ),
            "add-remove",
            NoisyTotal(noisy_sizes[place].item(), laws[0], sensitivity, costs[0]),
            sampler_name(rng),
        )
        for place in range(len(sizes))
    ]


def _check(hierarchy: Hierarchy, domain: Domain, unit_sets: Sets, group_sets: Sets) -> None:
    if hierarchy.attribute in domain:
        raise InputError(f"{hierarchy.attribute!r} names the group; leave it out of the domain of attributes")
    for what, sets in (("unit_sets", unit_sets), ("group_sets", group_sets)):
        if isinstance(sets, str) or not sets or not all(sets) or any(isinstance(names, str) for names in sets):
            raise InputError(f"{what} must name at least one attribute per table, as lists of names, got {shown(sets)}")
        for names in sets:
            domain.axes(names)


def _check_unit(unit: str | None, max_rows_per_unit: int) -> None:
    whole_number(max_rows_per_unit, "max_rows_per_unit")
    if unit is None and max_rows_per_unit > 1:
        raise InputError(
            f"max_rows_per_unit = {max_rows_per_unit} without a unit: name the column whose equal values make rows one "
            "unit, or leave it out: each row is then one unit"
        )
