r"""Algorithm 2: what to ask of upper units and of groups, the custodian's release, and the analyst's records.

Each level releases its numbers of records and its workload's tables at :math:`\epsilon_0 = \epsilon/4` each: a table
over all groups together has the L1 sensitivity :math:`\Delta`, the most rows of what is protected, wherever those rows
lie, and the cost is :math:`4\epsilon_0 = \epsilon` in all (Theorem 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import batched, combinations
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from scipy.special import rel_entr

from dpbayes._arguments import Floats, Ints, instance, one_of, ordered, positive_finite, shown
from dpbayes._lazy import pl
from dpbayes.data.domain import Attribute, Domain, Level
from dpbayes.data.tables import marginals
from dpbayes.errors import InputError
from dpbayes.ide.estimation import Estimate, Method, estimated
from dpbayes.ide.noise_aware import measure
from dpbayes.ide.prior import Prior, Sets, column_type, records_of
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.envelope import Enveloped, FileKind, expect
from dpbayes.privacy.laws import law_named
from dpbayes.privacy.mechanism import Part, reserve_draw_confirm, split_budget
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release, check_unit, protected_words
from dpbayes.privacy.sampling import release_values, sampler_name

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

type Tables = list[tuple[str, ...]]
type Chosen = tuple[tuple[str, ...], ...]

_PARTS = 4
_SWEEPS = 2
# Groups of one unit that one job takes: they share the map from rows to cells.
_CHUNK = 32


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
        names = [self.attribute, *(name for name in (*self.groups, *self.units) if type(name) is not int)]
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise InputError(f"the column, groups and units of a hierarchy must have names, got {shown(wrong[0])}")
        if len({isinstance(group, str) for group in self.groups}) > 1:
            raise InputError(f"groups mix text and integers, got {shown(list(self.groups))}; make all of them text")

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


def choose_workloads(
    prior: Prior,
    hierarchy: Hierarchy,
    *,
    epsilon: float,
    max_rows_per_unit: int = 1,
    max_error: float = 0.2,
    max_information: float = 0.05,
) -> tuple[Chosen, Chosen]:
    r"""Choose both levels' tables (section 4.2) on the public data alone, for `release_groups`.

    Parameters
    ----------
    prior, hierarchy
        Public data, whose records stand for the confidential ones, and the groups and units.
    epsilon
        Total privacy-loss parameter of the release; a workload gets a quarter.
    max_rows_per_unit
        Most rows of one unit of privacy that are counted.
    max_error
        Largest expected L1 error of any chosen table, as a share of its records: K cells, of W tables and n records,
        have :math:`K \Delta W/(\epsilon_0 n)`.
    max_information
        Largest mutual information, with natural logarithms, between two attributes of the groups' workload.

    Returns
    -------
    unit_sets, group_sets : tuple of tuple of str
        For the units, who have many records: cliques of the strongest dependences (maximal ones, so that no table is a
        margin of another) and a one-way table of each attribute that is in none. For the groups, who have few: one-way
        tables of nearly independent attributes; the dependence between the others is taken from the prior.

    Raises
    ------
    InputError
        If not even the units' one-way tables meet the error.

    Examples
    --------
    >>> domain = Domain.from_levels({"x": (0, 1), "copy": (0, 1), "coin": (0, 1)})
    >>> prior = Prior(domain, [[0, 0, 0], [0, 0, 1], [1, 1, 0], [1, 1, 1]], [1, 1, 1, 1], n_records=1000)
    >>> choose_workloads(prior, Hierarchy("place", {"a": "north", "b": "north"}), epsilon=4.0)
    ((('x', 'copy'), ('coin',)), (('x',), ('coin',)))
    """
    instance(prior, Prior, "prior", remedy="Prior.from_frame makes one")
    given = {"epsilon": epsilon, "max_error": max_error, "max_information": max_information}
    for name, value in (given | {"max_rows_per_unit": max_rows_per_unit}).items():
        positive_finite(value, name, remedy="it decides how many tables are asked for")
    information, records = mutual_information(prior), prior.n_records or 1.0

    def error(tables: Tables, n_places: int) -> float:
        """Return the expected L1 error of the largest table, over the largest allowed."""
        cells = max(prior.domain.project(table).size for table in tables)
        return cells * max_rows_per_unit * len(tables) * _PARTS / (epsilon * records / n_places) / max_error

    names = prior.domain.names
    units = choose_cliques(names, information, lambda tables: error(tables, len(hierarchy.units)))
    roots: list[int] = []  # the most informative attributes of which all pairs are nearly independent
    for place in np.argsort(-information.sum(axis=1), kind="stable"):
        trial, near = [*roots, int(place)], np.all(information[place, roots] <= max_information)
        if not roots or (near and error([(names[i],) for i in trial], len(hierarchy.groups)) <= 1.0):
            roots = trial
    return units, tuple((names[i],) for i in roots)


def mutual_information(prior: Prior) -> Floats:
    """Measure the mutual information of every pair on public data, less its bias under independence (Miller, 1955)."""
    names = prior.domain.names
    if len(names) < 2:
        raise InputError(f"workloads need two attributes or more, got {list(names)!r}")
    information = np.zeros((len(names), len(names)))
    for i, j in combinations(range(len(names)), 2):
        joint = prior.marginal([names[i], names[j]])
        rows, columns = joint.sum(axis=1), joint.sum(axis=0)
        value = float(rel_entr(joint, np.outer(rows, columns)).sum())
        if prior.n_records is not None:
            value -= (np.count_nonzero(rows) - 1) * (np.count_nonzero(columns) - 1) / (2.0 * prior.n_records)
        information[i, j] = information[j, i] = max(value, 0.0)
    return information


def choose_cliques(names: Sequence[str], information: Floats, error: Callable[[Tables], float]) -> Chosen:
    """Choose maximal cliques of the strongest dependences within an error of 1, and what is in none."""
    chosen: Tables = [(name,) for name in names]
    if error(chosen) > 1.0:
        raise InputError(
            f"one-way tables of {len(chosen)} attributes have {error(chosen):.3g} times the expected L1 error "
            "that max_error allows; name fewer attributes, raise epsilon, or accept a larger error"
        )
    edges: set[tuple[str, ...]] = set()
    strongest = sorted(((information[i, j], i, j) for i, j in combinations(range(len(names)), 2)), reverse=True)
    for value, i, j in strongest:
        if value <= 0:
            break
        trial = edges | {(names[i], names[j])}
        tables = _maximal_cliques(names, trial)
        if error(tables) <= 1.0:
            edges, chosen = trial, tables
    return tuple(chosen)


def _maximal_cliques(names: Sequence[str], edges: set[tuple[str, ...]]) -> Tables:
    """Return the cliques of at most three that no other such clique contains; edges have the attributes' order."""
    pairs = [pair for pair in combinations(names, 2) if pair in edges]
    triples = [(*pair, name) for pair in pairs for name in names if all((one, name) in edges for one in pair)]
    cliques = [*triples, *pairs, *((name,) for name in names)]
    held = [set(clique) for clique in cliques]
    return [clique for clique, own in zip(cliques, held, strict=True) if not any(own < other for other in held)]


@dataclass(frozen=True, eq=False)
class GroupRelease(Enveloped):
    """What leaves the custodian for Algorithm 2: a release for each upper unit and one for each group.

    Each holds the tables of one workload and the noisy number of records, under add-remove. Units, and groups, are
    disjoint, so that each level costs what its costliest release costs (parallel composition), and the two levels add
    up. `unit` and `max_rows_per_unit` are those of `release_groups`.
    """

    hierarchy: Hierarchy
    units: Mapping[Level, Release]
    groups: Mapping[Level, Release]
    unit: str | None = None
    max_rows_per_unit: int = 1

    FILE: ClassVar[FileKind] = FileKind("dpbayes-group-release", "a release of groups")

    def __post_init__(self) -> None:
        instance(self.hierarchy, Hierarchy, "hierarchy", remedy="Hierarchy(attribute, parent) makes one")
        levels = self.units, self.groups
        for level in levels:
            parts = instance(level, Mapping, "units and groups", remedy="give {name: release}").values()
            ordered(parts, "releases", remedy="release_groups makes them", kind=Release)
        if set(self.units) != set(self.hierarchy.units) or set(self.groups) != set(self.hierarchy.groups):
            raise InputError("a group release holds exactly one release for each unit and each group of its hierarchy")
        if len({release.adjacency for level in levels for release in level.values()}) != 1:
            raise InputError("all parts of a group release share one adjacency")
        if any(len({tuple(t.domain for t in one.tables) for one in level.values()}) != 1 for level in levels):
            raise InputError("all units, and all groups, of a group release have the same tables")
        check_unit(self.unit, self.max_rows_per_unit)

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
        return protected_words(self.unit, self.max_rows_per_unit)

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What it cost, as a run records it."""
        record = {"epsilon": self.epsilon, "adjacency": self.adjacency, "protects": self.protects}
        return record | {"max_rows_per_unit": self.max_rows_per_unit}

    def _body(self) -> dict[str, Any]:
        parent = self.hierarchy.parent
        return {
            "adjacency": self.adjacency,
            "sampler": self.sampler,
            "attribute": self.hierarchy.attribute,
            "unit": self.unit,
            "max_rows_per_unit": self.max_rows_per_unit,
            "units": [[unit, release.to_dict()] for unit, release in self.units.items()],
            "groups": [[group, parent[group], release.to_dict()] for group, release in self.groups.items()],
        }

    @classmethod
    def _from_body(cls, body: dict[str, Any]) -> Self:
        body = expect(body, "adjacency sampler attribute unit max_rows_per_unit units groups", "a release of groups")
        hierarchy = Hierarchy(body["attribute"], {group: parent for group, parent, _ in body["groups"]})
        units = {unit: Release.from_dict(part) for unit, part in body["units"]}
        groups = {group: Release.from_dict(part) for group, _, part in body["groups"]}
        return cls(hierarchy, units, groups, body["unit"], body["max_rows_per_unit"])


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
    noise: str = "two-sided-geometric",
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
    hierarchy, domain
        Groups and units, and the attributes besides the group.
    unit_sets, group_sets
        Attributes of each table of the upper units' and of the groups' workload (the paper's W_S and W_G).
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
    ledger, purpose
        Privacy-budget ledger in which all parts are reserved before any noise is drawn, and public text for it.

    Returns
    -------
    GroupRelease
        One release per upper unit and one per group.

    Raises
    ------
    InputError, MissingColumnError
        If a setting is out of range, a column is missing, or a record's group is not in the hierarchy. No message shows
        a confidential value.
    BudgetExceededError
        If the ledger has too little left; nothing is drawn then.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> people = datasets.two_level_population(n_units=1, groups_per_unit=2)
    >>> places, sets = Hierarchy("group", people.parent), {"unit_sets": [["age", "work"]], "group_sets": [["age"]]}
    >>> rng = np.random.default_rng(1)  # a simulation
    >>> released = release_groups(people.private, places, people.domain, **sets, epsilon=8.0, rng=rng)
    >>> released.epsilon, released.protects, list(released.groups)
    (8.0, 'one row', ['A-1', 'A-2'])
    """
    instance(hierarchy, Hierarchy, "hierarchy", remedy="Hierarchy(column, {group: upper unit})")
    instance(domain, Domain, "domain", remedy="Domain.from_levels makes one")
    _check_sets(hierarchy, domain, unit_sets, group_sets)
    check_unit(unit, max_rows_per_unit)
    part = split_budget(epsilon, None, _PARTS, part="part")[0]
    family, sensitivity, workloads = law_named(noise, pure=True), float(max_rows_per_unit), (unit_sets, group_sets)
    law = family.spending(part, sensitivity=sensitivity)
    table_laws = [family.spending(part / len(sets), sensitivity=sensitivity) for sets in workloads]
    counted = _count(frame, hierarchy, domain, *workloads, {"unit": unit, "max_rows_per_unit": max_rows_per_unit})

    def draw() -> GroupRelease:
        levels: list[dict[Level, Release]] = []
        places = (hierarchy.units, hierarchy.groups), counted, workloads, table_laws
        for names, (sizes, tables), sets, table_law in zip(*places, strict=True):
            noisy = [release_values(sizes, law, rng=rng), *(release_values(t, table_law, rng=rng) for t in tables)]
            used = domain.project([name for name in domain.names if any(name in one for one in sets)])
            parts, noise = [domain.project(one) for one in sets], (table_law, sensitivity, float(part / len(sets)))
            levels.append({})
            for name, size, *rows in zip(names, *noisy, strict=True):
                total = NoisyTotal(size.item(), law, sensitivity, float(part))
                held = (NoisyTable(one, row, *noise) for one, row in zip(parts, rows, strict=True))
                levels[-1][name] = Release(used, tuple(held), "add-remove", total, sampler_name(rng))
        return GroupRelease(hierarchy, levels[0], levels[1], unit, max_rows_per_unit)

    # Disjoint units and groups cost once (parallel composition).
    laws = [[law] + [own] * len(sets) for own, sets in zip(table_laws, workloads, strict=True)]
    parts = [Part(each, sensitivity) for level in laws for each in level]
    return reserve_draw_confirm(
        draw, parts, mechanism=noise, adjacency="add-remove", purpose=purpose, rng=rng, ledger=ledger
    )


def _count(
    frame: Any, hierarchy: Hierarchy, domain: Domain, unit_sets: Sets, group_sets: Sets, bound: dict[str, Any]
) -> tuple[tuple[np.ndarray, list[np.ndarray]], ...]:
    """Count sizes and tables by upper unit and by group; first axis the unit or group."""
    name, (first, *others) = hierarchy.attribute, hierarchy.groups
    # An attribute needs two levels: no record has the second of a single group, which is cut off after counting.
    spare = "no other group" if isinstance(first, str) else first + 1
    whole = Domain((Attribute(name, (first, *(others or [spare]))), *domain.attributes))
    wanted = [(name,), *[(name, *names) for names in (*unit_sets, *group_sets)]]
    tables = [table.counts[: len(hierarchy.groups)] for table in marginals(frame, wanted, domain=whole, **bound)]
    membership = np.array([[hierarchy.parent[g] == unit for g in hierarchy.groups] for unit in hierarchy.units])
    merged = [np.tensordot(membership.astype(np.int64), table, axes=1) for table in tables[: 1 + len(unit_sets)]]
    return (merged[0], merged[1:]), (tables[0], tables[1 + len(unit_sets) :])


def _check_sets(hierarchy: Hierarchy, domain: Domain, unit_sets: Sets, group_sets: Sets) -> None:
    if hierarchy.attribute in domain:
        raise InputError(f"{hierarchy.attribute!r} names the group; leave it out of the domain of attributes")
    for what, sets in (("unit_sets", unit_sets), ("group_sets", group_sets)):
        if isinstance(sets, str) or not sets or not all(sets) or any(isinstance(names, str) for names in sets):
            raise InputError(f"{what} must name at least one attribute per table, as lists of names, got {shown(sets)}")
        for names in sets:
            domain.axes(names)


@dataclass(frozen=True, eq=False)
class GroupResult:
    """What was estimated for one group."""

    size: int
    records: npt.NDArray[np.int32]
    l1_loss: float
    kl: float
    gap: float


@dataclass(frozen=True, eq=False)
class GroupSynthesis:
    """Synthetic records of all groups: each unit's estimate, and each group's result on its unit's support."""

    hierarchy: Hierarchy
    units: Mapping[Level, Estimate]
    groups: Mapping[Level, GroupResult]

    @property
    def sizes(self) -> Ints:
        """Number of synthetic records of each group."""
        return np.array([result.size for result in self.groups.values()], dtype=np.int64)

    def frame(self) -> pl.DataFrame:
        """Return all synthetic records, the group's column first. Without any record the columns stand all the same."""
        kind, parts = column_type(self.hierarchy.groups), []
        for group, result in self.groups.items():
            prior = self.units[self.hierarchy.parent[group]].prior
            records = records_of(prior.domain, np.repeat(prior.codes, result.records, axis=0))
            parts.append(records.select(pl.lit(group, dtype=kind).alias(self.hierarchy.attribute), pl.all()))
        return pl.concat(parts)


def synthesize_groups(
    prior: Prior | Mapping[Level, Prior],
    released: GroupRelease,
    *,
    method: Method = "noise-aware",
    iterations: int | None = None,
    random_state: int = 1,
    n_jobs: int = 1,
) -> GroupSynthesis:
    """Draw synthetic records for every group of a hierarchy.

    Parameters
    ----------
    prior
        One prior for all units, or one a unit. It is taken as it is: a thin one may be strengthened first
        (`dpbayes.ide.credibility` and `pool`, without a grouping attribute).
    method
        ``"algorithm-1"`` as in the paper, all groups of a unit advancing together;
        ``"noise-aware"`` weighs the noise instead, group by group.
    iterations
        Algorithm 1: updates at each level; twice the number of tables by default, as the authors had it (section 4.2).
    random_state
        Seed of the updates' order and of the records drawn; it touches nothing confidential.
    n_jobs
        Processes that share the groups, by joblib; under ``joblib.parallel_config(backend="dask")`` a cluster's.

    Returns
    -------
    GroupSynthesis
        The same whatever `n_jobs`.

    Raises
    ------
    InputError
        If a unit has no prior, or a table is over an attribute that the prior lacks.

    Examples
    --------
    >>> from dpbayes.data import datasets
    >>> people = datasets.two_level_population(n_units=1, groups_per_unit=2)
    >>> places, sets = Hierarchy("group", people.parent), {"unit_sets": [["age", "work"]], "group_sets": [["age"]]}
    >>> rng = np.random.default_rng(1)
    >>> released = release_groups(people.private, places, people.domain, **sets, epsilon=8.0, rng=rng)
    >>> result = synthesize_groups(Prior.from_frame(people.public, people.domain), released)
    >>> list(result.groups), result.sizes.tolist()
    (['A-1', 'A-2'], [1004, 661])
    """
    instance(released, GroupRelease, "released", remedy="release_groups makes one")
    from joblib import Parallel, delayed, effective_n_jobs

    one_of(method, ("algorithm-1", "noise-aware"), "method")
    priors = dict.fromkeys(released.units, prior) if isinstance(prior, Prior) else prior
    if missing := [unit for unit in released.units if unit not in priors]:
        raise InputError(f"no prior for units {missing!r}; it has {[*priors]!r}: add them, or pass one prior for all")
    how: dict[str, Any] = {"method": method, "sweeps": _SWEEPS, "iterations": iterations, "random_state": random_state}
    units = {unit: estimated(measure(priors[unit], release), **how) for unit, release in released.units.items()}
    seeds = dict(zip(released.groups, np.random.SeedSequence(random_state).spawn(len(released.groups)), strict=True))
    below = {unit: batched(released.hierarchy.children(unit), _CHUNK) for unit in released.units}
    jobs = [(units[unit].distribution, chunk) for unit, chunks in below.items() for chunk in chunks]
    # More would only start: a thousand processes of one small study starve the machine.
    parts = Parallel(n_jobs=min(n_jobs, effective_n_jobs(-1)))(
        delayed(_run_chunk)(start, {group: (released.groups[group], seeds[group]) for group in chunk}, how)
        for start, chunk in jobs
    )
    found = {group: result for part in parts for group, result in part.items()}
    return GroupSynthesis(released.hierarchy, units, {group: found[group] for group in released.groups})


def _run_chunk(
    prior: Prior, given: Mapping[Level, tuple[Release, np.random.SeedSequence]], how: dict[str, Any]
) -> dict[Level, GroupResult]:
    """Estimate some groups of one unit, whose tables have the same map, and draw their records."""
    cells, results = None, {}
    for group, (release, seed) in given.items():
        # Algorithm 2 takes a group's number of records as released: rounded, at least 0.
        size = max(round(release.n.value if isinstance(release.n, NoisyTotal) else release.n), 0)
        measurements = measure(prior, release, cells=cells)
        cells = measurements.cells
        if how["method"] == "algorithm-1":
            measurements = replace(measurements, n=float(size))
        found = estimated(measurements, **how)
        records = np.random.default_rng(seed).multinomial(size, found.weights / found.weights.sum()).astype(np.int32)
        gap = np.nan if found.solution is None else found.solution.gap
        loss = measurements.l1_loss(found.weights) if size and found.n else np.nan
        results[group] = GroupResult(size, records, loss, found.kl, gap)
    return results
