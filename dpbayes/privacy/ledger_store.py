"""The file of a privacy-budget ledger: a chain of entries in SQLite, one transaction per operation (docs/privacy.md).

An entry is one canonical JSON object; its digest is ``SHA-256(tag | digest of the entry before | entry)``, the first
one on 32 zero bytes, and a head row repeats the count and the last digest. Rollback journal and ``synchronous=EXTRA``:
a committed entry survives power loss, and the ledger stays one file. ``BEGIN IMMEDIATE``: who decides about the budget
holds the only write lock. A fresh connection for every operation, one at a time in a process: safe across forks and
threads. No error of SQLite leaves this module: what is wrong with the file is a `DamagedFileError`, what is wrong with
disk, rights or lock a `LedgerError`.
"""

import contextlib
import datetime
import hashlib
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbayes._files import input_file, write_text
from dpbayes.errors import DamagedFileError, InputError, LedgerError
from dpbayes.privacy.envelope import canonical_json

SCHEMA_VERSION = 3
APPLICATION_ID = 0x64504231  # "dPB1"
BUSY_SECONDS = 60.0
GENESIS = "0" * 64
DIGEST = re.compile(r"[0-9a-f]{64}")
RESTORE = (
    "restore the newest copy and open it with expected_head=, the last head you noted; every release made since that "
    "copy still counts and must be reserved again first"
)
# Operations on ledgers take turns within a process, and a fork waits for the one in progress. Otherwise the child would
# inherit a lock that none of its threads can release, and a connection whose file locks its SQLite would count as its
# own although the system gives it none.
TURNS = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=TURNS.acquire, after_in_parent=TURNS.release, after_in_child=TURNS.release)
_MOST_BYTES = 8192
_TAG = b"dpbayes-ledger-1\n"
_OLDEST_SQLITE = (3, 37)  # STRICT tables

_SCHEMA = {
    "entry": "CREATE TABLE entry (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL) STRICT",
    "head": "CREATE TABLE head (id INTEGER PRIMARY KEY, count INTEGER NOT NULL, digest TEXT NOT NULL) STRICT",
    "entry_update": (
        "CREATE TRIGGER entry_update BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END"
    ),
    "entry_delete": (
        "CREATE TRIGGER entry_delete BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END"
    ),
    # Also stops INSERT OR REPLACE, which fires no DELETE trigger.
    "entry_insert": (
        "CREATE TRIGGER entry_insert BEFORE INSERT ON entry WHEN NEW.seq IS NOT (SELECT count FROM head WHERE id = 0) "
        "BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END"
    ),
    "head_delete": (
        "CREATE TRIGGER head_delete BEFORE DELETE ON head BEGIN SELECT RAISE(ABORT, 'the head stays'); END"
    ),
    "head_update": (
        "CREATE TRIGGER head_update BEFORE UPDATE ON head WHEN NEW.id IS NOT 0 OR NEW.count IS NOT OLD.count + 1 "
        "OR NEW.digest IS NOT (SELECT digest FROM entry WHERE seq = OLD.count) "
        "BEGIN SELECT RAISE(ABORT, 'the head follows the entries'); END"
    ),
}

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_FORMAT}
_REMEDIES = {
    sqlite3.SQLITE_FULL: "the disk is full; free some space and try again",
    sqlite3.SQLITE_IOERR: "the disk refused to read or write; check its space, quota and health, and try again",
    sqlite3.SQLITE_READONLY: "the file or its folder is read-only; ask for the right to write both",
    sqlite3.SQLITE_CANTOPEN: "the file or its journal cannot be opened; ask for the right to write the folder",
    sqlite3.SQLITE_PERM: "access was denied; ask for the right to read and write the file",
    sqlite3.SQLITE_BUSY: f"another process held the ledger for {BUSY_SECONDS:g} s; end it or try again",
    sqlite3.SQLITE_LOCKED: "the ledger is locked; try again",
    sqlite3.SQLITE_PROTOCOL: "locking failed; keep the ledger on a local disk",
    sqlite3.SQLITE_NOMEM: "memory ran out; free some and try again",
}


@dataclass(frozen=True)
class Row:
    """One stored entry: its place, its canonical JSON, its digest."""

    seq: int
    body: str
    digest: str


def damaged(what: str) -> DamagedFileError:
    """Return the error for a ledger of which `what` is wrong, with the one remedy that does not refill the budget."""
    return DamagedFileError(f"{what}; {RESTORE}")


def chain_digest(previous: str, body: str) -> str:
    """Return the digest of an entry that follows the one with digest `previous`."""
    return hashlib.sha256(_TAG + bytes.fromhex(previous) + b"\n" + body.encode("utf-8", "surrogatepass")).hexdigest()


def make_row(previous: str, seq: int, entry: dict[str, Any]) -> Row:
    """Return the row that appends `entry` after the one with digest `previous`, stamped with the time."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    body = canonical_json(entry | {"seq": seq, "time": now})
    if len(body) > _MOST_BYTES:
        raise InputError(f"an entry must stay below {_MOST_BYTES} bytes, got {len(body)}; shorten its text")
    return Row(seq, body, chain_digest(previous, body))


def create_file(path: Path, first: Row) -> None:
    """Create the file of a ledger that holds its first entry; an existing path is never touched."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        raise LedgerError(
            f"{path} exists and is never overwritten; open it with open_ledger (`dpbayes ledger show`) or choose a path"
        ) from None
    except OSError as error:
        raise LedgerError(f"{path} cannot be created: {error.strerror}; choose a folder that you may write") from error
    except ValueError as error:
        raise LedgerError(f"{path!s} cannot be created: {error}; check the path") from error
    try:
        with transaction(path, write=True, empty=True) as connection:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            for statement in _SCHEMA.values():
                connection.execute(statement)
            connection.execute("INSERT INTO head VALUES (0, 0, ?)", (GENESIS,))
            append_rows(connection, [first])
    except BaseException:
        # The name was free before this call created it, so nobody's ledger is lost.
        for leftover in (path, path.with_name(path.name + "-journal")):
            with contextlib.suppress(OSError):
                leftover.unlink()
        raise


@contextlib.contextmanager
def transaction(path: Path, *, write: bool, empty: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the file for one transaction: committed at the end of the block, rolled back if it raises."""
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise LedgerError(f"a ledger needs SQLite 3.37, Python came with {sqlite3.sqlite_version}; update Python")
    with TURNS:
        if not empty:
            _check_path(path)
        try:
            uri = path.absolute().as_uri() + "?mode=rw"
            connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
            with contextlib.closing(connection):
                _harden(connection)
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    if not empty:
                        _check_header(connection, path)
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        # A rollback that fails too leaves a hot journal, which the next opening rolls back.
                        with contextlib.suppress(sqlite3.Error):
                            connection.execute("ROLLBACK")
                    raise
        except sqlite3.Error as error:
            raise _translated(path, error) from error
        except UnicodeDecodeError as error:
            # SQLite quotes the damaged bytes in its own message, and Python cannot read them.
            raise damaged(f"{path} is not an intact ledger (its schema is no text)") from error


def check_schema(connection: sqlite3.Connection, path: Path, *, thorough: bool) -> tuple[int, str]:
    """Check tables and triggers (thorough: every page too); return the number of entries, and the head as text."""
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master LIMIT 100").fetchall())
    if found != _SCHEMA:
        odd = sorted({str(name) for name in set(found) ^ set(_SCHEMA)} or {"changed definitions"})
        raise damaged(f"{path} is not a privacy-budget ledger or its schema was changed ({_one_line(', '.join(odd))})")
    if thorough:
        verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != ("ok",):
            raise damaged(f"{path} is corrupt ({_one_line(verdict[0])})")
    heads = connection.execute("SELECT id, count, CAST(digest AS BLOB) FROM head LIMIT 2").fetchall()
    first, last, count = connection.execute("SELECT min(seq), max(seq), count(*) FROM entry").fetchone()
    if [head[:2] for head in heads] != [(0, count)] or (first, last) != (0, count - 1):
        raise damaged(f"{path} does not hold as many entries as its head says: truncated")
    digest = heads[0][2]
    return int(count), digest.decode("ascii", "replace") if isinstance(digest, bytes) else ""


def read_rows(connection: sqlite3.Connection, path: Path, start: int) -> list[Row]:
    """Return the entries from number `start` on."""
    rows = []
    query = "SELECT seq, CAST(body AS BLOB), CAST(digest AS BLOB) FROM entry WHERE seq >= ? ORDER BY seq"
    for seq, body, digest in connection.execute(query, (start,)):
        try:
            rows.append(Row(seq, body.decode("ascii"), digest.decode("ascii")))
        except (AttributeError, UnicodeDecodeError):
            raise damaged(f"entry {seq!s:.20} of {path} is not text") from None
    return rows


def append_rows(connection: sqlite3.Connection, rows: list[Row]) -> None:
    """Append entries and move the head along, inside a write transaction."""
    for row in rows:
        connection.execute("INSERT INTO entry VALUES (?, ?, ?)", (row.seq, row.body, row.digest))
        connection.execute("UPDATE head SET count = count + 1, digest = ? WHERE id = 0", (row.digest,))


def read_head_file(path: Path) -> str | None:
    """Return the digest that a head file keeps, or None where there is no such file yet."""
    try:
        kept = input_file(path).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        raise LedgerError(f"the head file {path} cannot be read: {error}; check the path and your rights") from error
    except UnicodeDecodeError:
        kept = ""
    if not DIGEST.fullmatch(kept):
        raise LedgerError(f"{path} keeps no head of a ledger; put back a copy of it, or write the head you noted last")
    return kept


def write_head_file(path: Path, head: str) -> None:
    """Keep the head of a ledger in a file of its own."""
    try:
        write_text(path, head + "\n")
    except (OSError, ValueError) as error:
        raise LedgerError(f"the head file {path} cannot be written: {error}; check the path and your rights") from error


def _check_path(path: Path) -> None:
    """Refuse what is no file of a ledger without opening it."""
    try:
        status = path.stat()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        remedy = "create_ledger (`dpbayes ledger open`) makes a new one" if missing else "check path and rights"
        raise LedgerError(f"{path} cannot be opened: {error.strerror}; {remedy}") from error
    except ValueError as error:
        raise LedgerError(f"{path!s} cannot be opened: {error}; check the path") from error
    if not stat.S_ISREG(status.st_mode):
        raise LedgerError(f"{path} is not a file; give the path of a privacy-budget ledger")
    if not status.st_size:
        raise DamagedFileError(
            f"{path} is empty: if its creation was cut off before any release, delete it and create it again; if not, "
            f"{RESTORE}"
        )


def _check_header(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is not a ledger of this version, or whose journal mode was changed."""
    names = ("application_id", "user_version", "journal_mode")
    application, version, journal = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    if application != APPLICATION_ID or journal != "delete":
        raise damaged(f"{path} is not a privacy-budget ledger of dpbayes, or its header is damaged")
    if version != SCHEMA_VERSION:
        raise DamagedFileError(
            f"{path} has schema version {version}, not {SCHEMA_VERSION}; use the version of dpbayes that made it"
        )


def _harden(connection: sqlite3.Connection) -> None:
    """Set what must hold for every connection; no function for a hostile schema, no big blob, no memory map."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 * _MOST_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    for pragma in (
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",
        "synchronous = EXTRA",
        "locking_mode = NORMAL",
        "temp_store = MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _one_line(text: object) -> str:
    """Return what a foreign file says, fit for a message."""
    return "".join(char if char.isprintable() else " " for char in str(text))[:200]


def _translated(path: Path, error: sqlite3.Error) -> LedgerError | DamagedFileError:
    """Return the error to raise in the place of one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", None)
    # The low byte is the primary result code.
    primary = code & 0xFF if code is not None else None
    if code == sqlite3.SQLITE_IOERR_SHORT_READ or primary in _DAMAGE:
        return damaged(f"{path} is not an intact ledger (SQLite: {_one_line(error)})")
    if primary in _REMEDIES:
        return LedgerError(f"{path}: {_REMEDIES[primary]} (SQLite: {_one_line(error)}); nothing was changed")
    if primary == sqlite3.SQLITE_ERROR or primary is None:
        return damaged(f"{path} is damaged (SQLite: {_one_line(error)})")
    return LedgerError(f"{path} could not be used (SQLite: {_one_line(error)}); nothing was changed")
