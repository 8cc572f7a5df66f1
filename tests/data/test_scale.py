"""Counting where the records are: files larger than memory, DuckDB, a Spark session; fits on a Dask cluster."""

import itertools
import os
import shutil
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from dpbayes.data import Domain, check_consistent, marginals
from dpbayes.errors import InputError, MissingColumnError

LEVELS = {"age": ("child", "adult", "old"), "sex": ("f", "m"), "region": (1, 2, 3, 4)}
SETS = [["age", "sex"], ["region", "age"], ["sex"]]


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    return pl.DataFrame({name: rng.choice(np.array(levels), 5_000) for name, levels in LEVELS.items()})


@pytest.fixture(scope="module")
def file(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "records.parquet"
    frame.write_parquet(path, row_group_size=500)
    return path


@pytest.fixture(scope="module")
def expected(frame):
    return [table.counts.tolist() for table in marginals(frame, SETS, domain=Domain.from_levels(LEVELS))]


def counts_of(records):
    return [table.counts.tolist() for table in marginals(records, SETS, domain=Domain.from_levels(LEVELS))]


def test_a_scanned_file_is_read_once_by_the_streaming_engine(file, expected, monkeypatch):
    engines = []
    collect = pl.LazyFrame.collect

    def watched(self, *args, **kwargs):
        engines.append(kwargs.get("engine"))
        return collect(self, *args, **kwargs)

    monkeypatch.setattr(pl.LazyFrame, "collect", watched)
    assert counts_of(pl.scan_parquet(file)) == expected
    assert engines == ["streaming"]  # the tables' attributes have few cells together


def test_tables_counted_together_are_those_counted_one_by_one():
    rng = np.random.default_rng(5)
    sizes = rng.integers(2, 30, 12)
    domain = Domain.from_levels({f"a{i}": tuple(range(size)) for i, size in enumerate(sizes)})
    records = np.column_stack([rng.integers(0, size, 300) for size in sizes])
    sets = [*itertools.combinations(domain.names, 2), ("a3",), ("a9", "a0", "a4", "a11"), ("a5", "a2")]
    tables = marginals(pl.DataFrame(records, schema=list(domain.names)), sets, domain=domain)
    for names, table in zip(sets, tables, strict=True):
        counts = np.zeros(domain.project(names).shape, dtype=int)
        np.add.at(counts, tuple(records[:, [domain.names.index(name) for name in names]].T), 1)
        assert table.attributes == names
        np.testing.assert_array_equal(table.counts, counts)
    assert check_consistent(tables) == 300


def test_duckdb_counts_in_place(file, expected):
    duckdb = pytest.importorskip("duckdb")
    assert counts_of(duckdb.read_parquet(str(file))) == expected


COUNT_MANY = """
import resource, sys
import polars as pl
from dpbayes.data import Domain, check_consistent, marginals
levels = {"a": range(4), "b": range(4)}
(table,) = marginals(pl.scan_parquet(sys.argv[1]), [["a", "b"]], domain=Domain.from_levels(levels))
print(table.total, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read in Linux's units")
def test_a_file_larger_than_what_is_held_of_it(tmp_path):
    rng = np.random.default_rng(1)
    rows, parts = 2_000_000, 100
    part = pl.DataFrame({name: rng.integers(0, 4, rows) for name in ("a", "b")})
    part.write_parquet(tmp_path / "part-000.parquet", row_group_size=250_000)
    for number in range(1, parts):  # links, not copies: the reader cannot know
        os.link(tmp_path / "part-000.parquet", tmp_path / f"part-{number:03d}.parquet")
    done = subprocess.run([sys.executable, "-c", COUNT_MANY, str(tmp_path / "part-*.parquet")],
                          capture_output=True, text=True, check=True)  # fmt: skip
    total, peak = map(int, done.stdout.split())
    assert total == rows * parts
    held = rows * parts * 2 * 8  # two columns of 64-bit integers: 3.2 GB
    assert peak < 0.4 * held, f"peak {peak / 1e9:.2f} GB of {held / 1e9:.2f} GB"


@pytest.fixture(scope="module")
def spark():
    if shutil.which("java") is None:
        pytest.skip("Spark needs a Java runtime")
    sql = pytest.importorskip("pyspark.sql", reason="needs the group spark: uv sync --group spark")
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # pyspark 4 warns of its own matters: pandas, sockets, deprecations
def test_a_spark_session_counts_with_the_same_code(spark, file, expected):
    records = spark.read.parquet(str(file))
    assert counts_of(records) == expected
    with pytest.raises(MissingColumnError, match="'income' is not in the data"):
        marginals(records, [["income"]], domain=Domain.from_levels({"income": (0, 1)}))
    with pytest.raises(InputError, match="a level outside the domain"):
        marginals(records, [["age"]], domain=Domain.from_levels({"age": ("child", "adult")}))


def where(number):
    """Tell which process worked."""
    return number**2, os.getpid()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    distributed = pytest.importorskip("distributed", reason="needs the group cluster: uv sync --group cluster")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", host="127.0.0.1",
                                 local_directory=str(tmp_path_factory.mktemp("dask"))) as local,
        distributed.Client(local),
    ):  # fmt: skip
        yield local


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # distributed warns of ports and of its own garbage collection
def test_independent_work_goes_to_a_dask_cluster(cluster):
    import joblib

    with joblib.parallel_config(backend="dask"):
        found = joblib.Parallel(n_jobs=-1)(joblib.delayed(where)(number) for number in range(20))
    assert [square for square, _ in found] == [number**2 for number in range(20)]
    assert os.getpid() not in {process for _, process in found}


def normal_model():
    """One mean and five observations of it."""
    import pymc as pm

    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=pm.Data("data", np.zeros(5)))
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_calibration_study_runs_on_a_dask_cluster(cluster, tmp_path):
    import joblib

    from dpbayes.inference import simulate_and_rank
    from dpbayes.inference.sampling import NutsSettings

    study = {"n_simulations": 6, "random_seed": 1, "n_ranks": 19,
             "settings": NutsSettings(draws=100, tune=100, chains=2), "progressbar": False}  # fmt: skip
    with joblib.parallel_config(backend="dask"):
        there = simulate_and_rank(normal_model, n_jobs=None, folder=tmp_path / "there", **study)
    here = simulate_and_rank(normal_model, n_jobs=1, folder=tmp_path / "here", **study)
    # Simulation i depends on the seed and on i alone, wherever it runs.
    assert len(list((tmp_path / "there").glob("simulation_*.npz"))) == 6
    for group in there.children:
        for name in there[group].data_vars:
            if "second" not in str(name):  # wall times differ
                np.testing.assert_array_equal(there[group][name].to_numpy(), here[group][name].to_numpy())
