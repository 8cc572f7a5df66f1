"""A budget book that was damaged or edited is refused: always by the same two errors, never by a hang."""

import contextlib
import json
import random
import shutil
import sqlite3
import time

import pytest

from dpbayes.errors import DamagedFileError, InputError, LedgerError
from dpbayes.privacy import TwoSidedGeometric
from dpbayes.privacy.ledger import create_ledger, open_ledger
from dpbayes.privacy.ledger_chain import GENESIS, chain_digest
from dpbayes.privacy.ledger_entries import SCHEMA_VERSION, canonical
from dpbayes.privacy.ledger_seal import renew_seal
from dpbayes.privacy.ledger_store import _SCHEMA, APPLICATION_ID

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
    return shutil.copy(original, tmp_path / "copy.db")


@contextlib.contextmanager
def by_hand(path):
    """Edit a book as somebody would who owns the file: triggers off, and the seal renewed afterwards.

    Without a new seal the file would be refused for that alone, and nothing behind it would be tested.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    for name, sql in _SCHEMA.items():
        if sql.startswith("CREATE TRIGGER"):
            connection.execute(f"DROP TRIGGER {name}")
    yield connection
    for sql in _SCHEMA.values():
        if sql.startswith("CREATE TRIGGER"):
            connection.execute(sql)
    with contextlib.suppress(sqlite3.Error):
        connection.execute("BEGIN IMMEDIATE")
        renew_seal(connection)
        connection.execute("COMMIT")
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
    assert "seal" not in str(refusal.value)  # found by what the entries say


def test_no_edit_leaves_a_book_that_opens(copy):
    before = contents(copy)
    with by_hand(copy):
        pass
    assert contents(copy) == before


def test_what_sqlite_itself_rewrites_is_told(copy, tmp_path):
    shutil.copy(copy, tmp_path / "moved.db")
    assert contents(tmp_path / "moved.db") == contents(copy)
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        connection.execute("VACUUM")
    with pytest.raises(DamagedFileError, match="other than dpbayes"):
        open_ledger(copy)


def test_a_valid_entry_from_another_hand_is_refused(copy):
    row = open_ledger(copy).head
    with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as connection:
        number, body = connection.execute("SELECT seq, body FROM entry ORDER BY seq DESC LIMIT 1").fetchone()
        body = canonical(json.loads(body) | {"kind": "confirm", "entry": 47, "digest": DIGEST, "seq": number + 1})
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
            body = canonical(entry | {"seq": seq})
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


def change_field(**change):
    return lambda entries: [entries[0], entries[1] | change, *entries[2:]]


@pytest.mark.parametrize(
    "change",
    [
        change_field(count=0),
        change_field(count=1000),
        change_field(count="1"),
        change_field(sensitivity=-2.0),
        change_field(sensitivity="2"),
        change_field(law={"law": "laplace", "scale": 0.0}),
        change_field(law={"law": "cauchy", "scale": 1.0}),
        change_field(law=[]),
        change_field(adjacency="add-remove"),
        change_field(purpose="a\nb"),
        change_field(purpose=None),
        change_field(time="yesterday"),
        change_field(time="2026-01-01T00:00:00"),
        change_field(time=7),
        change_field(kind="refund"),
        change_field(kind="open"),
        change_field(kind="confirm"),
        change_field(raw_counts=[1, 2, 3]),
        lambda entries: entries[1:],
        lambda entries: [entries[0] | {"epsilon": 1e-3}, *entries[1:]],
        lambda entries: [entries[0] | {"epsilon": -1.0}, *entries[1:]],
        lambda entries: [entries[0] | {"delta": 1.0}, *entries[1:]],
        lambda entries: [entries[0] | {"schema": SCHEMA_VERSION + 1}, *entries[1:]],
        lambda entries: [entries[0] | {"composition": "sum"}, *entries[1:]],
        lambda entries: [entries[0] | {"book": "x"}, *entries[1:]],
        lambda entries: [*entries, entries[2]],
        lambda entries: [*entries, entries[2] | {"entry": 0}],
        lambda entries: [*entries, entries[2] | {"entry": 10**6}],
        lambda entries: [*entries, entries[2] | {"entry": [1]}],
        lambda entries: [*entries, entries[2] | {"entry": 7, "digest": "x"}],
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


def damage_nothing_left(path):
    path.write_bytes(b"")


def damage_a_byte(path):
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes(content)


def damage_the_end(path):
    path.write_bytes(path.read_bytes()[:-4096])


def damage_the_header(path):
    path.write_bytes(bytes(100) + path.read_bytes()[100:])


def damage_an_entry(path):
    with by_hand(path) as connection:
        edit_body(connection)


@pytest.mark.parametrize(
    "damage", [damage_nothing_left, damage_a_byte, damage_the_end, damage_the_header, damage_an_entry]
)
def test_every_damage_names_the_remedy_that_does_not_refill_the_budget(copy, damage):
    damage(copy)
    with pytest.raises(DamagedFileError, match=r"restore the newest copy .*expected_head=.* reserved again first"):
        open_ledger(copy)


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


def refusal_of(path):
    """The error that refuses a book, or None; always on one line, always soon."""
    start = time.monotonic()
    try:
        contents(path)
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
    rng, data = random.Random(seed), original.read_bytes()
    for _ in range(number):
        damage(data, path, rng)
        assert refusal_of(path) is not None


def test_every_one_of_a_thousand_damaged_files_is_refused(original, tmp_path):
    refuse_damaged_files(original, tmp_path / "damaged.db", 1000, 4)


def refuse_changed_bytes(original, path, places):
    data = original.read_bytes()
    rng = random.Random(5)
    for place in places(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ rng.randrange(1, 256)]) + data[place + 1 :])
        assert refusal_of(path) is not None, place


def test_a_changed_byte_is_found_wherever_it_is(original, tmp_path):
    # All of the header, where SQLite keeps counters that it ignores, and one in fifty of the rest.
    refuse_changed_bytes(original, tmp_path / "damaged.db", lambda size: [*range(100), *range(100, size, 151)])


@pytest.mark.slow
def test_every_changed_byte_is_found(original, tmp_path):
    refuse_changed_bytes(original, tmp_path / "damaged.db", lambda size: range(0, size, 7))


@pytest.mark.parametrize("tail", [b"\0", bytes(4096), b"SQLite format 3\0"])
def test_bytes_behind_the_last_page_are_found(copy, tail):
    with open(copy, "ab") as file:
        file.write(tail)
    assert refusal_of(copy) is not None


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
        changed = canonical(body | {key: other_value(body[key], rng)})
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
        error = refusal_of(path)
        assert isinstance(error, DamagedFileError) and "seal" not in str(error)


def test_every_one_of_two_hundred_malformed_books_is_refused(original, tmp_path):
    refuse_malformed_books(original, tmp_path / "malformed.db", 200, 7)


@pytest.mark.slow
def test_every_one_of_a_thousand_malformed_books_is_refused(original, tmp_path):
    refuse_malformed_books(original, tmp_path / "malformed.db", 1000, 8)
