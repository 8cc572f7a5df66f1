"""Runs of the latent class system from spec to report, and combinations that cannot occur."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import xarray as xr

from dpbayes.data import Domain
from dpbayes.data.datasets import PERSON_LEVELS, PERSON_ZEROS, persons
from dpbayes.errors import InputError, SpecError
from dpbayes.inference.schema import read_trace
from dpbayes.latent_class import margin_draws
from dpbayes.latent_class import study as latent_class
from dpbayes.latent_class.study import embedded_tables
from dpbayes.privacy import NoisyTable, NoisyTotal, Release, read_release
from dpbayes.privacy.laws import TwoSidedGeometric
from dpbayes.runs import execute, load_spec

STUDY = """\
system = "latent-class"
title = "Two tables that share an attribute"
question = "What do they say?"
[data]
microdata = "records.csv"
truth_public = true
attribute_sets = [["a", "b"], ["b", "c"]]
[data.levels]
a = [0, 1]
b = ["x", "y"]
c = [0, 1]
[privacy]
epsilon = 1.0
simulation_seed = 1
[model]
n_classes = 2
[sampling]
chains = 32
rounds = 1
[synthesis]
n_datasets = 2
"""


@pytest.fixture
def study(tmp_path):
    """A spec of 300 records of three attributes."""
    rng = np.random.default_rng(1)
    a = rng.integers(0, 2, 300)
    b = np.where(rng.random(300) < 0.3 + 0.4 * a, "x", "y")
    pl.DataFrame({"a": a, "b": b, "c": rng.integers(0, 2, 300)}).write_csv(tmp_path / "records.csv")
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path / "study.toml"


@pytest.mark.slow
def test_a_run_answers_for_population_and_records(study, tmp_path):
    folder = execute(load_spec(study), out=tmp_path / "run", progressbar=False, echo=lambda line: None).folder
    trace, release = read_trace(folder / "trace.nc"), read_release(folder / "release.json")
    assert {"exact_counts", "profile_a", "margin", "cell"} <= set(trace["posterior"])
    page = " ".join((folder / "report.html").read_text().split())
    assert "sticks ~ beta(1, α), α ~ gamma(40, 10)" in page and "released share times exp(6 z)" in page
    facts = json.loads((folder / "facts.json").read_text())
    assert facts["privacy"] == {"adjacency": "replace-one", "unit": "row", "delta": 0.0}
    rows = facts["tables"]["margins"]
    assert len(rows) == 8
    # 95 % intervals of a share of 300 persons: wider than nothing, narrower than everybody.
    assert all(0 <= row["population_lower"] < row["population"] < row["population_upper"] <= 300 for row in rows)
    frames = [pl.read_parquet(path) for path in sorted((folder / "synthetic").iterdir())]
    assert [frame.shape for frame in frames] == [(300, 3), (300, 3)]
    draws = margin_draws(trace, ["a", "c"], target="records", release=release, random_seed=1)
    assert draws.shape[2:] == (2, 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.likelihood=exact"], "cells"),
        (["model.file=mine.py", "model.likelihood=cells"], "states its own"),
    ],
)
def test_a_likelihood_that_does_not_fit_is_refused_first(study, overrides, message):
    with pytest.raises(SpecError, match=message):
        load_spec(study, overrides)


def test_synthetic_sets_have_as_many_records_as_the_posterior_says_there_are(study, tmp_path):
    """A released n of -60, and draws of n whose mean is 412.4."""
    domain = Domain.from_levels({"a": (0, 1)})
    law = TwoSidedGeometric(150.0)
    table = NoisyTable(domain, np.array([200, 210]), law, 1.0, None)
    release = Release(domain, (table,), "add-remove", NoisyTotal(-60.0, law, 1.0, None), "simulation")
    posterior = xr.Dataset({
        "n": (("chain", "draw"), [[400.0, 424.8]]),
        "weights": (("chain", "draw", "class"), np.ones((1, 2, 1))),
        "profile_a": (("chain", "draw", "class", "a"), np.full((1, 2, 1, 2), 0.5)),
    }, coords={"a": [0, 1]})  # fmt: skip
    trace = xr.DataTree.from_dict({"posterior": posterior})
    said = []
    latent_class.synthesize(load_spec(study).spec, release, trace, SimpleNamespace(folder=tmp_path, echo=said.append))
    assert said == ["synthetic data: 2 sets of 412 records"]
    assert pl.read_parquet(tmp_path / "synthetic" / "synthetic_02.parquet").height == 412


def test_persons_are_possible_and_the_same_every_time():
    frame = persons(20_000, rng=np.random.default_rng(5))
    for zero in PERSON_ZEROS:
        names = {name: [level] if isinstance(level, str) else list(level) for name, level in zero.items()}
        assert frame.filter(*(pl.col(name).is_in(levels) for name, levels in names.items())).is_empty()
    counted = embedded_tables("persons")
    assert [table.total for table in counted] == [5000] * 6
    assert all(
        np.array_equal(one.counts, two.counts) for one, two in zip(counted, embedded_tables("persons"), strict=True)
    )
    # Adults are 60 %: 20,000 draws have a standard error of 0.35 points; five of them, false alarm below 1e-6.
    assert frame["age"].eq("adult").mean() == pytest.approx(0.6, abs=0.0175)
    assert {name: set(frame[name]) for name in PERSON_LEVELS} == {k: set(v) for k, v in PERSON_LEVELS.items()}
    with pytest.raises(InputError, match="at least 1"):
        persons(0, rng=np.random.default_rng(1))


@pytest.mark.slow
def test_a_run_with_combinations_that_cannot_occur(tmp_path):
    """The gallery's spec as it is, four minutes of it: the gate passes, and nothing impossible is made."""
    overrides = ["privacy.simulation_seed=3", "synthesis.n_datasets=2"]
    loaded = load_spec("models/persons_latent_class.toml", overrides)
    result = execute(loaded, out=tmp_path / "run", progressbar=False, echo=lambda line: None)
    assert result.passed, result.summary
    trace = read_trace(result.folder / "trace.nc")
    cell = trace["posterior"]["cell"]
    assert float(cell.sel(age="child", marital=["married", "formerly"]).max()) == 0.0
    assert float(cell.sel(age="child", work="yes").max()) == 0.0
    np.testing.assert_allclose(cell.sum(["age", "marital", "work", "income"]), 1.0, atol=1e-9)
    facts = json.loads((result.folder / "facts.json").read_text())
    impossible = [row for row in facts["tables"]["margins"] if row["cell"] == "age: child, working"]
    assert [(row["records"], row["records_upper"], row["population"]) for row in impossible] == [(0.0, 0.0, 0.0)]
    assert "17 of the 54 cells were declared impossible" in (result.folder / "report.html").read_text()
    for path in (result.folder / "synthetic").iterdir():
        frame = pl.read_parquet(path).filter(pl.col("age") == "child")
        assert len(frame) > 500
        assert (set(frame["marital"]), set(frame["work"]), set(frame["income"])) == ({"never"}, {"no"}, {"none"})
