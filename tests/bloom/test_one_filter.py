import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from dpbayes.bloom.calibration import CountTails, one_filter_epsilon, one_filter_loss, output_laws
from dpbayes.errors import InputError

# Enumerated in float64, twice: bits, ones, flip probability, quantile and tight epsilon at delta 1e-3.
ENUMERATED = [
    (100, 0, 0.1, 1.2417131323, 0.9082699818),
    (100, 50, 0.1, 0.7926389842, 0.6113232874),
    (1000, 0, 0.05, 0.4763394477, 0.307367476978),
    (100_000, 12_500, 0.05, 0.0408044399, 0.0137484163),
]
flip_probs = st.floats(0.01, 0.49)


@pytest.mark.parametrize(("m", "ones", "p", "quantile", "tight"), ENUMERATED)
def test_enumerated_values(m, ones, p, quantile, tight):
    loss = one_filter_loss(n_bits=m, flip_prob=p, count_ones=ones)
    assert loss.quantile_epsilon(1e-3) == pytest.approx(quantile, abs=6e-11)
    assert loss.epsilon(1e-3) == pytest.approx(tight, abs=6e-11)


def test_enumerated_maxima_over_counts():
    tight = one_filter_epsilon(n_bits=1000, flip_prob=0.05, delta=1e-3)
    assert tight.upper == pytest.approx(0.3080375872, abs=6e-11)
    # Count 4 in one direction is count 995 in the other.
    assert tight.pair in {"4 ones against 5", "995 ones against 996"}
    quantile = one_filter_epsilon(n_bits=1000, flip_prob=0.05, delta=1e-3, definition="quantile")
    assert quantile.upper == pytest.approx(0.4866788410, abs=6e-11)
    assert quantile.pair == "993 ones against 994"


@pytest.mark.parametrize("definition", ["tight", "quantile"])
@pytest.mark.parametrize("m", [1, 2, 3, 6, 40])
@pytest.mark.parametrize("p", [0.05, 0.3, 0.49])
@pytest.mark.parametrize("delta", [1e-6, 1e-2, 0.3])
def test_maximum_is_the_maximum(m, p, delta, definition):
    losses = [one_filter_loss(n_bits=m, flip_prob=p, count_ones=y) for y in range(m)]
    value = "epsilon" if definition == "tight" else "quantile_epsilon"
    largest = max(getattr(loss, value)(delta) for loss in losses)
    claim = one_filter_epsilon(n_bits=m, flip_prob=p, delta=delta, definition=definition)
    assert claim.upper == pytest.approx(largest, abs=1e-9)
    assert claim.scope == "all pairs, exhaustive"


@given(m=st.integers(1, 200), p=flip_probs, data=st.data())
@settings(max_examples=40, deadline=None)
def test_end_points_and_complement(m, p, data):
    ones = data.draw(st.integers(0, m - 1))
    _, without, with_one = output_laws(n_bits=m, flip_prob=p, count_ones=ones)
    _, other, other_one = output_laws(n_bits=m, flip_prob=p, count_ones=m - ones - 1)
    log_ratio = np.log(with_one / without)
    if without.size == m + 1:
        assert log_ratio[0] == pytest.approx(np.log(p / (1 - p)), rel=1e-12)
        assert log_ratio[-1] == pytest.approx(np.log((1 - p) / p), rel=1e-12)
        # Complementing bits maps (y_d, y_x) to (m - y_d - 1, m - y_x) and R to 1/R.
        np.testing.assert_allclose(log_ratio, np.log(other / other_one)[::-1], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(without, other_one[::-1], rtol=1e-11, atol=1e-300)
    assert np.all(np.diff(log_ratio) > -1e-12)
    assert without.sum() == pytest.approx(1.0, abs=1e-12)


@given(m=st.integers(1, 30), p=flip_probs, data=st.data())
@settings(max_examples=40, deadline=None)
def test_law_against_a_double_sum(m, p, data):
    ones = data.draw(st.integers(0, m - 1))
    outputs, without, _ = output_laws(n_bits=m, flip_prob=p, count_ones=ones)
    t = np.arange(m + 1)
    direct = [sum(binom.pmf(i, ones, 1 - p) * binom.pmf(out - i, m - ones, p) for i in range(ones + 1)) for out in t]
    np.testing.assert_allclose(without, np.array(direct)[outputs], rtol=1e-9)


@pytest.mark.parametrize(("m", "p"), [(1000, 0.05), (1000, 0.3), (400, 0.45), (2000, 1e-3)])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_scan_of_all_counts_against_enumeration(m, p, share):
    epsilon = share * np.log((1 - p) / p)
    tails = CountTails.for_epsilon(m, p, epsilon)
    for ones in (0, 1, m // 3, m - 1):
        _, without, with_one = output_laws(n_bits=m, flip_prob=p, count_ones=ones)
        exact = np.maximum(with_one - np.exp(epsilon) * without, 0.0).sum()
        scanned = tails.deltas(epsilon, np.array([ones]))[0]
        # Far beyond any delta of interest the scan may give up, and says so: the count is then enumerated.
        assert scanned == pytest.approx(exact, rel=1e-9) or (exact < 1e-30 and scanned == np.inf)


def test_small_delta_keeps_its_digits():
    claim = one_filter_epsilon(n_bits=500, flip_prob=0.2, delta=1e-12)
    largest = max(one_filter_loss(n_bits=500, flip_prob=0.2, count_ones=y).epsilon(1e-12) for y in range(500))
    assert claim.upper == pytest.approx(largest, rel=1e-9)


def test_composition_goes_through_the_loss():
    loss = one_filter_loss(n_bits=200, flip_prob=0.2, count_ones=50)
    twice = loss.compose(2)
    assert loss.epsilon(1e-3) < twice.epsilon(1e-3) < 2 * loss.epsilon(5e-4)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"flip_prob": 0.0}, "strictly between 0 and 0.5, got 0.0"),
        ({"flip_prob": 0.5}, "got 0.5"),
        ({"flip_prob": float("nan")}, "got nan"),
        ({"n_bits": 0}, "n_bits must be a whole number of at least 1, got 0"),
        ({"n_bits": 2.5}, "whole number of at least 1, got 2.5"),
        ({"count_ones": -1}, "count_ones must be a whole number from 0 to 9, got -1"),
        ({"count_ones": 10}, "got 10"),
    ],
)
def test_bad_input(change, text):
    with pytest.raises(InputError, match=text):
        one_filter_loss(**{"n_bits": 10, "flip_prob": 0.1, "count_ones": 3, **change})


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, float("nan")])
def test_bad_delta(delta):
    with pytest.raises(InputError, match="delta"):
        one_filter_epsilon(n_bits=10, flip_prob=0.1, delta=delta)


def test_bad_definition():
    with pytest.raises(InputError, match="'tight' or 'quantile', got 'loose'"):
        one_filter_epsilon(n_bits=10, flip_prob=0.1, delta=0.1, definition="loose")
