"""Counting partitions: claims, units, refusals, and the sensitivity that the noise relies on."""

import warnings

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.errors import InputError, MissingColumnError, UnreadableDataError
from dpbayes.verifier import count_partitions, count_statistic
from dpbayes.verifier.claim import estimate_partitions
from dpbayes.verifier.formulas import design
from dpbayes.verifier.partition import assign_partitions, unit_codes

LEVELS = ["farm", "city", "coast"]
POSITIVE = {"threshold": 0.0, "direction": ">"}


def mean_of(column):
    return lambda part: part[column].mean()


def people(n_persons=300, n_years=4, seed=0):
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(n_persons), n_years)
    n = person.size
    educ = np.repeat(rng.integers(8, 20, n_persons), n_years).astype(float)
    hours = rng.uniform(10, 60, n)
    place = np.repeat(rng.integers(0, 3, n_persons), n_years)
    wage = 5 + 0.6 * educ + 2.0 * np.log(hours) + place + np.repeat(rng.normal(size=n_persons), n_years)
    return pl.DataFrame(
        {
            "person": person,
            "year": np.tile(np.arange(n_years) + 2000, n_persons),
            "educ": educ,
            "hours": hours,
            "place": pl.Series([LEVELS[i] for i in place], dtype=pl.Enum(LEVELS)),
            "union": rng.random(n) < 0.3,
            "wage": wage + rng.normal(size=n),
            "jobs": rng.poisson(1.0 + 0.05 * educ),
        }
    )


FORMULA = "wage ~ educ + np.log(hours) + place + union"


@pytest.mark.parametrize("kind", ["polars", "pandas", "lazy", "pyarrow"])
def test_estimates_are_statsmodels_on_the_same_rows(kind):
    frame = people()
    given_frame = {
        "polars": frame,
        "lazy": frame.lazy(),
        "pandas": frame.to_pandas().astype({"place": pd.CategoricalDtype(LEVELS, ordered=True)}),
        "pyarrow": frame.with_columns(pl.col("place").cast(pl.String)).to_arrow(),
    }[kind]
    levels = {"place": LEVELS} if kind == "pyarrow" else None
    seed, m = 5, 6
    estimates = estimate_partitions(
        given_frame,
        formula=FORMULA,
        coefficient="place[T.coast]",
        n_partitions=m,
        unit="person",
        levels=levels,
        random_state=seed,
    )
    codes, n_units = unit_codes(frame["person"].to_numpy())
    partition = assign_partitions(n_units, m, random_state=seed)[codes]
    data = frame.to_pandas().astype({"place": pd.CategoricalDtype(LEVELS), "union": float})
    for part, estimate in enumerate(estimates):
        expected = smf.ols(FORMULA, data[partition == part]).fit()
        assert estimate.coefficient == pytest.approx(expected.params["place[T.coast]"], rel=1e-10)
        assert estimate.p_value == pytest.approx(expected.pvalues["place[T.coast]"], rel=1e-7)


@pytest.mark.parametrize("direction", ["<=", ">", "<", ">="])
def test_counts_are_the_verdicts_of_the_estimates(direction):
    frame = people()
    asked = {"formula": FORMULA, "coefficient": "educ", "n_partitions": 25, "unit": "person", "random_state": 9}
    values = [e.coefficient for e in estimate_partitions(frame, **asked)]
    threshold = float(np.median(values))
    counts = count_partitions(frame, threshold=threshold, direction=direction, **asked)
    above, ties = sum(v > threshold for v in values), sum(v == threshold for v in values)
    expected = {">": above, ">=": above + ties, "<=": 25 - above, "<": 25 - above - ties}[direction]
    assert (counts.beyond, counts.not_beyond, counts.not_computed) == (expected, 25 - expected, 0)


def test_significance_counts_p_values():
    frame = people()
    asked = {"formula": FORMULA, "coefficient": "union", "n_partitions": 20, "unit": "person", "random_state": 2}
    estimates = estimate_partitions(frame, **asked)
    two_sided = count_partitions(frame, significant_at=0.3, **asked)
    assert two_sided.beyond == sum(e.p_value < 0.3 for e in estimates)
    upper = count_partitions(frame, significant_at=0.15, direction=">", **asked)
    lower = count_partitions(frame, significant_at=0.15, direction="<", **asked)
    assert upper.beyond + lower.beyond == two_sided.beyond
    assert 0 < upper.beyond < 20


def test_other_families_and_fixed_effects_run():
    frame = people()
    common = {"direction": ">", "n_partitions": 10, "unit": "person", "random_state": 1}
    poisson = count_partitions(
        frame, formula="jobs ~ educ", coefficient="educ", threshold=0, family="poisson", **common
    )
    logistic = count_partitions(
        frame, formula="union ~ educ", coefficient="educ", threshold=0, family="logistic", **common
    )
    within = count_partitions(
        frame,
        formula="wage ~ np.log(hours)",
        coefficient="np.log(hours)",
        threshold=1,
        absorb=["person", "year"],
        **common,
    )
    assert poisson.n_partitions == logistic.n_partitions == 10
    assert poisson.not_computed == logistic.not_computed == 0
    assert (within.beyond, within.not_computed) == (10, 0)
    # Education does not vary within a person.
    constant = count_partitions(
        frame, formula="wage ~ educ + hours", coefficient="educ", threshold=1, absorb="person", **common
    )
    assert constant.not_computed == 10


def test_a_missing_level_fails_its_partition_only():
    frame = people(n_persons=12).with_columns(
        place=pl.when(pl.col("person") == 3).then(pl.lit("coast")).otherwise(pl.lit("farm")).cast(pl.Enum(LEVELS))
    )
    estimates = estimate_partitions(
        frame, formula="wage ~ educ + C(place)", coefficient="educ", n_partitions=3, unit="person", random_state=1
    )
    # "city" occurs nowhere, so no partition can be fitted: a level is declared, not seen.
    assert estimates == [None] * 3
    two = frame.with_columns(place=pl.col("place").cast(pl.String))
    estimates = estimate_partitions(
        two,
        formula="wage ~ educ + place",
        coefficient="educ",
        n_partitions=3,
        unit="person",
        levels={"place": ["farm", "coast"]},
        random_state=1,
    )
    assert sum(e is None for e in estimates) == 2


def test_all_rows_of_a_unit_stay_together():
    seen = []

    def collects(part):
        seen.append(set(part["person"].to_list()))
        assert part.height == 4 * len(seen[-1])
        return 1.0

    counts = count_statistic(people(), collects, threshold=0, direction=">", n_partitions=7, unit="person")
    assert counts.beyond == 7
    assert len(set.union(*seen)) == sum(map(len, seen)) == 300
    assert {len(units) for units in seen} == {42, 43}


def test_more_partitions_than_units():
    # Under add-remove the number of units is confidential, so empty partitions are an outcome; a balanced assignment
    # serves replace-one only, where the number is public.
    asked = {"formula": "wage ~ educ", "coefficient": "educ", "threshold": 0, "direction": ">", "unit": "person"}
    counts = count_partitions(people(n_persons=3), **asked, n_partitions=50, assignment="independent")
    assert counts.n_partitions == 50
    assert counts.not_computed >= 47
    with pytest.raises(InputError, match="4 partitions are more than the 3 units"):
        count_partitions(people(n_persons=3), **asked, n_partitions=4)
    assert count_partitions(people(n_persons=3), **asked, n_partitions=3).n_partitions == 3


def test_counts_say_which_unit_they_protect():
    # Twenty rows a person: one person exchanged moves one outcome by persons, and several by rows.
    def frame(low):
        person = np.repeat(np.arange(200), 20)
        return pl.DataFrame({"person": person, "pay": np.where(person == 0, low, 0.0)})

    asked = {"threshold": 1.0, "direction": "<=", "n_partitions": 50, "random_state": 3}
    changes = {}
    for unit in ("person", None):
        one, other = (count_statistic(frame(low), mean_of("pay"), **asked, unit=unit) for low in (0.0, 1e9))
        assert one.unit == other.unit == unit
        changes[unit] = one.beyond - other.beyond
    assert changes["person"] == 1
    assert changes[None] > 5
    regression = {"formula": "wage ~ educ", "coefficient": "educ", "n_partitions": 2, "unit": "person"}
    assert count_partitions(people(20), threshold=0, direction=">", **regression).unit == "person"
    assert count_partitions(people(20), significant_at=0.1, **regression).unit == "person"


def test_a_statistic_that_fails_counts_as_not_computed():
    outcomes = iter([1.0, float("nan"), "oops", None, float("inf"), -1.0])

    def moody(part):
        value = next(outcomes)
        if value == "oops":
            raise RuntimeError("the data say so")
        return value

    counts = count_statistic(people(), moody, threshold=0, direction=">", n_partitions=6)
    assert (counts.beyond, counts.not_beyond, counts.not_computed) == (1, 1, 4)


def test_assignments_do_not_follow_the_data_and_differ_each_time():
    one, other = assign_partitions(1000, 10), assign_partitions(1000, 10)
    assert (one != other).mean() > 0.5
    assert np.bincount(one).tolist() == [100] * 10
    # Independent assignment: sizes vary as a multinomial. Chi-square with 9 degrees of freedom below its 1e-6 and
    # 1 - 1e-6 quantiles (false alarm 2e-6).
    sizes = np.bincount(assign_partitions(10_000, 10, assignment="independent"), minlength=10)
    assert 0.1 < ((sizes - 1000) ** 2 / 1000).sum() < 47


def test_balanced_sizes_differ_by_one_and_no_partition_is_favoured():
    rng = np.random.default_rng(4)
    larger = np.zeros(4)
    for _ in range(2000):
        sizes = np.bincount(assign_partitions(9, 4, random_state=rng), minlength=4)
        assert sorted(sizes) == [2, 2, 2, 3]
        larger[sizes.argmax()] += 1
    # Binomial(2000, 1/4): 5 standard deviations, false alarm 2e-6.
    assert np.abs(larger - 500).max() < 5 * np.sqrt(2000 * 3 / 16)


EXTREME = st.sampled_from([0.0, 1.0, -5.0, 1e300, float("nan"), float("inf"), 1e-300])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 19), st.lists(EXTREME, min_size=9, max_size=9), st.sampled_from(["ols", "poisson", "absorb"]))
def test_one_unit_moves_at_most_one_partition(replaced, values, model):
    # White box: with the assignment held fixed, replacing all of one unit's data by anything changes one outcome.
    frame = people(n_persons=20, n_years=3, seed=3)
    mine = np.flatnonzero(frame["person"].to_numpy() == replaced)
    other = frame.to_pandas().astype({"place": pd.CategoricalDtype(LEVELS, ordered=True), "jobs": float})
    other.loc[mine, "hours"] = values[:3]
    other.loc[mine, "wage"] = values[3:6]
    other.loc[mine, "jobs"] = values[6:]
    other.loc[mine, "place"] = "coast"
    asked = {
        "ols": {"formula": "wage ~ hours + place", "coefficient": "hours"},
        "poisson": {"formula": "jobs ~ hours", "coefficient": "hours", "family": "poisson"},
        "absorb": {"formula": "wage ~ hours", "coefficient": "hours", "absorb": "year"},
    }[model]
    asked |= {"n_partitions": 4, "unit": "person", "random_state": 8}
    before, after = estimate_partitions(frame, **asked), estimate_partitions(other, **asked)
    changed = [a != b and not _same(a, b) for a, b in zip(before, after, strict=True)]
    assert sum(changed) <= 1


def _same(a, b):
    return a is not None and b is not None and np.allclose(a, b, rtol=1e-9, equal_nan=True)


@pytest.mark.parametrize(
    "formula",
    [
        "wage ~ center(educ)",
        "wage ~ scale(educ)",
        "wage ~ poly(educ, 2)",
        "wage ~ bs(educ, df=4)",
        "wage ~ educ.mean()",
        "wage ~ np.mean(educ)",
        "wage ~ np.random.normal(educ)",
        "wage ~ __import__('os').getcwd()",
        "wage ~ lag(educ)",
        "wage ~ C(place, contr.sum)",
        "wage ~ [educ][0]",
        "wage ~ I((lambda: educ)())",
    ],
)
def test_formulas_that_look_beyond_a_row_are_refused(formula):
    with pytest.raises(InputError, match=r"beyond one row|does not parse"):
        estimate_partitions(people(20), formula=formula, coefficient="educ", n_partitions=2)


def test_missing_values_drop_their_row_and_undeclared_levels_are_refused():
    frame = people(60)
    holed = frame.with_columns(educ=pl.when(pl.col("year") == 2001).then(None).otherwise(pl.col("educ")))
    asked = {"formula": "wage ~ educ", "coefficient": "educ", "n_partitions": 3, "unit": "person", "random_state": 0}
    full = estimate_partitions(frame.filter(pl.col("year") != 2001), **asked)
    assert [e.coefficient for e in estimate_partitions(holed, **asked)] == [
        pytest.approx(e.coefficient, rel=1e-12) for e in full
    ]
    text = frame.with_columns(place=pl.col("place").cast(pl.String))
    with pytest.raises(InputError, match="declared levels"):
        estimate_partitions(text, **asked | {"formula": "wage ~ educ + place"})
    with pytest.raises(InputError, match="declared levels"):
        estimate_partitions(frame, **asked | {"formula": "wage ~ educ + C(year)"})
    by_year = estimate_partitions(
        frame, **asked | {"formula": "wage ~ educ + C(year)"}, levels={"year": [2000, 2001, 2002, 2003]}
    )
    assert all(e is not None for e in by_year)


def test_no_complete_row_is_an_outcome_and_no_error():
    # An error would tell a data set without a complete row from its neighbour with one.
    frame = people(6).with_columns(educ=pl.lit(None, dtype=pl.Float64))
    asked = {"formula": "wage ~ educ + place + union", "n_partitions": 4, "unit": "person", "random_state": 1}
    counts = count_partitions(frame, coefficient="educ", threshold=0, direction=">", **asked)
    assert (counts.beyond, counts.not_beyond, counts.not_computed) == (0, 0, 4)
    with pytest.raises(InputError, match="not in the model"):
        count_partitions(frame, coefficient="place", threshold=0, direction=">", **asked)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"formula": "wage ~ nothing"}, MissingColumnError, "nothing"),
        ({"unit": "nobody"}, MissingColumnError, "nobody"),
        ({"coefficient": "place"}, InputError, "place\\[T.city\\]"),
        ({"formula": "wage"}, InputError, "does not parse"),
        ({"formula": "wage ~ educ +"}, InputError, "does not parse"),
        ({"formula": "place ~ educ"}, InputError, "one numeric column"),
        ({"n_partitions": 0}, InputError, "from 1 to"),
        ({"threshold": float("nan")}, InputError, "threshold"),
        ({"direction": "above"}, InputError, "direction"),
        ({"family": "gamma"}, InputError, "family"),
        ({"family": "poisson", "absorb": "year"}, InputError, "least squares only"),
        ({"assignment": "alphabetical"}, InputError, "assignment"),
        ({"threshold": "0.5"}, InputError, "threshold"),
        ({"threshold": True}, InputError, "threshold"),
        ({"formula": "wage ~ educ | hours"}, InputError, "one left and one right side"),
        ({"absorb": "nothing"}, MissingColumnError, "nothing"),
    ],
)
def test_bad_input(change, error, message):
    asked = {
        "formula": FORMULA,
        "coefficient": "educ",
        "threshold": 0.5,
        "direction": ">",
        "n_partitions": 5,
        "unit": "person",
    }
    with pytest.raises(error, match=message):
        count_partitions(people(20), **asked | change)


def test_nullable_columns_of_pandas_are_missing_values_like_others():
    frame = people(40)
    hole = pl.col("year") == 2001
    nullable = frame.to_pandas().astype({"union": "boolean", "place": "string"})
    nullable.loc[frame.select(hole)["year"].to_numpy(), ["union", "place"]] = pd.NA
    kept = frame.filter(~hole)
    asked = {"formula": "wage ~ union", "coefficient": "union", "n_partitions": 3, "unit": "person", "random_state": 0}
    found = estimate_partitions(nullable, **asked, absorb="place")
    assert all(_same(a, b) for a, b in zip(found, estimate_partitions(kept, **asked, absorb="place"), strict=True))
    share = {"threshold": 0.3, "direction": ">", "n_partitions": 3, "unit": "person", "random_state": 0}
    union = mean_of("union")
    assert count_statistic(nullable, union, **share) == count_statistic(kept, union, **share)
    with pytest.raises(InputError, match="name its unit"):
        count_statistic(nullable, union, **share | {"unit": "place"})


def test_missing_units_and_empty_data_are_refused():
    frame = people(20)
    for dtype in (pl.Int64, pl.String):
        holed = frame.with_columns(
            person=pl.when(pl.col("year") == 2001).then(None).otherwise(pl.col("person")).cast(dtype)
        )
        with pytest.raises(InputError, match="name its unit"):
            count_statistic(holed, mean_of("wage"), **POSITIVE, n_partitions=2, unit="person")
    with pytest.raises(InputError, match="no rows"):
        count_statistic(frame.head(0), mean_of("wage"), **POSITIVE, n_partitions=2)


def test_means_and_totals_within_a_tolerance():
    # The documentation's forms of a claim about a mean and about a total.
    frame = pl.DataFrame({"person": np.arange(40), "pay": np.r_[np.full(20, 1.0), np.full(20, 3.0)]})
    asked = {"direction": "<=", "n_partitions": 8, "unit": "person"}
    assert count_statistic(frame, lambda part: abs(part["pay"].mean() - 2.0), threshold=2.0, **asked).beyond == 8
    alike = frame.with_columns(pay=pl.lit(1.5))
    totals = count_statistic(alike, lambda part: abs(8 * part["pay"].sum() - 60.0), threshold=1e-9, **asked)
    assert (totals.beyond, totals.not_beyond) == (8, 0)
    assert count_statistic(frame, lambda part: abs(part["pay"].mean() - 9.0), threshold=1.0, **asked).not_beyond == 8


def test_numbers_of_numpy_are_numbers():
    frame = people(20)
    asked = {"formula": "wage ~ educ", "coefficient": "educ", "n_partitions": 4, "unit": "person", "random_state": 1}
    found = {
        repr(count_partitions(frame, threshold=zero, direction=">", **asked).beyond)
        for zero in (0, 0.0, np.int64(0), np.float32(0))
    }
    assert len(found) == 1


@pytest.mark.parametrize("change", [{"threshold": "3"}, {"threshold": None}, {"threshold": float("inf")}])
def test_claims_that_are_no_numbers(change):
    with pytest.raises(InputError, match="threshold must be a finite number"):
        count_statistic(people(20), mean_of("wage"), **POSITIVE | change, n_partitions=2)
    with pytest.raises(InputError, match="significant_at"):
        count_partitions(people(20), formula="wage ~ educ", coefficient="educ", significant_at="0.1", n_partitions=2)


@pytest.mark.parametrize("dtype", [pl.Int64, pl.String, pl.Float64])
def test_a_row_without_its_group_is_left_out(dtype):
    frame = people(40).with_columns(group=(pl.col("person") % 5).cast(dtype))
    hole = pl.when(pl.col("year") == 2001).then(None).otherwise(pl.col("group"))
    asked = {"formula": "wage ~ hours", "coefficient": "hours", "n_partitions": 3, "unit": "person", "random_state": 0}
    found = estimate_partitions(frame.with_columns(group=hole), **asked, absorb="group")
    expected = estimate_partitions(frame.filter(pl.col("year") != 2001), **asked, absorb="group")
    assert all(_same(a, b) for a, b in zip(found, expected, strict=True))
    nowhere = frame.with_columns(group=pl.lit(None, dtype=dtype))
    assert estimate_partitions(nowhere, **asked, absorb="group") == [None] * 3


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), 1.7e308])
def test_no_warning_tells_about_a_partition(value, recwarn):
    # Two infinities of opposite signs, or a sum beyond the doubles, warn in NumPy; which frame holds them is a secret.
    frame = people(20).with_columns(wage=pl.when(pl.col("person") < 10).then(value).otherwise(-value))
    asked = {"n_partitions": 2, "unit": "person"}
    warnings.simplefilter("always")
    for statistic in (lambda part: part["wage"].to_numpy().std(), lambda part: np.mean([])):
        count_statistic(frame, statistic, threshold=0.0, direction=">", **asked)
    count_partitions(
        frame, formula="wage ~ I(wage * wage)", coefficient="I(wage * wage)", threshold=0, direction=">", **asked
    )
    assert not recwarn.list


def test_trends_by_sign():
    # The documentation's form of a claim about a trend: the least slope, signed as claimed, is positive.
    frame = people(60).with_columns(wage=10 + 2.0 * (pl.col("year") == 2001) - 1.0 * (pl.col("year") == 2003))

    def least(signs, times=(2000, 2001, 2003)):
        def statistic(part):
            means = [part.filter(pl.col("year") == year)["wage"].mean() for year in times]
            return min(np.array(signs) * np.diff(means) / np.diff(times))

        return statistic

    asked = POSITIVE | {"n_partitions": 6, "unit": "person"}
    assert count_statistic(frame, least((1, -1)), **asked).beyond == 6
    assert count_statistic(frame, least((1, 1)), **asked).not_beyond == 6
    assert count_statistic(frame, least((1, -1), (2000, 2001, 2050)), **asked).not_computed == 6


def test_records_that_do_not_read_and_names_of_columns_are_not_shown():
    frame = pl.LazyFrame({"SECRET": ["1", "SECRET"]})
    with pytest.raises(UnreadableDataError) as error:
        count_statistic(frame.cast(pl.Int64), mean_of("x"), **POSITIVE, n_partitions=2)
    assert "SECRET" not in str(error.value) and error.value.__suppress_context__
    with pytest.raises(MissingColumnError, match="'x' is not in the data") as missing:
        count_statistic(frame, mean_of("x"), **POSITIVE, n_partitions=2, unit="x")
    assert "SECRET" not in str(missing.value)


def test_counts_do_not_show_themselves():
    counts = count_statistic(people(20), mean_of("wage"), **POSITIVE, n_partitions=13)
    assert "13" in repr(counts)
    assert "beyond" not in repr(counts)


def test_a_design_does_not_show_its_rows():
    found = design(nw.from_native(pl.DataFrame({"y": [7.25], "x": [3.5]})), "y ~ x", levels=None)
    assert found.response.tolist() == [7.25]
    assert "columns" in repr(found)
    assert not any(value in repr(found) for value in ("7.25", "3.5"))
