import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbayes.bloom.filters import transition_matrix
from dpbayes.errors import InputError
from dpbayes.runs.registry import system_module

PAPER = system_module("study:bloom_signal")
signal_to_noise, skewed_counts = PAPER.signal_to_noise, PAPER.skewed_counts


def test_known_ratios():
    assert signal_to_noise(np.full(4, 0.25), flip_prob=0.1).largest[0] == pytest.approx(14.2222, abs=5e-5)
    skewed = signal_to_noise(skewed_counts(3, skewness=3.0), flip_prob=0.05)
    assert skewed.ratio(0, 7) == pytest.approx(83.1221, abs=5e-5)
    # The paper's second observation, that 0 -> 2^k - 1 is the largest, fails here.
    assert skewed.largest[0] == pytest.approx(93.947, abs=5e-4)
    assert skewed.largest[1] == (4, 7)


@pytest.mark.parametrize(("k", "p"), [(1, 0.3), (3, 0.1), (5, 0.05), (8, 0.2)])
def test_all_mass_on_one_logo(k, p):
    counts = np.zeros(2**k)
    counts[0] = 1.0
    signal = signal_to_noise(counts, flip_prob=p)
    closed = ((1 - p) ** 2 / p + p**2 / (1 - p)) ** k - 1
    assert signal.ratio(0, 2**k - 1) == pytest.approx(closed, rel=1e-9)
    assert signal.largest[1] == (0, 2**k - 1)


@pytest.mark.parametrize("k", [2, 4])
def test_uniform_counts_in_the_walsh_basis(k, p=0.15):
    """For uniform shares B = 2^-k (I - T^2) is diagonal in the Walsh basis, with eigenvalues of T (1 - 2p)^|S|."""
    size = 2**k
    signal = signal_to_noise(np.full(size, 1 / size), flip_prob=p)
    walsh = np.array([[(-1.0) ** np.bitwise_count(i & s) for i in range(size)] for s in range(size)]) / np.sqrt(size)
    keep = (1 - 2 * p) ** np.bitwise_count(np.arange(size)).astype(float)
    for target in (1, size - 1):
        change = walsh[1:, target] - walsh[1:, 0]
        closed = size * (keep[1:] ** 2 * change**2 / (1 - keep[1:] ** 2)).sum()
        assert signal.ratio(0, target) == pytest.approx(closed, rel=1e-10)


@given(k=st.integers(1, 4), p=st.floats(0.02, 0.45), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_against_the_pseudo_inverse(k, p, seed):
    rng = np.random.default_rng(seed)
    counts = rng.dirichlet(np.full(2**k, 0.5)) * 10
    signal = signal_to_noise(counts, flip_prob=p)
    np.testing.assert_allclose(signal.covariance @ np.ones(2**k), 0.0, atol=1e-12)
    inverse = np.linalg.pinv(signal.covariance, rcond=1e-13, hermitian=True)
    source, target = rng.choice(2**k, size=2, replace=False)
    change = transition_matrix(k, p)[:, target] - transition_matrix(k, p)[:, source]
    assert signal.ratio(source, target) == pytest.approx(change @ inverse @ change, rel=1e-6)
    assert signal.matrix[source, target] == pytest.approx(signal.ratio(source, target), rel=1e-8)
    best = signal.coefficients(source, target)
    assert np.linalg.norm(best) == pytest.approx(1.0)
    reached = (best @ change) ** 2 / (best @ signal.covariance @ best)
    assert reached == pytest.approx(signal.ratio(source, target), rel=1e-6)
    other = rng.normal(size=2**k)
    assert (other @ change) ** 2 / (other @ signal.covariance @ other) <= reached * (1 + 1e-9)


def test_scaling_and_ten_filters():
    counts = skewed_counts(10, skewness=2.0)
    signal = signal_to_noise(counts, flip_prob=0.1)
    assert signal_to_noise(100 * counts, flip_prob=0.1).ratio(3, 500) == pytest.approx(signal.ratio(3, 500) / 100)
    assert signal.matrix.shape == (1024, 1024)
    np.testing.assert_allclose(signal.matrix, signal.matrix.T, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("counts", [[1, 2, 3], [1, -1], [0, 0], [[1, 2]], [1, np.nan], np.ones(2048)])
def test_bad_counts(counts):
    with pytest.raises(InputError):
        signal_to_noise(counts, flip_prob=0.1)


def test_bad_change():
    signal = signal_to_noise([1, 1], flip_prob=0.1)
    with pytest.raises(InputError, match="from 0 to 1, got 2"):
        signal.ratio(0, 2)
    with pytest.raises(InputError, match="itself"):
        signal.coefficients(1, 1)


def test_the_papers_figures_are_drawn():
    for name in ("signal_by_skewness_figure", "signal_heatmaps_figure", "signal_coefficients_figure"):
        figure = getattr(PAPER, name)(n_filters=2)
        assert figure.axes
        plt.close(figure)
