r"""The custodian's side of Algorithm 2: count, and add noise under a budget split in four.

With :math:`\epsilon_0 = \epsilon/4`, each level (upper units, groups) releases its numbers of records at
:math:`\epsilon_0` and its workload W at :math:`\epsilon_0`, the workload's tables sharing evenly: the scale is
:math:`\lVert W\rVert_1 \Delta/\epsilon_0`, :math:`\lVert W\rVert_1` the number of tables. One individual has at most
:math:`\Delta` records, so that the L1 sensitivity of a table over all groups together is :math:`\Delta`, wherever those
records lie; the cost is therefore :math:`\epsilon_0` a part and :math:`4\epsilon_0 = \epsilon` in all (Theorem 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import narwhals as nw
import numpy as np

from dpbayes.data._guards import UNREADABLE, as_frame, hide_values
from dpbayes.data.domain import Attribute, Domain, Level
from dpbayes.data.marginals import marginals
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.ide.groups import GroupRelease, Hierarchy
from dpbayes.privacy.noise import Laplace, NoiseLaw, TwoSidedGeometric
from dpbayes.privacy.release import NoisyTable, NoisyTotal, Release
from dpbayes.privacy.sampling import check_drawable, release_values, sampler_name

if TYPE_CHECKING:
    from dpbayes.privacy.ledger import Ledger

__all__ = ["release_groups"]

_PARTS = 4
_LAWS: dict[str, type[TwoSidedGeometric] | type[Laplace]] = {
    "two-sided-geometric": TwoSidedGeometric,
    "laplace": Laplace,
}

type Sets = Sequence[Sequence[str]]


def release_groups(
    frame: Any,
    hierarchy: Hierarchy,
    domain: Domain,
    *,
    unit_sets: Sets,
    group_sets: Sets,
    epsilon: float,
    stability: int = 1,
    individual: str | None = None,
    noise: Literal["two-sided-geometric", "laplace"] = "two-sided-geometric",
    rng: np.random.Generator | None = None,
    ledger: Ledger | None = None,
    purpose: str = "group marginals",
) -> GroupRelease:
    """Release what Algorithm 2 asks of the confidential data.

    Neighbouring data sets differ in all records of one individual (add-remove adjacency).

    Parameters
    ----------
    frame
        Confidential records: any frame that narwhals reads, with the group's column and the attributes.
    hierarchy
        Groups and units.
    domain
        The attributes besides the group.
    unit_sets
        Attributes of each table of the units' workload (the paper's W_S).
    group_sets
        Attributes of each table of the groups' workload (W_G).
    epsilon
        Total privacy-loss parameter for one individual.
    stability
        Most records of one individual (the paper's Delta).
    individual
        Column that identifies the individual, to check `stability` against the data; not released.
    noise
        The noise law; the paper's is Laplace, the geometric law is its exact form for counts.
    rng
        None draws a real release from OpenDP; a generator simulates, without guarantee.
    ledger
        Book in which all parts are reserved before any noise is drawn.
    purpose
        Public text for the book.

    Returns
    -------
    GroupRelease
        One release a unit and one a group.

    Raises
    ------
    InputError
        If a setting is out of range, a record's group is not in the hierarchy, or an individual has more records than
        `stability`. No message shows a confidential value.
    MissingColumnError
        If the frame lacks the group's column, an attribute or `individual`.
    BudgetExceededError
        If the book has too little left; nothing is drawn then.

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
    >>> released.epsilon, list(released.groups)
    (8.0, ['a', 'b'])
    """
    _check(hierarchy, domain, unit_sets, group_sets, epsilon, stability, noise)
    _check_stability(frame, individual, stability)
    part = epsilon / _PARTS
    law = _LAWS[noise].from_epsilon(part, sensitivity=stability)
    unit_law = _LAWS[noise].from_epsilon(part / len(unit_sets), sensitivity=stability)
    group_law = _LAWS[noise].from_epsilon(part / len(group_sets), sensitivity=stability)
    counted = _count(frame, hierarchy, domain, unit_sets, group_sets)
    sampler_name(rng)
    laws = [law, *[unit_law] * len(unit_sets), law, *[group_law] * len(group_sets)]
    for each in (law, unit_law, group_law):
        check_drawable(each)
    entries = _reserve(ledger, laws, rng, stability, noise, purpose)

    levels = []
    for sizes, tables, sets, table_law in (
        (counted[0], counted[1], unit_sets, unit_law),
        (counted[2], counted[3], group_sets, group_law),
    ):
        costs = (part, part / len(sets))
        levels.append(_noisy(sizes, tables, domain, sets, (law, table_law), costs, stability, rng))
    units = dict(zip(hierarchy.units, levels[0], strict=True))
    groups = dict(zip(hierarchy.groups, levels[1], strict=True))
    result = GroupRelease(hierarchy, units, groups, stability)
    if ledger is not None:
        ledger.confirm(entries, result.digest)
    return result


def _reserve(
    ledger: Ledger | None,
    laws: Sequence[NoiseLaw],
    rng: np.random.Generator | None,
    stability: int,
    noise: str,
    purpose: str,
) -> list[int]:
    """Enter the four parts in the book; disjoint units and groups cost once (parallel composition)."""
    if ledger is None:
        return []
    if rng is not None:
        raise InputError("a ledger records real releases; pass rng=None, or leave the ledger out of a simulation")
    common = {"sensitivity": float(stability), "mechanism": noise, "adjacency": "add-remove", "purpose": purpose}
    return ledger.reserve_all([{"law": law, **common} for law in laws])


def _count(
    frame: Any, hierarchy: Hierarchy, domain: Domain, unit_sets: Sets, group_sets: Sets
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray, list[np.ndarray]]:
    """Count sizes and tables by unit and by group; first axis the unit or group."""
    whole = Domain((_attribute(hierarchy), *domain.attributes))
    name = hierarchy.attribute
    wanted = [(name,), *[(name, *names) for names in (*unit_sets, *group_sets)]]
    tables = [table.counts[: len(hierarchy.groups)] for table in marginals(frame, wanted, domain=whole)]
    membership = np.array([[hierarchy.parent[g] == unit for g in hierarchy.groups] for unit in hierarchy.units])
    merged = [np.tensordot(membership.astype(np.int64), table, axes=1) for table in tables[: 1 + len(unit_sets)]]
    return merged[0], merged[1:], tables[0], tables[1 + len(unit_sets) :]


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
    stability: int,
    rng: np.random.Generator | None,
) -> list[Release]:
    """Add noise to one level at once and cut it into a release each."""
    noisy_sizes = release_values(sizes, laws[0], rng=rng)
    noisy_tables = [release_values(table, laws[1], rng=rng) for table in tables]
    sensitivity = float(stability)
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


def _check(
    hierarchy: Hierarchy,
    domain: Domain,
    unit_sets: Sets,
    group_sets: Sets,
    epsilon: float,
    stability: int,
    noise: str,
) -> None:
    if noise not in _LAWS:
        raise InputError(f"noise must be one of {', '.join(_LAWS)}, got {noise!r}")
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not (np.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"epsilon must be positive and finite, got {epsilon!r}; it is the total over all four parts")
    if isinstance(stability, bool) or not isinstance(stability, int) or stability < 1:
        raise InputError(f"stability must be a whole number of records of at least 1, got {stability!r}")
    if hierarchy.attribute in domain:
        raise InputError(f"{hierarchy.attribute!r} names the group; leave it out of the domain of attributes")
    for what, sets in (("unit_sets", unit_sets), ("group_sets", group_sets)):
        if not sets or not all(sets):
            raise InputError(f"{what} must name at least one attribute a table, got {sets!r}")
        for names in sets:
            domain.axes(names)


def _check_stability(frame: Any, individual: str | None, stability: int) -> None:
    if individual is None:
        return
    table = as_frame(frame).lazy()
    with hide_values(UNREADABLE):
        known = individual in table.collect_schema().names()
    if not known:
        raise MissingColumnError(
            f"individual names the column {individual!r}, which is not in the data; name the column that identifies "
            "the individual, or leave it out"
        )
    sizes = table.group_by(individual).agg(nw.len().alias("__n"))
    with hide_values(UNREADABLE):
        most = sizes.select(nw.col("__n").max()).collect()["__n"].to_list()
    if most and most[0] is not None and most[0] > stability:
        raise InputError(f"an individual has more than stability = {stability} records; truncate first, or raise it")
