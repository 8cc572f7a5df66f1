"""Readers of known layouts: census noisy measurements, Wikimedia page views, OpenDP and PipelineDP results."""

from collections import namedtuple
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from census_files import QUERIES, no_minors_in_nursing, simulated_tracts, write_measurements

from dpbayes.data import Domain
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.latent_class.zeros import ZeroSet
from dpbayes.privacy import (
    CENSUS_DOMAIN,
    DiscreteGaussian,
    Gaussian,
    NoisyTotal,
    Publication,
    check_stated_noise,
    read_census_measurements,
    read_opendp,
    read_pipelinedp,
)

STATED = Publication("A colleague", "counts.csv", "2026-11", "as in the tests")


@pytest.fixture(scope="module")
def census(tmp_path_factory: pytest.TempPathFactory) -> tuple[np.ndarray, tuple[Path, Path]]:
    """A county, called the nation here so that its total is exact, and its twelve tracts."""
    rng = np.random.default_rng(11)
    tracts = no_minors_in_nursing(simulated_tracts(12, rng))
    counts = {"US": tracts.sum(axis=0)} | {f"T{k:02d}": tract for k, tract in enumerate(tracts)}
    return tracts, write_measurements(tmp_path_factory.mktemp("nmf"), counts, 25.0, rng)


def test_eleven_queries_are_tables_of_one_release(census) -> None:
    tracts, (queries, constraints) = census
    found = read_census_measurements(queries, constraints, geocodes=["US", "T03"])
    nation, tract = found["US"], found["T03"]
    assert nation.release.n == tracts.sum() and nation.release.sampler == "published"
    assert isinstance(tract.release.n, NoisyTotal) and tract.release.n.noise == DiscreteGaussian(5.0)
    assert [table.counts.size for table in tract.release.tables] == [3, 8, 2, 2, 63, 4, 126, 126, 252, 2016]
    detailed = tract.release.tables[-1]
    assert detailed.attributes == CENSUS_DOMAIN.names
    z = (detailed.counts - tracts[3]) / np.sqrt(detailed.variances)
    assert abs(z.mean()) < 5 / np.sqrt(z.size) and abs(z.std() - 1) < 5 / np.sqrt(2 * z.size)
    assert tract.bounds is not None and np.all(tract.bounds[0] <= tracts[3].sum(axis=(1, 2, 3)))


def test_constraints_are_structural_zeros(census) -> None:
    """Impossible cells are empty in the truth, and each level of hhgq has one of hhinstlevels left."""
    tracts, (queries, constraints) = census
    one = read_census_measurements(queries, constraints, geocodes="T00", queries=["hhgq_dpq", "votingage_dpq"])["T00"]
    zeros = ZeroSet.of(one.release.domain, one.impossible)
    assert zeros.size == 1 and tracts[:, 3, 0].sum() == 0
    whole = read_census_measurements(queries, constraints, geocodes="T00")["T00"]
    domain = whole.release.domain.project(["hhgq", "hhinstlevels"])
    assert ZeroSet.of(domain, [zero for zero in whole.impossible if "votingage" not in zero]).size == 16


def test_race_levels_are_the_63_sets_by_size() -> None:
    race = CENSUS_DOMAIN["cenrace"].labels
    assert (race[0], race[6], race[62]) == ("white", "white+black", "white+black+aian+asian+nhpi+other")
    assert [label.count("+") for label in race] == sorted(label.count("+") for label in race)


def test_stated_variances_agree_within_and_between_geographies(census) -> None:
    _, (queries, constraints) = census
    asked = [name for name in QUERIES if name != "detailed_dpq"]
    found = read_census_measurements(queries, constraints, queries=asked)
    county, tracts = found.pop("US").release, {code: one.release for code, one in found.items()}
    assert check_stated_noise(county, draws=299).agrees
    check = check_stated_noise(county, parts=tracts, draws=99, seed=2)
    assert check.agrees and check.rows[0].dof > 1000


def test_census_errors(census) -> None:
    _, (queries, _) = census
    frame = pl.read_parquet(queries / "**/*.parquet").filter(pl.col("geocode") == "T00")
    with pytest.raises(InputError, match=r"lack the geographies \['06'\]"):
        read_census_measurements(frame, geocodes="06")
    with pytest.raises(InputError, match="query hhgq_dpq: variance must be positive"):
        read_census_measurements(frame.with_columns(variance=pl.lit(-1.0)), queries=["hhgq_dpq"], total=10)
    with pytest.raises(InputError, match=r"8 values of shape .* 2 are expected"):
        wrong = frame.filter(pl.col("query_name") == "hhgq_dpq").with_columns(query_name=pl.lit("votingage_dpq"))
        read_census_measurements(wrong, total=10)
    with pytest.raises(MissingColumnError, match="lack the columns value"):
        read_census_measurements(frame.drop("value"))


def test_opendp_summary_states_law_scale_and_threshold() -> None:
    counts = pl.DataFrame({"sex": ["f", "m"], "age": ["0", "0"], "len": [51, 47]})
    summary = pl.DataFrame(
        {"column": ["len"], "aggregate": ["Frame Length"], "distribution": ["Integer Gaussian"], "scale": [4.0],
         "threshold": [30]}
    )  # fmt: skip
    levels = {"age": ["0", "1"]}
    (table,) = read_opendp(counts, summary, publication=STATED, levels=levels, total=120).tables
    assert table.noise == DiscreteGaussian(4.0) and table.threshold == 30 and int(table.withheld.sum()) == 2
    with pytest.raises(InputError, match="must state the distribution"):
        read_opendp(counts, summary.with_columns(scale=None), publication=STATED, total=120)


def test_pipelinedp_results() -> None:
    metrics = namedtuple("MetricsTuple", ["count", "count_noise_stddev"])
    results = [(("f", "0"), metrics(51.2, 3.0)), (("m", "0"), metrics(46.9, 4.0))]
    results += [(("f", "1"), metrics(11.0, 3.0)), (("m", "1"), metrics(9.5, 3.0))]
    release = read_pipelinedp(results, ["sex", "age"], noise_kind="gaussian", publication=STATED, total=120)
    (table,) = release.tables
    assert table.domain == Domain.from_levels({"sex": ["f", "m"], "age": ["0", "1"]})
    assert table.noise == Gaussian(4.0) and table.variances.tolist() == [[9.0, 9.0], [16.0, 9.0]]
    with pytest.raises(InputError, match="set output_noise_stddev=True"):
        read_pipelinedp([("f", {"count": 3.0})], ["sex"], noise_kind="laplace", publication=STATED)
