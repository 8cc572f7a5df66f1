"""The seal of a budget book: a digest over every byte of its file, renewed in the transaction that changes it.

The chain of `dpbayes.privacy.ledger_chain` covers what the entries say. A file has more bytes than that: free space in
its pages, counters, padding. A changed one there would mean nothing and be found by nobody, which leaves the custodian
to wonder what else the disk has changed. So one more row holds the SHA-256 of the whole file, as SQLite will write it:

- the 64 digits of the seal itself count as zeros;
- SQLite raises its change counter (bytes 24 to 27) when it commits and repeats it in bytes 92 to 95: both count as
  zeros and must agree; bytes 96 to 99 then name the version of the library that wrote (SQLite's file format, "file
  change counter" and "version-valid-for number"), which is known beforehand;
- the file has no byte behind its last page.

The pages are read through the connection, so that the seal is taken of the transaction in progress, and the rollback
journal covers seal and entries alike: kill -9 leaves the former book with its former seal. Like the chain, the seal
holds no secret and stops no forger; a head noted elsewhere does. Copy a book as a file: SQLite's own ``.backup`` and
``VACUUM`` write other bytes, which the seal cannot tell from damage.
"""

import hashlib
import secrets
import sqlite3
from pathlib import Path

from dpbayes.errors import LedgerError
from dpbayes.privacy.ledger_damage import damaged

__all__ = ["check_seal", "renew_seal"]

_COUNTERS = (slice(24, 28), slice(92, 96))
_LIBRARY = slice(96, 100)


def renew_seal(connection: sqlite3.Connection) -> None:
    """Seal the book as it stands inside a write transaction, last thing before the commit.

    Raises
    ------
    LedgerError
        If the seal would not verify; the transaction must then be rolled back.

    Examples
    --------
    >>> import tempfile
    >>> from dpbayes.privacy.ledger import create_ledger, open_ledger
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = create_ledger(f"{folder}/b.db", epsilon=1.0, delta=0.0, adjacency="add-remove").path
    ...     content = bytearray(path.read_bytes())
    ...     content[-2000] ^= 1  # free space: no entry says anything else than before
    ...     _ = path.write_bytes(content)
    ...     open_ledger(path)
    Traceback (most recent call last):
    dpbayes.errors.DamagedFileError: ...b.db was changed by something other than dpbayes...
    """
    library = _version_bytes()
    # A random place holder is found where a fixed one might stand in somebody's text.
    _store(connection, holder := secrets.token_hex(32))
    _store(connection, digest := _digest(connection.serialize(), holder, library))
    if not digest or _digest(connection.serialize(), digest, library) != digest:
        raise LedgerError("SQLite does not keep the book's pages as they were sealed; nothing was changed")


def check_seal(connection: sqlite3.Connection, path: Path) -> None:
    """Check every byte of the file against its seal, inside a transaction.

    Raises
    ------
    DamagedFileError
        If a byte was changed, added or taken away, or SQLite rewrote the file.
    """
    image = connection.serialize()
    stored = connection.execute("SELECT CAST(digest AS BLOB) FROM seal WHERE id = 0").fetchone()
    seal = stored[0].decode("ascii", "replace") if stored and isinstance(stored[0], bytes) else ""
    counters = [image[place] for place in _COUNTERS]
    intact = counters[0] == counters[1] and path.stat().st_size == len(image)
    if not (intact and len(seal) == 64 and _digest(image, seal, image[_LIBRARY]) == seal):
        raise damaged(f"{path} was changed by something other than dpbayes: its bytes do not match its seal")


def _store(connection: sqlite3.Connection, digest: str) -> None:
    connection.execute("UPDATE seal SET digest = ? WHERE id = 0", (digest,))


def _digest(image: bytes, seal: str, library: bytes) -> str:
    """Return the SHA-256 of a file without its seal and counters; empty if the seal is not in it exactly once."""
    digits = seal.encode("ascii", "replace")
    place = image.find(digits)
    if place < 100 or image.find(digits, place + 1) >= 0:
        return ""
    header = bytearray(image[:100])
    for counter in _COUNTERS:
        header[counter] = bytes(4)
    header[_LIBRARY] = library
    body = memoryview(image)
    content = hashlib.sha256(b"dpbayes-ledger-seal-1\n" + header)
    content.update(body[100:place])
    content.update(bytes(len(digits)))
    content.update(body[place + len(digits) :])
    return content.hexdigest()


def _version_bytes() -> bytes:
    """Return what SQLite writes in bytes 96 to 99: its version as one number."""
    major, minor, patch = sqlite3.sqlite_version_info
    return (1_000_000 * major + 1_000 * minor + patch).to_bytes(4, "big")
