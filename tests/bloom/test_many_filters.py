from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.stats import binom

from dpbayes.bloom import bloom_epsilon
from dpbayes.bloom.calibration import one_filter_loss
from dpbayes.bloom.filters import largest_loss
from dpbayes.bloom.many_filters import column_sum, filters_loss
from dpbayes.errors import InputError


@pytest.mark.parametrize(
    ("m", "p", "delta"), [(1000, 0.05, 1e-3), (100, 0.1, 1e-6), (7, 0.3, 0.05), (100_000, 0.2, 1e-9)]
)
def test_one_of_k_filters_is_one_filter_without_ones(m, p, delta):
    exact = one_filter_loss(n_bits=m, flip_prob=p, count_ones=0)
    loss = filters_loss(n_filters=1, n_bits=m, flip_prob=p)
    tight, quantile = loss.epsilon_bounds(delta), loss.quantile_bounds(delta)
    assert tight.lower - 1e-11 <= exact.epsilon(delta) <= tight.upper + 1e-11
    assert quantile.lower - 1e-11 <= exact.quantile_epsilon(delta) <= quantile.upper + 1e-11
    assert tight.upper == pytest.approx(exact.epsilon(delta), rel=1e-6)


def _enumerate(k, m, p):
    """R and its law under D by enumerating how many positions have each number of ones."""
    q = 1 - p
    y = np.arange(k + 1)
    choose = np.array([1.0])
    for _ in range(k):
        choose = np.append(choose, 0) + np.append(0, choose)
    level = choose * p**y * q ** (k - y)
    values = (q / p) ** (2 * y - k)
    table = {(0,) * (k + 1): 1.0}
    for _ in range(m):
        grown = {}
        for counts, mass in table.items():
            for place in y:
                key = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
                grown[key] = grown.get(key, 0.0) + mass * level[place]
        table = grown
    counts = np.array(list(table))
    return counts @ values / m, np.array(list(table.values()))


@pytest.mark.parametrize(("k", "m", "p"), [(2, 6, 0.2), (3, 9, 0.3), (4, 5, 0.1), (6, 1, 0.25), (2, 2, 0.45)])
def test_small_cases_against_enumeration(k, m, p):
    ratio, mass = _enumerate(k, m, p)
    loss = filters_loss(n_filters=k, n_bits=m, flip_prob=p)
    upper, upper_plain = (loss.law(np.log(4.0), "upper", 2**16, 1e-9, split=split) for split in (True, False))
    for t in (1.0, 1.3, 2.2, 3.9):
        low, high = upper.call_bounds(t)
        assert low[0] - 1e-12 <= mass @ np.maximum(ratio - t, 0) <= high[0] + 1e-12
        low, high = upper_plain.exceed_bounds(t)
        assert low[0] - 1e-12 <= (mass * ratio)[ratio > t].sum() <= high[0] + 1e-12
    lower, lower_plain = (loss.law(np.log(2.0), "lower", 2**16, 1e-9, split=split) for split in (True, False))
    for t in (0.2, 0.51, 0.93):
        low, high = lower.put_bounds(t)
        assert low[0] - 1e-12 <= mass @ np.maximum(t - ratio, 0) <= high[0] + 1e-12
        low, high = lower_plain.cdf_bounds(t)
        assert low[0] - 1e-12 <= mass[ratio <= t].sum() <= high[0] + 1e-12
    epsilon = loss.epsilon_bounds(0.01)
    for end, sign in ((epsilon.lower - 1e-9, 1), (epsilon.upper + 1e-9, -1)):
        t = np.exp(end)
        delta = max(mass @ np.maximum(ratio - t, 0), mass @ np.maximum(1 - t * ratio, 0))
        assert sign * (delta - 0.01) >= 0


@pytest.mark.parametrize(("k", "p"), [(1, 1e-6), (2, 1e-6), (2, 1e-3), (1, 0.3), (3, 0.01)])
def test_certified_ends_of_one_position_alone(k, p):
    """The ends hold to the last digit where epsilon is a logarithm and R nearly equals its threshold."""
    loss = filters_loss(n_filters=k, n_bits=1, flip_prob=p)
    for delta in (1e-9, 1e-3, 0.2):
        ends = loss.epsilon_bounds(delta)
        with localcontext(prec=50):
            exact = (((1 - Decimal(p)) ** k - Decimal(delta)) / Decimal(p) ** k).ln()
        if exact > (k - 2) * loss.largest / k:  # else outputs one flip nearer count too
            assert ends.lower <= exact <= ends.upper
            assert ends.width < 1e-4 * ends.upper


@pytest.mark.parametrize(("differ", "p"), [(1, 1e-6), (2, 1e-6), (7, 0.1), (7, 0.4999999)])
def test_the_largest_loss_is_rounded_up(differ, p):
    with localcontext(prec=50):
        exact = differ * ((1 - Decimal(p)) / Decimal(p)).ln()
        assert exact < Decimal(largest_loss(differ, p)) < exact * (1 + Decimal("4e-15"))
    assert filters_loss(n_filters=differ, n_bits=5, flip_prob=p).largest == largest_loss(differ, p)


def test_simulated_values_lie_within_three_standard_errors():
    # Quantile by 3e6 draws; the tight values are simulated anew below.
    assert abs(filters_loss(n_filters=6, n_bits=100_000, flip_prob=0.1).quantile_bounds(1e-3).upper - 2.8006) < 3e-4
    assert abs(filters_loss(n_filters=3, n_bits=100_000, flip_prob=0.05).quantile_bounds(1e-3).upper - 1.0524) < 9e-4
    assert abs(filters_loss(n_filters=6, n_bits=100_000, flip_prob=0.1).epsilon_bounds(1e-3).upper - 2.4127) < 15e-4


def _three_filters_delta(epsilon, m, p):
    """Hockey stick of the paper's pair of three filters in the order that decides, E_D (1 - exp(epsilon) R)_+.

    Positions with three and with two ones are counted out, those with one are a binomial among the rest, in which R is
    linear: no lattice, no transform, nothing shared with the package.
    """
    q = 1 - p
    none, one, two, three = q**3, 3 * q * q * p, 3 * q * p * p, p**3
    values = (q / p) ** (2 * np.arange(4) - 3.0)
    goal, total = m * np.exp(-epsilon), 0.0
    for n3 in range(60):
        mean = (m - n3) * two / (1 - three)
        n2 = np.arange(max(0, int(mean - 13 * mean**0.5)), int(mean + 13 * mean**0.5) + 1)
        weight = binom.pmf(n3, m, three) * binom.pmf(n2, m - n3, two / (1 - three))
        rest, share = m - n3 - n2, one / (none + one)
        base, slope = n3 * values[3] + n2 * values[2] + rest * values[0], values[1] - values[0]
        last = np.ceil((goal - base) / slope) - 1
        below, mean_below = binom.cdf(last, rest, share), rest * share * binom.cdf(last - 1, rest - 1, share)
        total += float(weight @ ((goal - base) * below - slope * mean_below))
    return np.exp(epsilon) * total / m


def test_three_filters_against_a_sum_over_counts():
    """The exact epsilon is 0.7316676: a simulated .7298 from 3e6 draws is 1.4 of its standard errors (.0014) below."""
    loss = filters_loss(n_filters=3, n_bits=100_000, flip_prob=0.05)
    bounds = loss.epsilon_bounds(1e-3)
    assert _three_filters_delta(bounds.lower, 100_000, 0.05) > 1e-3 > _three_filters_delta(bounds.upper, 100_000, 0.05)
    assert _three_filters_delta(0.7316676175, 100_000, 0.05) == pytest.approx(1e-3, rel=1e-9)
    # The standard error of epsilon in that simulation: of the score, over the slope of delta.
    law = loss.law(np.log(2.0), "lower", 2**16, 1e-9, split=True)
    ratio = np.random.default_rng(5).multinomial(100_000, law.under, size=200_000) @ law.values / 100_000
    score = np.maximum(1 - np.exp(bounds.upper) * ratio, 0)
    stderr = score.std() / np.sqrt(3e6) / (score > 0).mean() / (1 - score[score > 0].mean())
    assert abs(bounds.upper - 0.7298) < 3 * stderr < 0.0045


@pytest.mark.parametrize(("k", "p"), [(6, 0.1), (3, 0.05)])
def test_delta_against_simulation(k, p):
    """Two-sided at 3.5 standard errors: false alarm below 5e-4 a case; the seed is fixed."""
    m, draws = 100_000, 400_000
    rng = np.random.default_rng(20)
    y = np.arange(k + 1)
    loss = filters_loss(n_filters=k, n_bits=m, flip_prob=p)
    law, epsilon = loss.law(np.log(2.0), "upper", 2**16, 1e-9, split=True), loss.epsilon_bounds(1e-3).upper
    rest = rng.multinomial(m - 1, law.under, size=draws) @ law.values
    down = (rest + law.values[rng.choice(y, size=draws, p=law.under)]) / m
    up = (rest + law.values[rng.choice(y, size=draws, p=law.under_alternative)]) / m
    scores = np.maximum(1 - np.exp(epsilon) / up, 0), np.maximum(1 - np.exp(epsilon) * down, 0)
    # The direction in which epsilon is attained has delta 1e-3 there; the other has less.
    worse = max(scores, key=np.mean)
    assert abs(worse.mean() - 1e-3) < 3.5 * worse.std() / np.sqrt(draws)


@pytest.mark.parametrize("p", [0.1, 0.1365, 0.2])
@pytest.mark.parametrize("kind", ["epsilon_bounds", "quantile_bounds"])
def test_width_at_the_design_point(p, kind):
    bounds = getattr(filters_loss(n_filters=6, n_bits=100_000, flip_prob=p), kind)(1e-3)
    assert 0 < bounds.lower <= bounds.upper
    assert bounds.width <= 1e-3 * bounds.upper


def test_large_case():
    bounds = filters_loss(n_filters=20, n_bits=1_000_000, flip_prob=0.3).epsilon_bounds(1e-3)
    assert 1.6 < bounds.lower < bounds.upper < 1.61


def test_nearly_no_flipping_costs_nearly_all():
    loss = filters_loss(n_filters=20, n_bits=1_000_000, flip_prob=0.1)
    bounds = loss.epsilon_bounds(1e-3)
    assert 30 < bounds.lower <= bounds.upper < loss.largest


def test_definitions_and_sizes_are_ordered():
    losses = [filters_loss(n_filters=4, n_bits=m, flip_prob=0.2) for m in (10, 100, 1000)]
    tight = [loss.epsilon_bounds(1e-3) for loss in losses]
    assert all(loss.quantile_bounds(1e-3).upper >= ends.lower for loss, ends in zip(losses, tight, strict=True))
    assert tight[0].lower > tight[1].upper > tight[2].upper
    claim = losses[0].claim(1e-3, definition="quantile")
    assert claim.scope == "paper's pair, certified" and "quantile" in str(claim)


def test_delta_inverts_epsilon():
    loss = filters_loss(n_filters=6, n_bits=100_000, flip_prob=0.1)
    assert loss.delta_bounds(loss.epsilon_bounds(1e-3).upper).lower <= 1e-3 * (1 + 1e-9)
    assert loss.delta_bounds(loss.epsilon_bounds(1e-3).lower).upper >= 1e-3 * (1 - 1e-9)
    assert loss.delta_bounds(loss.largest).upper == 0.0


def test_column_sum_of_two_values_is_binomial():
    law = column_sum(
        np.array([0.7, 0.3]),
        np.array([0.5, 2.5]),
        n=30,
        x_max=1e9,
        focus=40.0,
        side="upper",
        size=256,
        exception=1e-9,
        split=True,
    )
    x = np.array([20.0, 33.2, 50.0])
    sums = 15 + 2 * np.arange(31)
    exact = [binom.pmf(np.arange(31), 30, 0.3) @ np.maximum(sums - at, 0) for at in x]
    lower, upper = law.excess_bounds(x)
    np.testing.assert_allclose(lower, exact, rtol=1e-9)
    np.testing.assert_allclose(upper, exact, rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n_filters": 0}, "from 1 to 20, got 0"),
        ({"n_filters": 21}, "got 21"),
        ({"n_bits": 0}, "n_bits must be a whole number from 1 to 10,000,000,000, got 0"),
        ({"flip_prob": 0.6}, "got 0.6"),
    ],
)
def test_bad_input(change, text):
    with pytest.raises(InputError, match=text):
        filters_loss(**{"n_filters": 2, "n_bits": 10, "flip_prob": 0.1, **change})


def test_a_hundred_million_positions_have_bounds_that_follow_the_root_of_the_length():
    # The loss is a mean over positions: its quantile falls as the root of their number, up to 1 / root(10^7) of itself.
    claim, shorter = (
        bloom_epsilon(n_filters=2, n_bits=n, flip_prob=0.37, delta=1e-6, definition="quantile") for n in (10**8, 10**6)
    )
    assert 0 < claim.lower <= claim.upper < 1.01 * claim.lower
    assert claim.lower < shorter.upper / 10 * 1.001 and claim.upper > shorter.lower / 10 * 0.999
