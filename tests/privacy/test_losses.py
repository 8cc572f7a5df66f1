"""Exact curves of single pairs: published numbers, enumeration, both directions, edges, refusals."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import binom

from dpbayes.errors import InputError
from dpbayes.privacy.losses import PrivacyLoss


def bloom_filter(m: int, ones: int, p: float) -> PrivacyLoss:
    """Output ones of a shuffled and flipped filter under D (`ones` ones in) and D' (one more), by convolution.

    The convolution has no negative term, so masses are right to rounding; those beyond 12 standard deviations, below
    1e-30 altogether, are left out.
    """

    def pmf(count: int) -> tuple[int, np.ndarray]:
        kept, flipped = (
            (
                max(0, int(n * q - 12 * np.sqrt(n * q * (1 - q)) - 20)),
                min(n, int(n * q + 12 * np.sqrt(n * q) + 20)),
                n,
                q,
            )
            for n, q in ((count, 1 - p), (m - count, p))
        )
        laws = [binom.pmf(np.arange(low, high + 1), n, q) for low, high, n, q in (kept, flipped)]
        return kept[0] + flipped[0], np.convolve(*laws)

    (start_p, law_p), (start_q, law_q) = pmf(ones), pmf(ones + 1)
    low, high = max(start_p, start_q), min(start_p + law_p.size, start_q + law_q.size)
    with np.errstate(divide="ignore"):
        return PrivacyLoss.from_pmfs(
            np.log(law_p[low - start_p : high - start_p]),
            np.log(law_q[low - start_q : high - start_q]),
            log_error=3e-10,
        )


@pytest.mark.parametrize(
    ("m", "ones", "p", "quantile", "tight", "digits"),
    [
        (100, 0, 0.1, 1.2417131323, 0.9082699818, 1e-9),
        (100, 50, 0.1, 0.7926389842, 0.6113232874, 1e-9),
        (1000, 0, 0.05, 0.4763394477, 0.307367476978, 1e-9),
        (1000, 993, 0.05, 0.4866788410, None, 1e-9),
        (1000, 4, 0.05, None, 0.3080375872, 1e-9),
        (100000, 12500, 0.05, 0.0408044399, 0.0137484163, 1e-9),
    ],
)
def test_one_bloom_filter_reproduces_the_enumerated_numbers(m, ones, p, quantile, tight, digits):
    """Numbers enumerated in double precision for the released system of Chen (2020), delta 1e-3."""
    pair = bloom_filter(m, ones, p)
    if quantile is not None:
        assert pair.quantile_epsilon(1e-3) == pytest.approx(quantile, abs=digits)
    if tight is not None:
        assert pair.epsilon(1e-3) == pytest.approx(tight, abs=digits)


def exact_hockey(log_p, log_q, epsilon):
    with mpmath.workdps(60):  # digits enough for any cancellation between terms above 1e-13
        factor = mpmath.exp(mpmath.mpf(epsilon))
        terms = (mpmath.exp(float(a)) - factor * mpmath.exp(float(b)) for a, b in zip(log_p, log_q, strict=True))
        return mpmath.fsum(term for term in terms if term > 0)


masses = st.lists(st.floats(1e-12, 1.0), min_size=2, max_size=6)


@settings(max_examples=40, deadline=None)
@given(masses, masses, st.floats(0.0, 30.0), st.floats(-15.0, -0.5))
def test_bounds_enclose_the_hockey_stick_in_sixty_digits(p, q, epsilon, log10_delta):
    size = min(len(p), len(q))
    log_p, log_q = (np.log(np.array(values[:size]) / sum(values[:size])) for values in (p, q))
    pair = PrivacyLoss.from_pmfs(log_p, log_q)
    forward, backward = exact_hockey(log_p, log_q, epsilon), exact_hockey(log_q, log_p, epsilon)
    found = pair.forward.bounds(epsilon), pair.backward.bounds(epsilon), pair.delta_bounds(epsilon)
    for value, bounds in zip((forward, backward, max(forward, backward)), found, strict=True):
        assert bounds.lower <= min(value, 1) <= bounds.upper
        assert bounds.width <= 1e-11
    delta = 10.0**log10_delta
    ends = pair.epsilon_bounds(delta)
    worst = lambda e: max(exact_hockey(log_p, log_q, e), exact_hockey(log_q, log_p, e))  # noqa: E731
    assert worst(ends.upper) <= delta
    assert ends.lower == 0.0 or worst(ends.lower) >= delta
    assert ends.width < 1e-10 * max(1.0, ends.upper)


def test_relative_accuracy_holds_at_delta_1e_15_and_epsilon_100():
    # ln(P/Q) = 101 on a P-mass of 1e-14, so delta(100) = 1e-14 (1 - exp(-1)).
    log_p = np.log([1e-14, 1 - 1e-14])
    log_q = np.array([log_p[0] - 101, np.log1p(-1e-14 * np.exp(-101))])
    pair = PrivacyLoss.from_pmfs(log_p, log_q)
    assert pair.delta(100.0) == pytest.approx(1e-14 * -np.expm1(-1.0), rel=1e-11)
    assert pair.epsilon(1e-15) == pytest.approx(101 + np.log1p(-0.1), abs=1e-11)


def test_quantile_is_never_below_the_tight_epsilon():
    pair = bloom_filter(60, 7, 0.2)
    for delta in (0.2, 1e-2, 1e-4, 1e-9):
        assert pair.quantile_bounds(delta).upper >= pair.epsilon_bounds(delta).lower


def test_each_direction_of_an_asymmetric_pair_counts():
    log_p, log_q = np.log([0.98, 0.02]), np.log([0.9, 0.1])
    pair, swapped = PrivacyLoss.from_pmfs(log_p, log_q), PrivacyLoss.from_pmfs(log_q, log_p)
    forward, backward = pair.forward.crossing(0.01), pair.backward.crossing(0.01)
    assert forward == swapped.backward.crossing(0.01)
    assert pair.epsilon_bounds(0.01) == backward
    assert backward.upper == pytest.approx(np.log(4.5), abs=1e-9)
    assert forward.upper < 0.1


def test_impossible_outcomes_are_mass_at_infinity():
    with np.errstate(divide="ignore"):
        pair = PrivacyLoss.from_pmfs(np.log([0.01, 0.99]), np.log([0.0, 1.0]))
    assert pair.epsilon(0.009) == np.inf
    assert pair.epsilon(0.0100001) == pytest.approx(0.0, abs=1e-11)
    assert pair.delta(50.0) == pytest.approx(0.01, rel=1e-11)
    assert pair.backward.crossing(0.0).upper == pytest.approx(-np.log(0.99), abs=1e-11)


def test_missing_mass_is_infinite_loss_above_and_nothing_below():
    pair = PrivacyLoss.from_pmfs(np.log([0.6, 0.399]), np.log([0.5, 0.499]))
    bounds = pair.delta_bounds(5.0)
    assert bounds.lower == 0.0
    assert bounds.upper == pytest.approx(1e-3, rel=1e-9)
    assert pair.epsilon(1e-4) == np.inf


def test_masses_below_the_smallest_double_still_decide_pure_epsilon():
    # Binomial counts of 2,000 flips: the extreme outcomes have mass 1e-2600, and losses of 2,000 ln(.6/.4).
    n = np.arange(2001)
    choose = gammaln(2001) - gammaln(n + 1) - gammaln(2001 - n)
    log_p = choose + n * np.log(0.05) + (2000 - n) * np.log(0.95)
    log_q = choose + n * np.log(0.04) + (2000 - n) * np.log(0.96)
    pair = PrivacyLoss.from_pmfs(log_p, log_q, log_error=1e-10)
    assert pair.epsilon_bounds(0.0).upper == pytest.approx(2000 * np.log(0.05 / 0.04), abs=1e-6)
    assert pair.epsilon(1e-15) < 30.0


def test_delta_takes_arrays():
    pair = PrivacyLoss.from_pmfs(np.log([0.6, 0.4]), np.log([0.5, 0.5]))
    grid = np.array([[0.0, 0.1], [0.2, 9.0]])
    assert pair.delta(grid).shape == grid.shape
    assert pair.delta(grid)[0, 1] == pair.delta(0.1)
    assert isinstance(pair.delta(0.1), float)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: PrivacyLoss.from_pmfs([0.0], [0.0, -1.0]), "must list the same outcomes"),
        (lambda: PrivacyLoss.from_pmfs([np.nan, 0.0], [0.0, 0.0]), "got NaN or plus infinity"),
        (lambda: PrivacyLoss.from_pmfs([], []), "got no entry"),
        (lambda: PrivacyLoss.from_pmfs(np.log([0.6, 0.6]), np.log([0.5, 0.5])), "the P-masses add up to 1 [+] 0.2"),
        (lambda: PrivacyLoss.from_pmfs([0.0], [0.0], log_error=0.5), "log_error must be between 0 and 0.01, got 0.5"),
        (lambda: PrivacyLoss.from_pmfs([0.0], [0.0], adjacency="bounded"), "adjacency must be 'replace-one'"),
        (lambda: PrivacyLoss.from_pmfs([0.0], [0.0]).epsilon(1.5), "delta must be between 0 and 1, got 1.5"),
        (lambda: PrivacyLoss.from_pmfs([0.0], [0.0]).delta(np.nan), "epsilon must be a number"),
        (lambda: PrivacyLoss.from_pmfs([0.0], [0.0]).compose(0), "number of runs must be a whole number of at least 1"),
        (
            lambda: PrivacyLoss.from_pmfs([0.0], [0.0]).compose(True),
            "number of runs must be a whole number of at least 1",
        ),
    ],
)
def test_a_refusal_gives_the_value(call, match):
    with pytest.raises(InputError, match=match):
        call()
