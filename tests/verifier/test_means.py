"""The coefficient itself by partition means: sensitivity by enumeration, posterior, skewed data, failures."""

import numpy as np
import polars as pl
import pytest
from scipy import stats

from dpbayes.errors import InputError
from dpbayes.privacy import read_release
from dpbayes.verifier import (
    PartitionCounts,
    coefficient_posterior,
    count_partitions,
    draw_posterior,
    pilot_shares,
    posterior,
    release_counts,
    sum_estimates,
)
from dpbayes.verifier.means import _allowance, _taken_by_clipping, least_coverage
from dpbayes.verifier.partition import GRID, EstimateSums

RNG = np.random.default_rng
CLAIM = {"formula": "y ~ x", "coefficient": "x"}


def released(values, *, m=None, lower=-1.0, upper=1.0, epsilon=1.0, seed=1, **kwargs):
    """A release of these estimates, with failures up to m partitions."""
    scaled = np.clip((2 * np.asarray(values) - lower - upper) / (upper - lower), -1, 1)
    grid = np.rint(GRID * scaled).astype(np.int64)
    m = grid.size if m is None else m
    sums = EstimateSums(int(grid.sum()), int((grid**2 // (2 * GRID)).sum()), m - grid.size, lower, upper, m)
    return release_counts(sums, epsilon=epsilon, rng=RNG(seed), **kwargs)


def skewed(n, rng):
    """A response that is mostly 0 with a heavy tail whose scale grows with x: skewed estimates from small samples."""
    x = (rng.random(n) < 0.05).astype(float)
    y = np.where(rng.random(n) < 0.03 + 0.06 * x, np.exp(rng.normal(1.0, 1.2, n)), 0.0)
    return pl.DataFrame({"x": x, "y": y})


@pytest.mark.parametrize("half", [1, 2, 8, 33])
def test_no_change_of_one_partition_moves_the_sums_by_more(half):
    # Every pair of grid values, and every value against a failure, for G = 2 half: the module's formulas.
    size = 2 * half
    g = np.arange(-size, size + 1)
    squares = g**2 // (2 * size)
    change = np.abs(g[:, None] - g[None, :]) + np.abs(squares[:, None] - squares[None, :])
    assert change.max() == 2 * size
    assert (np.abs(g) + squares + size // 2).max() == 2 * size
    assert EstimateSums.sensitivity == 2 * GRID and GRID % 2 == 0


@pytest.mark.parametrize("corrected", [True, False])
def test_replacing_a_unit_moves_the_released_numbers_by_the_sensitivity_at_most(corrected):
    rng = RNG(3)
    asked = {"lower": -0.5, "upper": 0.5, "n_partitions": 6, "unit": "who", "corrected": corrected, "random_state": 5}
    frame = {"who": np.repeat(np.arange(40), 3), "x": rng.normal(size=120), "y": rng.normal(size=120)}
    before = np.array(sum_estimates(pl.DataFrame(frame), **CLAIM, **asked).released(with_failures=True))
    largest = 0
    for unit in range(20):
        other = {name: values.copy() for name, values in frame.items()}
        rows = other["who"] == unit
        # A constant x makes the fit of its partition lean on the others; a huge y moves it to an end of the range.
        other["y"][rows] = 1e6 * (-1) ** unit
        moved = np.abs(
            np.array(sum_estimates(pl.DataFrame(other), **CLAIM, **asked).released(with_failures=True)) - before
        ).sum()
        largest = max(largest, moved)
        assert moved <= EstimateSums.sensitivity
    assert largest > GRID / 4


def test_an_estimate_whose_halves_overflow_is_not_computed():
    # Each half's slope is a double, twice that of all rows is none: infinity less infinity would leave the range.
    x = 1e-155 * (1 + 1e-3 * RNG(1).random(60))
    asked = {"formula": "y ~ 0 + x", "coefficient": "x", "lower": -1.0, "upper": 1.0, "n_partitions": 6}
    sums = sum_estimates(pl.DataFrame({"x": x, "y": 1.2e308 * x}), **asked, random_state=1)
    assert sums.released(with_failures=True) == (0, 0, 6 * (GRID // 2))


def test_without_noise_the_posterior_is_the_t_interval():
    values = RNG(2).gamma(2.0, 0.1, size=60)
    found = coefficient_posterior(
        released(values, lower=0.0, upper=2.0, epsilon=5e4, with_failures=False), allow_clipping=False
    )
    exact = stats.t(59, values.mean(), values.std(ddof=1) / np.sqrt(60))
    assert found.mean == pytest.approx(exact.mean(), abs=2e-3 * exact.std())
    # Quantile nodes of chi-square and a grid of spreads: some hundredths of a standard error.
    assert np.array(found.interval()) == pytest.approx(np.array(exact.interval(0.95)), abs=0.08 * exact.std())
    assert found.noise_sd < 0.01 * found.sd
    assert found.prob_greater(exact.ppf(0.3)) == pytest.approx(0.7, abs=0.02)


def test_noise_alone_is_the_noise_law():
    # Estimates that are all alike: what is left is two-sided geometric noise of scale 2 G / epsilon on their sum.
    found = coefficient_posterior(released(np.zeros(4000), epsilon=1.0, with_failures=False))
    scale = 2 / 4000
    assert found.noise_sd == pytest.approx(np.sqrt(2) * scale, rel=0.05)
    low, high = found.interval()
    assert (high - low) == pytest.approx(2 * np.log(20) * scale, rel=0.35)
    assert found.sampling_sd < found.noise_sd


def test_clipping_takes_no_more_than_the_bound():
    rng = RNG(4)
    for _ in range(200):
        values, masses = rng.normal(0, rng.gamma(1.0), size=5), rng.dirichlet(np.ones(5))
        mean = rng.uniform(-1, 1)
        values += mean - masses @ values
        low, high = _taken_by_clipping(np.array(mean), np.sqrt(masses @ (values - mean) ** 2))
        taken = mean - masses @ np.clip(values, -1, 1)
        assert -low - 1e-12 <= taken <= high + 1e-12
    # Half the mass a standard deviation either side of the end: the law that reaches the bound.
    sigma = 0.7
    gap = np.hypot(sigma, 0.5)
    low, high = _taken_by_clipping(np.array(0.5), np.array(sigma))
    share = 0.5 * (1 - 0.5 / gap)
    assert share * gap == pytest.approx(high)


def test_the_allowance_is_the_least_that_covers_at_every_bias():
    for most in (0.02, 0.3, 1.0, 3.0, 20.0):
        half = stats.norm.isf(0.025) * np.sqrt(1 + most**2 * _allowance(most))
        cover = [stats.norm.cdf(half - b) - stats.norm.cdf(-half - b) for b in np.linspace(0, most, 101)]
        assert min(cover) == pytest.approx(0.95, abs=1e-6) and cover[-1] == min(cover)
    # A small bias of either sign takes half its square times the curvature, which its square as a variance gives back.
    assert _allowance(0.01) == pytest.approx(1, abs=1e-4)


def test_intervals_cover_at_either_bound_of_what_clipping_took():
    # No noise, and estimates at the quantiles of a normal law: another sample's interval is this one, moved by the
    # error of its mean. A bias drawn evenly within the bounds (a third of the variance) covers .90 there.
    m, law = 400, stats.norm(0.4, 0.15)
    values = law.ppf((np.arange(m) + 0.5) / m).clip(-1, 1)
    low, high = (float(one) for one in _taken_by_clipping(values.mean(), values.std()))
    ends = np.array(coefficient_posterior(released(values, epsilon=1e4)).interval())
    for truth in (values.mean() - low, values.mean() + high):
        below, above = stats.norm.cdf((ends - truth) * np.sqrt(m) / values.std())
        assert above - below == pytest.approx(0.95, abs=0.01)


def test_least_coverage_is_the_intervals_where_nothing_is_cut_off():
    values = stats.norm(0.1, 0.1).ppf((np.arange(4000) + 0.5) / 4000)
    assert least_coverage(values, -1.0, 1.0, size=400, noise_sd=0.003) == pytest.approx(0.95, abs=1e-3)


@pytest.mark.slow
def test_least_coverage_is_that_of_the_law_that_reaches_the_bound():
    """Estimates of two values, one of them far out, at which clipping takes all that a spread so large admits.

    Simulated intervals cover what is said. False-alarm rate .001: 3.3 standard errors of 400 releases.
    """
    share, far, rng = 0.01, 3.0, RNG(8)
    law = np.r_[np.full(99, -far * share / (1 - share)), far]
    said = least_coverage(law, -1.5, 1.5, size=1000, noise_sd=2 * np.sqrt(2) / 1000)
    held = []
    for _ in range(400):
        values = np.where(rng.random(1000) < share, law[-1], law[0])
        low, high = coefficient_posterior(
            released(values, lower=-1.5, upper=1.5, seed=int(rng.integers(1 << 30)))
        ).interval()
        held.append(low <= law.mean() <= high)
    assert np.mean(held) == pytest.approx(said, abs=3.3 * np.sqrt(said * (1 - said) / 400))


def test_the_interval_allows_for_clipping():
    values = RNG(5).lognormal(-1.3, 0.8, size=1000)
    found, without = (coefficient_posterior(released(values, epsilon=50.0), allow_clipping=c) for c in (True, False))
    assert without.interval()[1] < values.mean() and without.clipping_sd == 0.0
    assert found.interval()[0] < values.mean() < found.interval()[1]
    wide, narrow = (coefficient_posterior(released(values, lower=-u, upper=u, epsilon=50.0)) for u in (30.0, 3.0))
    assert wide.clipping_sd < 0.2 * narrow.clipping_sd


def rare_estimates(rng, m=1000, size=100):
    """What `sum_estimates` sums of `skewed` records, all partitions at once: differences of means, halves taken off."""
    x = rng.random((m, size)) < 0.05
    y = np.where(rng.random((m, size)) < 0.03 + 0.06 * x, np.exp(rng.normal(1.0, 1.2, (m, size))), 0.0)

    def difference(x, y):
        with np.errstate(invalid="ignore"):
            return (x * y).sum(axis=1) / x.sum(axis=1) - (~x * y).sum(axis=1) / (~x).sum(axis=1)

    halves = [difference(x[:, at], y[:, at]) for at in (slice(None, None, 2), slice(1, None, 2))]
    found = 2 * difference(x, y) - 0.5 * (halves[0] + halves[1])
    return found[np.isfinite(found)]


@pytest.mark.slow
def test_the_range_of_a_pilot_covers_the_mean_of_a_rare_group_in_a_thousand_partitions():
    """Coverage is .93 to .97 over 300 data sets, give or take 3.3 standard errors: false-alarm rate .001."""
    frame, truth = skewed(10_000, RNG(99)), 0.06 * np.exp(1 + 1.2**2 / 2)
    asked = CLAIM | {"n_units": 100_000, "n_partitions": [1000], "threshold": 0.0, "direction": ">"}
    tried = pilot_shares(frame, **asked)
    lower, upper = float(tried["range_from"][0]), float(tried["range_to"][0])
    held = []
    for seed in range(300):
        values = rare_estimates(RNG([seed, 1000]))
        low, high = coefficient_posterior(released(values, m=1000, lower=lower, upper=upper, seed=seed)).interval()
        held.append(low <= truth <= high)
    stderr = np.sqrt(0.95 * 0.05 / 300)
    print(f"range {lower:.2f} to {upper:.2f}: {np.mean(held):.3f}")
    assert 0.93 - 3.3 * stderr < np.mean(held) < 0.97 + 3.3 * stderr


def test_failures_are_told_apart_from_estimates_in_the_middle():
    values = np.full(300, 0.5)
    with_failures = coefficient_posterior(released(values, m=400, epsilon=20.0))
    assert with_failures.mean == pytest.approx(0.5, abs=0.02)
    assert with_failures.computed == pytest.approx(300, abs=5)
    # Not released, a failure counts as an estimate in the middle of the range: 300 times .5 of 400.
    without = coefficient_posterior(released(values, m=400, epsilon=20.0, with_failures=False))
    assert without.mean == pytest.approx(0.375, abs=0.02)


@pytest.mark.slow
def test_the_posterior_is_calibrated_under_its_own_model():
    # Truth from the prior, normal estimates, the real mechanism: ranks uniform by Kolmogorov-Smirnov at level 1e-4.
    rng, ranks, m = RNG(7), [], 200
    while len(ranks) < 300:
        mu, sigma = rng.uniform(-1, 1), rng.uniform(0, 1)
        if mu**2 + sigma**2 > 1 or abs(mu) + 3 * sigma > 1:
            continue  # where normal estimates leave the range, the model is another
        failed = rng.binomial(m, rng.beta(0.5, 4.5))
        found = coefficient_posterior(
            released(rng.normal(mu, sigma, m - failed), m=m, epsilon=2.0, seed=len(ranks)), allow_clipping=False
        )
        ranks.append(1 - found.prob_greater(mu))
    assert stats.kstest(ranks, "uniform").pvalue > 1e-4


def test_a_share_misleads_where_small_samples_are_skewed_and_the_mean_does_not():
    frame = skewed(60_000, RNG(11))
    whole = np.polyfit(frame["x"], frame["y"], 1)[0]
    assert whole > 0.1
    counts = count_partitions(frame, **CLAIM, threshold=0.1, direction=">", n_partitions=1000, random_state=4)
    share = posterior(release_counts(counts, epsilon=2.0, rng=RNG(5)))
    # True of all records, and false in most partitions of 60 rows: the median of a skewed estimate is not its mean.
    assert share.prob_greater(0.5) < 0.01
    sums = sum_estimates(frame, **CLAIM, lower=-2, upper=6, n_partitions=100, random_state=4)
    found = coefficient_posterior(release_counts(sums, epsilon=2.0, rng=RNG(6)))
    assert found.prob_greater(0.1) > 0.9
    low, high = found.interval()
    assert low < whole < high
    assert found.widening < 1.2


@pytest.mark.slow
@pytest.mark.parametrize("m", [50, 500])
def test_intervals_cover_on_heavy_tails(m):
    # y = x / 2 plus a lognormal of sd 1.5 (log scale) in a tenth of the rows, its size tied to x: 200 data sets,
    # .95 within four standard errors, .0154 each, on the low side; wider is what released spreads cost.
    truth, inside, rng = 0.5 + 0.1 * np.exp(1.5**2 / 2) * 0.3, 0, RNG(m)
    for _ in range(200):
        x = rng.normal(size=20_000)
        tail = np.where(rng.random(x.size) < 0.1, np.exp(rng.normal(0, 1.5, x.size)), 0) * (1 + 0.3 * x)
        frame = pl.DataFrame({"x": x, "y": 0.5 * x + tail})
        sums = sum_estimates(frame, **CLAIM, lower=-1, upper=2, n_partitions=m, random_state=rng)
        low, high = coefficient_posterior(release_counts(sums, epsilon=1.0, rng=rng)).interval()
        inside += low <= truth <= high
    assert inside / 200 >= 0.95 - 4 * 0.0154


def test_halves_take_out_the_bias_of_small_logistic_fits():
    rng = RNG(8)
    x = rng.normal(size=(16_000, 3))
    y = rng.random(len(x)) < 1 / (1 + np.exp(0.5 - x.sum(axis=1)))
    frame = pl.DataFrame({"x": x[:, 0], "z": x[:, 1], "w": x[:, 2], "y": y.astype(float)})
    asked = {"lower": -4, "upper": 6, "n_partitions": 160, "family": "logistic", "random_state": 3}
    # Without noise: the mean of 160 fits of 100 rows, standard error .025. Theory puts its bias near .07.
    biased, corrected = (
        1 + 5 * sums.total / GRID / (160 - sums.not_computed)
        for sums in (
            sum_estimates(frame, formula="y ~ x + z + w", coefficient="x", **asked, corrected=c) for c in (False, True)
        )
    )
    assert biased - 1 > 0.04
    assert abs(corrected - 1) < 0.06
    assert biased - corrected > 0.03


def test_sums_and_counts_are_released_together(tmp_path):
    release = release_counts(
        {
            "share": PartitionCounts(30, 8, 2),
            "mean": EstimateSums(0, 40 * GRID // 100, 0, 0.25, 0.75, 40),
        },
        epsilon=2.0,
        rng=RNG(1),
    )
    assert release.tables[1].sensitivity == EstimateSums.sensitivity
    assert release.tables[1].noise.spread == EstimateSums.sensitivity / 1.0
    release.write(tmp_path / "release.json")
    again = read_release(tmp_path / "release.json")
    assert coefficient_posterior(again).mean == coefficient_posterior(release, question="mean").mean
    trace = draw_posterior(release, draws=200, chains=2, random_seed=3)
    assert trace["posterior"]["coefficient"].sizes == {"chain": 2, "draw": 200, "mean_question": 1}
    assert trace["posterior"]["r"].sizes == {"chain": 2, "draw": 200, "question": 1}
    found = coefficient_posterior(release)
    assert float(trace["posterior"]["coefficient"].mean()) == pytest.approx(found.mean, abs=4 * found.sd / 20)
    with pytest.raises(InputError, match="holds no verification counts"):
        posterior(release, question="mean")
    only = release_counts(EstimateSums(0, 0, 0, 0.0, 1.0, 10), epsilon=1.0, rng=RNG(1))
    assert set(draw_posterior(only, draws=10)["posterior"].data_vars) == {"coefficient"}


def test_nothing_confidential_is_printed():
    assert "12345" not in repr(EstimateSums(12345, 678, 9, 0.0, 1.0, 50))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lower": 1.0}, "lower < upper"),
        ({"upper": float("inf")}, "must be a finite number"),
        ({"lower": "0"}, "must be a finite number"),
        ({"coefficient": "z"}, "not in the model"),
        ({"n_partitions": 30}, "60 partitions are more than the 50 units"),
    ],
)
def test_bad_input(change, message):
    frame = pl.DataFrame({"x": np.arange(50.0), "y": np.arange(50.0) % 7})
    with pytest.raises(InputError, match=message):
        sum_estimates(frame, **(CLAIM | {"lower": 0.0, "upper": 1.0, "n_partitions": 5} | change))


@pytest.mark.parametrize("prior", [(1.0,), (1.0, 2.0, 3.0), 1.0, (1.0, 0.0)])
def test_the_prior_of_failures_is_two_numbers(prior):
    release = released(np.arange(50.0), epsilon=1.0)
    with pytest.raises(InputError, match="give the two numbers of a beta law"):
        coefficient_posterior(release, failed_prior=prior)


def test_releases_without_sums_are_refused():
    counts = release_counts(PartitionCounts(5, 4, 1), epsilon=1.0, rng=RNG(1))
    for release, message in ((counts, "no sums of estimates"), (3, "starts from a Release")):
        with pytest.raises(InputError, match=message):
            coefficient_posterior(release)
