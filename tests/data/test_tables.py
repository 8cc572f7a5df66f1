import itertools
import time
import traceback

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dpbayes.data import Domain, Marginal, check_consistent, marginals
from dpbayes.errors import InputError, MissingColumnError, UnreadableDataError

DOMAIN = Domain.from_levels({"age": (0, 1, 2), "sex": ("f", "m"), "vote": (0, 1)})


def rows(seed: int = 0, n: int = 500) -> dict[str, list]:
    rng = np.random.default_rng(seed)
    return {attribute.name: [attribute.levels[i] for i in rng.integers(attribute.size, size=n)] for attribute in DOMAIN}


def by_hand(data: dict[str, list], names: list[str]) -> np.ndarray:
    counts = np.zeros(DOMAIN.project(names).shape, dtype=int)
    for record in zip(*(data[name] for name in names), strict=True):
        counts[tuple(DOMAIN[name].levels.index(value) for name, value in zip(names, record, strict=True))] += 1
    return counts


@pytest.mark.parametrize("make", [pl.DataFrame, pl.LazyFrame, pd.DataFrame, pa.table])
def test_every_kind_of_frame_gives_the_counts_made_by_hand(make):
    data = rows()
    sets = [["age"], ["vote", "age"], ["sex", "age", "vote"]]
    for names, table in zip(sets, marginals(make(data), sets, domain=DOMAIN), strict=True):
        assert table.attributes == tuple(names)
        np.testing.assert_array_equal(table.counts, by_hand(data, names))


def test_duckdb_counts_where_the_rows_are():
    data = rows(1)
    frame = pa.table(data)  # noqa: F841 - DuckDB finds it by its name
    (table,) = marginals(duckdb.sql("select * from frame"), [["sex", "age"]], domain=DOMAIN)
    np.testing.assert_array_equal(table.counts, by_hand(data, ["sex", "age"]))


def test_a_type_that_declares_its_levels_needs_no_domain():
    frame = pl.DataFrame({"sex": ["f", "f", "m"]}, schema={"sex": pl.Enum(["f", "m", "x"])})
    assert marginals(frame, [["sex"]])[0].counts.tolist() == [2, 1, 0]
    assert marginals(pl.DataFrame({"vote": [True, False, True]}), [["vote"]])[0].counts.tolist() == [1, 2]


def test_levels_are_never_read_off_confidential_rows():
    with pytest.raises(InputError, match="does not declare its levels; pass domain="):
        marginals(pl.DataFrame({"sex": ["f", "m"]}), [["sex"]])


def test_a_missing_column_is_named():
    with pytest.raises(MissingColumnError, match=r"^column 'vote' is not in the data; correct it, or"):
        marginals(pl.DataFrame({"age": [0], "sex": ["f"]}), [["age", "vote"]], domain=DOMAIN)


def test_a_domain_is_not_declared_by_a_column_that_is_not_there():
    with pytest.raises(MissingColumnError, match="'vote' is not in the data"):
        marginals(pl.DataFrame({"age": [0]}), [["vote"]])


def test_the_first_record_of_a_file_without_a_header_is_not_shown(tmp_path):
    path = tmp_path / "records.csv"
    path.write_text("SECRET-4711,f\n0,m\n")
    with pytest.raises(MissingColumnError, match="'age' is not in the data") as caught:
        marginals(pl.scan_csv(path), [["age"]], domain=DOMAIN)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("value", [7, None])
def test_a_value_outside_the_domain_is_refused_and_not_shown(value):
    with pytest.raises(InputError, match="missing value or a level outside the domain") as error:
        marginals(pl.DataFrame({"age": [0, value]}), [["age"]], domain=DOMAIN)
    assert "7" not in str(error.value)


SECRET = "SECRET-4711"


def lazy_csv(path):
    path.write_text("age,sex\n" + "1,f\n" * 500 + f"{SECRET},m\n")
    return pl.scan_csv(path)


def lazy_cast(path):
    return pl.LazyFrame({"age": ["1", SECRET], "sex": ["f", "m"]}).with_columns(pl.col("age").cast(pl.Int64))


def lazy_parquet(path):
    path.write_text(SECRET * 9)
    return pl.scan_parquet(path)


def lazy_duckdb(path):
    return duckdb.sql(
        f"select cast(age as integer) as age, sex from (values ('1', 'f'), ('{SECRET}', 'm')) t(age, sex)"
    )


@pytest.mark.parametrize("make", [lazy_csv, lazy_cast, lazy_parquet, lazy_duckdb])
def test_what_an_engine_cannot_read_is_not_shown(tmp_path, make):
    with pytest.raises(UnreadableDataError, match="correct the source") as error:
        marginals(make(tmp_path / "records"), [["age", "sex"]], domain=DOMAIN)
    shown = "".join(traceback.format_exception(error.value))
    assert SECRET not in shown and "column's type" in shown


def test_projection_commutes():
    table = Marginal(DOMAIN, np.arange(12).reshape(3, 2, 2))
    for names in itertools.permutations(DOMAIN.names, 2):
        projected = table.project(names)
        assert projected.attributes == names
        for name in names:
            np.testing.assert_array_equal(projected.project([name]).counts, table.project([name]).counts)
    with pytest.raises(InputError, match="twice"):
        table.project(["age", "age"])


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([[1, 2], [3, -1]], "negative count"),
        ([[1, 2], [3, 0.5]], "not a whole number"),
        ([[1, 2], [3, np.nan]], "not a whole number"),
        ([1, 2, 3, 4], "has shape"),
        ([["a", "b"], ["c", "d"]], "not a whole number"),
    ],
)
def test_a_table_refuses_what_is_no_count(counts, message):
    with pytest.raises(InputError, match=message):
        Marginal(DOMAIN.project(["sex", "vote"]), counts)


def test_counts_cannot_be_changed_behind_the_tables_back():
    source = np.ones((2, 2), dtype=np.int64)
    table = Marginal(DOMAIN.project(["sex", "vote"]), source)
    source[0, 0] = 100
    assert table.total == 4
    with pytest.raises(ValueError, match="read-only"):
        table.counts[0, 0] = 5


def test_tables_that_disagree_are_refused_without_showing_counts():
    first = Marginal(DOMAIN.project(["sex", "vote"]), [[11, 22], [33, 44]])
    with pytest.raises(InputError, match="number of records") as error:
        check_consistent([first, Marginal(DOMAIN.project(["vote"]), [44, 67])])
    assert not any(number in str(error.value) for number in ("110", "111", "44", "67"))
    with pytest.raises(InputError, match="common margin vote"):
        check_consistent([first, Marginal(DOMAIN.project(["vote"]), [45, 65])])
    with pytest.raises(InputError, match="tables sex and vote disagree on the number of records"):
        check_consistent([first.project(["sex"]), Marginal(DOMAIN.project(["vote"]), [44, 67])])
    other = Domain.from_levels({"vote": ("no", "yes")})
    with pytest.raises(InputError, match="different levels"):
        check_consistent([first, Marginal(other, [44, 66])])
    with pytest.raises(InputError, match="no tables"):
        check_consistent([])


def test_thousands_of_tables_are_held_against_each_other_in_seconds():
    names = [f"a{i}" for i in range(50)]
    domain = Domain.from_levels(dict.fromkeys(names, (0, 1)))
    pairs = [Marginal(domain.project(pair), [[3, 4], [5, 6]]) for pair in itertools.combinations(names[:2], 2)] * 1000
    pairs += [Marginal(domain.project(pair), np.full((2, 2), 4)) for pair in itertools.combinations(names[2:], 2)]
    wrong = Marginal(domain.project(["a9", "a8"]), [[5, 3], [3, 7]])
    started = time.process_time()
    with pytest.raises(InputError, match="number of records"):
        check_consistent(pairs)
    assert check_consistent(pairs[1000:]) == 16
    assert check_consistent(pairs[:1000]) == 18
    assert time.process_time() - started < 5  # with a margin for each pair of tables it is twenty
    with pytest.raises(InputError, match=r"tables .* and a9 x a8 disagree on the number of records"):
        check_consistent([*pairs[1000:], wrong])
    wrong = Marginal(domain.project(["a9", "a8"]), [[5, 3], [3, 5]])
    with pytest.raises(InputError, match="tables a8 x a9 and a9 x a8 disagree on their common margin a8 x a9"):
        check_consistent([*pairs[1000:], wrong])


def test_a_table_does_not_show_its_counts():
    table = Marginal(Domain.from_levels({"hiv": (0, 1)}), [997, 3])
    for shown in (repr(table), str(table), repr([table, {"table": (table,)}]), f"{table}"):
        assert "hiv" in shown
        assert "(2,)" in shown
        assert not any(number in shown for number in ("997", "3", "1000"))
