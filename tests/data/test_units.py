"""Rows of a unit that count: never more than the bound, chosen by looking at that unit alone, in every engine."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

from dpbayes.data import Domain, marginals
from dpbayes.errors import InputError, MissingColumnError
from dpbayes.privacy import Release, read_release, release_tables

DOMAIN = Domain.from_levels({"age": (0, 1, 2), "sex": ("f", "m")})


def records(seed=1, n=400, units=60):
    rng = np.random.default_rng(seed)
    return pl.DataFrame({
        "person": rng.integers(0, units, n).astype(str), "age": rng.integers(0, 3, n), "sex": rng.choice(["f", "m"], n),
    })  # fmt: skip


def count(frame, k):
    (table,) = marginals(frame, [["age", "sex"]], domain=DOMAIN, unit="person", max_rows_per_unit=k)
    return table.counts


@pytest.mark.parametrize("k", [1, 2, 5, 1000])
def test_no_unit_counts_more_than_the_bound(k):
    frame = records()
    rows = frame.group_by("person").len()["len"]
    assert count(frame, k).sum() == rows.clip(upper_bound=k).sum()


@pytest.mark.parametrize("k", [1, 3])
def test_one_unit_more_or_less_changes_no_other_units_rows(k):
    """The counts with and without a unit differ by that unit's own bounded counts: its L1 change is at most k."""
    frame = records()
    everything = count(frame, k)
    for person in frame["person"].unique().to_list()[:15]:
        without = count(frame.filter(pl.col("person") != person), k)
        alone = count(frame.filter(pl.col("person") == person), k)
        np.testing.assert_array_equal(everything - without, alone)
        assert alone.sum() <= k


def test_the_order_of_rows_does_not_matter_and_engines_agree():
    import duckdb

    frame = records()
    expected = count(frame, 2)
    np.testing.assert_array_equal(count(frame.sample(fraction=1.0, shuffle=True, seed=5), 2), expected)
    np.testing.assert_array_equal(count(frame.lazy(), 2), expected)
    np.testing.assert_array_equal(count(frame.to_arrow(), 2), expected)
    np.testing.assert_array_equal(count(pd.DataFrame(frame.to_dict(as_series=False)), 2), expected)
    shown = frame.to_arrow()  # noqa: F841 - DuckDB finds it by name
    np.testing.assert_array_equal(count(duckdb.sql("select * from shown"), 2), expected)


def test_all_levels_have_a_chance_to_be_kept():
    """A bound that kept the lowest levels would empty the others: every cell keeps its share of 2,000 units.

    Rows are uniform over six cells: 2,000 / 6 = 333 with standard deviation 16.7; five of them, false alarm below 1e-5.
    """
    assert np.abs(count(records(n=24_000, units=2_000), 1) - 2_000 / 6).max() < 5 * 16.7


def test_sensitivities_grow_with_the_bound_and_the_release_says_what_it_protects(tmp_path):
    frame = records()
    (table,) = marginals(frame, [["age", "sex"]], domain=DOMAIN, unit="person", max_rows_per_unit=3)
    how = {"epsilon": 1.0, "adjacency": "add-remove", "total_share": 0.2, "rng": np.random.default_rng(1)}
    one = release_tables([table], **how)
    three = release_tables([table], protected_unit="person", max_rows_per_unit=3, **how)
    assert (one.protects, three.protects) == (
        "one row", "one unit of column 'person' (at most 3 of its rows counted)",
    )  # fmt: skip
    assert three.tables[0].noise.scale == pytest.approx(3 * one.tables[0].noise.scale)
    assert three.n.noise.scale == pytest.approx(3 * one.n.noise.scale)
    assert three.n.sensitivity == 3 and three.epsilon == pytest.approx(1.0)
    read = read_release(three.write(tmp_path / "release.json"))
    assert read.digest == three.digest and read.protects == three.protects
    # A reader that lowers the bound would claim a smaller sensitivity is enough; one that raises it is refused.
    body = json.loads((tmp_path / "release.json").read_text())
    assert (
        "max_rows_per_unit" in json.dumps(body)
        and "max_rows_per_unit" not in one.write(tmp_path / "o.json").read_text()
    )
    with pytest.raises(InputError, match="sensitivity of table age x sex must be at least 4"):
        Release(three.domain, three.tables, "add-remove", three.n, "simulation", "record", "person", None, 4)
    gaussian = release_tables([table], protected_unit="person", max_rows_per_unit=3, rho=0.1, noise="discrete-gaussian",
                              adjacency="add-remove", total_share=0.2, rng=np.random.default_rng(1))  # fmt: skip
    assert gaussian.rho == pytest.approx(0.1) and gaussian.tables[0].sensitivity == 3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"unit": "nobody"}, MissingColumnError, "column 'nobody' is not in the data"),
        ({"unit": "age"}, InputError, "the unit 'age' is also an attribute"),
    ],
)
def test_a_unit_that_cannot_be_one_is_refused(change, error, message):
    with pytest.raises(error, match=message):
        marginals(records(), [["age", "sex"]], domain=DOMAIN, **change)


def test_a_row_without_a_unit_is_refused():
    frame = records().with_columns(pl.when(pl.int_range(pl.len()) == 7).then(None).otherwise("person").alias("person"))
    with pytest.raises(InputError, match="'person', the unit, holds a missing value"):
        count(frame, 1)


def test_under_replace_one_a_unit_has_one_row():
    (table,) = marginals(records(), [["age"]], domain=DOMAIN, unit="person")
    release = release_tables([table], epsilon=1.0, protected_unit="person", rng=np.random.default_rng(1))
    assert release.n == 60 and release.tables[0].sensitivity == 2
    with pytest.raises(InputError, match="a unit with up to 2 rows changes it"):
        release_tables([table], epsilon=1.0, protected_unit="person", max_rows_per_unit=2)
