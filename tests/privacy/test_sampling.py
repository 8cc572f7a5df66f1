"""Samplers: the right law (G tests), the right interface, and no trace of the value in the low bits.

False-alarm rates: a simulated test has a fixed seed, so it cannot flake, and rejects at 1e-6. OpenDP cannot be seeded,
so every test of it rejects at 1e-9; the dozen here raise a false alarm once in 80 million runs.
"""

import math

import numpy as np
import pytest
from opendp.mod import Measurement
from scipy import stats

from dpbayes.errors import InputError
from dpbayes.privacy.adjacency import l1_sensitivity_of_counts, l2_sensitivity_of_counts
from dpbayes.privacy.laws import DiscreteGaussian, Gaussian, Laplace, TwoSidedGeometric
from dpbayes.privacy.sampling import release_values, sampler_name

SIMULATED_ALARM = 1e-6
OPENDP_ALARM = 1e-9
DISCRETE = [TwoSidedGeometric, DiscreteGaussian]
CONTINUOUS = [Laplace, Gaussian]


def simulated(law, shape, seed):
    """Noise alone: what a release of zeros is."""
    return release_values(np.zeros(shape, dtype=np.int64), law, rng=np.random.default_rng(seed))


def discrete_p_value(draws, law):
    """G test over single integers, neighbours pooled until a cell expects at least 20 draws."""
    radius = law.tail_radius(1e-15)
    support = np.arange(-radius, radius + 1)
    expected = np.exp(law.log_prob(support)) * draws.size
    observed = np.bincount(np.clip(draws, -radius, radius) + radius, minlength=support.size)
    group = np.minimum((np.cumsum(expected) / 20).astype(int), int(draws.size / 20) - 1)
    cells = np.unique(group, return_inverse=True)[1]
    return g_test(np.bincount(cells, observed), np.bincount(cells, expected))


def continuous_p_value(draws, law, cells=50):
    """G test over cells of equal probability."""
    u = law.cdf(draws)
    observed = np.bincount(np.minimum((u * cells).astype(int), cells - 1), minlength=cells)
    return g_test(observed, np.full(cells, draws.size / cells))


def g_test(observed, expected):
    if expected.size == 1:
        return 1.0
    expected = expected * observed.sum() / expected.sum()
    return stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue


@pytest.mark.parametrize("parameter", [0.05, 0.2, 0.3, 0.49, 0.5, 1.0, 2.5, 20.0, 300.0, 1e4])
@pytest.mark.parametrize("cls", DISCRETE)
def test_simulated_discrete_law(cls, parameter):
    draws = simulated(cls(parameter), 200_000, 20261120)
    assert discrete_p_value(draws, cls(parameter)) > SIMULATED_ALARM


@pytest.mark.parametrize("cls", CONTINUOUS)
def test_simulated_continuous_law(cls):
    draws = simulated(cls(3.0), 200_000, 20261120)
    assert continuous_p_value(draws, cls(3.0)) > SIMULATED_ALARM


@pytest.mark.parametrize("parameter", [0.4, 2.5, 20.0])
@pytest.mark.parametrize("cls", DISCRETE)
def test_released_discrete_law(cls, parameter):
    values = np.arange(20_000)
    noise = release_values(values, cls(parameter)) - values
    assert discrete_p_value(noise, cls(parameter)) > OPENDP_ALARM


@pytest.mark.parametrize("cls", CONTINUOUS)
def test_released_continuous_law(cls):
    noise = release_values(np.full(10_000, 17), cls(3.0)) - 17
    assert continuous_p_value(noise, cls(3.0)) > OPENDP_ALARM


@pytest.mark.parametrize("cls", DISCRETE)
def test_the_g_test_notices_a_scale_off_by_five_percent(cls):
    draws = simulated(cls(2.5 * 1.05), 200_000, 1)
    assert discrete_p_value(draws, cls(2.5)) < OPENDP_ALARM


def test_released_counts_are_independent_across_cells():
    # Pairs of cells: the correlation of 20,000 independent pairs is normal with deviation 1 / sqrt(20,000).
    pairs = release_values(np.zeros((20_000, 2), dtype=np.int64), TwoSidedGeometric(20.0))
    r = np.corrcoef(pairs.T)[0, 1]
    assert 2 * stats.norm.sf(abs(r) * math.sqrt(20_000)) > OPENDP_ALARM


@pytest.mark.parametrize("scale", [1e9, 2.0**52])
def test_huge_scales_keep_the_law(scale):
    draws = simulated(TwoSidedGeometric(scale), 50_000, 4) / scale
    # At this scale the law is Laplace to a relative 1 / scale.
    assert continuous_p_value(draws, Laplace(1.0)) > SIMULATED_ALARM
    draws = simulated(DiscreteGaussian(scale), 50_000, 4) / scale
    assert continuous_p_value(draws, Gaussian(1.0)) > SIMULATED_ALARM


@pytest.mark.parametrize("cls", DISCRETE)
def test_tiny_scales_add_nothing(cls):
    for parameter in (1e-300, 1e-9, 1e-3):
        assert not simulated(cls(parameter), 1000, 2).any()
        assert not release_values(np.zeros(10, dtype=int), cls(parameter)).any()


# --- float granularity -----------------------------------------------------------------------------------------------


def coarse_share(values):
    """Near zero, how many of the values are multiples of 2^-53, and of how many."""
    near = values[np.abs(values) < 0.25]
    return int(np.count_nonzero(near * 2.0**53 == np.rint(near * 2.0**53))), near.size


def lattice_p_value(zeros, ones):
    """Do the doubles near 0 look the same whether the confidential value is 0 or 1?"""
    (a, m), (b, n) = coarse_share(zeros), coarse_share(ones)
    return stats.fisher_exact([[a, m - a], [b, n - b]]).pvalue


@pytest.mark.parametrize("law", [Laplace(1.0), Gaussian(1.0)])
def test_a_release_shows_no_float_lattice(law):
    zeros = release_values(np.zeros(8_000), law)
    ones = release_values(np.ones(8_000), law)
    assert lattice_p_value(zeros, ones) > OPENDP_ALARM
    # A double near 0 is a multiple of 2^-53 with probability 1/6 or so; the naive sum 1 + noise always is one.
    coarse, total = coarse_share(ones)
    assert stats.binomtest(coarse, total, 0.5, alternative="less").pvalue < OPENDP_ALARM


def test_the_lattice_test_catches_the_naive_sum():
    rng = np.random.default_rng(11)
    zeros, ones = 0.0 + rng.laplace(size=8_000), 1.0 + rng.laplace(size=8_000)
    coarse, total = coarse_share(ones)
    assert coarse == total > 500
    assert lattice_p_value(zeros, ones) < OPENDP_ALARM


def test_discrete_releases_are_integers():
    assert release_values([1, 2], TwoSidedGeometric(3.0)).dtype == np.int64


# --- the sampler's own accountant ------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.1, 1 / 3, 0.7, 1.0, 3.0, math.pi, 50.0])
def test_opendp_charges_no_more_than_the_claim(epsilon, adjacency):
    l1, l2 = l1_sensitivity_of_counts(adjacency), l2_sensitivity_of_counts(adjacency)
    for cls, distance in ((TwoSidedGeometric, l1), (Laplace, float(l1))):
        law = cls.from_epsilon(epsilon, sensitivity=l1)
        assert law.measurement().map(distance) <= law.epsilon(sensitivity=l1) <= epsilon
    for cls in (DiscreteGaussian, Gaussian):
        law = cls.from_rho(epsilon, sensitivity=l2)
        assert law.measurement().map(l2) <= epsilon
        assert law.rho(sensitivity=l2) <= epsilon


def test_a_release_uses_opendps_measurement_and_nothing_of_numpys_generator(monkeypatch):
    calls = []
    original = Measurement.__call__
    monkeypatch.setattr(Measurement, "__call__", lambda self, arg: calls.append(len(arg)) or original(self, arg))
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[2]  # noqa: NPY002
    first = release_values(np.zeros(64, dtype=int), TwoSidedGeometric(100.0))
    second = release_values(np.zeros(64, dtype=int), TwoSidedGeometric(100.0))
    assert calls == [64, 64]
    assert np.random.get_state()[2] == before  # noqa: NPY002
    # P(64 independent draws agree) < (1 / 200)^64
    assert not np.array_equal(first, second)


# --- interface -------------------------------------------------------------------------------------------------------


def test_simulation_repeats_from_its_generator():
    for law in (TwoSidedGeometric(5.0), Laplace(5.0), DiscreteGaussian(5.0), Gaussian(5.0)):
        a, b = (simulated(law, (3, 4), 9) for _ in range(2))
        np.testing.assert_array_equal(a, b)
        shifted = release_values(np.full((3, 4), 7), law, rng=np.random.default_rng(9))
        np.testing.assert_array_equal(shifted, 7 + a)


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
@pytest.mark.parametrize("law", [TwoSidedGeometric(2.0), Laplace(2.0), DiscreteGaussian(2.0), Gaussian(2.0)])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 0, 3)])
def test_shapes_survive(law, rng, shape):
    released = release_values(np.zeros(shape, dtype=int), law, rng=rng)
    assert released.shape == shape
    assert released.dtype == (np.int64 if law.is_discrete else np.float64)


@pytest.mark.parametrize("bad", [7, 0, "seed", np.random.RandomState(1), np.random, True])
def test_only_none_or_a_generator_select_a_sampler(bad):
    for call in (
        lambda: sampler_name(bad),
        lambda: release_values([1], TwoSidedGeometric(1.0), rng=bad),
    ):
        with pytest.raises(InputError, match=r"default_rng\(seed\)"):
            call()


@pytest.mark.parametrize(
    ("values", "law"),
    [
        ([1.0, 2.0], TwoSidedGeometric(1.0)),
        ([True, False], DiscreteGaussian(1.0)),
        (np.array([1], dtype=np.uint64), TwoSidedGeometric(1.0)),
        (["1"], TwoSidedGeometric(1.0)),
        (["1"], Laplace(1.0)),
        ([True], Laplace(1.0)),
        ([1j], Gaussian(1.0)),
        ([2**70], TwoSidedGeometric(1.0)),
        (np.array([1.0], dtype=np.longdouble), Gaussian(1.0)),
    ],
)
@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
def test_values_of_the_wrong_type_are_refused(values, law, rng):
    with pytest.raises(InputError, match="got an array of"):
        release_values(values, law, rng=rng)


def test_no_error_shows_a_confidential_value():
    with pytest.raises(InputError, match="must be finite") as caught:
        release_values([31337.5, math.nan], Laplace(1.0))
    assert "31337" not in str(caught.value)
    with pytest.raises(InputError) as caught:
        release_values([31337.5], TwoSidedGeometric(1.0))
    assert "31337" not in str(caught.value)


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
def test_noise_that_would_saturate_integers_is_refused(rng):
    for cls in DISCRETE:
        with pytest.raises(InputError, match=r"2\*\*52"):
            release_values([1], cls(1e16), rng=rng)


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)])
def test_sums_saturate_instead_of_wrapping(rng):
    ends = np.iinfo(np.int64)
    top = release_values(np.full(200, ends.max), TwoSidedGeometric(1e3), rng=rng)
    bottom = release_values(np.full(200, ends.min), TwoSidedGeometric(1e3), rng=rng)
    assert (top > 0).all() and (bottom < 0).all()
    # Half of the noise points outwards; P(none of 200 does) < 2^-199.
    assert (top == ends.max).any() and (bottom == ends.min).any()
