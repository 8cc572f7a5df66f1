"""`Release`: the only thing that leaves the custodian."""

from __future__ import annotations

import hashlib
import html
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpbayes._arguments import instance, ordered, shown
from dpbayes._files import write_text
from dpbayes.data.domain import Domain
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency, l1_sensitivity_of_counts, l2_sensitivity_of_counts
from dpbayes.privacy.noise import Laplace, TwoSidedGeometric
from dpbayes.privacy.noisy_table import NoisyTable, NoisyTotal, falls_short

__all__ = ["NoisyTable", "NoisyTotal", "Release", "record_words"]

SCHEMA_VERSION = 1

type Sampler = Literal["opendp", "simulation"]
type Unit = Literal["record", "partition"]


@dataclass(frozen=True, eq=False)
class Release:
    """Noisy tables and everything an analyst needs to know about how they came about.

    A release holds nothing confidential: no exact count, and no noise seed.

    Parameters
    ----------
    domain
        All attributes.
    tables
        One or more released tables over attributes of the domain.
    adjacency
        The relation between neighbouring data sets that the privacy guarantee speaks of.
    n
        The number of records: an integer if it is public, a `NoisyTotal` if it was released with noise.
    sampler
        ``"opendp"`` if OpenDP's exact samplers drew the noise; ``"simulation"`` if a seeded generator did, in which
        case the release carries no privacy guarantee.
    unit
        What n counts. A number of ``"record"`` is confidential under add-remove; a number of ``"partition"`` was chosen
        by the custodian without looking at the data, so it is public under either relation.
    protected_unit
        For partitions: the column whose equal values make rows one record of the adjacency, such as a person; None
        where every row is a record. The guarantee speaks of nothing smaller or larger.

    Raises
    ------
    InputError
        If a part contradicts the domain, the adjacency or the unit: a table of records, for one, whose sensitivity is
        below that of every contingency table. A larger sensitivity (a person with several records) is the custodian's.

    Examples
    --------
    >>> import numpy as np
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> release.epsilon, release.n, release.sampler, len(release.tables)
    (1.0, 10000, 'simulation', 10)
    """

    domain: Domain
    tables: tuple[NoisyTable, ...]
    adjacency: Adjacency
    n: int | NoisyTotal
    sampler: Sampler
    unit: Unit = "record"
    protected_unit: str | None = None

    def __post_init__(self) -> None:
        remedy = "release_tables makes them"
        object.__setattr__(self, "tables", ordered(self.tables, "tables", remedy=remedy, kind=NoisyTable))
        check_adjacency(self.adjacency)
        if self.sampler not in ("opendp", "simulation"):
            raise InputError(f"sampler must be 'opendp' or 'simulation', got {self.sampler!r}")
        if self.unit not in ("record", "partition"):
            raise InputError(f"unit must be 'record' or 'partition', got {self.unit!r}")
        _check_protected_unit(self.protected_unit, self.unit)
        if not self.tables:
            raise InputError("a release needs at least one table, got none")
        domain = instance(self.domain, Domain, "domain", remedy="Domain.from_levels makes one")
        for table in self.tables:
            for attribute in table.domain:
                if domain[attribute.name] != attribute:
                    raise InputError(f"table {table.label} gives {attribute.name!r} levels that are not the domain's")
        if self.unit == "record":
            self._check_sensitivities()
        if not isinstance(self.n, NoisyTotal):
            object.__setattr__(self, "n", _public_n(self.n, self.unit))
            if self.adjacency == "add-remove" and self.unit == "record":
                raise InputError(
                    f"n = {self.n} cannot be public under add-remove adjacency: one record more or less changes it; "
                    "release n with noise or use replace-one"
                )

    def _check_sensitivities(self) -> None:
        """Refuse a table or a number of records that claims to change less than one record changes it."""
        for table in self.tables:
            _check_sensitivity(table, self.adjacency, f"table {table.label}")
        if isinstance(self.n, NoisyTotal) and self.adjacency == "add-remove":
            _check_sensitivity(self.n, self.adjacency, "the number of records")

    @property
    def n_public(self) -> bool:
        """Whether the number of records is public."""
        return isinstance(self.n, int)

    @cached_property
    def epsilon(self) -> float | None:
        """Total privacy-loss parameter by sequential composition, or None where a part has no pure epsilon."""
        parts = [table.epsilon for table in self.tables]
        if isinstance(self.n, NoisyTotal):
            parts.append(self.n.epsilon)
        known = [part for part in parts if part is not None]
        return math.fsum(known) if len(known) == len(parts) else None

    @cached_property
    def rho(self) -> float:
        """Total zero-concentrated DP parameter by composition; of pure epsilon parts an upper bound, epsilon^2 / 2."""
        parts: list[NoisyTable | NoisyTotal] = list(self.tables)
        if isinstance(self.n, NoisyTotal):
            parts.append(self.n)
        return math.fsum(part.noise.rho(sensitivity=part.sensitivity) for part in parts)

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What the release cost, for the record of whatever is computed from it."""
        return {
            "adjacency": self.adjacency,
            "sampler": self.sampler,
            "epsilon": self.epsilon,
            "rho": self.rho if self.epsilon is None else None,
            "n_public": self.n_public,
            **_protected(self.unit, self.protected_unit),
            "tables": [
                {"attributes": list(t.attributes), "noise": t.noise.to_dict(), "epsilon": t.epsilon}
                for t in self.tables
            ],
        }

    @property
    def n_counts(self) -> int:
        """Number of released counts over all tables."""
        return sum(table.counts.size for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "format": "dpbayes-release",
            "schema_version": SCHEMA_VERSION,
            "adjacency": self.adjacency,
            "sampler": self.sampler,
            "domain": self.domain.to_dict(),
            "n": _n_to_dict(self.n, self.unit),
            **_protected(self.unit, self.protected_unit),
            "tables": [
                {
                    "attributes": list(table.attributes),
                    "counts": table.counts.tolist(),
                    "noise": table.noise.to_dict(),
                    "sensitivity": table.sensitivity,
                    "epsilon": table.epsilon,
                }
                for table in self.tables
            ],
        }

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: names this release in ledgers, traces and reports."""
        return record_digest(self.to_dict())

    def write(self, path: str | Path) -> Path:
        """Write the release as JSON, atomically; the file carries its own digest.

        Parameters
        ----------
        path
            File to write; an existing one is replaced only once the new one is complete.

        Returns
        -------
        Path
            The file.
        """
        return write_text(path, json.dumps(self.to_dict() | {"digest": self.digest}, indent=1, allow_nan=False) + "\n")

    def _repr_html_(self) -> str:
        total = f"rho {self.rho:g}" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        size = f"n = {self.n:,} (public)" if isinstance(self.n, int) else f"n = {self.n.value:,.0f} (noisy)"
        if self.unit == "partition":
            size += html.escape(f", one record: {record_words(self.protected_unit)}")
        rows = "".join(
            f"<tr><td>{html.escape(t.label)}</td><td>{t.counts.size}</td>"
            f"<td>{html.escape(str(t.noise))}</td><td>{'–' if t.epsilon is None else f'{t.epsilon:g}'}</td></tr>"
            for t in self.tables
        )
        return (
            f"<table><caption>Release: {total}, {self.adjacency}, {size}, sampler {self.sampler}</caption>"
            f"<tr><th>table</th><th>counts</th><th>noise</th><th>epsilon</th></tr>{rows}</table>"
        )


def check_of_records(release: object, what: str) -> None:
    """Refuse what is no release, or one whose counts are not of records.

    Parameters
    ----------
    release
        What was given.
    what
        What starts from it, to say so.

    Raises
    ------
    InputError
        If it is no release, or counts partitions.

    Examples
    --------
    >>> check_of_records([1, 2], "a model")
    Traceback (most recent call last):
    dpbayes.errors.InputError: a model starts from a Release, got list; use privacy.release_tables
    """
    if not isinstance(release, Release):
        raise InputError(f"{what} starts from a Release, got {type(release).__name__}; use privacy.release_tables")
    if release.unit != "record":
        raise InputError(
            f"{what} needs counts of records, and this release counts {release.unit}s; it answers the verifier's "
            "questions (dpbayes.verifier)"
        )


def record_words(protected_unit: str | None) -> str:
    """Say what one record of the adjacency is.

    Examples
    --------
    >>> record_words(None), record_words("person")
    ('a row', "all rows that share a value of column 'person'")
    """
    return "a row" if protected_unit is None else f"all rows that share a value of column {protected_unit!r}"


def record_digest(record: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON of a record: sorted keys, no spaces, ASCII, no NaN.

    Examples
    --------
    >>> record_digest({"b": 1, "a": 2}) == record_digest({"a": 2, "b": 1})
    True
    """
    canonical = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _public_n(n: Any, unit: Unit) -> int:
    """Return a public number of records or partitions as an int, of Python or of NumPy."""
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise InputError(
            f"n must be a positive whole number of {unit}s if it is public, or a NoisyTotal, got {shown(n)}"
        )
    return int(n)


def _check_protected_unit(protected_unit: Any, unit: Unit) -> None:
    if protected_unit is None:
        return
    if unit != "partition" or not isinstance(protected_unit, str) or not protected_unit:
        raise InputError(
            f"protected_unit must be the name of a column, in a release of partitions only, got {protected_unit!r}; "
            "leave it out where every row is a record"
        )


def _protected(unit: Unit, protected_unit: str | None) -> dict[str, Any]:
    """Return the entry on the protected unit, which releases of partitions have."""
    return {"protected_unit": protected_unit} if unit == "partition" else {}


def _check_sensitivity(part: NoisyTable | NoisyTotal, adjacency: Adjacency, what: str) -> None:
    """Refuse a sensitivity below that of every contingency table of records."""
    pure = isinstance(part.noise, TwoSidedGeometric | Laplace)
    least = (l1_sensitivity_of_counts if pure else l2_sensitivity_of_counts)(adjacency)
    if falls_short(part.sensitivity, least):
        raise InputError(
            f"sensitivity of {what} must be at least {least:.6g} ({'L1' if pure else 'L2'}) under {adjacency}: so much "
            f"can one record change it; got {part.sensitivity!r}; state that sensitivity and the epsilon it gives"
        )


def _n_to_dict(n: int | NoisyTotal, unit: Unit) -> dict[str, Any]:
    if isinstance(n, int):
        return {"public": True, "value": n, "unit": unit}
    return {
        "public": False,
        "value": n.value,
        "noise": n.noise.to_dict(),
        "sensitivity": n.sensitivity,
        "epsilon": n.epsilon,
    }
