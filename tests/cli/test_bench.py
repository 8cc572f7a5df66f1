"""`dpbayes bench`: what ran stands in the table, and what failed is said."""

import math

import pytest
from benchmark_page import Measured, peer_ratios, run_benchmarks, write_benchmarks
from typer.testing import CliRunner

from dpbayes.cli.main import app
from dpbayes.errors import InputError

FILE = """
import pytest

@pytest.mark.parametrize("n", [100, 10_000])
def test_sum(benchmark, n):
    benchmark.group = "sums"
    benchmark.extra_info.update(axis="numbers", size=n)
    benchmark.pedantic(lambda: sum(range(n)), rounds=3)

def test_a_timed_assertion_is_no_benchmark():
    raise AssertionError("not to be run")
"""


def test_the_command_runs_and_writes_table_picture_machine_and_date(tmp_path):
    (tmp_path / "test_toy.py").write_text(FILE)
    page = tmp_path / "new" / "page.md"
    result = CliRunner().invoke(app, ["bench", "--report", str(page), "--folder", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "## toy" in text
    assert "| sums | sum[100] |" in text
    assert "numpy " in text
    assert "Python 3." in text
    assert "(page.png)" in text
    assert page.with_suffix(".png").stat().st_size > 1000


def test_what_was_measured_is_read(tmp_path):
    (tmp_path / "test_toy.py").write_text(FILE)
    small, large = run_benchmarks(tmp_path, only="toy", echo=lambda line: None)
    assert (small.system, small.group, small.axis, small.size, small.rounds) == ("toy", "sums", "numbers", 100.0, 3)
    assert 0 < small.best <= small.median
    assert small.best < large.best


def test_a_failing_or_missing_benchmark_is_an_error(tmp_path):
    with pytest.raises(InputError, match="there are no benchmarks"):
        run_benchmarks(tmp_path)
    (tmp_path / "test_bad.py").write_text("def test_x(benchmark):\n    benchmark(lambda: 1 / 0)\n")
    with pytest.raises(InputError, match=r"test_bad\.py failed"):
        run_benchmarks(tmp_path, echo=lambda line: None)
    # As in the project: a file of timed assertions alone, where a warning is an error.
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_bad.py").write_text("def test_x():\n    pass\n")
    assert run_benchmarks(tmp_path, echo=lambda line: None) == []


def test_peers_are_set_beside_the_first_of_their_group_and_words_above_stay(tmp_path):
    rows = [("a", "ours", 2.0), ("a", "two dp accounting", 8.0), ("a", "one dp accounting", 6.0), ("b", "opendp", 1.0)]
    measured = [Measured("s", group, name, best, best, 1) for group, name, best in [*rows, ("b", "ours", 9.0)]]
    assert peer_ratios(measured) == {"a, beside dp accounting": 3.0}  # the faster one; in b the peer comes first
    page = tmp_path / "page.md"
    page.write_text("# Benchmarks\n\nFive sentences.\n\nWritten by `dpbayes bench` on a day\n")
    text = write_benchmarks(measured, page).read_text()
    assert text.startswith("# Benchmarks\n\nFive sentences.\n\nWritten by") and text.count("Written by") == 1
    assert (tmp_path / "page_peers.png").stat().st_size > 1000


def test_ratios_are_to_the_first_of_the_group(tmp_path):
    rows = [Measured("s", "g", "first", 2e-6, 3e-6, 9), Measured("s", "g", "second", 1e-6, 1e-6, 9),
            Measured("s", "", "alone", 12.0, 13.0, 1)]  # fmt: skip
    text = write_benchmarks(rows, tmp_path / "b.md").read_text()
    assert "| g | first | 2 µs | 3 µs | 9 | 1 |" in text
    assert "|  | second | 1 µs | 1 µs | 9 | 0.5 |" in text
    assert "| – | alone | 12 s | 13 s | 1 |  |" in text
    assert math.isnan(rows[0].size)
    assert "![" not in text


def test_what_was_written_by_hand_stays(tmp_path):
    page = tmp_path / "page.md"
    measured = [Measured("mvg", "draw", "ours", 0.001, 0.002, 5)]
    write_benchmarks(measured, page)
    once = page.read_text()
    page.write_text(once + "\n<!-- kept -->\n\n## By hand\n\nA remark.\n")
    write_benchmarks([Measured("mvg", "draw", "ours", 0.003, 0.003, 5)], page)
    again = page.read_text()
    assert "1 ms" not in again
    assert again.endswith("\n\n<!-- kept -->\n\n## By hand\n\nA remark.\n")
    assert write_benchmarks(measured, page).read_text() == once + "\n<!-- kept -->\n\n## By hand\n\nA remark.\n"
