"""A generated two-level population with a public sister population, for trials of prior-aware estimation.

Nobody in it is real, so its exact tables may be shown. Units (such as states) differ from each other, groups (such as
tracts) from their unit, and the private population from the public one: in the shares of a few household types, in
which the attributes are dependent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from dpbayes.data.domain import Domain, Level
from dpbayes.errors import InputError

__all__ = ["Population", "two_level_population"]

_LEVELS: dict[str, tuple[str, ...]] = {
    "age": ("0-14", "15-24", "25-44", "45-64", "65-79", "80+"),
    "sex": ("female", "male"),
    "household": ("alone", "couple", "family", "shared", "institution"),
    "tenure": ("owned", "mortgaged", "rented"),
    "schooling": ("none", "primary", "secondary", "degree"),
    "work": ("outside", "seeking", "employed", "retired"),
    "income": ("none", "low", "middle", "high"),
    "car": ("no", "yes"),
    "disability": ("no", "yes"),
}
_TYPES = 7


@dataclass(frozen=True, eq=False)
class Population:
    """Public and private records of one hierarchy.

    Parameters
    ----------
    domain
        The attributes besides the group.
    parent
        Group to unit.
    public, private
        Records with the column ``group`` and one a attribute.
    """

    domain: Domain
    parent: dict[Level, Level]
    public: pl.DataFrame
    private: pl.DataFrame


def two_level_population(
    *, n_units: int = 2, groups_per_unit: int = 6, group_size: int = 600, drift: float = 0.3, seed: int = 1
) -> Population:
    """Generate a population with a public sister.

    Parameters
    ----------
    n_units, groups_per_unit
        Size of the hierarchy.
    group_size
        Mean number of records of a group; sizes vary by a factor of two either way.
    drift
        Standard deviation of the change in the log share of each household type between the public population and the
        private one, and likewise of a group against its unit; 0 makes all groups samples of their unit's public
        population.
    seed
        Seed of the generator.

    Returns
    -------
    Population
        Public and private records.

    Raises
    ------
    InputError
        If a size is not positive or the drift is negative.

    Examples
    --------
    >>> population = two_level_population(n_units=1, groups_per_unit=2, group_size=100)
    >>> population.parent, population.private.columns[:3]
    ({'A-1': 'A', 'A-2': 'A'}, ['group', 'age', 'sex'])
    """
    for name, value in (("n_units", n_units), ("groups_per_unit", groups_per_unit), ("group_size", group_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    if n_units > 26 or not (np.isfinite(drift) and drift >= 0):
        raise InputError(f"n_units must be at most 26 and drift at least 0, got {n_units!r} and {drift!r}")
    rng = np.random.default_rng(seed)
    domain = Domain.from_levels(_LEVELS)
    profiles = {a.name: rng.dirichlet(np.full(a.size, 0.6), size=_TYPES) for a in domain}
    parent: dict[Level, Level] = {}
    public, private = [], []
    for u in range(n_units):
        unit = chr(ord("A") + u)
        shares = rng.normal(0.0, 0.5, _TYPES)
        moved = shares + rng.normal(0.0, drift, _TYPES)
        for g in range(groups_per_unit):
            group = f"{unit}-{g + 1}"
            parent[group] = unit
            local = rng.normal(0.0, drift, _TYPES)
            n = max(1, round(group_size * 2.0 ** rng.uniform(-1, 1)))
            public.append(_records(group, shares + local, n, profiles, rng))
            private.append(_records(group, moved + local, n, profiles, rng))
    return Population(domain, parent, pl.concat(public), pl.concat(private))


def _records(group: str, log_shares: Any, n: int, profiles: dict[str, Any], rng: np.random.Generator) -> pl.DataFrame:
    """Draw a type for each record, then its attributes independently given the type."""
    shares = np.exp(log_shares)
    types = rng.choice(_TYPES, n, p=shares / shares.sum())
    columns: dict[str, Any] = {"group": [group] * n}
    for name, profile in profiles.items():
        steps = profile.cumsum(axis=1)[types]
        codes = np.minimum((rng.random((n, 1)) > steps).sum(axis=1), profile.shape[1] - 1)
        columns[name] = np.asarray(_LEVELS[name])[codes]
    return pl.DataFrame(columns)
