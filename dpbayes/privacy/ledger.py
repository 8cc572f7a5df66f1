"""Privacy-budget ledger of one confidential dataset: every release is recorded before its noise is drawn.

Reserve, draw, confirm: `Ledger.reserve` writes what the release will cost, or refuses; only then may noise be drawn;
`Ledger.confirm` adds the digest of what came out. Whatever dies in between, the cost is in the ledger: a reservation
that was never confirmed counts as spent. Not in the ledger, ever: data, counts, noise, seeds. The only free texts are
the mechanism's short name, the purpose and the dataset's label: public words that the custodian writes.
"""

import csv
import datetime
import io
import json
import math
import re
import unicodedata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from dpbayes._arguments import one_of, positive_finite, shown
from dpbayes._files import file_path
from dpbayes._html import html_table
from dpbayes.errors import BudgetExceededError, DPBayesError, InputError
from dpbayes.privacy import ledger_store as store
from dpbayes.privacy.adjacency import Adjacency, check_adjacency
from dpbayes.privacy.envelope import canonical_json
from dpbayes.privacy.laws import NoiseLaw
from dpbayes.privacy.ledger_cost import Cost, Guarantee, Spending, delta_in_range, law_from_dict
from dpbayes.privacy.ledger_store import GENESIS, SCHEMA_VERSION, TURNS, Row, chain_digest, damaged, make_row
from dpbayes.privacy.rounding import decimal_down, decimal_reading, float_down, float_up_or_decimal, nearest_float

Composition = Literal["basic", "tight"]

# Stands for the time of an entry while its other fields are checked.
EPOCH = "1970-01-01T00:00:00+00:00"
_ARGUMENTS = {"mechanism", "law", "sensitivity", "adjacency", "purpose"}
_OPTIONAL = {"count": 1, "delta": 0.0}
_COLUMNS = ["entry", "time", "mechanism", "law", "sensitivity", "count", "epsilon", "delta"]
_COLUMNS += ["purpose", "status", "digest"]
_NAME = re.compile(r"[a-z0-9][a-z0-9 ._-]{0,63}")
_KEYS = {
    "open": "kind seq time schema ledger epsilon delta adjacency composition dataset",
    "reserve": "kind seq time mechanism law sensitivity count delta adjacency purpose",
    "confirm": "kind seq time entry digest",
}
# A spreadsheet runs a field that starts with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ROUNDING = Fraction(1, 10**12)
_COMPOSITION = "basic holds for any releases, tight presumes that none is parametrized by earlier noisy answers"


@dataclass(frozen=True)
class LedgerTerms:
    """What a ledger was opened with; never changes. `created` is UTC, ISO 8601; `dataset` is public text."""

    ledger: str
    epsilon: float
    delta: float
    adjacency: Adjacency
    composition: Composition
    dataset: str
    created: str

    @property
    def exact_epsilon(self) -> Fraction:
        """The larger reading of the total: the double itself, or the decimal that it prints as."""
        return max(Fraction(self.epsilon), decimal_reading(self.epsilon))

    @property
    def exact_delta(self) -> Fraction:
        """The total delta as the decimal it prints as."""
        return decimal_reading(self.delta)


@dataclass(frozen=True)
class Reservation:
    """One recorded release; `confirmed_at` and `digest` are None until it is confirmed."""

    entry: int
    time: str
    mechanism: str
    cost: Cost
    purpose: str
    confirmed_at: str | None = None
    digest: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return one flat record; epsilon and delta by plain addition, None where epsilon is infinite."""
        epsilon, delta = self.cost.plain
        return {
            "entry": self.entry,
            "time": self.time,
            "mechanism": self.mechanism,
            "law": str(self.cost.law),
            "sensitivity": self.cost.sensitivity,
            "count": self.cost.count,
            "epsilon": None if epsilon is None else float_up_or_decimal(epsilon),
            "delta": float_up_or_decimal(delta),
            "purpose": self.purpose,
            "status": "confirmed" if self.digest else "unconfirmed, counts as spent",
            "digest": self.digest,
        }


@dataclass(frozen=True)
class Spent:
    """What a ledger's releases have cost so far, confirmed or not."""

    basic_epsilon: float
    basic_delta: float
    tight_epsilon: float
    epsilon: float
    releases: int
    unconfirmed: int


@dataclass(frozen=True)
class Remaining:
    """What is left, rounded down: a release with this pure epsilon certainly fits."""

    epsilon: float
    delta: float


class Ledger:
    """A privacy-budget ledger, opened with `open_ledger` or `create_ledger`.

    One object may be shared by threads, forked and pickled; several processes may hold the same ledger. `path` is its
    file, `head_file` the file that keeps the head or None, and `terms` what it was opened with.

    Examples
    --------
    >>> import tempfile
    >>> from dpbayes.privacy import TwoSidedGeometric, create_ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = create_ledger(f"{folder}/budget.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    ...     law = TwoSidedGeometric.from_epsilon(0.4, sensitivity=2)
    ...     entry = ledger.reserve(
    ...         mechanism="geometric", law=law, sensitivity=2, adjacency="replace-one", purpose="race"
    ...     )
    ...     ledger.confirm(entry, "0" * 64)  # the digest of the Release whose noise was drawn in between
    ...     ledger.remaining()
    Remaining(epsilon=0.6, delta=0.0)
    """

    rehearses = False

    def __init__(
        self, path: str | Path, *, expected_head: str | None = None, head_file: str | Path | None = None
    ) -> None:
        if expected_head is not None:
            read_digest(expected_head, remedy="`dpbayes ledger show` prints the last one")
        self.path = file_path(path).absolute()
        self.head_file = None if head_file is None else Path(head_file).absolute()
        self._state = _State()
        with store.transaction(self.path, write=False) as connection:
            self._absorb(connection, thorough=True)
            if expected_head is not None:
                self._check_contains(expected_head, "noted before")
            self._keep_head()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Ledger, head_file=self.head_file), (self.path,)

    @property
    def terms(self) -> LedgerTerms:
        """What the ledger was opened with."""
        assert self._state.terms is not None
        return self._state.terms

    @property
    def head(self) -> str:
        """Digest of the last entry; note it outside to pin the history, see `open_ledger`."""
        with self._current() as state:
            return state.head

    @contextmanager
    def _current(self) -> Iterator["_State"]:
        """Hold the ledger as it stands on disk now."""
        with TURNS:
            with store.transaction(self.path, write=False) as connection:
                self._absorb(connection)
            yield self._state

    def reserve(
        self,
        *,
        mechanism: str,
        law: NoiseLaw | Guarantee,
        sensitivity: float | None,
        adjacency: Adjacency,
        purpose: str,
        count: int = 1,
        delta: float = 0.0,
    ) -> int:
        """Record the cost of a release before its noise is drawn, and return the number of the entry, for `confirm`.

        Parameters
        ----------
        mechanism, purpose
            Short public name, such as ``"two-sided-geometric"``, and what the release is for; public text.
        law
            Law of the noise, or the `Guarantee` of a mechanism that has none.
        sensitivity
            Of one query, in the law's norm (L1 or L2), under `adjacency`, the ledger's; None for a `Guarantee`.
        count
            How many such queries, each with fresh noise.
        delta
            Share of the ledger's delta that plain addition charges; Gaussian laws only, needed in a "basic" ledger.

        Raises
        ------
        BudgetExceededError, InputError
            If the total would be exceeded, or a value is out of range. Nothing is recorded then.
        LedgerError, DamagedFileError
            If the ledger cannot be written or is damaged. Draw nothing then.
        """
        request = {"mechanism": mechanism, "law": law, "sensitivity": sensitivity, "adjacency": adjacency}
        return self.reserve_all([request | {"purpose": purpose, "count": count, "delta": delta}])[0]

    def reserve_all(self, requests: Sequence[Mapping[str, Any]]) -> list[int]:
        """Record several releases (mappings of the arguments of `reserve`) or none; return their entries in order."""
        pairs = [_reservation_entry(request, self.terms) for request in requests]
        return self._append([body for body, _ in pairs], [cost for _, cost in pairs]) if pairs else []

    def confirm(self, entry: int | Sequence[int], digest: str) -> None:
        """Record that the release of one reservation, or of several together, was made.

        `entry` is what `reserve` or `reserve_all` returned, `digest` the release's SHA-256 (`Release.digest`).
        `InputError` if there is no such reservation or it was confirmed before; `LedgerError` or `DamagedFileError` if
        the ledger cannot be written or is damaged. Nothing is recorded then, and the reservation counts as spent.
        """
        entries = list(entry) if isinstance(entry, Sequence) else [entry]
        if len(set(map(shown, entries))) < len(entries):
            raise InputError(f"entries {shown(entries)} name one reservation twice; pass what reserve_all returned")
        self._append([{"kind": "confirm", "entry": one, "digest": read_digest(digest)} for one in entries])

    def spent(self) -> Spent:
        """Return what all releases cost, by plain addition and tightly."""
        with self._current() as state:
            spending = state.spending
            basic = math.inf if spending.epsilon is None else float_up_or_decimal(spending.epsilon)
            tight = spending.tight_epsilon(self.terms.delta)
            decides = basic if self.terms.composition == "basic" else tight
            delta = float_up_or_decimal(spending.delta)
            unconfirmed = sum(release.digest is None for release in state.releases.values())
            return Spent(basic, delta, tight, decides, len(state.releases), unconfirmed)

    def remaining(self) -> Remaining:
        """Return what is left of the total."""
        with self._current() as state:
            return remaining_of(state.spending, self.terms)

    def entries(self) -> list[Reservation]:
        """Return all recorded releases in order, with the digest of those that were confirmed."""
        with self._current() as state:
            return list(state.releases.values())

    def unconfirmed(self) -> list[Reservation]:
        """Return the releases that were reserved and never confirmed; their cost is spent."""
        return [release for release in self.entries() if release.digest is None]

    def to_json(self) -> str:
        """Return the whole ledger as JSON: terms, sums, releases, head digest."""
        terms, spent, left = self.terms, self.spent(), self.remaining()
        record = {
            "format": "dpbayes-ledger",
            "ledger": terms.ledger,
            "dataset": terms.dataset,
            "created": terms.created,
            "adjacency": terms.adjacency,
            "composition": terms.composition,
            "total": {"epsilon": terms.epsilon, "delta": terms.delta},
            "spent": {
                "basic": {"epsilon": _finite(spent.basic_epsilon), "delta": spent.basic_delta},
                "tight": {"epsilon": _finite(spent.tight_epsilon), "delta": terms.delta},
                "decides": _finite(spent.epsilon),
            },
            "remaining": {"epsilon": left.epsilon, "delta": left.delta},
            "unconfirmed": [release.entry for release in self.unconfirmed()],
            "head": self.head,
            "releases": [release.to_dict() for release in self.entries()],
        }
        return json.dumps(record, indent=1, allow_nan=False)

    def to_csv(self) -> str:
        """Return one line per release, with a header; no text starts as a spreadsheet's formula does."""
        target = io.StringIO()
        writer = csv.DictWriter(target, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        for entry in self.entries():
            record = entry.to_dict()
            texts = {key: text for key, text in record.items() if isinstance(text, str) and text.startswith(_FORMULA)}
            writer.writerow(record | {key: f"'{text}" for key, text in texts.items()})
        return target.getvalue()

    def _repr_html_(self) -> str:
        terms, spent, left = self.terms, self.spent(), self.remaining()
        caption = (
            f"{terms.dataset}: epsilon {spent.epsilon:.6g} of {terms.epsilon:g} spent at delta {terms.delta:g} "
            f"({terms.composition}, {terms.adjacency}), {left.epsilon:.6g} left, {spent.unconfirmed} unconfirmed"
        )
        names = ("entry", "time", "mechanism", "law", "count", "epsilon", "purpose", "status")
        rows = (release.to_dict() for release in self.entries())
        return html_table(caption, names, ([row[name] for name in names] for row in rows))

    def _append(self, bodies: list[dict[str, Any]], costs: Sequence[Cost] = ()) -> list[int]:
        """Decide and append inside one write transaction."""
        with TURNS:
            with store.transaction(self.path, write=True) as connection:
                self._absorb(connection)
                state = self._state
                if costs:
                    check_budget(state.spending, costs, self.terms)
                for body in bodies:
                    if body["kind"] == "confirm":
                        state.check_confirmable(body["entry"])
                rows, head = [], state.head
                for seq, body in enumerate(bodies, start=len(state.digests)):
                    rows.append(make_row(head, seq, body))
                    head = rows[-1].digest
                store.append_rows(connection, rows)
            # Committed: from here on a ledger without these entries is a damaged one.
            state.absorb(rows)
            if self.head_file is not None:
                try:
                    with store.transaction(self.path, write=False) as connection:
                        self._absorb(connection)
                        self._keep_head()
                except DPBayesError as error:
                    error.add_note(f"Entries {rows[0].seq} to {rows[-1].seq} of {self.path} were written before this.")
                    raise
        return [row.seq for row in rows]

    def _keep_head(self) -> None:
        """Hold the head file against the ledger and renew it, inside a transaction: no other process moves either."""
        if self.head_file is None:
            return
        kept = store.read_head_file(self.head_file)
        if kept is not None:
            self._check_contains(kept, f"that {self.head_file} keeps")
        if kept != self._state.head:
            store.write_head_file(self.head_file, self._state.head)

    def _absorb(self, connection: Any, *, thorough: bool = False) -> None:
        """Verify what was added since the last look, and that what was there is still there."""
        state, known = self._state, len(self._state.digests)
        count, head = store.check_schema(connection, self.path, thorough=thorough)
        rows = store.read_rows(connection, self.path, max(known - 1, 0))
        if count < known or (known and (not rows or rows[0].digest != state.head)):
            raise damaged(f"{self.path} lost entries that were there before")
        state.absorb(rows[1:] if known else rows)
        if len(state.digests) != count or state.head != head:
            raise damaged(f"{self.path} does not end at its head: truncated or edited")

    def _check_contains(self, head: str, which: str) -> None:
        """Refuse a ledger whose history lacks a head."""
        if head not in self._state.digests:
            raise damaged(
                f"{self.path} does not contain the head {shown(head[:16])}... {which}: it was rewritten or "
                "exchanged, or is an older copy"
            )


class Rehearsal(Ledger):
    """A ledger that refuses what another would, and records nothing: for releases of placeholder counts."""

    rehearses = True

    def __init__(self, ledger: Ledger) -> None:
        self.path, self.head_file, self._state = ledger.path, ledger.head_file, ledger._state

    def _append(self, bodies: list[dict[str, Any]], costs: Sequence[Cost] = ()) -> list[int]:
        with self._current() as state:
            check_budget(state.spending, costs, self.terms)
        return []


def open_ledger(path: str | Path, *, expected_head: str | None = None, head_file: str | Path | None = None) -> Ledger:
    """Open an existing ledger and verify all of it.

    Parameters
    ----------
    path
        The file that `create_ledger` made.
    expected_head
        A head digest noted earlier (`Ledger.head`), which must be in the history. Without it, somebody who rewrites the
        whole file goes unnoticed.
    head_file
        A file that keeps the head, for runs that nobody watches: its head is expected if it exists, and it is written
        anew after every entry. It notices a ledger that was put back to an older copy, unless the file was put back
        with it: keep it on another disk or in another backup.

    Raises
    ------
    DamagedFileError
        If the file is no ledger, was edited, reordered or truncated, or lacks the expected head.
    LedgerError, InputError
        If it, or the head file, cannot be opened, read or written; if `expected_head` is no digest.
    """
    return Ledger(path, expected_head=expected_head, head_file=head_file)


def create_ledger(
    path: str | Path,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    composition: Composition = "basic",
    dataset: str = "confidential dataset",
) -> Ledger:
    """Create the privacy-budget ledger of one confidential dataset.

    Parameters
    ----------
    path
        A new file on a local disk; an existing one is never overwritten.
    epsilon, delta
        Total that all releases together may spend. Delta 0 allows pure mechanisms only.
    adjacency
        Neighbouring relation; every sensitivity must be stated under it.
    composition
        ``"basic"``: plain addition decides, however later releases are chosen. ``"tight"``: the tightest valid bound
        decides, which presumes that no release's parameters depend on earlier noisy answers (docs/privacy.md).
    dataset
        What to call the dataset; public text.

    Raises
    ------
    InputError
        If a value is out of range.
    LedgerError
        If the path exists or cannot be written. Nothing is left behind then.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     create_ledger(f"{folder}/budget.db", epsilon=1.0, delta=1e-6, adjacency="replace-one").remaining()
    Remaining(epsilon=1.0, delta=1e-06)
    """
    entry = {"kind": "open", "schema": SCHEMA_VERSION, "ledger": uuid.uuid4().hex, "epsilon": epsilon, "delta": delta}
    entry |= {"adjacency": adjacency, "composition": composition, "dataset": dataset}
    terms = _read_terms(entry | {"time": EPOCH})
    row = make_row(GENESIS, 0, entry | {"epsilon": terms.epsilon, "delta": terms.delta})
    store.create_file(file_path(path).absolute(), row)
    return Ledger(path)


def remaining_of(spending: Spending, terms: LedgerTerms) -> Remaining:
    """Return what a spending leaves of the total of its ledger."""
    none = Fraction(0)
    if terms.composition == "basic":
        assert spending.epsilon is not None  # check_budget lets no infinite cost into a basic ledger
        left = terms.exact_epsilon - spending.epsilon, terms.exact_delta - spending.delta
        return Remaining(float_down(max(left[0], none)), decimal_down(max(left[1], none)))
    fits = spending.fits(terms.exact_epsilon, terms.exact_delta) and spending.epsilon is not None
    exact = terms.exact_epsilon - spending.epsilon if fits else none  # type: ignore[operator]
    tight = spending.tight_epsilon(terms.delta)
    used = max(Fraction(tight), decimal_reading(tight)) if math.isfinite(tight) else terms.exact_epsilon
    return Remaining(float_down(max(exact, terms.exact_epsilon - used)), terms.delta)


def check_budget(spending: Spending, costs: Sequence[Cost], terms: LedgerTerms) -> None:
    """Raise `BudgetExceededError` unless all these costs fit on top of a spending."""
    after, asked = spending.add(costs), Spending().add(costs)
    if after.fits(terms.exact_epsilon, terms.exact_delta):
        return
    left = remaining_of(spending, terms)
    remedy = "nothing was recorded; lower epsilon (a larger noise scale) or leave the release out"
    if terms.composition == "basic":
        if asked.epsilon is None:
            laws = ", ".join(sorted({str(cost.law) for cost in costs if cost.plain[0] is None}))
            raise InputError(
                f"plain addition has no finite epsilon for {laws} without a share of delta; pass delta= (the ledger "
                f"has {left.delta!r} left) or release under a ledger of tight composition"
            )
        more = nearest_float(asked.epsilon)
        raise BudgetExceededError(
            f"the request asks for epsilon {more:.12g} and delta {float(asked.delta):.12g}; left by "
            f"plain addition under {terms.adjacency} are epsilon {left.epsilon:.12g} of {terms.epsilon:.12g} and delta "
            f"{left.delta:.12g} of {terms.delta:.12g}; {remedy}{_rounding_note(after, terms)}"
        )
    total = after.tight_epsilon(terms.delta, enough=terms.epsilon)
    if math.isfinite(total) and Fraction(total) <= terms.exact_epsilon:
        return
    # What is left was rounded down in both readings of its double, so either of them still fits.
    promised = max(Fraction(left.epsilon), decimal_reading(left.epsilon))
    if asked.epsilon is not None and not asked.delta and asked.epsilon <= promised:
        return
    alone = asked.tight_epsilon(terms.delta)
    raise BudgetExceededError(
        f"the request costs epsilon {alone:.6g} at delta {terms.delta:g} by itself and {total:.6g} together with what "
        f"is spent (tight composition, {terms.adjacency}); left is epsilon {left.epsilon:.6g} of {terms.epsilon:g}; "
        f"{remedy}{_rounding_note(after, terms)}"
    )


def _rounding_note(after: Spending, terms: LedgerTerms) -> str:
    """Say so when doubles, not the custodian, asked for too much."""
    if after.epsilon is None or after.delta > terms.exact_delta:
        return ""
    excess = after.epsilon - terms.exact_epsilon
    if not 0 < excess <= _ROUNDING * terms.exact_epsilon:
        return ""
    remedy = "take the next larger noise scale, math.nextafter(scale, math.inf)"
    return f". The excess is {float(excess):.1g}, a rounding of doubles: {remedy}"


@dataclass
class _State:
    """A chain read and verified so far; `absorb` goes on where it stopped. Unconfirmed releases count as spent."""

    terms: LedgerTerms | None = None
    releases: dict[int, Reservation] = field(default_factory=dict)
    spending: Spending = field(default_factory=Spending)
    digests: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        """Digest of the last entry."""
        return self.digests[-1] if self.digests else GENESIS

    def absorb(self, rows: list[Row]) -> None:
        """Verify further rows and take them in."""
        for row in rows:
            where = f"entry {len(self.digests)} of the ledger"
            if row.seq != len(self.digests):
                raise damaged(f"{where} is missing: number {row.seq} stands in its place")
            if row.digest != chain_digest(self.head, row.body):
                raise damaged(f"{where} does not match its digest: it was edited or moved")
            try:
                self._take(row.seq, _parse_entry(row.body))
            except (DPBayesError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
                raise damaged(f"{where} does not read: {error}") from error
            self.digests.append(row.digest)

    def _take(self, seq: int, entry: dict[str, Any]) -> None:
        if type(entry["seq"]) is not int or entry["seq"] != seq or (entry["kind"] == "open") != (seq == 0):
            raise InputError(f"a {entry['kind']} entry numbered {entry['seq']!r} does not belong at {seq}")
        if entry["kind"] == "open":
            self.terms = _read_terms(entry)
        elif entry["kind"] == "reserve":
            assert self.terms is not None
            release = _read_reservation(entry, self.terms)
            spending = self.spending.add([release.cost])
            # Rational sums are the same on every machine, so no honest writer can have passed this; numerics may move.
            terms, rational = self.terms, all(cost.law.is_pure for cost, _ in spending.groups)
            decided = rational and terms.composition == "basic"
            if decided and not spending.fits(terms.exact_epsilon, terms.exact_delta):
                raise InputError("with it the ledger holds more than its total, which cannot have been accepted")
            self.spending, self.releases[seq] = spending, release
        else:
            target = entry["entry"]
            self.check_confirmable(target)
            time, digest = _read_time(entry["time"]), read_digest(entry["digest"])
            self.releases[target] = replace(self.releases[target], confirmed_at=time, digest=digest)

    def check_confirmable(self, entry: Any) -> None:
        """Raise `InputError` unless `entry` is a reservation that has not been confirmed."""
        if not isinstance(entry, int) or isinstance(entry, bool) or entry not in self.releases:
            raise InputError(f"entry {shown(entry)} is no reservation in this ledger; pass what reserve returned")
        if (time := self.releases[entry].confirmed_at) is not None:
            raise InputError(f"entry {entry} was confirmed before, at {time}; one draw, one release")


# --- what entries may say: a closed set of public fields, each with its check ----------------------------------------


def read_digest(value: Any, *, remedy: str = "pass release.digest") -> str:
    """Return `value` if it is a SHA-256 digest in lower-case hexadecimal, or raise `InputError`."""
    if not isinstance(value, str) or not store.DIGEST.fullmatch(value):
        raise InputError(f"a digest is 64 lower-case hexadecimal digits, got {shown(value)}; {remedy}")
    return value


def public_text(value: Any, name: str, *, most: int = 500) -> str:
    """Return public text of the custodian: printable, on one line, or raise `InputError`."""
    if not isinstance(value, str) or not value.strip() or len(value) > most:
        raise InputError(f"{name} must be text of 1 to {most} characters, got {shown(value):.80}; say what it is for")
    if any(unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} for char in value):
        raise InputError(f"{name} must be printable text on one line, got {value!r:.80}; drop control characters")
    return value


def _parse_entry(body: str) -> dict[str, Any]:
    """Return the entry that a canonical body holds, with exactly the keys of its kind."""
    entry = json.loads(body)
    if not isinstance(entry, dict) or entry.get("kind") not in _KEYS or canonical_json(entry) != body:
        raise InputError("it is not canonical JSON of a known kind")
    if set(entry) != set(_KEYS[entry["kind"]].split()):
        raise InputError(f"a {entry['kind']} entry has the wrong keys {sorted(entry)}")
    return entry


def _read_time(value: Any) -> str:
    if not isinstance(value, str) or datetime.datetime.fromisoformat(value).utcoffset() != datetime.timedelta(0):
        raise InputError(f"time must be UTC in ISO 8601, got {value!r}")
    return value


def _read_terms(entry: dict[str, Any]) -> LedgerTerms:
    if entry["schema"] != SCHEMA_VERSION:
        raise InputError(f"schema {entry['schema']!r} is not {SCHEMA_VERSION}; update dpbayes")
    if not isinstance(entry["ledger"], str) or not re.fullmatch(r"[0-9a-f]{32}", entry["ledger"]):
        raise InputError(f"ledger must be 32 hexadecimal digits, got {entry['ledger']!r}")
    return LedgerTerms(
        entry["ledger"],
        positive_finite(entry["epsilon"], "epsilon", remedy="it is the total over all releases"),
        delta_in_range(entry["delta"], "delta"),
        check_adjacency(entry["adjacency"]),
        one_of(entry["composition"], get_args(Composition), "composition", remedy=_COMPOSITION),
        public_text(entry["dataset"], "dataset"),
        _read_time(entry["time"]),
    )


def _read_reservation(entry: dict[str, Any], terms: LedgerTerms) -> Reservation:
    if check_adjacency(entry["adjacency"]) != terms.adjacency:
        raise InputError(
            f"the cost is stated under {entry['adjacency']} and this ledger counts under {terms.adjacency}, which do "
            f"not convert exactly; derive the sensitivity under {terms.adjacency}"
        )
    cost = Cost(law_from_dict(entry["law"]), entry["sensitivity"], entry["count"], entry["delta"])
    if not isinstance(name := entry["mechanism"], str) or not _NAME.fullmatch(name):
        raise InputError(
            f"mechanism must be a short lower-case name, got {shown(name):.80}; such as 'two-sided-geometric'"
        )
    return Reservation(entry["seq"], _read_time(entry["time"]), name, cost, public_text(entry["purpose"], "purpose"))


def _reservation_entry(request: Mapping[str, Any], terms: LedgerTerms) -> tuple[dict[str, Any], Cost]:
    """Return the body of a reservation, without number and time, and its cost."""
    missing, unknown = _ARGUMENTS - set(request), set(request) - _ARGUMENTS - set(_OPTIONAL)
    if missing or unknown:
        raise InputError(f"a request has missing arguments {sorted(missing)} and unknown ones {sorted(unknown)}")
    request = _OPTIONAL | dict(request)
    cost = Cost(request["law"], request["sensitivity"], request["count"], request["delta"])
    numbers = {"law": cost.law.to_dict(), "sensitivity": cost.sensitivity, "count": cost.count, "delta": cost.delta}
    body = {"kind": "reserve"} | {key: request[key] for key in ("mechanism", "adjacency", "purpose")} | numbers
    _read_reservation(body | {"seq": 0, "time": EPOCH}, terms)
    return body, cost


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
