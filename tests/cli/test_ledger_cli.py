"""`dpbayes ledger` from the outside: what it prints and how it exits."""

import csv
import io
import json
import sqlite3
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from dpbayes.cli.ledger import app
from dpbayes.privacy import TwoSidedGeometric
from dpbayes.privacy.ledger import open_ledger

runner = CliRunner()
DIGEST = "ab" * 32


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "budget.db"
    result = runner.invoke(
        app, ["open", str(path), "--epsilon", "1", "--adjacency", "replace-one", "--dataset", "census [bold]2020"]
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
    result = runner.invoke(
        app,
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


def test_open_never_overwrites(book):
    before = book.read_bytes()
    result = runner.invoke(app, ["open", str(book), "--epsilon", "9", "--adjacency", "replace-one"])
    assert result.exit_code == 2 and "never overwritten" in result.output
    assert book.read_bytes() == before


@pytest.mark.parametrize("arguments", [["--epsilon", "-1"], ["--epsilon", "nan"], ["--epsilon", "1", "--delta", "1"]])
def test_open_refuses_bad_totals(tmp_path, arguments):
    result = runner.invoke(app, ["open", str(tmp_path / "b.db"), "--adjacency", "replace-one", *arguments])
    assert result.exit_code == 2 and result.output.startswith("dpbayes: ")
    assert list(tmp_path.iterdir()) == []


def test_show_states_total_both_sums_left_and_unconfirmed(book):
    spend(book, 0.25)
    spend(book, 0.5, confirm=False, purpose="[red]age[/red] by sex")
    output = runner.invoke(app, ["show", str(book)], env={"COLUMNS": "250"}).output
    lines = {line.split("│")[1].strip(): line for line in output.splitlines() if line.count("│") == 4}
    assert "1.0" in lines["total"]
    assert "0.75" in lines["spent, plain addition"] and "0.75" in lines["spent, tight"]
    assert "0.25" in lines["remaining"]
    assert "1" in lines["unconfirmed"]
    assert "census [bold]2020" in output and "[red]age[/red] by sex" in output
    assert "never confirmed, counted as spent: entries 3." in output


def test_verify_accepts_an_intact_book_and_a_noted_head(book):
    head = open_ledger(book).head
    spend(book, 0.25)
    result = runner.invoke(app, ["verify", str(book), "--head", head])
    assert result.exit_code == 0 and "is intact: 1 releases" in result.output
    assert "note the head elsewhere" in runner.invoke(app, ["verify", str(book)]).output
    result = runner.invoke(app, ["verify", str(book), "--head", "0" * 64])
    assert result.exit_code == 2 and "rewritten" in result.output


def test_verify_reports_damage_in_one_sentence(book):
    spend(book, 0.25)
    with sqlite3.connect(book) as connection:
        connection.execute("DROP TRIGGER entry_update")
        connection.execute("UPDATE entry SET body = replace(body, '8.0', '80.0') WHERE seq = 1")
    connection.close()
    result = runner.invoke(app, ["verify", str(book)])
    assert result.exit_code == 2
    assert result.output.startswith("dpbayes: ") and "Traceback" not in result.output and result.output.count("\n") == 1


@pytest.mark.parametrize("command", ["show", "verify", "export"])
def test_a_missing_book_is_one_sentence(tmp_path, command):
    result = runner.invoke(app, [command, str(tmp_path / "none.db")])
    assert result.exit_code == 2 and "create_ledger" in result.output
    assert list(tmp_path.iterdir()) == []


def test_export_json_and_csv_agree_with_the_book(book, tmp_path):
    spend(book, 0.25)
    spend(book, 0.5, confirm=False, purpose='age, sex and "race"')
    exported = json.loads(runner.invoke(app, ["export", str(book)]).output)
    assert exported["spent"]["basic"]["epsilon"] == 0.75 and exported["remaining"]["epsilon"] == 0.25
    assert exported["unconfirmed"] == [3] and exported["head"] == open_ledger(book).head
    target = tmp_path / "book.csv"
    assert runner.invoke(app, ["export", str(book), "--format", "csv", "--out", str(target)]).exit_code == 0
    rows = list(csv.DictReader(io.StringIO(target.read_text())))
    assert [row["epsilon"] for row in rows] == ["0.25", "0.5"]
    assert rows[0]["digest"] == DIGEST and rows[1]["status"] == "unconfirmed, counts as spent"
    assert rows[1]["purpose"] == 'age, sex and "race"'
    again = runner.invoke(app, ["export", str(book), "--out", str(target)])
    assert again.exit_code == 2 and "choose another name" in again.output


def test_the_command_loads_no_model_library():
    code = "import sys, dpbayes.cli.ledger; print(sorted({'numpy', 'scipy', 'pymc', 'pytensor'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
