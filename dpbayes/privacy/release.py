"""`Release`: the only thing that leaves the custodian, and its JSON."""

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
import numpy.typing as npt

from dpbayes.data.domain import Domain
from dpbayes.errors import DamagedFileError, DPBayesError, InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.noise import NoiseLaw, noise_from_dict

__all__ = ["NoisyTable", "NoisyTotal", "Release", "read_release"]

SCHEMA_VERSION = 1
_LARGEST = 2.0**62

type Sampler = Literal["opendp", "simulation"]
type Unit = Literal["record", "partition"]


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """A released table: exact counts plus independent noise, and what it cost.

    Parameters
    ----------
    domain
        The table's attributes, in the order of its axes.
    counts
        Released values of shape ``domain.shape``: whole numbers under a discrete noise law. They may be negative. A
        read-only copy is kept (int64 for a discrete law, float64 otherwise).
    noise
        The law of the noise added to every count.
    sensitivity
        Sensitivity of the table under the release's adjacency, in counts: L1 for two-sided geometric and Laplace
        noise, L2 for Gaussian noise.
    epsilon
        Privacy-loss parameter of this table alone; None under Gaussian noise, whose cost is a curve, not a number.
    """

    domain: Domain
    counts: npt.NDArray[Any]
    noise: NoiseLaw
    sensitivity: float
    epsilon: float | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", _checked_values(self.counts, self.domain.shape, self.noise, self.label))
        _check_cost(self.sensitivity, self.epsilon, f"table {self.label}")

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes, in the order of the axes."""
        return self.domain.names

    @property
    def label(self) -> str:
        """The attributes as one line of text."""
        return " x ".join(self.domain.names)


@dataclass(frozen=True)
class NoisyTotal:
    """A released number of records, for when the size of the data is itself confidential.

    Parameters
    ----------
    value
        The released number; it may be negative.
    noise
        The law of its noise.
    sensitivity
        Sensitivity of the number of records (1 under add-remove).
    epsilon
        Privacy-loss parameter of this number alone, or None under Gaussian noise.
    """

    value: float
    noise: NoiseLaw
    sensitivity: float
    epsilon: float | None

    def __post_init__(self) -> None:
        _check_cost(self.sensitivity, self.epsilon, "the number of records")
        value = _checked_values(self.value, (), self.noise, "of the number of records")
        object.__setattr__(self, "value", value.item())


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", tuple(self.tables))
        check_adjacency(self.adjacency)
        if self.sampler not in ("opendp", "simulation"):
            raise InputError(f"sampler must be 'opendp' or 'simulation', got {self.sampler!r}")
        if self.unit not in ("record", "partition"):
            raise InputError(f"unit must be 'record' or 'partition', got {self.unit!r}")
        if not self.tables:
            raise InputError("a release needs at least one table, got none")
        for table in self.tables:
            for attribute in table.domain:
                if self.domain[attribute.name] != attribute:
                    raise InputError(f"table {table.label} gives {attribute.name!r} levels that are not the domain's")
        if isinstance(self.n, int):
            if isinstance(self.n, bool) or self.n < 1:
                raise InputError(f"n must be a positive number of {self.unit}s, got {self.n!r}")
            if self.adjacency == "add-remove" and self.unit == "record":
                raise InputError(
                    f"n = {self.n} cannot be public under add-remove adjacency: one record more or less changes it; "
                    "release n with noise or use replace-one"
                )

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

    @property
    def privacy_record(self) -> dict[str, Any]:
        """What the release cost, for the record of whatever is computed from it."""
        return {
            "adjacency": self.adjacency,
            "sampler": self.sampler,
            "epsilon": self.epsilon,
            "n_public": self.n_public,
            "tables": [
                {"attributes": list(t.attributes), "noise": t.noise.to_dict(), "epsilon": t.epsilon} for t in self.tables
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

    @classmethod
    def from_dict(cls, data: Any) -> Release:
        """Read what `to_dict` wrote, checking every part.

        Raises
        ------
        DamagedFileError
            If anything is missing, added, of the wrong type, or contradicts the rest.
        """
        try:
            return _release_from_dict(data)
        except DamagedFileError:
            raise
        except (DPBayesError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise DamagedFileError(f"the release does not read: {error}; ask the custodian for it again") from error

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON: names this release in ledgers, traces and reports."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

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
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(self.to_dict() | {"digest": self.digest}, indent=1, allow_nan=False) + "\n")
        return temporary.replace(path)

    def _repr_html_(self) -> str:
        total = "see each table's noise" if self.epsilon is None else f"epsilon {self.epsilon:g}"
        size = f"n = {self.n:,} (public)" if isinstance(self.n, int) else f"n = {self.n.value:,.0f} (noisy)"
        rows = "".join(
            f"<tr><td>{html.escape(t.label)}</td><td>{t.counts.size}</td>"
            f"<td>{html.escape(str(t.noise))}</td><td>{'–' if t.epsilon is None else f'{t.epsilon:g}'}</td></tr>"
            for t in self.tables
        )
        return (
            f"<table><caption>Release: {total}, {self.adjacency}, {size}, sampler {self.sampler}</caption>"
            f"<tr><th>table</th><th>counts</th><th>noise</th><th>epsilon</th></tr>{rows}</table>"
        )


def read_release(path: str | Path) -> Release:
    """Read a release that `Release.write` wrote.

    Parameters
    ----------
    path
        The JSON file.

    Returns
    -------
    Release
        The release, checked against the digest in the file.

    Raises
    ------
    DamagedFileError
        If the file is not JSON, not a release, of a newer schema, or does not match its digest.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from dpbayes.data import datasets
    >>> from dpbayes.privacy import release_tables
    >>> release = release_tables(datasets.acs_tables(), epsilon=1.0, rng=np.random.default_rng(1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_release(release.write(f"{folder}/release.json")).digest == release.digest
    True
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not readable JSON ({error}); ask the custodian for it again") from error
    if not isinstance(data, dict) or "digest" not in data:
        raise DamagedFileError(f"{path} is not a dpbayes release: it has no digest; ask the custodian for it again")
    stated = data.pop("digest")
    release = Release.from_dict(data)
    if stated != release.digest:
        raise DamagedFileError(f"{path} was changed after it was written: its digest does not match its contents")
    return release


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _check_cost(sensitivity: float, epsilon: float | None, what: str) -> None:
    """Refuse a sensitivity or an epsilon that is not a positive number."""
    for name, value in (("sensitivity", sensitivity), ("epsilon", epsilon)):
        if value is None and name == "epsilon":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} of {what} must be positive and finite, got {value!r}")


def _checked_values(values: Any, shape: tuple[int, ...], noise: NoiseLaw, label: str) -> npt.NDArray[Any]:
    """Return released values as a read-only array of the type that the noise law gives."""
    array = np.asarray(values)
    if array.shape != shape:
        raise InputError(f"table {label} has shape {array.shape}, its domain {shape}")
    if array.dtype.kind not in "iuf" or not np.all(np.isfinite(array)):
        raise InputError(f"table {label} holds a value that is not a finite number")
    if noise.is_discrete and not np.all(array == np.floor(array)):
        raise InputError(f"table {label} holds a fraction, but its noise {noise} is on the integers")
    if noise.is_discrete and np.any(np.abs(array.astype(np.float64)) > _LARGEST):
        raise InputError(f"table {label} holds a count beyond {_LARGEST:g}, which no table of records reaches")
    array = array.astype(np.int64 if noise.is_discrete else np.float64)
    array.setflags(write=False)
    return array


def _expect(data: Any, keys: set[str], what: str) -> dict[str, Any]:
    """Return a mapping that has exactly these keys."""
    if not isinstance(data, dict):
        raise DamagedFileError(f"{what} must be an object, got {type(data).__name__}")
    if set(data) != keys:
        odd = sorted(set(data) ^ keys)
        raise DamagedFileError(f"{what} must have the keys {sorted(keys)}; missing or unknown: {odd}")
    return data


def _n_to_dict(n: int | NoisyTotal, unit: Unit) -> dict[str, Any]:
    if isinstance(n, int):
        return {"public": True, "value": n} | ({"unit": unit} if unit != "record" else {})
    return {
        "public": False,
        "value": n.value,
        "noise": n.noise.to_dict(),
        "sensitivity": n.sensitivity,
        "epsilon": n.epsilon,
    }


def _n_from_dict(data: Any) -> tuple[int | NoisyTotal, Unit]:
    if isinstance(data, dict) and data.get("public") is True:
        unit = data.get("unit", "record")
        value = _expect({k: v for k, v in data.items() if k != "unit"}, {"public", "value"}, "n")["value"]
        if not isinstance(value, int) or isinstance(value, bool):
            raise DamagedFileError(f"a public n must be a whole number, got {value!r}")
        return value, unit
    data = _expect(data, {"public", "value", "noise", "sensitivity", "epsilon"}, "n")
    if data["public"] is not False:
        raise DamagedFileError(f"n.public must be true or false, got {data['public']!r}")
    return NoisyTotal(data["value"], noise_from_dict(data["noise"]), data["sensitivity"], data["epsilon"]), "record"


def _release_from_dict(data: Any) -> Release:
    keys = {"format", "schema_version", "adjacency", "sampler", "domain", "n", "tables"}
    data = _expect(data, keys, "a release")
    if data["format"] != "dpbayes-release":
        raise DamagedFileError(f"format must be 'dpbayes-release', got {data['format']!r}")
    if data["schema_version"] != SCHEMA_VERSION:
        raise DamagedFileError(
            f"schema version {data['schema_version']!r} is not {SCHEMA_VERSION}, the one read here; update dpbayes"
        )
    domain = Domain.from_dict(data["domain"])
    if not isinstance(data["tables"], list):
        raise DamagedFileError("tables must be a list")
    tables = []
    for item in data["tables"]:
        item = _expect(item, {"attributes", "counts", "noise", "sensitivity", "epsilon"}, "a table")
        tables.append(
            NoisyTable(
                domain.project(item["attributes"]),
                np.asarray(item["counts"]),
                noise_from_dict(item["noise"]),
                item["sensitivity"],
                item["epsilon"],
            )
        )
    n, unit = _n_from_dict(data["n"])
    return Release(domain, tuple(tables), data["adjacency"], n, data["sampler"], unit)
