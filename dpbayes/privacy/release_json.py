"""Reading a `Release` back from its JSON, with every part checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dpbayes.data.domain import Domain
from dpbayes.errors import DamagedFileError, DPBayesError
from dpbayes.privacy.noise import noise_from_dict
from dpbayes.privacy.noisy_table import NoisyTable, NoisyTotal
from dpbayes.privacy.release import SCHEMA_VERSION, Release, Unit, record_digest

__all__ = ["read_release", "release_from_dict"]


def read_release(path: str | Path) -> Release:
    """Read a release that `Release.write` wrote.

    Parameters
    ----------
    path
        The JSON file.

    Returns
    -------
    Release
        The release, checked against the digest in the file. White space and the order of keys are free, everything
        else is as it was written.

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
        text = path.read_text(encoding="utf-8")
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeats)
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise DamagedFileError(f"{path} is not readable JSON ({error}); ask the custodian for it again") from error
    if not isinstance(data, dict) or "digest" not in data:
        raise DamagedFileError(f"{path} is not a dpbayes release: it has no digest; ask the custodian for it again")
    stated = data.pop("digest")
    release = release_from_dict(data)
    # The record as it stands in the file, not only what was made of it: 1, 1.0 and true are three records.
    if not release.digest == stated == record_digest(data):
        raise DamagedFileError(f"{path} was changed after it was written: its digest does not match its contents")
    return release


def release_from_dict(data: Any) -> Release:
    """Read what `Release.to_dict` wrote.

    Parameters
    ----------
    data
        The structure.

    Returns
    -------
    Release
        The release.

    Raises
    ------
    DamagedFileError
        If anything is missing, added, of the wrong type, or contradicts the rest.

    Examples
    --------
    >>> release_from_dict({})
    Traceback (most recent call last):
    dpbayes.errors.DamagedFileError: a release must have the keys ['adjacency', 'domain', ...
    """
    try:
        return _release(data)
    except DamagedFileError:
        raise
    except (DPBayesError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise DamagedFileError(f"the release does not read: {error}; ask the custodian for it again") from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a finite number")


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that gives a key twice: readers differ in which one they take."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("an object gives a key twice")
    return record


def _expect(data: Any, keys: set[str], what: str) -> dict[str, Any]:
    """Return a mapping that has exactly these keys."""
    if not isinstance(data, dict):
        raise DamagedFileError(f"{what} must be an object, got {type(data).__name__}")
    if set(data) != keys:
        odd = sorted(set(data) ^ keys)
        raise DamagedFileError(f"{what} must have the keys {sorted(keys)}; missing or unknown: {odd}")
    return data


def _n_from_dict(data: Any) -> tuple[int | NoisyTotal, Unit]:
    if isinstance(data, dict) and data.get("public") is True:
        value = _expect(data, {"public", "value", "unit"}, "n")["value"]
        if not isinstance(value, int) or isinstance(value, bool):
            raise DamagedFileError(f"a public n must be a whole number, got {value!r}")
        return value, data["unit"]
    data = _expect(data, {"public", "value", "noise", "sensitivity", "epsilon"}, "n")
    if data["public"] is not False:
        raise DamagedFileError(f"n.public must be true or false, got {data['public']!r}")
    return NoisyTotal(data["value"], noise_from_dict(data["noise"]), data["sensitivity"], data["epsilon"]), "record"


def _release(data: Any) -> Release:
    keys = {"format", "schema_version", "adjacency", "sampler", "domain", "n", "tables"}
    if isinstance(data, dict) and isinstance(data.get("n"), dict) and data["n"].get("unit") == "partition":
        keys = keys | {"protected_unit"}
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
    protected = data.get("protected_unit")
    return Release(domain, tuple(tables), data["adjacency"], n, data["sampler"], unit, protected)
