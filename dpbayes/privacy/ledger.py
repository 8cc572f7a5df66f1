"""Budget book of one confidential dataset: every release is recorded before its noise is drawn.

The order is reserve, draw, confirm. `Ledger.reserve` writes what the release will cost, or refuses; only then may noise
be drawn; `Ledger.confirm` adds the digest of what came out. Whatever dies in between, the cost is in the book: a
reservation that was never confirmed counts as spent and is shown as such.

`dpbayes.privacy.ledger_cost` says what a release costs and under which conditions each composition holds,
`dpbayes.privacy.ledger_chain` what the chain of digests protects against and what it cannot.

Not in the book, ever: data, counts, noise, seeds. Its texts (dataset, mechanism, purpose) are public words that the
custodian writes.
"""

import uuid
from pathlib import Path

from dpbayes.privacy.adjacency import Adjacency
from dpbayes.privacy.ledger_book import Ledger, PendingRelease
from dpbayes.privacy.ledger_budget import Remaining, Spent
from dpbayes.privacy.ledger_chain import GENESIS, make_row
from dpbayes.privacy.ledger_cost import Cost, Guarantee
from dpbayes.privacy.ledger_entries import EPOCH, SCHEMA_VERSION, BookTerms, Composition, Reservation, read_terms
from dpbayes.privacy.ledger_store import create_file

__all__ = [
    "BookTerms",
    "Cost",
    "Guarantee",
    "Ledger",
    "PendingRelease",
    "Remaining",
    "Reservation",
    "Spent",
    "create_ledger",
    "open_ledger",
]


def open_ledger(path: str | Path, *, expected_head: str | None = None) -> Ledger:
    """Open an existing book and verify all of it.

    Parameters
    ----------
    path
        The file that `create_ledger` made.
    expected_head
        A head digest noted earlier (`Ledger.head`). The history up to it must be in the book unchanged; what was
        appended since is allowed. Without it, somebody who rewrites the whole file goes unnoticed.

    Returns
    -------
    Ledger
        The book.

    Raises
    ------
    DamagedFileError
        If the file is no book, or was edited, reordered or truncated.
    LedgerError
        If it cannot be opened or read.
    InputError
        If `expected_head` is no digest.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     head = create_ledger(f"{folder}/budget.db", epsilon=1.0, delta=0.0, adjacency="add-remove").head
    ...     open_ledger(f"{folder}/budget.db", expected_head=head).terms.epsilon
    1.0
    """
    return Ledger(path, expected_head=expected_head)


def create_ledger(
    path: str | Path,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency,
    composition: Composition = "basic",
    dataset: str = "confidential dataset",
) -> Ledger:
    """Create the budget book of one confidential dataset.

    Parameters
    ----------
    path
        A new file on a local disk; an existing one is never overwritten.
    epsilon, delta
        Total that all releases together may spend. Delta 0 allows pure mechanisms only.
    adjacency
        Neighbouring relation; every sensitivity must be stated under it.
    composition
        ``"basic"``: plain addition decides, whatever the order and however later releases are chosen. ``"tight"``: the
        tightest valid bound decides; read in `dpbayes.privacy.ledger_cost` what it presumes.
    dataset
        What to call the dataset; public text.

    Returns
    -------
    Ledger
        The book.

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
    entry = {"kind": "open", "schema": SCHEMA_VERSION, "book": uuid.uuid4().hex, "epsilon": epsilon, "delta": delta}
    entry |= {"adjacency": adjacency, "composition": composition, "dataset": dataset}
    terms = read_terms(entry | {"time": EPOCH})
    row = make_row(GENESIS, 0, entry | {"epsilon": terms.epsilon, "delta": terms.delta})
    create_file(Path(path).absolute(), row)
    return Ledger(path)
