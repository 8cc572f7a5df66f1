"""Many posteriors at once: the same as one at a time, calibrated, and fast."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.errors import InputError
from dpbayes.privacy.laws import DiscreteGaussian, Laplace, TwoSidedGeometric
from dpbayes.privacy.sampling import release_values
from dpbayes.verifier.every_release import posterior_of_many
from dpbayes.verifier.exact import posterior_of_counts

RNG = np.random.default_rng


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 7, 30]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([TwoSidedGeometric(2.0), Laplace(0.7), DiscreteGaussian(3.0)]),
    st.sampled_from([(1.0, 1.0, 1.0), (0.5, 0.5, 0.5), (4.0, 1.5, 0.1), (2.0, 0.7), (0.1, 0.3, 1.0), (0.02, 2.0)]),
)
def test_each_entry_is_the_exact_posterior(m, seed, law, alpha):
    rng = RNG(seed)
    exact_counts = rng.multinomial(m, rng.dirichlet(alpha), size=3)
    noisy = release_values(exact_counts, law, rng=rng)
    batch = posterior_of_many(noisy, law, m, alpha=alpha)
    for i, row in enumerate(noisy):
        exact = posterior_of_counts(row, law, m, alpha=alpha)
        assert batch.mean[i] == pytest.approx(exact.mean, abs=1e-12)
        assert batch.sd[i] == pytest.approx(exact.sd, rel=1e-9, abs=1e-12)
        # The interpolation error that the module states: 1.5e-5 in probability.
        assert float(exact.r.cdf(batch.low[i])) == pytest.approx(0.025, abs=1.5e-5)
        assert float(exact.r.cdf(batch.high[i])) == pytest.approx(0.975, abs=1.5e-5)


def test_modes_are_close_to_the_exact_ones():
    rng = RNG(3)
    law = TwoSidedGeometric(2.0)
    noisy = release_values(rng.multinomial(50, rng.dirichlet((1, 1, 1), size=60)), law, rng=rng)
    batch = posterior_of_many(noisy, law, 50)
    exact = [posterior_of_counts(row, law, 50).modes["r-hat"] for row in noisy]
    assert np.abs(batch.mode - exact).max() < 1e-3


@pytest.mark.parametrize(("m", "alpha"), [(301, (1.0, 1.0, 1.0)), (40, (0.01, 1.0, 1.0)), (5000, (1.0, 2.0))])
def test_beyond_the_shared_table_each_release_has_its_own_posterior(m, alpha):
    law = TwoSidedGeometric(2.0)
    counts = [[0.7 * m, 0.3 * m, 0.0][: len(alpha)], [0.1 * m, 0.8 * m, 0.1 * m][: len(alpha)]]
    batch = posterior_of_many(np.floor(counts), law, m, alpha=alpha)
    for i, row in enumerate(np.floor(counts)):
        exact = posterior_of_counts(row, law, m, alpha=alpha)
        assert (batch.mean[i], batch.sd[i], batch.mode[i]) == (exact.mean, exact.sd, exact.modes["r-hat"])
        assert (batch.low[i], batch.high[i]) == exact.interval()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_partitions": 0}, "at least 1"),
        ({"alpha": (0, 1, 1)}, "positive"),
        ({"noisy": [1, 2, 3]}, "shape"),
        ({"prob": 1.0}, "prob"),
        ({"noisy": [[1, 2, np.nan]]}, "not finite"),
        ({"noisy": [[1, 2, 0.5]]}, "not whole"),
        ({"noisy": [[1, 2, 1], [1, 2, 0]], "n_partitions": 4, "noise": TwoSidedGeometric(1e-310)}, "explain"),
    ],
)
def test_bad_input(change, message):
    arguments = {"noisy": [[1, 2, 3]], "noise": TwoSidedGeometric(2.0), "n_partitions": 6} | change
    with pytest.raises(InputError, match=message):
        posterior_of_many(arguments.pop("noisy"), arguments.pop("noise"), arguments.pop("n_partitions"), **arguments)


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("m", [10, 50, pytest.param(200, marks=pytest.mark.slow)])
def test_intervals_cover(m, epsilon):
    # 20,000 releases with the truth drawn from the prior: the coverage of an exact posterior is .95, its standard error
    # .0015, so [.94, .96] is 6.5 standard errors either way (false alarm below 1e-10 each).
    law = TwoSidedGeometric.from_epsilon(epsilon, sensitivity=2)
    rng = RNG(int(1000 * epsilon) + m)
    p = rng.dirichlet((1, 1, 1), size=20_000)
    batch = posterior_of_many(release_values(rng.multinomial(m, p), law, rng=rng), law, m)
    r = p[:, 0] / p[:, :2].sum(axis=1)
    assert 0.94 <= ((batch.low <= r) & (r <= batch.high)).mean() <= 0.96
