"""Bad and odd arguments: one clear error of dpbayes each, and odd but valid ones work."""

import numpy as np
import polars as pl
import pytest

from dpbayes._arguments import (
    as_array,
    finite,
    function,
    generator,
    given_trace,
    instance,
    number,
    one_of,
    ordered,
    positive_finite,
    probability_below_one,
    real_numbers,
    shown,
    strictly_between,
    whole_number,
)
from dpbayes.data import Attribute, Domain, Marginal, check_consistent, marginals
from dpbayes.errors import InputError
from dpbayes.privacy import (
    Laplace,
    NoisyTable,
    NoisyTotal,
    Release,
    TwoSidedGeometric,
    gaussian_delta,
    release_tables,
    release_values,
)
from dpbayes.privacy.losses import laplace_loss

HUGE = 10**5000
DOMAIN = Domain.from_levels({"age": ("<18", "18+"), "sex": ("f", "m", "x")})
COUNTS = [[1, 2, 3], [4, 5, 6]]


def release(**changed):
    table = NoisyTable(DOMAIN, COUNTS, TwoSidedGeometric(2.0), 2.0, 1.0)
    values = {"domain": DOMAIN, "tables": (table,), "adjacency": "replace-one", "n": 21, "sampler": "opendp"}
    return Release(**(values | changed))


def test_a_value_that_python_refuses_to_print_is_described():
    with pytest.raises(ValueError, match="digits"):
        repr(HUGE)
    assert shown([HUGE]) == "a value of type list with too many digits to print"
    assert len(shown("x" * 10_000)) < 400


@pytest.mark.parametrize("bad", ["text", {1, 2}, 3, None, np.float64(2), np.array(2)])
def test_one_value_is_no_sequence(bad):
    with pytest.raises(InputError, match="must be a sequence"):
        ordered(bad, "levels", remedy="give a list")


def test_a_sequence_may_be_any_iterable_with_an_order():
    assert ordered((x for x in "ab"), "names", remedy="") == ("a", "b")
    assert ordered(pl.Series(["a", "b"]), "names", remedy="") == ("a", "b")
    assert ordered({"a": 1, "b": 2}, "names", remedy="", kind=str) == ("a", "b")
    with pytest.raises(InputError, match="each of names must be a str, got int"):
        ordered([1], "names", remedy="", kind=str)


@pytest.mark.parametrize("bad", ["1", 1.0, True, 0, 8, None, np.float64(2), [1], pytest.param(HUGE, id="huge")])
def test_a_whole_number_has_bounds_and_a_remedy(bad):
    with pytest.raises(InputError, match=r"^draws must be a whole number from 1 to 7, got .*; ask for fewer$"):
        whole_number(bad, "draws", high=7, remedy="ask for fewer")
    assert [whole_number(value, "draws", high=7) for value in (1, np.uint8(7))] == [1, 7]


@pytest.mark.parametrize("bad", ["A", "", None, 1, ["a"]])
def test_one_of_some_words(bad):
    with pytest.raises(InputError, match=r"^mode must be 'a', 'b' or 'c', got "):
        one_of(bad, ("a", "b", "c"), "mode")
    assert one_of("c", ("a", "b", "c"), "mode") == "c"


@pytest.mark.parametrize("bad", ["1", 1.0, True, -1, [1], pytest.param(-HUGE, id="huge")])
def test_a_seed_is_a_whole_number_of_at_least_zero(bad):
    with pytest.raises(InputError, match="random_state"):
        generator(bad, "random_state")


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (
            lambda: as_array([[1], [2, 3]], "counts"),
            "counts must be one array of numbers, got rows of different lengths",
        ),
        (lambda: function(2, "fit", remedy="it takes a frame"), "fit must be a function, got 2; it takes a frame"),
        (
            lambda: positive_finite(-1, "scale", remedy="double it"),
            "scale must be positive and finite, got -1; double it",
        ),
        (lambda: positive_finite("1", "scale", remedy="drop it"), "scale must be a real number, got '1'; drop it"),
        (lambda: probability_below_one(1, "delta", remedy="less"), "delta must be below 1, got 1; less"),
        (lambda: strictly_between(1.0, "prob", 0, 1), "prob must lie strictly between 0 and 1, got 1.0"),
        (lambda: number([1.0], "epsilon"), "epsilon must be a number, got [1.0]"),
        (lambda: finite(np.inf, "threshold"), "threshold must be a finite number, got inf"),
        (lambda: given_trace("trace.nc"), "trace must be a DataTree, got str; inference.sample makes one"),
    ],
)
def test_a_refusal_says_value_and_remedy(check, message):
    with pytest.raises(InputError) as refused:
        check()
    assert str(refused.value) == message


def test_numbers_become_doubles():
    assert real_numbers(np.float16(0.5), "epsilon").dtype == np.float64
    assert type(number(np.float32(0.5), "epsilon")) is type(finite(3, "threshold")) is float
    assert probability_below_one(1e-6, "delta", remedy="") == 1e-6


def test_a_generator_is_kept_and_large_seeds_are_seeds():
    rng = np.random.default_rng(1)
    assert generator(rng, "seed") is rng
    generator(HUGE, "seed")
    generator(np.int64(3), "seed")


def test_a_refused_kind_shows_no_value():
    with pytest.raises(InputError, match="must be a Domain, got DataFrame") as refused:
        instance(pl.DataFrame({"a": ["SECRET"]}), Domain, "domain", remedy="")
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Laplace(HUGE),
        lambda: gaussian_delta(HUGE, 1.0),
        lambda: gaussian_delta(True, 1.0),
        lambda: release(n=-HUGE),
        lambda: NoisyTotal(3, TwoSidedGeometric(2.0), HUGE, None),
        lambda: release_tables([Marginal(DOMAIN, COUNTS)], epsilon=1.0, shares=3),
        lambda: release_tables([Marginal(DOMAIN, COUNTS)], epsilon=HUGE),
        lambda: release_tables([Marginal(DOMAIN, COUNTS)], epsilon=1.0, noise=["laplace"]),
        lambda: release_tables(3, epsilon=1.0),
        lambda: release_tables([COUNTS], epsilon=1.0),
        lambda: release_values([[1], [2, 3]], Laplace(1.0)),
        lambda: laplace_loss(scale=1.0, cells=0),
        lambda: laplace_loss(scale=1.0, cells=2.5),
        lambda: NoisyTable(DOMAIN, COUNTS, "laplace", 2.0, 1.0),
        lambda: NoisyTable("age", COUNTS, Laplace(2.0), 2.0, 1.0),
        lambda: release(domain={"age": 2}),
        lambda: release(tables=[COUNTS]),
        lambda: Attribute("sex", "male"),
        lambda: Attribute("sex", {"f", "m"}),
        lambda: Attribute(HUGE, ("f", "m")),
        lambda: Domain.from_levels([("sex", ("f", "m"))]),
        lambda: Domain(["sex"]),
        lambda: DOMAIN.project("sex"),
        lambda: Marginal("age", COUNTS),
        lambda: Marginal(DOMAIN, [[1], [2, 3]]),
        lambda: check_consistent([COUNTS]),
        lambda: marginals([[1, 2]], [["age"]], domain=DOMAIN),
        lambda: marginals(pl.DataFrame({"age": ["18+"]}), ["age"], domain=DOMAIN),
        lambda: marginals(pl.DataFrame({"age": ["18+"]}), [["age"]], domain={"age": ["18+"]}),
    ],
)
def test_a_bad_argument_is_one_clear_error(call):
    with pytest.raises(InputError):
        call()


@pytest.mark.parametrize("count", [np.inf, 1e300, np.uint64(2**63)])
def test_a_count_beyond_64_bits_is_refused_instead_of_wrapping_around(count):
    with pytest.raises(InputError, match=r"whole number|beyond"):
        Marginal(DOMAIN, [[1, 2, 3], [4, 5, count]])


def test_levels_of_numpy_are_levels():
    domain = Domain.from_levels({"age": np.array([0, 1, 2]), "sex": np.array(["f", "m"])})
    assert domain == Domain.from_levels({"age": (0, 1, 2), "sex": ("f", "m")})
    assert {type(level) for attribute in domain for level in attribute.levels} == {int, str}


@pytest.mark.parametrize("n", [np.int64(21), np.uint8(21)])
def test_a_public_n_of_numpy_is_public(n):
    made = release(n=n)
    assert made.n_public and made.digest == release().digest
    with pytest.raises(InputError, match="cannot be public under add-remove"):
        release(n=n, adjacency="add-remove")


@pytest.mark.parametrize("n", ["21", 21.0, None, np.nan, [21], True, 0])
def test_an_n_that_is_no_whole_number_is_refused(n):
    with pytest.raises(InputError, match="n must be a whole number from 1 to 2"):
        release(n=n)


def test_a_sensitivity_of_numpy_is_written_as_a_number():
    table = NoisyTable(DOMAIN, COUNTS, TwoSidedGeometric(2.0), np.int64(2), np.float32(1.0))
    assert release(tables=[table]).digest == release().digest


@pytest.mark.parametrize("values", [[{"a": 1}, {"a": 2}], [[1], [2]]])
def test_values_that_cannot_be_levels_are_refused(values):
    with pytest.raises(InputError, match="level outside the domain"):
        marginals(pl.DataFrame({"age": values}, strict=False), [["age"]], domain=DOMAIN)
