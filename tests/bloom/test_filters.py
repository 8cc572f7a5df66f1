import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from dpbayes.bloom.filters import (
    BitDistribution,
    BloomRelease,
    Filters,
    apply_transition,
    build_filters,
    hash_items,
    secure_coins,
    shuffle_flip,
    solve_transition,
    transition_matrix,
)
from dpbayes.bloom.reach import estimate_reach
from dpbayes.errors import InputError


@given(k=st.integers(1, 6), p=st.floats(0.01, 0.49), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_kronecker_action_is_the_matrix(k, p, seed):
    matrix = transition_matrix(k, p)
    i, j = np.indices(matrix.shape)
    distance = np.bitwise_count(i ^ j)
    np.testing.assert_allclose(matrix, p**distance * (1 - p) ** (k - distance), rtol=1e-12)
    values = np.random.default_rng(seed).normal(size=(2**k, 3))
    np.testing.assert_allclose(apply_transition(values, p), matrix @ values, atol=1e-12)
    np.testing.assert_allclose(apply_transition(values[:, 0], p), matrix @ values[:, 0], atol=1e-12)
    np.testing.assert_allclose(solve_transition(apply_transition(values, p), p), values, atol=1e-12 / (1 - 2 * p) ** k)


def test_bits_and_logos_convert():
    bits = np.random.default_rng(0).integers(0, 2, size=(5, 40))
    filters = Filters.from_bits(bits)
    np.testing.assert_array_equal(filters.logos >> np.arange(5)[:, None] & 1, bits)
    counts = Filters.from_bits(bits).counts
    assert counts.sum() == 40 and counts.size == 32
    np.testing.assert_array_equal(counts, np.bincount(2 ** np.arange(5) @ bits, minlength=32))


def test_filters_do_not_show_their_bits():
    filters = Filters.from_bits([[1, 0, 1], [1, 0, 0]])
    assert repr(filters) == "Filters(n_filters=2, n_bits=3)"


@pytest.mark.parametrize("rng", [None, np.random.default_rng(3)])
def test_flips_are_independent_with_the_right_rate(rng):
    """Chi-square of 2^3 logo counts from one input logo: false alarm 1e-6."""
    p, m = 0.2, 200_000
    released = shuffle_flip(Filters(np.full(m, 5, dtype=np.uint32), 3), flip_prob=p, rng=rng)
    assert released.sampler == ("secure" if rng is None else "simulation")
    expected = m * transition_matrix(3, p)[5]
    statistic = ((released.counts - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(1e-6, 7)


def test_a_release_holds_no_order():
    bits = np.random.default_rng(4).integers(0, 2, (2, 500))
    one, other = (shuffle_flip(b, flip_prob=1e-12).counts for b in (bits, bits[:, ::-1]))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, Filters.from_bits(bits).counts)  # a thousand bits: a false alarm once in 1e9


def test_coins_follow_every_byte_of_the_probability():
    """A probability that only the third byte tells from zero; 4.9 standard errors, false alarm 1e-6."""
    n = 4_000_000
    prob = 2.0**-17
    heads = int(secure_coins(n, prob).sum())
    assert abs(heads - n * prob) < 4.9 * np.sqrt(n * prob)
    assert abs(int(secure_coins(n, 1 / 3).sum()) - n / 3) < 4.9 * np.sqrt(n * 2 / 9)


def test_hashes_spread_and_agree():
    items = np.arange(50_000)
    np.testing.assert_array_equal(hash_items(items[::-1], seed=9)[::-1], hash_items(items, seed=9))
    assert np.unique(hash_items(items, seed=9)).size == items.size
    assert (hash_items(items, seed=9) != hash_items(items, seed=10)).all()
    assert hash_items(["ann", b"ann"], seed=1)[0] == hash_items(["ann"], seed=1)[0]
    for law in (BitDistribution(50), BitDistribution(50, decay=3.0), BitDistribution(50, decay=2.565)):
        counts = np.bincount(law.positions(hash_items(items, seed=2)), minlength=50)
        expected = law.probabilities() * items.size
        assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-6, 49)


@pytest.mark.parametrize("decay", [0.0, 2.0, 10.0])
def test_people_inverts_zero_fraction(decay):
    law = BitDistribution(10_000, decay=decay)
    people = np.array([1.0, 500.0, 8000.0, 60_000.0])
    np.testing.assert_allclose(law.people(law.zero_fraction(people)), people, rtol=1e-7)
    exact = [np.mean((1 - law.probabilities()) ** n) for n in people]
    np.testing.assert_allclose(law.zero_fraction(people), exact, rtol=2e-3)


def _audience(law, rng):
    """Three overlapping audiences and the truth about them."""
    people = rng.choice(10**9, size=3000, replace=False)
    sets = [people[:1800], people[1000:2400], np.concatenate([people[:300], people[1500:3000]])]
    times = np.bincount(np.unique(np.concatenate(sets), return_inverse=True)[1])
    return build_filters(sets, distribution=law, seed=int(rng.integers(2**60))), times


@pytest.mark.parametrize("decay", [0.0, 3.0])
def test_reach_is_unbiased_with_honest_errors(decay):
    """150 fresh hashes and flips: mean z within 4.5 / sqrt(150) (false alarm 1e-5), variance by chi-square (1e-5)."""
    rng, repeats = np.random.default_rng(11), 150
    law = BitDistribution(6000, decay=decay)
    scores = []
    for _ in range(repeats):
        filters, times = _audience(law, rng)
        reach = estimate_reach(shuffle_flip(filters, flip_prob=0.05, decay=law.decay, rng=rng))
        truths = [times.size, (times == 3).sum(), (times == 1).sum(), (times == 2).sum(), 1800]
        found = [reach.union(), reach.intersection(), reach.frequency(1), reach.frequency(2), reach.union((0,))]
        scores.append(
            [(estimate.value - truth) / estimate.stderr for estimate, truth in zip(found, truths, strict=True)]
        )
    scores = np.array(scores)
    # Inverting a curve biases by about half a standard error squared over the size: well below 0.15 here.
    assert np.abs(scores.mean(axis=0)).max() < 0.15 + 4.5 / np.sqrt(repeats)
    squares = (scores**2).sum(axis=0)
    assert squares.max() < chi2.isf(1e-5, repeats) * 1.1
    # With a decay the hashing part is an upper bound, so only the uniform errors must not be too long.
    if decay == 0.0:
        assert squares.min() > chi2.ppf(1e-5, repeats)


def test_debiased_counts_are_unbiased_with_honest_errors():
    rng, repeats, p = np.random.default_rng(12), 400, 0.2
    logos = rng.choice(8, size=3000, p=np.array([30, 8, 4, 2, 9, 1, 1, 5]) / 60).astype(np.uint32)
    filters = Filters(logos, 3)
    true, coefficients = filters.counts, np.array([1.0, 0, 2, 0, -1, 0.5, 0, 3])
    scores = []
    for _ in range(repeats):
        released = shuffle_flip(filters, flip_prob=p, rng=rng)
        scores.append(coefficients @ (released.debiased - true) / np.sqrt(released.flip_variance(coefficients)))
    scores = np.array(scores)
    assert abs(scores.mean()) < 4.5 / np.sqrt(repeats)
    assert chi2.ppf(1e-5, repeats) < (scores**2).sum() < chi2.isf(1e-5, repeats)


def test_twenty_filters():
    rng = np.random.default_rng(2)
    filters = Filters(rng.integers(0, 2**20, size=100_000).astype(np.uint32), 20)
    released = shuffle_flip(filters, flip_prob=0.3)
    counts = released.counts
    assert counts.size == 2**20 and counts.sum() == 100_000
    assert released.debiased.sum() == pytest.approx(100_000)


def test_a_long_name_takes_no_more_room_than_itself():
    names = [*(f"person {number}" for number in range(20_000)), "x" * 20_000]
    expected = hash_items(names, seed=1)
    for column in (pl.Series(names), pd.Series(names), pd.Series(names, dtype="string"), pa.array(names)):
        tracemalloc.start()
        np.testing.assert_array_equal(hash_items(column, seed=1), expected)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 50e6  # an array of texts has 1.6 GB
    np.testing.assert_array_equal(hash_items(pl.Series([1, 2]), seed=1), hash_items([1, 2], seed=1))
    with pytest.raises(InputError, match="drop missing ones"):
        hash_items(pl.Series(["a", None]), seed=1)


def test_one_person_leaves_the_hashes_of_the_others_alone():
    for items in (["ann", "bob"], [b"ann\0", b"ann"], [1, 2], np.array([1, 2], dtype=object)):
        for other in ("eve", b"\xff", 3, 2**64, None):
            try:
                hashes = hash_items([*items, other], seed=1)
            except InputError:
                continue  # refused as a whole
            np.testing.assert_array_equal(hashes[:2], hash_items(items, seed=1))
    # NumPy drops the zero at the end of a text of bytes.
    assert len(set(hash_items([b"ann\0", b"ann"], seed=1).tolist())) == 2


@pytest.mark.parametrize(
    "items",
    [[4111111111111111.0, 7.0], np.array([4111111111111111, None]), [True, False], [4111111111111111, "ann"]],
)
def test_an_identifier_is_not_in_the_message_that_refuses_it(items):
    with pytest.raises(InputError, match=r"an item of type \w+; drop missing ones and convert") as caught:
        build_filters([items], distribution=BitDistribution(10), seed=1)
    assert not any(word in str(caught.value) for word in ("4111", "4.1", "True"))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: shuffle_flip([[1, 0], [1]], flip_prob=0.1), "rows of different lengths"),
        (lambda: shuffle_flip([[1, 2]], flip_prob=0.1), "0 or 1"),
        (lambda: shuffle_flip([1, 0], flip_prob=0.1), "one row per filter"),
        (lambda: shuffle_flip([[]], flip_prob=0.1), "one column per position"),
        (lambda: shuffle_flip([[1, 0]], flip_prob=0.5), "got 0.5"),
        (lambda: shuffle_flip(np.zeros((21, 4), dtype=int), flip_prob=0.1), "from 1 to 20, got 21"),
        (lambda: shuffle_flip(shuffle_flip([[1, 0]], flip_prob=0.1), flip_prob=0.1), "one row per filter"),
        (lambda: Filters(np.array([4], dtype=np.uint32), 2), "must be below 4"),
        (lambda: Filters(np.array([1.0]), 2), "uint32"),
        (lambda: BloomRelease(np.array([1, 2, 3]), 0.1, "simulation"), "2.k logos"),
        (lambda: BloomRelease(np.array([1, -2]), 0.1, "simulation"), ">= 0"),
        (lambda: hash_items([1.5], seed=1), "an item of type float; drop missing ones"),
        (lambda: BitDistribution(10, decay=-1.0), "got -1.0"),
        (lambda: estimate_reach(BloomRelease(np.array([0, 9]), 0.1, "simulation")), "too full"),
        (lambda: transition_matrix(11, 0.1), "from 1 to 10, got 11"),
    ],
)
def test_bad_input(call, text):
    with pytest.raises(InputError, match=text):
        call()
