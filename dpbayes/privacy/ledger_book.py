"""The budget book itself: reserve, confirm, read. `dpbayes.privacy.ledger` is the public module."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpbayes.errors import InputError, LedgerError
from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.ledger_budget import Remaining, Spent, check_budget, remaining_of, spent_of
from dpbayes.privacy.ledger_chain import BookState, make_row
from dpbayes.privacy.ledger_cost import Cost, Guarantee
from dpbayes.privacy.ledger_damage import damaged
from dpbayes.privacy.ledger_entries import BookTerms, Reservation, read_digest, reservation_entry
from dpbayes.privacy.ledger_seal import check_seal
from dpbayes.privacy.ledger_store import TURNS, append_rows, check_schema, read_head, read_rows, transaction
from dpbayes.privacy.noise import NoiseLaw

__all__ = ["Ledger", "PendingRelease"]


class PendingRelease:
    """A reservation inside `Ledger.spend`; confirm it with the digest of what was released.

    Attributes
    ----------
    entry
        Number of the reservation in the book.
    confirmed
        Whether `confirm` was called.

    Examples
    --------
    See `Ledger.spend`.
    """

    def __init__(self, ledger: "Ledger", entry: int) -> None:
        self.entry = entry
        self.confirmed = False
        self._ledger = ledger

    def confirm(self, digest: str) -> None:
        """Record the digest of the release, see `Ledger.confirm`."""
        self._ledger.confirm(self.entry, digest)
        self.confirmed = True


class Ledger:
    """A budget book, opened with `open_ledger` or `create_ledger`.

    One object may be shared by threads, forked and pickled; several processes may hold the same book. Within a process
    operations take turns, and `os.fork` waits for the one in progress, so that a child finds none half done.

    Attributes
    ----------
    path
        The file.
    terms
        Total epsilon and delta, adjacency, composition, dataset and time of creation.

    Examples
    --------
    >>> import tempfile
    >>> from dpbayes.privacy import TwoSidedGeometric
    >>> from dpbayes.privacy.ledger import create_ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     book = create_ledger(f"{folder}/budget.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    ...     law = TwoSidedGeometric.from_epsilon(0.4, sensitivity=2)
    ...     entry = book.reserve(
    ...         mechanism="two-sided-geometric", law=law, sensitivity=2, adjacency="replace-one", purpose="race"
    ...     )
    ...     book.confirm(entry, "0" * 64)  # the digest of the Release whose noise was drawn in between
    ...     book.remaining()
    Remaining(epsilon=0.6, delta=0.0)
    """

    def __init__(self, path: str | Path, *, expected_head: str | None = None) -> None:
        if expected_head is not None:
            read_digest(expected_head)
        self.path = Path(path).absolute()
        self._state = BookState()
        self._refresh(thorough=True)
        if expected_head is not None and expected_head not in self._state.digests:
            raise damaged(
                f"{self.path} does not contain the head {expected_head[:16]}... noted before: it was rewritten or "
                "exchanged, or is an older copy"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    @classmethod
    def open(cls, path: str | Path, *, expected_head: str | None = None) -> "Ledger":
        """Open an existing book, see `open_ledger`."""
        return cls(path, expected_head=expected_head)

    @property
    def terms(self) -> BookTerms:
        """What the book was opened with."""
        assert self._state.terms is not None
        return self._state.terms

    @property
    def head(self) -> str:
        """Digest of the last entry; note it outside to pin the history, see `open_ledger`."""
        with TURNS:
            self._refresh()
            return self._state.head

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
        """Record the cost of a release before its noise is drawn.

        Parameters
        ----------
        mechanism
            Short public name, such as ``"two-sided-geometric"``.
        law
            Law of the noise, or the `Guarantee` of a mechanism that has none.
        sensitivity
            L1 (two-sided geometric, Laplace) or L2 (Gaussians) sensitivity of one query; None for a `Guarantee`.
        adjacency
            Neighbouring relation of the sensitivity; must be the book's.
        purpose
            What the release is for; public text.
        count
            How many such queries, each with fresh noise.
        delta
            Share of the book's delta that plain addition charges; Gaussian laws only, needed in a "basic" book.

        Returns
        -------
        int
            Number of the entry, for `confirm`.

        Raises
        ------
        BudgetExceededError
            If the total would be exceeded. Nothing is recorded then.
        InputError
            If a value is out of range or the adjacency is not the book's.
        LedgerError, DamagedFileError
            If the book cannot be written or is damaged. Draw nothing then.
        """
        request = {"mechanism": mechanism, "law": law, "sensitivity": sensitivity, "adjacency": adjacency}
        return self.reserve_all([request | {"purpose": purpose, "count": count, "delta": delta}])[0]

    def reserve_all(self, requests: Sequence[Mapping[str, Any]]) -> list[int]:
        """Record several releases or none of them.

        Parameters
        ----------
        requests
            One mapping a release with the arguments of `reserve`.

        Returns
        -------
        list of int
            Numbers of the entries, in order.

        Raises
        ------
        BudgetExceededError
            If the total would be exceeded by all of them together. Nothing is recorded then.
        InputError, LedgerError, DamagedFileError
            As in `reserve`.
        """
        pairs = [reservation_entry(request, self.terms) for request in requests]
        return self._append([body for body, _ in pairs], [cost for _, cost in pairs]) if pairs else []

    def confirm(self, entry: int | Sequence[int], digest: str) -> None:
        """Record that the release of one reservation, or of several, was made.

        Parameters
        ----------
        entry
            What `reserve` or `reserve_all` returned; several are confirmed together or not at all.
        digest
            SHA-256 of the release, 64 hexadecimal digits (`Release.digest`).

        Raises
        ------
        InputError
            If there is no such reservation or it was confirmed before. Nothing is recorded then.
        LedgerError, DamagedFileError
            If the book cannot be written or is damaged; the reservation still counts as spent.
        """
        entries = list(entry) if isinstance(entry, Sequence) else [entry]
        if len(set(map(repr, entries))) < len(entries):
            raise InputError(f"entries {entries} name one reservation twice; pass what reserve_all returned")
        self._append([{"kind": "confirm", "entry": one, "digest": read_digest(digest)} for one in entries])

    @contextmanager
    def spend(self, **request: Any) -> Iterator[PendingRelease]:
        """Reserve on entering the block; draw and confirm inside.

        Parameters
        ----------
        **request
            The arguments of `reserve`.

        Yields
        ------
        PendingRelease
            Call its `confirm(digest)` when the release is made.

        Raises
        ------
        LedgerError
            If the block ends without an error and without `confirm`. The cost is spent either way.

        Examples
        --------
        >>> import tempfile
        >>> from dpbayes.privacy.ledger import Guarantee, create_ledger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     book = create_ledger(f"{folder}/budget.db", epsilon=1.0, delta=0.0, adjacency="add-remove")
        ...     with book.spend(
        ...         mechanism="randomized response", law=Guarantee(0.5), sensitivity=None, adjacency="add-remove",
        ...         purpose="one filter",
        ...     ) as pending:
        ...         pending.confirm("0" * 64)
        ...     book.spent().epsilon
        0.5
        """
        pending = PendingRelease(self, self.reserve(**request))
        yield pending
        if not pending.confirmed:
            raise LedgerError(
                f"the block ended without confirming entry {pending.entry}, which counts as spent; call "
                "confirm(release.digest) once the noise is drawn"
            )

    def spent(self) -> Spent:
        """Return what all releases cost, by plain addition and tightly."""
        with TURNS:
            self._refresh()
            state = self._state
            n, pending = len(state.releases), len(state.unconfirmed)
            return spent_of(state.spending, self.terms, releases=n, unconfirmed=pending)

    def remaining(self) -> Remaining:
        """Return what is left of the total."""
        with TURNS:
            self._refresh()
            return remaining_of(self._state.spending, self.terms)

    def entries(self) -> list[Reservation]:
        """Return all recorded releases in order, with the digest of those that were confirmed."""
        with TURNS:
            self._refresh()
            return list(self._state.releases.values())

    def unconfirmed(self) -> list[Reservation]:
        """Return the releases that were reserved and never confirmed; their cost is spent."""
        with TURNS:
            self._refresh()
            return self._state.unconfirmed

    def _repr_html_(self) -> str:
        from dpbayes.privacy.ledger_export import to_html

        return to_html(self)

    def _append(self, bodies: list[dict[str, Any]], costs: Sequence[Cost] = ()) -> list[int]:
        """Decide and append inside one write transaction."""
        with TURNS:
            with transaction(self.path, write=True) as connection:
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
                append_rows(connection, rows)
            # Committed: from here on a book without these entries is a damaged one.
            state.absorb(rows)
        return [row.seq for row in rows]

    def _refresh(self, *, thorough: bool = False) -> None:
        with transaction(self.path, write=False) as connection:
            self._absorb(connection, thorough=thorough)

    def _absorb(self, connection: Any, *, thorough: bool = False) -> None:
        """Verify what was added since the last look, and that what was there is still there."""
        state, known = self._state, len(self._state.digests)
        count = check_schema(connection, self.path, thorough=thorough)
        rows = read_rows(connection, self.path, max(known - 1, 0))
        if count < known or (known and (not rows or rows[0].digest != state.head)):
            raise damaged(f"{self.path} lost entries that were there before")
        state.absorb(rows[1:] if known else rows)
        if len(state.digests) != count or state.head != read_head(connection):
            raise damaged(f"{self.path} does not end at its head: truncated or edited")
        check_seal(connection, self.path)
