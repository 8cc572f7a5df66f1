"""The budget book against kill -9, full disks, missing rights."""

import os
import shutil
import subprocess
import sys
import tempfile
from fractions import Fraction
from pathlib import Path

import pytest

from dpbayes.errors import DamagedFileError, InputError, LedgerError
from dpbayes.privacy import TwoSidedGeometric
from dpbayes.privacy.ledger import create_ledger, open_ledger

HAMMER = Path(__file__).with_name("ledger_hammer.py")
REQUEST = {
    "mechanism": "two-sided-geometric",
    "law": TwoSidedGeometric(20.0),
    "sensitivity": 2,
    "adjacency": "replace-one",
    "purpose": "p" * 300,
}
DIGEST = "5" * 64


# --- 8 processes and random kill -9 ---


def hammer(tmp_path, *, seconds, total):
    path = tmp_path / "book.db"
    create_ledger(path, epsilon=total, delta=0.0, adjacency="replace-one")
    arguments = [sys.executable, str(HAMMER), str(path), str(tmp_path), "8", str(seconds), "20261120"]
    kills = int(subprocess.run(arguments, capture_output=True, text=True, check=True).stdout)
    said = [line.split() for log in tmp_path.glob("*.log") for line in log.read_text().splitlines()]
    return open_ledger(path, head_file=f"{path}.head"), kills, said


def check_hammered(book, said, total):
    assert [line for line in said if line[0] == "failed"] == []
    reserved = {int(line[1]) for line in said if line[0] == "reserved"}
    confirmed = {int(line[1]): line[2] for line in said if line[0] == "confirmed"}
    recorded = {release.entry for release in book.entries()}
    assert len(recorded) == len(book.entries()) and reserved <= recorded
    # No lost confirmation, and each with its own digest.
    digests = {release.entry: release.digest for release in book.entries()}
    assert {entry: digests[entry] for entry in confirmed} == confirmed
    # No overspend, in exact arithmetic, and nothing left unused while requests were refused.
    spent = len(recorded) * Fraction(1, 1000)
    assert spent <= Fraction(str(total))
    if any(line[0] == "refused" for line in said):
        assert spent == Fraction(str(total))
    # What was cut off between reserve and confirm counts and is reported.
    waiting = {release.entry for release in book.unconfirmed()}
    assert waiting.isdisjoint(confirmed) and book.spent().unconfirmed == len(waiting)
    assert Fraction(repr(book.spent().basic_epsilon)) == spent
    return len(recorded), len(confirmed), len(waiting)


def test_eight_processes_with_kill_nine_for_five_seconds(tmp_path):
    book, kills, said = hammer(tmp_path, seconds=5, total=0.03)
    recorded, confirmed, waiting = check_hammered(book, said, 0.03)
    # The run goes on until a request is refused: 30 times 1/1000 is all of the budget.
    refused = sum(line[0] == "refused" for line in said)
    assert refused > 50  # most of the time is spent at the limit, with processes dying there
    assert recorded == 30 and kills > 8 and confirmed > 0 and confirmed + waiting <= recorded


@pytest.mark.slow
def test_eight_processes_with_kill_nine_for_a_minute(tmp_path):
    book, kills, said = hammer(tmp_path, seconds=60, total=0.4)
    recorded, confirmed, waiting = check_hammered(book, said, 0.4)
    print(f"{kills} kills, {recorded} reserved, {confirmed} confirmed in the logs, {waiting} unconfirmed")
    assert recorded == 400 and kills > 100 and confirmed > 0 and waiting > 0


# --- a full disk ---


def test_a_disk_that_fills_at_any_point_changes_nothing(tmp_path, no_file_longer_than):
    path = tmp_path / "book.db"
    book = create_ledger(path, epsilon=100.0, delta=0.0, adjacency="replace-one")
    while path.stat().st_size < 8 * 4096:
        book.confirm(book.reserve(**REQUEST), DIGEST)
    size, refused, written = path.stat().st_size, 0, 0
    for limit in range(0, size + 3 * 4096, 512):
        head, before = book.head, path.read_bytes()
        with no_file_longer_than(limit):
            try:
                entry = book.reserve(**REQUEST)
            except LedgerError as error:
                entry, text = None, str(error)
        if entry is None:
            refused += 1
            assert "disk" in text and "\n" not in text
            assert open_ledger(path).head == head and path.read_bytes() == before
            assert [p.name for p in tmp_path.iterdir()] == [path.name]
        else:
            written += 1
            assert open_ledger(path, expected_head=head).unconfirmed()[-1].entry == entry
    assert refused > 10 and written > 1


TRACE = """
import resource, sys
import numpy as np, xarray as xr
from dpbayes.inference.schema import write_trace

draws = xr.Dataset({"x": (("chain", "draw", "place"), np.random.default_rng(1).normal(size=(4, 100, 50)))})
groups = dict.fromkeys(("sample_stats", "observed_data", "constant_data"), xr.Dataset())
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, -1))
try:
    write_trace(xr.DataTree.from_dict({"posterior": draws} | groups), sys.argv[1])
except OSError as error:
    print("refused:", error.strerror)
"""


def test_a_disk_that_fills_while_a_trace_is_written_is_one_error(tmp_path):
    script = [sys.executable, "-c", TRACE, str(tmp_path / "trace.nc")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused: File too large\n"), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 512, 4096, 8192])
def test_a_book_cannot_be_created_on_a_full_disk_and_leaves_nothing(tmp_path, limit, no_file_longer_than):
    with no_file_longer_than(limit), pytest.raises(LedgerError, match="disk"):
        create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    assert list(tmp_path.iterdir()) == []


# --- missing rights ---


@pytest.fixture
def unprivileged():
    """A folder of one's own, and no rights of an administrator while using it."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    user = os.geteuid()
    if user == 0:
        os.chown(folder, 65534, 65534)
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(user)
        shutil.rmtree(folder)


@pytest.mark.parametrize("where", ["file", "folder", "both"])
def test_read_only_books_can_be_read_and_refuse_to_record(unprivileged, where):
    path = unprivileged / "book.db"
    book = create_ledger(path, epsilon=1.0, delta=0.0, adjacency="replace-one")
    entry = book.reserve(**REQUEST)
    before = path.read_bytes()
    if where != "folder":
        path.chmod(0o444)
    if where != "file":
        unprivileged.chmod(0o555)
    try:
        again = open_ledger(path)
        assert again.spent().epsilon == 0.1
        for action in (lambda: again.reserve(**REQUEST), lambda: again.confirm(entry, DIGEST)):
            with pytest.raises(LedgerError, match="ask for the right to write") as refusal:
                action()
            assert "\n" not in str(refusal.value)
        assert path.read_bytes() == before and [p.name for p in unprivileged.iterdir()] == [path.name]
    finally:
        unprivileged.chmod(0o755)


def test_no_book_is_created_in_a_read_only_folder(unprivileged):
    unprivileged.chmod(0o555)
    with pytest.raises(LedgerError, match="choose a folder that you may write"):
        create_ledger(unprivileged / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    assert list(unprivileged.iterdir()) == []
    unprivileged.chmod(0o755)


def test_an_unreadable_book_is_one_clear_error(unprivileged):
    path = unprivileged / "book.db"
    create_ledger(path, epsilon=1.0, delta=0.0, adjacency="replace-one")
    path.chmod(0o000)
    with pytest.raises(LedgerError, match=r"cannot be opened|the right to"):
        open_ledger(path)


# --- odd paths ---


def test_what_is_no_file_is_refused_at_once(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (tmp_path, fifo, Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(LedgerError, match="not a file"):
            open_ledger(path)
    with pytest.raises(LedgerError, match="create_ledger"):
        open_ledger(tmp_path / "none.db")
    with pytest.raises(InputError, match="path must be"):
        open_ledger("a\0b")
    assert not (tmp_path / "none.db").exists()


def test_a_creation_that_was_cut_off_is_told_apart(tmp_path):
    path = tmp_path / "book.db"
    path.touch()
    with pytest.raises(DamagedFileError, match="cut off before any release, delete it and create it again; if not"):
        open_ledger(path)
    assert path.stat().st_size == 0


def test_a_locked_book_is_one_clear_error(tmp_path, monkeypatch):
    from dpbayes.privacy import ledger_store

    book = create_ledger(tmp_path / "book.db", epsilon=1.0, delta=0.0, adjacency="replace-one")
    monkeypatch.setattr(ledger_store, "BUSY_SECONDS", 0.2)
    with ledger_store.transaction(book.path, write=True):
        with pytest.raises(LedgerError, match="another process held the ledger"):
            book.reserve(**REQUEST)
        assert open_ledger(book.path).entries() == []  # readers go on
    book.reserve(**REQUEST)


FORKS = """
import os, signal, sys, threading
from dpbayes.privacy.ledger import Guarantee, create_ledger, open_ledger

book = create_ledger(sys.argv[1], epsilon=100.0, delta=0.0, adjacency="add-remove")
request = {"mechanism": "m", "law": Guarantee(0.5), "sensitivity": None, "adjacency": "add-remove", "purpose": "p"}
done = threading.Event()

def read():
    while not done.is_set():
        book.remaining()

def write():
    while not done.is_set():
        book.reserve(**(request | {"law": Guarantee(1e-6)}))

threads = [threading.Thread(target=work) for work in (read, read, write)]
for thread in threads:
    thread.start()
children = []
for _ in range(30):
    if (pid := os.fork()) == 0:
        signal.alarm(60)  # a child that inherits a held lock waits for ever
        book.reserve(**request)
        open_ledger(book.path)
        os._exit(0)
    children.append(pid)
statuses = [os.waitpid(pid, 0)[1] for pid in children]
done.set()
for thread in threads:
    thread.join()
print(statuses.count(0), sum(entry.cost.law.epsilon == 0.5 for entry in book.entries()), len(book.entries()) > 30)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_forks_while_its_threads_use_the_book(tmp_path):
    script = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, str(tmp_path / "book.db")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["30", "30", "True"]), done.stderr
