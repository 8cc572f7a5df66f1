import itertools
import math
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from audit import assert_claimed_delta
from oracles.bloom_exhaustive import worst_pair

from dpbayes.bloom.calibration import one_filter_epsilon, one_filter_loss
from dpbayes.bloom.claims import EpsilonClaim, exchange_bound
from dpbayes.bloom.filters import transition_matrix
from dpbayes.bloom.many_filters import (
    BackgroundShape,
    all_pairs_epsilon,
    background_delta,
    background_shapes,
    filters_loss,
    worst_known_pair,
)
from dpbayes.errors import InputError
from dpbayes.privacy.loss_law import Bounds
from dpbayes.privacy.losses import geometric_loss


def _histogram_law(logos, p, k):
    """Law of the released histogram by listing every output sequence: slow, and nothing shared with the package."""
    kernel = transition_matrix(k, p)
    law = {}
    for outputs in itertools.product(range(2**k), repeat=len(logos)):
        mass = np.prod([kernel[i, j] for i, j in zip(logos, outputs, strict=True)])
        key = tuple(sorted(outputs))
        law[key] = law.get(key, 0.0) + mass
    return law


def _hockey_stick(first, second, epsilon):
    return sum(max(mass - np.exp(epsilon) * second[key], 0.0) for key, mass in first.items())


def _neighbours(k, m):
    for common in itertools.combinations_with_replacement(range(2**k), m - 1):
        for a, b in itertools.combinations(range(2**k), 2):
            yield (*common, a), (*common, b)


def _audited_pairs(k, m, p):
    """Every pair of neighbouring inputs with its enumerated output laws, over one list of outcomes."""
    outcomes = list(itertools.combinations_with_replacement(range(2**k), m))
    laws = {}
    for pair in _neighbours(k, m):
        for logos in pair:
            if tuple(sorted(logos)) not in laws:
                law = _histogram_law(logos, p, k)
                laws[tuple(sorted(logos))] = np.log([law[outcome] for outcome in outcomes])
        one, two = pair
        yield f"{one} ~ {two}", laws[tuple(sorted(one))], laws[tuple(sorted(two))]


def _background_laws(shape, m, p, k):
    """Output laws of D' and D, in which the logos of the others lie to a = 0 and b as the shape says."""
    b, c = 2**shape.differ - 1, (2**shape.like_b - 1) | ((2**shape.apart - 1) << shape.differ)
    return [_histogram_law((c,) * (m - 1) + (x,), p, k) for x in (b, 0)]


def _exchanges(k, m):
    """Pairs of inputs that differ by the exchange of a person: bits go at one position and come at another."""
    logos = range(2**k)
    for common in itertools.combinations_with_replacement(logos, m - 2):
        for one, two in itertools.product(logos, repeat=2):
            less = [logo for logo in logos if logo & one == logo]
            more = [logo for logo in logos if logo | two == logo]
            for first, second in itertools.product(less, more):
                yield tuple(sorted((*common, one, two))), tuple(sorted((*common, first, second)))


def test_exchanging_a_person_costs_more_than_one_position_and_at_most_the_group_bound():
    k, m, p = 2, 5, 0.3
    kernel, laws = transition_matrix(k, p), {}
    for logos in itertools.combinations_with_replacement(range(2**k), m):
        law = {(0,) * 2**k: 1.0}
        for logo in logos:
            longer = {}
            for (counts, mass), out in itertools.product(law.items(), range(2**k)):
                key = (*counts[:out], counts[out] + 1, *counts[out + 1 :])
                longer[key] = longer.get(key, 0.0) + mass * kernel[logo, out]
            law = longer
        laws[logos] = np.array([law[key] for key in sorted(law)])

    def largest_delta(pairs, epsilon):
        return max(np.maximum(laws[a] - np.exp(epsilon) * laws[b], 0.0).sum() for a, b in pairs)

    exchanged = {pair for a, b in _exchanges(k, m) if a != b for pair in ((a, b), (b, a))}
    claim = worst_pair(n_filters=k, n_bits=m, flip_prob=p, delta=0.05)
    assert claim.upper == pytest.approx(0.7441, abs=5e-5)
    # At the epsilon of one position the exchange exceeds its delta; its own epsilon is .8493.
    assert largest_delta(exchanged, claim.upper) > 0.06
    assert largest_delta(exchanged, 0.8492) > 0.05 > largest_delta(exchanged, 0.8493)
    for delta in (0.3, 0.05, 1e-2, 1e-4):
        epsilon, bound = exchange_bound(worst_pair(n_filters=k, n_bits=m, flip_prob=p, delta=delta))
        assert largest_delta(exchanged, epsilon) <= bound
    # A person more or less, or other publishers for one, is one position: nothing exceeds the claim.
    once = {(tuple(sorted(b)), tuple(sorted(a))) for pair in _neighbours(k, m) for a, b in (pair, pair[::-1])}
    assert largest_delta(once, claim.upper) == pytest.approx(0.05, rel=1e-6)


def test_the_bound_of_an_exchange_is_group_privacy_rounded_up():
    claim = EpsilonClaim(Bounds(0.1, 0.7), 1e-4, "tight", "all pairs, upper bound", "any")
    epsilon, delta = exchange_bound(claim)
    group = (1 + Fraction(math.exp(0.7))) * Fraction(1e-4)
    assert epsilon == 1.4 and group < Fraction(delta) < group * (1 + Fraction(1, 10**12))
    assert exchange_bound(replace(claim, epsilon=Bounds(0.0, 800.0))) == (1600.0, 1.0)
    for scope in ("one pair", "paper's pair, certified"):
        with pytest.raises(InputError, match=f"got one for .{scope}.*pairs='all'.* gives it"):
            exchange_bound(replace(claim, scope=scope))


def test_losses_of_one_position_do_not_compose_with_those_of_records():
    loss = one_filter_loss(n_bits=20, flip_prob=0.2, count_ones=3)
    for adjacency in ("replace-one", "add-remove"):
        table = geometric_loss(scale=2.0, sensitivity=1, adjacency=adjacency)
        with pytest.raises(InputError, match=f"one-position and {adjacency} do not compose"):
            loss.compose(table)
    assert loss.compose(loss).adjacency == "one-position"


DELTAS = [0.3, 0.05, 1e-3, 1e-6]


@pytest.mark.parametrize(
    ("k", "m", "p"), [(1, 1, 0.3), (1, 4, 0.3), (1, 7, 0.05), (2, 3, 0.2), (2, 4, 0.4), (3, 2, 0.25)]
)
def test_white_box_audit_of_every_claim(k, m, p):
    """Every output of every pair, both orders: nothing exceeds what is claimed for all pairs; the worst meets it."""
    pairs = list(_audited_pairs(k, m, p))
    exhaustive = {d: worst_pair(n_filters=k, n_bits=m, flip_prob=p, delta=d) for d in DELTAS}
    proven = {d: all_pairs_epsilon(n_filters=k, n_bits=m, flip_prob=p, delta=d) for d in DELTAS[1:2]}
    claims = [exhaustive, proven]
    if k == 1:
        claims.append({d: one_filter_epsilon(n_bits=m, flip_prob=p, delta=d) for d in DELTAS})
    for curve in claims:
        for delta, claim in curve.items():
            worst = assert_claimed_delta(pairs, lambda _, delta=delta: delta, epsilons=[claim.upper])
            if curve is not proven and claim.upper > 1e-9:
                assert worst.delta == pytest.approx(delta, rel=1e-6)
    for delta in proven:
        assert proven[delta].lower <= exhaustive[delta].upper * (1 + 1e-9) <= proven[delta].upper * (1 + 2e-9)


@pytest.mark.parametrize(("k", "m", "p"), [(1, 6, 0.2), (2, 4, 0.3), (3, 2, 0.25)])
def test_white_box_audit_of_the_losses(k, m, p):
    """The whole curve of a loss covers the pair that it is about, and the audit would notice if it did not."""
    epsilons = np.linspace(0.0, k * np.log((1 - p) / p), 15)[:-1]
    loss = filters_loss(n_filters=k, n_bits=m, flip_prob=p)
    laws = {
        f"{one} ~ {two}": (first, second)
        for (one, two), (_, first, second) in zip(_neighbours(k, m), _audited_pairs(k, m, p), strict=True)
    }
    paper = f"{(0,) * m} ~ {(*(0,) * (m - 1), 2**k - 1)}"
    worst = assert_claimed_delta([(paper, *laws[paper])], lambda e: loss.delta_bounds(e).upper, epsilons=epsilons)
    assert worst.delta == pytest.approx(worst.claimed, abs=1e-6)
    if k == 1:
        for ones in range(m):
            single = one_filter_loss(n_bits=m, flip_prob=p, count_ones=ones)
            common = (0,) * (m - 1 - ones) + (1,) * ones
            pair = f"{(*common, 0)} ~ {(*common, 1)}"
            assert_claimed_delta([(pair, *laws[pair])], single.delta, epsilons=epsilons)
    with pytest.raises(AssertionError, match="exceeds the claimed"):
        assert_claimed_delta([(paper, *laws[paper])], lambda e: 0.99 * loss.delta_bounds(e).lower, epsilons=epsilons)


@pytest.mark.parametrize(
    ("k", "m", "p", "epsilon"), [(2, 3, 0.2, 0.4), (3, 2, 0.3, 0.1), (2, 4, 0.1, 1.0), (3, 2, 0.05, 7.9)]
)
def test_background_delta_against_enumeration(k, m, p, epsilon):
    for h in range(1, k + 1):
        for shape in background_shapes(k, differ=h):
            exact = _hockey_stick(*_background_laws(shape, m, p, k), epsilon)
            bounds = background_delta(shape, n_bits=m, flip_prob=p, epsilon=epsilon)
            assert bounds.lower - 1e-10 <= exact <= bounds.upper + 1e-10
            assert bounds.upper <= exact + 2e-3


@pytest.mark.parametrize("shape", [BackgroundShape(2, 0, 0), BackgroundShape(2, 1, 0), BackgroundShape(2, 2, 0)])
def test_background_delta_knows_its_roundings_near_the_largest_loss(shape):
    """One position alone: delta = q^2 - e^epsilon p^2, a difference of numbers that agree in seven digits."""
    p, epsilon = Fraction(0.2), 0.9999999 * 2 * math.log(4)
    ratio = Fraction(str(Decimal(epsilon).exp(Context(prec=40))))
    bounds = background_delta(shape, n_bits=1, flip_prob=0.2, epsilon=epsilon, size=2**18)
    assert bounds.lower <= (1 - p) ** 2 - ratio * p**2 <= bounds.upper <= bounds.lower + 1e-12


@pytest.mark.parametrize(
    ("k", "m", "p", "delta"),
    [(3, 2, 0.05, 0.2), (3, 2, 0.05, 0.01), (2, 5, 0.1, 0.01), (2, 4, 0.05, 1e-3), (2, 2, 0.01, 0.05)],
)
def test_worst_known_pair_encloses_the_worst_of_all_backgrounds(k, m, p, delta):
    """Every background enumerated, in both orders: none exceeds delta at the upper end; the named does at the lower."""
    claim = worst_known_pair(n_filters=k, n_bits=m, flip_prob=p, delta=delta)
    laws = {s: _background_laws(s, m, p, k) for h in range(1, k + 1) for s in background_shapes(k, differ=h)}
    assert max(_hockey_stick(*pair, claim.upper) for pair in laws.values()) <= delta * (1 + 1e-12)
    named = next(pair for shape, pair in laws.items() if str(shape) == claim.pair)
    assert max(_hockey_stick(*order, claim.lower) for order in (named, named[::-1])) >= delta * (1 - 1e-12)
    assert claim.epsilon.width <= 5e-4 * claim.upper


def test_worst_known_pair_finds_the_shape_that_a_coarse_lattice_hides():
    claim = worst_known_pair(n_filters=6, n_bits=2000, flip_prob=0.05, delta=1e-3)
    shape = BackgroundShape(4, 0, 2)
    assert claim.pair == str(shape) and 11.118 < claim.lower < claim.upper < 11.119
    fine = {"n_bits": 2000, "flip_prob": 0.05, "size": 2**18}
    assert background_delta(shape, epsilon=claim.lower, **fine).upper > 1e-3
    rivals = [BackgroundShape(5, 0, 1), BackgroundShape(6, 5, 0), BackgroundShape(6, 0, 0)]
    assert all(background_delta(rival, epsilon=claim.upper, **fine).upper < 1e-3 for rival in rivals)
    # One bit alone: delta(epsilon) = q - e^epsilon p.
    claim = worst_known_pair(n_filters=1, n_bits=1, flip_prob=1e-6, delta=1e-9)
    assert claim.upper >= math.log((1 - 1e-6 - 1e-9) / 1e-6) >= claim.upper - 1e-8


def test_backgrounds_are_monotone_in_every_count():
    def delta(*counts):
        like_a, like_b, apart = counts
        shape = BackgroundShape(like_a + like_b, like_b, apart)
        return background_delta(shape, n_bits=200, flip_prob=0.2, epsilon=0.5, size=2**15)

    for counts in itertools.product(range(3), repeat=3):
        if counts[0] + counts[1] == 0:
            continue
        for place in range(3):
            larger = list(counts)
            larger[place] += 1
            assert delta(*larger).upper >= delta(*counts).lower - 1e-9


def test_the_papers_pair_is_not_always_worst():
    small = worst_pair(n_filters=2, n_bits=6, flip_prob=0.2, delta=0.05)
    assert small.upper == pytest.approx(1.67586, abs=5e-6)
    assert small.pair == "logo 0 against 3 among others with logo counts (0, 0, 1, 4)"
    paper = filters_loss(n_filters=2, n_bits=6, flip_prob=0.2).epsilon_bounds(0.05)
    assert paper.upper == pytest.approx(1.51577, abs=5e-6)
    # Nor at the size of the paper's example: others that differ from both logos leave fewer to hide among.
    shape, paper = BackgroundShape(2, 0, 4), BackgroundShape(6, 0, 0)
    one, two = (background_delta(s, n_bits=100_000, flip_prob=0.1, epsilon=2.45, size=2**18) for s in (shape, paper))
    assert one.lower > 1e-3 > two.upper


def test_the_papers_pair_has_one_background():
    loss = filters_loss(n_filters=3, n_bits=1000, flip_prob=0.3)
    bounds = loss.delta_bounds(0.2)
    worst = [
        background_delta(BackgroundShape(3, i, 0), n_bits=1000, flip_prob=0.3, epsilon=0.2, size=2**17) for i in (0, 3)
    ]
    assert max(one.lower for one in worst) <= bounds.upper and bounds.lower <= max(one.upper for one in worst)


@pytest.mark.parametrize(("k", "m", "p"), [(2, 8, 0.25), (1, 40, 0.1)])
def test_bounds_enclose_the_exhaustive_answer(k, m, p):
    delta = 1e-2
    exact = worst_pair(n_filters=k, n_bits=m, flip_prob=p, delta=delta).upper
    worst = worst_known_pair(n_filters=k, n_bits=m, flip_prob=p, delta=delta)
    bound = all_pairs_epsilon(n_filters=k, n_bits=m, flip_prob=p, delta=delta)
    assert worst.lower <= exact * (1 + 1e-9) <= bound.upper * (1 + 2e-9)
    assert worst.scope == "one pair" and bound.scope == "all pairs, upper bound"
    if k == 1:
        assert exact == pytest.approx(one_filter_epsilon(n_bits=m, flip_prob=p, delta=delta).upper, abs=1e-9)


def test_quantile_by_exhaustion():
    claim = worst_pair(n_filters=1, n_bits=30, flip_prob=0.2, delta=1e-2, definition="quantile")
    one = one_filter_epsilon(n_bits=30, flip_prob=0.2, delta=1e-2, definition="quantile")
    assert claim.upper == pytest.approx(one.upper, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("k", "m", "p"), [(6, 100_000, 0.1), (6, 100_000, 0.3), (10, 1_000_000, 0.3)])
def test_upper_bound_at_full_size(k, m, p):
    bound = all_pairs_epsilon(n_filters=k, n_bits=m, flip_prob=p, delta=1e-3)
    paper = filters_loss(n_filters=k, n_bits=m, flip_prob=p).epsilon_bounds(1e-3)
    assert paper.lower <= bound.upper < k * np.log((1 - p) / p)
    assert bound.lower <= bound.upper < 5 * bound.lower


def test_too_large_to_exhaust():
    with pytest.raises(InputError, match="too many inputs and outputs"):
        worst_pair(n_filters=6, n_bits=100, flip_prob=0.1, delta=1e-3)
