"""`dpbayes privacy` from the outside: numbers, statements, plots, refusals."""

import math

import pytest
from typer.testing import CliRunner

from dpbayes.cli.privacy import app
from dpbayes.errors import InputError
from dpbayes.privacy.curves import gaussian_delta
from dpbayes.privacy.losses import geometric_loss, randomized_response_loss

runner = CliRunner()


def run(*arguments: str) -> str:
    result = runner.invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def row(output: str, delta: str) -> list[str]:
    (line,) = [line for line in output.splitlines() if line.split()[:1] == [delta]]
    return line.split()


def test_the_published_gaussian_composition():
    output = run("gaussian", "--stddev", 10, "--compositions", 1000, "--delta", "1e-6")
    assert row(output, "1e-06") == ["1e-06", "19.4237", "19.4236"]
    assert "Gaussian, stddev 10, sensitivity 1, 1,000 compositions" in output
    assert "adjacency replace-one: neighbours differ in one record" in output


def test_the_calibrated_stddev_is_rounded_up_and_keeps_its_promise():
    output = run("gaussian", "--epsilon", 1, "--delta", "1e-5", "--adjacency", "add-remove")
    stddev = row(output, "1e-05")[1]
    assert stddev == "3.73064"
    assert gaussian_delta(1 / float(stddev), 1.0) <= 1e-5 < gaussian_delta(1 / (float(stddev) - 2e-5), 1.0)
    assert "adjacency add-remove" in output


def test_geometric_noise_for_ten_tables():
    output = run("geometric", "--epsilon", 1, "--sensitivity", 2, "--compositions", 10, "--delta", 0, "--delta", "1e-4")
    assert row(output, "0")[1] == "20"  # 2 * 10 / 1
    scale = float(row(output, "0.0001")[1])
    assert geometric_loss(scale=scale, sensitivity=2).compose(10).epsilon(1e-4) <= 1
    assert geometric_loss(scale=scale - 2e-4, sensitivity=2).compose(10).epsilon(1e-4) > 1


@pytest.mark.parametrize("law", ["geometric", "laplace"])
def test_pure_costs_are_printed_as_they_are(law):
    assert row(run(law, "--scale", 20, "--compositions", 3, "--delta", 0), "0") == ["0", "0.15", "0.15"]
    assert row(run(law, "--scale", 3, "--delta", 0), "0") == ["0", "0.333334", "0.333333"]
    assert row(run(law, "--epsilon", 0.1, "--sensitivity", 2, "--delta", 0), "0")[1] == "20"
    assert row(run(law, "--epsilon", 0.3, "--delta", 0), "0")[1] == "3.33334"


def test_laplace_and_discrete_gaussian_costs():
    assert float(row(run("laplace", "--scale", 2, "--delta", "0.01"), "0.01")[1]) == pytest.approx(
        0.5 + 2 * math.log1p(-0.01), abs=1e-5
    )
    output = run("discrete-gaussian", "--stddev", 10, "--compositions", 1000, "--delta", "1e-6")
    assert row(output, "1e-06")[1] == "19.4237"


def test_randomized_response_both_ways():
    output = run("randomized-response", "--truth-probability", 0.75, "--delta", 0)
    assert row(output, "0")[1] == "1.09862"
    probability = float(row(run("randomized-response", "--epsilon", 1, "--categories", 4, "--delta", 0), "0")[1])
    assert randomized_response_loss(truth_probability=probability, categories=4).epsilon(0.0) <= 1 + 1e-9
    assert randomized_response_loss(truth_probability=probability + 2e-6, categories=4).epsilon(0.0) > 1


def test_the_least_noise_never_exceeds_that_of_pure_privacy():
    output = run("geometric", "--epsilon", 1, "--sensitivity", 2)
    scales = {delta: row(output, delta)[1] for delta in ("0.001", "1e-05", "1e-07", "1e-09")}
    assert scales["1e-07"] == scales["1e-09"] == "2" and float(scales["0.001"]) < 2


def test_pure_privacy_that_gaussian_noise_cannot_give_is_said_so():
    assert row(run("gaussian", "--stddev", 1, "--delta", 0), "0")[1] == "infinite"
    with pytest.raises(InputError, match="no amount of noise gives epsilon 1 at delta 0"):
        run("gaussian", "--epsilon", 1, "--delta", 0)


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_plot_is_written(tmp_path, suffix, magic):
    path = tmp_path / f"curve.{suffix}"
    output = run("geometric", "--scale", 20, "--compositions", 10, "--plot", path)
    assert path.read_bytes().startswith(magic)
    assert f"plot: {path}" in output


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["gaussian"], "give either --stddev .* got neither"),
        (["gaussian", "--stddev", "1", "--epsilon", "1"], "got both"),
        (["laplace", "--scale", "-1"], "--scale must be positive and finite, got -1.0"),
        (["laplace", "--epsilon", "0"], "--epsilon must be positive and finite, got 0.0"),
        (["gaussian", "--stddev", "1", "--delta", "1"], "--delta must be at least 0 and below 1, got 1.0"),
        (["gaussian", "--stddev", "1", "--sensitivity", "0"], "--sensitivity must be positive and finite, got 0.0"),
        (["gaussian", "--stddev", "1", "--compositions", "0"], "--compositions must be at least 1, got 0"),
        (["gaussian", "--stddev", "1", "--plot", "curve.gif"], "--plot needs a file ending in"),
        (["gaussian", "--stddev", "1", "--plot", "/no/such/folder/curve.png"], "there is no folder"),
    ],
)
def test_a_refusal_gives_the_value_and_the_remedy(arguments, match):
    with pytest.raises(InputError, match=match):
        runner.invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize("command", ["gaussian", "laplace", "geometric", "discrete-gaussian", "randomized-response"])
def test_every_help_text_shows_an_example(command):
    assert f"dpbayes privacy {command}" in run(command, "--help")
