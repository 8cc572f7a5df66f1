"""Whole counts behind a release: the exact posterior on a small table, coverage on simulated counties."""

import numpy as np
import pytest
from census_files import simulated_tracts, write_measurements
from scipy.special import gammaln

from dpbayes.data import Domain
from dpbayes.errors import InputError
from dpbayes.inference import sample_whole_counts
from dpbayes.inference.schema import check
from dpbayes.inference.whole_counts import _move, _numbers, _seed
from dpbayes.privacy import DiscreteGaussian, NoisyTable, NoisyTotal, Publication, Release, TwoSidedGeometric
from dpbayes.privacy.readers import read_census_measurements
from dpbayes.runs.spec import CENSUS_QUERIES

STATED = Publication("An office", "https://example.org", "2026", "as in the tests")


@pytest.mark.parametrize("law", [DiscreteGaussian(2.0), TwoSidedGeometric(2.0)])
def test_moves_have_the_posterior_by_enumeration(law) -> None:
    """Three cells of 12 records, one table of all and one of the first: frequencies against all 91 states."""
    n, released, first, share, r = 12, np.array([5.0, 1.0, 4.0]), 7.0, np.array([0.5, 0.1, 0.4]), 1.5
    states = np.array([(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)])
    logp = (states * np.log(share) + gammaln(r + states) - gammaln(states + 1)).sum(axis=1)
    logp += law.log_prob(released - states).sum(axis=1) + law.log_prob(first - states[:, 0])
    logp += law.log_prob(n - first - states[:, 1:].sum(axis=1))
    exact = np.exp(logp - logp.max()) / np.exp(logp - logp.max()).sum()
    place = np.array([[0, 3], [1, 4], [2, 4]])
    x, target = np.array([4, 4, 4]), np.array([*released, first, n - first])
    off = target - np.array([*x, x[0], x[1] + x[2]])
    linear, quadratic = (np.full(5, rate) for rate in law.rates)
    _seed(1)
    drawn = []
    for _ in range(20_000):
        _move(
            x,
            off,
            place,
            linear,
            quadratic,
            np.full(5, -1),
            np.zeros((1, 2)),
            np.log(share),
            r,
            6,
            2.0,
            np.array([3]),
            False,
        )
        drawn.append(x.copy())
    assert np.array_equal(off, target - np.array([*x, x[0], x[1] + x[2]]))
    np.testing.assert_allclose(np.mean(drawn, axis=0), exact @ states, atol=0.1)
    np.testing.assert_allclose(np.std(drawn, axis=0), np.sqrt(exact @ states**2 - (exact @ states) ** 2), atol=0.1)


@pytest.mark.parametrize("law", [DiscreteGaussian(3.0), TwoSidedGeometric(2.0)])
def test_a_noisy_total_and_a_count_held_back_have_the_posterior_by_enumeration(law) -> None:
    """Two cells, the first held back below 6, the second released, and their sum with noise: all 40 x 40 states."""
    domain = Domain.from_levels({"a": (0, 1)})
    table = NoisyTable(domain, [np.nan, 9.0], law, None, None, None, 6)
    release = Release(
        domain, (table,), "as published", NoisyTotal(15, law, None, None), "published", publication=STATED
    )
    place, noise, released = _numbers(release, np.arange(2)[None])
    states, share, r = np.array([(a, b) for a in range(40) for b in range(40)]), np.array([0.6, 0.55]), 1.5
    logp = (states * np.log(share) + gammaln(r + states) - gammaln(states + 1)).sum(axis=1)
    logp += np.log(law.cdf(5 - states[:, 0])) + law.log_prob(9 - states[:, 1]) + law.log_prob(15 - states.sum(axis=1))
    exact = np.exp(logp - logp.max()) / np.exp(logp - logp.max()).sum()
    x = np.array([4, 9])
    off, drawn = np.array([0.0, 9.0, 15.0]) - np.array([x[0], x[1], x.sum()]), []
    _seed(1)
    for _ in range(20_000):
        _move(x, off, place, *noise, np.log(share), r, 6, 2.0, np.array([2]), True)
        drawn.append(x.copy())
    assert np.array_equal(off, np.array([0.0, 9.0, 15.0]) - np.array([x[0], x[1], x.sum()]))
    np.testing.assert_allclose(np.mean(drawn, axis=0), exact @ states, atol=0.1)
    np.testing.assert_allclose(np.std(drawn, axis=0), np.sqrt(exact @ states**2 - (exact @ states) ** 2), atol=0.1)
    assert released[2] == 15.0 and noise[2].tolist() == [0, -1, -1]


def test_a_noisy_number_of_records_is_sampled_and_settings_are_checked() -> None:
    domain = Domain.from_levels({"sex": ("f", "m")})
    table = NoisyTable(domain, [50, 60], DiscreteGaussian(2.0), None, None)
    total = NoisyTotal(90, DiscreteGaussian(2.0), None, None)
    release = Release(domain, (table,), "as published", total, "published", publication=STATED)
    trace = sample_whole_counts(release, draws=200, chains=2)
    # Two cells of sd 2 and their sum of sd 2: least squares move each by a third of the gap of 20.
    assert float(trace["posterior"]["counts"].sum("sex").mean()) == pytest.approx(110 - 40 / 3, abs=1.5)
    check(trace)
    for wrong in ({"draws": 0}, {"chains": 2.5}, {"tune": -1}, {"random_seed": -1}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} must be a whole number from"):
            sample_whole_counts(release, **wrong)


def least_squares_stddev(release: Release) -> np.ndarray:
    """Standard deviation of each cell's weighted least squares estimate, given the exact total."""
    names, size = release.domain.names, release.domain.size
    cells = np.eye(size).reshape(*release.domain.shape, size)
    rows, weights = [], []
    for table in release.tables:
        kept = table.domain.names
        summed = cells.sum(axis=tuple(i for i, name in enumerate(names) if name not in kept))
        order = [[name for name in names if name in kept].index(name) for name in kept]
        rows.append(summed.transpose(*order, -1).reshape(-1, size))
        weights.append(np.full(len(rows[-1]), 1.0 / table.noise.variance))
    design = np.concatenate(rows)
    covariance = np.linalg.inv(design.T @ (design * np.concatenate(weights)[:, None]))
    total = covariance.sum(axis=1)
    return np.sqrt(np.diag(covariance - np.outer(total, total) / total.sum()))


def test_least_squares_stddev_of_one_query_of_cells() -> None:
    """With one query of variance v of K cells and an exact total, each cell's variance is v (1 - 1/K)."""
    domain = Domain.from_levels({"a": (0, 1, 2), "b": (0, 1)})
    table = NoisyTable(domain, np.full(domain.shape, 5), DiscreteGaussian(4.0), None, None)
    release = Release(domain, (table,), "as published", 30, "published", publication=STATED)
    np.testing.assert_allclose(least_squares_stddev(release), np.sqrt(table.noise.variance * 5 / 6))


@pytest.mark.slow
def test_intervals_of_a_county_cover_cells_of_all_sizes(tmp_path) -> None:
    """Eight counties of 252 cells: randomized PIT inside the central 95 % by cell size, narrower than least squares."""
    inside, width = {}, []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        county = simulated_tracts(12, rng).sum(axis=0)
        queries, constraints = write_measurements(tmp_path / str(seed), {"US": county}, 25.0, rng)
        found = read_census_measurements(queries, constraints, geocodes="US", queries=CENSUS_QUERIES)["US"]
        drawn = sample_whole_counts(found.release, draws=1000, chains=2, random_seed=seed)["posterior"]["counts"]
        drawn = drawn.transpose("chain", "draw", "votingage", "hispanic", "cenrace").to_numpy().reshape(-1, 252)
        true = county.sum(axis=0).ravel()
        pit = (drawn < true).mean(axis=0) + rng.random(252) * (drawn == true).mean(axis=0)
        for name, chosen in {"0": true == 0, "to 5": (true > 0) & (true < 6), "more": true > 5}.items():
            inside.setdefault(name, []).append(((pit > 0.025) & (pit < 0.975))[chosen])
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        width.append((high - low)[true < 6].mean())
        width[-1] /= 3.92 * least_squares_stddev(found.release)[true < 6].mean()
    for found in inside.values():
        assert 0.92 < np.concatenate(found).mean() < 0.985
    assert max(width) < 0.6
