"""The test of stated noise: its rate of false alarms, its power, and what it says of thresholds and geographies."""

import numpy as np
import pytest
from scipy.stats import binom

from dpbayes.data import Domain
from dpbayes.errors import InputError
from dpbayes.privacy import (
    DiscreteGaussian,
    NoiseLaw,
    NoisyTable,
    Publication,
    Release,
    TwoSidedGeometric,
    check_stated_noise,
    join_parts,
)

DOMAIN = Domain.from_levels({"a": range(32), "b": range(16), "c": range(2)})
STATED = Publication("An office", "https://example.org", "2026", "as in the tests")


def published(domain: Domain, tables: list[NoisyTable], n: int) -> Release:
    return Release(domain, tuple(tables), "as published", n, "published", publication=STATED)


def drawn(law: NoiseLaw, true: NoiseLaw, seed: int) -> Release:
    """The full table, twice its pairs, and single attributes: 1,134 differences that are noise alone."""
    rng = np.random.default_rng(seed)
    exact = rng.poisson(rng.gamma(0.5, 40.0, DOMAIN.shape))
    tables = []
    for names in (["a", "b", "c"], ["c", "a"], ["b", "a"], ["a", "b"], ["b"], ["a"]):
        domain = DOMAIN.project(names)
        rest = tuple(k for k, name in enumerate(DOMAIN.names) if name not in names)
        kept = [name for name in DOMAIN.names if name in names]
        margin = np.transpose(exact.sum(axis=rest), [kept.index(name) for name in names])
        tables.append(NoisyTable(domain, margin + true.simulate(domain.shape, rng), law, None, None))
    return published(DOMAIN, tables, int(exact.sum()))


@pytest.mark.parametrize("law", [TwoSidedGeometric(10.0), DiscreteGaussian(6.0)])
def test_false_alarms_and_power(law: NoiseLaw) -> None:
    """At most 1 % of true statements are doubted, and nine in ten that are wrong by a factor of 1.25."""
    wrong = type(law).of(1.25 * law.spread)
    assert 1000 <= check_stated_noise(drawn(law, law, 0), draws=99).rows[0].dof <= 1200
    doubted = sum(not check_stated_noise(drawn(law, law, seed), draws=199).agrees for seed in range(40))
    assert doubted <= binom.ppf(0.999, 40, 0.01)
    found = [check_stated_noise(drawn(law, wrong, seed), draws=199) for seed in range(10)]
    # At a power of .9, fewer than 6 of 10 have a probability of 0.0016.
    assert sum(not check.agrees for check in found) >= 6
    assert np.mean([check.rows[0].ratio for check in found]) == pytest.approx(1.25, abs=0.05)
    assert "not as stated" in " ".join(found[0].lines)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_intervals_hold_the_true_ratio(factor: float) -> None:
    """Of 99 % intervals, of all tables and of one with a single difference, not more miss than one in 1,000 times."""
    law, domain = DiscreteGaussian(6.0), Domain.from_levels({"a": range(2), "b": range(30)})
    missed = np.zeros(2)
    for seed in range(200):
        rng = np.random.default_rng(seed)
        exact = rng.poisson(50.0, domain.shape)
        noisy = [
            NoisyTable(part, counts + type(law).of(factor * law.spread).simulate(part.shape, rng), law, None, None)
            for part, counts in ((domain, exact), (domain, exact), (domain.project(["a"]), exact.sum(axis=1)))
        ]
        every, *_, single = check_stated_noise(published(domain, noisy, int(exact.sum())), draws=199).rows
        assert single.table == "a" and single.dof == 2 and single.lower <= single.ratio <= single.upper
        missed += [not every.lower <= factor <= every.upper, factor == 1.0 and not single.lower <= 1.0 <= single.upper]
    # The ends are order statistics of 199 draws: between them lie 99 % on average.
    assert (missed <= binom.ppf(0.9995, 200, 0.01)).all()


@pytest.mark.slow
@pytest.mark.parametrize("law", [TwoSidedGeometric(10.0), DiscreteGaussian(6.0)])
def test_rates_with_many_releases(law: NoiseLaw) -> None:
    """1,000 true statements: the rate of false alarms is 1 % within five standard errors; 200 wrong ones: power .9."""
    doubted = sum(not check_stated_noise(drawn(law, law, seed), draws=499).agrees for seed in range(1000))
    assert doubted <= 10 + 5 * np.sqrt(10)
    wrong = type(law).of(1.25 * law.spread)
    assert sum(not check_stated_noise(drawn(law, wrong, seed), draws=199).agrees for seed in range(200)) >= 180


def test_one_wrong_table_is_named() -> None:
    release = drawn(law := DiscreteGaussian(6.0), law, 4)
    tables = list(release.tables)
    rng = np.random.default_rng(5)
    noisier = tables[3].counts + DiscreteGaussian(9.0).simulate(tables[3].counts.shape, rng)
    tables[3] = NoisyTable(tables[3].domain, noisier, law, None, None)
    check = check_stated_noise(published(DOMAIN, tables, int(release.n)), draws=299)
    assert not check.agrees
    assert max(check.rows[1:], key=lambda row: row.z).table == "a x b"


def test_noise_cell_by_cell() -> None:
    """Right variances per cell agree; the same data with all cells at the mean variance still do, but not at half."""
    rng = np.random.default_rng(7)
    domain = DOMAIN.project(["a", "b"])
    exact = rng.poisson(50.0, domain.shape)
    spreads = rng.choice([2.0, 20.0], domain.shape)
    right = NoisyTable(domain, np.zeros(domain.shape, int), DiscreteGaussian(20.0), None, None, spreads)
    tables = [
        NoisyTable(domain, exact + right.simulated_noise(rng), DiscreteGaussian(20.0), None, None, spreads)
        for _ in range(2)
    ]
    assert check_stated_noise(published(domain, tables, int(exact.sum())), draws=299).agrees
    half = [NoisyTable(domain, t.counts, DiscreteGaussian(10.0), None, None, spreads / 2.0) for t in tables]
    assert not check_stated_noise(published(domain, half, int(exact.sum())), draws=299).agrees


def test_a_threshold_that_held_back_more_than_it_says() -> None:
    """Pairs held back below 300 and stated as 20: their margin, measured alone, holds more than they can."""
    rng, law = np.random.default_rng(8), TwoSidedGeometric(5.0)
    pair, single = DOMAIN.project(["a", "b"]), DOMAIN.project(["a"])
    exact = rng.poisson(rng.gamma(0.5, 300.0, pair.shape))
    margin = NoisyTable(single, exact.sum(axis=1) + law.simulate(single.shape, rng), law, None, None)
    noisy = exact + law.simulate(pair.shape, rng)
    for stated, true, agrees in ((20, 20, True), (20, 300, False), (300, 300, True)):
        held = NoisyTable(pair, np.where(noisy >= true, noisy, np.nan), law, None, None, None, stated)
        check = check_stated_noise(published(DOMAIN, [held, margin], int(exact.sum())), draws=299)
        assert check.agrees == agrees
        assert ("A threshold is not as stated" in " ".join(check.lines)) != agrees


def test_additive_geographies() -> None:
    """Tracts that add up to their county are an overlap; tracts of twice the stated noise are found."""
    rng, domain = np.random.default_rng(9), DOMAIN.project(["a", "b"])
    exact = rng.poisson(30.0, (3, *domain.shape))

    def release(counts: np.ndarray, law: NoiseLaw, true: NoiseLaw) -> Release:
        noisy = counts + true.simulate(domain.shape, rng)
        return published(domain, [NoisyTable(domain, noisy, law, None, None)], int(counts.sum()))

    county = release(exact.sum(axis=0), law := DiscreteGaussian(5.0), law)
    for true, agrees in ((law, True), (DiscreteGaussian(10.0), False)):
        tracts = {f"t{k}": release(exact[k], law, true) for k in range(3)}
        assert join_parts(county, tracts, "tract").domain.names == ("tract", "a", "b")
        assert check_stated_noise(county, parts=tracts, draws=299).agrees == agrees
    with pytest.raises(InputError, match="two or more releases"):
        join_parts(county, {"t0": tracts["t0"]})


def test_nothing_to_compare() -> None:
    domain = Domain.from_levels({"a": range(3)})
    # So near the threshold, it may have chosen among the counts: no difference is noise alone.
    table = NoisyTable(domain, [25, 30, 40], TwoSidedGeometric(2.0), None, None, None, 20)
    check = check_stated_noise(published(domain, [table], 95))
    assert (check.rows, check.p_value, check.agrees) == ((), None, True)
    assert "No two tables measure the same counts" in check.lines[0]


def test_settings_are_checked() -> None:
    release = drawn(TwoSidedGeometric(5.0), TwoSidedGeometric(5.0), 0)
    with pytest.raises(InputError, match="draws must be a whole number from 99"):
        check_stated_noise(release, draws=10)
    with pytest.raises(InputError, match="seed must be a whole number from 0"):
        check_stated_noise(release, seed=-1)
