import json

import pytest
import typer
from typer.testing import CliRunner

from dpbayes.bloom.calibration import bloom_epsilon
from dpbayes.cli.bloom import bloom
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
