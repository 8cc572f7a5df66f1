import json
import re

import matplotlib.pyplot as plt
import pytest
import typer
from matplotlib.figure import Figure
from typer.testing import CliRunner

from dpbayes.bloom.calibration import bloom_epsilon, epsilon_figure
from dpbayes.cli.privacy import bloom
from dpbayes.errors import InputError

app = typer.Typer()
app.command()(bloom)


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_table_says_what_the_numbers_cover():
    result = invoke("-k", 1, "-k", 3, "-m", 1000, "-p", 0.3)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "all pairs" in text and "paper's pair" in text and "one-position" in text
    assert "replace-one" not in text and "exchanged for another changes two positions" in text
    assert "--pairs all" in text


def test_json_is_the_library():
    result = invoke("-k", 2, "-m", 500, "-p", 0.2, "-p", 0.3, "--delta", 1e-4, "--json")
    facts = json.loads(result.output)
    assert [fact["flip_prob"] for fact in facts] == [0.2, 0.3]
    claim = bloom_epsilon(flip_prob=0.2, delta=1e-4, n_filters=2, n_bits=500)
    assert facts[0]["epsilon"] == {"lower": claim.lower, "upper": claim.upper}
    assert facts[0]["scope"] == claim.scope and facts[0]["adjacency"] == "one-position"


def test_calibration_and_plot(tmp_path):
    path = tmp_path / "flips.png"
    result = invoke("-k", 1, "-k", 2, "-m", 200, "--epsilon", 1.0, "--json", "--plot", path)
    assert result.exit_code == 0, result.output
    assert path.read_bytes().startswith(b"\x89PNG")
    facts = json.loads(result.stdout)
    assert all(fact["epsilon"]["upper"] <= 1.0 for fact in facts)


def _figures(monkeypatch):
    """Keep the figures that the command draws."""
    kept = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **settings: kept.append(self))
    return kept


@pytest.mark.parametrize(
    ("options", "definition", "covers"),
    [
        (["-k", 2], "tight", "several: the paper's pair"),
        (["-k", 2, "--definition", "quantile"], "quantile", "several: the paper's pair"),
        (["-k", 1, "--pairs", "all"], "tight", "all pairs (several filters: an upper bound)"),
    ],
)
def test_the_plot_of_a_calibration_shows_the_flip_probability_of_the_table(
    tmp_path, monkeypatch, options, definition, covers
):
    figures = _figures(monkeypatch)
    result = invoke(*options, "-m", 200, "--epsilon", 1.0, "--json", "--plot", tmp_path / "p.png")
    assert result.exit_code == 0, result.output
    (axis,) = figures[0].axes
    assert axis.lines[0].get_ydata()[0] == json.loads(result.stdout)[0]["flip_prob"]
    assert f"({definition})" in axis.get_ylabel() and covers in axis.get_title(loc="left")


def test_the_plot_of_epsilon_is_for_the_definition_and_the_pairs_asked(monkeypatch):
    asked = {"n_filters": 2, "n_bits": 100, "delta": 1e-2}
    for definition, pairs in (("tight", "paper"), ("quantile", "paper"), ("tight", "all")):
        settings = {"definition": definition, "pairs": pairs}
        figure = epsilon_figure(
            n_filters=[2], n_bits=[100], delta=1e-2, flip_probs=[0.3], definition=definition, pairs=pairs
        )
        (axis,) = figure.axes
        assert axis.lines[0].get_ydata()[0] == bloom_epsilon(flip_prob=0.3, **asked, **settings).upper
        assert f"({definition})" in axis.get_ylabel()
        assert ("upper bound" in axis.get_title(loc="left")) == (pairs == "all")
        plt.close(figure)
    passed = {}
    monkeypatch.setattr(
        "dpbayes.bloom.calibration.epsilon_figure", lambda **settings: passed.update(settings) or Figure()
    )
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **settings: None)
    result = invoke("-k", 1, "-m", 50, "-p", 0.2, "--pairs", "all", "--definition", "quantile", "--plot", "p.png")
    assert result.exit_code == 0, result.output
    assert (passed["definition"], passed["pairs"], passed["delta"]) == ("quantile", "all", 1e-3)


@pytest.mark.parametrize(("name", "text"), [("x.foo", "ending in .png"), ("nowhere/x.png", "there is no folder")])
def test_a_plot_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch, name, text):
    monkeypatch.setattr("dpbayes.bloom.calibration.bloom_epsilon", lambda **settings: pytest.fail("worked first"))
    result = invoke("-k", 2, "-m", 100, "-p", 0.2, "--plot", tmp_path / name)
    assert isinstance(result.exception, InputError) and text in str(result.exception)


@pytest.mark.parametrize(("k", "m", "epsilon"), [(2, 1000, 0.5), (1, 100, 1.0)])
def test_the_printed_flip_probability_keeps_the_target(k, m, epsilon):
    result = invoke("-k", k, "-m", m, "--epsilon", epsilon)
    (shown,) = re.findall(r"0\.\d{6,}", next(line for line in result.output.splitlines() if f"{m:,}" in line))[:1]
    claims = [
        bloom_epsilon(flip_prob=p, delta=1e-3, n_filters=k, n_bits=m) for p in (float(shown), float(shown) - 3e-8)
    ]
    assert claims[0].upper <= epsilon < claims[1].upper


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-k", 2, "-m", 10], "either --flip-prob"),
        (["-k", 2, "-m", 10, "-p", 0.1, "--epsilon", 1], "either --flip-prob"),
        (["-k", 2, "-m", 10, "-p", 0.5], "strictly between 0 and 0.5"),
        (["-k", 0, "-m", 10, "-p", 0.1], "n_filters"),
        (["-k", 2, "-m", 10, "-p", 0.1, "--definition", "loose"], "definition"),
        (["-k", 2, "-m", 10, "-p", 0.1, "--pairs", "some"], "pairs"),
    ],
)
def test_bad_input(arguments, text):
    result = invoke(*arguments)
    assert isinstance(result.exception, InputError)
    assert text in str(result.exception)
