"""`dpbayes ledger` from the outside: what it prints and how it exits."""

import csv
import datetime
import io
import json
import sqlite3
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pytest

from dpbayes.cli.main import main
from dpbayes.privacy import DiscreteGaussian, TwoSidedGeometric
from dpbayes.privacy.ledger import Guarantee, create_ledger, open_ledger

DIGEST = "ab" * 32


def invoke(arguments, env=None):
    """Run `dpbayes ledger` as its entry point does."""
    written = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(written), redirect_stderr(written):
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["dpbayes", "ledger", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
    return SimpleNamespace(exit_code=stop.value.code or 0, output=written.getvalue())


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "budget.db"
    result = invoke(
        ["open", str(path), "--epsilon", "1", "--adjacency", "replace-one", "--dataset", "census [bold]2020"]
    )
    assert result.exit_code == 0, result.output
    return path


def spend(path, epsilon, *, confirm=True, purpose="income by race"):
    opened = open_ledger(path)
    law = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2)
    entry = opened.reserve(
        mechanism="two-sided-geometric", law=law, sensitivity=2, adjacency="replace-one", purpose=purpose
    )
    if confirm:
        opened.confirm(entry, DIGEST)


def test_open_prints_the_terms_and_the_head(tmp_path):
    path = tmp_path / "b.db"
    result = invoke(
        [
            "open",
            str(path),
            "--epsilon",
            "0.1",
            "--delta",
            "1e-6",
            "--adjacency",
            "add-remove",
            "--composition",
            "tight",
        ],
    )
    assert result.exit_code == 0
    assert "epsilon 0.1 and delta 1e-06" in result.output and "tight composition decides" in result.output
    assert open_ledger(path).head in result.output


def test_a_book_that_is_not_there_is_opened_by_a_command(tmp_path):
    result = invoke(["show", str(tmp_path / "none.db")])
    assert result.exit_code == 2 and "dpbayes ledger open" in result.output


def test_open_never_overwrites(book):
    before = book.read_bytes()
    result = invoke(["open", str(book), "--epsilon", "9", "--adjacency", "replace-one"])
    assert result.exit_code == 2 and "never overwritten" in result.output and "dpbayes ledger show" in result.output
    assert book.read_bytes() == before


@pytest.mark.parametrize("arguments", [["--epsilon", "-1"], ["--epsilon", "nan"], ["--epsilon", "1", "--delta", "1"]])
def test_open_refuses_bad_totals(tmp_path, arguments):
    result = invoke(["open", str(tmp_path / "b.db"), "--adjacency", "replace-one", *arguments])
    assert result.exit_code == 2 and result.output.startswith("dpbayes: ")
    assert list(tmp_path.iterdir()) == []


def test_show_states_total_both_sums_left_and_unconfirmed(book):
    spend(book, 0.25)
    spend(book, 0.5, confirm=False, purpose="[red]age[/red] by sex")
    output = invoke(["show", str(book)], env={"COLUMNS": "250"}).output
    lines = {line.split("  ")[0]: line for line in output.splitlines() if line}
    assert "1.0" in lines["total"]
    assert "0.75" in lines["spent, plain addition"] and "0.75" in lines["spent, tight"]
    assert "0.25" in lines["remaining"]
    assert "1" in lines["unconfirmed"]
    assert "census [bold]2020" in output and "[red]age[/red] by sex" in output
    assert "never confirmed, counted as spent: entries 3." in output


@pytest.fixture
def busy_book(tmp_path):
    """Ten tables of one release, one with a share of delta, one unconfirmed; nothing in it is short."""
    path = tmp_path / "busy.db"
    book = create_ledger(path, epsilon=3.0, delta=1e-6, adjacency="replace-one", dataset="census " * 15)
    common = {"sensitivity": 2, "adjacency": "replace-one"}
    law = TwoSidedGeometric.from_epsilon(1 / 30, sensitivity=2)
    table = {"mechanism": "two-sided-geometric", "law": law, "purpose": "pairs of attributes " * 5, **common}
    book.confirm(book.reserve_all([table] * 9 + [table | {"law": TwoSidedGeometric(2e5 / 3)}]), DIGEST)
    moments = {
        "mechanism": "discrete-gaussian",
        "law": DiscreteGaussian(1e4 / 3),
        "delta": 1e-7 / 3,
        "purpose": "means",
    }
    book.confirm(book.reserve(**(common | moments)), "cd" * 32)
    book.reserve(
        mechanism="randomized response",
        law=Guarantee(1 / 3),
        sensitivity=None,
        adjacency="replace-one",
        purpose="x" * 90,
    )
    return path


@pytest.mark.parametrize("columns", [80, 120])
def test_show_cuts_nothing_and_sums_the_tables_of_a_release(busy_book, columns):
    lines = invoke(["show", str(busy_book)], env={"COLUMNS": str(columns)}).output.splitlines()
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)
    start = next(i for i, line in enumerate(lines) if line.split()[:2] == ["entries", "UTC"])
    entries, day, *numbers = lines[start + 2].split()[:5]
    assert (entries, *numbers) == ("1–10", "10", "0.3", "0")
    assert datetime.date.fromisoformat(day) and lines[start + 3].split()[0].count(":") == 2
    # The texts of the last column, put together again.
    place = lines[start].index("purpose")
    texts = "".join(line[place:].rstrip() for line in lines[start + 2 :]).replace(" ", "")
    wanted = ("pairs of attributes " * 5, "two-sided-geometric, scale 60 to 6.667e+04, sensitivity 2", "means")
    wanted += ("discrete-gaussian, stddev 3333, sensitivity 2", "x" * 90, "randomized response (guarantee)")
    assert texts.startswith("".join(wanted).replace(" ", "") + "unconfirmed,countsasspent")
    assert any("3.333e-08" in line for line in lines)


def test_verify_accepts_an_intact_book_and_a_noted_head(book):
    head = open_ledger(book).head
    spend(book, 0.25)
    result = invoke(["verify", str(book), "--head", head])
    assert result.exit_code == 0 and "is intact: 1 releases" in result.output
    assert "note the head elsewhere" in invoke(["verify", str(book)]).output
    result = invoke(["verify", str(book), "--head", "0" * 64])
    assert result.exit_code == 2 and "rewritten" in result.output


def test_verify_reports_damage_in_one_sentence(book):
    spend(book, 0.25)
    with sqlite3.connect(book) as connection:
        connection.execute("DROP TRIGGER entry_update")
        connection.execute("UPDATE entry SET body = replace(body, '8.0', '80.0') WHERE seq = 1")
    connection.close()
    result = invoke(["verify", str(book)])
    assert result.exit_code == 2
    assert result.output.startswith("dpbayes: ") and "Traceback" not in result.output and result.output.count("\n") == 1


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_missing_book_is_one_sentence(tmp_path, command):
    result = invoke([command, str(tmp_path / "none.db")])
    assert result.exit_code == 2 and "create_ledger" in result.output
    assert list(tmp_path.iterdir()) == []


def test_export_json_and_csv_agree_with_the_book(book, tmp_path):
    spend(book, 0.25)
    spend(book, 0.5, confirm=False, purpose='age, sex and "race"')
    exported = json.loads(invoke(["export", str(book)]).output)
    assert exported["spent"]["basic"]["epsilon"] == 0.75 and exported["remaining"]["epsilon"] == 0.25
    assert exported["unconfirmed"] == [3] and exported["head"] == open_ledger(book).head
    target = tmp_path / "book.csv"
    assert invoke(["export", str(book), "--format", "csv", "--out", str(target)]).exit_code == 0
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [row["epsilon"] for row in rows] == ["0.25", "0.5"]
    assert rows[0]["digest"] == DIGEST and rows[1]["status"] == "unconfirmed, counts as spent"
    assert rows[1]["purpose"] == 'age, sex and "race"'
    again = invoke(["export", str(book), "--out", str(target)])
    assert again.exit_code == 2 and "choose another name" in again.output


def test_the_command_loads_no_model_library():
    code = "import sys, dpbayes.cli.ledger; print(sorted({'numpy', 'scipy', 'pymc', 'pytensor'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
