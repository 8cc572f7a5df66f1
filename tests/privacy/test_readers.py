"""Readers of known layouts: census noisy measurements, Wikimedia page views, OpenDP and PipelineDP results."""

import dataclasses
import datetime
from collections import namedtuple
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from census_files import QUERIES, no_minors_in_nursing, simulated_tracts, write_measurements

from dpbayes.data import Domain
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.latent_class.zeros import Support
from dpbayes.privacy import (
    CENSUS_DOMAIN,
    WIKIMEDIA_ERAS,
    DiscreteGaussian,
    Gaussian,
    NoisyTotal,
    Publication,
    TwoSidedGeometric,
    check_stated_noise,
    read_census_measurements,
    read_opendp,
    read_pipelinedp,
    read_wikimedia_views,
    readers,
    wikimedia_era,
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
    zeros = Support.of(one.release.domain, one.impossible)
    assert zeros.n_impossible == 1 and tracts[:, 3, 0].sum() == 0
    whole = read_census_measurements(queries, constraints, geocodes="T00")["T00"]
    domain = whole.release.domain.project(["hhgq", "hhinstlevels"])
    assert Support.of(domain, [zero for zero in whole.impossible if "votingage" not in zero]).n_impossible == 16


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
    with pytest.raises(InputError, match=r"8 values of shape .* not 2"):
        wrong = frame.filter(pl.col("query_name") == "hhgq_dpq").with_columns(query_name=pl.lit("votingage_dpq"))
        read_census_measurements(wrong, total=10)
    with pytest.raises(MissingColumnError, match="lack the columns value"):
        read_census_measurements(frame.drop("value"))


def test_wikimedia_eras_are_disjoint_and_dated() -> None:
    facts = {
        (2016, 5, 1): (TwoSidedGeometric(300.0), 3500),
        (2017, 2, 9): (TwoSidedGeometric(30.0), 450),
        (2023, 2, 5): (TwoSidedGeometric(30.0), 450),
        (2023, 2, 6): (DiscreteGaussian((10 / 0.03) ** 0.5), 90),
        (2023, 11, 19): (TwoSidedGeometric(30.0), 450),
        (2026, 1, 1): (DiscreteGaussian((10 / 0.03) ** 0.5), 90),
    }
    for day, (law, threshold) in facts.items():
        era = wikimedia_era(datetime.date(*day))
        assert (era.law, era.threshold) == (law, threshold)
    assert wikimedia_era(datetime.date(2024, 3, 1), tier="higher").threshold == 1000
    assert wikimedia_era(datetime.date(2023, 5, 1), country="US").threshold == 450
    with pytest.raises(InputError, match="released nothing for countries of tier 'medium' on 2020-01-01"):
        wikimedia_era(datetime.date(2020, 1, 1), tier="medium")
    # The anchor of the current era: a 95 % interval of 35.7 views either side.
    assert 1.96 * WIKIMEDIA_ERAS[-3].law.variance ** 0.5 == pytest.approx(35.7, abs=0.15)


def test_wikimedia_files_of_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = datetime.date(2024, 2, 6)
    path = tmp_path / "2024-2-6.tsv"
    path.write_text('Australia\tAU\ten.wikipedia\t12\tA "page"\tQ1\t90\n')
    columns = ["country", "country_code", "project", "page_id", "page_title", "item_id", "private_count"]
    (row,) = read_wikimedia_views([path], columns=columns).to_dicts()
    assert (row["page"], row["views"], row["date"]) == ('A "page"', 90, day)
    assert (row["law"], row["threshold"]) == ("discrete-gaussian", 90)
    with pytest.raises(InputError, match=r"2024-2-6.tsv, row 1: 90 views on 2024-02-06 are below the threshold 91"):
        monkeypatch.setattr(readers, "WIKIMEDIA_ERAS", (dataclasses.replace(wikimedia_era(day), threshold=91),))
        read_wikimedia_views(path, columns=columns)
    with pytest.raises(MissingColumnError, match="needs a column of private_count"):
        read_wikimedia_views(path)


def test_the_real_wikimedia_file(shared_data: Path) -> None:
    """Every count of the real file reaches the threshold that its day has; the least of each era are at it."""
    read = read_wikimedia_views(shared_data / "wikimedia_australia_disasters.csv")
    least = dict(read.group_by("threshold").agg(pl.col("views").min()).iter_rows())
    assert len(read) == 6221 and set(least) == {450, 90}
    assert least[450] < 470 and least[90] < 100


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
