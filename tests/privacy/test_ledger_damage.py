"""A budget book that was damaged or edited is refused: always by the same two errors, never by a hang."""

import contextlib
import json
import os
import pickle
import random
import shutil
import sqlite3
import time
from pathlib import Path
from unittest import mock

import pytest

from dpbayes.errors import DamagedFileError, InputError, LedgerError
from dpbayes.privacy import TwoSidedGeometric, ledger_store
from dpbayes.privacy.ledger import SCHEMA_VERSION, canonical_json, create_ledger, open_ledger
from dpbayes.privacy.ledger_store import _SCHEMA, APPLICATION_ID, GENESIS, chain_digest

DIGEST = "c" * 64
REFUSALS = (DamagedFileError, LedgerError)
# A guard against a hang, no measure of speed: an opening takes milliseconds, and no damage may send a reader round in
# circles or leave it waiting for a lock that nobody holds.
LONGEST_SECONDS = 20.0


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("book") / "book.db"
    book = create_ledger(path, epsilon=2.0, delta=1e-6, adjacency="replace-one", dataset="census")
    for scale in (20.0, 40.0, 50.0, 80.0) * 6:
        entry = book.reserve(
            mechanism="two-sided-geometric",
            law=TwoSidedGeometric(scale),
            sensitivity=2,
            adjacency="replace-one",
            purpose=f"table at scale {scale:g}",
        )
        if scale != 80.0:
            book.confirm(entry, DIGEST)
    return path


@pytest.fixture
def copy(original, tmp_path):
    return Path(shutil.copy(original, tmp_path / "copy.db"))


@contextlib.contextmanager
def by_hand(path):
    """Edit a ledger as somebody would who owns the file: with the triggers off."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    for name, sql in _SCHEMA.items():
        if sql.startswith("CREATE TRIGGER"):
            connection.execute(f"DROP TRIGGER {name}")
    yield connection
    for sql in _SCHEMA.values():
        if sql.startswith("CREATE TRIGGER"):
            connection.execute(sql)
    connection.close()


def contents(path):
    book = open_ledger(path)
    return book.terms, book.entries(), book.head


# --- edits by hand ---


def edit_body(connection):
    connection.execute("UPDATE entry SET body = replace(body, '20.0', '200.0') WHERE seq = 1")


def edit_purpose(connection):
    connection.execute("UPDATE entry SET body = replace(body, 'scale 40', 'scale 41')")


def edit_total(connection):
    connection.execute("UPDATE entry SET body = replace(body, '\"epsilon\":2.0', '\"epsilon\":9.0') WHERE seq = 0")


def edit_digest(connection):
    connection.execute("UPDATE entry SET digest = ? WHERE seq = 4", (DIGEST,))


def add_a_space(connection):
    connection.execute("UPDATE entry SET body = body || ' ' WHERE seq = 3")


def swap_two(connection):
    for old, new in ((5, 1000), (7, 5), (1000, 7)):
        connection.execute("UPDATE entry SET seq = ? WHERE seq = ?", (new, old))


def drop_the_last(connection):
    connection.execute("DELETE FROM entry WHERE seq = (SELECT max(seq) FROM entry)")


def drop_the_last_and_count(connection):
    drop_the_last(connection)
    connection.execute("UPDATE head SET count = count - 1")


def drop_one_in_the_middle(connection):
    connection.execute("DELETE FROM entry WHERE seq = 9")


def drop_one_and_renumber(connection):
    drop_one_in_the_middle(connection)
    for seq in range(10, connection.execute("SELECT max(seq) FROM entry").fetchone()[0] + 1):
        connection.execute("UPDATE entry SET seq = seq - 1 WHERE seq = ?", (seq,))
    connection.execute("UPDATE head SET count = count - 1")


def drop_all(connection):
    connection.execute("DELETE FROM entry")
    connection.execute("UPDATE head SET count = 0, digest = ?", (GENESIS,))


def drop_the_head(connection):
    connection.execute("DELETE FROM head")


def second_head(connection):
    connection.execute("INSERT INTO head VALUES (1, 99, ?)", (DIGEST,))


def repeat_the_last(connection):
    connection.execute("INSERT INTO entry SELECT seq + 1, body, digest FROM entry ORDER BY seq DESC LIMIT 1")
    connection.execute("UPDATE head SET count = count + 1")


def negative_number(connection):
    connection.execute("UPDATE entry SET seq = -1 WHERE seq = 0")


def huge_blob(connection):
    connection.execute("UPDATE entry SET body = printf('%.*c', 30000000, 'x') WHERE seq = 2")


def huge_digest(connection):
    connection.execute("UPDATE head SET digest = printf('%.*c', 30000000, 'x')")


def other_table(connection):
    connection.execute("CREATE TABLE notes (text)")


def other_index(connection):
    connection.execute("CREATE INDEX speed ON entry (digest)")


def helpful_trigger(connection):
    connection.execute("CREATE TRIGGER more AFTER INSERT ON entry BEGIN UPDATE head SET count = 0; END")


EDITS = [value for value in list(globals().values()) if getattr(value, "__module__", "") == __name__]
EDITS = [edit for edit in EDITS if hasattr(edit, "__code__") and edit.__code__.co_varnames[:1] == ("connection",)]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_by_hand_is_detected(copy, edit):
    with by_hand(copy) as connection:
        edit(connection)
    with pytest.raises(DamagedFileError) as refusal:
        open_ledger(copy)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 700


def test_no_edit_leaves_a_book_that_opens(copy):
    before = contents(copy)
    with by_hand(copy):
        pass
    assert contents(copy) == before


def test_what_sqlite_itself_rewrites_or_copies_stays_the_ledger_it_was(copy, tmp_path):
    before = contents(copy)
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        connection.execute("VACUUM")
        with contextlib.closing(sqlite3.connect(tmp_path / "backup.db")) as target:
            connection.backup(target)
    assert contents(copy) == contents(tmp_path / "backup.db") == contents(shutil.copy(copy, tmp_path / "moved.db"))
    assert contents(copy) == before


def test_a_valid_entry_from_another_hand_is_refused(copy):
    row = open_ledger(copy).head
    with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        number, body = connection.execute("SELECT seq, body FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
        body = canonical_json(json.loads(body) | {"kind": "confirm", "entry": 47, "digest": DIGEST, "seq": number + 1})
        digest = chain_digest(row, body)
        connection.execute("INSERT INTO entry VALUES (?, ?, ?)", (number + 1, body, digest))
        connection.execute("UPDATE head SET count = count + 1, digest = ?", (digest,))
    with pytest.raises(DamagedFileError):
        open_ledger(copy)


def test_dropping_the_protection_is_detected(copy):
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        connection.execute("DROP TRIGGER entry_delete")
        connection.commit()
    with pytest.raises(DamagedFileError, match="entry_delete"):
        open_ledger(copy)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET body = '{}'",
        "UPDATE entry SET seq = seq + 100",
        "DELETE FROM entry",
        "INSERT INTO entry VALUES (7, '{}', '')",
        "INSERT OR REPLACE INTO entry VALUES (7, '{}', '')",
        "INSERT INTO entry VALUES (99999, '{}', '')",
        "REPLACE INTO entry SELECT seq, '{}', digest FROM entry",
        "DELETE FROM head",
        "UPDATE head SET count = 1",
        "UPDATE head SET count = count + 1",
        "UPDATE head SET digest = ''",
    ],
)
def test_the_file_itself_refuses_accidents(copy, statement):
    before = contents(copy)
    with contextlib.closing(sqlite3.connect(copy)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    assert contents(copy) == before


# --- what a chain without a secret can and cannot do ---


def forge(path, change):
    """Rewrite the whole chain with a consistent one, as an attacker who owns the file could."""
    with by_hand(path) as connection:
        rows = connection.execute("SELECT body FROM entry ORDER BY seq").fetchall()
        entries = change([json.loads(body) for (body,) in rows])
        connection.execute("DELETE FROM entry")
        head = GENESIS
        for seq, entry in enumerate(entries):
            body = canonical_json(entry | {"seq": seq})
            head = chain_digest(head, body)
            connection.execute("INSERT INTO entry VALUES (?, ?, ?)", (seq, body, head))
        connection.execute("UPDATE head SET count = ?, digest = ?", (len(entries), head))


def test_a_rewritten_book_passes_unless_its_head_was_noted(copy):
    noted = open_ledger(copy).head
    forge(copy, lambda entries: [entries[0] | {"epsilon": 50.0}, *entries[1:]])
    assert open_ledger(copy).terms.epsilon == 50.0
    with pytest.raises(DamagedFileError, match="does not contain the head"):
        open_ledger(copy, expected_head=noted)


def test_a_noted_head_allows_what_is_added_later(copy):
    noted = open_ledger(copy).head
    book = open_ledger(copy)
    book.confirm(book.unconfirmed()[0].entry, DIGEST)
    assert book.head != noted
    assert open_ledger(copy, expected_head=noted).head == book.head
    with pytest.raises(InputError, match="64 lower-case"):
        open_ledger(copy, expected_head="abc")


FIELDS = [
    ("count", 0),
    ("count", 1000),
    ("count", "1"),
    ("sensitivity", -2.0),
    ("sensitivity", "2"),
    ("law", {"law": "laplace", "scale": 0.0}),
    ("law", {"law": "cauchy", "scale": 1.0}),
    ("law", []),
    ("adjacency", "add-remove"),
    ("purpose", "a\nb"),
    ("purpose", None),
    ("time", "yesterday"),
    ("time", "2026-01-01T00:00:00"),
    ("time", 7),
    ("kind", "refund"),
    ("kind", "open"),
    ("kind", "confirm"),
    ("raw_counts", [1, 2, 3]),
]
TERMS = [
    ("epsilon", 1e-3),
    ("epsilon", -1.0),
    ("delta", 1.0),
    ("schema", SCHEMA_VERSION + 1),
    ("composition", "sum"),
    ("ledger", "x"),
]
CONFIRMATIONS = [{}, {"entry": 0}, {"entry": 10**6}, {"entry": [1]}, {"entry": 7, "digest": "x"}]


@pytest.mark.parametrize(
    "change",
    [
        *[lambda entries, f=field: [entries[0], entries[1] | dict([f]), *entries[2:]] for field in FIELDS],
        *[lambda entries, f=field: [entries[0] | dict([f]), *entries[1:]] for field in TERMS],
        *[lambda entries, more=more: [*entries, entries[2] | more] for more in CONFIRMATIONS],
        lambda entries: entries[1:],
    ],
)
def test_a_forged_book_must_still_say_what_a_book_can_say(copy, change):
    forge(copy, change)
    with pytest.raises(DamagedFileError):
        open_ledger(copy)


@pytest.mark.parametrize("body", ["", "{", "[]", "1", '"x"', "null", "[" * 4000, "9" * 4400, '{"kind":1e999}', "NaN"])
def test_a_body_that_is_no_entry(copy, body):
    with by_hand(copy) as connection:
        connection.execute("UPDATE entry SET body = ?, digest = ? WHERE seq = 0", (body, chain_digest(GENESIS, body)))
    with pytest.raises(DamagedFileError):
        open_ledger(copy)


def test_an_older_copy_is_told_from_the_book_by_its_head_and_the_remedy_does_not_refill_the_budget(copy, tmp_path):
    older = shutil.copy(copy, tmp_path / "older.db")
    book = open_ledger(copy)
    law, common = TwoSidedGeometric(100.0), {"sensitivity": 2, "adjacency": "replace-one", "purpose": "made since"}
    book.confirm(book.reserve(mechanism="two-sided-geometric", law=law, **common), DIGEST)
    with pytest.raises(DamagedFileError, match=r"is an older copy; restore the newest copy .* must be reserved"):
        open_ledger(older, expected_head=book.head)
    assert open_ledger(older).remaining().epsilon > book.remaining().epsilon  # why the copy alone is no remedy


DAMAGED = {
    "nothing left": lambda content: b"",
    "the end": lambda content: content[:-4096],
    "the header": lambda content: bytes(100) + content[100:],
    "an entry": lambda content: content.replace(b"table at scale 40", b"table at scale 41"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_every_damage_names_the_remedy_that_does_not_refill_the_budget(copy, damage):
    copy.write_bytes(damage(copy.read_bytes()))
    with pytest.raises(DamagedFileError, match=r"restore the newest copy .*expected_head=.* reserved again first"):
        open_ledger(copy)


def test_a_head_file_notices_an_older_copy_without_anybody_noting_a_head(copy, tmp_path):
    older, kept = shutil.copy(copy, tmp_path / "older.db"), tmp_path / "ledger.head"
    book = open_ledger(copy, head_file=kept)
    assert kept.read_text() == book.head + "\n"
    book.confirm(book.unconfirmed()[0].entry, DIGEST)
    assert kept.read_text() == book.head + "\n"
    pickle.loads(pickle.dumps(book)).confirm(book.unconfirmed()[0].entry, DIGEST)
    assert open_ledger(copy, head_file=kept).head == kept.read_text().strip()
    shutil.copy(older, copy)
    with pytest.raises(DamagedFileError, match=r"does not contain the head .* that .*ledger.head keeps.* older copy"):
        open_ledger(copy, head_file=kept)
    assert len(kept.read_text()) == 65  # and it still expects what it did


def test_a_head_that_cannot_be_kept_says_what_was_recorded_before(copy, tmp_path, monkeypatch):
    book = open_ledger(copy, head_file=tmp_path / "ledger.head")
    before = len(book.entries())
    monkeypatch.setattr(ledger_store, "write_head_file", mock.Mock(side_effect=LedgerError("the disk is full")))
    with pytest.raises(LedgerError, match="full") as caught:
        book.reserve(mechanism="m", law=TwoSidedGeometric(2e6), sensitivity=2, adjacency="replace-one", purpose="p")
    assert len(open_ledger(copy).entries()) == before + 1
    (note,) = caught.value.__notes__
    assert note.endswith(f"of {copy} were written before this.")


@pytest.mark.parametrize("moment", ["read_head_file", "write_head_file"])
def test_a_head_file_and_its_ledger_move_together_while_another_process_records(copy, tmp_path, monkeypatch, moment):
    kept, other, late = tmp_path / "ledger.head", open_ledger(copy), []
    open_ledger(copy, head_file=kept)
    real = getattr(ledger_store, moment)

    def meanwhile(*arguments):
        monkeypatch.setattr(ledger_store, moment, real)
        try:
            other.head_file = kept
            other.reserve(
                mechanism="m", law=TwoSidedGeometric(2e6), sensitivity=2, adjacency="replace-one", purpose="p"
            )
        except LedgerError as error:
            late.append(error)  # it waits until the head is written, here in vain
        return real(*arguments)

    monkeypatch.setattr(ledger_store, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(ledger_store, moment, meanwhile)
    book = open_ledger(copy, head_file=kept)
    assert kept.read_text().strip() == open_ledger(copy).head
    if not late:
        book.confirm(book.unconfirmed()[0].entry, DIGEST)
    assert kept.read_text().strip() == open_ledger(copy).head
    assert len(late) == 1


def test_a_head_file_that_keeps_no_head_is_refused(copy, tmp_path):
    for content in ("", "x" * 64, "é"):
        (tmp_path / "head").write_text(content)
        with pytest.raises(LedgerError, match="keeps no head of a ledger; put back a copy"):
            open_ledger(copy, head_file=tmp_path / "head")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(LedgerError, match=r"head file .* a folder, a pipe or a device"):
            open_ledger(copy, head_file=path)
    with pytest.raises(LedgerError, match="cannot be written"):
        open_ledger(copy, head_file=tmp_path / "no folder" / "head")


def test_an_exchanged_file_is_noticed_while_the_book_is_open(copy, tmp_path):
    old = shutil.copy(copy, tmp_path / "old.db")
    book = open_ledger(copy)
    book.confirm(book.unconfirmed()[0].entry, DIGEST)
    shutil.copy(old, copy)
    with pytest.raises(DamagedFileError, match="lost entries"):
        book.spent()


# --- random damage ---


def flip(data, rng):
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8, 64])):
        changed[rng.randrange(len(changed))] ^= rng.randrange(1, 256)
    return bytes(changed)


def flip_the_header(data, rng):
    changed = bytearray(data)
    changed[rng.randrange(100)] ^= rng.randrange(1, 256)
    return bytes(changed)


def truncate(data, rng):
    return data[
        : rng.choice([rng.randrange(1, len(data)), 4096 * rng.randrange(1, len(data) // 4096), rng.randrange(1, 200)])
    ]


def noise(data, rng):
    return rng.randbytes(rng.choice([1, 50, 100, 5000, len(data)]))


def noise_behind_the_header(data, rng):
    return data[: rng.choice([16, 100, 4096])] + rng.randbytes(len(data) - 4096)


def lose_a_page(data, rng):
    page = rng.randrange(len(data) // 4096)
    filler = rng.choice([bytes(4096), rng.randbytes(4096), b""])
    return data[: 4096 * page] + filler + data[4096 * (page + 1) :]


def exchange_pages(data, rng):
    pages = [data[i : i + 4096] for i in range(0, len(data), 4096)]
    i, j = rng.sample(range(len(pages)), 2)
    pages[i], pages[j] = pages[j], pages[i]
    return b"".join(pages)


def text(data, rng):
    return rng.choice([b"{}", b"SQLite format 3\0", b"PK\x03\x04" + bytes(200), b"\x89HDF", "schön".encode() * 100])


DAMAGES = [flip, flip, flip_the_header, truncate, noise, noise_behind_the_header, lose_a_page, exchange_pages, text]


def other_database(path, rng):
    """A valid SQLite file that is not a book, more or less close to one."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        if rng.random() < 0.7:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {rng.choice([0, 1, *[SCHEMA_VERSION] * 3, -5])}")
        if rng.random() < 0.2:
            connection.execute("PRAGMA journal_mode = WAL")
        kind = rng.randrange(5)
        if kind == 0:
            connection.execute("CREATE TABLE t (x)")
            connection.execute("INSERT INTO t VALUES (zeroblob(?))", (rng.randrange(2_000_000),))
        elif kind == 1:
            for sql in _SCHEMA.values():
                connection.execute(sql)
        elif kind == 2:
            # A view in the place of the table that never ends when it is read.
            loop = "WITH RECURSIVE c(seq) AS (SELECT 0 UNION ALL SELECT seq + 1 FROM c) SELECT seq FROM c"
            connection.execute(f"CREATE VIEW entry AS {loop}")
            connection.execute(_SCHEMA["head"])
        elif kind == 3:
            connection.execute("CREATE TABLE entry (seq INTEGER PRIMARY KEY, body, digest)")
            connection.execute("INSERT INTO entry VALUES (0, zeroblob(1000000), x'00ff')")
            connection.execute(_SCHEMA["head"])
        else:
            for i in range(rng.randrange(1, 150)):
                connection.execute(f"CREATE TABLE t{i} (x)")


def refused_or_unchanged(path, before=None):
    """Whether a file is refused, on one line and soon; if not, it must say what the ledger said before."""
    start = time.monotonic()
    try:
        assert contents(path) == before
    except REFUSALS as error:
        assert "\n" not in str(error) and len(str(error)) < 700
        return error
    finally:
        assert time.monotonic() - start < LONGEST_SECONDS
    return None


def damage(data, path, rng):
    for leftover in path.parent.glob("damaged.db*"):
        leftover.unlink()
    if rng.random() < 0.2:
        other_database(path, rng)
    else:
        path.write_bytes(next(new for new in iter(lambda: rng.choice(DAMAGES)(data, rng), None) if new != data))
    if rng.random() < 0.1:
        path.with_name(path.name + "-journal").write_bytes(rng.randbytes(rng.randrange(1, 2000)))


def refuse_damaged_files(original, path, number, seed):
    rng, data, before = random.Random(seed), original.read_bytes(), contents(original)
    refused = 0
    for _ in range(number):
        damage(data, path, rng)
        refused += refused_or_unchanged(path, before) is not None
    return refused


def test_a_thousand_damaged_files_are_refused_or_say_what_they_said(original, tmp_path):
    refused = refuse_damaged_files(original, tmp_path / "damaged.db", 1000, 4)
    print(f"{refused} of 1000 damaged files were refused; the others' damage lies in bytes that mean nothing")
    assert refused > 850


@pytest.mark.slow
def test_every_changed_byte_is_refused_or_changes_nothing(original, tmp_path):
    data, path, rng, before = original.read_bytes(), tmp_path / "damaged.db", random.Random(5), contents(original)
    for place in [*range(100), *range(100, len(data), 7)]:
        path.write_bytes(data[:place] + bytes([data[place] ^ rng.randrange(1, 256)]) + data[place + 1 :])
        refused_or_unchanged(path, before)


# --- random edits of what the rows say, with everything around them in order ---


def other_value(value, rng):
    """A value that an entry cannot have in the place of this one, or another one of the same kind."""
    junk = [None, True, -1, 0, 10**30, -0.0, 1e308, "", "x", "0" * 64, [], {}, [value], {"a": value}, "\n", "é"]
    if isinstance(value, int | float) and not isinstance(value, bool):
        junk += [value + 1, value - 1, -value, value * 2, str(value)]
    if isinstance(value, str) and value:
        junk += [value[:-1], value + value, value.upper(), value[::-1]]
    return rng.choice([new for new in junk if type(new) is not type(value) or new != value])


def edit_a_row(connection, rng):
    """Change, drop, repeat or exchange rows; the chain is not computed again."""
    last = connection.execute("SELECT max(seq) FROM entry").fetchone()[0]
    one, two = rng.sample(range(last + 1), 2)
    kind = rng.randrange(7)
    if kind == 0:
        body = json.loads(connection.execute("SELECT body FROM entry WHERE seq = ?", (one,)).fetchone()[0])
        key = rng.choice(sorted(body))
        changed = canonical_json(body | {key: other_value(body[key], rng)})
        connection.execute("UPDATE entry SET body = ? WHERE seq = ?", (changed, one))
    elif kind == 1:
        connection.execute("UPDATE entry SET digest = ? WHERE seq = ?", (rng.randbytes(32).hex(), one))
    elif kind == 2:
        for old, new in ((one, 10**6), (two, one), (10**6, two)):
            connection.execute("UPDATE entry SET seq = ? WHERE seq = ?", (new, old))
    elif kind == 3:
        connection.execute("DELETE FROM entry WHERE seq = ?", (one,))
        connection.execute("UPDATE head SET count = count - ?", (rng.randrange(2),))
    elif kind == 4:
        new = rng.choice([-1, last + 1, last + 7, 2**40])
        connection.execute("INSERT INTO entry SELECT ?, body, digest FROM entry WHERE seq = ?", (new, one))
        connection.execute("UPDATE head SET count = count + ?", (rng.randrange(2),))
    elif kind == 5:
        sql = rng.choice(["count = count + 1", "count = -1", "digest = ''", f"digest = '{DIGEST}'", "id = 3"])
        connection.execute(f"UPDATE head SET {sql}")
    else:
        connection.execute("UPDATE entry SET body = (SELECT body FROM entry WHERE seq = ?) WHERE seq = ?", (one, two))


def forge_a_field(path, rng):
    """Put a value where it cannot be and compute the whole chain again: only the entry's own checks are left."""

    def change(entries):
        number = rng.randrange(len(entries))
        entry = dict(entries[number])
        key = rng.choice([name for name in sorted(entry) if name not in {"seq", "purpose", "dataset", "mechanism"}])
        if rng.random() < 0.3:
            entry.pop(key)
        else:
            entry[key] = rng.choice([None, [], {}, "x\ny", "", -3.0, "0" * 63])
        return [*entries[:number], entry, *entries[number + 1 :]]

    forge(path, change)


def refuse_malformed_books(original, path, number, seed):
    rng = random.Random(seed)
    for _ in range(number):
        shutil.copy(original, path)
        if rng.random() < 0.4:
            forge_a_field(path, rng)
        else:
            with by_hand(path) as connection:
                edit_a_row(connection, rng)
        assert isinstance(refused_or_unchanged(path), DamagedFileError)


def test_every_one_of_two_hundred_malformed_books_is_refused(original, tmp_path):
    refuse_malformed_books(original, tmp_path / "malformed.db", 200, 7)


@pytest.mark.slow
def test_every_one_of_a_thousand_malformed_books_is_refused(original, tmp_path):
    refuse_malformed_books(original, tmp_path / "malformed.db", 1000, 8)
