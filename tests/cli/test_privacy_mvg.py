"""`dpbayes privacy mvg` from the outside: numbers, files and refusals."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from dpbayes.cli.privacy import mvg
from dpbayes.errors import InputError
from dpbayes.mvg import compare_noise
from dpbayes.mvg.allocation import bound_terms
from dpbayes.mvg.sensitivity import FeatureRanges

app = typer.Typer()
app.command()(mvg)
runner = CliRunner()
ANCHOR = ["--range", "10x0:1", "-n", "70000", "--epsilon", "1", "--delta", str(1 / 70000)]


def test_json_holds_the_bound_and_every_mechanism():
    result = runner.invoke(app, [*ANCHOR, "--json", "--stddev", "11.541925299545678"])
    assert result.exit_code == 0, result.output
    record = json.loads(result.output)
    expected = bound_terms(
        m=10, n=70_000, gamma=record["gamma"], sensitivity=record["sensitivity"], epsilon=1.0, delta=1 / 70000
    ).bound
    assert record["bound"] == expected == pytest.approx(2.7982758e-17, rel=1e-7)
    assert record["gamma"] == pytest.approx(836.6600265340755, rel=1e-14)
    rows = {row["mechanism"]: row for row in record["mechanisms"]}
    assert rows["paper's bound, equal noise"]["stddev"] == pytest.approx(5.468e9, rel=1e-3)
    assert rows["i.i.d. analytic Gaussian"]["stddev"] == pytest.approx(11.5419253, rel=1e-7)
    assert record["iid"]["epsilon"] == pytest.approx(1.0, rel=1e-8)


def test_text_shows_the_table_that_the_library_computes():
    arguments = ["--range", "0:1", "--range=-2:8", "-n", "500", "--theta", "0.9,0.1", "--weights", "1,0.01"]
    result = runner.invoke(app, [*arguments, "--adjacency", "add-remove", "--delta", "1e-5"], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    ranges = FeatureRanges([0.0, -2.0], [1.0, 8.0], "add-remove")
    for cost in compare_noise(ranges, n=500, epsilon=1.0, delta=1e-5, theta=[0.9, 0.1], weights=[1.0, 0.01]):
        line = next(line for line in result.output.splitlines() if line.startswith(cost.mechanism))
        assert f"{cost.stddev:.5g}" in line and f"{cost.ratio:.5g}" in line
    assert "add-remove" in result.output


def test_plot_is_written(tmp_path):
    path = tmp_path / "ellipses.png"
    result = runner.invoke(app, ["--range", "0:1", "--range", "0:3", "-n", "100", "--plot", str(path)])
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--range", "0-1", "-n", "10"], "--range takes LOWER:UPPER"),
        (["--range", "1:0", "-n", "10"], "lower < upper"),
        (["--range", "0x0:1", "-n", "10"], "repeats a feature"),
        (["--range", "0:1", "-n", "0"], "whole number"),
        (["--range", "2x0:1", "-n", "10", "--theta", "0.5,0.6"], "theta must sum to 1"),
        (["--range", "2x0:1", "-n", "10", "--theta", "a,b"], "--theta takes numbers"),
        (["--range", "2x0:1", "-n", "10", "--weights", "1"], "weights must be 2"),
        (["--range", "0:1", "-n", "10", "--epsilon", "-1"], "epsilon must be positive"),
        (["--range", "0:1", "-n", "10", "--delta", "1"], "delta must be below 1"),
        (["--range", "0:1", "-n", "10", "--zeta", "other"], "zeta must be 'printed'"),
        (["--range", "0:1", "-n", "10", "--adjacency", "near"], "adjacency must be 'replace-one'"),
        (["--range", "0:1", "-n", "10", "--plot", "x.png"], "two features"),
        (["--range", "0:1", "-n", "10", "--stddev", "0"], "--stddev must be positive"),
    ],
)
def test_bad_input(arguments, message):
    result = runner.invoke(app, arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_no_model_library_is_loaded():
    code = (
        "import sys, dpbayes.mvg, dpbayes.cli.privacy\n"
        "from dpbayes.mvg import compare_noise, FeatureRanges\n"
        "compare_noise(FeatureRanges([0.0], [1.0], 'replace-one'), n=10, epsilon=1.0, delta=1e-5)\n"
        "print([m for m in ('pymc', 'pytensor', 'sklearn', 'opendp', 'matplotlib') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
