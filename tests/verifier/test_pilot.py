"""What public facts say before anything is spent: pilots, declared sizes, skewness and level shares."""

import json

import numpy as np
import polars as pl
import pytest

from dpbayes.errors import InputError, SpecError
from dpbayes.runs import execute, load_spec
from dpbayes.verifier.design import partition_warnings, pilot_shares, pilot_warnings

RNG = np.random.default_rng
CLAIM = {"formula": "y ~ x", "coefficient": "x", "threshold": 0.1, "direction": ">"}


def skewed(n=20_000, seed=11):
    rng = RNG(seed)
    x = (rng.random(n) < 0.05).astype(float)
    return pl.DataFrame({"x": x, "y": np.where(rng.random(n) < 0.03 + 0.06 * x, np.exp(rng.normal(1.0, 1.2, n)), 0.0)})


def test_r_crosses_one_half_on_a_skewed_pilot_and_the_largest_safe_design_is_before():
    tried = pilot_shares(skewed(), n_units=60_000, n_partitions=[1000, 10], partitions=150, **CLAIM)
    assert tried["n_partitions"].values.tolist() == [10, 1000]
    assert tried.attrs["beyond"] == 1
    r = tried["r"].values
    assert r[0] > 0.5 > r[1]
    assert tried.attrs["largest_safe"] == 10
    assert tried["units"].values.tolist() == [6000, 60]
    (warning,) = pilot_warnings(tried, "a")
    assert "of 1,000 partitions (60 units each)" in warning and "skewed" in warning


def test_the_range_keeps_what_clipping_may_take_below_the_noise_and_a_narrow_one_is_told():
    asked = {"n_units": 100_000, "n_partitions": [50, 2000], "partitions": 200, "epsilon": 1.0} | CLAIM
    tried = pilot_shares(skewed(), **asked)
    reach = (tried["range_to"] - tried["estimate"]).values
    spread = tried["estimate_sd"].values
    assert "coverage" not in tried
    assert reach[0] == pytest.approx(5 * spread[0])
    # Scarf's bound of a mean in the middle of a wide range, and the noise's standard deviation.
    assert spread[1] ** 2 / (4 * reach[1]) == pytest.approx(2 * np.sqrt(2) * reach[1] / 2000)
    low, high = (float(tried[end][1]) for end in ("range_from", "range_to"))
    wide = pilot_shares(skewed(), lower=low, upper=high, **asked)
    assert wide["coverage"].values[1] > 0.93 and pilot_warnings(wide.sel(n_partitions=[50]), "a") == []
    narrow = pilot_shares(skewed(), lower=-1.0, upper=1.0, **asked)
    assert narrow["coverage"].values[1] < 0.5
    (warning,) = pilot_warnings(narrow.sel(n_partitions=[2000]), "a")[-1:]
    assert "take lower = -" in warning and "coverage" in warning
    # Halves that hold none of the group fail, which the estimate of a whole partition does not.
    assert narrow["failed"].values[1] > tried["failed"].values[1] + 0.1


def test_a_symmetric_pilot_is_safe_everywhere():
    rng = RNG(1)
    x = rng.normal(size=3000)
    frame = pl.DataFrame({"x": x, "y": 0.4 * x + rng.normal(size=3000)})
    tried = pilot_shares(frame, n_units=9000, n_partitions=[10, 100], partitions=100, **CLAIM)
    assert tried.attrs["largest_safe"] == 100
    assert float(tried["right"][1]) > 0.9
    # The pilot's own standard error of a fit of 90 rows, about 1 / sqrt(90).
    assert float(tried["estimate_sd"][1]) == pytest.approx(1 / np.sqrt(90), rel=0.25)


def test_units_with_several_rows_are_drawn_whole():
    rng = RNG(2)
    frame = pl.DataFrame({"who": np.repeat(np.arange(50), 4), "x": rng.normal(size=200), "y": rng.normal(size=200)})
    tried = pilot_shares(frame, n_units=100, n_partitions=[50], unit="who", partitions=50, **CLAIM)
    # Two persons of four rows each: eight rows fit a line.
    assert float(tried["failed"][0]) == 0
    rows = pilot_shares(frame, n_units=100, n_partitions=[50], partitions=50, **CLAIM)
    assert float(rows["failed"][0]) == 1
    assert pilot_warnings(rows, "a")[0].startswith("\u201ca\u201d: on the pilot 100 % of 50 partitions")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_partitions": []}, "n_partitions"),
        ({"n_partitions": [200_000]}, "up to n_units"),
        ({"threshold": None}, "either"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(InputError, match=message):
        pilot_shares(skewed(500), **(CLAIM | {"n_units": 1000, "n_partitions": [5]} | change))


FACTS = {"n_units": 10_000, "n_partitions": 100, "formula": "y ~ x + z"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"n_partitions": 500}, "fewer than ten for each of the 3 parameters.*take at most 333 partitions"),
        ({"n_partitions": 500, "family": "logistic"}, "biased"),
        ({"skew": 1.0}, None),
        # 28 + 25 * 9 = 253 rows; 10,000 / 253.
        ({"skew": 3.0}, "asks for 253.*take at most 39 partitions"),
        # 1 - (1 - .001)^100 = .0952 of partitions hold one.
        ({"level_shares": {"z": {"a": 0.999, "b": 0.001}}}, "90 % of the 100 partitions .* lack a level of 'z'"),
        ({"level_shares": {"z": {"a": 0.95, "b": 0.05}}}, None),
        # Spread evenly, ten units of the level reach ten of 100 partitions; of a level of 2 %, all.
        ({"level_shares": {"z": {"b": 0.001}}, "strata": "z"}, "90 % of the 100 partitions"),
        ({"level_shares": {"z": {"b": 0.02}}, "strata": "z"}, None),
    ],
)
def test_public_facts_warn(change, message):
    found = partition_warnings(**(FACTS | change))
    assert len(found) == (message is not None)
    if message is not None:
        import re

        assert re.search(message, found[0])


SPEC = """
system = "verifier"
title = "t"
question = "Does the gain go with x?"
[pilot]
file = "pilot.csv"
n_units = 60000
n_partitions = [10, 1000]
partitions = 60
[[questions]]
name = "gain"
formula = "y ~ x"
coefficient = "x"
threshold = 0.1
"""


def test_claims_are_tried_on_a_pilot_in_a_run(tmp_path):
    skewed().write_csv(tmp_path / "pilot.csv")
    claim = SPEC[SPEC.index("[[questions]]") :].replace("gain", "itself")
    (tmp_path / "trial.toml").write_text(SPEC + claim + 'answer_by = "mean"\nlower = -1.0\nupper = 2.0\n')
    result = execute(
        load_spec(tmp_path / "trial.toml"), out=tmp_path / "run", progressbar=False, echo=lambda line: None
    )
    facts = json.loads((result.folder / "facts.json").read_text())
    assert facts["answer"] == (
        "\u201cgain\u201d is safe to verify by shares up to 10 partitions; "
        "\u201citself\u201d is safe to answer by the mean, with its range, at 10 partitions."
    )
    ten, thousand = (row["coverage"] for row in facts["tables"]["pilot_itself"])
    assert ten > 0.93 > 0.5 > thousand
    assert [row["safe"] for row in facts["tables"]["pilot_gain"]] == [True, False]
    assert not (result.folder / "release.json").exists()
    assert "Some designs mislead" in (result.folder / "report.html").read_text()


def test_a_verification_warns_of_what_the_pilot_says_and_the_mean_is_right(tmp_path):
    skewed().write_csv(tmp_path / "pilot.csv")
    skewed(60_000, seed=5).write_csv(tmp_path / "records.csv")
    asked = SPEC.replace("[10, 1000]", "[10]").replace("partitions = 60", "partitions = 40")
    asked += (
        '\n[[questions]]\nname = "itself"\nformula = "y ~ x"\ncoefficient = "x"\nthreshold = 0.1\nanswer_by = "mean"\n'
    )
    asked += 'lower = -12.0\nupper = 18.0\n[data]\nmicrodata = "records.csv"\nn_units = 60000\ntruth_public = true\n'
    asked += "[privacy]\nepsilon = 8.0\nn_partitions = 600\nsimulation_seed = 1\n[model]\ndraws = 50\n"
    (tmp_path / "study.toml").write_text(asked)
    said = []
    result = execute(load_spec(tmp_path / "study.toml"), out=tmp_path / "run", progressbar=False, echo=said.append)
    warned = [line for line in said if line.startswith("warning: ")]
    assert len(warned) == 2 and "\u201cgain\u201d: on the pilot the claim holds in all records" in warned[0]
    # Of 100 units, 5 % of them in the group, a half lacks the group in one partition of seven.
    assert "\u201citself\u201d: on the pilot" in warned[1] and "cannot be computed" in warned[1]
    # Said before anything is released.
    assert said.index(warned[0]) < [line.startswith("release: ") for line in said].index(True)
    facts = json.loads((result.folder / "facts.json").read_text())
    (row,) = facts["tables"]["coefficients"]
    assert row["prob_greater"] > 0.9  # by shares it is near 0
    assert facts["tables"]["answers"][0]["prob_majority"] < 0.05
    assert "the claim holds (> 0.1) with probability" in facts["answer"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("[privacy]\nepsilon = 1.0\n", "take .*questions.* and no"),
        ("[surface]\nn_partitions = [5]\nepsilon = [1.0]\nr = [0.9]\n", "takes no"),
    ],
)
def test_specs_with_mistakes_are_refused(change, message, tmp_path):
    (tmp_path / "trial.toml").write_text(SPEC + change)
    with pytest.raises(SpecError, match=message):
        load_spec(tmp_path / "trial.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('answer_by = "mean"', "needs lower and upper"),
        ("lower = 1.0", "leave them out"),
        ('answer_by = "mean"\nlower = 2.0\nupper = 1.0', "lower < upper"),
    ],
)
def test_questions_with_mistakes_are_refused(change, message, tmp_path):
    (tmp_path / "trial.toml").write_text(SPEC + change + "\n")
    with pytest.raises(SpecError, match=message):
        load_spec(tmp_path / "trial.toml")
