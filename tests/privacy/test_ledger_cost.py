"""Costs of the budget book against enumeration, closed forms and an independent engine."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.errors import InputError
from dpbayes.privacy import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric, gaussian_epsilon
from dpbayes.privacy.composition import ComposedLoss
from dpbayes.privacy.ledger_cost import Cost, Guarantee, Spending, _renyi_epsilon, epsilon_upper, law_from_dict
from dpbayes.privacy.losses import gaussian_law
from dpbayes.privacy.rounding import decimal_down, decimal_reading, float_down, float_up_or_decimal


def clipped_geometric(move, rate):
    """Masses of the two-sided geometric output clipped to [0, move] when the true value is 0, and when it is `move`."""
    a, t = math.exp(-rate), np.arange(move + 1)
    mass = np.where((t == 0) | (t == move), 1.0, 1 - a) * a**t / (1 + a)
    return mass, mass[::-1]


def product(pairs):
    """Joint masses of independent experiments under both hypotheses, flattened."""
    p, q = np.ones(1), np.ones(1)
    for one_p, one_q in pairs:
        p, q = np.outer(p, one_p).ravel(), np.outer(q, one_q).ravel()
    return p, q


def hockey_stick(p, q, epsilon):
    return float(np.maximum(p - np.exp(epsilon) * q, 0).sum())


def exact_epsilon(p, q, delta):
    """Smallest epsilon with hockey-stick at most delta, by bisection on enumerated masses (all pairs are symmetric)."""
    low, high = 0.0, 200.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if hockey_stick(p, q, middle) <= delta else (middle, high)
    return high


# --- the lemma of the module's docstring: a vector query costs no more than the scalar one ---


@pytest.mark.parametrize("rate", [0.03, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("split", [(1, 1), (1, 2), (2, 2), (1, 1, 1), (3, 5), (1, 1, 1, 1), (2, 7)])
def test_a_move_spread_over_several_counts_costs_less_than_in_one(split, rate):
    scalar = clipped_geometric(sum(split), rate)
    vector = product([clipped_geometric(part, rate) for part in split])
    for epsilon in np.linspace(-sum(split) * rate, sum(split) * rate, 101):
        assert hockey_stick(*vector, epsilon) <= hockey_stick(*scalar, epsilon) + 1e-14
    # Strictly less somewhere, so the comparison can fail.
    assert hockey_stick(*vector, 0.0) < hockey_stick(*scalar, 0.0) - 1e-6


def test_the_order_survives_composition():
    rate, one = 0.7, [clipped_geometric(2, 0.7)]
    two = [clipped_geometric(1, rate)] * 2
    for k, epsilon in itertools.product((2, 3), np.linspace(-4, 4, 41)):
        assert hockey_stick(*product(two * k), epsilon) <= hockey_stick(*product(one * k), epsilon) + 1e-14


# --- tight composition against enumeration ---


@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize(
    "kinds",
    [
        [(TwoSidedGeometric(2.0), 2, 4)],
        [(TwoSidedGeometric(4.0), 2, 5), (TwoSidedGeometric(1.5), 1, 3)],
        [(TwoSidedGeometric(0.7), 3, 3)],
        [(Guarantee(0.3), None, 9)],
        [(Guarantee(1.0), None, 3), (TwoSidedGeometric(5.0), 2, 4)],
    ],
)
def test_discrete_laws_match_enumeration(kinds, delta):
    pairs = []
    for law, move, n in kinds:
        pure = isinstance(law, Guarantee)
        pairs += [clipped_geometric(1, law.epsilon) if pure else clipped_geometric(move, 1 / law.scale)] * n
    exact = exact_epsilon(*product(pairs), delta)
    costs = [Cost(law, move, count=n) for law, move, n in kinds]
    bound = Spending().add(costs).tight_epsilon(delta)
    assert exact - 1e-9 <= bound <= exact * (1 + 1e-6) + 1e-9


def optimal_composition(epsilon, delta, k, slack):
    """Smallest lattice epsilon at which k (epsilon, delta)-DP mechanisms keep `slack`; Kairouz et al., Theorem 3.3."""
    for i in range(k // 2, -1, -1):
        terms = [
            math.comb(k, j) * (math.exp((k - j) * epsilon) - math.exp((k - 2 * i + j) * epsilon)) for j in range(i)
        ]
        total = 1 - (1 - delta) ** k * (1 - math.fsum(terms) / (1 + math.exp(epsilon)) ** k)
        if total <= slack:
            return (k - 2 * i) * epsilon
    return math.inf


@pytest.mark.parametrize(
    ("epsilon", "delta", "k", "slack"), [(0.1, 0.0, 50, 1e-3), (0.2, 1e-6, 40, 1e-3), (0.5, 1e-5, 11, 1e-2)]
)
def test_guarantees_compose_optimally(epsilon, delta, k, slack):
    # The theorem gives epsilon on a lattice of step 2 epsilon; the curve between its points is at most that.
    best = optimal_composition(epsilon, delta, k, slack)
    bound = Spending().add([Cost(Guarantee(epsilon, delta), None, count=k)]).tight_epsilon(slack)
    assert best - 2 * epsilon <= bound <= best + 1e-6


def test_a_thousand_gaussians_reproduce_the_anchor():
    spent = Spending().add([Cost(Gaussian(10.0), 1.0, count=1000)])
    assert spent.tight_epsilon(1e-6) == pytest.approx(19.4236565, abs=1e-6)
    one = Spending().add([Cost(Gaussian(3.73063163), 1.0)])
    assert one.tight_epsilon(1e-5) == pytest.approx(1.0, abs=1e-8)


def test_gaussians_of_different_scale_add_in_squares():
    mixed = Spending().add([Cost(Gaussian(3.0), 1.0), Cost(Gaussian(8.0), 2.0)])
    same = Spending().add([Cost(Gaussian(12.0), 5.0)])  # 1/9 + 1/16 = (5/12)^2
    assert mixed.tight_epsilon(1e-5) == pytest.approx(same.tight_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_a_mixture_lies_above_the_optimistic_end_of_another_engine(delta):
    from dp_accounting.pld import privacy_loss_distribution as pld

    kinds = [(Laplace(10.0), 1.0, 12), (Gaussian(15.0), 1.0, 20), (TwoSidedGeometric(9.0), 1, 5)]
    grid = {"pessimistic_estimate": False, "value_discretization_interval": 1e-4}
    low = pld.from_laplace_mechanism(10.0, **grid).self_compose(12)
    low = low.compose(pld.from_gaussian_mechanism(15.0, **grid).self_compose(20))
    low = low.compose(pld.from_discrete_laplace_mechanism(1 / 9.0, **grid).self_compose(5)).get_epsilon_for_delta(delta)
    bound = Spending().add([Cost(law, s, count=n) for law, s, n in kinds]).tight_epsilon(delta)
    assert low <= bound <= low * 1.01


@pytest.mark.parametrize(("stddev", "k"), [(1.0, 1), (2.0, 3), (0.6, 2)])
def test_the_discrete_gaussian_bound_holds_by_enumeration(stddev, k):
    t = np.arange(-40, 41)
    log_p = -(t**2) / (2 * stddev**2)
    log_q = -((t - 1) ** 2) / (2 * stddev**2)
    p, q = (np.exp(x - np.logaddexp.reduce(x)) for x in (log_p, log_q))
    joint = product([(p, q)] * k) if k < 3 else product([(p[25:56], q[25:56])] * k)
    for delta in (1e-2, 1e-5):
        bound = Spending().add([Cost(DiscreteGaussian(stddev), 1.0, count=k)]).tight_epsilon(delta)
        exact = exact_epsilon(*joint, delta)
        assert exact <= bound <= exact * 1.35 + 0.1  # a Renyi bound: valid, and some way above


def test_renyi_orders_bound_the_exact_composition():
    for groups in (((Cost(Gaussian(4.0), 1.0), 7),), ((Cost(Guarantee(0.4), None), 6),)):
        for delta in (1e-2, 1e-6, 1e-12):
            assert epsilon_upper(groups, delta) <= _renyi_epsilon(groups, delta)


# --- exact sums ---


def test_the_ten_tables_of_the_paper_cost_exactly_one():
    spent = Spending().add([Cost(TwoSidedGeometric(20.0), 2)] * 10)
    assert spent.epsilon == 1 and spent.fits(Fraction(1), Fraction(0))
    assert not spent.add([Cost(Laplace(1e300), 1e-300)]).fits(Fraction(1), Fraction(0))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.integers(1, 5), st.integers(1, 100)), min_size=1, max_size=8))
def test_plain_addition_is_exact_and_blind_to_order(parts):
    costs = [Cost(TwoSidedGeometric(scale), move, count=n) for scale, move, n in parts]
    exact = sum(n * Fraction(move) / Fraction(scale) for scale, move, n in parts)
    assert Spending().add(costs).epsilon == exact == Spending().add(costs[::-1]).epsilon


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.5, 50), st.integers(1, 3), st.integers(1, 20)), min_size=1, max_size=3),
    st.sampled_from([1e-3, 1e-6, 1e-12]),
)
def test_tight_is_at_most_the_sum_and_grows_with_every_release(parts, delta):
    spent, before = Spending(), 0.0
    for scale, move, n in parts:
        spent = spent.add([Cost(TwoSidedGeometric(scale), move, count=n)])
        now = spent.tight_epsilon(delta)
        assert before * (1 - 1e-6) - 1e-9 <= now and Fraction(now) <= max(
            spent.epsilon, decimal_reading(float(spent.epsilon))
        ) * (1 + Fraction(1, 2**50))
        assert spent.tight_epsilon(delta / 10) >= now * (1 - 1e-6)
        before = now


@pytest.mark.parametrize("law", [Gaussian(12.0), DiscreteGaussian(12.0)])
@pytest.mark.parametrize("delta", [1e-6, 1e-12, 1e-30])
def test_gaussians_and_pure_mechanisms_cost_at_most_their_sum(law, delta):
    gaussian = ((Cost(law, 1.0), 3),)
    pure = ((Cost(Laplace(8.0), 1.0), 2), (Cost(Guarantee(0.05), None), 1))
    alone, both = epsilon_upper(gaussian, delta), epsilon_upper(gaussian + pure, delta)
    assert alone < both <= (alone + 0.3) * (1 + 1e-15)


def test_a_gaussian_and_a_pure_mechanism_fit_a_total_of_their_sum_at_a_tiny_delta():
    groups = ((Cost(Gaussian.from_epsilon(0.6, delta=1e-12, sensitivity=1.0), 1.0), 1), (Cost(Guarantee(0.4), None), 1))
    assert _renyi_epsilon(groups, 1e-12) > 1.01
    assert 0.99 < epsilon_upper(groups, 1e-12) < 1.0


@pytest.mark.parametrize("mu", [0.01, 0.3, 4.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-30])
def test_the_gaussian_of_a_mixture_lies_closely_above_the_closed_form(mu, delta):
    exact = gaussian_epsilon(mu, delta)
    found = ComposedLoss(((gaussian_law(mu, left_out=1e-6 * delta), 1),)).upper_crossing(delta, size=1 << 17)
    assert exact <= found <= exact + 3e-4 * mu * np.sqrt(1 - np.log10(delta))


def test_a_guarantee_with_delta_eats_delta_first():
    spent = Spending().add([Cost(Guarantee(0.1, 1e-7), None, count=9)])
    assert spent.epsilon == Fraction(9, 10) and spent.delta == Fraction(9, 10**7)
    assert spent.tight_epsilon(8e-7) == math.inf
    assert spent.tight_epsilon(9e-7) == 0.9
    assert spent.tight_epsilon(1e-3) < 0.9


def test_extreme_parameters_give_a_bound_and_no_warning():
    costs = [
        Cost(Guarantee(1e5), None, count=1000),
        Cost(Guarantee(1e-300), None, count=10**9),
        Cost(Laplace(1e-5), 1.0),
        Cost(TwoSidedGeometric(1e6), 10**6, count=3),
        Cost(Gaussian(1e-6), 1.0),
        Cost(Gaussian(1e9), 1.0),
        Cost(DiscreteGaussian(1e-3), 1.0),
    ]
    for cost in costs:
        for delta in (0.0, 1e-15, 1e-6, 0.5):
            bound = Spending().add([cost]).tight_epsilon(delta)
            assert bound >= 0 and (math.isfinite(bound) or delta == 0)
    assert math.isfinite(Spending().add(costs).tight_epsilon(1e-6))


# --- rounding and records ---


@given(st.fractions(0, 10))
def test_roundings_bracket(value):
    low, high = float_down(value), float_up_or_decimal(value)
    assert max(Fraction(low), decimal_reading(low)) <= value <= max(Fraction(high), decimal_reading(high))
    assert low <= decimal_down(value) and decimal_reading(decimal_down(value)) <= value
    # No further away than rounding demands: one step up from `low`, or down from `high`, reaches the other side.
    assert math.nextafter(low, math.inf) >= value * (1 - Fraction(1, 2**52))
    assert math.nextafter(high, -math.inf) <= value


@pytest.mark.parametrize(
    "law", [Guarantee(0.3, 1e-9), Laplace(0.1), TwoSidedGeometric(3.0), Gaussian(2.0), DiscreteGaussian(5.0)]
)
def test_records_of_laws_come_back(law):
    assert law_from_dict(law.to_dict()) == law


@pytest.mark.parametrize(
    "record", [None, [], {}, {"law": "guarantee"}, {"law": "guarantee", "epsilon": 1.0}, {"law": ["x"]}]
)
def test_other_records_are_refused(record):
    with pytest.raises(InputError):
        law_from_dict(record)


@pytest.mark.parametrize(
    "arguments", [(0,), (-1,), (math.inf,), ("1",), (1.0, 1.0), (1.0, -1e-9), (1.0, math.nan), (True,)]
)
def test_impossible_guarantees_are_refused(arguments):
    with pytest.raises(InputError):
        Guarantee(*arguments)
