import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.bloom_exhaustive import worst_pair

from dpbayes.bloom.calibration import bloom_epsilon, flip_prob_for, one_filter_epsilon, one_filter_loss
from dpbayes.bloom.filters import largest_loss
from dpbayes.bloom.many_filters import all_pairs_epsilon, filters_loss, worst_known_pair
from dpbayes.errors import InputError


@given(epsilon=st.floats(0.1, 3.0), k=st.integers(1, 3), log_bits=st.floats(0.0, 5.0), tight=st.booleans())
@settings(max_examples=4, deadline=None)
def test_calibration_inverts_the_accountant(epsilon, k, log_bits, tight):
    setting = {
        "delta": 1e-3,
        "n_filters": k,
        "n_bits": round(np.exp(log_bits)),
        "definition": "tight" if tight else "quantile",
    }
    p = flip_prob_for(epsilon=epsilon, **setting)
    assert p == flip_prob_for(epsilon=epsilon, **setting)
    assert bloom_epsilon(flip_prob=p, **setting).upper <= epsilon
    assert bloom_epsilon(flip_prob=p - 1.1e-8, **setting).upper > epsilon


SETTING = {"epsilon": np.log(3), "delta": 1e-3, "n_filters": 6, "n_bits": 100_000}


def test_design_point():
    """About .1365 by simulation; the certified ends decide the last digits."""
    assert flip_prob_for(**SETTING) == pytest.approx(0.1366, abs=2e-4)


@pytest.mark.slow
def test_design_point_of_the_quantile():
    assert flip_prob_for(**SETTING, definition="quantile") == pytest.approx(0.146, abs=2e-4)


def test_more_filters_and_fewer_bits_need_more_flipping():
    few, many = (flip_prob_for(epsilon=1.0, delta=1e-3, n_filters=k, n_bits=1000) for k in (2, 4))
    long = flip_prob_for(epsilon=1.0, delta=1e-3, n_filters=2, n_bits=10_000)
    assert long < few < many


def test_claims_say_what_they_cover():
    setting = {"flip_prob": 0.3, "delta": 1e-3, "n_bits": 50}
    assert bloom_epsilon(n_filters=1, **setting).scope == "all pairs, exhaustive"
    assert bloom_epsilon(n_filters=2, **setting).scope == "paper's pair, certified"
    every = bloom_epsilon(n_filters=2, pairs="all", **setting)
    assert every.scope == "all pairs, upper bound"
    assert every.upper >= bloom_epsilon(n_filters=2, **setting).upper


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"epsilon": float("inf")}, "finite"),
        ({"delta": 1.0}, "delta must be below 1"),
        ({"n_filters": 0}, "n_filters"),
        ({"n_bits": 0}, "n_bits"),
        ({"definition": "x"}, "definition"),
        ({"pairs": "some"}, "'paper' or 'all', got 'some'"),
        ({"pairs": "all", "definition": "quantile"}, "tight definition"),
    ],
)
def test_bad_input(change, text):
    with pytest.raises(InputError, match=text):
        flip_prob_for(**{"epsilon": 1.0, "delta": 1e-3, "n_filters": 2, "n_bits": 10, **change})


FUNCTIONS = {
    "one_filter_loss": lambda n_filters, delta, definition, **a: one_filter_loss(count_ones=0, **a),
    "one_filter_epsilon": lambda n_filters, **a: one_filter_epsilon(**a),
    "filters_loss": lambda delta, definition, **a: filters_loss(**a).epsilon_bounds(delta),
    "worst_pair": worst_pair,
    "worst_known_pair": lambda definition, **a: worst_known_pair(**a),
    "all_pairs_epsilon": lambda definition, **a: all_pairs_epsilon(**a),
    "bloom_epsilon": bloom_epsilon,
    "bloom_epsilon for all pairs": lambda **a: bloom_epsilon(pairs="all", **a),
    "flip_prob_for": lambda flip_prob, **a: flip_prob_for(epsilon=1.0, **a),
    "flip_prob_for by quantile": lambda flip_prob, definition, **a: flip_prob_for(
        epsilon=1.0, definition="quantile", **a
    ),
}
BAD = {
    "flip_prob": [0.0, -0.1, 0.5, 0.7, np.nan, np.inf, "0.1", True],
    "delta": [0.0, 1.0, -0.1, 1.5, np.nan, "1e-3"],
    "n_filters": [0, -1, 21, 1.5, "2", True],
    "n_bits": [0, -3, 2.5, np.nan, "10", True],
    "definition": ["loose", None, 1],
}


# Arguments that a function does not have.
LACKS = {
    "one_filter_loss": {"n_filters", "delta", "definition"},
    "one_filter_epsilon": {"n_filters"},
    "filters_loss": {"definition"},
    "worst_known_pair": {"definition"},
    "all_pairs_epsilon": {"definition"},
    "flip_prob_for": {"flip_prob"},
    "flip_prob_for by quantile": {"flip_prob", "definition"},
}
CASES = [
    (function, name, value)
    for function in FUNCTIONS
    for name, values in BAD.items()
    for value in values
    if name not in LACKS.get(function, set())
]


@pytest.mark.parametrize(("function", "name", "value"), CASES)
def test_every_function_refuses_every_bad_value(function, name, value):
    good = {"flip_prob": 0.2, "delta": 1e-2, "n_filters": 2, "n_bits": 4, "definition": "tight"}
    with pytest.raises(InputError) as refusal:
        FUNCTIONS[function](**good | {name: value})
    assert name in str(refusal.value) and "\n" not in str(refusal.value)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, np.inf, "1"])
def test_a_target_must_be_positive(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        flip_prob_for(epsilon=epsilon, delta=1e-3, n_filters=2, n_bits=10)


@pytest.mark.parametrize("function", ["one_filter_loss", "one_filter_epsilon", "filters_loss", "worst_pair"])
def test_flip_probabilities_without_digits_are_refused(function):
    good = {"delta": 1e-2, "n_filters": 2, "n_bits": 4, "definition": "tight"}
    with pytest.raises(InputError, match="at least 1e-12, got 1e-17"):
        FUNCTIONS[function](flip_prob=1e-17, **good)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("k", "m"), [(1, 10), (2, 1), (20, 1), (20, 100)])
def test_the_least_flip_probability_is_answered(k, m):
    for delta in (1e-6, 1e-3):
        claim = bloom_epsilon(flip_prob=1e-12, delta=delta, n_filters=k, n_bits=m)
        assert 0 < claim.lower <= claim.upper <= largest_loss(k, 1e-12)


@pytest.mark.parametrize(("k", "m", "epsilon"), [(3, 1000, 500.0), (2, 4, 1e-12), (1, 4, 28.0)])
def test_targets_out_of_reach_name_the_range(k, m, epsilon):
    with pytest.raises(InputError, match=rf"epsilon must be between {k}e-08 and .* for n_filters={k}, got {epsilon!r}"):
        flip_prob_for(epsilon=epsilon, delta=1e-3, n_filters=k, n_bits=m)


def test_the_least_target_is_answered():
    p = flip_prob_for(epsilon=2e-8, delta=1e-3, n_filters=2, n_bits=1)
    assert p < 0.5 and bloom_epsilon(flip_prob=p, delta=1e-3, n_filters=2, n_bits=1).upper <= 2e-8
