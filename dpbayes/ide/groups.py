"""Groups within upper units: the hierarchy, what is released about it, and its file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpbayes._files import write_text
from dpbayes.data.domain import Attribute, Level
from dpbayes.errors import DamagedFileError, DPBayesError, InputError
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.release import Release
from dpbayes.privacy.release_json import release_from_dict

__all__ = ["GroupRelease", "Hierarchy", "read_group_release"]


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
    parent: Mapping[Level, Level]

    def __post_init__(self) -> None:
        if not self.attribute or not self.parent:
            raise InputError("a hierarchy needs the name of the group's column and at least one group with its parent")
        object.__setattr__(self, "parent", dict(self.parent))

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
class GroupRelease:
    """What leaves the custodian for Algorithm 2: a release for each upper unit and one for each group.

    Each holds the tables of one workload and the noisy number of records. Units, and groups, are disjoint, so that
    each level costs what its costliest release costs (parallel composition), and the two levels add up.

    Parameters
    ----------
    hierarchy
        The groups and their units.
    units, groups
        Releases by unit and by group, all under add-remove.
    stability
        Most records that one individual has: neighbours differ in one individual.

    Examples
    --------
    >>> import numpy as np
    >>> import polars as pl
    >>> from dpbayes.data import Domain
    >>> from dpbayes.ide import release_groups
    >>> domain = Domain.from_levels({"x": ("n", "y"), "y": ("n", "y")})
    >>> frame = pl.DataFrame({"place": ["a", "b"] * 50, "x": ["n"] * 60 + ["y"] * 40, "y": ["n", "y", "y", "y"] * 25})
    >>> places = Hierarchy("place", {"a": "north", "b": "north"})
    >>> released = release_groups(
    ...     frame, places, domain, unit_sets=[["x", "y"]], group_sets=[["x"]], epsilon=8.0, rng=np.random.default_rng(1)
    ... )
    >>> released.epsilon, released.stability
    (8.0, 1)
    """

    hierarchy: Hierarchy
    units: Mapping[Level, Release]
    groups: Mapping[Level, Release]
    stability: int

    def __post_init__(self) -> None:
        if set(self.units) != set(self.hierarchy.units) or set(self.groups) != set(self.hierarchy.groups):
            raise InputError("a group release holds exactly one release for each unit and each group of its hierarchy")
        if len({release.adjacency for release in [*self.units.values(), *self.groups.values()]}) != 1:
            raise InputError("all parts of a group release share one adjacency")

    @cached_property
    def epsilon(self) -> float:
        """Privacy-loss parameter of the whole, for one individual's records (Theorem 4.1)."""
        levels = ([release.epsilon for release in level.values()] for level in (self.units, self.groups))
        return math.fsum(max(math.inf if cost is None else cost for cost in level) for level in levels)

    @property
    def sampler(self) -> str:
        """What drew the noise."""
        return next(iter(self.groups.values())).sampler

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation, between individuals."""
        return next(iter(self.groups.values())).adjacency

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "format": "dpbayes-group-release",
            "schema_version": 1,
            "attribute": self.hierarchy.attribute,
            "stability": self.stability,
            "units": [[unit, release.to_dict()] for unit, release in self.units.items()],
            "groups": [
                [group, self.hierarchy.parent[group], release.to_dict()] for group, release in self.groups.items()
            ],
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    def write(self, path: str | Path) -> Path:
        """Write as JSON with its digest; the file is replaced only once the new one is complete."""
        return write_text(path, json.dumps(self.to_dict() | {"digest": self.digest}, allow_nan=False) + "\n")


def read_group_release(path: str | Path) -> GroupRelease:
    """Read what `GroupRelease.write` wrote.

    Raises
    ------
    DamagedFileError
        If the file does not read as a group release or does not match its digest.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import polars as pl
    >>> from dpbayes.data import Domain
    >>> from dpbayes.ide import release_groups
    >>> domain = Domain.from_levels({"x": ("n", "y"), "y": ("n", "y")})
    >>> frame = pl.DataFrame({"place": ["a", "b"] * 50, "x": ["n"] * 60 + ["y"] * 40, "y": ["n", "y", "y", "y"] * 25})
    >>> places = Hierarchy("place", {"a": "north", "b": "north"})
    >>> released = release_groups(
    ...     frame, places, domain, unit_sets=[["x", "y"]], group_sets=[["x"]], epsilon=8.0, rng=np.random.default_rng(1)
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_group_release(released.write(Path(folder) / "groups.json")).digest == released.digest
    True
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != "dpbayes-group-release" or data["schema_version"] != 1:
            raise InputError(f"format {data['format']!r}, version {data['schema_version']!r}")
        hierarchy = Hierarchy(data["attribute"], {group: parent for group, parent, _ in data["groups"]})
        units = {unit: release_from_dict(part) for unit, part in data["units"]}
        groups = {group: release_from_dict(part) for group, _, part in data["groups"]}
        result = GroupRelease(hierarchy, units, groups, data["stability"])
    except FileNotFoundError:
        raise
    except (DPBayesError, TypeError, ValueError, KeyError) as error:
        raise DamagedFileError(
            f"{path} does not read as a group release ({error}); ask the custodian for it"
        ) from error
    if data.get("digest") != result.digest:
        raise DamagedFileError(f"{path} was changed after it was written: its digest does not match its contents")
    return result
