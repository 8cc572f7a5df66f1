r"""The entries of a budget book and the chain of digests that holds them together.

An entry is one canonical JSON object (sorted keys, no spaces, ASCII, no NaN). Its digest is ``SHA-256(tag | digest of
the entry before | entry)``, the first one on 32 zero bytes. Changing, dropping, adding or moving any entry but the last
breaks the chain; dropping the last ones contradicts the count and the digest that the book keeps of its head.

There is no secret in a chain: whoever can rewrite the whole file can compute a new one. Against that, note the head
digest outside (in a release's cover letter, a ticket, a signed commit) and give it back as
``open_ledger(path, expected_head=...)``: the history up to that digest can then no longer be changed unnoticed.
"""

import datetime
import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from dpbayes.errors import DPBayesError, InputError
from dpbayes.privacy.ledger_cost import Spending
from dpbayes.privacy.ledger_damage import damaged
from dpbayes.privacy.ledger_entries import (
    BookTerms,
    Reservation,
    canonical,
    parse_entry,
    read_digest,
    read_reservation,
    read_terms,
    read_time,
)

__all__ = ["BookState", "Row", "chain_digest", "make_row"]

GENESIS = "0" * 64
MOST_BYTES = 8192
_TAG = b"dpbayes-ledger-1\n"


@dataclass(frozen=True)
class Row:
    """One stored entry: its place, its canonical JSON, its digest."""

    seq: int
    body: str
    digest: str


@dataclass
class BookState:
    """A chain read and verified so far; `absorb` goes on where it stopped.

    Attributes
    ----------
    terms
        What the first entry says; None before it is read.
    releases
        By entry number, in order.
    spending
        What all releases cost, confirmed or not.
    digests
        Digest of every entry; the last is the head.
    """

    terms: BookTerms | None = None
    releases: dict[int, Reservation] = field(default_factory=dict)
    spending: Spending = field(default_factory=Spending)
    digests: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        """Digest of the last entry."""
        return self.digests[-1] if self.digests else GENESIS

    @property
    def unconfirmed(self) -> list[Reservation]:
        """Releases reserved and never confirmed: they count as spent."""
        return [release for release in self.releases.values() if release.digest is None]

    def absorb(self, rows: list[Row]) -> None:
        """Verify further rows and take them in.

        Raises
        ------
        DamagedFileError
            If a row does not continue the chain or does not say what an entry says.
        """
        for row in rows:
            where = f"entry {len(self.digests)} of the book"
            if row.seq != len(self.digests):
                raise damaged(f"{where} is missing: number {row.seq} stands in its place")
            if row.digest != chain_digest(self.head, row.body):
                raise damaged(f"{where} does not match its digest: it was edited or moved")
            try:
                entry = parse_entry(row.body)
                self._take(row.seq, entry)
            except (DPBayesError, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
                raise damaged(f"{where} does not read: {error}") from error
            self.digests.append(row.digest)

    def _take(self, seq: int, entry: dict[str, Any]) -> None:
        if type(entry["seq"]) is not int or entry["seq"] != seq or (entry["kind"] == "open") != (seq == 0):
            raise InputError(f"a {entry['kind']} entry numbered {entry['seq']!r} does not belong at {seq}")
        if entry["kind"] == "open":
            self.terms = read_terms(entry)
        elif entry["kind"] == "reserve":
            assert self.terms is not None
            release = read_reservation(entry, self.terms)
            spending = self.spending.add([release.cost])
            # Rational sums are the same on every machine, so no honest writer can have passed this; numerics may move.
            terms, decided = self.terms, self.terms.composition == "basic" and spending.is_rational
            if decided and not spending.fits(terms.exact_epsilon, terms.exact_delta):
                raise InputError("with it the book holds more than its total, which cannot have been accepted")
            self.spending, self.releases[seq] = spending, release
        else:
            target = entry["entry"]
            self.check_confirmable(target)
            time, digest = read_time(entry["time"]), read_digest(entry["digest"])
            self.releases[target] = replace(self.releases[target], confirmed_at=time, digest=digest)

    def check_confirmable(self, entry: Any) -> None:
        """Raise `InputError` unless `entry` is a reservation that has not been confirmed."""
        if not isinstance(entry, int) or isinstance(entry, bool) or entry not in self.releases:
            raise InputError(f"entry {entry!r} is no reservation in this book; pass what reserve returned")
        if (time := self.releases[entry].confirmed_at) is not None:
            raise InputError(f"entry {entry} was confirmed before, at {time}; one draw, one release")


def chain_digest(previous: str, body: str) -> str:
    """Return the digest of an entry that follows the one with digest `previous`.

    Examples
    --------
    >>> chain_digest("0" * 64, "{}") == chain_digest("0" * 64, "{ }")
    False
    """
    return hashlib.sha256(_TAG + bytes.fromhex(previous) + b"\n" + body.encode("utf-8", "surrogatepass")).hexdigest()


def make_row(previous: str, seq: int, entry: dict[str, Any]) -> Row:
    """Return the row that appends `entry` after the one with digest `previous`, stamped with the time.

    Raises
    ------
    InputError
        If the entry is too long to store.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    body = canonical(entry | {"seq": seq, "time": now})
    if len(body) > MOST_BYTES:
        raise InputError(f"an entry must stay below {MOST_BYTES} bytes, got {len(body)}; shorten its text")
    return Row(seq, body, chain_digest(previous, body))
