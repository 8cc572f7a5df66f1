"""Formulas look at one row at a time: what is allowed leaves other rows alone, and the rest is refused."""

import time

import narwhals as nw
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.errors import InputError, MissingColumnError
from dpbayes.verifier import count_partitions
from dpbayes.verifier.formulas import check_coefficient_of, column_values, design, formula_columns, model_columns

LEVELS = ["a", "b", "c"]
TERMS = [
    "x",
    "x + z",
    "x - 1",
    "0 + g",
    "x * g",
    "x:g + z",
    "(x + z + g) ** 2",
    "x / g",
    "g %in% u",
    "2:x",
    "C(k)",
    "C(u) + C(g)",
    "np.log(x) + exp(z)",
    "np.where(x > z, x, -z)",
    "np.maximum(x, z) + np.minimum(x, 1)",
    "I(x // z) + I(x % 3) + I(-x ** 2)",
    "I(+x / (z - 1))",
    "I(x == z) + I(x != 2) + I(u >= 1)",
    "{x + z}",
    "np.sqrt(np.abs(`two words`))",
    "`two words` + exp",
]


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "y": rng.normal(size=n),
            "x": rng.normal(size=n).round(1),
            "z": rng.integers(0, 4, n),
            "u": rng.random(n) < 0.5,
            "k": rng.integers(0, 3, n),
            "g": pl.Series(rng.choice(LEVELS, n), dtype=pl.Enum(LEVELS)),
            "two words": rng.normal(size=n),
            "exp": rng.normal(size=n),
        }
    )


def design_of(frame, formula):
    return design(nw.from_native(frame), formula, levels={"k": [0, 1, 2]})


VALUES = st.sampled_from([0.0, -1.0, 2.0, 1e300, -1e-300, float("inf"), float("nan"), None])


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TERMS), st.lists(VALUES, min_size=12, max_size=12), st.integers(0, 2**32 - 1))
def test_what_stands_in_other_rows_leaves_a_row_alone(terms, values, seed):
    # Ten rows are one partition; the other ten are exchanged for anything, shuffled, and may all hold one level.
    formula, frame = f"I(y * (x > 0)) ~ {terms}", table(20)
    order = np.random.default_rng(seed).permutation(10)
    others = frame[10:][order].with_columns(
        x=pl.Series(values[:10], dtype=pl.Float64, strict=False),
        exp=pl.Series(values[2:], dtype=pl.Float64, strict=False),
        g=pl.lit("b").cast(pl.Enum(LEVELS)),
        k=pl.lit(None, dtype=pl.Int64),
        u=pl.lit(True),
    )
    one, other = design_of(frame, formula), design_of(pl.concat([frame[:10], others], how="vertical_relaxed"), formula)
    alone = design_of(frame[:10], formula)
    mine = np.flatnonzero(other.rows < 10)
    assert one.columns == other.columns == alone.columns
    for found in (alone, other):
        assert np.array_equal(found.rows[: mine.size], np.arange(10))
        assert np.array_equal(found.matrix[:10], one.matrix[:10], equal_nan=True)
        assert np.array_equal(found.response[:10], one.response[:10], equal_nan=True)


@pytest.mark.parametrize(
    "formula",
    [
        "I(y * (u @ x)) ~ z",
        "np.where(u @ x > 0, y, -y) ~ z",
        "I(y * (1 - 2 * (999 in y))) ~ z",
        "I(y * (999 not in y)) ~ z",
        "I(y * (x is y)) ~ z",
        "I(y * (x is not y)) ~ z",
        "y ~ I(z << 1)",
        "y ~ I(z >> 1)",
        "y ~ I(z & 1)",
        "y ~ I(z ^ 1)",
        "y ~ {z | 1}",
        "y ~ I(~u)",
        "y ~ I(not u)",
        "y ~ I(0 < x < 1)",
        "y ~ I(x > 0 and z > 0)",
        "y ~ I(x if u else z)",
        "y ~ np.log(x, z)",
        "y ~ np.where(x > 0)",
        "y ~ np.where(x > 0, z)",
        "y ~ np.maximum(x)",
        "y ~ np.maximum(x, z, y)",
        "y ~ np.abs(x, where=u)",
        "y ~ np.abs(*x)",
        "y ~ np.add.reduce(x)",
        "y ~ np.maximum.accumulate(x)",
        "y ~ I(np.pi * x)",
        "y ~ log2(x, z)",
        "y ~ I(x, z)",
        "y ~ I()",
        "y ~ I(I)(x)",
        "y ~ I(x[0])",
        "y ~ I(x.T)",
        "y ~ I(x + 'a')",
        "y ~ I(x + 1j)",
        "y ~ I(x * True)",
        "y ~ I([x])",
        "y ~ I((x, z))",
        "y ~ I(x := z)",
        "y ~ I(1 / 0)",
        "y ~ center(x)",
        "y ~ scale(x)",
        "y ~ standardize(x)",
        "y ~ poly(x, 2)",
        "y ~ bs(x, df=4)",
        "y ~ cr(x, df=4)",
        "y ~ cc(x, df=4)",
        "y ~ lag(x)",
        "y ~ hashed(g, levels=2)",
        "y ~ C(g, contr.sum)",
        "y ~ C(g, levels=['a'])",
        "y ~ C(I(x))",
        "y ~ I(C(g))",
        "y ~ I(C(g) + x)",
        "y ~ x.mean()",
        "y ~ np.mean(x)",
    ],
)
def test_what_could_look_beyond_a_row_is_refused(formula):
    with pytest.raises(InputError, match=r"beyond one row|does not parse|without a column"):
        design_of(table(20), formula)


def test_arithmetic_is_that_of_numpy():
    frame = table(30).filter(pl.col("z") > 0)
    x, z, words = (frame[name].to_numpy().astype(float) for name in ("x", "z", "two words"))
    found = design_of(frame, "y ~ I(x // z) + I(x % z) + I(-x ** 2) + np.where(x > z, x, -z) + I(`two words` / z)")
    expected = [np.ones(x.size), x // z, x % z, -(x**2), np.where(x > z, x, -z), words / z]
    assert np.array_equal(found.matrix, np.column_stack(expected))
    assert found.columns[1:3] == ("I(x // z)", "I(x % z)")


def test_a_column_is_a_column_unless_it_is_called():
    frame = table(20)
    found = design_of(frame, "y ~ exp + exp(exp)")
    exp = frame["exp"].to_numpy()
    assert np.allclose(found.matrix, np.column_stack([np.ones(20), exp, np.exp(exp)]), rtol=1e-15)
    named = frame.rename({"x": "np", "z": "C"})
    assert design_of(named, "y ~ np + C + np.abs(np)").columns[1:] == ("np", "C", "np.abs(np)")


def test_a_comparison_gives_one_column_whatever_the_rows():
    frame = table(20).with_columns(x=pl.lit(1.0))
    found = design_of(frame, "y ~ I(x > 0)")
    assert found.columns == ("Intercept", "I(x > 0)")
    assert found.matrix[:, 1].tolist() == [1.0] * 20


def test_numbers_without_a_finite_result_fail_and_do_not_raise():
    frame = table(20)
    assert np.isnan(design_of(frame, "y ~ np.log(-1 - x * x)").matrix[:, 1]).all()
    assert np.isinf(design_of(frame, "y ~ I(x * x + 10 ** 400)").matrix[:, 1]).all()
    with pytest.raises(InputError, match="beyond 1e308"):
        design_of(frame, f"y ~ I(x * 1{'0' * 400})")


@pytest.mark.parametrize(
    ("formula", "error", "message"),
    [
        ("y ~ x | z", InputError, "one left and one right side"),
        ("y | x ~ z", InputError, "one left and one right side"),
        ("~ x", InputError, "one left and one right side"),
        ("y ~ x ~ z", InputError, "does not parse"),
        ("y ~ .", InputError, "does not parse .* full stop .* name them$"),
        ("y + x ~ z", InputError, "one numeric column"),
        ("g ~ x", InputError, "one numeric column"),
        ("y ~ I(g + 1)", InputError, "not numeric"),
        ("y ~ I(nobody + 1)", MissingColumnError, "nobody"),
        ("y ~ np.log(`no body`)", MissingColumnError, "no body"),
        ("y ~ np.log", MissingColumnError, "np.log"),
    ],
)
def test_formulas_with_mistakes(formula, error, message):
    with pytest.raises(error, match=message):
        design_of(table(20), formula)


@pytest.mark.parametrize("levels", [["a", "a"], [], ["a", None], ["a", float("nan")], "abc", [["a"], ["b"]]])
def test_levels_are_different_values(levels):
    with pytest.raises(InputError, match="different values"):
        design(nw.from_native(table(20)), "y ~ g", levels={"g": levels})


@pytest.mark.parametrize("formula", ["y ~ g", "y ~ C(g) + x", "y ~ I(k - 1)"])
@pytest.mark.parametrize("levels", [{"g": ["a", "b"]}, {"g": ["x", "y"]}, {"g": LEVELS, "k": [1, 2]}])
def test_a_value_outside_the_levels_is_refused_by_its_column(formula, levels):
    # Left out, its rows would be gone without a word. No value is shown: the column and what was declared are.
    name = "k" if "k" in levels else "g"
    text = table(20).with_columns(g=pl.col("g").cast(pl.String))
    for frame in (text, text.to_pandas()):
        with pytest.raises(InputError, match=f"column '{name}' holds a value outside its levels") as refusal:
            design(nw.from_native(frame), formula, levels=levels)
        assert "'c'" not in str(refusal.value) or levels["g"] == LEVELS


def test_a_missing_value_leaves_its_row_out_of_a_category():
    frame = table(20).with_columns(g=pl.col("g").cast(pl.String), k=pl.col("k").cast(pl.Float64))
    gaps = frame.with_columns(
        g=pl.when(pl.int_range(20) > 2).then(pl.col("g")), k=pl.when(pl.int_range(20) < 15).then(pl.col("k"))
    )
    for part in (gaps, gaps.to_pandas()):
        found = design(nw.from_native(part), "y ~ g + C(k)", levels={"g": LEVELS, "k": [0, 1, 2]})
        assert found.rows.tolist() == list(range(3, 15))


@pytest.mark.parametrize("wide", [2**70, -(2**70), 2**64, None])
def test_an_integer_beyond_64_bits_is_a_number_as_any_other(wide):
    values = [3, 1, 2**70, None, wide]
    frame = pl.DataFrame({"y": [0.0] * 5, "x": pl.Series(values, dtype=pl.Int128)})
    found = design(nw.from_native(frame), "y ~ x + I(x + 1)", levels=None)
    kept = [float(v) for v in values if v is not None]
    assert found.matrix[:, 1].tolist() == kept
    assert found.matrix[:, 2].tolist() == [v + 1 for v in kept]


def test_a_column_with_levels_may_also_be_calculated_with():
    found = design_of(table(30), "y ~ C(k) + I(k - 1)")
    assert found.columns == ("Intercept", "C(k)[T.1]", "C(k)[T.2]", "I(k - 1)")


def test_one_person_does_not_decide_all_partitions():
    # The product over all rows would have let the last row turn every sign.
    frame = pl.DataFrame({"y": np.ones(200), "x": np.arange(200.0), "u": np.ones(200), "v": [*np.ones(199), -1e6]})
    with pytest.raises(InputError, match="beyond one row"):
        count_partitions(
            frame, formula="I(y * (u @ v)) ~ x", coefficient="x", threshold=0, direction=">", n_partitions=50
        )


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ (a + b + c + d)**10", "expands to 1,048,576 products of terms, and at most 10,000"),
        ("y ~ (a + b + c + d)^10", "expands to 1,048,576 products of terms, and at most 10,000"),
        ("y ~ a**1000000000", "1,000,000,000 products"),
        ("y ~ (a + b)**99", "endlessly many products"),
        ("y ~ ((((a + b)**3)**3)**3)**3", "products of terms"),
        ("y ~ " + "*".join(f"x{i}" for i in range(40)), "products of terms"),
        ("y ~ I(" + "+".join(["x"] * 300) + ")", "more than 100 deep"),
        ("y ~ I(" + "+".join(["x"] * 3000) + ")", "does not parse|100 deep"),
        ("y ~ I(" + "(" * 3000 + "x" + ")" * 3000 + ")", "does not parse"),
    ],
)
def test_formulas_from_outside_are_refused_before_they_are_expanded(formula, message):
    start = time.perf_counter()
    with pytest.raises(InputError, match=message) as caught:
        formula_columns(formula)
    # Expanded, the first takes minutes; the bound is loose for a loaded machine.
    assert time.perf_counter() - start < 10
    assert len(str(caught.value)) < 1000


def test_interactions_that_people_write_are_laid_out():
    assert formula_columns("y ~ (a + b + c + d)**4 + a:b:c + " + " + ".join(f"x{i}" for i in range(300)))


def test_a_matrix_that_cannot_be_held_is_refused_by_arithmetic():
    frame = nw.from_native(pl.DataFrame({"y": [1.0], "a": [0], "b": [0], "c": [0]}), eager_only=True)
    levels = {name: list(range(2000)) for name in "abc"}
    with pytest.raises(InputError, match=r"8,000,\d\d\d,\d\d\d columns"):
        design(frame, "y ~ a:b:c", levels=levels)


def test_levels_are_pooled_by_a_public_rule():
    frame = pl.DataFrame({"y": [1.0, 2, 4, 3, 9], "sector": ["A", "B", "C", "A", None]})
    pooled = {"sector": {"farm": ["A"], "other": ["B", "C"]}}
    found = design(nw.from_native(frame, eager_only=True), "y ~ sector", levels=pooled)
    assert found.columns == ("Intercept", "sector[T.other]")
    assert found.matrix[:, 1].tolist() == [0, 1, 1, 0]
    assert model_columns("y ~ sector + x", pooled) == ("Intercept", "sector[T.other]", "x")
    assert model_columns("y ~ C(x)", {}) is None
    for wrong in ({"farm": "A"}, {"farm": []}, {"farm": ["A"], "other": ["A"]}):
        with pytest.raises(InputError, match="mapping from pooled"):
            design(nw.from_native(frame, eager_only=True), "y ~ sector", levels={"sector": wrong})


def test_whole_numbers_beyond_doubles_stay_apart_beside_a_missing_one():
    series = pl.Series([2**53, 2**53 + 1, None], dtype=pl.Int64)
    found = column_values(nw.from_native(pl.DataFrame({"firm": series})), "firm")
    assert found.tolist() == [2**53, 2**53 + 1, None]


@pytest.mark.parametrize("levels", [{"k": [0, 1, 2]}, {"k": [0, 1, 2], "g": LEVELS}])
@pytest.mark.parametrize("terms", TERMS)
def test_a_coefficient_of_the_model_is_never_refused_beforehand(terms, levels):
    formula = f"y ~ {terms}"
    for column in design(nw.from_native(table(30)), formula, levels=levels or None).columns:
        check_coefficient_of(formula, column, levels)


@pytest.mark.parametrize(
    ("coefficient", "message"),
    [
        ("`two words`", "it has ['Intercept', 'two words', 'g[T.b]', 'g[T.c]']; backticks stand in formulas alone"),
        ("g", "it has ['Intercept', 'two words', 'g[T.b]', 'g[T.c]']"),
        ("g[T.a]", "coefficient 'g[T.a]' is not in the model"),
        ("z", "coefficient 'z' is not in the model"),
    ],
)
def test_a_coefficient_that_the_formula_does_not_give_is_refused_beforehand(coefficient, message):
    with pytest.raises(InputError) as refused:
        check_coefficient_of("y ~ `two words` + g", coefficient, {"g": LEVELS})
    assert message in str(refused.value)


def test_a_column_by_q_is_refused_with_its_name_in_backticks():
    with pytest.raises(InputError, match=r"names a column by .*; write it in backticks, `two words`, as any name"):
        formula_columns("y ~ Q('two words') + x")
