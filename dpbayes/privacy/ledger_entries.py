"""What the entries of a budget book may say: a closed set of public fields, each with its check.

Nothing confidential belongs in a book and nothing can slip in unasked: laws and numbers are checked, and the only free
texts are the mechanism's short name, the purpose and the dataset's label, which the custodian writes.
"""

import datetime
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

from dpbayes._arguments import positive_finite
from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.ledger_cost import Cost, delta_in_range, law_from_dict
from dpbayes.privacy.ledger_rounding import decimal_reading

__all__ = ["BookTerms", "Composition", "Reservation"]

Composition = Literal["basic", "tight"]

SCHEMA_VERSION = 2
# Stands for the time of an entry while its other fields are checked.
EPOCH = "1970-01-01T00:00:00+00:00"
_ARGUMENTS = {"mechanism", "law", "sensitivity", "adjacency", "purpose"}
_OPTIONAL = {"count": 1, "delta": 0.0}
_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9 ._-]{0,63}")
_KEYS = {
    "open": "kind seq time schema book epsilon delta adjacency composition dataset",
    "reserve": "kind seq time mechanism law sensitivity count delta adjacency purpose",
    "confirm": "kind seq time entry digest",
}


@dataclass(frozen=True)
class BookTerms:
    """What a book was opened with; never changes.

    Parameters
    ----------
    book
        Random name of this book, 32 hexadecimal digits.
    epsilon, delta
        The total that all releases together may spend.
    adjacency
        Neighbouring relation of every cost in the book.
    composition
        ``"basic"`` (plain addition) or ``"tight"``: which sum is held against the total.
    dataset
        What the custodian calls the confidential dataset. Public text.
    created
        UTC time, ISO 8601.

    Examples
    --------
    >>> BookTerms("0" * 32, 0.1, 1e-6, "add-remove", "basic", "census", EPOCH).exact_epsilon > Fraction(1, 10)
    True
    """

    book: str
    epsilon: float
    delta: float
    adjacency: Adjacency
    composition: Composition
    dataset: str
    created: str

    @property
    def exact_epsilon(self) -> Fraction:
        """The total as an exact number: the larger reading of the double (itself, or the decimal it prints as)."""
        return max(Fraction(self.epsilon), decimal_reading(self.epsilon))

    @property
    def exact_delta(self) -> Fraction:
        """The total delta as the decimal it prints as."""
        return decimal_reading(self.delta)


@dataclass(frozen=True)
class Reservation:
    """One recorded release.

    Parameters
    ----------
    entry
        Number of its reservation in the book.
    time
        When it was reserved, UTC, ISO 8601.
    mechanism, purpose
        The custodian's public words.
    cost
        Law, sensitivity, number of queries.
    confirmed_at, digest
        Time and release digest of the confirmation, None while there is none.

    Examples
    --------
    >>> from dpbayes.privacy.ledger_cost import Guarantee
    >>> Reservation(1, EPOCH, "randomized response", Cost(Guarantee(0.5), None), "one question").digest is None
    True
    """

    entry: int
    time: str
    mechanism: str
    cost: Cost
    purpose: str
    confirmed_at: str | None = None
    digest: str | None = None


def read_digest(value: Any) -> str:
    """Return `value` if it is a SHA-256 digest in lower-case hexadecimal, or raise `InputError`.

    Examples
    --------
    >>> read_digest("0" * 64) == "0" * 64
    True
    """
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        raise InputError(f"a digest is 64 lower-case hexadecimal digits, got {value!r}; pass release.digest")
    return value


def read_text(value: Any, name: str, *, most: int = 500) -> str:
    """Return public text of the custodian: printable, on one line, or raise `InputError`.

    Examples
    --------
    >>> read_text("income by race", "purpose")
    'income by race'
    """
    if not isinstance(value, str) or not value.strip() or len(value) > most:
        raise InputError(f"{name} must be text of 1 to {most} characters, got {value!r:.80}; say what it is for")
    if any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for char in value):
        raise InputError(f"{name} must be printable text on one line, got {value!r:.80}; drop control characters")
    return value


def read_name(value: Any) -> str:
    """Return the name of a mechanism, or raise `InputError`.

    Examples
    --------
    >>> read_name("two-sided-geometric")
    'two-sided-geometric'
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InputError(
            f"mechanism must be a short lower-case name, got {value!r:.80}; for example 'two-sided-geometric'"
        )
    return value


def read_composition(value: Any) -> Composition:
    """Return `value` if it names a composition, or raise `InputError`.

    Examples
    --------
    >>> read_composition("tight")
    'tight'
    """
    if isinstance(value, str) and value in get_args(Composition):
        return value  # type: ignore[return-value]
    raise InputError(
        f"composition must be 'basic' or 'tight', got {value!r}; basic holds for any sequence of releases, tight "
        "presumes that no release's parameters depend on earlier noisy answers"
    )


def canonical(entry: dict[str, Any]) -> str:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def parse_entry(body: str) -> dict[str, Any]:
    """Return the entry that a canonical body holds, with exactly the keys of its kind."""
    entry = json.loads(body)
    if not isinstance(entry, dict) or entry.get("kind") not in _KEYS or canonical(entry) != body:
        raise InputError("it is not canonical JSON of a known kind")
    if set(entry) != set(_KEYS[entry["kind"]].split()):
        raise InputError(f"a {entry['kind']} entry has the wrong keys {sorted(entry)}")
    return entry


def read_time(value: Any) -> str:
    if not isinstance(value, str) or datetime.datetime.fromisoformat(value).utcoffset() != datetime.timedelta(0):
        raise InputError(f"time must be UTC in ISO 8601, got {value!r}")
    return value


def read_terms(entry: dict[str, Any]) -> BookTerms:
    if entry["schema"] != SCHEMA_VERSION:
        raise InputError(f"schema {entry['schema']!r} is not {SCHEMA_VERSION}; update dpbayes")
    if not isinstance(entry["book"], str) or not re.fullmatch(r"[0-9a-f]{32}", entry["book"]):
        raise InputError(f"book must be 32 hexadecimal digits, got {entry['book']!r}")
    return BookTerms(
        entry["book"],
        positive_finite(entry["epsilon"], "epsilon", remedy="it is the total over all releases"),
        delta_in_range(entry["delta"], "delta"),
        check_adjacency(entry["adjacency"]),
        read_composition(entry["composition"]),
        read_text(entry["dataset"], "dataset"),
        read_time(entry["time"]),
    )


def read_reservation(entry: dict[str, Any], terms: BookTerms) -> Reservation:
    if check_adjacency(entry["adjacency"]) != terms.adjacency:
        raise InputError(
            f"the cost is stated under {entry['adjacency']} and this book counts under {terms.adjacency}, which do not "
            f"convert exactly; derive the sensitivity under {terms.adjacency}"
        )
    law = law_from_dict(entry["law"])
    cost = Cost(law, entry["sensitivity"], entry["count"], entry["delta"])
    name, purpose = read_name(entry["mechanism"]), read_text(entry["purpose"], "purpose")
    return Reservation(entry["seq"], read_time(entry["time"]), name, cost, purpose)


def reservation_entry(request: Mapping[str, Any], terms: BookTerms) -> tuple[dict[str, Any], Cost]:
    """Return the body of a reservation, without number and time, and its cost.

    Parameters
    ----------
    request
        The arguments of `dpbayes.privacy.ledger.Ledger.reserve`.
    terms
        The terms of the book.

    Raises
    ------
    InputError
        If an argument is missing, unknown, out of range, or stated under another adjacency.
    """
    missing, unknown = _ARGUMENTS - set(request), set(request) - _ARGUMENTS - set(_OPTIONAL)
    if missing or unknown:
        raise InputError(f"a request has missing arguments {sorted(missing)} and unknown ones {sorted(unknown)}")
    request = _OPTIONAL | dict(request)
    cost = Cost(request["law"], request["sensitivity"], request["count"], request["delta"])
    numbers = {"law": cost.law.to_dict(), "sensitivity": cost.sensitivity, "count": cost.count, "delta": cost.delta}
    body = {"kind": "reserve"} | {key: request[key] for key in ("mechanism", "adjacency", "purpose")} | numbers
    read_reservation(body | {"seq": 0, "time": EPOCH}, terms)
    return body, cost
